"""Find a word in embedded texts: `word_occurrences`, with the vectors and the cosines of its occurrences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from minibert._utils.validation import FloatArray, check_int, counted
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.texts import check_text, shown, word_spans
from minibert.vectors.layers import join_subwords
from minibert.vectors.similarity import cos_sim
from minibert.vectors.token_vectors import TokenVectors


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
