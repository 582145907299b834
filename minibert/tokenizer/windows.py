"""Texts -> windows of tokens that fit into the model, a bounded number of texts at a time; truncation is counted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from minibert._utils.validation import FloatArray, brief, check_choice, check_int
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.long_texts import LONG_TEXT
from minibert.tokenizer.texts import refuse_lone_surrogate

__all__ = ["CHARACTERS_AT_ONCE", "TRUNCATION", "TextInfo", "TokenWindows", "check_inputs", "count_tokens"]

TRUNCATION = ("warn", "error", "split", "silent")
"""Treatment of a text that is too long: truncate it and warn, raise, cut it into windows, or truncate it silently."""

CHARACTERS_AT_ONCE = 2**16
"""Limit of the characters tokenized together; the library takes some hundred bytes for each token of its encodings."""


@dataclasses.dataclass(frozen=True)
class TextInfo:
    """The number of tokens of one text, and the windows that hold them.

    Parameters
    ----------
    n_tokens : int
        Tokens of the whole text, with its prompt and the special tokens.
    n_truncated : int
        How many of them were truncated; 0 if the vector is that of the whole text.
    windows : tuple of (int, int)
        The characters of the text that each window holds: the first, and the one after the last. There is one window,
        unless the text was split.
    """

    n_tokens: int
    n_truncated: int
    windows: tuple[tuple[int, int], ...]


class TokenWindows:
    """A tokenizer of texts, some at a time, into windows. A text has one window, unless it is split.

    Parameters
    ----------
    tokenizer : BertTokenizer
    prompt : str
        Put before every text, and into every window.
    max_length : int
        Tokens of a window, special tokens and those of the prompt included.
    truncation : {"warn", "error", "split", "silent"}
        With "warn" the caller must warn.
    stride : int
        Tokens that a window repeats from the window before it, for "split".
    texts_at_once : int
        The most texts that are tokenized together; fewer if they are long.

    Attributes
    ----------
    num_prompt_tokens : int
        Tokens before those of the text if there is a prompt, [CLS] included, as sentence-transformers counts them; 0
        without a prompt.
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        *,
        prompt: str,
        max_length: int,
        truncation: str,
        stride: int,
        texts_at_once: int,
    ) -> None:
        check_choice("truncation", truncation, TRUNCATION)
        stride = check_int("stride", stride, 0)
        if stride and truncation != "split":
            raise ValueError(
                f"stride={brief(stride)} overlaps windows; it needs truncation='split', not {truncation!r}."
            )
        refuse_lone_surrogate(prompt, "prompt")
        self._tokenizer, self._prompt, self._texts_at_once = tokenizer, prompt, texts_at_once
        self._max_length, self._truncation, self._stride = max_length, truncation, stride
        self.num_prompt_tokens = 0
        self._full: Encoding | None = None
        if prompt:
            encoding = tokenizer.encodings([prompt], max_length=max_length, exact=False)[0]
            self.num_prompt_tokens = len(encoding) - int(encoding.special_tokens_mask[-1])
            if len(prompt) > LONG_TEXT and truncation != "split" and tokenizer.truncation_side == "right":
                self._full = self._full_encoding_of_prompt()

    def of(
        self, texts: Sequence[str], indices: Sequence[int], *, exact: bool = True
    ) -> Iterator[tuple[slice, list[list[Encoding]]]]:
        """Yield the slice of some of the texts, and the windows of each.

        Parameters
        ----------
        texts : sequence of str
            Already checked by `check_inputs`.
        indices : sequence of int
            The caller's index of each text, for messages.
        exact : bool
            Count all truncated tokens. If False, a long text is read only as far as needed, and `n_truncated` of a
            truncated text is at least 1. With truncation="error" all are counted.

        Raises
        ------
        ValueError
            A text is too long with truncation="error", or a window has no room for its tokens.
        """
        first = 0
        while first < len(texts):
            last, characters = first + 1, len(self._prompt) + len(texts[first])
            while last < min(first + self._texts_at_once, len(texts)):
                characters += len(self._prompt) + len(texts[last])
                if characters > CHARACTERS_AT_ONCE:
                    break
                last += 1
            yield slice(first, last), self._tokenize(list(texts[first:last]), indices[first:last], exact)
            first = last

    def describe(self, windows: Sequence[Encoding]) -> TextInfo:
        """Return the `TextInfo` of a text that has these windows."""
        n_tokens, n_truncated = count_tokens(windows)
        return TextInfo(n_tokens, n_truncated, tuple(map(self._span, windows)))

    def average(self, vectors: FloatArray, groups: Sequence[Sequence[Encoding]]) -> FloatArray:
        """Average the vectors of each text's windows, weighted by its tokens in each: (windows, W) -> (B, W).

        Special tokens and the prompt's tokens are not counted. A text of one window keeps its vector, bit for bit.
        """
        averaged = np.empty((len(groups), vectors.shape[1]), dtype=np.float32)
        first = 0
        for b, group in enumerate(groups):
            of_windows = vectors[first : first + len(group)]
            if len(group) == 1:
                averaged[b] = of_windows[0]
            else:
                weights = np.array([self._is_text(window).sum() for window in group], dtype=np.float64)
                averaged[b] = (weights[:, None] * of_windows).sum(axis=0) / weights.sum()
            first += len(group)
        return averaged

    def _tokenize(self, texts: list[str], indices: Sequence[int], exact: bool) -> list[list[Encoding]]:
        if self._truncation == "split":
            try:
                return self._tokenizer.windows(
                    texts, max_length=self._max_length, stride=self._stride, prompt=self._prompt
                )
            except ValueError as error:
                raise ValueError(f"truncation='split', inputs from index {min(indices)}: {error}") from error
        exact = exact or self._truncation == "error"  # its message says how many
        if self._full is not None:
            encodings = [self._encode_after_prompt(self._full, text, exact) for text in texts]
        else:
            whole = [self._prompt + text for text in texts]
            encodings = self._tokenizer.encodings(whole, max_length=self._max_length, exact=exact)
        if self._truncation == "error":
            cut = [
                (index, encoding) for index, encoding in zip(indices, encodings, strict=True) if encoding.n_truncated
            ]
            if cut:
                index, encoding = min(cut, key=lambda one: one[0])
                raise ValueError(
                    f"inputs[{index}] has {self._max_length + encoding.n_truncated} tokens, the limit is "
                    f"{self._max_length} (max_seq_length). Shorten it, or choose: truncation='warn' truncates it, "
                    "'split' makes several windows of it."
                )
        return [[encoding] for encoding in encodings]

    def _full_encoding_of_prompt(self) -> Encoding | None:
        """Return the tokens of a long prompt if no text after it can change them; None if a text might."""
        self._head = self._tokenizer.last_cut(self._prompt) or 0
        encoding = self._tokenizer.encodings([self._prompt[: self._head]], max_length=self._max_length, exact=False)[0]
        return encoding if encoding.n_truncated else None

    def _encode_after_prompt(self, full: Encoding, text: str, exact: bool) -> Encoding:
        """Return the encoding of a text after a prompt that leaves no room for it: that of the prompt."""
        if not exact:
            return full
        n_special = self._tokenizer.num_special_tokens_to_add()
        n_tokens = self._n_head_tokens + self._count(self._prompt[self._head :] + text) - n_special
        return dataclasses.replace(full, n_truncated=n_tokens - len(full))

    @functools.cached_property
    def _n_head_tokens(self) -> int:
        return self._count(self._prompt[: self._head])

    def _count(self, text: str) -> int:
        encoding = self._tokenizer.encodings([text], max_length=self._max_length)[0]
        return len(encoding) + encoding.n_truncated

    def _span(self, window: Encoding) -> tuple[int, int]:
        offsets = window.offsets[self._is_text(window)] - len(self._prompt)
        return (max(0, int(offsets[:, 0].min())), int(offsets[:, 1].max())) if len(offsets) else (0, 0)

    def _is_text(self, window: Encoding) -> np.ndarray:
        return (window.special_tokens_mask == 0) & (window.offsets[:, 1] > len(self._prompt))


def check_inputs(texts: Sequence[str], first: int = 0, name: str = "inputs") -> None:
    """Raise for values that are not a str, and for lone surrogates.

    Parameters
    ----------
    texts : sequence
    first : int
        The caller's index of `texts[0]`, for messages.
    name : str
        The caller's name of the texts, for messages.

    Raises
    ------
    TypeError, ValueError
        The message names the index.
    """
    for index, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{index}] is a {type(text).__name__}; expected a str.")
        refuse_lone_surrogate(text, f"{name}[{index}]")


def count_tokens(windows: Sequence[Encoding]) -> tuple[int, int]:
    """Count the tokens of a text that has these windows, and how many of them were truncated."""
    n_truncated = windows[0].n_truncated
    return len(windows[0]) + n_truncated, n_truncated if len(windows) == 1 else 0
