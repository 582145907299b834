"""Check functions: compare their results with the right ones, find the first wrong number, and what makes it wrong.

A result is right if its error is at most 4 times the root mean square error of plain code in float32, and 8 times its
largest error (the limits of `minibert.parity`). Plain code adds products one after the other, so other orders of
summation have a smaller error. A wrong formula cannot be within this: the tanh form of GELU, one of the most similar
ones, has an error of 1e-4, a thousand times as much. Formulas that differ less on the numbers of the model (eps outside
the root, the maximum not subtracted) are checked on other numbers, too (cases.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, brief, counted
from minibert.learn.lesson import Lesson
from minibert.learn.mistakes import as_list, mistakes, mistakes_in, run
from minibert.learn.right import RIGHT
from minibert.learn.student import SECONDS, Outcome, Student, attempt

_RMS, _SINGLE = 4, 8
# The least error of float32, relative to the values: the result is rounded once.
_ROUNDING = 2.0**-24

_STATUS = {"error": "stopped", "empty": "not filled in yet", "slow": "too slow", "not run": "not checked"}
_WIDTH, _INDENT = 100, 14


@dataclasses.dataclass(frozen=True)
class Result:
    """What the check of one exercise found.

    Parameters
    ----------
    exercise : str
    status : str        "right", "wrong", "missing"; "error", "empty" (not filled in yet), "slow", "not run"
    text : str          what is wrong, and where
    hint : str          a question that leads to the cause; "" if the cause is not known
    cause : str         the cause and the remedy
    mistakes : tuple of str
        The ids in hints.txt of the mistakes that give these numbers; an id with a space is two mistakes together.
    printed : str       what the function printed
    more : bool         whether `str` has the cause
    """

    exercise: str
    status: str
    text: str = ""
    hint: str = ""
    cause: str = ""
    mistakes: tuple[str, ...] = ()
    printed: str = ""
    more: bool = False

    @property
    def right(self) -> bool:
        """Whether the exercise is right."""
        return self.status == "right"

    @property
    def next(self) -> str:
        """The exercise that follows, or what is left to do after the last one."""
        following = [*RIGHT, ""][[*RIGHT].index(self.exercise) + 1]
        last = "That was the last function. Check all of them together, without a name, and read on: six further tasks."
        return f"Next: {following}." if following else last

    def __str__(self) -> str:
        """Return the number, the name, the status, and below them what is wrong."""
        cause = self.cause or "Cause: no known mistake gives this result." * (self.status == "wrong")
        parts = [self.text, self.hint and f"Hint: {self.hint}", cause if self.more else ""]
        parts += [self.printed and f"It printed:\n{self.printed}"]
        number, status = [*RIGHT].index(self.exercise) + 1, _STATUS.get(self.status, self.status)
        rows = [f"{number:2} {self.exercise:{_INDENT - 3}}{status}"]
        for line in "\n".join(filter(None, parts)).splitlines():
            rows += textwrap.wrap(line, _WIDTH - _INDENT, break_on_hyphens=False)
        return f"\n{'':{_INDENT}}".join(rows)

    def __repr__(self) -> str:
        """Return the same for a notebook, and what comes next."""
        return f"{self}\n{'':{_INDENT}}{self.next}" if self.right else str(self)


def judge(lesson: Lesson, exercise: str, outcome: Outcome, *, causes: bool = True) -> Result:
    """Compare what a function gave with what is right; with `causes` say why it is wrong."""
    cases, compare = lesson.cases(exercise), _wrong_tokens if exercise == "tokenize" else _wrong_numbers
    for index, value in enumerate(outcome.values):
        if wrong := compare(lesson, exercise, index, value):
            ids = _causes(lesson, exercise, outcome.values) if causes else ()
            text = f"With {cases[index].label}: {wrong}" if cases[index].label else wrong
            return Result(exercise, "wrong", text, *_said(ids), ids, outcome.printed)
    if outcome.status == "done":
        return Result(exercise, "right", printed=outcome.printed)
    text = outcome.text
    if outcome.status == "missing":
        text = f"There is no function {exercise} in the file. Was it renamed?"
    elif outcome.values and cases[len(outcome.values)].label:
        text = f"With {cases[len(outcome.values)].label}: {text}"
    return Result(exercise, outcome.status, text, printed=outcome.printed)


# --- compare ----------------------------------------------------------------------------------------------------------


def _wrong_tokens(lesson: Lesson, exercise: str, index: int, result: list[str]) -> str:
    """Return the first wrong token of a text; "" if all are right."""
    right = lesson.right(exercise, index)
    if result == right:
        return ""
    end = min(len(result), len(right))
    place = next((i for i in range(end) if result[i] != right[i]), end)
    first, second = (repr(tokens[place]) if place < len(tokens) else "missing" for tokens in (result, right))
    return f"token {place} is {first}; right is {second}.\nYours: {result}\nRight: {right}"


def _rms(x: FloatArray) -> float:
    return float(np.sqrt(np.mean(x * x))) if x.size else 0.0


def _outside(result: FloatArray, right: FloatArray, plain: FloatArray) -> Any:
    """Return which numbers are outside the limits, as a bool array; `plain` is the result of plain code in float32."""
    error, rounding = np.abs(result - right), np.abs(plain - right)
    usual = _RMS * max(_rms(rounding), _ROUNDING * _rms(right))
    most = _SINGLE * max(rounding.max(initial=0), _ROUNDING * np.abs(right).max(initial=0))
    single = ~(error <= most)
    return single if single.any() or _rms(error) <= usual else ~(error <= usual)


def _wrong_numbers(lesson: Lesson, exercise: str, index: int, value: Sequence[FloatArray]) -> str:
    """Return what is wrong with the result of a case; "" if nothing is."""
    right, plain = lesson.right(exercise, index), lesson.right(exercise, index, plain=True)
    if len(value) != len(right):
        return f"there are {counted(len(value) - 1, 'state')}; expected {len(right) - 1}."
    names = [*(f"states[{i}]" for i in range(len(right) - 1)), "vector"] if exercise == "bert" else ["result"]
    for name, array, true, rounded in zip(names, value, right, plain, strict=True):
        if array.shape != true.shape:
            return f"the shape of {name} is {array.shape}; expected {true.shape}."
        outside = _outside(array, true, rounded)
        if outside.any():
            place = tuple(int(axis[0]) for axis in np.nonzero(outside))
            digits = 6 if f"{array[place]:.6g}" != f"{true[place]:.6g}" else 9
            first = f"{name}{[*place]} is {array[place]:.{digits}g}; right is {true[place]:.{digits}g}."
            return f"{first} {'; '.join(_pattern(array, true, outside))}."
    return ""


def _pattern(result: FloatArray, right: FloatArray, outside: Any) -> list[str]:
    """Say how many numbers are wrong, and what they have in common."""
    facts = [f"{outside.sum()} of {counted(outside.size, 'number')} are wrong"]
    if not np.isfinite(result).all():
        return [*facts, f"{(~np.isfinite(result)).sum()} are nan or infinite"]
    factor, difference = float((result * right).sum() / max((right * right).sum(), 1e-300)), result - right
    if _rms(result - factor * right) < 1e-4 * _rms(difference):
        facts.append(f"each is {factor:.5g} times the right number" if factor else "each is 0")
    elif _rms(difference - difference.mean()) < 1e-4 * _rms(difference):
        facts.append(f"each differs by {difference.mean():+.5g}")
    return facts


# --- the cause --------------------------------------------------------------------------------------------------------


def _causes(lesson: Lesson, exercise: str, values: Sequence[list[Any]]) -> tuple[str, ...]:
    """Return the ids of the mistakes that give the results of all cases that were called."""
    if exercise != "tokenize" and not any(np.isfinite(array).any() for value in values for array in value):
        return ()
    places = range(len(values))[::-1]  # the last cases are the smallest ones
    calls = [(lesson.cases(exercise)[i].arguments, values[i], lesson.right(exercise, i)) for i in places]
    known = mistakes_in(exercise)
    ids = tuple(id for id in known if all(_makes(id, exercise, *call) for call in calls))
    if exercise == "tokenize" and not ids:  # two mistakes, of which one makes alone the tokens of a text
        ones = [id for id in known if any(call[1] != call[2] and _makes(id, exercise, *call) for call in calls)]
        pairs = (f"{one} {other}" for one in ones for other in known)
        ids = tuple(next(([two] for two in pairs if all(_makes(two, exercise, *call) for call in calls)), ()))
    if ids or exercise == "tokenize":
        return ids
    return _shown(exercise, [[*zip(result, right, strict=False)] for _, result, right in calls])


def _shown(exercise: str, calls: list[list[tuple[FloatArray, FloatArray]]]) -> tuple[str, ...]:
    """Return what results show beside the right ones: few digits, other places, one factor, or the error of float16."""
    if any(x.size != right.size for call in calls for x, right in call):
        return ()
    moved = all(any(x.shape != right.shape or not _near(x, right) for x, right in call) for call in calls)
    pairs = [(x.reshape(right.shape), right) for call in calls for x, right in call]
    ids = [*SHOWN] if moved else [*SHOWN][:2]
    ids = [id for id in ids if all(np.isfinite(x).all() and x.any() and SHOWN[id](x, right) for x, right in pairs)]
    # The first case has no number that is too large for float16. Small mistakes inside a layer look like noise, too.
    is_noise = exercise not in ("layer", "bert", "batch") and _is_noise(*pairs[-1])
    return tuple(ids[:1]) or ("D.noise",) * is_noise


def _is_noise(x: FloatArray, right: FloatArray) -> bool:
    """Return whether an error is as large as that of float16, and differs between numbers side by side, or equal."""
    error, size = (x - right).ravel(), _rms(x - right)
    orders = (error, error[np.argsort(right, axis=None)])
    uneven = all(abs(np.mean(errors[1:] * errors[:-1])) < 0.3 * size**2 for errors in orders)
    many = np.mean(abs(error) > 0.01 * size) > 0.7
    return bool(1e-5 * _rms(right) < size < 2e-3 * _rms(right) and uneven and many)


def _makes(id: str, exercise: str, arguments: tuple[Any, ...], result: list[Any], right: list[Any]) -> bool:
    """Return whether a function with a mistake makes a result, up to rounding."""
    # A mistake may not fit to this case.
    with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
        plain = as_list(run(exercise, *arguments, dtype=np.float32, mistake=id))
        if exercise == "tokenize":
            return plain == result
        fits = [array.shape for array in plain] == [array.shape for array in result]
        # A number that is rounded up here and down there is a small part of an error of digits.
        if fits and id.startswith("D."):
            three = zip(result, plain, right, strict=True)
            return all(_rms(x - new) <= 0.3 * _rms(new - old) + 1e-5 * _rms(old) for x, new, old in three)
        if fits and all(map(_near, result, plain)):
            made = as_list(run(exercise, *arguments, mistake=id))
            return all(map(_near, plain, made)) and not any(map(_differs, result, made, plain))
    return False


def _near(first: FloatArray, other: FloatArray, part: float = 1e-4) -> bool:
    both = np.isfinite(first) & np.isfinite(other)
    return _rms((first - other)[both]) <= part * _rms(other[both]) + 1e-12


def _differs(result: FloatArray, made: FloatArray, plain: FloatArray) -> bool:
    """Return whether numbers differ by more than rounding, or whether others are infinite or nan."""
    finite = np.isfinite(plain)
    return bool((finite != np.isfinite(result)).any() or _outside(result[finite], made[finite], plain[finite]).any())


# Whether a result shows a mistake, by the ids of hints.txt. A result that is near the right one shows its digits only.
SHOWN: dict[str, Callable[[FloatArray, FloatArray], Any]] = {
    "D.float16": lambda x, right: _near(x, right, 0.1) and not (np.ldexp(np.frexp(x)[0], 11) % 1).any(),
    "D.round": lambda x, right: _near(x, right, 0.1) and np.allclose(x, np.round(x, 6), 1e-7, 0),
    "D.order": lambda x, right: _near(np.sort(x, axis=None), np.sort(right, axis=None), 1e-5),
    "D.factor": lambda x, right: _near(x, right * ((x * right).sum() / (right * right).sum()), 1e-5),
}


def _said(ids: Sequence[str]) -> tuple[str, str]:
    """Return the hint of the first mistake, and the causes with what is right; "" if no mistake is known.

    An id with a space is two mistakes together.
    """
    if not ids:
        return "", ""
    named = [mistakes()[id] for id in " ".join(ids).split()]
    made = named[: 1 + (" " in ids[0])]
    which = "two mistakes: " if made[1:] else "one of these, which give the same numbers here: " if ids[1:] else ""
    lines = (f"Right: {old}\nIt gives your numbers: {new}" for mistake in made for old, new in mistake.edits)
    cause = ("; and " if made[1:] else "; or ").join(mistake.text for mistake in named)
    return named[0].hint, "\n".join((f"Cause: {which}{cause}.", *lines))


# --- check ------------------------------------------------------------------------------------------------------------

_lesson = functools.lru_cache(maxsize=2)(Lesson)


def check(exercise: str, function: Any, *, more: bool = False, **lesson: Any) -> Result:
    """Check one function of the course on real weights; print the result, or look at its attributes.

    Parameters
    ----------
    exercise : str          the name that the function has in the file: "gelu"
    function : callable
    more : bool         whether the printed result has the cause too, beside the hint
    **lesson
        model : a BERT with GELU, a hub id or a folder. text, pair : two texts on which the function is checked.

    Raises
    ------
    ValueError
        There is no such exercise, or the model is not a BERT with GELU.
    """
    known = _lesson(**lesson)
    result = _judged(known, exercise, lambda calls, **options: attempt(exercise, function, calls, **options))
    return dataclasses.replace(result, more=more)


def _judged(lesson: Lesson, exercise: str, call: Callable[..., Outcome]) -> Result:
    """Judge a function as it is; if it is not right, also with right functions in the place of those that it calls."""
    if exercise not in RIGHT:
        raise ValueError(f"The course has no function {brief(exercise)}; its functions are {', '.join(RIGHT)}.")
    call = functools.partial(call, [case.arguments for case in lesson.cases(exercise)])
    outcome = call(helped=False)
    first = judge(lesson, exercise, outcome, causes=False)
    if first.status not in ("wrong", "error"):
        return first
    second = judge(lesson, exercise, helped := call(helped=True), causes=False)
    if second.right:
        return dataclasses.replace(second, text="It is right, but it calls a function of yours that is not.")
    return judge(lesson, exercise, helped if second.status in ("wrong", first.status) else outcome)


def check_file(
    path: str | Path, exercises: Iterable[str] = (), *, seconds: float = SECONDS, **lesson: Any
) -> Iterator[Result]:
    """Check the functions of a file or a notebook. It runs in a process of its own.

    Parameters
    ----------
    path : str or path      what `start` wrote, filled in
    exercises : names of exercises; all of them if there are none
    seconds : float         that one function may take
    **lesson : as for `check`

    Raises
    ------
    ValueError
        As for `check`; or the file cannot be run, and the message has its wrong line.
    """
    named = [*exercises]
    with contextlib.closing(Student(path, seconds)) as student:
        known = _lesson(**lesson)
        for exercise in named or RIGHT:
            result = _judged(known, exercise, functools.partial(student.ask, exercise))
            if named or exercise != "batch" or result.status != "missing":  # files of older versions end with `bert`
                yield result


def sentence(path: str | Path, *, seconds: float = SECONDS, **lesson: Any) -> tuple[FloatArray, FloatArray]:
    """Return the vector of a text, computed by the functions of a file, and by minibert.

    Raises
    ------
    ValueError
        The file cannot be run, or its functions give no vector.
    """
    known = _lesson(**lesson)
    length = known.model.config.max_length
    with contextlib.closing(Student(path, seconds)) as student:
        tokens = student.ask("tokenize", [known.cases("tokenize")[0].arguments])
        pieces = tokens.values[0] if tokens.values else []
        ids = np.array([known.vocabulary.get(token, 0) for token in pieces[: length - 1] + pieces[length - 1 :][-1:]])
        outcome = student.ask("bert", [(ids, 0 * ids, known.weights, known.config)]) if pieces else tokens
    if outcome.status != "done":
        raise ValueError(f"{path} does not give a vector. {outcome.text}")
    inputs = known.tokenizer(known.text, truncation=True, max_length=length, return_tensors="np")
    mean = np.asarray(known.model(**inputs).last_hidden_state)[0].mean(axis=0)
    return outcome.values[0][-1], mean / np.linalg.norm(mean)
