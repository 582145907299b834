"""The processor that the kernels are compiled for, and the shape of the micro-tile that fits its registers.

What        `target` gives the processor's name and features, from LLVM or from NUMBA_CPU_NAME and NUMBA_CPU_FEATURES
Registers   A micro-tile of MR rows and NR columns has its sums in registers. Beside them, one vector of each NR columns
            of the weight and one number of x need registers too
Contract    This file does not import numba, because a process that finds its machine code on disk does not need it
Source      The choice of name and features is Numba's: numba/core/codegen.py (JITCPUCodegen), numba/core/config.py
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from typing import NamedTuple

import llvmlite.binding as llvm


class Processor(NamedTuple):
    """LLVM's name of a processor, and its features as LLVM's options: "+avx,-avx512f,..."."""

    name: str
    features: str

    def has(self, feature: str) -> bool:
        """Return whether the processor has this feature."""
        return f"+{feature}" in self.features.split(",")


# Numba does not use AVX on these. nocona is what some virtual machines report.
_WITHOUT_AVX = ("corei7-avx", "core-avx-i", "sandybridge", "ivybridge", "nocona")


@functools.cache
def target() -> Processor:
    """Return the processor that the kernels are compiled for in this process: the one that Numba would choose.

    Raises
    ------
    ImportError
        NUMBA_CPU_FEATURES has a feature without a sign, which would make LLVM end the process.
    """
    name = os.environ.get("NUMBA_CPU_NAME", llvm.get_host_cpu_name())
    features = os.environ.get("NUMBA_CPU_FEATURES")
    for feature in (features or "").split(","):
        if feature and feature[0] not in "+-":
            raise ImportError(
                f"NUMBA_CPU_FEATURES={features!r}, where {feature!r} begins with neither + nor -; "
                "expected names with such a sign, separated by commas and without spaces, as in '+avx2,-avx512f'"
            )
    if features is None:
        features = "" if name.lower() == "generic" else _host_features(name)
    return Processor(name, features)


@functools.cache
def usable_target() -> Processor:
    """Return `target()`, without the matrices of AMX if the system does not let this process use them.

    The first call asks the system, if the processor has them. From then on, Linux refuses stacks for signals
    (`sigaltstack`) that are too small for the contents of these matrices. So float32 does not call this.
    """
    processor = target()
    if processor.has("amx-tile") and not _may_use_tiles():
        return processor._replace(features=processor.features.replace("+amx", "-amx"))
    return processor


def _may_use_tiles() -> bool:
    """Ask Linux for the tiles of AMX; return whether it gives them to this process.

    Source: Linux, Documentation/arch/x86/xstate.rst
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    call = ctypes.CDLL(None).syscall
    call.restype, call.argtypes = ctypes.c_long, (ctypes.c_long,) * 3
    return bool(call(arch_prctl, request_permission, tile_data) == 0)


def _host_features(name: str) -> str:
    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError:  # LLVM does not know the features of this kind of processor
        return ""
    if os.environ.get("NUMBA_ENABLE_AVX", str(int(name not in _WITHOUT_AVX))) == "0":
        for feature in features:
            features[feature] &= not feature.startswith("avx")
    flat: str = features.flatten()
    return flat


WIDTH = 16
"""The number of lanes of a vector; a lane is one number of it. It is the same on every processor (see simd.py)."""

REGISTER_LANES = 16 if target().has("avx512f") else 8 if target().has("avx") else 4
"""The number of float32 in one register of the processor."""

ARM64 = platform.machine().lower() in ("aarch64", "arm64")
"""Whether the processor is a 64-bit ARM; Windows writes ARM64."""

REGISTERS = 32 if REGISTER_LANES == 16 or ARM64 else 16
"""The number of vector registers of the processor."""

NR = max(WIDTH, 2 * REGISTER_LANES)
"""The number of columns of a micro-tile, and of a panel of a packed weight."""

MR = min(7, (REGISTERS - 1) * REGISTER_LANES // NR - 1)
"""The number of rows of a micro-tile: 7 x 32 with AVX-512, 6 x 16 with AVX2 and NEON, 2 x 16 with SSE."""


def processor_name() -> str:
    """Return the name of the processor that the kernels are compiled for, and the width of the registers they use."""
    return f"{target().name}, {32 * REGISTER_LANES} bits"
