"""`fingerprint`: one SHA-256 of everything that decides the numbers that a model computes.

It is that of JSON, of `fingerprint_parts`: settings as they are, and digests of weights, of the tokenizer, and of the
bytes of some results. Names, folders, formats of files, threads, processors and shared weights are not in it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minibert.bert.ops import Ops, Table
from minibert.bert.weights import Weights
from minibert.models.stored import named_arrays

NOT_COMPARED = "not compared"
"""Instead of a digest of results, if NumPy has computed them: their bits depend on its BLAS, and on the threads."""

_OF_LABELS = ("id2label", "problem_type")  # of the config; they change no number

_digests: weakref.WeakKeyDictionary[Weights, dict[str | None, str]] = weakref.WeakKeyDictionary()


class Fingerprinted:
    """A model that has a fingerprint."""

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return what `fingerprint` is computed from, by name, as JSON can hold it: to see what has changed."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Return the SHA-256 of weights, settings, and the bytes of five results, as 64 hexadecimal digits.

        Two models with the same fingerprint give the same bits. Whatever changes a result changes it: a weight, the
        tokenizer, the pooling, a prompt, a limit, the compute type, or a version of minibert that rounds otherwise. The
        model's name, its folder, the machine and the number of threads do not. With the backend "numpy" it is the same
        on all machines too, but the bits of results are not in it.
        """
        return sha256(self.fingerprint_parts())


def sha256(value: Any) -> str:
    """Return the SHA-256 of a value that JSON can hold, or of a text."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=lambda number: number.item())
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_of_arrays(named: Iterable[tuple[str, Table]]) -> str:
    """Return the SHA-256 of arrays: their names, shapes and bytes. A table in a file is read in pieces.

    Dtypes are not in it: arrays that differ in the dtype alone, and have the same bytes, need different names.
    """
    digest = hashlib.sha256()
    for name, array in named:
        digest.update(f"{name} {tuple(array.shape)}\n".encode())
        for piece in [array] if isinstance(array, np.ndarray) else array.pieces():
            digest.update(np.ascontiguousarray(piece, piece.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def sha256_of_results(ops: Ops, results: Iterable[Any]) -> str:
    """Return the SHA-256 of the bytes of arrays that ops have computed, or `NOT_COMPARED`."""
    return sha256_of_arrays((f"{a.dtype}", a) for a in map(np.asarray, results)) if has_bits(ops) else NOT_COMPARED


def has_bits(ops: Ops) -> bool:
    """Return whether ops compute the same bits in any batch, with any number of threads, on every processor."""
    return ops.processor() != platform.machine()  # ops with the products of NumPy name the kind of processor only


def parts_of_weights(weights: Weights, head: str | None, compute_type: str) -> dict[str, Any]:
    """Return the parts of a model without results: its config, its weights, and the numbers that it multiplies."""
    known = _digests.setdefault(weights, {})  # they do not change
    if head not in known:
        known[head] = sha256_of_arrays(named_arrays(weights, head))
    config = {f"config.{name}": value for name, value in weights.config.to_dict().items() if name not in _OF_LABELS}
    return {"compute_type": compute_type, **config, "weights": known[head]}


def differences(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """Return the names of the parts in which two models differ, in the order in which they are to be told."""
    return [name for name in {**mine, **theirs} if theirs.get(name) != mine.get(name)]
