"""All ways to encode have the same options; library messages name them, those of the command line its flags."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from minibert import SentenceTransformer
from minibert.bert.low_precision import FORMATS_OF
from minibert.bert.reference import ACTIVATIONS
from minibert.cli.corpus import add_verbs as add_extract
from minibert.cli.embed import add_verbs as add_embed
from minibert.cli.options import Parser
from minibert.cli.search import add_verbs as add_search
from minibert.cli.states import add_verbs as add_states
from minibert.corpus.extract import EXTRACT_FORMATS
from minibert.corpus.sources import INPUT_FORMATS, ON_ERROR
from minibert.corpus.writers import OUTPUT_DTYPES
from minibert.kernels.ops import ACTIVATION_CODES
from minibert.models.options import BACKENDS, COMPUTE_TYPES
from minibert.scikit import MinibertTransformer
from minibert.sentence.encoding import EncodeOptions
from minibert.tokenizer.windows import TRUNCATION, WITHOUT_WINDOWS
from minibert.vectors.layers import COMBINED, SUBWORD_POOLING
from minibert.vectors.similarity import PRECISIONS

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
    for add in (add_embed, add_search, add_extract, add_states):
        add(verbs)
    return {(verb, action.dest): action for verb, parser in verbs.choices.items() for action in parser._actions}


@pytest.mark.parametrize(
    ("verb", "option", "choices"),
    [
        ("embed", "backend", BACKENDS),
        ("embed", "compute_type", FORMATS_OF),
        ("embed", "compute_type", COMPUTE_TYPES),
        ("embed", "on_error", ON_ERROR),
        ("embed", "input_format", INPUT_FORMATS),
        ("embed", "dtype", OUTPUT_DTYPES),
        ("embed", "precision", PRECISIONS),
        ("embed", "truncation", TRUNCATION),
        ("search", "truncation", TRUNCATION),
        ("hidden", "truncation", WITHOUT_WINDOWS),
        ("words", "truncation", WITHOUT_WINDOWS),
        ("embed", "layer_pooling", COMBINED),
        ("words", "layer_pooling", COMBINED),
        ("extract", "format", EXTRACT_FORMATS),
        ("extract", "dtype", OUTPUT_DTYPES),
        ("words", "subwords", SUBWORD_POOLING),
    ],
)
def test_the_command_line_offers_the_choices_of_the_library(verb: str, option: str, choices: tuple[str, ...]) -> None:
    assert set(_actions()[verb, option].choices or ()) == set(choices)


def test_the_kernels_have_every_activation() -> None:
    assert set(ACTIVATION_CODES) - {None, "sigmoid"} == set(ACTIVATIONS.values())
