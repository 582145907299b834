"""Execute the shape comments of encoder.py, norm_first.py, heads.py and reference.py.

Lines there end with the shape of the array that they make, ``# (T, H)``. This file reads those comments with `tokenize`
and runs forwards under a trace, in which no two dimensions are equal. It records the true shape of everything assigned
or returned on each line, and compares. A comment that never ran, that has an unknown form, or that is missing is an
error too.

These are the forms of a comment. The letters are those of encoder.py; N and K are rows and columns of the used weight:

    (T, H)                    the only array of the line
    (T, 3H), (T, 1)           a multiple, a number
    (types, H), (P, H)        one shape for each name on the left
    3 x (T, H)                three names of that shape
    B x (A, S, S)             one list of B arrays; S is the length of each sequence
    (V, H) or (T, H)          either, and each at least once
    shape of x                the shape of the variable x
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minibert.bert import encoder, heads, norm_first, reference
from minibert.bert.config import BertConfig
from minibert.bert.families import FAMILIES
from minibert.bert.ops import AttentionInput, LayerNorm, Linear, LookUp, Ops, Queries, RelativeBias, Rotation, Window
from minibert.bert.packed import PackedBatch
from minibert.bert.reference import ACTIVATIONS
from minibert.bert.weights import HeadWeights, Weights
from minibert.checkpoint.files import locate
from minibert.models.inputs import pack
from minibert.models.loading import load_weights
from tests.support.checkpoints import random_checkpoint
from tests.support.report import REPORT
from tests.support.shape_comments import (
    LENGTHS,
    SIZES,
    SOURCES,
    Observation,
    Observer,
    Statement,
    check,
    trailing_comments,
)


@pytest.fixture(scope="module")
def observations(tmp_path_factory: pytest.TempPathFactory) -> list[Observation]:
    """Record forwards with each activation, with ids and with vectors, with probs and without."""
    files = locate(random_checkpoint(tmp_path_factory.mktemp("shapes") / "model", **SIZES))
    config = BertConfig.from_files(files)
    dimensions = {
        **{"B": len(LENGTHS), "T": sum(LENGTHS), "V": config.vocab_size, "P": config.max_position_embeddings},
        **{"H": config.hidden_size, "A": config.num_attention_heads, "D": config.head_size, "G": 2 * config.head_size},
        "Q": sum(LENGTHS),  # all tokens are read
        **{"F": config.intermediate_size, "L": config.num_hidden_layers, "type_vocab_size": config.type_vocab_size},
        "I": INNER,
    }
    letters = {letter: size for letter, size in dimensions.items() if letter != "Q"}
    sizes = [*letters.values(), *LENGTHS, NUM_LABELS, 1, 3, 6, 3 * config.hidden_size]
    assert len(sizes) == len(set(sizes)), "two dimensions are equal, so a wrong letter would not be found"

    generator = np.random.default_rng(0)
    ids, mask = padded_inputs(generator, config)
    vectors = generator.standard_normal((*ids.shape, config.hidden_size)).astype(np.float32)
    residual = generator.standard_normal((sum(LENGTHS), config.intermediate_size)).astype(np.float32)
    observer = Observer(SOURCES, dimensions)
    previous = sys.gettrace()
    sys.settrace(observer)
    try:
        weights = load_weights(files, config, reference.OPS.prepare)
        run(with_shared_keys(weights, dimensions["G"]), pack(config, ids, mask))
        dimensions["G"] = config.hidden_size
        for activation in ACTIVATIONS:
            changed = dataclasses.replace(weights, config=dataclasses.replace(config, hidden_act=activation))
            run(changed, pack(config, ids, mask))
        run(weights, pack(config, inputs_embeds=vectors, attention_mask=mask))
        run_heads(weights, pack(config, ids, mask))
        batch, float64 = pack(config, ids, mask), reference.make_ops(dtype=np.float64)
        run(weights, batch, ops=float64)
        for ops in (reference.OPS, float64):
            ops.embed(LookUp(weights.word_embeddings, batch.token_ids), scale=np.ones(batch.num_tokens))
        bias = RelativeBias(np.ones((8, 2 * config.max_position_embeddings - 1), np.float32), batch.columns)
        rows = vectors[mask][None].repeat(3, 0)
        rotation = Rotation(np.ones((config.max_position_embeddings, 6), np.float32), batch.positions)
        inputs = AttentionInput(*rows, batch.cu_seqlens, 8, bias, rotation, Window(3, batch.columns))
        float64.attention(inputs, return_scores=True, return_probs=True)
        run_norm_first(weights, pack(config, ids, mask))
        # In a forward only square weights have a residual of their own width, so N would always be H.
        reference.apply_linear(vectors[mask], weights.layers[0].intermediate, residual=residual)
        gated = dataclasses.replace(weights.layers[0].intermediate, gated=True)
        gated = dataclasses.replace(gated, weight=gated.weight[:130], bias=gated.bias[:130])
        for ops in (reference.OPS, float64):
            ops.linear(vectors[mask], gated, activation="silu")
        reference.sigmoid(residual)  # a forward does not have it, only a Dense module
        reference.matmul(residual, np.ones((163, config.intermediate_size), dtype=np.float32))
    finally:
        sys.settrace(previous)
    return observer.observations


def padded_inputs(generator: np.random.Generator, config: BertConfig) -> tuple[np.ndarray, np.ndarray]:
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    return generator.integers(0, config.vocab_size, size=mask.shape), mask


def run(weights: Weights, batch: PackedBatch, *, ops: Ops = reference.OPS) -> None:
    for queries in (None, Queries(np.arange(batch.num_tokens), batch.cu_seqlens)):
        *_, x = encoder.forward(weights, batch, ops, queries=queries)
    assert weights.pooler is not None
    encoder.pooler(x, weights.pooler, batch, ops)


def with_shared_keys(weights: Weights, G: int) -> Weights:
    """Return the weights with fewer heads of keys and values than of queries."""
    own, shared = (Linear(("x",), np.ones((rows, 56), np.float32), np.ones(rows, np.float32)) for rows in (56, 2 * G))
    maps = {"query_key_value": None, "own_query": own, "shared_key_value": shared}
    layers = tuple(dataclasses.replace(layer, **maps) for layer in weights.layers)
    shared_keys = copy.copy(weights)
    object.__setattr__(shared_keys, "layers", layers)
    return shared_keys


def run_norm_first(weights: Weights, batch: PackedBatch) -> None:
    """Run the other forward on BERT's weights, with a window and a gate; the odd heads cannot be rotated."""
    first, *others = weights.layers
    modern, F = copy.copy(weights), weights.config.intermediate_size
    gate = Linear(
        ("x", "y"), np.ones((2 * F, weights.config.hidden_size), np.float32), np.ones(2 * F, np.float32), True
    )
    layers = [dataclasses.replace(layer, window=3, intermediate=gate) for layer in others]
    object.__setattr__(modern, "layers", (dataclasses.replace(first, attention_norm=None, intermediate=gate), *layers))
    object.__setattr__(modern, "final_norm", weights.embeddings_norm)
    list(norm_first.forward(modern, batch, reference.OPS))
    x = encoder.embeddings(weights, batch, reference.OPS)
    for pooling in ("cls", "mean"):
        heads.pool(x, batch, batch.shows_first, pooling)


NUM_LABELS = 11
INNER = 37


def run_heads(weights: Weights, batch: PackedBatch) -> None:
    """Run each head on made weights."""
    config, dense = weights.config, weights.pooler
    assert dense is not None

    def linear(rows: int) -> Linear:
        return Linear(("x",), np.ones((rows, config.hidden_size), np.float32), np.ones(rows, np.float32))

    x = encoder.embeddings(weights, batch, reference.OPS)
    norm = LayerNorm("x", *np.ones((2, config.hidden_size), np.float32), 1e-12)
    head = HeadWeights("BertForMaskedLM", linear(config.hidden_size), norm, linear(config.vocab_size))
    modern = SimpleNamespace(
        family=FAMILIES["modernbert"],
        classifier_activation="gelu",
        classifier_pooling="mean",
        reads_any=lambda head: False,
    )
    head = dataclasses.replace(head, classifier=linear(NUM_LABELS))
    euro = [
        SimpleNamespace(family=FAMILIES["eurobert"], classifier_pooling=pooling, reads_any=lambda head: True)
        for pooling in ("mean", "late")
    ]
    inner = dataclasses.replace(
        head,
        transform_inner=linear(INNER),
        transform=Linear(
            ("x",), np.ones((config.hidden_size, INNER), np.float32), np.ones(config.hidden_size, np.float32)
        ),
        transform_norm=None,
    )
    heads.masked_lm(x, inner, config, reference.OPS)
    for own, name, kind in (
        (config, "BertForMaskedLM", "words"),
        (config, None, "pooler"),
        *((own, "BertForSequenceClassification", "sequences") for own in (config, modern, *euro)),
        *((own, "BertForTokenClassification", "tokens") for own in (config, modern)),
    ):
        given: Any = SimpleNamespace(config=own, head=head, pooler=dense)
        heads.result(name, kind, x, given, reference.OPS, batch)


def sources() -> dict[str, str]:
    return {name: path.read_text(encoding="utf-8") for name, path in SOURCES.items()}


def test_the_shape_comments_are_correct(observations: list[Observation]) -> None:
    assert check(sources(), observations, LENGTHS) == []
    for file, source in sources().items():
        count = len(trailing_comments(source))
        assert count >= 6, f"{file} has lost its shape comments"
        REPORT.append(f"shape comments: {count} in {file}, all correct")


def test_every_assignment_and_return_ran(observations: list[Observation]) -> None:
    """Otherwise an array without a comment could be made on a line that was not checked."""
    ran = {seen.line for seen in observations}
    for file, source in sources().items():
        for function in ast.walk(ast.parse(source)):
            if isinstance(function, ast.FunctionDef):
                lines = {node.end_lineno or 0 for node in ast.walk(function) if isinstance(node, Statement)}
                missed = {line for line in lines if (file, line) not in ran}
                assert not missed, f"{function.name} in {file}: lines {sorted(missed)}"
