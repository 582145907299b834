"""Port mistakes that the catalogue does not have as such: each is located, and most of them are named."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertModel, parity
from minibert.parity.diagnosis.mistake import Mistake, part_mistake
from minibert.parity.diagnosis.simulation import simulate
from minibert.parity.truth import VECTOR
from tests.parity.conftest import small, states_of_theirs
from tests.support.marks import by_default, sampled
from tests.support.mistakes import Subject

LAYERS, HEADS, FEATURES = 3, 6, 83
BLOCK = ["hidden_states.*", "*.attention", "*.attention.self", "*.intermediate", "*.output.dense"]


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    sizes = {"num_attention_heads": HEADS, "hidden_size": 48, "intermediate_size": FEATURES}
    return small(tmp_path_factory.mktemp("invented"), num_hidden_layers=LAYERS, **sizes)


# --- the mistakes, each written as a port has it ----------------------------------------------------------------------


def copied(x: np.ndarray, tiled: bool) -> np.ndarray:
    """Half of the heads, or a third, repeated: each one twice, or all of them three times."""
    heads = x.reshape(len(x), HEADS, -1)
    few = np.concatenate([heads[:, :2]] * 3, axis=1) if tiled else np.repeat(heads[:, ::2], 2, axis=1)
    return few.reshape(x.shape)


def shared_keys(inner: Any, here: Any, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    return inner(here, query, np.stack([key[:, a - a % 2] for a in range(HEADS)], axis=1))


def online(block: int, forgotten: str) -> Any:
    def softmax(inner: Any, here: Any, scores: np.ndarray) -> np.ndarray:
        most, total, values = np.float32(-np.inf), np.float32(0), []
        with np.errstate(all="ignore"):
            for first in range(0, scores.shape[-1], block):
                part = scores[..., first : first + block]
                larger = np.maximum(most, part.max(axis=-1, keepdims=True))
                rescale = np.nan_to_num(np.exp(most - larger))
                new = np.nan_to_num(np.exp(part - larger))
                total = (total if forgotten == "sum" else total * rescale) + new.sum(axis=-1, keepdims=True)
                values = [old if forgotten == "values" else old * rescale for old in values] + [new]
                most = larger
        return np.concatenate(values, axis=-1) / total

    return softmax


def tail(count: int, left: str) -> Any:
    """The last features are not computed: they are zero, or what went in."""

    def part(inner: Any, here: Any, x: np.ndarray, *more: Any) -> np.ndarray:
        y = inner(here, x, *more).copy()
        y[..., -count:] = x[..., -count:] if left == "input" else 0
        return y

    return part


def linear_of(layer: Any, name: str) -> tuple[Any, int, int]:
    parts = {"query": (0, 3), "key": (1, 3), "value": (2, 3)}
    index, count = parts.get(name.rpartition(".")[2], (0, 1))
    field = "query_key_value" if count == 3 else {"attention.output.dense": "attention_output"}.get(name)
    return getattr(layer, field or name.removesuffix(".dense")), index, count


def other_bias(offset: int, source: str = "") -> Any:
    def weights(inner: Any, here: Any, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        layer = here.forward.weights.layers[max(0, here.layer + offset)]
        linear, index, count = linear_of(layer, source or here.name.split(".", 3)[3])
        return weight, np.split(linear.bias, count)[index].astype(bias.dtype)

    return weights


def other_norm(inner: Any, here: Any, x: np.ndarray, norm: Any) -> np.ndarray:
    own = here.forward.weights.layers[here.layer]
    return inner(here, x, dataclasses.replace(norm, bias=own.attention_norm.bias))


def without_last_keys(inner: Any, here: Any, scores: np.ndarray, shown: np.ndarray) -> np.ndarray:
    return inner(here, scores, shown & (np.arange(shown.shape[1]) < shown.shape[1] - 2))


def short_scores(inner: Any, here: Any, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    products = query[..., :-1] @ key[..., :-1].transpose(0, 1, 3, 2)
    return (products / math.sqrt(query.shape[-1])).astype(query.dtype)


def unscaled_head(inner: Any, here: Any, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    scores = inner(here, query, key).copy()
    scores[:, 4] *= math.sqrt(query.shape[-1])
    return scores


def empty_head(inner: Any, here: Any, context: np.ndarray) -> np.ndarray:
    return inner(here, np.where(np.arange(HEADS)[:, None, None] == 2, 0, context).astype(context.dtype))


def stale_tokens(inner: Any, here: Any, x: np.ndarray, norm: Any) -> np.ndarray:
    y = inner(here, x, norm).reshape(*here.forward.inputs.ids.shape, -1)
    y[:, -3:] = x.reshape(y.shape)[:, -3:]
    return y.reshape(x.shape)


# What the port does, the symbol of the value that is wrong, and what is said if all names are dumped ("" if no cause).
INVENTED: dict[str, tuple[Mistake, str]] = {
    "shared keys": (
        part_mistake("scores", scores=shared_keys),
        "in key, heads 1, 3, 5 have the values of heads 0, 2, 4",
    ),
    "copied keys": (
        part_mistake("key", dense=lambda inner, here, *x: copied(inner(here, *x), False)),
        "in key, heads 1, 3, 5 have the values of heads 0, 2, 4, as in grouped-query attention",
    ),
    "copied values": (
        part_mistake("value", dense=lambda inner, here, *x: copied(inner(here, *x), True)),
        "in value, heads 2, 3, 4, 5 have the values of heads 0, 1, 0, 1",
    ),
    "heads in reversed order": (
        part_mistake("context", merge=lambda inner, here, context: inner(here, context[:, ::-1])),
        "in context, heads 0, 1, 2, 3, 4, 5 have the values of heads 5, 4, 3, 2, 1, 0",
    ),
    "sum not rescaled": (part_mistake("probs", softmax=online(8, "sum")), "blocks of 8 keys, the sum so far is not"),
    "values not rescaled": (part_mistake("probs", softmax=online(1, "values")), "of 1 key, the values so far are not"),
    "linear tail": (
        part_mistake("intermediate", activation=tail(3, "input")),
        "no activation is applied; config.json has gelu, in features 80 to 82 of 83 (the last 3) only",
    ),
    "empty tail": (
        part_mistake("attention_dense", dense=tail(3, "")),
        "zero, as if they were never written, in features",
    ),
    "bias of the layer before": (
        part_mistake("output_dense", weights=other_bias(-1)),
        "output.dense.bias is that of the layer before",
    ),
    "bias of value in query": (
        part_mistake("query", weights=other_bias(0, "attention.self.value")),
        "attention.self.query.bias is attention.self.value.bias",
    ),
    "bias of the other LayerNorm": (
        part_mistake("output", norm=other_norm),
        "output.LayerNorm.bias is attention.output.LayerNorm.bias",
    ),
    "sums without the last inputs": (
        part_mistake("output_dense", product=lambda inner, here, x, w: inner(here, x[:, :-5], w[:, :-5])),
        "the last 5 terms of each sum in output_dense are left out",
    ),
    "scores without the last feature": (
        part_mistake("scores", scores=short_scores),
        "the last 1 term of each sum in scores",
    ),
    "softmax without the last keys": (
        part_mistake("probs", mask=without_last_keys),
        "the last 2 keys of each softmax",
    ),
    "one head without scale": (part_mistake("scores", scores=unscaled_head), "not divided by sqrt(D), D = "),
    "one head is empty": (part_mistake("context", merge=empty_head), "never written, in head 2 only"),
    "tokens are not normalised": (part_mistake("output", norm=stale_tokens), ""),
}


@pytest.mark.parametrize("name", INVENTED)
def test_an_invented_mistake_is_located_and_named(subject: Subject, name: str) -> None:
    mistake, text = INVENTED[name]
    first = int(name == "bias of the layer before")  # layer 0 has none before it
    (finding,) = subject.diagnose(subject.port(mistake))
    assert bool(finding.mistake) == bool(text), finding.text
    assert text in finding.text
    wrong = [one for one in simulate(subject.model, subject.inputs, ()) if mistake.acts_at(one)]
    assert list(finding.names) == wrong[first:]


# Of the 17, so many are named from fewer names. A sum without its last terms may be named in place of another.
@pytest.mark.slow
@pytest.mark.parametrize(("record", "least"), [(BLOCK, 15), (["hidden_states.*"], 10)])
def test_most_are_named_from_fewer_names_and_no_cause_is_false(subject: Subject, record: list[str], least: int) -> None:
    named = 0
    for name, (mistake, text) in INVENTED.items():
        (finding,) = subject.diagnose(subject.port(mistake, dump=record))
        assert finding.names[0].startswith(f"encoder.layer.{int(name == 'bias of the layer before')}"), name
        assert not finding.mistake or text in finding.text or finding.mistake == "L1.tail", finding.text
        named += bool(finding.mistake)
    assert named >= least


def test_features_that_float32_only_rounded_are_not_counted(subject: Subject) -> None:
    """One feature is large, so that its rounding is far from the unit."""
    large = part_mistake("output_dense", weights=lambda inner, here, w, b: (w * scale(w, 1, 3e4), b))
    findings = subject.diagnose(subject.port(large))
    assert "feature 1 of 48" in findings[0].text


def scale(weight: np.ndarray, row: int, factor: float) -> np.ndarray:
    return np.where(np.arange(len(weight)) == row, weight.dtype.type(factor), weight.dtype.type(1))[:, None]


# --- vectors ----------------------------------------------------------------------------------------------------------


def pooled(h: np.ndarray, ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """The vectors of ports that pool other tokens than the visible ones."""
    shown = mask[..., None] == 1
    ends = ids == ids[np.arange(len(ids)), mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)][:, None]
    word = shown & ~ends[..., None] & (np.cumsum(mask, axis=1) > 1)[..., None]
    count = mask.sum(axis=1)
    return {
        "h[:, 0]": h[:, 0],
        "h[:, -1]": h[:, -1],
        "h at the last of the first columns": h[np.arange(len(h)), count - 1],
        "h[:, 1:-1]": h[:, 1:-1].mean(axis=1),
        "maximum over padding": h.max(axis=1),
        "maximum over zeros": (h * shown).max(axis=1),
        "maximum of the words": np.where(word, h, -np.inf).max(axis=1),
        "minimum": np.where(shown, h, np.inf).min(axis=1),
        "mean over padding": h.mean(axis=1),
        "mean of the words": (h * word).sum(axis=1) / word.sum(axis=1),
        "mean without the separators": (h * (shown & ~ends[..., None])).sum(axis=1),
        "mean of the first columns": np.stack([row[:n].mean(axis=0) for row, n in zip(h, count, strict=True)]),
    }


@pytest.mark.parametrize(("scaled", "every"), by_default([(True, 2), (True, 1), (False, 1)], (True, 2)))
def test_other_tokens_that_are_pooled_are_named(subject: Subject, scaled: bool, every: int) -> None:
    """The probe has a row with padding on the left, and one with a hole in the mask."""
    last = subject.port(dump="last_hidden_state")[f"encoder.layer.{LAYERS - 1}"]
    ports = pooled(last, subject.padded.ids, subject.padded.mask.astype(np.int64))
    for name, vectors in [*ports.items()][::every]:
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        findings = subject.diagnose({VECTOR: (unit if scaled else vectors).astype(np.float32)})
        kinds = [finding.mistake[:2] for finding in findings]
        assert kinds == (["P1"] if scaled and name == "mean over padding" else ["P2"]), name


# --- exchanged inputs -------------------------------------------------------------------------------------------------

# The inputs of a port, from ids, mask and types, and the mistakes that say so.
EXCHANGED: dict[str, tuple[Any, set[str]]] = {
    "mask is types": (lambda ids, mask, types: (ids, types, types), {"A6.second-text"}),
    "mask is 1 - types": (lambda ids, mask, types: (ids, 1 - types, types), {"A6.first-text"}),
    "mask is 1 - mask": (lambda ids, mask, types: (ids, 1 - mask, types), {"A6.inverted"}),
    "mask is made of the ids": (lambda ids, mask, types: (ids, 1 * (ids > 0), types), {"A6.padding"}),
    "mask is ones": (lambda ids, mask, types: (ids, mask * 0 + 1, types), {"A5.none"}),
    "mask is zeros": (lambda ids, mask, types: (ids, mask * 0, types), {"A6.nothing"}),
    "mask and types are exchanged": (lambda ids, mask, types: (ids, types, mask), {"E5.swapped"}),
    "types are ones": (lambda ids, mask, types: (ids, mask, types * 0 + 1), {"E1.second"}),
    "types are zeros": (lambda ids, mask, types: (ids, mask, types * 0), {"E1.first"}),
    "types are 1 - types": (lambda ids, mask, types: (ids, mask, 1 - types), {"E1.inverted"}),
    "types are the mask": (lambda ids, mask, types: (ids, mask, mask), {"E1.second"}),
    "ids are the mask": (lambda ids, mask, types: (mask, mask, types), {"T1.ones"}),
    "ids are ones": (lambda ids, mask, types: (ids * 0 + 1, mask, types), {"T1.ones"}),
    "ids are zeros": (lambda ids, mask, types: (ids * 0, mask, types), {"T1.zeros"}),
    "ids are types": (lambda ids, mask, types: (types, mask, types), {"T1.types"}),
}


ZEROS = [("mask is zeros", "sdpa")]


@pytest.fixture(scope="module")
def exchanged(subject_folder: Path) -> tuple[BertModel, dict[str, np.ndarray], dict[str, Any]]:
    """A model, its inputs, and ports made by transformers: a row that shows no key attends to all alike, or nothing."""
    from transformers import BertModel as Theirs

    model = BertModel.from_pretrained(subject_folder, backend="numpy")
    inputs = {name: array[:, :24] for name, array in parity.probe(model).inputs.items()}
    kinds = ("eager", "sdpa")
    return model, inputs, {one: Theirs.from_pretrained(subject_folder, attn_implementation=one).eval() for one in kinds}


@pytest.mark.parametrize(
    ("name", "attention"), sampled(itertools.product(EXCHANGED, ["eager", "sdpa"]), 5, [("mask is zeros", "sdpa")])
)
def test_exchanged_inputs_are_named(exchanged: Any, name: str, attention: str) -> None:
    (model, inputs, ports), (exchange, ids) = exchanged, EXCHANGED[name]
    states = states_of_theirs(ports[attention], dict(zip(inputs, exchange(*inputs.values()), strict=True)))
    for dump in ({f"hidden_states.{i}": state for i, state in enumerate(states)}, {"last_hidden_state": states[-1]}):
        report = parity.check(model, dump, inputs)
        assert report.verdict == "wrong"
        causes = {one.removesuffix("-alike").removesuffix("-zeros") for one in report.diagnosis[0].candidates}
        assert causes & ids, str(report)
