"""Sentences -> a row of a Parquet or CSV file for each word and layer. Memory is bounded; runs can be resumed."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np

from minibert._utils.validation import brief
from minibert.corpus import parquet
from minibert.corpus.sources import InputLine
from minibert.corpus.tasks import Counts, Files, Lines, Progress, ShardFile, Task
from minibert.corpus.writers import ParquetFile
from minibert.models.bert import BertModel
from minibert.models.fingerprint import sha256
from minibert.vectors.similarity import rounded
from minibert.vectors.token_vectors import TokenVectors

_OURS, _LAST = ("file", "sentence", "word_number", "word", "pieces"), ("layer", "vector")
_REMEMBERED = 2**18  # ids, so that memory is bounded
_MOST = 100  # other columns; more are not a table


@dataclasses.dataclass
class WordRows(Task):
    """The words of sentences, a row for each word and layer.

    The columns are ``file``; ``sentence``, its id; ``word_number``, from 1; ``word``; ``pieces``, its tokens with
    spaces between; the other columns of the input; ``layer``; and ``vector``, or in CSV v1 to vH. A word without a
    token, or that lost tokens because the sentence is too long, has no vector. An input line without a text or a word
    is a row without a word.

    Parameters
    ----------
    path : str
        Ends in .parquet or .csv.
    model : BertModel
    embed : callable
        `embed_tokens` of the model, with layers apart: texts, ``is_split_into_words=`` -> the tokens of each.
    dtype, subwords : str
    numbered : bool
        All ids are numbers.
    report : callable
        Called with a line of text if words have no vector.
    """

    path: str
    model: BertModel
    embed: Callable[..., list[TokenVectors]]
    dtype: str
    subwords: str
    numbered: bool
    report: Callable[[str], object]

    def __post_init__(self) -> None:
        self.width, self._others = self.model.config.hidden_size, dict[str, None]()
        self._ids, self._is_doubled = set[int](), False
        self.probe = self.embed(["minibert"])[0].vectors[0].reshape(-1)
        if self.path.lower().endswith(".csv"):
            features = [f"v{i + 1}" for i in range(self.width)]
            self.files = (ShardFile(".csv", self.path, lambda counts: _csv_line(*self._names, "layer", *features)),)
        else:
            parquet.pyarrow()
            self.files = (ParquetFile(".parquet", self.path),)

    @property
    def _names(self) -> tuple[str, ...]:
        return (*_OURS, *self._others)

    def survey(self, lines: Lines) -> None:
        """Find the other columns; report the first id that two sentences of a file have."""
        for line in lines:
            key = hash((line.file, line.id))
            if line.id is not None and key in self._ids and not self._is_doubled:
                what = f"the id {line.id!r} is there already, so the table has two sentences with it"
                self.report(f"{line.file}, line {line.line}: {what}")
                self._is_doubled = True
            elif line.id is not None and len(self._ids) < _REMEMBERED:
                self._ids.add(key)
            self._others |= dict.fromkeys(line.columns)
            if len(self._others) > _MOST or not {*_OURS, *_LAST}.isdisjoint(line.columns):
                what = f"has the columns {brief([*self._others])}; expected at most {_MOST}"
                raise ValueError(f"{line.file}, line {line.line}, {what}, and none of {', '.join((*_OURS, *_LAST))}.")
        self.settings["columns"] = [*self._others]

    def numbers(self, line: InputLine) -> int:
        """Return the most numbers that a line has."""
        return len(self.probe) * len(line.words or line.text or "")

    def write(self, lines: Lines, earlier: Counts, files: Files, progress: Progress) -> tuple[int, list[int]]:
        """Write a shard; see `Task`."""
        texts: list[Any] = [line.words or line.text for line in lines if line.text is not None]
        groups = groupby(texts, lambda text: not isinstance(text, str))
        embedded = [one for split, group in groups for one in self.embed([*group], is_split_into_words=split)]
        rows = self._rows(lines, iter(embedded))
        if self.files[0].suffix == ".csv":
            for *cells, vector in rows:
                files[0].write(_csv_line(*cells, *([""] * self.width if vector is None else vector.astype(np.str_))))
        else:
            arrow = parquet.pyarrow()
            kinds = dict.fromkeys((*self._names, *_LAST), arrow.string())
            kinds |= dict.fromkeys(("word_number", "layer", *["sentence"] * self.numbered), arrow.int64())
            kinds["vector"] = arrow.list_(arrow.from_numpy_dtype(np.dtype(self.dtype)), self.width)
            columns = [*zip(*rows, strict=True)] or [()] * len(kinds)
            arrays = [arrow.array(column, kind) for column, kind in zip(columns, kinds.values(), strict=True)]
            metadata = {"minibert": json.dumps({"fingerprint": sha256(self.fingerprint_parts)})}
            table = arrow.Table.from_arrays(arrays, schema=arrow.schema(kinds, metadata))
            with parquet.writer(files[0], table.schema) as writer:
                writer.write_table(table)
        progress(len(lines))
        return sum(map(len, embedded)), [tokens.n_truncated for tokens in embedded]

    def _rows(self, lines: Lines, embedded: Iterator[TokenVectors]) -> Iterator[tuple[Any, ...]]:
        """Yield the cells of each row; report words without a vector."""
        for line in lines:
            first = line.file, line.id if self.numbered or line.id is None else str(line.id)
            if line.text is None:
                yield (*first, *[None] * len(self._names))
                continue
            tokens = next(embedded)
            words = tokens.words(self.subwords)
            if not len(words):  # an empty sentence counts, too
                yield (*first, *[None] * len(self._names))
            pieces = [" ".join(tokens.tokens[part]) for part in words.tokens]
            if lost := [word for i, word in enumerate(words.words) if not pieces[i] and i not in tokens.cut_words]:
                self.report(f"{line.file}, line {line.line}: no vectors for words without tokens, {brief(lost)}")
            if tokens.cut_words:
                what = f"no vectors for {len(tokens.cut_words)} words beyond the limit of tokens"
                self.report(f"{line.file}, line {line.line}: {what}")
            others = [line.columns.get(name, [None] * len(words)) for name in self._others]
            vectors = rounded(words.vectors, np.dtype(self.dtype))
            for number, (word, *cells) in enumerate(zip(words.words, pieces, *others, strict=True)):
                for layer, vector in zip(tokens.layers, vectors[number], strict=True):
                    yield *first, number + 1, word, *cells, layer, vector if pieces[number] else None


def _csv_line(*cells: object) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue().encode()
