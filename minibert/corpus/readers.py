"""Search the vectors that `embed_corpus` wrote, with the ids and texts of the best ones; memory is bounded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert._utils.files import explained, os_reason
from minibert._utils.validation import FloatArray
from minibert.corpus import manifests, parquet
from minibert.corpus.embed import probe_vector
from minibert.corpus.input_lines import usable_lines
from minibert.corpus.raw_lines import as_text
from minibert.corpus.run_folder import folder_of
from minibert.corpus.runs import RunOptions
from minibert.corpus.sources import InputLine, Source
from minibert.corpus.survey import numbered_lines
from minibert.models.fingerprint import differences
from minibert.sentence.multi_vector_encoder import MultiVectorEncoder
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.sentence.vector_model import VectorModel
from minibert.tokenizer.windows import in_chunks
from minibert.vectors.multi_vectors import MultiVectors
from minibert.vectors.search import ScoreFunction, semantic_search

_ROWS, _NUMBERS = 4096, 2**22  # that are read together
_COLUMNS = ("embedding", "embeddings", "vector", "vectors")  # of vectors, the first one that a file has

Hit = tuple[float, Any, str | None]
"""A score, an id, and the text if it is known."""

_Row = tuple[Any, Any, str | None]
"""The vector, or the vectors of the tokens; an id; and the text if it is there."""


def holds_vectors(path: str) -> bool:
    """Return whether a file or folder holds vectors, as outputs of `embed_corpus` do, and not only texts."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".parquet" and os.path.isfile(path):
        with explained(f"{path} cannot be read"):
            return bool({*_COLUMNS} & {*parquet.columns_of_lists(path)})
    return suffix == ".npy" or os.path.isdir(path) or (suffix == ".jsonl" and os.path.exists(manifests.path_of(path)))


class VectorFile:
    """The vectors of a file or folder. Rows without a vector are never found.

    Parameters
    ----------
    path : str
        .npy, .jsonl, .parquet, or a folder of Parquet files. The folder may still grow.

    Attributes
    ----------
    manifest : dict
        That of the run that has written it; empty if the vectors are from elsewhere.

    Raises
    ------
    OSError, ValueError
        The manifest is damaged, or a file is not as the run has written it, or does not have its name yet.
    """

    def __init__(self, path: str) -> None:
        if not os.path.exists(path):
            why = " Its run has not ended; finish that first." if folder_of(path).exists() else ""
            raise FileNotFoundError(f"{path} does not exist.{why}")
        self.path, self._suffix = os.path.normpath(path), os.path.splitext(path)[1].lower()
        beside, unfinished = Path(manifests.path_of(os.path.realpath(path))), folder_of(self.path) / "manifest.json"
        self.manifest = manifests.read(beside) or {}
        if not self.manifest and (running := manifests.read(unfinished)):
            if "finished" in running:
                what = "Its run gives the files their names just now, or was ended at that moment"
                raise ValueError(f"{path} cannot be read. {what}: run it again, with resume=True or update=True.")
            self.manifest = running if os.path.isdir(path) else {}
        way_on = "Compute it again: give its run --update --recompute, or start a new one."
        manifests.check_outputs(self.manifest, Path(os.path.realpath(path)), way_on)

    def search(
        self,
        query: FloatArray,
        top_k: int,
        score_function: ScoreFunction,
        text_columns: Sequence[str] | None = None,
        report: Callable[[str], object] = print,
    ) -> list[Hit]:
        """Find the `top_k` best vectors, best first; of equal scores the first row is first.

        Parameters
        ----------
        query : ndarray of shape (width,); of tokens, (tokens, width)
        top_k, score_function
            As in `semantic_search`.
        text_columns : sequence of str, optional
            The columns of a Parquet file that hold the texts. Default: "text" if it is there, else the texts are read
            from the files that the run has read.
        report : callable
            Called with a line of text if these cannot be read, or have changed; the texts are then None.

        Raises
        ------
        ValueError
            The file cannot be read, its ids do not fit its vectors, or a vector has another width, NaN, infinity or
            null; the message names the row, from 0.
        """
        best, width, of_tokens = list[tuple[float, int, Any, str | None]](), query.shape[-1], query.ndim > 1
        try:
            rows = self._checked_rows(text_columns or ("text",), width, of_tokens)
            for chunk in in_chunks(rows, _ROWS, lambda row: row[1].size, _NUMBERS):
                vectors = [row[1] for row in chunk]
                corpus: Any = MultiVectors.of("", vectors) if of_tokens else np.stack(vectors).astype(np.float32)
                for hit in semantic_search(query, corpus, top_k=top_k, score_function=score_function)[0]:
                    number, _, *about = chunk[int(hit["corpus_id"])]
                    best.append((hit["score"], number, *about))
                best = sorted(best, key=lambda hit: -hit[0])[:top_k]
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            what = f"vectors of {width} numbers"
            raise ValueError(f"{self.path} cannot be searched for {what}: {os_reason(error).rstrip('.')}.") from error
        texts = dict[int, str | None]()
        try:
            if text_columns is None:
                texts = self._texts({number: id for _, number, id, text in best if text is None})
        except (OSError, ValueError) as error:
            report(f"texts are not shown: {error}")
        return [(score, id, texts.get(number) if text is None else text) for score, number, id, text in best]

    def load_model(self, model: str | None = None, **options: Any) -> tuple[VectorModel, dict[str, Any]]:
        """Load the model that made the vectors, and return it with the options of `encode_query` that its run had.

        Parameters
        ----------
        model : str, optional
            Name or folder; default: the one that the manifest names, which is that of ``minibert embed``.
        **options
            Further arguments of the class. Those that change numbers are as the manifest says, if there is one; another
            value is refused.

        Returns
        -------
        SentenceTransformer or MultiVectorEncoder
        options : dict
            Empty without a manifest. With the prompt of the texts, unless the model has one for queries.

        Raises
        ------
        ValueError
            No model is named, or it gives another vector of a fixed text. An option differs from the manifest. The file
            does not hold what `embed_corpus` wrote.
        """
        settings = self.manifest.get("settings", {"pooling": None})
        if "pooling" not in settings:
            raise ValueError(
                f"{self.path} does not hold sentence vectors, but what another verb than embed has written."
            )
        name = model or settings.get("model")
        if name is None:
            raise ValueError(f"no manifest beside {self.path} says which model has made it; name one with model=.")
        if model is None:
            options["revision"] = options.get("revision") or settings.get("revision")
        if not self.manifest:
            return SentenceTransformer(name, **options), {}
        parts = self.manifest.get("fingerprint_parts", {})
        fixed = {"compute_type": settings.get("compute_type", "float32"), "prompts": settings.get("prompts")}
        if any(parts.get("prompts", {}).values()):
            fixed["prompts"] = parts["prompts"]
        fixed |= {name: parts[name] for name in ("default_prompt_name", "truncate_dim") if parts.get(name) is not None}
        for option, value in fixed.items():
            if options.get(option) not in (None, value, settings.get(option)):
                raise ValueError(f"{option}={options[option]!r}, but {self.path} has {option}={value!r}. Leave it out.")
        options |= fixed
        loaded: Any = (MultiVectorEncoder if settings.get("multi_vector") else SentenceTransformer)(name, **options)
        chosen = {field: settings[field] for field in loaded.options_class.__dataclass_fields__ if field in settings}
        if chosen.get("layers") == [loaded.config.num_hidden_layers]:
            chosen["layers"] = None  # the default; some poolings take no other
        if not settings.get("multi_vector"):  # that has a length of its own for queries
            longest = settings.get("max_seq_length", loaded.max_seq_length)
            loaded.max_seq_length = min(longest, loaded.config.longest)
        own, differ = loaded.fingerprint_parts(), ""
        for part in differences(parts, own) if parts else ():
            if part != "results":  # other bits are no other model
                differ = differ or manifests.difference(part, parts, f"and {name} has", own)
        probe = probe_vector(loaded.plan(loaded.options_class(**chosen)))
        if differ or not manifests.same_probe(probe, self.manifest["probe"]):
            made = f"{self.path} was made with {settings.get('model', 'a model')}"
            differ = f"which has {differ}" if differ else f"and {name} has other vectors"
            raise ValueError(f"{made}, {differ}. Leave out model= and revision=.")
        if loaded.prompts.get("query"):
            chosen |= {"prompt": None, "prompt_name": None}
        return loaded, chosen

    def _texts(self, ids: dict[int, Any]) -> dict[int, str | None]:
        """Return the texts of some rows, given their ids, from the files that the run has read.

        Raises
        ------
        OSError, ValueError
            A file cannot be read, or has changed since.
        """
        sources = [Source(**source) for source in self.manifest.get("inputs", ())]
        if any(source.path == "-" for source in sources):
            raise OSError("they came from the standard input.")
        settings = self.manifest.get("settings", {})
        how = {name: settings[name] for name in ("on_error", "on_empty") if name in settings}
        options = RunOptions(**how)
        lines = numbered_lines(sources, self.manifest["checksums"]) if ids and sources else iter(())
        if how.get("on_error") == "skip" and settings.get("truncation") == "error":
            # Only the model knows which lines are too long and have no row, so the ids say which line a row has.
            rows, found = {str(id): row for row, id in ids.items()}, dict[int, str | None]()
            for line in lines:
                if (row := rows.get(str(line.id))) is not None:
                    found[row] = None if row in found else line.text
            return found
        kept = enumerate(line for line in lines if options.action(line) != "skip")
        return {row: line.text for row, line in kept if row in ids and str(line.id) == str(ids[row])}

    def _checked_rows(self, text_columns: Sequence[str], width: int, of_tokens: bool) -> Iterator[Any]:
        """Yield the number of each row that has a vector, and the row; raise for one that cannot be searched."""
        # Decimals of float16 are not exactly its numbers.
        dtype = self.manifest["settings"]["dtype"] if self._suffix == ".jsonl" else None
        for number, (values, id, text) in enumerate(self._rows(text_columns, of_tokens)):
            try:
                is_array = isinstance(values, np.ndarray) and values.dtype.kind != "O"
                vectors = values if is_array else np.array([] if values is None else [*values], dtype)
                total = vectors.sum(dtype=np.float64)
            except (ValueError, TypeError) as error:
                raise ValueError(f"row {number} does not hold vectors: {error}") from error
            if not vectors.size or (np.isnan(total) and not of_tokens and np.isnan(vectors).all()):
                continue  # a row without a vector
            if vectors.dtype.kind != "f" or vectors.ndim != 1 + of_tokens or vectors.shape[-1] != width:
                raise ValueError(f"row {number} holds {vectors.dtype} numbers of shape {vectors.shape}")
            if not np.isfinite(total):
                raise ValueError(f"row {number} holds NaN, infinity or null")
            yield number, vectors, id, text

    def _rows(self, text_columns: Sequence[str], of_tokens: bool) -> Iterator[_Row]:
        """Yield all rows; the vector is None if there is none."""
        first = 0
        if self._suffix == ".npy":
            array = np.atleast_1d(np.lib.format.open_memmap(self.path, mode="r")).view(np.ndarray)
            index = f"{os.path.splitext(self.path)[0]}.ids.jsonl"
            usual = ({"id": row} for row in range(len(array)))
            for line in map(json.loads, _lines(index)) if of_tokens or os.path.exists(index) else usual:
                last = first + line.get("vectors", 1)
                if last <= len(array):  # else the counts differ
                    yield array[first:last] if of_tokens else array[first], line["id"], None
                first = last
            if first != len(array):
                raise ValueError(f"{index} is for {first} vectors, and the array has {len(array)}")
        elif self._suffix == ".jsonl":
            yield from ((line[_COLUMNS[0]], line["id"], None) for line in map(json.loads, _lines(self.path)))
        else:
            wanted = ("id", *text_columns, *_COLUMNS)
            for batch in parquet.batches(self.path, lambda names: [name for name in wanted if name in names]):
                found = {name: batch[name] for name in wanted if name in batch.schema.names}
                column = next((found[name] for name in _COLUMNS if name in found), None)
                if column is None:
                    raise ValueError(f"it has no column {', '.join(_COLUMNS)}")
                ids = found["id"].to_pylist() if "id" in found else range(first, first + len(batch))
                parts = [map(as_text, found[name].to_pylist()) for name in text_columns if name in found]
                source = Source(self.path, "parquet", text_columns)
                texts = map(source.joined, zip(*parts, strict=True)) if parts else [None] * len(batch)
                yield from zip(column.to_numpy(zero_copy_only=False), map(as_text, ids), texts, strict=True)
                first += len(batch)


class LinesToSearch:
    """The texts of a file that holds no vectors; empty ones are left out. A ValueError if there is none."""

    def __init__(self, source: Source) -> None:
        self._lines = [line for line in usable_lines(source) if not line.empty]
        if not self._lines:
            raise ValueError(f"{source.name} does not hold a text to search in; give a file with texts.")

    def search(
        self,
        model: VectorModel,
        query: str,
        top_k: int,
        score_function: ScoreFunction,
        show_progress: bool | str = False,
        **options: Any,
    ) -> list[tuple[float, InputLine]]:
        """Compute the vector of each text, and find the `top_k` best, best first; the options are those of `encode`.

        A prompt is that of the query. `score_function` is as in `semantic_search`.
        """
        vector = model.encode_query(query, **options)
        options |= {"prompt": None, "prompt_name": None, "show_progress_bar": show_progress}
        corpus = model.encode_document([line.text or "" for line in self._lines], **options)
        hits = semantic_search(vector, corpus, top_k=top_k, score_function=score_function)[0]
        return [(float(hit["score"]), self._lines[int(hit["corpus_id"])]) for hit in hits]


def _lines(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from file
