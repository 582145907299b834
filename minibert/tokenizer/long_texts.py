"""Long texts -> their tokens. A text is tokenized in pieces; the tokens are those of the whole text.

The `tokenizers` library takes 80 to 600 bytes for each character of a text, so a line of a corpus could take all of the
memory. A text is therefore cut where this changes no token, and the tokens are kept in arrays. A piece that is not
needed is not tokenized.
"""

from __future__ import annotations

import dataclasses
import re
import string
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from minibert.tokenizer.encodings import OFFSETS, WORD, Columns, JoinedEncoding, RawEncoding, joined_columns

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["LONG_TEXT", "LongTexts"]

LONG_TEXT = 2**14
"""Characters of a piece; a shorter text is never cut."""

_PIECES_AT_ONCE = 4  # the library tokenizes them in parallel threads

_SPACES = r"(?=[ \t\n\r])"
# The library's BertPreTokenizer makes each of these a token, with any character beside it. "_" is left out, because an
# added token with single_word treats it as a letter.
_ASCII_PUNCTUATION = frozenset(string.punctuation)
_PUNCTUATION = _ASCII_PUNCTUATION - {"_"} | frozenset("。、！，：；？")
_CHINESE = "\u3400-\u4dbf\u4e00-\u9fff"

# A word of more than `_LONG_WORD` characters is shortened before the library reads it; its ends keep `_WORD_END` each.
_LONG_WORD, _WORD_END = 2**16, 2**12


@dataclasses.dataclass(frozen=True)
class _Rule:
    """The indices at which a text may be cut, and the tokens that the library's tokenizer puts around it.

    Parameters
    ----------
    last_cuts : tuple of Pattern
        Each matches up to the last cut of its kind. The first pattern that matches is used.
    next_cut : Pattern
        Finds the first cut of any kind.
    n_before, n_after : int
        Special tokens before and after a text.
    longest : int
        A word of more characters becomes the unknown token. No added token has more.
    shortens : bool
        Whether very long words may be shortened.
    """

    last_cuts: tuple[re.Pattern[str], ...]
    next_cut: re.Pattern[str]
    n_before: int
    n_after: int
    longest: int
    shortens: bool


class LongTexts:
    """A tokenizer of one text at a time, in pieces.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer

    Attributes
    ----------
    possible : bool
        Whether texts can be cut; see `_rule_of`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rule = _rule_of(tokenizer)
        self.possible = self._rule is not None

    def last_cut(self, text: str) -> int | None:
        """Return the last index at which a text can be cut, with any text after it; None if none is near its end."""
        return None if self._rule is None else _last_cut(self._rule, text, max(0, len(text) - LONG_TEXT), len(text))

    def encode(
        self, text: str, *, add_special_tokens: bool, most: int | None = None, side: str = "right", exact: bool = True
    ) -> JoinedEncoding:
        """Tokenize a text; call this only if it is `possible`.

        Parameters
        ----------
        text : str
        add_special_tokens : bool
        most : int, optional
            Tokens of the text to keep; default: all.
        side : {"right", "left"}
            The end of the text where tokens are omitted.
        exact : bool
            Count all omitted tokens. If False, the text is read only as far as needed, and `n_missing` is at least 1.
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
        """Yield the first character of each piece, the characters left out of it, and its encoding."""
        assert self._rule is not None
        cut = _cut(self._rule, text)
        while some := list(islice(cut, at_once)):
            shortened = [_shorten_word(self._tokenizer, self._rule, piece) for _, piece in some]
            raws = self._tokenizer.encode_batch(
                [piece for piece, _ in shortened], add_special_tokens=add_special_tokens
            )
            for (first, _), (_, joint), raw in zip(some, shortened, raws, strict=True):
                yield first, joint, raw


@dataclasses.dataclass(frozen=True)
class _Joint:
    """The characters left out of a piece: the index of the first one, and how many they are."""

    first: int = 0
    n_left_out: int = 0


def _move(own: Columns, first: int, joint: _Joint, n_words: int) -> None:
    """Change the offsets and word indices of a piece into those of the text, in place."""
    offsets = own[:, OFFSETS]
    offsets += first + joint.n_left_out * (offsets > joint.first)
    own[:, WORD] += n_words


# --- where a text is cut ----------------------------------------------------------------------------------------------


def _rule_of(tokenizer: Tokenizer) -> _Rule | None:
    """Return the rule for cutting texts so that the pieces have the tokens of the whole; None if there is no rule.

    A rule is known only for BERT's normalizer, pre-tokenizer and WordPiece. They read one character at a time, then one
    word. (The normalizer sorts accents that follow each other, but never across a space or a punctuation mark.) So a
    text can be cut

    - before a space, a tab or the end of a line, because words end there;
    - after a punctuation mark, because it is a word;
    - after a Chinese character, if the normalizer puts spaces around it, because it is then a word.

    The library first searches added tokens, in the text or in the normalized text. They may be anywhere in a word. So
    an added token must not hold a space. No cut follows a punctuation mark that an added token holds, nor any Chinese
    character if an added token holds one. The flags of added tokens add these conditions:

    - ``lstrip``: the token takes all spaces before it, also spaces that the normalizer made, and spaces between which
      it removed something. Then a cut before a space must follow an ASCII letter or digit, and no cut follows a Chinese
      character.
    - ``rstrip``: the token takes the spaces after it. Then no text is cut.
    - ``single_word``: the token depends on the letter beside it, and a Chinese character is a letter. Then no cut
      follows a Chinese character.
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
    if any(token.rstrip for token in tokens) or any(not form or re.search(r"\s", form) for form in added):
        return None
    in_tokens = {character for form in added for character in form}
    after = "".join(map(re.escape, sorted(_PUNCTUATION - in_tokens)))
    if normalizer.handle_chinese_chars and not any(token.single_word or token.lstrip for token in tokens):
        chinese = re.compile(f"[{_CHINESE}]")
        after += "" if any(chinese.match(character) for character in in_tokens) else _CHINESE
    spaces = rf"(?<=[0-9A-Za-z]){_SPACES}" if any(token.lstrip for token in tokens) else _SPACES
    kinds_of_cuts = [spaces, f"(?<=[{after}])"] if after else [spaces]
    return _Rule(
        last_cuts=tuple(re.compile(f"(?s:.+){kind}") for kind in kinds_of_cuts),
        next_cut=re.compile("|".join(kinds_of_cuts)),
        n_before=n_before,
        n_after=len(sequences) - n_before - n_own,
        longest=max([tokenizer.model.max_input_chars_per_word, *map(len, added)]),
        shortens=all(not _ASCII_PUNCTUATION.isdisjoint(form) for form in added),
    )


def _cut(rule: _Rule, text: str) -> Iterator[tuple[int, str]]:
    """Yield the pieces of a text, each with the index of its first character."""
    first = 0
    while len(text) - first > LONG_TEXT:
        end = _last_cut(rule, text, first, first + LONG_TEXT)
        if end is None:
            found = rule.next_cut.search(text, first + LONG_TEXT)
            end = found.start() if found else len(text)
        yield first, text[first:end]
        first = end
    if first < len(text):
        yield first, text[first:]


def _last_cut(rule: _Rule, text: str, first: int, last: int) -> int | None:
    """Return the last index after `first`, up to `last`, at which the text can be cut; None if there is none."""
    for pattern in rule.last_cuts:
        if found := pattern.match(text, first, last):
            return found.end()
    return None


def _shorten_word(tokenizer: Tokenizer, rule: _Rule, piece: str) -> tuple[str, _Joint]:
    """Leave out the middle of a very long word. With or without it, the word becomes the one unknown token.

    The library is called to check that no character of the middle separates words. On each side of the joint the kept
    part must be longer than words and added tokens may be. An added token cannot be in the middle, because each one
    holds punctuation.
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
