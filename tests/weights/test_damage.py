"""Damaged safetensors files: each one is refused, or loads the same numbers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from minibert import BertModel, ModelFormatError
from minibert.checkpoint import safetensors as tensors_module
from minibert.models.outputs import BertModelOutput
from tests.support.damage import both, chances, damaged_bytes, damaged_json, sampled, values
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


def damaged(content: bytes, chance: random.Random, value: Any) -> bytes:
    """Damage the JSON of the header, or its bytes and its length; never the numbers."""
    header, data = parts_of(content)
    if chance.random() < 0.1:
        return content[: chance.randrange(len(content))]
    if chance.random() < 0.2:
        first = damaged_bytes(content[: 8 + len(header)], chance)
        return first if len(first) < 8 + len(header) else first + data
    changed = damaged_json(header, chance, value)
    return content if is_another_valid_file(header, changed) else with_header(changed, data)


def is_another_valid_file(header: bytes, changed: bytes) -> bool:
    """Whether a file with this header is valid and has other numbers: F16 in place of BF16, or tensors exchanged."""
    try:
        before, after = json.loads(header), json.loads(changed)
        names = {name: entry["data_offsets"] for name, entry in before.items() if name != "__metadata__"}
        return any(after[name]["data_offsets"] != place or after[name]["dtype"] != before[name]["dtype"]
                   for name, place in names.items()) and sorted(
            after[name]["data_offsets"] for name in names) == sorted(names.values())  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


@both(250)
def test_a_damaged_file_is_refused_or_loads_the_same_numbers(
    folder: Path, tmp_path: Path, arrays: Arrays, most: int
) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    contents = originals(arrays)
    expected = []
    for content in contents:
        (tmp_path / "model.safetensors").write_bytes(content)
        expected.append(BertModel.from_pretrained(tmp_path)(**INPUTS))
    outcomes: Counter[str] = Counter()

    @sampled(most)
    @given(chances, values, st.sampled_from([0, 1]))
    def run(chance: random.Random, value: Any, which: int) -> None:
        outcome = outcome_of(tmp_path, damaged(contents[which], chance, value), expected[which])
        assert outcome in ("ok", "typed error")
        outcomes[outcome] += 1

    run()
    REPORT.append(f"damaged safetensors files: {dict(outcomes)}; foreign exception, crash, wrong number 0")
    assert outcomes["ok"], "some changes are harmless, such as one in the metadata"


@pytest.mark.parametrize("call", [1, 2, 9])
@pytest.mark.parametrize("size", [0, 300, 3000])
def test_a_file_that_is_cut_between_any_two_reads_is_refused(
    tensors: Tensors, write: Write, monkeypatch: pytest.MonkeyPatch, call: int, size: int
) -> None:
    path, read, calls = write(tensors), tensors_module._read_exactly, []

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


@both(600)
def test_accepted_headers_are_read_as_by_the_safetensors_library(tmp_path: Path, arrays: Arrays, most: int) -> None:
    """minibert parses the header itself; the result must equal the library's."""
    path, contents, accepted = tmp_path / "model.safetensors", originals(arrays), []

    @sampled(most)
    @given(chances, values, st.sampled_from([0, 1]))
    def run(chance: random.Random, value: Any, which: int) -> None:
        content = damaged(contents[which], chance, value)
        path.write_bytes(content)
        try:
            ours = tensors_module.read_header(path)
        except ModelFormatError:
            return
        accepted.append(content)
        with safe_open(path, framework="numpy") as theirs:
            slices = {name: theirs.get_slice(name) for name in theirs.keys()}  # noqa: SIM118
        listed = {name: (piece.get_dtype(), tuple(piece.get_shape())) for name, piece in slices.items()}
        assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in ours} == listed
        header, _ = parts_of(content)
        entries, first = json.loads(header), 8 + len(header)
        assert all(tensor.offset == first + entries[tensor.name]["data_offsets"][0] for tensor in ours)

    run()
    assert 20 < len(accepted) < most
    REPORT.append(f"{len(accepted)} of {most} damaged headers accepted, all read as the safetensors library does")


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
