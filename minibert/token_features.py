"""Token vectors of a corpus in two files: a .npy of all tokens, read through a memory map, and an index of the texts.

The index is JSON lines beside it: first what holds for all texts, then one line per text, with the place of its tokens
in the array and everything else that `TokenVectors` has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from minibert.files import os_reason, write_whole
from minibert.models import BertModel
from minibert.ordering import in_windows
from minibert.readers import Record
from minibert.token_vectors import TokenVectors
from minibert.tokenizer import BertTokenizer
from minibert.tokens import embed_tokens
from minibert.vectors import LayerSelection, resolve_layers

__all__ = ["TokenFeatures", "tokens_path", "write_token_features"]


def tokens_path(path: str | os.PathLike[str]) -> str:
    """Return the name of the index that belongs to an .npy file of token vectors."""
    return f"{os.path.splitext(path)[0]}.tokens.jsonl"


def write_token_features(
    path: str,
    model: BertModel,
    tokenizer: BertTokenizer,
    numbered_records: Iterable[tuple[int, Record]],
    *,
    layers: LayerSelection,
    dtype: str = "float32",
    max_length: int | None = None,
    batch_size: int = 32,
) -> tuple[int, int, int]:
    """Write the hidden states of every token, a batch of texts at a time; both files appear whole or not at all.

    Parameters
    ----------
    path : str
        Of the .npy file: an array (tokens, layers, H). The index is `tokens_path`.
    model, tokenizer
        Of the same model.
    numbered_records : iterable of (int, Record)
        A record without a text is named in the index, and has no tokens.
    layers : int or ints
        Numbered as in transformers.
    dtype : {"float32", "float16"}
    max_length : int, optional
        Tokens of a text, special ones included; default, and at most: what tokenizer and model take.
    batch_size : int
        Texts computed together.

    Returns
    -------
    n_texts, n_tokens, n_cut : int
        `n_cut` texts lost some of their tokens.
    """
    chosen = resolve_layers(layers, model.config.num_hidden_layers)
    counts = [0, 0, 0]

    def write(index: BinaryIO, array: BinaryIO) -> None:
        index.write(_json_line({"layers": list(chosen), "dtype": dtype}))
        shape = (len(chosen), model.config.hidden_size)
        _write_header(array, (0, *shape), dtype)
        for window in in_windows(numbered_records, batch_size):
            texts = [record.text for _, record in window if record.text is not None]
            embedded = iter(
                embed_tokens(
                    model,
                    tokenizer,
                    texts,
                    layers=chosen,
                    layer_pooling="tokens_first",
                    truncation="silent",
                    max_length=max_length,
                )
            )
            for number, record in window:
                line: dict[str, Any] = {"id": number if record.id is None else record.id}
                line |= {"file": record.file, "line": record.line}
                if record.text is None:
                    index.write(_json_line({**line, "null": record.problem}))
                    continue
                one = next(embedded)
                index.write(_json_line({**line, "first_token": counts[1], **_description(one)}))
                array.write(one.vectors.astype(dtype).tobytes())
                counts[0] += 1
                counts[1] += len(one)
                counts[2] += one.n_truncated > 0
        array.seek(0)  # NumPy leaves room in the header for a first dimension of any size
        _write_header(array, (counts[1], *shape), dtype)

    # The index takes its name last: where it is, the array is complete.
    write_whole(tokens_path(path), lambda index: write_whole(path, lambda array: write(index, array)))
    return counts[0], counts[1], counts[2]


class TokenFeatures:
    """Read what `write_token_features` wrote: a sequence of `TokenVectors`, of which only the parts used are read.

    Parameters
    ----------
    path : str or path
        Of the .npy file.

    Attributes
    ----------
    vectors : memory map of shape (tokens, layers, H)
    layers : tuple of int
    ids : list of str or int
        Of each text.

    Raises
    ------
    ValueError, OSError
        The files are not there, or do not belong together.

    Examples
    --------
    >>> features = TokenFeatures("states.npy")  # doctest: +SKIP
    >>> features[0]  # doctest: +SKIP
    TokenVectors(6 tokens, vectors (6, 4, 384) of layers 6, 5, 4, 3)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._index = tokens_path(path)
        self.layers: tuple[int, ...] = ()
        self.ids: list[str | int] = []
        self._places: list[int] = []
        n_tokens = 0
        try:
            self.vectors: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            with open(self._index, "rb") as file:
                for number, (place, line) in enumerate(_lines(file)):
                    if number == 0:
                        self.layers = tuple(line["layers"])
                        continue
                    self.ids.append(line["id"])
                    self._places.append(place)
                    n_tokens += len(line.get("ids", ()))
        except OSError as error:
            raise OSError(f"{error.filename or path} cannot be read: {os_reason(error)}.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} and {self._index} are no token vectors of minibert: {error}.") from error
        if self.vectors.ndim != 3 or self.vectors.shape[:2] != (n_tokens, len(self.layers)):
            raise ValueError(
                f"{path} holds an array {self.vectors.shape}, but {self._index} speaks of {n_tokens} tokens and "
                f"{len(self.layers)} layers: they do not belong together."
            )

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, i: int) -> TokenVectors | None:
        """Return the tokens of text i; None for a record that had no text."""
        with open(self._index, "rb") as file:
            file.seek(self._places[i])
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
    """Yield where each line begins, and its object."""
    place = 0
    for line in file:
        yield place, json.loads(line)
        place += len(line)


def _write_header(file: BinaryIO, shape: tuple[int, ...], dtype: str) -> None:
    header: dict[str, Any] = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(file, header)


def _json_line(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode()
