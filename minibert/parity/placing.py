"""The arrays of a dump in padded form, each with the name that fits it; what fits no name is noted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray, counted
from minibert.bert.packed import PackedBatch
from minibert.parity.holds import NEARER
from minibert.parity.layouts import Aligned, align, expected_shape
from minibert.parity.matching import Entry, shape_of
from minibert.trace.names import Spec

__all__ = ["Placed", "Placement", "place"]


class Placed(NamedTuple):
    """One array: canonical name, name in the dump, array in padded form, and how it lay."""

    name: str
    given: str
    array: FloatArray
    layout: str


class Placement(NamedTuple):
    """What `place` returns: arrays in the order of the forward pass, names that do not fit, notes and warnings."""

    found: list[Placed]
    misfits: list[str]
    notes: list[str]
    warnings: list[str]


def place(
    entries: list[Entry],
    specs: Mapping[str, Spec],
    batch: PackedBatch,
    num_heads: int,
    error: Callable[[FloatArray, str], float],
) -> Placement:
    """Bring all arrays that fit into padded form.

    `error` gives the relative error of an array beside the value of a name. It decides between names and layouts.
    """
    placement = Placement([], [], [], [])
    tried: list[tuple[Entry, dict[str, Aligned]]] = []
    for entry in entries:
        if entry.name not in specs:
            placement.notes.append(f"{entry.given} holds sentence vectors; give a SentenceTransformer to compare them.")
            continue
        fitting = {}
        for name in filter(None, (entry.name, entry.before)):
            aligned = align(entry.value, specs[name], batch, num_heads, _beside(name, error))
            if aligned is not None:
                fitting[name] = aligned
        if not fitting:
            placement.misfits.append(entry.given)
            placement.notes.append(_not_compared(entry, expected_shape(specs[entry.name], batch)))
            continue
        tried.append((entry, fitting))
    from_embeddings = _counted_from_embeddings(tried, error)
    for entry, fitting in tried:
        name = entry.before if entry.before and entry.group in from_embeddings else entry.name
        placement.found.append(Placed(name, entry.given, fitting[name].array, fitting[name].layout))
        if fitting[name].by_value:
            placement.warnings.append(
                f"{entry.given} was read as {fitting[name].layout} because of its values; its shape fits the usual "
                "layout too. If the port means the usual one, its axes are exchanged."
            )
    guessed = [(entry.given, one.name) for (entry, _), one in zip(tried, placement.found, strict=True) if entry.guessed]
    if guessed:
        more = f" and {len(guessed) - 1} more as in the table" if len(guessed) > 1 else ""
        placement.notes.append(f"{guessed[0][0]} was taken for {guessed[0][1]}{more}, by value.")
    order = {name: i for i, name in enumerate(specs)}
    placement.found.sort(key=lambda one: order[one.name])
    return placement


def _counted_from_embeddings(
    tried: list[tuple[Entry, dict[str, Aligned]]], error: Callable[[FloatArray, str], float]
) -> set[str]:
    """Return the groups of names whose number 0 is the embeddings: the one way of counting must fit more arrays."""
    votes: dict[str, int] = {}
    for entry, fitting in tried:
        if not entry.before:
            if entry.group:  # the number of layers: no output of a layer that is counted from 0 has it
                votes[entry.group] = votes.get(entry.group, 0) + len(tried)
            continue
        own, before = (error(fitting[name].array, name) for name in (entry.name, entry.before))
        vote = 1 if before < own / NEARER else -1 if own < before / NEARER else 0
        votes[entry.group] = votes.get(entry.group, 0) + vote
    return {group for group, count in votes.items() if count > 0}


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
