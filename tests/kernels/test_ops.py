"""The kernels compared with their twins in reference.py and the float64 definitions, and the rest of their contract."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minibert
from minibert._utils.validation import FloatArray
from minibert.bert import low_precision, reference
from minibert.bert.low_precision import COMPUTE_TYPES
from minibert.bert.ops import AttentionInput, LayerNorm, Linear, Queries, Rotation, Window
from minibert.kernels import compilation, make_ops, run_task, threads
from minibert.kernels import ops as kernel_ops
from minibert.kernels.buffers import Slabs
from minibert.kernels.packing import pack
from minibert.kernels.processor import NR, WIDTH
from tests.support import oracle
from tests.support.cases import OP_CASES, Arguments, OpCase, activation_grid, compute
from tests.support.outcomes import python


def arrays_in(arguments: Arguments) -> list[FloatArray]:
    """Return every array among an op's arguments."""
    parts = ((v.weight, v.bias) if isinstance(v, Linear | LayerNorm) else (v,) for v in arguments.values())
    return [array for part in parts for array in part if isinstance(array, np.ndarray)]


def filled(shape: Any, dtype: Any = float) -> np.ndarray:
    """Return what stands for new memory: NaN, also in the bytes of which arrays are cut."""
    return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 255, dtype)


# --- ops -------------------------------------------------------------------------------------------------------------


def test_arrays_that_are_not_contiguous() -> None:
    """A wrapper of an op may pass a slice; the result equals that of a copy."""
    generator = np.random.default_rng(0)
    wide, other = generator.standard_normal((2, 9, 96)).astype(np.float32)
    x, residual, bias = wide[:, 5:69], other[:, ::2][:, :32], wide[0, ::3]
    ops = make_ops(2)
    linear = Linear(("w",), generator.standard_normal((64, 32)).astype(np.float32).T, bias)
    found = ops.linear(x, ops.prepare(linear), residual=residual)
    np.testing.assert_allclose(found, reference.apply_linear(x, linear, residual=residual), rtol=1e-5, atol=1e-5)

    norm = LayerNorm("n", other[0, :64], other[1, :64], 1e-12)
    np.testing.assert_allclose(ops.layer_norm(x, norm), reference.layer_norm(x, norm), rtol=1e-5, atol=1e-5)

    cu_seqlens = np.array([0, 4, 9], dtype=np.int32)
    for query, key, value in ((x, other[:, :64].copy(), other[:, 32:]), (wide[::-1, :64], x, x), (wide[:, ::2],) * 3):
        inputs = AttentionInput(query, key, value, cu_seqlens, 4)
        found, expected = ops.attention(inputs).context, reference.attention(inputs).context
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_op_equals_its_twin_and_its_definition(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its inputs may be read-only, and it fills the whole result, which is memory of its own."""
    arguments, ops = case.arguments(), make_ops(2)
    given = arrays_in(arguments)
    before = [array.tobytes() for array in given]
    for array in given:
        array.flags.writeable = False
    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", filled)
        result = case.run(ops, arguments)
    assert [array.tobytes() for array in given] == before, "an input was changed"
    again = oracle.arrays(case.run(ops, arguments))

    exact, twin = case.run(oracle.OPS, arguments), case.run(reference.OPS, arguments)
    for array, expected in zip(oracle.arrays(result), oracle.arrays(twin), strict=True):
        assert array.dtype == np.float32
        assert array.shape == expected.shape
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in (*given, *again))
    assert_within_budget(case.op, result, twin, exact, arguments)


def assert_within_budget(op: str, result: object, twin: object, exact: object, arguments: dict[str, Any]) -> None:
    """Check that the result's error, in units of EPSILON times magnitude, is at most the budget or the twin's error."""
    errors = oracle.rounding_errors(op, result, exact, arguments)
    allowed = oracle.rounding_errors(op, twin, exact, arguments)
    for error, twins_error in zip(errors, allowed, strict=True):
        limit = max(twins_error, oracle.BUDGETS[op])
        assert error <= limit, f"{error:.2f} units of rounding, the twin's {twins_error:.2f}, allowed {limit:.2f}"


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("case", OP_CASES[::40], ids=str)
def test_arrays_of_another_dtype_or_order_are_converted(case: OpCase, dtype: type[np.floating]) -> None:
    """A kernel sees only the address of an array."""

    def change(value: Any, cast: Callable[[FloatArray], FloatArray], ints: type) -> Any:
        if isinstance(value, LayerNorm):
            return LayerNorm(value.path, cast(value.weight), cast(value.bias), value.eps)
        if not isinstance(value, np.ndarray):
            return value
        return value.astype(ints) if value.dtype.kind == "i" else cast(value)

    def other(array: FloatArray) -> FloatArray:
        return np.asfortranarray(array.astype(dtype))

    def rounded(array: FloatArray) -> FloatArray:
        return array.astype(dtype).astype(np.float32)

    ops = make_ops(1)
    arguments = case.prepare(ops, case.arguments())
    found = compute(ops, case.op, **{name: change(value, other, np.int64) for name, value in arguments.items()})
    expected = compute(ops, case.op, **{name: change(value, rounded, np.int32) for name, value in arguments.items()})
    for array, wanted in zip(oracle.arrays(found), oracle.arrays(expected), strict=True):
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("name", reference.ACTIVATION_FUNCTIONS)
def test_every_activation_at_values_of_any_size(name: str) -> None:
    """A product with 1 passes the values unchanged to the epilogue; the budget is that of the op at magnitude |x|."""
    x = activation_grid()
    one = Linear(("w",), np.ones((1, 1), dtype=np.float32), np.zeros(1, dtype=np.float32))
    ops = make_ops(1)
    result = ops.linear(x[:, None], ops.prepare(one), activation=name)[:, 0]
    errors = np.abs(result - oracle.ACTIVATIONS[name](x.astype(np.float64)))
    magnitude = np.abs(x) + (name == "sigmoid")  # sigmoid(0) is 1/2
    units = errors / np.maximum(oracle.EPSILON * magnitude, np.finfo(np.float32).tiny)
    assert units.max() <= oracle.BUDGETS["linear"], f"{units.max():.2f} at {x[units.argmax()]!r}"


# --- threads and processes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", oracle.BUDGETS)
def test_results_do_not_depend_on_the_number_of_threads(op: str) -> None:
    one, others = make_ops(1), [make_ops(n) for n in (2, 3, 5)]
    for case in OP_CASES:
        if case.op == op:
            arguments = case.arguments()
            expected = oracle.arrays(case.run(one, arguments))
            for ops in others:
                for array, wanted in zip(oracle.arrays(case.run(ops, arguments)), expected, strict=True):
                    assert array.tobytes() == wanted.tobytes(), case.label


@pytest.mark.parametrize("window", [None, 0, 20, 200])
@pytest.mark.parametrize("compute_type", COMPUTE_TYPES)
def test_a_row_of_attention_does_not_depend_on_the_other_queries_nor_on_the_batch(
    compute_type: str, window: int | None
) -> None:
    generator, lengths, A, D = np.random.default_rng(0), (150, 0, 40, 333), 2, 32
    T, cu_seqlens = sum(lengths), np.cumsum([0, *lengths]).astype(np.int32)
    query, key, value = generator.standard_normal((3, T, A * D)).astype(np.float32)
    columns = np.concatenate([np.sort(generator.permutation(340)[:n]) for n in lengths]).astype(np.int32)
    angles = generator.random((340, D // 2))
    rotation = Rotation(np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32), columns)
    options = {"rotation": rotation, "window": None if window is None else Window(window, columns)}
    whole = AttentionInput(query, key, value, cu_seqlens, A, **options)
    ops = make_ops(1, compute_type=compute_type)
    expected, scores, probs = ops.attention(whole, return_scores=True, return_probs=True)
    assert scores is not None
    assert probs is not None
    for b, (start, end) in enumerate(pairwise(cu_seqlens)):
        seen = np.abs(np.subtract.outer(columns[start:end], columns[start:end])) <= (999 if window is None else window)
        for array, hidden in ((scores[b], -np.inf), (probs[b], 0)):
            assert (array[:, ~seen] == hidden).all()
            assert np.isfinite(array[:, seen]).all()
        moved = {"rotation": rotation._replace(positions=columns[start:end])}
        moved["window"] = options["window"] and Window(window, columns[start:end])
        own = (x[start:end] for x in (query, key, value))
        alone = AttentionInput(*own, np.array([0, end - start], np.int32), A, **moved)
        assert ops.attention(alone).context.tobytes() == expected[start:end].tobytes()
    for part in (0.01, 0.2, 0.9):
        tokens = np.flatnonzero(generator.random(T) < part)
        queries = Queries(tokens, np.searchsorted(tokens, cu_seqlens))
        for num_threads in (2, 3, 8):
            some = whole._replace(query=query[tokens], queries=queries)
            found = make_ops(num_threads, compute_type=compute_type).attention(some, return_probs=True)
            assert found.context.tobytes() == expected[tokens].tobytes()
            for b, array in enumerate(found.probs or ()):
                first, last = queries.cu_seqlens[b : b + 2]
                assert array.tobytes() == probs[b][:, tokens[first:last] - cu_seqlens[b]].tobytes()


def test_results_do_not_depend_on_the_float_mode_of_the_thread() -> None:
    """torch.set_flush_denormal makes denormal results 0; minibert computes them, and leaves the mode as it was."""
    import torch

    ops, tiny = make_ops(2), np.full((64, 64), 1e-21, dtype=np.float32)
    linear = ops.prepare(Linear(("w",), tiny, np.zeros(64, dtype=np.float32)))
    expected = ops.linear(tiny, linear)
    assert 0 < expected.max() < np.finfo(np.float32).tiny
    if not torch.set_flush_denormal(True):
        pytest.skip("torch cannot change the mode of this processor")
    try:
        found = make_ops(2).linear(tiny, linear)
        flushed = (torch.tensor([1e-23]) * torch.tensor([1e-17])).item() == 0
    finally:
        torch.set_flush_denormal(False)
    assert flushed, "the mode of the thread has changed"
    assert found.tobytes() == expected.tobytes()  # as bytes, because in that mode a denormal number equals 0


# --- memory ----------------------------------------------------------------------------------------------------------


FENCED = """
import ctypes, dataclasses, mmap, sys
import numpy as np
from minibert.kernels import make_ops, threads
from minibert.kernels.buffers import Buffers
from minibert.kernels.packing import PackedLinear
from minibert.bert.low_precision import COMPUTE_TYPES
from minibert.bert.ops import LayerNorm
from tests.support.cases import OP_CASES, compute

protect = ctypes.CDLL(None).mprotect

def fence(value, at_end):
    # A copy between two protected pages: it begins where one ends, or ends where the other begins.
    if isinstance(value, PackedLinear):
        return dataclasses.replace(value, panels=fence(value.panels, at_end), bias=fence(value.bias, at_end))
    if isinstance(value, LayerNorm):
        return dataclasses.replace(value, weight=fence(value.weight, at_end), bias=fence(value.bias, at_end))
    if isinstance(value, tuple):  # queries, rotation, window
        return type(value)(*(fence(one, at_end) for one in value))
    if not isinstance(value, np.ndarray) or not value.size:
        return value
    page = mmap.PAGESIZE
    size = -(-value.nbytes // page) * page
    memory = mmap.mmap(-1, size + 2 * page)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for place in (first, first + page + size):
        if protect(ctypes.c_void_p(place), ctypes.c_size_t(page), 0):
            raise OSError("mprotect")
    start = page + (size - value.nbytes if at_end else 0)
    fenced = np.frombuffer(memory, value.dtype, value.size, start).reshape(value.shape)
    fenced[...] = value
    return fenced

count, one_in = 0, int(sys.argv[1])
for number, compute_type in enumerate(COMPUTE_TYPES):
    for place, case in enumerate(OP_CASES):
        if case.op not in ("linear", "attention"):
            if compute_type != "float32":  # the same kernels
                continue
        elif (place + number) % one_in:
            continue
        arguments = case.arguments()
        if case.op == "linear":
            arguments["linear"] = dataclasses.replace(arguments["linear"], paths=("encoder.output.dense",))
        for at_end in (False, True):
            Buffers.empty = lambda _, *shape: fence(np.empty(shape, np.float32), at_end)
            threads.aligned_empty = lambda size: fence(np.empty(size, np.float32), at_end)
            ops = make_ops(1, compute_type=compute_type)
            fenced = {name: fence(value, at_end) for name, value in case.prepare(ops, arguments).items()}
            print(compute_type, case, at_end, file=sys.stderr)  # the last line names the case that crashed
            compute(ops, case.op, **fenced)
            count += 1
print(count)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages in the way of Linux")
@pytest.mark.parametrize("one_in", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_kernels_touch_nothing_before_or_behind_their_arrays(one_in: int) -> None:
    """They must not even read there: no other test detects a number that is read and then ignored.

    By default each case runs in one of the four compute types.
    """
    done = python("-c", FENCED, str(one_in))
    assert done.returncode == 0, done.stderr[-300:]
    typed = sum(case.op in ("linear", "attention") for case in OP_CASES)
    assert int(done.stdout) == 2 * (len(OP_CASES) - typed + len(COMPUTE_TYPES) // one_in * typed)


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("N", [NR, 3 * NR])
@pytest.mark.parametrize("M", [1, 22, 400])
def test_slices_of_k_have_the_bits_of_one_slice(
    M: int, N: int, has_residual: bool, activation: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    x, weight, bias, residual = (
        generator.standard_normal(shape).astype(np.float32) for shape in ((M, 3072), (N, 3072), N, (M, N))
    )
    ops = make_ops(2)
    prepared, added = ops.prepare(Linear(("some.dense",), weight, bias)), residual if has_residual else None
    results = []
    for few_rows, size in ((0, 1024), (400, 1024), (0, 4096)):  # the last one is one slice
        monkeypatch.setattr("minibert.kernels.ops.FEW_ROWS", few_rows)
        monkeypatch.setattr("minibert.kernels.ops.SLICE", size)
        kernel_ops.linear_chunks.cache_clear()
        results.append(ops.linear(x, prepared, residual=added, activation=activation))
    kernel_ops.linear_chunks.cache_clear()
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_array_equal(results[1], results[2])


@pytest.mark.parametrize("compute_type", ["float32", "int8"])
def test_an_interpreter_whose_arrays_cannot_be_read_by_kernels(
    compute_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    linear = Linear(("encoder.output.dense",), x[:, :40].T.copy() @ x, np.zeros(40, np.float32))

    def compute() -> list[FloatArray]:
        ops = make_ops(2, compute_type=compute_type)
        attention = ops.attention(AttentionInput(x, x, x, np.array([0, 9, 40], np.int32), 4), return_probs=True)
        return [ops.linear(x, ops.prepare(linear)), attention.context, *attention.probs]

    expected = compute()
    monkeypatch.setattr(threads, "_IN_OBJECTS", False)
    monkeypatch.setattr(threads, "_HANDLE", threads.address)
    words = (*kernel_ops.LINEAR_WORDS.values(), *kernel_ops.ATTENTION_WORDS.values())
    for kind in (kernel_ops.LINEAR, kernel_ops.ATTENTION, *words):
        monkeypatch.setattr(kind, "num_arrays", 0)
    for found, array in zip(compute(), expected, strict=True):
        np.testing.assert_array_equal(found, array)


def test_a_product_of_no_features_is_the_bias() -> None:
    bias = np.arange(40, dtype=np.float32)
    ops = make_ops(2)
    linear = ops.prepare(Linear(("some.dense",), np.zeros((40, 0), np.float32), bias))
    np.testing.assert_array_equal(ops.linear(np.zeros((9, 0), np.float32), linear), np.tile(bias, (9, 1)))


@pytest.mark.parametrize("K", [1, 7, 127, 128, 129, 384])
@pytest.mark.parametrize("N", [1, 15, 16, 31, 32, 33, 95])
def test_a_packed_weight_gives_the_weight_back(N: int, K: int) -> None:
    generator = np.random.default_rng(0)
    linear = Linear(("some.dense",), generator.standard_normal((N, K)).astype(np.float32), np.zeros(N, np.float32))
    packed = pack(Slabs().empty, linear)
    assert (packed.paths, packed.shape) == (linear.paths, linear.shape)
    np.testing.assert_array_equal(packed.weight, linear.weight)


@pytest.mark.parametrize("compute_type", COMPUTE_TYPES)
@pytest.mark.parametrize("F", [19, 2 * NR])  # with the larger one, the panels of the two maps alternate
def test_a_part_of_a_gated_weight_is_one_of_its_two_maps(F: int, compute_type: str) -> None:
    generator = np.random.default_rng(0)
    weight, bias = generator.standard_normal((2 * F, 40), np.float32), generator.standard_normal(2 * F, np.float32)
    paths = ("encoder.layer.0.intermediate.gate", "encoder.layer.0.intermediate.up")
    for ops in (make_ops(1, compute_type=compute_type), low_precision.make_ops(compute_type)):
        whole = ops.prepare(Linear(paths, weight, bias, gated=True))
        for i, part in enumerate((whole.part(0, 1), whole.part(1, 2))):
            rows = slice(i * F, (i + 1) * F)
            alone = ops.prepare(Linear(paths[i : i + 1], weight[rows], bias[rows]))
            assert (part.paths, part.shape, part.gated) == (alone.paths, alone.shape, False)
            np.testing.assert_array_equal(part.weight, alone.weight)
            np.testing.assert_array_equal(part.bias, alone.bias)


# --- numbers at the edges --------------------------------------------------------------------------------------------

LENGTHS = (1, WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH + 3)


def assert_attention_equals_its_twin(query: FloatArray, key: FloatArray, value: FloatArray) -> None:
    inputs = AttentionInput(query, key, value, np.array([0, len(query)], np.int32), 1)
    with np.errstate(all="ignore"):
        twins = reference.attention(inputs, return_scores=True, return_probs=True)
    found = make_ops(1).attention(inputs, return_scores=True, return_probs=True)
    for array, expected in zip(oracle.arrays(found), oracle.arrays(twins), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-5)  # and NaN at the same positions


@pytest.mark.parametrize("S", LENGTHS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", range(3))
def test_attention_does_not_hide_values_that_are_not_finite(which: int, bad: float, S: int) -> None:
    generator = np.random.default_rng(S)
    for place in (0, S - 1):
        arrays = generator.standard_normal((3, S, 8)).astype(np.float32)
        arrays[which, place, 3] = bad
        assert_attention_equals_its_twin(*arrays)


@pytest.mark.parametrize("S", LENGTHS)
@pytest.mark.parametrize("score", [0.0, 1e4, -1e4, 1e8, -1e8, 1e10, -1e10, -1e30, 1e30, 3.4e38, -3.4e38, 1e39, -1e39])
def test_equal_scores_are_equal_probs_however_large(score: float, S: int) -> None:
    """This holds until they overflow, as in NumPy."""
    query, key, value = np.random.default_rng(S).standard_normal((3, S, 8)).astype(np.float32)
    query[:], key[:] = 0.0, 0.0
    query[:, 5], key[:, 5] = abs(score) ** 0.5, np.sign(score) * abs(score) ** 0.5
    assert_attention_equals_its_twin(query, key, value)


@pytest.mark.parametrize("S", LENGTHS)
@pytest.mark.parametrize("size", [1e6, 1e9, 1e15])
@pytest.mark.parametrize("D", [1, 8])
def test_the_largest_of_very_large_scores_takes_all(D: int, size: float, S: int) -> None:
    """Scores are small differences of large products, so their error is proportional to the products."""
    query, key, value = np.random.default_rng(S).standard_normal((3, S, D)).astype(np.float32)
    arguments: dict[str, Any] = {
        **{"query": query * np.float32(size), "key": key * np.float32(size), "value": value, "num_heads": 1},
        **{"cu_seqlens": np.array([0, S], np.int32), "return_scores": True, "return_probs": True},
    }
    result, twin, exact = (compute(ops, "attention", **arguments) for ops in (make_ops(1), reference.OPS, oracle.OPS))
    assert_within_budget("attention", result, twin, exact, arguments)
    (probs,), (wanted,) = result.probs or (), exact.probs or ()
    np.testing.assert_array_equal(probs, wanted)
    np.testing.assert_array_equal(np.unique(probs), [0, 1] if S > 1 else [1])


@pytest.mark.parametrize("eps", [1e-12, 1e-5])
@pytest.mark.parametrize("H", [1, 2, 5, 7, 8, 9, 384])
@pytest.mark.parametrize("value", [0.0, 0.1, 0.5, -3.3, 1e4])
def test_layer_norm_of_constant_rows_is_the_bias(value: float, H: int, eps: float) -> None:
    """The result is exact for any eps: in float64 the mean of equal float32 numbers is that number."""
    weight, bias = np.random.default_rng(0).standard_normal((2, H)).astype(np.float32)
    for ops in (make_ops(1), reference.OPS):
        x, norm = np.full((2, H), value, dtype=np.float32), LayerNorm("norm", weight, bias, eps)
        np.testing.assert_array_equal(ops.layer_norm(x, norm), [bias, bias])


# --- how they are compiled -------------------------------------------------------------------------------------------


def test_kernels_are_compiled_in_one_place() -> None:
    """Only kernels/compilation.py uses Numba's compiler, so its options apply to every kernel."""
    for path in Path(minibert.__file__).parent.rglob("*.py"):
        if path.name not in ("compilation.py", "tiny.py"):  # tiny.py has np.vectorize; it imports only NumPy
            assert not re.search(r"(?<!torch\.)\b(n?jit|(gu)?vectorize|stencil|cfunc)\b\(?", path.read_text("utf-8")), (
                path.name
            )
    assert compilation._OPTIONS["fastmath"] is False
    assert not compilation._OPTIONS.get("parallel", False)
    options = {name: value for name, value in compilation._OPTIONS.items() if name != "pipeline_class"}
    assert run_task.make_run_task().targetoptions.items() >= options.items()
