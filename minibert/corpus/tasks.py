"""What a run computes, shard by shard: `Task`, its files and its counts."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from minibert._utils.validation import FloatArray, IntArray
from minibert.corpus.sources import InputLine

_BLOCK = 2**20  # bytes copied at a time

Lines = list[InputLine]
"""The input lines of a shard."""

Progress = Callable[[int], object]
"""Called with the number of input lines done since its last call."""

Files = Sequence[BinaryIO]
"""The open files of a shard, one for each of `Task.files`."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """The counts of computed shards.

    Parameters
    ----------
    n_texts : int
        Input lines in the output, those without a text included.
    n_tokens : int
        Tokens of the texts after cutting; equal texts count separately.
    n_cut : int
        Texts that were cut, because they had more tokens than the model takes.
    n_left_out : int
        Input lines that could not be used, or are empty, and were left out.
    n_empty : int
        Input lines whose text is null, or does not have a visible character, in the output or left out.
    n_words : int
        Words of the input lines that are lists of words.
    """

    n_texts: int = 0
    n_tokens: int = 0
    n_cut: int = 0
    n_left_out: int = 0
    n_empty: int = 0
    n_words: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """One of the files of each shard, and the output that is made from these files.

    Parameters
    ----------
    suffix : str
    output : str
        The path of the output, or of the folder that is the output; not a link.
    header : callable
        The counts of a file's rows -> its first bytes. Their number does not depend on the counts.
    """

    suffix: str
    output: str
    header: Callable[[Counts], bytes] = lambda counts: b""

    def join(self, file: BinaryIO, shards: Sequence[Path], total: Counts) -> None:
        """Write the output into an open file, given the files of all shards and the counts of the run."""
        header = self.header(total)
        file.write(header)
        for path in shards:
            with path.open("rb") as shard:
                shard.seek(len(header))
                shutil.copyfileobj(shard, file, _BLOCK)


class Task:
    """The work of a run: the base class of the tasks in embed.py, extract.py and words.py.

    Attributes
    ----------
    model
        What computes: a BertModel, or a model with a head.
    files : sequence of ShardFile
        The files of a shard. Outputs get their names in this order.
    width : int
        Numbers of one vector.
    into_folder : bool
        Whether the output is a folder of the shards' files.
    settings : dict
        What must be the same to resume; JSON can hold it.
    probe : float ndarray
        The model's result for a fixed text; it must be the same to resume.
    fingerprint_parts : dict
        Those of the model; they must be the same to resume.
    """

    model: Any
    files: Sequence[ShardFile]
    width: int
    into_folder = False
    settings: dict[str, Any]
    probe: FloatArray
    fingerprint_parts: dict[str, Any]

    def survey(self, lines: Lines) -> None:
        """See input lines in the first reading, which has all of them, before `settings` are read."""

    def refuse_long(self, lines: Lines) -> None:
        """Give input lines that are too long a problem, and take their text away, if such lines cannot be used."""

    def reuse(self, scratch: Path) -> None:
        """Take the results of texts that the output has; `scratch` is a folder for files without a name."""
        raise NotImplementedError

    def compared(self, shards: Sequence[Path], numbered: bool) -> tuple[int, int, int, int]:
        """Count what an update did, given the last files of all shards; see `minibert.corpus.update.compare`."""
        raise NotImplementedError

    def repeated(self, shards: Sequence[Path]) -> dict[str, int]:
        """Count duplicate and empty ids, given the last files of all shards, if these have the ids."""
        return {}

    def numbers(self, line: InputLine) -> int:
        """Return the most numbers that a line has, if it has several vectors; a shard has about `SHARD_NUMBERS`."""
        return 0

    def write(
        self, lines: Lines, earlier: Counts, files: Files, progress: Progress
    ) -> tuple[int, Sequence[int] | IntArray]:
        """Compute a shard, and write its files.

        Parameters
        ----------
        lines : list of InputLine
            Those that have a row.
        earlier : Counts
            Those of all earlier shards.
        files : sequence of binary files
            One for each of `files`, with its header.
        progress : callable

        Returns
        -------
        n_tokens : int
            Tokens after cutting.
        n_truncated : sequence of int
            How many tokens of each text were cut off.
        """
        raise NotImplementedError
