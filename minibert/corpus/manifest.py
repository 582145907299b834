"""The manifest of a run: its settings, its counts and its outputs, as JSON with a checksum.

It is beside the output when a run has finished, and in the run's folder before that (run_folder.py).
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from minibert._utils.files import check_format, read_json_object
from minibert.errors import ModelFormatError

__all__ = [
    "FORMAT",
    "check_outputs",
    "is_sealed",
    "manifest_path",
    "outputs_of",
    "read_manifest",
    "seal",
    "unseal",
    "unseal_beside",
    "unsealed",
]

FORMAT = 1
"""The format number of manifest and journal. That of the manifest is also that of the outputs beside it."""


def manifest_path(output: str) -> str:
    """Return the path of the manifest beside the output: the settings and counts of a finished run, as JSON."""
    return f"{output}.manifest.json"


def read_manifest(output: str, again: str = "Without resume=True it is computed again.") -> dict[str, Any] | None:
    """Return the manifest beside an output; None if there is none.

    Parameters
    ----------
    output : str
    again : str
        A sentence on how to compute the output again, for the message.

    Raises
    ------
    ValueError
        It is damaged, or the output is not the file that the run made.
    """
    file = Path(manifest_path(output))
    if not file.exists():
        return None
    manifest = unseal_beside(file)
    check_outputs(manifest, file.parent, again)
    return manifest


def check_outputs(manifest: dict[str, Any], folder: Path, way_on: str) -> None:
    """Raise if an output is missing, or does not have the size that the manifest records."""
    for output in outputs_of(manifest):
        path, size = folder / output["name"], output["size"]
        found = path.stat().st_size if path.exists() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes"
            raise ValueError(f"{path} {state}, but the run that made it has written {size} bytes. {way_on}")


def seal(content: dict[str, Any]) -> bytes:
    """Return an object as one line of JSON, with a checksum of its content added."""
    text = json.dumps(content, ensure_ascii=False)
    return json.dumps({**content, "crc32": zlib.crc32(text.encode())}, ensure_ascii=False).encode()


def unsealed(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line that `seal` made; None if it is damaged."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _checked(content) if isinstance(content, dict) else None


def unseal(path: Path, way_on: str) -> dict[str, Any]:
    """Return the manifest in a file; ValueError if it is damaged, with a sentence on what to do."""
    try:
        content = _checked(read_json_object(path))
    except ModelFormatError as error:
        raise ValueError(f"{error} {way_on}") from error
    if content is None:
        raise ValueError(f"{path} is damaged: its checksum is wrong. {way_on}")
    check_format(content, FORMAT, str(path))
    return content


def is_sealed(path: Path) -> bool:
    """Return whether a file is undamaged and made by `seal`, of any format."""
    try:
        return _checked(read_json_object(path)) is not None
    except (ModelFormatError, OSError):
        return False


def unseal_beside(path: Path) -> dict[str, Any]:
    """Return the manifest beside an output; the errors are those of `unseal`."""
    return unseal(path, "A run writes its manifest there; delete it or move it elsewhere, or give another output.")


def outputs_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the name and size of each output of a run; an empty list if the run has not finished."""
    return [*manifest.get("finished", {}).get("outputs", {}).values()]


def _checked(content: dict[str, Any]) -> dict[str, Any] | None:
    checksum = content.pop("crc32", None)
    return content if checksum == zlib.crc32(json.dumps(content, ensure_ascii=False).encode()) else None
