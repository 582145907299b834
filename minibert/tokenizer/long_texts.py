"""Texts -> encodings of the `tokenizers` library; long texts are tokenized in pieces.

The library takes 80 to 600 bytes for each character of a text, so a line of a corpus could take all of the memory. A
long text is therefore cut at spaces, where this changes no token, and its tokens are kept in arrays. A piece that is
not needed is not tokenized.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.tokenizer.encodings import OFFSETS, WORD, Columns, JoinedEncoding, RawEncoding, joined_columns
from minibert.tokenizer.files import is_library_error, library_errors
from minibert.tokenizer.texts import strings

if TYPE_CHECKING:
    from tokenizers import Tokenizer


LONG_TEXT = 2**14
"""Characters of a piece; a shorter text is never cut."""

# Limit of the characters that are tokenized whole.
_MOST_CHARACTERS = 2**22

_PIECES_AT_ONCE = 4  # the library tokenizes them in parallel threads


# A text is cut before a space. The first pattern matches up to the last cut.
_LAST_CUT = re.compile(r"(?s:.+)(?=[ \t\n\r])")
_NEXT_CUT = re.compile(r"(?=[ \t\n\r])")


class RawOptions(NamedTuple):
    """The options of a tokenization.

    Parameters
    ----------
    add_special_tokens, is_split_into_words : bool
        As in `BertTokenizer.__call__`.
    side : {"right", "left"}
        The end of a long text whose tokens are not needed.
    exact : bool
        Count the tokens that are not needed. If False, a long text is read only as far as needed, and `n_missing` is at
        least 1 if tokens are missing.
    """

    add_special_tokens: bool = True
    is_split_into_words: bool = False
    side: str = "right"
    exact: bool = True


class RawEncoder:
    """Calls the library's tokenizer; any number of threads may use one object at once.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @functools.cached_property
    def around(self) -> tuple[int, int] | None:
        """The number of special tokens before and after a text; None if a cut of a text might change its tokens."""
        return _around(self._tokenizer)

    def last_cut(self, text: str) -> int | None:
        """Return the last index at which a text can be cut, whatever follows the text; None if no index is known."""
        found = _LAST_CUT.match(text) if self.around is not None else None
        return found.end() if found else None

    def encode(self, inputs: list[Any], options: RawOptions, most: int | None = None) -> Sequence[RawEncoding]:
        """Tokenize texts, pairs, or lists of words; of a long text at least `most` of its tokens, default all.

        Raises
        ------
        ValueError
            A text cannot be tokenized; the message names its index.
        """
        special, words = bool(options.add_special_tokens), bool(options.is_split_into_words)

        def encode(some: list[Any]) -> Sequence[RawEncoding]:
            return self._tokenizer.encode_batch(some, is_pretokenized=words, add_special_tokens=special)

        def encode_all(some: list[Any]) -> Sequence[RawEncoding]:
            long = [one for one in some if not isinstance(one, str) or len(one) > LONG_TEXT]
            around = self.around if long and not words and isinstance(some[0], str) else None
            if around is None:
                for one in long:
                    _refuse_huge(one)
                return encode(some)
            others = iter(encode([one for one in some if len(one) <= LONG_TEXT]))
            return [
                next(others) if len(one) <= LONG_TEXT else self._encode_long(around, one, options, most) for one in some
            ]

        try:
            return encode_all(inputs)
        except BaseException as reason:
            if not is_library_error(reason):
                raise
        # The library does not say which text failed, so each one is tried alone.
        raw_encodings: list[RawEncoding] = []
        for index, one in enumerate(inputs):
            with library_errors(ValueError, f"text {index} cannot be tokenized"):
                raw_encodings += encode_all([one])
        return raw_encodings

    def _encode_long(
        self, num_special: tuple[int, int], text: str, options: RawOptions, most: int | None
    ) -> JoinedEncoding:
        """Tokenize a text in pieces."""
        special, side = bool(options.add_special_tokens), options.side
        n_before, n_after = num_special if special else (0, 0)
        around, held = list[Columns](), deque[Columns]()
        n_held = n_own = n_words = 0
        whole = most is None or side == "left" or options.exact
        pieces = _pieces(text)
        while some := list(islice(pieces, _PIECES_AT_ONCE if whole else 1)):
            raws = self._tokenizer.encode_batch([piece for _, piece in some], add_special_tokens=special)
            for (first, _), raw in zip(some, raws, strict=True):
                n_piece = len(raw) - n_before - n_after
                n_own += n_piece
                if around and most is not None and side == "right" and n_held >= most:
                    continue
                columns = joined_columns(raw, len(text))
                own = columns[n_before : n_before + n_piece]
                around = around or [columns[:n_before], columns[n_before + n_piece :]]
                own[:, OFFSETS] += first
                own[:, WORD] += n_words
                n_words = int(own[:, WORD].max(initial=n_words - 1)) + 1
                held.append(own)
                n_held += n_piece
                while most is not None and side == "left" and len(held) > 1 and n_held - len(held[0]) >= most:
                    n_held -= len(held.popleft())
            if not whole and most is not None and n_own > most:
                break
        kept = list(held)
        if most is not None:
            joined = np.concatenate(kept)
            kept = [joined[:most] if side == "right" else joined[max(0, len(joined) - most) :]]
        before, after = around
        columns = np.concatenate([before, *kept, after])
        n_missing = len(before) + n_own + len(after) - len(columns)
        return JoinedEncoding(columns, self._tokenizer.id_to_token, n_missing)


def _around(tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Return the number of special tokens before and after a text; None if pieces of a text might have other tokens.

    Only for BERT's normalizer, pre-tokenizer and WordPiece it is known that they have the same. They read one character
    at a time, then one word, and a word ends before a space, a tab or the end of a line. The library first searches
    added tokens, so an added token must not hold a space, or take the spaces beside it (``lstrip``, ``rstrip``).
    """
    normalizer, processor = tokenizer.normalizer, tokenizer.post_processor
    kinds = tuple(type(part).__name__ for part in (normalizer, tokenizer.pre_tokenizer, tokenizer.model))
    if kinds != ("BertNormalizer", "BertPreTokenizer", "WordPiece"):
        return None
    if type(processor).__name__ not in ("NoneType", "TemplateProcessing", "BertProcessing"):
        return None  # other post-processors change the offsets of tokens
    sequences = tokenizer.encode("a").sequence_ids
    n_own = sequences.count(0)
    n_before = sequences.index(0) if n_own else 0
    if sequences[n_before : n_before + n_own] != [0] * n_own or not n_own:
        return None  # the special tokens are not before and after the text
    tokens = list(tokenizer.get_added_tokens_decoder().values())
    added = [token.content for token in tokens]
    added += [normalizer.normalize_str(token.content) for token in tokens if token.normalized]
    if any(token.lstrip or token.rstrip for token in tokens) or any(
        not form or re.search(r"\s", form) for form in added
    ):
        return None
    return n_before, len(sequences) - n_before - n_own


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yield the pieces of a text, each with the index of its first character."""
    first = 0
    while first < len(text):
        end = len(text)
        if end - first > LONG_TEXT:
            found = _LAST_CUT.match(text, first, first + LONG_TEXT)
            if found:
                end = found.end()
            elif later := _NEXT_CUT.search(text, first + LONG_TEXT):
                end = later.start()
        _refuse_huge(text[first:end])
        yield first, text[first:end]
        first = end


def _refuse_huge(text: Any) -> None:
    """Refuse what must be tokenized whole if it is so long that the library could take all memory."""
    size = sum(map(len, strings(text)))
    if size > _MOST_CHARACTERS:
        raise ValueError(
            f"it has {size:,} characters that cannot be cut. Words, pairs, lists of words, and the texts of some "
            f"tokenizers can only be tokenized whole, up to {_MOST_CHARACTERS:,} characters; split it first."
        )
