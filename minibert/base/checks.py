"""Checks of arguments that many modules share, and the way in which their messages show a value."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

import numpy as np

__all__ = ["brief", "check_choice", "check_int", "is_cpu"]


class _Brief(reprlib.Repr):
    """reprlib's cut repr; it also shows integers of thousands of digits, which Python refuses to write in decimal."""

    def repr_int(self, x: int, level: int) -> str:
        return f"<an integer of {x.bit_length()} bits>" if x.bit_length() > 4096 else super().repr_int(x, level)


_BRIEF = _Brief()


def brief(value: object) -> str:
    """Show any value in a message: like `repr`, but short, and without an exception whatever the value is."""
    try:
        return _BRIEF.repr(value)
    except Exception:  # reprlib goes by the name of the type: a foreign class can have the name of a built-in one
        return f"<a {type(value).__name__}>"


def is_cpu(device: object) -> bool:
    """Whether a device is the CPU: "cpu", or another library's object that is written so, such as torch's."""
    try:
        return str(device) == "cpu"
    except Exception:  # an integer of thousands of digits, or an object that cannot be written
        return False


def check_int(name: str, value: object, least: int | None = None, most: int | None = None, *, also: str = "") -> int:
    """Return an argument as a Python int after checking its type and its range.

    The result is a Python int, because sums of NumPy's small integers overflow.

    Parameters
    ----------
    name : str
        The argument, for the message.
    value : int or np.integer
        Anything else, bool included, is refused.
    least, most : int, optional
        The range, both ends included; `most` is given with `least` only.
    also : str
        The end of the sentence that says what is expected: ", or None".

    Raises
    ------
    TypeError, ValueError
    """
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_)
    if is_int and (least is None or value >= least) and (most is None or value <= most):  # type: ignore[operator]
        return int(value)  # type: ignore[call-overload]
    span = "" if least is None else f" of at least {least:,}" if most is None else f", {least:,} to {most:,}"
    message = f"{name}={brief(value)}; expected an int{span}{also}."
    raise ValueError(message) if is_int else TypeError(message)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse, with a ValueError, whatever is not among the choices of a parameter."""
    if not isinstance(value, str) or value not in set(choices):
        raise ValueError(f"{name}={brief(value)}; expected one of {', '.join(map(repr, choices))}.")
