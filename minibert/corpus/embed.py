"""Files of texts -> a vector, a sparse vector, or a score for a query, of each text; memory is bounded.

A run can be resumed (see runs.py). Within a shard equal texts are computed once, and texts are sorted by length.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert._utils.files import check_output
from minibert._utils.validation import FloatArray, IntArray, check_choice
from minibert.corpus.runs import RunOptions, Summary, number_settings, run_shards
from minibert.corpus.shards import Counts, Files, Lines, Progress, ShardFile, Task, Written
from minibert.corpus.sources import SHARD_NUMBERS, InputLine, Source, texts_of
from minibert.corpus.writers import OUTPUT_DTYPES, VectorWriter, is_folder, json_line, output_suffix
from minibert.encode.options import EncodeOptions, SparseOptions, WindowOptions
from minibert.encode.plan import Plan
from minibert.encode.run import EncodedTexts
from minibert.encode.token_plan import TokenPlan
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.tokenizer.windows import count_tokens
from minibert.vectors.layers import resolve_layers

if TYPE_CHECKING:
    from minibert.sentence.cross_encoder import CrossEncoder
    from minibert.sentence.multi_vector_encoder import MultiVectorEncoder
    from minibert.sentence.sparse_encoder import SparseEncoder

# A text that all kinds of models can read, and how many of the weights of its sparse vector the manifest holds.
_PROBE, _PROBE_WEIGHTS = "minibert", 16


def embed_corpus(
    model: SentenceTransformer | MultiVectorEncoder,
    sources: Sequence[Source],
    output: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    **options: Any,
) -> Summary | None:
    """Compute one vector per text of some files, and write the vectors in order into one file or a folder of files.

    Parameters
    ----------
    model : SentenceTransformer or MultiVectorEncoder
        A MultiVectorEncoder makes a vector for each token of a text, as of a document. `VectorWriter` says how a file
        holds them; ``n_tokens`` counts the vectors.
    sources : sequence of Source
    output : str or path
        Name of the file: .npy (with the ids beside it), .jsonl or .parquet. The manifest ``<output>.manifest.json`` is
        written beside it. Or the name of a folder: an empty one, or a name that ends in a separator. Each shard is a
        file there when it is computed, ``part-00000.parquet`` and so on, in the order of the texts.
    dtype : {"float32", "float16"}
        Type of the written numbers.
    **options
        The fields of `minibert.corpus.runs.RunOptions`, such as ``resume=True``. With on_error="null" a line that
        cannot be used has a vector of NaN. Also the fields of `EncodeOptions`, as in `SentenceTransformer.encode`. With
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
    # A run needs to know only whether a text is cut, and texts that are too long are found before they are computed.
    how = "silent" if chosen.truncation in ("warn", "error") else chosen.truncation
    silent = dataclasses.replace(chosen, truncation=how)
    plan: Any = model.plan(silent)
    probe, limit, of_tokens = probe_vector(plan), plan.windows.max_length, isinstance(plan, TokenPlan)
    numbered = all(source.id_column is None for source in sources)
    writer = VectorWriter(os.path.realpath(output), len(probe), dtype, numbered, is_folder(output), of_tokens)

    def refuse_long(lines: Lines) -> None:
        usable = [line for line in lines if line.text is not None]
        texts = texts_of(lines)
        groups = [group for _, batch in plan.windows.of(texts, range(len(texts))) for group in batch]
        for line, (n, _) in zip(usable, map(count_tokens, groups), strict=True):
            if n > limit:
                line.text, line.problem = None, f"has {n} tokens, the limit is {limit} (max_seq_length)"

    task = _Vectors(writer, plan)
    settings = {**vars(chosen), **number_settings(model.model), "max_seq_length": limit, "dtype": dtype}
    layers = -1 if chosen.layers is None else chosen.layers
    settings["layers"] = resolve_layers(layers, model.model.config.num_hidden_layers)
    settings["pooling"] = chosen.pooling if isinstance(chosen.pooling, str | None) else [*chosen.pooling]
    settings["truncation_side"] = model.tokenizer.truncation_side
    # Addresses in a repr differ from process to process.
    modules = [re.sub(r" at 0x[0-9a-fA-F]+", "", repr(module)) for module in plan.modules] if of_tokens else []
    settings |= {"multi_vector": True, "modules": modules, "shard_numbers": SHARD_NUMBERS} if of_tokens else {}
    refuse = refuse_long if chosen.truncation == "error" else lambda lines: None
    return run_shards(sources, task, options=run, settings=settings, probe=probe, refuse_long=refuse)


@dataclasses.dataclass
class _Vectors(Task):
    """The task of `embed_corpus`."""

    writer: VectorWriter
    plan: Plan | TokenPlan

    def __post_init__(self) -> None:
        self.files, self.width, self.into_folder = self.writer.files, self.writer.width, self.writer.into_folder

    def numbers(self, line: InputLine) -> int:
        # A token has at least a character.
        tokens = min(self.plan.windows.max_length, len(self.plan.windows.prompt) + len(line.text or ""))
        return self.width * tokens if self.writer.of_tokens else 0

    def write(self, lines: Lines, earlier: Counts, files: Files, progress: Progress) -> Written:
        texts = texts_of(lines)
        progress(len(lines) - len(texts))
        encoded = EncodedTexts(np.zeros((0, self.width), np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64))
        if texts:
            encoded = next(self.plan.run(texts, chunk_size=len(texts), progress=progress))
        vectors = encoded.vectors  # which is not copied if all lines have texts
        if len(vectors) < len(lines):
            of_tokens = self.writer.of_tokens
            vectors = np.full(len(lines) if of_tokens else (len(lines), self.width), np.nan, encoded.vectors.dtype)
            vectors[[line.text is not None for line in lines]] = encoded.vectors
        self.writer.write(files, earlier.n_texts, [line.row() for line in lines], vectors)
        cut = encoded.n_truncated
        n_tokens = sum(map(len, encoded.vectors)) if self.writer.of_tokens else int((encoded.n_tokens - cut).sum())
        return n_tokens, cut, self.plan.model.ops.processor() if texts else None


def probe_vector(plan: Plan | TokenPlan) -> FloatArray:
    """Compute the vector of a fixed text, (width,). Runs with the same model and options get the same vector.

    Of vectors of tokens it is the mean. If texts are split, this text is long: then windows that cannot hold any of a
    text's tokens are refused at once.
    """
    text = f"{_PROBE} " * (plan.windows.max_length if plan.windows.truncation == "split" else 1)
    vector = np.asarray(next(plan.run([text])).vectors[0])
    return vector if vector.ndim == 1 else vector.mean(axis=0)


# --- sparse vectors and scores ----------------------------------------------------------------------------------------


def sparse_corpus(
    model: SparseEncoder,
    sources: Sequence[Source],
    output: str | os.PathLike[str],
    *,
    truncation: str = "warn",
    stride: int = 0,
    prompt_name: str | None = None,
    prompt: str | None = None,
    max_active_dims: int | None = None,
    batch_size: int = 32,
    **run: Any,
) -> Summary | None:
    """Compute the sparse vector of each text of some files, and write the vectors in order into one .jsonl file.

    A line is ``{"id": ..., "indices": [...], "values": [...]}``; both lists are null for a line that cannot be used.

    Parameters
    ----------
    model : SparseEncoder
    truncation : {"warn", "split", "silent"}
        As in `SparseEncoder.encode`; the summary counts the texts that were cut.
    stride, prompt_name, prompt, max_active_dims, batch_size
        As in `SparseEncoder.encode`.
    **run
        The fields of `minibert.corpus.runs.RunOptions`. `embed_corpus` says what is returned and raised.
    """
    check_choice("truncation", truncation, ("warn", "split", "silent"))
    options: dict[str, Any] = {"prompt_name": prompt_name, "prompt": prompt, "stride": stride}
    options["max_active_dims"] = max_active_dims
    how = "split" if truncation == "split" else "silent"
    plan = model.plan(SparseOptions(**options, batch_size=batch_size, truncation=how))

    def compute(texts: list[str], progress: Progress) -> _Fields:
        chunk = next(plan.run(texts, chunk_size=len(texts), progress=progress))
        fields = [{"indices": vector.indices.tolist(), "values": _decimals(vector.data)} for vector in chunk.vectors]
        return fields, int((chunk.n_tokens - chunk.n_truncated).sum()), chunk.n_truncated

    # If texts are split, this text is long: windows that cannot hold any token of a text are refused at once.
    text = f"{_PROBE} " * (model.max_seq_length if truncation == "split" else 1)
    probe = next(plan.run([text])).vectors
    largest = np.sort(np.concatenate([probe.data, np.zeros(_PROBE_WEIGHTS, np.float32)]))[-_PROBE_WEIGHTS:]
    settings = {**options, "truncation": truncation, "max_seq_length": model.max_seq_length}
    settings |= number_settings(model.model)
    task = _Lines(output, model, compute, {"indices": None, "values": None}, model.get_embedding_dimension())
    return run_shards(sources, task, options=RunOptions(**run), settings=settings, probe=largest)


def rerank_corpus(
    model: CrossEncoder,
    query: str,
    sources: Sequence[Source],
    output: str | os.PathLike[str],
    *,
    truncation: str = "warn",
    prompt_name: str | None = None,
    prompt: str | None = None,
    batch_size: int = 32,
    **run: Any,
) -> Summary | None:
    """Compute the score of each text of some files for a query, and write the scores in order into one .jsonl file.

    A line is ``{"id": ..., "score": ...}``; the score is null for a line that cannot be used.

    Parameters
    ----------
    model : CrossEncoder
        With one label.
    query : str
    truncation : {"warn", "silent"}
        A text that is too long is cut; the summary counts such texts.
    prompt_name, prompt, batch_size
        As in `CrossEncoder.predict`.
    **run
        The fields of `minibert.corpus.runs.RunOptions`. `embed_corpus` says what is returned and raised.
    """
    check_choice("truncation", truncation, ("warn", "silent"))
    if not isinstance(query, str):
        raise TypeError(f"query is a {type(query).__name__}; expected a str.")
    if model.num_labels != 1:
        raise ValueError(f"A query is ranked by a model with one label, and this one has {model.num_labels}.")
    how = WindowOptions(prompt_name=prompt_name, prompt=prompt, batch_size=batch_size, truncation="silent")
    plan = model.plan(how)

    def compute(texts: list[str], progress: Progress) -> _Fields:
        pairs = [(query, text) for text in texts]
        scored = next(plan.run(pairs, chunk_size=len(pairs), progress=progress))
        scores = _decimals(model.activation_fn(scored.vectors).reshape(-1))
        cut = scored.n_truncated
        return [{"score": score} for score in scores], int((scored.n_tokens - cut).sum()), cut

    settings: dict[str, Any] = {"query": query, "prompt_name": prompt_name, "prompt": prompt, "truncation": truncation}
    settings |= {"max_seq_length": model.max_seq_length, "activation_fn": repr(model.activation_fn)}
    settings |= number_settings(model.model)
    task = _Lines(output, model, compute, {"score": None}, 1)
    probe = np.array([line["score"] for line in compute([_PROBE], lambda _: None)[0]])
    return run_shards(sources, task, options=RunOptions(**run), settings=settings, probe=probe)


_Fields = tuple[list[dict[str, Any]], int, Sequence[int] | IntArray]
"""Of some texts: the fields of each line, their tokens that were used, and how many tokens of each were cut off."""


@dataclasses.dataclass
class _Lines(Task):
    """One line of JSON for each input line; `nothing` holds the fields of a line that cannot be used."""

    output: str | os.PathLike[str]
    model: CrossEncoder | SparseEncoder
    compute: Callable[[list[str], Progress], _Fields]
    nothing: dict[str, Any]
    width: int

    def __post_init__(self) -> None:
        check_output(self.output, (".jsonl",))
        self.files = (ShardFile(".jsonl", os.path.realpath(self.output)),)

    def write(self, lines: Lines, earlier: Counts, files: Files, progress: Progress) -> Written:
        texts = texts_of(lines)
        fields, n_tokens, n_truncated = self.compute(texts, progress) if texts else ([], 0, ())
        progress(len(lines) - len(texts))
        following = iter(fields)
        for line in lines:
            files[0].write(json_line({"id": line.id, **(self.nothing if line.text is None else next(following))}))
        return n_tokens, n_truncated, self.model.model.ops.processor()


def _decimals(numbers: FloatArray) -> list[float]:
    """Return float32 numbers as Python's, with the fewest digits that restore them."""
    return [float(text) for text in np.asarray(numbers).astype(np.str_).tolist()]
