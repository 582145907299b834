"""The build of the kernels, when minibert is installed: hatchling, which makes the wheel, loads this file.

What        `pip install .` compiles a library of kernels for each level of libraries.py that is wanted, each in its own
            process, with Numba in pip's isolated environment. Neither Numba nor LLVM is installed with minibert
Levels      Without MINIBERT_KERNELS: the best level of this machine, the best one without AMX, AVX2, and the lowest; on
            ARM both levels, because LLVM does not find sdot there. So an image or a wheel that was made here computes
            on every other machine too. MINIBERT_KERNELS=all makes all levels of this kind of processor; names of
            levels, separated by commas, make these; none makes none
Platforms   A name of `_PLATFORMS`, such as MINIBERT_KERNELS=win_arm64, makes the wheel of that platform on any
            machine, with all levels of its processor
Failure     Where Numba has a wheel, a build that fails ends the installation with the reason. Elsewhere the wheel is
            made without kernels, and minibert computes with NumPy, and says so. Nobody keeps a table of Numba's wheels:
            pip or uv, whichever installs, is asked
Editable    An editable installation writes the libraries into the tree. They are for its sources: after a change of
            them, install again
Contract    hatchling loads this file alone, before Numba is there. So it imports minibert and Numba only where they are
            needed
Source      https://hatch.pypa.io/latest/plugins/build-hook/reference/
"""

from __future__ import annotations

import hashlib
import importlib.util
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

# The tag of a platform -> its processor, LLVM's name of the system, and the suffix of a library. Numba has no wheels
# for the first two platforms, so their libraries are made on another one.
_PLATFORMS = {
    "macosx_11_0_x86_64": ("x86_64", "x86_64-apple-macosx11.0", ".dylib"),
    "win_arm64": ("arm64", "aarch64-pc-windows-gnu", ".dll"),
    "macosx_11_0_arm64": ("arm64", "aarch64-apple-macosx11.0", ".dylib"),
    "win_amd64": ("x86_64", "x86_64-pc-windows-gnu", ".dll"),
}


class KernelsHook(BuildHookInterface):
    """Compile the kernels, and add them to the wheel."""

    def dependencies(self) -> list[str]:
        """Return what pip installs for the build: Numba, if it has a wheel for this system and Python."""
        if not _can_build():
            return []
        return [_NUMBA] if sys.platform == "linux" and not _platform() else [_NUMBA, _ZIGLANG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the libraries: into the tree, if the installation is editable, else into the wheel."""
        if not _can_build():
            self.app.display_warning(
                "minibert is installed without compiled kernels: Numba has no wheel for this system and Python"
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
            own = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{_platform() or own}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete what `initialize` made beside the wheel."""
        if hasattr(self, "_temporary"):
            self._temporary.cleanup()


def _platform() -> str:
    """Return the tag of the platform for which the libraries are, if the user named one."""
    asked = os.environ.get("MINIBERT_KERNELS", "")
    return asked if asked in _PLATFORMS else ""


def _can_build() -> bool:
    """Return whether the user wants kernels, and Numba is here or has a wheel for this system and Python.

    If the package index does not answer, the result is True, and the installation of Numba gives the reason.
    """
    if os.environ.get("MINIBERT_KERNELS") == "none":
        return False
    return bool(importlib.util.find_spec("numba")) or _has_wheel(_NUMBA) or not _has_wheel("hatchling")


def _has_wheel(requirement: str) -> bool:
    """Ask the program that installs, uv or pip, whether there is a wheel for this system and Python."""
    uv = os.environ.get("UV", "")  # uv names itself to what it starts
    program = [uv, "pip", "install", "--python", sys.executable, "--reinstall"]
    if not uv:
        program = [sys.executable, "-m", "pip", "install", "--ignore-installed"]
    command = [*program, "--dry-run", "--no-deps", "--only-binary=:all:", requirement]
    # These variables hide pip from a build.
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, env=others, capture_output=True, check=False).returncode == 0


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

        machine, triple, suffix = _PLATFORMS.get(_platform(), (libraries.MACHINE, "", _SUFFIX))
        levels = _wanted(libraries.LEVELS, machine)
        paths = [folder / f"{level.name}{suffix}" for level in levels]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda level, path: _compile(root, level, path, triple), levels, paths))
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
    if asked == "all" or asked in _PLATFORMS or (not asked and machine == "arm64"):
        return own
    if asked:
        unknown = [name for name in asked.split(",") if name not in levels]
        if unknown:
            expected = f"all, none, one of {', '.join(_PLATFORMS)}, or some of {', '.join(levels)}"
            raise RuntimeError(f"MINIBERT_KERNELS={asked!r}; expected {expected}")
        return [levels[name] for name in asked.split(",")]
    import llvmlite.binding as llvm

    features = {name for name, has in llvm.get_host_cpu_features().items() if has}
    fitting = [level for level in own if level.features <= features]
    without_tiles = next(level for level in fitting if "amx-tile" not in level.features)
    names = {fitting[0].name, without_tiles.name, "x86-64-avx2", own[-1].name}
    return [level for level in own if level.name in names]


def _compile(root: Path, level: Level, path: Path, triple: str = "") -> None:
    """Compile the library of one level, in a process of its own; `triple` is LLVM's name of another system."""
    # Numba's variables change the code, and with the other one Python would not search minibert in `root` first.
    others = {k: value for k, value in os.environ.items() if not k.startswith(("NUMBA_", "PYTHONSAFEPATH"))}
    done = subprocess.run(
        [sys.executable, "-m", "minibert.kernels.run_task", str(path), triple],
        cwd=root,
        env={**others, "MINIBERT_COMPILED_LEVEL": level.name},
        capture_output=True,
        text=True,
    )
    if done.returncode or not path.is_file():
        reason = f"exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        raise RuntimeError(f"the kernels for {level.name} could not be compiled, {reason}")
