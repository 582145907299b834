"""The programs of integrations/README.md on real engines print what the page shows."""

from __future__ import annotations

import os
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from minibert import SentenceTransformer
from tests.support.engine_runs import RayRun, python_blocks, run_program

PAGE = (Path(__file__).parents[2] / "minibert" / "integrations" / "README.md").read_text(encoding="utf-8")
BLOCKS = python_blocks(PAGE)

pytestmark = pytest.mark.engines


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(library) is None, reason=f"needs {library}")


@needs("ray")
def test_the_command_of_the_page(tmp_path: Path) -> None:
    (line,) = (line for line in PAGE.splitlines() if line.startswith("minibert embed"))
    texts = ["A cat sleeps.", "A kitten naps."]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    words = shlex.split(line)[2:]
    code, said = RayRun([str(tmp_path / word) if word.endswith((".txt", ".npy")) else word for word in words]).end()
    assert code == 0, said
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), SentenceTransformer().encode(texts))


@pytest.mark.parametrize(
    ("heading", "libraries"),
    [("Ray Data", ["ray"]), ("Ray Serve", ["ray"]), ("Spark", ["pyspark"]), ("Dask", ["dask", "distributed"])],
)
def test_a_program_of_the_page(tmp_path: Path, heading: str, libraries: list[str]) -> None:
    for library in libraries:
        pytest.importorskip(library)
    if heading == "Spark" and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")
    code, shown = BLOCKS(heading)
    # On a busy machine Serve's proxy hears of the application a moment after serve.run has returned.
    code = code.replace('body = json.dumps({"input"', 'import time\ntime.sleep(20)\nbody = json.dumps({"input"')
    assert shown in run_program(code, tmp_path)
