"""`start`: write the exercises, as a Python file or as a notebook."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from minibert._utils.files import check_output
from minibert.learn.right import RIGHT


def start(path: str | Path) -> None:
    """Write the eleven functions to fill in into a new .py file, or into a new notebook, .ipynb.

    Raises
    ------
    OSError, ValueError
        The file exists, or cannot be written; or its name has another suffix.
    """
    suffix = check_output(path, (".py", ".ipynb"))
    text = (files(__package__) / "exercises.txt").read_text(encoding="utf-8")
    content = _notebook(text) if suffix == ".ipynb" else f"# minibert learn check {Path(path).name}\n\n{text}"
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        raise FileExistsError(f"{path} exists already, and is not overwritten; give another name.") from None


def _notebook(text: str) -> str:
    """Return the JSON of a notebook: the cells of the text, and after each function a cell that checks it."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str) -> None:
        cell = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": source.strip("\n")}
        cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))

    for mark, source in re.findall(r"^# %%(.*)\n((?:(?!# %%).*\n)*)", text, re.MULTILINE):
        add("markdown" if mark else "code", re.sub(r"^# ?", "", source, flags=re.MULTILINE) if mark else source)
        for name in () if mark else re.findall(r"^def (\w+)", source, re.MULTILINE):
            if name in RIGHT:
                add("code", f'import minibert.learn\n\nminibert.learn.check("{name}", {name})')
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"
