"""A warm cache of machine code, and a copy of it for each test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from minibert.kernels.cache import _read_code, load_run_task
from tests.support import outcomes
from tests.support.machine_code import ONCE, PROGRAM, compiled, machine_code


@pytest.fixture
def model(outcome_model: Path) -> Path:
    return outcome_model


@pytest.fixture(scope="session")
def warm(outcome_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a NUMBA_CACHE_DIR that a first start has filled, with what this process runs instead of the same again."""
    load_run_task()
    code = _read_code()
    assert code is not None, "the machine code of this process is not on disk"
    taken = tmp_path_factory.mktemp("taken") / "code.bin"
    taken.write_bytes(bytes(32) + json.dumps({"symbol": code.symbol}).encode() + b"\n" + code.content)
    folder = tmp_path_factory.mktemp("warm")
    variables = {"NUMBA_CACHE_DIR": str(folder), "OUTCOMES_STOCK": str(taken)}
    outcome, printed = outcomes.run(PROGRAM, outcome_model, **variables)
    assert (outcome, compiled(printed)) == ("ok", ONCE), printed
    return folder


@pytest.fixture(autouse=True)
def stock(warm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of the tests take this machine code where others would compile."""
    monkeypatch.setenv("OUTCOMES_STOCK", str(machine_code(warm)))


@pytest.fixture
def cache(warm: Path, tmp_path: Path) -> Path:
    """Return a copy of the warm cache, which a test may damage."""
    return Path(shutil.copytree(warm, tmp_path / "cache"))
