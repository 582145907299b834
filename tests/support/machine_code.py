"""Programs that load compiled kernels, and the files of their cache."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import minibert
from tests.support import outcomes
from tests.support.report import REPORT

PACKAGE = Path(minibert.__file__).parent

# Checks the numbers, and prints the names of the kernels that were compiled.
PROGRAM = """
check(load())
ours = [vars(module) for name, module in sys.modules.items() if name.startswith("minibert.kernels.")]
kernels = {id(value): value for names in ours for value in names.values() if hasattr(value, "stats")}
compiled = [kernel.__name__ for kernel in kernels.values() if kernel.stats.cache_misses and kernel.stats.cache_path]
print("compiled:", *sorted(compiled))
"""

ALL = "describe_attention describe_embed describe_layer_norm describe_linear run_task"
SMALL = "describe_layer_norm"  # it compiles fastest, so most cases damage only this one


def compiled(printed: str) -> str:
    found = re.search(r"^compiled: ?(.*)$", printed, flags=re.MULTILINE)
    return found[1] if found else printed


def report(title: str, outcome: str) -> None:
    REPORT.append(outcomes.line(f"cache, {title}", Counter([outcome])))


def files(cache: Path, kernel: str = "") -> list[Path]:
    return sorted(path for path in cache.rglob("*.bin") if path.name.startswith(kernel))


def copy_package(folder: Path) -> Path:
    """Copy the package to `folder`, without the machine code in __pycache__."""
    shutil.copytree(PACKAGE, folder / "minibert", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def unusable_places(tmp_path: Path) -> dict[str, str]:
    """Return a package folder and a HOME in which even root cannot write, because files replace the folders."""
    package = copy_package(tmp_path / "package")
    (package / "minibert" / "kernels" / "__pycache__").write_text("")
    nowhere = tmp_path / "nowhere"
    nowhere.write_text("")
    return {
        "PYTHONPATH": f"{package}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(nowhere),
        "XDG_CACHE_HOME": str(nowhere),
        "NUMBA_CACHE_DIR": "",
    }
