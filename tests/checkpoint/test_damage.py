"""Damaged safetensors files, other models, shards that do not match: refused by name, or the same numbers."""

from __future__ import annotations

import json
import os
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from minibert import BertConfig, BertModel, ModelFormatError
from minibert.checkpoint import safetensors
from minibert.checkpoint import tensors as tensors_module
from minibert.checkpoint.files import locate
from minibert.models.loading import load_weights
from minibert.models.outputs import BertModelOutput
from tests.support.damage import both, chances, damaged_bytes, damaged_json, sampled, values
from tests.support.report import REPORT
from tests.support.safetensors_files import (
    INPUTS,
    NAMES,
    SIZES,
    Arrays,
    Tensor,
    Tensors,
    Write,
    all_arrays,
    assert_refused,
    old_name,
    parts_of,
    safetensors_bytes,
    stored,
    with_header,
    write_shards,
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


@both(100)
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
    path, read, calls = write(tensors), safetensors.fill, []

    def cut_before(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == call:
            os.truncate(path / "model.safetensors", size)
        read(*arguments)

    for module in (safetensors, tensors_module):
        monkeypatch.setattr(module, "fill", cut_before)
    assert_refused(path, str(path / "model.safetensors"))


@both(200)
def test_accepted_headers_are_read_as_by_the_safetensors_library(tmp_path: Path, arrays: Arrays, most: int) -> None:
    """minibert parses the header itself; the result must equal the library's."""
    path, contents, accepted = tmp_path / "model.safetensors", originals(arrays), []

    @sampled(most)
    @given(chances, values, st.sampled_from([0, 1]))
    def run(chance: random.Random, value: Any, which: int) -> None:
        content = damaged(contents[which], chance, value)
        path.write_bytes(content)
        try:
            ours = safetensors.read_header(path)
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


def test_a_header_that_does_not_describe_its_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    shapes: list[tuple[str, list[int], list[int]]] = [("F32", [2**62, 4, 0], [0, 0]), ("F32", [1] * 65, [0, 4])]
    shapes += [("F32", [True], [0, 4]), ("F32", [1], [0, 8]), ("F32", [1], [4, 8]), ("F4", [3], [0, 1])]
    for dtype, shape, offsets in [*shapes, ("F31", [1], [0, 4])]:
        entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        path.write_bytes(with_header(json.dumps({"x": entry}).encode(), bytes(8)))
        with pytest.raises(ModelFormatError, match="'x'"):
            safetensors.read_header(path)


# --- a valid file, another model --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_each_fault_of_a_tensor_is_named(arrays: Arrays, tensors: Tensors, write: Write, name: str) -> None:
    """It is missing, transposed, reshaped or of another dtype; a transposed square map is another valid model."""
    path = write({n: tensor for n, tensor in tensors.items() if n != name})
    assert_refused(path, *((str(path), name) if name == NAMES[0] else (str(path), f"{name} is missing")))
    array = arrays[name]
    shapes = [array.T, array[:-1], array[..., :-1], array[None], array.reshape(-1, 1), array.reshape(-1)]
    changed = [other for other in shapes if other.shape != array.shape]
    assert len(changed) >= 3
    for other in changed:
        assert_refused(write({**tensors, name: stored(other)}), f"{name} has shape {list(other.shape)}")
    for dtype in ("I64", "I32", "F8_E4M3", "BOOL"):
        assert_refused(write({**tensors, name: stored(array, dtype)}), f"{name} is {dtype}")


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_named_with_its_place(
    arrays: Arrays, tensors: Tensors, write: Write, dtype: str, value: float
) -> None:
    generator = np.random.default_rng(0)
    for name, array in arrays.items():
        place = tuple(int(generator.integers(n)) for n in array.shape)
        broken = array.copy()
        broken[place] = value
        path = write({**tensors, name: stored(broken, dtype)})
        assert_refused(path, "model.safetensors", f"tensor {name} holds {value} at {list(place)}")


def test_the_first_weight_that_is_not_finite_is_found_beyond_the_first_buffer(tensors: Tensors, write: Write) -> None:
    words = np.zeros((200_000, 8), dtype=np.float32)  # 6.4 MB, read in two parts
    words[150_001, 3] = np.nan
    path = write({**tensors, NAMES[0]: stored(words)}, vocab_size=len(words))
    assert_refused(path, f"tensor {NAMES[0]} holds nan at [150001, 3]")


def test_absurd_sizes_fail_at_once_and_allocate_nothing(tensors: Tensors, write: Write) -> None:
    several = {"vocab_size": 2**31 - 1, "hidden_size": 2**30, "intermediate_size": 2**31 - 1}
    for changes in (several, *({size: 2**30} for size in SIZES if size != "num_attention_heads")):
        seconds, peak = refuse_and_measure(write(tensors, **changes), next(iter(changes)))
        assert peak < 1e6
        assert seconds < 5, "a loop over this number of items would take longer"


def refuse_and_measure(path: Path, match: str) -> tuple[float, int]:
    """Fail to load weights; return the seconds and the peak of allocated bytes. The configuration is read before."""
    files, config = locate(path), BertConfig.from_pretrained(path)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(ModelFormatError, match=match):
            load_weights(files, config, lambda linear: linear)
        return time.process_time() - began, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_sizes_in_the_file_are_not_trusted_either(tensors: Tensors, write: Write) -> None:
    """A header of a few bytes announces terabytes, and config.json has the same sizes."""
    path = write(tensors, vocab_size=2**30)
    header, data = parts_of((path / "model.safetensors").read_bytes())
    promised = json.loads(header)
    promised[NAMES[0]]["shape"] = [2**30, 8]
    promised[NAMES[0]]["data_offsets"] = [0, 2**35]
    (path / "model.safetensors").write_bytes(with_header(json.dumps(promised).encode(), data))
    _, peak = refuse_and_measure(path, r"model\.safetensors is not a whole safetensors file")
    assert peak < 1e6


def rename(tensors: Mapping[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


def test_a_layer_too_many_too_few_or_missing_in_between(tensors: Tensors, write: Write) -> None:
    extra = {**tensors, **rename({n: t for n, t in tensors.items() if ".layer.1." in n}, ".1.", ".2.")}
    assert_refused(write(extra), "num_hidden_layers=2", "holds 3 layers (0 to 2)", "num_layers=")
    fewer = {n: t for n, t in tensors.items() if ".layer.1." not in n}
    assert_refused(write(fewer), "num_hidden_layers=2", "holds 1 layers (0 to 0)")
    gap = rename(tensors, ".layer.1.", ".layer.2.")
    assert_refused(write(gap), "num_hidden_layers=2", "holds 2 layers (0 to 2)")
    none = {n: t for n, t in tensors.items() if ".layer." not in n}
    assert_refused(write(none), "num_hidden_layers=2", "holds no layers")
    assert BertModel.from_pretrained(write(none, num_hidden_layers=0))(**INPUTS).hidden_states[0].any()
    for part, embeddings, layers in (("embeddings.", "bert.", ""), ("encoder.", "", "bert.")):
        prefixed = {f"bert.{n}" if n.startswith(part) else n: t for n, t in tensors.items()}
        assert_refused(write(prefixed), f"embeddings begin with {embeddings!r}, and those of layers with {layers!r}")


UNEXPECTED = (
    *("encoder.layer.0.attention.self.distance_embedding.weight", "encoder.layer.1.crossattention.self.query.weight"),
    *("encoder.layer.01.attention.self.query.weight", "encoder.layer.0.output.dense.weight_g"),
    *("embeddings.word_embeddings_2.weight", "pooler.dense.weight_scale"),
)


def test_an_unexpected_tensor_inside_bert_is_named(tensors: Tensors, write: Write) -> None:
    """Such a tensor would change the numbers in a way that minibert does not implement."""
    for name in UNEXPECTED:
        assert_refused(write({**tensors, name: stored(np.zeros(3))}), f"{name} is unexpected")


def test_files_of_another_kind_are_refused_with_their_names(tensors: Tensors, write: Write) -> None:
    both = {f"{side}.{name}": tensor for side in ("query_model", "answer_model") for name, tensor in tensors.items()}
    twice = {**tensors, "embeddings.LayerNorm.gamma": tensors["embeddings.LayerNorm.weight"]}
    for changed, *found in (
        (both, "'answer_model.', 'query_model.'"),
        (twice, "embeddings.LayerNorm.weight twice", "gamma"),
        ({name: stored(np.zeros((2, 2))) for name in ("transformer.wte.weight", "x")}, "transformer.wte.weight"),
        ({}, "not a BERT checkpoint"),
    ):
        assert_refused(write(changed), *found)


def test_a_very_long_name_is_cut_in_every_message(tensors: Tensors, write: Write) -> None:
    for begin in ("embeddings.", "encoder.layer.0.", "x.lora_", ""):
        name, many = begin + "x" * 100_000, {} if begin == "" else tensors
        for path in (write({**many, name: stored(np.zeros(3))}), write({**many, name: stored(np.zeros(3), "I64")})):
            with pytest.raises(ModelFormatError) as caught:
                BertModel.from_pretrained(path)
            assert f"{begin}xxx" in str(caught.value)
            assert len(str(caught.value)) < 2000


def test_files_that_need_another_one_say_so(tensors: Tensors, write: Write) -> None:
    folder = write(tensors)
    (folder / "adapter_config.json").write_text("{}")
    assert_refused(folder, "adapter_config.json makes it an adapter of another model")
    (folder / "config.json").rename(folder / "other.json")
    assert_refused(folder, "has no config.json", "makes it an adapter")
    for name in (FIRST, "pytorch_model-00001-of-00002.bin"):
        folder = write(tensors)
        (folder / "adapter_config.json").unlink(missing_ok=True)
        (folder / "model.safetensors").rename(folder / name)
        assert_refused(folder, name, "It has shards without their index")


# --- shards that do not match -----------------------------------------------------------------------------------------


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_an_index_that_does_not_fit_its_shards_is_refused(tensors: Tensors, write: Write) -> None:
    path, first, third = write_shards(write, tensors, 2), NAMES[0], "model-00003-of-00002.safetensors"
    file = path / "model.safetensors.index.json"
    shards = json.loads(file.read_text())["weight_map"]
    other = SECOND if shards[first] == FIRST else FIRST
    for name, shard, match in (
        ("pooler.x", FIRST, "pooler.x"),
        (first, third, third),
        (first, other, f"{first} is in"),
    ):
        file.write_text(json.dumps({"weight_map": {**shards, name: shard}}))
        assert_refused(path, match)


def test_a_missing_or_cut_shard_or_a_tensor_in_two_is_named(tensors: Tensors, write: Write) -> None:
    path, first = write_shards(write, tensors, 2), next(iter(tensors))
    write({name: tensors[name] for name in [*list(tensors)[1::2], first]}, SECOND)
    assert_refused(path, f"{first} is in two files", FIRST, SECOND)
    write_shards(write, tensors, 2)
    os.truncate(path / SECOND, (path / SECOND).stat().st_size - 1)
    assert_refused(path, str(path / SECOND))
    (path / SECOND).unlink()
    assert_refused(path, SECOND)
