"""Search the vectors that `embed_corpus` wrote, with the ids and texts of the best ones; memory is bounded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from minibert._utils.files import os_reason
from minibert._utils.validation import FloatArray
from minibert.corpus import manifests, parquet
from minibert.corpus.shards import folder_of
from minibert.corpus.sources import Source, numbered_lines
from minibert.tokenizer.windows import in_chunks
from minibert.vectors.multi_vectors import MultiVectors
from minibert.vectors.search import ScoreFunction, semantic_search

_ROWS = 4096  # that are read together
_COLUMN = "embedding"

Hit = tuple[float, Any, str | None]
"""A score, an id, and the text if it is known."""


def holds_vectors(path: str) -> bool:
    """Return whether a file or folder holds vectors, as outputs of `embed_corpus` do, and not only texts."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".parquet" and os.path.isfile(path):
        try:
            return _COLUMN in parquet.column_names(path)
        except OSError as error:
            raise OSError(f"{path} cannot be read: {os_reason(error)}.") from error
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
        The manifest is damaged, or a file is not as the run has written it.
    """

    def __init__(self, path: str) -> None:
        if not os.path.exists(path):
            why = " Its run has not ended; finish that first." if folder_of(path).exists() else ""
            raise FileNotFoundError(f"{path} does not exist.{why}")
        self.path, self._suffix = os.path.normpath(path), os.path.splitext(path)[1].lower()
        beside, unfinished = Path(manifests.path_of(os.path.realpath(path))), folder_of(self.path) / "manifest.json"
        self.manifest = manifests.read(beside) or (manifests.read(unfinished) if os.path.isdir(path) else None) or {}
        manifests.check_outputs(self.manifest, beside.parent, "Delete the manifest to use the file as it is.")

    def search(
        self, query: FloatArray, top_k: int, score_function: ScoreFunction, text_column: str = "text"
    ) -> list[Hit]:
        """Find the `top_k` best vectors, best first; of equal scores the first row is first.

        Parameters
        ----------
        query : ndarray of shape (width,); of tokens, (tokens, width)
        top_k, score_function
            As in `semantic_search`.
        text_column : str
            The column of a Parquet file that holds the texts, if there is one.

        Raises
        ------
        ValueError
            The file cannot be read, or its vectors have another width.
        """
        best = list[Hit]()
        try:
            for ids, texts, vectors in self._blocks(text_column):
                if isinstance(vectors, MultiVectors):
                    usable = np.flatnonzero(np.diff(vectors.offsets))
                    corpus = vectors[usable]
                elif vectors.ndim != 2 or vectors.dtype.kind != "f":
                    raise ValueError(f"it holds {vectors.dtype} numbers of shape (n, {str(vectors.shape[1:])[1:-1]})")
                else:
                    usable = np.flatnonzero(~np.isnan(vectors[:, 0]))
                    corpus = vectors[usable].astype(np.float32)
                for hit in semantic_search(query, corpus, top_k=top_k, score_function=score_function)[0]:
                    row = usable[int(hit["corpus_id"])]
                    best.append((hit["score"], ids[row], texts[row] if texts else None))
                best = sorted(best, key=lambda hit: -hit[0])[:top_k]
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            what = f"vectors of {query.shape[-1]} numbers"
            raise ValueError(f"{self.path} cannot be searched for {what}: {os_reason(error).rstrip('.')}.") from error
        return best

    def texts(self, ids: Iterable[Any]) -> dict[str, str | None]:
        """Return the texts of some ids from the files that the run has read; None for an id that is there twice.

        Raises
        ------
        OSError, ValueError
            A file cannot be read, or has changed since.
        """
        sources = [Source(**source) for source in self.manifest.get("inputs", ())]
        if any(source.path == "-" for source in sources):
            raise OSError("they came from the standard input.")
        wanted, by_id = {str(id) for id in ids}, dict[str, str | None]()
        for line in numbered_lines(sources, self.manifest["checksums"]) if wanted and sources else ():
            if (key := str(line.id)) in wanted:
                by_id[key] = None if key in by_id else line.text
        return by_id

    def _blocks(self, text_column: str) -> Iterator[tuple[Sequence[Any], Sequence[str | None] | None, Any]]:
        """Yield the ids, the texts if they are there, and the vectors of some rows."""
        of_tokens = bool(self.manifest.get("settings", {}).get("multi_vector"))
        if self._suffix == ".npy" and of_tokens:
            array: np.ndarray[Any, Any] = np.lib.format.open_memmap(self.path, mode="r")
            first = 0
            for lines in in_chunks(map(json.loads, _lines(f"{os.path.splitext(self.path)[0]}.ids.jsonl")), _ROWS):
                offsets = np.cumsum([0, *(line["vectors"] for line in lines)])
                yield [line["id"] for line in lines], None, MultiVectors(array[first : first + offsets[-1]], offsets)
                first += int(offsets[-1])
        elif self._suffix == ".npy":
            array = np.atleast_1d(np.lib.format.open_memmap(self.path, mode="r"))
            index = f"{os.path.splitext(self.path)[0]}.ids.jsonl"
            numbers: Iterator[Any] = iter(range(len(array)))
            if os.path.exists(index):
                numbers = (json.loads(line)["id"] for line in _lines(index))
            for first in range(0, len(array), _ROWS):
                yield [*islice(numbers, _ROWS)], None, array[first : first + _ROWS]
        elif self._suffix == ".jsonl":
            dtype = self.manifest["settings"]["dtype"]  # decimals of float16 are not exactly its numbers
            for lines in in_chunks(map(json.loads, _lines(self.path)), _ROWS):
                if kept := [line for line in lines if line[_COLUMN]]:
                    vectors: Any = [np.array(line[_COLUMN], dtype) for line in kept]
                    vectors = MultiVectors.of("", vectors) if of_tokens else np.array(vectors)
                    yield [line["id"] for line in kept], None, vectors
        else:
            wanted, first = (_COLUMN, "id", text_column), 0
            for batch in parquet.batches(self.path, lambda names: [name for name in wanted if name in names]):
                valid, read = np.flatnonzero(batch[_COLUMN].is_valid()), batch.schema.names
                ids, texts = (batch[name].to_pylist() if name in read else None for name in wanted[1:])
                ids = ids or range(first, first + len(batch))
                first += len(batch)
                if len(valid):
                    column, flat = batch[_COLUMN], batch[_COLUMN].flatten()
                    if of_tokens:
                        lengths = column.value_lengths().drop_null().to_numpy()
                        of_all = flat.flatten().to_numpy().reshape(len(flat), -1)
                        vectors = MultiVectors(of_all, np.cumsum([0, *lengths]))
                    else:
                        vectors = flat.to_numpy().reshape(len(valid), -1)
                    yield [ids[row] for row in valid], texts and [texts[row] for row in valid], vectors


def _lines(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from file
