"""The reference of a comparison: the original model, its inputs, its values in float64, and the units of error."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import warn_caller
from minibert._utils.validation import FloatArray, IntArray, brief
from minibert.bert import reference
from minibert.bert.config import BertConfig
from minibert.bert.ops import Ops
from minibert.bert.packed import PackedBatch, positions_of
from minibert.checkpoint.files import ModelFiles
from minibert.encode.modules import Pipeline, check_modules, list_modules, read_pipeline
from minibert.encode.pooling import pool
from minibert.errors import ModelFormatError
from minibert.models import float64
from minibert.models.bert import BertModel
from minibert.models.heads import BertHead, choose_class
from minibert.models.inputs import INPUTS, pack
from minibert.models.options import LoadOptions
from minibert.models.stored import named_arrays
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.trace.names import Names, Spec
from minibert.trace.trace import Trace
from minibert.trace.tracer import nbytes_of

VECTOR = "sentence_embedding"
"""The name of one vector per text, (B, H), as sentence-transformers calls it."""

Model: TypeAlias = BertModel | BertHead[Any]
"""`BertModel`, or a model with a head."""


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model of minibert, with its pipeline, tokenizer and files.

    Parameters
    ----------
    model : Model
    pipeline : Pipeline or None     what makes vectors of its hidden states; None if it is not known
    tokenizer : BertTokenizer or None
    name : str                      the checkpoint's name, for reports
    files : ModelFiles or None      the model's files, for reports
    """

    model: Model
    pipeline: Pipeline | None = None
    tokenizer: Any = None
    name: str = ""
    files: ModelFiles | None = None

    @classmethod
    def load(cls, name: str, files: ModelFiles, **options: Any) -> Subject:
        """Load a model with all that it has: its pooler or head, its modules for sentences, its tokenizer."""
        modules, options = list_modules(files), options | {"compute_type": "float32"}
        dense = modules is not None and [module.kind for module in modules][:2] == ["Transformer", "Pooling"]
        listed, pipeline = check_modules(files, modules) if modules and dense else [], None
        model: Model
        folder = files.subfolder(listed[0].path) if listed else files
        if listed:
            model = BertModel.from_files(folder, **options)
            pipeline = read_pipeline(files, listed, model.config.hidden_size, model.ops)
        else:
            model = choose_class(files, BertConfig.from_files(files).family).from_files(files, **options)
        try:
            tokenizer = BertTokenizer.from_files(folder)
        except ModelFormatError as error:
            warn_caller(f"The tokenizer is left out: {error}")
            tokenizer = None
        return cls(model, pipeline, tokenizer, name, folder)

    @classmethod
    def of(cls, model: Any) -> Subject:
        """Make a subject from a `BertModel`, a model with a head, a `SentenceTransformer`, or a folder or hub id.

        Raises
        ------
        TypeError
            It is something else.
        ValueError
            Its weights are rounded, because its compute type is not float32.
        """
        if isinstance(model, Subject):
            return model
        if isinstance(model, str | os.PathLike):
            return cls.load(os.fspath(model), LoadOptions().locate(model))
        pipeline, tokenizer = None, None
        if hasattr(model, "pipeline") and hasattr(model, "model"):
            model, pipeline, tokenizer = model.model, model.pipeline, model.tokenizer
        if not hasattr(model, "with_ops") or not hasattr(model, "trace"):
            raise TypeError(
                f"expected a model of minibert, got a {type(model).__name__}: give a folder, a hub id, "
                "BertModel.from_pretrained(...), minibert.load(...) or SentenceTransformer(...)."
            )
        if model.compute_type != "float32":
            raise ValueError(
                f"the model was loaded with compute_type={model.compute_type!r}, so its weights are rounded; the true "
                "values need the weights of the checkpoint. Load it with compute_type='float32'."
            )
        if model.base_model is not model and model.head_name == "BertForMultipleChoice":
            raise ValueError("BertForMultipleChoice has inputs of three axes; check its base_model with inputs of two.")
        return cls(model, pipeline, tokenizer)

    @property
    def config(self) -> BertConfig:
        """The config of the encoder."""
        return self.model.config

    @functools.cached_property
    def names(self) -> Names:
        """The names of all values of the model."""
        return self.model.value_names()

    @functools.cached_property
    def specs(self) -> dict[str, Spec]:
        """The specifications of all values, and of the vector of a text if the model makes one."""
        if self.pipeline is None:
            return self.names.specs
        return {**self.names.specs, VECTOR: Spec(VECTOR, None, "pooled", self.pipeline.widths[-1], False)}

    @property
    def head(self) -> str | None:
        """The class of the model's head, or None."""
        return self.names.sizes.head

    def weights(self) -> Mapping[str, FloatArray]:
        """Return the arrays of the checkpoint by their names, without the prefix of the family, such as "bert."."""
        prefix = f"{self.config.family.field}."
        return {
            name.removeprefix(prefix): np.asarray(array) for name, array in named_arrays(self.model.weights, self.head)
        }

    def pack(self, inputs: Mapping[str, Any]) -> PackedBatch:
        """Check inputs, and pack them without padding."""
        return pack(self.config, **{name: inputs.get(name) for name in INPUTS})

    def vectors(self, last_state: FloatArray, batch: PackedBatch) -> FloatArray:
        """Return the sentence vectors of a last hidden state in padded form: (B, width).

        The pooling computes in float64 and rounds to float32.
        """
        assert self.pipeline is not None
        packed = np.ascontiguousarray(last_state[batch.mask])
        return self.pipeline.finish(pool(packed, batch.cu_seqlens, self.pipeline.pooling))


class InapplicableError(ValueError):
    """The model or the inputs do not allow a mistake; for example, a position is beyond the table."""


@dataclasses.dataclass(frozen=True)
class Padded:
    """The inputs of a model, each of shape (B, S); `embeds` (B, S, H) replaces the look-up of the ids."""

    ids: IntArray
    mask: npt.NDArray[np.bool_]
    types: IntArray
    positions: IntArray
    embeds: FloatArray | None = None

    @classmethod
    def of(cls, config: BertConfig, inputs: Mapping[str, Any]) -> Padded:
        """Check inputs like a model does, and fill in the defaults.

        Raises
        ------
        TypeError, ValueError
            As for `BertModel.__call__`; or a name is not an input's.
        """
        unknown = [key for key in inputs if key not in INPUTS]
        if unknown:
            raise ValueError(f"inputs has {brief(unknown[0])}; expected {', '.join(INPUTS)}.")
        arrays = {key: inputs.get(key) for key in INPUTS}
        batch = pack(config, **arrays)
        shape = batch.mask.shape
        embeds = None if arrays["inputs_embeds"] is None else np.array(arrays["inputs_embeds"], dtype=np.float64)
        ids = np.zeros(shape, np.int64) if embeds is not None else np.array(arrays["input_ids"], dtype=np.int64)
        usual = positions_of(config, ids if embeds is None else np.full(shape, -1))
        types, positions = (
            np.broadcast_to(np.asarray(default if arrays[key] is None else arrays[key], dtype=np.int64), shape)
            for key, default in (("token_type_ids", 0), ("position_ids", usual))
        )
        return cls(ids, batch.mask, types, positions, embeds)

    @functools.cached_property
    def packed(self) -> PackedBatch:
        """All tokens, padding included, as a packed batch of B sequences of S tokens."""
        rows, length = self.ids.shape
        embeds = None if self.embeds is None else self.embeds.reshape(rows * length, -1).astype(np.float32)
        return PackedBatch(
            token_ids=self.ids.ravel() if embeds is None else np.arange(rows * length),
            token_types=self.types.ravel(),
            positions=self.positions.ravel(),
            cu_seqlens=np.arange(rows + 1) * length,
            mask=np.ones((rows, length), np.bool_),
            inputs_embeds=embeds,
        )

    @functools.cached_property
    def ends(self) -> IntArray:
        """The column behind the last visible token of each row, (B,)."""
        return (self.mask * np.arange(1, self.mask.shape[1] + 1)).max(axis=1, initial=0)

    def rows(self, chosen: list[int], width: int | None = None) -> Padded:
        """Return some of the B sequences, and their first columns."""
        embeds = None if self.embeds is None else self.embeds[chosen, :width]
        cut: Any = (chosen, slice(width))
        return Padded(self.ids[cut], self.mask[cut], self.types[cut], self.positions[cut], embeds)


def unmasked(array: FloatArray, mask: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the values at visible positions, flat: of tokens, pairs of visible tokens, or visible first tokens.

    A score outside a window is -inf, and counts as 0.

    Parameters
    ----------
    array : in the padded form: (B, S, width), (B, A, S, S) or (B, width)
    mask : bool array of shape (B, S)
    """
    if array.ndim == 4:
        pairs = np.broadcast_to((mask[:, :, None] & mask[:, None, :])[:, None], array.shape)
        values = array[pairs]
        return np.where(np.isneginf(values), values.dtype.type(0), values) if np.isneginf(values).any() else values
    return array[mask if array.ndim == 3 else mask[:, :1].any(axis=1)].reshape(-1)


def rms(values: FloatArray) -> float:
    """Return the root mean square; 0 for no values."""
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0


def mask_of(name: str, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which positions of a value count; a text's vector counts if any of its tokens is visible."""
    return np.any(mask, axis=1, keepdims=True) if name == VECTOR else mask


# --- precisions -------------------------------------------------------------------------------------------------------


def to_float16(x: FloatArray) -> FloatArray:
    """Round to float16, 11 bits of precision."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(x.dtype)


def _cut(x: FloatArray, bits: int) -> FloatArray:
    """Round float32 numbers to `bits` fewer bits of the fraction."""
    raw = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    lowest = (raw >> np.uint32(bits)) & np.uint32(1)
    rounded = (raw + np.uint32((1 << (bits - 1)) - 1) + lowest) & ~np.uint32((1 << bits) - 1)
    return np.where(np.isfinite(x), rounded.view(np.float32), x).astype(x.dtype)


def to_bfloat16(x: FloatArray) -> FloatArray:
    """Round to bfloat16, 8 bits of precision."""
    return _cut(x, 16)


def to_tf32(x: FloatArray) -> FloatArray:
    """Round to TF32, 11 bits of precision in the range of float32."""
    return _cut(x, 13)


HALF_PRECISIONS = ("float16", "bfloat16")


def round_to(precision: str, x: FloatArray) -> FloatArray:
    """Round to one of `HALF_PRECISIONS`."""
    return to_float16(x) if precision == "float16" else to_bfloat16(x)


# The values that are in memory at once. A dump with more values takes several forwards.
_GROUP_NBYTES = 2**27

# The least unit, relative to the RMS of a value: a value that is rounded to float32 once has an error of about that.
_LEAST_UNIT = 2.0**-26


# --- values and units -------------------------------------------------------------------------------------------------


class Values:
    """Values by name in padded form. They are computed when they are read, some layers at a time.

    Parameters
    ----------
    subject : Subject
    inputs : mapping
        As the model takes it.
    names : the canonical names, and `VECTOR`
    ops : Ops, optional      the ops of a float32 forward; None means float64
    """

    def __init__(
        self, subject: Subject, inputs: Mapping[str, Any], names: Collection[str], ops: Ops | None = None
    ) -> None:
        self._subject, self._inputs, self.mask = subject, dict(inputs), subject.pack(inputs).mask
        dtype = np.dtype(np.float64 if ops is None else np.float32)
        self._model = subject.model.with_ops(float64.OPS if ops is None else ops)
        self._last_state = subject.names.resolve("last_hidden_state")[0]
        wanted = {*names, *([self._last_state] if VECTOR in names else [])}
        ordered = [name for name in subject.names.specs if name in wanted]
        sizes = nbytes_of(subject.names, subject.pack(inputs), ordered, dtype.itemsize)
        self._groups: list[list[str]] = [[]]
        held = 0
        for name in ordered:
            held += sizes[name]
            if held > _GROUP_NBYTES and self._groups[-1]:
                self._groups.append([])
                held = sizes[name]
            self._groups[-1].append(name)
        self._group_of = {name: i for i, group in enumerate(self._groups) for name in group}
        self._held: tuple[int, Trace] | None = None

    def __getitem__(self, name: str) -> FloatArray:
        if name == VECTOR:
            return self._vectors
        index = self._group_of[name]
        if self._held is None or self._held[0] != index:
            self._held = None  # before the next forward, so that two groups are never in memory
            self._held = (index, self._compute(self._groups[index]))
        return self._held[1][name]

    @functools.cached_property
    def _vectors(self) -> FloatArray:
        return self._subject.vectors(self[self._last_state], self._subject.pack(self._inputs))

    def unmasked(self, name: str, array: FloatArray | None = None) -> FloatArray:
        """Return the visible places of a value, or of another array in its place, as float64."""
        return unmasked(self[name] if array is None else array, mask_of(name, self.mask)).astype(np.float64, copy=False)

    def release(self) -> None:
        """Free the values in memory; they are computed again when they are read."""
        self._held = None

    def _compute(self, names: list[str]) -> Trace:
        layers = [self._subject.names.specs[name].layer for name in names if not name.startswith("embeddings")]
        stop = None
        if self._subject.head is None and None not in layers:
            stop = max((layer + 1 for layer in layers if layer is not None), default=0)
        trace = self._model.trace(**self._inputs, num_layers=stop, record=names)
        trace.output = None
        return trace

    def units(self, names: Collection[str], precision: str = "float32") -> dict[str, Unit]:
        """Return the error of each of `names` in a plain forward pass of this precision.

        For "float32" that is the larger error of two orders of summation, because the order is a library's choice. For
        "float16" and "bfloat16" the weights and the inputs and results of all ops are rounded.
        """
        runs = [Values(self._subject, self._inputs, names, ops) for ops in _ops_of(precision)]
        units: dict[str, Unit] = {}
        for name in dict.fromkeys(names):
            plain = [unmasked(run[name], mask_of(name, self.mask)) for run in runs]
            if precision != "float32" and name != VECTOR:
                # Look-ups are recorded as they are in the tables; a port in half precision rounds them.
                plain = [round_to(precision, value) for value in plain]
            units[name] = Unit.of(self.unmasked(name), plain)
        return units


class Unit(NamedTuple):
    """The error of a forward pass in some precision: RMS and largest, over the positions that are not masked."""

    rms: float
    largest: float

    @classmethod
    def of(cls, true: FloatArray, plain: Iterable[FloatArray], least: float = _LEAST_UNIT) -> Unit:
        """Return the largest errors of plain computations of true values; at least a part of the values' RMS."""
        floor = max(least * rms(true), 1e-300)
        with np.errstate(all="ignore"):
            errors = [np.nan_to_num(np.abs(value - true), posinf=np.inf) for value in plain]
        return cls(max([floor, *map(rms, errors)]), max([floor, *(float(error.max(initial=0)) for error in errors)]))


def _ops_of(precision: str) -> list[Ops]:
    """Return plain ops in the order of operations of transformers; in half precision, sums are in float32."""
    if precision != "float32":
        return [reference.make_ops(dtype=np.float32, round=functools.partial(round_to, precision))]
    return [reference.make_ops(dtype=np.float32), reference.make_ops(dtype=np.float32, matmul=matmul_backwards)]


def matmul_backwards(x: FloatArray, weight: FloatArray) -> FloatArray:
    """Compute x W^T with the sums in the other order."""
    return np.ascontiguousarray(x[:, ::-1]) @ np.ascontiguousarray(weight[:, ::-1]).T
