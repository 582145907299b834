"""A small checkpoint of each class, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.head_models import head_checkpoint


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function: name of a class -> a folder with a small random model of it."""
    made: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in made:
            made[name] = head_checkpoint(tmp_path_factory.mktemp(name) / "model", name)
        return made[name]

    return folder_of
