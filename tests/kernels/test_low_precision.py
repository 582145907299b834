"""int16, int8 and int8_int16: the bits of the NumPy twin, sums that cannot overflow, hostile numbers, the error."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import json
import pickle
import tracemalloc
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minibert
from minibert import BertModel, BertTokenizer, SentenceTransformer
from minibert._utils.validation import FloatArray
from minibert.bert import low_precision, reference
from minibert.bert.low_precision import BLOCK, COMPUTE_TYPES, FORMATS, Format, QuantisedLinear
from minibert.bert.ops import Linear, Ops, RelativeBias
from minibert.cli import main
from minibert.kernels import make_ops, packing, processor
from minibert.kernels.libraries import LEVELS
from minibert.kernels.packing import PackedLinear
from minibert.kernels.processor import NR, Words, dot_for, is_faster, words_of
from tests.support import oracle
from tests.support.cases import OP_CASES, Arguments, OpCase, compute
from tests.support.marks import by_default, sampled
from tests.support.refusals import Refused, check_refused
from tests.support.text_data import english_texts, needs_data, udhr_lines

TYPES = tuple(FORMATS)  # of which each makes all maps of the encoder
LOW = tuple(name for name in COMPUTE_TYPES if name != "float32")
CASES = [case for case in OP_CASES if case.op == "linear"]


def encoder_arguments(case: OpCase) -> Arguments:
    """Return the arguments of a case, whose weight is that of a map of the encoder."""
    arguments = case.arguments()
    return {**arguments, "linear": dataclasses.replace(arguments["linear"], paths=("encoder.dense",))}


def product(ops: Ops, x: FloatArray, weight: FloatArray) -> FloatArray:
    zeros = np.zeros(len(weight), np.float32)
    return ops.linear(x, ops.prepare(Linear(("encoder.dense",), weight, zeros)))


def normal(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- the product -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute_type", TYPES)
@pytest.mark.parametrize("case", by_default(CASES, *CASES[::3]), ids=str)
def test_a_product_has_the_bits_of_its_twin(case: OpCase, compute_type: str) -> None:
    arguments = encoder_arguments(case)
    before = [v.tobytes() for v in (arguments["x"], arguments["linear"].weight, arguments["linear"].bias)]
    twin = case.run(low_precision.make_ops(compute_type), arguments)
    for num_threads in (1, 3):
        found = case.run(make_ops(num_threads, compute_type=compute_type), arguments)
        assert [v.tobytes() for v in (arguments["x"], arguments["linear"].weight, arguments["linear"].bias)] == before
        assert found.dtype == np.float32
        assert found.flags.c_contiguous
        if arguments.get("activation") not in (None, "relu"):  # the other formulas differ by rounding
            np.testing.assert_allclose(found, twin, rtol=2e-6, atol=2e-6)
        else:
            np.testing.assert_array_equal(found, twin)


@pytest.mark.parametrize("compute_type", TYPES)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(compute_type: str) -> None:
    """Small batches are quantised by one thread, large ones by all."""
    x, weight = normal(400, 384), normal(100, 384, seed=1)
    expected = product(make_ops(1, compute_type=compute_type), x, weight)
    for num_threads in (1, 2, 5, 8):
        ops = make_ops(num_threads, compute_type=compute_type)
        for rows in (slice(0, 1), slice(0, 7), slice(100, 122), slice(33, 333), slice(0, 400)):
            np.testing.assert_array_equal(product(ops, x[rows], weight), expected[rows])


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("compute_type", TYPES)
def test_x_may_have_another_dtype_or_order(compute_type: str, dtype: type[np.floating]) -> None:
    x, weight, ops = normal(9, 70).astype(dtype), normal(5, 70, seed=1), make_ops(1, compute_type=compute_type)
    expected = product(ops, x.astype(np.float32), weight)
    np.testing.assert_array_equal(product(ops, np.asfortranarray(x), weight), expected)
    np.testing.assert_array_equal(product(ops, np.repeat(x, 2, axis=1)[:, ::2], weight), expected)


@pytest.mark.parametrize("compute_type", TYPES)
def test_maps_outside_of_the_encoder_are_those_of_float32(compute_type: str) -> None:
    dense, x = Linear(("pooler.dense",), normal(40, 40), normal(40)), normal(7, 40)
    ops, floats = make_ops(1, compute_type=compute_type), make_ops(1)
    assert getattr(ops.prepare(dense), "format", dense) is None
    np.testing.assert_array_equal(ops.linear(x, ops.prepare(dense)), floats.linear(x, floats.prepare(dense)))


# --- attention -------------------------------------------------------------------------------------------------------

ATTENTION_CASES = [case for case in OP_CASES if case.op == "attention"]


def assert_attention_has_the_bits_of_its_twin(arguments: Arguments, *more_threads: int) -> list[Any]:
    """Compare all compute types of low precision, by one and more threads, and return what one gives."""
    results = []
    for compute_type in LOW:
        with np.errstate(all="ignore"):
            twin = compute(low_precision.make_ops(compute_type), "attention", **arguments)
        found = [compute(make_ops(n, compute_type=compute_type), "attention", **arguments) for n in (1, *more_threads)]
        for one in found:
            for array, expected in zip(oracle.arrays(one), oracle.arrays(twin), strict=True):
                np.testing.assert_array_equal(array, expected)
        results.append(found[0])
    return results


def self_attention(query: FloatArray, key: FloatArray, value: FloatArray) -> Arguments:
    cu_seqlens = np.array([0, len(query)], np.int32)
    return {"query": query, "key": key, "value": value, "cu_seqlens": cu_seqlens, "num_heads": 1}


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=str)
def test_attention_has_the_bits_of_its_twin(case: OpCase) -> None:
    arguments = case.arguments()
    exact, size = compute(oracle.OPS, "attention", **arguments), np.abs(arguments["value"]).max(initial=0)
    results = assert_attention_has_the_bits_of_its_twin(arguments, 3)
    errors = (1e-3, 3e-3, 4e-3), (1e-3, 3e-3, 4e-3), (2e-2, 0.2, 0.2)
    for found, (of_scores, of_probs, of_context) in zip(results, errors, strict=True):
        for array, expected, error in ((found.scores, exact.scores, of_scores), (found.probs, exact.probs, of_probs)):
            for one, wanted in zip(array or (), expected or (), strict=True):
                assert np.abs(one - wanted).max(initial=0) <= error * np.abs(wanted).max(initial=0)
        assert np.abs(found.context - exact.context).max(initial=0) <= of_context * size


@pytest.mark.parametrize(
    ("S", "D"),
    [
        *((101, 32), (51, 64), (64, 64), (65, 50), (26, 129), (193, 17), (1100, 1), (2, 1700)),
        pytest.param(3300, 1, marks=pytest.mark.slow),
    ],
)
def test_attention_of_large_heads_has_the_bits_of_its_twin(S: int, D: int) -> None:
    """AMX multiplies these, in steps of 16 queries and of 64 features or tokens."""
    query, key, value = normal(3, S, 2 * D)
    arguments = self_attention(query, key, value) | {"num_heads": 2}
    assert_attention_has_the_bits_of_its_twin(arguments, 2)


@pytest.mark.parametrize(
    ("which", "bad", "S"),
    sampled(itertools.product(range(3), (np.nan, -np.nan, np.inf, -np.inf), (1, 15, 16, 17, 35, 410)), 3),
)
def test_attention_does_not_hide_numbers_that_are_not_finite(which: int, bad: float, S: int) -> None:
    for place in (0, S - 1):
        arrays = normal(3, S, 8, seed=S)
        arrays[which, place, 3] = bad
        rows, columns = (place if which == 0 else slice(None)), (3 if which == 2 else slice(None))
        is_bad = np.zeros((S, 8), bool)
        is_bad[rows, columns] = True
        for found in assert_attention_has_the_bits_of_its_twin(self_attention(*arrays)):
            np.testing.assert_array_equal(np.isnan(found.context), is_bad)


SIZES = (0.0, 1e-45, 1e-31, 1e-29, 1e-20, 1e-10, 1e9, 1e15, 1e18, 3e38)


@pytest.mark.parametrize(("S", "which", "size"), sampled(itertools.product((40, 140), range(3), SIZES), 3))
def test_attention_of_numbers_of_any_size_has_the_bits_of_the_twin(S: int, which: int, size: float) -> None:
    arrays = np.clip(normal(3, S, 24), -1, 1)
    arrays[which] *= np.float32(size)
    for found in assert_attention_has_the_bits_of_its_twin(self_attention(*arrays)):
        assert np.isfinite(found.context).all() or size > 1e36


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("S", "D"),
    [*((1, 1), (9, 2), (700, 128), (40, 1000), (2, 140_000)), pytest.param(2000, 32, marks=pytest.mark.slow)],
)
def test_the_largest_sums_of_attention_do_not_overflow(S: int, D: int, sign: int) -> None:
    """Each product is the largest: all queries and keys are equal, and so are all values."""
    query, value = np.ones((S, D), np.float32), np.full((S, D), sign, np.float32)
    for key in (query, -query):
        for found in assert_attention_has_the_bits_of_its_twin(self_attention(query, key, value)):
            np.testing.assert_allclose(found.context, value, rtol=3e-3)
    assert low_precision.most_of_products(D, 32767) ** 2 * D < 2**31


@pytest.mark.parametrize("name", [name for name, level in LEVELS.items() if "int8" in level.compute_types])
def test_int8_multiplies_four_bytes_at_once_where_a_processor_can(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise queries and keys of int8 would take as long as those of int16, with the same bits."""
    monkeypatch.setattr("minibert.kernels.processor.LEVEL", LEVELS[name])
    monkeypatch.setattr(processor, "words_of", lambda form: Words(FORMATS[form], dot_for(FORMATS[form], LEVELS[name])))
    can = name in ("x86-64-amx", "x86-64-vnni", "x86-64-avxvnni", "arm64-dotprod")
    for in_tiles in (True, False):
        keys, values = processor.head_words("int8", in_tiles)
        assert (keys.dot.x_bytes, values.dot.x_bytes) == (1 if can else 2, 2)
        assert keys.dot.in_tiles == values.dot.in_tiles == (in_tiles and name == "x86-64-amx")


@pytest.mark.parametrize("S", [3, 512, 1900, pytest.param(3956, marks=pytest.mark.slow)])
def test_equal_probs_give_the_mean(S: int) -> None:
    query, value = np.zeros((S, 2), np.float32), normal(S, 2)
    value[:, 1] = 1
    for found in assert_attention_has_the_bits_of_its_twin(self_attention(query, query, value)):
        np.testing.assert_allclose(found.context, np.broadcast_to(value.mean(axis=0), (S, 2)), atol=3e-4)


def test_nan_of_any_bits_in_a_bias_is_nan_in_the_context() -> None:
    query, key, value = normal(3, 20, 8)
    for bits in (0x7FC00000, 0x7FC00001, 0x7F800001, 0xFFC000FF):
        table = np.zeros((1, 39), np.float32)
        table.view(np.uint32)[0, 21] = bits  # of the second token after each query
        bias = RelativeBias(table, np.arange(20, dtype=np.int32))
        for found in assert_attention_has_the_bits_of_its_twin({**self_attention(query, key, value), "bias": bias}):
            assert np.isnan(found.context[:18]).all()
            assert np.isfinite(found.context[18:]).all()


def test_the_sum_of_a_row_of_probs_times_the_largest_value_fits_into_32_bits() -> None:
    """In LONGEST / 16 additions, a lane of the sum of exponentials loses less than 2^-10 of it."""
    most = low_precision.PROB_TOTAL * (1 + 2.0**-10) + low_precision.LONGEST / 2
    assert most * low_precision.VALUE_MOST < 2**31
    assert most < 2**24  # so the sum of the integers is exact in float32
    x = np.zeros((low_precision.LONGEST + 1, 1), np.float32)
    with pytest.raises(ValueError, match="131,073 tokens"):
        compute(make_ops(1, compute_type="int16"), "attention", **self_attention(x, x, x))


# --- extremes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute_type", TYPES)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_row_with_a_number_that_is_not_finite_is_nan_and_no_other_row(bad: float, compute_type: str) -> None:
    x, weight = normal(40, 200), normal(35, 200, seed=1)
    hostile = x.copy()
    hostile[3, 0], hostile[17, 199], hostile[39, 127] = bad, bad, bad
    for ops in (make_ops(2, compute_type=compute_type), low_precision.make_ops(compute_type)):
        expected, found = product(ops, x, weight), product(ops, hostile, weight)
        is_bad = np.isin(np.arange(40), (3, 17, 39))
        assert np.isnan(found[is_bad]).all()
        np.testing.assert_array_equal(found[~is_bad], expected[~is_bad])


@pytest.mark.parametrize("size", [0.0, -0.0, 1e-45, 1e-38, 1e-31, 1e-29, 1e-20, 1e20, 1e36, 3.4e38])
@pytest.mark.parametrize("compute_type", TYPES)
def test_x_and_weights_of_any_size_have_the_bits_of_the_twin(size: float, compute_type: str) -> None:
    ops, twin = make_ops(1, compute_type=compute_type), low_precision.make_ops(compute_type)
    x, weight = np.clip(normal(9, 150), -1, 1), np.clip(normal(35, 150, seed=1), -1, 1)
    with np.errstate(all="ignore"):
        for a, b in ((x * np.float32(size), weight), (x, weight * np.float32(size))):
            np.testing.assert_array_equal(product(ops, a, b), product(twin, a, b))
            assert np.isfinite(product(ops, a, b)).all() or size > 1e36


@pytest.mark.parametrize("K", [128, 3072])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("compute_type", TYPES)
def test_the_largest_sums_do_not_overflow(compute_type: str, sign: int, K: int) -> None:
    """After the Hadamard matrix, one large feature of a block has the same size in all: each product is the largest."""
    x, weight = np.zeros((3, K), np.float32), np.zeros((NR + 1, K), np.float32)
    x[:, ::BLOCK], weight[:, ::BLOCK] = sign, 1
    form = FORMATS[compute_type]
    sums = np.abs(low_precision.quantise(x, form, form.x_most, form.total)[0].astype(np.int64)).sum(axis=2)
    assert (sums == form.x_most * form.total).all()
    found = product(make_ops(1, compute_type=compute_type), x, weight)
    np.testing.assert_array_equal(found, product(low_precision.make_ops(compute_type), x, weight))
    np.testing.assert_allclose(found, sign * K / BLOCK, rtol=1e-5)


@pytest.mark.parametrize("compute_type", TYPES)
def test_the_whole_numbers_of_x_have_a_limited_sum(compute_type: str) -> None:
    form, generator = FORMATS[compute_type], np.random.default_rng(0)
    x = generator.standard_normal((4000, BLOCK)) ** generator.integers(1, 9, (4000, 1))  # from flat to few large ones
    x[:2000] = np.sign(x[:2000]) * np.abs(x[:2000]) ** 0.1
    whole, _ = low_precision.quantise(x.astype(np.float32), form, form.x_most, form.total)
    sizes = np.abs(whole.astype(np.int64))
    assert sizes.max() <= form.x_most
    assert sizes.sum(axis=2).max() * form.weight_most < 2**31
    if form.total < form.group:
        assert sizes.sum(axis=2).max() > form.x_most * form.total, "rounding adds to the largest sums"


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_no_sum_of_a_group_overflows(form: Format) -> None:
    # Rounding adds at most 1/2 to each number, and the sum of the sizes in float32 is off by less than 2^-18 of it.
    largest_x = form.total * form.x_most * (1 + 2.0**-18) + form.group / 2
    if form.x_most < 128:
        largest_x = 255 * form.group  # some processors multiply x + 128 instead of x, which must fit into 8 bits
    assert largest_x * form.weight_most < 2**31
    assert set(form.negated) <= set(range(BLOCK // 16))


# --- the parts of the twin -------------------------------------------------------------------------------------------


def test_the_matrix_is_the_hadamard_matrix() -> None:
    matrix = np.array([[(-1) ** (i & j).bit_count() for j in range(BLOCK)] for i in range(BLOCK)], np.float32)
    eye = np.eye(BLOCK, dtype=np.float32)
    np.testing.assert_array_equal(low_precision.turn(eye, FORMATS["int8"].distances), matrix)
    np.testing.assert_array_equal(matrix @ matrix, BLOCK * eye)
    smaller = low_precision.turn(eye, FORMATS["int16"].distances)
    np.testing.assert_array_equal(smaller, np.kron(matrix[:8, :8], np.eye(16)))
    assert sorted(np.abs(matrix @ FORMATS["int8"].signs))[-5:] == [0, 64, 64, 64, 64]  # not one sum of 128


@pytest.mark.parametrize("compute_type", TYPES)
def test_whole_numbers_and_scales_are_within_half_a_step(compute_type: str) -> None:
    form, values = FORMATS[compute_type], normal(70, 300)
    whole, scales = low_precision.quantise(values, form, form.weight_most, form.group)
    assert np.abs(whole.astype(int)).max() == form.weight_most
    filled_up = np.zeros((70, 384), np.float32)
    filled_up[:, :300] = values
    filled_up[:, np.isin(np.arange(384) // 16 % 8, form.negated)] *= -1
    turned = low_precision.turn(filled_up, form.distances).reshape(whole.shape)
    assert (np.abs(whole * scales[:, :, None] - turned) <= scales[:, :, None] * np.float32(0.501)).all()


def test_fma_rounds_once() -> None:
    generator = np.random.default_rng(0)
    a, b, c = (generator.standard_normal(3000).astype(np.float32) for _ in range(3))
    c[::3] = (-(a * b))[::3]  # cancellation
    c[1::3] *= np.float32(2.0**20)
    c[2::6] = (a * b)[2::6] * np.float32(2.0**25)
    found = low_precision.fma(a, b, c)
    for x, y, z, result in zip(a, b, c, found, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        near = [result, np.nextafter(result, np.float32(-np.inf)), np.nextafter(result, np.float32(np.inf))]
        errors = [abs(Fraction(float(number)) - exact) for number in near]
        assert errors[0] == min(errors)


@pytest.mark.parametrize("name", [*LEVELS])
def test_the_types_that_are_faster_than_float32_are_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {key: Words(form, dot_for(form, LEVELS[name])) for key, form in FORMATS.items()}
    monkeypatch.setattr("minibert.kernels.processor.words_of", made.__getitem__)
    faster = {"arm64": ["float32"], "arm64-dotprod": ["float32", "int8"]}.get(name, list(COMPUTE_TYPES))
    assert [key for key in COMPUTE_TYPES if is_faster(key)] == faster


@pytest.mark.parametrize("compute_type", TYPES)
def test_the_bytes_of_the_numbers_are_planes_for_amx(compute_type: str) -> None:
    """Products of bytes, as the instructions of AMX take them from the lines, give the sums of whole numbers."""
    form = FORMATS[compute_type]
    words = Words(form, dot_for(form, LEVELS["x86-64-amx"]))
    groups, planes, depth = 3, words.dot.w_bytes, form.group
    generator = np.random.default_rng(0)
    whole = generator.integers(-form.weight_most, form.weight_most + 1, (NR, groups, depth), f"i{planes}")
    lines = packing._lines_of(whole, words)
    assert lines.shape == (groups, words.steps, NR, 4)
    again = packing._whole_numbers(lines[None], words)
    np.testing.assert_array_equal(again.reshape(NR, groups, depth), whole)
    x = generator.integers(-form.x_most // 16, form.x_most // 16, (5, depth), f"i{planes}")
    for g in range(groups):
        total = np.zeros((5, NR), np.int64)
        for i, j in np.ndindex(planes, planes):  # the byte of x, and that of the weight
            of_x = x.view(np.int8 if i == planes - 1 else np.uint8)[:, i::planes]
            of_weight = lines[g, j * depth // 4 : (j + 1) * depth // 4].transpose(0, 2, 1).reshape(depth, NR)
            of_weight = of_weight.view(np.int8) if j == planes - 1 else of_weight
            total += 256 ** (i + j) * (of_x.astype(np.int64) @ of_weight.astype(np.int64))
        np.testing.assert_array_equal(total, x.astype(np.int64) @ whole[:, g].T.astype(np.int64))


@pytest.mark.parametrize("compute_type", TYPES)
def test_a_packed_weight_gives_back_its_numbers_and_survives_pickling(compute_type: str) -> None:
    dense = Linear(("encoder.dense",), normal(71, 300), normal(71))
    packed = make_ops(1, compute_type=compute_type).prepare(dense)
    twin = low_precision.make_ops(compute_type).prepare(dense)
    assert isinstance(packed, PackedLinear)
    assert packed.format is not None
    assert isinstance(twin, QuantisedLinear)
    again = pickle.loads(pickle.dumps(packed))
    for weight in (packed.weight, again.weight):
        np.testing.assert_array_equal(weight, twin.weight)
    assert again.panels.tobytes() == packed.panels.tobytes()
    assert (packed.paths, packed.shape) == (dense.paths, dense.shape)
    np.testing.assert_allclose(packed.weight, dense.weight, atol=2e-3 if compute_type == "int16" else 0.06)
    assert not packed.panels.flags.writeable


@pytest.mark.parametrize("compute_type", COMPUTE_TYPES)
def test_a_bias_may_be_a_part_of_another_array(compute_type: str) -> None:
    weight, bias, x = normal(64, 64), normal(128, seed=1), normal(3, 64, seed=2)
    ops = make_ops(1, compute_type=compute_type)
    apart, copied = (ops.prepare(Linear(("encoder.dense",), weight, part)) for part in (bias[::-2], bias[::-2].copy()))
    np.testing.assert_array_equal(ops.linear(x, apart), ops.linear(x, copied))


@pytest.mark.parametrize(("compute_type", "part"), [("int16", 0.51), ("int8", 0.30)])
def test_packed_weights_need_little_memory(compute_type: str, part: float) -> None:
    if words_of(compute_type).dot.w_bytes > (2 if compute_type == "int16" else 1):
        pytest.skip("this processor needs wider words")
    dense = Linear(("encoder.dense",), np.zeros((768, 768), np.float32), np.zeros(768, np.float32))
    packed = make_ops(1, compute_type=compute_type).prepare(dense)
    assert isinstance(packed, PackedLinear)
    assert packed.format is not None
    assert packed.panels.nbytes <= part * dense.weight.nbytes


@pytest.mark.parametrize("compute_type", TYPES)
def test_a_weight_is_quantised_in_little_memory(compute_type: str) -> None:
    """While a model is loaded, there is one weight in float32, and no copy of it."""
    dense = Linear(("encoder.dense",), np.ones((2048, 1024), np.float32), np.zeros(2048, np.float32))
    form = FORMATS[compute_type]
    tracemalloc.start()
    try:
        kept = low_precision.quantise_linear(dense, form)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - kept.whole.nbytes - kept.scales.nbytes < dense.weight.nbytes / 4


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(minilm_folder: Path) -> dict[str, BertModel]:
    return {name: BertModel.from_pretrained(minilm_folder, compute_type=name) for name in COMPUTE_TYPES}


def test_a_model_says_its_compute_type(models: dict[str, BertModel]) -> None:
    for name, model in models.items():
        assert model.compute_type == name
        assert repr(model).endswith(f", compute_type='{name}')") == (name != "float32")


def test_weights_of_another_compute_type_or_backend_are_refused(
    models: dict[str, BertModel], minilm_folder: Path
) -> None:
    weights = {name: model.weights for name, model in models.items()}
    numpy = BertModel.from_pretrained(minilm_folder, backend="numpy")
    for name, model in models.items():
        assert BertModel(model.weights, model.ops).compute_type == name
        assert BertModel(model.weights, reference.OPS).num_threads == 1  # reads the rounded weights
        for other in {*models} - {name}:
            for ops in (model.ops, *([] if name == "float32" else [low_precision.make_ops(name)])):
                with pytest.raises(ValueError, match="other ops prepared"):
                    BertModel(weights[other], ops)
    with pytest.raises(ValueError, match="other ops prepared"):
        BertModel(numpy.weights, models["float32"].ops)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_int8_int16_multiplies_the_feed_forward_output_in_int8(num_threads: int) -> None:
    """Each product has the bits of the type that has only its format, and of NumPy, also one after the other."""
    both, x = make_ops(num_threads, compute_type="int8_int16"), normal(300, 256)
    twin = low_precision.make_ops("int8_int16")
    modules = ("attention.self.query", "attention.output.dense", "intermediate.dense", "output.dense")
    for rows in (3, 300):  # the first are quantised by one thread
        for module, name in zip(modules, ("int16", "int16", "int16", "int8"), strict=True):
            dense = Linear((f"encoder.layer.11.{module}",), normal(70, 256, seed=1), normal(70, seed=2))
            single = make_ops(1, compute_type=name)
            found = both.linear(x[:rows], both.prepare(dense))
            np.testing.assert_array_equal(found, single.linear(x[:rows], single.prepare(dense)))
            np.testing.assert_array_equal(found, twin.linear(x[:rows], twin.prepare(dense)))


@pytest.mark.parametrize("compute_type", LOW)
def test_a_text_has_the_same_bits_alone_in_a_batch_and_in_a_copy(
    models: dict[str, BertModel], compute_type: str, tokenizer: BertTokenizer
) -> None:
    model, texts = models[compute_type], english_texts()[:20]
    batch = model(**tokenizer(texts, padding=True, truncation=True)).last_hidden_state
    copied = pickle.loads(pickle.dumps(model))
    assert copied.compute_type == copy.deepcopy(model).compute_type == compute_type
    for i in (0, 7, 19):
        one = tokenizer([texts[i]], truncation=True)
        for each in (model, copied):
            alone = each(**one).last_hidden_state[0]
            np.testing.assert_array_equal(alone, batch[i][: len(alone)])


def test_where_the_compute_type_comes_from(small_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBERT_COMPUTE_TYPE", "int8")
    assert BertModel.from_pretrained(small_folder).compute_type == "int8"
    assert BertModel.from_pretrained(small_folder, compute_type="int16").compute_type == "int16"
    assert BertModel.from_pretrained(small_folder, compute_type="float32").compute_type == "float32"
    monkeypatch.setenv("MINIBERT_COMPUTE_TYPE", "")
    assert BertModel.from_pretrained(small_folder).compute_type == "float32"
    monkeypatch.setenv("MINIBERT_COMPUTE_TYPE", "int4")
    with pytest.raises(ValueError, match="MINIBERT_COMPUTE_TYPE"):
        BertModel.from_pretrained(small_folder)


def test_other_compute_types_are_refused(small_folder: Path) -> None:
    table: Refused = {("compute_type", ValueError): ("int4", "INT8", "float16", "", 8)}
    check_refused(partial(BertModel.from_pretrained, small_folder), {}, table)


@pytest.mark.parametrize("compute_type", LOW)
def test_numpy_computes_the_same_and_warns_that_it_is_slow(small_folder: Path, compute_type: str) -> None:
    with pytest.warns(RuntimeWarning, match="slower than 'float32' here.* its error is the same"):
        numpy_model = BertModel.from_pretrained(small_folder, backend="numpy", compute_type=compute_type)
    model = BertModel.from_pretrained(small_folder, compute_type=compute_type)
    assert numpy_model.compute_type == compute_type
    ids = np.arange(1, 61).reshape(4, 15)
    found, expected = model(ids).last_hidden_state, numpy_model(ids).last_hidden_state
    # A rounding error of an op can move a number to the next whole number.
    np.testing.assert_allclose(found, expected, atol=1e-3 if compute_type == "int16" else 3e-2)
    floats = BertModel.from_pretrained(small_folder)(ids).last_hidden_state
    assert np.square(found - expected).mean() < np.square(found - floats).mean()


@pytest.mark.parametrize("compute_type", LOW)
def test_rounded_weights_are_not_saved(small_folder: Path, tmp_path: Path, compute_type: str) -> None:
    model = BertModel.from_pretrained(small_folder, compute_type=compute_type)
    with pytest.raises(ValueError, match=r"rounded to int\w+; .* compute_type='float32'"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    ours, exact = (dict(each.named_parameters()) for each in (model, BertModel.from_pretrained(small_folder)))
    for name in ("encoder.layer.0.output.dense.weight", "embeddings.word_embeddings.weight"):
        error = np.abs(np.asarray(ours[name]) - np.asarray(exact[name])).max()
        assert 0 < error < 0.01 if name.startswith("encoder.") else error == 0


def test_a_slow_processor_is_told_once(small_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = words_of("int8")._replace(dot=words_of("int8").dot._replace(name=""))
    monkeypatch.setattr("minibert.kernels.processor.words_of", lambda name: plain)
    with pytest.warns(RuntimeWarning, match="this processor does not have the instructions") as caught:
        BertModel.from_pretrained(small_folder, compute_type="int8")
    assert len(caught) == 1


# --- real texts ------------------------------------------------------------------------------------------------------


def apart(found: Any, exact: Any) -> FloatArray:
    """Return 1 - cosine of unit vectors, from their difference, because the cosine would lose all digits."""
    return np.square(found.astype(np.float64) - exact).sum(axis=1) / 2


@functools.lru_cache(2)  # the vectors of float32 are compared with those of each other type
def encode(folder: Path, compute_type: str, texts: tuple[str, ...]) -> FloatArray:
    model = SentenceTransformer(str(folder), compute_type=compute_type)
    return model.encode(list(texts), normalize_embeddings=True, truncation="silent")


@pytest.mark.parametrize(("compute_type", "limit"), [("int16", 5e-7), ("int8_int16", 1e-4), ("int8", 4e-4)])
@pytest.mark.parametrize("count", [20, pytest.param(2500, marks=pytest.mark.slow)])
@needs_data
def test_sentence_vectors_of_real_texts(minilm_folder: Path, compute_type: str, limit: float, count: int) -> None:
    lines = udhr_lines()
    texts = tuple(lines[i] for i in np.random.default_rng(0).permutation(len(lines))[:count])
    error = apart(encode(minilm_folder, compute_type, texts), encode(minilm_folder, "float32", texts))
    assert error.mean() <= limit
    assert error.max() <= 10 * limit


@pytest.mark.parametrize(("compute_type", "limit"), [("int16", 1e-3), ("int8_int16", 2e-2), ("int8", 4e-2)])
def test_hidden_states_of_each_layer(
    models: dict[str, BertModel], compute_type: str, limit: float, tokenizer: BertTokenizer
) -> None:
    inputs = tokenizer(english_texts()[:12], padding=True, truncation=True)
    found, exact = (models[name](**inputs).hidden_states for name in (compute_type, "float32"))
    visible = np.array(inputs["attention_mask"]) == 1
    np.testing.assert_array_equal(found[0], exact[0])
    for state, wanted in zip(found[1:], exact[1:], strict=True):
        error = np.sqrt(np.mean(np.square(state - wanted)[visible]) / np.mean(np.square(wanted)[visible]))
        assert 0 < error <= limit


# --- traces, analyses, checks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute_type", LOW)
def test_traces_edits_and_analyses_have_the_bits_of_the_model(small_folder: Path, compute_type: str) -> None:
    model = BertModel.from_pretrained(small_folder, compute_type=compute_type)
    ids = np.arange(1, 31).reshape(2, 15)
    output = model(ids)
    trace = model.trace(ids)
    for i, state in enumerate(output.hidden_states):
        np.testing.assert_array_equal(trace[f"hidden_states.{i}"], state)
    last = model.config.num_hidden_layers
    edited = model.trace(ids, edit={f"encoder.layer.{last - 1}.attention.self": minibert.Edit.zero(heads=0)})

    def total(output: Any) -> float:
        return float(output.last_hidden_state.sum(dtype=np.float64))

    found = minibert.inside.ablate_heads(model, {"input_ids": ids}, total, layers=last - 1)
    assert found[0, 0] == total(edited.output) - total(output) != 0
    limit = 1e-2 if compute_type == "int16" else 0.2
    true = minibert.exact.forward(model, ids)
    assert 0 < np.abs(true["hidden_states.1"] - trace["hidden_states.1"]).max() < limit


@pytest.mark.parametrize("compute_type", LOW)
def test_rounded_weights_are_not_the_truth_of_a_check(small_folder: Path, compute_type: str) -> None:
    model = BertModel.from_pretrained(small_folder, compute_type=compute_type)
    ids = np.arange(1, 31).reshape(2, 15)
    dump = {"hidden_states.1": model(ids).hidden_states[1]}
    with pytest.raises(ValueError, match=r"compute_type='int\w+', so its weights are rounded"):
        minibert.parity.check(model, dump, {"input_ids": ids})
    report = minibert.parity.check(BertModel.from_pretrained(small_folder), dump, {"input_ids": ids}, diagnosis=False)
    assert report.verdict not in ("bits", "float32")


# --- the command line ------------------------------------------------------------------------------------------------


def test_every_loader_takes_a_compute_type(small_folder: Path, tmp_path: Path) -> None:
    assert minibert.load(small_folder, compute_type="int8").compute_type == "int8"
    with pytest.warns(UserWarning, match="it is not a sentence-embedding model"):
        assert SentenceTransformer(str(small_folder), compute_type="int16").compute_type == "int16"
    features = minibert.pipeline("feature-extraction", small_folder, compute_type="int8")
    assert features.compute_type == features.model.compute_type == "int8"
    with pytest.raises(ValueError, match="compute_type= is for a model that is loaded by name"):
        minibert.pipeline("feature-extraction", features.model, tokenizer=features.tokenizer, compute_type="int8")


def test_verbs_take_a_compute_type(small_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    vectors = {}
    for name in COMPUTE_TYPES:
        given = ["-m", str(small_folder), "--compute-type", name]
        assert main(["embed", "the cat", "-o", str(tmp_path / "v.npy"), *given]) == 0
        vectors[name] = np.load(tmp_path / "v.npy")
        assert main(["info", "--json", *given]) == 0
        printed = capsys.readouterr().out
        assert json.loads(printed[printed.index("{") :])["facts"]["compute type"] == name
    errors = [np.abs(vectors[name] - vectors["float32"]).max() for name in ("float32", "int16", "int8")]
    assert 0 == errors[0] < errors[1] < errors[2]
    assert len({vector.tobytes() for vector in vectors.values()}) == len(COMPUTE_TYPES)


def test_doctor_compares_a_compute_type_with_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--compute-type", "int8_int16", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["processor"]["compute_type"] == "int8_int16"
    assert set(report["processor"]["instructions"]) == set(TYPES)
    details = {check["name"]: check["detail"] for check in report["checks"]}
    assert details["linear, attention, int8_int16"] == "the same bits as NumPy"
    assert main(["doctor"]) == 0
    assert "computes   in float32, unless a program chooses; int16 by " in capsys.readouterr().out
