"""Call the `tokenizers` library: texts -> raw encodings. A long text is tokenized in pieces.

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
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert._utils.system import is_forked
from minibert.tokenizer.encodings import OFFSETS, WORD, Columns, JoinedEncoding, RawEncoding, RawOptions, columns_of
from minibert.tokenizer.library_files import is_library_error, library_errors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LONG_TEXT = 2**14
"""Characters of a piece; a shorter text is never cut."""

_PIECES_AT_ONCE = 4  # the library tokenizes them in parallel threads
_CHARACTERS_PER_TOKEN = 8  # English has 4 to 5, with its spaces
_GROWTH = 8  # how much more of a text is read, if what was read has too few tokens

# A text is cut before a space. The first pattern matches up to the last cut.
_LAST_CUT = re.compile(r"(?s:.+)(?=[ \t\n\r])")
_NEXT_CUT = re.compile(r"(?=[ \t\n\r])")


class RawEncoder:
    """Calls the library's tokenizer; any number of threads may use one object at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @functools.cached_property
    def around(self) -> tuple[int, int] | None:
        """The number of special tokens before and after a text; None if pieces of a text might have other tokens.

        Only for BERT's normalizer, pre-tokenizer and WordPiece it is known that they have the same. They read one
        character at a time, then one word, and a word ends before a space, a tab or the end of a line. The library
        first searches added tokens, so an added token must not hold a space, or take the spaces beside it (``lstrip``,
        ``rstrip``).
        """
        tokenizer = self._tokenizer
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
        if any(t.lstrip or t.rstrip for t in tokens) or any(not form or re.search(r"\s", form) for form in added):
            return None
        return n_before, len(sequences) - n_before - n_own

    def num_read(self, text: Any, options: RawOptions, most: int) -> int:
        """Return how many characters of a text, or of a pair, are read first."""
        return _count_characters(self._part(text, options, most)[1])

    def _part(self, text: Any, options: RawOptions, most: int | None, growth: int = 1) -> tuple[int | None, Any]:
        """Return the part of a text, or of a pair, that should have more than `most` tokens; without `most` all of it.

        It ends (with side="left" begins) where the rest does not change its tokens. Before it is the index of its first
        character if it is to be tokenized in pieces, else None.
        """
        paired = isinstance(text, tuple)
        last: Any = text[1] if paired else text
        size = len(last) if most is None or options.exact else _CHARACTERS_PER_TOKEN * (most + 1) * growth
        if options.is_split_into_words or len(last) <= min(size, LONG_TEXT) or self.around is None:
            return None, text
        if options.side == "right" or paired:
            end = _end_of_piece(last, 0, size) if options.side == "right" else len(last)
            return (None, (text[0], last[:end])) if paired else (0 if end > LONG_TEXT else None, last[:end])
        match = _LAST_CUT.match(last, 0, len(last) - size)
        start = match.end() if match else 0
        return start, last[start:]

    def encode(self, inputs: list[Any], options: RawOptions, most: int | None = None) -> Sequence[RawEncoding]:
        """Tokenize texts, pairs, or lists of words; of a long text at least `most` of its tokens, default all.

        Raises
        ------
        ValueError
            A text cannot be tokenized; the message names its index.
        """
        try:
            return self._encode(inputs, options, most)
        except BaseException as reason:
            if not is_library_error(reason):
                raise
        # The library does not say which text failed, so each one is tried alone.
        raw_encodings: list[RawEncoding] = []
        for index, text in enumerate(inputs):
            with library_errors(ValueError, f"text {index} cannot be tokenized"):
                raw_encodings += self._encode([text], options, most)
        return raw_encodings

    def _encode(self, inputs: list[Any], options: RawOptions, most: int | None, growth: int = 1) -> list[RawEncoding]:
        """Tokenize texts; with ``exact=False`` first a part of each, and more of those with too few tokens in it."""
        parts = [self._part(text, options, most, growth) for text in inputs]
        at_once = iter(self._encode_at_once([part for start, part in parts if start is None], options))
        raws = [next(at_once) if start is None else self._joined(start, part, options, most) for start, part in parts]
        for i, (text, (_, part)) in enumerate(zip(inputs, parts, strict=True)):
            size = _count_characters(text)
            if most is not None and _count_characters(part) < size and not _is_enough(raws[i], most, text):
                (raw,) = self._encode([text], options, most, _GROWTH * growth)
                joined = isinstance(raw, JoinedEncoding)  # it takes less memory
                raws[i] = raw if joined else JoinedEncoding(columns_of(raw, size), self._tokenizer.id_to_token)
        return raws

    def _encode_at_once(self, inputs: list[Any], options: RawOptions) -> Sequence[RawEncoding]:
        """Tokenize texts, pairs, or lists of words whole."""
        for text in inputs:
            _refuse_huge(text, options)
        is_split, special = bool(options.is_split_into_words), bool(options.add_special_tokens)
        if is_forked():  # encode_batch would wait for the threads of the parent
            pairs = [text if isinstance(text, tuple) else (text, None) for text in inputs]
            return [self._tokenizer.encode(first, second, is_split, special) for first, second in pairs]
        return self._tokenizer.encode_batch(inputs, is_split, special)

    def _joined(self, start: int, text: str, options: RawOptions, most: int | None) -> JoinedEncoding:
        """Tokenize a text in pieces; `start` is the index of its first character, for the offsets."""
        special, side = bool(options.add_special_tokens), options.side
        n_before, n_after = self.around if special and self.around else (0, 0)
        around, held = list[Columns](), deque[Columns]()
        n_held = n_own = n_words = 0
        pieces = _pieces(text)
        while chunk := list(islice(pieces, _PIECES_AT_ONCE)):
            raws = self._encode_at_once([piece for _, piece in chunk], options)
            for (first, _), raw in zip(chunk, raws, strict=True):
                n_piece = len(raw) - n_before - n_after
                n_own += n_piece
                if around and most is not None and side == "right" and n_held >= most:
                    continue
                columns = columns_of(raw, start + len(text))
                own = columns[n_before : n_before + n_piece]
                around = around or [columns[:n_before], columns[n_before + n_piece :]]
                own[:, OFFSETS] += start + first
                own[:, WORD] += n_words
                n_words = int(own[:, WORD].max(initial=n_words - 1)) + 1
                held.append(own)
                n_held += n_piece
                while most is not None and side == "left" and len(held) > 1 and n_held - len(held[0]) >= most:
                    n_held -= len(held.popleft())
        kept = list(held)
        if most is not None:
            joined = np.concatenate(kept)
            kept = [joined[:most] if side == "right" else joined[max(0, len(joined) - most) :]]
        before, after = around
        columns = np.concatenate([before, *kept, after])
        return JoinedEncoding(columns, self._tokenizer.id_to_token, len(before) + n_own + len(after) - len(columns))


def _is_enough(raw: RawEncoding, most: int, text: Any) -> bool:
    """Return whether the part of a text, or of a pair, has the `most` tokens that are kept of the whole.

    The longer text of a pair is cut first. If the first one is not longer than the part of the second, the rest of the
    second changes nothing.
    """
    sequences = raw.sequence_ids
    first, second = sequences.count(0), sequences.count(1)
    total = first + second + (raw.n_missing if isinstance(raw, JoinedEncoding) else 0)
    return total > most and (first <= second or not isinstance(text, tuple))


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yield the pieces of a text, each with the index of its first character."""
    first = 0
    while first < len(text):
        end = _end_of_piece(text, first, LONG_TEXT)
        yield first, text[first:end]
        first = end


def _end_of_piece(text: str, first: int, size: int) -> int:
    """Return the index at which a piece of a text ends: the last cut within `size` characters, else the next one."""
    if len(text) - first <= size:
        return len(text)
    if match := _LAST_CUT.match(text, first, first + size):
        return match.end()
    later = _NEXT_CUT.search(text, first + size)
    return later.start() if later else len(text)


def _count_characters(text: Any) -> int:
    return len(text) if isinstance(text, str) else sum(map(_count_characters, text))


def _refuse_huge(text: Any, options: RawOptions) -> None:
    """Refuse what must be tokenized whole if it is so long that the library could take all memory."""
    size = _count_characters(text)
    if size > options.most_characters:
        raise ValueError(
            f"it has {size:,} characters that cannot be cut. Words, pairs, lists of words, and the texts of some "
            f"tokenizers can only be tokenized whole, up to {options.most_characters:,} characters; split it first."
        )
