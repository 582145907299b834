"""Texts -> windows of tokens that fit into the model, some texts at a time. Truncated tokens are counted."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, TypeVar

import numpy as np

from minibert._utils.validation import FloatArray, IntArray, brief, check_choice, check_int
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_text, check_texts
from minibert.tokenizer.too_long import SPLIT_HINT, TRUNCATIONS, TRUNCATIONS_WITHOUT_SPLIT, TooLong

Item = TypeVar("Item")


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
        How many of them were truncated; 0 if the vector is made of the whole text.
    windows : tuple of (int, int)
        The characters of the text that each window holds: the first, and the one after the last. There is one window,
        unless the text was split.
    spans : tuple of (int, int)
        The characters of each sentence, for ``spans="sentences"``; else empty.
    """

    n_tokens: int
    n_truncated: int
    windows: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(eq=False)
class TokenWindows:
    """Tokenizes some texts at a time into windows. A text has one window unless it is split.

    Parameters
    ----------
    tokenizer : BertTokenizer
    prompt : str
        Put before every text, and into every window.
    max_length : int
        Tokens of a window, including special tokens and the prompt's tokens.
    truncation : {"warn", "error", "split", "silent"}
        With "warn" the caller must warn.
    stride : int
        Tokens that a window repeats from the window before it, for "split".
    at_once : int
        The most texts that are tokenized together; fewer if they are long.

    Attributes
    ----------
    num_prompt_tokens : int
        Tokens before the text's tokens if there is a prompt, [CLS] included, as sentence-transformers counts them; 0
        without a prompt.
    """

    tokenizer: BertTokenizer
    _: dataclasses.KW_ONLY
    prompt: str
    max_length: int
    truncation: str
    stride: int
    at_once: int

    _truncations: ClassVar[tuple[str, ...]] = TRUNCATIONS
    _things: ClassVar[str] = "texts"

    def __post_init__(self) -> None:
        check_choice("truncation", self.truncation, self._truncations)
        self.stride = check_int("stride", self.stride, 0)
        if self.stride and self.truncation != "split":
            raise ValueError(f"stride={brief(self.stride)} needs windows: truncation='split', not {self.truncation!r}.")
        check_text(self.prompt, "prompt")
        self.num_prompt_tokens = 0
        if self.prompt:
            encoding = self.tokenizer.encodings([self.prompt], max_length=self.max_length, exact=False)[0]
            self.num_prompt_tokens = len(encoding) - int(encoding.special_tokens_mask[-1:].sum())

    def too_long(self) -> TooLong:
        """Return what counts the texts of one call that are too long."""
        instead = SPLIT_HINT if "split" in self._truncations else ""
        return TooLong(self.truncation, self.max_length, self._things, instead)

    def of(
        self, texts: Sequence[Any], indices: Sequence[int], *, exact: bool = True
    ) -> Iterator[tuple[slice, list[list[Encoding]]]]:
        """Yield slices of the texts, each with the windows of the texts in it.

        Parameters
        ----------
        texts : sequence of str
            Already checked by `check_texts`.
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
        first, exact = 0, exact or self.truncation == "error"  # its message says how many
        for chunk in self.chunks(texts, exact=exact):
            part = slice(first, first := first + len(chunk))
            groups = self.groups(chunk, indices[part], exact=exact)
            cut = {i: group[0].n_truncated for i, group in zip(indices[part], groups, strict=True)}
            if self.truncation == "error" and any(cut.values()):
                index = min(index for index in cut if cut[index])
                raise self.too_long().error(f"inputs[{index}]", self.max_length + cut[index])
            self.tokenizer.warn_of_unknown(group[0] for group in groups)
            yield part, groups

    def chunks(self, texts: Iterable[Any], *, exact: bool = True) -> Iterator[list[Any]]:
        """Return lists of texts that are tokenized together."""
        if isinstance(texts, list) and len(texts) == 1:
            return iter([texts])
        whole = exact or self.truncation in ("split", "error")
        read = functools.partial(self.tokenizer.num_read, max_length=self.max_length)

        def weight(text: Any) -> int:
            return len(self.prompt) + (
                self.length(text) if whole else read(*([text] if isinstance(text, str) else text))
            )

        return in_chunks(texts, self.at_once, weight, CHARACTERS_AT_ONCE)

    def groups(self, texts: list[Any], indices: Sequence[int], *, exact: bool = True) -> list[list[Encoding]]:
        """Return the windows of each text, as `of` does; a text that is too long is cut if it is not split."""
        if self.truncation != "split":
            return [[encoding] for encoding in self._encode(texts, indices, exact)]
        try:
            return self.tokenizer.windows(texts, max_length=self.max_length, stride=self.stride, prompt=self.prompt)
        except ValueError as error:
            raise ValueError(f"truncation='split', inputs from index {min(indices)}: {error}") from error

    def distinct(self, texts: Sequence[Any], first: int, merge: bool) -> list[list[int]]:
        """Return the places of each distinct text; longest texts first, so that texts of similar length share a batch.

        Texts of one length are in the order given.

        Parameters
        ----------
        texts : sequence of B str, or of B pairs of str
        first : int
            The index of the first text in the caller's input, for errors.
        merge : bool
            False: each text is a group of its own.
        """
        self._check(texts, first)
        places: dict[Any, list[int]] = {}
        for index, text in enumerate(texts):
            places.setdefault(text if merge else index, []).append(index)
        return sorted(places.values(), key=lambda of_text: -self.length(texts[of_text[0]]))

    def _check(self, texts: Sequence[Any], first: int) -> None:
        check_texts(texts, first)

    @staticmethod
    def length(text: Any) -> int:
        """Count the characters of a text."""
        return len(text)

    def describe(self, windows: Sequence[Encoding]) -> TextInfo:
        """Return the `TextInfo` of the text that has these windows."""
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

    def members(
        self, window: Encoding, text: str, spans: Iterable[tuple[int, int]], name: str
    ) -> tuple[IntArray, IntArray]:
        """Return the tokens of each span of a text.

        A token belongs to the spans that hold its first character; white space at its start does not count. So a token
        that crosses a border belongs to the span before it. [CLS], [SEP] and the prompt belong to no span.

        Parameters
        ----------
        window : Encoding
            The only window of the text.
        text : str
        spans : iterable of (int, int)
            The first character of each span, and the one after its last.
        name : str
            The caller's name of the spans, for errors.

        Returns
        -------
        rows : int ndarray
            Indices of tokens in the window, one span after the other.
        starts : int ndarray of shape (number of spans + 1,)
            Span j has the tokens ``rows[starts[j]:starts[j + 1]]``, at least one.

        Raises
        ------
        TypeError, ValueError
            A span is not two characters of the text, has no token, or has characters that were cut off.
        """
        pieces = [(self.prompt + text)[start:end] for start, end in window.offsets]
        firsts = window.offsets[:, 1] - len(self.prompt) - [len(piece.lstrip() or piece) for piece in pieces]
        firsts[window.special_tokens_mask == 1] = -1
        first, last = 0, len(text)
        if window.n_truncated:  # a character that is not ASCII may have several tokens, some of which were cut off
            kept, left = self._span(window), self.tokenizer.truncation_side == "left"
            first = kept[0] + (not text[kept[0] :][:1].isascii()) if left else 0
            last = len(text) if left else kept[1] - (not text[: kept[1]][-1:].isascii())
        rows = [np.zeros(0, dtype=np.int64)]
        for j, span in enumerate(spans):
            try:
                start, end = map(operator.index, span)
            except (TypeError, ValueError):
                raise TypeError(f"{name}[{j}] is {brief(span)}; expected two ints: (start, end).") from None
            where = f"{name}[{j}]=({start}, {end})"
            if not 0 <= start <= end <= len(text):
                raise ValueError(f"{where}; the text has the characters 0 to {len(text)}.")
            if text[start:first].strip() or text[last:end].strip():
                raise ValueError(f"{where}; the text is too long, only its characters {first} to {last} are computed.")
            rows.append(np.flatnonzero((firsts >= start) & (firsts < end)))
            if not len(rows[-1]):
                raise ValueError(f"{where} has no token; leave it out.")
        return np.concatenate(rows), np.cumsum([len(part) for part in rows])

    def _encode(self, texts: list[Any], indices: Sequence[int], exact: bool) -> list[Encoding]:
        whole = [self.prompt + text for text in texts]
        return self.tokenizer.encodings(whole, max_length=self.max_length, exact=exact)

    def _span(self, window: Encoding) -> tuple[int, int]:
        offsets = window.offsets[self._is_text(window)] - len(self.prompt)
        return (max(0, int(offsets[:, 0].min())), int(offsets[:, 1].max())) if len(offsets) else (0, 0)

    def _is_text(self, window: Encoding) -> np.ndarray:
        return (window.special_tokens_mask == 0) & (window.offsets[:, 1] > len(self.prompt))


class WholeTexts(TokenWindows):
    """The same for texts whose tokens are all wanted: each text has one window."""

    _truncations = TRUNCATIONS_WITHOUT_SPLIT


class PairWindows(WholeTexts):
    """The same for pairs of texts; the prompt is put before the first text of each."""

    _things = "pairs"

    def _check(self, texts: Sequence[Any], first: int) -> None:
        """Check nothing, because the caller has checked the pairs."""

    @staticmethod
    def length(text: Any) -> int:
        """Count the characters of both texts; the second one may be None."""
        return len(text[0]) + len(text[1] or "")

    def _encode(self, texts: list[Any], indices: Sequence[int], exact: bool) -> list[Encoding]:
        return encode_pairs(self.tokenizer, texts, indices, self.max_length, prompt=self.prompt, exact=exact)


def count_tokens(windows: Sequence[Encoding]) -> tuple[int, int]:
    """Count the tokens of the text that has these windows, and the truncated ones among them."""
    n_truncated = windows[0].n_truncated
    return len(windows[0]) + n_truncated, n_truncated if len(windows) == 1 else 0


def encode_pairs(
    tokenizer: BertTokenizer,
    inputs: Sequence[tuple[str, str | None]],
    indices: Sequence[int],
    max_length: int,
    *,
    strategy: str = "longest_first",
    prompt: str = "",
    exact: bool = True,
) -> list[Encoding]:
    """Tokenize texts and pairs (they may be mixed), and cut each to a length.

    Parameters
    ----------
    tokenizer : BertTokenizer
    inputs : sequence of pairs of str; the second one may be None
    indices : sequence of int
        The caller's index of each input, for messages.
    max_length : int
        The most tokens of an input, special tokens included. `n_truncated` of an encoding says whether it was cut.
    strategy : {"longest_first", "only_first", "only_second"}
        Which text of a pair is cut, at its end.
    prompt : str
        Put before each first text.
    exact : bool
        As in `BertTokenizer.encodings`.

    Raises
    ------
    ValueError
        An input cannot be cut to this length by this strategy.
    """
    by_index: dict[int, Encoding] = {}
    for paired in (False, True):
        group = [i for i, (_, second) in enumerate(inputs) if (second is not None) == paired]
        if not group:
            continue
        texts = [prompt + inputs[i][0] for i in group]
        seconds: Any = [inputs[i][1] for i in group] if paired else None
        truncation = strategy if paired else "longest_first"
        try:
            encodings = tokenizer.encodings(texts, seconds, max_length=max_length, truncation=truncation, exact=exact)
        except ValueError as error:
            where = f"inputs from index {indices[group[0]]}"
            raise ValueError(f"{where}: {error} Shorten the other text, or give another truncation=.") from error
        by_index.update(zip(group, encodings, strict=True))
    return [by_index[i] for i in range(len(inputs))]


def in_chunks(
    items: Iterable[Item], size: int, weight: Callable[[Item], int] | None = None, most: int = 0
) -> Iterator[list[Item]]:
    """Yield lists of `size` items; the last list may be shorter. No items are read ahead of the list that is yielded.

    Parameters
    ----------
    items : iterable
    size : int
    weight : callable, optional
        Returns the weight of an item.
    most : int
        A list ends before it has `size` items when its weight reaches `most`. Without its last item it weighs less.
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size) if weight is None else _weighed(iterator, size, weight, most)):
        yield chunk
        del chunk  # before the next one is read


def _weighed(items: Iterator[Item], size: int, weight: Callable[[Item], int], most: int) -> Iterator[Item]:
    total = 0
    for item in islice(items, size):
        total += weight(item)
        yield item
        del item
        if total >= most:
            return
