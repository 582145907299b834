"""Files of texts -> one vector per text, in a file or in a folder of files, in bounded memory.

A run can be resumed (see runs.py).

Within a shard equal texts are computed once, and texts are sorted by length.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, check_choice, check_int
from minibert.corpus.encoders import Encoder, LocalEncoder, Workers, number_settings, probe_vector
from minibert.corpus.file_folder import FILE_SIZE, is_folder
from minibert.corpus.parts import Counts
from minibert.corpus.readers import InputLine, Source, check_sources
from minibert.corpus.runs import Append, Output, Summary, run_shards
from minibert.corpus.survey import BadLines, row_of
from minibert.corpus.writers import OUTPUT_DTYPES, VectorWriter, output_suffix
from minibert.sentence.batching import in_chunks
from minibert.sentence.encoding import CHUNK_SIZE, EncodedTexts
from minibert.sentence.options import EncodeOptions
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.vectors.layers import resolve_layers

__all__ = ["embed_corpus", "too_long"]

# Rows that are converted to bytes together.
_ROWS_AT_ONCE = 512

# A shard whose vectors are being computed: its numbered input lines, and the function that waits for the results.
_Begun = tuple[list[tuple[int, InputLine]], Callable[[], EncodedTexts | None]]


def embed_corpus(
    model: SentenceTransformer,
    sources: Sequence[Source],
    output: str | os.PathLike[str],
    *,
    resume: bool = False,
    on_error: str = "stop",
    dtype: str = "float32",
    shard_size: int = CHUNK_SIZE,
    file_size: int | None = None,
    settings: dict[str, Any] | None = None,
    show_progress: bool = False,
    report: Callable[[str], object] = print,
    workers: Workers | None = None,
    **options: Any,
) -> Summary | None:
    """Compute one vector per text of some files and write them, in order, into one file or the files of a folder.

    Parameters
    ----------
    model : SentenceTransformer
    sources : sequence of Source
    output : str or path
        Name of the file: .npy (with the ids beside it), .jsonl or .parquet. The manifest ``<output>.manifest.json`` is
        written beside it. Or the name of a folder: one that exists, or a name that ends in a separator, or any name
        without such a suffix if `file_size` is given. Parquet files are written into it while the run goes on,
        ``part-00000.parquet`` and so on; the order of their names is that of the texts. The folder must be empty.
    resume : bool
        Continue an unfinished run of the same model, options and input; start one if there is none.
    on_error : {"stop", "skip", "null"}
        What happens if an input line cannot be used. "stop" computes nothing, "skip" leaves the line out, "null" writes
        a vector of NaN for it.
    dtype : {"float32", "float16"}
        Type of the written numbers.
    shard_size : int
        Most texts of a shard; fewer if they are long. A shard is computed, then saved. A crash loses at most one shard.
    file_size : int, optional
        For a folder: bytes of vectors at which a file ends, rounded up to whole shards. Default: 512,000,000.
    settings : dict, optional
        Further values that must be the same to resume, such as the model's name and revision.
    show_progress : bool
    report : callable
        Called with each problem, as a line of text.
    workers : Workers, optional
        Processes elsewhere that compute the vectors, such as `minibert.integrations.ray_workers.RayWorkers`. This
        process still reads and writes all files, and the files are the same.
    **options
        The fields of `EncodeOptions`, as in `SentenceTransformer.encode`. With truncation="error" a text that is too
        long counts as an input line that cannot be used.

    Returns
    -------
    Summary, or None if resume finds that this very run has ended

    Raises
    ------
    TypeError, ValueError
        An argument is wrong. An input line cannot be used with on_error="stop"; nothing was computed then. The run to
        resume, finished or not, has other settings or another input, or a file of its folder is missing or damaged.
    OSError
        A file cannot be read or written, another process writes this output, or the folder to write holds other files.
        The folder ``<output>.parts`` keeps the shards that were computed and are not in a file of a folder yet.
    """
    bad_lines, output = BadLines(on_error, report), os.fspath(output)
    check_choice("dtype", dtype, OUTPUT_DTYPES)
    file_size = None if file_size is None else check_int("file_size", file_size, 1)
    output_suffix(output, file_size)
    if is_folder(output) and file_size is None:
        file_size = FILE_SIZE
    chosen = EncodeOptions.of(options)
    long_texts = chosen.truncation == "error"
    if long_texts:
        chosen = dataclasses.replace(chosen, truncation="silent")
    probe = probe_vector(model, chosen)
    check_sources(sources)
    numbered = all(source.id_column is None for source in sources)

    def make(path: str) -> Output:
        writer = VectorWriter(path, len(probe), dtype, numbered, file_size)
        # A run needs to know only whether a text is cut; the problem of a text that is too long needs its whole length.
        how = {"silent": "warn"} if long_texts else {"warn": "silent"}
        truncation = how.get(chosen.truncation, chosen.truncation)
        how_to = dataclasses.replace(chosen, truncation=truncation)
        encoder = (
            LocalEncoder(model, how_to)
            if workers is None
            else workers.start(how_to, probe, model.model.ops.processor())
        )
        task = _Task(encoder, writer, bad_lines, model.max_seq_length if long_texts else None)
        return Output(
            writer.parts,
            task.compute,
            writer.width,
            encoder.processors,
            writer.assemble,
            begin=task.begin,
            has_room=encoder.has_room,
            files=writer.files,
        )

    return run_shards(
        output,
        sources,
        make,
        settings={
            **(settings or {}),
            **_as_json(model, chosen),
            **number_settings(model.model),
            "max_seq_length": model.max_seq_length,
            "too_long": "error" if long_texts else "as truncation says",
            "on_error": on_error,
            "dtype": dtype,
            **({} if file_size is None else {"file_size": file_size}),
        },
        probe=probe,
        bad_lines=bad_lines,
        too_long=too_long(model, chosen) if long_texts else None,
        shard_size=shard_size,
        resume=resume,
        show_progress=show_progress,
    )


@dataclasses.dataclass(frozen=True)
class _Task:
    encoder: Encoder
    writer: VectorWriter
    bad_lines: BadLines
    limit: int | None  # most tokens of a text; None if longer texts are cut

    def begin(self, chunk: list[tuple[int, InputLine]], progress: Callable[[int], object]) -> _Begun:
        texts = [input_line.text for _, input_line in chunk if input_line.text is not None]
        progress(len(chunk) - len(texts))
        return chunk, self.encoder.submit(texts, progress)

    def compute(self, begun: _Begun, before: Counts, append: Append, progress: Callable[[int], object]) -> Counts:
        chunk, results = begun
        encoded = results()
        next_index = iter(range(len(chunk)))
        first, n_tokens, n_cut = before.n_texts, 0, 0
        for input_lines in in_chunks(chunk, _ROWS_AT_ONCE):
            rows, indices = list[dict[str, Any]](), list[int]()
            for number, input_line in input_lines:
                index = -1
                if input_line.text is not None and encoded is not None:
                    index = next(next_index)
                    cut = int(encoded.n_truncated[index])
                    if cut and self.limit is not None:
                        problem = _length_problem(int(encoded.n_tokens[index]), self.limit)
                        input_line, index = dataclasses.replace(input_line, problem=problem), -1
                    else:
                        n_tokens += int(encoded.n_tokens[index]) - cut
                        n_cut += cut > 0
                if index >= 0 or self.bad_lines.keep(input_line):
                    rows.append(row_of(number, input_line))
                    indices.append(index)
            self.writer.write(append, first, rows, self._vectors(encoded, indices))
            first += len(rows)
        n_texts = first - before.n_texts
        return Counts(n_texts, n_tokens, n_cut, len(chunk) - n_texts)

    def _vectors(self, encoded: EncodedTexts | None, indices: list[int]) -> FloatArray:
        """Return the vectors at some indices: (len(indices), width), NaN for index -1."""
        chosen = np.full((len(indices), self.writer.width), np.nan, dtype=np.float32)
        found = np.array(indices, dtype=np.int64) >= 0
        if encoded is not None:
            chosen[found] = encoded.vectors[[index for index in indices if index >= 0]]
        return chosen


def _length_problem(n_tokens: int, limit: int) -> str:
    return f"has {n_tokens} tokens, the limit is {limit} (max_seq_length)"


def too_long(model: SentenceTransformer, options: EncodeOptions) -> Callable[[list[str]], list[str | None]]:
    """Return a function texts -> for each the problem if it has more tokens than the model takes, else None."""

    def reasons(texts: list[str]) -> list[str | None]:
        limit = model.max_seq_length
        counts = model.num_tokens(texts, prompt_name=options.prompt_name, prompt=options.prompt)
        return [_length_problem(n, limit) if n > limit else None for n in counts]

    return reasons


def _as_json(model: SentenceTransformer, options: EncodeOptions) -> dict[str, Any]:
    """Return checked options as JSON values."""
    layers = resolve_layers(-1 if options.layers is None else options.layers, model.model.config.num_hidden_layers)
    pooling = options.pooling if options.pooling is None or isinstance(options.pooling, str) else [*options.pooling]
    plain = {name: int(value) if isinstance(value, np.integer) else value for name, value in vars(options).items()}
    return {**plain, "layers": layers, "pooling": pooling}
