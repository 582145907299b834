"""Files of texts -> a vector, a sparse vector, or a score for a query, of each text; memory is bounded.

A run can be resumed (see runs.py). Within a shard equal texts are computed once, and texts are sorted by length.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from minibert._utils.files import check_output
from minibert._utils.validation import FloatArray, IntArray, check_choice
from minibert.corpus import writers
from minibert.corpus.runs import Run, RunOptions, Summary, check_arguments, number_settings
from minibert.corpus.sources import InputLine, Source
from minibert.corpus.survey import SHARD_NUMBERS, texts_of
from minibert.corpus.tasks import Counts, Files, Lines, Progress, Task
from minibert.corpus.update import Earlier, compare, digests, repeated_ids
from minibert.corpus.writers import LineWriter, VectorWriter
from minibert.encode.options import EncodeOptions, SparseOptions, WindowOptions
from minibert.encode.run import EncodedTexts, TextPlan
from minibert.encode.token_plan import TokenPlan
from minibert.models.fingerprint import sha256
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.multi_vector_encoder import MultiVectorEncoder
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.sentence.sparse_encoder import SparseEncoder
from minibert.tokenizer.windows import count_tokens
from minibert.vectors.layers import resolve_layers

Options = TypeVar("Options", bound=WindowOptions)

# A text that all kinds of models can read, and how many of the weights of its sparse vector the manifest holds.
_PROBE, _PROBE_WEIGHTS = "minibert", 16


def embed_corpus(
    model: SentenceTransformer | MultiVectorEncoder,
    sources: Sequence[Source],
    output: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    **options: Any,
) -> Summary:
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
    Summary
        If this very run has ended, nothing is computed: all texts are resumed, or kept by an update.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong. An input line cannot be used with on_error="stop"; nothing was computed then. The run to
        resume, finished or not, has other settings or another input.
    OSError
        A file cannot be read or written, another process writes this output, or the folder to write holds other files.
        The folder ``<output>.parts`` keeps the shards that were computed.
    """
    fields: Any = getattr(model, "options_class", EncodeOptions)  # what `model.plan` takes
    chosen, run = _checked(embed_corpus, model, SentenceTransformer | MultiVectorEncoder, sources, options, fields)
    check_choice("dtype", dtype, writers.OUTPUT_DTYPES)
    output = os.fspath(output)
    writers.output_suffix(output)
    plan = model.plan(_quiet(chosen))
    probe = probe_vector(plan)
    numbered, of_tokens = all(source.numbered for source in sources), isinstance(plan, TokenPlan)
    place, parts = (os.path.realpath(output), writers.is_folder(output)), model.fingerprint_parts()
    writer: VectorWriter | LineWriter
    if writers.output_suffix(output) == ".jsonl":
        fields = partial(writers.vector_fields, dtype=dtype)
        writer = LineWriter(place[0], len(probe), ("embedding",), fields)
    else:
        writer = VectorWriter(*place, len(probe), dtype, numbered, sha256(parts), of_tokens)
    all_options = EncodeOptions(**vars(chosen))  # a run over vectors of tokens has the defaults of the others
    settings = {
        **vars(all_options),
        **number_settings(model.model),
        "max_seq_length": plan.windows.max_length,
        "dtype": dtype,
    }
    layers, pooling = -1 if all_options.layers is None else all_options.layers, all_options.pooling
    settings["layers"] = resolve_layers(layers, model.model.config.num_hidden_layers)
    settings["pooling"] = pooling if isinstance(pooling, str | None) else [*pooling]
    settings["truncation_side"] = model.tokenizer.truncation_side
    if isinstance(plan, TokenPlan):
        # Addresses in a repr differ from process to process.
        modules = [re.sub(r" at 0x[0-9a-fA-F]+", "", repr(module)) for module in plan.modules]
        settings |= {"multi_vector": True, "modules": modules, "shard_numbers": SHARD_NUMBERS}
    return Run(sources, _Texts(model.model, plan, writer, settings, parts, probe), run).compute()


def probe_vector(plan: TextPlan) -> FloatArray:
    """Compute the vector of a fixed text, (width,). Runs with the same model and options get the same vector.

    Of vectors of tokens it is the mean.
    """
    vector = np.asarray(_probe(plan)[0])
    return vector if vector.ndim == 1 else vector.mean(axis=0)


def sparse_corpus(
    model: SparseEncoder, sources: Sequence[Source], output: str | os.PathLike[str], **options: Any
) -> Summary:
    """Compute the sparse vector of each text of some files, and write the vectors in order into one .jsonl file.

    A line is ``{"id": ..., "indices": [...], "values": [...]}``; both lists are null for a line that cannot be used.

    Parameters
    ----------
    model : SparseEncoder
    **options
        The fields of `minibert.corpus.runs.RunOptions`, and those of `SparseOptions`, as in `SparseEncoder.encode`.
        `embed_corpus` says what is returned and raised.
    """
    chosen, run = _checked(sparse_corpus, model, SparseEncoder, sources, options, SparseOptions)
    plan = model.plan(_quiet(chosen))

    def fields(vectors: Any) -> Iterable[str]:
        pairs = ((vector.indices.tolist(), _decimals(vector.data)) for vector in vectors)
        return (writers.json_fields({"indices": indices, "values": values}) for indices, values in pairs)

    writer = LineWriter(_jsonl(output), model.get_embedding_dimension(), ("indices", "values"), fields)
    numbers = np.concatenate([_probe(plan).data, np.zeros(_PROBE_WEIGHTS, np.float32)])
    names = ("prompt_name", "prompt", "stride", "max_active_dims", "truncation")
    settings = {**{name: getattr(chosen, name) for name in names}, "max_seq_length": model.max_seq_length}
    settings |= number_settings(model.model)
    probe = np.sort(numbers)[-_PROBE_WEIGHTS:]
    return Run(sources, _Texts(model.model, plan, writer, settings, model.fingerprint_parts(), probe), run).compute()


def rerank_corpus(
    model: CrossEncoder, query: str, sources: Sequence[Source], output: str | os.PathLike[str], **options: Any
) -> Summary:
    """Compute the score of each text of some files for a query, and write the scores in order into one .jsonl file.

    A line is ``{"id": ..., "score": ...}``; the score is null for a line that cannot be used.

    Parameters
    ----------
    model : CrossEncoder
        With one label.
    query : str
    **options
        The fields of `minibert.corpus.runs.RunOptions`, and those of `WindowOptions`, as in `CrossEncoder.predict`.
        `embed_corpus` says what is returned and raised.
    """
    chosen, run = _checked(rerank_corpus, model, CrossEncoder, sources, options, WindowOptions)
    if not isinstance(query, str):
        raise TypeError(f"query is a {type(query).__name__}; expected a str.")
    if model.num_labels != 1:
        raise ValueError(f"A query is ranked by a model with one label, and this one has {model.num_labels}.")
    plan = model.plan(_quiet(chosen))

    def scores(logits: FloatArray) -> list[float]:
        return _decimals(model.activation_fn(logits).reshape(-1))

    fields = lambda logits: (writers.json_fields({"score": score}) for score in scores(logits))  # noqa: E731
    writer = LineWriter(_jsonl(output), 1, ("score",), fields)
    settings = {"query": query, **{name: getattr(chosen, name) for name in ("prompt_name", "prompt", "truncation")}}
    settings |= {"max_seq_length": model.max_seq_length, "activation_fn": repr(model.activation_fn)}
    settings |= number_settings(model.model)
    probe = np.array(scores(_probe(plan, query)))
    task = _Texts(model.model, plan, writer, settings, model.fingerprint_parts(), probe, query)
    return Run(sources, task, run).compute()


# --- what the three have in common ------------------------------------------------------------------------------------


def _checked(
    function: Any, model: object, models: Any, sources: object, options: dict[str, Any], kind: type[Options]
) -> tuple[Options, RunOptions]:
    """Check the arguments that all functions have; return the options of the encoder, and those of the run."""
    fields = RunOptions.__dataclass_fields__
    check_arguments(function, {"model": (model, models)}, sources, options, (*fields, *kind.__dataclass_fields__))
    run = RunOptions(**{name: value for name, value in options.items() if name in fields})
    return kind(**{name: value for name, value in options.items() if name not in fields}), run


def _quiet(options: Options) -> Options:
    """Return the options of a plan that neither warns about texts that are too long nor refuses them.

    A run needs to know only whether a text is cut, and texts that are too long are found before they are computed.
    """
    quiet = options.truncation in ("warn", "error")
    return dataclasses.replace(options, truncation="silent") if quiet else options


def _probe(plan: TextPlan, query: str | None = None) -> Any:
    """Compute the results of one fixed text.

    If texts are split, it is long: then windows that cannot hold any of a text's tokens are refused at once.
    """
    text = f"{_PROBE} " * (min(plan.windows.max_length, 2**16) if plan.windows.truncation == "split" else 1)
    return plan.run_at_once([text if query is None else (query, _PROBE)])


def _jsonl(output: str | os.PathLike[str]) -> str:
    check_output(output, (".jsonl",))
    return os.path.realpath(output)


def _decimals(numbers: FloatArray) -> list[float]:
    """Return float32 numbers as Python's, with the fewest digits that restore them."""
    return [float(text) for text in np.asarray(numbers).astype(np.str_).tolist()]


@dataclasses.dataclass
class _Texts(Task):
    """The task of a plan, which computes an item of each text, or with a query of each pair."""

    model: Any
    plan: Any
    writer: VectorWriter | LineWriter
    settings: dict[str, Any]
    fingerprint_parts: dict[str, Any]
    probe: FloatArray
    query: str | None = None
    known: Earlier | None = None

    def __post_init__(self) -> None:
        self.files, self.width, self.into_folder = self.writer.files, self.writer.width, self.writer.into_folder
        self.of_tokens = isinstance(self.plan, TokenPlan)

    def refuse_long(self, lines: Lines) -> None:
        if self.settings["truncation"] != "error":
            return
        windows, usable = self.plan.windows, [line for line in lines if line.text is not None]
        items = self._items(usable)
        groups = [group for _, batch in windows.of(items, range(len(items))) for group in batch]
        for line, (n, _) in zip(usable, map(count_tokens, groups), strict=True):
            if n > windows.max_length:
                line.text, line.problem = None, f"has {n} tokens, the limit is {windows.max_length} (max_seq_length)"

    def numbers(self, line: InputLine) -> int:
        # A token has at least a character.
        tokens = min(self.plan.windows.max_length, len(self.plan.windows.prompt) + len(line.text or ""))
        return self.width * tokens if self.of_tokens else 0

    def write(
        self, lines: Lines, earlier: Counts, files: Files, progress: Progress
    ) -> tuple[int, Sequence[int] | IntArray]:
        usable = [line for line in lines if line.text is not None]
        rows, record = np.zeros(len(usable), writers.ROW), np.zeros(len(lines), writers.ROW)
        rows["text"] = digests(texts_of(usable))
        # `known` has the results of the output that is updated, and `found` the row of each usable line in it, or -1:
        # the texts of `new` ones are computed, the results of `kept` ones are copied.
        found = np.full(len(usable), -1) if self.known is None else self.known.find(rows["text"])
        new, kept = np.flatnonzero(found < 0), np.flatnonzero(found >= 0)
        progress(len(lines) - len(new))
        items = self._items([usable[i] for i in new])
        if items:
            encoded: EncodedTexts = next(self.plan.run(items, chunk_size=len(items), progress=progress))
            counts = [*map(len, encoded.vectors)] if self.of_tokens else encoded.n_tokens - encoded.n_truncated
            rows["tokens"][new], rows["cut"][new] = counts, encoded.n_truncated
            results = self.writer.items(encoded.vectors)
        else:
            results = self.writer.items(self.plan.run_at_once([]))
        if self.known is not None and len(kept):
            results, computed = np.empty((len(usable), *results.shape[1:]), results.dtype), results
            results[new], results[kept] = computed, self.known.items(found[kept])
            rows["tokens"][kept], rows["cut"][kept] = (self.known.rows[name][found[kept]] for name in ("tokens", "cut"))
        self.writer.write(files, earlier.n_texts, lines, results)
        record[[line.text is not None for line in lines]] = rows
        record["id"] = digests("" if line.id is None else str(line.id) for line in lines)
        files[-1].write(record.data)
        return int(record["tokens"].sum()), rows["cut"]

    def reuse(self, scratch: Path) -> None:
        """See `Task`."""
        if np.load(self.files[-1].output, mmap_mode="r")["text"].any():
            self.known = Earlier(self.writer, scratch)

    def compared(self, shards: Sequence[Path], numbered: bool) -> tuple[int, int, int, int]:
        """See `Task`. The output may be replaced afterwards."""
        known = np.zeros(0, writers.ROW) if self.known is None else self.known.rows
        self.known = None
        return compare([known], [np.load(path, mmap_mode="r") for path in shards], numbered)

    def repeated(self, shards: Sequence[Path]) -> dict[str, int]:
        """See `Task`."""
        return repeated_ids(shards)

    def _items(self, lines: Lines) -> list[Any]:
        texts = texts_of(lines)
        return texts if self.query is None else [(self.query, text) for text in texts]
