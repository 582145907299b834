"""Families beside BERT: right ports, made by transformers, pass; the mistakes of a family are named first."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import product
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
from minibert.parity.diagnosis.simulation import simulate
from tests.support.families import ROTARY, SAMPLES, by_forward, inputs, make, modules_of
from tests.support.marks import sampled


@pytest.fixture(autouse=True)
def the_same_weights_each_time() -> None:
    """With some random weights a dump cannot tell the mistake from another one that gives nearly the same numbers."""
    torch.manual_seed(0)


def given_to(theirs: Any) -> dict[str, np.ndarray]:
    return dict(zip(("input_ids", "attention_mask"), inputs(theirs.config.pad_token_id), strict=True))


def dump_of(theirs: Any, **given: np.ndarray) -> dict[str, np.ndarray]:
    """Return the outputs of all modules with weights, under their names in the family, and the hidden states."""
    values, output = modules_of(theirs, **given)
    return values | {f"hidden_states.{i}": state.numpy() for i, state in enumerate(output.hidden_states)}


@pytest.mark.parametrize(
    ("family", "kind"),
    by_forward(product(FAMILIES, ["Model"]))
    + sampled(product(FAMILIES, ["ForMaskedLM", "ForSequenceClassification"]), 3),
)
def test_a_right_port_passes(tmp_path: Path, family: str, kind: str) -> None:
    theirs, ours = make(tmp_path, family, kind), load(tmp_path)
    given = given_to(theirs)
    weights = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    report = parity.check(ours, {**dump_of(theirs, **given), **weights}, given)
    assert (report.verdict, report.warnings) == ("float32", [])
    assert len(report.names) > (8 if FAMILIES[family].shared_layers else 15)
    assert any("equal to the checkpoint's" in note for note in report.notes)


def test_all_modules_of_a_right_albert_pass(tmp_path: Path) -> None:
    """Its layers are one module, which says nothing of the layer, and its pooler is the dense map."""
    theirs, ours = make(tmp_path, "albert", num_hidden_groups=1), load(tmp_path)
    values: dict[str, np.ndarray] = {}
    for name, module in theirs.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.LayerNorm):
            module.register_forward_hook(
                lambda _, given, out, name=name: values.update({f"albert.{name}": out.numpy()})
            )
    with torch.no_grad():
        output = theirs(**{name: torch.as_tensor(array) for name, array in given_to(theirs).items()})
    report = parity.check(ours, {**values, "last_hidden_state": output[0].numpy()}, given_to(theirs))
    assert report.verdict == "float32", str(report)
    assert "pooler.dense" in {row.name for row in report.names}


# --- ports with a mistake ---------------------------------------------------------------------------------------------

LENGTH = 17
BUCKETS = MPNetEncoder.relative_position_bucket
# Mistake -> positions of a port, from its ids and mask; the token that is padding has the id 1.
POSITIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "E6.columns": lambda ids, mask: 0 * ids + np.arange(LENGTH),
    "E6.zero": lambda ids, mask: np.maximum((ids != 1).cumsum(axis=1) * (ids != 1) - 1, 0),
    "E6.pad": lambda ids, mask: np.maximum((ids != 1).cumsum(axis=1) * (ids != 1), 0),
    "E6.padding": lambda ids, mask: 0 * ids + np.arange(2, LENGTH + 2),
    "E6.mask": lambda ids, mask: mask.cumsum(axis=1) * mask + 1,
}
# What torch computes for gelu on some processors.
TORCH_ERF = "G3.erf-5"
# Mistake -> the ranges of distances of a port.
DISTANCES: dict[str, Callable[..., torch.Tensor]] = {
    "A10.transposed": lambda distances, **more: BUCKETS(-distances),
    "A10.one-way": lambda distances, **more: T5Attention._relative_position_bucket(distances, bidirectional=False),
    "A10.linear": lambda distances, **more: distances.abs().clamp(max=15) + 16 * (distances > 0),
}


def transpose_projection(port: Any) -> None:
    weight = port.embeddings_project.weight
    weight.copy_(weight.clone().reshape(16, 24).T)


def leave_out_biases(port: Any) -> None:
    for module in port.modules():
        if isinstance(module, torch.nn.Linear) and module.bias is not None:
            module.bias.mul_(0)


def exchange_maps_of_gates(port: Any) -> None:
    for name, module in port.named_modules():
        if hasattr(module, "gate_proj"):
            module.gate_proj, module.up_proj = module.up_proj, module.gate_proj
        if name.endswith("Wi"):
            module.weight.copy_(torch.cat(module.weight.chunk(2)[::-1]))


# Mistake -> what puts it into a model of transformers.
WEIGHTS: dict[str, Callable[[Any], object]] = {
    "A10.none": lambda port: port.encoder.relative_attention_bias.weight.mul_(0),
    "A10.scaled": lambda port: port.encoder.relative_attention_bias.weight.mul_(8**-0.5),
    "E2.missing": lambda port: port.embeddings.token_type_embeddings.weight.mul_(0),
    "E7.added": lambda port: port.embeddings.position_embeddings.weight.add_(torch.randn(24)),
    "E8.padded": lambda port: port.set_submodule("embeddings_project", torch.nn.ConstantPad1d((0, 24 - 16), 0.0)),
    "W1.embeddings_project": transpose_projection,
    "W2.embeddings_project": lambda port: port.embeddings_project.bias.mul_(0),
    "W2.all": leave_out_biases,
    "F1.exchanged": exchange_maps_of_gates,
    "N4.final": lambda port: port.set_submodule("final_norm", torch.nn.Identity()),
}


def rotate_pairs(port: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the port rotate neighbouring features, as GPT-J does."""
    module = importlib.import_module(type(port).__module__)
    plain = module.apply_rotary_pos_emb

    def turned(q: Any, k: Any, cos: Any, sin: Any, *more: Any, **options: Any) -> Any:
        order = torch.cat([torch.arange(0, q.shape[-1], 2), torch.arange(1, q.shape[-1], 2)])
        back = order.argsort()
        return tuple(x[..., back] for x in plain(q[..., order], k[..., order], cos, sin, *more, **options))

    monkeypatch.setattr(module, "apply_rotary_pos_emb", turned)


def rope(full: float, sliding: float) -> dict[str, Any]:
    return {"rope_parameters": {"full_attention": {"rope_theta": full}, "sliding_attention": {"rope_theta": sliding}}}


OWN: dict[str, tuple[str, ...]] = {
    "roberta": (*POSITIONS, "E2.missing"),
    "distilbert": ("E7.added",),
    "mpnet": (*POSITIONS, *DISTANCES, "A10.none", "A10.scaled", "E7.added"),
    "electra": ("E8.padded", "W1.embeddings_project", "W2.embeddings_project"),
    "nomic_bert": ("R2.pairs", "F1.exchanged"),
    "gte": ("W2.all", "F1.exchanged"),
    "jina_embeddings_v3": ("W2.all",),
    "modernbert": ("R2.pairs", "N4.final", "F1.exchanged"),
}
# Mistakes that other ports with the same formula, or nearly the same config, have by default.
SLOW = {*(("mpnet", id) for id in POSITIONS if id != "E6.mask"), ("mpnet", "E7.added"), ("gte", "F1.exchanged")}
SLOW |= {("jina_embeddings_v3", "W2.all"), ("modernbert", "A13.wide"), ("modernbert", "A13.full")}
EXCHANGED = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
LINEAR: dict[str, Any] = {"rope_parameters": {"rope_theta": 300.0, "rope_type": "linear", "factor": 4.0}}
FIELDS = {"modernbert": SAMPLES["modernbert"].telling}
# The same for a port that takes another config: the fields of the checkpoint, and those that the port has instead.
CONFIGS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("nomic_bert", "R1.10000", {}, {"rope_parameters": {"rope_theta": 10_000.0}}),
    ("nomic_bert", "G1.erf", {}, {"hidden_act": "gelu"}),
    *((family, "R1.unscaled", LINEAR, {"rope_parameters": {"rope_theta": 300.0}}) for family in ROTARY[1:3]),
    *(
        ("modernbert", id, dict(SAMPLES["modernbert"].telling), taken)
        for id, taken in (
            *(("R1.other", rope(50.0, 500.0)), ("R1.other", rope(500.0, 500.0))),
            *(("A13.exchanged", {"layer_types": EXCHANGED}), ("A13.narrow", {"local_attention": 4})),
            *(("A13.wide", {"local_attention": 8}), ("A13.full", {"local_attention": 12})),
            *(("A13.none", {"local_attention": 200}), ("G3.silu", {"hidden_activation": "silu"})),
            ("N1.0.001", {"norm_eps": 1e-3}),
        )
    ),
]


@pytest.mark.parametrize(
    ("family", "id", "fields", "taken"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case[:2] in SLOW else ())
        for case in (
            *((family, id, FIELDS.get(family, {}), None) for family in OWN for id in OWN[family]),
            *CONFIGS,
        )
    ],
)
def test_the_own_mistakes_of_a_family_are_named_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    id: str,
    fields: dict[str, Any],
    taken: dict[str, Any] | None,
) -> None:
    port, ours = make(tmp_path, family, **fields), load(tmp_path)
    given = given_to(port)
    positions = {"position_ids": POSITIONS[id](*given.values())} if id in POSITIONS else {}
    if taken is not None:
        weights = port.state_dict()
        port = make(tmp_path / "wrong", family, **{**fields, **taken})
        port.load_state_dict(weights)
    elif id == "R2.pairs":
        rotate_pairs(port, monkeypatch)
    elif id in DISTANCES:
        monkeypatch.setattr(MPNetEncoder, "relative_position_bucket", staticmethod(DISTANCES[id]))
    elif id in WEIGHTS:
        with torch.no_grad():
            WEIGHTS[id](port)
    every = dump_of(port, **given, **positions)
    for table in {"E2.missing": ["token_type"], "E7.added": ["position"]}.get(id, []):  # which the mistake has changed
        del every[f"embeddings.{table}_embeddings"]
    states = {name: array for name, array in every.items() if name.startswith("hidden_states")}
    # The maps of a gate have names of their own beside the exchanged ones, and a missing bias is no name of the dump.
    only_states = id == "W2.all" or (id == "F1.exchanged" and family != "modernbert")
    for dump in (states,) if only_states else (every, states):
        report = parity.check(ours, dump, given)
        assert report.verdict == "wrong"
        (found,) = (finding.mistake for finding in report.diagnosis)
        assert found == id or (id == "G1.erf" and found == TORCH_ERF and id in str(report)), str(report)
        assert MISTAKES[found].remedy in str(report)


def test_the_activation_of_a_head_is_named_from_its_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = make(tmp_path, "distilbert", "ForSequenceClassification"), load(tmp_path)
    given = given_to(theirs)
    monkeypatch.setattr(torch.nn, "ReLU", torch.nn.Tanh)
    logits = modules_of(theirs, **given)[1].logits
    (finding,) = parity.check(ours, {"logits": logits}, given).diagnosis
    assert finding.mistake == "G4.tanh"
    noise = parity.check(ours, {"logits": 2 * logits}, given)
    assert [finding.mistake for finding in noise.diagnosis] == [""]


OF_SUCCESSORS = ("R1", "R2", "R3", "A13", "A14", "F1", "C2", "N4.final", "N4.first", "W2.attention.self")
OF_SUCCESSORS += ("N4.mean", "A16", "C1.pre-norm", "A5.none", "A7.causal", "W3.first")


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ROTARY)
def test_each_mistake_of_a_successor_is_named_first(tmp_path: Path, family: str, every: int) -> None:
    theirs = make(tmp_path, family, **SAMPLES[family].telling)
    ours = load(tmp_path)
    given = given_to(theirs)
    assert parity.check(ours, dict(ours.trace(**given)), given).verdict == "bits"
    assert parity.check(ours, simulate(ours, given, ()), given).verdict in ("bits", "float32")
    ids = [id for id, mistake in MISTAKES.items() if id.startswith(OF_SUCCESSORS) and mistake.is_for(ours)]
    for id in ids[ROTARY.index(family) % every :: every]:  # the families together try them all
        for record in ("*", "hidden_states.*"):
            try:
                port = simulate(ours, given, id, record=record)
            except ValueError:
                assert id == "R1.other"  # one type of layers
                break
            diagnosis = parity.check(ours, port, given).diagnosis
            if (id.startswith(("R1.unscaled", "R1.no-ntk")) and family == "modernbert") or (
                MISTAKES[id].is_harmless(ours.config) and record != "*"
            ):
                assert diagnosis == []
                continue
            found = [finding.mistake for finding in diagnosis]
            assert found == [id] or (record != "*" and found == ["F1.exchanged"] and id == "F1.weights"), (id, record)
