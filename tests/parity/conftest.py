"""Small models for the tests of parity."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from minibert import BertModel, parity
from minibert.trace.trace import Trace
from tests.support import random_checkpoints as checkpoints
from tests.support.checkpoints import random_checkpoint
from tests.support.mistakes import Subject

# The small models do not have rows of 32 features, texts of 64 tokens, and padding that is not masked.
NOT_HERE = ("D2.q8_0", "D2.q4_0", "P4", "A6.padding")


class Case(NamedTuple):
    """A model, its probe, and all its values."""

    model: BertModel
    inputs: dict[str, Any]
    trace: Trace

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Copies of the hidden states."""
        return {f"hidden_states.{i}": np.array(self.trace[f"hidden_states.{i}"]) for i in range(3)}

    def check(self, dump: Any, **options: Any) -> parity.Report:
        """Check a dump, without a diagnosis unless it is asked for."""
        return parity.check(self.model, dump, self.inputs, **{"diagnosis": False, **options})


def states_of_theirs(model: Any, inputs: dict[str, Any]) -> list[np.ndarray]:
    """Return the hidden states of a model of transformers."""
    import torch

    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    with torch.inference_mode():
        return [state.float().numpy() for state in model(**tensors, output_hidden_states=True).hidden_states]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, and 24 positions: the rows of the probe are short."""
    return random_checkpoint(tmp_path_factory.mktemp("parity"), max_position_embeddings=24)


@pytest.fixture(scope="session")
def case(folder: Path) -> Case:
    model = BertModel.from_pretrained(folder, backend="numpy")
    inputs = dict(parity.probe(model).inputs)
    return Case(model, inputs, model.trace(**inputs))


def small(folder: Path, **sizes: Any) -> Subject:
    """Return a model with these sizes and 24 positions, with its probe."""
    checkpoints.random_checkpoint(folder / "model", **sizes, max_position_embeddings=24)
    model = BertModel.from_pretrained(folder / "model", backend="numpy")
    return Subject.of_inputs("small", model, parity.probe(model).inputs)


@pytest.fixture(scope="session")
def subject_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers and three token types; all sizes differ."""
    home = tmp_path_factory.mktemp("subject") / "model"
    checkpoints.random_checkpoint(home, num_hidden_layers=3, type_vocab_size=3)
    return home


@pytest.fixture(scope="session")
def subject(subject_folder: Path) -> Subject:
    return Subject.of("small", BertModel.from_pretrained(subject_folder, backend="numpy"), 14, 3)
