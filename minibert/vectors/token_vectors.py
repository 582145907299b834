"""Vectors of tokens and words, from any layers: of whole texts, or of a span of characters."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import token_table
from minibert._utils.validation import FloatArray, IntArray, check_choice, check_int
from minibert.bert.config import BertConfig
from minibert.encode.run import packed
from minibert.models.bert import BertModel
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import as_texts, checked_texts, shown, without_spaces
from minibert.tokenizer.too_long import TRUNCATIONS_WITHOUT_SPLIT, TooLong
from minibert.vectors.layers import LAYER_POOLING, LayerSelection, combine_layers, join_subwords, resolve_layers


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WordVectors:
    """The W words of one text, each with its vector; `TokenVectors.words` makes it.

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


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TokenVectors:
    """The T tokens of one text, each with its vector; `embed_tokens` makes it.

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

        The tokenizer decides what a word is: BERT's and RoBERTa's split at spaces and punctuation, XLM-RoBERTa's and
        CamemBERT's at spaces. A word that lost some of its tokens is left out. If the text was given as words, row i is
        word i, and the vector of such a word is NaN.

        Parameters
        ----------
        subwords : {"mean", "first", "last", "max", "sum"}
            See `join_subwords`.
        """
        tokens_of: dict[int | None, slice] = {}  # of the words that did not lose any
        for word, positions in groupby(range(len(self)), key=self.word_ids.__getitem__):
            indices = list(positions)
            if word is not None and word not in self.cut_words:
                tokens_of[word] = slice(indices[0], indices[-1] + 1)
        if self.given_words is None:
            tokens = list(tokens_of.values())
            offsets = [without_spaces(self.text, *self.offsets[one].ravel()[[0, -1]].tolist()) for one in tokens]
            names = [self.text[start:end] for start, end in offsets]
        else:
            names = list(self.given_words)
            offsets = [(start, start + len(word)) for start, word in zip(word_starts(names), names, strict=True)]
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
        length = len(self.text)
        start = check_int("start", start, 0, length - 1, also=", the index of a character")
        end = check_int("end", end, start + 1, length, also=", the index after the last character")
        if self.n_truncated:
            kept = self.offsets[~self.special]
            first, last = (int(kept[0, 0]), int(kept[-1, 1])) if len(kept) else (0, 0)
            if self.text[start : min(first, end)].strip() or self.text[max(last, start) : end].strip():
                raise ValueError(
                    f"the span {start} to {end} reaches beyond characters {first} to {last}. Only these were kept, "
                    "because the text has more tokens than the model takes; give a span within them."
                )
        holders = np.flatnonzero((self.offsets[:, 0] < end) & (self.offsets[:, 1] > start))
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

    def __repr__(self) -> str:
        cut = f", {self.n_truncated} more were cut" if self.n_truncated else ""
        layers = f"layer{'s' if len(self.layers) > 1 else ''} {', '.join(map(str, self.layers))}"
        return f"TokenVectors({len(self)} tokens{cut}, vectors {self.vectors.shape} of {layers})"

    def _repr_html_(self) -> str:
        return token_table(repr(self), self.tokens, self.ids, self.offsets, self.word_ids)


def word_starts(words: Sequence[str]) -> list[int]:
    """Return the index of each word's first character if the words are joined by single spaces."""
    return list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))[: len(words)]


# fmt: off
@overload
def embed_tokens(  # type: ignore[overload-overlap]  # a str is a Sequence[str] too
    model: BertModel, tokenizer: BertTokenizer, texts: str, *, layers: LayerSelection = ..., layer_pooling: str = ...,
    is_split_into_words: bool = ..., truncation: str = ..., max_length: int | None = ...) -> TokenVectors: ...
@overload
def embed_tokens(
    model: BertModel, tokenizer: BertTokenizer, texts: Sequence[str] | Sequence[Sequence[str]] | npt.NDArray[Any], *,
    layers: LayerSelection = ..., layer_pooling: str = ..., is_split_into_words: bool = ..., truncation: str = ...,
    max_length: int | None = ...) -> list[TokenVectors]: ...
# fmt: on
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
) -> Any:
    """Turn texts into the vectors of their tokens, from any layers. Use `.words()` and `.span()` of the result.

    Many texts are packed, 1,024 tokens at a time. With the backend "kernels" the vectors of each text are, bit for bit,
    those that it has alone. Layers above the highest requested one are not computed.

    Parameters
    ----------
    model, tokenizer
        Both of the same model.
    texts : str, or sequence, 1-D array or column of str
        With `is_split_into_words`, a sequence of lists of words.
    layers : int or ints
        Hidden states by index: 0 the embeddings' output, i the output of layer i, -1 the last; see `resolve_layers`.
    layer_pooling : {"concat", "sum", "mean", "tokens_first"}
        How several layers become one vector of each token; see `combine_layers`. "tokens_first" keeps them apart.
    is_split_into_words : bool
        The texts are lists of words, and these are the words of the result.
    truncation : {"warn", "error", "silent"}
        Treatment of a text that has more tokens than the limit: truncate it and warn, raise, or truncate it silently.
    max_length : int, optional
        The limit, in tokens, special tokens included. Default, and maximum: the limit of tokenizer and model.

    Returns
    -------
    TokenVectors for a str, a list of TokenVectors for a sequence

    Raises
    ------
    TypeError, ValueError
        A text is not a str (the message names its index), an argument is not as above, a text is too long with
        truncation="error", or the tokenizer gives ids that the model does not have.

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

    Sentences that are split into words, with their layers apart:

    >>> apart = {"layer_pooling": "tokens_first", "is_split_into_words": True}
    >>> (sentence,) = embed_tokens(model, tokenizer, [["word", "embeddings"]], layers=range(1, 7), **apart)
    >>> sentence.words("first").vectors.shape
    (2, 6, 384)
    """
    if not isinstance(model, BertModel) or not isinstance(tokenizer, BertTokenizer):
        raise TypeError(
            f"embed_tokens was given {type(model).__name__} and {type(tokenizer).__name__}; expected a BertModel, "
            "then a BertTokenizer."
        )
    chosen = resolve_layers(layers, model.config.num_hidden_layers)
    check_choice("layer_pooling", layer_pooling, [how for how in LAYER_POOLING if how != "stack"])
    check_choice("truncation", truncation, TRUNCATIONS_WITHOUT_SPLIT)
    limit = token_limit(model.config, tokenizer, max_length)
    items, single = as_texts("texts", texts)
    if not items:
        return []
    if is_split_into_words and isinstance(items[0], str):
        raise TypeError(
            f"texts is {shown(texts)}, one text with is_split_into_words; expected a list of lists of words: [words]."
        )
    checked = checked_texts("texts", list(items), is_split_into_words)[0]
    encodings, cut_words = _encode(tokenizer, checked, limit, truncation, is_split_into_words)
    embedded = []
    arrays: list[FloatArray] = []
    for step, states in model.states(packed(model.config, encodings), chosen):
        arrays += np.split(combine_layers([states[i] for i in chosen], layer_pooling), step.cu_seqlens[1:-1])
    for text, encoding, lost, vectors in zip(checked, encodings, cut_words, arrays, strict=True):
        word_ids, offsets = tuple(encoding.word_ids), encoding.offsets
        own_words = tuple(text) if is_split_into_words else None
        if own_words is not None:
            starts = word_starts(own_words)
            offsets = offsets + np.array([[0 if word is None else starts[word]] for word in word_ids], dtype=np.int64)
        tokens = TokenVectors(
            text=text if own_words is None else " ".join(own_words),
            tokens=tuple(tokenizer.convert_ids_to_tokens(encoding.ids)),
            ids=encoding.ids,
            offsets=offsets,
            word_ids=word_ids,
            special=encoding.special_tokens_mask.astype(np.bool_),
            vectors=vectors,
            layers=chosen,
            given_words=own_words,
            n_truncated=encoding.n_truncated,
            cut_words=lost,
        )
        embedded.append(tokens)
    return embedded[0] if single else embedded


def token_limit(config: BertConfig, tokenizer: BertTokenizer, max_length: int | None = None) -> int:
    """Return the largest number of tokens of a text that the model, the tokenizer's settings and `max_length` allow."""
    most = min(config.max_length, tokenizer.model_max_length or config.max_length)
    if max_length is None:
        return most
    least = tokenizer.num_special_tokens_to_add()
    return check_int("max_length", max_length, least, most, also=": special tokens, limit of tokenizer and model")


def _encode(
    tokenizer: BertTokenizer, texts: list[Any], limit: int, truncation: str, is_split_into_words: bool
) -> tuple[list[Encoding], list[frozenset[int]]]:
    """Tokenize texts and truncate long ones; return the encodings, and the words of each text that lost tokens."""
    exact = tokenizer.truncation_side == "left"  # the words are counted from the start
    encodings = tokenizer.encodings(
        texts, max_length=limit, truncation=True, is_split_into_words=is_split_into_words, exact=exact
    )
    tokenizer.warn_of_unknown(encodings)
    cut_words = [frozenset[int]()] * len(texts)
    too_long = TooLong(truncation, limit, limit_name="max_length").add([encoding.n_truncated for encoding in encodings])
    for i in (i for i, encoding in enumerate(encodings) if encoding.n_truncated):
        whole = tokenizer.encodings([texts[i]], truncation=False, is_split_into_words=is_split_into_words)[0]
        if truncation == "error":
            raise too_long.error(f"texts[{i}]", len(whole))
        cut_words[i] = frozenset(Counter[Any](whole.word_ids) - Counter(encodings[i].word_ids))  # tokens of each word
        encodings[i] = dataclasses.replace(encodings[i], n_truncated=len(whole) - len(encodings[i]))
    too_long.warn()
    return encodings, cut_words
