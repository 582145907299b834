"""Files of texts -> one file of JSON lines: the sparse vector of each text, or its score for a query.

A run can be resumed (see runs.py).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from minibert._utils.files import check_output
from minibert._utils.validation import FloatArray, check_choice
from minibert.corpus.runs import (
    Counts,
    NumberedLines,
    Progress,
    RunOptions,
    ShardFile,
    Summary,
    Task,
    number_settings,
    run_shards,
)
from minibert.corpus.sources import Source, row_of
from minibert.corpus.writers import json_line
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.sparse_encoder import SparseEncoder

# A text that both kinds of model can read.
_PROBE = "minibert"
_PROBE_WEIGHTS = 16  # the largest ones, of which the manifest keeps a copy


@dataclasses.dataclass(frozen=True)
class _Results:
    """The results of some texts: the fields of each line, and the tokens of each text that were used and cut off."""

    fields: Sequence[dict[str, Any]]
    n_tokens: int
    n_cut: int


_Compute = Callable[[list[str], Progress], _Results]


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
    """Compute the sparse vector of each text of some files, and write them, in order, into one .jsonl file.

    A line is ``{"id": ..., "indices": [...], "values": [...]}``; both lists are null for a line that cannot be used.

    Parameters
    ----------
    model : SparseEncoder
    truncation : {"warn", "split", "silent"}
        As in `SparseEncoder.encode`; the summary counts the texts that were cut.
    stride, prompt_name, prompt, max_active_dims, batch_size
        As in `SparseEncoder.encode`.
    **run
        The fields of `minibert.corpus.runs.RunOptions`. `minibert.corpus.embed.embed_corpus` says what is returned
        and raised.
    """
    check_choice("truncation", truncation, ("warn", "split", "silent"))
    options = {"prompt_name": prompt_name, "prompt": prompt, "max_active_dims": max_active_dims, "stride": stride}
    how = {"batch_size": batch_size, "truncation": "split" if truncation == "split" else "silent"}
    chosen: dict[str, Any] = {**options, **how}

    def compute(texts: list[str], progress: Progress) -> _Results:
        chunk = next(model.encode_chunks(texts, chunk_size=len(texts), progress=progress, **chosen))
        fields = [{"indices": one.indices.tolist(), "values": _decimals(one.data)} for one in chunk.vectors]
        return _Results(fields, int((chunk.n_tokens - chunk.n_truncated).sum()), int((chunk.n_truncated > 0).sum()))

    # If texts are split, this text is long: windows that cannot hold any token of a text are refused at once.
    text = f"{_PROBE} " * (model.max_seq_length if truncation == "split" else 1)
    probe = next(model.encode_chunks([text], **chosen)).vectors
    largest = np.sort(np.concatenate([probe.data, np.zeros(_PROBE_WEIGHTS, np.float32)]))[-_PROBE_WEIGHTS:]
    return _run(
        model,
        output,
        sources,
        compute,
        {"indices": None, "values": None},
        model.get_embedding_dimension(),
        probe=largest,
        settings={**options, "truncation": truncation, "max_seq_length": model.max_seq_length},
        options=RunOptions(**run),
    )


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
    """Compute the score of each text of some files for a query, and write them, in order, into one .jsonl file.

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
        The fields of `minibert.corpus.runs.RunOptions`. `minibert.corpus.embed.embed_corpus` says what is returned
        and raised.
    """
    check_choice("truncation", truncation, ("warn", "silent"))
    if not isinstance(query, str):
        raise TypeError(f"query is a {type(query).__name__}; expected a str.")
    if model.num_labels != 1:
        raise ValueError(f"A query is ranked by a model with one label, and this one has {model.num_labels}.")
    text = model.resolve_prompt(prompt, prompt_name)

    def scored(texts: list[str], progress: Progress) -> tuple[FloatArray, int, int]:
        pairs = [(query, text) for text in texts]
        found = model.score_pairs(pairs, prompt=text, batch_size=batch_size, truncation="silent", progress=progress)
        scores = model.activation_fn(found.logits).reshape(-1)
        return scores, int(found.n_tokens.sum()), int((found.n_truncated > 0).sum())

    def compute(texts: list[str], progress: Progress) -> _Results:
        scores, n_tokens, n_cut = scored(texts, progress)
        return _Results([{"score": score} for score in _decimals(scores)], n_tokens, n_cut)

    return _run(
        model,
        output,
        sources,
        compute,
        {"score": None},
        1,
        probe=scored([_PROBE], lambda _: None)[0],
        settings={
            **{"query": query, "prompt_name": prompt_name, "prompt": prompt, "truncation": truncation},
            "max_seq_length": model.max_seq_length,
            "activation_fn": repr(model.activation_fn),
        },
        options=RunOptions(**run),
    )


def _run(
    model: CrossEncoder | SparseEncoder,
    output: str | os.PathLike[str],
    sources: Sequence[Source],
    compute: _Compute,
    nothing: dict[str, Any],
    width: int,
    *,
    probe: FloatArray,
    settings: dict[str, Any],
    options: RunOptions,
) -> Summary | None:
    """Run over the files; `nothing` holds the fields of a line that cannot be used."""
    check_output(output, (".jsonl",))

    class Lines(Task):
        """One line of JSON for each input line."""

        def __init__(self, path: str) -> None:
            self.files, self.width = (ShardFile(".jsonl", path),), width

        def write(
            self, result: NumberedLines, before: Counts, files: Sequence[BinaryIO], progress: Progress
        ) -> tuple[Counts, str | None]:
            texts = [line.text for _, line in result if line.text is not None]
            results = compute(texts, progress) if texts else _Results([], 0, 0)
            progress(len(result) - len(texts))
            fields, written = iter(results.fields), list[bytes]()
            for number, line in result:
                if line.text is not None:
                    written.append(json_line({"id": row_of(number, line)["id"], **next(fields)}))
                elif options.keep(line):
                    written.append(json_line({"id": row_of(number, line)["id"], **nothing}))
            files[0].write(b"".join(written))
            counts = Counts(len(written), results.n_tokens, results.n_cut, len(result) - len(written))
            return counts, model.model.ops.processor()

    return run_shards(
        output,
        sources,
        Lines,
        options=options,
        settings={**settings, **number_settings(model.model)},
        probe=probe,
    )


def _decimals(numbers: FloatArray) -> list[float]:
    """Return float32 numbers as Python's, with the fewest digits that restore them."""
    return [float(text) for text in np.asarray(numbers).astype(np.str_).tolist()]
