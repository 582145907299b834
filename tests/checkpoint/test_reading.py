"""safetensors -> weights: the tensors that are read, their names, and changes of the file after loading."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from minibert import BertConfig, BertModel, ModelFormatError
from minibert.checkpoint import tensors as tensors_module
from minibert.checkpoint.files import locate
from minibert.models import loading as weights_module
from minibert.models.loading import load_weights
from minibert.models.outputs import BertModelOutput
from tests.support.checkpoints import random_checkpoint
from tests.support.safetensors_files import (
    INPUTS,
    NAMES,
    SIZES,
    Arrays,
    Tensor,
    Tensors,
    Write,
    assert_refused,
    assert_same_bits,
    old_name,
    stored,
    write_shards,
)

# --- reading ----------------------------------------------------------------------------------------------------------


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
    tensors: Tensors, write: Write, dtype: str, torch_dtype: torch.dtype, infinity: int
) -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    patterns = patterns[(patterns & 0x7FFF) < infinity].reshape(-1, 8)
    expected = torch.from_numpy(patterns.view(np.int16)).view(torch_dtype).to(torch.float32).numpy()
    assert len(patterns) > 7000
    stored_dtype, widen, _ = tensors_module.READERS[dtype]
    np.testing.assert_array_equal(widen(patterns.view(stored_dtype)).view(np.uint32), expected.view(np.uint32))

    usable = (np.abs(expected) <= 1e6).all(axis=1)  # a model with larger weights is refused
    patterns, expected = patterns[usable], expected[usable]
    assert len(patterns) > 4000
    words = patterns.view(np.float16) if dtype == "F16" else patterns
    path = write({**tensors, NAMES[0]: (dtype, words)}, vocab_size=len(patterns))
    table = BertModel.from_pretrained(path).weights.word_embeddings
    np.testing.assert_array_equal(table.view(np.uint32), expected.view(np.uint32))


def test_dtypes_may_be_mixed_in_one_file(arrays: Arrays, write: Write) -> None:
    mixed = {name: stored(array, ("F32", "F16", "BF16")[i % 3]) for i, (name, array) in enumerate(arrays.items())}
    weights = BertModel.from_pretrained(write(mixed)).weights
    query = [mixed[f"encoder.layer.1.attention.self.{part}.weight"] for part in ("query", "key", "value")]
    assert {dtype for dtype, _ in query} == {"F32", "F16", "BF16"}
    widened = [tensors_module.READERS[dtype][1](array) for dtype, array in query]
    np.testing.assert_array_equal(weights.layers[1].query_key_value.weight, np.concatenate(widened))


def test_every_weight_is_where_it_belongs_under_its_own_path(folder: Path, arrays: Arrays) -> None:
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
def test_shards_through_the_index(tensors: Tensors, write: Write, expected: BertModelOutput, count: int) -> None:
    path = write_shards(write, tensors, count)
    assert len(list(path.glob("*.safetensors"))) == count
    assert_same_bits(BertModel.from_pretrained(path)(**INPUTS), expected)


@pytest.mark.parametrize("prefix", ["", "bert.", "model.bert.", "0.auto_model.", "any thing."])
@pytest.mark.parametrize("rename", [str, old_name], ids=["new names", "gamma and beta"])
def test_any_one_prefix_and_old_names_of_layer_norms(
    tensors: Tensors, write: Write, expected: BertModelOutput, prefix: str, rename: Callable[[str], str]
) -> None:
    renamed = {prefix + rename(name): tensor for name, tensor in tensors.items()}
    assert sum("gamma" in name for name in renamed) == (5 if rename is old_name else 0)
    assert_same_bits(BertModel.from_pretrained(write(renamed))(**INPUTS), expected)


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_heads_and_old_buffers_are_ignored_whatever_their_content(
    tensors: Tensors, write: Write, expected: BertModelOutput, prefix: str
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
def test_tensors_outside_the_prefix_are_not_the_model(
    tensors: Tensors, write: Write, expected: BertModelOutput, name: str
) -> None:
    """The names in a task head may equal BERT's; its tensors must neither replace nor complete BERT's."""
    beside = {name: stored(np.full((8, 8), 7.0))}
    inside = {f"bert.{n}": tensor for n, tensor in tensors.items()}
    for together in ({**beside, **inside}, {**inside, **beside}):
        model = BertModel.from_pretrained(write(together))
        assert_same_bits(model(**INPUTS), expected)
        assert model.weights.ignored == (name,)


def test_a_model_without_pooler_has_no_pooler_output_never_a_random_one(
    tensors: Tensors, write: Write, expected: BertModelOutput
) -> None:
    """The checkpoint has none, or has it outside of the prefix, or the caller leaves it out, even if it is broken."""
    broken = {**tensors, "pooler.dense.weight": stored(np.full((3, 3), np.nan))}
    for changed, options in (
        ({n: t for n, t in tensors.items() if not n.startswith("pooler.")}, {}),
        ({n if n.startswith("pooler") else f"bert.{n}": tensor for n, tensor in tensors.items()}, {}),
        (tensors, {"add_pooling_layer": False}),
        (broken, {"add_pooling_layer": False}),
    ):
        model = BertModel.from_pretrained(write(changed), **options)
        assert model.weights.pooler is None
        output = model(**INPUTS)
        assert output.pooler_output is None
        np.testing.assert_array_equal(output.last_hidden_state, expected.last_hidden_state)


# --- after loading ----------------------------------------------------------------------------------------------------


def test_changes_of_the_file_after_loading_change_nothing(
    tensors: Tensors, write: Write, expected: BertModelOutput
) -> None:
    path = write(tensors)
    file, model = path / "model.safetensors", BertModel.from_pretrained(path)
    for content in (file.stat().st_size * b"\xff", b"x" * 100):  # in place: the same inode
        file.write_bytes(content)
        assert_same_bits(model(**INPUTS), expected)
        assert_refused(path, str(path))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_tensor_is_read_through_a_small_buffer(tensors: Tensors, write: Write, dtype: str) -> None:
    positions = np.ones((1_000_000, 8), dtype=np.float32)
    path = write({**tensors, NAMES[1]: stored(positions, dtype)}, max_position_embeddings=len(positions))
    files, config = locate(path), BertConfig.from_pretrained(path)
    tracemalloc.start()
    try:
        weights = load_weights(files, config, lambda linear: linear)
        steady, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(weights.position_embeddings, positions)
    assert steady >= positions.nbytes
    assert peak - steady < 16e6  # 4 MB of the file, the same in float32, and the array of the check for finite values


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load must not mix two models."""
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
