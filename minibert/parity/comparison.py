"""`Comparison`: the values of a dump beside the true ones: their errors, their precision, and the verdict."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, counted, some_of
from minibert.parity.diagnosis.causes import diagnose, namings
from minibert.parity.diagnosis.forward import Forward
from minibert.parity.diagnosis.mistake import Mistake, Recipe
from minibert.parity.diagnosis.sentences import mislabelled
from minibert.parity.diagnosis.suggested import rounded_weights
from minibert.parity.diagnosis.unseen import unseen
from minibert.parity.dumps import NothingComparedError
from minibert.parity.finding import Finding
from minibert.parity.inputs import row_labels
from minibert.parity.llama_words import llama_mistake
from minibert.parity.matching import NEARER, Meaning, Placed, place
from minibert.parity.report import Report, Row
from minibert.parity.symbols import ENTRIES, FIRST_STATES, states_of
from minibert.parity.truth import (
    HALF_PRECISIONS,
    VECTOR,
    InapplicableError,
    Padded,
    Subject,
    Unit,
    Values,
    rms,
    round_to,
    unmasked,
)

RMS, LARGEST = 4.0, 8.0
"""The budget: RMS error and largest error, in units of the errors of a plain float32 forward. See the README."""

# If the error of each token is a factor of its values, at most this share of the squared error is left.
_SCALED = 0.1

# Each value of a float16 forward has at least this share of the usual error of float16. Look-ups may be exact.
_LEAST_HALF = 1 / 32
_LOOK_UPS = tuple(entry.path for entry in ENTRIES if entry.kind == "rows")

_EXCHANGED = ", queries and keys exchanged"


class Comparison:
    """The values of one dump beside the true ones."""

    def __init__(self, subject: Subject, inputs: dict[str, Any], budget: str | float, meanings: list[Meaning]) -> None:
        self._subject, self._inputs, self._budget, self._specs = subject, inputs, budget, subject.specs
        names = {name for meaning in meanings for name in (meaning.name, meaning.other_name) if name in self._specs}
        self._truth = Values(subject, inputs, names)
        self._placement = place(meanings, subject, subject.pack(inputs), self._relative)
        masked = [array.label for array in self._placement.arrays if not self._truth.unmasked(array.name).size]
        self._placement.notes.extend(f"{label} was not compared: all its places are masked." for label in masked)
        self._arrays = [array for array in self._placement.arrays if array.label not in masked]

    def report(self, findings: list[Finding], about: dict[str, str]) -> Report:
        """Return the report without causes; only `findings` and mislabelled names are in it."""
        placement, budget = self._placement, self._budget
        if not self._arrays and not findings:
            raise NothingComparedError(f"Nothing can be compared. {' '.join(placement.notes[:3])}")
        units = self._truth.units([array.name for array in self._arrays])
        rows = self._with_levels(self._with_holds([self._row(array, units[array.name]) for array in self._arrays]))
        verdict = "wrong" if findings else _verdict_of(rows)
        if verdict == "float32" and rows and self._is_ours():
            verdict = "bits"
        first = next((row.name for row in rows if row.level == "wrong"), None)
        padded, vectors = Padded.of(self._subject.config, self._inputs), VECTOR in units
        return Report(
            verdict=verdict,
            first=findings[0].names[0] if findings else first if verdict == "wrong" else None,
            names=rows,
            diagnosis=findings or self._mislabelled(rows),
            budget=budget,
            allowed=not findings and _is_allowed(rows, verdict, budget),
            notes=[*placement.notes, *_layouts(rows)],
            misfits=placement.misfits,
            unknown=placement.unknown,
            unseen=unseen(self._subject.model, padded, vectors=vectors),
            warnings=[*placement.warnings, *self._different_twins(), *self._near(rows, verdict)],
            about=about,
        )

    def _worst(self, rows: list[Row]) -> dict[str, FloatArray]:
        """Return one array of each name: of several, the one with the largest error."""
        pairs = sorted(zip(rows, self._arrays, strict=True), key=lambda pair: np.nan_to_num(pair[0].ratio, nan=np.inf))
        return {row.name: placed.array for row, placed in pairs}

    def _is_ours(self) -> bool:
        """Return whether all values equal minibert's, bit for bit."""
        names = [placed.name for placed in self._arrays]
        if VECTOR in names or any(placed.array.dtype != np.float32 for placed in self._arrays):
            return False
        trace, mask = self._subject.model.trace(**self._inputs, record=names), self._truth.mask
        return all(
            np.array_equal(unmasked(array, mask), unmasked(trace[name], mask)) for name, _, array, _ in self._arrays
        )

    def diagnosed(self, report: Report) -> Report:
        """Search for the cause, and mark the names whose own op is wrong."""
        rows = report.names
        port = self._worst(rows)
        wrong = list(dict.fromkeys(row.name for row in rows if not row.ratio <= RMS))
        self._truth.release()
        labels = row_labels(self._subject, self._truth.mask, self._inputs)
        holds = {row.name: row.holds for row in rows if row.holds}
        if not {*holds.values()} <= self._specs.keys():  # queries and keys are exchanged: that is the cause
            return report
        model, padded = self._subject.model, Padded.of(self._subject.config, self._inputs)
        more = [] if self._subject.tokenizer is None else [llama_mistake(self._subject.tokenizer)]
        options: dict[str, Any] = {"budget": RMS, "recipe": _recipe(self._subject), "rows": labels, "holds": holds}
        causes = diagnose(model, padded, port, wrong, **options, more=more)
        own = {name for cause in causes for name in cause.names}
        marked = [dataclasses.replace(row, own=row.level == "wrong" and row.name in own) for row in rows]
        return dataclasses.replace(report, names=marked, diagnosis=causes or report.diagnosis)

    # --- errors -------------------------------------------------------------------------------------------------------

    def _relative(self, array: FloatArray, name: str, true: Values | None = None) -> float:
        """Return the RMS error over the RMS of the true values."""
        values = (self._truth if true is None else true).unmasked(name)
        return rms(self._truth.unmasked(name, array) - values) / (rms(values) or 1.0)

    def _row(self, placed: Placed, unit: Unit) -> Row:
        """Measure an array; its level is not known yet."""
        name, label, array, layout = placed
        true, seen = self._truth[name], functools.partial(self._truth.unmasked, name)
        error = np.abs(seen(array) - seen())
        broken = float("nan") if np.isnan(error).any() else float("inf")  # beside NaN, no size can be given
        size, largest, relative = broken, broken, broken
        if np.isfinite(error).all():
            size, largest, relative = rms(error), float(error.max()), self._relative(array, name)
        indices: Any = np.arange(true.size).reshape(true.shape)
        place = seen(indices)[np.argmax(np.where(np.isfinite(error), error, np.inf))]
        at = tuple(map(int, np.unravel_index(int(place), true.shape)))
        errors: dict[str, Any] = {"rms": size, "largest": largest, "relative": relative, "unit": unit.rms}
        errors |= {"ratio": size / unit.rms, "worst": largest / unit.largest}
        value, right = (float(numbers[at]) for numbers in (array, true))
        return Row(name, label, "float32", **errors, at=at, value=value, true=right, layout=layout)

    # --- levels -------------------------------------------------------------------------------------------------------

    def _with_levels(self, rows: list[Row]) -> list[Row]:
        """Say which rows are wrong, or which half precision they have."""
        if all(map(_within, rows)):
            return rows
        level = None if any(row.holds for row in rows) else self._half_precision(rows)
        if level is None:
            return [row if _within(row) else dataclasses.replace(row, level="wrong") for row in rows]
        precision, units = level
        return [
            dataclasses.replace(
                row, level=row.level if _within(row) else precision, half={precision: row.rms / units[row.name].rms}
            )
            for row in rows
        ]

    def _half_precision(self, rows: list[Row]) -> tuple[str, dict[str, Unit]] | None:
        """Return the half precision whose forward has such errors, and its units; None if there is none.

        A mistake can be as small as these errors. So every value must have an error of that size, and the dump must
        hold the embeddings, where almost no mistake is, or numbers that were rounded. A wrong eps is as small in the
        embeddings too, but its error has another form. Look-ups may be exact: a port may keep its tables in float32.
        """
        if not all(np.isfinite(row.ratio) for row in rows) or any(row.relative > 0.5 for row in rows):
            return None
        pairs = list(zip(rows, [placed.array for placed in self._arrays], strict=True))
        computed = [(row, array) for row, array in pairs if not (row.name in _LOOK_UPS and _within(row))]
        # All numbers of bfloat16 that are not tiny or huge are numbers of float16 too.
        values = [self._truth.unmasked(row.name, array) for row, array in computed]  # what is masked may be NaN
        stored = [form for form in reversed(HALF_PRECISIONS) if all(_is_rounded(array, form) for array in values)]
        states = [(row, array) for row, array in pairs if row.name in FIRST_STATES]
        if not stored and (not states or any(_within(row) or self._is_scaled(row, array) for row, array in states)):
            return None
        if not stored and any(self._gives(mistake, rows) for mistake in rounded_weights()):
            return None
        for precision in stored[:1] or HALF_PRECISIONS:
            units = self._truth.units([row.name for row in rows], precision)
            if all(
                row.rms <= RMS * units[row.name].rms and row.largest <= LARGEST * units[row.name].largest
                for row in rows
            ) and all(row.rms >= _LEAST_HALF * units[row.name].rms for row, _ in computed):
                return precision, units
        return None

    def _gives(self, mistake: Mistake, rows: list[Row]) -> bool:
        """Return whether a float32 forward with a mistake gives the values of all rows."""
        arrays, units = self._worst(rows), {row.name: row.unit for row in rows}
        padded = Padded.of(self._subject.config, self._inputs)
        try:
            values = Forward(self._subject.model, padded, [mistake], np.float32).run_all()
            return all(
                rms(self._truth.unmasked(name, arrays[name]) - self._truth.unmasked(name, value)) <= RMS * units[name]
                for name, value in values
                if name in arrays
            )
        except InapplicableError:
            return False

    def _is_scaled(self, row: Row, embeddings: FloatArray) -> bool:
        """Return whether the error of the embeddings is a factor for each token, as of a wrong eps; rounding is not."""
        mask, weights = self._truth.mask, self._subject.model.weights
        if not weights.config.family.has_embeddings_norm:
            return False
        true, shift = self._truth[row.name][mask], weights.embeddings_norm.bias
        error = embeddings[mask] - true
        if row.name == FIRST_STATES[1] and (project := weights.embeddings_project):
            shift = project.weight @ shift + project.bias
        centered = true - shift
        factors = (error * centered).sum(axis=1) / np.maximum((centered * centered).sum(axis=1), 1e-300)
        rest = error - factors[:, None] * centered
        return bool(np.sum(rest * rest) < _SCALED * np.sum(error * error))

    # --- arrays with the name of another value ------------------------------------------------------------------------

    def _with_holds(self, rows: list[Row]) -> list[Row]:
        """Find arrays that are the value of another name; all wrong rows must be such, or nothing is said."""
        far = [i for i, row in enumerate(rows) if not _within(row)]
        if any(rows[i].name == VECTOR or not np.isfinite(rows[i].relative) for i in far):
            return rows
        true = Values(self._subject, self._inputs, self._subject.names.specs)  # not kept, because these are many
        changed = list(rows)
        for i in far:
            name = self._nearest(rows[i], self._arrays[i].array, true)
            if name is None:
                return rows
            changed[i] = dataclasses.replace(rows[i], holds=name)
        return changed

    def _nearest(self, row: Row, array: FloatArray, true: Values) -> str | None:
        """Return the name whose value an array is much nearer to than to its own."""
        spec = self._specs[row.name]
        best, least = None, min(row.relative / NEARER, 5e-3)
        if spec.kind == "pairs" and self._relative(array.swapaxes(2, 3), row.name) < least:
            return f"{row.name}{_EXCHANGED}"
        for name, other in self._subject.names.specs.items():
            near = name.endswith(".input") or not name.startswith("encoder.layer.") or name.count(".") == 2
            if name != row.name and (other.kind, other.width) == (spec.kind, spec.width):
                error = self._relative(array, name, true) if near or other.layer == spec.layer else np.inf
                if error < least:
                    best, least = name, error
        return best

    def _mislabelled(self, rows: list[Row]) -> list[Finding]:
        """Say what arrays with the name of another value are."""
        moved = {row.name: row.holds for row in rows if row.holds}
        if not {*moved.values()} <= self._specs.keys():
            text = f"Queries and keys are exchanged: {', '.join([row.given for row in rows if row.holds][:4])}."
            return [Finding(text, "", tuple(moved), 1.0, "Scores and probs are (B, A, queries, keys).")]
        names, states = {row.name for row in rows}, states_of(self._subject.config)
        return [mislabelled(moved, namings(moved, names, states))] if moved else []

    # --- what else is said --------------------------------------------------------------------------------------------

    def _different_twins(self) -> Iterator[str]:
        """Warn of names of one value that have different numbers."""
        for name, group in itertools.groupby(self._arrays, key=lambda placed: placed.name):
            twins = list(group)
            first, *others = (self._truth.unmasked(name, twin.array) for twin in twins)
            if any(not np.array_equal(other, first, equal_nan=True) for other in others):
                names = " and ".join(twin.label for twin in twins[:3])
                yield f"{names} are names of one value, and hold different numbers."

    def _near(self, rows: list[Row], verdict: str) -> Iterator[str]:
        """Warn of neighbouring hidden states that are nearer to each other than the errors that the verdict allows."""
        budget = self._budget
        in_units = isinstance(budget, int | float)
        if verdict == "bits" or (verdict == "wrong" and not in_units):
            return
        states = states_of(self._subject.config)
        values: Any = self._worst(rows)  # as near to the true values as float32 is
        known = {*values}
        if verdict != "float32" or in_units:
            values, known = Values(self._subject, self._inputs, states), {*states}
        near = []
        for row in rows:
            unit = row.unit if in_units or verdict == "float32" else row.rms / (row.half.get(verdict) or np.inf)
            for pair in itertools.pairwise(states):
                if row.name in pair and known >= {*pair}:
                    first, second = (self._truth.unmasked(name, values[name]) for name in pair)
                    if rms(first - second) <= unit * (float(budget) if in_units else RMS):
                        near.append((row.given, pair[pair[0] == row.name]))
        if near:
            more = f" The same is true of {counted(len(near) - 1, 'other pair')}." if len(near) > 1 else ""
            yield (
                f"The dump cannot tell {near[0][0]} from {near[0][1]}: the true values are nearer to each other than "
                f"the errors that {budget if in_units else verdict} allows. Exchanged names are called right too.{more}"
            )


def _recipe(subject: Subject) -> Recipe | None:
    """Return how the vector of a text is made; None if that takes more than one pooling and its length."""
    pipeline = subject.pipeline
    if pipeline is None or len(pipeline.pooling) > 1 or {*pipeline.names} - {"Normalize"}:
        return None
    return Recipe(pipeline.pooling[0], "unit" if pipeline.names else "none")


def _layouts(rows: list[Row]) -> Iterator[str]:
    """Say which arrays did not have the form of a trace."""
    by_layout: dict[str, list[str]] = {}
    for row in rows:
        if row.layout:
            by_layout.setdefault(row.layout, []).append(row.given)
    for layout, names in by_layout.items():
        yield f"{some_of(names, 2)} {'were' if len(names) > 1 else 'was'} read as {layout}."


def _within(row: Row) -> bool:
    """Return whether a row is within the budget of float32."""
    return row.ratio <= RMS and row.worst <= LARGEST


def _is_rounded(array: npt.NDArray[Any], precision: str) -> bool:
    return bool(np.array_equal(array, round_to(precision, array.astype(np.float32))))


def _verdict_of(rows: list[Row]) -> str:
    """Return the verdict, without the bits: "wrong", or the lowest precision."""
    levels = {row.level for row in rows}
    if "wrong" in levels or any(row.holds for row in rows):
        return "wrong"
    return next((level for level in HALF_PRECISIONS if level in levels), "float32")


def _is_allowed(rows: list[Row], verdict: str, budget: str | float) -> bool:
    """Return whether a budget allows what was found."""
    if isinstance(budget, int | float):
        return bool(rows) and all(row.ratio <= budget and row.worst <= 2 * budget and not row.holds for row in rows)
    order = ("bits", "float32", *HALF_PRECISIONS)
    return verdict in order[: order.index(budget) + 1]
