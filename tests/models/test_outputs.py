"""A model and its output: fields, items, the description, methods known from torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import transformers

from minibert import BertModel, BertModelOutput
from tests.support.model_calls import IDS, B, H, S, run

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


def test_fields_that_were_not_requested_are_skipped_as_in_transformers(model: BertModel) -> None:
    output = model(IDS, output_hidden_states=False)
    assert (output.hidden_states, output.attentions) == (None, None)
    assert "hidden_states" not in output
    assert 0 not in output
    assert output.to_tuple() == (output.last_hidden_state, output.pooler_output)
    with pytest.raises(KeyError, match="'hidden_states'"):
        output["hidden_states"]
    with pytest.raises(IndexError):
        output[2]
    with pytest.raises(dataclasses.FrozenInstanceError):
        output.pooler_output = None  # type: ignore[misc]
    assert f"hidden_states=<1 of 4 arrays {(B, S, H)}>" in repr(model(IDS, output_hidden_states=[1]))
    assert repr(BertModelOutput()) == "BertModelOutput()"


# --- the model itself -------------------------------------------------------------------------------------------------


def test_a_model_cannot_be_made_of_a_config(model: BertModel) -> None:
    for arguments in ((model.config,), (), (model.config, model.ops), (model.weights,)):
        with pytest.raises(TypeError, match=r"from_pretrained\(name_or_path\)"):
            BertModel(*arguments)


@pytest.mark.parametrize("pooler", [True, False])
def test_a_model_with_or_without_pooler(folder: Path, model: BertModel, pooler: bool) -> None:
    theirs = transformers.BertModel.from_pretrained(folder, add_pooling_layer=pooler)
    ours = BertModel.from_pretrained(folder, add_pooling_layer=pooler)
    assert ours.num_parameters() == theirs.num_parameters()
    output = ours(IDS)
    assert ("pooler_output" in output.keys()) == (output.pooler_output is not None) == pooler  # noqa: SIM118
    np.testing.assert_array_equal(output.last_hidden_state, model(IDS).last_hidden_state)
