"""Reads the files of a model into `Weights`; everything is checked before anything is allocated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from minibert.base.arrays import FloatArray
from minibert.bert.config import BertConfig
from minibert.bert.ops import LayerNorm, Linear, PreparedLinear
from minibert.bert.weights import EMBEDDING_ROWS, LAYER_ROWS, POOLER_ROWS, LayerWeights, Row, Weights
from minibert.checkpoint.hub import ModelFiles
from minibert.checkpoint.tensors import DTYPES, StoredTensor, open_checkpoint, read_tensor
from minibert.errors import ModelFormatError

__all__ = ["load_weights"]

# Old versions of transformers saved these buffers. They are counters, not weights.
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


def load_weights(
    files: ModelFiles,
    config: BertConfig,
    prepare: Callable[[Linear], PreparedLinear],
    *,
    add_pooling_layer: bool = True,
) -> Weights:
    """Read a model's safetensors into float32 weights, and call `prepare` for each linear map as soon as it is read.

    Parameters
    ----------
    files : ModelFiles
        model.safetensors, or the shards of model.safetensors.index.json, in float32, float16 or bfloat16. The names may
        have one common prefix such as "bert.", and LayerNorm.gamma / beta are accepted.
    config : BertConfig
    prepare : (Linear) -> PreparedLinear
        `Ops.prepare` of the ops that will compute.
    add_pooling_layer : bool
        Whether to read the pooler, if the checkpoint has one.

    Raises
    ------
    ModelFormatError
        A file is damaged or changes while it is read. Or a tensor is missing or unexpected, has another shape than the
        config says or an unknown dtype, or holds NaN or infinity. One message lists all faults of names and shapes.

    Notes
    -----
    Memory: the weights, the memory that `prepare` allocates for one map, and a buffer of 4 MB. The files are read, not
    mapped, so the weights do not change when a file is replaced or truncated later.
    """
    tensors = open_checkpoint(files)
    prefix = _find_prefix(tensors, files)
    checkpoint = _Checkpoint(files, tensors, prefix)
    has_pooler = add_pooling_layer and any(name.startswith("pooler.") for name in checkpoint.tensors)
    checkpoint.check(config, pooler=has_pooler)

    def read(rows: Iterable[Row], scope: str = "") -> dict[str, PreparedLinear | LayerNorm | FloatArray]:
        return _assemble(checkpoint, rows, scope, config, prepare)

    fields = read(EMBEDDING_ROWS)
    layers = tuple(
        LayerWeights(path, **read(LAYER_ROWS, f"{path}."))  # type: ignore[arg-type]
        for path in (f"encoder.layer.{i}" for i in range(config.num_hidden_layers))
    )
    pooler = read(POOLER_ROWS) if has_pooler else {"pooler": None}
    return Weights(config=config, layers=layers, ignored=checkpoint.ignored(), **fields, **pooler)  # type: ignore[arg-type]


def _assemble(
    checkpoint: _Checkpoint,
    rows: Iterable[Row],
    scope: str,
    config: BertConfig,
    prepare: Callable[[Linear], PreparedLinear],
) -> dict[str, PreparedLinear | LayerNorm | FloatArray]:
    """Read the modules below one path into fields; modules of the same field are stacked into one linear map."""
    by_field: dict[str, list[Row]] = {}
    for row in rows:
        by_field.setdefault(row.field, []).append(row)
    fields: dict[str, PreparedLinear | LayerNorm | FloatArray] = {}
    for field, stack in by_field.items():
        paths = tuple(scope + row.path for row in stack)
        weight = checkpoint.read([f"{path}.weight" for path in paths])
        if not stack[0].bias:
            fields[field] = weight
            continue
        bias = checkpoint.read([f"{path}.bias" for path in paths])
        if len(stack[0].shape) == 1:
            fields[field] = LayerNorm(paths[0], weight, bias, config.layer_norm_eps)
        else:
            fields[field] = prepare(Linear(paths, weight, bias))
    return fields


class _Checkpoint:
    """The tensors of a model under their names without the prefix, and the checks of them.

    Tensors without the prefix belong to a task head, even if their names look like BERT's, as "pooler" does.
    """

    def __init__(self, files: ModelFiles, tensors: dict[str, StoredTensor], prefix: str) -> None:
        self._files = files
        self._outside = tuple(name for name in tensors if not name.startswith(prefix))
        names = {name: _modern_name(name[len(prefix) :]) for name in tensors if name.startswith(prefix)}
        self.tensors = {modern: tensors[name] for name, modern in names.items()}
        if len(self.tensors) < len(names):
            twice = Counter(names.values()).most_common(1)[0][0]
            raise ModelFormatError(
                f"{files.source} holds {twice} twice: under its old name (gamma, beta) and under its new name. "
                "Keep one of the two."
            )

    def check(self, config: BertConfig, *, pooler: bool) -> None:
        """Compare all names, shapes and dtypes with the config; raise an error that lists the faults."""
        self._check_layer_count(config)
        rows = [("", row) for row in (*EMBEDDING_ROWS, *(POOLER_ROWS if pooler else ()))]
        rows += [(f"encoder.layer.{i}.", row) for i in range(config.num_hidden_layers) for row in LAYER_ROWS]
        expected: dict[str, tuple[str, ...]] = {}
        for scope, row in rows:
            expected[f"{scope}{row.path}.weight"] = row.shape
            if row.bias:
                expected[f"{scope}{row.path}.bias"] = row.shape[:1]

        faults = [fault for name, sizes in expected.items() if (fault := self._fault(name, sizes, config))]
        faults += [
            f"{self.tensors[name].name} is unexpected: it is not a part of BERT that minibert implements"
            for name in self._inside_bert()
            if name not in expected and not (name.startswith("pooler.") and not pooler)
        ]
        if faults:
            listed = "".join(f"\n  - {fault}" for fault in faults[:12])
            more = f"\n  and {len(faults) - 12} more" if len(faults) > 12 else ""
            raise ModelFormatError(
                f"The tensors of {self._files.source} do not match its config.json:{listed}{more}\n"
                "Use the config.json that belongs to the model, and a model that is a plain BERT."
            )

    def _check_layer_count(self, config: BertConfig) -> None:
        found = {int(match[1]) for name in self.tensors if (match := re.match(r"encoder\.layer\.(\d{1,9})\.", name))}
        if found != set(range(len(found))) or len(found) != config.num_hidden_layers:
            layers = f"{len(found)} layers ({min(found)} to {max(found)})" if found else "no layers"
            raise ModelFormatError(
                f"config.json says num_hidden_layers={config.num_hidden_layers}, but {self._files.source} holds "
                f"{layers}. To run only the first layers, load the whole model and call it with num_layers=."
            )

    def _fault(self, name: str, sizes: tuple[str, ...], config: BertConfig) -> str | None:
        tensor = self.tensors.get(name)
        if tensor is None:
            return f"{name} is missing"
        shape = tuple(getattr(config, size) for size in sizes)
        if tensor.shape != shape:
            return f"{tensor.name} has shape {list(tensor.shape)}, expected {list(shape)} ({', '.join(sizes)})"
        if tensor.dtype not in DTYPES:
            return f"{tensor.name} is {tensor.dtype}, minibert reads {', '.join(DTYPES)}"
        return None

    def _inside_bert(self) -> Iterator[str]:
        for name in self.tensors:
            if name.startswith(("embeddings.", "encoder.", "pooler.")) and name not in _BUFFERS:
                yield name

    def ignored(self) -> tuple[str, ...]:
        """Return the names of the tensors that are not a part of BERT: those of task heads, and old buffers."""
        inside = set(self._inside_bert())
        return self._outside + tuple(tensor.name for name, tensor in self.tensors.items() if name not in inside)

    def read(self, names: list[str]) -> FloatArray:
        """Read tensors with the same number of columns into one new read-only float32 array, stacked by rows."""
        tensors = [self.tensors[name] for name in names]
        rows = sum(tensor.shape[0] for tensor in tensors)
        stacked = np.empty((rows, *tensors[0].shape[1:]), dtype=np.float32)
        first = 0
        for tensor in tensors:
            read_tensor(tensor, stacked[first : first + tensor.shape[0]])
            first += tensor.shape[0]
        stacked.flags.writeable = False
        return stacked


def _modern_name(name: str) -> str:
    """Replace gamma and beta, the names of a LayerNorm's weight and bias in the first BERT checkpoints."""
    return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))


def _find_prefix(tensors: dict[str, StoredTensor], files: ModelFiles) -> str:
    """Return the text before "embeddings.word_embeddings.weight": "", "bert." or the name of another wrapper."""
    anchor = "embeddings.word_embeddings.weight"
    prefixes = [name.removesuffix(anchor) for name in tensors if name.endswith(anchor)]
    prefixes = [prefix for prefix in prefixes if prefix == "" or prefix.endswith(".")]
    if len(prefixes) == 1:
        return prefixes[0]
    if prefixes:
        raise ModelFormatError(
            f"{files.source} holds {len(prefixes)} BERT models ({', '.join(map(repr, sorted(prefixes)))}); "
            "minibert loads one. Save the one that you need in a file of its own."
        )
    some = ", ".join(sorted(tensors)[:3]) or "nothing"
    raise ModelFormatError(
        f"{files.source} is not a BERT checkpoint: {anchor} is not among its tensors ({some}, ...). "
        "Give a checkpoint of BERT."
    )
