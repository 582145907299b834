"""Check functions: compare their results with the right ones, find the first wrong number, and what makes it wrong.

A result is right if its error, beside float64, is at most that of plain code in float32, times 4 for the root mean
square and times 8 for a single number: the limits of `minibert.parity`. Plain code adds products one after the other,
so other orders of summation have a smaller error. A wrong formula cannot be within this: the tanh form of GELU, one of
the most similar ones, has an error of 1e-4, a thousand times as much. Formulas that differ less on the numbers of the
model (eps outside the root, the maximum not subtracted) are checked on other numbers, too (lesson.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, check_choice, counted
from minibert.learn.lesson import Case, Lesson
from minibert.learn.right import MISREADINGS, RIGHT, WRONG, run
from minibert.learn.student import SECONDS, Outcome, Student, attempt, page, time_it
from minibert.models.bert import BertModel
from minibert.parity.diagnosis import MISTAKES, diagnose, explain
from minibert.parity.diagnosis.forward import states_of
from minibert.parity.truth import VECTOR, rms

_RMS, _SINGLE = 4, 8
# The least error of float32, relative to the values: that of rounding the result once.
_ROUNDING = 2.0**-24

# Mistakes with masks, padding, dropout and names, which no exercise has.
_OTHERS = ("A5", "A6", "D1", "E5", "H1", "P1", "P4", "T1.unknown", "E3.visible", "E4.order")

_STATUS = {"error": "stopped", "empty": "not filled in yet", "slow": "too slow", "not run": "not checked"}
_WIDTH, _INDENT = 100, 14
# Seconds of one function when its time is measured.
_BENCH = 60.0


@dataclasses.dataclass(frozen=True)
class Result:
    """What the check of one step found.

    Parameters
    ----------
    step : str
    status : str        "right", "wrong", "missing"; "error", "empty" (not filled in yet), "slow", "not run"
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
        """Return the number, the name, the status, and below them what is wrong."""
        parts = [self.text, self.hint and f"Hint: {self.hint}", self.cause if self.more else ""]
        parts += [self.printed and f"It printed:\n{self.printed}"]
        rows = [f"{[*RIGHT].index(self.step) + 1:2} {self.step:{_INDENT - 3}}{_STATUS.get(self.status, self.status)}"]
        for line in "\n".join(filter(None, parts)).splitlines():
            rows += textwrap.wrap(line, _WIDTH - _INDENT, break_on_hyphens=False)
        return f"\n{'':{_INDENT}}".join(rows)

    __repr__ = __str__


def judge(lesson: Lesson, step: str, outcome: Outcome, *, causes: bool = True) -> Result:
    """Compare what a function gave with what is right; with `causes` say why it is wrong."""
    cases, compare = lesson.cases[step], _wrong_tokens if step == "tokenize" else _wrong_numbers
    for index, value in enumerate(outcome.values):
        if wrong := compare(lesson, step, index, value):
            mistakes = _causes(lesson, step, index, outcome.values) if causes else ()
            text = f"With {cases[index].label}: {wrong}" if cases[index].label else wrong
            return Result(step, "wrong", text, *_said(mistakes), mistakes, outcome.printed)
    if outcome.status == "done":
        return Result(step, "right", printed=outcome.printed)
    text = outcome.text
    if outcome.status == "missing":
        text = f"There is no function {step} in the file. Was it renamed?"
    elif outcome.values and cases[len(outcome.values)].label:
        text = f"With {cases[len(outcome.values)].label}: {text}"
    return Result(step, outcome.status, text, printed=outcome.printed)


# --- compare ----------------------------------------------------------------------------------------------------------


def _wrong_tokens(lesson: Lesson, step: str, index: int, given: list[str]) -> str:
    """Return the first wrong token of a text; "" if all are right."""
    right = lesson.right(step, index)
    if given == right:
        return ""
    place = next((i for i, (a, b) in enumerate(zip(given, right, strict=False)) if a != b), min(len(given), len(right)))
    first, second = (repr(some[place]) if place < len(some) else "missing" for some in (given, right))
    return f"token {place} is {first}; right is {second}.\nYours: {given}\nRight: {right}"


def _outside(given: FloatArray, right: FloatArray, plain: FloatArray) -> Any:
    """Return which numbers are outside the limits, as a bool array; `plain` is the result of plain code in float32."""
    error, rounding = np.abs(given - right), np.abs(plain - right)
    usual = _RMS * max(rms(rounding), _ROUNDING * rms(right))
    most = _SINGLE * max(rounding.max(initial=0), _ROUNDING * np.abs(right).max(initial=0))
    single = ~(error <= most)
    return single if single.any() or rms(error) <= usual else ~(error <= usual)


def _wrong_numbers(lesson: Lesson, step: str, index: int, value: Sequence[FloatArray]) -> str:
    """Return what is wrong with the result of a case; "" if nothing is."""
    right, plain = lesson.right(step, index), lesson.right(step, index, plain=True)
    if len(value) != len(right):
        return f"there are {counted(len(value) - 1, 'state')}; expected {len(right) - 1}."
    names = [*(f"states[{i}]" for i in range(len(right) - 1)), "vector"] if step == "bert" else ["result"]
    for name, given, true, rounded in zip(names, value, right, plain, strict=True):
        if given.shape != true.shape:
            return f"the shape of {name} is {given.shape}; expected {true.shape}."
        outside = _outside(given, true, rounded)
        if outside.any():
            place = tuple(int(axis[0]) for axis in np.nonzero(outside))
            digits = 6 if f"{given[place]:.6g}" != f"{true[place]:.6g}" else 9
            found = f"{name}{[*place]} is {given[place]:.{digits}g}; right is {true[place]:.{digits}g}."
            return f"{found} {'; '.join(_pattern(given, true, outside))}."
    return ""


def _pattern(given: FloatArray, right: FloatArray, outside: Any) -> list[str]:
    """Say how many numbers are wrong, and what they have in common."""
    said = [f"{outside.sum()} of {counted(outside.size, 'number')} are wrong"]
    if not np.isfinite(given).all():
        return [*said, f"{(~np.isfinite(given)).sum()} are nan or infinite"]
    factor, difference = float((given * right).sum() / max((right * right).sum(), 1e-300)), given - right
    if rms(given - factor * right) < 1e-4 * rms(difference):
        said.append(f"each is {factor:.5g} times the right number" if factor else "each is 0")
    elif rms(difference - difference.mean()) < 1e-4 * rms(difference):
        said.append(f"each differs by {difference.mean():+.5g}")
    return said


# --- the cause --------------------------------------------------------------------------------------------------------


def _causes(lesson: Lesson, step: str, index: int, values: Sequence[list[Any]]) -> tuple[str, ...]:
    """Return the ids of the known mistakes that make the results of a wrong case, the best one first."""
    cases, value, right = lesson.cases[step], values[index], lesson.right(step, index)
    case, found = cases[index], []
    if step == "tokenize":
        made = {wrong: [RIGHT[step](*one.arguments, wrong) for one in cases] for wrong in MISREADINGS}
        return tuple(f"T.{wrong}" for wrong, tokens in made.items() if tokens == values)
    if [one.shape for one in value] != [one.shape for one in right]:
        return ()
    if not all(np.isfinite(one).all() for one in value):
        return ("A9.no-shift",) if step == "softmax" and not case.name else ()
    if step == "bert" and case.name:
        names, plain = [*states_of(lesson.model.config), VECTOR], lesson.right(step, index, plain=True)
        port = {name: one[None] for name, one in zip(names, value, strict=True)}
        arrays = zip(names, value, right, plain, strict=True)
        wrong = [name for name, *three in arrays if _outside(*three).any()]
        found = diagnose(lesson.model, lesson.padded, port, wrong, vectors=right[-1][None])
    elif case.name:  # the results of all heads are one value
        parts = [i for i, one in enumerate(cases) if (one.name, one.eps) == (case.name, case.eps)]
        whole = np.concatenate([(values[i] if i < len(values) else lesson.right(step, i))[0] for i in parts], axis=-1)
        found = explain(lesson.model_with(case.eps), lesson.inputs, case.name, whole[None], case.known, several=False)
    first = next((one.candidates for one in found if one.candidates), ())
    known = tuple(id for id in first if id in MISTAKES and not id.startswith(_OTHERS))
    return known or tuple(id for id in WRONG if id.startswith(f"{step}.") and _makes(id, case, value[0]))


def _makes(id: str, case: Case, given: FloatArray) -> bool:
    """Return whether a function of `WRONG` makes a result, up to rounding."""
    made, plain = (run(id, *case.arguments, dtype=dtype) for dtype in (np.float64, np.float32))
    return not _outside(given, made, plain).any()


def _said(mistakes: Sequence[str]) -> tuple[str, str]:
    """Return the hint of the best mistake, and the causes with their remedy; "" if no mistake is known."""
    if not mistakes:
        return "", ""
    hints, best = page("hints.md"), mistakes[0]
    hint, _, cause = (hints.get(best) or hints.get(best.partition(".")[0], "")).partition(" => ")
    if cause:
        return hint, f"Cause: {cause}"
    texts = [re.sub(r"; config.json has another \w+$", "", MISTAKES[id].text) for id in mistakes]
    either = "one of these, which give the same numbers here: " if texts[1:] else ""
    return hint, f"Cause: {either}{'; or '.join(texts)}.\nRemedy: {MISTAKES[best].remedy}"


# --- check ------------------------------------------------------------------------------------------------------------

_lesson = functools.lru_cache(maxsize=2)(Lesson)


def check(step: str, function: Any, *, more: bool = False, **lesson: Any) -> Result:
    """Check one function of the course on real weights; print the result, or look at its attributes.

    Parameters
    ----------
    step : str          the name that the function has in the file: "gelu"
    function : callable
    more : bool         whether the printed result has the cause too, beside the hint
    **lesson
        model : a BERT with GELU, a hub id or a folder. text, pair : two texts on which the function is checked.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        There is no such step, or the model is not a BERT with GELU.
    """
    known = _lesson(**lesson)
    found = _judged(known, step, lambda **options: attempt(step, function, known.cases[step], **options))
    return dataclasses.replace(found, more=more)


def _judged(lesson: Lesson, step: str, call: Callable[..., Outcome]) -> Result:
    """Judge a function as it is; if it is not right, also with right functions in the place of those that it calls."""
    check_choice("step", step, RIGHT)
    outcome = call(helped=False)
    first = judge(lesson, step, outcome, causes=False)
    if first.status not in ("wrong", "error"):
        return first
    second = judge(lesson, step, helped := call(helped=True), causes=False)
    if second.right:
        return dataclasses.replace(second, text="It is right, but it calls a function of yours that is not.")
    return judge(lesson, step, helped if second.status in ("wrong", first.status) else outcome)


def check_file(
    path: str | Path, steps: Iterable[str] = (), *, seconds: float = SECONDS, **lesson: Any
) -> Iterator[Result]:
    """Check the functions of a file or a notebook, which runs in a process of its own.

    Parameters
    ----------
    path : str or path      what `start` wrote, filled in
    steps : names of steps; all of them if there are none
    seconds : float         that one function may take
    **lesson : as for `check`

    Yields
    ------
    Result

    Raises
    ------
    ValueError
        As for `check`; or the file cannot be run, and the message has its wrong line.
    """
    with contextlib.closing(Student(path, lesson, seconds)) as student:
        known = _lesson(**lesson)
        for step in [*steps] or RIGHT:
            yield _judged(known, step, functools.partial(student.ask, step))


def sentence(path: str | Path, *, seconds: float = SECONDS, **lesson: Any) -> FloatArray:
    """Return the vector of a text, computed by the functions of a file.

    Raises
    ------
    ValueError
        The file cannot be run, or its functions give no vector.
    """
    with contextlib.closing(Student(path, lesson, seconds)) as student:
        outcome = student.ask("sentence")
    if outcome.status != "done":
        raise ValueError(f"{path} does not give a vector. {outcome.text}")
    return np.asarray(outcome.values[0][-1])


def bench(paths: Iterable[str | Path], **lesson: Any) -> Iterator[tuple[str, float]]:
    """Yield the seconds of `bert` in each file, then those of minibert with NumPy and with its kernels, by name.

    Raises
    ------
    ValueError
        A file cannot be run, or its `bert` is not right.
    """
    known = _lesson(**lesson)
    for path in paths:
        with contextlib.closing(Student(path, lesson, _BENCH)) as student:
            if not judge(known, "bert", student.ask("bert")).right:
                raise ValueError(f"bert in {path} is not right yet; check it first.")
            yield str(path), float(student.ask("time").values[0][0])
    for backend in ("numpy", "kernels"):
        with contextlib.suppress(ImportError):  # no kernels were built
            ours = BertModel.from_pretrained(known.name, backend=backend, add_pooling_layer=False)
            yield f"minibert, {backend}", time_it(functools.partial(ours, **known.inputs))
