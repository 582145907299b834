"""A real masked-LM head: splade-tiny, with old names of LayerNorm and a tied decoder, on real texts."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from benchmarks.float64 import rms
from minibert import BertForMaskedLM, BertTokenizer
from tests.support.head_models import their_model
from tests.support.report import REPORT
from tests.support.splade_tiny import REASON, splade_tiny
from tests.support.text_data import VARIABLE, udhr_lines

FOLDER = splade_tiny()
pytestmark = pytest.mark.skipif(FOLDER is None, reason=REASON)


def texts() -> list[str]:
    """Return 48 real texts of many languages if the test data exist, else made ones; each has a [MASK]."""
    lines = ["The cat sat on the mat.", "Paris is the capital of France.", "a"] * 16
    if os.environ.get(VARIABLE):
        found = udhr_lines()
        lines = [found[i * len(found) // 48] for i in range(48)]
    return [f"{line[: len(line) // 2]} [MASK] {line[len(line) // 2 :]}" for line in lines]


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    encoded = BertTokenizer.from_pretrained(FOLDER)(
        texts(), padding=True, truncation=True, max_length=128, return_tensors="np"
    )
    return {name: np.asarray(encoded[name]) for name in ("input_ids", "attention_mask", "token_type_ids")}


def test_the_logits_beside_transformers(inputs: dict[str, np.ndarray]) -> None:
    inputs = {name: values[::3] for name, values in inputs.items()}
    model = BertForMaskedLM.from_pretrained(FOLDER)
    assert model.weights.head.predictions.tied
    assert model.weights.ignored == ()
    shown = inputs["attention_mask"].astype(bool)
    tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
    with torch.no_grad():
        exact = their_model(FOLDER, "BertForMaskedLM", "eager").double()(**tensors).logits.numpy()[shown]
        theirs = [
            their_model(FOLDER, "BertForMaskedLM", attention)(**tensors).logits.numpy()[shown]
            for attention in ("eager", "sdpa")
        ]
    budget = max(rms(other - exact) for other in theirs)
    for backend in ("kernels", "numpy"):
        logits = BertForMaskedLM.from_pretrained(FOLDER, backend=backend)(**inputs).logits
        error = rms(logits[shown] - exact)
        REPORT.append(f"splade-tiny, {backend}: RMS error of the logits {error:.1e}, transformers {budget:.1e}")
        assert 0 < error <= budget
        assert not logits[~shown].any()
        np.testing.assert_array_equal(logits[shown].argmax(axis=1), exact.argmax(axis=1))
