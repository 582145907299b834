"""The analyses of models against hooks on transformers in float64, and against the papers' formulas written out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import minibert
from minibert import BertModel, Edit, inside
from minibert.inside import interventions
from minibert.trace.trace import Trace
from tests.support.head_models import CLASSES, inputs_of, make_model, their_model
from tests.support.random_checkpoints import random_checkpoint
from tests.support.torch_hooks import run_hooked

A, D, L = 3, 8, 2
H = A * D
B, S = 3, 9
RANDOM = np.random.default_rng(3)
MASK = np.ones((B, S), dtype=np.int64)
MASK[1, 5:], MASK[2, [1, 4]] = 0, 0
INPUTS = {"input_ids": RANDOM.integers(90, size=(B, S)), "attention_mask": MASK}
OTHER = {**INPUTS, "input_ids": RANDOM.integers(90, size=(B, S))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("inside") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> BertModel:
    return BertModel.from_pretrained(folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    from transformers import BertModel as Theirs

    return Theirs.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()


@pytest.fixture(scope="module")
def trace(model: BertModel) -> Trace:
    return model.trace(**INPUTS)


@pytest.fixture(scope="module")
def weights(folder: Path) -> dict[str, np.ndarray]:
    return {name: array.astype(np.float64) for name, array in load_file(folder / "model.safetensors").items()}


def columns_of(b: int) -> np.ndarray:
    return np.flatnonzero(MASK[b])


# --- ablation and patches, beside hooks -------------------------------------------------------------------------------


def last_state(theirs: Any, edits: Any, inputs: Any = INPUTS) -> np.ndarray:
    """Return their last hidden state, with zeros for masked tokens."""
    values, _ = run_hooked(theirs, inputs, edits)
    return values[f"encoder.layer.{L - 1}"] * MASK[..., None]


def changed(part: Any, value: Any) -> Any:
    def change(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[part] = value if not isinstance(value, np.ndarray) else torch.as_tensor(value)
        return x

    return change


def rms(x: np.ndarray) -> float:
    return float(np.sqrt((x**2).mean()))


def test_ablated_heads_are_those_of_hooks(model: BertModel, theirs: Any) -> None:
    result = inside.ablate_heads(model, INPUTS)
    clean = last_state(theirs, {})
    expected = np.zeros((L, A))
    for layer, head in np.ndindex(L, A):
        change = changed((..., slice(head * D, (head + 1) * D)), 0.0)
        without = last_state(theirs, {f"encoder.layer.{layer}.attention.self": change})
        expected[layer, head] = rms(without - clean) / rms(clean)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    np.testing.assert_array_equal(inside.ablate_heads(model, INPUTS, "last_hidden_state", layers=[-1]), result[1:])
    pooled = inside.ablate_heads(model, INPUTS, lambda output: output.pooler_output[0, 3])
    assert (pooled < 0).any()
    assert (pooled > 0).any()


def test_patches_are_those_of_hooks(model: BertModel, theirs: Any) -> None:
    def metric(output: Any) -> float:
        return float(output.last_hidden_state[0, 0, 5])

    clean, _ = run_hooked(theirs, INPUTS)
    corrupt = last_state(theirs, {}, OTHER)
    names = ["embeddings", *(f"encoder.layer.{i}" for i in range(L))]
    result = inside.patch(model, INPUTS, OTHER, metric)
    assert result.values.shape == (L + 1, S)
    for i, token in np.ndindex(L + 1, S):
        expected = last_state(theirs, {names[i]: changed((slice(None), token), clean[names[i]][:, token])}, OTHER)
        np.testing.assert_allclose(result.values[i, token], expected[0, 0, 5], atol=1e-5)
    by_heads = inside.patch(model, INPUTS, OTHER, metric, "heads")
    for i, head in np.ndindex(L, A):
        name, columns = f"encoder.layer.{i}.attention.self", (..., slice(head * D, (head + 1) * D))
        expected = last_state(theirs, {name: changed(columns, clean[name][columns])}, OTHER)
        np.testing.assert_allclose(by_heads.values[i, head], expected[0, 0, 5], atol=1e-5)
    np.testing.assert_allclose([result.clean, result.corrupt], [clean[names[-1]][0, 0, 5], corrupt[0, 0, 5]], atol=1e-5)
    restored = (result.values - result.corrupt) / (result.clean - result.corrupt)
    np.testing.assert_array_equal(result.restored, restored)
    distance = inside.patch(model, INPUTS, OTHER, layers=0)
    assert distance.clean == 0
    assert distance.values.shape == (1, S)
    assert distance.corrupt > 0


@pytest.mark.parametrize("kind", CLASSES)
def test_every_model_can_be_ablated_and_patched(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies that begin at a layer have the bits of a whole run with an edit, also in several batches and steps."""
    monkeypatch.setattr(interventions, "_TOKENS_AT_ONCE", 100)
    ours = getattr(minibert, kind).from_pretrained(make_model(tmp_path / "model", kind))
    inputs, other = inputs_of(kind, rows=6), inputs_of(kind, rows=6)
    other["input_ids"] = (other["input_ids"] + 7) % 97

    def metric(output: Any) -> float:
        return float(np.asarray(output[0], dtype=np.float64).sum())

    clean = ours.trace(**inputs)
    result = inside.ablate_heads(ours, inputs, metric)
    for layer, head in np.ndindex(2, 3):
        edit = {f"encoder.layer.{layer}.attention.self": Edit.zero(heads=head)}
        expected = metric(ours.trace(**inputs, record=(), edit=edit).output) - metric(clean.output)
        assert result[layer, head] == expected, (layer, head)
    patched = inside.patch(ours, inputs, other, metric)
    for state, token in ((0, 3), (1, 0), (2, 5)):
        edit = {f"hidden_states.{state}": Edit.patch(clean, tokens=[token])}
        expected = metric(ours.trace(**other, record=(), edit=edit).output)
        assert patched.values[state, token] == expected, (state, token)
    assert inside.value_zeroing(ours, inputs).shape[0] == 2


# --- value zeroing, norms ---------------------------------------------------------------------------------------------


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def test_value_zeroing_is_that_of_hooks(model: BertModel, theirs: Any) -> None:
    result = inside.value_zeroing(model, INPUTS)
    clean, _ = run_hooked(theirs, INPUTS)
    expected = np.zeros((L, B, S, S))
    for layer, j in np.ndindex(L, S):
        name = f"encoder.layer.{layer}"
        values, _ = run_hooked(theirs, INPUTS, {f"{name}.attention.self.value": changed((slice(None), j), 0.0)})
        for b in range(B):
            for i in columns_of(b) if MASK[b, j] else ():
                expected[layer, b, i, j] = 1 - cosine(values[name][b, i], clean[name][b, i])
    sums = expected.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(result, np.divide(expected, sums, out=expected, where=sums > 0), atol=1e-5)
    np.testing.assert_allclose(result.sum(axis=-1)[:, MASK == 1], 1)
    assert not result.sum(axis=-1)[:, MASK == 0].any()


@pytest.mark.parametrize("include", ["attention", "residual", "layer_norm"])
def test_norms_are_those_of_the_formula(
    include: str, model: BertModel, trace: Trace, weights: dict[str, np.ndarray], theirs: Any
) -> None:
    """Written out for one pair of tokens and one head after the other, from the values of transformers in float64."""
    values, _ = run_hooked(theirs, INPUTS)
    result = inside.norms(model, trace, include)
    by_head = inside.norms(model, INPUTS, "attention", heads=True)
    inputs = [values["embeddings"], values["encoder.layer.0"]]
    for layer, b in np.ndindex(L, B):
        path = f"encoder.layer.{layer}.attention"
        output, gamma = weights[f"{path}.output.dense.weight"], weights[f"{path}.output.LayerNorm.weight"]
        probs, value = values[f"{path}.self.probs"][b], values[f"{path}.self.value"][b]
        for i in columns_of(b):
            total = values[f"{path}.output.LayerNorm.input"][b, i]
            for j in columns_of(b):
                parts = []
                for a in range(A):
                    head = slice(a * D, (a + 1) * D)
                    parts.append(probs[a, i, j] * (output[:, head] @ value[j, head]))
                    expected = np.linalg.norm(parts[-1])
                    assert by_head[layer, b, a, i, j] == pytest.approx(expected, rel=1e-5, abs=1e-7)
                part = sum(parts)
                if include != "attention" and i == j:
                    part = part + inputs[layer][b, i]
                if include == "layer_norm":
                    part = (part - part.mean()) / np.sqrt(total.var() + 1e-12) * gamma
                assert result[layer, b, i, j] == pytest.approx(np.linalg.norm(part), rel=1e-5, abs=1e-7)
    assert not result[:, MASK == 0].any()


def test_norms_in_blocks_are_the_same(model: BertModel, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = inside.norms(model, trace)
    monkeypatch.setattr("minibert.inside.attention._BLOCK", 1)
    np.testing.assert_allclose(inside.norms(model, trace), whole, rtol=1e-12)


# --- attention: kinds of heads, rollout -------------------------------------------------------------------------------


def test_the_shares_of_heads_are_means_over_tokens(model: BertModel) -> None:
    words = [["[CLS]", *["a"] * (int(n) - 2), "[SEP]"] for n in MASK.sum(axis=1)]
    trace = model.trace(**INPUTS, tokens=words)
    result = inside.heads(trace)
    for layer, a in np.ndindex(L, A):
        seen: dict[str, list[float]] = {name: [] for name in inside.HeadKinds._fields[1:]}
        for b in range(B):
            columns = columns_of(b)
            n = len(columns)
            probs = trace[layer, "probs"][b, a][np.ix_(columns, columns)].astype(float).tolist()
            for i, row in enumerate(probs):
                entropy = -sum(p * math.log(p) for p in row if p)
                seen["entropy"].append(entropy)
                seen["relative_entropy"].append(entropy / math.log(n))
                seen["distance"].append(sum(p * abs(i - j) for j, p in enumerate(row)))
                seen["itself"].append(row[i])
                seen["previous"] += [row[i - 1]] if i else []
                seen["following"] += [row[i + 1]] if i + 1 < n else []
                seen["cls"].append(row[0])
                seen["sep"].append(row[n - 1])
        for name, numbers in seen.items():
            assert getattr(result, name)[layer, a] == pytest.approx(sum(numbers) / len(numbers), abs=1e-12), name
    assert result.layers == [0, 1]
    without = inside.heads(model.trace(**INPUTS, record="attentions.1"), layers=1)
    assert (without.cls, without.sep) == (None, None)
    np.testing.assert_array_equal(without.entropy, result.entropy[1:])
    assert set(result.kinds(share=0, broad=0).ravel()) <= {"previous", "following", "itself", "[CLS]", "[SEP]"}
    assert set(result.kinds(share=1).ravel()) <= {"broad", "mixed"}


def test_a_single_token_has_no_neighbour(model: BertModel) -> None:
    result = inside.heads(model.trace([[5]]))
    assert (result.entropy == 0).all()
    assert (result.previous == 0).all()
    assert (result.itself == 1).all()


@pytest.mark.parametrize("fuse", ["mean", "max", "min"])
@pytest.mark.parametrize("residual", [0.5, 0.0, 0.9])
def test_rollout_is_that_of_the_paper(fuse: str, residual: float, trace: Trace) -> None:
    result = inside.rollout(trace, residual, fuse)
    for b in range(B):
        columns = columns_of(b)
        n = len(columns)
        joined = [[float(i == j) for j in range(n)] for i in range(n)]
        for layer in range(L):
            probs = trace[layer, "probs"][b][:, columns[:, None], columns].astype(float)
            step = np.zeros((n, n))
            for i, j in np.ndindex(n, n):
                over = [probs[a, i, j] for a in range(A)]
                one = {"mean": sum(over) / A, "max": max(over), "min": min(over)}[fuse]
                step[i, j] = residual * (i == j) + (1 - residual) * one
            step = [row / row.sum() for row in step]
            joined = [[sum(step[i][k] * joined[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
            np.testing.assert_allclose(result[layer, b][np.ix_(columns, columns)], joined, atol=1e-12)
    assert not result[:, MASK == 0].any()


def test_rollout_of_maps(model: BertModel, trace: Trace) -> None:
    maps = np.stack([trace[i, "probs"] for i in range(L)])
    np.testing.assert_allclose(inside.rollout(maps), inside.rollout(trace), atol=1e-12)
    np.testing.assert_allclose(inside.rollout(maps.mean(axis=2)), inside.rollout(trace), atol=1e-7)
    mixed = inside.rollout(inside.value_zeroing(model, INPUTS), residual=0)
    np.testing.assert_allclose(mixed.sum(axis=-1)[:, MASK == 1], 1)
    np.testing.assert_array_equal(inside.rollout(torch.as_tensor(maps)), inside.rollout(maps))
    some = inside.rollout(trace, layers=[1])
    step = 0.5 * np.eye(S) + 0.5 * trace[1, "probs"][0].mean(axis=0)
    np.testing.assert_allclose(some[0, 0], step, atol=1e-7)


# --- layers and words -------------------------------------------------------------------------------------------------


def hsic_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Kornblith et al., equation 4, with the unbiased HSIC of Song et al., equation 4, times n (n - 3)."""
    n = len(x)

    def hsic(k: np.ndarray, m: np.ndarray) -> float:
        sums = k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * k.sum(axis=0) @ m.sum(axis=0)
        return float(np.trace(k @ m) + sums)

    k, m = ((z @ z.T) * (1 - np.eye(n)) for z in (x, y))
    return hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))


@pytest.mark.parametrize("rows", [2, 40])
def test_layers_are_compared_by_the_definitions(rows: int, model: BertModel, tmp_path: Path) -> None:
    """With 2 texts there are fewer tokens than features, with 40 more."""
    wider = BertModel.from_pretrained(random_checkpoint(tmp_path / "wide", hidden_size=27, num_hidden_layers=3, seed=5))
    ids = np.random.default_rng(rows).integers(90, size=(rows, 7))
    mask = np.ones_like(ids)
    mask[0, 5:] = 0
    a, b = model.trace(ids, mask), wider.trace(ids, mask)
    xs = [a[f"hidden_states.{i}"][mask == 1].astype(np.float64) for i in range(3)]
    ys = [b[f"hidden_states.{i}"][mask == 1].astype(np.float64) for i in range(4)]
    result = inside.compare_layers(a, b)
    assert result.cosine is None
    np.testing.assert_allclose(result.cka, [[hsic_cka(x, y) for y in ys] for x in xs], atol=1e-10)
    own = inside.compare_layers(a)
    np.testing.assert_allclose(own.cka, [[hsic_cka(x, y) for y in xs] for x in xs], atol=1e-10)
    np.testing.assert_allclose(np.diag(own.cka), 1)
    assert own.cosine is not None
    cosines = [[np.mean([cosine(u, v) for u, v in zip(x, y, strict=True)]) for y in xs] for x in xs]
    np.testing.assert_allclose(own.cosine, cosines, atol=1e-12)
    for states, anisotropy in ((xs, result.anisotropy_a), (ys, result.anisotropy_b)):
        for x, value in zip(states, anisotropy, strict=True):
            pairs = [cosine(x[s], x[t]) for s in range(len(x)) for t in range(s)]
            assert value == pytest.approx(np.mean(pairs), abs=1e-12)
    np.testing.assert_allclose(inside.compare_layers(a, b, layers=[0, 2]).cka, result.cka[np.ix_([0, 2], [0, 2])])
    np.testing.assert_allclose(inside.compare_layers(a, a).cka, own.cka, atol=1e-12)
    arrays = np.stack(xs, axis=1), np.stack(ys, axis=1)
    for of_traces, of_arrays in zip(result, inside.compare_layers(*arrays), strict=True):
        np.testing.assert_equal(of_arrays, of_traces)
    np.testing.assert_array_equal(inside.compare_layers(arrays[0], layers=[0, -1]).cka, own.cka[::2, ::2])
    assert own.cka.max() <= 1


def test_unrelated_layers_are_not_similar_with_fewer_words_than_features() -> None:
    noise = np.random.default_rng(0).standard_normal((20, 2, 400))
    assert abs(inside.compare_layers(noise).cka[0, 1]) < 0.1


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForPreTraining"])
def test_the_logit_lens_is_their_head_on_every_state(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibert.inside.representations.SLICE_BYTES", 4 * 97 * 5)
    folder = make_model(tmp_path / "model", kind)
    ours, inputs = getattr(minibert, kind).from_pretrained(folder), inputs_of(kind, rows=6)
    theirs = their_model(folder, kind, "eager").double()
    values, _ = run_hooked(theirs, inputs)
    result = inside.logit_lens(ours, inputs, 4)
    assert result.states == [0, 1, 2]
    shown = inputs["attention_mask"] == 1
    for i, name in enumerate(("embeddings", "encoder.layer.0", "encoder.layer.1")):
        with torch.no_grad():
            logits = theirs.cls.predictions(torch.as_tensor(values[name])).numpy()
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probs = powers / powers.sum(axis=-1, keepdims=True)
        order = np.argsort(-probs, axis=-1)[..., :4]
        np.testing.assert_array_equal(result.ids[i][shown], order[shown])
        expected = np.take_along_axis(probs, order, axis=-1)
        np.testing.assert_allclose(result.probs[i][shown], expected[shown], atol=1e-5)
    assert not result.probs[:, ~shown].any()
    trace = ours.trace(**inputs)
    again = inside.logit_lens(ours, trace, 97, layers=[2])
    np.testing.assert_array_equal(
        again.ids[0, ..., 0], np.where(shown, trace["cls.predictions.decoder"].argmax(axis=-1), 0)
    )
    np.testing.assert_allclose(again.probs.sum(axis=-1)[0][shown], 1)
