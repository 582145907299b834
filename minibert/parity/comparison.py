"""`check`: a dump of another implementation beside the float64 values, name by name."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import itertools
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import minibert
from minibert._utils.files import printable
from minibert._utils.validation import FloatArray, brief, counted
from minibert.bert.packed import PackedBatch
from minibert.parity.diagnosis.findings import Finding
from minibert.parity.diagnosis.forward import state_name
from minibert.parity.diagnosis.mistakes import VECTOR, mask_of
from minibert.parity.diagnosis.search import diagnose
from minibert.parity.dumps import Dump, NothingComparedError, as_dump, read_dump
from minibert.parity.inputs import check_inputs, check_weights, of_probe, read_inputs, row_labels
from minibert.parity.matching import Matched, Meaning, Placed, match, place, shape_of
from minibert.parity.report import UNIT, Report, Row
from minibert.parity.subject import INPUTS, Padded, Subject, visible
from minibert.parity.truth import HALF_PRECISIONS, true_values
from minibert.parity.verdict import RMS, Errors, find_moved, is_allowed, verdict_of, with_levels
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
    port: str = "",
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
    port : str
        What made the dump, with its version, for the report.

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
    source = printable(os.fspath(inputs)) if isinstance(inputs, str | os.PathLike) else ""
    if inputs is None:
        own: dict[str, Any] = dict(reversed(match(arrays, subject, None, names).inputs))  # the first of each
        source = "those of the dump" if own.keys() & {"input_ids", "inputs_embeds"} else "the probe"
        inputs = of_probe(subject) if source == "the probe" else own
    taken = read_inputs(inputs, subject)
    batch = subject.pack(taken)
    matched = match(arrays, subject, batch, names)
    wrong_inputs, notes = check_inputs(subject, taken, matched.inputs)
    wrong_weights, more, transposed = check_weights(subject, matched.weights)
    findings = [*wrong_inputs, *wrong_weights]
    if not matched.values and not findings:
        raise NothingComparedError(_nothing(arrays, matched))
    with np.errstate(all="ignore"):  # the numbers of a port may overflow anything
        comparison = _Comparison(subject, taken, batch, [*matched.notes, *notes, *more])
        report = comparison.compare([] if wrong_inputs else matched.values, findings, budget)
        about = _about(subject, taken, batch, source) | {"dump": _dump_of(dump, arrays), "port": port}
        about |= {"budget": f"{budget} units" if isinstance(budget, int | float) else budget, "unit": UNIT}
        unknown = [*matched.unknown, *report.unknown]
        warnings = [*transposed, *report.warnings]
        if len(unknown) > len(report.names) and not wrong_inputs:
            warnings.insert(0, f"More names are unknown ({len(unknown)}) than were compared ({len(report.names)}).")
        report = dataclasses.replace(report, unknown=unknown, warnings=warnings, about=about)
        if findings or report.verdict != "wrong" or not diagnosis:
            return report
        if on_table is not None:
            on_table(dataclasses.replace(report, diagnosis=[]))
        return comparison.diagnosed(report)


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


def _about(subject: Subject, inputs: Mapping[str, Any], batch: PackedBatch, source: str) -> dict[str, str]:
    """Return what a citation needs of the model, the inputs and this machine."""
    config = subject.config
    sizes = f"{config.num_hidden_layers} layers, hidden_size {config.hidden_size}"
    given = {name: np.asarray(inputs[name], "<f8") for name in INPUTS if name in inputs}
    rows, length = batch.mask.shape
    shape = f"{counted(rows, 'row')} of {length}, {counted(batch.num_tokens, 'token')}"
    about = {"model": ", ".join(filter(None, [subject.name, subject.head, sizes]))}
    if subject.files is None:
        weights = {name: np.asarray(array, "<f4") for name, array in subject.weights().items()}
        about["weights"] = f"float32 numbers by name, {_digest(weights)}"
        about["config"] = f"its fields, {_digest({repr(config): np.zeros(0)})}"
    else:
        about["source"] = subject.files.source
        about["weights"] = ", ".join(_digest_of_file(path) for path in subject.files.checkpoint())
        about["config"] = _digest_of_file(subject.files.require("config.json"))
    return about | {
        "layers": "counted from 0; hidden_states.0 is the output of the embeddings, hidden_states.1 that of layer 0",
        "inputs": ", ".join(filter(None, [source, shape, _digest(given)])),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": f"minibert {minibert.__version__}, NumPy {np.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}",
    }


def _dump_of(dump: Any, arrays: Dump) -> str:
    path = None if isinstance(dump, Mapping) else Path(os.fspath(dump))
    if path is not None and path.is_file():
        return _digest_of_file(path)
    name = "" if path is None else f"{printable(path.name)}, "
    return f"{name}{counted(len(arrays), 'array')}, {_digest(arrays)}"


def _digest(arrays: Mapping[str, Any]) -> str:
    """Return the begin of the SHA-256 of arrays: of each the name, dtype and shape, and the numbers."""
    digest = hashlib.sha256()
    for name, value in arrays.items():
        for array in value if isinstance(value, list) else [value]:
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode(errors="surrogatepass"))
            digest.update(np.ascontiguousarray(array).data)
    return f"sha256 {digest.hexdigest()[:16]} (first 16 hex digits)"


def _digest_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return f"{printable(path.name)} sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"


class _Comparison:
    """The values of one dump beside those of one model."""

    def __init__(self, subject: Subject, inputs: dict[str, Any], batch: PackedBatch, notes: list[str]) -> None:
        self._subject, self._inputs, self._batch, self._notes = subject, inputs, batch, notes
        self._specs = dict(subject.names.specs)
        if subject.pipeline is not None:
            self._specs[VECTOR] = Spec(VECTOR, None, "pooled", subject.pipeline.widths[-1], False)
        self._errors = Errors(subject, inputs, batch)
        self._found: list[Placed] = []

    def compare(self, meanings: list[Meaning], findings: list[Finding], budget: str | float) -> Report:
        """Return the report without causes, except for `findings` and names that have the values of other names."""
        self._errors.expect({name for one in meanings for name in (one.name, one.before) if name in self._specs})
        num_heads = self._subject.config.num_attention_heads
        placement = place(meanings, self._specs, self._batch, num_heads, self._errors.relative)
        self._notes += placement.notes
        found = self._found = placement.found
        if not found and not findings:
            more = len(self._notes) - 1
            same = f" The same is true of {counted(more, 'other name')}." if more > 0 else ""
            raise NothingComparedError(f"Nothing can be compared. {self._notes[0]}{same}")
        units = self._errors.units([one.name for one in found])
        rows, moved = find_moved(
            [self._errors.row(*one, units) for one in found],
            [one.array for one in found],
            self._subject.names,
            self._all_errors(),
        )
        rows = with_levels(rows, [one.array for one in found], self._errors)
        verdict = verdict_of(rows, bool(findings))
        if verdict == "float32" and rows and self._is_ours():
            verdict = "bits"
        first = next((row.name for row in rows if row.level == "wrong"), None)
        self._note_layouts(rows)
        self._note_hidden(rows)
        return Report(
            verdict=verdict,
            first=findings[0].names[0] if findings else first if verdict == "wrong" else None,
            names=rows,
            diagnosis=findings or moved,
            budget=budget,
            allowed=not findings and is_allowed(rows, verdict, budget),
            notes=self._notes,
            misfits=placement.misfits,
            unknown=placement.unknown,
            warnings=[*placement.warnings, *self._different_twins(), *self._near_states(rows, verdict, budget)],
        )

    def _all_errors(self) -> Callable[[FloatArray, str], float]:
        """Return the relative error beside any value of the model; these are not kept, because they are many."""
        values = true_values(self._subject, self._inputs, self._batch, list(self._subject.names.specs))
        return lambda array, name: self._errors.relative(array, name, values[name])

    def _worst(self, rows: list[Row]) -> dict[str, FloatArray]:
        """Return one array of each name: of several, the one with the largest error."""
        both = sorted(zip(rows, self._found, strict=True), key=lambda one: np.nan_to_num(one[0].ratio, nan=np.inf))
        return {row.name: one.array for row, one in both}

    def _is_ours(self) -> bool:
        """Return whether all values are those of minibert, bit for bit."""
        names = [one.name for one in self._found]
        if VECTOR in names or any(one.array.dtype != np.float32 for one in self._found):
            return False
        trace = self._subject.model.trace(**self._inputs, record=names)
        mask = self._batch.mask
        return all(np.array_equal(visible(one.array, mask), visible(trace[one.name], mask)) for one in self._found)

    # --- what else is said --------------------------------------------------------------------------------------------

    def _note_layouts(self, rows: list[Row]) -> None:
        by_layout: dict[str, list[str]] = {}
        for row in rows:
            if row.layout:
                by_layout.setdefault(row.layout, []).append(row.given)
        for layout, names in by_layout.items():
            more = f" and {len(names) - 2} more" if len(names) > 2 else ""
            self._notes.append(f"{', '.join(names[:2])}{more} {'were' if len(names) > 1 else 'was'} read as {layout}.")

    def _note_hidden(self, rows: list[Row]) -> None:
        hidden = ~self._batch.mask
        arrays = [one.array for one in self._found if self._specs[one.name].kind == "tokens"]
        if all(row.level != "wrong" for row in rows) and any(np.any(array[hidden]) for array in arrays):
            self._notes.append("Places that are masked hold numbers. That is fine: nothing reads them.")

    def _different_twins(self) -> Iterator[str]:
        """Warn of names of one value that have different numbers."""
        for name, group in itertools.groupby(self._found, key=lambda one: one.name):
            twins = list(group)
            shown = [visible(one.array, mask_of(name, self._batch.mask)) for one in twins]
            if any(not np.array_equal(one, shown[0], equal_nan=True) for one in shown[1:]):
                given = " and ".join(one.given for one in twins[:3])
                yield f"{given} are names of one value, and hold different numbers."

    def _near_states(self, rows: list[Row], verdict: str, budget: str | float) -> Iterator[str]:
        """Warn of hidden states that are nearer to each other than the errors that the verdict allows."""
        in_units = isinstance(budget, int | float) and verdict != "bits"
        if verdict not in (*HALF_PRECISIONS, "float32") and not in_units:
            return
        states = [state_name(i) for i in range(self._subject.config.num_hidden_layers + 1)]
        true: Mapping[str, FloatArray] = self._worst(rows)  # as near to the true values as float32 is
        if verdict != "float32" or in_units:
            true = true_values(self._subject, self._inputs, self._batch, states)
        nbytes = 8 * len(states) * self._batch.mask.size * self._subject.config.hidden_size
        is_cheap = len(states) * nbytes <= 2**30  # all pairs, else those of neighbours
        near = []
        for row in rows:
            if row.name not in states:
                continue
            if in_units:
                allowed = row.unit * float(budget)
            else:
                allowed = RMS * (row.unit if verdict == "float32" else row.rms / (row.half.get(verdict) or np.inf))
            i = states.index(row.name)
            for other in states if is_cheap else states[max(i - 1, 0) : i + 2]:
                if other in true and other != row.name and self._errors.rms(true[row.name], true[other]) <= allowed:
                    near.append((row.given, other))
        if near:
            more = f" The same is true of {counted(len(near) - 1, 'other pair')}." if len(near) > 1 else ""
            yield (
                f"The dump cannot tell {near[0][0]} from {near[0][1]}: the true values are nearer to each other than "
                f"the errors that {budget if in_units else verdict} allows. Exchanged names are called right too.{more}"
            )

    def diagnosed(self, report: Report) -> Report:
        """Look for the cause, and mark the names that are wrong by themselves."""
        rows = report.names
        port = self._worst(rows)
        wrong = list(dict.fromkeys(row.name for row in rows if not row.ratio <= RMS))
        vectors = self._errors.true_vectors if VECTOR in port else None
        self._errors.truth.release()
        labels = row_labels(self._subject, self._batch.mask, self._inputs)
        holds = {row.name: row.holds for row in rows if row.holds}
        if not {*holds.values()} <= self._specs.keys():  # queries and keys are exchanged, which says enough
            return report
        model = self._subject.model
        padded = Padded.of(model.config, self._inputs)
        causes = diagnose(model, padded, port, wrong, budget=RMS, vectors=vectors, rows=labels, holds=holds)
        own = {name for cause in causes for name in cause.names}
        marked = [dataclasses.replace(row, own=row.level == "wrong" and row.name in own) for row in rows]
        return dataclasses.replace(report, names=marked, diagnosis=causes or report.diagnosis)
