"""The logits of each head compared with transformers: their error against float64, and all output fields."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minibert
from tests.support.definition import rms
from tests.support.head_models import (
    CLASSES,
    POOLED,
    SIZES,
    inputs_of,
    logits_of,
    make_model,
    run_theirs,
    their_model,
    visible,
)
from tests.support.marks import by_default
from tests.support.report import REPORT
from tests.support.splade_tiny import REASON, splade_tiny
from tests.support.text_data import VARIABLE, udhr_lines

SHAPES: dict[str, dict[str, Any]] = {
    "small": {},
    "odd": {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 37,
            "type_vocab_size": 16, "vocab_size": 211},
    "gelu_new": {"hidden_size": 84, "num_attention_heads": 7, "intermediate_size": 205, "hidden_act": "gelu_new",
                 "layer_norm_eps": 1e-5},
    "relu": {"hidden_size": 65, "num_attention_heads": 1, "intermediate_size": 129, "hidden_act": "relu",
             "type_vocab_size": 1},
    "4 x 256": {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 1024,
                "vocab_size": 1009, "initializer_range": 0.05},
}  # fmt: skip


Errors = dict[str, dict[str, float]]
"""Field -> contender -> RMS error of the logits that are not masked."""


@pytest.fixture(scope="module")
def errors_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Errors]:
    """Return a function that measures the errors of a class, for a shape, against transformers in float64, once."""

    @functools.cache
    def errors_of(shape: str, name: str) -> Errors:
        fields = SHAPES[shape]
        folder = make_model(tmp_path_factory.mktemp("parity") / "model", name, **fields)
        sizes = {key: value for key, value in fields.items() if key in ("vocab_size", "type_vocab_size")}
        # A head that reads [CLS] gives few numbers, so its batch is larger. A row of multiple choice has three texts.
        rows = 54 if name == "BertForMultipleChoice" else 160 if name in POOLED else 40
        inputs = inputs_of(name, rows=rows // 2 if shape == "4 x 256" else rows, length=17, **sizes)
        exact = logits_of(run_theirs(their_model(folder, name, "eager").double(), inputs))
        found = {
            attention: logits_of(run_theirs(their_model(folder, name, attention), inputs))
            for attention in ("eager", "sdpa")
        }
        for backend in ("kernels", "numpy"):
            found[backend] = logits_of(getattr(minibert, name).from_pretrained(folder, backend=backend)(**inputs))
            for field, logits in found[backend].items():
                shown = visible(name, field, inputs["attention_mask"])
                assert logits.dtype == np.float32
                assert logits.shape == exact[field].shape
                assert not logits[~shown].any(), "masked tokens have zeros"
                assert np.abs(logits[shown]).max() > 0.1, "the logits are too small to say anything"
        errors: Errors = {}
        for field, wanted in exact.items():
            shown = visible(name, field, inputs["attention_mask"])
            errors[field] = {key: rms(logits[field][shown] - wanted[shown]) for key, logits in found.items()}
        return errors

    return errors_of


def ratio(errors: dict[str, float], backend: str) -> float:
    """Return the error of a backend, divided by the larger one of transformers."""
    return errors[backend] / max(errors["eager"], errors["sdpa"])


@pytest.mark.parametrize("shape", by_default(SHAPES, "small", "odd", "gelu_new", "relu"))
def test_the_error_is_at_most_that_of_transformers(errors_of: Callable[[str, str], Errors], shape: str) -> None:
    """With NumPy only over all heads: a BLAS rounds as transformers does, so one head may have either error."""
    errors = [(name, field, found) for name in CLASSES for field, found in errors_of(shape, name).items()]
    assert len(errors) == 9
    for name, field, found in errors:
        assert 0 < ratio(found, "kernels") <= 1, f"{name}, {field}: {found}"
    ratios = {backend: rms([ratio(found, backend) for *_, found in errors]) for backend in ("kernels", "numpy")}
    REPORT.append(f"all heads, {shape}: RMS error divided by transformers': {ratios}")
    assert ratios["numpy"] <= 1


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("given", ["positions", "embeds", "ids alone"])
def test_every_input_reaches_the_model(folder_of: Callable[[str], Path], name: str, given: str) -> None:
    model, theirs = getattr(minibert, name).from_pretrained(folder_of(name)), their_model(folder_of(name), name)
    inputs = inputs_of(name)
    generator = np.random.default_rng(1)
    if given == "positions":
        inputs["position_ids"] = generator.integers(SIZES["max_position_embeddings"], size=inputs["input_ids"].shape)
    elif given == "embeds":
        shape = (*inputs.pop("input_ids").shape, SIZES["hidden_size"])
        inputs["inputs_embeds"] = generator.standard_normal(shape).astype(np.float32)
    else:
        inputs = {"input_ids": inputs["input_ids"]}
    mask = inputs.get("attention_mask", np.ones(next(iter(inputs.values())).shape, dtype=np.int64))
    ours, expected = logits_of(model(**inputs)), logits_of(run_theirs(theirs, inputs))
    for field in expected:
        shown = visible(name, field, mask)
        np.testing.assert_allclose(ours[field][shown], expected[field][shown], rtol=0, atol=2e-5)


def test_one_row_of_positions_serves_all_choices(folder_of: Callable[[str], Path]) -> None:
    model = minibert.BertForMultipleChoice.from_pretrained(folder_of("BertForMultipleChoice"))
    inputs = inputs_of("BertForMultipleChoice")
    usual = model(**inputs).logits
    np.testing.assert_array_equal(model(**inputs, position_ids=np.arange(11)[None, None]).logits, usual)


@pytest.mark.parametrize("name", CLASSES)
def test_batches_without_tokens(folder_of: Callable[[str], Path], name: str) -> None:
    model = getattr(minibert, name).from_pretrained(folder_of(name))
    for rows in (0, 1):
        inputs = {key: value[:rows] * 0 for key, value in inputs_of(name).items()}
        for logits in logits_of(model(**inputs)).values():
            assert len(logits) == rows
            assert not logits.any()


# --- a real head of masked words, with old names of LayerNorm and a tied decoder --------------------------------------


def texts() -> list[str]:
    """Return 16 real texts of many languages if the test data exist, else made ones; each has a [MASK]."""
    lines = ["The cat sat on the mat.", "Paris is the capital of France.", "a"] * 6
    if os.environ.get(VARIABLE):
        found = udhr_lines()
        lines = [found[i * len(found) // 16] for i in range(16)]
    return [f"{line[: len(line) // 2]} [MASK] {line[len(line) // 2 :]}" for line in lines]


@pytest.mark.skipif(splade_tiny() is None, reason=REASON)
def test_the_logits_of_splade_tiny() -> None:
    folder: Any = splade_tiny()
    encoded = minibert.BertTokenizer.from_pretrained(folder)(
        texts(), padding=True, truncation=True, max_length=48, return_tensors="np"
    )
    inputs = {name: np.asarray(values) for name, values in encoded.items()}
    model = minibert.BertForMaskedLM.from_pretrained(folder)
    assert model.weights.head.tied
    assert model.weights.ignored == ()
    shown = inputs["attention_mask"].astype(bool)
    theirs = {kind: their_model(folder, "BertForMaskedLM", kind) for kind in ("sdpa", "eager")}
    others = [run_theirs(other, inputs).logits.numpy()[shown] for other in theirs.values()]
    exact = run_theirs(theirs["eager"].double(), inputs).logits.numpy()[shown]
    budget = max(rms(other - exact) for other in others)
    for backend in ("kernels", "numpy"):
        logits = minibert.BertForMaskedLM.from_pretrained(folder, backend=backend)(**inputs).logits
        error = rms(logits[shown] - exact)
        REPORT.append(f"splade-tiny, {backend}: RMS error of the logits {error:.1e}, transformers {budget:.1e}")
        assert 0 < error <= budget
        assert not logits[~shown].any()
        np.testing.assert_array_equal(logits[shown].argmax(axis=1), exact.argmax(axis=1))
