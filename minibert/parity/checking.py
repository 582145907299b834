"""`check`: compare a dump of another implementation with float64 values, name by name, and give a verdict.

The values are compared by comparison.py. Here it is found out what both were given and which weights the port has.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minibert._utils.files import printable
from minibert._utils.validation import brief
from minibert.parity.comparison import Comparison
from minibert.parity.dumps import Dump, NothingComparedError, as_dump, read_dump
from minibert.parity.inputs import check_inputs, check_weights, of_probe, read_inputs
from minibert.parity.matching import Matched, inputs_in, match, shape_of
from minibert.parity.port_weights import with_weights
from minibert.parity.report import UNIT, Report, about
from minibert.parity.truth import HALF_PRECISIONS, Subject


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
    weights: str | os.PathLike[str] | None = None,
) -> Report:
    """Compare the values that another implementation computed with the true values, and say what is wrong.

    Parameters
    ----------
    model : BertModel, model with a head, or SentenceTransformer
        The checkpoint that the other implementation runs. A `SentenceTransformer` is needed for sentence vectors.
    dump : mapping of names to arrays, or path
        Any names of trace/README.md, such as "hidden_states.0"; see parity/README.md for the formats of files.
    inputs : mapping or path, optional
        What both were given, as the model takes it: input_ids, attention_mask, token_type_ids, position_ids. Default:
        the input_ids of the dump, with its mask and types; else the inputs of `probe`, for a `SentenceTransformer`.
    budget : "float32", "float16", "bfloat16" or float
        The precision that is allowed, or the largest RMS error in units of a float32 forward's; the largest error of a
        number may be twice as many of its units.
    names : mapping, optional
        Names in the dump -> names of minibert.
    raw : mapping, optional
        Names -> shapes of files without a header; see `read_dump`.
    diagnosis : bool
        Whether to look for the cause.
    on_table : function, optional
        It is called with the report without causes, before the search for a cause. That search can take many seconds.
    port : str
        What made the dump, with its version, for the report.
    weights : path, optional
        The weights of the port, such as a GGUF file, a folder or a hub id. A warning says how they differ from those of
        the model; the values are then compared with a forward that has them, so that only other mistakes are left.

    Raises
    ------
    NothingComparedError
        No array of the dump is a value of the model. It is a ValueError.
    TypeError, ValueError, OSError, MemoryError
        An argument is wrong, or a file cannot be read.
    """
    subject, rounded = Subject.of(model), list[str]()
    _check_budget(budget)
    if weights is not None:
        subject, rounded = with_weights(subject, weights)
    arrays = as_dump(dump) if isinstance(dump, Mapping) else read_dump(dump, raw)
    source = printable(os.fspath(inputs)) if isinstance(inputs, str | os.PathLike) else ""
    if inputs is None:
        own: dict[str, Any] = dict(reversed(inputs_in(arrays, names)))  # the first of each
        ids = "input_ids" if "input_ids" in own else "inputs_embeds"
        source = "those of the dump" if ids in own else "the probe"
        # Its positions are not taken: a port computes them itself, and they may be wrong.
        kept = {name: array for name, array in own.items() if name in (ids, "attention_mask", "token_type_ids")}
        if ids in own and "attention_mask" not in own and arrays.keys() & {"attention_mask", "mask"}:
            raise ValueError("The attention mask of the dump does not have the shape (B, S). Give inputs with one.")
        inputs = of_probe(subject) if source == "the probe" else kept
    taken = read_inputs(inputs, subject)
    matched = match(arrays, subject, subject.pack(taken), names)
    wrong_inputs, notes = check_inputs(subject, taken, matched.inputs)
    wrong_weights, more, transposed = check_weights(subject, matched.weights)
    findings = [*wrong_inputs, *wrong_weights]
    if not matched.values and not findings:
        raise NothingComparedError(_nothing(arrays, matched))
    with np.errstate(all="ignore"):  # the numbers of a port may overflow anything
        facts = about(subject, taken, source, dump, arrays) | {"port": port}
        if weights is not None:
            facts["weights of the port"] = printable(os.fspath(weights)) + ", not the checkpoint's" * bool(rounded)
        facts |= {"budget": budget if isinstance(budget, str) else f"{budget} units", "unit": UNIT}
        comparison = Comparison(subject, taken, budget, [] if wrong_inputs else matched.values)
        report = comparison.report(findings, facts)
        report.notes[:0] = [*matched.notes, *notes, *more]
        report.warnings[:0] = [*rounded, *transposed]
        report.unknown[:0] = matched.unknown
        if len(report.unknown) > len(report.names) and not wrong_inputs:
            counts = f"({len(report.unknown)}) than were compared ({len(report.names)})"
            report.warnings.insert(0, f"More names are unknown {counts}.")
        if findings or report.verdict != "wrong" or not diagnosis:
            return report
        if on_table is not None:
            on_table(dataclasses.replace(report, diagnosis=[]))
        return comparison.diagnosed(report)


def _check_budget(budget: object) -> None:
    if budget in ("float32", *HALF_PRECISIONS):
        return
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget <= 1e300:
        raise ValueError(f"budget={brief(budget)}; expected 'float32', 'float16', 'bfloat16' or a number of units.")


def _nothing(arrays: Dump, matched: Matched) -> str:
    held = [name for name in ("inputs", "weights") if getattr(matched, name)]
    listed = ", ".join(f"{printable(name)} {shape_of(value)}" for name, value in list(arrays.items())[:6])
    only = f"Only {' and '.join(held)} were recognised" if held else "No name was recognised"
    return (
        f"Nothing can be compared. The dump holds {listed}. {only}. Use names of trace/README.md, such as "
        "hidden_states.0, or say what the names mean: names={'their name': 'hidden_states.0'}."
    )
