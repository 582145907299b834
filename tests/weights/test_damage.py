"""Damaged safetensors files: each one is refused, or loads the same numbers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from minibert import BertModel, ModelFormatError
from minibert.checkpoint import safetensors as tensors_module
from minibert.models.outputs import BertModelOutput
from tests.support.report import REPORT
from tests.support.safetensors_files import (
    INPUTS,
    ROOT,
    Arrays,
    Tensors,
    Write,
    all_arrays,
    assert_refused,
    old_name,
    parts_of,
    safetensors_bytes,
    stored,
    with_header,
)

ODD_VALUES = (None, True, -1, 0, 1.5, 2**63, 2**64, 10**30, "F32", "", [], {}, [[]], "\ud800", "9" * 500)

# Without F16 and BF16: a file in which one replaces the other is valid and has other numbers.
OTHER_DTYPES = ("F64", "I64", "U64", "I8", "U8", "BOOL", "F8_E4M3", "F4", "F6_E2M3", "C64", "F128", "f32", "I16", "U32")
Entries = dict[str, Any]  # of a header
Chance = random.Random


def change_a_number(entries: Entries, name: str, chance: Chance) -> None:
    numbers = entries[name][chance.choice(["shape", "data_offsets"])]
    at = chance.randrange(len(numbers))
    numbers[at] = chance.choice([numbers[at] + 1, numbers[at] - 1, numbers[at] * 2 + 1, -numbers[at] - 1, *ODD_VALUES])


def shuffle(entries: Entries, name: str, chance: Chance) -> None:
    shuffled = chance.sample(list(entries.items()), len(entries))
    entries.clear()
    entries.update(shuffled)


# Each changes the header's entries, and may use the name of a tensor.
CHANGES_OF_ENTRIES: dict[str, Callable[[Entries, str, Chance], object]] = {
    "any field": lambda entries, name, chance: entries[name].update(
        {chance.choice(["dtype", "shape", "data_offsets", "device"]): chance.choice(ODD_VALUES)}
    ),
    "an entry": lambda entries, name, chance: entries.update({name: chance.choice(ODD_VALUES)}),
    "metadata": lambda entries, name, chance: entries.update(
        __metadata__=chance.choice([(odd := chance.choice(ODD_VALUES)), {"format": odd}, {"format": "pt", "x": "y"}])
    ),
    "dtype": lambda entries, name, chance: entries[name].update(dtype=chance.choice(OTHER_DTYPES)),
    "a number": change_a_number,
    "a number more": lambda entries, name, chance: entries[name][chance.choice(["shape", "data_offsets"])].append(
        chance.choice([0, 1, 2])
    ),
    "moved": lambda entries, name, chance: entries[name].update(
        data_offsets=(np.array(entries[name]["data_offsets"]) + chance.choice([-2, 2, 4, 2**40])).tolist()
    ),
    "reversed": lambda entries, name, chance: entries[name]["data_offsets"].reverse(),
    "a tensor less": lambda entries, name, chance: entries.pop(name),
    "a field less": lambda entries, name, chance: entries[name].pop(chance.choice(list(entries[name]))),
    "renamed": lambda entries, name, chance: entries.update(
        {chance.choice(["x", f"{name}.x", name.upper(), ""]): entries.pop(name)}
    ),
    "an empty tensor": lambda entries, name, chance: entries.update(
        {chance.choice(["beside", f"{name}.x"]): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
    ),
    "shuffled": shuffle,
}

CHANGES_OF_TEXT: dict[str, Callable[[bytes, Chance], bytes]] = {
    "spaces after it": lambda header, chance: header + b" " * chance.randrange(1, 99),
    "spaces before it": lambda header, chance: b" " * chance.randrange(1, 99) + header,
    "escapes": lambda header, chance: header.replace(b"embeddings", b"\\u0065mbeddings"),
    "not UTF-8": lambda header, chance: header.replace(b"embeddings", b"\xff\xfembeddings"),
    "a tensor twice": lambda header, chance: header[:-1] + b", " + header[1:],
    "an array": lambda header, chance: b"[" + header + b"]",
    "cut": lambda header, chance: header[: chance.randrange(len(header))],
    "doubled": lambda header, chance: header + header,
    "nested": lambda header, chance: b'{"a":' * 5000 + header + b"}" * 5000,
}


def cut_short(content: bytes, i: int, chance: Chance) -> tuple[str, bytes]:
    """Make the i-th cut: at the first bytes, around the end of the header, before the end, or anywhere."""
    header_end = len(content) - len(parts_of(content)[1])
    near = [i // 5, header_end - 5 + i // 5 % 10, len(content) - 1 - i // 5]
    at = [*near, chance.randrange(header_end), chance.randrange(len(content))][i % 5]
    at = min(max(at, 0), len(content) - 1)
    return f"cut to {at} of {len(content)} bytes", content[:at]


def flip_a_header_byte(content: bytes, i: int, chance: Chance) -> tuple[str, bytes]:
    """Change a byte of the length or the header: to a byte that is frequent in headers, by one bit, or to any byte."""
    changed = bytearray(content)
    at = chance.randrange(len(content) - len(parts_of(content)[1]))
    likely, bit, any_byte = chance.choice(b'0123456789,:[]{}" abFI'), 1 << chance.randrange(8), chance.randrange(256)
    changed[at] = [likely, changed[at] ^ bit, any_byte][i % 3]
    if changed[at] == content[at]:
        changed[at] ^= 1
    return f"byte {at} from {content[at]} to {changed[at]}", bytes(changed)


def rewrite_the_header(content: bytes, i: int, chance: Chance) -> tuple[str, bytes]:
    """Change one thing in the header's JSON: its meaning in three of four cases, else its spelling."""
    header, data = parts_of(content)
    if i % 4:
        what = chance.choice(list(CHANGES_OF_ENTRIES))
        entries = json.loads(header)
        name = chance.choice([name for name in entries if name != "__metadata__"])
        CHANGES_OF_ENTRIES[what](entries, name, chance)
        return f"{what}: {name}", with_header(json.dumps(entries).encode(), data)
    what = chance.choice(list(CHANGES_OF_TEXT))
    return what, with_header(CHANGES_OF_TEXT[what](header, chance), data)


def originals(arrays: Arrays) -> list[bytes]:
    """Make a plain file, and one of the old kind: bfloat16, prefix, gamma and beta, a head, a buffer, metadata."""
    plain = {name: stored(array) for name, array in arrays.items()}
    old = {f"bert.{old_name(name)}": stored(array, "BF16") for name, array in arrays.items()}
    old |= {"cls.predictions.bias": stored(np.arange(20)), "bert.embeddings.position_ids": stored(np.arange(10), "I64")}
    return [safetensors_bytes(plain), safetensors_bytes(old, {"format": "pt"})]


def outcome_of(folder: Path, content: bytes, expected: BertModelOutput) -> str:
    """Load a file in this process: its outputs must equal the original's bit for bit, or it is refused."""
    (folder / "model.safetensors").write_bytes(content)
    try:
        output = BertModel.from_pretrained(folder)(**INPUTS)
    except ModelFormatError as error:
        named = str(folder) in str(error) and len(str(error)) < 5000
        return "typed error" if named else f"useless message: {error}"
    except BaseException as error:
        return f"foreign exception: {error!r}"
    same = all(
        np.array_equal(a, b) for a, b in zip(all_arrays(output), all_arrays(expected), strict=True) if b is not None
    )
    return "ok" if same and output.pooler_output is not None else "wrong numbers"


@pytest.mark.parametrize(
    ("seed", "counts"),
    [(0, (100, 150, 80)), *(pytest.param(seed, (300, 800, 500), marks=pytest.mark.slow) for seed in (1, 2, 3))],
)
def test_a_damaged_file_is_refused_or_loads_the_same_numbers(
    folder: Path, tmp_path: Path, arrays: Arrays, seed: int, counts: tuple[int, int, int]
) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    contents = originals(arrays)
    expected = []
    for content in contents:
        (tmp_path / "model.safetensors").write_bytes(content)
        expected.append(BertModel.from_pretrained(tmp_path)(**INPUTS))

    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for damage, count in zip((cut_short, flip_a_header_byte, rewrite_the_header), counts, strict=True):
        for i in range(count):
            which = chance.randrange(len(contents))
            what, content = damage(contents[which], i, chance)
            outcome = outcome_of(tmp_path, content, expected[which])
            assert outcome in ("ok", "typed error"), f"{('plain', 'old')[which]}, {what}: {outcome}"
            assert outcome != "ok" or damage is not cut_short
            outcomes[outcome] += 1
    REPORT.append(
        f"damaged safetensors files: {outcomes.total()}; ok {outcomes['ok']} | typed error {outcomes['typed error']} | "
        "foreign exception, crash, wrong number 0"
    )
    assert outcomes["ok"], "some changes are harmless, such as one in the metadata"


def test_a_file_with_bytes_after_its_tensors_is_refused(tensors: Tensors, write: Write) -> None:
    path = write(tensors)
    with (path / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    assert_refused(path, str(path / "model.safetensors"))


@pytest.mark.parametrize("call", [1, 2, 3, 9])
@pytest.mark.parametrize("size", [0, 5, 300, 3000])
def test_a_file_that_is_cut_between_any_two_reads_is_refused(
    tensors: Tensors, write: Write, monkeypatch: pytest.MonkeyPatch, call: int, size: int
) -> None:
    path = write(tensors)
    read, calls = tensors_module._read_exactly, []

    def cut_before(*arguments: Any) -> bytearray:
        calls.append(arguments)
        if len(calls) == call:
            os.truncate(path / "model.safetensors", size)
        return read(*arguments)

    monkeypatch.setattr(tensors_module, "_read_exactly", cut_before)
    assert_refused(path, str(path / "model.safetensors"))


OPEN_WHILE_IT_IS_CUT = """
import sys
from minibert import ModelFormatError
from minibert.checkpoint.files import locate
from minibert.checkpoint.safetensors import open_checkpoint

files, refused = locate(sys.argv[1]), 0
print("ready", flush=True)
for _ in range(100):
    try:
        open_checkpoint(files)
    except ModelFormatError:
        refused += 1
print(refused)
"""


def test_a_file_that_another_process_cuts_does_not_end_this_one(tensors: Tensors, write: Write) -> None:
    """Reading a mapped file that was truncated ends the process with SIGBUS; a long header makes that likely."""
    path = write(tensors)
    file = path / "model.safetensors"
    header, data = parts_of(file.read_bytes())
    content = with_header(header + b" " * 4_000_000, data)
    file.write_bytes(content)
    command = [sys.executable, "-c", OPEN_WHILE_IT_IS_CUT, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while process.poll() is None:
            os.truncate(file, 9)
            file.write_bytes(content)
        printed, problems = process.communicate()
    assert process.returncode == 0, problems
    REPORT.append(f"safetensors cut by another process: 100 loads, {int(printed)} refused, 0 signals")


@pytest.mark.parametrize("damage", [flip_a_header_byte, rewrite_the_header])
def test_accepted_headers_are_read_as_by_the_safetensors_library(
    tmp_path: Path, arrays: Arrays, damage: Callable[[bytes, int, Chance], tuple[str, bytes]]
) -> None:
    """minibert parses the header itself; the result must equal the library's."""
    chance, path, accepted = random.Random(7), tmp_path / "model.safetensors", 0
    contents = originals(arrays)
    for i in range(1500):
        what, content = damage(contents[i % 2], i, chance)
        path.write_bytes(content)
        try:
            ours = tensors_module.read_header(path)
        except ModelFormatError:
            continue
        accepted += 1
        with safe_open(path, framework="numpy") as theirs:
            slices = {name: theirs.get_slice(name) for name in theirs.keys()}  # noqa: SIM118
        listed = {name: (piece.get_dtype(), tuple(piece.get_shape())) for name, piece in slices.items()}
        assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in ours} == listed, what
        header, _ = parts_of(content)
        entries, first = json.loads(header), 8 + len(header)
        assert all(tensor.offset == first + entries[tensor.name]["data_offsets"][0] for tensor in ours), what
    assert 20 < accepted < 1500
    REPORT.append(f"{damage.__name__}: {accepted} of 1,500 headers accepted, all read as the safetensors library does")


@pytest.mark.parametrize(
    ("dtype", "shape", "offsets"),
    [
        ("F32", [2**62, 4, 0], [0, 0]),
        ("F32", [1] * 65, [0, 4]),
        ("F32", [True], [0, 4]),
        ("F32", [1], [0, 8]),
        ("F32", [1], [4, 8]),
        ("F4", [3], [0, 1]),
        ("F31", [1], [0, 4]),
    ],
)
def test_a_header_that_does_not_describe_its_file(tmp_path: Path, dtype: str, shape: Any, offsets: list[int]) -> None:
    path = tmp_path / "model.safetensors"
    entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    path.write_bytes(with_header(json.dumps({"x": entry}).encode(), bytes(8)))
    with pytest.raises(ModelFormatError, match="'x'"):
        tensors_module.read_header(path)
