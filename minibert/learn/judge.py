"""Compare the results of a step with the right ones; find the first wrong number, and the mistake that makes it.

A result is right if its error, beside float64, is at most that of plain code in float32, times 4 for the root mean
square and times 8 for a single number: the limits of `minibert.parity`. Plain code adds the products one after the
other, so no order of summation has a larger error. A wrong formula cannot be within this: the tanh form of GELU, the
most similar one, is wrong by 1e-4, a thousand times as much. Formulas that differ less on the numbers of the model
(eps outside the root, the maximum not subtracted) are also checked on numbers where they differ (lesson.py).
"""

from __future__ import annotations

import dataclasses
import functools
import re
import textwrap
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, counted
from minibert.learn.lesson import Case, Lesson
from minibert.learn.right import RIGHT, find_misreadings
from minibert.learn.student import Outcome
from minibert.parity.diagnosis import MISTAKES, diagnose, explain
from minibert.parity.diagnosis.forward import states_of
from minibert.parity.truth import VECTOR, rms

_RMS, _SINGLE = 4, 8
# The least error of float32, relative to the values: that of rounding the result once.
_ROUNDING = 2.0**-24

# Mistakes with masks, padding, dropout and names, which no exercise has.
_OTHERS = ("A5", "A6", "D1", "E5", "H1", "P1", "P4", "T1.unknown", "E3.visible", "E4.order")

STATUS = {
    "right": "right", "wrong": "wrong", "error": "stopped", "empty": "not filled in yet", "missing": "missing",
    "slow": "too slow", "not run": "not checked",
}  # fmt: skip
"""What is said of a step, by `Result.status`."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What the check of one step found.

    Parameters
    ----------
    step : str
    status : str        a key of `STATUS`
    text : str          what is wrong, and where
    hint : str          a question that leads to the cause; "" if the cause is not known
    cause : str         the cause and the remedy
    mistakes : tuple of str
        The ids of the mistakes that give these numbers, in `minibert.parity.diagnosis.MISTAKES` or hints.md.
    printed : str       what the function printed
    more : bool         whether `str` has the cause
    """

    step: str
    status: str
    text: str = ""
    hint: str = ""
    cause: str = ""
    mistakes: tuple[str, ...] = ()
    printed: str = ""
    more: bool = False

    @property
    def right(self) -> bool:
        """Whether the step is right."""
        return self.status == "right"

    def __str__(self) -> str:
        rows = [f"{[*RIGHT].index(self.step) + 1:2} {self.step:11}{STATUS[self.status]}"]
        parts = [self.text, self.hint and f"Hint: {self.hint}", self.cause if self.more else "", _printed(self.printed)]
        for line in "\n".join(filter(None, parts)).splitlines():
            rows += textwrap.wrap(
                line, 100, initial_indent=" " * 14, subsequent_indent=" " * 14, break_on_hyphens=False
            )
        return "\n".join(rows)

    __repr__ = __str__


def _printed(text: str) -> str:
    return f"It printed:\n{text}" if text.strip() else ""


def judge(lesson: Lesson, step: str, outcome: Outcome) -> Result:
    """Compare what a function gave with what is right."""
    tokens = step == "tokenize"
    for index, value in enumerate(outcome.values):
        wrong = _other_tokens(lesson, index, value) if tokens else _first_wrong(lesson, step, index, value)
        if wrong:
            mistakes = (_misread if tokens else _causes)(lesson, step, index, outcome.values)
            return Result(step, "wrong", wrong, *_said(mistakes), mistakes, outcome.printed)
    if outcome.status == "missing":
        text = f"There is no function {step} in the file. Was it renamed? `minibert learn start` writes a new file."
        return Result(step, "missing", text, printed=outcome.printed)
    if outcome.status != "done":
        label = lesson.cases(step)[len(outcome.values)].label if outcome.values else ""
        return Result(step, outcome.status, _with_label(outcome.text, label), printed=outcome.printed)
    return Result(step, "right", printed=outcome.printed)


def _with_label(text: str, label: str) -> str:
    return f"With {label}: {text}" if label else text


# --- compare ----------------------------------------------------------------------------------------------------------


def _arrays(value: Any) -> list[FloatArray]:
    """Return the arrays of a right value: one, or the states and the vector of `bert`."""
    return [*value[0], value[1]] if isinstance(value, tuple) else [value]


def _parts(lesson: Lesson, step: str, index: int) -> list[tuple[FloatArray, FloatArray]]:
    """Return each right array of a case, and that of plain code in float32."""
    return list(zip(*(_arrays(lesson.right(step, index, plain=plain)) for plain in (False, True)), strict=True))


def _wrong_numbers(given: FloatArray, right: FloatArray, plain: FloatArray) -> Any:
    """Return which numbers are outside the limits: a bool array."""
    error, rounding = np.abs(given - right), np.abs(plain - right)
    if rms(error) <= _RMS * max(rms(rounding), _ROUNDING * rms(right)):
        most = _SINGLE * max(rounding.max(initial=0), _ROUNDING * np.abs(right).max(initial=0))
        return ~(error <= most)
    return ~(error <= _RMS * max(rms(rounding), _ROUNDING * rms(right)))


def _first_wrong(lesson: Lesson, step: str, index: int, value: Sequence[FloatArray]) -> str:
    """Return what is wrong with the result of a case; "" if nothing is."""
    label, parts = lesson.cases(step)[index].label, _parts(lesson, step, index)
    if len(value) != len(parts):
        return _with_label(f"there are {counted(len(value) - 1, 'state')}; expected {len(parts) - 1}.", label)
    for number, (given, (right, plain)) in enumerate(zip(value, parts, strict=True)):
        name = "result"
        if step == "bert":
            name = "vector" if number == len(parts) - 1 else f"states[{number}]"
        if given.shape != right.shape:
            return _with_label(f"the shape of {name} is {given.shape}; expected {right.shape}.", label)
        wrong = _wrong_numbers(given, right, plain)
        if wrong.any():
            place = tuple(int(i[0]) for i in np.nonzero(wrong))
            found = f"{name}{list(place)} is {given[place]:.7g}; right is {right[place]:.7g}."
            return _with_label(f"{found} {_pattern(given, right, wrong)}", label)
    return ""


def _pattern(given: FloatArray, right: FloatArray, wrong: Any) -> str:
    """Say how many numbers are wrong, and what they have in common."""
    said = [f"{wrong.sum()} of {wrong.size} numbers are wrong"]
    if not np.isfinite(given).all():
        return f"{said[0]}; {int((~np.isfinite(given)).sum())} of them are nan or infinite."
    factor = float((given * right).sum() / max((right * right).sum(), 1e-300))
    difference = given - right
    if rms(given - factor * right) < 1e-4 * rms(difference):
        said.append(f"each is {factor:.5g} times the right number")
    elif rms(difference - difference.mean()) < 1e-4 * rms(difference):
        said.append(f"each is {difference.mean():+.5g} away from the right number")
    for axis, one in enumerate(("row", "column")):
        lines = wrong.any(axis=1 - axis) if wrong.ndim == 2 else np.ones(1, bool)
        if not lines.all():
            said.append(
                f"all of them in {counted(int(lines.sum()), one)} of {lines.size}, the first is {lines.argmax()}"
            )
    return "; ".join(said) + "."


def _other_tokens(lesson: Lesson, index: int, given: Sequence[str]) -> str:
    """Return the first wrong token of a text; "" if all are right."""
    case = lesson.cases("tokenize")[index]
    right = lesson.right("tokenize", index)
    if [*given] == right:
        return ""
    place = next((i for i, (a, b) in enumerate(zip(given, right, strict=False)) if a != b), min(len(given), len(right)))
    first, second = (repr(some[place]) if place < len(some) else "missing" for some in (given, right))
    return f"With {case.label}: token {place} is {first}; right is {second}.\nYours: {[*given]}\nRight: {right}"


# --- the cause --------------------------------------------------------------------------------------------------------


def _misread(lesson: Lesson, step: str, index: int, values: Sequence[Any]) -> tuple[str, ...]:
    cases = lesson.cases(step)
    if len(values) < len(cases):
        return ()
    return tuple(find_misreadings([case.arguments[0] for case in cases], values, *cases[0].arguments[1:]))


def _causes(lesson: Lesson, step: str, index: int, values: Sequence[Any]) -> tuple[str, ...]:
    """Return the ids of the mistakes of the catalogue that make the numbers of a wrong case."""
    case: Case = lesson.cases(step)[index]
    value, right = values[index], _arrays(lesson.right(step, index))
    if [one.shape for one in value] != [one.shape for one in right]:
        return ()
    if step == "softmax" and not case.name and not np.isfinite(value[0]).all():
        return ("A9.no-shift",)
    if not case.name or not all(np.isfinite(one).all() for one in value):
        return ()
    if step == "bert":
        names = [*states_of(lesson.model.config), VECTOR]
        port = dict(zip(names, (one[None] for one in value), strict=True))
        parts = zip(names, value, _parts(lesson, step, index), strict=True)
        wrong = [name for name, given, both in parts if _wrong_numbers(given, *both).any()]
        found = diagnose(lesson.model, lesson.padded, port, wrong, vectors=right[-1][None])
    else:
        same = [i for i, one in enumerate(lesson.cases(step)) if one.name == case.name and one.eps == case.eps]
        joined = [values[i][0] if i < len(values) else _arrays(lesson.right(step, i))[0] for i in same]
        if any(one.shape != value[0].shape for one in joined):
            return ()
        whole = np.concatenate(joined, axis=-1)[None]
        found = explain(lesson.model_with(case.eps), lesson.inputs, case.name, whole, case.known)
    first = next((one.candidates for one in found if one.candidates), ())
    return tuple(id for id in first if id in MISTAKES and not id.startswith(_OTHERS))


@functools.cache
def _hints() -> dict[str, tuple[str, str]]:
    """Return the hint of each kind of mistake, and for those of `tokenize` the cause too."""
    text = (files(__package__) / "hints.md").read_text(encoding="utf-8")
    found: dict[str, tuple[str, str]] = {}
    for item in re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE):
        ids, _, said = " ".join(item.split()).partition(": ")
        hint, _, cause = said.partition(" => ")
        found |= dict.fromkeys(ids.replace("`", "").split(", "), (hint, cause))
    return found


def _said(mistakes: Sequence[str]) -> tuple[str, str]:
    """Return the hint of the best mistake, and the causes with their remedy; "" if no mistake is known."""
    if not mistakes:
        return "", ""
    hints, best = _hints(), mistakes[0]
    hint, cause = hints.get(best) or hints.get(best.partition(".")[0]) or ("", "")
    if cause:
        return hint, f"Your results are those of this misreading: {cause}"
    texts = [re.sub(r"; config.json has another \w+$", "", MISTAKES[id].text) for id in mistakes]
    lead = "Your numbers are those of this mistake" if len(texts) == 1 else "Your numbers are those of one of these"
    return hint, f"{lead}: {'; or '.join(texts)}.\nRemedy: {MISTAKES[best].remedy}"
