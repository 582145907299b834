"""Texts -> windows of tokens that fit into the model, a bounded number of texts at a time; what is cut is counted."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from minibert.encodings import Encoding
from minibert.ops import FloatArray
from minibert.texts import refuse_lone_surrogate
from minibert.tokenizer import BertTokenizer

__all__ = ["TRUNCATION", "TextInfo", "TokenWindows"]

TRUNCATION = ("warn", "error", "split", "silent")
"""What to do with a text that is too long: cut it and say so, refuse it, make several windows of it, or cut it."""


@dataclasses.dataclass(frozen=True)
class TextInfo:
    """What became of one text.

    Parameters
    ----------
    n_tokens : int
        Tokens of the whole text, with its prompt and the special tokens.
    n_truncated : int
        How many of them were cut off; 0 says that the vector stands for the whole text.
    windows : tuple of (int, int)
        The characters of the text that each window holds: first, and the one after the last. One window, unless the
        text was split.
    """

    n_tokens: int
    n_truncated: int
    windows: tuple[tuple[int, int], ...]


class TokenWindows:
    """Iterate over texts, some at a time: their place, and for each text its windows (one, unless they are split).

    Parameters
    ----------
    tokenizer : BertTokenizer
    texts : sequence of str
        Each is checked when its turn comes.
    prompt : str
        Put before every text, and into every window.
    max_length : int
        Tokens of a window, special ones and the prompt's included.
    truncation : {"warn", "error", "split", "silent"}
        The warning itself is the caller's: see `cut`.
    stride : int
        Tokens that a window repeats from the one before, for "split".
    texts_at_once : int
    with_info : bool
        Keep a `TextInfo` of each text.
    show_progress : bool
        Count the texts on the standard error.

    Attributes
    ----------
    cut : list of int
        Texts that were cut so far.
    info : list of TextInfo
    num_prompt_tokens : int
        Tokens that stand before the text's own where there is a prompt, [CLS] included, as sentence-transformers
        counts them; 0 without a prompt.
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        texts: Sequence[str],
        *,
        prompt: str,
        max_length: int,
        truncation: str,
        stride: int,
        texts_at_once: int,
        with_info: bool,
        show_progress: bool,
    ) -> None:
        if truncation not in TRUNCATION:
            raise ValueError(f"truncation={truncation!r}; expected one of {', '.join(map(repr, TRUNCATION))}.")
        if isinstance(stride, bool) or not isinstance(stride, int | np.integer) or stride < 0:
            raise ValueError(f"stride={stride!r}; expected a number of tokens, at least 0.")
        if stride and truncation != "split":
            raise ValueError(f"stride={stride} overlaps windows; it needs truncation='split', not {truncation!r}.")
        refuse_lone_surrogate(prompt, "prompt")
        self._tokenizer, self._texts, self._prompt = tokenizer, texts, prompt
        self._max_length, self._truncation, self._stride = max_length, truncation, int(stride)
        self._texts_at_once, self._with_info, self._show_progress = texts_at_once, with_info, show_progress
        self.cut: list[int] = []
        self.info: list[TextInfo] = []
        self.num_prompt_tokens = 0
        if prompt:
            encoding = tokenizer.encodings([prompt], max_length=max_length)[0]
            self.num_prompt_tokens = len(encoding) - int(encoding.special_tokens_mask[-1])

    def __iter__(self) -> Iterator[tuple[slice, list[list[Encoding]]]]:
        """Yield the place of some texts, and the windows of each."""
        for first in range(0, len(self._texts), self._texts_at_once):
            texts = list(self._texts[first : first + self._texts_at_once])
            for index, text in enumerate(texts, first):
                if not isinstance(text, str):
                    raise TypeError(f"inputs[{index}] is a {type(text).__name__}; expected a str.")
                refuse_lone_surrogate(text, f"inputs[{index}]")
            windows = self._tokenize(texts, first)
            if self._with_info:
                self.info += map(self._describe, windows)
            yield slice(first, first + len(texts)), windows
            if self._show_progress and sys.stderr is not None:
                done = first + len(texts)
                end = "\n" if done == len(self._texts) else ""
                print(f"\r{done} of {len(self._texts)} texts", end=end, file=sys.stderr, flush=True)  # noqa: T201

    def average(self, vectors: FloatArray, groups: Sequence[Sequence[Encoding]]) -> FloatArray:
        """Average the vectors of each text's windows, weighted by its tokens in each: (windows, W) -> (B, W).

        Neither special tokens nor the prompt's are counted. A text of one window keeps its vector, bit for bit.
        """
        averaged = np.empty((len(groups), vectors.shape[1]), dtype=np.float32)
        first = 0
        for b, group in enumerate(groups):
            own = vectors[first : first + len(group)]
            if len(group) == 1:
                averaged[b] = own[0]
            else:
                weights = np.array([self._own(window).sum() for window in group], dtype=np.float64)
                averaged[b] = (weights[:, None] * own).sum(axis=0) / weights.sum()
            first += len(group)
        return averaged

    def _tokenize(self, texts: list[str], first: int) -> list[list[Encoding]]:
        if self._truncation == "split":
            try:
                return self._tokenizer.windows(
                    texts, max_length=self._max_length, stride=self._stride, prompt=self._prompt
                )
            except ValueError as error:
                raise ValueError(f"truncation='split', inputs from index {first}: {error}") from error
        encodings = self._tokenizer.encodings([self._prompt + text for text in texts], max_length=self._max_length)
        cut = [index for index, encoding in enumerate(encodings) if encoding.n_truncated]
        if cut and self._truncation == "error":
            tokens = self._max_length + encodings[cut[0]].n_truncated
            raise ValueError(
                f"inputs[{first + cut[0]}] has {tokens} tokens, the limit is {self._max_length} (max_seq_length). "
                "Shorten it, or say what to do: truncation='warn' cuts it, 'split' makes several windows of it."
            )
        self.cut += [first + index for index in cut]
        return [[encoding] for encoding in encodings]

    def _describe(self, windows: list[Encoding]) -> TextInfo:
        n_tokens = len(windows[0]) + windows[0].n_truncated
        n_truncated = windows[0].n_truncated if len(windows) == 1 else 0
        return TextInfo(n_tokens, n_truncated, tuple(map(self._span, windows)))

    def _span(self, window: Encoding) -> tuple[int, int]:
        offsets = window.offsets[self._own(window)] - len(self._prompt)
        return (max(0, int(offsets[:, 0].min())), int(offsets[:, 1].max())) if len(offsets) else (0, 0)

    def _own(self, window: Encoding) -> np.ndarray:
        return (window.special_tokens_mask == 0) & (window.offsets[:, 1] > len(self._prompt))
