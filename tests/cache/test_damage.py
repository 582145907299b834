"""Damaged machine code is compiled again; folders that cannot be used are skipped."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import outcomes
from tests.support.machine_code import (
    NEVER,
    ONCE,
    PROGRAM,
    compiled,
    copy_package,
    machine_code,
    report,
    unusable_places,
)


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_dead_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def replace_in_header(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()[32:].replace(old, new, 1)
    path.write_bytes(hashlib.sha256(content).digest() + content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "an empty file": lambda path: path.write_bytes(b""),
    "less than a checksum": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "a truncated file": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "garbage": lambda path: path.write_bytes(os.urandom(5000)),
    "text": lambda path: path.write_text("not machine code\n" * 100),
    "a flipped bit in the checksum": lambda path: flip(path, 0.0),
    "a flipped bit in the middle": lambda path: flip(path, 0.5),
    "a flipped bit at the end": lambda path: flip(path, 1.0),
    "the code of other sources": lambda path: replace_in_header(path, b'"key": "', b'"key": "other '),
    "a file of another format": lambda path: replace_in_header(path, b'"format": 1', b'"format": 2'),
    "a folder in its place": become_a_folder,
    "a broken link in its place": become_a_dead_link,
}

SAMPLE = ("an empty file", "a flipped bit in the middle", "a folder in its place")


@pytest.mark.parametrize(
    "damage", [damage if damage in SAMPLE else pytest.param(damage, marks=pytest.mark.slow) for damage in DAMAGE]
)
def test_a_damaged_file_is_compiled_again(damage: str, cache: Path, model: Path) -> None:
    path = machine_code(cache)
    DAMAGE[damage](path)
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert (outcome, compiled(printed)) == ("ok", ONCE), printed
    report(damage, outcome)
    if damage != "a folder in its place":  # minibert did not make the folder and does not change it
        assert "RuntimeWarning" not in printed
        outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
        assert (outcome, compiled(printed)) == ("ok", NEVER)
    else:
        assert printed.count("RuntimeWarning") == 1


@pytest.mark.parametrize(
    "cache_dir", ["full", *(pytest.param(case, marks=pytest.mark.slow) for case in ("", "a file"))]
)
def test_without_a_folder_that_can_be_used(cache_dir: str, model: Path, tmp_path: Path, cache: Path) -> None:
    """There is one warning, and the numbers are correct."""
    limit = ""
    if cache_dir == "full":  # no file may exceed 1,000 bytes; this imitates a full disk
        limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        machine_code(cache).unlink()
        variables = {"NUMBA_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    else:
        variables = unusable_places(tmp_path)
        if cache_dir:
            variables["NUMBA_CACHE_DIR"] = variables["HOME"]
    outcome, printed = outcomes.run(limit + PROGRAM, model, **variables)
    assert (outcome, compiled(printed)) == ("ok", ONCE), printed
    assert printed.count("RuntimeWarning: minibert's compiled kernels cannot be kept") == 1
    assert re.search(r"/program-[\d-]+\.py:\d+: RuntimeWarning: minibert's compiled", printed), "not the caller's line"
    assert not list(cache.rglob("*.partial"))
    report(f"no place for it ({cache_dir or 'none'})", outcome)


def test_a_read_only_package_that_was_compiled_ahead(model: Path, tmp_path: Path, warm: Path) -> None:
    """Imitate a container image: it is warmed when it is built, and runs where nothing can be written."""
    package = copy_package(tmp_path / "package")
    beside = package / "minibert" / "kernels" / "__pycache__"
    beside.mkdir()
    shutil.copytree(next(warm.iterdir()), beside / next(warm.iterdir()).name)
    nowhere = tmp_path / "nowhere"
    nowhere.write_text("")
    everything = [package, *package.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    variables = {"PYTHONPATH": str(package), "HOME": str(nowhere), "XDG_CACHE_HOME": str(nowhere)}
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR="", **variables)
    for path in everything:
        path.chmod(0o755)
    assert (outcome, compiled(printed)) == ("ok", NEVER)
    assert "RuntimeWarning" not in printed
    report("read-only but warm", outcome)
