"""The README is true: its Python blocks and its `minibert` lines run, and print what it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.outcomes import PATIENCE

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def _with_output(language: str) -> list[tuple[str, str | None]]:
    """Each block of a language with the text block that follows it, if one does directly."""
    followed = [*_BLOCKS[1:], ("", "")]
    return [
        (block, after if name == "text" else None)
        for (kind, block), (name, after) in zip(_BLOCKS, followed, strict=True)
        if kind == language
    ]


def _assert_same_output(found: str, shown: str) -> None:
    """Equal but for the last digit of a printed decimal number, which another machine may round otherwise."""
    decimal = re.compile(r"-?\d+\.\d+|-?\d+\.")
    assert decimal.sub("#", found).split() == decimal.sub("#", shown).split()
    numbers = [[float(number) for number in decimal.findall(text)] for text in (found, shown)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.011)


@pytest.mark.parametrize(("code", "shown"), _with_output("python"))
def test_python_blocks(code: str, shown: str | None, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert shown is not None, "a block without its output"
    _assert_same_output(done.stdout, shown)


def _minibert_lines() -> list[tuple[str, list[str], str | None]]:
    """Each line of a shell block that ends in a minibert command: what makes its files, the command, its output."""
    lines = []
    for block, shown in _with_output("sh"):
        for line in block.splitlines():
            before, _, command = line.rpartition(" && ")
            if command.startswith("minibert "):
                lines.append((before if before.startswith("printf ") else "", shlex.split(command), shown))
    return lines


@pytest.mark.parametrize(("before", "command", "shown"), _minibert_lines())
def test_command_lines(before: str, command: list[str], shown: str | None, tmp_path: Path) -> None:
    subprocess.run(before, shell=True, check=True, timeout=PATIENCE, cwd=tmp_path)
    (tmp_path / "texts.txt").write_text("A cat sleeps.\nA kitten naps.\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "COLUMNS": "100"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    if shown is not None:
        _assert_same_output(done.stdout, shown)


def test_every_kind_of_block_was_found() -> None:
    assert len(_with_output("python")) >= 2
    verbs = ["words", "tokens", "hidden", "embed", "similarity", "search", "embed", "info", "embed", "extract"]
    assert [command[1] for _, command, _ in _minibert_lines()] == verbs
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target
