"""Run programs in processes of their own, so that a crash or a hang of one is only a failure of its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.support.checkpoints import random_checkpoint

ROOT = Path(__file__).parents[2]
PATIENCE = 900.0
"""Seconds after which a process counts as hanging; a program of a few seconds needs less even at a load of 15."""

# What a program prints that found a fault, or whose error was lost in a thread or a finalizer.
FAULTS = ("SIGNAL", "HANG", "WRONG NUMBER", "Traceback", "Exception ignored")

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


def peak_of(code: str) -> float:
    """Return the most memory, in MB, that a program has used; Linux only."""
    end = "\nprint(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    return int(printed(code + end, "-W", "ignore").split()[-1]) / 1024


def printed(code: str, *options: str, **how: Any) -> str:
    """Run a program, which must succeed; return what it prints."""
    done = python(*options, "-c", textwrap.dedent(code), **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_model(folder: Path) -> Path:
    """Make a checkpoint so wide that its ops have several chunks, and the digests of all batches by one thread."""
    sizes = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 384}
    random_checkpoint(folder, **sizes, hidden_act="gelu")
    program = f"""
        model = load(num_threads=1)
        EXPECTED.write_text(json.dumps([digest(model, number) for number in range({NUM_BATCHES})]))
        """
    run(program, folder)
    return folder


def run(program: str, model: Path, **environment: str) -> str:
    """Run a program after the prelude, which must end well and print no fault; return its output (errors included).

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
        [sys.executable, str(file)],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=model,
        start_new_session=True,  # so that a hang can be ended with all its children
    )
    try:
        printed, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        raise AssertionError(f"a hang: {printed}") from None
    assert process.returncode == 0, f"{process.returncode}: {printed}"
    assert not any(fault in printed for fault in FAULTS), printed
    return printed
