"""`BertModel` compared with transformers, and ways to compute the same results."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import transformers

from minibert import BertModel
from minibert.models.steps import TOKENS_PER_STEP
from tests.support.checkpoints import random_checkpoint
from tests.support.model_calls import (
    CALLS,
    EMBEDS,
    HOLES,
    IDS,
    LEFT,
    RANDOM,
    RIGHT,
    TOKEN_TYPES,
    TOLERANCE,
    H,
    L,
    P,
    S,
    V,
    run,
)

# --- equal to transformers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["kernels", "numpy"])
@pytest.mark.parametrize("call", CALLS)
def test_every_hidden_state_and_the_pooler_equal_transformers(
    folder: Path, theirs: transformers.BertModel, backend: str, call: str
) -> None:
    inputs = CALLS[call]
    output = BertModel.from_pretrained(folder, backend=backend)(**inputs)
    expected = run(theirs, inputs, output_hidden_states=True)

    shape = next(iter(inputs.values())).shape[:2]
    visible = inputs.get("attention_mask", np.ones(shape)).astype(bool)
    assert len(output.hidden_states) == len(expected.hidden_states) == L + 1
    for ours, other in zip(output.hidden_states, expected.hidden_states, strict=True):
        assert ours.dtype == np.float32
        assert ours.shape == other.shape == (*shape, H)
        np.testing.assert_allclose(ours[visible], other.numpy()[visible], rtol=0, atol=TOLERANCE)
        assert not ours[~visible].any(), "masked positions must be zero"
    first = visible[:, 0]
    np.testing.assert_allclose(
        output.pooler_output[first], expected.pooler_output.numpy()[first], rtol=0, atol=TOLERANCE
    )
    assert not output.pooler_output[~first].any(), "without a [CLS], the pooler output must be zero"


@pytest.mark.parametrize("call", CALLS)
def test_attentions_equal_transformers(model: BertModel, eager: transformers.BertModel, call: str) -> None:
    inputs = CALLS[call]
    attentions = model(**inputs, output_attentions=True).attentions
    expected = run(eager, inputs, output_attentions=True).attentions

    shape = next(iter(inputs.values())).shape[:2]
    visible = inputs.get("attention_mask", np.ones(shape)).astype(bool)
    pairs = np.broadcast_to((visible[:, :, None] & visible[:, None, :])[:, None], expected[0].shape)
    assert len(attentions) == len(expected) == L
    for ours, other in zip(attentions, expected, strict=True):
        assert ours.dtype == np.float32
        assert ours.shape == other.shape
        np.testing.assert_allclose(ours[pairs], other.numpy()[pairs], rtol=0, atol=1e-6)
        assert not ours[~pairs].any(), "a pair with a masked token must be zero"
        sums = ours.sum(axis=-1)
        np.testing.assert_allclose(sums, np.broadcast_to(visible[:, None], sums.shape), rtol=0, atol=1e-6)


# --- the same results in other ways -----------------------------------------------------------------------------------


def test_left_padding_equals_right_padding_if_positions_are_given(model: BertModel) -> None:
    lengths = RIGHT.sum(axis=1)
    right, left = np.zeros_like(IDS), np.zeros_like(IDS)
    for row, n in enumerate(lengths):
        right[row, :n] = left[row, S - n :] = IDS[row, :n]
    positions = np.maximum(LEFT.cumsum(axis=1) - 1, 0)
    on_the_right = model(right, RIGHT).hidden_states
    on_the_left = model(left, LEFT, position_ids=positions).hidden_states
    for a, b in zip(on_the_right, on_the_left, strict=True):
        np.testing.assert_array_equal(a[RIGHT == 1], b[LEFT == 1])


@pytest.mark.parametrize("backend", ["kernels", "numpy"])
def test_many_steps_with_rows_of_all_lengths_equal_single_runs(folder: Path, backend: str) -> None:
    model = BertModel.from_pretrained(folder, backend=backend)
    lengths = RANDOM.integers(0, P + 1, size=90)
    mask = np.arange(P) < lengths[:, None]
    assert mask.sum() > 2 * TOKENS_PER_STEP
    ids, types = RANDOM.integers(V, size=mask.shape), RANDOM.integers(3, size=mask.shape)
    together = model(ids, mask, types, output_attentions=[1])
    # Rounding: with other rows in the batch, a BLAS may add in another order; measured: 2.4e-6.
    close = partial(np.testing.assert_allclose, rtol=0, atol=4e-6)
    for row, n in enumerate(lengths):
        alone = model(ids[row : row + 1, :n], token_type_ids=types[row : row + 1, :n], output_attentions=[1])
        for a, b in zip(together.hidden_states, alone.hidden_states, strict=True):
            close(a[row, :n], b[0])
            assert not a[row, n:].any()
        close(together.attentions[1][row, :, :n, :n], alone.attentions[1][0])
        close(together.pooler_output[row], alone.pooler_output[0])


def test_one_sequence_longer_than_a_step(tmp_path: Path) -> None:
    random_checkpoint(tmp_path, max_position_embeddings=1100)
    model = BertModel.from_pretrained(tmp_path)
    ids = RANDOM.integers(model.config.vocab_size, size=(2, 1100))
    assert ids.shape[1] > TOKENS_PER_STEP
    expected = run(transformers.BertModel.from_pretrained(tmp_path).eval(), {"input_ids": ids})
    np.testing.assert_allclose(model(ids).last_hidden_state, expected.last_hidden_state.numpy(), rtol=0, atol=TOLERANCE)


def test_word_embeddings_as_inputs_embeds_give_the_same_bits(model: BertModel) -> None:
    by_ids = model(IDS, HOLES, TOKEN_TYPES)
    by_vectors = model(None, HOLES, TOKEN_TYPES, inputs_embeds=model.get_input_embeddings()(IDS))
    for a, b in zip(by_ids.hidden_states, by_vectors.hidden_states, strict=True):
        np.testing.assert_array_equal(a, b)


def test_results_belong_to_the_caller(model: BertModel) -> None:
    embeds = EMBEDS.copy()
    first = model(inputs_embeds=embeds, output_attentions=True)
    copies = [state.copy() for state in first.hidden_states]
    arrays = [*first.hidden_states, *first.attentions, first.pooler_output]
    for i, array in enumerate(arrays):
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in (embeds, *arrays[:i]))
        array[:] = np.nan
    for again, before in zip(model(inputs_embeds=embeds).hidden_states, copies, strict=True):
        np.testing.assert_array_equal(again, before)
