"""The kernels against their twins in reference.py and the float64 definitions, and what they promise besides."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minibert
from minibert import kernels, reference
from minibert.kernels import make_ops, rowwise
from minibert.ops import FloatArray, LayerNorm, Linear, Ops
from tests import oracle
from tests.cases import KERNEL_CASES, OP_CASES, Arguments, KernelCase, OpCase

# Greatest error allowed where the reference happens to be better, in units of EPSILON x magnitude. What is left to
# NumPy is the reference's own; a kernel computes in float64 and rounds once, half a unit (0.51: erf adds its 1e-9).
BUDGETS = {"embed": 1.0, "linear": 4.0, "attention": 6.0, "layer_norm": 0.51}
KERNEL_BUDGET = 0.51

PACKAGE = Path(minibert.__file__).parent
GUARD = 20260714.0  # a value no kernel computes


def contents(arguments: Arguments) -> dict[str, bytes]:
    """The bytes of every array among an op's arguments, by name."""
    found = {}
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            found[name] = value.tobytes()
        elif isinstance(value, Linear | LayerNorm):
            found[f"{name}.weight"], found[f"{name}.bias"] = value.weight.tobytes(), value.bias.tobytes()
    return found


# --- ops -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_op_equals_its_twin_and_its_definition(case: OpCase, num_threads: int) -> None:
    arguments = case.arguments()
    before = contents(arguments)
    result = case.run(make_ops(num_threads), arguments)
    assert contents(arguments) == before, "an input was changed"

    exact, twin = case.run(oracle.OPS, arguments), case.run(reference.OPS, arguments)
    for array, expected in zip(oracle.arrays(result), oracle.arrays(twin), strict=True):
        assert array.dtype == np.float32
        assert array.shape == expected.shape
        assert array.flags.c_contiguous
    errors = oracle.rounding_errors(case.op, result, exact, arguments)
    allowed = oracle.rounding_errors(case.op, twin, exact, arguments)
    for error, twins_error in zip(errors, allowed, strict=True):
        limit = max(twins_error, BUDGETS[case.op])
        assert error <= limit, f"{error:.2f} units of rounding, the twin's {twins_error:.2f}, allowed {limit:.2f}"


@pytest.mark.parametrize("case", [case for case in OP_CASES if case.op in ("linear", "layer_norm")], ids=str)
def test_op_does_not_keep_or_return_its_inputs(case: OpCase) -> None:
    arguments = case.arguments()
    result = case.run(make_ops(1), arguments)
    for value in arguments.values():
        if isinstance(value, np.ndarray):
            assert not np.shares_memory(result, value)
    assert result.flags.owndata
    assert result.flags.writeable


def test_inputs_may_be_read_only() -> None:
    ops = make_ops(2)
    for case in OP_CASES:
        if case.op in ("linear", "layer_norm"):
            arguments = case.arguments()
            expected = case.run(ops, arguments)
            for value in arguments.values():
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False
                elif isinstance(value, Linear | LayerNorm):
                    value.weight.flags.writeable = value.bias.flags.writeable = False
            np.testing.assert_array_equal(case.run(ops, arguments), expected)


@pytest.mark.parametrize("op", Ops._fields)
def test_op_has_the_parameters_of_its_twin(op: str) -> None:
    assert inspect.signature(getattr(make_ops(1), op)) == inspect.signature(getattr(reference.OPS, op))


@pytest.mark.parametrize("name", [name for name in kernels.__all__ if name != "make_ops"])
def test_function_has_the_parameters_of_its_twin(name: str) -> None:
    team, *own = inspect.signature(getattr(kernels, name)).parameters.values()
    assert team.name == "team"
    assert own == list(inspect.signature(getattr(reference, name)).parameters.values())


# --- threads and processes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["linear", "layer_norm"])
def test_results_do_not_depend_on_the_number_of_threads(op: str) -> None:
    one, others = make_ops(1), [make_ops(n) for n in (2, 3, 5)]
    shared = 0
    for case in OP_CASES:
        if case.op == op:
            arguments = case.arguments()
            expected = case.run(one, arguments)
            shared += expected.size >= 2 << 15
            for ops in others:
                assert case.run(ops, arguments).tobytes() == expected.tobytes(), case.label
    assert shared >= 2, "no case is large enough for a second thread"


def test_one_set_of_ops_serves_eight_threads_at_once() -> None:
    ops = make_ops(2)
    cases = [case for case in OP_CASES if case.label.startswith(("linear T=37 K=768", "layer_norm T=128"))]
    arguments = [case.arguments() for case in cases]
    expected = [case.run(ops, a) for case, a in zip(cases, arguments, strict=True)]

    def run_all(turn: int) -> list[FloatArray]:
        order = [(i + turn) % len(cases) for i in range(len(cases))]  # so that different ops meet
        results = {i: cases[i].run(ops, arguments[i]) for i in order}
        return [results[i] for i in range(len(cases))]

    with ThreadPoolExecutor(8) as pool:
        for results in pool.map(run_all, range(8)):
            for case, result, wanted in zip(cases, results, expected, strict=True):
                if case.op == "layer_norm":
                    np.testing.assert_array_equal(result, wanted)
                else:  # the product is a BLAS's, which may order its sums by what else runs
                    np.testing.assert_allclose(result, wanted, rtol=0, atol=32 * oracle.EPSILON)


SCRIPT = """
import os, sys
import numpy as np
from minibert.kernels import make_ops
from minibert.ops import LayerNorm, Linear

generator = np.random.default_rng(0)
x = generator.standard_normal((256, 384)).astype(np.float32)
norm = LayerNorm("norm", *generator.standard_normal((2, 384)).astype(np.float32), 1e-12)
dense = Linear(("dense",), generator.standard_normal((384, 384)).astype(np.float32), norm.bias)
ops = make_ops(2)

def run():
    return [ops.layer_norm(x, norm), ops.linear(x, dense, activation="gelu"), ops.linear(x, dense, residual=x)]
"""


def run_script(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT + textwrap.dedent(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_works_in_a_forked_child_after_use() -> None:
    """The helper threads do not survive a fork; a child that waited for them would wait for ever."""
    done = run_script(
        """
        import signal
        before = run()
        child = os.fork()
        if not child:
            signal.alarm(60)  # a child that hangs ends, and leaves nothing behind
            same = all(np.allclose(a, b, rtol=0, atol=1e-4) for a, b in zip(run(), before))
            os._exit(42 if same else 1)
        _, status = os.waitpid(child, 0)
        same = all(np.allclose(a, b, rtol=0, atol=1e-4) for a, b in zip(run(), before))
        print("child", os.waitstatus_to_exitcode(status), "parent", same)
        """,
        PYTHONPATH=str(PACKAGE.parent),
        PYTHONWARNINGS="ignore::DeprecationWarning",  # Python 3.12 warns of any fork of a process with threads
    )
    assert done.stdout.strip() == "child 42 parent True", done.stderr


@pytest.mark.parametrize("cache_dir", ["", "a file"])
def test_compiles_without_a_cache_where_numba_finds_no_place_for_one(cache_dir: str, tmp_path: Path) -> None:
    """A read-only container: no folder beside the source, none in HOME, perhaps an unusable NUMBA_CACHE_DIR."""
    package = tmp_path / "minibert"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc"))
    nowhere = tmp_path / "not a folder"
    nowhere.write_text("")
    (package / "kernels" / "__pycache__").write_text("")  # a file: no permission stops root
    environment = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(nowhere),
        "XDG_CACHE_HOME": str(nowhere),
        "NUMBA_CACHE_DIR": str(nowhere) if cache_dir else "",
    }
    done = run_script(
        """
        from minibert.kernels import rowwise
        print(rowwise.__file__)
        print(type(rowwise.layer_norm._cache).__name__, all(np.isfinite(y).all() for y in run()))
        """,
        **environment,
    )
    assert done.stdout.splitlines() == [str(package / "kernels" / "rowwise.py"), "NullCache True"], done.stderr


# --- kernels on their own --------------------------------------------------------------------------------------------


def kernel_of(case: KernelCase) -> Callable[..., None]:
    module, _, function = case.kernel.rpartition(".")
    return getattr(importlib.import_module(f"minibert.kernels.{module}"), function)


def test_every_kernel_has_cases() -> None:
    found = {f"rowwise.{name}" for name in rowwise.__all__}
    modules = {path.stem for path in (PACKAGE / "kernels").glob("*.py")}
    assert modules == {"__init__", "compilation", "threads", "rowwise"}, (
        "add the new module's kernels to tests/cases.py"
    )
    assert {case.kernel for case in KERNEL_CASES} == found


@pytest.mark.parametrize("case", KERNEL_CASES, ids=str)
def test_kernel_equals_its_twin_and_its_definition(case: KernelCase) -> None:
    arguments = case.twin.arguments()
    target, others = case.lay_out(arguments)
    before = [value.tobytes() for value in others if isinstance(value, np.ndarray)]
    kernel_of(case)(target, *others, 0, len(target))
    assert [value.tobytes() for value in others if isinstance(value, np.ndarray)] == before, "an input was changed"

    exact = case.twin.run(oracle.OPS, arguments)
    (error,) = oracle.rounding_errors(case.twin.op, target, exact, arguments)
    assert error <= KERNEL_BUDGET, f"{error:.3f} units of rounding, allowed {KERNEL_BUDGET}"
    (apart,) = oracle.rounding_errors(case.twin.op, target, case.twin.run(reference.OPS, arguments), arguments)
    assert apart <= KERNEL_BUDGET + 4.0, f"{apart:.2f} units of rounding from its twin"


@pytest.mark.parametrize("case", KERNEL_CASES, ids=str)
def test_kernel_touches_only_its_rows(case: KernelCase) -> None:
    arguments = case.twin.arguments()
    whole, others = case.lay_out(arguments)
    kernel_of(case)(whole, *others, 0, len(whole))
    rows = len(whole)
    for first, last in {(0, 0), (0, 1), (rows // 3, rows // 3 * 2), (rows // 2, rows), (max(rows - 1, 0), rows)}:
        if last > rows:
            continue
        # Rows of its own before and behind the target show what is written outside of it.
        padded = np.full((rows + 2, whole.shape[1]), GUARD, dtype=np.float32)
        target = padded[1:-1]
        target[:] = untouched = case.lay_out(arguments)[0]
        kernel_of(case)(target, *others, first, last)
        np.testing.assert_array_equal(target[first:last], whole[first:last])
        np.testing.assert_array_equal(target[:first], untouched[:first])
        np.testing.assert_array_equal(target[last:], untouched[last:])
        np.testing.assert_array_equal(padded[[0, -1]], GUARD)


@pytest.mark.parametrize("H", [1, 2, 5, 7, 8, 9, 384])
@pytest.mark.parametrize("value", [0.0, 0.1, -3.3, 1e4])
def test_layer_norm_of_constant_rows_is_the_bias(H: int, value: float) -> None:
    """Exactly, whatever eps: the kernel's mean of equal numbers is that number."""
    bias = np.random.default_rng(0).standard_normal(H).astype(np.float32)
    norm = LayerNorm("norm", np.full(H, 1.5, dtype=np.float32), bias, 1e-12)
    np.testing.assert_array_equal(make_ops(1).layer_norm(np.full((2, H), value, dtype=np.float32), norm), [bias, bias])


# --- how they are compiled -------------------------------------------------------------------------------------------


def test_no_kernel_asks_for_fastmath() -> None:
    said = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            values: list[ast.expr | None] = []
            if isinstance(node, ast.keyword) and node.arg == "fastmath":
                values = [node.value]
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                values = [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == "fastmath"]
            said += [(path.name, value) for value in values]
    assert said, "kernels/compilation.py no longer says fastmath=False"
    for name, value in said:
        assert isinstance(value, ast.Constant), name
        assert value.value is False, name


def test_kernels_are_compiled_in_one_place() -> None:
    """Nothing but kernels/compilation.py speaks to numba's compiler, so its options hold for every kernel."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != "compilation.py":
            words = {node.attr for node in ast.walk(parse(path)) if isinstance(node, ast.Attribute)}
            words |= {node.id for node in ast.walk(parse(path)) if isinstance(node, ast.Name)}
            assert not words & {"njit", "jit", "vectorize", "guvectorize", "stencil", "cfunc"}, path.name
    for name in rowwise.__all__:
        options: dict[str, Any] = getattr(rowwise, name).targetoptions
        assert options["fastmath"] is False
        assert options["nogil"] is True
        assert not options.get("parallel", False)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
