"""Folders of late-interaction models in the three formats, with random weights."""

from __future__ import annotations

import json
import shutil
import string
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask

from minibert.encode.modules import activation_path
from tests.support.checkpoints import write_modules
from tests.support.sentence_heads import model_folder

DIMENSION = 16
PREFIXES = {"query": "[unused1] ", "document": "[unused2] "}
FIXED = {"strategy": "fixed", "length": 24}
# Some of them have no token of their own in the small vocabulary.
PUNCTUATION = list(string.punctuation)


def bert_folder(folder: Path, *, real: bool = False, **fields: Any) -> Path:
    return model_folder(folder, "BertModel", real=real, **fields)


def dense(width: int, out: int = DIMENSION, **options: Any) -> Dense:
    return Dense(width, out, bias=False, activation_function=torch.nn.Identity(), **options)


def native(bert: Path, folder: Path, *, pooling: float = 0, mask: dict[str, Any] | None = None, **first: Any) -> Path:
    """Save a model of sentence-transformers' own modules; `first` are settings of its Transformer."""
    torch.manual_seed(1)
    transformer = Transformer(str(bert), **first)
    width, names = transformer.get_embedding_dimension(), {"module_input_name": "token_embeddings"}
    modules = [transformer, dense(width, **names), MultiVectorMask(**(mask or {})), Normalize("token_embeddings")]
    modules += [HierarchicalTokenPooling(pooling)] if pooling else []
    prompts = {"query": "a ", "document": "the river "}
    MultiVectorEncoder(modules=modules, device="cpu", prompts=prompts).save_pretrained(str(folder))
    return folder


def pylate(bert: Path, folder: Path, *, kind: str | None = "ColBERT", pooling: bool = False, **settings: Any) -> Path:
    """Write the files of PyLate: two modules, and its settings at the top of config_sentence_transformers.json."""
    shutil.copytree(bert, folder)
    torch.manual_seed(2)
    width = json.loads((bert / "config.json").read_text())["hidden_size"]
    home = "sentence_transformers.models.{}"
    mean = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    config = {"in_features": width, "out_features": DIMENSION, "bias": False}
    config["activation_function"] = activation_path("Identity")
    weight = {"linear.weight": torch.randn(DIMENSION, width).numpy()}
    steps: list[Any] = [(home.format("Transformer"), None, None)]
    steps += [(home.format("Pooling"), mean, None)] if pooling else []
    write_modules(folder, [*steps, ("pylate.models.Dense.Dense", config, weight)])
    stored = {"model_type": kind, **settings} if kind else settings
    (folder / "config_sentence_transformers.json").write_text(json.dumps(stored))
    return folder


def stanford(bert: Path, folder: Path, metadata: dict[str, Any] | None = None, width: int = DIMENSION) -> Path:
    """Write the files of ColBERTv2: the projection is in the checkpoint, the settings are in artifact.metadata."""
    shutil.copytree(bert, folder)
    config = json.loads((bert / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    weights = {f"bert.{name}": tensor for name, tensor in load_file(bert / "model.safetensors").items()}
    torch.manual_seed(3)
    weights["linear.weight"] = torch.randn(width, config["hidden_size"])
    save_file(weights, folder / "model.safetensors")
    if metadata is not None:
        (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder
