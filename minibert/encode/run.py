"""Run a computation over texts: a chunk of texts at a time, each distinct text once; count the texts that were cut."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import progress_bar
from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.config import BertConfig
from minibert.bert.packed import PackedBatch
from minibert.errors import ModelFormatError
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.windows import TextInfo, TokenWindows, count_tokens, in_chunks

CHUNK_SIZE = 10_000
"""Texts of a chunk. Within it equal texts are computed once, and texts are sorted by length."""


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedTexts:
    """The results of one chunk of n texts, in the order of the input.

    Parameters
    ----------
    vectors : ndarray of shape (n, width), float32, or SparseVectors
    n_tokens : int ndarray of shape (n,)
        Tokens of each whole text, with its prompt and the special tokens.
    n_truncated : int ndarray of shape (n,)
        How many of these were cut off. With truncation="silent" and without `info` a long text is not tokenized to its
        end. Its number is then at least 1 but may be too small, and `n_tokens` is this number plus its window's tokens.
    info : tuple of n TextInfo
        Empty if the call did not ask for it.
    """

    vectors: Any
    n_tokens: IntArray
    n_truncated: IntArray
    info: tuple[TextInfo, ...] = ()


@dataclasses.dataclass(frozen=True)
class TextPlan:
    """The work of a call that makes an item of each text or pair; a subclass says how it is computed.

    Parameters
    ----------
    windows : TokenWindows
        Turns texts into windows of tokens.
    """

    equal_items: ClassVar[bool] = True
    """Whether equal texts have equal items, which are computed once."""

    windows: TokenWindows = dataclasses.field(compare=False)

    def compute(self, groups: list[list[Encoding]], indices: Sequence[int]) -> npt.NDArray[Any]:
        """Compute the items of n texts from the windows of each; `indices` are their places in the caller's input."""
        raise NotImplementedError

    def gather(self, items: npt.NDArray[Any]) -> Any:
        """Return the items of a chunk as `EncodedTexts.vectors`."""
        return items

    def run(
        self,
        texts: Iterable[Any],
        *,
        chunk_size: int = CHUNK_SIZE,
        progress: Callable[[int], object] | None = None,
        exact: bool = False,
        info: bool = False,
    ) -> Iterator[EncodedTexts]:
        """Compute an item for each text or pair, a chunk at a time. Each distinct text of a chunk is computed once.

        Parameters
        ----------
        texts : iterable of str or of pairs of str
        chunk_size : int
            Texts that are held in memory at a time.
        progress : callable, optional
            Called with the number of texts done since its last call.
        exact : bool
            Count all tokens of texts that are cut; see `TokenWindows.of`.
        info : bool
            Also make a `TextInfo` per text.

        Raises
        ------
        TypeError, ValueError
            An input is not a text, or cannot be tokenized as the windows say. The message names its index.
        """
        first, windows = 0, self.windows
        for chunk in in_chunks(texts, chunk_size):
            # Of the chunk a, ccc, a, bb the distinct texts are sorted by length: `places` is [1], [3], [0, 2].
            places = windows.distinct(chunk, first, self.equal_items)
            vectors: Any = None
            counts = [(0, 0)] * len(chunk)
            described: list[Any] = [None] * len(chunk)
            chosen, indices = [chunk[of_text[0]] for of_text in places], [first + of_text[0] for of_text in places]
            for part, groups in windows.of(chosen, indices, exact=exact):
                computed = self.compute(groups, indices[part])
                members = [place for of_text in places[part] for place in of_text]
                vectors = np.empty((len(chunk), *computed.shape[1:]), computed.dtype) if vectors is None else vectors
                equal = len(members) > len(groups)
                vectors[members] = np.repeat(computed, [*map(len, places[part])], axis=0) if equal else computed
                for of_text, group in zip(places[part], groups, strict=True):
                    counted, text_info = count_tokens(group), windows.describe(group) if info else None
                    for place in of_text:
                        counts[place], described[place] = counted, text_info
                del groups, group, computed  # frees their memory before the next texts are tokenized
                if progress is not None:
                    progress(len(members))
            n_tokens, n_truncated = np.array(counts, dtype=np.int64).T
            yield EncodedTexts(self.gather(vectors), n_tokens, n_truncated, tuple(described if info else ()))
            first += len(chunk)

    def run_at_once(self, texts: Sequence[Any], show_progress_bar: bool | None = None, unit: str = " texts") -> Any:
        """Compute all texts of a call together, warn about those that were cut, and return the items."""
        if not texts:
            return self.gather(self.compute([], []))
        with progress_bar(len(texts), show=bool(show_progress_bar), unit=unit) as count:
            encoded = next(self.run(texts, chunk_size=len(texts), progress=count))
        self.windows.too_long().add(encoded.n_truncated).warn()
        return encoded.vectors


@dataclasses.dataclass(frozen=True)
class ObjectPlan(TextPlan):
    """A `TextPlan` whose items are objects, such as arrays of several lengths, or dicts. Each text has one window."""

    def items(self, windows: list[Encoding], indices: Sequence[int]) -> Iterable[Any]:
        """Compute the items of n texts; `indices` are their places in the caller's input."""
        raise NotImplementedError

    def compute(self, groups: list[list[Encoding]], indices: Sequence[int]) -> npt.NDArray[np.object_]:
        """Compute an array (n,) of the items."""
        return np.fromiter(self.items([window for (window,) in groups], indices), dtype=object)

    def gather(self, items: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the items of a chunk, a copy for each equal text but the first: callers may change one of them."""
        seen = set[int]()
        for i, item in enumerate(items):
            if id(item) in seen:
                items[i] = copy.deepcopy(item)
            seen.add(id(item))
        return items


def packed(config: BertConfig, encodings: Sequence[Encoding]) -> PackedBatch:
    """Return encodings as a packed batch."""
    return PackedBatch.from_sequences(config, [e.ids for e in encodings], [e.token_types for e in encodings])


def check_finite(logits: FloatArray, indices: Sequence[int]) -> None:
    """Raise a ModelFormatError for a row of logits with NaN or infinity; `indices` name the inputs."""
    for row in np.flatnonzero(~np.isfinite(logits).all(axis=1)):
        raise ModelFormatError(f"the model computes NaN or infinity for inputs[{indices[int(row)]}]: it is damaged.")
