"""Valid files of another model, and shards that do not match: each fault is named."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from collections.abc import Callable, Mapping
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
    Tensor,
    assert_refused,
    parts_of,
    stored,
    with_header,
    write_shards,
)

# --- a valid file, another model --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tensor_is_named(tensors: dict[str, Tensor], write: Callable[..., Path], name: str) -> None:
    path = write({n: tensor for n, tensor in tensors.items() if n != name})
    if name == NAMES[0]:
        assert_refused(path, str(path), "not a BERT checkpoint", name)
    else:
        assert_refused(path, str(path), f"{name} is missing")


@pytest.mark.parametrize("name", NAMES)
def test_a_transposed_or_reshaped_tensor_is_named(
    arrays: dict[str, np.ndarray], tensors: dict[str, Tensor], write: Callable[..., Path], name: str
) -> None:
    """A transposed square map cannot be detected, because it is another valid model."""
    array = arrays[name]
    shapes = [array.T, array[:-1], array[..., :-1], array[None], array.reshape(-1, 1), array.reshape(-1)]
    changed = [other for other in shapes if other.shape != array.shape]
    assert len(changed) >= 3
    for other in changed:
        path = write({**tensors, name: stored(other)})
        assert_refused(path, f"{name} has shape {list(other.shape)}, expected {list(array.shape)}")


@pytest.mark.parametrize("dtype", ["F64", "I64", "I32", "F8_E4M3", "BOOL"])
def test_a_tensor_of_another_dtype_is_named(
    arrays: dict[str, np.ndarray], tensors: dict[str, Tensor], write: Callable[..., Path], dtype: str
) -> None:
    for name, array in arrays.items():
        path = write({**tensors, name: stored(array, dtype)})
        assert_refused(path, f"{name} is {dtype}, minibert reads F32, F16, BF16")


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_named_with_its_place(
    arrays: dict[str, np.ndarray], tensors: dict[str, Tensor], write: Callable[..., Path], dtype: str, value: float
) -> None:
    generator = np.random.default_rng(0)
    for name, array in arrays.items():
        place = tuple(int(generator.integers(n)) for n in array.shape)
        broken = array.copy()
        broken[place] = value
        path = write({**tensors, name: stored(broken, dtype)})
        assert_refused(path, "model.safetensors", f"tensor {name} holds {value} at {list(place)}")


def test_the_first_weight_that_is_not_finite_is_found_beyond_the_first_buffer(
    tensors: dict[str, Tensor], write: Callable[..., Path]
) -> None:
    words = np.zeros((200_000, 8), dtype=np.float32)  # 6.4 MB, read in two parts
    words[150_001, 3] = np.nan
    path = write({**tensors, NAMES[0]: stored(words)}, vocab_size=len(words))
    assert_refused(path, f"tensor {NAMES[0]} holds nan at [150001, 3]")


@pytest.mark.parametrize("change", [1, -1])
@pytest.mark.parametrize("size", [size for size in SIZES if size != "num_attention_heads"])
def test_each_size_is_compared_with_the_file(
    tensors: dict[str, Tensor], write: Callable[..., Path], size: str, change: int
) -> None:
    value = SIZES[size] + change
    path = write(tensors, **{size: value})
    if size == "num_hidden_layers":
        assert_refused(path, str(path), f"num_hidden_layers={value}", "holds 2 layers (0 to 1)", "num_layers=")
    elif size == "hidden_size":
        assert_refused(path, f"hidden_size={value}", "num_attention_heads=2")
    else:
        assert_refused(path, str(path), f"expected [{value}", size)


def test_the_hidden_size_is_compared_with_every_tensor(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
    """39 tensors, all but the two biases of the intermediate layers; 12 are listed."""
    path = write(tensors, hidden_size=10)
    assert_refused(path, f"{NAMES[0]} has shape [20, 8], expected [20, 10] (vocab_size, hidden_size)", "and 25 more")


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 2**30},
        {"max_position_embeddings": 2**30},
        {"type_vocab_size": 2**30},
        {"intermediate_size": 2**30},
        {"hidden_size": 2**30},
        {"num_hidden_layers": 2**30},
        {"vocab_size": 2**31 - 1, "hidden_size": 2**30, "intermediate_size": 2**31 - 1},
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_absurd_sizes_fail_at_once_and_allocate_nothing(
    tensors: dict[str, Tensor], write: Callable[..., Path], changes: dict[str, int]
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


def test_sizes_in_the_file_are_not_trusted_either(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
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


def test_a_layer_too_many_too_few_or_missing_in_between(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
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
        "encoder.relative_attention_bias.weight",
        "embeddings.word_embeddings.bias",
        "embeddings.word_embeddings_2.weight",
        "pooler.dense.weight_scale",
        "encoder.layer.0.output.dense.weight_g",
    ],
)
def test_an_unexpected_tensor_inside_bert_is_named(
    tensors: dict[str, Tensor], write: Callable[..., Path], name: str
) -> None:
    """Such a tensor would change the numbers in a way that minibert does not implement."""
    assert_refused(write({**tensors, name: stored(np.zeros(3))}), f"{name} is unexpected")


def test_all_faults_are_listed_together(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
    some = {n: t for n, t in tensors.items() if n not in ("pooler.dense.bias", "encoder.layer.1.output.dense.bias")}
    some["encoder.layer.0.intermediate.dense.bias"] = stored(np.zeros(12))
    some["encoder.layer.0.x.weight"] = stored(np.zeros(12))
    assert_refused(
        write(some),
        "pooler.dense.bias is missing",
        "encoder.layer.1.output.dense.bias is missing",
        "encoder.layer.0.intermediate.dense.bias has shape [12], expected [13] (intermediate_size)",
        "encoder.layer.0.x.weight is unexpected",
    )


def test_two_models_in_a_file_are_refused(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
    both = {f"{side}.{name}": tensor for side in ("query_model", "answer_model") for name, tensor in tensors.items()}
    assert_refused(write(both), "holds 2 BERT models ('answer_model.', 'query_model.')")


@pytest.mark.parametrize("names", [(), ("transformer.wte.weight", "lm_head.weight")])
def test_a_file_without_bert_is_refused_with_its_names(write: Callable[..., Path], names: tuple[str, ...]) -> None:
    path = write({name: stored(np.zeros((2, 2))) for name in names})
    assert_refused(path, "not a BERT checkpoint", names[0] if names else "nothing")


# --- shards that do not match -----------------------------------------------------------------------------------------


def edit_index(path: Path, edit: Callable[[dict[str, str]], object]) -> None:
    file = path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    edit(index["weight_map"])
    file.write_text(json.dumps(index))


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_a_tensor_in_two_shards_is_refused(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
    path = write_shards(write, tensors, 2)
    write({name: tensors[name] for name in [*list(tensors)[1::2], next(iter(tensors))]}, SECOND)
    assert_refused(path, f"{next(iter(tensors))} is in two files", FIRST, SECOND)


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (
            lambda index: index.update({NAMES[0]: SECOND if index[NAMES[0]] == FIRST else FIRST}),
            f"{NAMES[0]} is in model-0",
        ),
        (lambda index: index.update({"pooler.dense.scale": FIRST}), f"pooler.dense.scale is in {FIRST}"),
        (
            lambda index: index.update({NAMES[0]: "model-00003-of-00002.safetensors"}),
            "model-00003-of-00002.safetensors",
        ),
        (lambda index: index.update({NAMES[0]: "../other.safetensors"}), "'../other.safetensors'"),
        (lambda index: index.update({NAMES[0]: "/etc/x.safetensors"}), "'/etc/x.safetensors'"),
        (lambda index: index.update({NAMES[0]: "a/b.safetensors"}), "'a/b.safetensors'"),
        (lambda index: index.update({NAMES[0]: "a\\b.safetensors"}), "cannot name a file"),
        (lambda index: index.update({NAMES[0]: "x\0.safetensors"}), "cannot name a file"),
        (lambda index: index.update({NAMES[0]: "pytorch_model.bin"}), "'pytorch_model.bin'"),
        (lambda index: index.update({NAMES[0]: 1}), "into 1"),
        (lambda index: index.update({NAMES[0]: None}), "into None"),
        (lambda index: index.clear(), "weight_map"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(
    tensors: dict[str, Tensor], write: Callable[..., Path], edit: Callable[[dict[str, str]], object], match: str
) -> None:
    path = write_shards(write, tensors, 2)
    edit_index(path, edit)
    assert_refused(path, match)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {}}', b'{"weight_map":']
)
def test_a_damaged_index_is_refused(tensors: dict[str, Tensor], write: Callable[..., Path], content: bytes) -> None:
    path = write_shards(write, tensors, 2)
    (path / "model.safetensors.index.json").write_bytes(content)
    assert_refused(path, str(path / "model.safetensors.index.json"))


def test_a_missing_or_cut_shard_is_named(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
    path = write_shards(write, tensors, 2)
    os.truncate(path / SECOND, (path / SECOND).stat().st_size - 1)
    assert_refused(path, str(path / SECOND))
    (path / SECOND).unlink()
    assert_refused(path, SECOND)
