"""Texts -> sentence vectors, a chunk of texts at a time and each distinct text once; or the vectors of all tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from minibert.base.arrays import FloatArray, IntArray
from minibert.base.ordering import distinct_longest_first, in_chunks
from minibert.base.warn import warn_caller
from minibert.models.bert_model import BertModel
from minibert.sentence.modules import Pipeline
from minibert.sentence.recipe import Recipe, pool_encodings, token_vectors
from minibert.similarity import check_truncate_dim, normalize_embeddings
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.windows import TextInfo, TokenWindows, check_inputs, count_tokens

__all__ = ["CutTexts", "EncodeTask", "EncodedTexts", "encode_texts", "encode_tokens", "sentence_width"]


@dataclasses.dataclass(frozen=True, eq=False)
class EncodeTask:
    """What one call computes for each text.

    Parameters
    ----------
    model : BertModel
    pipeline : Pipeline
    recipe : Recipe
    windows : TokenWindows
    with_info : bool
        Also make a `TextInfo` per text.
    exact : bool
        Count all tokens of the texts that are cut: see `TokenWindows.of`.
    """

    model: BertModel
    pipeline: Pipeline
    recipe: Recipe
    windows: TokenWindows
    with_info: bool
    exact: bool


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedTexts:
    """Some texts that were computed together, n of them, in the order in which they came.

    Parameters
    ----------
    vectors : ndarray of shape (n, width), float32
    n_tokens : int ndarray of shape (n,)
        Tokens of each whole text, with its prompt and the special tokens.
    n_truncated : int ndarray of shape (n,)
        How many of them were cut off. With truncation="silent", and if nobody asked for `info`, a long text is not
        read to its end: of one that was cut this is at least 1, and `n_tokens` is that much more than its window has.
    info : tuple of n TextInfo
        Empty where nobody asked for it.
    """

    vectors: FloatArray
    n_tokens: IntArray
    n_truncated: IntArray
    info: tuple[TextInfo, ...]


@dataclasses.dataclass
class CutTexts:
    """Counts the texts that were cut, as they come."""

    num_texts: int = 0
    num_cut: int = 0
    first: int = 0

    def add(self, n_truncated: IntArray) -> None:
        """Count some more texts, by how many tokens of each were cut off."""
        cut = np.flatnonzero(n_truncated)
        if len(cut) and not self.num_cut:
            self.first = self.num_texts + int(cut[0])
        self.num_texts += len(n_truncated)
        self.num_cut += len(cut)

    def warn(self, max_seq_length: int) -> None:
        """Say how many texts were cut, if there is one."""
        if self.num_cut:
            warn_caller(
                f"{self.num_cut} of {self.num_texts} texts have more than {max_seq_length} tokens and were cut (the "
                f"first is at index {self.first}). Silence this with truncation='silent', or use all of a text with "
                "truncation='split'.",
            )


def sentence_width(task: EncodeTask, truncate_dim: int | None) -> int:
    """Return the length of the sentence vectors that a task leads to, of which `truncate_dim` features are kept.

    Raises
    ------
    TypeError, ValueError
        It leads to no sentence vectors, or to such as the modules behind the pooling do not take.
    """
    if task.recipe.modes == ("none",):
        raise ValueError("output_value=None gives a sentence vector too, but pooling='none' makes none.")
    kept = check_truncate_dim(truncate_dim)
    width = task.recipe.width(task.model.config.hidden_size)
    fixed = [name for name in task.pipeline.names if name != "Normalize"]
    if fixed:
        if width != task.pipeline.widths[0]:
            raise ValueError(
                f"This pooling gives vectors of {width}, but the model's {fixed[0]} behind it takes "
                f"{task.pipeline.widths[0]}; choose layers= and pooling= that fit."
            )
        width = task.pipeline.widths[-1]
    return width if kept is None else min(width, kept)


def encode_texts(
    task: EncodeTask,
    texts: Iterable[str],
    *,
    width: int,
    normalize: bool,
    size: int,
    progress: Callable[[int], object],
) -> Iterator[EncodedTexts]:
    """Compute one vector per text, `size` texts at a time; among these each distinct one is computed once.

    Parameters
    ----------
    task : EncodeTask
    texts : iterable of str
    width : int
        Features to keep of each vector: see `sentence_width`.
    normalize : bool
        Scale what is kept to length 1.
    size : int
        Texts read, and held, at a time.
    progress : callable
        Is given the number of texts done since it was last called.

    Raises
    ------
    TypeError, ValueError
        An input is not a text, or cannot be tokenized as the task says; its index is named.
    """
    first = 0
    for chunk in in_chunks(texts, size):
        check_inputs(chunk, first)
        chosen, rows = distinct_longest_first(chunk)
        places = np.argsort(rows, kind="stable")  # of the texts, those of the first chosen text first
        starts = np.searchsorted(rows[places], np.arange(len(chosen) + 1))
        vectors = np.empty((len(chunk), width), dtype=np.float32)
        counts, info = list[tuple[int, int]](), list[TextInfo]()
        chosen_texts, indices = [chunk[i] for i in chosen], [first + i for i in chosen]
        for place, groups in task.windows.of(chosen_texts, indices, exact=task.exact):
            found = _sentence_vectors(task, groups)[:, :width]
            own = places[starts[place.start] : starts[place.stop]]
            vectors[own] = (normalize_embeddings(found) if normalize else found)[rows[own] - place.start]
            counts += map(count_tokens, groups)
            if task.with_info:
                info += map(task.windows.describe, groups)
            del groups  # before the next texts are tokenized
            progress(len(own))
        n_tokens, n_truncated = np.array(counts, dtype=np.int64)[rows].T
        own_info = tuple(info[row] for row in rows) if task.with_info else ()
        yield EncodedTexts(vectors, n_tokens, n_truncated, own_info)
        first += len(chunk)


def encode_tokens(
    task: EncodeTask, texts: Sequence[str], width: int | None
) -> tuple[list[Any], IntArray, list[TextInfo]]:
    """Compute the vectors of all tokens of n texts, or dicts of these and of what belongs to them.

    Parameters
    ----------
    task : EncodeTask
    texts : sequence of n str
    width : int, optional
        Make dicts, each with a sentence vector of so many features; it takes a second forward.

    Returns
    -------
    list of n ndarrays of shape (S, H'), or of n dicts
        H' is the recipe's width.
    n_truncated : int ndarray of shape (n,)
        Tokens of each text that were cut off.
    list of n TextInfo
        Empty if the task has no `with_info`.

    Raises
    ------
    TypeError, ValueError
        As `encode_texts`.
    """
    result, n_truncated, info = list[Any](), list[int](), list[TextInfo]()
    check_inputs(texts)
    for _, groups in task.windows.of(texts, range(len(texts)), exact=task.exact):
        n_truncated += (count_tokens(group)[1] for group in groups)
        info += map(task.windows.describe, groups) if task.with_info else ()
        encodings = [group[0] for group in groups]
        tokens = token_vectors(task.model, task.recipe, encodings)
        if width is None:
            result += tokens
            continue
        for encoding, vectors, sentence in zip(encodings, tokens, _sentence_vectors(task, groups), strict=True):
            result.append(
                {
                    "input_ids": encoding.ids,
                    "token_type_ids": encoding.token_types,
                    "attention_mask": np.ones(len(encoding), dtype=np.int64),
                    "token_embeddings": vectors,
                    "sentence_embedding": sentence[:width],
                }
            )
    return result, np.array(n_truncated, dtype=np.int64), info


def _sentence_vectors(task: EncodeTask, groups: list[list[Encoding]]) -> FloatArray:
    """Compute one vector per text from its windows, and run the modules behind the pooling: (texts, widths[-1])."""
    flat = [window for group in groups for window in group]
    pooled = pool_encodings(task.model, task.recipe, flat, task.windows.num_prompt_tokens)
    if len(flat) > len(groups):
        pooled = task.windows.average(pooled, groups)
    return task.pipeline.finish(pooled)
