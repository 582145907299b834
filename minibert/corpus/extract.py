"""Files of texts -> the hidden states of every token or word. Memory is bounded, and runs can be resumed (see runs.py).

There are three formats: an array and its index (token_states.py), Google's JSON lines (google_lines.py), and a table
with a row for each word and layer (words.py).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from minibert._utils.files import check_output
from minibert._utils.validation import check_choice, check_int
from minibert.corpus.google_lines import GoogleLines
from minibert.corpus.runs import Run, RunOptions, Summary, check_arguments, number_settings
from minibert.corpus.sources import Source
from minibert.corpus.token_states import APART, States, TokenFeatures
from minibert.corpus.words import WordRows
from minibert.corpus.writers import OUTPUT_DTYPES
from minibert.models.bert import BertModel
from minibert.models.fingerprint import sha256
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.vectors.layers import SUBWORD_POOLING, LayerSelection
from minibert.vectors.token_vectors import embed_tokens

__all__ = ["EXTRACT_SHARD", "EXTRACT_SUFFIXES", "TokenFeatures", "check_format_of", "extract_corpus"]

EXTRACT_SUFFIXES = {"binary": (".npy",), "google": (".jsonl", ".json"), "words": (".parquet", ".csv")}
"""The formats, and the suffixes that the output of each may have."""

EXTRACT_SHARD = 1000
"""Texts of a shard: they are computed, then saved."""


def extract_corpus(
    model: BertModel,
    tokenizer: BertTokenizer,
    sources: Sequence[Source],
    output: str | os.PathLike[str],
    *,
    format: str | None = None,
    layers: LayerSelection = (-1, -2, -3, -4),
    dtype: str = "float32",
    max_length: int | None = None,
    batch_size: int = 32,
    subwords: str = "mean",
    **run: Any,
) -> Summary:
    """Compute hidden states of every token or word of the texts in some files, and write them into one file, in order.

    Parameters
    ----------
    model, tokenizer
        Of the same model.
    sources : sequence of Source
    output : str or path
        Name of the file. For the binary format it ends in .npy: an array (tokens, layers, H), with the index
        `tokens_path` beside it. For Google's it ends in .jsonl or .json, for words in .parquet or .csv. The manifest
        ``<output>.manifest.json`` is there too.
    format : {"binary", "google", "words"}, optional
        Two files, an array and its index; the JSON lines of extract_features.py; or the table of `WordRows`. Default:
        words, if the output ends in .parquet or .csv, else binary.
    layers : int or ints
        Numbered as in transformers. With "google" numbered as in `google_layers`.
    dtype : {"float32", "float16"}
        Type of the array.
    max_length : int, optional
        Most tokens of a text, special ones included; the rest is cut off. Default: the limit of tokenizer and model.
        With "google" it is 128, or the model's limit if that is smaller.
    batch_size : int
        Texts that are computed together; not used for "words".
    subwords : str
        Of "words": how the tokens of a word become one vector, see `join_subwords`. The words are those of CoNLL and of
        lists in JSON lines or Parquet, else those of the tokenizer, as in `TokenVectors.words`.
    **run
        The fields of `minibert.corpus.runs.RunOptions`; by default a shard has 1,000 texts. With on_error="null" a bad
        line has an entry without tokens.

    Returns
    -------
    Summary
        If this very run has ended, nothing is computed: all texts are resumed, or kept by an update.

    Raises
    ------
    TypeError, ValueError, OSError
        As in `minibert.corpus.embed.embed_corpus`.
    """
    models = {"model": (model, BertModel), "tokenizer": (tokenizer, BertTokenizer)}
    check_arguments(extract_corpus, models, sources, run, RunOptions.__dataclass_fields__)
    options = RunOptions(**{"shard_size": EXTRACT_SHARD, **run})
    format = check_format_of(output, format)
    check_choice("dtype", dtype, OUTPUT_DTYPES if format != "google" else OUTPUT_DTYPES[:1])
    check_choice("subwords", subwords, SUBWORD_POOLING)
    batch_size = check_int("batch_size", batch_size, 1)
    chosen = [layers] if isinstance(layers, int | np.integer) else [*layers]
    path, own = os.path.realpath(output), dict[str, Any]()
    if format == "words":
        sources = [dataclasses.replace(source, words=True) for source in sources]
        embed: Any = partial(embed_tokens, model, tokenizer, layers=chosen, max_length=max_length, **APART)
        numbered = all(source.numbered for source in sources)
        task: Any = WordRows(path, model, embed, dtype, subwords, numbered, options.report)
        own = {"subwords": subwords}
    else:
        kind = States if format == "binary" else GoogleLines
        task = kind(path, model, tokenizer, chosen, dtype, max_length, batch_size)
    task.settings = {**number_settings(model), "format": format, "layers": list(map(int, chosen)), "dtype": dtype}
    task.settings |= {"max_length": max_length, "batch_size": batch_size, **own}
    if options.update:
        raise ValueError("update=True is for vectors of texts, not for hidden states; leave it out.")
    of_tokenizer = {"tokenizer": sha256(tokenizer.fingerprint_parts())}
    task.fingerprint_parts = {**model.fingerprint_parts(), **of_tokenizer}
    return Run(sources, task, options).compute()


def check_format_of(output: str | os.PathLike[str], format: str | None) -> str:
    """Return the format of an output, by default that of its suffix; raise if they do not fit together."""
    if format is None:
        words = EXTRACT_SUFFIXES["words"]
        return "words" if check_output(output, (*EXTRACT_SUFFIXES["binary"], *words)) in words else "binary"
    check_choice("format", format, EXTRACT_SUFFIXES)
    check_output(output, EXTRACT_SUFFIXES[format])
    return format
