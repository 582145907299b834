"""What a citation of a report needs: the model, the inputs, the dump and this machine, with checksums."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minibert._utils.files import printable
from minibert._utils.validation import counted
from minibert._version import __version__
from minibert.models.inputs import INPUTS
from minibert.parity.dumps import Dump
from minibert.parity.truth import Subject


def about(subject: Subject, inputs: Mapping[str, Any], source: str, dump: Any, arrays: Dump) -> dict[str, str]:
    """Return what a citation needs, by name; `source` says where the inputs are from, `arrays` are those of `dump`."""
    config, mask = subject.config, subject.pack(inputs).mask
    sizes = f"{config.num_hidden_layers} layers, hidden_size {config.hidden_size}"
    numbers = {name: np.asarray(inputs[name], "<f8") for name in INPUTS if name in inputs}
    shape = f"{counted(len(mask), 'row')} of {mask.shape[1]}, {counted(int(mask.sum()), 'token')}"
    kind = type(subject.model).__name__ if subject.head or config.model_type != "bert" else None
    facts = {"model": ", ".join(filter(None, [subject.name, kind, sizes]))}
    if subject.files is None:
        weights = {name: np.asarray(array, "<f4") for name, array in subject.weights().items()}
        facts["weights"] = f"float32 numbers by name, {_digest(weights)}"
        facts["config"] = f"its fields, {_digest({repr(config): np.zeros(0)})}"
    else:
        facts["source"] = subject.files.source
        facts["weights"] = ", ".join(_digest_of_file(path) for path in subject.files.checkpoint())
        facts["config"] = _digest_of_file(subject.files.require("config.json"))
    return facts | {
        "layers": "counted from 0; hidden_states.0 is the output of the embeddings, hidden_states.1 that of layer 0",
        "inputs": ", ".join(filter(None, [source, shape, _digest(numbers)])),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": f"minibert {__version__}, NumPy {np.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}",
        "dump": _dump_of(dump, arrays),
    }


def _dump_of(dump: Any, arrays: Dump) -> str:
    path = None if isinstance(dump, Mapping) else Path(os.fspath(dump))
    if path is not None and path.is_file():
        return _digest_of_file(path)
    name = "" if path is None else f"{printable(path.name)}, "
    return f"{name}{counted(len(arrays), 'array')}, {_digest(arrays)}"


def _digest(arrays: Mapping[str, Any]) -> str:
    """Return the beginning of the SHA-256 of arrays: of each the name, dtype and shape, and the numbers."""
    digest = hashlib.sha256()
    for name, value in arrays.items():
        for array in value if isinstance(value, list) else [value]:
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode(errors="surrogatepass"))
            digest.update(np.ascontiguousarray(array).data)
    return f"sha256 {digest.hexdigest()[:16]} (first 16 hex digits)"


def _digest_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return f"{printable(path.name)} sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
