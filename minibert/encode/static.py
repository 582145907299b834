"""Static models: the vector of a text is the mean of the vectors of its tokens, which are rows of a table.

Nothing of BERT is computed. In a folder of model2vec, config.json is beside the table; unknown words do not count then,
and max_length limits a text, as there. In other folders all tokens count, as in sentence-transformers.

Sources: model2vec 0.10, model.py and persistence/; sentence-transformers 6.2,
sentence_transformer/modules/static_embedding.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray, IntArray, check_stored_int
from minibert.bert.ops import Ops, Table, look_up
from minibert.bert.packed import PackedBatch
from minibert.bert.reference import OPS
from minibert.checkpoint.files import ModelFiles
from minibert.checkpoint.table import stored_table
from minibert.checkpoint.tensors import DTYPES, open_checkpoint, read_tensor
from minibert.errors import ModelFormatError
from minibert.models.fingerprint import sha256_of_arrays
from minibert.models.torch_like import TorchLike
from minibert.tokenizer.static import Model2VecTokenizer, StaticTokenizer

_TOKENS_AT_ONCE = 2**13
_MAX_LENGTH = 512  # tokens in model2vec, if config.json does not say it

# The tensors of a file by their names in model2vec: their dimensions and dtypes.
_TENSORS = {"embeddings": (2, (*DTYPES, "I8")), "mapping": (1, ("I32", "I64")), "weights": (1, DTYPES)}


class StaticConfig(NamedTuple):
    """The sizes of a static model, under their names in `BertConfig`: V, H and the most tokens of a text."""

    vocab_size: int
    hidden_size: int
    max_length: int = 2**24
    longest: int = 2**24
    num_hidden_layers: int = 0
    has_token_types: bool = False
    padding_id: int | None = None


class StaticModel(TorchLike):
    """The table of a static model. It has what `Plan` needs of a `BertModel`, one of no layers.

    Parameters
    ----------
    source : str
        The model, for messages.
    table : Table of shape (rows, H)
    mapping : int ndarray of shape (V,)
        The row of each token.
    weights : ndarray of shape (V,), float32, optional
        The factor of each token.
    ops : Ops
        They compute a Dense after the mean.
    """

    compute_type = "float32"
    shared_weights = False

    def __init__(
        self, source: str, table: Table, mapping: IntArray, weights: FloatArray | None = None, ops: Ops = OPS
    ) -> None:
        self.source, self.ops, self.num_threads = source, ops, ops.num_threads
        self.config = StaticConfig(len(mapping), table.shape[1])
        self._held: Any = (table, mapping, weights)

    def vectors_of(self, token_ids: IntArray) -> FloatArray:
        """Return the vectors of tokens by id, which must be below V: (T,) -> (T, H)."""
        if self._held is None:
            raise RuntimeError("This StaticModel is closed. Load the model again.")
        table, mapping, weights = self._held
        found = look_up(table, mapping[token_ids])
        return found.table[found.ids] * (1 if weights is None else weights[token_ids, None])

    def states(
        self, batch: PackedBatch, layers: Iterable[int], needed_tokens: IntArray | None = None
    ) -> Iterator[tuple[PackedBatch, dict[int, FloatArray]]]:
        """Yield the vectors of the tokens as hidden state 0, as `BertModel.states` does."""
        for _, step in batch.steps(_TOKENS_AT_ONCE):
            yield step, {0: self.vectors_of(step.token_ids)}

    def close(self) -> None:
        """Give back the table; a later call raises a RuntimeError."""
        self._held = None

    def named_parameters(self) -> Iterator[tuple[str, FloatArray]]:
        """Yield the vectors of all tokens, under their name in sentence-transformers."""
        yield "embedding.weight", self.vectors_of(np.arange(self.config.vocab_size))

    def parameters(self) -> Iterator[FloatArray]:
        """Yield the vectors of all tokens."""
        return (array for _, array in self.named_parameters())

    def parts_without_results(self) -> dict[str, Any]:
        """Return the digest of the vectors, for `SentenceTransformer.fingerprint_parts`."""
        names = ("embeddings", "mapping", "weights")
        parts = [(name, part) for name, part in zip(names, self._held, strict=True) if part is not None]
        return {"weights": sha256_of_arrays(parts), "compute_type": self.compute_type}

    def __repr__(self) -> str:
        return f"StaticModel({self.config.vocab_size:,} tokens, {self.config.hidden_size} features)"


def load_static(files: ModelFiles, ops: Ops = OPS) -> tuple[StaticModel, StaticTokenizer]:
    """Load the table and the tokenizer of a static model.

    Raises
    ------
    ModelFormatError
        A file is missing or damaged, or the sizes of the tensors and the vocabulary do not fit.
    """
    stored, config = open_checkpoint(files), files.settings("config.json")
    is_model2vec = "embeddings" in stored and bool(config)
    if "embedding.weight" in stored:
        stored.setdefault("embeddings", stored["embedding.weight"])
    read = dict[str, Any]()
    for name, (dimensions, dtypes) in _TENSORS.items():
        if (tensor := stored.get(name)) is None:
            continue
        if len(tensor.shape) != dimensions or tensor.dtype not in dtypes:
            given, expected = f"{tensor.dtype} {list(tensor.shape)}", f"{dimensions} dimensions, in {', '.join(dtypes)}"
            raise ModelFormatError(f"{files.source}: the tensor {name} is {given}; expected {expected}.")
        read[name] = (dimensions == 2 and stored_table(tensor)) or np.empty(tensor.shape, np.float32)
        if isinstance(read[name], np.ndarray):
            read_tensor(tensor, read[name])
    if "embeddings" not in read:
        raise ModelFormatError(f"{files.source}: embedding.weight is missing among the tensors {[*stored][:12]}.")
    table, weights = read["embeddings"], read.get("weights")
    if not table.shape[1]:
        raise ModelFormatError(f"{files.source}: embeddings is {list(table.shape)}; a vector needs a number.")
    mapping = read.get("mapping", np.arange(table.shape[0])).astype(np.int64)
    fits = len(mapping) == len(mapping if weights is None else weights)
    if not fits or not 0 <= mapping.min(initial=0) <= mapping.max(initial=0) < table.shape[0]:
        raise ModelFormatError(f"{files.source}: mapping must have a row of embeddings for each token of weights.")
    tokenizer = (Model2VecTokenizer if is_model2vec else StaticTokenizer).read(files, len(mapping))
    if is_model2vec:
        tokenizer.model_max_length = config.get("max_length", _MAX_LENGTH)
    if tokenizer.model_max_length is not None:
        check_stored_int(f"{files.source}: max_length", tokenizer.model_max_length, 1)
    return StaticModel(files.source, table, mapping, weights, ops), tokenizer
