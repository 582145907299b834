"""`Measuring`: the values of a dump beside the true ones, their errors, and these in units of a plain forward's."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.bert.packed import PackedBatch
from minibert.parity.padded import visible
from minibert.parity.replay import encoder_of
from minibert.parity.rows import Row
from minibert.parity.subject import Subject
from minibert.parity.truth import Unit, Values, measure_units, plain_states, true_values
from minibert.parity.vectors import VECTOR, mask_of

__all__ = ["Measuring"]


class Measuring:
    """Errors of arrays in padded form, of one model and one batch.

    Parameters
    ----------
    subject : Subject
    inputs : dict of inputs, as the model takes them
    batch : PackedBatch
    names : set of str       the values that are measured; `VECTOR` is one of them
    """

    def __init__(self, subject: Subject, inputs: dict[str, Any], batch: PackedBatch, names: set[str]) -> None:
        self._subject, self._inputs, self._batch = subject, inputs, batch
        self._names = names

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """The tokens that are not masked, (B, S)."""
        return self._batch.mask

    @property
    def embeddings_bias(self) -> FloatArray:
        """The bias of the LayerNorm of the embeddings, (H,)."""
        return encoder_of(self._subject.model).weights.embeddings_norm.bias

    @functools.cached_property
    def truth(self) -> Values:
        """The true values."""
        names = self._names - {VECTOR}
        if VECTOR in self._names:
            names.add(self._last_state)
        ordered = [name for name in self._subject.names.specs if name in names]
        return true_values(self._subject, self._inputs, self._batch, ordered)

    @property
    def _last_state(self) -> str:
        return self._subject.names.resolve("last_hidden_state")[0]

    @functools.cached_property
    def true_vectors(self) -> FloatArray:
        """The true sentence vectors."""
        return self._subject.vectors(self.truth[self._last_state], self._batch)

    def _true(self, name: str) -> FloatArray:
        return self.true_vectors if name == VECTOR else self.truth[name]

    def _shown(self, array: FloatArray, name: str) -> FloatArray:
        return visible(array, mask_of(name, self._batch.mask)).astype(np.float64, copy=False)

    def error(self, array: FloatArray, name: str, true: FloatArray | None = None) -> float:
        """Return the relative RMS error of an array in padded form."""
        true = self._shown(self._true(name) if true is None else true, name)
        with np.errstate(all="ignore"):
            size = float(np.sqrt(np.mean(true * true))) if true.size else 0.0
            error = float(np.sqrt(np.mean((self._shown(array, name) - true) ** 2))) if true.size else 0.0
        return error / (size or 1.0)

    def difference(self, one: FloatArray, other: FloatArray) -> float:
        """Return the RMS difference of two values, over the visible places."""
        error = visible(one, self._batch.mask) - visible(other, self._batch.mask)
        return float(np.sqrt(np.mean(error * error))) if error.size else 0.0

    def units(self, names: list[str], precision: str = "float32") -> dict[str, Unit]:
        """Return the errors of a plain forward in a precision, by name."""
        wanted = [name for name in dict.fromkeys(names) if name != VECTOR]
        truth = _Some(self.truth, wanted)
        units = measure_units(self._subject, self._inputs, self._batch, truth, precision)
        if VECTOR in names:
            units[VECTOR] = self._vector_unit(precision)
        return units

    def _vector_unit(self, precision: str) -> Unit:
        true = self._shown(self.true_vectors, VECTOR)
        unit: Unit | None = None
        for states in plain_states(self._subject, self._inputs, self._batch, self._last_state, precision):
            vectors = self._shown(self._subject.vectors(states, self._batch), VECTOR)
            least = 2.0**-26 * float(np.sqrt(np.mean(true * true))) if true.size else 0.0
            one = Unit.of(vectors - true, max(least, 1e-300))
            unit = one if unit is None else one.larger(unit)
        assert unit is not None
        return unit

    def row(self, name: str, given: str, array: FloatArray, layout: str, units: Mapping[str, Unit]) -> Row:
        """Measure an array; its level is not known yet."""
        true = self._true(name)
        with np.errstate(all="ignore"):
            error = np.abs(self._shown(array, name) - self._shown(true, name))
            rms = float(np.sqrt(np.mean(error * error))) if error.size else 0.0
        finite = bool(np.isfinite(error).all())
        broken = float("nan") if np.isnan(error).any() else float("inf")  # beside NaN, no size can be given
        largest = float(error.max(initial=0.0)) if finite else broken
        rms = rms if finite else broken
        flat = int(np.argmax(np.where(np.isfinite(error), error, np.inf))) if error.size else 0
        indices: Any = np.arange(true.size).reshape(true.shape)
        places = visible(indices, mask_of(name, self._batch.mask))
        at = tuple(int(i) for i in np.unravel_index(places[flat], true.shape)) if error.size else ()
        return Row(
            name=name,
            given=given,
            level="float32",
            ratio=rms / units[name].rms,
            worst=largest / units[name].largest,
            rms=rms,
            largest=largest,
            relative=self.error(array, name) if finite else broken,
            unit=units[name].rms,
            at=at,
            value=float(array[at]) if at else 0.0,
            true=float(true[at]) if at else 0.0,
            layout=layout,
        )


class _Some(Mapping[str, FloatArray]):
    """Some names of a mapping whose values are computed when they are read."""

    def __init__(self, values: Mapping[str, FloatArray], names: list[str]) -> None:
        self._values, self._names = values, names

    def __getitem__(self, name: str) -> FloatArray:
        if name not in self._names:
            raise KeyError(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
