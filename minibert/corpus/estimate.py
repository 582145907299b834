"""How long `embed_corpus` will take, and the memory it will need, from runs over a sample of the real input.

Reading   The whole input is read once, as every run does first: the same problems are found, and texts are counted
Sample    Up to 4,096 of the texts that would be computed, each with the same chance (sample.py)
Runs      Runs of `embed_corpus` over parts of the sample, into a temporary folder (speed.py)
Time      the time of any run + tokens x the time of a token + two readings of the input
Memory    the most that this process had, and the texts and vectors of a shard beyond those of the largest run
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minibert.base.checks import check_choice, check_int
from minibert.base.files import write_whole
from minibert.base.machine import peak_memory
from minibert.corpus.embed import embed_corpus, too_long
from minibert.corpus.readers import Source, check_sources
from minibert.corpus.sample import CorpusSample
from minibert.corpus.speed import Speed, measure_speed
from minibert.corpus.survey import BadLines, standard_input, survey
from minibert.corpus.writers import OUTPUT_DTYPES, OUTPUT_SUFFIXES
from minibert.models.backend import choose_num_threads
from minibert.sentence.encode import CHUNK_SIZE
from minibert.sentence.options import EncodeOptions
from minibert.sentence.sentence_transformers import SentenceTransformer

__all__ = ["Estimate", "estimate_corpus"]

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
    tokens_counted : bool
        Whether all texts were in the sample, so that their tokens are counted, and not estimated.
    seconds : float
        Of the whole run, estimated.
    seconds_low, seconds_high : float
        The same with the mean speed of the fastest quarter of the runs over the sample, and of the slowest. A machine
        that is slower or faster at another time is not within them.
    memory_bytes : int or None
        The most memory of the process, estimated; None if the system does not tell it.
    with_compiler : bool
        Whether this process has compiled the kernels, so that its memory holds the compiler too. Later runs need less.
    output_bytes : int
        Numbers of the vectors in the output, without ids.
    num_threads : int
    tokens_per_second : float or None
        While texts are computed, measured; None if the texts are too few to tell it from the start.
    start_seconds : float
        That any run takes, measured; if the texts are too few, the time of a run over all of them.
    read_seconds : float
        Of one reading of the input, measured.
    sample_runs : int
        Runs over parts of the sample.
    sample_texts : int
        Texts of each of these.
    sample_tokens : int
        Of all of these.
    sample_seconds : float
        Of all of these, measured.
    """

    n_texts: int
    n_computed: int
    n_unusable: int
    n_tokens: int
    tokens_counted: bool
    seconds: float
    seconds_low: float
    seconds_high: float
    memory_bytes: int | None
    with_compiler: bool
    output_bytes: int
    num_threads: int
    tokens_per_second: float | None
    start_seconds: float
    read_seconds: float
    sample_runs: int
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
    sample_seconds: float = 6.0,
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
        About the time of the runs over the sample; three times as long if they disagree. Longer is more accurate.
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
        limit = None if chosen.truncation == "split" else model.max_seq_length
        sample = CorpusSample(shard_size, limit)
        start = clock()
        survey(files, bad_lines, too_long(model, chosen) if chosen.truncation == "error" else None, sample.add)
        read_seconds = clock() - start
        texts = sample.texts()
        counts = _token_counts(model, texts, chosen, limit)
        # A text that several shards have can be in the sample several times; a run would compute it once.
        tokens_of = dict(zip(texts, counts, strict=True))
        distinct = list(tokens_of)

        def run(first: int, count: int) -> float:
            path = os.path.join(folder, "sample.jsonl")
            chosen_texts = (distinct[index % len(distinct)] for index in range(first, first + count))
            lines = "".join(json.dumps(text) + "\n" for text in chosen_texts)
            write_whole(path, lambda file: file.write(lines.encode()))
            start = clock()
            embed_corpus(
                model,
                [Source(path, "jsonl")],
                os.path.join(folder, f"vectors{suffix}"),
                on_error="skip",
                dtype=dtype,
                shard_size=shard_size,
                report=lambda problem: None,
                **options,
            )
            return clock() - start

        speed = (
            measure_speed(run, [*tokens_of.values()], sample_seconds) if texts else Speed(0.0, None, (1.0,), 0, 0, 0.0)
        )
    n_tokens = sample.n_tokens(texts, counts)
    width = model.get_embedding_dimension() if texts else 0
    seconds = _seconds(speed, n_tokens, whole=sample.is_whole(speed.texts))
    rows = sample.n_texts + (sample.n_unusable if on_error == "null" else 0)
    memory = peak_memory()
    if memory is not None:
        beyond = max(0, min(shard_size, rows) - speed.texts)
        memory += round(beyond * (4 * width + 2 * sample.mean_length + _TEXT_BYTES))
    return Estimate(
        n_texts=sample.n_texts,
        n_computed=sample.n_computed,
        n_unusable=sample.n_unusable,
        n_tokens=n_tokens,
        # A long text that is split is sampled in pieces, whose tokens are not exactly those of its windows.
        tokens_counted=limit is not None and sample.is_whole(len(texts)),
        seconds=seconds + 2 * read_seconds,
        seconds_low=seconds * speed.low + 2 * read_seconds,
        seconds_high=seconds * speed.high + 2 * read_seconds,
        memory_bytes=memory,
        with_compiler="minibert.kernels.compilation" in sys.modules,
        output_bytes=rows * width * (2 if dtype == "float16" else 4),
        num_threads=threads,
        tokens_per_second=1 / speed.token_seconds if speed.token_seconds else None,
        start_seconds=speed.start_seconds,
        read_seconds=read_seconds,
        sample_runs=len(speed.ratios) if texts else 0,
        sample_texts=speed.texts,
        sample_tokens=speed.tokens,
        sample_seconds=speed.seconds,
    )


def _seconds(speed: Speed, n_tokens: int, *, whole: bool) -> float:
    """Return the time of a run over all texts, but for reading them; `whole` if each measured run was over all."""
    if speed.token_seconds is not None:
        return speed.start_seconds + n_tokens * speed.token_seconds
    # A sample of a few texts, which are very long; their start counts as tokens, so this may be too much.
    return speed.start_seconds * (1 if whole else n_tokens * len(speed.ratios) / max(1, speed.tokens))


def _kept(source: Source, folder: str) -> Source:
    """Return a source that can be read; the standard input is copied first."""
    if source.path != "-":
        return source
    copy = Path(folder) / "standard-input"
    with copy.open("wb") as file:
        shutil.copyfileobj(standard_input(), file)
    return dataclasses.replace(source, path=str(copy))


def _token_counts(model: SentenceTransformer, texts: list[str], options: EncodeOptions, limit: int | None) -> list[int]:
    """Count the tokens that are computed of each text."""
    counts = model.num_tokens(texts, prompt_name=options.prompt_name, prompt=options.prompt) if texts else []
    return [int(count if limit is None else min(count, limit)) for count in counts]
