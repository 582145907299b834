"""Traces in files: what is written is read again, for other libraries too; damaged files are refused by name."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from minibert import BertModel, Edit, Trace, exact
from tests.support.random_checkpoints import random_checkpoint

SUFFIXES = (".npz", ".safetensors")
IDS = np.array([[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> BertModel:
    return BertModel.from_pretrained(random_checkpoint(tmp_path_factory.mktemp("files") / "model"))


def same(result: Trace, expected: Trace) -> None:
    assert result.names == expected.names
    for name, array in expected.items():
        assert result[name].dtype == array.dtype
        np.testing.assert_array_equal(result[name], array, err_msg=name)
    np.testing.assert_array_equal(result.mask, expected.mask)
    assert result.tokens == expected.tokens
    assert result.edits == expected.edits
    assert result.output is None


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_trace_is_read_as_it_was_written(suffix: str, model: BertModel, tmp_path: Path) -> None:
    tokens = [["a", "b", "</script>", "é"], ["a", "\U0001f600"], ["a", "b"]]
    edit = {"encoder.layer.0": Edit.zero(tokens=1)}
    clean = model.trace(IDS, MASK)
    for number, trace in enumerate(
        (
            clean,
            model.trace(IDS, MASK, tokens=tokens, edit=edit),
            model.trace(IDS, MASK, record=()),
            model.trace(IDS, num_layers=1),
            model.trace(np.zeros((0, 3), dtype=np.int64)),
            model.trace(np.zeros((2, 3), dtype=np.int64), np.zeros((2, 3), dtype=np.int64)),
            exact.forward(model, IDS, MASK),
        )
    ):
        path, again = tmp_path / f"{number}{suffix}", tmp_path / f"again{suffix}"
        trace.save(path)
        result = Trace.load(path)
        same(result, trace)
        result.save(again)
        assert again.read_bytes() == path.read_bytes()
    result = Trace.load(tmp_path / f"0{suffix}")
    np.testing.assert_array_equal(result.sequence(2)["embeddings"], clean.sequence(2)["embeddings"])
    patched = model.trace(IDS[::-1], MASK, edit={"*": Edit.patch(result)})
    for name in clean:
        np.testing.assert_array_equal(patched[name], clean[name])


def test_other_libraries_read_the_files(model: BertModel, tmp_path: Path) -> None:
    trace = model.trace(IDS, MASK)
    for suffix in SUFFIXES:
        trace.save(tmp_path / f"trace{suffix}")
    with np.load(tmp_path / "trace.npz") as arrays:
        for name in trace:
            np.testing.assert_array_equal(arrays[name], trace[name])
        np.testing.assert_array_equal(arrays["attention_mask"], MASK)
        assert json.loads(str(arrays["minibert_trace"]))["format"] == 1
    result = safetensors.numpy.load_file(tmp_path / "trace.safetensors")
    assert {*result} == {*trace, "attention_mask"}
    np.testing.assert_array_equal(result["pooler"], trace["pooler"])


# --- files that are refused -------------------------------------------------------------------------------------------


def rewrite(path: Path, change: Any) -> None:
    """Write a trace's file again after a change of its arrays and its header."""
    arrays = dict(safetensors.numpy.load_file(path))
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["minibert_trace"]
    header = json.loads(header)
    change(arrays, header)
    safetensors.numpy.save_file(arrays, path, metadata={"minibert_trace": json.dumps(header)})


CHANGES: list[Any] = [
    lambda a, h: h.update(format=2),
    lambda a, h: h.pop("sizes"),
    lambda a, h: h["sizes"].update(hidden_size=-7),
    lambda a, h: h["sizes"].update(num_hidden_layers=10**8),
    lambda a, h: h["sizes"].update(num_attention_heads=0),
    lambda a, h: h["sizes"].update(head="BertForEverything"),
    lambda a, h: h["names"].append("secret"),
    lambda a, h: h["names"].pop(),
    lambda a, h: a.pop("pooler"),
    lambda a, h: a.pop("attention_mask"),
    lambda a, h: a.update(attention_mask=MASK[:2].astype(np.uint8)),
    lambda a, h: a.update(attention_mask=5 * MASK.astype(np.uint8)),
    lambda a, h: a.update(pooler=np.zeros((3, 24), np.int32)),
    lambda a, h: h.update(tokens=[["a"], ["b"], ["c"]]),
    lambda a, h: h.update(edits=[{"a": 1}]),
]


def test_a_wrong_file_is_refused(model: BertModel, tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    for change in CHANGES:
        model.trace(IDS, MASK).save(path)
        rewrite(path, change)
        with pytest.raises(ValueError, match=r"trace\.safetensors"):
            Trace.load(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_bytes_are_refused_or_harmless(suffix: str, model: BertModel, tmp_path: Path) -> None:
    """Each cut, and single wrong bytes, give a ValueError with the file's name, or a trace of the same shapes."""
    path = tmp_path / f"trace{suffix}"
    trace = model.trace(IDS, MASK, record=["pooler", "embeddings", "attentions.0"])
    trace.save(path)
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    cuts = [whole[:length] for length in (0, 1, 8, 100, len(whole) // 2, len(whole) - 1)]
    flipped = [bytearray(whole) for _ in range(200)]
    for content, place in zip(flipped, generator.integers(len(whole), size=200), strict=True):
        content[place] ^= 1 << int(generator.integers(8))
    for content in (*cuts, *flipped):
        path.write_bytes(content)
        try:
            result = Trace.load(path)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:
            assert content not in cuts
            assert set(result.shapes.values()) <= set(trace.shapes.values())


def test_a_compressed_array_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pooler.npy", bytes(10**6))
    with pytest.raises(ValueError, match="it is compressed"):
        Trace.load(path)


def test_names_of_files(model: BertModel, tmp_path: Path) -> None:
    trace = model.trace(IDS, record="pooler")
    (tmp_path / "other.npz").write_bytes(b"text")
    np.savez(tmp_path / "mine.npz", pooler=np.zeros(3))
    for call, name, error in (
        *((call, name, ValueError) for name in ("trace.pt", "trace") for call in (trace.save, Trace.load)),
        (trace.save, "no/trace.npz", FileNotFoundError),
        (Trace.load, "no.npz", OSError),
        (Trace.load, "other.npz", ValueError),
        (Trace.load, "mine.npz", ValueError),
    ):
        with pytest.raises(error, match=name.split("/")[-1]):
            call(tmp_path / name)
