"""Tokens with a score of each label -> entities: the five ways of aggregation of transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from minibert._utils.reproducible_math import as_score
from minibert._utils.validation import FloatArray

__all__ = ["AGGREGATIONS", "ScoredToken", "aggregate", "choose_overlapping"]

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
    if how in ("none", "simple"):
        found = [_token_entity(token, labels) for token in tokens]
    else:
        found = [_word_entity(word, how, labels, join) for word in _words(tokens)]
    return found if how == "none" else [_joined(group, join) for group in _groups(found)]


def choose_overlapping(entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of entities of several windows that overlap, keep the longest; of equally long ones that with the best score."""
    kept: list[dict[str, Any]] = []
    for entity in sorted(entities, key=lambda one: one["start"]):
        if not kept or not kept[-1]["start"] <= entity["start"] < kept[-1]["end"]:
            kept.append(entity)
        elif _rank(entity) > _rank(kept[-1]):
            kept[-1] = entity
    return kept


def _rank(entity: dict[str, Any]) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]


def _entity(label: int, score: Any, labels: dict[int, str], text: str, start: int, end: int) -> dict[str, Any]:
    return {"entity": labels[label], "score": as_score(score), "word": text, "start": start, "end": end}


def _token_entity(token: ScoredToken, labels: dict[int, str]) -> dict[str, Any]:
    label = int(token.scores.argmax())
    found = _entity(label, token.scores[label], labels, token.text, token.start, token.end)
    # The order of the keys is that of transformers.
    return {"entity": found.pop("entity"), "score": found.pop("score"), "index": token.index, **found}


def _words(tokens: Iterable[ScoredToken]) -> list[list[ScoredToken]]:
    words: list[list[ScoredToken]] = []
    for token in tokens:
        if words and token.continues:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _word_entity(
    word: list[ScoredToken], how: str, labels: dict[int, str], join: Callable[[list[str]], str]
) -> dict[str, Any]:
    if how == "first":
        scores = word[0].scores
    elif how == "max":
        scores = max((token.scores for token in word), key=lambda scores: float(scores.max()))
    else:
        # Column by column from top to bottom, so that the bits do not depend on the number of labels.
        total = np.add.accumulate(np.stack([token.scores for token in word]).astype(np.float64), axis=0)[-1]
        scores = (total / len(word)).astype(np.float32)
    label = int(scores.argmax())
    text = join([token.text for token in word])
    return _entity(label, scores[label], labels, text, word[0].start, word[-1].end)


def _split_label(label: str) -> tuple[str, str]:
    """Return "B" or "I", and the tag, of a label such as B-PER; other labels continue, as I- does."""
    return (label[0], label[2:]) if label.startswith(("B-", "I-")) else ("I", label)


def _groups(entities: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Put neighbours with the same tag together; a label B- begins a new group."""
    groups: list[list[dict[str, Any]]] = []
    for entity in entities:
        begins, tag = _split_label(entity["entity"])
        if groups and begins != "B" and tag == _split_label(groups[-1][-1]["entity"])[1]:
            groups[-1].append(entity)
        else:
            groups.append([entity])
    return groups


def _joined(group: list[dict[str, Any]], join: Callable[[list[str]], str]) -> dict[str, Any]:
    return {
        "entity_group": group[0]["entity"].split("-", 1)[-1],
        "score": as_score(sum(entity["score"] for entity in group) / len(group)),
        "word": join([entity["word"] for entity in group]),
        "start": group[0]["start"],
        "end": group[-1]["end"],
    }
