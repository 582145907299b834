"""Models with heads in programs that were written for transformers: tensors, keywords, save_pretrained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert import ModelFormatError
from tests.support.head_models import CLASSES, inputs_of, run_theirs, their_model

FolderOf = Callable[[str], Path]


def load(name: str, folder: Path, **options: Any) -> Any:
    return getattr(minibert, name).from_pretrained(folder, **options)


@pytest.mark.parametrize("name", CLASSES)
def test_tensors_in_tensors_out(folder_of: FolderOf, name: str) -> None:
    model = load(name, folder_of(name))
    options = {"output_hidden_states": True, "output_attentions": True}
    expected = model(**inputs_of(name), **options)
    tensors = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in inputs_of(name).items()}
    output = model(**tensors, **options)
    assert type(output) is type(expected)
    for found, wanted in zip(output.to_tuple(), expected.to_tuple(), strict=True):
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
        for tensor, array in pairs:
            assert isinstance(tensor, torch.Tensor)
            assert tensor.numpy().tobytes() == array.tobytes()
    as_lists = model(**{key: value.tolist() for key, value in inputs_of(name).items()})
    assert as_lists[0].tobytes() == expected[0].tobytes()


@pytest.mark.parametrize("name", CLASSES)
def test_tuples_and_attributes_are_those_of_transformers(folder_of: FolderOf, name: str) -> None:
    inputs, folder = inputs_of(name), folder_of(name)
    theirs, model = their_model(folder, name), load(name, folder)
    expected = run_theirs(theirs, inputs, return_dict=False)
    for output in (
        model(**inputs, return_dict=False),
        load(name, folder, return_dict=False)(**inputs),
        model.forward(**inputs).to_tuple(),
    ):
        assert type(output) is tuple
        assert [array.shape for array in output] == [tuple(tensor.shape) for tensor in expected]
    for attribute in ("base_model_prefix", "main_input_name", "num_labels"):
        if hasattr(theirs, attribute):
            assert getattr(model, attribute) == getattr(theirs, attribute)
    assert model.base_model is model.bert is model.bert.base_model


# --- save_pretrained -------------------------------------------------------------------------------------------------


def test_the_model_inside_is_saved_without_the_head(folder_of: FolderOf, tmp_path: Path) -> None:
    load("BertForMaskedLM", folder_of("BertForMaskedLM")).bert.save_pretrained(tmp_path)
    assert type(minibert.load(tmp_path)) is minibert.BertModel
    with pytest.raises(ModelFormatError, match="It has no head"):
        load("BertForMaskedLM", tmp_path)
