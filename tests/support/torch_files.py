"""Files of torch.save: as older versions of torch wrote them, and as torch does not write them."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch._utils import _rebuild_tensor_v2


def saved(value: object, protocol: int = 2, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, pickle_protocol=protocol, **options)
    return file.getvalue()


def before_zip(value: object, protocol: int = 2) -> bytes:
    """Return a file of the format before torch 1.6."""
    return saved(value, protocol, _use_new_zipfile_serialization=False)


def entries_of(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def zipped(entries: Mapping[str, bytes], folder: str = "archive/", method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(folder + name, data)
    return file.getvalue()


def old(content: bytes) -> bytes:
    """Return a file as torch 1.6 wrote it, without the entries of later versions."""
    later = ("byteorder", ".format_version", ".storage_alignment", ".data/serialization_id")
    return zipped({name: data for name, data in entries_of(content).items() if name not in later})


class Call:
    """What the program calls, and with what; `Stored` is what it says of a storage."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


class Stored:
    def __init__(self, *described: Any) -> None:
        self.described = described


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> Any:
        return value.described if isinstance(value, Stored) else None


def program(value: object, protocol: int = 2) -> bytes:
    """Return a data.pkl that makes a value with `Call` and `Stored` in it."""
    file = io.BytesIO()
    _Pickler(file, protocol).dump(value)
    return file.getvalue()


def view(offset: Any, shape: Any, strides: Any, *more: Any, count: Any = 6, key: str = "0") -> Call:
    """Return the call that makes a float32 tensor of a storage of 6 numbers."""
    storage = Stored("storage", torch.FloatStorage, key, "cpu", count)
    return Call(_rebuild_tensor_v2, storage, offset, shape, strides, False, OrderedDict(), *more)


def crafted(value: object, entries: Mapping[str, bytes] = {}) -> bytes:
    """Return a file with this state dict and a storage of 6 numbers."""
    return zipped({"data.pkl": program(value), "data/0": bytes(24), "version": b"3\n", **entries})


def only_bin(folder: Path) -> Path:
    """Replace model.safetensors of a folder by pytorch_model.bin."""
    path = folder / "model.safetensors"
    (folder / "pytorch_model.bin").write_bytes(saved(OrderedDict(load_file(path))))
    path.unlink()
    return folder
