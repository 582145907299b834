"""Load the model that --model and --revision name, for all verbs.

The functions import the classes they need, so that a verb without a model starts at once.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minibert.checkpoint.hub import ModelFiles
    from minibert.models.bert_model import BertModel
    from minibert.sentence.cross_encoder import CrossEncoder
    from minibert.sentence.sentence_transformers import SentenceTransformer
    from minibert.sentence.sparse_encoder import SparseEncoder
    from minibert.tokenizer.bert_tokenizer import BertTokenizer

__all__ = [
    "load_bert",
    "load_cross_encoder",
    "load_sentence_transformer",
    "load_sparse_encoder",
    "load_tokenizer",
    "locate_model",
]


def locate_model(arguments: argparse.Namespace) -> ModelFiles:
    """Find the files of the model. Short ids such as paraphrase-MiniLM-L6-v2 are those of sentence-transformers."""
    from minibert.checkpoint.hub import locate
    from minibert.sentence.settings import full_name

    return locate(full_name(arguments.model), revision=arguments.revision)


def load_tokenizer(arguments: argparse.Namespace) -> BertTokenizer:
    """Load the tokenizer of the model."""
    from minibert.tokenizer.bert_tokenizer import BertTokenizer

    return BertTokenizer.from_files(locate_model(arguments))


def load_bert(arguments: argparse.Namespace) -> BertModel:
    """Load the encoder without its pooler, with the backend and threads of the command line."""
    from minibert.models.bert_model import BertModel

    files = locate_model(arguments)
    return BertModel.from_files(
        files,
        backend=arguments.backend,
        num_threads=arguments.num_threads,
        compute_type=arguments.compute_type,
        shared_weights=arguments.shared_weights,
        add_pooling_layer=False,
    )


def load_sentence_transformer(arguments: argparse.Namespace, **options: Any) -> SentenceTransformer:
    """Load the model with all its modules; `options` are arguments of `SentenceTransformer`."""
    from minibert.sentence.sentence_transformers import SentenceTransformer

    return SentenceTransformer(arguments.model, **_how(arguments), **options)


def load_cross_encoder(arguments: argparse.Namespace) -> CrossEncoder:
    """Load the model as a `CrossEncoder`."""
    from minibert.sentence.cross_encoder import CrossEncoder

    return CrossEncoder(arguments.model, **_how(arguments))


def load_sparse_encoder(arguments: argparse.Namespace) -> SparseEncoder:
    """Load the model as a `SparseEncoder`."""
    from minibert.sentence.sparse_encoder import SparseEncoder

    return SparseEncoder(arguments.model, **_how(arguments))


def _how(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("revision", "backend", "num_threads", "compute_type", "shared_weights")
    return {name: getattr(arguments, name) for name in names}
