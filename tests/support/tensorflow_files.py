"""Checkpoints of TensorFlow, written byte by byte, with the names of google's BERT."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minibert.checkpoint.tensorflow import masked_crc32c

DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


def variables_of(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors of transformers as variables of google's BERT, with those of the optimizer."""
    variables = {}
    for name, values in tensors.items():
        if name.endswith("position_ids") or name == "cls.predictions.decoder.weight":
            continue
        if (
            name.endswith("weight")
            and values.ndim == 2
            and not re.search("embeddings|relationship|classifier|qa_outputs", name)
        ):
            name, values = re.sub("weight$", "kernel", name), values.T
        for new, old in (
            (r"layer\.(\d+)", r"layer_\1"),
            (r"LayerNorm\.weight", "LayerNorm.gamma"),
            (r"LayerNorm\.bias", "LayerNorm.beta"),
            (r"_embeddings\.weight", "_embeddings"),
            (r"^qa_outputs\.", "cls.squad."),
            (r"(relationship\.|squad\.|^classifier\.)(weight|bias)", r"\1output_\2"),
            (r"output_weight$", "output_weights"),
            (r"^classifier\.", ""),
            (r"cls\.predictions\.bias", "cls.predictions.output_bias"),
        ):
            name = re.sub(new, old, name)
        variables[name.replace(".", "/")] = values
    of_optimizer = {f"{name}/adam_{kind}": values * 0 for name, values in list(variables.items())[:3] for kind in "mv"}
    return {**variables, **of_optimizer, "global_step": np.array(7)}


def varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def record(*fields: tuple[int, int | bytes]) -> bytes:
    """Return a record of protocol buffers."""
    encoded = b""
    for number, value in fields:
        kind, content = (0, varint(value)) if isinstance(value, int) else (2, varint(len(value)) + value)
        encoded += varint(number << 3 | kind) + content
    return encoded


def block(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a block in which every 16th key is whole, with its kind and its checksum."""
    data, places, before = b"", [], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % 16:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        else:
            places.append(len(data))
        data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    data += struct.pack(f"<{len(places) + 1}I", *places, len(places)) + b"\0"
    return data + struct.pack("<I", masked_crc32c(data))


def table(entries: Mapping[bytes, bytes], entries_in_a_block: int = 40) -> bytes:
    """Return a table of LevelDB."""
    data, handles, ordered = b"", [], sorted(entries.items())
    for first in range(0, len(ordered), entries_in_a_block):
        part = ordered[first : first + entries_in_a_block]
        content = block(part)
        handles.append((part[-1][0], varint(len(data)) + varint(len(content) - 5)))
        data += content
    places = b""
    for content in (block([]), block(handles)):
        places += varint(len(data)) + varint(len(content) - 5)
        data += content
    return data + places.ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")


def write_checkpoint(
    folder: Path, variables: Mapping[str, np.ndarray], *, stem: str = "bert_model.ckpt", shards: int = 1, **config: Any
) -> Path:
    """Write a checkpoint and, if `config` is given, bert_config.json; return the index."""
    content, entries = [bytearray() for _ in range(shards)], {b"": record((1, shards), (3, record((1, 1))))}
    for number, (name, values) in enumerate(variables.items()):
        data, shard = np.ascontiguousarray(values).tobytes(), number % shards
        shape = record(*((2, record((1, size))) for size in values.shape))
        place = (*([(3, shard)] if shard else []), (4, len(content[shard])), (5, len(data)))
        entries[name.encode()] = record((1, DTYPES[values.dtype.name]), (2, shape), *place)
        content[shard] += data
    for shard, data in enumerate(content):
        (folder / f"{stem}.data-{shard:05d}-of-{shards:05d}").write_bytes(data)
    (folder / f"{stem}.index").write_bytes(table(entries))
    if config:
        (folder / "bert_config.json").write_text(json.dumps(config))
    return folder / f"{stem}.index"
