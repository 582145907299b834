"""The probe shows each known mistake in each family at its published sizes; what inputs cannot show is named."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minibert import load, parity
from minibert.encode.modules import Pipeline, VectorModule
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.simulation import simulate
from minibert.parity.diagnosis.unseen import unseen
from minibert.parity.truth import VECTOR, Padded, Subject
from minibert.vectors.similarity import normalize_embeddings
from tests.support.families import make
from tests.support.marks import sampled

# The fields that decide what is visible, as in the configs of published checkpoints.
PUBLISHED: dict[str, dict[str, Any]] = {
    "bert": {"num_hidden_layers": 12, "max_position_embeddings": 512},
    "roberta": {"num_hidden_layers": 12, "max_position_embeddings": 514},
    "xlm-roberta": {"num_hidden_layers": 24, "max_position_embeddings": 514, "hidden_act": "gelu"},
    "distilbert": {"n_layers": 6, "max_position_embeddings": 512},
    "mpnet": {"num_hidden_layers": 12, "max_position_embeddings": 514, "layer_norm_eps": 1e-5},
    "electra": {"num_hidden_layers": 12, "max_position_embeddings": 512},
    "nomic_bert": {"num_hidden_layers": 12, "max_position_embeddings": 2048},
    "gte": {"num_hidden_layers": 12, "max_position_embeddings": 8192}
    | {"rope_parameters": {"rope_theta": 160_000.0, "rope_type": "linear", "factor": 8 ** (2 / 8)}},
    "jina_embeddings_v3": {"num_hidden_layers": 24, "max_position_embeddings": 8194},
    "modernbert": {"num_hidden_layers": 22, "max_position_embeddings": 8192, "local_attention": 128}
    | {"global_attn_every_n_layers": 3},
    "eurobert": {"num_hidden_layers": 12, "max_position_embeddings": 8192},
}
# What rounds may have errors like those of a forward in half precision; then it is not "float32" either.
HALF = ("wrong", "float16", "bfloat16")
# Their rows are blocks of 32 numbers, which so narrow models do not have.
NARROW = ("D2.q8_0-weights", "D2.q4_0-weights")
PAIRS = [(family, id) for family in PUBLISHED for id in MISTAKES if id not in NARROW]
# What runs by default: a wrong eps of each model whose probe the other tests make, windows, and the longest texts.
BY_DEFAULT = ("bert", "mpnet", "modernbert")
ALWAYS = [(family, id) for family in BY_DEFAULT for id in ("N1.1e-6", "A13.wide", "A13.exchanged", "P4.cut-256")]


@functools.cache
def published(family: str, home: Path) -> Subject:
    """Return a narrow model of published sizes that makes vectors of texts."""
    theirs = make(home / family, family, **PUBLISHED[family])
    with torch.no_grad():
        for name, tensor in theirs.named_parameters():
            if "embeddings.weight" in name:  # as small as published ones, so that an eps of 1e-7 is not nothing
                tensor.mul_(0.1)
            elif "norm" in name.lower() and name.endswith("weight"):  # so that tokens still differ in the last state
                tensor.add_(1)
            else:
                tensor.mul_(0.5)
    theirs.save_pretrained(home / family)
    model = load(home / family, backend="numpy")
    width = model.config.hidden_size
    return Subject(model, Pipeline(width, modules=(VectorModule("Normalize", width, normalize_embeddings),)))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published")


def is_own(subject: Subject, id: str) -> bool:
    """Return whether a mistake changes nothing in this model."""
    config = subject.config
    own = {"P2.mean", "P2.sum", "P3.unit", {"gelu": "G1.erf", "silu": "G3.silu"}.get(config.activation)}
    return id in own or id == f"N1.{config.layer_norm_eps:g}".replace("e-0", "e-") or MISTAKES[id].is_harmless(config)


@pytest.mark.parametrize(("family", "id"), sampled(PAIRS, 1000, ALWAYS))
def test_each_mistake_is_wrong_on_the_probe(home: Path, family: str, id: str) -> None:
    subject, mistake = published(family, home), MISTAKES[id]
    if not mistake.is_for(subject.model) or is_own(subject, id):
        return
    inputs = parity.probe(subject).inputs
    record = ["hidden_states.*", "encoder.layer.0.*", *(["pooler*"] if subject.model.weights.pooler else [])]
    record = [VECTOR] if mistake.vector else record
    port = simulate(subject.model, inputs, id, record=record)
    assert parity.check(subject, port, inputs, diagnosis=False).verdict in (
        HALF if id[:2] in ("D2", "D3") else ["wrong"]
    )


@pytest.mark.parametrize("family", sampled(PUBLISHED, 1000, BY_DEFAULT))
def test_the_probe_shows_every_mistake(home: Path, family: str) -> None:
    subject = published(family, home)
    inputs = parity.probe(subject).inputs
    assert unseen(subject.model, Padded.of(subject.config, inputs)) == []
    states = dict(subject.model.trace(**inputs, record="hidden_states.0"))
    assert parity.check(subject, states, inputs).unseen == []


@pytest.mark.parametrize(
    ("columns", "named", "shown"),
    [
        (66, {"P4.cut-128", "A5.none", "A6.length", "A14.borders"}, {"A13.wide", "A13.none", "A7.causal", "P4.cut-64"}),
        (65, {"A13.wide", "A13.full", "A13.none"}, {"A13.narrow", "A13.exchanged", "R1.other"}),
        (1, {"A7.causal", "A13.narrow", "P4.cut-64"}, {"N4.first", "N4.final", "C2.norm-after"}),
    ],
)
def test_a_report_names_what_its_inputs_cannot_show(home: Path, columns: int, named: set[str], shown: set[str]) -> None:
    subject = published("modernbert", home)
    inputs = {"input_ids": np.arange(5, 5 + columns)[None]}
    report = parity.check(subject, dict(subject.model.trace(**inputs, record="hidden_states.0")), inputs)
    assert {*report.unseen} >= named
    assert not shown & {*report.unseen}
    assert report.unseen[0] in str(report) + report.to_markdown()
    assert report.to_json()["unseen"] == report.unseen
