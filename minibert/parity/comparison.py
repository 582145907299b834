"""`check`: a dump of another implementation beside the float64 values, name by name."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.base.arrays import FloatArray
from minibert.base.checks import brief, counted
from minibert.base.files import printable
from minibert.bert.packed import PackedBatch
from minibert.parity.diagnosis import diagnose
from minibert.parity.finding import Finding
from minibert.parity.holds import NEARER, with_holds
from minibert.parity.inputs import of_probe, read_inputs
from minibert.parity.inputs_and_weights import check_inputs, check_weights
from minibert.parity.layouts import align, expected_shape
from minibert.parity.matching import Entry, Matched, match
from minibert.parity.padded import visible
from minibert.parity.readers import Dump, NothingComparedError, as_dump, read_dump
from minibert.parity.replay import encoder_of
from minibert.parity.report import Report
from minibert.parity.rounding import HALF_PRECISIONS, round_to
from minibert.parity.rows import Row
from minibert.parity.subject import INPUTS, Subject
from minibert.parity.truth import Unit, Values, measure_units, plain_states, true_values
from minibert.parity.vectors import VECTOR, mask_of
from minibert.trace.names import Spec

__all__ = ["LARGEST", "RMS", "NothingComparedError", "check"]

RMS, LARGEST = 4.0, 8.0
"""The budget: RMS error and largest error, in units of those of a plain float32 forward. See the README."""

# The share of a squared error that rounding leaves, and a factor for each token does not.
_SCALED = 0.1

# The least share of float16's error that every value of a float16 forward has.
_LEAST_HALF = 1 / 32


def check(
    model: Any,
    dump: Mapping[str, Any] | str | os.PathLike[str],
    inputs: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    budget: str | float = "float32",
    names: Mapping[str, str] | None = None,
    raw: Mapping[str, tuple[int, ...]] | None = None,
    diagnosis: bool = True,
    on_table: Callable[[Report], None] | None = None,
) -> Report:
    """Compare the values that another implementation computed with the true ones, and say what is wrong.

    Parameters
    ----------
    model : BertModel, model with a head, or SentenceTransformer
        The checkpoint that the other implementation runs. A `SentenceTransformer` is needed for sentence vectors.
    dump : mapping of names to arrays, or path
        Any names of trace/README.md, such as "hidden_states.0"; see parity/README.md for the formats of files.
    inputs : mapping or path, optional
        What both were given, as the model takes it: input_ids, attention_mask, token_type_ids, position_ids. Default:
        the input_ids of the dump, with its mask and types; else those of `probe`, for a `SentenceTransformer`.
    budget : "float32", "float16", "bfloat16" or float
        The precision that is allowed, or the largest RMS error in units of a float32 forward's.
    names : mapping, optional
        Names in the dump -> names of minibert.
    raw : mapping, optional
        Names -> shapes of files without a header; see `read_dump`.
    diagnosis : bool
        Whether to look for the cause.
    on_table : function, optional
        It is called with the report without causes before a cause is looked for, which can take many seconds.

    Returns
    -------
    Report

    Raises
    ------
    NothingComparedError
        No array of the dump is a value of the model. It is a ValueError.
    TypeError, ValueError, OSError, MemoryError
        An argument is wrong, or a file cannot be read.
    """
    subject = Subject.of(model)
    _check_budget(budget)
    arrays = as_dump(dump) if isinstance(dump, Mapping) else read_dump(dump, raw)
    if inputs is None:
        own = match(arrays, subject, None, names).inputs
        inputs = own if "input_ids" in own or "inputs_embeds" in own else of_probe(subject)
    taken = read_inputs(inputs, subject)
    batch = subject.pack(taken)
    matched = match(arrays, subject, batch, names)
    wrong_weights, notes = check_weights(subject, matched.weights)
    findings = [*check_inputs(subject, taken, batch, matched.inputs), *wrong_weights]
    if not matched.values and not findings:
        raise NothingComparedError(_nothing(arrays, matched))
    with np.errstate(all="ignore"):  # the numbers of a port may overflow anything
        return _Comparison(subject, taken, batch, matched, notes).report(budget, findings, diagnosis, on_table)


def _check_budget(budget: object) -> None:
    if budget in ("float32", *HALF_PRECISIONS):
        return
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < float("inf"):
        raise ValueError(f"budget={brief(budget)}; expected 'float32', 'float16', 'bfloat16' or a number of units.")


def _nothing(arrays: Dump, matched: Matched) -> str:
    held = [name for name in ("inputs", "weights") if getattr(matched, name)]
    some = ", ".join(f"{printable(name)} {_shape(value)}" for name, value in list(arrays.items())[:6])
    only = f"Only {' and '.join(held)} were recognised" if held else "No name was recognised"
    return (
        f"Nothing can be compared. The dump holds {some}. {only}. Use names of trace/README.md, such as "
        "hidden_states.0, or say what the names mean: names={'their name': 'hidden_states.0'}."
    )


def _not_compared(entry: Entry, expected: tuple[int, ...]) -> str:
    text = f"{entry.given} has shape {_shape(entry.value)}; expected {expected}."
    size = 0 if isinstance(entry.value, list) else entry.value.size
    for factor, precision in ((2, "float64"), (0.5, "float16")):
        if size == factor * math.prod(expected) and np.ndim(entry.value) == 1:
            text += f" It is as long as {precision} numbers would be: write float32."
    if not isinstance(entry.value, list) and entry.value.shape[1:] == expected[1:]:
        text += (
            f" It has {counted(len(entry.value), 'text')}, and the inputs have {expected[0]}: were these the inputs?"
        )
    return f"{text} It was not compared."


def _shape(value: npt.NDArray[Any] | list[npt.NDArray[Any]]) -> str:
    return f"({counted(len(value), 'text')})" if isinstance(value, list) else str(value.shape)


class _Comparison:
    """One dump beside one model."""

    def __init__(
        self, subject: Subject, inputs: dict[str, Any], batch: PackedBatch, matched: Matched, notes: list[str]
    ) -> None:
        self._subject, self._inputs = subject, inputs
        self._batch, self._matched = batch, matched
        self._notes = notes
        self._misfits: list[str] = []
        self._specs = dict(subject.names.specs)
        if subject.pipeline is not None:
            self._specs[VECTOR] = Spec(VECTOR, None, "pooled", subject.pipeline.widths[-1], False)

    # --- the values ---------------------------------------------------------------------------------------------------

    def report(
        self,
        budget: str | float,
        findings: list[Finding],
        diagnosis: bool,
        on_table: Callable[[Report], None] | None,
    ) -> Report:
        """Compare the values, unless the inputs differ."""
        stopped_by, stopped = bool(findings), any(finding.names[0] in INPUTS for finding in findings)
        entries = [] if stopped else self._entries()
        if not entries and not findings:
            more = len(self._notes) - 1
            same = f" So it is with {counted(more, 'more name')}." if more > 0 else ""
            raise NothingComparedError(f"Nothing can be compared. {self._notes[0]}{same}")
        compared = list(dict.fromkeys(name for name, _, _, _ in entries))
        units = self._units(compared)
        rows = [self._measured(*entry, units) for entry in entries]
        rows, renamed = self._with_holds(rows, entries)
        rows = self._with_levels(rows, {name: array for name, _, array, _ in entries})
        verdict = self._verdict(rows, entries, bool(findings))
        first = next((row.name for row in rows if row.level == "wrong"), None)
        if findings:
            first = findings[0].names[0]
        self._say_layouts(rows)
        self._say_hidden(rows, entries)
        report = Report(
            verdict=verdict,
            first=first if verdict == "wrong" else None,
            names=rows,
            diagnosis=findings,
            budget=budget,
            allowed=not stopped_by and self._allowed(rows, verdict, budget),
            notes=self._notes,
            unknown=self._matched.unknown,
            model=self._description(),
            misfits=self._misfits,
        )
        if findings or verdict != "wrong":
            return report
        if diagnosis and on_table is not None:
            on_table(report)
        causes = (self._diagnose(rows, entries) if diagnosis else []) or renamed
        return dataclasses.replace(report, diagnosis=causes)

    def _description(self) -> str:
        config = self._subject.config
        return f"{config.num_hidden_layers} layers, hidden_size {config.hidden_size}"

    def _expected(self, name: str) -> tuple[int, ...]:
        return expected_shape(self._specs[name], self._batch)

    @functools.cached_property
    def _truth(self) -> Values:
        names = {entry.name for entry in self._matched.values} - {VECTOR}
        for entry in self._matched.values:
            names |= set(self._others(entry)) - {VECTOR}
        if any(entry.name == VECTOR for entry in self._matched.values):
            names.add(self._last_state)
        ordered = [name for name in self._subject.names.specs if name in names]
        return true_values(self._subject, self._inputs, self._batch, ordered)

    @property
    def _last_state(self) -> str:
        return self._subject.names.resolve("last_hidden_state")[0]

    @functools.cached_property
    def _true_vectors(self) -> FloatArray:
        return self._subject.vectors(self._truth[self._last_state], self._batch)

    def _true(self, name: str) -> FloatArray:
        return self._true_vectors if name == VECTOR else self._truth[name]

    def _others(self, entry: Entry) -> list[str]:
        """Return the values that a loose name could mean."""
        if not entry.loose or entry.name == VECTOR:
            return []
        layer = self._specs[entry.name].layer
        return [] if layer is None else ["embeddings" if layer == 0 else f"encoder.layer.{layer - 1}"]

    def _shown(self, array: FloatArray, name: str) -> FloatArray:
        return visible(array, mask_of(name, self._batch.mask)).astype(np.float64, copy=False)

    def _error(self, array: FloatArray, name: str, true: FloatArray | None = None) -> float:
        """Return the relative RMS error of an array in padded form."""
        true = self._shown(self._true(name) if true is None else true, name)
        with np.errstate(all="ignore"):
            size = float(np.sqrt(np.mean(true * true))) if true.size else 0.0
            error = float(np.sqrt(np.mean((self._shown(array, name) - true) ** 2))) if true.size else 0.0
        return error / (size or 1.0)

    def _with_holds(self, rows: list[Row], entries: list[Any]) -> tuple[list[Row], list[Finding]]:
        names = self._subject.names
        # Not kept, because these are all values of the model.
        values = true_values(self._subject, self._inputs, self._batch, list(names.specs))

        def error(array: FloatArray, name: str) -> float:
            return self._error(array, name, values[name])

        return with_holds(rows, [array for _, _, array, _ in entries], names, error, _within)

    def _entries(self) -> list[tuple[str, str, FloatArray, str]]:
        """Return canonical name, name in the dump, array in padded form and layout of each value that fits."""
        found, seen, guessed = [], set(), []
        for entry in self._matched.values:
            if entry.name not in self._specs:
                self._notes.append(f"{entry.given} holds sentence vectors; give a SentenceTransformer to compare them.")
                continue
            tried = []
            for name in (entry.name, *self._others(entry)):
                aligned = align(
                    entry.value,
                    self._specs[name],
                    self._batch,
                    self._subject.config.num_attention_heads,
                    functools.partial(self._error, name=name),
                )
                if aligned is not None:
                    tried.append((self._error(aligned.array, name), name, aligned))
            if not tried:
                self._misfits.append(entry.given)
                self._notes.append(_not_compared(entry, self._expected(entry.name)))
                continue
            best = min(range(len(tried)), key=lambda i: (not tried[i][0] < tried[0][0] / NEARER, i))
            _, name, aligned = tried[best]
            if name in seen:
                continue
            if entry.loose:
                guessed.append((entry.given, name))
            seen.add(name)
            found.append((name, entry.given, aligned.array, aligned.layout))
        if guessed:
            more = f" and {len(guessed) - 1} more as in the table" if len(guessed) > 1 else ""
            self._notes.append(f"{guessed[0][0]} was taken for {guessed[0][1]}{more}, by value.")
        order = {name: i for i, name in enumerate(self._specs)}
        return sorted(found, key=lambda one: order[one[0]])

    def _units(self, names: list[str], precision: str = "float32") -> dict[str, Unit]:
        wanted = [name for name in names if name != VECTOR]
        truth = _Some(self._truth, wanted)
        units = measure_units(self._subject, self._inputs, self._batch, truth, precision)
        if VECTOR in names:
            units[VECTOR] = self._vector_unit(precision)
        return units

    def _vector_unit(self, precision: str) -> Unit:
        true = self._shown(self._true_vectors, VECTOR)
        unit: Unit | None = None
        for states in plain_states(self._subject, self._inputs, self._batch, self._last_state, precision):
            vectors = self._shown(self._subject.vectors(states, self._batch), VECTOR)
            least = 2.0**-26 * float(np.sqrt(np.mean(true * true))) if true.size else 0.0
            one = Unit.of(vectors - true, max(least, 1e-300))
            unit = one if unit is None else one.larger(unit)
        assert unit is not None
        return unit

    def _measured(self, name: str, given: str, array: FloatArray, layout: str, units: Mapping[str, Unit]) -> Row:
        true = self._true(name)
        with np.errstate(all="ignore"):
            error = np.abs(self._shown(array, name) - self._shown(true, name))
            rms = float(np.sqrt(np.mean(error * error))) if error.size else 0.0
        finite = bool(np.isfinite(error).all())
        broken = float("nan") if np.isnan(error).any() else float("inf")  # beside NaN, no size can be given
        largest = float(error.max(initial=0.0)) if finite else broken
        rms = rms if finite else broken
        flat = int(np.argmax(np.where(np.isfinite(error), error, np.inf))) if error.size else 0
        indices: Any = np.arange(true.size).reshape(true.shape)
        places = visible(indices, mask_of(name, self._batch.mask))
        at = tuple(int(i) for i in np.unravel_index(places[flat], true.shape)) if error.size else ()
        return Row(
            name=name,
            given=given,
            level="float32",
            ratio=rms / units[name].rms,
            worst=largest / units[name].largest,
            rms=rms,
            largest=largest,
            relative=self._error(array, name) if finite else broken,
            unit=units[name].rms,
            at=at,
            value=float(array[at]) if at else 0.0,
            true=float(true[at]) if at else 0.0,
            layout=layout,
        )

    # --- the verdict --------------------------------------------------------------------------------------------------

    def _with_levels(self, rows: list[Row], arrays: Mapping[str, FloatArray]) -> list[Row]:
        off = [row for row in rows if not _within(row)]
        if not off:
            return rows
        level = self._half_precision(rows, arrays) if not any(row.holds for row in rows) else None
        if level is None:
            return [dataclasses.replace(row, level="wrong") if row in off else row for row in rows]
        precision, units = level
        leveled = []
        for row in rows:
            half = {precision: row.rms / units[row.name].rms}
            leveled.append(dataclasses.replace(row, level=precision if row in off else row.level, half=half))
        return leveled

    def _half_precision(self, rows: list[Row], aligned: Mapping[str, FloatArray]) -> tuple[str, dict[str, Unit]] | None:
        """Return the half precision whose forward has such errors, and its units; None if there is none.

        A mistake can be as small as these errors. So every value must have an error of that size, and the dump must
        hold the embeddings, where almost no mistake is, or numbers that were rounded. A wrong eps is as small in the
        embeddings too, but its error has another form.
        """
        if not all(np.isfinite(row.ratio) for row in rows) or any(row.relative > 0.5 for row in rows):
            return None
        arrays = [entry.value for entry in self._matched.values if not isinstance(entry.value, list)]
        # All numbers of bfloat16 that are not tiny or huge are numbers of float16 too.
        stored = [one for one in reversed(HALF_PRECISIONS) if all(_is_rounded(array, one) for array in arrays)]
        states = [row for row in rows if row.name == "embeddings"]
        if not stored and (not states or _within(states[0]) or self._is_scaled(aligned["embeddings"])):
            return None
        for precision in stored[:1] or HALF_PRECISIONS:
            units = self._units([row.name for row in rows], precision)
            ratios = [(row.rms / units[row.name].rms, row.largest / units[row.name].largest) for row in rows]
            if all(_LEAST_HALF <= ratio <= RMS and worst <= LARGEST for ratio, worst in ratios):
                return precision, units
        return None

    def _is_scaled(self, embeddings: FloatArray) -> bool:
        """Return whether the error of the embeddings is a factor for each token, as of a wrong eps; rounding is not."""
        mask = self._batch.mask
        true = self._truth["embeddings"][mask]
        error = embeddings[mask] - true
        centered = true - encoder_of(self._subject.model).weights.embeddings_norm.bias
        factors = (error * centered).sum(axis=1) / np.maximum((centered * centered).sum(axis=1), 1e-300)
        rest = error - factors[:, None] * centered
        return bool(np.sum(rest * rest) < _SCALED * np.sum(error * error))

    def _verdict(self, rows: list[Row], entries: list[Any], found: bool) -> str:
        levels = {row.level for row in rows}
        if found or "wrong" in levels or any(row.holds for row in rows):
            return "wrong"
        for level in HALF_PRECISIONS:
            if level in levels:
                return level
        return "bits" if rows and self._bits(entries) else "float32"

    def _bits(self, entries: list[Any]) -> bool:
        """Return whether all values are those of minibert, bit for bit."""
        names = [name for name, _, _, _ in entries]
        if VECTOR in names or any(array.dtype != np.float32 for _, _, array, _ in entries):
            return False
        trace = self._subject.model.trace(**self._inputs, record=names)
        return all(
            np.array_equal(
                visible(array, self._batch.mask),
                visible(trace[name], self._batch.mask),
            )
            for name, _, array, _ in entries
        )

    def _allowed(self, rows: list[Row], verdict: str, budget: str | float) -> bool:
        if isinstance(budget, int | float):
            return bool(rows) and all(row.ratio <= budget and row.worst <= 2 * budget and not row.holds for row in rows)
        accepted = {"float32": ("bits", "float32"), "float16": ("bits", "float32", "float16")}
        accepted["bfloat16"] = (*accepted["float16"], "bfloat16")
        return verdict in accepted[budget]

    # --- what else is said --------------------------------------------------------------------------------------------

    def _say_layouts(self, rows: list[Row]) -> None:
        by_layout: dict[str, list[str]] = {}
        for row in rows:
            if row.layout:
                by_layout.setdefault(row.layout, []).append(row.given)
        for layout, names in by_layout.items():
            more = f" and {len(names) - 2} more" if len(names) > 2 else ""
            self._notes.append(f"{', '.join(names[:2])}{more} {'were' if len(names) > 1 else 'was'} read as {layout}.")

    def _say_hidden(self, rows: list[Row], entries: list[Any]) -> None:
        if self._batch.mask.all() or any(row.level == "wrong" for row in rows):
            return
        if any(
            self._specs[name].kind == "tokens" and np.any(array[~self._batch.mask]) for name, _, array, _ in entries
        ):
            self._notes.append("Places that are masked hold numbers. That is fine: nothing reads them.")

    def _diagnose(self, rows: list[Row], entries: list[Any]) -> list[Finding]:
        port = {name: array for name, _, array, _ in entries}
        wrong = [row.name for row in rows if not row.ratio <= RMS]
        vectors = self._true_vectors if VECTOR in port else None
        self._truth.release()
        return diagnose(self._subject.model, self._inputs, port, wrong, budget=RMS, vectors=vectors)


def _is_rounded(array: npt.NDArray[Any], precision: str) -> bool:
    return bool(np.array_equal(array, round_to(precision, array.astype(np.float32))))


def _within(row: Row) -> bool:
    return row.ratio <= RMS and row.worst <= LARGEST


class _Some(Mapping[str, FloatArray]):
    """Some names of a mapping whose values are computed when they are read."""

    def __init__(self, values: Mapping[str, FloatArray], names: list[str]) -> None:
        self._values, self._names = values, names

    def __getitem__(self, name: str) -> FloatArray:
        if name not in self._names:
            raise KeyError(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
