"""Arrays that are right, and have the name of another value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from minibert._utils.validation import FloatArray, counted
from minibert.parity.finding import Finding
from minibert.parity.rows import Row
from minibert.parity.vectors import VECTOR
from minibert.trace.names import Names

__all__ = ["NEARER", "with_holds"]

NEARER = 100.0
"""A value is taken for another one if it is nearer to it by this factor."""

_EXCHANGED = ", queries and keys exchanged"

Error = Callable[[FloatArray, str], float]
"""The relative error of an array, beside the true value of a name."""


def with_holds(
    rows: list[Row], arrays: Sequence[FloatArray], names: Names, error: Error, within: Callable[[Row], bool]
) -> tuple[list[Row], list[Finding]]:
    """Find arrays that are the value of another name; all wrong rows must be such, or nothing is said."""
    far = [i for i, row in enumerate(rows) if not within(row)]
    if any(rows[i].name == VECTOR for i in far):
        return rows, []
    found: dict[int, str] = {}
    for i in far:
        name = _nearest(rows[i], arrays[i], names, error)
        if name is None:
            return rows, []
        found[i] = name
    changed = [dataclasses.replace(row, holds=found.get(i, "")) for i, row in enumerate(rows)]
    return changed, [_finding([changed[i] for i in far], names.sizes.num_hidden_layers)] if far else []


def _nearest(row: Row, array: FloatArray, names: Names, error: Error) -> str | None:
    spec = names.specs[row.name]
    best, least = None, min(row.relative / NEARER, 5e-3)
    if not np.isfinite(row.relative):
        return None
    if spec.kind == "pairs" and error(array.swapaxes(2, 3), row.name) < least:
        return f"{row.name}{_EXCHANGED}"
    for name, other in names.specs.items():
        if name == row.name or (other.kind, other.width) != (spec.kind, spec.width):
            continue
        near = name.endswith(".input") or not name.startswith("encoder.layer.") or name.count(".") == 2
        if not near and other.layer != spec.layer:
            continue
        found = error(array, name)
        if found < least:
            best, least = name, found
    return best


def _finding(rows: list[Row], depth: int) -> Finding:
    def number(name: str) -> int | None:
        if name == "embeddings":
            return 0
        parts = name.split(".")
        return int(parts[2]) + 1 if len(parts) == 3 and parts[0] == "encoder" else None

    numbers = [(number(row.name), number(row.holds)) for row in rows]
    shifts = {held - own if own is not None and held is not None else None for own, held in numbers}
    names = tuple(row.name for row in rows)
    if len(shifts) == 1 and None not in shifts:
        (shift,) = shifts
        text = (
            f"The values are right, but their names are not: hidden_states.i holds hidden_states.i{shift:+d} "
            f"({counted(len(rows), 'name')}). hidden_states.0 is the output of the embeddings after their LayerNorm, "
            f"hidden_states.{depth} the output of the last layer."
        )
        return Finding(text, "H1.late" if shift == -1 else "", names, 1.0, "Count from the output of the embeddings.")
    listed = ", ".join(f"{row.given} holds {row.holds}" for row in rows[:4])
    text = f"The values are right, but belong to other names: {listed}."
    if all(row.holds.endswith(_EXCHANGED) for row in rows):
        text = f"Queries and keys are exchanged: {', '.join(row.given for row in rows[:4])}."
        return Finding(text, "", names, 1.0, "Scores and probs are (B, A, queries, keys).")
    if any(row.holds.endswith(".input") for row in rows):
        text += " LayerNorm.input is the sum before a LayerNorm: it was dumped before the norm, or the norm is missing."
    return Finding(text, "", names, 1.0, "Dump the value that the name means; see trace/README.md.")
