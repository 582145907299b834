"""The peers' own test suites, fetched when the tests run; nothing of them is in this repository."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def transformers_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder "tests" of the source distribution of the transformers that is installed."""
    import transformers

    pytest.importorskip("parameterized", reason="the suite needs parameterized (pip install parameterized)")
    top = tmp_path_factory.mktemp("sdist")
    wanted = f"transformers=={transformers.__version__}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "-d", str(top), wanted]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    archives = list(top.glob("*.tar.gz"))
    if done.returncode or not archives:
        pytest.skip(f"{wanted} cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(archives[0]) as archive:
        names = [name for name in archive.getnames() if "/tests/test_" in name and name.endswith(".py")]
        archive.extractall(top, members=[archive.getmember(name) for name in names], filter="data")
    folder = archives[0].with_name(archives[0].name.removesuffix(".tar.gz")) / "tests"
    if not (folder / "test_tokenization_common.py").is_file():
        pytest.skip(f"{wanted} does not hold its tests")
    (folder / "__init__.py").touch()
    (folder / "fixtures").mkdir()
    (folder / "fixtures" / "sample_text.txt").write_text("A text.\n")
    return folder
