"""The errors of arrays in units, the level of each row, arrays with the name of another value, and the verdict."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, counted
from minibert.bert.packed import PackedBatch
from minibert.parity.diagnosis.findings import Finding
from minibert.parity.diagnosis.forward import state_name
from minibert.parity.diagnosis.mistakes import VECTOR, mask_of
from minibert.parity.report import Row
from minibert.parity.subject import Subject, visible
from minibert.parity.truth import HALF_PRECISIONS, Unit, Values, measure_units, plain_states, round_to, true_values
from minibert.trace.names import EMBEDDINGS, Names


class Errors:
    """Errors of arrays in padded form, of one model and one batch; `expect` says of which values."""

    def __init__(self, subject: Subject, inputs: dict[str, Any], batch: PackedBatch) -> None:
        self._subject, self._inputs, self._batch = subject, inputs, batch
        self._names: set[str] = set()
        self._last_state = state_name(subject.config.num_hidden_layers)

    def expect(self, names: set[str]) -> None:
        """Choose the values that are computed; `VECTOR` is one of them."""
        self._names = names

    @functools.cached_property
    def truth(self) -> Values:
        """The true values."""
        wanted = self._names | ({self._last_state} if VECTOR in self._names else set())
        ordered = [name for name in self._subject.names.specs if name in wanted]
        return true_values(self._subject, self._inputs, self._batch, ordered)

    @functools.cached_property
    def true_vectors(self) -> FloatArray:
        """The true sentence vectors."""
        return self._subject.vectors(self.truth[self._last_state], self._batch)

    def _true(self, name: str) -> FloatArray:
        return self.true_vectors if name == VECTOR else self.truth[name]

    def _shown(self, array: FloatArray, name: str) -> FloatArray:
        return visible(array, mask_of(name, self._batch.mask)).astype(np.float64, copy=False)

    def rms(self, one: FloatArray, other: FloatArray | float = 0.0, name: str = "") -> float:
        """Return the RMS difference of two values over the places that are not masked."""
        beside = other if isinstance(other, float) else self._shown(other, name)
        return _rms(self._shown(one, name) - beside)

    def relative(self, array: FloatArray, name: str, true: FloatArray | None = None) -> float:
        """Return the RMS error over the RMS of the true values."""
        true = self._true(name) if true is None else true
        return self.rms(array, true, name) / (self.rms(true, name=name) or 1.0)

    def units(self, names: Sequence[str], precision: str = "float32") -> dict[str, Unit]:
        """Return the errors of a plain forward in a precision, by name."""
        wanted = [name for name in dict.fromkeys(names) if name != VECTOR]
        units = measure_units(self._subject, self._inputs, self._batch, self.truth, precision, wanted)
        if VECTOR in names:
            true = self._shown(self.true_vectors, VECTOR)
            for states in plain_states(self._subject, self._inputs, self._batch, self._last_state, precision):
                error = self._shown(self._subject.vectors(states, self._batch), VECTOR) - true
                unit = Unit.of(error, max(2.0**-26 * _rms(true), 1e-300))
                units[VECTOR] = unit.larger(units.get(VECTOR, unit))
        return units

    def row(self, name: str, given: str, array: FloatArray, layout: str, units: Mapping[str, Unit]) -> Row:
        """Measure an array; its level is not known yet."""
        true = self._true(name)
        with np.errstate(all="ignore"):
            error = np.abs(self._shown(array, name) - self._shown(true, name))
        broken = float("nan") if np.isnan(error).any() else float("inf")  # beside NaN, no size can be given
        finite = bool(np.isfinite(error).all())
        rms, largest, relative = broken, broken, broken
        if finite:
            rms, largest, relative = _rms(error), float(error.max(initial=0.0)), self.relative(array, name)
        at: tuple[int, ...] = ()
        if error.size:
            indices: Any = np.arange(true.size).reshape(true.shape)
            flat = int(np.argmax(np.where(np.isfinite(error), error, np.inf)))
            place = visible(indices, mask_of(name, self._batch.mask))[flat]
            at = tuple(int(i) for i in np.unravel_index(place, true.shape))
        return Row(
            name=name,
            given=given,
            level="float32",
            ratio=rms / units[name].rms,
            worst=largest / units[name].largest,
            rms=rms,
            largest=largest,
            relative=relative,
            unit=units[name].rms,
            at=at,
            value=float(array[at]) if at else 0.0,
            true=float(true[at]) if at else 0.0,
            layout=layout,
        )

    def is_scaled(self, embeddings: FloatArray) -> bool:
        """Return whether the error of the embeddings is a factor for each token, as of a wrong eps; rounding is not."""
        mask = self._batch.mask
        true = self.truth["embeddings"][mask]
        error = embeddings[mask] - true
        centered = true - self._subject.model.weights.embeddings_norm.bias
        factors = (error * centered).sum(axis=1) / np.maximum((centered * centered).sum(axis=1), 1e-300)
        rest = error - factors[:, None] * centered
        return bool(np.sum(rest * rest) < _SCALED * np.sum(error * error))


def _rms(values: FloatArray) -> float:
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.mean(values * values))) if values.size else 0.0


# --- levels -----------------------------------------------------------------------------------------------------------

RMS, LARGEST = 4.0, 8.0
"""The budget: RMS error and largest error, in units of those of a plain float32 forward. See the README."""

# The share of a squared error that rounding leaves, and a factor for each token does not.
_SCALED = 0.1

LOOK_UPS = tuple(entry.path for entry in EMBEDDINGS if entry.weights.endswith("embeddings"))
"""The names of the look-ups in tables of embeddings."""

# The least share of float16's error that every value of a float16 forward has.
_LEAST_HALF = 1 / 32


def with_levels(rows: list[Row], arrays: Sequence[FloatArray], errors: Errors) -> list[Row]:
    """Say which rows are wrong, or which half precision they have; `arrays` are theirs, in padded form."""
    off = [row for row in rows if not _within(row)]
    if not off:
        return rows
    level = _half_precision(rows, arrays, errors) if not any(row.holds for row in rows) else None
    if level is None:
        return [dataclasses.replace(row, level="wrong") if row in off else row for row in rows]
    precision, units = level
    leveled = []
    for row in rows:
        half = {precision: row.rms / units[row.name].rms}
        leveled.append(dataclasses.replace(row, level=precision if row in off else row.level, half=half))
    return leveled


def _half_precision(
    rows: list[Row], arrays: Sequence[FloatArray], errors: Errors
) -> tuple[str, dict[str, Unit]] | None:
    """Return the half precision whose forward has such errors, and its units; None if there is none.

    A mistake can be as small as these errors. So every value must have an error of that size, and the dump must
    hold the embeddings, where almost no mistake is, or numbers that were rounded. A wrong eps is as small in the
    embeddings too, but its error has another form. Look-ups may be exact: a port may keep its tables in float32.
    """
    if not all(np.isfinite(row.ratio) for row in rows) or any(row.relative > 0.5 for row in rows):
        return None
    computed = [not (row.name in LOOK_UPS and _within(row)) for row in rows]
    # All numbers of bfloat16 that are not tiny or huge are numbers of float16 too.
    stored = [
        one
        for one in reversed(HALF_PRECISIONS)
        if all(_is_rounded(array, one) for array, counts in zip(arrays, computed, strict=True) if counts)
    ]
    states = [(row, array) for row, array in zip(rows, arrays, strict=True) if row.name == "embeddings"]
    if not stored and (not states or any(_within(row) or errors.is_scaled(array) for row, array in states)):
        return None
    for precision in stored[:1] or HALF_PRECISIONS:
        units = errors.units([row.name for row in rows], precision)
        ratios = [(row.rms / units[row.name].rms, row.largest / units[row.name].largest) for row in rows]
        if all(ratio <= RMS and worst <= LARGEST for ratio, worst in ratios) and all(
            ratio >= _LEAST_HALF or not counts for (ratio, _), counts in zip(ratios, computed, strict=True)
        ):
            return precision, units
    return None


def verdict_of(rows: list[Row], found: bool) -> str:
    """Return the verdict, without the bits: "wrong", or the lowest precision; `found` says that a mistake is known."""
    levels = {row.level for row in rows}
    if found or "wrong" in levels or any(row.holds for row in rows):
        return "wrong"
    for level in HALF_PRECISIONS:
        if level in levels:
            return level
    return "float32"


def is_allowed(rows: list[Row], verdict: str, budget: str | float) -> bool:
    """Return whether a budget allows what was found."""
    if isinstance(budget, int | float):
        return bool(rows) and all(row.ratio <= budget and row.worst <= 2 * budget and not row.holds for row in rows)
    accepted = {"float32": ("bits", "float32"), "float16": ("bits", "float32", "float16")}
    accepted["bfloat16"] = (*accepted["float16"], "bfloat16")
    return verdict in accepted[budget]


def _is_rounded(array: npt.NDArray[Any], precision: str) -> bool:
    return bool(np.array_equal(array, round_to(precision, array.astype(np.float32))))


def _within(row: Row) -> bool:
    """Return whether a row is within the budget of float32."""
    return row.ratio <= RMS and row.worst <= LARGEST


# --- arrays with the name of another value ----------------------------------------------------------------------------

NEARER = 100.0
"""A value is taken for another one if it is nearer to it by this factor."""

_EXCHANGED = ", queries and keys exchanged"

Error = Callable[[FloatArray, str], float]
"""The relative error of an array, beside the true value of a name."""


def find_moved(
    rows: list[Row], arrays: Sequence[FloatArray], names: Names, error: Error
) -> tuple[list[Row], list[Finding]]:
    """Find arrays that are the value of another name; all wrong rows must be such, or nothing is said."""
    far = [i for i, row in enumerate(rows) if not _within(row)]
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
    shifts = {held - own if own is not None and held is not None else 0 for own, held in numbers}
    names = tuple(row.name for row in rows)
    if len(shifts) == 1 and 0 not in shifts:
        (shift,) = shifts
        text = (
            f"The values are right, but their names are not: hidden_states.i holds hidden_states.i{shift:+d} "
            f"({counted(len(rows), 'name')}). hidden_states.0 is the output of the embeddings after their LayerNorm, "
            f"hidden_states.{depth} the output of the last layer."
        )
        return Finding(
            text, {-1: "H1.late", 1: "H1.early"}.get(shift, ""), names, 1.0, "Count from the output of the embeddings."
        )
    listed = ", ".join(f"{row.given} holds {row.holds}" for row in rows[:4])
    text = f"The values are right, but belong to other names: {listed}."
    if all(row.holds.endswith(_EXCHANGED) for row in rows):
        text = f"Queries and keys are exchanged: {', '.join(row.given for row in rows[:4])}."
        return Finding(text, "", names, 1.0, "Scores and probs are (B, A, queries, keys).")
    if any(row.holds.endswith(".input") for row in rows):
        text += " LayerNorm.input is the sum before a LayerNorm: it was dumped before the norm, or the norm is missing."
    return Finding(text, "", names, 1.0, "Dump the value that the name means; see trace/README.md.")
