"""Run hostile cases by number, each in a process of its own with limits, and count the outcomes.

A list of cases (see hostile_cases.py) is a function of a number and a folder. The number seeds everything that the case
does. A driver process imports minibert once and forks a child per case, because a new process would take a hundred
times as long. The child may take 3 GB and a minute of processor time. To run cases again by their numbers:

    python -m tests.support.hostile_cases LIST NUMBER...
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.outcomes import PATIENCE, ROOT, judge

MEMORY = 3 * 2**30  # bytes that a case may map in addition to the driver's
CPU_SECONDS = 60  # of a case; the slowest cases take two
_SHOWN = 3000  # characters of a case's output that a report has

Case = Callable[[int, Path], bool]
"""Runs a case in its folder. Returns True for an answer, False for an error that was reported correctly."""


class FaultError(Exception):
    """A fault that a case found: "WRONG NUMBER ..." or "LOST FILE ..."."""


# --- in the test's process --------------------------------------------------------------------------------------------


def run_list(name: str, numbers: range) -> tuple[Counter[str], dict[int, str]]:
    """Run cases of a list by their numbers; return the count of each outcome, and the output of the faulty ones."""
    workers = min(os.cpu_count() or 1, 4)
    parts = [numbers[first::workers] for first in range(workers)]
    drivers = []
    with tempfile.TemporaryDirectory() as scratch:
        for place, part in enumerate(parts):
            with open(os.path.join(scratch, str(place)), "wb") as output:
                drivers.append(_start(name, part, output))
        codes = [driver.wait() for driver in drivers]
        printed = [Path(scratch, str(place)).read_text(encoding="utf-8", errors="replace") for place in range(workers)]
    results = [json.loads(line) for text in printed for line in text.splitlines() if line.startswith('{"case": ')]
    assert not any(codes), f"a driver ended with {codes}:\n" + "\n".join(text[-_SHOWN:] for text in printed)
    assert sorted(result["case"] for result in results) == list(numbers)
    faults = {
        result["case"]: f"{result['outcome']}:\n{result['printed']}"
        for result in results
        if result["outcome"] not in ("ok", "typed error")
    }
    return Counter(result["outcome"] for result in results), faults


def _start(name: str, numbers: range, output: Any) -> subprocess.Popen[bytes]:
    given = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.hostile_cases", name, *map(str, numbers)],
        cwd=ROOT,
        env={**os.environ, **given},
        stdout=output,
        stderr=subprocess.STDOUT,
    )


# --- in the driver ----------------------------------------------------------------------------------------------------


def drive(case: Case, numbers: Iterable[int]) -> None:
    """Run each case in a child; print a line of JSON for each."""
    with tempfile.TemporaryDirectory() as scratch:
        for number in numbers:
            folder = Path(scratch, str(number))
            folder.mkdir()
            start = time.perf_counter()
            outcome, printed = _in_a_child(lambda number=number, folder=folder: case(number, folder))
            seconds = time.perf_counter() - start
            shutil.rmtree(folder, ignore_errors=True)
            result = {"case": number, "outcome": outcome, "seconds": round(seconds, 3), "printed": printed[-_SHOWN:]}
            print(json.dumps(result), flush=True)


def _in_a_child(run: Callable[[], bool]) -> tuple[str, str]:
    """Fork a child that runs a case; return the outcome and its output."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork of a process with threads
        child = os.fork()
    if child == 0:
        os.close(ours)
        _be_the_child(run, theirs)
    os.close(theirs)
    printed, ended = _read(ours)
    if not ended:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ended or code == -signal.SIGXCPU:
        return "hang", printed
    return judge(code, printed), printed


def _read(pipe: int) -> tuple[str, bool]:
    """Read a pipe until it ends or a time limit passes; return the last bytes, and whether it ended."""
    data, deadline = b"", time.monotonic() + PATIENCE
    try:
        while (left := deadline - time.monotonic()) > 0:
            if select.select([pipe], [], [], left)[0]:
                block = os.read(pipe, 2**16)
                if not block:
                    return data.decode(errors="replace"), True
                data = (data + block)[-(2**18) :]
        return data.decode(errors="replace"), False
    finally:
        os.close(pipe)


def _be_the_child(run: Callable[[], bool], pipe: int) -> None:
    """Run a case with limits, print the line that `judge` reads, and end the process."""
    code = 1
    try:
        os.dup2(pipe, 1)
        os.dup2(pipe, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        _limit()
        warnings.simplefilter("error", RuntimeWarning)  # NumPy's warnings before it returns NaN
        warnings.simplefilter("ignore", UserWarning)
        if run():
            code = 0
        else:
            print("ValueError: said by the command line")
    except FaultError as fault:
        print(fault)
    except BaseException as error:
        print(_last_line(error))
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _limit() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    statistics = Path("/proc/self/statm")
    if statistics.exists():  # only Linux reports how much is mapped
        mapped = int(statistics.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))


def _last_line(error: BaseException) -> str:
    """Return the kind and message of an error that minibert may raise, and the traceback of any other error."""
    from minibert import DownloadError, ModelFormatError

    # A class of another library that derives from one of these, such as json.JSONDecodeError, is not allowed either.
    for kind in (ModelFormatError, DownloadError, TypeError, ValueError):
        if type(error) is kind and str(error).strip():
            return f"{'minibert.errors.' if kind.__module__ != 'builtins' else ''}{kind.__name__}: {error!r}"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and type(error).__module__ == "builtins"):
        return f"{'MemoryError' if isinstance(error, MemoryError) else 'OSError'}: {error!r}"
    return "".join(traceback.format_exception(error)) + f"\nforeign: {type(error).__module__}.{type(error).__name__}"


# --- mutations of JSON ------------------------------------------------------------------------------------------------

# They are written as strings and replaced in the text, because Python's json cannot write them.
_RAW = {
    "@NaN@": "NaN",
    "@infinity@": "-Infinity",
    "@1e999@": "1e999",
    "@deep@": "[" * 100_000 + "]" * 100_000,
    "@deep objects@": '{"type":' * 500 + "1" + "}" * 500,
    "@digits@": "1" * 5000,
    "@half@": '"\\ud800"',
    "@nothing@": "",
}
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 1000, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64),
    *(10**30, -(2**31), -(2**63), 0.0, -0.0, 0.5, 1.0, 2.5, 1e-300, 1e308, -1e38),
    *("", " ", "a", "##", "\0", "\n", "\x7f", "é", "ａ", "😀", "[CLS]", "[UNK]", "0", "-1", "1e5", "true", "None"),
    *(
        "a" * 300,
        "a" * 20_000,
        "../../x",
        "/etc/passwd",
        "C:\\x",
        "..",
        ".",
        "a/b",
        "os.system",
        "float32",
        "mean",
        "left",
    ),
    *([], {}, [None], [[]], [{}], [0], [1, 2], ["a"], [""], {"a": 1}, {"": None}, {"type": "a"}, {"content": "a"}),
    *([0] * 1000, ["a"] * 1000, {str(number): number for number in range(200)}),
    *_RAW,
)


def mutated(value: Any, chance: random.Random, count: int | None = None) -> Any:
    """Change a JSON value at one to three random places."""
    document = json.loads(json.dumps(value))
    for _ in range(chance.choice((1, 1, 2, 3)) if count is None else count):
        document = _mutated_once(document, chance)
    return document


def _mutated_once(document: Any, chance: random.Random) -> Any:
    parent, key, value = None, None, document
    while isinstance(value, dict | list) and value and (parent is None or chance.random() < 0.75):
        parent, key = value, chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value = parent[key]
    if parent is None:
        return chance.choice(HOSTILE)
    kind = chance.randrange(10)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[chance.choice([str(key) + "x", str(key).upper(), "", "type", "a" * 2000])] = parent.pop(key)
    elif kind == 1:
        parent[key:key] = [value] * chance.choice((1, 3, 20, 3000))
    elif kind == 2:
        parent[key] = [value] if chance.random() < 0.5 else {str(key): value}
    elif kind == 3:
        other = chance.choice(list(_all_values(document, 500)))
        parent[key] = json.loads(json.dumps(other))
    elif kind in (4, 5) and isinstance(value, int | float | str):
        parent[key] = _near(value, chance)
    else:
        parent[key] = chance.choice(HOSTILE)
    return document


def _near(value: Any, chance: random.Random) -> Any:
    """Return a value of the same type, or of a similar one."""
    if isinstance(value, bool):
        return chance.choice((not value, int(value), str(value)))
    if isinstance(value, str):
        return chance.choice(
            (value * 2, value[:-1], value + " ", value.upper(), value[::-1], value + "\0", value * 500)
        )
    return chance.choice((value + 1, value - 1, -value, value * 2, value + 0.5, str(value), value * 10**6, value / 2))


def _all_values(document: Any, most: int) -> Iterator[Any]:
    waiting = [document]
    while waiting and most:
        value = waiting.pop(0)
        most -= 1
        yield value
        if isinstance(value, dict | list):
            waiting += list(value.values() if isinstance(value, dict) else value)[:50]


def text_of(value: Any) -> bytes:
    """Write JSON; "@NaN@" and similar strings become values that Python's json does not write."""
    text = json.dumps(value, ensure_ascii=False)
    for name, raw in _RAW.items():
        text = text.replace(f'"{name}"', raw)
    return text.encode("utf-8", "surrogatepass")


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Change bytes at random, without regard to their meaning."""
    kind, at = chance.randrange(9), chance.randrange(len(data) + 1)
    other = chance.randrange(len(data) + 1)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + chance.randbytes(chance.choice((1, 1, 4, 100))) + data[at:]
    if kind == 2:
        return data[:at] + data[at + chance.choice((1, 4, 100)) :]
    if kind == 3:
        return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :] if at < len(data) else b""
    if kind == 4:
        return data[:at] + data[other : other + 50] + data[at:]
    if kind == 5:
        return data.decode(errors="replace").encode(chance.choice(("utf-16", "utf-32", "utf-8-sig")))
    if kind == 6:
        return data + data
    if kind == 7:
        return data.replace(b"\n", chance.choice((b"\r\n", b"\r", b"\n\n", b"\0")))
    return chance.choice(
        (b"", b"\0" * 100, b"\xef\xbb\xbf" + data, b"version https://git-lfs.github.com/spec/v1\n", b"{}")
    )
