"""`start` writes the exercises into a file; `write_page` writes a page on which they run in a browser."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from importlib.resources import files
from pathlib import Path

from minibert._utils.files import check_output, write_whole

PYODIDE = "https://cdn.jsdelivr.net/pyodide/v314.0.3/full/"
"""Python and NumPy in WebAssembly, as its makers offer them."""


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


def write_page(path: str | Path, pyodide: str | None = None) -> None:
    """Write a page of one file that runs tiny.py and the exercises in a browser.

    The page has the source of minibert. It fetches Python and NumPy from the address `pyodide`, a folder of a release
    of Pyodide (default: `PYODIDE`), and the model from the hub, or reads it from files that the user chooses.

    Raises
    ------
    OSError, ValueError
        The file cannot be written, or its name does not end with .html.
    """
    check_output(path, (".html",))
    root, sources = Path(__file__).parent.parent, io.BytesIO()
    with zipfile.ZipFile(sources, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted([*root.rglob("*.py"), *root.rglob("*.txt")]):
            name = f"minibert/{source.relative_to(root).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name), source.read_bytes(), zipfile.ZIP_DEFLATED)
    page = (files(__package__) / "browser.html").read_text(encoding="utf-8")
    address = json.dumps((pyodide or PYODIDE).rstrip("/") + "/").replace("<", "\\u003c")
    page = page.replace("@PYODIDE@", address).replace("@ARCHIVE@", base64.b64encode(sources.getvalue()).decode())
    write_whole(path, lambda file: file.write(page.encode()))
