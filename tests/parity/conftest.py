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

# The begins of ids of mistakes that a port of BERT cannot have.
OTHER_FAMILIES = (
    *(
        "G4.tanh",
        "G4.none",
        "K1",
        "K2.cls",
        "K3",
        "K4",
        "W1.cls",
        "W2.c",
        "A10",
        "E6",
        "E7",
        "E8",
        "W1.embeddings",
        "W2.embeddings",
    ),
    *("R1", "R2", "R3", "A13", "F1", "C2", "N4.final", "N4.first"),
)


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


@pytest.fixture(scope="session")
def subject_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers and three token types; all sizes differ."""
    home = tmp_path_factory.mktemp("subject") / "model"
    checkpoints.random_checkpoint(home, num_hidden_layers=3, type_vocab_size=3)
    return home


@pytest.fixture(scope="session")
def subject(subject_folder: Path) -> Subject:
    return Subject.of("small", BertModel.from_pretrained(subject_folder, backend="numpy"), 14, 3)
