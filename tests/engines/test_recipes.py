"""The programs of integrations/README.md on real engines print what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.outcomes import python

PAGE = (Path(__file__).parents[2] / "minibert" / "integrations" / "README.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.engines


@pytest.mark.parametrize(
    ("heading", "libraries"),
    [("Ray Data", ["ray"]), ("Ray Serve", ["ray"]), ("Spark", ["pyspark"]), ("Dask", ["dask", "distributed"])],
)
def test_a_program_of_the_page(tmp_path: Path, heading: str, libraries: list[str]) -> None:
    for library in libraries:
        pytest.importorskip(library)
    if heading == "Spark" and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")
    below = PAGE.partition(f"\n## {heading}\n")[2]
    found = re.search(r"^```python\n(.*?)^```$\n\n```text\n(.*?)^```$", below, re.MULTILINE | re.DOTALL)
    assert found is not None
    code, shown = found.groups()
    # On a busy machine Serve's proxy hears of the application a moment after serve.run has returned.
    code = code.replace('body = json.dumps({"input"', 'import time\ntime.sleep(20)\nbody = json.dumps({"input"')
    (tmp_path / "program.py").write_text(code, encoding="utf-8")
    done = python("-W", "ignore", "program.py", folder=tmp_path, PYSPARK_PYTHON=sys.executable, RAY_ADDRESS="")
    assert done.returncode == 0, done.stderr[-4000:]
    # The lines of Ray's own processes are left out.
    assert shown in re.sub(r"^.*\((raylet|pid=).*\n", "", done.stdout, flags=re.MULTILINE)
