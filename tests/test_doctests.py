"""The examples in the docstrings of all modules print the shown output."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

_PACKAGE = Path(__file__).parent.parent / "minibert"
_WITH_EXAMPLES = [
    ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(_PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", _WITH_EXAMPLES)
def test_the_examples_of_a_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0


def test_no_example_is_skipped() -> None:
    assert len(_WITH_EXAMPLES) >= 6
    assert not [path for path in _PACKAGE.rglob("*.py") if "doctest: +SKIP" in path.read_text(encoding="utf-8")]
