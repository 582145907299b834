"""Families beside BERT: right ports, made by transformers, pass; the mistakes of a family are named first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

from minibert import load, parity
from minibert.bert.families import FAMILIES
from minibert.parity.diagnosis.catalogue import MISTAKES
from tests.models.test_families import inputs, make


def dump_of(theirs: Any, given: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the outputs of all modules with weights, under their names in the family, and the hidden states."""
    values: dict[str, np.ndarray] = {}
    for name, module in theirs.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.LayerNorm | torch.nn.Embedding) and "relative" not in name:
            module.register_forward_hook(lambda _, given, out, name=name: values.update({name: out.numpy()}))
    with torch.no_grad():
        states = theirs(**{name: torch.as_tensor(x) for name, x in given.items()}, output_hidden_states=True)
    return values | {f"hidden_states.{i}": state.numpy() for i, state in enumerate(states.hidden_states)}


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize("family", [family for family in FAMILIES if not FAMILIES[family].theta])
def test_a_right_port_passes(tmp_path: Path, family: str, kind: str) -> None:
    theirs, ours = make(tmp_path, family, kind), load(tmp_path)
    given = dict(zip(("input_ids", "attention_mask"), inputs(theirs.config.pad_token_id), strict=True))
    weights = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    report = parity.check(ours, {**dump_of(theirs, given), **weights}, given)
    assert (report.verdict, report.warnings) == ("float32", [])
    assert len(report.names) > 30
    assert any("equal to the checkpoint's" in note for note in report.notes)


BUCKETS = MPNetEncoder.relative_position_bucket
LENGTH = 17


# Mistake -> positions of a port, from its ids and mask; the token that is padding has the id 1.
POSITIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "E6.columns": lambda ids, mask: 0 * ids + np.arange(LENGTH),
    "E6.zero": lambda ids, mask: np.maximum((ids != 1).cumsum(axis=1) * (ids != 1) - 1, 0),
    "E6.pad": lambda ids, mask: np.maximum((ids != 1).cumsum(axis=1) * (ids != 1), 0),
    "E6.padding": lambda ids, mask: 0 * ids + np.arange(2, LENGTH + 2),
    "E6.mask": lambda ids, mask: mask.cumsum(axis=1) * mask + 1,
}
# Mistake -> the ranges of distances of a port.
DISTANCES: dict[str, Callable[..., torch.Tensor]] = {
    "A10.transposed": lambda distances, **more: BUCKETS(-distances),
    "A10.one-way": lambda distances, **more: T5Attention._relative_position_bucket(distances, bidirectional=False),
    "A10.linear": lambda distances, **more: distances.abs().clamp(max=15) + 16 * (distances > 0),
}


def spoil(theirs: Any, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a mistake into a model of transformers."""
    embeddings, encoder = theirs.embeddings, getattr(theirs, "encoder", None)
    if id in DISTANCES:
        monkeypatch.setattr(MPNetEncoder, "relative_position_bucket", staticmethod(DISTANCES[id]))
    elif id.startswith("A10"):
        encoder.relative_attention_bias.weight.mul_(0 if id == "A10.none" else 8**-0.5)
    elif id == "E2.missing":
        embeddings.token_type_embeddings.weight.mul_(0)
    elif id == "E7.added":
        embeddings.position_embeddings.weight.add_(torch.randn(24))
    elif id == "E8.padded":
        theirs.embeddings_project = torch.nn.ConstantPad1d((0, 24 - 16), 0.0)
    elif id == "W1.embeddings_project":
        weight = theirs.embeddings_project.weight
        weight.copy_(weight.clone().reshape(16, 24).T)
    elif id == "W2.embeddings_project":
        theirs.embeddings_project.bias.mul_(0)


def test_the_activation_of_a_head_is_named_from_its_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = make(tmp_path, "distilbert", "ForSequenceClassification"), load(tmp_path)
    ids, mask = inputs(theirs.config.pad_token_id)
    monkeypatch.setattr(torch.nn, "ReLU", torch.nn.Tanh)
    with torch.no_grad():
        logits = theirs(torch.as_tensor(ids), torch.as_tensor(mask)).logits
    (finding,) = parity.check(ours, {"logits": logits}, {"input_ids": ids, "attention_mask": mask}).diagnosis
    assert finding.mistake == "G4.tanh"
    noise = parity.check(ours, {"logits": 2 * logits}, {"input_ids": ids, "attention_mask": mask})
    assert [finding.mistake for finding in noise.diagnosis] == [""]


OWN = {
    "roberta": (*POSITIONS, "E2.missing"),
    "distilbert": ("E7.added",),
    "mpnet": (*POSITIONS, *DISTANCES, "A10.none", "A10.scaled", "E7.added"),
    "electra": ("E8.padded", "W1.embeddings_project", "W2.embeddings_project"),
}


@pytest.mark.parametrize(("family", "id"), [(family, id) for family, ids in OWN.items() for id in ids])
def test_the_own_mistakes_of_a_family_are_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, id: str
) -> None:
    theirs, ours = make(tmp_path, family), load(tmp_path)
    ids, mask = inputs(theirs.config.pad_token_id)
    given = {"input_ids": ids, "attention_mask": mask}
    positions = {"position_ids": POSITIONS[id](ids, mask)} if id in POSITIONS else {}
    with torch.no_grad():
        spoil(theirs, id, monkeypatch)
    every = dump_of(theirs, {**given, **positions})
    for table in {"E2.missing": ["token_type"], "E7.added": ["position"]}.get(id, []):  # which `spoil` has changed
        del every[f"embeddings.{table}_embeddings"]
    for dump in (every, {name: array for name, array in every.items() if name.startswith("hidden_states")}):
        report = parity.check(ours, dump, given)
        assert report.verdict == "wrong"
        assert [finding.mistake for finding in report.diagnosis] == [id], str(report)
    assert MISTAKES[id].remedy in str(report)
