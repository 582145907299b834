"""Small models that all tests of the service share."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibert import CrossEncoder, MultiVectorEncoder, SentenceTransformer
from tests.support.checkpoints import sentence_model
from tests.support.multi_vectors import bert_folder, pylate
from tests.support.sentence_heads import model_folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    """A small random model with modules and prompts."""
    kinds = ["models.Transformer", "models.Pooling", "models.Normalize"]
    settings = {"prompts": {"query": "to find: ", "document": ""}, "similarity_fn_name": "cosine"}
    folder = sentence_model(tmp_path_factory.mktemp("served"), kinds, config_sentence_transformers=settings)
    made = SentenceTransformer(folder)
    made.max_seq_length = 64
    return made


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of another one, for services in processes of their own."""
    return sentence_model(tmp_path_factory.mktemp("serve") / "small")


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> CrossEncoder:
    """A small random model with one label."""
    folder = tmp_path_factory.mktemp("ranker") / "ranker"
    return CrossEncoder(model_folder(folder, "BertForSequenceClassification", num_labels=1, scale=5))


@pytest.fixture(scope="session")
def late_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model for late interaction; the BERT in it is in the folder "bert" beside it."""
    home = tmp_path_factory.mktemp("late")
    prefixes = {"query_prefix": "[unused1] ", "document_prefix": "[unused2] "}
    return pylate(bert_folder(home / "bert"), home / "pylate", **prefixes, query_length=24)


@pytest.fixture(scope="session")
def late(late_folder: Path) -> MultiVectorEncoder:
    """A small random model for late interaction."""
    return MultiVectorEncoder(late_folder)
