"""The course: what `start` writes, and what `check` says of right and wrong files."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minibert.learn
from minibert.cli import main
from minibert.learn.checking import Result
from minibert.learn.right import RIGHT
from minibert.learn.student import Student, load
from tests.support.checkpoints import random_checkpoint

SOLUTION = (Path(__file__).parent / "solution.py").read_text(encoding="utf-8")

# So that a machine with much other work does not make a right function too slow.
PATIENT = 60.0


def functions(*changes: tuple[str, str]) -> dict[str, Any]:
    """Return the names of the solution, with some of its code replaced."""
    source = SOLUTION
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new, 1)
    names: dict[str, Any] = {}
    exec(compile(source, "solution.py", "exec"), names)
    return names


def checked(exercise: str, *changes: tuple[str, str]) -> Result:
    return minibert.learn.check(exercise, functions(*changes)[exercise])


def small_model(folder: Path, **config: Any) -> Path:
    """Return a small random model, whose vocabulary has the tokens of the real one that the texts of a lesson need."""
    return random_checkpoint(folder, **config)


# --- files ------------------------------------------------------------------------------------------------------------


def test_start_writes_functions_that_are_not_filled_in(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "mine.py"
    assert main(["learn", "start", str(path)]) == 0
    before = path.read_bytes()
    assert main(["learn", "start", str(path)]) == 1
    assert path.read_bytes() == before
    found = list(minibert.learn.check_file(path, seconds=PATIENT))
    assert [one.exercise for one in found] == [*RIGHT]
    assert {one.status for one in found} == {"empty"}
    assert main(["learn", "start", str(tmp_path / "mine.txt")]) == 1
    assert ".py" in capsys.readouterr().err


def test_a_page_has_the_sources(tmp_path: Path, capsys: Any) -> None:
    """tests/test_browser_python.py opens it."""
    path = tmp_path / "bert.html"
    assert main(["learn", "page", str(path), "--pyodide", "https://example.org/a"]) == 0
    text = path.read_text(encoding="utf-8")
    assert 'PYODIDE = "https://example.org/a/"' in text
    [archive] = re.findall(r'ARCHIVE = "([A-Za-z0-9+/=]+)"', text)
    sources = zipfile.ZipFile(io.BytesIO(base64.b64decode(archive)))
    root = Path(minibert.__file__).parent
    for name in ("bert/tiny.py", "learn/exercises.txt", "__init__.py"):
        assert sources.read(f"minibert/{name}") == (root / name).read_bytes()
    assert main(["learn", "page", str(tmp_path / "bert.txt")]) == 1
    assert ".html" in capsys.readouterr().err


def test_the_solution_is_right_and_computes_the_vector_of_a_text(tmp_path: Path, capsys: Any) -> None:
    assert len([line for line in SOLUTION.splitlines() if line.strip()]) <= 120
    path = tmp_path / "mine.py"
    path.write_text(SOLUTION, encoding="utf-8")
    assert main(["learn", "check", str(path), "--seconds", str(PATIENT)]) == 0
    said = capsys.readouterr().out
    assert "All functions are right" in said
    assert float(re.search(r"largest difference\s+(\S+)", said)[1]) < 1e-6  # type: ignore[index]
    assert main(["learn", "check", str(path), "8", "layer_norm", "--seconds", str(PATIENT)]) == 0
    said = capsys.readouterr().out
    assert re.findall(r"^ ?\d+ (\w+) +right$", said, re.MULTILINE) == ["gelu", "layer_norm"]
    assert re.search(r"2 functions checked in \d+\.\d seconds. Next: linear.", said)


@pytest.mark.parametrize("seconds", ["inf", "nan", "0", "-1"])
def test_a_time_that_is_not_one(seconds: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.py").write_text(SOLUTION, encoding="utf-8")
    assert main(["learn", "check", str(tmp_path / "mine.py"), f"--seconds={seconds}"]) == 1
    assert "seconds" in capsys.readouterr().err


NOT_BOOKS = ['{"cells": 3}', '{"cells": []}', "{}", "[1]", "3", "no JSON", "[" * 100_000, '{"cells": [{}]}']
BAD_FILES = [
    ("mine.py", "def tokenize(", ["SyntaxError", "line 1"]),
    ("mine.py", "import no_such_module", ["ModuleNotFoundError", "line 1"]),
    ("mine.py", "import sys; sys.exit(3)", ["exit()"]),
    ("mine.py", "\0", ["null bytes"]),
    ("mine.py", "x = " + "'long' + " * 10_000 + "(", ["line 1"]),
    ("mine.py", "x = '\xff\0", ["SyntaxError", "encoding"]),
    *(("mine.ipynb", book, ["not a notebook with cells"]) for book in NOT_BOOKS),
]


@pytest.mark.parametrize(("name", "content", "words"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_files_that_cannot_be_run(tmp_path: Path, name: str, content: str, words: list[str]) -> None:
    (tmp_path / name).write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=re.escape(words[0])) as refused:
        load(tmp_path / name)
    assert all(word in str(refused.value) for word in words)
    assert "None" not in str(refused.value)
    assert len(str(refused.value)) < 1500


def test_a_file_that_cannot_be_run_is_one_line_of_the_command(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.py").write_text("x = input()")
    assert main(["learn", "check", str(tmp_path / "mine.py")]) == 1
    said = capsys.readouterr().err
    assert all(word in said for word in ("mine.py cannot be run", "EOFError", "no keyboard")), said
    assert "Traceback" not in said


def test_a_notebook_is_its_cells_of_code(tmp_path: Path) -> None:
    sources = ["%matplotlib inline\nimport math\n!pip list", SOLUTION, "minibert.learn.check('gelu', gelu)"]
    cells = [{"cell_type": "code", "source": [*source.splitlines(keepends=True)]} for source in sources]
    cells += [{"cell_type": "markdown", "source": "## 8. gelu"}]
    cells[2]["source"].insert(0, "import minibert.learn\n")
    (tmp_path / "mine.ipynb").write_text(json.dumps({"cells": cells}))
    (found,) = minibert.learn.check_file(tmp_path / "mine.ipynb", ["gelu"], seconds=PATIENT)
    assert found.right, found


def test_errors_are_short_and_have_a_line(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.py").write_text("def gelu(x):\n    raise ValueError('long ' * 1_000_000)\n")
    assert main(["learn", "check", str(tmp_path / "mine.py"), "gelu", "--seconds", str(PATIENT)]) == 1
    assert 100 < len(capsys.readouterr().out) < 2000


STRANGE = """
import os
def tokenize(text, vocabulary, lower_case):
    print("hello from tokenize")
    return ["[CLS]", 3]
def embed(token_ids, token_types, words, positions, types):
    words[token_ids] += 1
def layer_norm(x, weight, bias, eps):
    x -= x.mean(axis=-1, keepdims=True)
    return x
def linear(x, weight, bias):
    return x @ weight
def softmax(scores):
    input("a number? ")
def head(query, key, value):
    return "six"
def gelu(x):
    return gelu(x)
def layer(x, weights, num_heads, eps):
    os._exit(0)
def bert(token_ids, token_types, weights, config):
    return []
"""
SAID = {
    "tokenize": ("error", "expected a list of tokens"),
    "embed": ("error", "read-only"),
    "layer_norm": ("error", "it changes what it was given"),
    "linear": ("wrong", "right is"),
    "softmax": ("error", 'input("a number? ")'),
    "head": ("error", "real numbers"),
    "attention": ("missing", "no function attention"),
    "gelu": ("error", "return gelu(x)"),
    "layer": ("error", "ended without an answer"),
    "bert": ("error", "return states, vector"),
}


def test_strange_functions_have_a_plain_message(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(STRANGE)
    found = {one.exercise: one for one in minibert.learn.check_file(path, seconds=PATIENT)}
    for exercise, (status, words) in SAID.items():
        assert found[exercise].status == status, found[exercise]
        assert words in found[exercise].text, found[exercise]
    assert found["tokenize"].printed == "hello from tokenize"


def test_a_loop_without_end_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    loop = "def {}(*arguments):\n    while True: print('x' * 1000)\n"
    path.write_text("".join(loop.format(name) for name in RIGHT))
    found = list(minibert.learn.check_file(path, seconds=0.2))
    assert [one.status for one in found] == ["slow", "slow", *["not run"] * (len(RIGHT) - 2)]
    assert len(found[0].printed) <= 1000


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the time that passes counts")
def test_a_function_that_had_to_wait_is_not_too_slow(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import time\nwaits = [3]\ndef gelu(x):\n    time.sleep(waits.pop() if waits else 0)\n    return x")
    (found,) = minibert.learn.check_file(path, ["gelu"], seconds=2)
    assert found.status == "wrong"
    with pytest.raises(ValueError, match=r"no function 'gelo'.* gelu"):
        next(iter(minibert.learn.check_file(path, ["gelo"])))


FORKS = """
import os, time
def gelu(x):
    if not os.fork():
        return x
    return None
def linear(x):
    if not os.fork():
        while True: time.sleep(60)
    return [[os.getpgid(0)]]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_forks_gives_one_answer_and_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FORKS)
    student = Student(path, PATIENT)
    try:
        assert student.ask("gelu", [(1,)]).status == "empty"
        group = int(student.ask("linear", [(1,)]).values[0][0][0, 0])
        assert len(running(group)) >= 2
    finally:
        student.close()
    for _ in range(200):
        if not running(group):
            break
        time.sleep(0.05)
    assert running(group) == []


def running(group: int) -> list[str]:
    """Return the processes of a group that have not ended."""
    table = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return [line for line in table.splitlines() if line.split()[0] == str(group) and line.split()[1][0] != "Z"]


JUNK = """
import contextlib, os
def gelu(x):
    for number in range(3, 20):
        with contextlib.suppress(OSError):
            os.write(number, b"junk\\n")
"""


def test_an_answer_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """The file writes into the pipe of the answers."""
    path = tmp_path / "mine.py"
    path.write_text(JUNK)
    (found,) = minibert.learn.check_file(path, ["gelu"], seconds=PATIENT)
    assert found.status == "error"
    assert "without an answer" in found.text


HOSTILE = {
    "endless": "while True: os.write(fd, b'x' * 2**16)",
    "deep": "os.write(fd, b'[' * 10**5 + b']' * 10**5 + b'\\n')",
    "other names": "os.write(fd, b'{\"answer\": 1}\\n')",
    "other types": 'os.write(fd, b\'{"status": 3, "text": [], "values": [[["a"]]], "printed": null}\\n\')',
    "too many values": "os.write(fd, b'{\"values\": [[1], [1], [1], [1], [1], [1], [1], [1]]}\\n')",
    "no values": "os.write(fd, b'{\"values\": []}\\n')",
    "a number": "os.write(fd, b'3\\n')",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_answer_that_is_not_one_is_bounded(tmp_path: Path, kind: str) -> None:
    """The file finds the pipe of the answers, and writes something else."""
    (tmp_path / "mine.py").write_text(
        "import os, stat, sys\n"
        "def gelu(x):\n"
        "    fds = [fd for fd in map(int, os.listdir('/dev/fd')) if os.path.exists(f'/dev/fd/{fd}')]\n"
        "    fds = [fd for fd in sorted(fds)[3:] if stat.S_ISFIFO(os.fstat(fd).st_mode)]\n"
        f"    fd = fds[-1]\n    {HOSTILE[kind]}\n    os._exit(0)\n"
    )
    (found,) = minibert.learn.check_file(tmp_path / "mine.py", ["gelu"], seconds=PATIENT)
    assert found.status == "error"
    assert "without an answer" in found.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_left_the_group_does_not_stall(tmp_path: Path) -> None:
    """It keeps the pipe of the answers open after its parent has ended."""
    (tmp_path / "mine.py").write_text(
        "import os, time\n"
        "def gelu(x):\n"
        "    if not os.fork():\n        os.setsid()\n        time.sleep(20)\n        os._exit(0)\n"
        "    while True: time.sleep(1)\n"
    )
    start = time.monotonic()
    (found,) = minibert.learn.check_file(tmp_path / "mine.py", ["gelu"], seconds=1)
    assert found.status == "slow"
    assert time.monotonic() - start < 18


def test_the_vector_of_a_model_that_does_not_normalise(tmp_path: Path, capsys: Any) -> None:
    """The vector of the course is compared, not that of the model; long texts are cut as minibert cuts them."""
    (tmp_path / "mine.py").write_text(SOLUTION, encoding="utf-8")
    words = ["learn", "check", str(tmp_path / "mine.py"), "--seconds", str(PATIENT)]
    words += ["--model", str(small_model(tmp_path / "model")), "--text", "a bank " * 400]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "this is BERT" in said
    assert float(re.search(r"largest difference\s+(\S+)", said)[1]) < 1e-5  # type: ignore[index]
    vectors = np.array([1, 1, 1, 1.5]), np.ones(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minibert.learn.checking.sentence", lambda *_, **__: vectors)
        patch.setattr("minibert.learn.checking.check_file", lambda *_, **__: [])
        assert main(words) == 1
    assert "another vector" in capsys.readouterr().out


def test_what_comes_next_is_said() -> None:
    assert "Next: layer_norm." in repr(Result("embed", "right"))
    assert "Next" not in repr(Result("embed", "wrong")) + str(Result("embed", "right"))
    assert "last function" in Result("batch", "right").next


def test_a_file_of_ten_functions_is_whole(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def tokenize(*_): ...\n")
    found = [one.exercise for one in minibert.learn.check_file(tmp_path / "mine.py", seconds=PATIENT)]
    assert found == [*RIGHT][:-1]
    (found_batch,) = minibert.learn.check_file(tmp_path / "mine.py", ["batch"], seconds=PATIENT)
    assert found_batch.status == "missing"
