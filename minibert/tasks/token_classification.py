"""token-classification, also called ner: a label for each token, or entities."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from minibert._utils.reproducible_math import as_score, softmax
from minibert._utils.validation import FloatArray, brief, check_bool, check_choice, check_int
from minibert.tasks.base import TaskPipeline, TextOptions, check_encoding
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_text, check_texts, shown
from minibert.tokenizer.too_long import TooLong

_Item = TypeVar("_Item")


@dataclasses.dataclass(kw_only=True)
class TokenClassificationOptions(TextOptions):
    """The arguments of token-classification.

    Parameters
    ----------
    aggregation_strategy : {"none", "simple", "first", "average", "max"}, optional
        "none" (the default) gives tokens, the others give entities. "simple" joins neighbours with the same label. The
        other three first give each word one label: its first token's, that of the best average score, that of the
        token with the best score.
    ignore_labels : list of str, optional
        Labels that are left out; default ["O"]. For entities they are the labels without B- and I-.
    stride : int, optional
        Cut a long text into windows that share this number of tokens, and use all of them. Where entities of two
        windows overlap, the longer one counts. It needs an aggregation.
    is_split_into_words : bool
        The texts are lists of words. Characters count in the words joined by `delimiter`.
    delimiter : str, optional
        Default: a space.
    """

    aggregation_strategy: str | None = None
    ignore_labels: Sequence[str] | None = None
    stride: int | None = None
    is_split_into_words: bool = False
    delimiter: str | None = None
    instead = " stride= and an aggregation_strategy use all of a text."

    def __post_init__(self) -> None:
        super().__post_init__()
        how = getattr(self.aggregation_strategy, "value", self.aggregation_strategy)  # transformers has an enum
        how = "none" if how is None else how.lower() if isinstance(how, str) else how
        check_choice("aggregation_strategy", how, AGGREGATIONS)
        self.aggregation_strategy = how
        if self.stride is not None:
            check_int("stride", self.stride, 0)
            if how == "none":
                raise ValueError("stride= joins entities; give another aggregation_strategy= than 'none'.")
        ignored: Any = ["O"] if self.ignore_labels is None else self.ignore_labels
        if isinstance(ignored, str) or not isinstance(ignored, Sequence | set | frozenset):
            raise TypeError(f"ignore_labels={brief(ignored)}; expected a list of labels, such as ['O'].")
        check_texts(list(ignored), name="ignore_labels")
        self.ignore_labels = tuple(ignored)
        check_bool("is_split_into_words", self.is_split_into_words)
        if self.delimiter is not None:
            check_text(self.delimiter, "delimiter")


@dataclasses.dataclass(frozen=True)
class _Text:
    """A text, and where its words begin if it was given as words."""

    text: str
    words: list[str] | None = None
    starts: tuple[int, ...] = ()


class TokenClassificationPipeline(TaskPipeline):
    """Texts -> labels of tokens, or entities, as transformers gives them.

    An answer is a list of dicts. Tokens: "entity" (label), "score", "index", "word", "start", "end". Entities:
    "entity_group", "score", "word", "start", "end". ``text[start:end]`` are the characters.
    """

    task = "token-classification"
    options = TokenClassificationOptions
    _input_is = "a str, or with is_split_into_words=True a list of words"

    def __call__(self, inputs: Any, *, batch_size: int | None = None, **arguments: Any) -> Any:
        """Label the tokens of one text, a list of texts, or an iterable of texts.

        Parameters
        ----------
        inputs : str, list of str, or iterable of str
            With `is_split_into_words`, a list of words, or a list or iterable of such lists.
        batch_size : int, optional
        **arguments
            Arguments of `TokenClassificationOptions`; they replace the pipeline's.

        Returns
        -------
        list of dicts for one text; list of such lists for a list, and for one list of words
            For an iterable, an iterator.

        Raises
        ------
        TypeError, ValueError
            An argument is wrong, or an input is not a text.
        """
        kind, answers = self._call(inputs, batch_size, arguments)
        return [answers] if kind == "one" and not isinstance(inputs, str) else answers

    def _is_one(self, value: Any, options: TokenClassificationOptions) -> bool:
        if options.is_split_into_words:
            return isinstance(value, list | tuple) and any(isinstance(word, str) for word in value)
        return isinstance(value, str)

    def _check_options(self, options: TokenClassificationOptions) -> None:
        room = options.too_long(self.model.config, self.tokenizer).limit - self.tokenizer.num_special_tokens_to_add()
        if options.stride is not None and options.stride >= room:
            stride, most = brief(options.stride), max(room, 0)
            raise ValueError(f"stride={stride}; expected less than {most}, a window's room for text.")

    def _check_input(self, value: Any, name: str, options: TokenClassificationOptions) -> _Text:
        if not options.is_split_into_words:
            return _Text(check_text(value, name))
        if not isinstance(value, list | tuple):
            raise TypeError(f"{name} is {shown(value)}; with is_split_into_words=True a text is a list of words.")
        words = list(value)
        check_texts(words, name=name)
        delimiter = " " if options.delimiter is None else options.delimiter
        starts = accumulate((len(word) + len(delimiter) for word in words), initial=0)
        return _Text(delimiter.join(words), words, tuple(starts))

    def _tokenize(
        self, inputs: list[_Text], first: int, options: TokenClassificationOptions, too_long: TooLong
    ) -> list[list[Encoding]]:
        texts: Any = [item.text if item.words is None else item.words for item in inputs]
        groups: list[list[Encoding]] = [[] for _ in inputs]
        common: Any = {"max_length": too_long.limit, "is_split_into_words": options.is_split_into_words}
        if options.stride is not None:
            common |= {"stride": options.stride, "return_overflowing_tokens": True}
        batch = self.tokenizer(texts, truncation=True, **common)
        rows = batch.get("overflow_to_sample_mapping", range(len(texts)))
        for text, encoding in zip(rows, batch.encodings, strict=True):
            groups[text].append(encoding)
        for index, group in enumerate(groups, first):
            if len(group) == 1:
                check_encoding(group[0], index, too_long)
        return groups

    def _compute(self, windows: Sequence[Encoding]) -> list[FloatArray]:
        logits = self.model(**self._inputs(windows), return_dict=True).logits
        return [rows[: len(window)] for rows, window in zip(logits, windows, strict=True)]

    def _answer(
        self, value: _Text, windows: list[Encoding], logits: list[FloatArray], options: TokenClassificationOptions
    ) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        ignored = options.ignore_labels or ()
        labels = self.model.config.id2label
        for window, rows in zip(windows, logits, strict=True):
            tokens = self._scored(value, window, softmax(rows).astype(np.float32))
            how, join = options.aggregation_strategy or "none", self.tokenizer.convert_tokens_to_string
            entities = aggregate(tokens, how, labels, join)
            kept = (entity for entity in entities if entity.get("entity", entity.get("entity_group")) not in ignored)
            answers.extend(kept)
        return answers if len(windows) == 1 else choose_overlapping(answers)

    def _scored(self, value: _Text, window: Encoding, scores: FloatArray) -> list[ScoredToken]:
        """Return the tokens of the text in a window, with their characters in the whole text."""
        scored = []
        prefix = getattr(self.tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None)
        numbers = (column.tolist() for column in (window.ids, window.special_tokens_mask, window.offsets))
        for index, (token_id, special, (start, end), word) in enumerate(zip(*numbers, window.word_ids, strict=True)):
            if special:
                continue
            # Not one of `window.tokens`: there an added token is written as in the text, with the spaces that it takes.
            token = str(self.tokenizer.convert_ids_to_tokens(token_id))
            if value.words is not None and word is not None:
                start, end = start + value.starts[word], end + value.starts[word]
            characters = value.text[start:end]
            # As transformers decides it: the token has the prefix, or is longer or shorter than its characters.
            if prefix:
                continues = len(token) != len(characters)
            else:
                continues = start > 0 and " " not in value.text[start - 1 : start + 1]
            if token_id == self.tokenizer.unk_token_id:
                token, continues = characters, False
            scored.append(ScoredToken(token, scores[index], index, start, end, continues))
        return scored


AGGREGATIONS = ("none", "simple", "first", "average", "max")
"""none: tokens. simple: neighbours with one label. first, average, max: the same, after each word has got one label."""


@dataclasses.dataclass(frozen=True)
class ScoredToken:
    """One token of a text.

    Parameters
    ----------
    text : str              the token; for the unknown token its characters in the text
    scores : ndarray of shape (num_labels,), float32
    index : int             its position among the tokens of its window, [CLS] is 0
    start, end : int        its characters in the text
    continues : bool        it is a part of the same word as the token before it
    """

    text: str
    scores: FloatArray
    index: int
    start: int
    end: int
    continues: bool


def aggregate(
    tokens: Sequence[ScoredToken], how: str, labels: dict[int, str], join: Callable[[list[str]], str]
) -> list[dict[str, Any]]:
    """Turn tokens into the dicts of an answer; `join` makes the text of several tokens.

    Parameters
    ----------
    tokens : sequence of ScoredToken, in the order of the text
    how : one of `AGGREGATIONS`
    labels : dict of int to str
    join : (list of str) -> str
    """
    whole = how not in ("none", "simple")
    words = _grouped(tokens, lambda _, token: whole and token.continues)
    groups = []
    for word in words:
        scores = _scores_of(word, how)
        label = int(scores.argmax())
        text = join([token.text for token in word]) if whole else word[0].text
        entity = {"entity": labels[label], "score": as_score(scores[label])}
        if how == "none":
            entity["index"] = word[0].index
        groups.append({**entity, "word": text, "start": word[0].start, "end": word[-1].end})
    return groups if how == "none" else [_joined(group, join) for group in _grouped(groups, _same_entity)]


def choose_overlapping(entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of overlapping entities from several windows, keep the longest; among equally long ones, the best score."""
    kept: list[dict[str, Any]] = []
    for entity in sorted(entities, key=lambda other: other["start"]):
        if not kept or not kept[-1]["start"] <= entity["start"] < kept[-1]["end"]:
            kept.append(entity)
        elif _rank(entity) > _rank(kept[-1]):
            kept[-1] = entity
    return kept


def _rank(entity: dict[str, Any]) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]


def _grouped(items: Iterable[_Item], belongs: Callable[[_Item, _Item], bool]) -> list[list[_Item]]:
    """Put neighbours together, if `belongs` says that the second of the two is in the group of the first."""
    groups: list[list[_Item]] = []
    for item in items:
        if groups and belongs(groups[-1][-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _scores_of(word: list[ScoredToken], how: str) -> FloatArray:
    """Return the score of each label for a word."""
    if how == "max":
        return max((token.scores for token in word), key=lambda scores: float(scores.max()))
    if how != "average":
        return word[0].scores
    # Column by column from top to bottom, so that the bits do not depend on the number of labels.
    total = np.add.accumulate(np.stack([token.scores for token in word]).astype(np.float64), axis=0)[-1]
    return (total / len(word)).astype(np.float32)


def _split_label(label: str) -> tuple[str, str]:
    """Return "B" or "I", and the tag, of a label such as B-PER; other labels continue, as I- does."""
    return (label[0], label[2:]) if label.startswith(("B-", "I-")) else ("I", label)


def _same_entity(before: dict[str, Any], entity: dict[str, Any]) -> bool:
    """Return whether neighbours have the same tag; a label B- begins a new entity."""
    begins, tag = _split_label(entity["entity"])
    return begins != "B" and tag == _split_label(before["entity"])[1]


def _joined(group: list[dict[str, Any]], join: Callable[[list[str]], str]) -> dict[str, Any]:
    return {
        "entity_group": group[0]["entity"].split("-", 1)[-1],
        "score": as_score(sum(entity["score"] for entity in group) / len(group)),
        "word": join([entity["word"] for entity in group]),
        "start": group[0]["start"],
        "end": group[-1]["end"],
    }
