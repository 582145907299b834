"""The compiler: Python functions -> Numba -> LLVM -> an object file. Only this module uses Numba's compiler.

What        `function` and `inline` mark functions that are compiled. `compile_to_object` makes the machine code of one
            of them, with all that it calls
Options     No fastmath, because a result must not depend on how a loop was compiled. No bounds checks, because callers
            have checked every shape. Without Numba's runtime, because kernels do not allocate memory
Time        Numba optimises each function, and again each function that calls it. So Numba makes plain code here, and
            LLVM optimises the whole once
Contract    Only the files of compiled functions import this file, because it imports numba
Source      https://llvm.org/docs/NewPassManager.html for the passes of level 3
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types
from numba.core.compiler_lock import global_compiler_lock

from minibert.kernels.cache import ObjectCode
from minibert.kernels.processor import target

if numba.config.DISABLE_JIT:  # an ImportError, so that callers handle it like a missing Numba
    raise ImportError("NUMBA_DISABLE_JIT is set, but minibert's kernels exist only as compiled code; unset it")

_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "fastmath": False,
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
}


def function(body: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function to be compiled when compiled code calls it, or by `compile_to_object`."""
    return numba.njit(**_OPTIONS)(body)


def inline(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a small function into each place that calls it."""
    return numba.njit(forceinline=True, **_OPTIONS)(body)


def compile_to_object(compiled_function: Any, num_arguments: int) -> ObjectCode:
    """Compile a function of int64 arguments, and all that it calls, for the processor `target()`."""
    signature = (types.int64,) * num_arguments
    with global_compiler_lock:  # no other thread compiles with the changed option
        level = numba.config.OPT
        numba.config.OPT = type(level)(0)
        try:
            compiled_function.compile(signature)
        finally:
            numba.config.OPT = level
    result = compiled_function.overloads[signature]
    module = llvm.parse_assembly(result.library.get_llvm_str())
    processor = target()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=processor.name, features=processor.features, opt=3, jit=True, codemodel="jitdefault"
    )
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    return ObjectCode(result.fndesc.llvm_func_name, machine.emit_object(module))
