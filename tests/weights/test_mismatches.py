"""Valid files of another model, and shards that do not match: each fault is named."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from minibert import BertConfig, BertModel, ModelFormatError
from minibert.checkpoint.files import locate
from minibert.models.loading import load_weights
from tests.support.safetensors_files import (
    INPUTS,
    NAMES,
    SIZES,
    Arrays,
    Tensor,
    Tensors,
    Write,
    assert_refused,
    parts_of,
    stored,
    with_header,
    write_shards,
)

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
    for dtype in ("F64", "I64", "I32", "F8_E4M3", "BOOL"):
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


@pytest.mark.parametrize(
    "changes",
    [
        *({size: 2**30} for size in SIZES if size != "num_attention_heads"),
        {"vocab_size": 2**31 - 1, "hidden_size": 2**30, "intermediate_size": 2**31 - 1},
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_absurd_sizes_fail_at_once_and_allocate_nothing(
    tensors: Tensors, write: Write, changes: dict[str, int]
) -> None:
    path = write(tensors, **changes)
    seconds, peak = refuse_and_measure(path, next(iter(changes)))
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


@pytest.mark.parametrize(
    "name",
    [
        "encoder.layer.0.attention.self.distance_embedding.weight",
        "encoder.layer.1.crossattention.self.query.weight",
        "encoder.layer.01.attention.self.query.weight",
        "embeddings.word_embeddings_2.weight",
        "pooler.dense.weight_scale",
        "encoder.layer.0.output.dense.weight_g",
    ],
)
def test_an_unexpected_tensor_inside_bert_is_named(tensors: Tensors, write: Write, name: str) -> None:
    """Such a tensor would change the numbers in a way that minibert does not implement."""
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


# --- shards that do not match -----------------------------------------------------------------------------------------


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


SHARDS = ("../other.safetensors", "/etc/x.safetensors", "a/b.safetensors", "a\\b.safetensors", "x\0.safetensors")


@pytest.mark.parametrize(
    ("name", "shard", "match"),
    [
        ("pooler.dense.scale", FIRST, "pooler.dense.scale"),
        (NAMES[0], "model-00003-of-00002.safetensors", "model-00003"),
        (NAMES[0], "the other", f"{NAMES[0]} is in model-0"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(
    tensors: Tensors, write: Write, name: str, shard: object, match: str
) -> None:
    path = write_shards(write, tensors, 2)
    file = path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    if shard == "the other":
        shard = SECOND if index["weight_map"][name] == FIRST else FIRST
    index["weight_map"][name] = shard
    file.write_text(json.dumps(index))
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
