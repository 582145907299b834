"""Damaged files of models, unusual corpora: only answers and minibert's own errors are allowed.

An answer must be finite, and the same alone and in a batch. TypeError, ValueError, MemoryError and OSError are allowed
too. A crash, a hang, another exception, a wrong number and a file that was changed without need are faults. The default
run has a sample of each list; the cases are seeded by their numbers (see hostile.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minibert import BertModel, ModelFormatError
from tests.support.hostile import run_list
from tests.support.hostile_cases import make_model
from tests.support.hostile_corpora import TRAPS
from tests.support.outcomes import line
from tests.support.report import REPORT

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="each case is a forked process")

# The number of cases of each list by default, and with "-m slow".
LISTS = {
    "tokenizer.json": (150, 6000),
    "safetensors": (150, 4000),
    "settings": (150, 4000),
    "corpus": (len(TRAPS), 10 * len(TRAPS)),
}


def check(name: str, numbers: range) -> None:
    counts, faults = run_list(name, numbers)
    REPORT.append(line(f"{name}, {len(numbers)} hostile cases", counts))
    shown = "\n".join(f"case {number}: {fault}" for number, fault in list(faults.items())[:5])
    again = " ".join(map(str, list(faults)[:20]))
    assert not faults, (
        f"{len(faults)} faults. To run them again: python -m tests.support.hostile_cases {name} {again}\n{shown}"
    )
    assert counts["ok"], "no case gave an answer"
    assert counts["typed error"], "no case was refused"


@needs_fork
@pytest.mark.parametrize("name", LISTS)
def test_a_sample_of_the_hostile_cases(name: str) -> None:
    check(name, range(LISTS[name][0]))


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("name", LISTS)
def test_all_hostile_cases(name: str) -> None:
    check(name, range(LISTS[name][0], LISTS[name][1]))


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_the_largest_weights_give_finite_numbers_and_larger_ones_are_refused(backend: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    for draw in range(3):
        rng = np.random.default_rng(draw)
        # All of one sign, so that sums are as large as possible; or of both signs.
        signs = {name: 1 if draw == 0 else rng.choice([-1, 1], tensor.shape) for name, tensor in tensors.items()}
        full = {
            name: np.full(tensor.shape, 1e6, np.float32) * np.float32(signs[name]) for name, tensor in tensors.items()
        }
        save_file(full, folder / "model.safetensors")
        output = BertModel.from_pretrained(folder, backend=backend)(np.arange(40).reshape(2, 20))
        assert all(np.isfinite(state).all() for state in output.hidden_states)
        assert np.isfinite(output.pooler_output).all()
    name = "encoder.layer.0.attention.output.LayerNorm.weight"
    tensors[name][3] = 1.001e6
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelFormatError, match=rf"{name} holds 1001000.0 at \[3\]; .* between -1e\+06 and 1e\+06"):
        BertModel.from_pretrained(folder, backend=backend)
