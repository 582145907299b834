"""Files of texts -> one vector per text, in one file or in a folder of files; memory is bounded.

A run can be resumed (see runs.py). Within a shard equal texts are computed once, and texts are sorted by length.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from minibert._utils.validation import FloatArray, check_choice
from minibert.corpus.runs import RunOptions, Summary, number_settings, run_shards
from minibert.corpus.shards import Counts, Files, NumberedLines, Progress, Task, Written
from minibert.corpus.sources import Source, row_of
from minibert.corpus.writers import OUTPUT_DTYPES, VectorWriter, is_folder, output_suffix
from minibert.sentence.encoding import EncodedTexts, EncodeOptions
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.vectors.layers import resolve_layers

Results = tuple[EncodedTexts, str]
"""The results of the texts of a shard, and the name of the processor that has computed them (`Ops.processor`)."""


_Computed = tuple[NumberedLines, Results | None]


class Encoder(Protocol):
    """Computes the vectors of shards: one after the other, or several at a time."""

    def submit(self, texts: Sequence[str], progress: Progress) -> Callable[[], Results]:
        """Begin to compute the vectors of one or more texts, and return a function that waits for them."""
        ...

    def has_room(self, begun: int) -> bool:
        """Return whether to submit another shard before the oldest of the `begun` shards is saved."""
        ...


class Workers(Protocol):
    """Processes elsewhere; `start` turns them into the `Encoder` of a run."""

    def start(self, options: EncodeOptions, probe: FloatArray, processor: str) -> Encoder:
        """Let each worker load its model, and return the encoder that uses the workers.

        Parameters
        ----------
        options : EncodeOptions
        probe : ndarray of shape (width,)
            The vector that this process's model has for a fixed text (`probe_vector`). Each worker must have the same.
        processor : str
            The name of what this process computes with, see `Ops.processor`.
        """
        ...


def embed_corpus(
    model: SentenceTransformer,
    sources: Sequence[Source],
    output: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    workers: Workers | None = None,
    **options: Any,
) -> Summary | None:
    """Compute one vector per text of some files, and write the vectors in order into one file or a folder of files.

    Parameters
    ----------
    model : SentenceTransformer
    sources : sequence of Source
    output : str or path
        Name of the file: .npy (with the ids beside it), .jsonl or .parquet. The manifest ``<output>.manifest.json`` is
        written beside it. Or the name of a folder, which exists and is empty, or whose name ends in a separator: each
        shard is a file there when it is computed, ``part-00000.parquet`` and so on. The order of the names is that of
        the texts.
    dtype : {"float32", "float16"}
        Type of the written numbers.
    workers : Workers, optional
        Processes elsewhere that compute the vectors, such as `minibert.integrations.ray.RayWorkers`. This
        process still reads and writes all files, and the files are the same.
    **options
        The fields of `minibert.corpus.runs.RunOptions`, such as ``resume=True``. With on_error="null" a line that
        cannot be used has a vector of NaN. And those of `EncodeOptions`, as in `SentenceTransformer.encode`. With
        truncation="error" a text that is too long counts as an input line that cannot be used.

    Returns
    -------
    Summary, or None if resume finds that this very run has ended

    Raises
    ------
    TypeError, ValueError
        An argument is wrong. An input line cannot be used with on_error="stop"; nothing was computed then. The run to
        resume, finished or not, has other settings or another input.
    OSError
        A file cannot be read or written, another process writes this output, or the folder to write holds other files.
        The folder ``<output>.parts`` keeps the shards that were computed.
    """
    output = os.fspath(output)
    fields = RunOptions.__dataclass_fields__
    run = RunOptions(**{name: value for name, value in options.items() if name in fields})
    chosen = EncodeOptions(**{name: value for name, value in options.items() if name not in fields})
    check_choice("dtype", dtype, OUTPUT_DTYPES)
    output_suffix(output)
    into_folder = is_folder(output)
    long_texts = chosen.truncation == "error"
    if long_texts:
        chosen = dataclasses.replace(chosen, truncation="silent")
    probe = probe_vector(model, chosen)
    numbered = all(source.id_column is None for source in sources)
    # A run needs to know only whether a text is cut; the problem of a text that is too long needs its whole length.
    how = {"silent": "warn"} if long_texts else {"warn": "silent"}
    how_to = dataclasses.replace(chosen, truncation=how.get(chosen.truncation, chosen.truncation))

    def make(path: str) -> Task:
        encoder = (
            _LocalEncoder(model, how_to)
            if workers is None
            else workers.start(how_to, probe, model.model.ops.processor())
        )
        writer = VectorWriter(path, len(probe), dtype, numbered, into_folder)
        return _Vectors(encoder, writer, run, model.max_seq_length if long_texts else None)

    return run_shards(
        output,
        sources,
        make,
        options=run,
        settings={
            **_as_json(model, chosen),
            **number_settings(model.model),
            "max_seq_length": model.max_seq_length,
            "too_long": "error" if long_texts else "as truncation says",
            "dtype": dtype,
        },
        probe=probe,
        too_long=_too_long(model, chosen) if long_texts else None,
    )


@dataclasses.dataclass(frozen=True)
class _LocalEncoder:
    """The encoder that is this process's model. A shard is computed when its results are asked for."""

    model: SentenceTransformer
    options: EncodeOptions

    def submit(self, texts: Sequence[str], progress: Progress) -> Callable[[], Results]:
        chunks = self.model.encode_chunks(texts, chunk_size=len(texts), progress=progress, **vars(self.options))
        return lambda: (next(chunks), self.model.model.ops.processor())

    def has_room(self, begun: int) -> bool:
        return False  # nothing is computed while this process reads


class _Vectors(Task):
    """The task of `embed_corpus`; `limit` is the most tokens of a text, or None if longer texts are cut."""

    def __init__(self, encoder: Encoder, writer: VectorWriter, run: RunOptions, limit: int | None) -> None:
        self._encoder, self._writer, self._run, self._limit = encoder, writer, run, limit
        self.files, self.width, self.into_folder = writer.files, writer.width, writer.into_folder
        self.has_room = encoder.has_room  # type: ignore[method-assign]

    def begin(self, chunk: NumberedLines, progress: Progress) -> Callable[[], _Computed]:
        texts = [input_line.text for _, input_line in chunk if input_line.text is not None]
        progress(len(chunk) - len(texts))
        wait = self._encoder.submit(texts, progress) if texts else lambda: None
        return lambda: (chunk, wait())

    def write(self, result: _Computed, before: Counts, files: Files, progress: Progress) -> Written:
        chunk, results = result
        encoded, processor = results or (None, None)
        rows, indices, next_index, n_tokens, n_cut = list[dict[str, Any]](), list[int](), 0, 0, 0
        for number, input_line in chunk:
            index = -1
            if input_line.text is not None and encoded is not None:
                index, next_index = next_index, next_index + 1
                cut = int(encoded.n_truncated[index])
                if cut and self._limit is not None:
                    problem = _length_problem(int(encoded.n_tokens[index]), self._limit)
                    input_line, index = dataclasses.replace(input_line, problem=problem), -1
                else:
                    n_tokens += int(encoded.n_tokens[index]) - cut
                    n_cut += cut > 0
            if index >= 0 or self._run.keep(input_line):
                rows.append(row_of(number, input_line))
                indices.append(index)
        if encoded is not None and indices == list(range(len(encoded.vectors))):
            vectors = encoded.vectors  # which is not copied
        else:
            vectors = np.full((len(rows), self.width), np.nan, dtype=np.float32)
            found = np.array(indices, dtype=np.int64) >= 0
            if encoded is not None:
                vectors[found] = encoded.vectors[[index for index in indices if index >= 0]]
        self._writer.write(files, before.n_texts, rows, vectors)
        return Counts(len(rows), n_tokens, n_cut, len(chunk) - len(rows)), processor


def probe_vector(model: SentenceTransformer, options: EncodeOptions) -> FloatArray:
    """Compute the vector of a fixed text, (width,). Runs with the same model and options get the same vector.

    If texts are split, this text is long: then windows that cannot hold any of a text's tokens are refused at once.
    """
    text = "minibert " * (model.max_seq_length if options.truncation == "split" else 1)
    vector: FloatArray = np.asarray(next(model.encode_chunks([text], **vars(options))).vectors[0])
    return vector


def _length_problem(n_tokens: int, limit: int) -> str:
    return f"has {n_tokens} tokens, the limit is {limit} (max_seq_length)"


def _too_long(model: SentenceTransformer, options: EncodeOptions) -> Callable[[list[str]], list[str | None]]:
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
