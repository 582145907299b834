"""All ways to encode have the same options; library messages name them, those of the command line its flags."""

from __future__ import annotations

import dataclasses
import inspect

from minibert import SentenceTransformer
from minibert.bert.reference import ACTIVATIONS
from minibert.kernels.ops import ACTIVATION_CODES
from minibert.scikit import MinibertTransformer
from minibert.sentence.encoding import EncodeOptions


def test_every_way_to_encode_has_the_same_options_and_defaults() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(EncodeOptions)}
    of_encode = inspect.signature(SentenceTransformer.encode).parameters
    of_scikit = inspect.signature(MinibertTransformer).parameters
    for name, default in fields.items():
        assert of_encode[name].default == default, name
        assert of_scikit[name].default == default, name
    beyond = {"self", "inputs", "sentences", "show_progress_bar", "output_value", "precision", "convert_to_numpy"}
    beyond |= {"convert_to_tensor", "device", "out", "return_info", "pool", "chunk_size", "task", "processing_kwargs"}
    assert set(of_encode) == {*fields, *beyond}


def test_options_hold_layers_that_can_be_read_again() -> None:
    assert EncodeOptions(layers=iter([1, 2])).layers == (1, 2)


def test_the_kernels_have_every_activation() -> None:
    assert set(ACTIVATION_CODES) - {None, "sigmoid"} == set(ACTIVATIONS.values())
