"""Files of texts -> the hidden states of every token or word. Memory is bounded, and runs can be resumed (see runs.py).

The binary format is two files: an .npy array of all tokens, for memory mapping, and an index of JSON lines beside it.
The index's first line holds for all texts. Then there is one line per text, with the row of its first token in the
array and all other fields of `TokenVectors`.

The google format is the JSON lines of Google's extract_features.py (google-research/bert): every token of a text or a
pair, with the values of some layers. The field names (``linex_index`` too), the rounding to 6 decimals, the " ||| "
between the texts of a pair, and the way to cut them are the same. Layers are numbered as there: 0 is the first layer's
output. So positive numbers are one less than in transformers; negative ones are equal.

The words format is a table with a row for each word and layer; words.py has it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.files import check_format, check_output, os_reason
from minibert._utils.validation import FloatArray, check_choice, check_int
from minibert.checkpoint.safetensors import file_state
from minibert.corpus.runs import Run, RunOptions, Summary, check_arguments, number_settings
from minibert.corpus.sources import InputLine, Source
from minibert.corpus.survey import texts_of
from minibert.corpus.tasks import Counts, Files, Lines, Progress, ShardFile, Task
from minibert.corpus.words import WordRows
from minibert.corpus.writers import OUTPUT_DTYPES, json_line, npy_header
from minibert.encode.run import packed
from minibert.models.bert import BertModel
from minibert.models.fingerprint import sha256
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.windows import CHARACTERS_AT_ONCE, in_chunks
from minibert.vectors.layers import SUBWORD_POOLING, LayerSelection, resolve_layers
from minibert.vectors.similarity import rounded
from minibert.vectors.token_vectors import TokenVectors, embed_tokens

EXTRACT_SUFFIXES = {"binary": (".npy",), "google": (".jsonl", ".json"), "words": (".parquet", ".csv")}
"""The formats, and the suffixes that the output of each may have."""

EXTRACT_SHARD = 1000
"""Texts of a shard: they are computed, then saved."""

_FORMAT = 1  # of the index
# Layers apart, and cut texts counted.
_APART: dict[str, Any] = {"layer_pooling": "tokens_first", "truncation": "silent"}
_GOOGLE_LENGTH = 128  # tokens: the default of extract_features.py
_PAIR = re.compile(r"^(.*) \|\|\| (.*)$")


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
        embed: Any = partial(embed_tokens, model, tokenizer, layers=chosen, max_length=max_length, **_APART)
        numbered = all(source.numbered for source in sources)
        task: Any = WordRows(path, model, embed, dtype, subwords, numbered, options.report)
        own = {"subwords": subwords}
    else:
        kind = _States if format == "binary" else _GoogleLines
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


@dataclasses.dataclass
class _TokenTask(Task):
    """What the two formats share; the fields are arguments of `extract_corpus`."""

    path: str
    model: BertModel
    tokenizer: BertTokenizer
    layers: Sequence[int]
    dtype: str
    max_length: int | None
    batch_size: int

    def __post_init__(self) -> None:
        self.width = self.model.config.hidden_size
        self._open()
        ((_, vectors),) = self.compute(["minibert"])
        self.probe = vectors[0].reshape(-1)  # of the first token

    def _open(self) -> None:
        """Set what `compute` and `write_line` need."""
        raise NotImplementedError

    def compute(self, texts: list[str]) -> Iterable[tuple[Any, FloatArray]]:
        """Compute the tokens of each text, and their vectors (S, layers, H)."""
        raise NotImplementedError

    def write_line(self, files: Files, line: InputLine, first: int, tokens: Any, vectors: FloatArray | None) -> None:
        """Write an input line; `first` is the row of its first token. Without a text there are no tokens."""
        raise NotImplementedError

    def write(self, lines: Lines, earlier: Counts, files: Files, progress: Progress) -> tuple[int, list[int]]:
        n_tokens, n_truncated = 0, list[int]()
        for chunk in in_chunks(lines, self.batch_size, lambda line: len(line.text or ""), CHARACTERS_AT_ONCE):
            texts = texts_of(chunk)
            results = iter(self.compute(texts) if texts else ())
            for line in chunk:
                tokens, vectors = (None, None) if line.text is None else next(results)
                self.write_line(files, line, earlier.n_tokens + n_tokens, tokens, vectors)
                if tokens is not None:
                    n_tokens += len(tokens)
                    n_truncated.append(tokens.n_truncated)
            progress(len(chunk))
        return n_tokens, n_truncated


# --- the binary format ------------------------------------------------------------------------------------------------


def tokens_path(path: str | os.PathLike[str]) -> str:
    """Return the name of the index that belongs to an .npy file of token vectors."""
    return f"{os.path.splitext(path)[0]}.tokens.jsonl"


class _States(_TokenTask):
    """The array and its index. An input line without a text has an entry in the index, but no tokens."""

    def _open(self) -> None:
        self.layers = resolve_layers(self.layers, self.model.config.num_hidden_layers)
        first_line = json_line({"format": _FORMAT, "layers": list(self.layers), "dtype": self.dtype})
        shape = len(self.layers), self.width
        array = ShardFile(".npy", self.path, lambda counts: npy_header((counts.n_tokens, *shape), self.dtype))
        self.files = array, ShardFile(".tokens.jsonl", tokens_path(self.path), lambda counts: first_line)

    def compute(self, texts: list[str]) -> Iterable[tuple[Any, FloatArray]]:
        how = {"layers": self.layers, "max_length": self.max_length, **_APART}
        embedded = embed_tokens(self.model, self.tokenizer, texts, **how)
        return ((tokens, tokens.vectors) for tokens in embedded)

    def write_line(self, files: Files, line: InputLine, first: int, tokens: Any, vectors: FloatArray | None) -> None:
        row = line.row()
        if vectors is not None:
            row |= {"first_token": first} | {name: getattr(tokens, name) for name in _FIELDS}
            row |= {name: row[name].tolist() for name in _ARRAYS} | {"cut_words": sorted(tokens.cut_words)}
            files[0].write(rounded(vectors, np.dtype(self.dtype)).tobytes())
        files[1].write(json_line(row))


class TokenFeatures:
    """A sequence of `TokenVectors`, read from the files of `minibert extract`. Only texts that are used are read.

    Parameters
    ----------
    path : str or path
        The .npy file.

    Attributes
    ----------
    vectors : memory map of shape (tokens, layers, H)
    layers : tuple of int
    ids : list of str, int or None
        The id of each text; None if it could not be read.

    Raises
    ------
    ValueError, OSError
        The files do not exist, cannot be read, or do not belong together.

    Examples
    --------
    >>> from pathlib import Path
    >>> from minibert import BertModel, BertTokenizer
    >>> from minibert.corpus.extract import TokenFeatures, extract_corpus
    >>> from minibert.corpus.sources import Source
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> model, tokenizer = BertModel.from_pretrained(name), BertTokenizer.from_pretrained(name)
    >>> Path("texts.txt").write_text("A cat sleeps on the mat.")
    24
    >>> summary = extract_corpus(model, tokenizer, [Source("texts.txt", "text")], "states.npy")
    >>> features = TokenFeatures("states.npy")
    >>> features[0]
    TokenVectors(9 tokens, vectors (9, 4, 384) of layers 6, 5, 4, 3)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._index = tokens_path(path)
        self.layers: tuple[int, ...] = ()
        self.ids: list[str | int | None] = []
        self._offsets: list[int] = []
        n_tokens = offset = 0
        try:
            self.vectors: npt.NDArray[Any] = np.lib.format.open_memmap(os.fspath(path), mode="r")
            with open(self._index, "rb") as file:
                self._state = file_state(file)
                for data in file:
                    line = json.loads(data)
                    if not offset:
                        check_format(line, _FORMAT, self._index)
                        self.layers = tuple(line["layers"])
                    else:
                        self.ids.append(line["id"])
                        self._offsets.append(offset)
                        n_tokens += len(line.get("ids", ()))
                    offset += len(data)
        except OSError as error:
            raise OSError(f"{error.filename or path} cannot be read: {os_reason(error)}.") from error
        except (ValueError, KeyError, TypeError) as error:
            reason = str(error).rstrip(".")
            raise ValueError(f"{path} and {self._index} cannot be read as token vectors: {reason}.") from error
        if self.vectors.ndim != 3 or self.vectors.shape[:2] != (n_tokens, len(self.layers)):
            files = f"{path}, {self.vectors.shape}, and {self._index}, with {n_tokens} tokens,"
            raise ValueError(f"{files} do not belong together.")

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, i: int) -> TokenVectors | None:
        """Return the tokens of text i; None for an input line without a text."""
        with open(self._index, "rb") as file:
            if file_state(file) != self._state:
                raise ValueError(f"{self._index} has changed since it was opened; open it again.")
            file.seek(self._offsets[i])
            line = json.loads(file.readline())
        if "null" in line:
            return None
        n, first = len(line["ids"]), line["first_token"]
        fields = {name: line[name] for name in _FIELDS}
        fields |= {name: np.array(line[name], dtype=kind) for name, kind in _ARRAYS.items()}
        fields |= {"tokens": tuple(line["tokens"]), "word_ids": tuple(line["word_ids"])}
        fields |= {"offsets": fields["offsets"].reshape(-1, 2), "cut_words": frozenset(line["cut_words"])}
        return TokenVectors(vectors=self.vectors[first : first + n], layers=self.layers, **fields)

    def __iter__(self) -> Iterator[TokenVectors | None]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"TokenFeatures({len(self)} texts, vectors {self.vectors.shape} {self.vectors.dtype})"


# The fields of `TokenVectors` in the index, in the order of a line, and the types of those that are arrays.
_FIELDS = ("text", "tokens", "ids", "offsets", "word_ids", "special", "n_truncated", "cut_words")
_ARRAYS = {"ids": np.int64, "offsets": np.int64, "special": np.bool_}


# --- the google format ------------------------------------------------------------------------------------------------


class _GoogleLines(_TokenTask):
    """One line of JSON for each input line."""

    def _open(self) -> None:
        config, self.files = self.model.config, (ShardFile(".jsonl", self.path),)
        self.states = google_layers(self.layers, config.num_hidden_layers)
        least, most = self.tokenizer.num_special_tokens_to_add(pair=True), config.max_length
        self.limit = min(_GOOGLE_LENGTH, most) if self.max_length is None else self.max_length
        if not least <= self.limit <= most:
            raise ValueError(f"max_length={self.limit}; expected {least} to {most} (max_position_embeddings).")

    def compute(self, texts: list[str]) -> Iterable[tuple[Any, FloatArray]]:
        encodings = [_encode(self.tokenizer, text, self.limit) for text in texts]
        batch = packed(self.model.config, encodings)
        steps = (states for _, states in self.model.states(batch, self.states))
        # float64, because Python's `round` needs it
        stacked = [np.stack([states[i] for i in self.states], axis=1, dtype=np.float64) for states in steps]
        return zip(encodings, np.split(np.concatenate(stacked), batch.cu_seqlens[1:-1]), strict=True)

    def write_line(self, files: Files, line: InputLine, first: int, tokens: Any, vectors: FloatArray | None) -> None:
        features = None
        if vectors is not None:
            pairs = zip(tokens.tokens, vectors, strict=True)
            features = [{"token": token, "layers": self._layers(rows)} for token, rows in pairs]
        files[0].write(f"{json.dumps({'linex_index': line.number, 'features': features})}\n".encode())

    def _layers(self, rows: npt.NDArray[Any]) -> list[dict[str, Any]]:
        pairs = zip(self.layers, rows, strict=True)
        return [{"index": layer, "values": [round(value, 6) for value in row.tolist()]} for layer, row in pairs]


def google_layers(layers: Sequence[int], num_hidden_layers: int) -> tuple[int, ...]:
    """Convert Google's numbers of layers to numbers of hidden states: i -> i + 1, and -1 -> L.

    Raises
    ------
    ValueError
        A number is not in [-L, L).
    """
    L = num_hidden_layers
    for layer in layers:
        if not -L <= layer < L:
            raise ValueError(f"layers={layer}; expected 0 to {L - 1}, or -{L} to -1, in Google's numbering.")
    return tuple(layer % L + 1 for layer in layers)


def _encode(tokenizer: BertTokenizer, text: str, limit: int) -> Encoding:
    """Return the tokens of a line, cut as Google's script cuts them."""
    pair = _PAIR.match(text.strip())
    parts = pair.groups() if pair else (text.strip(),)
    (whole,) = tokenizer.encodings(*([part] for part in parts), truncation=False)
    sequences = np.array([-1 if sequence is None else sequence for sequence in whole.sequence_ids])
    special, *places = (np.flatnonzero(sequences == sequence) for sequence in range(-1, len(parts)))
    kept = [min(len(place), limit) for place in places]
    while sum(kept) > limit - len(special):
        longest = 0 if len(kept) == 1 or kept[0] > kept[1] else 1  # of two equally long texts the second is cut
        kept[longest] -= 1
    left = (positions[:length] for positions, length in zip(places, kept, strict=True))
    made = whole.take(np.sort(np.concatenate([special, *left])))
    return dataclasses.replace(made, n_truncated=len(whole) - len(made))
