"""`start`: write the exercises into a file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from minibert._utils.files import check_output


def start(path: str | Path) -> None:
    """Write the eleven functions to fill in into a new .py file.

    Raises
    ------
    OSError, ValueError
        The file exists, or cannot be written; or its name has another suffix.
    """
    check_output(path, (".py",))
    text = (files(__package__) / "exercises.txt").read_text(encoding="utf-8")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(f"# minibert learn check {Path(path).name}\n\n{text}")
    except FileExistsError:
        raise FileExistsError(f"{path} exists already, and is not overwritten; give another name.") from None
