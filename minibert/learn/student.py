"""Run a student's functions: in this process, or in a process of their own that runs `main`.

The process reads requests from its standard input, each an .npz file behind a line with its length, and answers on its
standard output: one JSON object per line, of bounded length, because a student's code could write there too. A
student's own input is empty, and the first characters that the student prints are a part of the answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import linecache
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from minibert._utils.files import is_regular_file
from minibert._utils.system import available_memory
from minibert._utils.torch_interop import to_array
from minibert._utils.validation import brief
from minibert.learn.mistakes import execute, mistakes, run
from minibert.learn.right import RIGHT

# The most bytes that a student's process may use, where the system has such a limit, the most numbers of all results,
# and the most bytes of an answer.
_MEMORY, _NUMBERS, _ANSWER = 4 * 2**30, 2**20, 2**25
# Numbers of an array that is not copied.
_LARGE = 2**20

SECONDS = 4.0
"""Seconds that one function may take for all its calls; functions that take longer get 1.5 times as much together."""

# Seconds for the start of the process, and then for loading the file, unless a function may take longer.
_LOADING = (60.0, 7.0)
# On a busy machine, how many times the seconds may pass.
_BUSY = 3
# The most characters that are kept of what a student's code prints, and of a line of its code or of an error.
_PRINTED, _LINE = 1000, 300


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


def attempt(exercise: str, function: Any, calls: Sequence[tuple[Any, ...]], *, helped: bool = False) -> Outcome:
    """Call a function with some arguments; with `helped` right functions replace the others of its file."""
    if not callable(function):
        return Outcome("missing")
    outcome, namespace = Outcome(), getattr(function, "__globals__", {})
    own = {name: namespace[name] for name in RIGHT if helped and name != exercise and callable(namespace.get(name))}
    namespace.update({name: functools.partial(run, name) for name in own})
    try:
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            for arguments in calls:
                # Copies of large weights would take long; the model's weights are read-only.
                copies = [
                    x.copy() if isinstance(x, dict) or getattr(x, "size", _LARGE) < _LARGE else x for x in arguments
                ]
                result = function(*copies)
                if result is None or result is ...:
                    return Outcome("error", "it returns None.", outcome.values) if outcome.values else Outcome("empty")
                pairs = zip(copies, arguments, strict=True)
                if not all(isinstance(x, dict) or x is before or np.array_equal(x, before) for x, before in pairs):
                    raise _UnfitError("it changes what it was given. Make a new array: x = x + y, not x += y.")
                outcome.values.append(_as_value(exercise, result))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: a student's code may raise anything
        outcome.status, outcome.text = "error", where(error, namespace)
    finally:
        namespace.update(own)
    return outcome


def _as_value(exercise: str, result: Any) -> list[Any]:
    """Return a result as a list of tokens, or of float64 arrays."""
    if exercise == "tokenize":
        if not isinstance(result, list | tuple) or not all(type(token) is str for token in result):
            raise _UnfitError(f"it returns {brief(result)}; expected a list of tokens, each a str.")
        return [*result]
    if exercise != "bert":
        return [_as_numbers(result)]
    if not isinstance(result, tuple | list) or len(result) != 2 or not hasattr(result[0], "__len__"):
        raise _UnfitError(f"it returns {brief(result)}; expected two things: return states, vector")
    return [*map(_as_numbers, result[0]), _as_numbers(result[1])]


def _as_numbers(value: Any) -> np.ndarray[Any, Any]:
    with contextlib.suppress(TypeError, ValueError):  # lists of different lengths
        array = np.asarray(to_array(value))
        if _is_plain(value) and array.dtype.kind in "fiub" and array.size <= _NUMBERS:
            return array.astype(np.float64)
    raise _UnfitError(f"it returns {brief(value)}; expected a plain array of at most {_NUMBERS:,} real numbers.")


def _is_plain(value: Any) -> bool:
    """Return whether no array is of another class than ndarray: a masked array, for example, hides its numbers."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return type(value) is np.ndarray or not isinstance(value, np.ndarray)


def where(error: BaseException, namespace: Mapping[str, Any]) -> str:
    """Return an error with the student's own line: the last one that is in the student's file."""
    if isinstance(error, _UnfitError):
        return str(error)
    message = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1][:_LINE]
    place = ""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        place = f"line {error.lineno}: {(error.text or '').strip()[:_LINE]}\n"
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals is namespace:
            code = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
            place = f"line {line}, in {frame.f_code.co_name}: {code[:_LINE]}\n"
    # NumPy raises a ValueError for both; only its words "broadcast" and "read-only" say which it is.
    known = ((name, hint.text) for name, hint in mistakes().items() if hint.section == "Errors")
    hints = (text for name, text in known if name == type(error).__name__ or name in message)
    return f"{place}{message}\n{next(hints, '')}".rstrip()


# --- load a file ------------------------------------------------------------------------------------------------------


def source_of(path: Path) -> str:
    """Return the text of a file, or of all code cells of a notebook, one after the other."""
    content = path.read_bytes()
    if path.suffix.lower() != ".ipynb":
        return importlib.util.decode_source(content)
    try:
        cells = ["".join(cell["source"]) for cell in json.loads(content)["cells"] if cell["cell_type"] == "code"]
    except (ValueError, TypeError, KeyError, RecursionError):
        cells = []
    if not cells:
        raise _UnfitError("It is not a notebook with cells of code.")
    text = "\n\n".join(cells)
    return "\n".join(f"# {line}" if line.startswith(("%", "!")) else line for line in text.split("\n"))


def load(path: Path) -> dict[str, Any]:
    """Run a student's file, and return its names.

    Raises
    ------
    ValueError
        The file cannot be read or run; the message has the student's line.
    """
    module = types.ModuleType("student")
    module.__file__ = str(path)
    sys.modules["student"] = module  # dataclasses of the student look for their module
    try:
        text = source_of(path)
        linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
        execute(text, module, str(path))
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
    """Answer requests about the file that is the argument: call one of its functions."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    path = Path(sys.argv[1])
    sys.path.append(str(path.resolve().parent))
    import minibert.learn

    vars(minibert.learn)["check"] = lambda *_, **__: None  # a notebook calls it after each function
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        limit = min(_MEMORY, available_memory() or _MEMORY), resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, limit)
    send(answers, Outcome())
    requests.readline()
    try:
        names = load(path)
        send(answers, Outcome())
    except ValueError as error:
        send(answers, Outcome("error", str(error)))
    process = os.getpid()
    while head := requests.readline():
        exercise, calls, helped = unpacked(requests.read(int(head)))
        with contextlib.redirect_stdout(_Kept()) as kept:
            outcome = attempt(exercise, names.get(exercise), calls, helped=helped)
        if os.getpid() != process:  # a student's fork
            os._exit(0)
        send(answers, dataclasses.replace(outcome, printed=kept.getvalue().rstrip()))


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process; where the system does not tell it, the time that passes."""
    with contextlib.suppress(OSError):
        if sys.platform == "linux":
            return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid of the C library
    return time.monotonic()


def packed(request: Any) -> list[Any]:
    """Return the number of bytes that follow, and an .npz file: the request in JSON, and its arrays, each one once."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def place(array: np.ndarray[Any, Any]) -> dict[str, str]:
        arrays[f"{id(array)}"] = array
        return {"array": f"{id(array)}"}

    text, file = json.dumps(request, default=place), io.BytesIO()
    np.savez(file, request=np.array(text), **arrays)  # type: ignore[arg-type]
    return [b"%d\n" % file.tell(), file.getbuffer()]


def unpacked(content: bytes) -> Any:
    """Return the request in an .npz file; its arrays are read-only."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = dict(file)
    for array in arrays.values():
        array.flags.writeable = False

    def restore(item: dict[str, Any]) -> Any:
        return arrays[item["array"]] if item.keys() == {"array"} else item

    return json.loads(str(arrays["request"]), object_hook=restore)


def send(stream: IO[bytes], outcome: Outcome) -> None:
    """Write an outcome as a line of JSON; floats keep all their digits."""
    stream.write(json.dumps(dataclasses.asdict(outcome), default=np.ndarray.tolist).encode() + b"\n")
    stream.flush()


def receive(stream: IO[bytes]) -> Outcome | None:
    """Read an outcome; None if the process has ended, or if its answer is too long or cannot be read."""
    line = bytearray()
    with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError, OSError):
        while not line.endswith(b"\n") and len(line) <= _ANSWER and (part := stream.read(2**16)):
            line += part
        outcome = Outcome(**json.loads(line))
        for value in outcome.values:
            value[:] = [item if isinstance(item, str) else np.array(item, np.float64) for item in value]
        outcome.text, outcome.printed = (text.strip() for text in (outcome.text, outcome.printed))
        return outcome
    return None


class Student:
    """A student's file in a process. The process is started again if a function does not end.

    Parameters
    ----------
    path : str or path
    seconds : float         that one function may take

    Raises
    ------
    ValueError
        There is no such file.
    """

    def __init__(self, path: str | Path, seconds: float = SECONDS) -> None:
        if not is_regular_file(Path(path)):
            raise ValueError(f"{path} does not exist; `minibert learn start {path}` writes it.")
        if not 0 < seconds <= 1e6:
            raise ValueError(f"seconds={seconds}; expected a number above 0, up to 1e6.")
        self._path, self._seconds, self._left = path, seconds, 1.5 * seconds
        self._start()

    def _start(self) -> None:
        program = "from minibert.learn.student import main; main()"
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, str(self._path)],
            bufsize=0,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._ready = False

    def close(self) -> None:
        """End the process, and those that it started."""
        if self._process.returncode is None and hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        with self._process:  # closes the pipes, and waits
            pass

    def ask(self, exercise: str, calls: Sequence[tuple[Any, ...]], *, helped: bool = False) -> Outcome:
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
            for limit, request in ((_LOADING[0], []), (max(_LOADING[1], self._seconds), [b"\n"])):
                if (started := self._exchange(limit, request)).status != "done":
                    raise ValueError(f"{self._path} cannot be run. {started.text}")
            self._ready = True
        outcome = self._exchange(min(self._seconds, self._left), packed((exercise, calls, helped)), len(calls))
        if outcome.status == "slow":
            self._left -= self._seconds
        return outcome

    def _exchange(self, seconds: float, request: list[Any], count: int = 0) -> Outcome:
        """Write a request, and read an answer with so many results; a process that does not give one is ended."""
        answers: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        process, outcome, late = self._process, None, False
        assert process.stdin is not None
        assert process.stdout is not None

        def exchange(write: Callable[[Any], int], stdout: IO[bytes]) -> None:
            with contextlib.suppress(OSError, ValueError):  # the process has ended, and gives no answer
                for part in request:
                    while len(part):
                        part = part[write(part) :]
            answers.put(None)
            answers.put(receive(stdout))

        # A thread, because a process that the student's code made may keep the pipe open for ever.
        threading.Thread(target=exchange, args=(process.stdin.write, process.stdout), daemon=True).start()
        try:
            answers.get(timeout=_LOADING[0])  # large weights take their time
            start, end = _cpu_seconds(process.pid), time.monotonic() + _BUSY * seconds
            left = seconds
            while left > 0:  # on a busy machine the process computes less than the seconds that pass
                with contextlib.suppress(queue.Empty):
                    outcome = answers.get(timeout=left)
                    break
                left = min(seconds - (_cpu_seconds(process.pid) - start), end - time.monotonic())
            else:
                late = True
        except queue.Empty:
            late = True
        if outcome is not None and len(outcome.values) in (count, *range(count * (outcome.status != "done"))):
            return outcome
        self.close()
        if late:
            text = "Does a loop never end? Loops over single numbers need more seconds, or a product of matrices. "
            text += "On a busy machine give more, too: --seconds."
            return Outcome("slow", f"It did not end within {seconds:g} seconds. {text}")
        text = "Did it need too much memory, call os._exit, or give too many numbers?"
        return Outcome("error", f"The process ended without an answer. {text}")
