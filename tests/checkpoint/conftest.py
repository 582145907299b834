"""A small checkpoint, its tensors, and a way to write them with changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from minibert import BertModel
from minibert.models.outputs import BertModelOutput
from tests.support.checkpoints import random_checkpoint
from tests.support.safetensors_files import INPUTS, SIZES, Tensor, safetensors_bytes, stored


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("checkpoint"), **SIZES)


@pytest.fixture(scope="session")
def arrays(folder: Path) -> dict[str, np.ndarray]:
    return dict(load_file(folder / "model.safetensors"))


@pytest.fixture(scope="session")
def tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: stored(array) for name, array in arrays.items()}


@pytest.fixture(scope="session")
def expected(folder: Path) -> BertModelOutput:
    return BertModel.from_pretrained(folder)(**INPUTS)


@pytest.fixture
def write(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes tensors and the config.json of `folder`, with changes, into a new folder."""

    def write(tensors: Mapping[str, Tensor], name: str = "model.safetensors", **changes: Any) -> Path:
        config = json.loads((folder / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        (tmp_path / name).write_bytes(safetensors_bytes(tensors))
        return tmp_path

    return write
