"""Wrong arguments: each is refused with an error that says what to give instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minibert
from benchmarks.checkpoints import random_checkpoint
from minibert import BertModel, Edit, SentenceTransformer, exact, inside
from tests.support.head_models import head_checkpoint
from tests.support.sentence_modules import MEAN, dense, model_with_modules


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, small_folder: Path) -> SimpleNamespace:
    """Models, inputs and traces that fit each other, and some that do not."""
    top = tmp_path_factory.mktemp("models")
    bert = BertModel.from_pretrained(small_folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has no modules.json")
        sentences = SentenceTransformer(small_folder)
    classifier = head_checkpoint(top / "classifier", "BertForSequenceClassification")
    masked_lm = head_checkpoint(top / "masked-lm", "BertForMaskedLM")
    inputs = {"input_ids": np.array([[2, 5, 9, 3], [2, 7, 3, 0]]), "attention_mask": np.array([[1] * 4, [1, 1, 1, 0]])}
    return SimpleNamespace(
        bert=bert,
        wide=BertModel.from_pretrained(random_checkpoint(top / "wide", hidden_size=30)),
        deep=BertModel.from_pretrained(random_checkpoint(top / "deep", num_hidden_layers=3)),
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
        other_lm=minibert.BertForMaskedLM.from_pretrained(
            head_checkpoint(top / "other-masked-lm", "BertForMaskedLM", seed=8)
        ),
    )


MAPS = np.full((2, 1, 3, 3), 1 / 3)

# name -> (call, error, a part of the message)
WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    # models
    "a name for a model": (lambda g: inside.ablate_heads("model", g.inputs), TypeError, "given a str as the model"),
    "a sentence model": (lambda g: inside.ablate_heads(g.sentences, g.inputs), TypeError, "has it as .model"),
    "None for a model": (lambda g: inside.norms(None, g.trace), TypeError, "given a NoneType as the model"),
    "a class": (lambda g: inside.value_zeroing(BertModel, g.inputs), TypeError, "expected BertModel.from_pretrained"),
    "a trace for a model": (lambda g: inside.patch(g.trace, g.inputs, g.inputs), TypeError, "given a Trace as the"),
    "BertModel for a sentence model": (
        lambda g: inside.explain_similarity(g.bert, "a", "b"),
        TypeError,
        "expected a SentenceTransformer of minibert",
    ),
    "text for a sentence model": (lambda g: inside.leave_one_out("m", "a", "b"), TypeError, "expected a Sentence"),
    "no masked-LM head": (lambda g: inside.logit_lens(g.bert, g.inputs), ValueError, "BertForMaskedLM.from_pretrained"),
    "another head": (lambda g: inside.logit_lens(g.classifier, g.inputs), ValueError, "has no masked-LM head"),
    "no model for the lens": (lambda g: inside.logit_lens(3, g.inputs), TypeError, "logit_lens was given a int"),
    "a model without layers": (lambda g: inside.ablate_heads(g.flat, g.inputs), ValueError, "no layers to analyse"),
    "a model in float64": (
        lambda g: inside.ablate_heads(g.bert.with_ops(exact.OPS, np.float64), g.inputs),
        TypeError,
        "computes in float64; give the model itself",
    ),
    # inputs
    "text for inputs": (lambda g: inside.ablate_heads(g.bert, "text"), TypeError, "what a tokenizer returns"),
    "ids for inputs": (lambda g: inside.value_zeroing(g.bert, [[1, 2]]), TypeError, "what a tokenizer returns"),
    "a trace for inputs": (lambda g: inside.ablate_heads(g.bert, g.trace), TypeError, "given a Trace as inputs"),
    "unknown inputs": (
        lambda g: inside.ablate_heads(g.bert, {**g.inputs, "labels": 1}),
        TypeError,
        "inputs has 'labels'; a model takes input_ids",
    ),
    "no inputs": (lambda g: inside.ablate_heads(g.bert, {}), ValueError, "exactly one of input_ids"),
    "ids out of range": (lambda g: inside.norms(g.bert, {"input_ids": [[10**6]]}), ValueError, "vocab_size"),
    "float ids": (lambda g: inside.norms(g.bert, {"input_ids": [[0.5]]}), TypeError, "ids are integers"),
    "text for the corrupt inputs": (lambda g: inside.patch(g.bert, g.inputs, "b"), TypeError, "'b' as corrupt"),
    "other lengths": (
        lambda g: inside.patch(g.bert, g.inputs, {"input_ids": g.inputs["input_ids"]}),
        ValueError,
        "clean has 4, 3 tokens in a batch .2, 4., corrupt 4, 4",
    ),
    "other widths": (
        lambda g: inside.patch(g.bert, g.inputs, {"input_ids": [[1, 2]]}),
        ValueError,
        "needs texts with the same attention mask",
    ),
    # traces
    "inputs for a trace": (lambda g: inside.heads(g.inputs), TypeError, "expected a Trace, the result of model.trace"),
    "a model for a trace": (lambda g: inside.compare_layers(g.bert), TypeError, "expected a Trace"),
    "text for the second trace": (lambda g: inside.compare_layers(g.trace, "b"), TypeError, "expected a Trace"),
    "no probs": (lambda g: inside.heads(g.some), ValueError, r"Record it: model.trace\(..., record='attentions.\*'\)"),
    "no probs for rollout": (lambda g: inside.rollout(g.some), ValueError, "rollout needs .*probs and 1 other name"),
    "no values": (lambda g: inside.norms(g.bert, g.hidden), ValueError, r"self.value and 2 other names, .*'\*.value'"),
    "no states": (lambda g: inside.compare_layers(g.some), ValueError, r"record='hidden_states.\*'"),
    "no states for the lens": (
        lambda g: inside.logit_lens(g.masked_lm, g.masked_lm.trace([[1, 2]], record="pooler*" and "cls*")),
        ValueError,
        "logit_lens needs hidden_states.0",
    ),
    "a trace of a wider model": (lambda g: inside.norms(g.wide, g.trace), ValueError, "hidden_size 24, and this .* 30"),
    "a trace of a deeper model": (lambda g: inside.norms(g.deep, g.trace), ValueError, "num_hidden_layers 2"),
    "other tokens": (
        lambda g: inside.compare_layers(g.trace, g.bert.trace([[1, 2, 3]])),
        ValueError,
        r"texts of \[4, 3\] and \[3\] tokens",
    ),
    "as many tokens in other texts": (
        lambda g: inside.compare_layers(g.trace, g.bert.trace(g.inputs["input_ids"], g.inputs["attention_mask"][::-1])),
        ValueError,
        r"texts of \[4, 3\] and \[3, 4\] tokens",
    ),
    "a trace of other weights": (
        lambda g: inside.norms(g.other, g.trace),
        ValueError,
        "of the same sizes with other weights .layer 0 differs first",
    ),
    "a trace of other weights for the lens": (
        lambda g: inside.logit_lens(g.masked_lm, g.other_lm.trace(**g.inputs)),
        ValueError,
        "Give the model that made the trace",
    ),
    "heads of negative probs": (lambda g: inside.heads(g.negative), ValueError, "negative numbers .* of an edit"),
    "rollout of negative probs": (lambda g: inside.rollout(g.negative), ValueError, "negative numbers .* of an edit"),
    "one token": (lambda g: inside.compare_layers(g.bert.trace([[1]])), ValueError, "needs at least 2 tokens"),
    "all masked": (lambda g: inside.heads(g.bert.trace([[1, 2]], [[0, 0]])), ValueError, "all tokens are masked"),
    # choices
    "a layer that is not there": (lambda g: inside.heads(g.trace, layers=2), ValueError, "layers=2; .* 2 layers"),
    "a layer in words": (lambda g: inside.rollout(g.trace, layers="last"), TypeError, "expected an int or several"),
    "no layers": (lambda g: inside.norms(g.bert, g.trace, layers=[]), ValueError, "no layers to analyse"),
    "a state that is not there": (lambda g: inside.compare_layers(g.trace, layers=[0, 3]), ValueError, "hidden states"),
    "a kind of norms": (lambda g: inside.norms(g.bert, g.trace, "value"), ValueError, "include='value'; expected one"),
    "heads with LayerNorm": (lambda g: inside.norms(g.bert, g.trace, heads=True), ValueError, "include='attention'"),
    "a way to fuse": (
        lambda g: inside.rollout(g.trace, heads="sum"),
        ValueError,
        "heads='sum'; expected one of 'mean'",
    ),
    "a residual above 1": (lambda g: inside.rollout(g.trace, residual=2), ValueError, "expected a number from 0 to 1"),
    "a residual of NaN": (lambda g: inside.rollout(g.trace, residual=np.nan), ValueError, "a number from 0 to 1"),
    "a residual in words": (lambda g: inside.rollout(g.trace, residual="half"), ValueError, "a number from 0 to 1"),
    "maps of two axes": (lambda g: inside.rollout(np.eye(3)), TypeError, "expected a Trace, or a float array of shape"),
    "maps of ints": (lambda g: inside.rollout(np.ones((1, 1, 2, 2), int)), TypeError, "a float array of shape"),
    "maps of text": (lambda g: inside.rollout("maps"), TypeError, "rollout was given 'maps'"),
    "ragged maps": (lambda g: inside.rollout([[1.0], [1.0, 2.0]]), ValueError, "do not make one array"),
    "negative maps": (lambda g: inside.rollout(-MAPS), ValueError, "negative numbers, NaN or infinity"),
    "NaN in maps": (lambda g: inside.rollout(MAPS * np.nan), ValueError, "negative numbers, NaN or infinity"),
    "layers of maps": (lambda g: inside.rollout(MAPS, layers=0), ValueError, "choose them yourself"),
    "what is patched": (
        lambda g: inside.patch(g.bert, g.inputs, g.inputs, over="layers"),
        ValueError,
        "over='layers'; expected one of 'tokens', 'heads'",
    ),
    "a share of kinds": (lambda g: inside.heads(g.trace).kinds(share=7), ValueError, "share=7; expected a number"),
    "no words": (lambda g: inside.logit_lens(g.masked_lm, g.inputs, 0), ValueError, "k=0; expected an int, 1 to 97"),
    "too many words": (lambda g: inside.logit_lens(g.masked_lm, g.inputs, 98), ValueError, "expected an int, 1 to 97"),
    # metrics
    "a metric that is not there": (
        lambda g: inside.ablate_heads(g.bert, g.inputs, "logits"),
        ValueError,
        "not an array of this output, which has last_hidden_state, pooler_output",
    ),
    "a metric of states": (
        lambda g: inside.ablate_heads(g.bert, g.inputs, "hidden_states"),
        ValueError,
        "is not an array of this output",
    ),
    "a function of hidden states": (
        lambda g: inside.ablate_heads(g.bert, g.inputs, lambda output: output.hidden_states[-1][0, 0, 0]),
        ValueError,
        "raised TypeError: .* has last_hidden_state, pooler_output, and no hidden_states or attentions",
    ),
    "a function of hidden states by key": (
        lambda g: inside.patch(g.bert, g.inputs, g.inputs, lambda output: output["hidden_states"][0][0, 0, 0]),
        ValueError,
        "raised KeyError: .* and no hidden_states or attentions",
    ),
    "a function with an error of its own": (
        lambda g: inside.ablate_heads(g.bert, g.inputs, lambda: 0),
        TypeError,
        "positional argument",
    ),
    "a number for a metric": (
        lambda g: inside.ablate_heads(g.bert, g.inputs, 3),
        TypeError,
        "a function of the output",
    ),
    "a metric that gives an array": (
        lambda g: inside.ablate_heads(g.bert, g.inputs, lambda output: output.pooler_output),
        ValueError,
        "expected one finite number for the whole batch",
    ),
    "a metric that gives NaN": (
        lambda g: inside.patch(g.bert, g.inputs, g.inputs, lambda output: np.nan),
        ValueError,
        "patch: the metric returned nan",
    ),
    "a metric that gives text": (
        lambda g: inside.patch(g.bert, g.inputs, g.inputs, lambda output: "good"),
        ValueError,
        "the metric returned 'good'",
    ),
    "nothing to restore": (
        lambda g: inside.patch(g.bert, g.inputs, g.inputs).restored,
        ValueError,
        "so there is nothing to restore",
    ),
    # texts
    "max pooling": (
        lambda g: inside.explain_similarity(g.sentences, "a", "b", pooling="max"),
        ValueError,
        "the pooling 'max' is not one. leave_one_out measures",
    ),
    "the pooler": (
        lambda g: inside.explain_similarity(g.sentences, "a", "b", pooling="pooler"),
        ValueError,
        "the pooling 'pooler' is not one",
    ),
    "an activation": (
        lambda g: inside.explain_similarity(g.tanh, "a", "b"),
        ValueError,
        r"this model has Dense\(24, 6, Tanh\). leave_one_out",
    ),
    "a pooling that is not there": (
        lambda g: inside.explain_similarity(g.sentences, "a", "b", pooling="median"),
        ValueError,
        "is not a pooling mode",
    ),
    "several texts": (
        lambda g: inside.explain_similarity(g.sentences, ["a"], "b"),
        TypeError,
        r"the text of .* is list",
    ),
    "bytes": (lambda g: inside.explain_similarity(g.sentences, "a", b"b"), TypeError, "the text of .* is bytes"),
    "a lone surrogate": (lambda g: inside.leave_one_out(g.sentences, "\ud800", "b"), ValueError, "surrogate"),
    "one prompt": (
        lambda g: inside.explain_similarity(g.sentences, "a", "b", prompt_names="query"),
        TypeError,
        "prompt_names='query'; expected two",
    ),
    "a prompt that is not there": (
        lambda g: inside.leave_one_out(g.sentences, "a", "b", prompt_name="question"),
        ValueError,
        "question",
    ),
    "a short vector": (
        lambda g: inside.leave_one_out(g.sentences, "a", np.ones(3)),
        TypeError,
        "a vector of length 24",
    ),
    "a vector of NaN": (
        lambda g: inside.leave_one_out(g.sentences, "a", np.full(24, np.nan)),
        ValueError,
        "score holds NaN or infinity",
    ),
    "ragged vectors": (lambda g: inside.leave_one_out(g.sentences, "a", [[1], [1, 2]]), ValueError, "not make one"),
    "a score of one number": (
        lambda g: inside.leave_one_out(g.sentences, "a b", lambda vectors: 1.0),
        ValueError,
        "expected 3 finite numbers, one for each",
    ),
    "a score of NaN": (
        lambda g: inside.leave_one_out(g.sentences, "a b", lambda vectors: vectors[:, 0] * np.nan),
        ValueError,
        "expected 3 finite numbers",
    ),
    "no largest parts": (
        lambda g: inside.explain_similarity(g.sentences, "a", "b").largest(0),
        ValueError,
        "count=0; expected an int of at least 1",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_refused(
    call: Callable[[Any], Any], error: type[Exception], message: str, given: SimpleNamespace
) -> None:
    with pytest.raises(error, match=message):
        call(given)


def test_there_are_40_wrong_arguments() -> None:
    assert len(WRONG) >= 40


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("integrated_gradients", "captum"),
        ("lrp", "norms, value_zeroing and rollout"),
        ("tuned_lens", "logit_lens"),
        ("probing", "must be trained"),
        ("linear_cka", "use compare_layers"),
    ],
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
    found = inside.norms(given.bert, given.negative, "attention", heads=True)
    assert found.min() == 0
    assert found.max() > 0


def test_padding_alone_gives_zeros(given: SimpleNamespace) -> None:
    masked = {"input_ids": np.ones((2, 3), np.int64), "attention_mask": np.zeros((2, 3), np.int64)}
    assert not inside.ablate_heads(given.bert, masked).any()
    assert not inside.value_zeroing(given.bert, masked).any()
    assert not inside.norms(given.bert, masked).any()
    assert not inside.rollout(given.bert.trace(**masked)).any()
    assert not inside.logit_lens(given.masked_lm, masked).probs.any()
    assert not inside.patch(given.bert, masked, masked).values.any()
