"""question-answering compared with a brute force over all spans of all windows, from the logits of transformers.

transformers 5 does not have this task. The definitions are those of the documentation of its version 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import minibert
from minibert import BertTokenizer
from tests.support.head_models import their_model
from tests.support.task_models import real_texts

FolderFor = Callable[..., Path]
Counted = Callable[[str, int], None]


@pytest.fixture(scope="module")
def folder(folder_for: FolderFor) -> Path:
    return folder_for("question-answering", vocabulary="uncased", length=64, scale=2.0)


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Any:
    return minibert.pipeline("question-answering", folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return their_model(folder, "BertForQuestionAnswering")


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


def brute_force(
    tokenizer: BertTokenizer,
    model: Any,
    question: str,
    context: str,
    *,
    top_k: int = 1,
    max_seq_len: int = 64,
    doc_stride: int = 16,
    max_answer_len: int = 15,
    handle_impossible_answer: bool = False,
    align_to_words: bool = True,
) -> list[dict[str, Any]]:
    """Score every span of every window, one by one."""
    inputs = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=max_seq_len,
        stride=doc_stride,
        return_overflowing_tokens=True,
    )
    (whole,) = tokenizer.encodings([context], add_special_tokens=False)
    words: dict[int | None, list[list[int]]] = {}
    for word, offset in zip(whole.word_ids, whole.offsets.tolist(), strict=True):
        words.setdefault(word, []).append(offset)
    best: dict[tuple[int, int], float] = {}
    nulls = []
    for window in inputs.encodings:
        with torch.no_grad():
            output = model(
                input_ids=torch.tensor([window.ids.tolist()]),
                token_type_ids=torch.tensor([window.token_types.tolist()]),
            )
        offsets, word_ids = window.offsets.tolist(), window.word_ids
        places = [i for i, sequence in enumerate(window.sequence_ids) if sequence == 1]
        starts = softmax([output.start_logits[0, i].item() for i in [0, *places]])
        ends = softmax([output.end_logits[0, i].item() for i in [0, *places]])
        nulls.append(starts[0] * ends[0])
        for a, i in enumerate(places):
            for b, j in enumerate(places):
                if not 0 <= b - a < max_answer_len:
                    continue
                start, end = offsets[i][0], offsets[j][1]
                if align_to_words:
                    first, last = word_ids[i], word_ids[j]
                    start = min(offset[0] for offset in words[first])
                    end = max(offset[1] for offset in words[last])
                best[start, end] = max(best.get((start, end), 0), starts[a + 1] * ends[b + 1])
    found = [(score, *place) for place, score in best.items()]
    if handle_impossible_answer:
        found.append((min(nulls), 0, 0))
    found.sort(key=lambda one: -one[0])
    return [{"score": s, "start": i, "end": j, "answer": context[i:j]} for s, i, j in found[:top_k]]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 5},
    {"top_k": 3, "align_to_words": False},
    {"top_k": 4, "max_answer_len": 1},
    {"top_k": 2, "max_answer_len": 200, "align_to_words": False},
    {"top_k": 2, "max_answer_len": 10**30},
    {"top_k": 6, "handle_impossible_answer": True},
    {"doc_stride": 0, "top_k": 2},
    {"max_seq_len": 30, "doc_stride": 5, "top_k": 3, "handle_impossible_answer": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_best_of_all_spans(options: dict[str, Any], pipe: Any, theirs: Any, counted: Counted) -> None:
    contexts = [*real_texts(3), real_texts(3)[0] * 3]
    questions = ["Who is it?", "What is the cat?"]
    chosen = {"doc_stride": 16, **options}
    for number, context in enumerate(contexts):
        question = questions[number % 2]
        expected = brute_force(pipe.tokenizer, theirs, question, context, **chosen)
        found = pipe(question=question, context=context, **chosen)
        found = [found] if options.get("top_k", 1) == 1 else found
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert list(one) == list(other)
            assert one["score"] == pytest.approx(other["score"], abs=1e-5)
            assert {**one, "score": 0} == {**other, "score": 0}, (options, context)
            assert one["answer"] == context[one["start"] : one["end"]]
    counted("question-answering (brute force)", len(contexts))


def test_the_score_of_the_best_answer_does_not_depend_on_top_k(pipe: Any) -> None:
    context = real_texts(5)[0]
    one = pipe("what?", context)
    for top_k in (2, 3, 50):
        assert pipe("what?", context, top_k=top_k)[0] == one
    many = pipe("what?", context, top_k=10_000)
    places = [(answer["start"], answer["end"]) for answer in many]
    assert len(set(places)) == len(places)
    scores = [answer["score"] for answer in many]
    assert scores == sorted(scores, reverse=True)


def test_the_ways_to_ask(pipe: Any) -> None:
    texts = real_texts(5)
    alone = [pipe(question="who?", context=text) for text in texts]
    assert alone[0] == pipe("who?", texts[0]) == pipe({"question": "who?", "context": texts[0]})
    assert pipe([{"question": "who?", "context": text} for text in texts]) == alone
    assert pipe(question=["who?"] * 5, context=texts) == alone
    assert pipe(question=["who?", "who?"], context=texts[0]) == [alone[0], alone[0]]
    assert pipe([{"question": "who?", "context": texts[0]}]) == alone[0], "as in transformers 4"
    lazy = pipe({"question": "who?", "context": text} for text in texts)
    assert not isinstance(lazy, list)
    assert list(lazy) == alone
    for batch_size in (1, 3):
        assert pipe(question=["who?"] * 5, context=texts, batch_size=batch_size) == alone


def test_answers_are_whole_words_across_windows(pipe: Any) -> None:
    context = "unbelievable internationalisation " * 20
    for answer in pipe("who?", context, top_k=50, max_seq_len=17, doc_stride=3):
        start, end = answer["start"], answer["end"]
        assert start == 0 or context[start - 1] == " "
        assert context[end] == " "


def test_a_long_question_is_never_cut_silently(pipe: Any) -> None:
    question, context = "is it the cat or the dog ?", real_texts(5)[0]
    assert pipe(question, context, max_question_len=8) == pipe(question, context)
    with pytest.warns(UserWarning, match=r"inputs\[0\]\['question'\] has 8 tokens, the limit is 3 .max_question_len."):
        cut = pipe(question, context, max_question_len=3)
    assert cut == pipe("is it the", context) == pipe(question, context, max_question_len=3, truncation=True)
    with pytest.raises(ValueError, match="has 8 tokens, the limit is 3"):
        pipe(question, context, max_question_len=3, truncation="error")
    with pytest.raises(ValueError, match="max_seq_len=9"):
        pipe(question, context, max_seq_len=9)


def test_the_default_stride_leaves_room(pipe: Any) -> None:
    question = "is it the cat " * 12
    context = "the man sat on the mat by the river bank . " * 8
    found = pipe(question, context)
    assert found["answer"] == context[found["start"] : found["end"]]
    with pytest.raises(ValueError, match="doc_stride=60; expected less than"):
        pipe(question, context, doc_stride=60)
