"""Every occurrence of a word in texts, with its vector, and the cosines of the occurrences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from minibert._utils.reporting import html_table
from minibert._utils.validation import FloatArray, check_choice, check_int, counted
from minibert.similarity import cos_sim
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.texts import shown
from minibert.tokens.layers import SUBWORD_POOLING, find_word, join_subwords
from minibert.tokens.token_vectors import TokenVectors

__all__ = ["Occurrence", "WordOccurrences", "word_occurrences"]


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
    """The n occurrences of a word in some texts, with their vectors; made by `word_occurrences`.

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

    def similarities(self) -> FloatArray:
        """Return the cosines of all pairs of occurrences, (n, n); (k, n, n) if k layers were kept apart."""
        if self.vectors.ndim == 2:
            return cos_sim(self.vectors, self.vectors)
        return np.stack([cos_sim(layer, layer) for layer in np.moveaxis(self.vectors, 1, 0)])

    def __repr__(self) -> str:
        return f"WordOccurrences({self.word!r}, {len(self)} occurrences, vectors {self.vectors.shape})"

    def _repr_html_(self) -> str:
        rows = (
            (number, place.text_index, f"{place.tokens.start}-{place.tokens.stop - 1}", place.in_context())
            for number, place in enumerate(self.places)
        )
        return html_table(repr(self), ("", "text", "tokens", "where"), rows, len(self))


def word_occurrences(
    word: str, texts: TokenVectors | Sequence[TokenVectors], tokenizer: BertTokenizer, *, subwords: str = "mean"
) -> WordOccurrences:
    """Find a word in embedded texts, as a whole word only, and join the vectors of its tokens.

    Parameters
    ----------
    word : str
        It is compared by its tokens: an uncased tokenizer finds "bank" in "BANK". It may be several words.
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
    if not isinstance(word, str) or not isinstance(tokenizer, BertTokenizer):
        raise TypeError(
            f"word_occurrences was given {shown(word)} and, as the tokenizer, a {type(tokenizer).__name__}; expected "
            "a word (str), embedded texts and a BertTokenizer."
        )
    check_choice("subwords", subwords, SUBWORD_POOLING)
    if not isinstance(texts, TokenVectors | Iterable) or isinstance(texts, str):
        raise TypeError(f"texts is {shown(texts)}; expected TokenVectors, or a list of them, from embed_tokens.")
    embedded = [texts] if isinstance(texts, TokenVectors) else list(texts)
    for i, text in enumerate(embedded):
        if not isinstance(text, TokenVectors):
            raise TypeError(f"texts[{i}] is {shown(text)}; expected TokenVectors from embed_tokens.")
        if text.layers != embedded[0].layers or text.vectors.shape[1:] != embedded[0].vectors.shape[1:]:
            raise ValueError(
                f"texts[{i}] was not embedded as the first: {text!r}, {embedded[0]!r}. Embed all texts alike."
            )
    ids = _word_ids(word, tokenizer)
    places, vectors = [], []
    for i, text in enumerate(embedded):
        for tokens in find_word(ids, text.ids.tolist(), text.word_ids):
            if not text.cut_words.intersection(text.word_ids[tokens]):
                places.append(_occurrence(i, text, tokens))
                vectors.append(join_subwords(text.vectors[tokens], subwords))
    if not places:
        number = counted(len(embedded), "text")
        raise ValueError(f"{word!r} occurs nowhere in the {number} as a whole word.")
    return WordOccurrences(word, tuple(places), np.stack(vectors), embedded[0].layers)


def _word_ids(word: str, tokenizer: BertTokenizer) -> list[int]:
    """Return the ids of a word's tokens; ValueError if it is empty, or if it would match every unknown word."""
    ids = [int(token_id) for token_id in tokenizer.encodings([word], add_special_tokens=False)[0].ids]
    if not ids:
        raise ValueError(f"the word {word!r} has no token; give the word to search.")
    if tokenizer.unk_token_id in ids:
        raise ValueError(
            f"{word!r} is not in the vocabulary: it becomes {tokenizer.unk_token}, like every unknown word, and cannot "
            "be distinguished from them. Give a word of known tokens."
        )
    return ids


def _occurrence(index: int, text: TokenVectors, tokens: slice) -> Occurrence:
    start, end = int(text.offsets[tokens.start, 0]), int(text.offsets[tokens.stop - 1, 1])
    return Occurrence(text.text, index, tokens, start, end)
