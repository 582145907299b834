"""Long texts -> their tokens, a piece of the text at a time: the tokens are those of the whole text.

The `tokenizers` library takes 80 to 600 bytes for each character of a text, so a line of a corpus could take all of the
memory. A text is therefore cut where that changes no token, and what was found is kept in arrays; a piece that is not
needed is not tokenized.
"""

from __future__ import annotations

import dataclasses
import re
import string
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from minibert.base.ordering import in_chunks
from minibert.tokenizer.encodings import PLACES, WORD, Columns, JoinedEncoding, RawEncoding, joined_columns

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["LONG_TEXT", "LongTexts"]

LONG_TEXT = 2**14
"""Characters of a piece; a shorter text is never cut."""

_PIECES_AT_ONCE = 4  # the library tokenizes them in threads of its own

_SPACES = r"(?=[ \t\n\r])"
# The library's BertPreTokenizer makes a token of each of these, whatever is beside it. "_" is left out, because it is
# a letter for an added token with single_word.
_ASCII_PUNCTUATION = frozenset(string.punctuation)
_PUNCTUATION = _ASCII_PUNCTUATION - {"_"} | frozenset("。、！，：；？")
_CHINESE = "\u3400-\u4dbf\u4e00-\u9fff"

# A word of so many characters is shortened before the library sees it; so many are left at each of its ends.
_LONG_WORD, _WORD_END = 2**16, 2**12


@dataclasses.dataclass(frozen=True)
class _Rule:
    """Where a text may be cut, and what the library's tokenizer puts around it.

    Parameters
    ----------
    last_places : tuple of Pattern
        Each matches up to the last place of its kind; the first of them that matches counts.
    next_place : Pattern
        Finds the first place of any kind.
    n_before, n_after : int
        Special tokens around a text.
    longest : int
        A word of more characters becomes the unknown token, and no added token has more.
    shortens : bool
        Whether very long words may be shortened.
    """

    last_places: tuple[re.Pattern[str], ...]
    next_place: re.Pattern[str]
    n_before: int
    n_after: int
    longest: int
    shortens: bool


class LongTexts:
    """Tokenize one text at a time, in pieces.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer

    Attributes
    ----------
    possible : bool
        Whether there are places where a text can be cut; see `_rule_of`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rule = _rule_of(tokenizer)
        self.possible = self._rule is not None

    def last_place(self, text: str) -> int | None:
        """Return the last place where a text can be cut, whatever follows it; None if there is none near its end."""
        return None if self._rule is None else _last_place(self._rule, text, max(0, len(text) - LONG_TEXT), len(text))

    def encode(
        self, text: str, *, add_special_tokens: bool, most: int | None = None, side: str = "right", exact: bool = True
    ) -> JoinedEncoding:
        """Tokenize a text; to be called only if that is `possible`.

        Parameters
        ----------
        text : str
        add_special_tokens : bool
        most : int, optional
            Tokens of the text to keep; default: all.
        side : {"right", "left"}
            The end of the text that loses the others.
        exact : bool
            Count those too. Otherwise the text is read no further than needed, and `n_missing` is at least 1.
        """
        assert self._rule is not None
        n_before, n_after = (self._rule.n_before, self._rule.n_after) if add_special_tokens else (0, 0)
        names: dict[str, int] = {}
        around, held = list[Columns](), deque[Columns]()
        n_held = n_own = n_words = 0
        whole = most is None or side == "left" or exact
        for first, joint, raw in self._pieces(text, add_special_tokens, _PIECES_AT_ONCE if whole else 1):
            n_piece = len(raw) - n_before - n_after
            n_own += n_piece
            if not around or most is None or side == "left" or n_held < most:
                columns = joined_columns(raw, names, len(text))
                own = columns[n_before : n_before + n_piece]
                around = around or [columns[:n_before], columns[n_before + n_piece :]]
                _move(own, first, joint, n_words)
                n_words = int(own[:, WORD].max(initial=n_words - 1)) + 1
                held.append(own)
                n_held += n_piece
                while most is not None and side == "left" and len(held) > 1 and n_held - len(held[0]) >= most:
                    n_held -= len(held.popleft())
            if not whole and most is not None and n_own > most:
                break
        return JoinedEncoding.join(around, list(held), most, side, n_own, tuple(names))

    def _pieces(self, text: str, add_special_tokens: bool, at_once: int) -> Iterator[tuple[int, _Joint, RawEncoding]]:
        """Yield of each piece its first character, what was left out of it, and its encoding."""
        assert self._rule is not None
        for some in in_chunks(_cut(self._rule, text), at_once):
            shortened = [_shorten_word(self._tokenizer, self._rule, piece) for _, piece in some]
            raws = self._tokenizer.encode_batch(
                [piece for piece, _ in shortened], add_special_tokens=add_special_tokens
            )
            for (first, _), (_, joint), raw in zip(some, shortened, raws, strict=True):
                yield first, joint, raw


@dataclasses.dataclass(frozen=True)
class _Joint:
    """Characters that were left out of a piece: how many, and from where on."""

    place: int = 0
    n_left_out: int = 0


def _move(own: Columns, first: int, joint: _Joint, n_words: int) -> None:
    """Make places and words of a piece those of the text, in place."""
    places = own[:, PLACES]
    places += first + joint.n_left_out * (places > joint.place)
    own[:, WORD] += n_words


# --- where a text is cut ----------------------------------------------------------------------------------------------


def _rule_of(tokenizer: Tokenizer) -> _Rule | None:
    """Say where a text can be cut so that its pieces have the tokens of the whole; None: nowhere.

    This is known of BERT's normalizer, pre-tokenizer and WordPiece only. They look at one character at a time (an
    accent is put in order among those around it, but never across a space or a punctuation mark), then at one word. So
    a text can be cut

    - before a space, a tab or the end of a line. Words end there;
    - after a punctuation mark, or a Chinese character if the normalizer puts spaces around it: each is a word.

    Added tokens are looked for first, in the text or in the normalized text, and may be anywhere in a word. So none may
    hold a space, and no place is beside a character that one holds. One with ``lstrip`` takes all the spaces before it,
    with those that the normalizer has made and those between which it has taken something out. So with such a one a
    space is a place after an ASCII letter or digit only, and a Chinese character is none; ``rstrip`` takes the spaces
    behind, and then nothing is cut. One with ``single_word`` looks at the letter beside it, and a Chinese character is
    a letter.
    """
    normalizer, processor = tokenizer.normalizer, tokenizer.post_processor
    kinds = tuple(type(part).__name__ for part in (normalizer, tokenizer.pre_tokenizer, tokenizer.model))
    if kinds != ("BertNormalizer", "BertPreTokenizer", "WordPiece"):
        return None
    if type(processor).__name__ not in ("NoneType", "TemplateProcessing", "BertProcessing"):
        return None  # others change the places of tokens
    sequences = tokenizer.encode("a").sequence_ids
    n_own = sequences.count(0)
    n_before = sequences.index(0) if n_own else 0
    if sequences[n_before : n_before + n_own] != [0] * n_own or not n_own:
        return None  # the special tokens are not around the text
    tokens = list(tokenizer.get_added_tokens_decoder().values())
    added = [token.content for token in tokens]
    added += [normalizer.normalize_str(token.content) for token in tokens if token.normalized]
    if any(token.rstrip for token in tokens) or any(not form or re.search(r"\s", form) for form in added):
        return None
    in_tokens = {character for form in added for character in form}
    after = "".join(map(re.escape, sorted(_PUNCTUATION - in_tokens)))
    if normalizer.handle_chinese_chars and not any(token.single_word or token.lstrip for token in tokens):
        chinese = re.compile(f"[{_CHINESE}]")
        after += "" if any(chinese.match(character) for character in in_tokens) else _CHINESE
    spaces = rf"(?<=[0-9A-Za-z]){_SPACES}" if any(token.lstrip for token in tokens) else _SPACES
    kinds_of_places = [spaces, f"(?<=[{after}])"] if after else [spaces]
    return _Rule(
        last_places=tuple(re.compile(f"(?s:.+){place}") for place in kinds_of_places),
        next_place=re.compile("|".join(kinds_of_places)),
        n_before=n_before,
        n_after=len(sequences) - n_before - n_own,
        longest=max([tokenizer.model.max_input_chars_per_word, *map(len, added)]),
        shortens=all(not _ASCII_PUNCTUATION.isdisjoint(form) for form in added),
    )


def _cut(rule: _Rule, text: str) -> Iterator[tuple[int, str]]:
    """Yield the pieces of a text, each with the place of its first character."""
    first = 0
    while len(text) - first > LONG_TEXT:
        place = _last_place(rule, text, first, first + LONG_TEXT)
        if place is None:
            found = rule.next_place.search(text, first + LONG_TEXT)
            place = found.start() if found else len(text)
        yield first, text[first:place]
        first = place
    if first < len(text):
        yield first, text[first:]


def _last_place(rule: _Rule, text: str, first: int, last: int) -> int | None:
    """Return the last place between two characters where the text can be cut; None if there is none."""
    for pattern in rule.last_places:
        if found := pattern.match(text, first, last):
            return found.end()
    return None


def _shorten_word(tokenizer: Tokenizer, rule: _Rule, piece: str) -> tuple[str, _Joint]:
    """Leave out the middle of a very long word, which has one token, the unknown one, with its middle or without.

    The library itself says that no character of the middle parts words. What is left on either side of the joint has
    to be longer than words and added tokens may be. An added token cannot be in the middle, because each one holds
    punctuation.
    """
    end = _WORD_END
    if len(piece) <= _LONG_WORD or not rule.shortens:
        return piece, _Joint()
    normalize = tokenizer.normalizer.normalize_str
    characters = "a".join(["", *sorted(set(piece[end:-end])), ""])
    if len(tokenizer.pre_tokenizer.pre_tokenize_str(normalize(characters))) != 1:
        return piece, _Joint()
    sides = piece[end : 2 * end], piece[-2 * end : -end]
    if min(len(normalize(side)) for side in sides) <= rule.longest:
        return piece, _Joint()
    return piece[: 2 * end] + piece[-2 * end :], _Joint(2 * end, len(piece) - 4 * end)
