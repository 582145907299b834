"""A small model for runs over a corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibert import SentenceTransformer
from tests.support.checkpoints import random_checkpoint


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=32)


@pytest.fixture(scope="session")
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(folder)
