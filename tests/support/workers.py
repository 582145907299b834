"""How many processes share a run of the tests: pytest-xdist starts them, this module only chooses their number."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from minibert._utils.system import available_cores, available_memory

TESTS = Path(__file__).parents[1]
MOST = 4  # because each worker imports torch and loads the models again
BYTES_OF_A_WORKER = 3 * 2**30  # a worker grew to 1.9 GB, and the programs that its tests start come on top

# Without these variables, torch and NumPy start a thread for each core in each worker, and all of them wait in turn for
# each other. minibert's own threads read none of these variables: tests are about the number of those threads.
ENVIRONMENT = {
    "MKL_NUM_THREADS": "1",  # torch's number of threads, too
    "OMP_WAIT_POLICY": "PASSIVE",  # for tests that give torch more threads
    "OPENBLAS_NUM_THREADS": "1",
}

# The tests start hundreds of Python processes. With this variable none of them keeps bytecode: each one compiles all of
# minibert from its sources again, and each worker all the tests.
UNSET = "PYTHONDONTWRITEBYTECODE"

# With one of these options somebody runs a few tests, or talks to a test while it runs; so does `-s`.
ALONE = ("collectonly", "keyword", "lf", "stepwise", "trace", "usepdb")


def count(cores: int, memory: int | None) -> int:
    """The number of workers for the whole suite; 0 stands for a run in this process alone."""
    number = min(cores, MOST, MOST if memory is None else memory // BYTES_OF_A_WORKER)
    return number if number > 1 else 0


def runs_all_files(paths: Sequence[str], folder: Path) -> bool:
    """Return whether the paths that pytest was given, or took from pyproject.toml, are just the folder of all tests."""
    return [(folder / path).resolve() for path in paths] == [TESTS]


def choose(config: pytest.Config) -> None:
    """Let workers share the run of the whole suite, unless the command line gives their number.

    `-n auto` in pyproject.toml could not do this, because pytest would then refuse to start without pytest-xdist.
    """
    option = config.option
    if not hasattr(option, "numprocesses") or hasattr(config, "workerinput"):  # no pytest-xdist; a worker itself
        return
    if option.numprocesses is None and not option.tx:
        alone = option.capture == "no" or any(getattr(option, name, None) for name in ALONE)
        if not alone and runs_all_files(config.args, config.invocation_params.dir):
            option.numprocesses = count(available_cores(), available_memory())
    if option.numprocesses:
        if option.dist == "no":
            # Each worker gets a part of the tests in their order, so that few fixtures are made twice. A worker that
            # has ended its part takes half of what another one has left, so that all end at the same time.
            option.dist = "worksteal"
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        os.environ.pop(UNSET, None)
