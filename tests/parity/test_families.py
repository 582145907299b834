"""Families beside BERT: right ports, made by transformers, pass; the mistakes of a family are named first."""

from __future__ import annotations

import importlib
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
from minibert.parity.diagnosis.catalogue import MISTAKES, simulate
from tests.models.test_families import inputs, make


@pytest.fixture(autouse=True)
def the_same_weights_each_time() -> None:
    """With some random weights a dump cannot tell the mistake from another one that gives nearly the same numbers."""
    torch.manual_seed(0)


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


# --- BERT's successors ------------------------------------------------------------------------------------------------

LAYERS = ("full_attention", "sliding_attention", "sliding_attention", "full_attention")
_WINDOWS: dict[str, Any] = {"num_hidden_layers": 4, "layer_types": [*LAYERS], "local_attention": 6}


def rope(kinds: dict[str, float], **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {kind: {"rope_theta": theta, **more} for kind, theta in kinds.items()}}


MODERN = _WINDOWS | rope({"full_attention": 500.0, "sliding_attention": 50.0})
EXCHANGED = [LAYERS[1] if kind == LAYERS[0] else LAYERS[0] for kind in LAYERS]
# (family, config of the checkpoint, config that the port takes instead) -> the mistake that this is.
CONFIGS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("R1.other", "modernbert", MODERN, rope({"full_attention": 50.0, "sliding_attention": 500.0})),
    ("R1.other", "modernbert", MODERN, rope({"full_attention": 500.0, "sliding_attention": 500.0})),
    ("A13.exchanged", "modernbert", MODERN, {"layer_types": EXCHANGED}),
    ("A13.narrow", "modernbert", MODERN, {"local_attention": 4}),
    ("A13.wide", "modernbert", MODERN, {"local_attention": 8}),
    ("A13.full", "modernbert", MODERN, {"local_attention": 12}),
    ("A13.none", "modernbert", MODERN, {"local_attention": 200}),
    ("G3.silu", "modernbert", MODERN, {"hidden_activation": "silu"}),
    ("N1.0.001", "modernbert", MODERN, {"norm_eps": 1e-3}),
    ("R1.10000", "nomic_bert", {}, {"rope_parameters": {"rope_theta": 10_000.0}}),
    (
        "R1.unscaled",
        "gte",
        *(
            ({"rope_parameters": {"rope_theta": 300.0, **more}})
            for more in ({"rope_type": "linear", "factor": 4.0}, {})
        ),
    ),
    (
        "R1.unscaled",
        "jina_embeddings_v3",
        *(
            ({"rope_parameters": {"rope_theta": 300.0, **more}})
            for more in ({"rope_type": "linear", "factor": 4.0}, {})
        ),
    ),
    ("G1.erf", "nomic_bert", {}, {"hidden_act": "gelu"}),
]


def assert_named(ours: Any, theirs: Any, id: str, *, all_names: bool = True) -> None:
    """Check that a mistake is named first, from all names of a dump and from its hidden states."""
    ids, mask = inputs(theirs.config.pad_token_id)
    given = {"input_ids": ids, "attention_mask": mask}
    every = dump_of(theirs, given)
    states = {name: array for name, array in every.items() if name.startswith("hidden_states")}
    for dump in (every, states) if all_names else (states,):
        report = parity.check(ours, dump, given)
        assert report.verdict == "wrong"
        assert [finding.mistake for finding in report.diagnosis] == [id], str(report)


@pytest.mark.parametrize(("id", "family", "true", "taken"), CONFIGS)
def test_a_port_that_reads_the_config_wrongly_is_diagnosed(
    tmp_path: Path, id: str, family: str, true: dict[str, Any], taken: dict[str, Any]
) -> None:
    theirs = make(tmp_path / "right", family, **true)
    wrong = make(tmp_path / "wrong", family, **{**true, **taken})
    wrong.load_state_dict(theirs.state_dict())
    assert_named(load(tmp_path / "right"), wrong, id)


@pytest.mark.parametrize(
    ("id", "family"),
    [
        ("R2.pairs", "nomic_bert"),
        ("R2.pairs", "modernbert"),
        ("W2.all", "gte"),
        ("W2.all", "jina_embeddings_v3"),
        ("F1.weights", "nomic_bert"),
        ("F1.weights", "gte"),
        ("N4.final", "modernbert"),
        ("F1.exchanged", "modernbert"),
    ],
)
def test_a_port_of_a_successor_with_another_formula_is_diagnosed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id: str, family: str
) -> None:
    theirs = make(tmp_path, family, **(MODERN if family == "modernbert" else {}))
    ours, module = load(tmp_path), importlib.import_module(type(theirs).__module__)
    if id == "R2.pairs":
        plain = module.apply_rotary_pos_emb

        def turned(q: Any, k: Any, cos: Any, sin: Any, *more: Any, **options: Any) -> Any:
            order = torch.cat([torch.arange(0, q.shape[-1], 2), torch.arange(1, q.shape[-1], 2)])
            back = order.argsort()
            return tuple(x[..., back] for x in plain(q[..., order], k[..., order], cos, sin, *more, **options))

        monkeypatch.setattr(module, "apply_rotary_pos_emb", turned)
    with torch.no_grad():
        for name, one in theirs.named_modules():
            if id == "W2.all" and isinstance(one, torch.nn.Linear) and one.bias is not None:
                one.bias.mul_(0)
            if id == "F1.weights" and hasattr(one, "gate_proj"):
                one.gate_proj, one.up_proj = one.up_proj, one.gate_proj
            if id == "F1.exchanged" and name.endswith("Wi"):
                one.weight.copy_(torch.cat(one.weight.chunk(2)[::-1]))
            if id == "N4.final" and name == "final_norm":
                theirs.final_norm = torch.nn.Identity()
    # The two of a gate have the same hidden states, and the weights of a missing bias are no names of the dump.
    assert_named(ours, theirs, id.replace("F1.weights", "F1.exchanged"), all_names=id not in ("F1.weights", "W2.all"))


OF_SUCCESSORS = ("R1", "R2", "R3", "A13", "A14", "F1", "C2", "N4.final", "N4.first", "W2.attention.self")
OF_SUCCESSORS += ("C1.pre-norm", "A5.none", "A7.causal", "W3.first")


@pytest.mark.parametrize("family", ["nomic_bert", "gte", "jina_embeddings_v3", "modernbert"])
def test_each_mistake_of_a_successor_is_named_first(tmp_path: Path, family: str) -> None:
    more = (
        MODERN
        if family == "modernbert"
        else {"rope_parameters": {"rope_theta": 300.0, "rope_type": "linear", "factor": 1.2}}
    )
    theirs = make(tmp_path, family, **more)
    ours = load(tmp_path)
    ids, mask = inputs(theirs.config.pad_token_id)
    given = {"input_ids": ids, "attention_mask": mask}
    assert parity.check(ours, dict(ours.trace(**given)), given).verdict == "bits"
    assert parity.check(ours, simulate(ours, given, ()), given).verdict in ("bits", "float32")
    tried = 0
    for id, mistake in MISTAKES.items():
        if not id.startswith(OF_SUCCESSORS) or not mistake.is_for(ours):
            continue
        for record in ("*", "hidden_states.*"):
            try:
                port = simulate(ours, given, id, record=record)
            except ValueError:
                assert id == "R1.other"  # one type of layers
                break
            diagnosis = parity.check(ours, port, given).diagnosis
            if (id.startswith(("R1.unscaled", "R1.no-ntk")) and family == "modernbert") or (
                mistake.is_harmless(ours.config) and record != "*"
            ):
                assert diagnosis == []
                continue
            found = [finding.mistake for finding in diagnosis]
            assert found == [id] or (record != "*" and found == ["F1.exchanged"] and id == "F1.weights"), (id, record)
            tried += 1
    assert tried >= 20
