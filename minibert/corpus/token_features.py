"""Token vectors of a corpus in two files: an .npy of all tokens, read by memory mapping, and an index of the texts.

The index is a file of JSON lines beside it. Its first line holds for all texts. Then there is one line per text, with
the row of its first token in the array and all other fields of `TokenVectors`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from minibert._utils.files import check_format, os_reason
from minibert.corpus.parts import Part
from minibert.corpus.readers import InputLine
from minibert.corpus.survey import row_of
from minibert.corpus.writers import json_line, npy_header
from minibert.models.bert_model import BertModel
from minibert.sentence.batching import in_chunks
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.windows import CHARACTERS_AT_ONCE
from minibert.vectors.layers import LayerSelection, resolve_layers
from minibert.vectors.token_vectors import TokenVectors, embed_tokens

__all__ = ["TokenFeatureWriter", "TokenFeatures", "tokens_path"]

_FORMAT = 1  # of the index
_VECTORS, _INDEX = "part-states.npy", "part-states.tokens.jsonl"


def tokens_path(path: str | os.PathLike[str]) -> str:
    """Return the name of the index that belongs to an .npy file of token vectors."""
    return f"{os.path.splitext(path)[0]}.tokens.jsonl"


class TokenFeatureWriter:
    """Compute hidden states of every token, a batch of texts at a time -> the parts of a file (see journal.py).

    Parameters
    ----------
    model, tokenizer
        Of the same model.
    layers : int or ints
        Numbered as in transformers.
    dtype : {"float32", "float16"}
    max_length : int, optional
        Most tokens of a text, special ones included. Default and maximum: the limit of tokenizer and model.
    batch_size : int
        Texts that are computed together.

    Raises
    ------
    TypeError, ValueError
        The model does not have a layer.
    """

    def __init__(
        self,
        model: BertModel,
        tokenizer: BertTokenizer,
        layers: LayerSelection,
        dtype: str,
        max_length: int | None,
        batch_size: int,
    ) -> None:
        self._model, self._tokenizer, self._max_length = model, tokenizer, max_length
        self._layers = resolve_layers(layers, model.config.num_hidden_layers)
        self._dtype, self._batch_size = dtype, batch_size

    def parts(self, path: str) -> tuple[Part, ...]:
        """Return the array, then the index. Parts are renamed in this order, so the array is there if the index is."""
        shape = (len(self._layers), self._model.config.hidden_size)
        index_header = json_line({"format": _FORMAT, "layers": list(self._layers), "dtype": self._dtype})
        return (
            Part(_VECTORS, path, lambda counts: npy_header((counts.n_tokens, *shape), self._dtype)),
            Part(_INDEX, tokens_path(path), lambda counts: index_header),
        )

    def probe(self) -> npt.NDArray[Any]:
        """Compute the vectors of a fixed text's first token."""
        return self._embed(["minibert"])[0].vectors[0].reshape(-1)

    def write(
        self,
        append: Callable[[str, bytes | memoryview], None],
        first_token: int,
        input_lines: Iterable[tuple[int, InputLine]],
    ) -> Iterator[tuple[int, int, int]]:
        """Append input lines to the parts. One without a text has an entry in the index, but no tokens.

        Parameters
        ----------
        append : callable
            Takes the name of a part, and bytes.
        first_token : int
            Row of the next token in the array.
        input_lines : iterable of (int, InputLine)

        Yields
        ------
        n_texts, n_tokens, n_cut : int
            Counts of one batch: its input lines, its tokens, and its texts that were cut.
        """
        for chunk in in_chunks(input_lines, self._batch_size, _characters, CHARACTERS_AT_ONCE):
            embedded = iter(self._embed([input_line.text for _, input_line in chunk if input_line.text is not None]))
            n_tokens = n_cut = 0
            for number, input_line in chunk:
                row = row_of(number, input_line)
                if input_line.text is None:
                    append(_INDEX, json_line(row))
                    continue
                one = next(embedded)
                append(_INDEX, json_line({**row, "first_token": first_token + n_tokens, **_description(one)}))
                append(_VECTORS, one.vectors.astype(self._dtype).tobytes())
                n_tokens += len(one)
                n_cut += one.n_truncated > 0
            first_token += n_tokens
            yield len(chunk), n_tokens, n_cut

    def _embed(self, texts: list[str]) -> list[TokenVectors]:
        return embed_tokens(
            self._model,
            self._tokenizer,
            texts,
            layers=self._layers,
            layer_pooling="tokens_first",
            truncation="silent",
            max_length=self._max_length,
        )


class TokenFeatures:
    """Read the files of `minibert extract`: a sequence of `TokenVectors`. Only the texts that are used are read.

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
    >>> from minibert.corpus.extract import extract_corpus
    >>> from minibert.corpus.readers import Source
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
        n_tokens = 0
        try:
            self.vectors: npt.NDArray[Any] = np.lib.format.open_memmap(os.fspath(path), mode="r")
            with open(self._index, "rb") as file:
                for number, (offset, line) in enumerate(_lines(file)):
                    if number == 0:
                        check_format(line, _FORMAT, self._index)
                        self.layers = tuple(line["layers"])
                        continue
                    self.ids.append(line["id"])
                    self._offsets.append(offset)
                    n_tokens += len(line.get("ids", ()))
        except OSError as error:
            raise OSError(f"{error.filename or path} cannot be read: {os_reason(error)}.") from error
        except (ValueError, KeyError, TypeError) as error:
            reason = str(error).rstrip(".")
            raise ValueError(f"{path} and {self._index} cannot be read as token vectors: {reason}.") from error
        if self.vectors.ndim != 3 or self.vectors.shape[:2] != (n_tokens, len(self.layers)):
            raise ValueError(
                f"{path} holds an array {self.vectors.shape}, but {self._index} has {n_tokens} tokens and "
                f"{len(self.layers)} layers: they do not belong together."
            )

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, i: int) -> TokenVectors | None:
        """Return the tokens of text i; None for an input line without a text."""
        with open(self._index, "rb") as file:
            file.seek(self._offsets[i])
            line = json.loads(file.readline())
        if "null" in line:
            return None
        n, first = len(line["ids"]), line["first_token"]
        return TokenVectors(
            text=line["text"],
            tokens=tuple(line["tokens"]),
            ids=np.array(line["ids"], dtype=np.int64),
            offsets=np.array(line["offsets"], dtype=np.int64).reshape(-1, 2),
            word_ids=tuple(line["word_ids"]),
            special=np.array(line["special"], dtype=np.bool_),
            vectors=self.vectors[first : first + n],
            layers=self.layers,
            n_truncated=line["n_truncated"],
            cut_words=frozenset(line["cut_words"]),
        )

    def __iter__(self) -> Iterator[TokenVectors | None]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"TokenFeatures({len(self)} texts, vectors {self.vectors.shape} {self.vectors.dtype})"


def _characters(numbered: tuple[int, InputLine]) -> int:
    return len(numbered[1].text or "")


def _description(one: TokenVectors) -> dict[str, Any]:
    return {
        "text": one.text,
        "tokens": list(one.tokens),
        "ids": one.ids.tolist(),
        "offsets": one.offsets.tolist(),
        "word_ids": list(one.word_ids),
        "special": one.special.tolist(),
        "n_truncated": one.n_truncated,
        "cut_words": sorted(one.cut_words),
    }


def _lines(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the offset of each line, and its object."""
    offset = 0
    for line in file:
        yield offset, json.loads(line)
        offset += len(line)
