"""Files of texts -> one file of the hidden states of every token, in bounded memory, with resume (see runs.py)."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minibert._utils.files import check_output
from minibert._utils.validation import check_choice
from minibert.corpus.encoders import number_settings
from minibert.corpus.google_features import google_lines
from minibert.corpus.parts import Counts, Part
from minibert.corpus.readers import InputLine, Source, check_sources
from minibert.corpus.runs import Append, Output, Summary, run_shards
from minibert.corpus.survey import BadLines
from minibert.corpus.token_features import TokenFeatureWriter
from minibert.corpus.writers import OUTPUT_DTYPES
from minibert.models.bert_model import BertModel
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.vectors.layers import LayerSelection

__all__ = ["EXTRACT_FORMATS", "EXTRACT_SHARD", "EXTRACT_SUFFIXES", "extract_corpus"]

EXTRACT_FORMATS = ("binary", "google")
"""An .npy array of all tokens with an index beside it (token_features.py), or JSON lines (google_features.py)."""

EXTRACT_SUFFIXES = {"binary": (".npy",), "google": (".jsonl", ".json")}
"""The suffixes that the output of each format may have."""

EXTRACT_SHARD = 1000
"""Texts of a shard: they are computed, then saved."""

_GOOGLE_LENGTH = 128  # tokens: the default of extract_features.py
_LINES = "part-features.jsonl"


def extract_corpus(
    model: BertModel,
    tokenizer: BertTokenizer,
    sources: Sequence[Source],
    output: str | os.PathLike[str],
    *,
    format: str = "binary",
    layers: LayerSelection = (-1, -2, -3, -4),
    dtype: str = "float32",
    max_length: int | None = None,
    batch_size: int = 32,
    resume: bool = False,
    on_error: str = "stop",
    shard_size: int = EXTRACT_SHARD,
    settings: dict[str, Any] | None = None,
    show_progress: bool = False,
    report: Callable[[str], object] = print,
) -> Summary | None:
    """Compute hidden states of every token of the texts in some files and write them, in order, into one file.

    Parameters
    ----------
    model, tokenizer
        Of the same model.
    sources : sequence of Source
    output : str or path
        Name of the file. For the binary format it ends in .npy: an array (tokens, layers, H), with the index
        `minibert.corpus.token_features.tokens_path` beside it. For Google's it ends in .jsonl or .json. The manifest
        ``<output>.manifest.json`` is there too.
    format : {"binary", "google"}
        See `EXTRACT_FORMATS`.
    layers : int or ints
        Numbered as in transformers. With "google" numbered as in `minibert.corpus.google_features.google_layers`.
    dtype : {"float32", "float16"}
        Type of the array.
    max_length : int, optional
        Most tokens of a text, special ones included; the rest is cut off. Default: the limit of tokenizer and model.
        With "google" it is 128, or the model's limit if that is smaller.
    batch_size : int
        Texts that are computed together.
    resume, on_error, settings, show_progress, report
        As in `minibert.corpus.embed.embed_corpus`. With on_error="null" a bad line has an entry without tokens.
    shard_size : int
        Most texts of a shard; fewer if they are long. A crash loses at most one shard.

    Returns
    -------
    Summary, or None if resume finds that this very run has ended

    Raises
    ------
    TypeError, ValueError, OSError
        As in `minibert.corpus.embed.embed_corpus`.
    """
    bad_lines, output = BadLines(on_error, report), os.fspath(output)
    check_choice("format", format, EXTRACT_FORMATS)
    check_output(output, EXTRACT_SUFFIXES[format])
    check_choice("dtype", dtype, OUTPUT_DTYPES)
    check_sources(sources)
    chosen = [layers] if isinstance(layers, int | np.integer) else [*layers]
    width = model.config.hidden_size

    def processors() -> tuple[str]:
        return (model.ops.processor(),)

    if format == "google":
        limit = min(_GOOGLE_LENGTH, model.config.max_position_embeddings) if max_length is None else max_length
        lines = _GoogleLines(model, tokenizer, bad_lines, chosen, limit, batch_size)
        probe = lines.probe()

        def make(path: str) -> Output:
            return Output((Part(_LINES, path),), lines.compute, width, processors)

    else:
        writer = TokenFeatureWriter(model, tokenizer, chosen, dtype, max_length, batch_size)
        states = _States(writer, bad_lines)
        probe = writer.probe()

        def make(path: str) -> Output:
            return Output(writer.parts(path), states.compute, width, processors)

    return run_shards(
        output,
        sources,
        make,
        settings={
            **(settings or {}),
            **number_settings(model),
            "format": format,
            "layers": list(map(int, chosen)),
            "dtype": dtype,
            "max_length": max_length,
            "batch_size": batch_size,
            "on_error": on_error,
        },
        probe=probe,
        bad_lines=bad_lines,
        too_long=None,
        shard_size=shard_size,
        resume=resume,
        show_progress=show_progress,
    )


@dataclasses.dataclass(frozen=True)
class _States:
    writer: TokenFeatureWriter
    bad_lines: BadLines

    def compute(
        self, chunk: list[tuple[int, InputLine]], before: Counts, append: Append, progress: Callable[[int], object]
    ) -> Counts:
        kept = _kept(chunk, self.bad_lines)
        n_tokens = n_cut = 0
        for n_texts, tokens, cut in self.writer.write(append, before.n_tokens, kept):
            n_tokens, n_cut = n_tokens + tokens, n_cut + cut
            progress(n_texts)
        progress(len(chunk) - len(kept))
        return Counts(len(kept), n_tokens, n_cut, len(chunk) - len(kept))


@dataclasses.dataclass(frozen=True)
class _GoogleLines:
    model: BertModel
    tokenizer: BertTokenizer
    bad_lines: BadLines
    layers: list[int]
    limit: int
    batch_size: int

    def probe(self) -> np.ndarray:
        """Compute the values of a fixed text's first token; this raises for layers and lengths that the model lacks."""
        line = next(self._lines([(0, InputLine("minibert", None, "", 1))]))[0]
        return np.array([layer["values"] for layer in json.loads(line)["features"][0]["layers"]]).reshape(-1)

    def compute(
        self, chunk: list[tuple[int, InputLine]], before: Counts, append: Append, progress: Callable[[int], object]
    ) -> Counts:
        kept = _kept(chunk, self.bad_lines)
        n_tokens = n_cut = 0
        for line, tokens, cut in self._lines(kept):
            append(_LINES, f"{line}\n".encode())
            n_tokens, n_cut = n_tokens + tokens, n_cut + (cut > 0)
            progress(1)
        progress(len(chunk) - len(kept))
        return Counts(len(kept), n_tokens, n_cut, len(chunk) - len(kept))

    def _lines(self, input_lines: Sequence[tuple[int, InputLine]]) -> Any:
        return google_lines(
            self.model,
            self.tokenizer,
            ((number, input_line.text) for number, input_line in input_lines),
            layers=self.layers,
            max_length=self.limit,
            batch_size=self.batch_size,
        )


def _kept(chunk: Sequence[tuple[int, InputLine]], bad_lines: BadLines) -> list[tuple[int, InputLine]]:
    return [
        (number, input_line) for number, input_line in chunk if input_line.problem is None or bad_lines.keep(input_line)
    ]
