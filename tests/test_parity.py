"""Every hidden state is within the budget, which comes from transformers; the table is written into its page."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import parity
from tests.support.definition import Error, measure, rms
from tests.support.report import REPORT
from tests.support.text_data import english_texts


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[parity.Row]]:
    """Return a function that measures the rows of a model, once."""
    folder = tmp_path_factory.mktemp("parity")
    makers: dict[str, Callable[[], parity.Subject]] = {
        "MiniLM": lambda: parity.minilm_subject(english_texts()),
        "2 x 768": lambda: parity.base_subject(folder / "two", 2),
        "12 x 768": lambda: parity.base_subject(folder / "base"),
        "odd": lambda: parity.odd_subject(folder / "odd"),
    }

    @functools.cache
    def rows_of(name: str) -> list[parity.Row]:
        rows = parity.measure(makers[name]())
        REPORT.extend(f"parity: {line}" for line in parity.summary(rows))
        return rows

    return rows_of


@pytest.mark.parametrize("backend", parity.MINIBERT)
@pytest.mark.parametrize(
    ("name", "states"),
    [("MiniLM", 7), ("2 x 768", 3), pytest.param("12 x 768", 13, marks=pytest.mark.slow), ("odd", 4)],
)
def test_every_hidden_state_keeps_the_budget(
    name: str, states: int, backend: str, measured: Callable[[str], list[parity.Row]]
) -> None:
    rows = measured(name)
    assert [row.index for row in rows] == list(range(states))
    assert all(row.tokens >= parity.MIN_TOKENS for row in rows)
    assert all(0 < row.errors[contender].rms < 1e-5 for row in rows for contender in parity.CONTENDERS)
    over = [
        f"state {row.index}: {row.errors[backend]}; RMS {row.ratio(backend):.3f}, max {row.max_ratio(backend):.3f}"
        for row in rows
        if not row.held(backend)
    ]
    assert not over, "these are over the budget (1 is allowed):\n" + "\n".join(over)


# --- the helpers -----------------------------------------------------------------------------------------------------


def row(ours: tuple[float, float], theirs: tuple[float, float], index: int = 0) -> parity.Row:
    smaller = Error(theirs[0] / 2, theirs[1] / 2)
    errors = {"kernels": Error(*ours), "numpy": Error(*ours), "eager": smaller, "sdpa": Error(*theirs)}
    return parity.Row("a model", index, 2345, errors)


@pytest.mark.parametrize(
    ("ours", "held"),
    [((1.0, 15.0), True), ((1.01, 1.0), False), ((0.1, 15.1), False), ((0.0, 0.0), True), ((np.nan, np.nan), False)],
)
def test_the_budget(ours: tuple[float, float], held: bool) -> None:
    assert row(ours, (1.0, 10.0)).held("kernels") is held


def test_errors_are_measured() -> None:
    assert measure(np.array([1, 2], dtype=np.float32), np.array([1.0, 5.0])) == Error(rms=np.sqrt(4.5), max=3.0)
    assert rms([]) == 0.0
    with pytest.raises(AssertionError, match="finite"):
        measure(np.array([np.nan], dtype=np.float32), np.array([1.0]))
    with pytest.raises(AssertionError, match="shape"):
        measure(np.array([1], dtype=np.float32), np.array([[1.0]]))
