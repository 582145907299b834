"""What is compared before any value: the inputs in a dump, and its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import counted
from minibert.parity.finding import Finding
from minibert.parity.padded import Padded
from minibert.parity.rounding import HALF_PRECISIONS, round_to
from minibert.parity.subject import Subject

__all__ = ["check_inputs", "check_weights"]


def check_inputs(
    subject: Subject, inputs: Mapping[str, Any], dumped: Sequence[tuple[str, npt.NDArray[Any]]]
) -> tuple[list[Finding], list[str]]:
    """Compare the ids, mask, types and positions in the dump with the inputs, or with the usual ones; also notes."""
    padded = Padded.of(subject.config, inputs)
    usual = {"attention_mask": padded.mask, "token_type_ids": padded.types, "position_ids": padded.positions}
    findings: list[Finding] = []
    notes: list[str] = []
    for name, ids in dumped:
        given = np.asarray(inputs[name]) if name in inputs else usual.get(name)
        if given is not None and ids.shape == (1, *given.shape[1:]):
            ids = np.broadcast_to(ids, given.shape)
        if given is None or name == "inputs_embeds" or (name not in inputs and ids.shape != given.shape):
            notes.append(f"{name} in the dump, of shape {ids.shape}, was not compared: it is not in the inputs.")
            continue
        shown = np.ones(given.shape, np.bool_) if name == "attention_mask" else padded.mask
        if ids.shape != given.shape:
            text = f"{name} has shape {ids.shape} in the dump; expected {given.shape}."
        elif not ((ids != given) & shown).any():
            continue
        else:
            row = int(np.flatnonzero(((ids != given) & shown).any(axis=1))[0])
            text = f"{name} differ in row {row}. The port has {_row(subject, name, ids[row])}, expected "
            text += f"{_row(subject, name, given[row])}."
        findings.append(
            Finding(
                text=text + " So the values are not compared.",
                mistake="",
                names=(name,),
                explained=0.0,
                remedy="Give both the same integers, or repair the tokenizer first.",
            )
        )
    return findings, notes


def _row(subject: Subject, name: str, row: npt.NDArray[Any]) -> str:
    tokenizer = subject.tokenizer
    listed = row[:24].tolist()
    if name == "input_ids" and tokenizer is not None and row.dtype.kind in "iu":
        known = [i if 0 <= i < len(tokenizer) else 0 for i in listed]
        return f"{listed} ({' '.join(tokenizer.convert_ids_to_tokens(known))})"
    return str(listed)


def check_weights(subject: Subject, dumped: Sequence[tuple[str, npt.NDArray[Any]]]) -> tuple[list[Finding], list[str]]:
    """Compare the weights in the dump with those of the checkpoint, bit for bit; return what differs, and notes."""
    findings: list[Finding] = []
    notes, weights = [], subject.weights()
    transposed = []
    for name, array in dumped:
        true = weights[name]
        if array.shape == true.shape and np.array_equal(array.astype(np.float32), true):
            continue
        if array.T.shape == true.shape and np.array_equal(array.T.astype(np.float32), true):
            transposed.append(name)
            continue
        text = f"{name} is not the checkpoint's"
        if array.shape != true.shape:
            text += f": its shape is {array.shape}, expected {true.shape}."
        else:
            rounded = [
                level for level in HALF_PRECISIONS if np.array_equal(array.astype(np.float32), round_to(level, true))
            ]
            wrong = int(np.count_nonzero(array.astype(np.float32) != true))
            text += f": it was rounded to {rounded[0]}." if rounded else f": {wrong:,} of {true.size:,} numbers differ."
        findings.append(
            Finding(text=text, mistake="", names=(name,), explained=0.0, remedy="Repair what loads the weights first.")
        )
    if transposed:
        notes.append(f"These weights are stored transposed: {', '.join(transposed[:4])}.")
    equal = len(dumped) - len(findings)
    if equal:
        notes.append(f"{counted(equal, 'weight')} in the dump: equal to the checkpoint's.")
    return findings, notes
