"""The arrays of a dump in padded form, each with the name that fits it; what fits no name is noted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray, counted
from minibert.bert.packed import PackedBatch
from minibert.parity.holds import NEARER
from minibert.parity.layouts import align, expected_shape
from minibert.parity.matching import Entry, shape_of
from minibert.parity.vectors import VECTOR
from minibert.trace.names import Spec

__all__ = ["Placed", "other_names", "place"]


class Placed(NamedTuple):
    """One array: canonical name, name in the dump, array in padded form, and how it lay."""

    name: str
    given: str
    array: FloatArray
    layout: str


def other_names(entry: Entry, specs: Mapping[str, Spec]) -> list[str]:
    """Return the values that a loose name could mean."""
    if not entry.loose or entry.name == VECTOR:
        return []
    layer = specs[entry.name].layer
    return [] if layer is None else ["embeddings" if layer == 0 else f"encoder.layer.{layer - 1}"]


def place(
    entries: list[Entry],
    specs: Mapping[str, Spec],
    batch: PackedBatch,
    num_heads: int,
    error: Callable[[FloatArray, str], float],
) -> tuple[list[Placed], list[str], list[str]]:
    """Return the arrays that fit, in the order of `specs`, the names of those that do not, and notes.

    `error` gives the relative error of an array beside the value of a name. It decides between names and layouts.
    """
    misfits: list[str] = []
    notes: list[str] = []
    found: list[Placed] = []
    seen: set[str] = set()
    guessed: list[tuple[str, str]] = []
    for entry in entries:
        if entry.name not in specs:
            notes.append(f"{entry.given} holds sentence vectors; give a SentenceTransformer to compare them.")
            continue
        tried = []
        for name in (entry.name, *other_names(entry, specs)):
            aligned = align(
                entry.value,
                specs[name],
                batch,
                num_heads,
                _beside(name, error),
            )
            if aligned is not None:
                tried.append((error(aligned.array, name), name, aligned))
        if not tried:
            misfits.append(entry.given)
            notes.append(_not_compared(entry, expected_shape(specs[entry.name], batch)))
            continue
        best = min(range(len(tried)), key=lambda i: (not tried[i][0] < tried[0][0] / NEARER, i))
        _, name, aligned = tried[best]
        if name in seen:
            continue
        if entry.loose:
            guessed.append((entry.given, name))
        seen.add(name)
        found.append(Placed(name, entry.given, aligned.array, aligned.layout))
    if guessed:
        more = f" and {len(guessed) - 1} more as in the table" if len(guessed) > 1 else ""
        notes.append(f"{guessed[0][0]} was taken for {guessed[0][1]}{more}, by value.")
    order = {name: i for i, name in enumerate(specs)}
    return sorted(found, key=lambda one: order[one.name]), misfits, notes


def _beside(name: str, error: Callable[[FloatArray, str], float]) -> Callable[[FloatArray], float]:
    return lambda array: error(array, name)


def _not_compared(entry: Entry, expected: tuple[int, ...]) -> str:
    text = f"{entry.given} has shape {shape_of(entry.value)}; expected {expected}."
    size = 0 if isinstance(entry.value, list) else entry.value.size
    for factor, precision in ((2, "float64"), (0.5, "float16")):
        if size == factor * math.prod(expected) and np.ndim(entry.value) == 1:
            text += f" It is as long as {precision} numbers would be: write float32."
    if not isinstance(entry.value, list) and entry.value.shape[1:] == expected[1:]:
        text += (
            f" It has {counted(len(entry.value), 'text')}, and the inputs have {expected[0]}: were these the inputs?"
        )
    return f"{text} It was not compared."
