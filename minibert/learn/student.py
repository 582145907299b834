"""Run a student's functions: in this process, or in a process of their own, whose program is `main`.

The process reads requests from its standard input, one JSON object per line, and answers on its standard output: a line
of JSON, and arrays in the format of .npz. A student's own input is empty, and what the student prints goes to the
standard error, so that neither can disturb the answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.abc
import importlib.util
import io
import json
import linecache
import os
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from minibert._utils.system import available_memory
from minibert._utils.torch_interop import to_array
from minibert.learn.lesson import Case, Lesson
from minibert.learn.right import RIGHT, run

# Most bytes that a student's process may use, where the system has limits.
_MEMORY = 4 * 2**30

_SLOWEST = 2.0  # seconds of repeated runs, for `time_it`


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
    """Call a function with the arguments of all cases; with `helped` the right functions replace its other nine."""
    outcome = Outcome()
    if not callable(function):
        return Outcome("missing")
    namespace: dict[str, Any] = getattr(function, "__globals__", {})
    own = {name: namespace[name] for name in RIGHT if helped and name != step and callable(namespace.get(name))}
    namespace.update({name: functools.partial(_helper, name) for name in own})
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for case in cases:
                given = _copied(case.arguments)
                result = function(*given)
                if result is None or result is ...:
                    empty = not outcome.values
                    return Outcome("empty") if empty else Outcome("error", "it returns None here", outcome.values)
                if not _same(given, case.arguments):
                    raise _UnfitError("it changes what it was given. Make a new array instead: x = x + y, not x += y.")
                outcome.values.append(_as_value(step, result))
    except KeyboardInterrupt:
        raise
    except _UnfitError as error:
        outcome.status, outcome.text = "error", str(error)
    except BaseException as error:  # also SystemExit: a student's code may raise anything
        outcome.status, outcome.text = "error", where(error, namespace)
    finally:
        namespace.update(own)
    return outcome


def _helper(step: str, *arguments: Any) -> Any:
    return run(step, arguments)


def _copied(arguments: Sequence[Any]) -> list[Any]:
    """Return copies of small arrays, and read-only views of weights."""
    found: list[Any] = []
    for one in arguments:
        if isinstance(one, np.ndarray) and one.size < 1_000_000:
            one = one.copy()
        elif isinstance(one, dict):
            one = dict(one)
        found.append(one)
    return found


def _same(given: Sequence[Any], before: Sequence[Any]) -> bool:
    return all(
        one is two or (np.array_equal(one, two) if isinstance(two, np.ndarray) else one.keys() == two.keys())
        for one, two in zip(given, before, strict=True)
        if isinstance(two, np.ndarray | dict)
    )


def _as_value(step: str, result: Any) -> list[Any]:
    """Return a result as a list of tokens, or of float64 arrays."""
    if step == "tokenize":
        if not isinstance(result, list | tuple) or not all(isinstance(token, str) for token in result):
            raise _UnfitError(f"it returns {_kind(result)}; expected a list of tokens, each a str.")
        return [*result]
    if step != "bert":
        return [_as_numbers(result)]
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise _UnfitError(f"it returns {_kind(result)}; expected two things: return states, vector")
    states, vector = result
    return [*map(_as_numbers, states), _as_numbers(vector)]


def _as_numbers(value: Any) -> np.ndarray[Any, Any]:
    with contextlib.suppress(TypeError, ValueError):  # lists of different lengths
        array = np.asarray(to_array(value))
        if array.dtype.kind in "fiub":
            return array.astype(np.float64)
    raise _UnfitError(f"it returns {_kind(value)}; expected an array of real numbers.")


def _kind(value: Any) -> str:
    sized = f" of {len(value)}" if isinstance(value, list | tuple) else ""
    return f"a {type(value).__name__}{sized}"


def where(error: BaseException, namespace: Mapping[str, Any]) -> str:
    """Return an error with the student's own line: the last one that is in the student's file."""
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    place = ""
    if isinstance(error, SyntaxError) and error.text:
        return f"line {error.lineno}: {error.text.strip()}\n{said}"
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals is namespace:
            code = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
            place = f"line {line}, in {frame.f_code.co_name}: {code}\n"
    advice = {
        EOFError: "There is no keyboard here: take input() out of the file.",
        MemoryError: "It needs too much memory. Are the shapes what you expect? Print them.",
        RecursionError: "The function calls itself without end.",
        SystemExit: "Take exit() out of the file: it ends the whole program.",
    }
    more = next((f"\n{text}" for kind, text in advice.items() if isinstance(error, kind)), "")
    if "read-only" in said:
        more = "\nThe weights must not be changed. Make a new array instead: y = x + 1, not x += 1."
    return f"{place}{said}{more}"


# --- load a file ------------------------------------------------------------------------------------------------------


class _Loader(importlib.abc.InspectLoader):
    """Runs a text as a module."""

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path = text, path

    def get_source(self, fullname: str) -> str:
        return self._text

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self._text, self._path)


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
    names: dict[str, Any] = {}
    try:
        text = source_of(path)
        loader = _Loader(text, str(path))
        linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
        spec = importlib.util.spec_from_loader("student", loader, origin=str(path))
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        module.__file__, names = str(path), vars(module)
        sys.modules["student"] = module  # dataclasses of the student look for their module
        loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(where(error, names)) from None
    return names


# --- the process ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer requests about one file: a step, whether right functions help, the vector of a text, the time it takes."""
    requests, answers = _own_streams()
    path, *words = sys.argv[1:]
    lesson = Lesson(*words)
    for step in RIGHT:
        lesson.cases(step)
    _limit_memory()
    sys.path.append(str(Path(path).resolve().parent))
    import minibert.learn

    vars(minibert.learn)["check"] = lambda *_, **__: None  # a notebook calls it after each function
    try:
        names = load(Path(path))
        send(answers, Outcome())
    except ValueError as error:
        send(answers, Outcome("error", str(error)))
        return
    for line in requests:
        request = json.loads(line)
        send(answers, _answer(lesson, names, **request))


def _answer(lesson: Lesson, names: dict[str, Any], step: str, helped: bool = False) -> Outcome:
    if step in RIGHT:
        return attempt(step, names.get(step), lesson.cases(step), helped=helped)
    if step == "time":
        return attempt("linear", lambda: time_it(lambda: names["bert"](*bench_arguments(lesson))), [Case(())])
    outcome = attempt("tokenize", names.get("tokenize"), lesson.cases("tokenize")[:1])
    if outcome.status != "done":
        return outcome
    ids = np.array([lesson.vocabulary[token] for token in outcome.values[0]])
    return attempt("bert", names.get("bert"), [Case((ids, np.zeros_like(ids), lesson.weights, lesson.config))])


def bench_arguments(lesson: Lesson) -> tuple[Any, ...]:
    """Return the arguments of `bert` that are timed."""
    return lesson.cases("bert")[0].arguments


def time_it(call: Callable[[], object]) -> float:
    """Return the median seconds of a call, of at most 20, for about two seconds."""
    call()
    seconds: list[float] = []
    while len(seconds) < 20 and sum(seconds) < _SLOWEST:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def _own_streams() -> tuple[Iterator[bytes], BinaryIO]:
    """Return streams for requests and answers; those of the student are empty and the standard error."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return iter(requests), answers


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (min(_MEMORY, available_memory() or _MEMORY), hard))


def send(stream: BinaryIO, outcome: Outcome) -> None:
    """Write an outcome."""
    tokens = any(isinstance(one, str) for value in outcome.values for one in value)
    content = io.BytesIO()
    if not tokens:
        np.savez(content, **{f"{i}_{j}": one for i, value in enumerate(outcome.values) for j, one in enumerate(value)})
    head = {
        "status": outcome.status,
        "text": outcome.text,
        "values": outcome.values if tokens else [len(value) for value in outcome.values],
        "size": len(content.getvalue()),
    }
    stream.write(json.dumps(head).encode() + b"\n" + content.getvalue())
    stream.flush()


def receive(stream: IO[bytes]) -> Outcome | None:
    """Read an outcome; None if the process has ended."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    content = stream.read(head["size"])
    if len(content) < head["size"]:
        return None
    values = head["values"]
    if head["size"]:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            values = [[file[f"{i}_{j}"] for j in range(count)] for i, count in enumerate(values)]
    return Outcome(head["status"], head["text"], values)
