"""All ways to encode have the same options; library messages name them, those of the command line its flags."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from pathlib import Path

from minibert import SentenceTransformer
from minibert.bert.low_precision import FORMATS_OF
from minibert.bert.reference import ACTIVATIONS
from minibert.cli.corpus import add_verbs as add_extract
from minibert.cli.options import Parser
from minibert.cli.states import add_verbs as add_states
from minibert.cli.vectors import add_verbs as add_vectors
from minibert.corpus.extract import EXTRACT_SUFFIXES
from minibert.kernels.ops import ACTIVATION_CODES
from minibert.models.options import COMPUTE_TYPES
from minibert.scikit import MinibertTransformer
from minibert.sentence.encoding import EncodeOptions

_PACKAGE = Path(__file__).parent.parent / "minibert"
_FLAG = re.compile(r"(?<![\w-])--[a-z]")


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


def _actions() -> dict[tuple[str, str], argparse.Action]:
    verbs = Parser().add_subparsers()
    for add in (add_vectors, add_extract, add_states):
        add(verbs)
    return {(verb, action.dest): action for verb, parser in verbs.choices.items() for action in parser._actions}


def test_the_command_line_offers_the_choices_of_the_library() -> None:
    assert set(_actions()["embed", "compute_type"].choices or ()) == set(COMPUTE_TYPES) == set(FORMATS_OF)
    assert set(_actions()["extract", "format"].choices or ()) == set(EXTRACT_SUFFIXES)


def test_the_kernels_have_every_activation() -> None:
    assert set(ACTIVATION_CODES) - {None, "sigmoid"} == set(ACTIVATIONS.values())
