"""Memory in compiled code: atomics for shared integers, arrays at an address, and scratch memory."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from minibert.kernels.compilation import inline
from minibert.kernels.simd import call_llvm, element_pointer

__all__ = ["atomic_add", "atomic_load", "atomic_store", "floats_at", "ints_at", "longs_at", "nap", "relax", "scratch"]


@intrinsic
def atomic_add(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Compute array[index] += value for an int64 array as one atomic step; return the old value."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args[0], *arguments[:2])
        return builder.atomic_rmw("add", pointer, arguments[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), codegen


@intrinsic
def atomic_load(typingctx: Any, array: Any, index: Any) -> Any:
    """Read array[index] of an int64 array atomically: the last value that any thread stored."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(element_pointer(context, builder, signature.args[0], *arguments), "seq_cst", 8)

    return types.int64(array, types.intp), codegen


@intrinsic
def atomic_store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Store array[index] = value atomically, after everything that this thread wrote before."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args[0], *arguments[:2])
        builder.store_atomic(arguments[2], pointer, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), codegen


@intrinsic
def relax(typingctx: Any) -> Any:
    """Tell the processor that the thread waits in a loop."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64", "i686"):
            call_llvm(builder, "llvm.x86.sse2.pause", ir.VoidType())
        elif platform.machine() in ("aarch64", "arm64"):
            call_llvm(builder, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(ir.IntType(32), 1))
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


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


# Longer than any memory. The arrays below do not know their length; the kernel that uses them does.
_LENGTH = 1 << 60


@inline
def floats_at(address):
    """Return the float32 memory that begins at an address, as a flat array; the caller keeps it alive."""
    return carray(_pointer(address), (_LENGTH,), np.float32)


@inline
def ints_at(address):
    """Return the int32 memory that begins at an address, as a flat array; the caller keeps it alive."""
    return carray(_pointer(address), (_LENGTH,), np.int32)


@inline
def longs_at(address):
    """Return the int64 memory that begins at an address, as a flat array; the caller keeps it alive."""
    return carray(_pointer(address), (_LENGTH,), np.int64)


@inline
def scratch(size):
    """Return a flat float32 array with arbitrary contents, which begins at a cache line.

    Raises MemoryError if it cannot be allocated. If you use only its address, mention the array again after the last
    such use (in a loop, anywhere inside it), because Numba frees an array after its last mention.
    """
    raw = np.empty(size + 16, np.float32)
    return raw[-raw.ctypes.data % 64 // 4 :]
