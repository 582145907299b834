"""A warm cache of machine code, and a copy of it for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import outcomes
from tests.support.machine_code import ONCE, PROGRAM, compiled, machine_code


@pytest.fixture
def model(outcome_model: Path) -> Path:
    return outcome_model


@pytest.fixture(scope="session")
def warm(outcome_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a NUMBA_CACHE_DIR that a first start has filled."""
    folder = tmp_path_factory.mktemp("warm")
    outcome, printed = outcomes.run(PROGRAM, outcome_model, NUMBA_CACHE_DIR=str(folder))
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
