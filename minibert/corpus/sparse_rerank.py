"""Files of texts -> one file of JSON lines with the sparse vector of each text, or its score for a query.

A run can be resumed (see runs.py).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minibert._utils.files import check_output
from minibert._utils.validation import FloatArray, check_choice
from minibert.corpus.runs import RunOptions, Summary, number_settings, run_shards
from minibert.corpus.shards import Counts, Files, NumberedLines, Progress, ShardFile, Task, Written
from minibert.corpus.sources import Source, row_of
from minibert.corpus.writers import json_line
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.sparse_encoder import SparseEncoder

# A text that both kinds of model can read.
_PROBE = "minibert"
_PROBE_WEIGHTS = 16  # the largest ones, of which the manifest keeps a copy


_Results = tuple[list[dict[str, Any]], int, int]
"""Of some texts: the fields of each line, their tokens that were used, and how many texts were cut."""


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
        return fields, int((chunk.n_tokens - chunk.n_truncated).sum()), int((chunk.n_truncated > 0).sum())

    # If texts are split, this text is long: windows that cannot hold any token of a text are refused at once.
    text = f"{_PROBE} " * (model.max_seq_length if truncation == "split" else 1)
    probe = next(model.encode_chunks([text], **chosen)).vectors
    largest = np.sort(np.concatenate([probe.data, np.zeros(_PROBE_WEIGHTS, np.float32)]))[-_PROBE_WEIGHTS:]
    settings = {**options, "truncation": truncation, "max_seq_length": model.max_seq_length}
    task = _Lines(model, compute, {"indices": None, "values": None}, RunOptions(**run), model.get_embedding_dimension())
    return task.run(sources, output, settings, largest)


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
        The fields of `minibert.corpus.runs.RunOptions`. `minibert.corpus.embed.embed_corpus` says what is returned
        and raised.
    """
    check_choice("truncation", truncation, ("warn", "silent"))
    if not isinstance(query, str):
        raise TypeError(f"query is a {type(query).__name__}; expected a str.")
    if model.num_labels != 1:
        raise ValueError(f"A query is ranked by a model with one label, and this one has {model.num_labels}.")
    text = model.resolve_prompt(prompt, prompt_name)

    def compute(texts: list[str], progress: Progress) -> _Results:
        pairs = [(query, text) for text in texts]
        found = model.score_pairs(pairs, prompt=text, batch_size=batch_size, truncation="silent", progress=progress)
        scores = _decimals(model.activation_fn(found.vectors).reshape(-1))
        return [{"score": score} for score in scores], int(found.n_tokens.sum()), int((found.n_truncated > 0).sum())

    settings = {
        **{"query": query, "prompt_name": prompt_name, "prompt": prompt, "truncation": truncation},
        "max_seq_length": model.max_seq_length,
        "activation_fn": repr(model.activation_fn),
    }
    task = _Lines(model, compute, {"score": None}, RunOptions(**run), 1)
    probe = np.array([line["score"] for line in compute([_PROBE], lambda _: None)[0]])
    return task.run(sources, output, settings, probe)


@dataclasses.dataclass
class _Lines(Task):
    """One line of JSON for each input line; `nothing` holds the fields of a line that cannot be used."""

    model: CrossEncoder | SparseEncoder
    compute: Callable[[list[str], Progress], _Results]
    nothing: dict[str, Any]
    options: RunOptions
    width: int

    def run(
        self, sources: Sequence[Source], output: str | os.PathLike[str], settings: dict[str, Any], probe: FloatArray
    ) -> Summary | None:
        """Run the task over the files."""
        check_output(output, (".jsonl",))
        settings = {**settings, **number_settings(self.model.model)}
        return run_shards(output, sources, self._into, options=self.options, settings=settings, probe=probe)

    def _into(self, path: str) -> _Lines:
        self.files = (ShardFile(".jsonl", path),)
        return self

    def write(self, result: NumberedLines, before: Counts, files: Files, progress: Progress) -> Written:
        texts = [line.text for _, line in result if line.text is not None]
        fields, n_tokens, n_cut = self.compute(texts, progress) if texts else ([], 0, 0)
        progress(len(result) - len(texts))
        found, written = iter(fields), list[bytes]()
        for number, line in result:
            if line.text is not None or self.options.keep(line):
                values = self.nothing if line.text is None else next(found)
                written.append(json_line({"id": row_of(number, line)["id"], **values}))
        files[0].write(b"".join(written))
        return Counts(len(written), n_tokens, n_cut, len(result) - len(written)), self.model.model.ops.processor()


def _decimals(numbers: FloatArray) -> list[float]:
    """Return float32 numbers as Python's, with the fewest digits that restore them."""
    return [float(text) for text in np.asarray(numbers).astype(np.str_).tolist()]
