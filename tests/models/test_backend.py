"""The backend and the number of threads, from arguments, environment and machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertModel
from minibert.bert import reference
from minibert.bert.ops import Ops
from minibert.models import backend
from tests.support.model_calls import IDS, ROOT, TOLERANCE


def is_numpy(model: BertModel) -> bool:
    return model.ops is reference.OPS


@pytest.mark.parametrize(
    ("argument", "variable", "numpy"),
    [
        (None, None, False),
        (None, "", False),
        ("numba", None, False),
        ("numpy", None, True),
        (None, "numpy", True),
        (None, "numba", False),
        ("numba", "numpy", False),
        ("numpy", "numba", True),
        ("numpy", "nonsense", True),
    ],
)
def test_the_backend_is_chosen_by_argument_then_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, argument: str | None, variable: str | None, numpy: bool
) -> None:
    if variable is not None:
        monkeypatch.setenv("MINIBERT_BACKEND", variable)
    assert is_numpy(BertModel.from_pretrained(folder, backend=argument)) == numpy


@pytest.mark.parametrize("backend", ["torch", "", "NumPy", 1, ["numpy"]])
def test_another_backend_is_refused(folder: Path, backend: Any) -> None:
    with pytest.raises(ValueError, match=r"^backend=.*; expected one of 'numba', 'numpy'"):
        BertModel.from_pretrained(folder, backend=backend)


def test_another_backend_in_the_environment_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBERT_BACKEND", "torch")
    with pytest.raises(ValueError, match=r"^MINIBERT_BACKEND='torch'; expected one of 'numba', 'numpy'"):
        BertModel.from_pretrained(folder)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize(
    ("num_threads", "error"),
    [
        (0, ValueError),
        (-2, ValueError),
        (1025, ValueError),
        (10**6, ValueError),
        (True, TypeError),
        (1.5, TypeError),
        ("2", TypeError),
    ],
)
def test_a_bad_number_of_threads_is_refused(
    folder: Path, backend: str, num_threads: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=rf"^num_threads={num_threads!r}; expected an int, 1 to 1,024"):
        BertModel.from_pretrained(folder, num_threads=num_threads, backend=backend)


@pytest.mark.parametrize("text", ["0", "-1", "1025", "10000", "two", "1.5", "1e1", " ", "1_0", "\u0663"])
def test_a_bad_number_of_threads_in_the_environment_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("MINIBERT_NUM_THREADS", text)
    with pytest.raises(ValueError, match=f"^MINIBERT_NUM_THREADS={text!r}; expected a whole number, 1 to 1,024.$"):
        BertModel.from_pretrained(folder)
    assert BertModel.from_pretrained(folder, num_threads=1)(IDS).keys(), "an argument must be used first"


def test_the_number_of_threads_comes_from_argument_then_environment_then_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minibert import kernels

    asked: list[int] = []
    make_ops: Callable[..., Ops] = kernels.make_ops
    monkeypatch.setattr(kernels, "make_ops", lambda number, **more: asked.append(number) or make_ops(number, **more))
    BertModel.from_pretrained(folder)
    monkeypatch.setenv("MINIBERT_NUM_THREADS", "3")
    BertModel.from_pretrained(folder)
    BertModel.from_pretrained(folder, num_threads=np.int64(5))
    monkeypatch.setenv("MINIBERT_NUM_THREADS", "")
    BertModel.from_pretrained(folder)
    assert asked[1:3] == [3, 5]
    assert asked[0] == asked[3] >= 1


@pytest.mark.parametrize(
    ("omp", "count", "rule"),
    [
        ("1", 1, "OMP_NUM_THREADS=1 caps the 8 cores"),
        (" 3 ", 3, "caps"),
        ("4,2,1", 4, "OMP_NUM_THREADS=4,2,1 caps"),
        ("8", 8, "all cores"),
        ("64", 8, "all cores"),
        (None, 8, "all cores"),
        *((text, 8, "all cores") for text in ("", "0", "-2", "two", "1.5", "1e1", "\u0663", "9" * 5000, ",")),
    ],
)
def test_omp_num_threads_is_a_cap(monkeypatch: pytest.MonkeyPatch, omp: str | None, count: int, rule: str) -> None:
    monkeypatch.setattr(backend, "available_cores", lambda: 8)
    if omp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    assert backend.choose_num_threads().num_threads == count
    assert rule in backend.choose_num_threads().rule
    assert backend.choose_num_threads(7) == (7, "num_threads="), "an argument must be used first"
    monkeypatch.setenv("MINIBERT_NUM_THREADS", "5")
    assert backend.choose_num_threads() == (5, "MINIBERT_NUM_THREADS=5"), "our own variable must be used second"


WITHOUT_NUMBA = """
import sys, warnings

class NoNumba:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, NoNumba())
from minibert import BertModel
from minibert.bert import reference
folder, backend = sys.argv[1:]
for _ in range(3):
    model = BertModel.from_pretrained(folder, backend=backend or None)
    assert model.ops is reference.OPS
print(float(model([[1, 2, 3]]).last_hidden_state[0, 2, 5]))
"""


def without_numba(folder: Path, backend: str) -> Iterator[str]:
    command = [sys.executable, "-c", WITHOUT_NUMBA, str(folder), backend]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    yield from (result.stdout, result.stderr)


def test_without_numba_there_is_one_warning_and_numpy(folder: Path, model: BertModel) -> None:
    printed, errors = without_numba(folder, "")
    assert errors.count("RuntimeWarning") == errors.count("numba cannot be imported (llvmlite is blocked)") == 1
    assert "pip install numba" in errors
    line = (
        WITHOUT_NUMBA.splitlines().index("    model = BertModel.from_pretrained(folder, backend=backend or None)") + 1
    )
    assert errors.startswith(f"<string>:{line}: ")
    assert float(printed) == pytest.approx(float(model([[1, 2, 3]]).last_hidden_state[0, 2, 5]), abs=TOLERANCE)


def test_without_numba_numpy_is_silent_and_numba_an_error(folder: Path) -> None:
    printed, errors = without_numba(folder, "numpy")
    assert float(printed)
    assert errors == ""
    printed, errors = without_numba(folder, "numba")
    assert not printed
    assert (
        "ValueError: backend='numba', but numba cannot be imported (llvmlite is blocked). Run pip install numba."
        in errors
    )
