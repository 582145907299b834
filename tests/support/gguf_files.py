"""GGUF files, written byte by byte, as llama.cpp's converter writes them."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from minibert.checkpoint.quantised import QUANTISED

Stored = tuple[int, tuple[int, ...], bytes]
"""The type of ggml, the shape and the bytes of a tensor."""

ARCHITECTURES = {
    "nomic_bert": "nomic-bert",
    "jina_embeddings_v3": "jina-bert-v3",
    "eurobert": "eurobert",
    "modernbert": "modern-bert",
}

_NAMES = (
    (r"^embeddings\.word_embeddings|^embed_tokens|^embeddings\.tok_embeddings", "token_embd"),
    (r"^(norm|final_norm)\.", "output_norm."),
    (r"input_layernorm", "attn_norm"),
    (r"mlp_norm", "ffn_norm"),
    (r"^embeddings\.position_embeddings", "position_embd"),
    (r"^embeddings\.token_type_embeddings", "token_types"),
    (r"^embeddings\.(LayerNorm|norm)", "token_embd_norm"),
    (r"^(encoder\.layer|transformer\.layer|layers)\.", "blk."),
    (r"attention\.self\.query|attention\.q_lin", "attn_q"),
    (r"attention\.self\.key|attention\.k_lin", "attn_k"),
    (r"attention\.self\.value|attention\.v_lin", "attn_v"),
    (r"attention\.output\.dense|attention\.out_lin|self_attn\.o_proj", "attn_output"),
    (r"attention\.output\.LayerNorm|sa_layer_norm|post_attention_layernorm", "attn_output_norm"),
    (r"attn\.Wqkv", "attn_qkv"),
    (r"attn\.Wo", "attn_output"),
    (r"intermediate\.dense|ffn\.lin1|mlp\.(up_proj|fc1|Wi)", "ffn_up"),
    (r"mlp\.gate_proj", "ffn_gate"),
    (r"output\.LayerNorm|output_layer_norm|post_mlp_layernorm", "layer_output_norm"),
    (r"output\.dense|ffn\.lin2|mlp\.(down_proj|fc2|Wo)", "ffn_down"),
    (r"^classifier\.dense|^pre_classifier", "cls"),
    (r"^classifier(\.out_proj)?", "cls.output"),
)


def stored(array: np.ndarray) -> Stored:
    """Store an array in float32, or in the 16 bits that it has; uint16 are the upper halves of float32."""
    return {"float32": 0, "float16": 1, "uint16": 30}[array.dtype.name], array.shape, array.tobytes()


def llama_names(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a model's tensors by llama.cpp's names, without the pooler; the three maps of nomic's attention as one."""
    renamed, norms_first = {}, any("input_layernorm" in name for name in arrays)
    for name, array in arrays.items():
        if norms_first:
            name = name.replace("post_attention_layernorm", "ffn_norm")
        name = re.sub(r"^(bert|distilbert|roberta|nomic_bert)\.", "", name)
        for old, new in _NAMES:
            name = re.sub(old, new, name)
        if not name.startswith(("pooler.", "embeddings.position_ids")):
            renamed[name] = array
    for query in [name for name in renamed if "self_attn.q_proj" in name]:
        parts = {part: renamed.pop(query.replace("q_proj", f"{part}_proj")) for part in "qkv"}
        if norms_first:
            renamed |= {query.replace("self_attn.q_proj", f"attn_{part}"): x for part, x in parts.items()}
        else:
            renamed[query.replace("self_attn.q_proj", "attn_qkv")] = np.concatenate([*parts.values()])
    return renamed


def metadata_of(config: Any, words: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """Return the metadata of a model with this config of minibert; `more` has "_" for "." and replaces entries."""
    arch = ARCHITECTURES.get(config.model_type, "bert")
    data: dict[str, Any] = {
        "general.architecture": arch,
        "general.name": "a model",
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.layer_norm_epsilon": config.layer_norm_eps,
        f"{arch}.pooling_type": 1,
        "general.tags": ["a", "b"],
    }
    rope = config.rope_parameters
    if arch == "modern-bert":
        data |= {f"{arch}.attention.sliding_window": config.local_attention, f"{arch}.rope.freq_base_swa": 10_000.0}
        data |= {f"{arch}.attention.sliding_window_pattern": 3, f"{arch}.rope.freq_base": 160_000.0}
    elif rope:
        data[f"{arch}.rope.freq_base"] = rope["rope_theta"]
    if arch in ("modern-bert", "eurobert"):
        norm = f"{arch}.attention.layer_norm"
        data[f"{norm}_rms_epsilon"] = data.pop(f"{norm}_epsilon")
    if arch == "eurobert":
        data[f"{arch}.attention.head_count_kv"] = config.num_key_value_heads
    if words:
        special = [word.startswith("[") and "unused" not in word for word in words]
        data |= {
            "tokenizer.ggml.model": "bert",
            "tokenizer.ggml.tokens": [
                word if kept else word[2:] if word.startswith("##") else f"▁{word}"
                for word, kept in zip(words, special, strict=True)
            ],
            "tokenizer.ggml.token_type": [3 if kept else 1 for kept in special],
            **{
                f"tokenizer.ggml.{key}_token_id": words.index(word)
                for key, word in (("bos", "[CLS]"), ("eos", "[SEP]"), ("unknown", "[UNK]"), ("padding", "[PAD]"))
            },
        }
    return data | more


def gguf_of(folder: Path, config: Any, words: list[str] | None = None, **more: Any) -> bytes:
    """Return the file that the converter makes of a folder with model.safetensors."""
    tensors = llama_names(load_file(folder / "model.safetensors"))
    return gguf_bytes(metadata_of(config, words, **more), {name: stored(array) for name, array in tensors.items()})


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, Stored], alignment: int = 32) -> bytes:
    """Return a file of the version 3."""
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    header += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    numbers = b""
    for name, (kind, shape, data) in tensors.items():
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        header += _text(name) + sizes + struct.pack("<IQ", kind, len(numbers))
        numbers += data + bytes(-len(data) % alignment)
    return header + bytes(-len(header) % alignment) + numbers


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    """Return the number of a value's type, and the value."""
    if isinstance(value, list):
        whole = b"".join(_value(item)[4:] for item in value)
        return struct.pack("<I", 9) + _value(value[0])[:4] + struct.pack("<Q", len(value)) + whole
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    kind, code = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}[type(value)]
    return struct.pack(f"<I{code}", kind, value)


def random_blocks(kind: int, count: int) -> bytes:
    """Return blocks of a quantised type whose scales are small numbers, and whose other bits are random."""
    dtype = QUANTISED[kind].stored
    bits = hashlib.shake_256(f"{kind}".encode()).digest(count * dtype.itemsize)
    blocks = np.frombuffer(bits, dtype).copy()
    for name in {"d", "m"} & set(dtype.names or ()):
        blocks[name] = (blocks[name].view(np.uint16) % 2001 - 1000.0) / 2**18
    return blocks.tobytes()
