"""question-answering: the part of a context that answers a question."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minibert._utils.reproducible_math import as_score, softmax
from minibert._utils.validation import FloatArray, brief, check_bool, check_int
from minibert.bert.config import BertConfig
from minibert.tasks.base import TaskPipeline, TextOptions, as_pair
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import checked_texts, without_spaces
from minibert.tokenizer.too_long import TooLong
from minibert.vectors.token_vectors import token_limit

# The defaults of transformers 4.
_MAX_SEQ_LEN, _DOC_STRIDE, _MAX_ANSWER_LEN = 384, 128, 15
_LEAST = {"top_k": 1, "max_answer_len": 1, "max_seq_len": 1, "max_question_len": 1, "doc_stride": 0}


@dataclasses.dataclass(kw_only=True)
class QuestionAnsweringOptions(TextOptions):
    """The arguments of question-answering. `truncation` concerns a question of more than `max_question_len` tokens.

    Parameters
    ----------
    top_k : int
        The answers to give, best first.
    doc_stride : int, optional
        Tokens of the context that two windows share. Default: 128, or half of `max_seq_len`, or half of the room for
        the context, whichever is smallest.
    max_seq_len : int, optional
        Tokens of a window: question, context and special tokens. Default: 384, or what the model takes. A longer
        context is read in several windows.
    max_answer_len : int
        The most tokens of an answer.
    max_question_len : int, optional
        The most tokens of a question. Default: what fits.
    handle_impossible_answer : bool
        "No answer" is an answer too: its "answer" is "", and its "start" and "end" are 0.
    align_to_words : bool
        Answers begin and end with whole words.
    """

    top_k: int = 1
    doc_stride: int | None = None
    max_seq_len: int | None = None
    max_answer_len: int = _MAX_ANSWER_LEN
    max_question_len: int | None = None
    handle_impossible_answer: bool = False
    align_to_words: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is not None:
            raise ValueError("max_length= of a question-answering task is called max_seq_len=; give that.")
        for name, least in _LEAST.items():
            if getattr(self, name) is not None or name in ("top_k", "max_answer_len"):
                check_int(name, getattr(self, name), least)
        for name in ("handle_impossible_answer", "align_to_words"):
            check_bool(name, getattr(self, name))

    def too_long(self, config: BertConfig, tokenizer: BertTokenizer) -> TooLong:
        """Return the limit of a question; contexts have windows."""
        limit = self.max_question_len or config.max_length
        return dataclasses.replace(super().too_long(config, tokenizer), limit=limit, limit_name="max_question_len")


class QuestionAnsweringPipeline(TaskPipeline):
    """Questions and contexts -> answers: the most probable parts of the context, as transformers 4 gave them.

    An answer is a dict: "score", "start", "end" (characters of the context), "answer". The score is the probability
    that the answer begins at its first token, times the probability that it ends at its last one.
    """

    task = "question-answering"
    options = QuestionAnsweringOptions
    _input_is = "a dict with 'question' and 'context'"

    def __call__(
        self,
        inputs: Any = None,
        context: Any = None,
        *,
        question: Any = None,
        batch_size: int | None = None,
        **arguments: Any,
    ) -> Any:
        """Answer one question, several, or an iterable of them.

        Parameters
        ----------
        inputs : dict with "question" and "context", list of dicts, or iterable of dicts; or a question
        context : str or list of str
        question : str or list of str
            With one context, all questions are about it.
        batch_size : int, optional
        **arguments
            Arguments of `QuestionAnsweringOptions`; they replace the pipeline's.

        Returns
        -------
        dict, or list of `top_k` dicts if `top_k` is above 1; a list of these for several questions
            A list of one question gives its answer alone, as in transformers 4. For an iterable, an iterator.

        Raises
        ------
        TypeError, ValueError
            An argument is wrong; a question or a context has no tokens; or a question leaves no room for the context.
        """
        kind, answers = self._call(_inputs_of(inputs, question, context), batch_size, arguments)
        return answers[0] if kind == "several" and len(answers) == 1 else answers

    def _is_one(self, value: Any, options: QuestionAnsweringOptions) -> bool:
        return isinstance(value, Mapping)

    def _check_options(self, options: QuestionAnsweringOptions) -> None:
        limit, most = self._max_seq_len(options), self.model.config.max_length
        if limit > most:
            given = f"max_seq_len={brief(limit)}"
            raise ValueError(f"{given}, but the model takes {most} tokens (max_position_embeddings).")
        if options.handle_impossible_answer and self.tokenizer.cls_token_id is None:
            raise ValueError("handle_impossible_answer=True needs [CLS], and the tokenizer has none. Leave it out.")

    def _max_seq_len(self, options: QuestionAnsweringOptions) -> int:
        if options.max_seq_len is not None:
            return options.max_seq_len
        return min(_MAX_SEQ_LEN, token_limit(self.model.config, self.tokenizer))

    def _check_input(self, value: Any, name: str, options: QuestionAnsweringOptions) -> tuple[str, str]:
        question, context = as_pair(value, name, "question", "context")
        for key, text in ("question", question), ("context", context):
            if not text.strip():
                raise ValueError(f"{name}[{key!r}] is empty; give a {key} of at least one word.")
        return question, context

    def _tokenize(
        self, inputs: list[tuple[str, str]], first: int, options: QuestionAnsweringOptions, too_long: TooLong
    ) -> list[list[Encoding]]:
        return [self._windows(*pair, f"inputs[{index}]", options, too_long) for index, pair in enumerate(inputs, first)]

    def _windows(self, question: str, context: str, name: str, options: Any, too_long: TooLong) -> list[Encoding]:
        question, n_question = self._cut_question(question, name, options.max_question_len, too_long)
        size = self._max_seq_len(options)
        room = size - n_question - self.tokenizer.num_special_tokens_to_add(pair=True)
        if room < 1:
            message = f"{n_question} tokens of question leave no room for a context in max_seq_len={size}."
            raise ValueError(f"{name}: {message}")
        stride = min(_DOC_STRIDE, size // 2, room // 2) if options.doc_stride is None else options.doc_stride
        batch = self.tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=size,
            stride=min(stride, room - 1),
            return_overflowing_tokens=True,
        )
        if len(batch.encodings) > 1 and stride >= room:
            raise ValueError(f"{name}: doc_stride={stride}; expected less than {room}, a window's room for context.")
        if not any(1 in window.sequence_ids for window in batch.encodings):
            raise ValueError(f"{name}['context'] has no tokens; give a context of at least one word.")
        return list(batch.encodings)

    def _cut_question(self, question: str, name: str, most: int | None, too_long: TooLong) -> tuple[str, int]:
        """Return the question, with at most `most` tokens, and the number of its tokens."""
        (encoding,) = self.tokenizer.encodings([question], add_special_tokens=False)
        if most is None or len(encoding) <= most:
            return question, len(encoding)
        too_long.cut(f"{name}['question']", len(encoding))
        question = question[: int(encoding.offsets[most - 1, 1])]
        (encoding,) = self.tokenizer.encodings([question], add_special_tokens=False)
        return question, len(encoding)

    def _compute(self, windows: Sequence[Encoding]) -> list[FloatArray]:
        output = self.model(**self._inputs(windows), return_dict=True)
        both = np.stack([output.start_logits, output.end_logits], axis=1)
        return [logits[:, : len(window)] for logits, window in zip(both, windows, strict=True)]

    def _answer(self, value: tuple[str, str], windows: list[Encoding], logits: list[FloatArray], options: Any) -> Any:
        _, context = value
        spans, null = _best_spans(windows, logits, options, self.tokenizer.cls_token_id)
        if options.handle_impossible_answer and null is not None:
            # "No answer" comes after an answer of the same score, as in transformers.
            spans = sorted([*spans, (null, 0, 0)], key=lambda answer: -answer[0])[: options.top_k]
        answers = [
            {"score": as_score(score), "start": start, "end": end, "answer": context[start:end]}
            for score, *span in spans
            for start, end in [without_spaces(context, *span)]
        ]
        return answers[0] if options.top_k == 1 else answers


def _inputs_of(inputs: Any, question: Any, context: Any) -> Any:
    """Return the questions of a call as one dict, a list of dicts, or an iterable.

    Raises
    ------
    TypeError, ValueError
        A question or a context is missing or given twice, or there are not as many of one as of the other.
    """
    if inputs is not None and question is None and context is not None:
        inputs, question = None, inputs
    if inputs is not None:
        if question is not None or context is not None:
            raise TypeError("give inputs, or question= and context=, not both.")
        if isinstance(inputs, str):
            raise TypeError("a question needs a context: pipe(question=..., context=...).")
        return inputs
    if question is None or context is None:
        raise TypeError(f"{'question' if question is None else 'context'}= is missing; give both: question=, context=.")
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    (questions, _), (contexts, single) = checked_texts("question", question), checked_texts("context", context)
    if single:
        contexts = contexts * len(questions)
    if len(questions) != len(contexts):
        raise ValueError(f"{len(questions)} questions and {len(contexts)} contexts; expected as many, or one context.")
    return [{"question": text, "context": context} for text, context in zip(questions, contexts, strict=True)]


def _word_spans(windows: Iterable[Encoding]) -> dict[int | None, tuple[int, int]]:
    """Return the first character of each word of the context, and the one after its last, from all windows."""
    spans: dict[int | None, tuple[int, int]] = {}
    for window in windows:
        columns = zip(window.sequence_ids, window.word_ids, window.offsets.tolist(), strict=True)
        for sequence, word, (start, end) in columns:
            if sequence == 1 and word is not None:
                first, last = spans.get(word, (start, end))
                spans[word] = min(first, start), max(last, end)
    return spans


def _best_spans(
    windows: Sequence[Encoding], logits: Sequence[FloatArray], options: QuestionAnsweringOptions, cls_id: int | None
) -> tuple[list[tuple[float, int, int]], float | None]:
    """Find the most probable answers among all spans of tokens of all windows.

    In a window, the probability that the answer begins at a token is the softmax of the start logits over [CLS] and the
    tokens of the context; that it ends there likewise. The score of a span of at most `max_answer_len` tokens is the
    product of the two. Spans with the same characters are one answer, with the best of their scores.

    Parameters
    ----------
    windows : sequence of Encoding
    logits : sequence of ndarrays of shape (2, S)
        Of the start and of the end, for each window.

    Returns
    -------
    list of (score, first character, the one after the last)
        At most `top_k` answers, the best first. Of equal scores the earlier answer is first, then the shorter one.
    float or None
        The score of "no answer": the smallest product of the two probabilities of [CLS] in any window. None if no
        window has [CLS].
    """
    best: dict[tuple[int, int], float] = {}
    null: float | None = None
    words = _word_spans(windows) if options.align_to_words else {}
    for window, both in zip(windows, logits, strict=True):
        sequences, offsets, word_ids = window.sequence_ids, window.offsets.tolist(), window.word_ids
        context = [i for i, sequence in enumerate(sequences) if sequence == 1]
        n = len(context)
        if n == 0:
            continue
        spans = [words.get(word_ids[i], offsets[i]) for i in context]
        special = [i for i, id in enumerate(window.ids.tolist()) if id == cls_id and sequences[i] is None]
        start, end = (softmax(of[special[:1] + context]) for of in both)
        if special:
            product = float(start[0] * end[0])
            null = product if null is None else min(null, product)
            start, end = start[1:], end[1:]
        most = min(options.max_answer_len, n)
        first = np.repeat(np.arange(n), np.minimum(most, n - np.arange(n)))
        length = np.concatenate([np.arange(min(most, n - i)) for i in range(n)])
        last = first + length
        scores = start[first] * end[last]
        # Each answer has many spans. They are read from the best to the worst, until `top_k` answers are found.
        # Spans with the score of the last one are read too, because the order of equal answers is decided at the end.
        places: set[tuple[int, int]] = set()
        least = 0.0
        for span in np.argsort(-scores, kind="stable"):
            score = float(scores[span])
            if len(places) >= options.top_k and score < least:
                break
            place = spans[first[span]][0], spans[last[span]][1]
            if place not in places and len(places) < options.top_k:
                least = score
            places.add(place)
            best[place] = max(best.get(place, 0.0), score)
    order = sorted((-score, *place) for place, score in best.items())
    return [(-score, first, last) for score, first, last in order[: options.top_k]], null
