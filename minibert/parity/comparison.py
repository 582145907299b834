"""`check`: a dump of another implementation beside the float64 values, name by name."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minibert._utils.files import printable
from minibert._utils.validation import FloatArray, brief, counted
from minibert.bert.packed import PackedBatch
from minibert.parity.diagnosis import diagnose
from minibert.parity.dumps import Dump, NothingComparedError, as_dump, read_dump
from minibert.parity.finding import Finding
from minibert.parity.inputs import check_inputs, check_weights, of_probe, read_inputs, row_labels
from minibert.parity.matching import Matched, Placed, match, place, shape_of
from minibert.parity.report import Report, Row
from minibert.parity.subject import INPUTS, Subject, visible
from minibert.parity.truth import HALF_PRECISIONS, true_values
from minibert.parity.vectors import VECTOR, mask_of
from minibert.parity.verdict import RMS, Measuring, is_allowed, verdict_of, with_holds, with_levels, within
from minibert.trace.names import Spec

__all__ = ["NothingComparedError", "check"]


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
        own: dict[str, Any] = dict(reversed(match(arrays, subject, None, names).inputs))  # the first of each
        inputs = own if "input_ids" in own or "inputs_embeds" in own else of_probe(subject)
    taken = read_inputs(inputs, subject)
    batch = subject.pack(taken)
    matched = match(arrays, subject, batch, names)
    wrong_inputs, notes = check_inputs(subject, taken, matched.inputs)
    wrong_weights, more = check_weights(subject, matched.weights)
    findings, notes = [*wrong_inputs, *wrong_weights], [*notes, *more]
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
    some = ", ".join(f"{printable(name)} {shape_of(value)}" for name, value in list(arrays.items())[:6])
    only = f"Only {' and '.join(held)} were recognised" if held else "No name was recognised"
    return (
        f"Nothing can be compared. The dump holds {some}. {only}. Use names of trace/README.md, such as "
        "hidden_states.0, or say what the names mean: names={'their name': 'hidden_states.0'}."
    )


def _worst(rows: list[Row], entries: list[Placed]) -> dict[str, FloatArray]:
    """Return one array of each name: of several, the one with the largest error."""
    found: dict[str, tuple[float, FloatArray]] = {}
    for row, entry in zip(rows, entries, strict=True):
        ratio = row.ratio if np.isfinite(row.ratio) else np.inf
        if row.name not in found or ratio > found[row.name][0]:
            found[row.name] = (ratio, entry.array)
    return {name: array for name, (_, array) in found.items()}


def _is_layer(name: str, spec: Spec) -> bool:
    return spec.layer is not None and name == f"encoder.layer.{spec.layer}"


class _Comparison:
    """One dump beside one model."""

    def __init__(
        self, subject: Subject, inputs: dict[str, Any], batch: PackedBatch, matched: Matched, notes: list[str]
    ) -> None:
        self._subject, self._inputs = subject, inputs
        self._batch, self._matched = batch, matched
        self._notes = notes
        self._misfits: list[str] = []
        self._warnings: list[str] = []
        self._specs = dict(subject.names.specs)
        if subject.pipeline is not None:
            self._specs[VECTOR] = Spec(VECTOR, None, "pooled", subject.pipeline.widths[-1], False)
        names = {entry.name for entry in matched.values}
        names |= {entry.before for entry in matched.values if entry.before}
        self._measuring = Measuring(subject, inputs, batch, names)

    def report(
        self,
        budget: str | float,
        findings: list[Finding],
        diagnosis: bool,
        on_table: Callable[[Report], None] | None,
    ) -> Report:
        """Compare the values, unless the inputs differ."""
        stopped_by, stopped = bool(findings), any(finding.names[0] in INPUTS for finding in findings)
        entries = [] if stopped else self._placed()
        if not entries and not findings:
            more = len(self._notes) - 1
            same = f" So it is with {counted(more, 'more name')}." if more > 0 else ""
            raise NothingComparedError(f"Nothing can be compared. {self._notes[0]}{same}")
        units = self._measuring.units([entry.name for entry in entries])
        rows = [self._measuring.row(*entry, units) for entry in entries]
        rows, renamed = self._with_holds(rows, entries)
        arrays = _worst(rows, entries)
        rows = with_levels(rows, arrays, [entry.value for entry in self._matched.values], self._measuring)
        verdict = verdict_of(rows, bool(findings))
        if verdict == "float32" and rows and self._bits(entries):
            verdict = "bits"
        first = next((row.name for row in rows if row.level == "wrong"), None)
        if findings:
            first = findings[0].names[0]
        self._say_layouts(rows)
        self._say_hidden(rows, entries)
        self._warn_of_twins(rows, entries)
        self._warn_of_neighbours(rows, verdict, budget)
        report = Report(
            verdict=verdict,
            first=first if verdict == "wrong" else None,
            names=rows,
            diagnosis=findings,
            budget=budget,
            allowed=not stopped_by and is_allowed(rows, verdict, budget),
            notes=self._notes,
            unknown=self._matched.unknown,
            model=self._description(),
            misfits=self._misfits,
            warnings=self._warnings,
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

    def _placed(self) -> list[Placed]:
        num_heads = self._subject.config.num_attention_heads
        placement = place(self._matched.values, self._specs, self._batch, num_heads, self._measuring.error)
        self._misfits = placement.misfits
        self._notes.extend(placement.notes)
        self._warnings.extend(placement.warnings)
        return placement.found

    def _with_holds(self, rows: list[Row], entries: list[Placed]) -> tuple[list[Row], list[Finding]]:
        names = self._subject.names
        # Not kept, because these are all values of the model.
        values = true_values(self._subject, self._inputs, self._batch, list(names.specs))

        def error(array: FloatArray, name: str) -> float:
            return self._measuring.error(array, name, values[name])

        return with_holds(rows, [entry.array for entry in entries], names, error, within)

    def _bits(self, entries: list[Placed]) -> bool:
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

    # --- what else is said --------------------------------------------------------------------------------------------

    def _say_layouts(self, rows: list[Row]) -> None:
        by_layout: dict[str, list[str]] = {}
        for row in rows:
            if row.layout:
                by_layout.setdefault(row.layout, []).append(row.given)
        for layout, names in by_layout.items():
            more = f" and {len(names) - 2} more" if len(names) > 2 else ""
            self._notes.append(f"{', '.join(names[:2])}{more} {'were' if len(names) > 1 else 'was'} read as {layout}.")

    def _say_hidden(self, rows: list[Row], entries: list[Placed]) -> None:
        if self._batch.mask.all() or any(row.level == "wrong" for row in rows):
            return
        if any(
            self._specs[name].kind == "tokens" and np.any(array[~self._batch.mask]) for name, _, array, _ in entries
        ):
            self._notes.append("Places that are masked hold numbers. That is fine: nothing reads them.")

    def _warn_of_twins(self, rows: list[Row], entries: list[Placed]) -> None:
        by_name: dict[str, list[Placed]] = {}
        for entry in entries:
            by_name.setdefault(entry.name, []).append(entry)
        for row in rows:
            twins = by_name.pop(row.name, [])
            shown = [visible(twin.array, mask_of(twin.name, self._batch.mask)) for twin in twins]
            if any(not np.array_equal(one, shown[0], equal_nan=True) for one in shown[1:]):
                given = " and ".join(twin.given for twin in twins[:3])
                self._warnings.append(f"{given} are names of one value, and hold different numbers.")

    def _warn_of_neighbours(self, rows: list[Row], verdict: str, budget: str | float) -> None:
        """Warn of hidden states that are nearer to each other than the errors that the verdict allows."""
        in_units = isinstance(budget, int | float)
        if not (verdict in HALF_PRECISIONS or (in_units and verdict != "bits")):
            return
        states = [name for name, spec in self._specs.items() if name == "embeddings" or _is_layer(name, spec)]
        true = true_values(self._subject, self._inputs, self._batch, states)
        near = []
        for row in rows:
            if row.name not in states:
                continue
            unit = row.unit if in_units else row.rms / row.half[verdict] if row.half.get(verdict) else 0.0
            allowed = unit * (float(budget) if in_units else RMS)
            i = states.index(row.name)
            for other in states[max(i - 1, 0) : i + 2]:
                if other != row.name and self._measuring.difference(true[row.name], true[other]) <= allowed:
                    near.append((row.given, other))
        if near:
            more = f" So it is with {counted(len(near) - 1, 'more pair')}." if len(near) > 1 else ""
            self._warnings.append(
                f"The dump cannot tell {near[0][0]} from {near[0][1]}: the true values are nearer to each other than "
                f"the errors that {budget if in_units else verdict} allows. Names that are off by one layer are called "
                f"right too.{more}"
            )

    def _diagnose(self, rows: list[Row], entries: list[Placed]) -> list[Finding]:
        port = _worst(rows, entries)
        wrong = list(dict.fromkeys(row.name for row in rows if not row.ratio <= RMS))
        vectors = self._measuring.true_vectors if VECTOR in port else None
        self._measuring.truth.release()
        labels = row_labels(self._subject, self._batch.mask, self._inputs)
        holds = {row.name: row.holds for row in rows if row.holds}
        if not {*holds.values()} <= self._specs.keys():  # queries and keys are exchanged, which says enough
            return []
        model = self._subject.model
        return diagnose(model, self._inputs, port, wrong, budget=RMS, vectors=vectors, rows=labels, holds=holds)
