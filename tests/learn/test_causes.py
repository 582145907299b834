"""The causes that `check` names: the mistakes of hints.txt, attempts of students, and never a false cause."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import minibert.learn
from minibert.learn.checking import SHOWN, _lesson, _makes, judge
from minibert.learn.mistakes import as_list, functions, mistakes, mistakes_in, run
from minibert.learn.right import RIGHT
from minibert.learn.student import Outcome, attempt
from tests.learn.attempts import read_attempts
from tests.learn.test_course import checked

# Those that are edits; the numbers themselves show the others.
MISTAKES = {id: mistake for id, mistake in mistakes().items() if mistake.edits}
# Mistakes that give right numbers on the model of the course, or those of no other function but this one.
UNNAMED: set[str] = set()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Let products of matrices have one thread: beside other work, threads that wait take ten times the CPU time."""
    with threadpool_limits(1):
        yield


def is_named(id: str) -> bool:
    """Return whether the numbers of a mistake are wrong, and named, in its exercise or in the first that has it."""
    lesson, values = _lesson(), []
    exercise = next(exercise for exercise in (mistakes()[id].section, *RIGHT) if id in mistakes_in(exercise))
    with contextlib.suppress(Exception), np.errstate(all="ignore"):  # it does not fit to all cases
        for case in lesson.cases(exercise):
            made = as_list(run(exercise, *case.arguments, dtype=np.float32, mistake=id))
            values.append([one.astype(np.float64) if isinstance(one, np.ndarray) else one for one in made])
    done = len(values) == len(lesson.cases(exercise))
    result = judge(lesson, exercise, Outcome("done" if done else "error", values=values), causes=False)
    calls = [(lesson.cases(exercise)[i].arguments, value, lesson.right(exercise, i)) for i, value in enumerate(values)]
    return result.status == "wrong" and all(_makes(id, exercise, *call) for call in calls)


def unnamed(ids: list[str]) -> set[str]:
    return {id for id in ids if not is_named(id)}


def test_each_mistake_is_an_edit_of_the_right_functions_with_a_question() -> None:
    source = Path(str(minibert.learn.__file__)).with_name("right.py").read_text(encoding="utf-8")
    assert mistakes().keys() - MISTAKES.keys() >= {*SHOWN, "D.noise"}
    for id, mistake in MISTAKES.items():
        assert mistake.hint.endswith(("?", ".")), id
        assert mistake.section in RIGHT, id
        assert mistake.text, id
        edited = source
        for old, new in mistake.edits:
            assert edited.count(old) == 1, (id, old)
            quotes = [re.sub(r"\\.", "", part).count('"') % 2 for part in (old, new)]
            assert quotes == [0, 0], (id, old, new)  # `--more` prints them
            edited = edited.replace(old, new)
        assert functions(id).keys() == RIGHT.keys()


def test_the_mistakes_of_a_third_of_the_exercises_are_named() -> None:
    some = [id for id, one in MISTAKES.items() if one.section not in ("layer", "bert", "batch")]
    ids = random.Random(0).sample(some, 60)
    assert unnamed(ids) == UNNAMED & {*ids}


@pytest.mark.slow
def test_all_mistakes_are_named() -> None:
    assert unnamed([*MISTAKES]) == UNNAMED


# --- code of students -------------------------------------------------------------------------------------------------

ATTEMPTS = read_attempts()
# By default fewer of them, because the cause of a wrong `bert` takes seconds.
_QUICK = random.Random(0).sample([one for one in ATTEMPTS if one[0] not in ("layer", "bert", "batch")], 30)
_QUICK += [one for one in ATTEMPTS if one[1].startswith(("layer_norm.sum-above", "softmax.shift-whole", "gelu.root-"))]


def said_wrongly(attempts: list[tuple[str, str, Callable[..., Any]]]) -> list[tuple[int, str, str, str]]:
    """Return the line of each attempt of which something else is said than expected, and what was said."""
    wrong = []
    for exercise, expected, function in attempts:
        found = minibert.learn.check(exercise, function)
        if expected in ("right", "unknown"):
            fits = found.status == {"right": "right", "unknown": "wrong"}[expected] and not found.mistakes
        else:
            fits = expected in found.mistakes
        if not fits:
            wrong.append((function.__code__.co_firstlineno, exercise, expected, str(found)))
        assert bool(found.hint) == bool(found.cause) == bool(found.mistakes)
    return wrong


def test_attempts_are_named_and_none_falsely() -> None:
    assert said_wrongly(_QUICK) == []


@pytest.mark.slow
def test_all_attempts_are_named_and_none_falsely() -> None:
    assert said_wrongly(ATTEMPTS) == []


@pytest.mark.parametrize("count", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_two_mistakes_in_tokens_are_named_together(count: int) -> None:
    """Any two that fit together: what is named makes the same tokens, and at most one of ten pairs has no name."""
    cases, known = _lesson().cases("tokenize"), mistakes_in("tokenize")
    named = tried = 0
    for pair in random.Random(0).sample([*itertools.combinations(known, 2)], count):
        function = functions(" ".join(pair))["tokenize"]
        found = minibert.learn.check("tokenize", function)
        if found.status != "wrong" or any(id in known for id in found.mistakes):
            continue  # one of them hides the other, or the two cannot be together
        tried += 1
        named += bool(found.mistakes)
        assert bool(found.hint) == bool(found.cause) == bool(found.mistakes)
        for id in found.mistakes:
            made = functions(id)["tokenize"]
            assert all(made(*case.arguments) == function(*case.arguments) for case in cases)
            assert all(mistakes()[one].text in found.cause for one in id.split())
    assert tried >= count // 3
    assert named >= 0.9 * tried


def test_more_says_that_no_cause_is_known() -> None:
    found = minibert.learn.check("tokenize", lambda text, vocabulary, lower_case: ["[CLS]", text[::-1]])
    assert (found.status, found.hint, found.cause) == ("wrong", "", "")
    assert str(found) in str(dataclasses.replace(found, more=True))
    assert str(found) != str(dataclasses.replace(found, more=True))


def test_the_cause_says_the_line_in_numpy() -> None:
    found = checked("head", ("query @ key.T", "key @ query.T"))
    assert "Right: query @ key.T" in found.cause
    assert "gives your numbers: key @ query.T" in found.cause
    for id in mistakes():
        assert not re.search("torch|candle|ggml|llama|Keras", "".join(mistakes()[id].text + mistakes()[id].hint))


def test_numbers_with_the_error_of_rounding_are_not_called_wrong() -> None:
    found = checked("embed", ("types[token_types]", "types[0]"))
    tokens = _lesson().cases("embed")[0].arguments[1]
    first = re.match(r"result\[(\d+), ", found.text)
    assert first, found
    assert int(first[1]) == list(tokens).index(1)


def test_what_wrong_numbers_have_in_common_is_said() -> None:
    for new, said in {"0 * x *": "each is 0", "x *": "each is 2 times the right number"}.items():
        assert f"; {said}." in checked("gelu", ("0.5 * x *", new)).text


def test_a_right_function_that_calls_a_wrong_one() -> None:
    found = checked("layer", ("0.5 * x *", "x *"))
    assert found.right
    assert found.text


# --- what is not right ------------------------------------------------------------------------------------------------


def status(exercise: str, function: Callable[..., Any]) -> str:
    """Return what `check` says of a function; it does not look for the cause, which takes longer."""
    calls = [case.arguments for case in _lesson().cases(exercise)]
    return judge(_lesson(), exercise, attempt(exercise, function, calls), causes=False).status


def frozen(exercise: str, place: int, key: str = "") -> Callable[..., Any]:
    """Return a right function that remembers one argument, or one entry of it, from its first call."""
    kept: list[Any] = []

    def function(*arguments: Any) -> Any:
        kept[:] = kept or [arguments[place]]
        new = {**arguments[place], key: kept[0][key]} if key else kept[0]
        return RIGHT[exercise](*arguments[:place], new, *arguments[place + 1 :])

    return function


COUNTS = {"tokenize": 3, "embed": 5, "layer_norm": 4, "linear": 3, "softmax": 1, "head": 3, "attention": 3, "gelu": 1}
COUNTS |= {"layer": 4, "bert": 4, "batch": 5}


@pytest.mark.parametrize("exercise", RIGHT)
def test_a_function_that_does_not_look_at_an_argument_is_not_right(exercise: str) -> None:
    for place in range(COUNTS[exercise]):
        assert status(exercise, frozen(exercise, place)) != "right", place
    for key in _lesson().config if exercise in ("bert", "batch") else ():
        assert status(exercise, frozen(exercise, COUNTS[exercise] - 1, key)) != "right", key
    by_shape: dict[str, Any] = {}

    def remembered(*arguments: Any) -> Any:
        key = str([getattr(one, "shape", type(one)) for one in arguments])
        return by_shape.setdefault(key, RIGHT[exercise](*arguments))

    assert status(exercise, remembered) != "right"


class Array(np.ndarray[Any, Any]):
    """An array of another class."""


UNFIT: dict[str, Callable[[Any], Any]] = {
    "masked": lambda y: np.ma.array(y, mask=True),
    "masked, nothing hidden": lambda y: np.ma.array(y),
    "masked rows": lambda y: [np.ma.array(row, mask=True) for row in y],
    "matrix": lambda y: y.reshape(len(y), -1).view(np.matrix),
    "class": lambda y: y.view(Array),
    "objects": lambda y: y.astype(object),
    "strings": lambda y: y.astype(str),
    "complex": lambda y: y + 0j,
    "nan": lambda y: y * np.nan,
    "one nan": lambda y: np.where(np.arange(y.size).reshape(y.shape) == y.size - 1, np.nan, y),
    "infinite": lambda y: y / 0,
    "whole numbers": lambda y: y.astype(int),
    "float16": lambda y: y.astype(np.float16),
    "one axis more": lambda y: y[None],
    "one number": lambda y: y.mean(),
    "one row": lambda y: y[:1],
    "nothing": lambda y: y[:0],
    "a function": lambda y: lambda: y,
    "a generator": lambda y: (row for row in y),
    "a dict": lambda y: dict(enumerate(y)),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_results_that_are_not_plain_arrays_of_right_numbers(kind: str) -> None:
    for exercise in ("embed", "head"):
        found = status(exercise, lambda *given, exercise=exercise: UNFIT[kind](np.asarray(RIGHT[exercise](*given))))
        assert found in ("wrong", "error"), (exercise, kind)


@pytest.mark.parametrize("change", [iter, enumerate, lambda states: [np.ma.array(one) for one in states]])
def test_states_that_are_not_a_list_of_arrays(change: Callable[[Any], Any]) -> None:
    def bert(*given: Any) -> Any:
        states, vector = RIGHT["bert"](*given)
        return change(states), vector

    assert status("bert", bert) == "error"
