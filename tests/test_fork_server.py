"""Children of Python's fork server, as models/README.md shows them: the model is loaded once, before the first one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.marks import unix
from tests.support.outcomes import PATIENCE, ROOT

PAGE = (ROOT / "minibert/models/README.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Many children of one process\n")[2].partition("\n## ")[0]
FILES = re.findall(r"```py\n(# (\w+\.py).*?)```", SECTION, re.DOTALL)

# Each child says how often it has loaded the model, and whether this was before its first call.
COUNTS = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from embedder import count, model

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    with ProcessPoolExecutor(2, mp_context=context) as children:
        print([*children.map(count, range(4))], model.cache_info().misses)
"""
COUNT = """

def count(number):
    before = model.cache_info().misses
    encode("a text")
    return before, model.cache_info().misses
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert [name for _, name in FILES] == ["embedder.py", "preloaded.py", "agents.py"]
    for code, name in FILES:
        (tmp_path / name).write_text(code, encoding="utf-8")
    return tmp_path


def run(folder: Path, name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@unix
def test_the_program_of_the_page(folder: Path) -> None:
    shown = re.search(r"```text\n(.*?)```", SECTION, re.DOTALL)
    assert shown is not None
    assert run(folder, "agents.py") == shown[1]


@unix
def test_children_have_the_model_and_the_program_does_not(folder: Path) -> None:
    (folder / "embedder.py").write_text((folder / "embedder.py").read_text() + COUNT)
    (folder / "counts.py").write_text(COUNTS)
    assert run(folder, "counts.py") == "[(1, 1), (1, 1), (1, 1), (1, 1)] 0\n"
