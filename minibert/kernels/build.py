"""The build of the kernels, when minibert is installed: hatchling, which makes the wheel, loads this file.

What        `pip install .` compiles a library of kernels for each level of libraries.py that is wanted, each in its own
            process, with Numba in pip's isolated environment. Neither Numba nor LLVM is installed with minibert
Levels      Without MINIBERT_KERNELS: the best level of this machine, the best one without AMX, AVX2, and the lowest; on
            ARM both levels, because LLVM does not find sdot there. So an image or a wheel that was made here computes
            on every other machine too. MINIBERT_KERNELS=all makes all levels of this kind of processor; names of
            levels, separated by commas, make these; none makes none
Failure     Where Numba has wheels, a build that fails ends the installation with the reason. Elsewhere the wheel is
            made without kernels, and minibert computes with NumPy, and says so
Editable    An editable installation writes the libraries into the tree. They are for its sources: after a change of
            them, install again
Contract    hatchling loads this file alone, before Numba is there. So it imports minibert and Numba only where they are
            needed
Source      https://hatch.pypa.io/latest/plugins/build-hook/reference/
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from minibert.kernels.libraries import Level

_NUMBA = "numba>=0.68,<1"
_ZIGLANG = "ziglang>=0.13"
_FOLDER = "minibert/kernels/built"
_SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")


class KernelsHook(BuildHookInterface):
    """Compile the kernels, and add them to the wheel."""

    def dependencies(self) -> list[str]:
        """Return what pip installs for the build: Numba, if it has wheels for this system and Python."""
        if not _can_build():
            return []
        return [_NUMBA] if sys.platform == "linux" else [_NUMBA, _ZIGLANG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the libraries: into the tree, if the installation is editable, else into the wheel."""
        if not _can_build():
            self.app.display_warning(
                "minibert is installed without compiled kernels: Numba has no wheels for this system"
            )
            return
        root = Path(self.root)
        self._temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        files = build(root, Path(self._temporary.name))
        if version == "editable":
            shutil.rmtree(root / _FOLDER, ignore_errors=True)
            (root / _FOLDER).mkdir()  # which other users may read, unlike a temporary folder
            for file in files:
                shutil.copy(file, root / _FOLDER)
        elif files:
            for file in files:
                build_data["force_include"][str(file)] = f"{_FOLDER}/{file.name}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete what `initialize` made beside the wheel."""
        if hasattr(self, "_temporary"):
            self._temporary.cleanup()


def _can_build() -> bool:
    """Return whether Numba has wheels for this system and this Python, and `link` can make libraries for it."""
    if os.environ.get("MINIBERT_KERNELS") == "none":
        return False
    system, machine = sys.platform, platform.machine()
    known = {("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")}
    if (system, machine) not in known or sys.implementation.name != "cpython" or sys.version_info >= (3, 15):
        return False
    if sys.maxsize < 2**32:  # a Python of 32 bits, such as that of Raspberry Pi OS, on a system of 64 bits
        return False
    return system != "linux" or platform.libc_ver()[0] == "glibc"


def build(root: Path, folder: Path) -> list[Path]:
    """Compile the libraries of the wanted levels of the sources in a tree; return their files and the index.

    Raises
    ------
    RuntimeError
        A level could not be compiled. The message has the output of the compiler.
    """
    sys.path.insert(0, str(root))
    try:
        # An import of minibert.kernels needs a level, and there is no library yet that could say which one fits.
        os.environ["MINIBERT_COMPILED_LEVEL"] = "x86-64" if platform.machine() in ("x86_64", "AMD64") else "arm64"
        from minibert.kernels import libraries

        levels = _wanted(libraries.LEVELS, libraries.MACHINE)
        paths = [folder / f"{level.name}{_SUFFIX}" for level in levels]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_compile, [root] * len(levels), levels, paths))
        index = {
            "format": libraries.FORMAT,
            "sources": libraries.sources(),
            "libraries": {
                level.name: {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
                for level, path in zip(levels, paths, strict=True)
            },
        }
        paths.append(folder / libraries.INDEX)
        paths[-1].write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
        return paths
    finally:
        sys.path.remove(str(root))
        del os.environ["MINIBERT_COMPILED_LEVEL"]


def _wanted(levels: dict[str, Level], machine: str) -> list[Level]:
    """Return the levels to build."""
    own = [level for level in levels.values() if level.machine == machine]
    asked = os.environ.get("MINIBERT_KERNELS")
    if asked == "all" or (not asked and machine == "arm64"):
        return own
    if asked:
        unknown = [name for name in asked.split(",") if name not in levels]
        if unknown:
            raise RuntimeError(f"MINIBERT_KERNELS={asked!r}; expected all, none, or some of {', '.join(levels)}")
        return [levels[name] for name in asked.split(",")]
    import llvmlite.binding as llvm

    features = {name for name, has in llvm.get_host_cpu_features().items() if has}
    fitting = [level for level in own if level.features <= features]
    without_tiles = next(level for level in fitting if "amx-tile" not in level.features)
    names = {fitting[0].name, without_tiles.name, "x86-64-avx2", own[-1].name}
    return [level for level in own if level.name in names]


def _compile(root: Path, level: Level, path: Path) -> None:
    """Compile the library of one level, in a process of its own."""
    # Numba's variables change the code, and with the other one Python would not search minibert in `root` first.
    others = {k: value for k, value in os.environ.items() if not k.startswith(("NUMBA_", "PYTHONSAFEPATH"))}
    done = subprocess.run(
        [sys.executable, "-m", "minibert.kernels.run_task", str(path)],
        cwd=root,
        env={**others, "MINIBERT_COMPILED_LEVEL": level.name},
        capture_output=True,
        text=True,
    )
    if done.returncode or not path.is_file():
        reason = f"exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        raise RuntimeError(f"the kernels for {level.name} could not be compiled, {reason}")
