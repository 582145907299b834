"""Vectors of tokens and words, from any layers: of whole texts, of a span of characters, of a word's occurrences."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import token_table
from minibert._utils.validation import FloatArray, IntArray, check_choice, check_int, counted
from minibert.bert.config import BertConfig
from minibert.encode.run import packed
from minibert.models.bert import BertModel
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import as_texts, check_text, checked_texts, shown, without_spaces, word_spans
from minibert.tokenizer.too_long import TRUNCATIONS_WITHOUT_SPLIT, TooLong
from minibert.vectors.layers import LAYER_POOLING, LayerSelection, combine_layers, join_subwords, resolve_layers
from minibert.vectors.similarity import cos_sim


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


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """One occurrence of a word in a text.

    Parameters
    ----------
    text : str
    text_index : int
        Index of the text among the given texts.
    tokens : slice
        The word's tokens in that text.
    start, end : int
        The word's first character in that text, and the one after its last.
    """

    text: str
    text_index: int
    tokens: slice
    start: int
    end: int

    def in_context(self, width: int = 24) -> str:
        """Return the word in brackets with the text around it, at most `width` characters on each side."""
        width = check_int("width", width, 0)
        first, last = max(0, self.start - width), self.end + width
        line = f"{self.text[first : self.start]}[{self.text[self.start : self.end]}]{self.text[self.end : last]}"
        return " ".join(f"{'...' if first else ''}{line}{'...' if last < len(self.text) else ''}".split())


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WordOccurrences:
    """The n occurrences of a word in some texts, with their vectors; `word_occurrences` makes it.

    Parameters
    ----------
    word : str
    places : tuple of n Occurrence
    vectors : ndarray of shape (n, ...), float32
        (n, H), or (n, k, H) if k layers were kept apart.
    layers : tuple of k int
        The hidden states that the vectors come from, 0 to L.
    """

    word: str
    places: tuple[Occurrence, ...]
    vectors: FloatArray
    layers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.places)

    def first(self, n: int) -> WordOccurrences:
        """Return the first n occurrences."""
        return dataclasses.replace(self, places=self.places[:n], vectors=self.vectors[:n])

    def similarities(self) -> FloatArray:
        """Return the cosines of all pairs of occurrences, (n, n); (k, n, n) if k layers were kept apart."""
        if self.vectors.ndim == 2:
            return cos_sim(self.vectors, self.vectors)
        return np.stack([cos_sim(layer, layer) for layer in np.moveaxis(self.vectors, 1, 0)])

    def __repr__(self) -> str:
        return f"WordOccurrences({self.word!r}, {len(self)} occurrences, vectors {self.vectors.shape})"


def word_occurrences(
    word: str, texts: TokenVectors | Sequence[TokenVectors], tokenizer: BertTokenizer, *, subwords: str = "mean"
) -> WordOccurrences:
    """Find a word in embedded texts, as a whole word only, and join the vectors of its tokens.

    A word is whole if no letter, digit or combining mark is beside it. Each Chinese character is a word.

    Parameters
    ----------
    word : str
        It is compared as the tokenizer normalizes it: an uncased one finds "bank" in "BANK". It may be several words.
    texts : TokenVectors, or sequence of them
        From `embed_tokens`. With layer_pooling="tokens_first" the occurrences can be compared layer by layer.
    tokenizer : BertTokenizer
        The tokenizer that the texts were embedded with.
    subwords : {"mean", "first", "last", "max", "sum"}
        See `join_subwords`.

    Raises
    ------
    TypeError, ValueError
        The word is empty, not in the vocabulary, or does not occur; or the texts were not embedded alike.

    Examples
    --------
    >>> from minibert import BertModel, BertTokenizer, embed_tokens, word_occurrences
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> model, tokenizer = BertModel.from_pretrained(name), BertTokenizer.from_pretrained(name)
    >>> texts = embed_tokens(model, tokenizer, ["the bank robber", "a river bank", "the bank vault"])
    >>> banks = word_occurrences("bank", texts, tokenizer)
    >>> banks.similarities().shape
    (3, 3)
    """
    check_text(word, "word")
    if not isinstance(tokenizer, BertTokenizer):
        raise TypeError(f"tokenizer is {shown(tokenizer)}; expected a BertTokenizer.")
    embedded = [texts] if isinstance(texts, TokenVectors) else list(texts)
    for i, text in enumerate(embedded):
        if not isinstance(text, TokenVectors):
            raise TypeError(f"texts[{i}] is {shown(text)}; expected TokenVectors from embed_tokens.")
        if text.layers != embedded[0].layers or text.vectors.shape[1:] != embedded[0].vectors.shape[1:]:
            raise ValueError(f"texts[{i}] was not embedded as the first: {text!r}, {embedded[0]!r}. Embed all alike.")
    wanted, *found = word_spans([word, *(text.text for text in embedded)], tokenizer.backend_tokenizer.normalizer)
    ids, names = tokenizer.encodings([word], add_special_tokens=False)[0].ids, [name for name, _, _ in wanted]
    if not len(ids) or not names:
        raise ValueError(f"the word {word!r} has no token; give the word to search.")
    if tokenizer.unk_token_id in ids:
        raise ValueError(f"{word!r} is not in the vocabulary; it becomes {tokenizer.unk_token}, as other words do.")
    special = set(tokenizer.all_special_ids)  # "mask" is not in "[MASK]"
    places, vectors = [], []
    for i, (text, spans) in enumerate(zip(embedded, found, strict=True)):
        for part in (spans[k : k + len(names)] for k in range(len(spans))):
            start, end = part[0][1], part[-1][2]
            tokens = _word_tokens(text, start, end) if [name for name, *_ in part] == names else None
            if tokens and special.intersection(text.ids[tokens].tolist()) == special.intersection(ids.tolist()):
                places.append(Occurrence(text.text, i, tokens, start, end))
                vectors.append(join_subwords(text.vectors[tokens], subwords))
    if not places:
        raise ValueError(f"{word!r} occurs nowhere in the {counted(len(embedded), 'text')} as a whole word.")
    return WordOccurrences(word, tuple(places), np.stack(vectors), embedded[0].layers)


def _word_tokens(text: TokenVectors, start: int, end: int) -> slice | None:
    """Return the tokens of a word, given by its characters; None if they are part of a longer one, or some were cut."""
    holders = np.flatnonzero((text.offsets[:, 0] < end) & (text.offsets[:, 1] > start)).tolist()
    if not holders:
        return None
    first, stop = holders[0], holders[-1] + 1
    left, right = int(text.offsets[first, 0]), int(text.offsets[stop - 1, 1])
    # A token may hold punctuation beside the word, or lack accents that the tokenizer removes; letters it may not.
    ends = text.text[min(left, start) : max(left, start)] + text.text[min(right, end) : max(right, end)]
    at_edge = stop > len(text) - 2 or (first < 2 and text.text[:left].strip())
    if any(map(str.isalnum, ends)) or (at_edge and text.cut_words.intersection(text.word_ids[first:stop])):
        return None
    # The space before the word can be a token of its own.
    while text.word_ids[first - 1] == text.word_ids[first] and not text.text[slice(*text.offsets[first - 1])].strip():
        first -= 1
    return slice(first, stop)


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
