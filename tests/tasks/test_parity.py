"""Each task against the pipeline of transformers, on the same random checkpoints and on splade-tiny, on real texts.

The same labels, words, characters and order; scores within 1e-5. A case is one text with one set of arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minibert
from tests.support.compare import difference
from tests.support.marks import by_default
from tests.support.splade_tiny import REASON, splade_tiny
from tests.support.task_models import SHAPES, real_texts, run_theirs, their_pipeline, vocabularies

FolderFor = Callable[..., Path]
Counted = Callable[[str, int], None]


def check(
    task: str, pipes: tuple[Any, Any], inputs: list[Any], arguments: dict[str, Any], counted: Counted, *more: Any
) -> None:
    """Compare the answers for a list, and those for its first items one by one."""
    ours, theirs = pipes
    found = ours(inputs, *more, **arguments)
    expected = run_theirs(theirs, inputs, *more, **arguments)
    assert len(found) == len(expected) == len(inputs)
    for text, one, other in zip(inputs, found, expected, strict=True):
        assert difference(one, other) is None, f"{task} {arguments} {text!r}: {difference(one, other)}"
    for text in inputs[:2]:
        problem = difference(ours(text, *more, **arguments), run_theirs(theirs, text, *more, **arguments))
        assert problem is None, f"{task} {arguments} {text!r}: {problem}"
    counted(task, len(inputs) + 2)


@pytest.fixture(scope="module")
def pipes(folder_for: FolderFor) -> Callable[..., tuple[Any, Any]]:
    """Return a function: a task and the options of a checkpoint -> our pipeline and theirs, each made once."""
    made: dict[str, tuple[Any, Any]] = {}

    def pipes(task: str, **options: Any) -> tuple[Any, Any]:
        key = repr((task, sorted(options.items())))
        if key not in made:
            folder = folder_for(task, **options)
            made[key] = minibert.pipeline(task, folder), their_pipeline(task, folder)
        return made[key]

    return pipes


Pipes = Callable[..., tuple[Any, Any]]


# --- fill-mask --------------------------------------------------------------------------------------------------------


def with_masks(text: str, count: int = 1) -> str:
    """Put [MASK] between words of a text, evenly."""
    words = text.split()[:60]
    for i in range(count):
        words.insert((i + 1) * len(words) // (count + 1), "[MASK]")
    return " ".join(words)


FILLED: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"targets": ["cat", "dog", "of", "cat"]},
    {"tokenizer_kwargs": {"truncation": True, "max_length": 40}, "top_k": 2},
]


@functools.cache
def real_pipes() -> tuple[Any, Any]:
    folder = splade_tiny()
    assert folder is not None
    return minibert.pipeline("fill-mask", folder), their_pipeline("fill-mask", folder)


@pytest.mark.parametrize("arguments", FILLED, ids=str)
@pytest.mark.parametrize("masks", [1, 3])
@pytest.mark.skipif(splade_tiny() is None, reason=REASON)
def test_fill_mask_on_a_real_model(masks: int, arguments: dict[str, Any], counted: Counted) -> None:
    texts = [with_masks(text, masks) for text in real_texts(12 if not arguments else 3)]
    if "tokenizer_kwargs" in arguments:
        texts = ["the [MASK] " * masks + text for text in texts]  # so that some are left of a text that is cut
    check("fill-mask", real_pipes(), texts, arguments, counted)


# --- text-classification ----------------------------------------------------------------------------------------------

CLASSIFIED: list[dict[str, Any]] = [
    {},
    {"top_k": None},
    {"function_to_apply": "sigmoid"},
    {"function_to_apply": "none", "top_k": None},
    {"function_to_apply": "softmax", "top_k": 99},
    {"truncation": True, "max_length": 20, "padding": True},
]


@pytest.mark.parametrize("arguments", CLASSIFIED, ids=str)
@pytest.mark.parametrize("vocabulary", vocabularies())
def test_text_classification(vocabulary: str, arguments: dict[str, Any], pipes: Pipes, counted: Counted) -> None:
    both = pipes("text-classification", vocabulary=vocabulary)
    texts = real_texts(12 if not arguments else 6)
    check("text-classification", both, texts, arguments, counted)
    pairs = [{"text": a, "text_pair": b} for a, b in zip(texts[::3], texts[1::3], strict=False)]
    check("text-classification", both, pairs, arguments, counted)
    old_pairs = [[[a, b]] for a, b in zip(texts[:2], texts[2:4], strict=True)]
    found, expected = both[0](old_pairs, **arguments), run_theirs(both[1], old_pairs, **arguments)
    assert difference(found, expected) is None


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        ("2 x 24", {"problem_type": "regression", "num_labels": 1}),
        ("1 x 48, relu", {"problem_type": "regression", "num_labels": 3}),
        ("2 x 32, odd", {"num_labels": 1}),
        ("4 x 24", {"problem_type": "multi_label_classification", "num_labels": 4}),
        ("2 x 32, odd", {"problem_type": "single_label_classification", "num_labels": 2}),
        ("1 x 48, relu", {"id2label": {2: "two", 0: "zero", 1: "one"}}),
    ],
    ids=str,
)
def test_what_the_logits_mean(shape: str, fields: dict[str, Any], pipes: Pipes, counted: Counted) -> None:
    both = pipes("text-classification", vocabulary="uncased", **SHAPES[shape], **fields)
    for arguments in ({}, {"top_k": None}):
        check("text-classification", both, real_texts(4), arguments, counted)


# --- token-classification ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["none", "simple", "first", "average", "max"])
@pytest.mark.parametrize("vocabulary", vocabularies())
def test_token_classification(vocabulary: str, how: str, pipes: Pipes, counted: Counted) -> None:
    both = pipes("token-classification", vocabulary=vocabulary)
    check("token-classification", both, real_texts(8), {"aggregation_strategy": how}, counted)
    ignored = {"aggregation_strategy": how, "ignore_labels": ["PER", "B-LOC", "I-PER"]}
    check("token-classification", both, real_texts(4), ignored, counted)


@pytest.mark.parametrize("how", ["simple", "first", "average", "max"])
@pytest.mark.parametrize("stride", [0, 5, 20])
def test_windows_of_tokens(how: str, stride: int, pipes: Pipes, counted: Counted) -> None:
    both = pipes("token-classification", vocabulary="uncased", length=32)
    assert max(len(both[0].tokenizer.tokenize(text)) for text in real_texts(5)) > 40
    check("token-classification", both, real_texts(5), {"aggregation_strategy": how, "stride": stride}, counted)


@pytest.mark.parametrize("options", [{}, {"delimiter": ""}, {"delimiter": " | "}], ids=str)
@pytest.mark.parametrize("how", ["none", "simple", "first", "average", "max"])
def test_texts_as_words(how: str, options: dict[str, Any], pipes: Pipes, counted: Counted) -> None:
    ours, theirs = pipes("token-classification", vocabulary="uncased")
    texts = [text.split() for text in real_texts(5)]
    arguments = {"aggregation_strategy": how, "is_split_into_words": True, **options}
    assert difference(ours(texts, **arguments), run_theirs(theirs, texts, **arguments)) is None
    assert difference(ours(texts[0], **arguments), run_theirs(theirs, texts[0], **arguments)) is None
    counted("token-classification", len(texts) + 1)


# --- zero-shot-classification -----------------------------------------------------------------------------------------

SHOT: list[tuple[Any, dict[str, Any]]] = [
    (["politics", "law", "sports"], {}),
    ("politics, law,, sports", {}),
    (["politics", "law", "sports"], {"multi_label": True}),
    (["law"], {}),
    ("law", {"multi_label": True}),
    (["the cat", "the dog"], {"hypothesis_template": "It is about {}"}),
]


@pytest.mark.parametrize(("labels", "arguments"), SHOT, ids=str)
@pytest.mark.parametrize("shape", by_default(SHAPES, "2 x 24", "2 x 32, odd"))
def test_zero_shot(shape: str, labels: Any, arguments: dict[str, Any], pipes: Pipes, counted: Counted) -> None:
    both = pipes("zero-shot-classification", vocabulary="uncased", scale=1.0, **SHAPES[shape])
    check("zero-shot-classification", both, real_texts(3), arguments, counted, labels)


@pytest.mark.parametrize(
    "labels", [{0: "ENTAILMENT", 1: "neutral", 2: "contradiction"}, {0: "Entail", 1: "not"}], ids=str
)
@pytest.mark.parametrize("multi_label", [True, False])
def test_other_labels_of_inference(labels: dict[int, str], multi_label: bool, pipes: Pipes, counted: Counted) -> None:
    both = pipes("zero-shot-classification", vocabulary="uncased", scale=1.0, id2label=labels)
    arguments = {"candidate_labels": ["a", "b", "c"], "multi_label": multi_label}
    check("zero-shot-classification", both, real_texts(5), arguments, counted)


# --- feature-extraction -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_feature_extraction(shape: str, pipes: Pipes, counted: Counted) -> None:
    both = pipes("feature-extraction", vocabulary="uncased", **SHAPES[shape])
    texts = real_texts(5)
    for arguments in ({}, {"truncation": True, "tokenize_kwargs": {"max_length": 12}}):
        ours, theirs = both[0](texts, **arguments), run_theirs(both[1], texts, **arguments)
        assert difference(ours, theirs) is None
    found = both[0](texts[0], return_tensors=True)
    expected = run_theirs(both[1], texts[0], return_tensors=True)
    assert type(found) is type(expected)
    assert found.shape == expected.shape
    assert abs(found - expected).max() <= 1e-5
    counted("feature-extraction", 11)
