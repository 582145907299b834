"""Run a student's functions: in this process, or in a process of their own, whose program is `main`.

The process reads requests from its standard input, and answers on its standard output: one JSON object per line. A
student's own input is empty, and the first characters that the student prints are a part of the answer.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import importlib.abc
import importlib.util
import io
import json
import linecache
import os
import signal
import subprocess
import sys
import threading
import timeit
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import numpy as np

from minibert._utils.files import is_regular_file
from minibert._utils.system import available_memory
from minibert._utils.torch_interop import to_array
from minibert._utils.validation import brief
from minibert.learn.lesson import Case, Lesson
from minibert.learn.right import RIGHT, run

# The most bytes that a student's process may use, where the system has such a limit, and the most numbers of a result.
_MEMORY, _NUMBERS = 4 * 2**30, 2**22
# Numbers of an array that is not copied.
_LARGE = 2**20

SECONDS = 4.0
"""Seconds that one function may take for all its calls; functions that take longer get 1.5 times as much together."""

# Seconds in which the model must be loaded, and then the file, unless a function may take longer.
_LOADING = (60.0, 7.0)
# The most characters of what a student's code prints that are kept.
_PRINTED = 1000


@dataclasses.dataclass
class Outcome:
    """What the calls of a function gave.

    Parameters
    ----------
    status : str
        "done"; or "error", "empty" (not filled in), "missing" (no such function), "slow", "not run".
    text : str          what went wrong, for the student
    values : list       the result of each case that was called: lists of arrays, or of tokens
    printed : str       what the student's code printed
    """

    status: str = "done"
    text: str = ""
    values: list[list[Any]] = dataclasses.field(default_factory=list)
    printed: str = ""


class _UnfitError(Exception):
    """A result that cannot be compared; the text says what it is."""


# --- call a function --------------------------------------------------------------------------------------------------


def attempt(step: str, function: Any, cases: Sequence[Case], *, helped: bool = False) -> Outcome:
    """Call a function with the arguments of all cases; with `helped` right functions replace the others of its file."""
    if not callable(function):
        return Outcome("missing")
    outcome, namespace = Outcome(), getattr(function, "__globals__", {})
    own = {name: namespace[name] for name in RIGHT if helped and name != step and callable(namespace.get(name))}
    namespace.update({name: functools.partial(run, name) for name in own})
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for case in cases:
                # Copies of large weights would take long; those of the model are read-only.
                given = [
                    one.copy() if isinstance(one, dict) or getattr(one, "size", _LARGE) < _LARGE else one
                    for one in case.arguments
                ]
                result = function(*given)
                if result is None or result is ...:
                    return Outcome("error", "it returns None.", outcome.values) if outcome.values else Outcome("empty")
                pairs = zip(given, case.arguments, strict=True)
                if not all(isinstance(one, dict) or one is two or np.array_equal(one, two) for one, two in pairs):
                    raise _UnfitError("it changes what it was given. Make a new array: x = x + y, not x += y.")
                outcome.values.append(_as_value(step, result))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: a student's code may raise anything
        outcome.status, outcome.text = "error", where(error, namespace)
    finally:
        namespace.update(own)
    return outcome


def _as_value(step: str, result: Any) -> list[Any]:
    """Return a result as a list of tokens, or of float64 arrays."""
    if step == "tokenize":
        if not isinstance(result, list | tuple) or not all(isinstance(token, str) for token in result):
            raise _UnfitError(f"it returns {brief(result)}; expected a list of tokens, each a str.")
        return [*result]
    if step != "bert":
        return [_as_numbers(result)]
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise _UnfitError(f"it returns {brief(result)}; expected two things: return states, vector")
    return [*map(_as_numbers, result[0]), _as_numbers(result[1])]


def _as_numbers(value: Any) -> np.ndarray[Any, Any]:
    with contextlib.suppress(TypeError, ValueError):  # lists of different lengths
        array = np.asarray(to_array(value))
        if array.dtype.kind in "fiub" and array.size <= _NUMBERS:
            return array.astype(np.float64)
    raise _UnfitError(f"it returns {brief(value)}; expected an array of at most {_NUMBERS:,} real numbers.")


def where(error: BaseException, namespace: Mapping[str, Any]) -> str:
    """Return an error with the student's own line: the last one that is in the student's file."""
    if isinstance(error, _UnfitError):
        return str(error)
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    place = f"line {error.lineno}: {(error.text or '').strip()}\n" if isinstance(error, SyntaxError) else ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals is namespace:
            code = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
            place = f"line {line}, in {frame.f_code.co_name}: {code}\n"
    kind = "read-only" if "read-only" in said else type(error).__name__
    return f"{place}{said}\n{page('hints.md').get(kind, '')}".rstrip()


@functools.cache
def page(name: str) -> dict[str, str]:
    """Return the items of a page of this folder, "- `id`, `id`: text", by id."""
    text = (files(__package__) / name).read_text(encoding="utf-8").replace("\n  ", " ")
    items = (line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("- "))
    return {id.strip("`"): said for ids, said in items for id in ids.split(", ")}


# --- load a file ------------------------------------------------------------------------------------------------------


def source_of(path: Path) -> str:
    """Return the text of a file, or of all code cells of a notebook, one after the other."""
    content = path.read_bytes()
    if path.suffix.lower() != ".ipynb":
        return importlib.util.decode_source(content)
    cells = (cell for cell in json.loads(content)["cells"] if cell["cell_type"] == "code")
    text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return "\n".join(f"# {line}" if line.startswith(("%", "!")) else line for line in text.split("\n"))


def load(path: Path) -> dict[str, Any]:
    """Run a student's file, and return its names.

    Raises
    ------
    ValueError
        The file cannot be read or run; the message has the student's line.
    """
    module = types.ModuleType("student")
    vars(module).update(__file__=str(path), __builtins__=builtins)  # NumPy looks for __builtins__ in what calls it
    sys.modules["student"] = module  # dataclasses of the student look for their module
    try:
        text = source_of(path)
        linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
        types.FunctionType(importlib.abc.InspectLoader.source_to_code(text, str(path)), vars(module))()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(where(error, vars(module))) from None
    return vars(module)


# --- the process ------------------------------------------------------------------------------------------------------


class _Kept(io.StringIO):
    """Keeps the first characters that are printed."""

    def write(self, text: str) -> int:
        """Write what there is room for."""
        return super().write(text[: max(_PRINTED - self.tell(), 0)])


def main() -> None:
    """Answer requests about one file: its arguments are the file, and those of `Lesson` in JSON."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    path, options = sys.argv[1:]
    sys.path.append(str(Path(path).resolve().parent))
    import minibert.learn

    vars(minibert.learn)["check"] = lambda *_, **__: None  # a notebook calls it after each function
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        limit = min(_MEMORY, available_memory() or _MEMORY), resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, limit)
    lesson = Lesson(**json.loads(options))
    send(answers, Outcome(values=[[len(cases)] for cases in lesson.cases.values()]))
    try:
        names = load(Path(path))
        send(answers, Outcome())
    except ValueError as error:
        send(answers, Outcome("error", str(error)))
    process = os.getpid()
    for line in requests:
        with contextlib.redirect_stdout(_Kept()) as kept:
            outcome = _answer(lesson, names, **json.loads(line))
        if os.getpid() != process:  # a student's fork
            os._exit(0)
        send(answers, dataclasses.replace(outcome, printed=kept.getvalue().rstrip()))


def _answer(lesson: Lesson, names: dict[str, Any], step: str, helped: bool) -> Outcome:
    """Call a function; or "sentence": compute the vector of the text, or "time": measure the time of `bert`."""
    if step in RIGHT:
        return attempt(step, names.get(step), lesson.cases[step], helped=helped)
    if step == "time":
        call = functools.partial(names["bert"], *lesson.cases["bert"][0].arguments)
        return attempt(step, lambda: time_it(call), [Case(())])
    outcome = attempt("tokenize", names.get("tokenize"), lesson.cases["tokenize"][:1])
    ids = np.array([lesson.vocabulary.get(token, 0) for tokens in outcome.values for token in tokens])
    return attempt("bert", names.get("bert"), [Case((ids, np.zeros_like(ids), lesson.weights, lesson.config))])


def time_it(call: Callable[[], object]) -> float:
    """Return the median seconds of some calls."""
    return float(np.median(timeit.repeat(call, number=1, repeat=9)))


def send(stream: IO[bytes], outcome: Outcome) -> None:
    """Write an outcome as a line of JSON; floats keep all their digits."""
    stream.write(json.dumps(dataclasses.asdict(outcome), default=np.ndarray.tolist).encode() + b"\n")
    stream.flush()


def receive(stream: IO[bytes]) -> Outcome | None:
    """Read an outcome; None if the process has ended, or if its answer cannot be read."""
    with contextlib.suppress(ValueError, TypeError):
        outcome = Outcome(**json.loads(stream.readline()))
        for value in outcome.values:
            value[:] = [one if isinstance(one, str) else np.array(one, np.float64) for one in value]
        return outcome
    return None


class Student:
    """A student's file in a process, which is started again if a function does not end.

    Parameters
    ----------
    path : str or path
    lesson : dict           the arguments of `Lesson`
    seconds : float         that one function may take

    Raises
    ------
    ValueError
        There is no such file.
    """

    def __init__(self, path: str | Path, lesson: dict[str, Any], seconds: float = SECONDS) -> None:
        if not is_regular_file(Path(path)):
            raise ValueError(f"{path} does not exist; `minibert learn start {path}` writes it.")
        if not 0 < seconds <= 1e6:
            raise ValueError(f"seconds={seconds}; expected a number above 0, up to 1e6.")
        self._path, self._lesson, self._seconds, self._left = path, lesson, seconds, 1.5 * seconds
        self._start()

    def _start(self) -> None:
        program = "from minibert.learn.student import main; main()"
        command = [sys.executable, "-P", "-c", program, str(self._path), json.dumps(self._lesson, default=str)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._ready = False

    def close(self) -> None:
        """End the process, and those that it started."""
        self._kill()
        with self._process:  # closes the pipes, and waits
            pass

    def _kill(self) -> None:
        if self._process.returncode is None and hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def ask(self, step: str, *, helped: bool = False) -> Outcome:
        """Let the process call a function; "slow" if it does not end, "not run" if there is no time left.

        Raises
        ------
        ValueError
            The file cannot be run.
        """
        if self._left <= 0:
            return Outcome("not run", "Other functions took all the time. Check this one alone.")
        if self._process.poll() is not None:
            self._start()
        if not self._ready:
            for limit in (_LOADING[0], max(_LOADING[1], self._seconds)):
                if (started := self._receive(limit)).status != "done":
                    raise ValueError(f"{self._path} cannot be run. {started.text}")
            self._ready = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the process has ended, and gives no answer
            self._process.stdin.write(json.dumps({"step": step, "helped": helped}).encode() + b"\n")
            self._process.stdin.flush()
        outcome = self._receive(min(self._seconds, self._left))
        if outcome.status == "slow":
            self._left -= self._seconds
        return outcome

    def _receive(self, seconds: float) -> Outcome:
        """Read an answer; a process that does not give one is ended."""
        assert self._process.stdout is not None
        timer = threading.Timer(seconds, self._kill)
        timer.start()
        outcome = receive(self._process.stdout)
        late = not timer.is_alive()
        timer.cancel()
        if outcome is not None:
            return outcome
        self.close()
        if late:
            text = (
                "Does a loop never end? Loops over single numbers need more seconds, or a product of matrices instead."
            )
            return Outcome("slow", f"It did not end within {seconds:g} seconds. {text}")
        return Outcome("error", "The process ended without an answer. Did it need too much memory, or call os._exit?")
