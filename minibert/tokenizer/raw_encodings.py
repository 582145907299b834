"""Texts -> the encodings of the `tokenizers` library: long texts in pieces, and errors that name the text."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minibert.tokenizer.encodings import RawEncoding
from minibert.tokenizer.files import is_library_error, library_errors
from minibert.tokenizer.long_texts import LONG_TEXT, LongTexts
from minibert.tokenizer.texts import refuse_lone_surrogate, strings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["RawEncoder"]

# Limit of the characters of a text that is tokenized whole. The library takes 80 to 600 bytes for each character.
_MOST_CHARACTERS = 2**22


class RawEncoder:
    """Call the library's tokenizer; any number of threads may do so at once.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @functools.cached_property
    def long_texts(self) -> LongTexts:
        """The way in which this tokenizer's long texts are cut into pieces."""
        return LongTexts(self._tokenizer)

    def encode(
        self,
        inputs: list[Any],
        add_special_tokens: bool = True,
        is_split_into_words: bool = False,
        most: int | None = None,
        side: str = "right",
        exact: bool = True,
    ) -> Sequence[RawEncoding]:
        """Tokenize texts, pairs, or lists of words.

        Parameters
        ----------
        inputs : list of B inputs
        add_special_tokens, is_split_into_words : bool
            As in `BertTokenizer.__call__`.
        most : int, optional
            Tokens of a long text that are needed, without special tokens; default: all.
        side : {"right", "left"}
            The end of a long text whose tokens are not needed.
        exact : bool
            Count the tokens that are not needed.

        Returns
        -------
        sequence of B RawEncoding

        Raises
        ------
        ValueError
            A text cannot be tokenized; the message names its index.
        """

        def encode(some: list[Any]) -> Sequence[RawEncoding]:
            return self._tokenizer.encode_batch(
                some, is_pretokenized=bool(is_split_into_words), add_special_tokens=bool(add_special_tokens)
            )

        def encode_long(text: str) -> RawEncoding:
            refuse_lone_surrogate(text, "the text")  # it may be in the part that is not read
            return self.long_texts.encode(
                text, add_special_tokens=bool(add_special_tokens), most=most, side=side, exact=exact
            )

        def encode_all(some: list[Any]) -> Sequence[RawEncoding]:
            long = {i for i, one in enumerate(some) if not isinstance(one, str) or len(one) > LONG_TEXT}
            if not long:
                return encode(some)
            if is_split_into_words or not isinstance(some[0], str) or not self.long_texts.possible:
                for one in some:
                    _refuse_huge(one)
                return encode(some)
            others = iter(encode([one for i, one in enumerate(some) if i not in long]))
            return [encode_long(one) if i in long else next(others) for i, one in enumerate(some)]

        try:
            return encode_all(inputs)
        except BaseException as reason:
            if not is_library_error(reason):
                raise
        # The library does not say which text failed, so each one is tried alone.
        raw_encodings: list[RawEncoding] = []
        for index, one in enumerate(inputs):
            for text in strings(one):
                refuse_lone_surrogate(text, f"text {index}")
            with library_errors(ValueError, f"text {index} cannot be tokenized"):
                raw_encodings += encode_all([one])
        return raw_encodings


def _refuse_huge(text: Any) -> None:
    """Refuse a text that must be tokenized whole if it is so long that the library could take all memory."""
    size = sum(map(len, strings(text)))
    if size > _MOST_CHARACTERS:
        raise ValueError(
            f"it has {size:,} characters. Pairs, lists of words, and the texts of some tokenizers can only be "
            f"tokenized whole, up to {_MOST_CHARACTERS:,} characters; split it first."
        )
