"""The options that verbs share, written as in notation.py, and loading of the model that they name."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import minibert
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.cli.notation import add_options
from minibert.models.options import BACKENDS, COMPUTE_TYPES, LoadOptions
from minibert.tokenizer.too_long import TRUNCATIONS_WITHOUT_SPLIT
from minibert.vectors.layers import COMBINED

if TYPE_CHECKING:
    from minibert import BertModel, BertTokenizer
    from minibert.checkpoint.files import ModelFiles


LAYERS = """--layers LAYERS: hidden states by number, such as 1-6 or -1,-2: 0 is the embeddings' output, 1 that of the
    first layer, -1 that of the last"""
LAYER_POOLING = f"--layer-pooling {'|'.join(COMBINED)}"
TRUNCATE = f"""--truncation {"|".join(TRUNCATIONS_WITHOUT_SPLIT)} = warn: if a text is too long: cut it and
    warn, refuse it, or cut it silently"""
STRIDE = "--stride N = 0: tokens that a window repeats from the one before, with --truncation split"
BATCH_SIZE = "--batch-size N = 32: limits memory; the result does not depend on it"
COMPUTE_TYPE = f"""--compute-type {"|".join(COMPUTE_TYPES)}: the numbers that are multiplied (default:
    MINIBERT_COMPUTE_TYPE, else float32); all but float32 are faster and need less memory, with a small error"""
SHARED_WEIGHTS = """--shared-weights: hold the weights once for all processes of this machine, from a file that is
    written at the first load (default: MINIBERT_SHARED_WEIGHTS, else no)"""
TEXTS = 'TEXT...: a text; "-" for the lines of the standard input'
OPTIONAL_TEXTS = TEXTS.replace("TEXT...", "[TEXT...]")


def add_model_options(parser: argparse.ArgumentParser, *, backend: bool = True, needs_head: bool = False) -> None:
    """Add --model and --revision, and with `backend` also --backend, --threads and --compute-type.

    With `needs_head` --model must be given, because the default model does not have a head.
    """
    default = "" if needs_head else f" = {DEFAULT_MODEL}"
    files = f"""
        -m, --model MODEL{default}: hub id or folder
        --revision REVISION: branch, tag or commit of the hub repository (default: main)
        """
    computing = f"""
        --backend {"|".join(BACKENDS)}: the code that computes (default: MINIBERT_BACKEND, else kernels if they were
            built, else numpy); numba is the old name of kernels
        --threads N: default: MINIBERT_NUM_THREADS, else all cores, but at most OMP_NUM_THREADS
        {COMPUTE_TYPE}
        {SHARED_WEIGHTS}
        """
    add_options(parser, files + computing if backend else files, model={"required": needs_head})


def add_prompt(parser: argparse.ArgumentParser, before: str) -> None:
    """Add --prompt-name or --prompt (not both); `before` says where the text of --prompt goes."""
    text = f"""--prompt-name NAME: name of a prompt of the model, such as query
        --prompt TEXT: a text to put before {before}"""
    add_options(parser.add_mutually_exclusive_group(), text)


# --- the model that the options name ----------------------------------------------------------------------------------


def chosen(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of those options that the verb has."""
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


def loading(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of loading as keywords of the constructors."""
    return chosen(arguments, LoadOptions.__dataclass_fields__)


def locate_model(arguments: argparse.Namespace) -> ModelFiles:
    """Find the files of the model. Short ids such as paraphrase-MiniLM-L6-v2 belong to sentence-transformers."""
    from minibert.sentence.loading import full_name

    return LoadOptions(revision=arguments.revision).locate(full_name(arguments.model))


def load_tokenizer(arguments: argparse.Namespace) -> BertTokenizer:
    """Load the tokenizer of the model."""
    return minibert.BertTokenizer.from_files(locate_model(arguments))


def load_bert(arguments: argparse.Namespace) -> BertModel:
    """Load the encoder without its pooler."""
    return minibert.BertModel.from_files(locate_model(arguments), add_pooling_layer=False, **loading(arguments))


def load_encoder(kind: str, arguments: argparse.Namespace) -> Any:
    """Load a SentenceTransformer, CrossEncoder or SparseEncoder."""
    return getattr(minibert, kind)(arguments.model, **loading(arguments), **chosen(arguments, ["prompts"]))
