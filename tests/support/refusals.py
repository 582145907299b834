"""Values that are refused, and tables of them: (argument, type of error) -> values, checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

Refused = Mapping[tuple[str, type[Exception]], Iterable[Any]]


class Raises:
    """A broken object of another library. It does not define `__bool__`, because that error would be the caller's."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array")


class array:  # noqa: N801  # named as the standard library's, whose attributes reprlib then expects
    pass


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def itself() -> list[Any]:
    """Return a list that contains itself."""
    value: list[Any] = []
    value.append(value)
    return value


def check_refused(function: Callable[..., Any], given: Mapping[str, Any], table: Refused) -> None:
    """Check that each value raises exactly this error, and that the message names the argument."""
    for (name, error), values in table.items():
        for value in values:
            with pytest.raises(error, match=rf"\b{name}\b") as caught:
                function(**{**given, name: value})
            assert type(caught.value) is error, f"{name}={value!r}: {caught.value!r}"
