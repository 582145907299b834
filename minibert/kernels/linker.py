"""The linker: the machine code of the kernels -> a shared library.

What        `link` makes a library of the kernels' machine code. For Linux this file does it, on x86-64 and arm64. For
            macOS and Windows the linker of the package ziglang does it, for which build.py asks
Why         The kernels use no other library and no data that can be written, and LLVM is told to make code that may be
            at any address. So linking is: put the code beside the constants, write the distances between them into the
            code, and list the names. ziglang does this for every system, but it is 100 MB to download, and 411 MB in
            20,000 files to install. This file takes milliseconds. A library of macOS needs a signature, and one of
            Windows another format, so there the package is used
Layout      The file is mapped as two segments. The first one can be read and executed; in it, each address is an offset
            in the file. The second one is the table for the system's loader, which writes addresses into it. Both
            segments map the page of the file in which the first one ends::

                header | segments | code and constants | symbols | names | hashes || table for the loader

            There is no table of sections: nm and objdump read it, and the loader does not
Contract    A relocation of another kind, or a name that is not defined, is an error
Source      System V ABI, chapters 4 and 5; AMD64 supplement, 4.4; ELF for the Arm 64-bit Architecture, 5.7
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


def link(content: bytes, names: Sequence[str], triple: str) -> bytes:
    """Make a shared library of an object file; `names` are the functions that it shows, `triple` is LLVM's system.

    Raises
    ------
    ValueError
        The machine code needs something that is not in it.
    """
    if "linux" in triple:
        return _link_elf(_Object(content), names)
    # The oldest macOS of arm64. On Windows, a library would need a function that starts it.
    processor = triple.partition("-")[0].replace("arm64", "aarch64")  # as ziglang names it
    target = [f"{processor}-macos.11.0"] if "apple" in triple else [f"{processor}-windows-gnu", "-Wl,--no-entry"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernels.o").write_bytes(content)
        # A library of macOS contains the path that is written here, so it does not name the temporary folder.
        command = ["-m", "ziglang", "cc", "-target", *target, "-shared", "-nostdlib", "-o", "kernels", "kernels.o"]
        subprocess.run([sys.executable, *command], cwd=folder, check=True)
        return Path(folder, "kernels").read_bytes()


# --- the object file -------------------------------------------------------------------------------------------------

_HEADER, _SEGMENT = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
_SECTION, _SYMBOL, _RELOCATION = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_X86, _ARM = 62, 183  # machines
_PROGBITS, _SYMTAB, _RELA = 1, 2, 4  # kinds of sections
_WRITE, _ALLOC = 1, 2  # flags of sections


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

        def text(start: int) -> str:
            start += rows[names][4]
            return content[start : content.index(b"\0", start)].decode()

        self.sections = [
            _Section(text(name), kind, flags, content[offset : offset + size], info)
            for name, kind, flags, _, offset, size, _, info, *_ in rows
        ]
        symbols = next(section.content for section in self.sections if section.kind == _SYMTAB)
        self.symbols = [
            _Symbol(text(name), section, value, size)
            for name, _, _, section, value, size in _SYMBOL.iter_unpack(symbols)
        ]

    def relocations(self, section: int) -> Iterator[tuple[int, int, _Symbol, int]]:
        """Yield the relocations of a section: offset, kind, symbol, and the number that is added to its address."""
        for table in self.sections:
            if table.kind == _RELA and table.info == section:
                for offset, info, addend in _RELOCATION.iter_unpack(table.content):
                    yield offset, info & 0xFFFF_FFFF, self.symbols[info >> 32], addend


# --- the library -----------------------------------------------------------------------------------------------------

_PAGE = 0x1_0000  # the largest one of any processor
_LINE = 64  # parts begin at a cache line
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474_E551  # kinds of segments
_RX, _RW = 5, 6  # their flags
_NUM_SEGMENTS = 4
_FUNCTION = 0x12  # of symbols: global, a function


def _link_elf(code: _Object, names: Sequence[str]) -> bytes:
    image = bytearray(_HEADER.size + _NUM_SEGMENTS * _SEGMENT.size)

    def append(content: bytes) -> int:
        image.extend(bytes(-len(image) % _LINE))
        image.extend(content)
        return len(image) - len(content)

    # Code and constants; tables for debuggers are left out.
    addresses = {
        i: append(section.content)
        for i, section in enumerate(code.sections)
        if section.kind == _PROGBITS and section.flags & (_ALLOC | _WRITE) == _ALLOC and section.name != ".eh_frame"
    }
    for section, address in addresses.items():
        for offset, kind, symbol, addend in code.relocations(section):
            if symbol.section not in addresses:
                raise ValueError(f"the machine code needs {symbol.name or 'a section'}, which is not in it")
            value = addresses[symbol.section] + symbol.value + addend
            _relocate(image, address + offset, code.machine, kind, value)

    defined = {symbol.name: symbol for symbol in code.symbols if symbol.section in addresses}
    strings, symbols = b"\0", bytes(_SYMBOL.size)  # the first ones are empty
    for name in names:
        _, section, value, size = defined[name]
        symbols += _SYMBOL.pack(len(strings), _FUNCTION, 0, section, addresses[section] + value, size)
        strings += name.encode() + b"\0"
    count = len(names) + 1
    # One bucket, whose chain has all symbols, because they are few.
    hashes = struct.pack(f"<{count + 3}I", 1, count, 1, 0, *range(2, count), 0)
    tables = zip((6, 5, 4), map(append, (symbols, strings, hashes)), strict=True)  # the loader's numbers of them
    tags = [*tables, (10, len(strings)), (11, _SYMBOL.size), (0, 0)]
    table = b"".join(struct.pack("<QQ", *tag) for tag in tags)
    start, size = append(table), len(table)
    where = start + _PAGE
    magic, library = b"\x7fELF\x02\x01\x01".ljust(16, b"\0"), 3
    sizes = _HEADER.size, _SEGMENT.size, _NUM_SEGMENTS, 0, 0, 0
    _HEADER.pack_into(image, 0, magic, library, code.machine, 1, 0, _HEADER.size, 0, 0, *sizes)
    segments = [
        (_LOAD, _RX, 0, 0, 0, start, start, _PAGE),
        (_LOAD, _RW, start, where, where, size, size, _PAGE),
        (_DYNAMIC, _RW, start, where, where, size, size, _LINE),
        (_STACK, _RW, 0, 0, 0, 0, 0, _LINE),
    ]
    for i, segment in enumerate(segments):
        _SEGMENT.pack_into(image, _HEADER.size + i * _SEGMENT.size, *segment)
    return bytes(image)


# --- relocations -----------------------------------------------------------------------------------------------------

_DISTANCES = {(_X86, 2), (_X86, 4), (_ARM, 261)}  # 32 bits: of a place from the number that is written
_ARM_CALLS = {282, 283}  # 26 bits: of a branch, in instructions
_ARM_PAGE = 275  # 21 bits: of pages of 4 KB
_ARM_LOWER = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # the lower 12 bits, in units of 2^k bytes


def _relocate(image: bytearray, address: int, machine: int, kind: int, value: int) -> None:
    """Write at an address how far a value is from it; the value is an address, too."""
    if (machine, kind) in _DISTANCES:
        struct.pack_into("<i", image, address, value - address)
        return
    (instruction,) = struct.unpack_from("<I", image, address)
    if machine == _ARM and kind in _ARM_CALLS:
        instruction |= (value - address) >> 2 & 0x3FF_FFFF
    elif machine == _ARM and kind == _ARM_PAGE:
        pages = (value >> 12) - (address >> 12)
        instruction |= (pages & 3) << 29 | (pages >> 2 & 0x7_FFFF) << 5
    elif machine == _ARM and kind in _ARM_LOWER:
        instruction |= (value & 0xFFF) >> _ARM_LOWER[kind] << 10
    else:
        raise ValueError(f"a relocation of kind {kind} on machine {machine}, which this linker does not know")
    struct.pack_into("<I", image, address, instruction)
