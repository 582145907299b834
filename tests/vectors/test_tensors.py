"""Torch tensors: tensors in, tensors out; torch is not loaded until a program asks for it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minibert import BertModel, BertTokenizer
from minibert._utils import torch_interop, validation
from minibert.vectors.similarity import cos_sim
from tests.support.outcomes import printed

TEXTS = ["first text", "second, longer text"]


# --- _utils/torch_interop.py ------------------------------------------------------------------------------------------


def test_a_tensor_and_its_array_share_memory() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    array = torch_interop.to_array(tensor)
    array[0, 1] = 7
    assert tensor[0, 1] == 7
    back = torch_interop.to_tensor(array)
    back[1, 2] = 8
    assert array[1, 2] == 8
    assert back.dtype == torch.float32


@pytest.mark.parametrize("kind", ["grad", "bfloat16", "float16", "transposed", "conjugate", "int", "bool", "0-d"])
def test_every_dense_tensor_becomes_its_values(kind: str) -> None:
    values = torch.tensor([[1.5, -2.0, 3.0], [0.0, 4.0, 5.0]])
    tensor: torch.Tensor = {
        "grad": values.clone().requires_grad_(),
        "bfloat16": values.bfloat16(),
        "float16": values.half(),
        "transposed": values.T,
        "conjugate": values.to(torch.complex64).conj(),
        "int": values.int(),
        "bool": values > 1,
        "0-d": values[0, 0],
    }[kind]
    array = torch_interop.to_array(tensor)
    assert array.shape == tuple(tensor.shape)
    np.testing.assert_array_equal(array, np.array(tensor.detach().tolist()))
    assert array.dtype == (np.float32 if kind in ("grad", "bfloat16", "transposed", "0-d") else array.dtype)


@pytest.mark.parametrize("tensor", [torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta")], ids=["sparse", "meta"])
def test_a_tensor_without_plain_values_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"cannot be read by NumPy .* Give a dense tensor with values"):
        torch_interop.to_array(tensor)


def test_values_of_return_tensors() -> None:
    import transformers

    assert [validation.check_return_tensors(value) for value in (None, "np", "pt")] == [None, "np", "pt"]
    assert validation.check_return_tensors(transformers.TensorType.PYTORCH) == "pt"
    for other in ("tf", "jax", "mlx", True, 1, torch):
        with pytest.raises(ValueError, match="expected None for lists, 'np' for NumPy arrays or 'pt'"):
            validation.check_return_tensors(other)


def test_without_torch_it_is_not_loaded_and_not_needed(minilm_folder: Path) -> None:
    """A program that does not ask for tensors never imports torch; asking without it is an error that names it."""
    code = f"""
import sys
from minibert import AutoModel, AutoTokenizer
name = {str(minilm_folder)!r}
tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name)
inputs = tokenizer("a text", return_tensors="np").to(model.device)
output = model.eval().to("cpu")(**inputs)
next(model.parameters()), model.get_input_embeddings()(inputs["input_ids"]), tokenizer.decode(inputs["input_ids"][0])
assert "torch" not in sys.modules
assert model.device == "cpu" and str(model.device) == "cpu" and model.device.type == "cpu" and model.dtype == "float32"
sys.modules["torch"] = None
for call in (lambda: tokenizer("a", return_tensors="pt"), lambda: tokenizer("a").convert_to_tensors("pt")):
    try:
        call()
    except ImportError as error:
        assert "return_tensors='pt' needs torch" in str(error) and "pip install torch" in str(error)
    else:
        raise AssertionError
"""
    assert printed(code) == ""


# --- model and tokenizer ----------------------------------------------------------------------------------------------


def test_tensors_give_tensors_with_the_values_of_arrays(minilm: BertModel, tokenizer: BertTokenizer) -> None:
    arrays, given = (tokenizer(TEXTS, padding=True, return_tensors=kind) for kind in ("np", "pt"))
    assert all(isinstance(value, torch.Tensor) and value.dtype == torch.int64 for value in given.values())
    for options in ({}, {"output_attentions": True, "num_layers": 2}, {"output_hidden_states": [1]}):
        expected, found = minilm(**arrays, **options), minilm(**given, **options)
        assert found.keys() == expected.keys()
        for one, other in zip(flat(found.to_tuple()), flat(expected.to_tuple()), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert isinstance(one, torch.Tensor)
                assert isinstance(other, np.ndarray)
                np.testing.assert_array_equal(one.numpy(), other)
    output = minilm(given["input_ids"], given["attention_mask"])  # by position, in transformers' order
    np.testing.assert_array_equal(output[0].numpy(), minilm(**arrays).last_hidden_state)
    assert output.hidden_states[-1] is output.last_hidden_state
    assert torch.stack(output[2], dim=0).shape == (7, 2, 6, 384)


def flat(values: Any) -> list[Any]:
    return [one for value in values for one in (flat(value) if isinstance(value, tuple) else [value])]


def test_a_mask_may_be_of_floats(minilm: BertModel, their_minilm: Any) -> None:
    ids, mask = torch.tensor([[101, 4937, 102], [101, 102, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    expected = minilm(ids, mask).last_hidden_state
    for floats in (mask.float(), mask.double(), mask.half()):
        np.testing.assert_array_equal(minilm(ids, floats).last_hidden_state, expected)
    with torch.no_grad():
        theirs = their_minilm(ids, mask.float()).last_hidden_state
    np.testing.assert_allclose(expected[mask == 1], theirs[mask == 1], rtol=0, atol=1e-5)


def test_one_tensor_among_the_inputs_is_enough(minilm: BertModel) -> None:
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert isinstance(minilm([[101, 7592, 102]], mask).last_hidden_state, torch.Tensor)
    assert isinstance(minilm([torch.tensor([101, 7592, 102])]).last_hidden_state, torch.Tensor)
    embeds = minilm.get_input_embeddings()(torch.tensor([[101, 102]])).requires_grad_()
    assert isinstance(minilm(inputs_embeds=embeds).last_hidden_state, torch.Tensor)


def test_the_steps_of_the_embedding_give_tensors(minilm: BertModel) -> None:
    ids = torch.tensor([[101, 7592, 102]])
    embeddings = minilm.embeddings
    for step, given in (
        (minilm.get_input_embeddings(), ids),
        (embeddings.word_embeddings, ids[0]),
        (embeddings.LayerNorm, torch.ones(2, 384)),
        (embeddings, ids),
    ):
        found, expected = step(given), step(given.numpy())
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(found.numpy(), expected)
    assert isinstance(embeddings.word_embeddings.weight, np.ndarray)


def test_a_model_has_the_habits_of_a_module(minilm: BertModel, their_minilm: Any) -> None:
    assert minilm.device == torch.device("cpu")
    assert minilm.dtype == torch.float32
    same = [minilm.to(value) for value in ("cpu", torch.device("cpu"), torch.float32, None)]
    same += [minilm.cpu(), minilm.float(), minilm.eval(), minilm.train(False), minilm.requires_grad_(False)]
    assert all(one is minilm for one in (*same, minilm.to(device="cpu")))
    assert not minilm.training
    for value in ("cuda", "mps", 0, torch.device("cuda"), torch.float16):
        with pytest.raises(ValueError, match="CPU"):
            minilm.to(value)
    for name in ("half", "bfloat16", "double", "cuda", "requires_grad_", "train"):
        with pytest.raises(ValueError, match="minibert"):
            getattr(minilm, name)()
    ours, theirs = dict(minilm.named_parameters()), dict(their_minilm.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        np.testing.assert_array_equal(values.numpy(), theirs[name].detach().numpy())
    assert sum(values.numel() for values in minilm.parameters()) == minilm.num_parameters()


def test_the_first_parameter_is_small_and_the_tables_come_last(minilm: BertModel) -> None:
    """Programs ask the first one for its device and type, so it must not be a copy of the table of words."""
    values = [*minilm.parameters()]
    assert (values[0].numel(), values[0].device, values[0].dtype) == (384, torch.device("cpu"), torch.float32)
    assert sorted(one.numel() for one in values[-3:]) == [2 * 384, 512 * 384, 30522 * 384]


# Ways in which a program could change a table.
CHANGES: dict[str, Callable[[Any], object]] = {
    "an item": lambda table: operator.setitem(table, 0, 1),
    "an item of data": lambda table: operator.setitem(table.data, 0, 1),
    "out of NumPy": lambda table: np.add(table, 1, out=table),
    "the flag": lambda table: table.setflags(write=True),
    "the flag of the plain array": lambda table: table.detach().numpy().setflags(write=True),
    "a buffer": lambda table: operator.setitem(memoryview(table.numpy()), (0, 0), 1.0),
    "a method of a tensor": lambda table: table.fill_diagonal_(0),
    "a function of torch": lambda table: torch.relu_(table),
    "out of torch": lambda table: torch.add(table, 1, out=table),
    "an initialisation": lambda table: torch.nn.init.zeros_(table),
}


@pytest.mark.parametrize("way", CHANGES)
def test_the_weights_cannot_be_changed_in_place(minilm: BertModel, way: str) -> None:
    """A change of a copy is refused, too, because the program would not see that it is lost."""
    table = minilm.get_input_embeddings().weight
    before = table.copy()
    with pytest.raises((ValueError, TypeError, AttributeError), match=r"read-only|WRITEABLE|torch.tensor"):
        CHANGES[way](table)
    np.testing.assert_array_equal(table, before)


def test_scores_can_be_changed_in_place() -> None:
    scores = cos_sim(np.eye(3), np.eye(3))
    torch.add(scores, 1, out=scores)
    np.testing.assert_array_equal(scores, np.ones((3, 3)) + np.eye(3))


def test_texts_of_tensors_and_arrays(tokenizer: BertTokenizer) -> None:
    ids = tokenizer(TEXTS, padding=True)["input_ids"]
    expected = ["[CLS] first text [SEP] [PAD] [PAD]", "[CLS] second, longer text [SEP]"]
    for given in (ids, np.array(ids), torch.tensor(ids), list(torch.tensor(ids))):
        assert tokenizer.decode(given) == tokenizer.batch_decode(given) == expected
        assert tokenizer.decode(given[0]) == expected[0]
        assert tokenizer.batch_decode(given[0]) == expected[:1]
        assert tokenizer.convert_ids_to_tokens(given[0])[:3] == ["[CLS]", "first", "text"]
    assert tokenizer.decode(torch.tensor(2034)) == "first"
