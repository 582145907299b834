"""The binary format of `extract_corpus`: an .npy array of all tokens, for memory mapping, and an index of JSON lines.

The index's first line holds for all texts. Then there is one line per text, with the row of its first token in the
array and all other fields of `TokenVectors`. `TokenTask` is what the two formats of tokens share.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.files import check_format, os_reason
from minibert._utils.validation import FloatArray
from minibert.checkpoint.safetensors import file_state
from minibert.corpus.sources import InputLine
from minibert.corpus.survey import texts_of
from minibert.corpus.tasks import Counts, Files, Lines, Progress, ShardFile, Task
from minibert.corpus.writers import json_line, npy_header
from minibert.models.bert import BertModel
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.windows import CHARACTERS_AT_ONCE, in_chunks
from minibert.vectors.layers import resolve_layers
from minibert.vectors.similarity import rounded
from minibert.vectors.token_vectors import TokenVectors, embed_tokens

APART: dict[str, Any] = {"layer_pooling": "tokens_first", "truncation": "silent"}
"""The options of `embed_tokens` for layers apart, and cut texts that are counted."""

_FORMAT = 1  # of the index


@dataclasses.dataclass
class TokenTask(Task):
    """What the two formats of tokens share; the fields are arguments of `extract_corpus`."""

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
        """Write a shard; see `Task`."""
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


def tokens_path(path: str | os.PathLike[str]) -> str:
    """Return the name of the index that belongs to an .npy file of token vectors."""
    return f"{os.path.splitext(path)[0]}.tokens.jsonl"


class States(TokenTask):
    """The array and its index. An input line without a text has an entry in the index, but no tokens."""

    def _open(self) -> None:
        self.layers = resolve_layers(self.layers, self.model.config.num_hidden_layers)
        first_line = json_line({"format": _FORMAT, "layers": list(self.layers), "dtype": self.dtype})
        shape = len(self.layers), self.width
        array = ShardFile(".npy", self.path, lambda counts: npy_header((counts.n_tokens, *shape), self.dtype))
        self.files = array, ShardFile(".tokens.jsonl", tokens_path(self.path), lambda counts: first_line)

    def compute(self, texts: list[str]) -> Iterable[tuple[Any, FloatArray]]:
        """See `TokenTask`."""
        how = {"layers": self.layers, "max_length": self.max_length, **APART}
        embedded = embed_tokens(self.model, self.tokenizer, texts, **how)
        return ((tokens, tokens.vectors) for tokens in embedded)

    def write_line(self, files: Files, line: InputLine, first: int, tokens: Any, vectors: FloatArray | None) -> None:
        """See `TokenTask`."""
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
