"""A comparison of nested answers, which names the first place where they differ."""

from __future__ import annotations

from typing import Any


def difference(ours: Any, theirs: Any, path: str = "answer", *, atol: float = 1e-5) -> str | None:
    """Return where two answers differ in nesting, keys, order, texts or whole numbers, or by more than `atol`.

    None means that they are the same. NumPy's numbers in their answers count as Python's.
    """
    if isinstance(theirs, dict | list) and type(ours) is type(theirs) and len(ours) == len(theirs):
        keys = theirs if isinstance(theirs, dict) else range(len(theirs))
        if isinstance(theirs, list) or list(ours) == list(theirs):
            places = (difference(ours[key], theirs[key], f"{path}[{key!r}]", atol=atol) for key in keys)
            return next(filter(None, places), None)
    elif theirs is None or isinstance(theirs, str | int):
        if type(ours) is type(theirs) and ours == theirs:
            return None
    elif type(ours) is float and abs(ours - float(theirs)) <= atol:
        return None
    return f"{path}: {ours!r} and {theirs!r}"
