"""A model and its output: fields, items, the description, methods known from torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from minibert import BertModel, BertModelOutput
from tests.support.model_calls import CALLS, IDS, B, H, S, run

# --- outputs ----------------------------------------------------------------------------------------------------------


def test_an_output_is_read_like_that_of_transformers(model: BertModel, eager: transformers.BertModel) -> None:
    options = {"output_hidden_states": True, "output_attentions": True}
    output = model(IDS, **options)
    expected = run(eager, {"input_ids": IDS}, **options)
    names = ("last_hidden_state", "pooler_output", "hidden_states", "attentions")
    theirs = [name for name in expected if name != "cross_attentions"]  # None in an encoder
    assert output.keys() == tuple(theirs) == names
    assert len(output) == 4
    values = [getattr(output, name) for name in names]
    assert [id(x) for x in output] == [id(x) for x in output.to_tuple()] == [id(x) for x in values]
    for i, name in enumerate(names):
        assert output[name] is output[i] is output[i - 4] is values[i]
        assert name in output
        assert output.get(name) is output[name]
    assert output[:2] == tuple(values[:2])
    assert output[1:3] == tuple(values[1:3])
    assert dict(output).keys() == set(names)
    assert output.get("loss") is expected.get("loss") is None
    assert output.get("loss", 5) == expected.get("loss", 5) == 5
    last, pooled, *_ = output
    assert last is output.last_hidden_state
    assert pooled is output.pooler_output
    assert output.hidden_states[-1] is output.last_hidden_state


@pytest.mark.parametrize("call", CALLS)
def test_the_last_hidden_state_is_the_last_of_the_hidden_states(model: BertModel, call: str) -> None:
    output = model(**CALLS[call])
    assert output.hidden_states[-1] is output.last_hidden_state


def test_fields_that_were_not_requested_are_skipped_as_in_transformers(model: BertModel) -> None:
    output = model(IDS, output_hidden_states=False)
    assert output.hidden_states is None
    assert output.attentions is None
    assert "hidden_states" not in output
    assert 0 not in output
    assert output.to_tuple() == (output.last_hidden_state, output.pooler_output)
    with pytest.raises(KeyError, match="'hidden_states' is not in this output, which has last_hidden_state, p"):
        output["hidden_states"]
    with pytest.raises(IndexError):
        output[2]
    with pytest.raises(dataclasses.FrozenInstanceError):
        output.pooler_output = None  # type: ignore[misc]


def test_an_output_describes_itself(model: BertModel) -> None:
    assert repr(model(IDS, output_hidden_states=[1])) == (
        f"BertModelOutput(last_hidden_state=<array {(B, S, H)}>, pooler_output=<array {(B, H)}>, "
        f"hidden_states=<1 of 4 arrays {(B, S, H)}>)"
    )
    assert repr(BertModelOutput()) == "BertModelOutput()"


# --- the model itself -------------------------------------------------------------------------------------------------


def test_a_model_cannot_be_made_of_a_config(model: BertModel) -> None:
    for arguments in ((model.config,), (), (model.config, model.ops), (model.weights,)):
        with pytest.raises(TypeError, match=r"from_pretrained\(name_or_path\)"):
            BertModel(*arguments)


@pytest.mark.parametrize("pooler", [True, False])
def test_num_parameters_equals_transformers(folder: Path, pooler: bool) -> None:
    theirs = transformers.BertModel.from_pretrained(folder, add_pooling_layer=pooler)
    assert BertModel.from_pretrained(folder, add_pooling_layer=pooler).num_parameters() == theirs.num_parameters()


def test_without_pooler(folder: Path, model: BertModel) -> None:
    output = BertModel.from_pretrained(folder, add_pooling_layer=False)(IDS)
    assert output.pooler_output is None
    assert output.keys() == ("last_hidden_state", "hidden_states")
    np.testing.assert_array_equal(output.last_hidden_state, model(IDS).last_hidden_state)


def test_harmless_methods_of_torch_return_the_model_itself(model: BertModel) -> None:
    assert model.eval() is model
    assert model.to("cpu") is model
    assert model.to(torch.device("cpu")) is model
    assert model.train(False) is model


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "mps", 0, torch.device("cuda"), torch.float16, None])
def test_other_devices_are_refused(model: BertModel, device: Any) -> None:
    with pytest.raises(ValueError, match=r"because minibert runs on the CPU in float32\. Use \.to\('cpu'\)"):
        model.to(device)


def test_training_is_refused(model: BertModel) -> None:
    for arguments in ((), (True,)):
        with pytest.raises(ValueError, match=r"only runs trained models\. Train the model with transformers"):
            model.train(*arguments)


def test_a_model_describes_itself(model: BertModel) -> None:
    assert repr(model) == f"BertModel(3 layers, hidden_size=48, 4 heads, {model.num_parameters():,} parameters)"
