"""Folders of cross-encoders and SPLADE models with random weights, and texts for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import sentence_transformers
import torch

from tests.support.checkpoints import VOCABULARY, listed_modules
from tests.support.head_models import make_model
from tests.support.text_data import VARIABLE, data_path, udhr_lines

SEQUENCE, MASKED = "BertForSequenceClassification", "BertForMaskedLM"


def model_folder(folder: Path, name: str, *, scale: float = 1.0, real: bool = False, **options: Any) -> Path:
    """Make a random model with a tokenizer; `scale` multiplies the classifier's weight.

    With `real` the vocabulary is one of many languages, of the test data.
    """
    options = {"type_vocab_size": 2, "max_position_embeddings": 64, **options}
    return make_model(folder, name, vocabulary=vocabulary(real), scale={"classifier.weight": scale}, **options)


def vocabulary(real: bool) -> list[str]:
    if not real:
        return [*VOCABULARY]
    return data_path("vocab/bert-base-multilingual-cased.txt").read_text(encoding="utf-8").splitlines()[:30_000]


def modules(*kinds: str) -> list[dict[str, Any]]:
    """Return the content of modules.json; the first module is in the folder itself."""
    return listed_modules(kinds)


TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"
MLM = "sentence_transformers.sparse_encoder.models.MLMTransformer"
SPLADE = "sentence_transformers.sparse_encoder.models.SpladePooling"
FILL_MASK = {"transformer_task": "fill-mask", "module_output_name": "token_embeddings"}
CLASSIFY = {"transformer_task": "sequence-classification", "module_output_name": "scores"}


def texts(count: int) -> list[str]:
    """Return real texts of many languages if the test data exist, else made ones."""
    if os.environ.get(VARIABLE):
        lines = udhr_lines()
        return [lines[i * len(lines) // count] for i in range(count)]
    words = VOCABULARY[-40:]
    return [" ".join(words[(i * 7 + j * (i % 5 + 1)) % len(words)] for j in range(i % 23)) for i in range(count)]


def theirs(name: str, folder: Path, **options: Any) -> Any:
    """Load a model with sentence-transformers."""
    kind = getattr(sentence_transformers, name)
    return kind(str(folder), device="cpu", model_kwargs={"dtype": torch.float32}, **options)
