"""A sample of a corpus's texts, taken while it is read once, and what it says about all of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from minibert.corpus.readers import InputLine

__all__ = ["CorpusSample"]

_SAMPLE_TEXTS = 4096
_SAMPLE_CHARACTERS = 2**22

# A text that is split into windows is sampled in pieces of this many characters. Of a corpus that has nearly all of its
# tokens in a few long texts, a sample of whole texts would hold either none of these or too much of them.
_PIECE_CHARACTERS = 2**13

# A text of more characters than this for each token of the limit is cut nearly always, so further characters do not
# mean further tokens.
_CHARACTERS_OF_A_TOKEN = 4


class CorpusSample:
    """Counts of the input lines, and a sample of the texts that would be computed, each with the same chance.

    Parameters
    ----------
    shard_size : int
        Texts of a shard; of equal texts in a shard, one is computed.
    limit : int or None
        Tokens to which a text is cut; None if it is split.

    Attributes
    ----------
    n_texts, n_unusable, n_computed : int
    """

    def __init__(self, shard_size: int, limit: int | None) -> None:
        self.n_texts = self.n_unusable = self.n_computed = 0
        self._shard_size, self._in_shard = shard_size, 0
        self._of_shard: set[int] = set()
        self._random = random.Random(0)
        self._most, self._sampled, self._characters = _SAMPLE_TEXTS, list[str](), 0
        self._most_counted = None if limit is None else limit * _CHARACTERS_OF_A_TOKEN
        self._lengths = self._n_pieces = self._counted = 0

    def add(self, input_lines: list[InputLine]) -> None:
        """Count input lines, and take some texts into the sample."""
        for input_line in input_lines:
            if self._in_shard == self._shard_size:
                self._of_shard.clear()
                self._in_shard = 0
            self._in_shard += 1
            text = input_line.text
            if text is None or input_line.problem is not None:
                self.n_unusable += 1
                continue
            self.n_texts += 1
            self._lengths += len(text)
            if (key := hash(text)) not in self._of_shard:
                self._of_shard.add(key)
                self.n_computed += 1
                size = _PIECE_CHARACTERS if self._most_counted is None else max(1, len(text))
                for first in range(0, max(1, len(text)), size):
                    self._take(text[first : first + size])

    def _take(self, piece: str) -> None:
        """Keep a piece with the chance that every piece before it has (Vitter 1985, algorithm R)."""
        self._n_pieces += 1
        self._counted += self._weight(piece)
        if len(self._sampled) < self._most:
            self._sampled.append(piece)
            self._characters += len(piece)
        elif (place := self._random.randrange(self._n_pieces)) < self._most:
            self._characters += len(piece) - len(self._sampled[place])
            self._sampled[place] = piece
        while self._characters > _SAMPLE_CHARACTERS and len(self._sampled) > 1:
            self._random.shuffle(self._sampled)
            self._most = max(1, len(self._sampled) // 2)
            del self._sampled[self._most :]
            self._characters = sum(map(len, self._sampled))

    def _weight(self, piece: str) -> int:
        return len(piece) if self._most_counted is None else min(len(piece), self._most_counted)

    def texts(self) -> list[str]:
        """Return the sample in random order."""
        self._random.shuffle(self._sampled)
        return self._sampled

    def is_whole(self, count: int) -> bool:
        """Return whether this number of the sample's texts is all that would be computed."""
        return count == self._n_pieces

    def n_tokens(self, texts: Sequence[str], counts: Sequence[int]) -> int:
        """Estimate the tokens of all texts that would be computed, from those of the sample.

        The characters of all texts are known. The line tokens = a + b x characters, which fits the sample best,
        corrects for a sample whose texts are longer or shorter than the others (the regression estimator, Cochran 1977,
        chapter 7).

        Parameters
        ----------
        texts : sequence of str
            What `texts` has returned.
        counts : sequence of int
            The tokens of each.
        """
        if not texts:
            return 0
        lengths = np.array([self._weight(text) for text in texts], dtype=np.float64)
        tokens = np.array(counts, dtype=np.float64)
        from_mean = lengths - lengths.mean()
        variance = from_mean @ from_mean
        slope = float(from_mean @ tokens / variance) if variance else 0.0
        mean = float(tokens.mean()) + slope * (self._counted / self._n_pieces - float(lengths.mean()))
        return round(self._n_pieces * max(1.0, mean))

    @property
    def mean_length(self) -> float:
        """Characters of a text."""
        return self._lengths / max(1, self.n_texts)
