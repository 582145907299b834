"""The README's tables are written by the benchmarks that measured them."""

from __future__ import annotations

from pathlib import Path


def write_between(path: Path, name: str, text: str) -> None:
    """Replace what stands between the markers ``<!-- name -->`` and ``<!-- /name -->`` of a file.

    Raises
    ------
    ValueError
        The file does not hold each marker exactly once, in this order.
    """
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    old = path.read_text(encoding="utf-8")
    if old.count(first) != 1 or old.count(last) != 1 or old.index(first) > old.index(last):
        raise ValueError(f"{path.name} must hold {first} and then {last}, each once; the table goes between them.")
    before, after = old[: old.index(first) + len(first)], old[old.index(last) :]
    path.write_text(f"{before}\n{text.strip()}\n{after}", encoding="utf-8")
