"""The backend and the number of threads, from arguments, environment and machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertModel
from minibert.bert import reference
from minibert.bert.ops import Ops
from minibert.models import backend
from tests.support.model_calls import IDS, ROOT, TOLERANCE


@pytest.mark.parametrize(
    ("argument", "variable", "numpy"),
    [
        *((None, variable, False) for variable in (None, "", "kernels", "numba")),
        *((None, "numpy", True), ("kernels", None, False), ("numba", "numpy", False)),
        *(("numpy", variable, True) for variable in (None, "numba", "nonsense")),
    ],
)
def test_the_backend_is_chosen_by_argument_then_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, argument: str | None, variable: str | None, numpy: bool
) -> None:
    if variable is not None:
        monkeypatch.setenv("MINIBERT_BACKEND", variable)
    assert (BertModel.from_pretrained(folder, backend=argument).ops is reference.OPS) == numpy


THREADS = ("0", "-1", "1025", "10000", "two", "1.5", "1e1", " ", "1_0", "\u0663")


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        *(("backend", value, ValueError) for value in ("torch", "", "NumPy", 1, ["numpy"])),
        *(("num_threads", value, ValueError) for value in (0, -2, 1025, 10**6)),
        *(("num_threads", value, TypeError) for value in (True, 1.5, "2")),
        ("MINIBERT_BACKEND", "torch", ValueError),
        *(("MINIBERT_NUM_THREADS", value, ValueError) for value in THREADS),
    ],
)
def test_a_bad_choice_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, error: type[Exception]
) -> None:
    if name.isupper():
        monkeypatch.setenv(name, value)
    for more in ({}, {"backend": "numpy"}) if name == "num_threads" else ({},):
        with pytest.raises(error, match=f"^{name}="):
            BertModel.from_pretrained(folder, **more, **({} if name.isupper() else {name: value}))
    if name == "MINIBERT_NUM_THREADS":
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


WITHOUT_KERNELS = """
import sys, warnings

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name == "minibert.kernels.libraries":
            raise ImportError("there are no kernels")

sys.meta_path.insert(0, Nothing())
from minibert import BertModel
from minibert.bert import reference
folder, backend = sys.argv[1:]
for _ in range(3):
    model = BertModel.from_pretrained(folder, backend=backend or None)
    assert model.ops is reference.OPS
print(float(model([[1, 2, 3]]).last_hidden_state[0, 2, 5]))
"""


def without_kernels(folder: Path, backend: str) -> tuple[str, str]:
    command = [sys.executable, "-c", WITHOUT_KERNELS, str(folder), backend]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout, result.stderr


def test_without_kernels_there_is_one_warning_and_numpy(folder: Path, model: BertModel) -> None:
    printed, errors = without_kernels(folder, "")
    assert errors.count("RuntimeWarning") == errors.count("there are no kernels, so minibert computes with NumPy") == 1
    number = [number for number, line in enumerate(WITHOUT_KERNELS.splitlines(), 1) if "from_pretrained" in line]
    assert errors.startswith(f"<string>:{number[0]}: ")
    assert float(printed) == pytest.approx(float(model([[1, 2, 3]]).last_hidden_state[0, 2, 5]), abs=TOLERANCE)


def test_without_kernels_numpy_is_silent_and_kernels_are_an_error(folder: Path) -> None:
    printed, errors = without_kernels(folder, "numpy")
    assert float(printed)
    assert errors == ""
    for name in ("kernels", "numba"):
        printed, errors = without_kernels(folder, name)
        assert not printed
        assert "ValueError: the backend is 'kernels', but they cannot be loaded: there are no kernels." in errors


@pytest.mark.filterwarnings("ignore:compute_type=")
@pytest.mark.parametrize("name", ["kernels", "numpy"])
@pytest.mark.parametrize("compute_type", ["float32", "int8"])
def test_weights_cannot_be_changed_in_place(folder: Path, name: Any, compute_type: Any) -> None:
    """A change of a copy would change no result, and nobody would notice."""
    layer = BertModel.from_pretrained(folder, backend=name, compute_type=compute_type).weights.layers[0]
    for linear in (layer.query_key_value, layer.attention_output, layer.intermediate, layer.output):
        for array in (linear.weight, linear.bias):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
