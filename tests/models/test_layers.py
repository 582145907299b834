"""The hidden states that are kept, the layer at which a forward stops, and wrapped ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from minibert import BertModel
from minibert.bert.ops import Ops
from minibert.bert.packed import PackedBatch
from tests.support.model_calls import CALLS, IDS, L, run

# --- the layers to keep, and the layer to stop at ---------------------------------------------------------------------


def kept(states: Any) -> list[int] | None:
    return None if states is None else [i for i, state in enumerate(states) if state is not None]


@pytest.mark.parametrize(
    "selection", [True, False, 1, 2, 3, -1, -2, -4, [0], [0, 2], [-1, -2], [2, 2, -2], (1,), [3, 0, 1, 2], [-4]]
)
def test_the_same_hidden_states_are_kept_as_in_transformers(
    model: BertModel, eager: transformers.BertModel, selection: Any
) -> None:
    output = model(IDS, output_hidden_states=selection)
    expected = run(eager, {"input_ids": IDS}, output_hidden_states=selection)
    assert kept(output.hidden_states) == kept(expected.hidden_states)
    assert output.last_hidden_state is not None
    full = model(IDS)
    for i in kept(output.hidden_states) or ():
        np.testing.assert_array_equal(output.hidden_states[i], full.hidden_states[i])
    np.testing.assert_array_equal(output.last_hidden_state, full.last_hidden_state)
    np.testing.assert_array_equal(output.pooler_output, full.pooler_output)
    assert tuple(output.keys()) == tuple(expected.keys())


def test_only_states_that_are_computed_count_as_memory(model: BertModel, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[str] = []
    monkeypatch.setattr("minibert.models.base.require_memory", lambda needed, what, less: results.append(what))
    model(IDS, num_layers=1, output_attentions=True)
    assert results[0].startswith("2 hidden states and 1 attentions")


@pytest.mark.parametrize(
    ("selection", "indices"),
    [
        (0, [0]),  # the embeddings' output; transformers treats 0 as False
        (np.int64(2), [2]),
        (np.int32(-1), [3]),
        ({1, 3}, [1, 3]),
        (range(2), [0, 1]),
        ((i for i in (0, 2)), [0, 2]),
        (np.array([-1, 0]), [0, 3]),
        ([], []),
        (np.True_, [0, 1, 2, 3]),
        (np.False_, None),
    ],
)
def test_other_ways_to_select(model: BertModel, selection: Any, indices: list[int] | None) -> None:
    assert kept(model(IDS, output_hidden_states=selection).hidden_states) == indices


def test_a_model_has_defaults_that_a_call_overrides(folder: Path) -> None:
    model = BertModel.from_pretrained(folder, output_hidden_states=[-1], output_attentions=0)
    assert kept(model(IDS).hidden_states) == [3]
    assert kept(model(IDS).attentions) == [0]
    assert kept(model(IDS, output_hidden_states=True).hidden_states) == [0, 1, 2, 3]
    assert model(IDS, output_hidden_states=False, output_attentions=False).keys() == (
        "last_hidden_state",
        "pooler_output",
    )
    assert kept(model(IDS, num_layers=1).hidden_states) == [], "layers beyond the stop are not an error by default"
    plain = BertModel.from_pretrained(folder)
    assert kept(plain(IDS).hidden_states) == [0, 1, 2, 3]
    assert plain(IDS).attentions is None


@pytest.mark.parametrize("option", ["output_hidden_states", "output_attentions"])
@pytest.mark.parametrize(("value", "error"), [(7, ValueError), (-7, ValueError), ("all", TypeError), (1.5, TypeError)])
def test_bad_defaults_are_refused_when_the_model_is_made(
    folder: Path, option: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=option):
        BertModel.from_pretrained(folder, **{option: value})


@pytest.mark.parametrize("num_layers", [0, 1, 2, 3, np.int64(2)])
def test_stopping_early_gives_the_same_bits_up_to_there(model: BertModel, num_layers: int) -> None:
    full = model(**CALLS["everything"], output_attentions=True)
    output = model(**CALLS["everything"], output_attentions=True, num_layers=num_layers)
    assert kept(output.hidden_states) == list(range(num_layers + 1))
    assert kept(output.attentions) == list(range(num_layers))
    assert len(output.hidden_states) == L + 1
    assert len(output.attentions) == L
    for i in range(num_layers + 1):
        np.testing.assert_array_equal(output.hidden_states[i], full.hidden_states[i])
    for i in range(num_layers):
        np.testing.assert_array_equal(output.attentions[i], full.attentions[i])
    if num_layers < L:
        assert output.last_hidden_state is None
        assert output.pooler_output is None
        assert output.keys() == ("hidden_states", "attentions")
    else:
        np.testing.assert_array_equal(output.last_hidden_state, full.last_hidden_state)
        np.testing.assert_array_equal(output.pooler_output, full.pooler_output)


# --- wrapped ops: results can be seen, named and replaced -------------------------------------------------------------


def recording(ops: Ops, seen: list[str]) -> Ops:
    """Return the same ops, which record the module path of every call."""

    def linear(x: Any, linear: Any, **epilogue: Any) -> Any:
        seen.extend(linear.paths)
        return ops.linear(x, linear, **epilogue)

    def layer_norm(x: Any, norm: Any) -> Any:
        seen.append(norm.path)
        return ops.layer_norm(x, norm)

    return ops._replace(linear=linear, layer_norm=layer_norm)


def test_wrapped_ops_see_every_module_of_the_checkpoint_once(
    prepared: BertModel, eager: transformers.BertModel
) -> None:
    seen: list[str] = []
    output = BertModel(prepared.weights, recording(prepared.ops, seen))(IDS)
    kinds = (torch.nn.Linear, torch.nn.LayerNorm)
    assert sorted(seen) == sorted(name for name, module in eager.named_modules() if isinstance(module, kinds))
    assert seen[0] == "embeddings.LayerNorm"
    assert seen[-1] == "pooler.dense"
    for ours, before in zip(output.hidden_states, prepared(IDS).hidden_states, strict=True):
        np.testing.assert_array_equal(ours, before)


@pytest.mark.parametrize("num_layers", range(L + 1))
def test_stopping_early_stops_the_work(prepared: BertModel, num_layers: int) -> None:
    seen: list[str] = []
    BertModel(prepared.weights, recording(prepared.ops, seen))(IDS, num_layers=num_layers)
    layers = {int(path.split(".")[2]) for path in seen if path.startswith("encoder.layer.")}
    assert layers == set(range(num_layers))
    assert ("pooler.dense" in seen) == (num_layers == L)


# --- a run that begins with a hidden state ----------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [7, 1000])
@pytest.mark.parametrize("backend", ["kernels", "numpy"])
def test_a_run_from_a_hidden_state_has_the_bits_of_the_whole_run(
    folder: Path, backend: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one step and in several, with a masked token and a masked [CLS]; ids are not used."""
    monkeypatch.setattr("minibert.models.steps.TOKENS_PER_STEP", tokens)
    model = BertModel.from_pretrained(folder, backend=backend)
    mask = np.ones_like(IDS)
    mask[0, 2] = mask[1, 0] = 0
    whole, batch = model(IDS, mask, output_attentions=True), PackedBatch.from_mask(mask == 1)
    for k in range(L + 1):
        state = whole.hidden_states[k][mask == 1]
        output = model.run_packed(batch, True, True, start=(k, state))
        assert kept(output.hidden_states) == [*range(k, L + 1)]
        assert kept(output.attentions) == [*range(k, L)]
        for i in range(k, L + 1):
            np.testing.assert_array_equal(output.hidden_states[i], whole.hidden_states[i])
            assert not np.shares_memory(output.hidden_states[i], state)
        np.testing.assert_array_equal(output.pooler_output, whole.pooler_output)
        if k < L:
            np.testing.assert_array_equal(output.attentions[-1], whole.attentions[-1])
            early = model.run_packed(batch, [k, k + 1], num_layers=k + 1, start=(k, state))
            np.testing.assert_array_equal(early.hidden_states[k + 1], whole.hidden_states[k + 1])


def test_a_start_that_is_not_a_hidden_state_of_the_batch_is_refused(model: BertModel) -> None:
    batch, state = PackedBatch.from_mask(np.ones((1, 5), bool)), np.zeros((5, model.config.hidden_size), np.float32)
    for start, word in (
        ((L + 1, state), r"start\[0\]"),
        ((-1, state), r"start\[0\]"),
        ((1, state[:4]), "expected .5, "),
        ((1, state[:, 1:]), "expected .5, "),
        ((1, state[None]), "expected .5, "),
    ):
        with pytest.raises(ValueError, match=word):
            model.run_packed(batch, start=start)
    with pytest.raises(ValueError, match=r"start\[0\]"):
        model.run_packed(batch, num_layers=1, start=(2, state))
