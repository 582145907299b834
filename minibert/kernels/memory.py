"""Memory in compiled code: numbers and tasks at an address, atomics for shared integers, and naps.

What        `floats_at(address)`, `ints_at` and `longs_at` give memory whose numbers are read as ``x[i]``.
            `task_at(kind)` makes the function that gives the task at an address
Contract    Memory does not know its length, and nothing checks bounds. The caller of a kernel keeps the arrays alive
"""

from __future__ import annotations

import operator
import os
import platform
import time
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, type_callable

from minibert.kernels.processor import ARM64
from minibert.kernels.simd import Memory, call_llvm
from minibert.kernels.tasks import TaskKind

_X86 = platform.machine() in ("x86_64", "AMD64", "i686")


# --- numbers at an address -------------------------------------------------------------------------------------------


def _memory_at(element: Any, doc: str) -> Any:
    memory = Memory(element)

    @intrinsic
    def at(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(memory))

        return memory(types.int64), codegen

    at.__doc__ = doc
    return at


floats_at = _memory_at(types.float32, "Return the float32 memory that begins at an address.")
ints_at = _memory_at(types.int32, "Return the int32 memory that begins at an address.")
longs_at = _memory_at(types.int64, "Return the int64 memory that begins at an address.")


@type_callable(operator.getitem)
def _type_of_item(context: Any) -> Any:
    return lambda memory, index: memory.element if isinstance(memory, Memory) else None


@lower_builtin(operator.getitem, Memory, types.Integer)
def _get_item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.load(builder.gep(arguments[0], [arguments[1]]))


@type_callable(operator.setitem)
def _type_of_assignment(context: Any) -> Any:
    return lambda memory, index, value: types.void if isinstance(memory, Memory) else None


@lower_builtin(operator.setitem, Memory, types.Integer, types.Any)
def _set_item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    memory, index, value = arguments
    element = signature.args[0].element
    builder.store(context.cast(builder, value, signature.args[2], element), builder.gep(memory, [index]))
    return context.get_dummy_value()


def task_at(kind: TaskKind) -> Any:
    """Make the function that returns the task of this kind at an address, a record with named fields."""
    record = numba.from_dtype(kind.dtype)

    @intrinsic
    def at(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(record))

        return record(types.int64), codegen

    return at


def stack_floats(count: int) -> Any:
    """Make the function that returns the address of memory for `count` floats; it lasts until its caller returns."""

    @intrinsic
    def allocate(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            memory = cgutils.alloca_once(builder, ir.ArrayType(ir.FloatType(), count))
            memory.align = 64  # a cache line
            return builder.ptrtoint(memory, ir.IntType(64))

        return types.int64(), codegen

    return allocate


# --- what threads share ----------------------------------------------------------------------------------------------


@intrinsic
def atomic_add(typingctx: Any, memory: Any, index: Any, value: Any) -> Any:
    """Compute memory[index] += value of int64 memory as one atomic step; return the old value."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.gep(arguments[0], [arguments[1]])
        return builder.atomic_rmw("add", pointer, arguments[2], "seq_cst")

    return types.int64(memory, types.intp, types.int64), codegen


@intrinsic
def atomic_load(typingctx: Any, memory: Any, index: Any) -> Any:
    """Read memory[index] of int64 memory atomically: the last value that any thread stored."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.gep(arguments[0], [arguments[1]]), "seq_cst", 8)

    return types.int64(memory, types.intp), codegen


@intrinsic
def atomic_store(typingctx: Any, memory: Any, index: Any, value: Any) -> Any:
    """Store memory[index] = value atomically, after everything that this thread wrote before."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.gep(arguments[0], [arguments[1]])
        builder.store_atomic(arguments[2], pointer, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(memory, types.intp, types.int64), codegen


# Denormal numbers count, and sums are rounded to nearest. Other libraries change this mode of a thread (-ffast-math,
# torch.set_flush_denormal), and the results would depend on it.
DEFAULT_FLOAT_MODE = 0 if ARM64 else 0x1F80


@intrinsic
def float_mode(typingctx: Any) -> Any:
    """Return the thread's mode of floating-point arithmetic, on x86-64 and arm64; else 0."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        if ARM64:
            return call_llvm(builder, "llvm.aarch64.get.fpcr", word)
        if not _X86:
            return ir.Constant(word, 0)
        mode = cgutils.alloca_once(builder, ir.IntType(32))
        call_llvm(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), mode)
        return builder.zext(builder.load(mode), word)

    return types.int64(), codegen


@intrinsic
def set_float_mode(typingctx: Any, mode: Any) -> Any:
    """Set the thread's mode of floating-point arithmetic to what `float_mode` returned."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if ARM64:
            call_llvm(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), arguments[0])
        elif _X86:
            mode = cgutils.alloca_once(builder, ir.IntType(32))
            builder.store(builder.trunc(arguments[0], ir.IntType(32)), mode)
            call_llvm(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), mode)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def relax(typingctx: Any) -> Any:
    """Tell the processor that the thread waits in a loop."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _X86:
            call_llvm(builder, "llvm.x86.sse2.pause", ir.VoidType())
        elif ARM64:
            call_llvm(builder, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(ir.IntType(32), 1))
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def microseconds(typingctx: Any) -> Any:
    """Return the time of a steady clock, on systems that have a call for it; else 0."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        if os.name != "posix":
            return ir.Constant(word, 0)
        clock = getattr(time, "CLOCK_MONOTONIC", 0)
        result = cgutils.alloca_once(builder, ir.ArrayType(word, 2))
        call_llvm(builder, "clock_gettime", ir.IntType(32), ir.Constant(ir.IntType(32), clock), result)
        seconds, nanoseconds = (builder.load(cgutils.gep_inbounds(builder, result, 0, i)) for i in (0, 1))
        of_seconds = builder.mul(seconds, ir.Constant(word, 1_000_000))
        return builder.add(of_seconds, builder.sdiv(nanoseconds, ir.Constant(word, 1000)))

    return types.int64(), codegen


@intrinsic
def yield_core(typingctx: Any) -> Any:
    """Let another thread that waits for this core run first, on systems that have a call for it."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if os.name == "posix":
            call_llvm(builder, "sched_yield", ir.IntType(32))
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def nap(typingctx: Any) -> Any:
    """Leave the core to other threads for about 50 microseconds, on systems that have a call for it."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if os.name == "posix":
            call_llvm(builder, "usleep", ir.IntType(32), ir.Constant(ir.IntType(32), 50))
        return context.get_dummy_value()

    return types.void(), codegen
