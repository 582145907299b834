"""The reference ops compared with their float64 definitions, and the activations compared with transformers'."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from minibert._utils.validation import FloatArray
from minibert.bert import reference
from minibert.bert.ops import AttentionInput, LayerNorm, Linear, Rotation, Window
from minibert.bert.reference import ACTIVATIONS
from tests.support import oracle
from tests.support.cases import OP_CASES, OpCase, activation_grid


@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_op_equals_its_definition(case: OpCase) -> None:
    arguments = case.arguments()
    result = case.run(reference.OPS, arguments)
    assert all(array.dtype == np.float32 for array in oracle.arrays(result))
    errors = oracle.rounding_errors(case.op, result, case.run(oracle.OPS, arguments), arguments)
    worst = max(errors, default=0.0)
    assert worst <= oracle.BUDGETS[case.op], f"{worst:.2f} units of rounding, budget {oracle.BUDGETS[case.op]}"


@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_op_in_float64_is_its_definition(case: OpCase) -> None:
    """Without rounding to float32 the formulas agree up to the error of erf, which is erf(4) for all x above 4."""
    arguments = {name: in_float64(value) for name, value in case.arguments().items()}
    found, exact = (case.run(ops, arguments) for ops in (reference.OPS, oracle.OPS))
    errors = oracle.rounding_errors(case.op, found, exact, arguments)
    tolerance = 1 - math.erf(4) if arguments.get("activation") == "gelu" else 1e-13
    assert max(errors, default=0.0) * oracle.EPSILON <= tolerance


def in_float64(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return value.astype(np.float64)
    if isinstance(value, Linear):
        return oracle.OPS.prepare(value)
    if isinstance(value, LayerNorm):
        return LayerNorm(value.path, value.weight.astype(np.float64), value.bias.astype(np.float64), value.eps)
    return value


@pytest.mark.parametrize("D", [8, 24, 80])
@pytest.mark.parametrize("rotated", [1.0, 0.5])
def test_rotation_and_window_equal_their_definitions(D: int, rotated: float) -> None:
    generator, cu_seqlens = np.random.default_rng(0), np.array([0, 9, 9, 10, 27], np.int32)
    query, key, value = generator.standard_normal((3, 27, 3 * D))
    columns = np.concatenate([np.arange(0, 18, 2), [5], np.arange(17) + (np.arange(17) > 4)]).astype(np.int32)
    rotation = Rotation(generator.standard_normal((40, int(rotated * D))), columns)
    for size in (0, 1, 6, 99):
        inputs = AttentionInput(query, key, value, cu_seqlens, 3, None, rotation, Window(size, columns))
        found, exact = (ops.attention(inputs, return_probs=True) for ops in (reference.OPS, oracle.OPS))
        for one, other in zip(oracle.arrays(found), oracle.arrays(exact), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_gate_equals_its_definition() -> None:
    generator = np.random.default_rng(0)
    linear = Linear(("some.dense",), generator.standard_normal((14, 5)), generator.standard_normal(14), gated=True)
    for activation in reference.ACTIVATION_FUNCTIONS:
        arguments = (generator.standard_normal((3, 5)), linear)
        found, exact = (ops.linear(*arguments, activation=activation) for ops in (reference.OPS, oracle.OPS))
        assert found.shape == (3, 7)
        np.testing.assert_allclose(found, exact, rtol=1e-8, atol=1e-8)


# --- erf -------------------------------------------------------------------------------------------------------------


def erf_grid() -> FloatArray:
    """Return values of every float32 scale and both signs, most of them where erf is curved."""
    tiny, huge = np.float32(np.finfo(np.float32).smallest_subnormal), np.float32(np.finfo(np.float32).max)
    edges = [tiny, 3 * tiny, np.finfo(np.float32).tiny, 3.9, 4.0, np.nextafter(np.float32(4), np.float32(5)), huge]
    positive = np.concatenate([np.linspace(0, 4.5, 100_001), np.geomspace(1e-45, 1e38, 20_001), edges])
    return np.concatenate([positive, -positive]).astype(np.float32)


def test_erf_is_exact_to_float32_rounding() -> None:
    x = erf_grid()
    ulps = oracle.measure_ulps(reference.erf(x), np.array([math.erf(value) for value in x.tolist()]))
    assert ulps.max() <= 0.53, f"{ulps.max():.3f} ulp at {x[ulps.argmax()]!r}"


def test_erf_in_float64_is_as_exact_as_documented() -> None:
    x = np.linspace(-4, 4, 100_001)
    exact = np.array([math.erf(value) for value in x.tolist()])
    np.testing.assert_allclose(reference.erf(x[1:-1]), exact[1:-1], rtol=1e-9, atol=0)
    np.testing.assert_array_equal(reference.erf(np.array([-1e6, -4.0, 4.0, 1e6])), [-1, -1, 1, 1])


def test_gelu_far_below_zero_is_zero() -> None:
    x = np.array([-6, -20, -1e3, -1e6])
    np.testing.assert_allclose(reference.gelu(x), 0, atol=1e-7)
    np.testing.assert_array_equal(reference.gelu(x.astype(np.float32)), 0)


def test_erf_is_odd_and_bounded_and_keeps_special_values() -> None:
    x = erf_grid()
    np.testing.assert_array_equal(reference.erf(-x), -reference.erf(x))
    assert np.abs(reference.erf(x)).max() == 1.0
    special = np.array([0.0, -0.0, math.inf, -math.inf, math.nan], dtype=np.float32)
    found = reference.erf(special)
    np.testing.assert_array_equal(found, np.clip(special, -1, 1))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(special))


def test_erf_keeps_shape_and_dtype() -> None:
    for shape in ((), (0,), (3, 0), (2, 3, 4)):
        for dtype in (np.float32, np.float64):
            result = reference.erf(np.ones(shape, dtype=dtype))
            assert (result.shape, result.dtype) == (shape, dtype)


# --- activations -----------------------------------------------------------------------------------------------------


def test_every_activation_of_the_config_has_its_formula() -> None:
    assert set(reference.ACTIVATION_FUNCTIONS) == {*ACTIVATIONS.values(), "sigmoid"}  # of a Dense module
    assert set(oracle.ACTIVATIONS) == set(reference.ACTIVATION_FUNCTIONS)


@pytest.mark.parametrize("name", reference.ACTIVATION_FUNCTIONS)
def test_activation_equals_its_formula(name: str) -> None:
    """The difference is at most two float32 steps at the size of x, which is also the result's size for large x."""
    x = activation_grid()
    result = reference.ACTIVATION_FUNCTIONS[name](x)
    size = np.abs(x) + np.float32(name == "sigmoid")  # sigmoid(0) is 1/2
    units = np.abs(result - oracle.ACTIVATIONS[name](x.astype(np.float64))) / np.spacing(size)
    assert result.dtype == np.float32
    assert units.max() <= 2.0, f"{units.max():.2f} at {x[units.argmax()]!r}"


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_equals_transformers(name: str) -> None:
    """The difference is at most 8 such steps; torch's vectorised erf alone differs from its formula by 4.5."""
    import torch
    from transformers.activations import ACT2FN

    x = activation_grid()
    with torch.no_grad():
        theirs = ACT2FN[name](torch.from_numpy(x)).numpy()
    ours = reference.ACTIVATION_FUNCTIONS[ACTIVATIONS[name]](x).astype(np.float64)
    units = np.abs(ours - theirs) / np.spacing(np.abs(x))
    assert units.max() <= 8.0, f"{units.max():.2f} at {x[units.argmax()]!r}"


# --- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1.0, 88.0, 1e4, 1e30])
def test_softmax_of_large_scores(size: float) -> None:
    scores = np.array([[[size, -size, 0.0], [size, size, size], [-size, -size, 0.0]]], dtype=np.float32)
    probs = reference.softmax(scores)
    np.testing.assert_allclose(probs.sum(axis=-1), 1.0, rtol=2 * oracle.EPSILON)
    np.testing.assert_allclose(probs[0, 1], 1 / 3, rtol=oracle.EPSILON)
    shifted = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(probs, shifted / shifted.sum(axis=-1, keepdims=True), rtol=1e-6, atol=1e-37)
