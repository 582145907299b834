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

# Checks the numbers, and prints how often the kernels were compiled. If OUTCOMES_STOCK names a file of machine code,
# "compiling" takes the code from it, because true compilation takes many seconds and is not what most tests are about.
PROGRAM = """
from minibert.kernels import cache as kernel_cache
from minibert.kernels.cache import ObjectCode
compilations, compile_code = [], kernel_cache._compile_code
def counted(compute_type):
    compilations.append(1)
    if not os.environ.get("OUTCOMES_STOCK"):
        return compile_code(compute_type)
    line, _, content = Path(os.environ["OUTCOMES_STOCK"]).read_bytes()[32:].partition(b"\\n")
    return ObjectCode(json.loads(line)["symbol"], content)
kernel_cache._compile_code = counted
check(load())
print("compiled:", len(compilations))
"""

ONCE, NEVER = "1", "0"  # what `compiled` returns


def compiled(printed: str) -> str:
    found = re.search(r"^compiled: ?(.*)$", printed, flags=re.MULTILINE)
    return found[1] if found else printed


def report(title: str, outcome: str) -> None:
    REPORT.append(outcomes.line(f"cache, {title}", Counter([outcome])))


def machine_code(cache: Path) -> Path:
    """Return the one file of machine code in a cache."""
    (path,) = cache.rglob("*.bin")
    return path


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
