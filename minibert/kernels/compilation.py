"""The compiler and the linker: Python functions -> Numba -> LLVM -> machine code -> a shared library.

What        `function` and `inline` mark functions that are compiled. `compile_library` makes a shared library of some
            of them, with all that they call
Options     No fastmath, because a result must not depend on how a loop was compiled. No bounds checks, because callers
            have checked every shape. Without Numba's runtime, because kernels do not allocate memory
Time        Numba would optimise each function, and again each function that calls it, and make machine code of each. So
            Numba makes plain code of LLVM here, and LLVM optimises the whole once
Contract    Only the files of compiled functions import this file, because it imports Numba. Only this file uses Numba's
            compiler
Source      https://llvm.org/docs/NewPassManager.html for the passes of level 3

The linker
----------
What        `link` makes a library of the kernels' machine code. On Linux this file does it, for x86-64 and arm64. On
            macOS and Windows the linker of the package ziglang does it, for which build.py asks there
Why         The kernels use no other library and no data that can be written, and LLVM is told to make code that may be
            at any address. So linking is: put the code behind the constants, write the distances between them into the
            code, and list the names. ziglang does this for every system, but it is 100 MB to download, and 411 MB in
            20,000 files to install. This file takes milliseconds. A library of macOS needs a signature, and one of
            Windows another format, so there the package is used
Layout      The file is mapped as three segments: constants (readable), code (executable), and the table for the
            system's loader (writable, because the loader writes addresses into it). A segment begins in the page of the
            file in which the one before ends; both map this page. So the address of a part is its offset in the file
            plus a whole number of pages::

                header | segments | .hash .dynsym .dynstr .rodata || .text || .dynamic | names and table of sections

            The table of sections is for people: nm, objdump and gdb read it, and the loader does not
Contract    A relocation of another kind, or a name that is not defined, is an error
Source      System V ABI, chapters 4 and 5; AMD64 supplement, 4.4; ELF for the Arm 64-bit Architecture, 5.7
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numba
from numba import types
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock

from minibert.kernels.libraries import MACHINE
from minibert.kernels.processor import LEVEL

# --- the compiler ----------------------------------------------------------------------------------------------------

_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "fastmath": False,
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
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
attributes #0 = { nounwind "target-cpu"="x86-64" }
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
    """Mark a function to be compiled when compiled code calls it, or by `compile_library`."""
    return numba.njit(**_OPTIONS)(body)


def inline(body: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a small function into each place that calls it."""
    return numba.njit(forceinline=True, **_OPTIONS)(body)


def compile_library(functions: Mapping[str, tuple[Any, int]]) -> bytes:
    """Compile functions, and all that they call, for the level of this process; return a shared library.

    Parameters
    ----------
    functions : dict
        Name in the library -> a function that `function` marked, and the number of its arguments, which are int64. It
        does not return anything.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for _CPUID
    processor, features = _PROCESSORS[LEVEL.name]
    same = LEVEL.machine == MACHINE
    # On Windows, code for Microsoft's linker would need the symbol _fltused of Microsoft's library.
    own = llvm.get_process_triple().replace("-windows-msvc", "-windows-gnu")
    triple = own if same else f"{LEVEL.machine}-unknown-linux-gnu"
    machine = llvm.Target.from_triple(triple).create_target_machine(
        # The levels v4 are compiled with registers of 256 bits, if it is not forbidden.
        cpu=processor,
        features=f"{features},-prefer-256-bit".strip(",") if LEVEL.machine == "x86_64" else features,
        opt=3,
        reloc="pic",
        codemodel="small",
    )
    texts = [_CPUID] if LEVEL.machine == "x86_64" else []
    names = {"cpuid", "xgetbv"} | set(functions)
    for name, (compiled, count) in functions.items():
        symbol, text = _plain_code(compiled, count)
        parameters = ", ".join(f"i64 %a{i}" for i in range(count))
        export = _EXPORT.format(symbol=symbol, name=name, types=", ".join(["i64"] * count), parameters=parameters)
        texts += [text, export]
    module, *others = map(llvm.parse_assembly, texts)
    for other in others:
        module.link_in(other)
    module.triple, module.data_layout = triple, str(machine.target_data)
    for one in (*module.functions, *module.global_variables):
        if not one.is_declaration and one.name not in names:
            one.linkage = "internal"
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    return link(machine.emit_object(module), sorted(one.name for one in module.functions if one.name in names), triple)


def load_function(compiled: Any, count: int) -> Callable[..., None]:
    """Compile a function of `count` integers, and load it into this process: for tests and measurements."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "library")
        path.write_bytes(compile_library({"run": (compiled, count)}))
        loaded = ctypes.CDLL(str(path)).run
    loaded.restype, loaded.argtypes = None, (ctypes.c_int64,) * count
    return loaded


def _plain_code(compiled: Any, count: int) -> tuple[str, str]:
    """Return the name of a function in LLVM, and the text of it and of all that it calls, which nothing optimised."""
    signature = (types.int64,) * count
    with global_compiler_lock:  # no other thread compiles with the changed options
        level, finish, set_env = numba.config.OPT, JITCodeLibrary._finalize_specific, JITCPUCodegen.set_env
        numba.config.OPT = type(level)(0)
        # These two would make machine code of each function at once. Without it, compiling takes half the time.
        JITCodeLibrary._finalize_specific = lambda library: None
        JITCPUCodegen.set_env = lambda codegen, name, env: None
        try:
            compiled.compile(signature)
        finally:
            numba.config.OPT, JITCodeLibrary._finalize_specific, JITCPUCodegen.set_env = level, finish, set_env
    result = compiled.overloads[signature]
    return result.fndesc.llvm_func_name, result.library.get_llvm_str()


# --- the linker ------------------------------------------------------------------------------------------------------


def link(content: bytes, names: Sequence[str], triple: str) -> bytes:
    """Make a shared library of an object file; `names` are the functions that it shows, `triple` is LLVM's system.

    Raises
    ------
    ValueError
        The machine code needs something that is not in it.
    """
    if "linux" in triple:
        return _link_elf(_Object(content), names)
    # The oldest macOS of this processor. On Windows, a library would need a function that starts it.
    target = ["aarch64-macos.11.0"] if "apple" in triple else ["x86_64-windows-gnu", "-Wl,--no-entry"]
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "kernels.o"), Path(folder, "kernels.library")
        source.write_bytes(content)
        command = ["-m", "ziglang", "cc", "-target", *target, "-shared", "-nostdlib", "-o", str(result), str(source)]
        subprocess.run([sys.executable, *command], check=True)
        return result.read_bytes()


# --- the object file -------------------------------------------------------------------------------------------------

_HEADER, _SEGMENT, _SECTION = (
    struct.Struct("<16sHHIQQQIHHHHHH"),
    struct.Struct("<IIQQQQQQ"),
    struct.Struct("<IIQQQQIIQQ"),
)
_SYMBOL, _RELOCATION = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_X86, _ARM = 62, 183  # machines
_PROGBITS, _SYMTAB, _STRTAB, _RELA, _HASH, _DYNAMIC, _DYNSYM = 1, 2, 3, 4, 5, 6, 11  # kinds of sections
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4  # flags of sections


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    content: bytes
    info: int  # of relocations: the section that they change


class _Symbol(NamedTuple):
    name: str
    section: int  # 0, if it is not defined
    value: int  # its offset in the section
    size: int


class _Object:
    """An object file of LLVM: its machine, sections and symbols."""

    def __init__(self, content: bytes) -> None:
        _, _, self.machine, _, _, _, table, *_, count, names = _HEADER.unpack_from(content)
        rows = [_SECTION.unpack_from(content, table + i * _SECTION.size) for i in range(count)]
        strings = self._content(content, rows[names])
        self.sections = [
            _Section(_text_at(strings, row[0]), row[1], row[2], self._content(content, row), row[7]) for row in rows
        ]
        symbols = next(section.content for section in self.sections if section.kind == _SYMTAB)
        self.symbols = [
            _Symbol(_text_at(strings, name), section, value, size)
            for name, _, _, section, value, size in _SYMBOL.iter_unpack(symbols)
        ]

    @staticmethod
    def _content(content: bytes, row: tuple[int, ...]) -> bytes:
        return content[row[4] : row[4] + row[5]] if row[1] != 8 else b""  # 8: memory without a content

    def numbers(self, executable: bool) -> list[int]:
        """Return the numbers of the sections of code, or those of constants; tables for debuggers are left out."""
        return [
            i
            for i, section in enumerate(self.sections)
            if section.kind == _PROGBITS
            and section.name != ".eh_frame"
            and section.flags & (_ALLOC | _WRITE | _EXECUTE) == (_ALLOC | _EXECUTE * executable)
        ]

    def relocations(self, section: int) -> Iterator[tuple[int, int, _Symbol, int]]:
        """Yield the relocations of a section: offset, kind, symbol, and the number that is added to its address."""
        for one in self.sections:
            if one.kind == _RELA and one.info == section:
                for offset, info, addend in _RELOCATION.iter_unpack(one.content):
                    yield offset, info & 0xFFFF_FFFF, self.symbols[info >> 32], addend


def _text_at(strings: bytes, start: int) -> str:
    return strings[start : strings.index(b"\0", start)].decode()


# --- the library -----------------------------------------------------------------------------------------------------

_PAGE = 0x1_0000  # the largest one of any processor
_LINE = 64  # parts begin at a cache line
_LOAD, _DYNAMIC_SEGMENT, _STACK = 1, 2, 0x6474_E551  # kinds of segments
_RX, _R, _RW = 5, 4, 6  # their flags
_NUM_SEGMENTS = 5
_FUNCTION = 0x12  # of symbols: global, a function


class _Part(NamedTuple):
    """A part of the file: a row of the table of sections."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    address: int
    link: int = 0
    info: int = 0
    entry: int = 0  # the size of a row, if it is a table


def _link_elf(code: _Object, names: Sequence[str]) -> bytes:
    image = bytearray(_HEADER.size + _NUM_SEGMENTS * _SEGMENT.size)
    parts = [_Part("", 0, 0, 0, 0, 0)]
    addresses: dict[int, int] = {}  # of the sections of the object file

    def append(content: bytes) -> int:
        image.extend(bytes(-len(image) % _LINE))
        image.extend(content)
        return len(image) - len(content)

    def append_part(name: str, kind: int, flags: int, content: bytes, shift: int = 0, **others: int) -> _Part:
        start = append(content)
        parts.append(_Part(name, kind, _ALLOC | flags, start, len(content), start + shift, **others))
        return parts[-1]

    def append_sections(name: str, executable: bool, shift: int) -> _Part:
        start = append(b"")
        for number in code.numbers(executable):
            addresses[number] = append(code.sections[number].content) + shift
        flags = _ALLOC | _EXECUTE * executable
        parts.append(_Part(name, _PROGBITS, flags, start, len(image) - start, start + shift))
        return parts[-1]

    strings, count = b"\0" + b"".join(name.encode() + b"\0" for name in names), len(names) + 1
    # One bucket, whose chain has all symbols, because they are few.
    table = struct.pack(f"<{count + 3}I", 1, count, 1, 0, *range(2, count), 0)
    tables = [
        append_part(".hash", _HASH, 0, table, link=2),
        append_part(".dynsym", _DYNSYM, 0, bytes(count * _SYMBOL.size), link=3, info=1, entry=_SYMBOL.size),
        append_part(".dynstr", _STRTAB, 0, strings),
    ]
    append_sections(".rodata", False, 0)
    text = append_sections(".text", True, _PAGE)
    tags = [*zip((4, 6, 5), (part.address for part in tables), strict=True), (10, len(strings)), (11, _SYMBOL.size)]
    entries = b"".join(struct.pack("<QQ", *entry) for entry in (*tags, (0, 0)))
    dynamic = append_part(".dynamic", _DYNAMIC, _WRITE, entries, 2 * _PAGE, link=3, entry=16)

    defined = {symbol.name: symbol for symbol in code.symbols if symbol.section in addresses}
    for i, name in enumerate(names, 1):
        symbol = defined[name]
        where = addresses[symbol.section] + symbol.value
        row = strings.index(b"\0" + name.encode() + b"\0") + 1, _FUNCTION, 0, parts.index(text), where, symbol.size
        _SYMBOL.pack_into(image, tables[1].offset + i * _SYMBOL.size, *row)
    for number, address in addresses.items():
        shift = _PAGE if code.sections[number].flags & _EXECUTE else 0
        for offset, kind, symbol, addend in code.relocations(number):
            if symbol.section not in addresses:
                raise ValueError(f"the machine code needs {symbol.name or 'a section'}, which is not in it")
            value = addresses[symbol.section] + symbol.value + addend
            _relocate(image, address - shift + offset, address + offset, code.machine, kind, value)

    _append_section_table(image, parts)
    segments = [
        (_LOAD, _R, 0, text.offset, 0),
        (_LOAD, _RX, text.offset, text.size, _PAGE),
        (_LOAD, _RW, dynamic.offset, dynamic.size, 2 * _PAGE),
        (_DYNAMIC_SEGMENT, _RW, dynamic.offset, dynamic.size, 2 * _PAGE),
        (_STACK, _RW, 0, 0, 0),
    ]
    for i, (kind, flags, offset, size, shift) in enumerate(segments):
        where = offset + shift
        place = _HEADER.size + i * _SEGMENT.size
        align = _PAGE if kind == _LOAD else _LINE
        _SEGMENT.pack_into(image, place, kind, flags, offset, where, where, size, size, align)
    first_section = len(image) - len(parts) * _SECTION.size
    magic, library = b"\x7fELF\x02\x01\x01".ljust(16, b"\0"), 3
    sizes = _HEADER.size, _SEGMENT.size, _NUM_SEGMENTS, _SECTION.size, len(parts), len(parts) - 1
    _HEADER.pack_into(image, 0, magic, library, code.machine, 1, 0, _HEADER.size, first_section, 0, *sizes)
    return bytes(image)


def _append_section_table(image: bytearray, parts: list[_Part]) -> None:
    names = [*(part.name for part in parts), ".shstrtab"]
    strings = b"\0".join(name.encode() for name in names) + b"\0"
    parts.append(_Part(names[-1], _STRTAB, 0, len(image), len(strings), 0))
    image.extend(strings)
    image.extend(bytes(-len(image) % _LINE))
    for i, part in enumerate(parts):
        name = sum(len(before) + 1 for before in names[:i])
        row = name, part.kind, part.flags, part.address, part.offset, part.size, part.link, part.info
        image.extend(_SECTION.pack(*row, _LINE if part.kind else 0, part.entry))


# --- relocations -----------------------------------------------------------------------------------------------------

_DISTANCES = {(_X86, 2), (_X86, 4), (_ARM, 261)}  # 32 bits: of a place from the number that is written
_ARM_CALLS = {282, 283}  # 26 bits: of a branch, in instructions
_ARM_PAGE = 275  # 21 bits: of pages of 4 KB
_ARM_LOWER = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # the lower 12 bits, in units of 2^k bytes


def _relocate(image: bytearray, place: int, address: int, machine: int, kind: int, value: int) -> None:
    """Write the relation between an address and a value, which is an address too, at a place of the file."""
    if (machine, kind) in _DISTANCES:
        struct.pack_into("<i", image, place, value - address)
        return
    (instruction,) = struct.unpack_from("<I", image, place)
    if machine == _ARM and kind in _ARM_CALLS:
        instruction |= (value - address) >> 2 & 0x3FF_FFFF
    elif machine == _ARM and kind == _ARM_PAGE:
        pages = (value >> 12) - (address >> 12)
        instruction |= (pages & 3) << 29 | (pages >> 2 & 0x7_FFFF) << 5
    elif machine == _ARM and kind in _ARM_LOWER:
        instruction |= (value & 0xFFF) >> _ARM_LOWER[kind] << 10
    else:
        raise ValueError(f"a relocation of kind {kind} on machine {machine}, which this linker does not know")
    struct.pack_into("<I", image, place, instruction)
