"""Windows of texts -> their vectors, and those of all windows of a request -> its answer.

The vectors are those of `SentenceTransformer.encode`, bit for bit: the same functions compute them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.sentence.encoding import Recipe, pool_encodings, token_vectors
from minibert.sentence.modules import Pipeline
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.windows import TokenWindows
from minibert.vectors.similarity import normalize_embeddings

__all__ = ["Assemble", "AssembleTokens", "Embed", "EmbedTokens", "Unit"]


@dataclasses.dataclass(frozen=True)
class Unit:
    """A window; `alone` if its text does not have another one."""

    encoding: Encoding
    alone: bool


@dataclasses.dataclass(frozen=True)
class Embed:
    """Sentence vectors of windows; for a text of one window also the modules after the pooling."""

    model: SentenceTransformer
    recipe: Recipe
    num_prompt_tokens: int
    pipeline: Pipeline

    @property
    def rate_key(self) -> Hashable:
        """See `Kind.rate_key`."""
        return id(self.model)

    def compute(self, units: Sequence[Unit]) -> list[FloatArray]:
        """Compute a vector of each window."""
        encodings = [unit.encoding for unit in units]
        pooled = pool_encodings(self.model.model, self.recipe, encodings, self.num_prompt_tokens)
        rows: list[FloatArray] = [*pooled]
        whole = [i for i, unit in enumerate(units) if unit.alone]
        if whole:
            for i, row in zip(whole, self.pipeline.finish(pooled[whole]), strict=True):
                rows[i] = row
        return rows


@dataclasses.dataclass(frozen=True)
class EmbedTokens:
    """The vectors of all tokens of each window."""

    model: SentenceTransformer
    recipe: Recipe

    @property
    def rate_key(self) -> Hashable:
        """See `Kind.rate_key`."""
        return id(self.model)

    def compute(self, units: Sequence[Unit]) -> list[FloatArray]:
        """Compute an array of each window, with a row per token."""
        return token_vectors(self.model.model, self.recipe, [unit.encoding for unit in units])


@dataclasses.dataclass(frozen=True)
class Assemble:
    """The results of all windows of a request -> its vectors."""

    windows: TokenWindows
    pipeline: Pipeline
    groups: list[list[Encoding]]
    rows: list[int]
    width: int
    scale: bool

    def __call__(self, results: list[FloatArray]) -> FloatArray:
        """Return float32 (B, `width`), a row per text of the request."""
        vectors = np.empty((len(self.groups), self.width), dtype=np.float32)
        first = 0
        for i, group in enumerate(self.groups):
            row = results[first]
            if len(group) > 1:
                of_windows = np.stack(results[first : first + len(group)])
                row = self.pipeline.finish(self.windows.average(of_windows, [group]))[0]
            vectors[i] = row[: self.width]
            first += len(group)
        return (normalize_embeddings(vectors) if self.scale else vectors)[self.rows]


@dataclasses.dataclass(frozen=True)
class AssembleTokens:
    """The results of all texts of a request -> the vectors of each text's tokens."""

    rows: list[int]
    scale: bool

    def __call__(self, results: list[FloatArray]) -> list[FloatArray]:
        """Return an array per text of the request, with a row per token."""
        return [normalize_embeddings(results[row]) if self.scale else results[row] for row in self.rows]
