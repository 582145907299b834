"""The linker: the machine code of the kernels -> a shared library.

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
