"""Checkpoints made by transformers from random numbers, in the file formats people have on disk."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = """
    the of and to in is was on at by for with his her from that this first second longer short hello world
    cat dog mat bank river text sat fish man woman ##ing ##ed ##er ##ly ##est
"""
VOCABULARY = (
    *SPECIAL_TOKENS,
    *string.ascii_lowercase,
    *string.digits,
    *string.punctuation,
    *(f"##{character}" for character in string.ascii_lowercase + string.digits),
    *_WORDS.split(),
)


def sizes(*, V: int, H: int, L: int, A: int, F: int, P: int, types: int = 2) -> dict[str, Any]:
    """Return the fields of a config by the letters of encoder.py."""
    layers = {"hidden_size": H, "num_hidden_layers": L, "num_attention_heads": A, "intermediate_size": F}
    return {"vocab_size": V, "max_position_embeddings": P, "type_vocab_size": types, **layers}


# The model is small, but every part changes the numbers. With transformers' own initializer_range of 0.02 so narrow a
# model hardly attends and hardly activates, and two formulas of GELU would give the same result.
_SMALL: dict[str, Any] = {**sizes(V=len(VOCABULARY), H=24, L=2, A=3, F=40, P=512), "initializer_range": 0.2}

ODD: dict[str, Any] = {**sizes(V=997, H=84, L=3, A=7, F=205, P=131, types=3), "hidden_act": "gelu_new"}
ODD["layer_norm_eps"] = 1e-5
"""The fields of a model with 7 attention heads of 12, in which every other field is unusual too."""


def random_successor(folder: Path, model_type: str, *, head: str = "", seed: int = 0, **config_fields: Any) -> Path:
    """Save a random model of one of BERT's successors; its other sizes are those of transformers' config.

    `head` is the part of a class's name that all families have, such as "ForMaskedLM".
    """
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(model_type, **config_fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"AutoModel{head}").from_config(config)
        vary(model, 0.1)
        model.tie_weights()
        model.save_pretrained(folder)
    return folder


def random_checkpoint(
    folder: Path, *, dtype: str = "float32", prefix: str = "", seed: int = 0, **config_fields: Any
) -> Path:
    """Save a randomly initialised BERT with its vocabulary in `folder`; return the folder.

    Parameters
    ----------
    folder : Path
        Created if it does not exist.
    dtype : {"float32", "float16", "bfloat16"}
        The type of the tensors in the file.
    prefix : str
        Put before every tensor's name, for example "bert.".
    seed : int
    **config_fields
        Fields of transformers' BertConfig; the default sizes are those of a small model.
    """
    import torch
    from safetensors.torch import save_file as save_tensors
    from transformers import BertConfig, BertModel

    config = BertConfig(**{**_SMALL, **config_fields})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(config)
        vary(model, 0.1)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {prefix + name: tensor.to(getattr(torch, dtype)) for name, tensor in model.state_dict().items()}
    save_tensors(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["BertModel"]
    config.dtype = dtype
    config.save_pretrained(folder)
    save_vocabulary(folder, config.vocab_size, config.max_position_embeddings)
    return folder


def vary(model: Any, bias: float) -> None:
    """Change the weights of LayerNorms and the biases of a model: transformers initialises them to exactly 1 and 0."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.lower().endswith("norm.weight"):
                parameter.copy_(1 + 0.2 * torch.randn(parameter.shape))
            elif name.endswith("bias"):
                parameter.copy_(bias * torch.randn(parameter.shape))


def save_vocabulary(folder: Path, size: int, limit: int) -> None:
    """Save a tokenizer with the first words of `VOCABULARY`, which cuts texts to this number of tokens."""
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY[:size]), encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": limit}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def random_model(folder: Path, shape: tuple[int, int, int, int, str], vocab_size: int, positions: int = 512) -> Path:
    """Save a model of seeded random weights: config.json and model.safetensors."""
    H, L, A, F, activation = shape
    generator = np.random.default_rng(H)
    tensors: dict[str, np.ndarray] = {}

    def dense(name: str, rows: int, columns: int) -> None:
        tensors[f"{name}.weight"] = (generator.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)
        tensors[f"{name}.bias"] = (0.1 * generator.standard_normal(rows)).astype(np.float32)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = (1 + 0.2 * generator.standard_normal(H)).astype(np.float32)
        tensors[f"{name}.bias"] = (0.1 * generator.standard_normal(H)).astype(np.float32)

    for name, rows in (("word", vocab_size), ("position", positions), ("token_type", 2)):
        table = generator.standard_normal((rows, H)).astype(np.float32)
        tensors[f"embeddings.{name}_embeddings.weight"] = table
    norm("embeddings.LayerNorm")
    for i in range(L):
        layer = f"encoder.layer.{i}"
        for name in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{name}", H, H)
        dense(f"{layer}.attention.output.dense", H, H)
        norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", F, H)
        dense(f"{layer}.output.dense", H, F)
        norm(f"{layer}.output.LayerNorm")
    dense("pooler.dense", H, H)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": activation, "layer_norm_eps": 1e-12}
    config |= sizes(V=vocab_size, H=H, L=L, A=A, F=F, P=positions)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
