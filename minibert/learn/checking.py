"""`check`: one function, in this process. `check_file`: a file, in a process of its own. `bench`: how fast it is."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from minibert._utils.files import is_regular_file
from minibert._utils.validation import FloatArray, check_choice
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.learn.judge import Result, judge
from minibert.learn.lesson import PAIR, TEXT, Lesson
from minibert.learn.right import RIGHT
from minibert.learn.student import Outcome, attempt, receive, time_it
from minibert.models.bert import BertModel

SECONDS = 2.5
"""Seconds that one function may take for all its calls; two functions that take longer end the check."""

# Seconds in which a file must be loaded; `import torch` takes some of them.
_LOADING = 8.0
# The most characters of what a student's code prints that are kept.
_PRINTED = 1000

_lesson = functools.lru_cache(maxsize=2)(Lesson)


def check(
    step: str, function: Any, *, model: str = DEFAULT_MODEL, text: str = TEXT, pair: str = PAIR, more: bool = False
) -> Result:
    """Check one function of the course on real weights; print the result, or look at its attributes.

    Parameters
    ----------
    step : str          the name that the function has in the file: "gelu"
    function : callable
    model : str         a BERT with GELU: a hub id or a folder
    text, pair : str    what it is checked on
    more : bool         whether the printed result has the cause too, beside the hint

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        There is no such step, or the model is not a BERT with GELU.
    """
    check_choice("step", step, RIGHT)
    lesson = _lesson(str(model), text, pair)
    found = _judged(lesson, step, lambda helped: attempt(step, function, lesson.cases(step), helped=helped))
    return dataclasses.replace(found, more=more)


def _judged(lesson: Lesson, step: str, ask: Any) -> Result:
    """Judge a function as it is; if it is not right, also with right functions in the place of those that it calls."""
    first = judge(lesson, step, ask(False))
    if first.right or first.status in ("empty", "missing", "slow", "not run"):
        return first
    second = judge(lesson, step, ask(True))
    if second.right:
        note = "This function is right, but it calls a function of yours that is not."
        return dataclasses.replace(second, text=note)
    return first if second.status not in ("wrong", first.status) else second


def check_file(
    path: str | Path,
    steps: Iterable[str] | None = None,
    *,
    model: str = DEFAULT_MODEL,
    text: str = TEXT,
    pair: str = PAIR,
    seconds: float = SECONDS,
) -> Iterator[Result]:
    """Check the functions of a file or a notebook, which runs in a process of its own.

    Parameters
    ----------
    path : str or path      what `start` wrote, filled in
    steps : names of steps  None means all
    model, text, pair : as for `check`
    seconds : float         that one function may take

    Yields
    ------
    Result

    Raises
    ------
    ValueError
        As for `check`; or the file cannot be run, and the message has its wrong line.
    """
    chosen = [*RIGHT] if steps is None else [*steps]
    for step in chosen:
        check_choice("step", step, RIGHT)
    lesson = _lesson(str(model), text, pair)
    with Student(Path(path), lesson, seconds) as student:
        for step in chosen:
            yield _judged(lesson, step, lambda helped, step=step: student.ask(step, helped=helped))


class Student:
    """A student's file in a process, which is started again if a function does not end.

    Raises
    ------
    ValueError
        The file cannot be run.
    """

    def __init__(self, path: Path, lesson: Lesson, seconds: float = SECONDS) -> None:
        if not is_regular_file(path):
            raise ValueError(f"{path} does not exist; `minibert learn start {path}` writes it.")
        self._path, self._lesson, self._seconds, self._left = path, lesson, seconds, 2 * seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._printed = ""

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _start(self) -> None:
        second = self._lesson.inputs["token_type_ids"].any() if "token_type_ids" in self._lesson.inputs else False
        words = [str(self._path), self._lesson.name, self._lesson.text, *([self._lesson.pair] if second else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from minibert.learn.student import main; main()", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read_printed, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        started = self._receive(_LOADING)
        if started.status != "done":
            self._end()
            said = {
                "slow": f"it did not end within {_LOADING:g} seconds. Code outside of functions runs at every check."
            }
            raise ValueError(f"{self._path} cannot be run: {said.get(started.status, started.text)}")

    def _read_printed(self, stream: Any) -> None:
        for line in stream:
            if len(self._printed) < _PRINTED:
                self._printed += line.decode(errors="backslashreplace")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def ask(self, step: str, *, helped: bool = False) -> Outcome:
        """Let the process call a function; "slow" if it does not end, "not run" if there is no time left."""
        if self._left <= 0:
            return Outcome("not run", "Other functions took all the time. Check this one alone.")
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._printed = ""
        self._process.stdin.write(json.dumps({"step": step, "helped": helped}).encode() + b"\n")
        self._process.stdin.flush()
        outcome = self._receive(self._seconds)
        if outcome.status == "slow":
            self._left -= self._seconds
        outcome.printed = self._printed[:_PRINTED].rstrip()
        return outcome

    def _receive(self, seconds: float) -> Outcome:
        """Read an answer; a process that does not give one is ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        late = threading.Event()

        def stop(process: subprocess.Popen[bytes] = self._process) -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, stop)
        timer.start()
        outcome = receive(self._process.stdout)
        timer.cancel()
        if outcome is not None:
            return outcome
        self._end()
        if late.is_set():
            return Outcome(
                "slow",
                f"It did not end within {seconds:g} seconds. Does a loop never end? Loops over single numbers "
                "are slow, too: use a product of matrices, or allow more seconds.",
            )
        return Outcome("error", "The process ended without an answer. Did it need too much memory, or call os._exit?")


# --- the whole model --------------------------------------------------------------------------------------------------


def sentence(path: str | Path, *, model: str = DEFAULT_MODEL, text: str = TEXT, seconds: float = SECONDS) -> FloatArray:
    """Return the vector of a text, computed by the functions of a file.

    Raises
    ------
    ValueError
        The file cannot be run, or its functions give no vector.
    """
    with Student(Path(path), _lesson(str(model), text), seconds) as student:
        outcome = student.ask("sentence")
    if outcome.status != "done" or not outcome.values:
        raise ValueError(f"{path} does not give a vector: {outcome.text}")
    return np.asarray(outcome.values[0][-1])


def bench(paths: Iterable[str | Path], *, model: str = DEFAULT_MODEL, text: str = TEXT) -> Iterator[tuple[str, float]]:
    """Yield the seconds of `bert` in each file, then those of minibert with NumPy and with its kernels, by name.

    Raises
    ------
    ValueError
        A file cannot be run, or its `bert` is not right.
    """
    lesson = _lesson(str(model), text)
    for path in paths:
        with Student(Path(path), lesson, 20 * SECONDS) as student:
            if not judge(lesson, "bert", student.ask("bert")).right:
                raise ValueError(f"bert in {path} is not right yet; check it first.")
            yield str(path), float(student.ask("time").values[0][0])
    for backend in ("numpy", "kernels"):
        with contextlib.suppress(ImportError):  # no kernels were built
            ours = BertModel.from_pretrained(model, backend=backend, add_pooling_layer=False)
            yield f"minibert, {backend}", time_it(functools.partial(ours, **lesson.inputs))
