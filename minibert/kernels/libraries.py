"""The libraries of compiled kernels: which there are, which fit the processor, and how one is loaded.

What        `load_run_task` returns the one function of kernels/ that Python calls. It is in a shared library, which was
            compiled when minibert was installed (build.py). ctypes loads it; Numba and LLVM are not needed
Levels      There is a library for each *level*: a set of instructions, such as AVX2. `LEVELS` lists them, the best one
            first. The best library that is there and whose instructions the processor has is loaded. All levels compute
            the same bits. MINIBERT_LEVEL names a lesser one, for tests and measurements
Files       The folder `built` beside this file has the libraries and an index of them, `index.json`: the version of its
            format, the SHA-256 of the sources that were compiled, and the SHA-256 of each library. A library of other
            sources, or a file that is damaged, is refused before it is loaded, because it could end the process. A
            damaged or missing library is named in a warning, and the next one is used. Python that runs in a clone
            imports the clone's files; if the package is installed elsewhere, its libraries are used, if they fit
Frozen      An application may have no .py files of minibert; then there is nothing that the libraries could differ
            from. In an archive (zipapp), a library is copied into a temporary file while it is loaded
Features    A function of each library asks the processor (the instruction CPUID) which instructions it has, and the
            system which registers it saves (XGETBV). ARM does not have such an instruction, so the system is asked
AMX         Linux gives the matrices of AMX only to processes that ask for them. From then on it refuses stacks for
            signals (`sigaltstack`) that are too small for their contents. So float32 does not use this level
Contract    This file imports neither Numba nor LLVM, because neither is there when minibert runs. A library is never
            unloaded, because a helper thread may still run it
Source      Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID, and volume 1, 13.2; x86-64
            psABI, 3.1.1 (levels v3 and v4); Linux, Documentation/arch/x86/xstate.rst
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from minibert._utils.files import parse_json
from minibert._utils.reporting import warn_caller
from minibert.bert import low_precision, reference
from minibert.bert.low_precision import COMPUTE_TYPES

Kernel = Callable[[int], None]
"""A compiled function of one address. It does not raise, and other Python threads run meanwhile."""


def _folder() -> Path:
    """Return the folder `built` beside this file; if a clone has none, the folder of the installed package."""
    beside, clone = Path(__file__).parent / "built", Path(__file__).parents[2]
    if not beside.exists() and (clone / "pyproject.toml").exists():
        from importlib import metadata  # only here, because its import takes long

        with contextlib.suppress(metadata.PackageNotFoundError):
            return Path(str(metadata.distribution("minibert-numpy").locate_file("minibert/kernels/built")))
    return beside


FOLDER = _folder()
"""The folder of the libraries."""

INDEX = "index.json"
FORMAT = 1
"""Is raised when the index, the names of the functions or their arguments change."""

COMPILED_LEVEL = "MINIBERT_COMPILED_LEVEL"
"""The variable of the level for which the kernels are compiled; only build.py sets it."""

MACHINE = {"AMD64": "x86_64", "aarch64": "arm64", "ARM64": "arm64"}.get(platform.machine(), platform.machine())
"""The kind of processor; each system writes these names in its own way."""

# --- levels ----------------------------------------------------------------------------------------------------------

_AVX2 = frozenset(["avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"])
_AVX512 = _AVX2 | frozenset(["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"])


class Level(NamedTuple):
    """A set of instructions.

    Parameters
    ----------
    name : str
    machine : str                   "x86_64" or "arm64"
    features : frozenset of str     beyond the first processors of this kind, by LLVM's names
    compute_types : tuple of str    which the library has
    """

    name: str
    machine: str
    features: frozenset[str]
    compute_types: tuple[str, ...] = COMPUTE_TYPES


LEVELS = {
    level.name: level
    for level in (
        Level("x86-64-amx", "x86_64", _AVX512 | {"avx512vnni", "amx-tile", "amx-int8"}),
        Level("x86-64-vnni", "x86_64", _AVX512 | {"avx512vnni"}),
        Level("x86-64-avx512", "x86_64", _AVX512),
        Level("x86-64-avxvnni", "x86_64", _AVX2 | {"avxvnni"}),
        Level("x86-64-avx2", "x86_64", _AVX2),
        Level("x86-64", "x86_64", frozenset(), ("float32",)),
        Level("arm64-dotprod", "arm64", frozenset({"dotprod"})),
        Level("arm64", "arm64", frozenset()),
    )
}
"""The levels by name. On each kind of processor, a later one has fewer instructions."""

# Feature -> leaf and subleaf of CPUID, register of the answer (EAX, EBX, ECX, EDX), bit.
_CPUID = {
    **{name: (1, 0, 2, bit) for name, bit in {"fma": 12, "movbe": 22, "avx": 28, "f16c": 29}.items()},
    "lzcnt": (0x8000_0001, 0, 2, 5),
    **{name: (7, 0, 1, bit) for name, bit in {"bmi": 3, "avx2": 5, "bmi2": 8}.items()},
    **{f"avx512{name}": (7, 0, 1, bit) for name, bit in {"f": 16, "dq": 17, "cd": 28, "bw": 30, "vl": 31}.items()},
    "avx512vnni": (7, 0, 2, 11),
    "amx-tile": (7, 0, 3, 24),
    "amx-int8": (7, 0, 3, 25),
    "avxvnni": (7, 1, 0, 4),
}
# Beginning of a feature -> the bits of XCR0 that say that the system saves its registers.
_SAVED = {"avx512": 0xE6, "avx": 0x6, "fma": 0x6, "f16c": 0x6, "amx": 0x6_0000}
_XGETBV = 1 << 27  # of leaf 1, ECX: the instruction exists


def processor_features(library: ctypes.CDLL) -> frozenset[str]:
    """Return those features of `LEVELS` that this processor and its system have."""
    if MACHINE == "arm64":
        return frozenset({"dotprod"} if _has_dotprod() else ())

    def cpuid(leaf: int, subleaf: int = 0) -> list[int]:
        answer = (ctypes.c_uint32 * 4)()
        library.cpuid(ctypes.c_int64(leaf), ctypes.c_int64(subleaf), ctypes.c_int64(ctypes.addressof(answer)))
        return list(answer)

    saved = (ctypes.c_int64 * 1)()
    if cpuid(1)[2] & _XGETBV:
        library.xgetbv(ctypes.c_int64(ctypes.addressof(saved)))
    features = set()
    for name, (leaf, subleaf, register, bit) in _CPUID.items():
        exists = leaf <= cpuid(leaf & 0x8000_0000)[0] and subleaf <= (cpuid(leaf)[0] if leaf == 7 else 0)
        needed = next((bits for start, bits in _SAVED.items() if name.startswith(start)), 0)
        if exists and cpuid(leaf, subleaf)[register] >> bit & 1 and saved[0] & needed == needed:
            features.add(name)
    return frozenset(features)


def _has_dotprod() -> bool:
    if platform.system() == "Linux":
        at_hwcap, asimddp = 16, 1 << 20
        return bool(ctypes.CDLL(None).getauxval(ctypes.c_ulong(at_hwcap)) & asimddp)
    if sys.platform == "win32":
        dot_product = 43  # PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
        return bool(ctypes.windll.kernel32.IsProcessorFeaturePresent(dot_product))
    return sys.platform == "darwin"  # every Mac with such a processor


@functools.cache
def may_use_tiles() -> bool:
    """Ask Linux for the matrices of AMX; return whether it gives them to this process."""
    if sys.platform != "linux" or MACHINE != "x86_64":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    call = ctypes.CDLL(None).syscall
    call.restype, call.argtypes = ctypes.c_long, (ctypes.c_long,) * 3
    return bool(call(arch_prctl, request_permission, tile_data) == 0)


# --- files -----------------------------------------------------------------------------------------------------------


class Library(NamedTuple):
    """A library of the index: the name of its file, and the SHA-256 of the file."""

    file: str
    digest: str


_loader: Any = __spec__.loader  # reads files, also if minibert is in an archive


@functools.cache
def _index() -> tuple[str, dict[str, Library]]:
    """Return what the index says: the SHA-256 of the sources, and the libraries by the name of their level."""
    path = FOLDER / INDEX
    try:
        index = parse_json(_loader.get_data(str(path)), str(path))
        rows = index["libraries"].items()
        built = {name: Library(str(row["file"]), str(row["sha256"])) for name, row in rows}
        if index["format"] != FORMAT:
            raise ImportError(f"{path} belongs to other sources; install minibert again")
        return str(index["sources"]), built
    except OSError as error:
        if error.errno in (0, errno.ENOENT):  # 0: there is no such file in an archive
            raise ImportError("minibert was installed without compiled kernels") from None
        raise ImportError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImportError(f"{path} is damaged; install minibert again") from error


@functools.cache
def sources() -> str:
    """Return the SHA-256 of all files from which the kernels are compiled, at the first call in this process.

    Without these files, as in a frozen application, it is the one in the index.
    """
    paths = [*sorted(Path(__file__).parent.glob("*.py"))]
    paths += [Path(str(module.__file__)).with_suffix(".py") for module in (low_precision, reference)]
    if not all(path.is_file() for path in (Path(__file__).with_suffix(".py"), *paths)):
        return _index()[0]
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def libraries() -> dict[str, Library]:
    """Return the libraries that were built for this kind of processor, by the name of their level, the best one first.

    Raises
    ------
    ImportError
        There are none, their index is damaged, or they were compiled from other sources.
    """
    compiled, built = _index()
    if compiled != sources():
        raise ImportError(f"the kernels in {FOLDER} were compiled from other sources; install minibert again")
    return {name: built[name] for name, level in LEVELS.items() if level.machine == MACHINE and name in built}


@functools.cache
def _open(library: Library) -> ctypes.CDLL:
    """Load a library after its file was checked."""
    path = FOLDER / library.file
    try:
        content = _loader.get_data(str(path))
        if hashlib.sha256(content).hexdigest() != library.digest:
            raise ImportError(f"{path} is damaged, or is another build")
        if path.is_file():
            return ctypes.CDLL(str(path))
        import tempfile  # only for an archive, because its import takes long

        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps a file that is loaded
            copy = Path(folder, library.file)
            copy.write_bytes(content)
            return ctypes.CDLL(str(copy))
    except (OSError, ValueError) as error:
        raise ImportError(f"{path} cannot be loaded: {error}") from error


@functools.cache
def usable_levels() -> dict[str, Level]:
    """Return the levels that have a library and fit this processor, the best one first.

    Raises
    ------
    ImportError
        No library fits, or MINIBERT_LEVEL names a level that does not fit or has no library.

    Warns
    -----
    RuntimeWarning
        A library is damaged or missing.
    """
    opened, damaged = {}, []
    for name, library in libraries().items():
        try:
            opened[name] = _open(library)
        except ImportError as error:
            damaged.append(f"{error}, install minibert again")
    # The functions that ask the processor run on every processor, in each library.
    features = processor_features(next(iter(opened.values()))) if opened else frozenset()
    names = [name for name in opened if LEVELS[name].features <= features]
    if chosen := os.environ.get("MINIBERT_LEVEL"):
        if chosen not in names:
            expected = f"expected one of {', '.join(names) or 'no level'}"
            raise ImportError("; ".join([f"MINIBERT_LEVEL={chosen!r}; {expected}", *damaged]))
        names = names[names.index(chosen) :]
    if not names:
        none = f"none of the compiled kernels ({', '.join(libraries()) or 'none'}) fits this processor"
        raise ImportError("; ".join(damaged) or none)
    if damaged:
        warn_caller(f"{'; '.join(damaged)}. Until then {names[0]} is used, with the same results.", RuntimeWarning)
    return {name: LEVELS[name] for name in names}


def level() -> Level:
    """Return the level that this process uses; while kernels are compiled, the one for which they are compiled.

    Raises
    ------
    ImportError
        As `usable_levels`.
    """
    if (compiled := os.environ.get(COMPILED_LEVEL)) in LEVELS:
        return LEVELS[compiled]
    return next(iter(usable_levels().values()))


@functools.cache
def level_of(compute_type: str) -> Level:
    """Return the level that is used for a compute type; float32 never uses AMX.

    Raises
    ------
    ImportError
        The library of this processor does not have the compute type, or needs AMX, which the system refuses.
    """
    chosen = level()
    if chosen.name == "x86-64-amx" and (compute_type == "float32" or not may_use_tiles()):
        lesser = usable_levels().get("x86-64-vnni")
        if lesser is None and compute_type != "float32":  # which does not use the matrices in any library
            raise ImportError("the system refuses AMX to this process, and x86-64-vnni was not built")
        chosen = lesser or chosen
    if compute_type not in chosen.compute_types:
        raise ImportError(f"the level {chosen.name} does not have kernels for compute_type={compute_type!r}")
    return chosen


@functools.cache
def load_run_task(compute_type: str = "float32") -> Kernel:
    """Return the function of run_task.py as machine code, which computes the tasks of a compute type.

    Raises
    ------
    ImportError
        As `libraries`, `usable_levels` and `level_of`; or MINIBERT_COMPILED_LEVEL is set.
    """
    if COMPILED_LEVEL in os.environ:  # the processor may not have the instructions of that level
        raise ImportError(f"{COMPILED_LEVEL} is set, which only the build of the kernels sets; unset it")
    function = _open(libraries()[level_of(compute_type).name]).run_task
    function.restype, function.argtypes = None, (ctypes.c_int64,)
    return function
