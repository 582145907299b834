"""Dumps in files of all kinds and layouts; damaged and hostile files give errors of one line."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from minibert import parity
from minibert.parity.dumps import as_dump, read_dump
from tests.parity.conftest import Case
from tests.support.safetensors_files import safetensors_bytes, stored
from tests.support.torch_files import saved, zipped

QUERY = "encoder.layer.1.attention.self.query"
VALUES = {"hidden_states.0": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "ids": np.array([[1, 2]])}


def same(result: dict[str, Any], expected: dict[str, Any] = VALUES) -> None:
    assert set(result) == set(expected)
    for name, array in expected.items():
        assert result[name].dtype == array.dtype
        np.testing.assert_array_equal(result[name], array)


# --- formats ----------------------------------------------------------------------------------------------------------


def each_in_a_file(folder: Path) -> None:
    folder.mkdir()
    for name, array in VALUES.items():
        safetensors.numpy.save_file({name: array}, folder / f"{name}.safetensors")


WRITERS: dict[str, Callable[[Path], Any]] = {
    "a.npz": lambda path: np.savez(path, **VALUES),
    "b.npz": lambda path: np.savez_compressed(path, **VALUES),
    "a.safetensors": lambda path: safetensors.numpy.save_file(VALUES, path),
    "folder": each_in_a_file,
    "a.json": lambda path: path.write_text(json.dumps({name: array.tolist() for name, array in VALUES.items()})),
}


@pytest.mark.parametrize("name", WRITERS)
def test_arrays_by_name(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    same(read_dump(tmp_path / name))


def test_bfloat16(tmp_path: Path) -> None:
    half = {"x": torch.tensor([1.5, -2.0, 3.140625], dtype=torch.bfloat16)}
    safetensors.torch.save_file(half, tmp_path / "b.safetensors")
    same(read_dump(str(tmp_path / "b.safetensors")), {"x": half["x"].float().numpy()})


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<f2", ">i8", "|u1"])
def test_one_npy_and_a_folder_of_them(tmp_path: Path, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    (tmp_path / "encoder" / "layer").mkdir(parents=True)
    np.save(tmp_path / "layer_00.npy", array)
    np.save(tmp_path / "encoder" / "layer" / "1.npy", np.asfortranarray(array))
    (tmp_path / "notes.txt").write_text("mine")
    expected = array.astype(np.dtype(dtype).newbyteorder("="))
    same(read_dump(tmp_path / "layer_00.npy"), {"layer_00": expected})
    same(read_dump(tmp_path), {"layer_00": expected, "encoder.layer.1": expected})


def test_tensors_in_a_tuple() -> None:
    states = tuple(torch.ones(2, 3, requires_grad=True, dtype=kind) for kind in (torch.float32, torch.bfloat16))
    for some in (states[:1], states[1:]):
        np.testing.assert_array_equal(as_dump({"hidden_states": some})["hidden_states"], np.ones((1, 2, 3)))


def test_a_name_that_is_in_a_file_twice(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, warnings.catch_warnings(action="ignore"):
        for _ in range(2):
            archive.writestr("x.npy", buffer.getvalue())
    with pytest.raises(ValueError, match="'x' twice"):
        read_dump(tmp_path / "a.npz")


def test_json_with_ragged_lists_or_a_list_alone(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"texts": [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]]}))
    assert [one.shape for one in read_dump(tmp_path / "a.json")["texts"]] == [(1, 2), (2, 2)]
    (tmp_path / "vectors.json").write_text(json.dumps([[0.5, 1.0], [0.1, 3.0]]))
    same(read_dump(tmp_path / "vectors.json"), {"vectors": np.array([[0.5, 1], [0.1, 3]], np.float32)})


@pytest.mark.parametrize(
    "tensor",
    [
        {"shape": [2, 2], "dtype": "float32", "data": base64.b64encode(np.arange(4, dtype="<f4").tobytes()).decode()},
        {"shape": [2, 2], "dtype": "torch.float32", "data": [0, 1, 2, 3]},
        {"dims": [2, 2], "type": "float32", "cpuData": {"0": 0, "1": 1, "2": 2, "3": 3}},
        {"shape": [2, 2], "dtype": "bf16", "data": base64.b64encode(b"\0\0\x80\x3f\0\x40\x40\x40").decode()},
    ],
)
def test_json_with_shape_and_data(tmp_path: Path, tensor: dict[str, Any]) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"x": tensor}))
    result = read_dump(tmp_path / "a.json")["x"]
    np.testing.assert_array_equal(result, [[0, 1], [2, 3]])


def test_raw_numbers(tmp_path: Path) -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    array.tofile(tmp_path / "logits.bin")
    same(read_dump(tmp_path / "logits.bin", {"hidden_states.1": (2, 3)}), {"hidden_states.1": array})
    same(read_dump(tmp_path, {"logits": (2, 3)}), {"logits": array})
    same(read_dump(tmp_path / "logits.bin"), {"logits": array.ravel()})
    for shape, said in (((2, 4), "has 24 bytes"), ((1, 3), "size of float64")):
        with pytest.raises(ValueError, match=said):
            read_dump(tmp_path / "logits.bin", {"x": shape})


def test_raw_numbers_in_the_other_byte_order_are_refused(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(2, 400)).astype("<f4")
    values.byteswap().tofile(tmp_path / "logits.bin")
    for shapes in ({}, {"logits": (2, 400)}):
        with pytest.raises(ValueError, match="big-endian numbers; expected little-endian"):
            read_dump(tmp_path / "logits.bin", shapes)
    for changed in (values * 1e30, values * np.nan, values * 0, np.where(values > 2, np.inf, values)):
        changed.astype("<f4").tofile(tmp_path / "logits.bin")
        read_dump(tmp_path / "logits.bin")


@pytest.mark.parametrize("bits", [16, 64])
def test_raw_numbers_of_another_precision(tmp_path: Path, case: Case, bits: int) -> None:
    case.trace["embeddings"].tofile(tmp_path / "embeddings.bin")
    case.trace["encoder.layer.0"].astype(f"<f{bits // 8}").tofile(tmp_path / "encoder.layer.0.bin")
    report = case.check(tmp_path)
    assert [row.name for row in report.names] == ["embeddings"]
    assert f"as long as float{bits} numbers would be" in str(report)


def test_raw_numbers_and_saved_traces_need_no_shape(tmp_path: Path, case: Case) -> None:
    for suffix in (".npz", ".safetensors"):
        case.trace.save(tmp_path / f"trace{suffix}")
        assert case.check(tmp_path / f"trace{suffix}").verdict == "bits"
    (tmp_path / "raw").mkdir()
    for name, value in case.trace.items():
        value.astype("<f4").tofile(tmp_path / "raw" / f"{name}.bin")
    report = case.check(tmp_path / "raw")
    assert (report.verdict, len(report.names), report.unknown) == ("bits", len(case.trace), [])


@pytest.mark.parametrize("name", ["result", "hidden_states", "mine"])
def test_raw_numbers_of_one_file(tmp_path: Path, case: Case, name: str) -> None:
    depth = case.model.config.num_hidden_layers
    states = np.stack([case.trace[f"encoder.layer.{i - 1}" if i else "embeddings"] for i in range(depth + 1)])
    states.tofile(tmp_path / f"{name}.bin")
    assert len(case.check(tmp_path).names) == depth + 1
    states[-1].tofile(tmp_path / f"{name}.bin")
    if name != "hidden_states":
        assert [row.name for row in case.check(tmp_path).names] == [f"encoder.layer.{depth - 1}"]


def test_what_the_debugger_of_transformers_writes(tmp_path: Path, case: Case, folder: Path) -> None:
    import transformers
    from transformers.model_debugging_utils import model_addition_debugger_context

    theirs = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    tensors = {name: torch.from_numpy(value) for name, value in case.inputs.items()}

    def write(name: str, **options: bool) -> Path:
        with model_addition_debugger_context(theirs, debug_path=str(tmp_path / name), **options):
            theirs(**tensors)
        return tmp_path / name

    good = write("good", use_repr=False, do_prune_layers=False)
    report = case.check(good)
    assert (report.verdict, report.unknown) == ("float32", [])
    names = {"embeddings", "encoder.layer.0.attention.self.query", "encoder.layer.1", "encoder.layer.1.attention.self"}
    assert names <= {row.name for row in report.names}
    (tree,), (summary,) = good.glob("*FULL_TENSORS.json"), good.glob("*SUMMARY.json")
    assert case.check(tree).verdict == "float32"
    tree.write_text(tree.read_text().replace("encoder.layer.1", "encoder.layer.7"))
    for path, said in ((summary, "summary"), (write("printed"), "use_repr=False"), (tree, "do_prune_layers=False")):
        with pytest.raises(ValueError, match=said):
            read_dump(path)


# --- layouts ----------------------------------------------------------------------------------------------------------


# Width and length are both 24 here, so a shape alone does not say what it is.
LAYOUTS: dict[str, tuple[str, Any]] = {
    "usual": ("hidden_states.1", lambda x: x),
    "(S, B, H)": ("hidden_states.1", lambda x: x.swapaxes(0, 1)),
    "(B, H, S)": ("hidden_states.1", lambda x: x.swapaxes(1, 2)),
    "(H, B S)": ("hidden_states.1", lambda x: x.reshape(-1, 24).T),
    "numbers without a shape, (B, S, H)": ("hidden_states.1", lambda x: x.reshape(-1)),
    "with an axis of 1": ("hidden_states.1", lambda x: x[None]),
    "28 columns instead of 24": ("hidden_states.1", lambda x: np.pad(x, ((0, 0), (0, 4), (0, 0)))),
    "(B, A, S, D)": (QUERY, lambda x: x.reshape(5, 24, 3, 8).swapaxes(1, 2)),
    "(B, S, A, D)": (QUERY, lambda x: x.reshape(5, 24, 3, 8)),
    "(A, B, S, S)": ("attentions.0", lambda x: x.swapaxes(0, 1)),
    "(B, S, S, A)": ("attentions.0", lambda x: x.transpose(0, 2, 3, 1)),
    "(B A, S, S)": ("attentions.0", lambda x: x.reshape(-1, 24, 24)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(case: Case, layout: str) -> None:
    name, change = LAYOUTS[layout]
    report = case.check({name: change(case.trace[name])})
    assert (report.verdict, report.names[0].layout) == (
        "bits",
        "" if layout in ("usual", "with an axis of 1") else layout,
    )
    assert (f"was read as {layout}" in str(report)) == bool(report.names[0].layout)
    assert case.check({name: change(case.trace[name].astype(np.float64))}).verdict == "float32"


def test_tokens_without_padding_and_texts_one_by_one(case: Case) -> None:
    mask, (first, second) = case.trace.mask, (case.trace[f"hidden_states.{i}"] for i in (1, 2))
    dump = {"hidden_states.1": first[mask], "hidden_states.2": torch.from_numpy(second[mask].T)}
    assert case.check(dump).verdict == "bits"
    probs = case.trace["attentions.0"]
    rows = {"hidden_states.2": [second[b][mask[b]].tolist() for b in range(5)]}
    rows["attentions.0"] = [probs[b][:, mask[b]][..., mask[b]] for b in range(5)]
    assert case.check(rows).verdict == "bits"


def test_all_layers_in_one_array(case: Case) -> None:
    layers = {"hidden_states": ("hidden_states.1", "hidden_states.2"), "attentions": ("attentions.0", "attentions.1")}
    for name, parts in layers.items():
        report = case.check({name: np.stack([case.trace[part] for part in parts])})
        assert (report.verdict, len(report.names)) == ("bits", 2)


def test_queries_and_keys_exchanged_are_a_mistake(case: Case) -> None:
    dump = {name: case.trace[0, name].swapaxes(2, 3) for name in ("scores", "probs")}
    dump = {f"encoder.layer.0.attention.self.{name}": value for name, value in dump.items()}
    report = case.check(dump)
    assert report.verdict == "wrong"
    assert [row.level for row in report.names] == ["wrong", "wrong"]
    assert "Queries and keys are exchanged" in report.diagnosis[0].text


def test_a_layout_that_only_the_values_decide_is_in_the_first_lines(case: Case) -> None:  # width and length are both 24
    report = case.check({"hidden_states.1": case.trace["hidden_states.1"].swapaxes(1, 2)})
    assert (report.verdict, len(report.warnings)) == ("bits", 1)
    assert "Warning: hidden_states.1 was read as (B, H, S)" in str(report).splitlines()[1]
    assert "(B, H, S)" in report.to_markdown().split("|")[0]
    report = case.check({"hidden_states.1": case.trace["hidden_states.1"].swapaxes(0, 1)})
    assert (report.verdict, report.warnings) == ("bits", [])  # the shape needs this layout


def test_one_sequence_without_the_axis_of_the_batch(case: Case) -> None:
    model, _, _ = case
    inputs = {"input_ids": np.arange(5, 12)[None]}
    trace = model.trace(**inputs)
    dump = {name: trace[name][0] for name in trace}
    turned = {name: trace[name][0].T for name in ("embeddings", "encoder.layer.0")}
    assert parity.check(model, dump, inputs).verdict == parity.check(model, turned, inputs).verdict == "bits"


# --- hostile files ----------------------------------------------------------------------------------------------------


def bytes_of(save: Any, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b" " * (117 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def deflated(name: str, content: bytes) -> bytes:
    return zipped({name: content}, "", zipfile.ZIP_DEFLATED)


DEEP = "[" * 900 + "1" + "]" * 900
NPZ = bytes_of(np.savez, **{"hidden_states.0": np.zeros((2, 3, 4), np.float32)})
HOSTILE = {
    "empty.npz": b"",
    "cut.npz": NPZ[:-30],
    "objects.npy": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"\x80\x04N."),
    "huge.npy": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000, 4000000000), }", b"1234"),
    "code.npy": npy("__import__('os').abort()"),
    "complex.npy": npy("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", bytes(8)),
    "text.npy": npy("{'descr': '<U1', 'fortran_order': False, 'shape': (1,), }", bytes(4)),
    "record.npy": npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", bytes(4)),
    "inner.npz": deflated("a.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9, 9), }", b"12")),
    "other.npz": deflated("a.txt", b"hello"),
    "long.safetensors": b"\xff" * 16,
    "f8.safetensors": safetensors_bytes({"x": stored(np.ones(1), "F8_E4M3")}),
    "broken.json": b'{"a": [1, 2',
    "number.json": b"3",
    "words.json": b'{"a": ["b"]}',
    "deep.json": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "shape.json": b'{"a": {"shape": [4000000000, 4000000000], "data": "AAAA"}}',
    "base64.json": b'{"a": {"shape": [1], "data": "*"}}',
    "dtype.json": b'{"a": {"shape": [1], "dtype": "object", "data": [1]}}',
    "nested.json": b'{"a": {"shape": [1], "data": [[1]]}}',
    "values.csv": b"1,2",
    "cut.bin": bytes(6),
}
EXPLAINED = {
    r"is not a JSON number\. Find the first step of the port": {
        f"{number}.json": f'{{"a": [1, {number}]}}'.encode() for number in ("NaN", "Infinity", "-Infinity")
    },
    "holds null among its numbers: JavaScript writes NaN and Infinity": {
        "flat.json": b'{"a": [null, 1]}',
        "nested.json": b'{"a": [[1, 2], [3, null]]}',
        "ragged.json": b'{"a": [[1], [2, null]]}',
    },
    r"is a pickle.*safetensors\.torch\.save_file": {
        **dict.fromkeys(("model.pt", "model.bin"), saved({"a": torch.zeros(2)})),
        **dict.fromkeys(("values.pkl", "values.bin"), pickle.dumps({"a": 1})),
    },
    "lists of different lengths": {
        "deep.json": b'{"a": [[[1, 2], [3]], [[1]]]}',
        "uneven.json": b'{"hidden_states.0": [1, [2]]}',
    },
    "expected a list of integers": {"size.json": b'{"a": {"shape": "1", "data": [1]}}'},
    "the keys of its data are not 0, 1, 2": {"keys.json": b'{"a": {"shape": [1], "data": {"1": 2}}}'},
    "has no module_path": {"M_debug_tree_FULL_TENSORS.json": b'{"module_path": "M", "children": [3]}'},
    "levels of lists": {
        "first.json": f'{{"embeddings": {DEEP}}}'.encode(),
        "second.json": f'{{"embeddings": [[1], {DEEP}]}}'.encode(),
    },
}
FILES = {
    f"{said[:12]}-{name}": (said, name, content)
    for said, files in {"": HOSTILE, **EXPLAINED}.items()
    for name, content in files.items()
}


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_or_hostile_file_is_an_error_of_one_line(tmp_path: Path, file: str) -> None:
    said, name, content = FILES[file]
    (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, OSError), match=said or None) as caught:
        read_dump(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


@hypothesis.given(
    st.sampled_from([".npz", ".safetensors"]), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4)
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_bytes_changed_by_chance(tmp_path_factory: pytest.TempPathFactory, suffix: str, changes: list[Any]) -> None:
    content = bytearray(NPZ if suffix == ".npz" else safetensors.numpy.save(VALUES))
    for place, value in changes:
        content[int(place * (len(content) - 1))] = value
    path = tmp_path_factory.mktemp("changed") / f"b{suffix}"
    path.write_bytes(content)
    try:
        result = read_dump(path)
    except (ValueError, OSError, MemoryError):
        return
    assert all(isinstance(array, np.ndarray) for array in result.values())


def test_an_archive_that_unpacks_to_more_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (5000000,), }")
    (tmp_path / "bomb.npz").write_bytes(deflated("a.npy", header + bytes(20_000_000)))
    assert (tmp_path / "bomb.npz").stat().st_size < 100_000
    monkeypatch.setattr("minibert._utils.system.available_memory", lambda: 30_000_000)
    with pytest.raises(MemoryError, match="Dump fewer names"):
        read_dump(tmp_path / "bomb.npz")


def test_files_that_are_not_there_and_names_twice(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_dump(tmp_path / "no.npz")
    np.save(tmp_path / "a.npy", np.zeros(1))
    with pytest.raises(ValueError, match=r"no \.bin or \.raw file"):
        read_dump(tmp_path / "a.npy", {"x": (1,)})
    np.savez(tmp_path / "b.npz", a=np.zeros(1))
    with pytest.raises(ValueError, match="several files"):
        read_dump(tmp_path)


@pytest.mark.parametrize("values", [{}, {3: np.zeros(1)}, {"a": "text"}, {"a": None}, {"a": [["x"]]}, {"a": object()}])
def test_mappings_that_are_not_values(values: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        as_dump(values)


TREE = '{"module_path": "M", "children": [{"module_path": "M.embeddings", "outputs": %s, "children": []}]}'


LEAF = '{"shape": "", "dtype": "", "value": %s}'


@pytest.mark.parametrize(
    ("value", "said"),
    [
        *((f'"{name}"', "in the same folder") for name in ("../b.safetensors", "/etc/passwd", "a/b.safetensors")),
        ('"missing.safetensors"', "does not exist"),
        ("3", "holds no values"),
        ('"fifo.safetensors"', "device, pipe or socket"),
    ],
)
def test_a_call_tree_names_regular_files_beside_it_only(tmp_path: Path, value: str, said: str) -> None:
    os.mkfifo(tmp_path / "fifo.safetensors")
    path = tmp_path / "M_debug_tree_FULL_TENSORS.json"
    for outputs, text in ((LEAF % value, said), (DEEP.replace("1", "{}"), "levels")):
        path.write_text(TREE % outputs)
        with pytest.raises((ValueError, OSError), match=text):
            read_dump(path)
    (tmp_path / f"another_{path.name}").touch()
    with pytest.raises(ValueError, match="several call trees"):
        read_dump(tmp_path)


def test_very_many_unknown_names_are_answered_soon(case: Case) -> None:
    dump = {f"hidden_states.{i}": np.ones(1, np.float32) for i in range(3, 30_000)}
    start = time.process_time()
    report = case.check({**dump, "embeddings": case.trace["embeddings"]})
    assert time.process_time() - start < 10  # 45 s when each name was compared with all others
    assert (report.verdict, len(report.unknown)) == ("bits", len(dump))
