"""pytorch_model.bin: the numbers of torch.load without executing anything; what is not a state dict is refused."""

from __future__ import annotations

import codecs
import json
import math
import os
import pickletools
import random
import sys
import tracemalloc
import zipfile
from collections import Counter, OrderedDict
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch._utils import _rebuild_tensor_v2

from minibert import BertModel, ModelFormatError, SentenceTransformer, load
from minibert.bert.families import FAMILIES
from minibert.checkpoint.pytorch_bin import read_header
from minibert.checkpoint.safetensors import BITS, StoredTensor
from minibert.checkpoint.tensors import DTYPES, read_tensor
from tests.support.checkpoints import random_checkpoint
from tests.support.damage import damaged_bytes
from tests.support.families import make
from tests.support.report import REPORT
from tests.support.safetensors_files import INPUTS, SIZES, assert_same_bits
from tests.support.sentence_modules import MEAN, dense, model_with_modules
from tests.support.torch_files import (
    Call,
    Stored,
    before_zip,
    crafted,
    entries_of,
    old,
    only_bin,
    program,
    saved,
    view,
    zipped,
)

watching, events = [False], Counter[str]()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if watching[0] and event in ("pickle.find_class", "exec", "compile", "import", "os.system", "os.exec"):
        events[event] += 1


sys.addaudithook(_watch)


def read_without_running(path: Path) -> list[StoredTensor]:
    """Read the header; nothing may be imported, unpickled or executed."""
    for codec in ("cp437", "raw-unicode-escape", "unicode-escape"):
        codecs.lookup(codec)  # Python imports them at their first use
    events.clear()
    watching[0] = True
    try:
        return read_header(path)
    finally:
        watching[0] = False
        assert not events


def state_dict() -> dict[str, torch.Tensor]:
    """Make tensors of every dtype, and those whose numbers do not fill a storage of their own row by row."""
    torch.manual_seed(0)
    numbers = torch.randn(6, 5)
    tensors = {"weight": numbers, "tied": numbers, "transposed": numbers.T, "columns": numbers[1:, 1::2]}
    tensors |= {"row": numbers[2], "cube": numbers.view(2, 3, 5).permute(2, 0, 1), "last": numbers[5, 4]}
    tensors |= {"parameter": torch.nn.Parameter(torch.randn(3)), "empty": torch.zeros(0, 3)}
    tensors |= {"repeated": torch.randn(4)[:1].expand(2, 2), "ids": torch.arange(7).expand(1, -1)}
    tensors["with state"] = torch.nn.Parameter(torch.randn(2))
    tensors["with state"].note = "x"  # type: ignore[attr-defined]
    for dtype in ("float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"):
        tensors[dtype] = (40 * torch.randn(3, 4)).to(getattr(torch, dtype))
        tensors[f"{dtype} columns"] = tensors[dtype].T
    return tensors


@pytest.mark.parametrize(
    "write", [saved, lambda value, protocol: old(saved(value, protocol)), before_zip], ids=["2.x", "1.6", "1.5"]
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_tensor_has_the_bits_of_torch(tmp_path: Path, write: Any, protocol: int) -> None:
    path, module = tmp_path / "x.bin", torch.nn.Linear(3, 2).state_dict()  # it has _metadata
    expected = {**state_dict(), **module}
    for value in (expected, OrderedDict(expected), module):
        path.write_bytes(write(value, protocol))
        found = read_without_running(path)
        assert [tensor.name for tensor in found] == list(value)
        content = path.read_bytes()
        for tensor in found:
            wanted = value[tensor.name].detach()
            assert tensor.shape == tuple(wanted.shape)
            width = BITS[tensor.dtype] // 8
            strides = None if tensor.strides is None else [width * stride for stride in tensor.strides]
            bits = np.ndarray(tensor.shape, f"V{width}", content, tensor.offset, strides)
            assert bits.tobytes() == bytes(wanted.contiguous().reshape(-1).view(torch.uint8).numpy())
            if tensor.dtype in DTYPES and wanted.numel():
                read_tensor(tensor, array := np.empty(tensor.shape, np.float32))
                np.testing.assert_array_equal(array, wanted.float().numpy())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_a_model_is_the_same_from_both_formats_and_from_shards(tmp_path: Path, dtype: str) -> None:
    expected = BertModel.from_pretrained(random_checkpoint(tmp_path, dtype=dtype, **SIZES))(**INPUTS)
    tensors, index = load_file(tmp_path / "model.safetensors"), dict[str, str]()
    only_bin(tmp_path)
    assert_same_bits(BertModel.from_pretrained(tmp_path)(**INPUTS), expected)
    (tmp_path / "pytorch_model.bin").unlink()
    for i in range(2):
        part = {name: tensors[name] for name in list(tensors)[i::2]}
        torch.save(part, tmp_path / (shard := f"pytorch_model-0000{i + 1}-of-00002.bin"))
        index |= dict.fromkeys(part, shard)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    assert_same_bits(BertModel.from_pretrained(tmp_path)(**INPUTS), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_with_a_tied_head(tmp_path: Path, family: str) -> None:
    theirs, ids = make(tmp_path, family, "ForMaskedLM"), np.arange(3, 20)[None]
    expected = load(tmp_path)(ids).logits
    (only_bin(tmp_path) / "pytorch_model.bin").write_bytes(saved(theirs.state_dict()))
    np.testing.assert_array_equal(load(tmp_path)(ids).logits, expected)


def test_modules_of_sentence_transformers(tmp_path: Path) -> None:
    folder = model_with_modules(tmp_path, [MEAN, dense(24, 13)])
    expected = SentenceTransformer(folder).encode("the cat")
    only_bin(only_bin(folder) / "2_Dense")
    np.testing.assert_array_equal(SentenceTransformer(folder).encode("the cat"), expected)


def test_checksums_that_torch_left_out(tmp_path: Path) -> None:
    with torch.utils.serialization.config.patch("save.compute_crc32", False):
        (tmp_path / "x.bin").write_bytes(saved(state_dict()))
    with pytest.raises(zipfile.BadZipFile):
        entries_of((tmp_path / "x.bin").read_bytes())
    assert len(read_header(tmp_path / "x.bin")) == len(state_dict())


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [os.system, eval, exec, __import__, getattr, os.execv, torch.load, partial])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_program_is_refused_by_its_name(tmp_path: Path, function: Any, protocol: int) -> None:
    attack = Call(function, f"touch {tmp_path}/ran")
    name = rf"'[\w.]+\.{function.__name__}'"  # Python 2 has other names for some modules
    for value in (attack, {"a": torch.ones(2), "b": attack}, {"a": Call(OrderedDict, attack)}):
        (tmp_path / "x.bin").write_bytes(saved(value, protocol))
        with pytest.raises(ModelFormatError, match=f"asks for {name}.*refs/pr/N"):
            read_without_running(tmp_path / "x.bin")
    assert not (tmp_path / "ran").exists()


def in_list(content: bytes, name: bytes, offset: int, new: bytes) -> bytes:
    """Change the last mention of a file, which is the one in the list at the end of the zip."""
    at = content.rindex(name) + offset
    return content[:at] + new + content[at + len(new) :]


def typed(kind: type, count: int) -> Call:
    """Return the call that makes a tensor of the storage "0", as numbers of another type or count."""
    return Call(_rebuild_tensor_v2, Stored("storage", kind, "0", "cpu", count), 0, (count,), (1,), False, OrderedDict())


X, LARGE = view(0, (2, 3), (3, 1)), {"data/0": bytes(24_000)}
DOUBLED: Any = reduce(lambda inner, _: (inner, inner), range(60), ())  # its repr is longer than any memory
ONES = {"a": torch.ones(2)}
REFUSED: dict[str, Any] = {
    "pickle that torch.save did not write": lambda: program({"x": X}),
    "bytes, its tensors need": lambda: before_zip(ONES)[:-4],
    "bytes, its tensors need ": lambda: before_zip(ONES) + b"1234",
    "has 3 numbers; its tensors need 2": lambda: before_zip(ONES).replace(b"\2" + bytes(9), b"\3" + bytes(9)),
    "storages are not those": lambda: before_zip(ONES).replace(b"]q\0", b"]q\0X\1\0\0\0xa"),
    "little-endian": lambda: before_zip(ONES).replace(b"endianq\2\x88", b"endianq\2\x89"),
    "archive of torch.jit.save": lambda: zipped({"data.pkl": program({"x": X}), "constants.pkl": b""}),
    "neither as a zip nor as a pickle": lambda: b"",
    "Git LFS pointer": lambda: b"version https://git-lfs.github.com/spec/v1\n",
    "cannot be read: it is damaged": lambda: crafted({"x": X})[:-9],
    "compressed": lambda: zipped({"data.pkl": program({"x": X}), "data/0": bytes(24)}, method=zipfile.ZIP_DEFLATED),
    "0 files NAME/data.pkl": lambda: zipped({"data/0": b""}),
    "'archive/data/0', or has it twice": lambda: crafted({"x": X}, {"data/1": b""}).replace(b"data/1", b"data/0"),
    "no header of 'archive/data/1'": lambda: in_list(crafted({"x": X}), b"data/0", 0, b"data/1"),
    "data/0' in its zip overlaps": lambda: in_list(crafted({"x": X}), b"archive/data/0", -26, b"\xff\0" * 4),
    "byte order b'big'": lambda: crafted({"x": X}, {"byteorder": b"big"}),
    "'torch.nn.modules.linear.Linear'": lambda: saved(torch.nn.Linear(2, 2)),
    "'state_dict' in it is a dict with more": lambda: saved({"state_dict": {"a": torch.ones(2)}}),
    "instruction BINFLOAT": lambda: saved({"loss": 0.5}),
    "'torch._utils._rebuild_sparse_tensor'": lambda: saved({"a": torch.ones(2).to_sparse()}),
    "'torch._utils._rebuild_tensor_v3'": lambda: saved({"a": torch.ones(2).to(torch.float8_e4m3fn)}),
    "'torch.ComplexFloatStorage'": lambda: saved({"a": torch.ones(2, dtype=torch.complex64)}),
    "calls torch._utils._rebuild_tensor_v2 with": lambda: saved({"a": torch._neg_view(torch.ones(2))}),
    "no storage of 6": lambda: crafted({"x": view(0, (2, 3), (3, 1), key="1")}),
    "first number 1.*not within its storage": lambda: crafted({"x": view(1, (2, 3), (3, 1))}),
    r"_v2 with .*, -1, ": lambda: crafted({"x": view(-1, (2, 3), (3, 1))}),
    r"strides \(3,\)": lambda: crafted({"x": view(0, (3,), (3,))}),
    "first number 7": lambda: crafted({"x": view(7, (0,), (1,))}),
    r"shape \(7,\), strides \(0,\)": lambda: crafted({"x": view(0, (7,), (0,))}),
    r"shape \(1099511627776,\)": lambda: crafted({"x": view(0, (2**40,), (0,))}),
    r"shape \(0, 46": lambda: crafted({"x": view(0, (0, 2**62, 2**62), (1, 1, 1))}),
    r"shape \(1, 1, 1": lambda: crafted({"x": view(0, (1,) * 65, (1,) * 65)}),
    r"_v2 with .*\(\(": lambda: crafted({"x": view(0, DOUBLED, DOUBLED)}),
    "storage '0' twice, as 6 F32 and 12 F16": lambda: crafted({"x": X, "y": typed(torch.HalfStorage, 12)}),
    "storage '0' twice, as 6 F32 and 6 I32": lambda: crafted({"x": X, "y": typed(torch.IntStorage, 6)}),
    "storage '0' twice, as 6 F32 and 3 F32": lambda: crafted({"x": X, "y": typed(torch.FloatStorage, 3)}),
    "describes a storage": lambda: crafted({"x": view(0, (6,), (1,), count=DOUBLED)}),
    "more than twice the bytes": lambda: crafted(dict.fromkeys("abc", view(0, (6000,), (1,), count=6000)), LARGE),
    "100000 instructions": lambda: zipped({"data.pkl": b"\x80\x02" + b"}" * 100_001 + b"."}),
    "at most 1048576": lambda: zipped({"data.pkl": b"}" * 2**21}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_a_state_dict_is_refused(tmp_path: Path, message: str) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(REFUSED[message]())
    tracemalloc.start()
    with pytest.raises(ModelFormatError, match=message):
        read_without_running(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6


def hostile(chance: random.Random, entries: dict[str, bytes]) -> bytes:
    """Return a file with damage in the program, in the list of the zip, or anywhere."""
    data, codes = entries["data.pkl"], [code.encode("latin-1") for code in pickletools.code2op]
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        at, new = chance.randrange(len(data)), chance.choice([*codes, b"\0" * 4, b"\x7f" * 4, b"\xff" * 4])
        data = data[:at] + new + data[at + chance.choice([0, len(new)]) :]
    content = zipped({**entries, "data.pkl": data})
    if data != entries["data.pkl"] and chance.random() < 0.9:
        return content
    split = chance.choice([0, content.index(b"PK\1\2")])
    return content[:split] + damaged_bytes(content[split:], chance)


@pytest.mark.parametrize("count", [400, pytest.param(2000, marks=pytest.mark.slow)])
def test_hostile_files_are_refused_or_give_tensors_within_the_file(tmp_path: Path, count: int) -> None:
    """Nothing runs, and memory is bounded."""
    path, chance, outcomes = tmp_path / "x.bin", random.Random(0), Counter[str]()
    tensors = {name: state_dict()[name] for name in ("weight", "tied", "columns", "parameter", "int64")}
    originals = [entries_of(saved(OrderedDict(tensors), protocol)) for protocol in (2, 4)]
    older = before_zip(OrderedDict(tensors))
    pickles = older.rindex(b"e.")  # what follows are numbers
    tracemalloc.start()
    for _ in range(count):
        zipped_or_older = (
            hostile(chance, chance.choice(originals)),
            damaged_bytes(older[:pickles], chance) + older[pickles:],
        )
        path.write_bytes(chance.choice(zipped_or_older))
        try:
            for tensor in read_without_running(path):
                size = math.prod(tensor.shape)
                assert tensor.offset + size * BITS[tensor.dtype] // 8 <= path.stat().st_size
                if tensor.dtype in DTYPES and size:
                    read_tensor(tensor, np.empty(tensor.shape, np.float32))
            outcomes["read"] += 1
        except ModelFormatError as error:
            outcomes["refused" if str(path) in str(error) and len(str(error)) < 5000 else "useless message"] += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6
    assert outcomes["read"] + outcomes["refused"] == count
    assert min(outcomes["read"], outcomes["refused"]) > count // 40
    REPORT.append(f"hostile files of torch.save: {dict(outcomes)}; nothing ran")
