"""Test suites of other libraries: fetched when they are needed, run in a process of their own, never committed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

VARIABLE = "MINIBERT_CLIENT_SUITES"
"""The folder that holds checkouts of the libraries, such as sentence-transformers/; else they are downloaded."""

ROOT = Path(__file__).parent.parent.parent
PLUGINS = Path(__file__).parent / "suite_plugins"

_ARCHIVE = "https://codeload.github.com/{owner}/{name}/tar.gz/refs/tags/v{version}"
_SECONDS = 1800
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL\w*) (\S+?::.*?)(?: - .*)?$", re.MULTILINE)


def checkout(owner: str, name: str, folder: Path) -> Path:
    """Return a folder with the tests of a library, at the version that is installed; skip the test if there is none."""
    given = os.environ.get(VARIABLE)
    if given:
        found = Path(given) / name
        if not (found / "tests").is_dir():
            pytest.skip(f"{found} has no tests/; {VARIABLE} names the folder of the checkouts")
        return found
    address = _ARCHIVE.format(owner=owner, name=name, version=version(name))
    archive = folder / "suite.tar.gz"
    try:
        with urllib.request.urlopen(address, timeout=60) as response, archive.open("wb") as file:
            shutil.copyfileobj(response, file)
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        pytest.skip(f"{address} cannot be fetched ({error}); {VARIABLE} can name a folder of checkouts")
    return next(path for path in folder.iterdir() if path.is_dir())


def run_suite(
    suite: Path, plugin: str, tests: list[str], folder: Path, variables: Mapping[str, object]
) -> dict[str, str]:
    """Run tests of a suite with one of the plugins here; return the outcome of each test by its id.

    Parameters
    ----------
    suite : Path
        The checkout. Its `tests` package replaces that of minibert in the process.
    plugin : str
        A module of suite_plugins/.
    folder : Path
        For the copy of the plugin, so that no other module of minibert's tests can be imported by its name.
    variables : mapping
        Environment variables; values that are not str are written as JSON.
    """
    copies = folder / "plugins"
    copies.mkdir(exist_ok=True)
    shutil.copy(PLUGINS / f"{plugin}.py", copies)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(copies), str(ROOT)]),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **{name: value if isinstance(value, str) else json.dumps(value) for name, value in variables.items()},
    }
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=line", "-o", "addopts=", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", plugin, *tests],
        cwd=suite,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    outcomes = {test: outcome for outcome, test in _OUTCOME.findall(done.stdout)}
    assert outcomes, done.stdout[-3000:] + done.stderr[-3000:]
    return outcomes
