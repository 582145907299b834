"""The processor that the kernels are compiled for: registers, instructions, and the layouts that fit them.

What        `target` gives the processor's name and features, from LLVM or from NUMBA_CPU_NAME and NUMBA_CPU_FEATURES.
            `words_of` gives the layout of a format of bert/low_precision.py on this processor, in words of 32 bits
Registers   A micro-tile of MR rows and NR columns has its sums in registers. Beside them, one vector of each NR columns
            of the weight and one number of x need registers too
Algorithm   An instruction multiplies the two or four numbers of a word of x by those of a word of the weight, and adds
            the products to a sum of 32 bits. With VNNI it is vpdpwssd for int16 and vpdpbusd for int8, whose x does not
            have a sign: x + 128 is multiplied, and the sums begin with -128 times the sum of the weights. ARM has sdot
            for int8. Otherwise vpmaddwd multiplies 16 bits (plain multiplications, if it is not an x86): then x is kept
            in 16 bits, and the weight of int8 is widened to 16 bits when it is loaded
            Intel's AMX multiplies matrices of bytes, four bytes of x by four of the weight in each step
            (low_precision.py). The two bytes of the numbers of int16 are two planes: first all lower bytes of a group,
            then all upper ones
Layout      A row of x is groups of words, each after a header of one word: its scale. With AMX the scales follow after
            all groups, and a row is filled up to whole cache lines. A panel of the weight is groups of lines, each
            after a header of one or two lines: NR scales, and the numbers with which the sums begin. A line has one
            word (two bytes, if the weight is widened) of each of its NR columns
            The weight of int16 has 14 bits. So eight lines can be stored as seven: their numbers are the upper 14 bits,
            and the lower two bits of all seven are the eighth line, whose highest bits are in the first. It is done
            where a processor unpacks them beside the products: AMD's since Zen 4 have four units for vectors, two of
            which multiply. Measured on Zen 5, products take about 3 % longer; one row takes less, because its time is
            that of memory. With AVX2 they took 18 % longer (one run). Intel's processors have two units of 512 bits for
            both, so it would be 40 % (calculated)
Contract    This file does not import numba, because a process that finds its machine code on disk does not need it
Source      The choice of name and features is Numba's: numba/core/codegen.py (JITCPUCodegen), numba/core/config.py.
            Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2; Arm Architecture Reference Manual
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from typing import NamedTuple

import llvmlite.binding as llvm

from minibert.bert.low_precision import FORMATS, FORMATS_OF, Format


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
    """Return the processor that the kernels are compiled for in this process, which is Numba's choice.

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
    """Return `target()`, without AMX if the system does not let this process use its tiles.

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

X86 = platform.machine() in ("x86_64", "AMD64", "i686")
"""Whether the processor is an x86, of 64 or 32 bits."""

REGISTERS = 32 if REGISTER_LANES == 16 or ARM64 else 16
"""The number of vector registers of the processor."""

NR = max(WIDTH, 2 * REGISTER_LANES)
"""The number of columns of a micro-tile, and of a panel of a packed weight."""

MR = min(7, (REGISTERS - 1) * REGISTER_LANES // NR - 1)
"""The number of rows of a micro-tile: 7 x 32 with AVX-512, 6 x 16 with AVX2 and NEON, 2 x 16 with SSE."""


def processor_name() -> str:
    """Return the name of the processor that the kernels are compiled for, and the width of the registers they use."""
    return f"{target().name}, {32 * REGISTER_LANES} bits"


# --- low precision ---------------------------------------------------------------------------------------------------

_WORD = 4  # bytes
PACKED = 8  # lines that are stored as one line less, if they are packed
TILE_ROWS, TILE_BYTES = 16, 64  # of a register of AMX: rows, and bytes of a row


class Dot(NamedTuple):
    """The instruction with which a processor multiplies words, and its layout of numbers."""

    name: str  # of the instruction in LLVM, after "llvm."; "AMX" for its instructions; "" for plain multiplications
    lanes: int  # words that one instruction multiplies
    adds: bool  # whether it adds the products to the sums
    x_bytes: int  # of a number of x; a word has 4 / x_bytes numbers
    w_bytes: int  # of a number of the weight
    offset: int = 0  # is added to x, because the instruction takes it for a number without a sign
    unpacks: bool = False  # whether eight lines are stored as seven
    in_tiles: bool = False  # whether it multiplies matrices of bytes, the tiles of AMX


def dot_for(form: Format, processor: Processor) -> Dot:
    """Return the best instruction of a processor for a format."""
    has, w_bytes = processor.has, 2 if form.weight_most > 127 else 1
    if has("amx-int8") and has("amx-tile") and has("avx512f"):
        return Dot("AMX", TILE_BYTES // _WORD, True, w_bytes, w_bytes, in_tiles=True)
    vnni = 512 if has("avx512vnni") and has("avx512f") else 256 if has("avxvnni") else 0
    if w_bytes == 2:
        if vnni:
            unpacks = vnni == 512 and processor.name.startswith("znver") and form.weight_most < 1 << 13
            return Dot(f"x86.avx512.vpdpwssd.{vnni}", vnni // 32, True, 2, 2, unpacks=unpacks)
    elif vnni:
        return Dot(f"x86.avx512.vpdpbusd.{vnni}", vnni // 32, True, 1, 1, offset=128)
    elif ARM64 and has("dotprod"):
        return Dot("aarch64.neon.sdot.v4i32.v16i8", 4, True, 1, 1)
    if not X86:
        return Dot("", 16, False, 2, w_bytes)
    if has("avx512bw") and has("avx512f"):
        return Dot("x86.avx512.pmaddw.d.512", 16, False, 2, w_bytes)
    if has("avx2"):
        return Dot("x86.avx2.pmadd.wd", 8, False, 2, w_bytes)
    return Dot("x86.sse2.pmadd.wd", 4, False, 2, w_bytes)


class Words(NamedTuple):
    """The layout of x and of a weight in a format, on this processor."""

    form: Format
    dot: Dot

    @property
    def steps(self) -> int:
        """The number of words of a group in a row of x; also of lines of a group before they are packed."""
        return self.form.group * self.dot.x_bytes // _WORD

    @property
    def lines(self) -> int:
        """The number of lines of a group in a panel."""
        return self.steps - self.steps // PACKED * self.dot.unpacks

    @property
    def header(self) -> int:
        """The number of header lines before the lines of a group in a panel, each NR numbers of 4 bytes."""
        return 2 if self.dot.offset else 1

    @property
    def line(self) -> int:
        """The size of a line of a panel in bytes."""
        return NR * _WORD * self.dot.w_bytes // self.dot.x_bytes

    @property
    def group_bytes(self) -> int:
        """The size of a group in a panel in bytes."""
        return self.header * NR * _WORD + self.lines * self.line

    @property
    def groups_at_once(self) -> int:
        """The number of groups whose sums AMX writes before they are added to the totals; 1 without AMX."""
        return 3 if self.dot.in_tiles and self.dot.x_bytes == 1 else 1

    @property
    def rows(self) -> int:
        """The largest number of rows of a micro-tile."""
        return TILE_ROWS if self.dot.in_tiles else MR

    @property
    def sums_size(self) -> int:
        """The count of 4-byte numbers that AMX writes per group of a micro-tile: TILE_ROWS x NR per tile of sums."""
        return (2 * self.dot.x_bytes - 1) * TILE_ROWS * NR

    @property
    def x_header(self) -> int:
        """The number of header words before the words of a group in a row of x."""
        return 0 if self.dot.in_tiles else 1

    @property
    def group_distance(self) -> int:
        """The distance from a group to the next one in a row of x, in words."""
        return self.x_header + self.steps

    @property
    def scale_distance(self) -> int:
        """The distance from the scale of a group to the next scale in a row of x, in words."""
        return self.group_distance if self.x_header else 1

    @property
    def scales_unit(self) -> int:
        """The number of scales in a row of x is rounded up to a multiple of this."""
        return TILE_BYTES // _WORD if self.dot.in_tiles else 1

    def row_size(self, K: int) -> int:
        """Return the number of words of a row of x with K features."""
        groups = self.form.groups(K)
        return groups * self.steps + -(-groups // self.scales_unit) * self.scales_unit

    def panel_shape(self, K: int) -> tuple[int, int]:
        """Return the shape of a panel for K features: (groups, words of a group)."""
        return self.form.groups(K), self.group_bytes // _WORD


@functools.cache
def words_of(name: str) -> Words:
    """Return the layout of the format with this name on this processor; see `usable_target` for the first call."""
    return Words(FORMATS[name], dot_for(FORMATS[name], usable_target()))


def is_faster(compute_type: str) -> bool:
    """Return whether a compute type is at least as fast as float32 on this processor; the rule was measured on x86-64.

    On a Xeon that acts as other processors, the products of int16 and int8 take 0.82 and 0.83 times as long as those of
    float32 with AVX2 alone, and 0.95 and 0.97 with AVX-512 without VNNI. On a Zen 5 it is 0.69 and 0.77, and 0.69 and
    0.74 (int8 with groups of 64 features). With SSE alone it is 0.04 and 0.05, because each fma of float32 calls a
    function. Measured with benchmarks/low_precision_processors.py.
    """
    return all(words_of(name).dot.name for name in FORMATS_OF[compute_type])
