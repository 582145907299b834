"""The weights of a port's own file: how they differ from the checkpoint's, and the model that has them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from minibert._utils.files import printable
from minibert._utils.validation import FloatArray, counted, some_of
from minibert.parity.diagnosis.formulas.precision import ROUNDED, ROUNDINGS
from minibert.parity.truth import InapplicableError, Subject, rms

_ROWS = 1024
"""How many rows of a matrix are rounded to see which rounding it has."""

# A number in the middle of two rounded ones may become either: of the error of rounding, at most this share is left.
_LEFT = 0.1


def with_weights(subject: Subject, path: str | os.PathLike[str]) -> tuple[Subject, list[str]]:
    """Return a subject with the weights of a port's file or folder, and sentences on how these differ.

    Raises
    ------
    TypeError, ValueError, OSError
        As for `from_pretrained`: it cannot be read, or it has other sizes than the model.
    """
    kind: Any = type(subject.model)
    own = dataclasses.replace(subject, model=kind.from_pretrained(path, config=subject.config))
    stated, theirs, groups = subject.weights(), own.weights(), dict[str, list[str]]()
    for name, array in theirs.items():
        if name in stated and not np.array_equal(array, stated[name]):
            groups.setdefault(_difference(array, stated[name]), []).append(name)
    count = counted(sum(map(len, groups.values())), "tensor")
    told = [f"{count} of {len(theirs)} in {printable(os.fspath(path))} are not the checkpoint's"]
    told += [f"{len(names)} {words} ({some_of(names)})" for words, names in groups.items()]
    if missing := [name for name in stated if name not in theirs]:
        told.append(f"{len(missing)} are not in the file ({some_of(missing)})")
    if not groups and not missing:
        return own, []
    return own, [f"weights: {'; '.join(told)}. All that follows is computed with the weights of this file."]


def _difference(array: FloatArray, true: FloatArray) -> str:
    """Say which rounding makes a tensor from the checkpoint's, or how far they are apart."""
    if array.ndim == 2:
        rows = slice(_ROWS)
        for name, rounded in _rounded(true[rows].astype(np.float32), true):
            if rms(rounded - array[rows]) <= _LEFT * rms(true[rows] - array[rows]):
                return ROUNDED[name]
    return f"with an RMS error of about {_one_digit(rms(array - true) / (rms(true) or 1.0)):.0%}"


def _one_digit(share: float) -> float:
    """Return a share as a power of two, so that tensors with like errors are one group."""
    return float(2.0 ** np.round(np.log2(share)))


def _rounded(rows: FloatArray, whole: FloatArray) -> Iterator[tuple[str, FloatArray]]:
    for name, rounding in ROUNDINGS.items():
        try:
            yield name, rounding(rows, whole)
        except InapplicableError:
            continue
