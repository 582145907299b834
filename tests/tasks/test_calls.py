"""Calls of the tasks: models and tokenizers, one text or many, iterables, batches, bits, threads, texts too long."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert import BertModel, BertTokenizer
from minibert.tasks.base import TaskPipeline
from minibert.tasks.pipelines import ALIASES, TASKS
from tests.support.compare import difference
from tests.support.head_models import their_model
from tests.support.task_models import run_theirs, task_folder, their_pipeline

FolderFor = Callable[..., Path]
Ours = Callable[..., Any]

TEXTS = ["the cat sat on the mat", "a dog", "the man by the river bank hello world", "x", "cat " * 30]
MASKED = [f"{text} [MASK] dog" for text in TEXTS]
WORDS = TEXTS[0].split()
PAIRS = [{"text": text, "text_pair": other} for text, other in pairwise(TEXTS)]

INPUTS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "fill-mask": (MASKED, {}),
    "text-classification": ([*TEXTS, *PAIRS], {"top_k": None}),
    "token-classification": (TEXTS, {"aggregation_strategy": "average"}),
    "question-answering": ([{"question": "the cat ?", "context": text} for text in TEXTS], {"top_k": 3}),
    "zero-shot-classification": (TEXTS, {"candidate_labels": ["cat", "dog"]}),
    "next-sentence": (PAIRS, {}),
    "feature-extraction": (TEXTS, {}),
}


# --- models and tokenizers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_a_name_a_folder_and_a_loaded_model(task: str, folder_for: FolderFor, ours: Ours) -> None:
    folder = folder_for(task, length=64)
    inputs, arguments = INPUTS[task]
    expected = ours(task)(inputs, **arguments)
    kind = TASKS[task][1]
    tokenizer = BertTokenizer.from_pretrained(folder)
    for pipe in (
        minibert.pipeline(task, str(folder)),
        minibert.pipeline(task=task, model=kind.from_pretrained(folder), tokenizer=tokenizer),
        minibert.pipeline(task, kind.from_pretrained(folder, return_dict=False), tokenizer=str(folder), **arguments),
        minibert.pipeline(task, folder, tokenizer=tokenizer, backend="kernels", num_threads=1, batch_size=2),
    ):
        assert isinstance(pipe, TaskPipeline)
        assert (pipe.task, type(pipe.model), str(pipe.device)) == (task, kind, "cpu")
        assert pipe(inputs, **arguments) == expected
    assert repr(pipe).startswith(f"pipeline({task!r}, {kind.__name__}(")


@pytest.mark.parametrize("task", TASKS)
def test_methods_that_every_pipeline_of_transformers_has(task: str, ours: Ours, tmp_path: Path) -> None:
    (inputs, arguments), pipe = INPUTS[task], ours(task, **INPUTS[task][1])
    expected = pipe(inputs)
    assert pipe.predict(inputs) == pipe.transform(inputs) == pipe(inputs, num_workers=2) == expected
    assert pipe.dtype == pipe.torch_dtype == torch.float32
    pipe.save_pretrained(tmp_path)
    assert minibert.pipeline(task, tmp_path, **arguments)(inputs) == expected
    with pytest.raises(TypeError, match="has no argument grouped_entities="):
        pipe(inputs, grouped_entities=True)


@pytest.mark.parametrize("task", [task for task in TASKS if task != "zero-shot-classification"])
def test_the_task_of_a_head(task: str, folder_for: FolderFor) -> None:
    folder = folder_for(task, length=64)
    assert minibert.pipeline(model=folder).task == task
    for alias in (alias for alias, name in ALIASES.items() if name == task):
        assert minibert.pipeline(alias, folder).task == task
    model, tokenizer = minibert.load(folder), BertTokenizer.from_pretrained(folder)
    assert minibert.pipeline(model=model, tokenizer=tokenizer).task == task


def test_a_model_of_pre_training_has_two_tasks(tmp_path: Path) -> None:
    folder = task_folder(tmp_path / "model", "BertForPreTraining", length=64)
    tokenizer, model = BertTokenizer.from_pretrained(folder), minibert.load(folder)
    for task in ("fill-mask", "next-sentence", "feature-extraction"):
        inputs, _ = INPUTS[task]
        assert minibert.pipeline(task, folder)(inputs) == minibert.pipeline(task, model, tokenizer=tokenizer)(inputs)
    assert minibert.pipeline(model=folder).task == "fill-mask"
    assert minibert.pipeline(model=model, tokenizer=tokenizer).task == "fill-mask"
    features = minibert.pipeline("feature-extraction", model, tokenizer=tokenizer)
    assert type(features.model) is BertModel


def test_keywords_of_transformers_that_change_nothing(folder_for: FolderFor) -> None:
    folder = folder_for("fill-mask", length=64)
    options = {"device": "cpu", "framework": "pt", "torch_dtype": torch.float32, "device_map": "auto", "num_workers": 0}
    same = {"trust_remote_code": False, "use_fast": True, "model_kwargs": {"attn_implementation": "sdpa"}}
    pipe = minibert.pipeline("fill-mask", folder, top_k=2, **options, **same)
    assert len(pipe(MASKED[0])) == 2
    assert minibert.pipeline("fill-mask", folder, device=-1)(MASKED[0], top_k=2) == pipe(MASKED[0])


# --- one text or many, iterables, batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_answers_have_the_same_bits_alone_in_lists_in_batches_and_lazily(task: str, ours: Ours) -> None:
    inputs, arguments = INPUTS[task]
    pipe = ours(task)
    expected = pipe(inputs, **arguments)
    assert len(expected) == len(inputs)
    for batch_size in (1, 3, 100):
        assert pipe(inputs, batch_size=batch_size, **arguments) == expected
    assert pipe(inputs[::-1], **arguments) == expected[::-1]
    assert pipe(tuple(inputs), **arguments) == expected
    assert [pipe(one, **arguments) for one in inputs] == expected
    lazy = pipe(iter(inputs), **arguments)
    assert isinstance(lazy, Iterator)
    assert list(lazy) == expected
    assert list(pipe((one for one in inputs), batch_size=2, **arguments)) == expected
    assert pipe([], **arguments) == []
    assert list(pipe(iter([]), **arguments)) == []
    assert json.loads(json.dumps(expected)) == expected, "JSON can hold an answer"


@pytest.mark.parametrize("task", TASKS)
def test_an_iterable_is_read_when_its_answers_are_taken(task: str, ours: Ours) -> None:
    inputs, arguments = INPUTS[task]
    read: list[Any] = []

    def source() -> Iterator[Any]:
        for one in inputs:
            read.append(one)
            yield one

    answers = ours(task)(source(), **arguments)
    assert read == []
    next(answers)
    assert len(read) == 1
    next(answers)
    assert len(read) == 2
    answers = ours(task)(source(), batch_size=3, **arguments)
    next(answers)
    assert len(read) == 2 + 3


NESTED: dict[str, tuple[list[Any], list[dict[str, Any]]]] = {
    "text-classification": ([TEXTS[0], TEXTS[:1], TEXTS[:2], PAIRS[0], PAIRS[:1]], [{}, {"top_k": 1}, {"top_k": None}]),
    "fill-mask": ([MASKED[0], MASKED[:1], MASKED[:2], ["[MASK] a [MASK]"], "[MASK] a [MASK]"], [{}]),
    "token-classification": ([TEXTS[0], TEXTS[:1], TEXTS[:2]], [{}]),
    "ner": ([WORDS, [WORDS], [WORDS, WORDS]], [{"is_split_into_words": True}]),
}


@pytest.mark.parametrize("task", NESTED)
def test_the_nesting_of_transformers(ours: Ours, folder_for: FolderFor, task: str) -> None:
    """These shapes are odd, and programs rely on them."""
    several, options = NESTED[task]
    name = ALIASES.get(task, task)
    folder = folder_for(name, length=64)
    theirs = their_pipeline(name, folder)
    for inputs in several:
        for arguments in options:
            assert difference(ours(name)(inputs, **arguments), run_theirs(theirs, inputs, **arguments)) is None
    if name == "text-classification":
        ours_all, theirs_all = minibert.pipeline(name, folder, top_k=None), their_pipeline(name, folder, top_k=None)
        assert all(difference(ours_all(one), run_theirs(theirs_all, one)) is None for one in several)


# --- next-sentence ----------------------------------------------------------------------------------------------------


def test_one_pipeline_serves_threads(ours: Ours) -> None:
    for task in ("token-classification", "fill-mask", "question-answering"):
        inputs, arguments = INPUTS[task]
        pipe = ours(task)
        expected = pipe(inputs, **arguments)
        with ThreadPoolExecutor(4) as pool:
            assert all(found == expected for found in pool.map(lambda _: pipe(inputs, **arguments), range(8)))  # noqa: B023


def test_next_sentence_beside_the_head_of_transformers(folder_for: FolderFor, ours: Ours) -> None:
    folder = folder_for("next-sentence", length=64)
    model, tokenizer = their_model(folder, "BertForNextSentencePrediction"), BertTokenizer.from_pretrained(folder)
    pipe = ours("next-sentence")
    for pair, answer in zip(PAIRS, pipe(PAIRS), strict=True):
        inputs = tokenizer(pair["text"], pair["text_pair"], return_tensors="pt")
        with torch.no_grad():
            exact = model(**inputs).logits[0].double().softmax(0).tolist()
        assert {one["label"]: one["score"] for one in answer} == pytest.approx(
            {"IsNext": exact[0], "NotNext": exact[1]}, abs=1e-5
        )
        assert answer[0]["score"] >= answer[1]["score"]
        assert pipe(pair["text"], pair["text_pair"]) == pipe(pair) == answer
    assert pipe([(pair["text"], pair["text_pair"]) for pair in PAIRS]) == pipe(PAIRS)
    assert pipe([[pair["text"], pair["text_pair"]] for pair in PAIRS]) == pipe(PAIRS)


# --- texts that are too long ------------------------------------------------------------------------------------------

LONG = "the cat sat on the mat . " * 20
LONG_INPUTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "fill-mask": (f"[MASK] {LONG}", {}),
    "text-classification": (LONG, {}),
    "token-classification": (LONG, {}),
    "zero-shot-classification": (LONG, {"candidate_labels": ["cat", "dog"]}),
    "next-sentence": ({"text": LONG, "text_pair": LONG}, {}),
    "feature-extraction": (LONG, {}),
}


@pytest.mark.parametrize("task", LONG_INPUTS)
def test_no_text_is_cut_silently(task: str, ours: Ours) -> None:
    text, arguments = LONG_INPUTS[task]
    pipe = ours(task)
    with pytest.warns(UserWarning, match=r"inputs\[0\] has \d+ tokens, the limit is 64 \S+, and was cut") as caught:
        cut = pipe(text, **arguments)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    for truncation in (True, "silent", "longest_first") if task != "zero-shot-classification" else (True, "silent"):
        assert pipe(text, truncation=truncation, **arguments) == cut
    for truncation in (False, "error", "do_not_truncate"):
        with pytest.raises(ValueError, match=r"inputs\[0\] has \d+ tokens, the limit is 64 .*Shorten it"):
            pipe(text, truncation=truncation, **arguments)
    short = ours(task, truncation="error")
    with pytest.raises(ValueError, match=r"inputs\[1\] has \d+ tokens"):
        short([INPUTS[task][0][0], text], **arguments)


def test_a_call_warns_once_and_names_the_first_text(ours: Ours) -> None:
    pipe = ours("text-classification")
    with pytest.warns(UserWarning, match=r"inputs\[2\] has 142 tokens") as caught:
        pipe(["a", "b", LONG, "c", LONG])
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=r"inputs\[1\] has 142 tokens") as caught:
        list(pipe(iter(["a", LONG, LONG])))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(pipe(["a", LONG], max_length=10, truncation=True)) == 2


def test_a_mask_that_was_cut_off_is_named(ours: Ours) -> None:
    with (
        pytest.warns(UserWarning, match="was cut"),
        pytest.raises(ValueError, match=r"has no \[MASK\]; it may be in the part that was cut off"),
    ):
        ours("fill-mask")(f"{LONG} [MASK]")


def test_words_without_a_token_have_no_text(tmp_path: Path) -> None:
    """Many models have more rows than their vocabulary has words."""
    folder = task_folder(tmp_path / "model", "BertForMaskedLM", vocab_size=200, length=64)
    pipe = minibert.pipeline("fill-mask", folder)
    answers = pipe("the [MASK] sat", top_k=500)
    assert len(answers) == 200
    unknown = [one for one in answers if one["token"] >= len(pipe.tokenizer)]
    assert unknown
    assert {(one["token_str"], one["sequence"]) for one in unknown} == {("", "the sat")}
    assert sum(one["score"] for one in answers) == pytest.approx(1, abs=1e-5)


def test_equal_logits_are_in_the_order_of_the_ids(folder_for: FolderFor) -> None:
    folder = folder_for("fill-mask", length=64)
    model = minibert.BertForMaskedLM.from_pretrained(folder)

    def linear(x: Any, weight: Any, **options: Any) -> Any:
        result = model.ops.linear(x, weight, **options)
        if weight.paths == ("cls.predictions.decoder",):
            result[:] = np.arange(result.shape[1]) % 7
        return result

    tied = minibert.BertForMaskedLM(model.weights, model.ops._replace(linear=linear))
    pipe = minibert.pipeline("fill-mask", tied, tokenizer=BertTokenizer.from_pretrained(folder))
    for top_k in (1, 5, 30, 500):
        found = [one["token"] for one in pipe("the [MASK]", top_k=top_k)]
        assert found == sorted(range(model.config.vocab_size), key=lambda token: -(token % 7))[:top_k]
