"""What a port is compared with: the values in float64, and how far plain forwards are from them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.bert import float64, reference
from minibert.bert.ops import Ops
from minibert.bert.packed import PackedBatch
from minibert.parity.subject import Subject, visible
from minibert.trace.trace import Trace
from minibert.trace.tracer import nbytes_of


def to_float16(x: FloatArray) -> FloatArray:
    """Round to float16, 11 bits of precision."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(x.dtype)


def _cut(x: FloatArray, bits: int) -> FloatArray:
    """Round float32 numbers to `bits` fewer bits of the fraction."""
    raw = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    lowest = (raw >> np.uint32(bits)) & np.uint32(1)
    rounded = (raw + np.uint32((1 << (bits - 1)) - 1) + lowest) & ~np.uint32((1 << bits) - 1)
    result = rounded.view(np.float32)
    return np.where(np.isfinite(x), result, x).astype(x.dtype)


def to_bfloat16(x: FloatArray) -> FloatArray:
    """Round to bfloat16, 8 bits of precision."""
    return _cut(x, 16)


def to_tf32(x: FloatArray) -> FloatArray:
    """Round to TF32, 11 bits of precision in the range of float32."""
    return _cut(x, 13)


_ROUNDINGS: dict[str, Callable[[FloatArray], FloatArray]] = {"float16": to_float16, "bfloat16": to_bfloat16}

HALF_PRECISIONS = tuple(_ROUNDINGS)


def round_to(precision: str, x: FloatArray) -> FloatArray:
    """Round to one of `HALF_PRECISIONS`."""
    return _ROUNDINGS[precision](x)


# The values that are in memory at once. A dump with more values takes several forwards.
_GROUP_NBYTES = 2**27

# The least unit, relative to the RMS of a value: a value that is rounded to float32 once has an error of about that.
_LEAST_UNIT = 2.0**-26


class Values(Mapping[str, FloatArray]):
    """Values by name in padded form, which are computed when they are read: some layers at a time.

    Parameters
    ----------
    subject : Subject
    inputs : mapping
        As the model takes it.
    batch : PackedBatch      the same inputs
    names : the canonical names, in the order of the forward pass
    ops : Ops
    dtype : that of the values
    """

    def __init__(
        self,
        subject: Subject,
        inputs: Mapping[str, Any],
        batch: PackedBatch,
        names: Sequence[str],
        ops: Ops,
        dtype: npt.DTypeLike,
    ) -> None:
        self._model = subject.model.with_ops(ops, dtype)
        self._specs, self._inputs = subject.names.specs, dict(inputs)
        self._stops_early = subject.head is None
        sizes = nbytes_of(subject.names, batch, names, np.dtype(dtype).itemsize)
        self._groups: list[list[str]] = [[]]
        held = 0
        for name in names:
            held += sizes[name]
            if held > _GROUP_NBYTES and self._groups[-1]:
                self._groups.append([])
                held = sizes[name]
            self._groups[-1].append(name)
        self._group_of = {name: i for i, group in enumerate(self._groups) for name in group}
        self._held: tuple[int, Trace] | None = None

    def __getitem__(self, name: str) -> FloatArray:
        index = self._group_of[name]
        if self._held is None or self._held[0] != index:
            self._held = None  # before the next forward, so that two groups are never in memory
            self._held = (index, self._compute(self._groups[index]))
        return self._held[1][name]

    def release(self) -> None:
        """Drop the values that are in memory; they are computed again when they are read."""
        self._held = None

    def _compute(self, names: list[str]) -> Trace:
        layers = [self._specs[name].layer for name in names]
        after = any(
            layer is None and not name.startswith("embeddings") for name, layer in zip(names, layers, strict=True)
        )
        stop = {}
        if self._stops_early and not after:
            stop = {"num_layers": max((layer + 1 for layer in layers if layer is not None), default=0)}
        trace: Trace = self._model.trace(**self._inputs, **stop, record=names)
        trace.output = None
        return trace

    def __iter__(self) -> Iterator[str]:
        return iter(self._group_of)

    def __len__(self) -> int:
        return len(self._group_of)


def true_values(subject: Subject, inputs: Mapping[str, Any], batch: PackedBatch, names: Sequence[str]) -> Values:
    """Return the values of these names in float64."""
    return Values(subject, inputs, batch, names, float64.OPS, np.float64)


@dataclasses.dataclass(frozen=True)
class Unit:
    """The error of a forward in some precision: root mean square and largest, over the places that are not masked."""

    rms: float
    largest: float

    @classmethod
    def of(cls, error: FloatArray, least: float) -> Unit:
        """Measure errors; both numbers are at least `least`."""
        if not error.size:
            return cls(least, least)
        absolute = np.abs(error)
        return cls(max(least, float(np.sqrt(np.mean(absolute * absolute)))), max(least, float(absolute.max())))

    def larger(self, other: Unit) -> Unit:
        """Return the larger of both numbers."""
        return Unit(max(self.rms, other.rms), max(self.largest, other.largest))


def measure_units(
    subject: Subject,
    inputs: Mapping[str, Any],
    batch: PackedBatch,
    truth: Mapping[str, FloatArray],
    precision: str = "float32",
    names: Sequence[str] | None = None,
) -> dict[str, Unit]:
    """Return the error of each name, or of `names`, in a plain forward of this precision.

    For "float32" that is the larger error of two orders of summation, because the order is a library's choice. For
    "float16" and "bfloat16" the weights and the inputs and results of all ops are rounded.
    """
    wanted = list(truth) if names is None else names
    runs = [Values(subject, inputs, batch, wanted, ops, np.float32) for ops in _ops_of(precision)]
    units: dict[str, Unit] = {}
    for name in wanted:
        shown = visible(truth[name], batch.mask)
        least = _LEAST_UNIT * float(np.sqrt(np.mean(shown * shown))) if shown.size else 0.0
        for run in runs:
            with np.errstate(all="ignore"):
                value = visible(run[name], batch.mask)
                # Look-ups are recorded as they are in the tables, which a port in half precision rounds.
                error = (value if precision == "float32" else round_to(precision, value)) - shown
            unit = Unit.of(np.nan_to_num(error, posinf=np.inf, neginf=np.inf), max(least, 1e-300))
            units[name] = unit.larger(units.get(name, unit))
    return units


def plain_states(
    subject: Subject, inputs: Mapping[str, Any], batch: PackedBatch, name: str, precision: str
) -> list[FloatArray]:
    """Return one value of each plain forward of this precision."""
    return [Values(subject, inputs, batch, [name], ops, np.float32)[name] for ops in _ops_of(precision)]


def _ops_of(precision: str) -> list[Ops]:
    """Return plain ops in the order of operations of transformers; in half precision, sums are in float32."""
    if precision != "float32":
        return [reference.make_ops(dtype=np.float32, round=functools.partial(round_to, precision))]
    return [reference.make_ops(dtype=np.float32), reference.make_ops(dtype=np.float32, matmul=_matmul_backwards)]


def _matmul_backwards(x: FloatArray, weight: FloatArray) -> FloatArray:
    product: FloatArray = np.ascontiguousarray(x[:, ::-1]) @ np.ascontiguousarray(weight[:, ::-1]).T
    return product
