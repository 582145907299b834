"""Machine code as LLVM writes it, an object file, and how it gets into this process.

What        `ObjectCode` is what compilation.py makes and machine_code.py keeps on disk. `link` makes a function of it
Contract    Linked code is never freed, because a helper thread may still run it. This file does not import numba
Source      https://llvm.org/docs/MCJITDesignAndImplementation.html
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import NamedTuple

import llvmlite.binding as llvm

Kernel = Callable[[int], None]
"""A compiled function of one address. It does not raise, and other Python threads run meanwhile."""


class ObjectCode(NamedTuple):
    """Machine code as LLVM wrote it: an object file, and the name of the function in it."""

    symbol: str
    content: bytes


# Never freed, like the machine code, because a helper thread may still run when the interpreter ends.
_UNUSED = (ctypes.c_int64 * 2)()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_UNUSED))


def link(code: ObjectCode, num_arguments: int) -> Callable[..., None]:
    """Load an object file into this process and return its function of this number of integers.

    The function does not return anything. Other Python threads run while it runs.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.content))
    engine.finalize_object()
    # Numba's convention for calls: a place for the result and one for an exception, then the arguments.
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * num_arguments)
    address = engine.get_function_address(code.symbol)
    if not address:
        raise ImportError(f"the machine code does not have the function {code.symbol}")
    function = prototype(address)
    engine.detach()  # never freed
    unused = ctypes.addressof(_UNUSED)
    return functools.partial(function, unused, unused)
