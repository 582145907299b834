"""Texts -> the vectors of their tokens, words and spans, with what each one stands for."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from minibert.batch import PackedBatch, check_ids
from minibert.display import html_table, token_table
from minibert.encodings import Encoding
from minibert.models import BertModel
from minibert.ops import FloatArray, IntArray
from minibert.texts import as_batch, shown
from minibert.tokenizer import BertTokenizer
from minibert.vectors import (
    LAYER_POOLING,
    SUBWORD_POOLING,
    LayerSelection,
    check_choice,
    combine_layers,
    join_subwords,
    resolve_layers,
)

__all__ = ["TokenVectors", "WordVectors", "embed_tokens"]

_TRUNCATION = ("warn", "error", "silent")

# Tokens whose layers are held before they are combined.
_TOKENS_PER_STEP = 8192


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WordVectors:
    """The words of one text, W of them, each with its vector; made by `TokenVectors.words`.

    Parameters
    ----------
    words : tuple of W str
        As they stand in the text.
    offsets : int ndarray of shape (W, 2)
        First character of each word in the text, and the one after its last.
    tokens : tuple of W slice
        The tokens each word consists of; empty for a word that has none.
    vectors : ndarray of shape (W, ...), float32
        NaN for a given word that has no token, or not all of its tokens, because the text was cut.
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
    """The tokens of one text, T of them, each with its vector; made by `embed_tokens`.

    Parameters
    ----------
    text : str
        The text; where it came split into words, those words with a space between two.
    tokens : tuple of T str
        As they stand in the vocabulary.
    ids : int64 ndarray of shape (T,)
    offsets : int64 ndarray of shape (T, 2)
        First character of each token in `text`, and the one after its last; (0, 0) for special tokens.
    word_ids : tuple of T int or None
        The word of the text that each token is part of, from 0; None for special tokens.
    special : bool ndarray of shape (T,)
        Whether the tokenizer put the token there ([CLS], [SEP]).
    vectors : ndarray of shape (T, ...), float32
        (T, k H), (T, H) or (T, k, H) for k layers, as `layer_pooling` says.
    layers : tuple of k int
        The hidden states that the vectors were made of, 0 to L.
    given_words : tuple of str, or None
        The words, where the text came split into them.
    n_truncated : int
        Tokens of the text that were cut off.
    cut_words : frozenset of int
        Words that lost some of their tokens, or all, to the cut.
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

        Words are what BERT's tokenizer takes for words (it splits at spaces and punctuation), or those that were given:
        then row i is word i, whatever became of it. A word that was cut in two has no vector.

        Parameters
        ----------
        subwords : {"mean", "first", "last", "max", "sum"}
            See `join_subwords`.
        """
        check_choice("subwords", subwords, SUBWORD_POOLING)
        places = self._word_places()
        if self.given_words is None:
            names, offsets = [], []
            for place in places.values():
                start, end = int(self.offsets[place.start, 0]), int(self.offsets[place.stop - 1, 1])
                names.append(self.text[start:end])
                offsets.append((start, end))
            tokens = list(places.values())
        else:
            names = list(self.given_words)
            starts = _word_starts(names)
            offsets = [(start, start + len(word)) for start, word in zip(starts, names, strict=True)]
            tokens = [places.get(i, slice(0, 0)) for i in range(len(names))]
        vectors = np.full((len(names), *self.vectors.shape[1:]), np.nan, dtype=np.float32)
        for i, place in enumerate(tokens):
            if place.stop > place.start:
                vectors[i] = join_subwords(self.vectors[place], subwords)
        return WordVectors(tuple(names), np.array(offsets, dtype=np.int64).reshape(-1, 2), tuple(tokens), vectors)

    def span_tokens(self, start: int, end: int) -> slice:
        """Find the tokens that hold any of the characters `start` to `end` - 1 of `text`.

        Raises
        ------
        TypeError, ValueError
            The span is empty or outside the text, no token holds any of it, or some of it was cut off.
        """
        for name, value in (("start", start), ("end", end)):
            if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name}={value!r}; expected an int, the number of a character.")
        length = len(self.text)
        if not 0 <= start < end <= length:
            raise ValueError(
                f"the span {start} to {end} does not lie in the text, which has {length} characters; expected "
                f"0 <= start < end <= {length}."
            )
        own = np.array([word is not None for word in self.word_ids])
        if self.n_truncated:
            kept = self.offsets[own]
            first, last = (int(kept[0, 0]), int(kept[-1, 1])) if len(kept) else (0, 0)
            if self.text[start : min(first, end)].strip() or self.text[max(last, start) : end].strip():
                raise ValueError(
                    f"the span {start} to {end} reaches beyond characters {first} to {last}, which are all that was "
                    "kept: the text has more tokens than the model takes."
                )
        holders = np.flatnonzero(own & (self.offsets[:, 0] < end) & (self.offsets[:, 1] > start))
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
            As `span_tokens`.
        """
        return join_subwords(self.vectors[self.span_tokens(start, end)], subwords)

    def _word_places(self) -> dict[int, slice]:
        """The tokens of each word that has all of them, by the number of the word."""
        places = {}
        for word, positions in groupby(range(len(self)), key=self.word_ids.__getitem__):
            own = list(positions)
            if word is not None and word not in self.cut_words:
                places[word] = slice(own[0], own[-1] + 1)
        return places

    def __repr__(self) -> str:
        cut = f", {self.n_truncated} more were cut" if self.n_truncated else ""
        layers = f"layer{'s' if len(self.layers) > 1 else ''} {', '.join(map(str, self.layers))}"
        return f"TokenVectors({len(self)} tokens{cut}, vectors {self.vectors.shape} of {layers})"

    def _repr_html_(self) -> str:
        return token_table(repr(self), self.tokens, self.ids, self.offsets, self.word_ids)


@overload
def embed_tokens(  # type: ignore[overload-overlap]  # a str is a sequence of str too
    model: BertModel,
    tokenizer: BertTokenizer,
    texts: str,
    *,
    layers: LayerSelection = ...,
    layer_pooling: str = ...,
    truncation: str = ...,
    max_length: int | None = ...,
) -> TokenVectors: ...


@overload
def embed_tokens(
    model: BertModel,
    tokenizer: BertTokenizer,
    texts: Sequence[str] | Sequence[Sequence[str]] | npt.NDArray[Any],
    *,
    layers: LayerSelection = ...,
    layer_pooling: str = ...,
    is_split_into_words: bool = ...,
    truncation: str = ...,
    max_length: int | None = ...,
) -> list[TokenVectors]: ...


def embed_tokens(
    model: BertModel,
    tokenizer: BertTokenizer,
    texts: str | Sequence[str] | Sequence[Sequence[str]] | npt.NDArray[Any],
    *,
    layers: LayerSelection = -1,
    layer_pooling: str = "concat",
    is_split_into_words: bool = False,
    truncation: str = "warn",
    max_length: int | None = None,
) -> TokenVectors | list[TokenVectors]:
    """Turn texts into the vectors of their tokens, from any layers; words and spans are had from the result.

    Many texts are one packed batch; with the backend "numba" each one's vectors are, bit for bit, those it has alone.
    Layers above the highest one asked for are never computed.

    Parameters
    ----------
    model, tokenizer
        Of the same model.
    texts : str, or sequence of str
        With `is_split_into_words`, a sequence of lists of words.
    layers : int or ints
        Hidden states by index: 0 the embeddings' output, i that of layer i, -1 the last; see `resolve_layers`.
    layer_pooling : {"concat", "sum", "mean", "tokens_first"}
        How several layers become one vector of each token, see `combine_layers`; "tokens_first" keeps them apart.
    is_split_into_words : bool
        The texts are lists of words, and these are the words of the result.
    truncation : {"warn", "error", "silent"}
        What to do with a text that has more tokens than the limit, before it is cut.
    max_length : int, optional
        The limit, in tokens, special ones included. Default, and at most: what tokenizer and model take.

    Returns
    -------
    TokenVectors for a str, a list of TokenVectors for a sequence

    Raises
    ------
    TypeError, ValueError
        A text is not a str (its index is named), an argument is not as above, a text is too long with
        truncation="error", the tokenizer gives ids that the model does not have.

    Examples
    --------
    >>> from minibert import BertModel, BertTokenizer, embed_tokens
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> model, tokenizer = BertModel.from_pretrained(name), BertTokenizer.from_pretrained(name)
    >>> embeddings = embed_tokens(model, tokenizer, "word embeddings", layers=[-2, -1])
    >>> embeddings
    TokenVectors(7 tokens, vectors (7, 768) of layers 5, 6)
    >>> embeddings.words("mean").words
    ('word', 'embeddings')
    >>> embeddings.span(5, 15).shape
    (768,)
    """
    if not isinstance(model, BertModel) or not isinstance(tokenizer, BertTokenizer):
        raise TypeError(
            f"embed_tokens was given {type(model).__name__} and {type(tokenizer).__name__}; expected a BertModel, "
            "then a BertTokenizer."
        )
    chosen = resolve_layers(layers, model.config.num_hidden_layers)
    check_choice("layer_pooling", layer_pooling, [how for how in LAYER_POOLING if how != "stack"])
    check_choice("truncation", truncation, _TRUNCATION)
    limit = _limit(model, tokenizer, max_length)
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    if isinstance(texts, list | tuple) and not texts:
        return []
    if is_split_into_words and isinstance(texts, list | tuple) and isinstance(texts[0], str):
        raise TypeError(
            f"texts is {shown(texts)}, one text with is_split_into_words; expected a list of lists of words: [words]."
        )
    checked = as_batch(texts, None, is_split_into_words)[0]
    encodings, cut_words = _encode(tokenizer, checked, limit, truncation, is_split_into_words)
    embedded = [
        _describe(text, encoding, words, vectors, chosen)
        for text, encoding, words, vectors in zip(
            checked, encodings, cut_words, _run(model, encodings, chosen, layer_pooling), strict=True
        )
    ]
    return embedded[0] if isinstance(texts, str) else embedded


def _limit(model: BertModel, tokenizer: BertTokenizer, max_length: int | None) -> int:
    most = model.config.max_position_embeddings
    if tokenizer.model_max_length is not None:
        most = min(most, tokenizer.model_max_length)
    if max_length is None:
        return most
    least = tokenizer.num_special_tokens_to_add()
    if isinstance(max_length, bool) or not isinstance(max_length, int | np.integer):
        raise TypeError(f"max_length={max_length!r}; expected an int, {least} to {most}.")
    if not least <= max_length <= most:
        raise ValueError(
            f"max_length={max_length}; expected {least} (the special tokens) to {most}, what tokenizer and model take."
        )
    return int(max_length)


def _encode(
    tokenizer: BertTokenizer, texts: list[Any], limit: int, truncation: str, is_split_into_words: bool
) -> tuple[list[Encoding], list[frozenset[int]]]:
    """Tokenize; cut what is too long, and say so; name the words that lost tokens by that."""
    whole = tokenizer.encodings(texts, truncation=False, is_split_into_words=is_split_into_words)
    encodings, cut_words = list(whole), [frozenset[int]()] * len(texts)
    long = [i for i, encoding in enumerate(whole) if len(encoding) > limit]
    for i in long:
        if truncation == "error":
            raise ValueError(
                f"text {i} has {len(whole[i])} tokens, the model takes {limit}. Shorten it, or let it be cut: "
                "truncation='warn'."
            )
        encodings[i] = tokenizer.encodings(
            [texts[i]], max_length=limit, truncation=True, is_split_into_words=is_split_into_words
        )[0]
        lost = Counter(whole[i].word_ids) - Counter(encodings[i].word_ids)
        cut_words[i] = frozenset(word for word in lost if word is not None)
    if long and truncation == "warn":
        warnings.warn(
            f"{len(long)} of {len(texts)} texts have more than {limit} tokens and were cut (the first is at index "
            f"{long[0]}). Silence this with truncation='silent'.",
            stacklevel=3,
        )
    return encodings, cut_words


def _run(model: BertModel, encodings: list[Encoding], layers: tuple[int, ...], layer_pooling: str) -> list[FloatArray]:
    """Vectors of each text's tokens, computed on one packed batch."""
    ids, token_types = [encoding.ids for encoding in encodings], [encoding.token_types for encoding in encodings]
    for i, (own_ids, own_types) in enumerate(zip(ids, token_types, strict=True)):
        check_ids(f"the ids of text {i}", own_ids, model.config.vocab_size, "vocab_size", ndim=1)
        check_ids(f"the token types of text {i}", own_types, model.config.type_vocab_size, "type_vocab_size", ndim=1)
    vectors: list[FloatArray] = []
    for _, step in PackedBatch.from_sequences(ids, token_types).steps(_TOKENS_PER_STEP):
        states = model.forward_packed(step, hidden_states=layers, num_layers=max(layers)).hidden_states
        combined = combine_layers([states[i] for i in layers], layer_pooling)
        vectors += np.split(combined, step.cu_seqlens[1:-1])
    return vectors


def _describe(
    text: Any, encoding: Encoding, cut_words: frozenset[int], vectors: FloatArray, layers: tuple[int, ...]
) -> TokenVectors:
    """Put a text, its encoding and the vectors together."""
    word_ids, offsets = tuple(encoding.word_ids), encoding.offsets
    given = None if isinstance(text, str) else tuple(text)
    if given is not None:
        starts = _word_starts(given)
        offsets = offsets + np.array([[0 if word is None else starts[word]] for word in word_ids], dtype=np.int64)
    return TokenVectors(
        text=text if given is None else " ".join(given),
        tokens=tuple(encoding.tokens),
        ids=encoding.ids,
        offsets=offsets,
        word_ids=word_ids,
        special=encoding.special_tokens_mask.astype(np.bool_),
        vectors=vectors,
        layers=layers,
        given_words=given,
        n_truncated=encoding.n_truncated,
        cut_words=cut_words,
    )


def _word_starts(words: Sequence[str]) -> list[int]:
    """The first character of each word where they stand with a space between two."""
    return list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))[: len(words)]
