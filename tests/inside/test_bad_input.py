"""Wrong arguments: each is refused with an error that says what to give instead."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minibert
from minibert import BertModel, Edit, SentenceTransformer, inside
from tests.support.head_models import make_model
from tests.support.random_checkpoints import random_checkpoint
from tests.support.sentence_modules import MEAN, dense, model_with_modules


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, small_folder: Path) -> SimpleNamespace:
    """Models, inputs and traces that fit each other, and some that do not."""
    top = tmp_path_factory.mktemp("models")
    bert = BertModel.from_pretrained(small_folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has no modules.json")
        sentences = SentenceTransformer(small_folder)
    classifier = make_model(top / "classifier", "BertForSequenceClassification")
    masked_lm = make_model(top / "masked-lm", "BertForMaskedLM")
    inputs = {"input_ids": np.array([[2, 5, 9, 3], [2, 7, 3, 0]]), "attention_mask": np.array([[1] * 4, [1, 1, 1, 0]])}
    return SimpleNamespace(
        bert=bert,
        wide=BertModel.from_pretrained(random_checkpoint(top / "wide", hidden_size=30)),
        flat=BertModel.from_pretrained(random_checkpoint(top / "flat", num_hidden_layers=0)),
        sentences=sentences,
        tanh=SentenceTransformer(model_with_modules(top / "tanh", [MEAN, dense(24, 6)])),
        classifier=minibert.BertForSequenceClassification.from_pretrained(classifier),
        masked_lm=minibert.BertForMaskedLM.from_pretrained(masked_lm),
        inputs=inputs,
        trace=bert.trace(**inputs),
        some=bert.trace(**inputs, record="pooler"),
        hidden=bert.trace(**inputs, record="hidden_states.*"),
        negative=bert.trace(**inputs, edit={"*.probs": Edit.scale(-1)}),
        other=BertModel.from_pretrained(random_checkpoint(top / "other", seed=8)),
    )


MAPS = np.full((2, 1, 3, 3), 1 / 3)

# call, in the names of `given` and of minibert.inside | what the message names. Other types: test_hostile_arguments.py.
WRONG = r"""
ablate_heads(sentences, inputs) | \.model
logit_lens(bert, inputs) | BertForMaskedLM
ablate_heads(flat, inputs) | layers
ablate_heads(bert, trace) | inputs
ablate_heads(bert, {**inputs, "labels": 1}) | labels
ablate_heads(bert, {}) | input_ids
patch(bert, inputs, {"input_ids": inputs["input_ids"]}) | 7 .* 8
heads(some) | record='attentions.\*'
norms(bert, hidden) | self.value .*'\*.value'
norms(wide, trace) | another model
norms(other, trace) | another model
compare_layers(trace, bert.trace([[1, 2, 3]])) | \[4, 3\] and \[3\]
compare_layers(bert.trace([[1, 2, 3]])) | 4 tokens
compare_layers(np.ones((5, 3, 4))) | 5 vectors of layer 0 .* equal.* layers=
compare_layers(np.ones((3, 2, 4)), trace) | \[3\] and \[4, 3\]
compare_layers(np.ones((3, 4))) | its shape is \(3, 4\)
compare_layers(np.full((3, 2, 4), np.nan)) | a word without tokens has NaN
compare_layers(np.ones((3, 2, 4)), layers=2) | layers
compare_layers([[1.0]]) | expected a Trace, or an array
compare_layers(trace, layers=[0, 3]) | hidden states
heads(negative) | negative .* edit
heads(bert.trace([[1, 2]], [[0, 0]])) | masked
heads(trace, layers=2) | layers=2
norms(bert, trace, "value") | include='value'
norms(bert, trace, heads=True) | include='attention'
rollout(trace, heads="sum") | heads='sum'.* 'mean'
rollout(trace, residual=2) | residual=2
rollout([[1.0], [1.0, 2.0]]) | inhomogeneous
rollout(-MAPS) | negative
rollout(MAPS, layers=0) | layers=
patch(bert, inputs, inputs, over="layers") | over='layers'.*'tokens', 'heads'
logit_lens(masked_lm, inputs, 0) | k=0.* 97
ablate_heads(bert, inputs, "logits") | metric='logits' .* last_hidden_state, pooler_output
ablate_heads(bert, inputs, 3) | metric=3
ablate_heads(bert, inputs, lambda output: output.pooler_output) | one finite number
patch(bert, inputs, inputs, lambda output: np.nan) | metric is nan
patch(bert, inputs, inputs).restored | nothing to restore
explain_similarity(sentences, "a", "b", pooling="max") | 'max'.* leave_one_out
explain_similarity(tanh, "a", "b") | Dense\(24, 6, Tanh\).* leave_one_out
explain_similarity(sentences, "a", "b").largest(-1) | count=-1
leave_one_out(sentences, "\ud800", "b") | surrogate
leave_one_out(sentences, "a", np.ones(3)) | score .*\(24,\)
leave_one_out(sentences, "a", [[1], [1, 2]]) | score
leave_one_out(sentences, "a b", lambda vectors: 1.0) | \(3,\)
"""


@pytest.mark.parametrize("row", WRONG.strip().splitlines())
def test_a_wrong_argument_is_refused(row: str, given: SimpleNamespace) -> None:
    call, message = row.split(" | ")
    names = {**{name: getattr(inside, name) for name in inside.__all__}, **vars(given), **globals()}
    with pytest.raises((TypeError, ValueError), match=message):
        eval(call, names)


@pytest.mark.parametrize(
    ("name", "remedy"), [("integrated_gradients", "captum"), ("lrp", "norms, value_zeroing and rollout")]
)
def test_what_minibert_does_not_have_is_refused_by_name(name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=remedy):
        getattr(inside, name)
    with pytest.raises(ImportError, match=f"minibert.inside has no {name}"):
        exec(f"from minibert.inside import {name}")
    with pytest.raises(AttributeError, match="nearest names are rollout"):
        _ = inside.rolout


def test_the_weights_of_a_trace_are_compared_by_value(given: SimpleNamespace, small_folder: Path) -> None:
    again = BertModel.from_pretrained(small_folder)
    np.testing.assert_array_equal(inside.norms(again, given.trace), inside.norms(given.bert, given.trace))


def test_norms_are_not_negative(given: SimpleNamespace) -> None:
    result = inside.norms(given.bert, given.negative, "attention", heads=True)
    assert result.min() == 0
    assert result.max() > 0


def test_padding_alone_gives_zeros(given: SimpleNamespace) -> None:
    masked = {"input_ids": np.ones((2, 3), np.int64), "attention_mask": np.zeros((2, 3), np.int64)}
    assert not inside.ablate_heads(given.bert, masked).any()
    assert not inside.value_zeroing(given.bert, masked).any()
    assert not inside.norms(given.bert, masked).any()
    assert not inside.rollout(given.bert.trace(**masked)).any()
    assert not inside.logit_lens(given.masked_lm, masked).probs.any()
    assert not inside.patch(given.bert, masked, masked).values.any()
