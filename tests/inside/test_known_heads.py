"""The analyses on a model made by hand, in which the behaviour of each attention head is known."""

from __future__ import annotations

import numpy as np
import pytest

from minibert import BertModel, inside
from minibert.trace.trace import Trace
from tests.support.known_heads import CLS, KINDS, SEP, TOKENS, known_heads

IDS = np.array([[CLS, 4, 5, 6, 7, SEP]])
WORDS = [[TOKENS.get(word, str(word)) for word in row] for row in IDS.tolist()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> BertModel:
    return BertModel.from_pretrained(known_heads(tmp_path_factory.mktemp("known") / "model"))


@pytest.fixture(scope="module")
def trace(model: BertModel) -> Trace:
    return model.trace(IDS, tokens=WORDS)


def test_kinds_of_heads(trace: Trace) -> None:
    found = inside.heads(trace)
    np.testing.assert_array_equal(found.kinds(), KINDS)
    assert found.cls is not None
    assert found.previous[0, 0] > 0.999
    assert found.itself[0, 1] > 0.999
    assert found.following[1, 0] > 0.999
    assert found.cls[1, 1] > 0.999
    assert found.entropy.max() < 1, "only the tokens without a neighbour look at several"
    assert found.distance[0, 1] < 1e-3
    np.testing.assert_array_equal(inside.heads(trace, layers=1).kinds(), KINDS[1:])


def test_the_head_that_writes_is_the_only_one_whose_removal_changes_something(model: BertModel) -> None:
    changes = inside.ablate_heads(model, {"input_ids": IDS})
    assert changes[0, 0] > 0.1
    changes[0, 0] = 0
    assert not changes.any()


def test_value_zeroing_and_norms_see_the_token_before(model: BertModel, trace: Trace) -> None:
    shares = inside.value_zeroing(model, {"input_ids": IDS})
    sizes = inside.norms(model, trace, "attention")
    by_head = inside.norms(model, trace, "attention", heads=True)
    for i in range(1, 6):
        assert shares[0, 0, i, i - 1] > 0.999
        assert sizes[0, 0, i].argmax() == i - 1
        assert sizes[0, 0, i].sum() < 1.001 * sizes[0, 0, i, i - 1]
    assert not shares[1].any(), "layer 1 mixes nothing"
    assert not sizes[1].any()
    assert not by_head[0, 0, 1].any()
    np.testing.assert_allclose(by_head[0, 0, 0], sizes[0, 0])
    # With the residual a token keeps more of itself than it takes from the token before, and layer 1 is all residual.
    whole = inside.norms(model, trace)
    assert (whole[0, 0].argmax(axis=1) == np.arange(6)).all()
    assert not (whole[1, 0] - np.diag(np.diag(whole[1, 0]))).any()


def test_patches_follow_the_word_from_its_token_to_the_next_one(model: BertModel) -> None:
    """Word 5 at place 2 becomes 6. The metric reads whether the state of token 3, in the end, says "after 5"."""
    corrupt = IDS.copy()
    corrupt[0, 2] = 6
    clean, corrupt_inputs = {"input_ids": IDS}, {"input_ids": corrupt}
    tokens = inside.patch(model, clean, corrupt_inputs, lambda output: output.last_hidden_state[0, 3, 5])
    restored = tokens.restored
    assert restored.shape == (3, 6)
    carried = np.zeros((3, 6))
    carried[0, 2] = carried[1, 3] = carried[2, 3] = 1
    np.testing.assert_allclose(restored, carried, atol=1e-3)
    by_heads = inside.patch(model, clean, corrupt_inputs, lambda output: output.last_hidden_state[0, 3, 5], "heads")
    np.testing.assert_allclose(by_heads.restored, [[1, 0], [0, 0]], atol=1e-3)


def test_rollout_takes_one_step_back_in_each_layer(trace: Trace) -> None:
    """Head 0 looks back in layer 0 and ahead in layer 1; half of each is the residual."""
    found = inside.rollout(trace, heads="max")
    assert found.shape == (2, 1, 6, 6)
    assert set(np.flatnonzero(found[0, 0, 3] > 0.1)) == {2, 3}
    assert set(np.flatnonzero(found[1, 0, 3] > 0.1)) >= {2, 3, 4}
    np.testing.assert_allclose(found.sum(axis=-1), 1)
