"""The embeddings as separate steps, compared with transformers'."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from minibert import BertModel
from tests.support.model_calls import CALLS, EMBEDS, IDS, POSITIONS, RANDOM, TOKEN_TYPES, TOLERANCE, H, S, V


@pytest.mark.parametrize("name", ["word_embeddings", "position_embeddings", "token_type_embeddings"])
def test_each_table_is_that_of_transformers(model: BertModel, eager: transformers.BertModel, name: str) -> None:
    table, theirs = getattr(model.embeddings, name), getattr(eager.embeddings, name).weight.detach().numpy()
    np.testing.assert_array_equal(table.weight, theirs)
    assert not table.weight.flags.writeable
    assert model.get_input_embeddings() is model.embeddings.word_embeddings
    rows = len(table.weight)
    ids = RANDOM.integers(rows, size=(2, 3, 4))
    for some in (ids, ids[0], ids[0, 0], ids[0, 0, 0], ids.tolist(), ids.astype(np.uint8)):
        looked_up = table(some)
        np.testing.assert_array_equal(looked_up, theirs[np.asarray(some)])
        assert looked_up.dtype == np.float32
    looked_up[:] = 0  # the result is a copy
    assert table(ids).any()
    for wrong, error, word in (
        ([0, rows], ValueError, f"is {rows};"),
        (-1, ValueError, "is -1"),
        ([0.0], TypeError, ""),
    ):
        with pytest.raises(error, match=f"{name} ids.*{word}"):
            table(wrong)


@pytest.mark.parametrize(
    "path",
    [
        *("embeddings", "pooler", "encoder", "forward", "training", "config"),
        *("embeddings.word_embeddings", "embeddings.LayerNorm", "embeddings.word_embeddings.weight"),
        *("embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias", "embeddings.LayerNorm.eps"),
    ],
)
def test_no_part_of_a_model_can_be_replaced(model: BertModel, path: str) -> None:
    *owners, name = path.split(".")
    part = functools.reduce(getattr, owners, model)
    with pytest.raises(AttributeError, match=rf"{type(part).__name__}\.{name} cannot be set.*edit=.*load the folder"):
        setattr(part, name, None)
    model.my_note = "kept"  # an attribute of the user's own changes nothing
    assert vars(model).pop("my_note") == "kept"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("pooler", "output.pooler_output"),
        ("state_dict", "named_parameters"),
        ("register_forward_hook", "model.trace"),
        ("_modules", "model.trace"),
        ("set_input_embeddings", "inputs_embeds="),
        ("resize_token_embeddings", "transformers"),
    ],
)
def test_what_only_a_model_of_torch_has_names_its_place_here(model: BertModel, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=f"BertModel has no attribute '{name}': .*{re.escape(remedy)}"):
        getattr(model, name)
    assert not hasattr(model, "unheard_of")
    with pytest.raises(AttributeError, match=r"Encoder has no attribute 'layer': .*num_layers="):
        _ = model.encoder.layer  # bert-score cuts the layers of a model of torch there


def test_layer_norm_as_a_step(model: BertModel, eager: transformers.BertModel) -> None:
    norm, theirs = model.embeddings.LayerNorm, eager.embeddings.LayerNorm
    np.testing.assert_array_equal(norm.weight, theirs.weight.detach().numpy())
    np.testing.assert_array_equal(norm.bias, theirs.bias.detach().numpy())
    assert norm.eps == theirs.eps
    assert not norm.weight.flags.writeable
    for x in (EMBEDS, EMBEDS[0], EMBEDS[0, 0], EMBEDS[:0], np.asfortranarray(EMBEDS), EMBEDS.astype(">f8")):
        before = x.copy()
        with torch.no_grad():
            expected = theirs(torch.from_numpy(x.astype(np.float32))).numpy()
        result = norm(x)
        np.testing.assert_allclose(result, expected, rtol=0, atol=TOLERANCE)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(x, before)
    assert repr(norm) == f"LayerNorm({H}, eps=1e-12)"


BAD = np.where(np.arange(4 * H).reshape(2, 2, H) == 3 * H + 5, np.nan, 1)


@pytest.mark.parametrize(
    ("x", "error", "word"),
    [
        *((x, ValueError, "shape") for x in (np.zeros((2, H + 1)), np.zeros(()))),
        *((x, TypeError, "") for x in (np.zeros((2, H), int), "text")),
        ([[1.0], [1.0, 2.0]], ValueError, ""),
        (BAD, ValueError, r"at \[1, 1\]"),
        *((np.full(H, value), ValueError, r"at \[\]") for value in (np.inf, 1e300)),
    ],
)
def test_layer_norm_refuses(model: BertModel, x: Any, error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=f"LayerNorm's input.*{word}"):
        model.embeddings.LayerNorm(x)


@pytest.mark.parametrize("backend", ["kernels", "numpy"])
def test_the_steps_by_hand_give_the_first_hidden_state_bit_for_bit(folder: Path, backend: str) -> None:
    model = BertModel.from_pretrained(folder, backend=backend)
    e = model.embeddings
    words, types = e.word_embeddings(IDS), e.token_type_embeddings(TOKEN_TYPES)
    x = (words.astype(np.float64) + types + e.position_embeddings(np.arange(S))).astype(np.float32)
    assert e.dropout(x) is x
    by_hand = e.dropout(e.LayerNorm(x))
    whole = e(input_ids=IDS, token_type_ids=TOKEN_TYPES)
    first = model(IDS, token_type_ids=TOKEN_TYPES).hidden_states[0]
    np.testing.assert_array_equal(whole, first)
    np.testing.assert_array_equal(by_hand, first)


def test_the_whole_embedding_equals_transformers(model: BertModel, eager: transformers.BertModel) -> None:
    with torch.no_grad():
        expected = eager.embeddings(torch.from_numpy(IDS), torch.from_numpy(TOKEN_TYPES), torch.from_numpy(POSITIONS))
    ours = model.embeddings(IDS, TOKEN_TYPES, POSITIONS)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=0, atol=TOLERANCE)
    ids = RANDOM.integers(V, size=(70, 50))
    np.testing.assert_array_equal(model.embeddings(ids), model(ids, output_hidden_states=0).hidden_states[0])
    for arguments in (([[1, 120]],), ()):
        with pytest.raises(ValueError, match="input_ids"):
            model.embeddings(*arguments)


@pytest.mark.parametrize("call", [call for call in CALLS if "attention_mask" not in CALLS[call]])
def test_the_whole_embedding_is_the_first_hidden_state_bit_for_bit(model: BertModel, call: str) -> None:
    np.testing.assert_array_equal(model.embeddings(**CALLS[call]), model(**CALLS[call]).hidden_states[0])
