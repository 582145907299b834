"""safetensors files written by the format's definition, and checks of a load."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertModel, ModelFormatError
from minibert.models.outputs import BertModelOutput
from tests.support.checkpoints import sizes

ROOT = Path(__file__).parents[2]

# Every size differs from the others, so that a wrong shape never fits by accident.
SIZES = sizes(V=20, H=8, L=2, A=2, F=13, P=10, types=3)

LAYER_MODULES = (
    *("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
)

NAMES = (
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
    "embeddings.LayerNorm.weight",
    "embeddings.LayerNorm.bias",
    *(f"encoder.layer.{i}.{m}.{part}" for i in range(2) for m in LAYER_MODULES for part in ("weight", "bias")),
    "pooler.dense.weight",
    "pooler.dense.bias",
)

INPUTS = {
    "input_ids": np.array([[3, 19, 4, 7, 7], [12, 0, 1, 18, 5]]),
    "token_type_ids": np.array([[0, 0, 2, 2, 1], [1, 0, 0, 0, 2]]),
    "attention_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]]),
}

Arrays = dict[str, np.ndarray]
Tensor = tuple[str, np.ndarray]  # the dtype's name in the file, and the numbers as they are stored
Tensors = dict[str, Tensor]
Write = Callable[..., Path]  # writes tensors, and a configuration with changes, into a folder


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Return the upper halves of float32 numbers, truncated."""
    return (np.ascontiguousarray(array, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


STORED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": lambda array: array.astype(np.float32),
    "F16": lambda array: array.astype(np.float16),
    "BF16": to_bfloat16,
    "F64": lambda array: array.astype(np.float64),
    "I64": lambda array: array.astype(np.int64),
    "I32": lambda array: array.astype(np.int32),
    "F8_E4M3": lambda array: array.astype(np.int8),
    "BOOL": lambda array: array > 0,
}


def stored(array: np.ndarray, dtype: str = "F32") -> Tensor:
    return dtype, STORED[dtype](array)


def safetensors_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Write a safetensors file by the format's definition."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = bytearray()
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return with_header(json.dumps(header).encode(), bytes(data))


def with_header(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def parts_of(content: bytes) -> tuple[bytes, bytes]:
    """Return the header and the tensors' data."""
    end = 8 + int.from_bytes(content[:8], "little")
    return content[8:end], content[end:]


def all_arrays(output: BertModelOutput) -> list[np.ndarray | None]:
    return [*(output.hidden_states or ()), output.pooler_output]


def assert_same_bits(output: BertModelOutput, expected: BertModelOutput) -> None:
    for ours, other in zip(all_arrays(output), all_arrays(expected), strict=True):
        np.testing.assert_array_equal(ours, other)


def assert_refused(folder: Path, *matches: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        BertModel.from_pretrained(folder)
    for match in matches:
        assert match in str(caught.value)


def write_shards(write: Callable[..., Path], tensors: Mapping[str, Tensor], count: int) -> Path:
    """Distribute the tensors over shards, so that most modules are in several."""
    weight_map = {}
    for i in range(count):
        shard = f"model-{i + 1:05}-of-{count:05}.safetensors"
        names = list(tensors)[i::count]
        path = write({name: tensors[name] for name in names}, shard)
        weight_map |= dict.fromkeys(names, shard)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def old_name(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
