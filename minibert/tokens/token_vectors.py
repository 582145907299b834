"""The tokens of a text with their vectors, and the vectors of its words and spans."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import accumulate, groupby

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import html_table, token_table
from minibert._utils.validation import FloatArray, IntArray, brief, check_choice, check_int
from minibert.tokens.layers import SUBWORD_POOLING, join_subwords

__all__ = ["TokenVectors", "WordVectors", "word_starts"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WordVectors:
    """The words of one text, W of them, each with its vector; made by `TokenVectors.words`.

    Parameters
    ----------
    words : tuple of W str
        As written in the text.
    offsets : int ndarray of shape (W, 2)
        First character of each word in the text, and the one after its last.
    tokens : tuple of W slice
        The tokens of each word; empty for a word that does not have any.
    vectors : ndarray of shape (W, ...), float32
        NaN for a given word without tokens, or without some of them because the text was truncated.
    """

    words: tuple[str, ...]
    offsets: IntArray
    tokens: tuple[slice, ...]
    vectors: FloatArray

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"WordVectors({len(self)} words, vectors {self.vectors.shape})"

    def _repr_html_(self) -> str:
        rows = (
            (number, word, f"{start}-{end}", " ".join(map(str, range(tokens.start, tokens.stop))))
            for number, (word, (start, end), tokens) in enumerate(
                zip(self.words, self.offsets, self.tokens, strict=True)
            )
        )
        return html_table(repr(self), ("", "word", "characters", "tokens"), rows, len(self))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TokenVectors:
    """The T tokens of one text, each with its vector; made by `embed_tokens`.

    Parameters
    ----------
    text : str
        The text. If it was given as words, these words with one space between them.
    tokens : tuple of T str
        As in the vocabulary.
    ids : int64 ndarray of shape (T,)
    offsets : int64 ndarray of shape (T, 2)
        First character of each token in `text`, and the one after its last; (0, 0) for special tokens.
    word_ids : tuple of T int or None
        Index of the word that each token is part of, from 0; None for special tokens.
    special : bool ndarray of shape (T,)
        Whether the tokenizer added the token ([CLS], [SEP]).
    vectors : ndarray of shape (T, ...), float32
        (T, k H), (T, H) or (T, k, H) for k layers; see `layer_pooling` of `embed_tokens`.
    layers : tuple of k int
        The hidden states that the vectors come from, 0 to L.
    given_words : tuple of str, or None
        The words, if the text was given as words.
    n_truncated : int
        Tokens of the text that were truncated.
    cut_words : frozenset of int
        Indices of words that lost some or all of their tokens by the truncation.
    """

    text: str
    tokens: tuple[str, ...]
    ids: IntArray
    offsets: IntArray
    word_ids: tuple[int | None, ...]
    special: npt.NDArray[np.bool_]
    vectors: FloatArray
    layers: tuple[int, ...]
    given_words: tuple[str, ...] | None = None
    n_truncated: int = 0
    cut_words: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.tokens)

    def words(self, subwords: str = "mean") -> WordVectors:
        """Join the vectors of each word's tokens.

        The words are those of BERT's tokenizer, which splits at spaces and punctuation. A word that lost some of its
        tokens is left out. If the text was given as words, row i is word i, and the vector of such a word is NaN.

        Parameters
        ----------
        subwords : {"mean", "first", "last", "max", "sum"}
            See `join_subwords`.
        """
        check_choice("subwords", subwords, SUBWORD_POOLING)
        tokens_of = self._tokens_of_words()
        if self.given_words is None:
            names, offsets = [], []
            for word_tokens in tokens_of.values():
                start, end = int(self.offsets[word_tokens.start, 0]), int(self.offsets[word_tokens.stop - 1, 1])
                names.append(self.text[start:end])
                offsets.append((start, end))
            tokens = list(tokens_of.values())
        else:
            names = list(self.given_words)
            starts = word_starts(names)
            offsets = [(start, start + len(word)) for start, word in zip(starts, names, strict=True)]
            tokens = [tokens_of.get(i, slice(0, 0)) for i in range(len(names))]
        vectors = np.full((len(names), *self.vectors.shape[1:]), np.nan, dtype=np.float32)
        for i, word_tokens in enumerate(tokens):
            if word_tokens.stop > word_tokens.start:
                vectors[i] = join_subwords(self.vectors[word_tokens], subwords)
        return WordVectors(tuple(names), np.array(offsets, dtype=np.int64).reshape(-1, 2), tuple(tokens), vectors)

    def span_tokens(self, start: int, end: int) -> slice:
        """Find the tokens that hold any of the characters `start` to `end` - 1 of `text`.

        Raises
        ------
        TypeError, ValueError
            The span is empty or outside the text, no token holds any of it, or some of it was truncated.
        """
        start = check_int("start", start, also=", the index of a character")
        end = check_int("end", end, also=", the index of a character")
        length = len(self.text)
        if not 0 <= start < end <= length:
            raise ValueError(
                f"the span {brief(start)} to {brief(end)} does not lie in the text, which has {length} characters; "
                f"expected 0 <= start < end <= {length}."
            )
        in_word = np.array([word is not None for word in self.word_ids])
        if self.n_truncated:
            kept = self.offsets[in_word]
            first, last = (int(kept[0, 0]), int(kept[-1, 1])) if len(kept) else (0, 0)
            if self.text[start : min(first, end)].strip() or self.text[max(last, start) : end].strip():
                raise ValueError(
                    f"the span {start} to {end} reaches beyond characters {first} to {last}. Only these were kept, "
                    "because the text has more tokens than the model takes; give a span within them."
                )
        holders = np.flatnonzero(in_word & (self.offsets[:, 0] < end) & (self.offsets[:, 1] > start))
        if not len(holders):
            raise ValueError(f"no token holds any of the characters {start} to {end}: {self.text[start:end]!r}.")
        return slice(int(holders[0]), int(holders[-1]) + 1)

    def span(self, start: int, end: int, subwords: str = "mean") -> FloatArray:
        """Join the vectors of the tokens that hold any of the characters `start` to `end` - 1 of `text`.

        Parameters
        ----------
        start, end : int
            0 <= start < end <= len(text).
        subwords : {"mean", "first", "last", "max", "sum"}
            See `join_subwords`.

        Returns
        -------
        ndarray of shape (...), float32

        Raises
        ------
        TypeError, ValueError
            See `span_tokens`.
        """
        return join_subwords(self.vectors[self.span_tokens(start, end)], subwords)

    def _tokens_of_words(self) -> dict[int, slice]:
        """Return the tokens of each word that did not lose any, by the index of the word."""
        tokens = {}
        for word, positions in groupby(range(len(self)), key=self.word_ids.__getitem__):
            indices = list(positions)
            if word is not None and word not in self.cut_words:
                tokens[word] = slice(indices[0], indices[-1] + 1)
        return tokens

    def __repr__(self) -> str:
        cut = f", {self.n_truncated} more were cut" if self.n_truncated else ""
        layers = f"layer{'s' if len(self.layers) > 1 else ''} {', '.join(map(str, self.layers))}"
        return f"TokenVectors({len(self)} tokens{cut}, vectors {self.vectors.shape} of {layers})"

    def _repr_html_(self) -> str:
        return token_table(repr(self), self.tokens, self.ids, self.offsets, self.word_ids)


def word_starts(words: Sequence[str]) -> list[int]:
    """Return the index of each word's first character, for words that are joined by single spaces."""
    return list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))[: len(words)]
