"""Checkpoints made by transformers from random numbers, in the file formats people have on disk."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

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

# The model is small, but every part changes the numbers. With transformers' own initializer_range of 0.02 so narrow a
# model hardly attends and hardly activates, and two formulas of GELU would give the same result.
_SMALL: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}

ODD: dict[str, Any] = {
    "vocab_size": 997,
    "hidden_size": 84,
    "num_hidden_layers": 3,
    "num_attention_heads": 7,
    "intermediate_size": 205,
    "hidden_act": "gelu_new",
    "max_position_embeddings": 131,
    "type_vocab_size": 3,
    "layer_norm_eps": 1e-5,
}
"""The fields of a model with 7 attention heads of 12, in which every other field is unusual too."""


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
    from safetensors.torch import save_file
    from transformers import BertConfig, BertModel

    config = BertConfig(**{**_SMALL, **config_fields})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():  # transformers initialises them to exactly 1 and 0
                if name.endswith("LayerNorm.weight"):
                    parameter.copy_(1 + 0.2 * torch.randn(parameter.shape))
                elif name.endswith("bias"):
                    parameter.copy_(0.1 * torch.randn(parameter.shape))
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {prefix + name: tensor.to(getattr(torch, dtype)) for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["BertModel"]
    config.dtype = dtype
    config.save_pretrained(folder)
    save_vocabulary(folder, config.vocab_size, config.max_position_embeddings)
    return folder


def save_vocabulary(folder: Path, size: int, limit: int) -> None:
    """Save a tokenizer with the first words of `VOCABULARY`, which cuts texts to this number of tokens."""
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY[:size]), encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": limit}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
