"""How long `embed_corpus` will take, and the memory it will need, from a run over a sample of the real input.

Reading   The whole input is read once, as every run does first: the same problems are found, and texts are counted
Sample    Up to 4,096 of the texts that would be computed, each with the same chance. Their tokens are counted
Runs      Runs of `embed_corpus` over more and more texts of the sample, into a temporary folder. The smallest one gives
          the time that every run takes, its difference from the largest one the time of a token
Time      the time of any run + tokens x the time of a token + two readings of the input
Memory    the most that this process had, and the texts and vectors of a shard beyond those of the largest run
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minibert.base.checks import check_choice, check_int
from minibert.base.files import write_whole
from minibert.base.machine import peak_memory
from minibert.corpus.embed import embed_corpus, too_long
from minibert.corpus.readers import InputLine, Source, check_sources
from minibert.corpus.survey import BadLines, standard_input, survey
from minibert.corpus.writers import OUTPUT_DTYPES, OUTPUT_SUFFIXES
from minibert.models.backend import choose_num_threads
from minibert.sentence.encode import CHUNK_SIZE
from minibert.sentence.options import EncodeOptions
from minibert.sentence.sentence_transformers import SentenceTransformer

__all__ = ["Estimate", "estimate_corpus"]

_SAMPLE_TEXTS = 4096
_SAMPLE_CHARACTERS = 2**22
_FIRST_TEXTS = 8
# Bytes of Python's objects for a text of a shard, besides its characters and its vector.
_TEXT_BYTES = 700


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a run over a corpus would take, on this machine, with this number of threads.

    Parameters
    ----------
    n_texts : int
        Input lines with a text.
    n_computed : int
        Those that are computed: equal texts of a shard are computed once.
    n_unusable : int
        Input lines that cannot be used.
    n_tokens : int
        Tokens of the computed texts after cutting, estimated from the sample.
    seconds : float
        Of the whole run, estimated.
    memory_bytes : int or None
        The most memory of the process, estimated; None if the system does not tell it.
    output_bytes : int
        Numbers of the vectors in the output, without ids.
    num_threads : int
    tokens_per_second : float
        While texts are computed, measured.
    start_seconds : float
        That any run takes, measured.
    read_seconds : float
        Of one reading of the input, measured.
    sample_texts, sample_tokens : int
        Of the largest run.
    sample_seconds : float
        Of the largest run, measured.
    """

    n_texts: int
    n_computed: int
    n_unusable: int
    n_tokens: int
    seconds: float
    memory_bytes: int | None
    output_bytes: int
    num_threads: int
    tokens_per_second: float
    start_seconds: float
    read_seconds: float
    sample_texts: int
    sample_tokens: int
    sample_seconds: float

    @property
    def hours(self) -> float:
        """The time of the run in hours."""
        return self.seconds / 3600

    @property
    def core_hours(self) -> float:
        """Hours x threads. Divided by a number of cores, a guess for that number, which was not measured."""
        return self.hours * self.num_threads


def estimate_corpus(
    model: SentenceTransformer,
    sources: Sequence[Source],
    *,
    suffix: str = ".npy",
    on_error: str = "stop",
    dtype: str = "float32",
    shard_size: int = CHUNK_SIZE,
    num_threads: int | None = None,
    sample_seconds: float = 5.0,
    report: Callable[[str], object] = print,
    clock: Callable[[], float] = time.perf_counter,
    **options: Any,
) -> Estimate:
    """Estimate the time and the memory of `embed_corpus` with the same arguments; nothing is left on the disk.

    Parameters
    ----------
    model : SentenceTransformer
    sources : sequence of Source
    suffix : {".npy", ".jsonl", ".parquet"}
        The format of the output.
    on_error, dtype, shard_size, report
        As in `embed_corpus`.
    num_threads : int, optional
        What the model was loaded with.
    sample_seconds : float
        About the time of the largest run over the sample; longer is more accurate.
    clock : callable
        Returns seconds.
    **options
        The fields of `EncodeOptions`.

    Raises
    ------
    TypeError, ValueError, OSError
        As in `embed_corpus`, which would find the same problems.
    """
    bad_lines, shard_size = BadLines(on_error, report), check_int("shard_size", shard_size, 1)
    check_choice("dtype", dtype, OUTPUT_DTYPES)
    check_choice("suffix", suffix, OUTPUT_SUFFIXES)
    if not isinstance(sample_seconds, int | float) or not 0 < sample_seconds < math.inf:
        raise ValueError(f"sample_seconds={sample_seconds!r}; expected a number of seconds above 0.")
    check_sources(sources)
    chosen = EncodeOptions.of(options)
    threads = choose_num_threads(num_threads).num_threads
    with tempfile.TemporaryDirectory(prefix="minibert-") as folder:
        files = [_kept(source, folder) for source in sources]
        found = _Found(shard_size)
        start = clock()
        survey(files, bad_lines, too_long(model, chosen) if chosen.truncation == "error" else None, found.add)
        read_seconds = clock() - start
        texts = found.sample()
        counts = _token_counts(model, texts, chosen)

        def run(count: int) -> float:
            path = os.path.join(folder, f"sample-{count}.jsonl")
            lines = "".join(json.dumps(text) + "\n" for text in texts[:count])
            write_whole(path, lambda file: file.write(lines.encode()))
            start = clock()
            embed_corpus(
                model,
                [Source(path, "jsonl")],
                os.path.join(folder, f"vectors-{count}{suffix}"),
                on_error="skip",
                dtype=dtype,
                shard_size=shard_size,
                report=lambda problem: None,
                **options,
            )
            return clock() - start

        measured = _measure(run, counts, sample_seconds)
    mean = sum(counts) / len(counts) if counts else 0.0
    n_tokens = round(mean * found.n_computed)
    width = model.get_embedding_dimension() if texts else 0
    seconds = measured.start_seconds + n_tokens * measured.token_seconds + 2 * read_seconds
    rows = found.n_texts + (found.n_unusable if on_error == "null" else 0)
    memory = peak_memory()
    if memory is not None:
        beyond = max(0, min(shard_size, rows) - measured.texts)
        memory += round(beyond * (4 * width + 2 * found.mean_length + _TEXT_BYTES))
    return Estimate(
        n_texts=found.n_texts,
        n_computed=found.n_computed,
        n_unusable=found.n_unusable,
        n_tokens=n_tokens,
        seconds=seconds,
        memory_bytes=memory,
        output_bytes=rows * width * (2 if dtype == "float16" else 4),
        num_threads=threads,
        tokens_per_second=1 / measured.token_seconds if measured.token_seconds else 0.0,
        start_seconds=measured.start_seconds,
        read_seconds=read_seconds,
        sample_texts=measured.texts,
        sample_tokens=sum(counts[: measured.texts]),
        sample_seconds=measured.seconds,
    )


def _kept(source: Source, folder: str) -> Source:
    """Return a source that can be read; the standard input is copied first."""
    if source.path != "-":
        return source
    copy = Path(folder) / "standard-input"
    with copy.open("wb") as file:
        shutil.copyfileobj(standard_input(), file)
    return dataclasses.replace(source, path=str(copy))


class _Found:
    """Counts of the input lines, and a sample of the texts that would be computed.

    Attributes
    ----------
    n_texts, n_unusable, n_computed : int
    """

    def __init__(self, shard_size: int) -> None:
        self.n_texts = self.n_unusable = self.n_computed = 0
        self._shard_size, self._in_shard = shard_size, 0
        self._of_shard: set[int] = set()
        self._random = random.Random(0)
        self._most, self._sampled, self._characters = _SAMPLE_TEXTS, list[str](), 0
        self._lengths = 0

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
                self._take(text)

    def _take(self, text: str) -> None:
        """Keep a text with the chance that every text before it has (Vitter 1985, algorithm R)."""
        if len(self._sampled) < self._most:
            self._sampled.append(text)
            self._characters += len(text)
        elif (place := self._random.randrange(self.n_computed)) < self._most:
            self._characters += len(text) - len(self._sampled[place])
            self._sampled[place] = text
        while self._characters > _SAMPLE_CHARACTERS and len(self._sampled) > 1:
            self._random.shuffle(self._sampled)
            self._most = max(1, len(self._sampled) // 2)
            del self._sampled[self._most :]
            self._characters = sum(map(len, self._sampled))

    def sample(self) -> list[str]:
        """Return the sample in random order."""
        self._random.shuffle(self._sampled)
        return self._sampled

    @property
    def mean_length(self) -> float:
        """Characters of a text."""
        return self._lengths / max(1, self.n_texts)


def _token_counts(model: SentenceTransformer, texts: list[str], options: EncodeOptions) -> list[int]:
    """Count the tokens that are computed of each text."""
    counts = model.num_tokens(texts, prompt_name=options.prompt_name, prompt=options.prompt) if texts else []
    limit = math.inf if options.truncation == "split" else model.max_seq_length
    return [int(min(count, limit)) for count in counts]


@dataclasses.dataclass(frozen=True)
class _Measured:
    """What the runs over the sample took."""

    texts: int
    seconds: float
    start_seconds: float
    token_seconds: float


def _measure(run: Callable[[int], float], counts: Sequence[int], sample_seconds: float) -> _Measured:
    """Run a few texts of the sample, then more and more of them, until a run takes about `sample_seconds`.

    Parameters
    ----------
    run : callable
        Computes this number of texts of the sample; returns the seconds.
    counts : sequence of int
        Tokens of each text of the sample.
    """
    if not counts:
        return _Measured(0, 0.0, 0.0, 0.0)
    few = many = min(len(counts), _FIRST_TEXTS)
    run(few)  # the first run of a process starts threads and gets memory
    first = longer = run(few)
    few_tokens, mean = sum(counts[:few]), sum(counts) / len(counts)
    while many < len(counts):
        following = 4 * many
        if longer > first:
            token_seconds = (longer - first) / (sum(counts[:many]) - few_tokens)
            following = min(following, int(sample_seconds / (token_seconds * mean)))
        following = min(following, len(counts))
        if following < min(1.2 * many, len(counts)):
            break
        many, longer = following, run(following)
    many_tokens = sum(counts[:many])
    token_seconds = max(0.0, longer - first) / max(1, many_tokens - few_tokens)
    if token_seconds == 0:  # all texts are in the few, or the clock is too coarse
        return _Measured(many, longer, 0.0, longer / many_tokens)
    start = max(0.0, first - few_tokens * token_seconds)
    return _Measured(many, longer, start, (longer - start) / many_tokens)
