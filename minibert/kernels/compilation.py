"""The compiler: Python functions -> Numba -> LLVM -> machine code, which linker.py makes a shared library.

What        `function` and `inline` mark functions that are compiled. `compile_library` makes a shared library of one
            of them, with all that it calls
Options     No fastmath, because a result must not depend on how a loop was compiled. No bounds checks, because callers
            have checked every shape. Without Numba's runtime, because kernels do not allocate memory
Time        Numba would copy the code of a function into each function that calls it, optimise both, and make machine
            code of them. So Numba writes all functions into one module of plain code here, and LLVM optimises it once.
            Numba searches for the type of each call in the lists of all that could be called; here it remembers what it
            has found. Passes that kernels do not need are left out. Python's collector of garbage would search through
            millions of objects that are all in use, so it waits. With AVX2, Numba takes 8 s of processor time, LLVM 7,
            the imports 0.5
Contract    Only the files of compiled functions import this file, because it imports Numba. Only this file uses Numba's
            compiler
Source      https://llvm.org/docs/NewPassManager.html for the passes of level 3
"""

from __future__ import annotations

import ctypes
import functools
import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types
from numba.core import event
from numba.core.base import BaseContext
from numba.core.codegen import CPUCodeLibrary, JITCPUCodegen
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.types.functions import BaseFunction

from minibert.kernels.libraries import MACHINE
from minibert.kernels.linker import link
from minibert.kernels.processor import LEVEL

# --- the compiler ----------------------------------------------------------------------------------------------------

# Passes of Numba for closures, lists, literals, `with`, exceptions, expressions of arrays, and reports. Kernels do not
# have these; without the passes, the time of Numba is a quarter less and the libraries are the same.
_NEEDLESS = {
    *("WithLifting", "InlineClosureLikes", "RewriteDynamicRaises", "MakeFunctionToJitFunction", "InlineInlinables"),
    *("FindLiterallyCalls", "LiteralUnroll", "LiteralPropagationSubPipelinePass", "InlineOverloads"),
    *("NopythonRewrites", "NoPythonSupportedFeatureValidation", "AnnotateTypes", "DumpParforDiagnostics"),
}


class _Compiler(CompilerBase):
    """Numba's compiler without the needless passes."""

    def define_pipelines(self) -> list[Any]:
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [each for each in manager.passes if each[0].__name__ not in _NEEDLESS]
        manager.finalize()
        return [manager]


_OPTIONS: dict[str, Any] = {
    "pipeline_class": _Compiler,
    "nogil": True,
    "fastmath": False,
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
    "forceinline": False,  # else a function that an inlined one calls would be inlined, too
}

# LLVM's names of processors that have the features of a level, and of the features that they do not have. Without
# fast-dpwssd, LLVM writes two instructions for vpdpwssd; int16 takes 1.15 times as long on a Zen 4.
_PROCESSORS = {
    "x86-64": ("x86-64", ""),
    "x86-64-avx2": ("x86-64-v3", ""),
    "x86-64-avxvnni": ("x86-64-v3", "+avxvnni,+fast-dpwssd"),
    "x86-64-avx512": ("x86-64-v4", ""),
    "x86-64-vnni": ("x86-64-v4", "+avx512vnni,+fast-dpwssd"),
    "x86-64-amx": ("x86-64-v4", "+avx512vnni,+amx-tile,+amx-int8"),
    "arm64": ("generic", ""),
    "arm64-dotprod": ("generic", "+dotprod"),
}

# libraries.py calls these two functions before it knows what the processor has. `xgetbv` is written as bytes, because
# the first processors do not have it.
_CPUID = """
define void @cpuid(i64 %leaf, i64 %subleaf, i64 %answer) #0 {
  %a = trunc i64 %leaf to i32
  %c = trunc i64 %subleaf to i32
  %found = call {i32, i32, i32, i32} asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx}"(i32 %a, i32 %c)
  %memory = inttoptr i64 %answer to ptr
  store {i32, i32, i32, i32} %found, ptr %memory, align 4
  ret void
}
define void @xgetbv(i64 %answer) #0 {
  %found = call {i32, i32} asm sideeffect ".byte 0x0f, 0x01, 0xd0", "={ax},={dx},{cx}"(i32 0)
  %memory = inttoptr i64 %answer to ptr
  store {i32, i32} %found, ptr %memory, align 4
  ret void
}
attributes #0 = { nounwind "target-cpu"="x86-64" "target-features"="" }
"""

# Numba's convention for calls: a place for the result and one for an exception, then the arguments.
_EXPORT = """
declare i32 @"{symbol}"(ptr, ptr, {types})
define void @{name}({parameters}) {{
  %unused = alloca [2 x i64]
  %status = call i32 @"{symbol}"(ptr %unused, ptr %unused, {parameters})
  ret void
}}
"""


def function(body: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function to be compiled when compiled code calls it, or by `compile_library`; Python must not call it."""
    return numba.njit(**_OPTIONS)(body)


def inline(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a small function into each place that calls it."""
    return numba.njit(**{**_OPTIONS, "forceinline": True})(body)


def compile_library(name: str, compiled: Any, count: int, triple: str = "") -> bytes:
    """Compile a function, and all that it calls, for the level of this process; return a shared library.

    Parameters
    ----------
    name : str
        Of the function in the library.
    compiled : a function that `function` marked
        It does not return anything.
    count : int
        The number of its arguments, which are int64.
    triple : str
        LLVM's name of the system; "" is this one, or Linux for a level of another kind of processor.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for _CPUID
    processor, features = _PROCESSORS[LEVEL.name]
    # On Windows, code for Microsoft's linker would need the symbol _fltused of Microsoft's library.
    own = llvm.get_process_triple().replace("-windows-msvc", "-windows-gnu")
    triple = triple or (own if LEVEL.machine == MACHINE else f"{LEVEL.machine}-unknown-linux-gnu")
    machine = llvm.Target.from_triple(triple).create_target_machine(
        # The levels v4 are compiled with registers of 256 bits, if it is not forbidden.
        cpu=processor,
        features=f"{features},-prefer-256-bit".strip(",") if LEVEL.machine == "x86_64" else features,
        opt=3,
        reloc="pic",
        codemodel="small",
    )
    symbol, text = _plain_code(compiled, count)
    parameters = ", ".join(f"i64 %a{i}" for i in range(count))
    export = _EXPORT.format(symbol=symbol, name=name, types=", ".join(["i64"] * count), parameters=parameters)
    module, *others = map(llvm.parse_assembly, [*([_CPUID] if LEVEL.machine == "x86_64" else []), text, export])
    for other in others:
        module.link_in(other)
    module.verify()
    module.triple, module.data_layout = triple, str(machine.target_data)
    names = {"cpuid", "xgetbv", name}
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name not in names:
            value.linkage = "internal"
    for speed_level in (0, 3):  # 0 only inlines what must be
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level))
        passes.getModulePassManager().run(module, passes)
    return link(machine.emit_object(module), sorted(names & {value.name for value in module.functions}), triple)


def load_function(compiled: Any, count: int) -> Callable[..., None]:
    """Compile a function of `count` integers, and load it into this process: for tests and measurements."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "library")
        path.write_bytes(compile_library("run", compiled, count))
        loaded = ctypes.CDLL(str(path)).run
    loaded.restype, loaded.argtypes = None, (ctypes.c_int64,) * count
    return loaded


@functools.cache
def _code(codegen: Any) -> Any:
    """Return the code in LLVM of all functions that this process has compiled."""
    return codegen._create_empty_module("kernels")


def _plain_code(compiled: Any, count: int) -> tuple[str, str]:
    """Compile a function; return its name in LLVM, and the text of all code of this process, not optimised.

    If Numba raises, its function stays unfinished in that text, and this process cannot compile another one.
    """
    signature = (types.int64,) * count
    known: dict[Any, tuple[Any, Any]] = {}
    find: Any = BaseFunction.get_call_type

    def find_once(called: Any, context: Any, args: Any, kws: Any) -> Any:
        key = called, args, tuple(kws.items())
        if key not in known:
            found = find(called, context, args, kws)
            known[key] = found, called._impl_keys[found.args]
        found, implementation = known[key]
        called._impl_keys[found.args] = implementation  # the last search decides, as without the memory
        return found

    def finalize(library: Any) -> None:
        library._finalized = True

    def refresh(context: Any) -> None:
        for registry in list(context._registries):
            context.install_registry(registry)

    changes: tuple[tuple[Any, str, Any], ...] = (
        (CPUCodeLibrary, "create_ir_module", lambda library, name: _code(library.codegen)),
        (CPUCodeLibrary, "add_ir_module", lambda library, module: None),
        (CPUCodeLibrary, "finalize", finalize),
        (JITCPUCodegen, "set_env", lambda codegen, name, env: None),
        # Numba would measure each call of LLVM, once for each function that is being compiled.
        (event, "broadcast", lambda _: None),
        # It would import all of its own functions again.
        (BaseContext, "refresh", refresh),
        (BaseFunction, "get_call_type", find_once),
        (BaseContext, "get_abi_sizeof", functools.cache(BaseContext.get_abi_sizeof)),
    )
    with global_compiler_lock:  # no other thread compiles with the changed options
        compiled.targetdescr.target_context.refresh()
        before, collects = [getattr(owner, name) for owner, name, _ in changes], gc.isenabled()
        for owner, name, value in changes:
            setattr(owner, name, value)
        gc.disable()
        try:
            compiled.compile(signature)
            result = compiled.overloads[signature]
            return result.fndesc.llvm_func_name, str(_code(result.library.codegen))
        finally:
            for (owner, name, _), value in zip(changes, before, strict=True):
                setattr(owner, name, value)
            if collects:
                gc.enable()
