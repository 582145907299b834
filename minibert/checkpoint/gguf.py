"""Read a GGUF file of llama.cpp or Ollama: its metadata, and its tensors under the names that they have in BERT.

The file is a header, that is the metadata (names with a number, a text or an array) and the list of tensors, and then
the numbers of the tensors one after another. The sizes of a shape are in reverse. Nothing in the file has a checksum.

Sources: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the names of tensors:
https://github.com/ggml-org/llama.cpp/blob/b4000/gguf-py/gguf/tensor_mapping.py
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from minibert._utils.validation import brief
from minibert.checkpoint.quantised import QUANTISED
from minibert.checkpoint.safetensors import StoredTensor, file_state, read_exactly
from minibert.errors import ModelFormatError

_LIMIT = 32 * 2**20  # most bytes of a header; that of a model of 250,000 words has 7 MB
_NUMBERS = dict(enumerate(("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))) | {10: "<u8", 11: "<i8", 12: "<f8"}
_TEXT, _ARRAY = 8, 9  # the other types of metadata
_FLOATS = {0: "F32", 1: "F16", 28: "F64", 30: "BF16"}

_FAMILIES = {
    "bert": "bert",
    "nomic-bert": "nomic_bert",
    "jina-bert-v3": "jina_embeddings_v3",
    "eurobert": "eurobert",
    "modern-bert": "modernbert",
}
_FUSED = {"attn_qkv": ("attn_q", "attn_k", "attn_v")}
_MODULES = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_gate": "intermediate.gate",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
    "cls": "pooler.dense",
    "cls.output": "classifier",
}
_NORMS_FIRST = {"attn_norm": "attention.LayerNorm", "ffn_norm": "intermediate.LayerNorm", "output_norm": "final_norm"}
_OWN_MODULES = {
    "distilbert": {"cls": "pre_classifier"},
    "nomic_bert": {"ffn_up": "intermediate.up"},
    "eurobert": {**_NORMS_FIRST, "ffn_up": "intermediate.up"},
    "modernbert": {**_NORMS_FIRST, "ffn_up": "intermediate.up"},
}


@dataclasses.dataclass(frozen=True, eq=False)
class Gguf:
    """A file, its metadata, and its tensors by their names in it."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]

    @property
    def model_type(self) -> str:
        """The family, as config.json names it."""
        architecture = self.metadata["general.architecture"]
        if architecture not in _FAMILIES:
            raise ValueError(f"its architecture is {brief(architecture)}; minibert has {', '.join(_FAMILIES)}")
        words, padding = (self.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "padding_token_id"))
        if self.metadata.get("tokenizer.ggml.model") == "bert" and "<pad>" in (words or [])[padding:][:1]:
            # As llama.cpp's converter makes it for CamemBERT, whose positions then begin two rows too late.
            raise ValueError("its words are not BERT's, though it says so, and its positions can begin elsewhere")
        if architecture != "bert":
            if "cls.output.weight" in self.tensors:
                raise ValueError(f"it is a classifier of the architecture {architecture}")
            return _FAMILIES[architecture]
        dense, scores = (self.tensors.get(f"{name}.weight") for name in ("cls", "cls.output"))
        if (dense or scores) and (dense is None or scores is None or dense.shape[0] != dense.shape[1]):
            raise ValueError("it is a classifier whose pooler llama.cpp's converter left out, so it has no scores")
        return "distilbert" if "token_types.weight" not in self.tensors else "bert"

    def of_model(self, key: str) -> Any:
        """Return an entry of the metadata that the model must have."""
        return self.metadata[f"{self.metadata['general.architecture']}.{key}"]


def read_header(path: Path) -> list[StoredTensor]:
    """List the tensors of a model, under the names that they have in BERT, whatever the family.

    Raises
    ------
    ModelFormatError
        The file is damaged, or a tensor has a type that minibert does not read.
    """
    gguf, renamed = read_gguf(path), []
    modules = _MODULES | _OWN_MODULES.get(gguf.model_type, {})
    fused = _FUSED | ({"ffn_up": ("ffn_gate", "ffn_up")} if gguf.model_type == "modernbert" else {})
    for name, tensor in gguf.tensors.items():
        layer, _, module = (
            name.rpartition(".")[0].removeprefix("blk.").rpartition("." if name.startswith("blk.") else "/")
        )
        parts = fused.get(module, (module,))
        for index, part in enumerate(parts):
            scope = f"encoder.layer.{layer}." if layer else ""
            own = f"{scope}{modules.get(part, part)}.{name.rpartition('.')[2]}"
            renamed.append(dataclasses.replace(tensor.block(index, len(parts)), name=own))
    return renamed


# --- the header -------------------------------------------------------------------------------------------------------


def read_gguf(path: Path) -> Gguf:
    """Read the header of a file.

    Raises
    ------
    ModelFormatError
        The file is damaged or a part of a model, or a tensor has a type that minibert does not read.
    """
    try:
        with open(path, "rb") as file:
            state = file_state(file)
            if (gguf := _READ.get((path, state))) is None:
                header = _Header(bytes(read_exactly(file, min(state[2], _LIMIT))))
                gguf = _READ[path, state] = _read(header, path, state)
            return gguf
    except (OSError, ValueError) as error:
        reason = str(error).removesuffix(".")
        raise ModelFormatError(
            f"{path} cannot be read: {reason}. Fetch or copy it again, or use another file."
        ) from error


# What a model's files hold while it is loaded; its weights need it, too.
_READ: weakref.WeakValueDictionary[tuple[Path, tuple[int, ...]], Gguf] = weakref.WeakValueDictionary()


class _Header:
    """The values of a header, one after another; `data` is the begin of the file, and may hold more than the header."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        self.expect(count)
        self.at += count
        return self._data[self.at - count : self.at]

    def expect(self, count: int) -> None:
        """Raise a ValueError if fewer bytes are left than the next values need at least."""
        if count > len(self._data) - self.at:
            raise ValueError(f"at byte {self.at} it needs {count} more bytes, but ends, or its header is too long")

    def numbers(self, kind: str, count: int = 1) -> list[Any]:
        """Return some numbers of this NumPy type."""
        return np.frombuffer(self.take(count * np.dtype(kind).itemsize), kind).tolist()

    def texts(self, count: int = 1) -> list[str]:
        """Return some texts, each behind its length."""
        self.expect(8 * count)
        texts, end = [], self.at
        for _ in range(count):
            begin = end + 8
            end = begin + int.from_bytes(self._data[end:begin], "little")
            texts.append(self._data[begin:end].decode())
        self.take(end - self.at)
        return texts

    def value(self) -> Any:
        """Return a value of the metadata, whose type comes first."""
        [kind], count = self.numbers("<u4"), 1
        if is_array := kind == _ARRAY:
            [kind], [count] = self.numbers("<u4"), self.numbers("<u8")
        if kind != _TEXT and kind not in _NUMBERS:
            raise ValueError(f"at byte {self.at} it has metadata of the type {kind}")
        values = self.texts(count) if kind == _TEXT else self.numbers(_NUMBERS[kind], count)
        return values if is_array else values[0]


def _read(header: _Header, path: Path, state: tuple[int, ...]) -> Gguf:
    if header.take(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    [version], (tensors, entries) = header.numbers("<u4"), header.numbers("<u8", 2)
    if version not in (2, 3):
        raise ValueError(f"it has the version {version} of the format, or is big-endian; minibert reads 2 and 3")
    header.expect(13 * entries + 24 * tensors)
    metadata = {header.texts()[0]: header.value() for _ in range(entries)}
    if metadata.get("split.count", 1) != 1 or metadata.get("general.type", "model") != "model":
        raise ValueError("it is a part of a model (llama-gguf-split --merge joins parts), or an adapter")
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 2**16:
        raise ValueError(f"its general.alignment is {brief(alignment)}")
    described = [_described(header, path, state) for _ in range(tensors)]
    begin, end, stored = header.at + -header.at % alignment, 0, {}
    for tensor in described:
        size = tensor.size_of(math.prod(tensor.shape))
        if tensor.offset != end or begin + end + size > state[2] or tensor.name in stored:
            raise ValueError(
                f"the tensor {brief(tensor.name)} is there twice, or not in the {size} bytes from {end} on"
            )
        stored[tensor.name] = dataclasses.replace(tensor, offset=begin + end)
        end += size + -size % alignment
    return Gguf(path, metadata, stored)


def _described(header: _Header, path: Path, state: tuple[int, ...]) -> StoredTensor:
    """Return a tensor; its offset is that from the end of the header."""
    [name], [dimensions] = header.texts(), header.numbers("<u4")
    shape = tuple(header.numbers("<u8", min(dimensions, 5))[::-1])
    [kind], [offset] = header.numbers("<u4"), header.numbers("<u8")
    blocks = QUANTISED.get(kind)
    whole = 1 <= dimensions <= 4 and all(0 < size < 2**31 for size in shape)
    if not whole or (kind not in _FLOATS if blocks is None else shape[-1] % blocks.numbers):
        raise ValueError(f"the tensor {brief(name)} has the shape {list(shape)} and the type {kind} of ggml")
    if dimensions == 1 and name in ("token_types.weight", "cls.output.weight"):  # a single row
        shape = 1, *shape
    return StoredTensor(path, state, name, _FLOATS.get(kind, "F32"), shape, offset, blocks=blocks)
