"""The manifest of a run: its settings, the checksums of its input and, when it has ended, its outputs and counts."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.files import check_format, write_whole
from minibert.corpus.sources import Source
from minibert.models.fingerprint import NOT_COMPARED

_BLOCK = 2**20  # bytes read at a time

FORMAT = 3
"""The format number of a manifest.

minibert 0.3.0 wrote format 1. Its finished runs are read; its unfinished ones cannot be resumed.
"""


def path_of(output: str) -> str:
    """Return the path of the manifest beside the output: the settings and counts of a finished run, as JSON."""
    return f"{output}.manifest.json"


def read(
    path: Path, way_on: str = "A run writes its manifest there; delete it or move it elsewhere, or give another output."
) -> dict[str, Any] | None:
    """Return a manifest; None if there is none, ValueError with a sentence on what to do if it is damaged."""
    if not os.path.lexists(path):
        return None
    try:
        content: Any = json.loads(path.read_bytes()) if path.is_file() else None  # reading a pipe might never end
        if content.get("format", 0) in range(FORMAT + 1):  # else it is refused below
            _check_parts(content)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = f": {error}" if isinstance(error, OSError | ValueError) else ""
        raise ValueError(f"{path} is damaged, or not a manifest of minibert{reason}. {way_on}") from error
    check_format(content, FORMAT, str(path))
    return dict(content)


def _check_parts(content: Any) -> None:
    """Raise some error if a part that is read without further checks is missing, or is of another type."""
    sources = [Source(**source) for source in content["inputs"]]
    ended = {"counts": {}, "outputs": {}, **content.get("finished", {})}
    mappings = content["settings"], content.get("fingerprint_parts", {}), *ended["outputs"].values(), ended["counts"]
    if not all(isinstance(part, dict) for part in mappings) or len(sources) != len(content["checksums"]):
        raise TypeError
    np.asarray(content["probe"], np.float64)


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest, or the record of a shard."""
    write_whole(path, lambda file: file.write(as_json(content).encode()))


def as_json(content: dict[str, Any]) -> str:
    """Return a manifest as JSON; it may hold numbers of NumPy."""
    return json.dumps(content, default=lambda number: number.item())


def same_probe(own: npt.ArrayLike, theirs: npt.ArrayLike) -> bool:
    """Return whether two results for the fixed text are those of one model: equal but for rounding."""
    return np.shape(own) == np.shape(theirs) and np.allclose(own, theirs, atol=1e-4)


def difference(name: str, a: dict[str, Any], between: str, b: dict[str, Any]) -> str:
    """Return in words how two runs differ in a setting, or in a part of the fingerprint."""
    has = [f"{name}={run[name]!r}" if name in run else f"the default {name}" for run in (a, b)]
    only_bits = name == "results" and NOT_COMPARED not in (a.get(name), b.get(name))
    bits = " (all else is the same: a version of minibert with other bits)" if only_bits else ""
    return f"{has[0]}, {between} {has[1]}{bits}"


def outputs_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the name and size of each output of a run; an empty list if the run has not finished."""
    return [*manifest.get("finished", {}).get("outputs", {}).values()]


def check_name(manifest: dict[str, Any], main: Path) -> None:
    """Raise a ValueError if the first output of a run, which has the path `main`, was renamed."""
    names = [*dict.fromkeys(output["name"].partition("/")[0] for output in outputs_of(manifest))]
    if main.name not in names and names:
        how = f"Give all its files these names again: {', '.join(names)}, {path_of(names[0])}."
        raise ValueError(f"{main} was {names[0]} when its run wrote it. {how}")


def check_outputs(manifest: dict[str, Any], main: Path, way_on: str) -> None:
    """Raise a ValueError, with a sentence on what to do, if an output is not as its run has written it."""
    check_name(manifest, main)
    if changed := changed_output(manifest, main):
        raise ValueError(f"{main.parent / changed} is missing or not as its run has written it. {way_on}")


def changed_output(manifest: dict[str, Any], main: Path) -> str | None:
    """Return the name of an output whose size or checksum is not as a run has written it. Each file is read once."""
    return next((str(out["name"]) for out in outputs_of(manifest) if is_changed(out, main)), None)


def is_changed(output: dict[str, Any], main: Path) -> bool:
    """Return whether an output of `outputs_of` is not as its run has written it."""
    state = state_of(main.parent / output["name"], output["size"])
    return state is None or not state.items() <= output.items()


def state_of(path: Path, size: int | None = None) -> dict[str, int] | None:
    """Return the size and the CRC-32 of a file; None if it cannot be read, or does not have this size."""
    checksum = 0
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            while (block := file.read(_BLOCK)) and size in (None, found):
                checksum = zlib.crc32(block, checksum)
    except OSError:
        return None
    return {"size": found, "checksum": checksum} if size in (None, found) else None
