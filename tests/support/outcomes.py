"""Run programs in processes of their own and judge each outcome; crashes and hangs cannot be counted otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from subprocess import CompletedProcess

from tests.support.checkpoints import random_checkpoint

ROOT = Path(__file__).parents[2]
PATIENCE = 900.0
"""Seconds after which a process counts as hanging; a program of a few seconds needs less even at a load of 15."""

OUTCOMES = ("ok", "typed error", "foreign exception", "signal", "hang", "wrong number", "lost file")

# The outcomes that minibert may have; see errors.py.
_TYPED = ("TypeError", "ValueError", "OSError", "MemoryError", "minibert.errors.")

# Every program begins with this. `check` compares seeded batches with the results that one thread computed before.
_PRELUDE = (
    f"PATIENCE = {PATIENCE}"
    + """
import hashlib, json, os, random, signal, sys, threading, time
from pathlib import Path
from subprocess import CompletedProcess
import numpy as np
from minibert import BertModel

HOME = Path(os.environ["OUTCOMES_MODEL"])
EXPECTED = HOME / "expected.json"
faulty = []

def batch(number):
    generator = np.random.default_rng(number)
    shape = int(generator.integers(1, 9)), int(generator.integers(1, 65))
    lengths = generator.integers(1, shape[1] + 1, shape[0])
    return {
        "input_ids": generator.integers(5, 100, shape),
        "attention_mask": (np.arange(shape[1]) < lengths[:, None]).astype(np.int64),
    }

def digest(model, number):
    output = model(**batch(number))
    return hashlib.sha256(b"".join(state.tobytes() for state in output.hidden_states)).hexdigest()

def load(num_threads=2, **options):
    return BertModel.from_pretrained(HOME, num_threads=num_threads, **options)

def check(model, numbers=range(8)):
    expected = json.loads(EXPECTED.read_text())
    wrong = [number for number in numbers if digest(model, number) != expected[number]]
    if wrong:
        faulty.extend(wrong)
        print("WRONG NUMBER in batches", wrong, flush=True)
    return not wrong
"""
)

NUM_BATCHES = 64


def python(*arguments: str, folder: Path = ROOT, path: Path | str = ROOT, **variables: str) -> CompletedProcess[str]:
    """Run Python with these arguments in a folder; it finds the packages in `path` before those that are installed."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys((str(path), str(ROOT)))), **variables},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=PATIENCE,
    )


def make_model(folder: Path) -> Path:
    """Make a checkpoint so wide that its ops have several chunks, and the digests of all batches by one thread."""
    sizes = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 384}
    random_checkpoint(folder, **sizes, hidden_act="gelu")
    label, done = run(
        f"""
        model = load(num_threads=1)
        EXPECTED.write_text(json.dumps([digest(model, number) for number in range({NUM_BATCHES})]))
        """,
        folder,
    )
    assert label == "ok", done
    return folder


def run(
    program: str, model: Path, *, timeout: float = PATIENCE, python: tuple[str, ...] = (), **environment: str
) -> tuple[str, str]:
    """Run a program after the prelude; return its outcome and its output (errors included).

    The program is a file, so that it may start processes of its own under ``if __name__ == "__main__":``.
    """
    file = model / f"program-{os.getpid()}-{abs(hash(program))}.py"
    file.write_text(_PRELUDE + textwrap.dedent(program), encoding="utf-8")
    variables = {
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore::DeprecationWarning",  # Python 3.12 warns of any fork of a process with threads
        **os.environ,
        "OUTCOMES_MODEL": str(model),
        **environment,
    }
    process = subprocess.Popen(
        [sys.executable, *python, str(file)],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=model,
        start_new_session=True,  # so that a hang can be ended with all its children
    )
    try:
        printed, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        return "hang", printed
    return judge(process.returncode, printed), printed


def judge(code: int, printed: str) -> str:
    """Return one of `OUTCOMES` for an exit code and the output."""
    if code < 0 or "SIGNAL" in printed:
        return "signal"
    if "HANG" in printed:
        return "hang"
    if "WRONG NUMBER" in printed:
        return "wrong number"
    if "LOST FILE" in printed:
        return "lost file"
    if code == 0 and "Traceback" not in printed and "Exception ignored" not in printed:
        return "ok"
    last = next((line for line in reversed(printed.splitlines()) if line.strip()), "")
    return "typed error" if last.startswith(_TYPED) else "foreign exception"


def line(title: str, outcomes: Counter[str]) -> str:
    """Return the counts of all outcomes, for the report."""
    if sum(outcomes.values()) == 1:
        return f"{title}: {next(iter(outcomes))}"
    return f"{title}: " + ", ".join(f"{outcomes[name]} {name}" for name in OUTCOMES)
