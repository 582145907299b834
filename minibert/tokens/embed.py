"""Texts -> the vectors of their tokens, from any layers, with the tokens, words and characters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import cut_texts, warn_caller
from minibert._utils.validation import FloatArray, check_choice, check_int
from minibert.bert.packed import PackedBatch
from minibert.models.bert_model import BertModel
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import as_batch, as_texts, shown
from minibert.tokens.layers import LAYER_POOLING, LayerSelection, combine_layers, resolve_layers
from minibert.tokens.token_vectors import TokenVectors, word_starts

__all__ = ["embed_tokens"]

_TRUNCATION = ("warn", "error", "silent")


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
    """Turn texts into the vectors of their tokens, from any layers. Use `.words()` and `.span()` of the result.

    Many texts are packed, 1,024 tokens at a time. With the backend "numba" the vectors of each text are, bit for bit,
    those that it has alone. Layers above the highest requested one are not computed.

    Parameters
    ----------
    model, tokenizer
        Both of the same model.
    texts : str, or sequence, 1-D array or column of str
        With `is_split_into_words`, a sequence of lists of words.
    layers : int or ints
        Hidden states by index: 0 the embeddings' output, i that of layer i, -1 the last; see `resolve_layers`.
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
    items, single = as_texts("texts", texts)
    if not items:
        return []
    if is_split_into_words and isinstance(items[0], str):
        raise TypeError(
            f"texts is {shown(texts)}, one text with is_split_into_words; expected a list of lists of words: [words]."
        )
    checked = as_batch(list(items), None, is_split_into_words)[0]
    encodings, cut_words = _encode(tokenizer, checked, limit, truncation, is_split_into_words)
    embedded = [
        _describe(text, encoding, words, vectors, chosen)
        for text, encoding, words, vectors in zip(
            checked, encodings, cut_words, _run(model, encodings, chosen, layer_pooling), strict=True
        )
    ]
    return embedded[0] if single else embedded


def _limit(model: BertModel, tokenizer: BertTokenizer, max_length: int | None) -> int:
    most = model.config.max_position_embeddings
    if tokenizer.model_max_length is not None:
        most = min(most, tokenizer.model_max_length)
    if max_length is None:
        return most
    least = tokenizer.num_special_tokens_to_add()
    return check_int(
        "max_length", max_length, least, most, also=": the special tokens, and the limit of tokenizer and model"
    )


def _encode(
    tokenizer: BertTokenizer, texts: list[Any], limit: int, truncation: str, is_split_into_words: bool
) -> tuple[list[Encoding], list[frozenset[int]]]:
    """Tokenize texts and truncate long ones; return the encodings, and the words of each text that lost tokens."""
    encodings = tokenizer.encodings(
        texts, max_length=limit, truncation=True, is_split_into_words=is_split_into_words, exact=False
    )
    cut_words = [frozenset[int]()] * len(texts)
    long = [i for i, encoding in enumerate(encodings) if encoding.n_truncated]
    for i in long:
        whole = tokenizer.encodings([texts[i]], truncation=False, is_split_into_words=is_split_into_words)[0]
        if truncation == "error":
            raise ValueError(
                f"text {i} has {len(whole)} tokens, the model takes {limit}. Shorten it, or truncate it with "
                "truncation='warn'."
            )
        before, after = (np.bincount(_words(encoding)) for encoding in (whole, encodings[i]))
        before[: len(after)] -= after
        cut_words[i] = frozenset(np.flatnonzero(before).tolist())
        encodings[i] = dataclasses.replace(encodings[i], n_truncated=len(whole) - len(encodings[i]))
    if long and truncation == "warn":
        warn_caller(
            f"{cut_texts(len(long), len(texts), limit, long[0])} Silence this with truncation='silent'.",
        )
    return encodings, cut_words


def _words(encoding: Encoding) -> npt.NDArray[np.int64]:
    """Return the word indices of the tokens that are part of a word."""
    return np.fromiter((word for word in encoding.word_ids if word is not None), dtype=np.int64)


def _run(model: BertModel, encodings: list[Encoding], layers: tuple[int, ...], layer_pooling: str) -> list[FloatArray]:
    """Return the vectors of each text's tokens."""
    ids, token_types = [encoding.ids for encoding in encodings], [encoding.token_types for encoding in encodings]
    vectors: list[FloatArray] = []
    for step, states in model.states(PackedBatch.from_sequences(ids, token_types), layers):
        combined = combine_layers([states[i] for i in layers], layer_pooling)
        vectors += np.split(combined, step.cu_seqlens[1:-1])
    return vectors


def _describe(
    text: Any, encoding: Encoding, cut_words: frozenset[int], vectors: FloatArray, layers: tuple[int, ...]
) -> TokenVectors:
    """Combine a text, its encoding and its vectors."""
    word_ids, offsets = tuple(encoding.word_ids), encoding.offsets
    given = None if isinstance(text, str) else tuple(text)
    if given is not None:
        starts = word_starts(given)
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
