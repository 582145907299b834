"""Replay: compute each op in float64 on the port's own inputs, to find every wrong op and not only the first.

A port's value is compared with the value that follows from the values that the port gave before it. Between two names
that the port gave, everything is computed: with all names that is one op, with hidden states alone it is one layer,
with the last hidden state alone it is the whole model. So a name is wrong here only if something between it and the
names before it is wrong.

The unit of a name is the error of the same computation in float32, on the same inputs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.parity.diagnosis.forward import EMBEDDINGS_STAGE, Forward, Store
from minibert.parity.diagnosis.mistake import NOTHING, Arrays, Mistake, Recipe, part_mistake
from minibert.parity.diagnosis.recipes import vector
from minibert.parity.symbols import DENSE, names_of, states_of, symbol_of
from minibert.parity.truth import VECTOR, Model, Padded, Unit, mask_of, matmul_backwards, rms, unmasked
from minibert.trace.layout import Layout

# The least unit of a long sum, relative to the RMS of a value. One large feature can make up most of a value, and then
# one sum of one order is a matter of luck.
_LEAST_UNIT_OF_SUMS = 2.0**-23

# The least unit of an activation, relative to the RMS of its input: x / 2 (1 + erf) loses the bits of 1 + erf where erf
# is near -1, and the erf of torch is a few units in the last place away from the true one there.
_LEAST_UNIT_OF_CURVES = 2.0**-25


# The two orders of summation of a unit (see truth.py).
_ORDERS: tuple[list[Mistake], ...] = (
    [],
    [part_mistake(DENSE, product=lambda inner, here, x, weight: matmul_backwards(x, weight))],
)


@dataclasses.dataclass(frozen=True)
class Measured:
    """The error of one name of a port: its value compared with the replay from the port's own earlier values.

    Parameters
    ----------
    name : str
    error : float       RMS difference over the visible places
    unit : float        RMS error of the same computation in float32
    size : float        RMS of the computed value
    """

    name: str
    error: float
    unit: float
    size: float

    @property
    def ratio(self) -> float:
        """The error in units; infinity if the error is not finite."""
        return self.error / self.unit if np.isfinite(self.error) else np.inf


def _place(ndim: int, rows: list[int], width: int | None) -> tuple[Any, ...]:
    """Return the index of some rows of an array in padded form, or of their first columns."""
    return (rows, *((), (slice(width),), (slice(None), slice(width), slice(width)))[ndim - 2])


@dataclasses.dataclass(frozen=True)
class Span:
    """Stages of the forward that are computed one after the other, from a hidden state that the port gave.

    Parameters
    ----------
    stages : list of int        the stages of `Forward` in order
    names : list of str         the names of the port that they compute; the vector of a text comes after all stages
    end : str                   the hidden state after the last layer, or after the embeddings, among them
    """

    stages: list[int]
    names: list[str]
    end: str


class Replay:
    """The values of a port, and forward passes that start from them.

    Parameters
    ----------
    model : Model
    inputs : Padded
    port : mapping of names to padded arrays
        Hidden places may hold anything; rows of zeros there count as unknown.
    recipe : Recipe, optional
        How the vector of a text is made, if the port has it.
    """

    def __init__(
        self, model: Model, inputs: Padded, port: Mapping[str, FloatArray], recipe: Recipe | None = None
    ) -> None:
        self.model, self.inputs, self.recipe = model, inputs, recipe
        self.names, self.states = names_of(model), states_of(model.config)
        known = [*self.names.specs, *([VECTOR] if recipe is not None else [])]
        self.port = {name: self._usable(name, np.asarray(port[name])) for name in known if name in port}
        self._complete = frozenset(name for name, array in self.port.items() if np.isfinite(array).all())
        self.spans = self._spans()
        self._made: dict[tuple[int | None, ...], Replay] = {}
        self._stores: dict[Any, Store] = {np.dtype(kind): Store(kind) for kind in ("float64", "float32")}

    def part(self, rows: int | Sequence[int] | None, width: int | None) -> Replay:
        """Return the replay of one row or several, or of their first columns; of all rows this one."""
        if rows is None:
            return self
        chosen = [rows] if isinstance(rows, int) else [*rows]
        if (key := (*chosen, width)) not in self._made:
            port = {name: array[_place(array.ndim, chosen, width)] for name, array in self.port.items()}
            self._made[key] = Replay(self.model, self.inputs.rows(chosen, width), port, self.recipe)
            self._made[key]._stores = self._stores
        return self._made[key]

    @functools.cached_property
    def is_masked(self) -> bool:
        """Whether the port's own probs of hidden keys are 0: then nothing reads the columns behind the last token."""
        hidden = self.inputs.mask[:, None, :, None] & ~self.inputs.mask[:, None, None, :]
        probs = [array for name, array in self.port.items() if symbol_of(name) == "probs"]
        return not any(np.any(array, where=np.broadcast_to(hidden, array.shape)) for array in probs)

    @functools.cached_property
    def _parts(self) -> list[tuple[list[int], int, Replay]]:
        """Short rows and long ones apart, without the columns behind their last tokens."""
        ends = self.inputs.ends
        short = ends <= self.inputs.mask.shape[1] // 2
        several = self.is_masked and short.any() and not short.all()
        groups = [np.flatnonzero(chosen).tolist() for chosen in (short, ~short) if several]
        widths = [max(1, int(ends[rows].max())) for rows in groups]
        return [(rows, width, self.part(rows, width)) for rows, width in zip(groups, widths, strict=True)]

    def _usable(self, name: str, array: FloatArray) -> FloatArray:
        """Make rows of zeros in hidden places NaN, and scores of hidden keys: they can be before or after the mask.

        NaN means unknown.
        """
        hidden = ~self.inputs.mask
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float64)
        if array.ndim < 3:
            return array
        if symbol_of(name) == "scores":
            array = np.where(hidden[:, None, None, :], array.dtype.type(np.nan), array)
        unknown = (hidden if array.ndim == 3 else hidden[:, None, :]) & ~array.any(axis=-1)  # also queries of padding
        return np.where(unknown[..., None], array.dtype.type(np.nan), array) if unknown.any() else array

    # --- what depends on what -----------------------------------------------------------------------------------------

    def _spans(self) -> list[Span]:
        """Group the stages as far as the port has names; a span ends with a hidden state that the port gave."""
        stage_of = {name: self._stage_of(name) for name in self.port}
        num_layers, first = len(self.states) - 1, EMBEDDINGS_STAGE
        end = max(stage_of.values(), default=EMBEDDINGS_STAGE - 1)
        last = num_layers - (not self.model.result_kinds)  # the vector is not a stage, and there may be no head
        spans = []
        for stage in range(EMBEDDINGS_STAGE, end + 1):
            is_state_of_port = stage < num_layers and self.states[stage + 1] in self.port
            if is_state_of_port or stage == end:
                names = [name for name, own in stage_of.items() if first <= own <= stage]
                state = self.states[min(stage, num_layers - 1) + 1]
                spans.append(Span(list(range(first, min(stage, last) + 1)), names, state))
                first = stage + 1
        return spans

    def span_of(self, name: str) -> int:
        """Return the index of the span that computes a name of the port."""
        return next(i for i, span in enumerate(self.spans) if name in span.names)

    def _stage_of(self, name: str) -> int:
        """Return the stage that computes a name; the vector has the number after the pooler's."""
        num_layers = self.model.config.num_hidden_layers
        if name == VECTOR:
            return num_layers + 1
        layer = self.names.specs[name].layer
        if layer is None and name.startswith(("embeddings", "final_norm")):
            return EMBEDDINGS_STAGE if name.startswith("embeddings") else num_layers - 1
        return num_layers if layer is None else layer

    @functools.cached_property
    def segments(self) -> dict[str, frozenset[str]]:
        """For each name of the port, the names that are computed for it: itself, and earlier names that are unknown."""
        needs: dict[str, tuple[str, ...]] = {VECTOR: self.states[-1:]}
        if self.recipe is not None and self.recipe.pooling == "pooler":
            needs[VECTOR] = ("pooler",)
        names: dict[str, str] = {}  # of each symbol; x is the state that goes into the layer, or the last one
        for layer, entry in Layout.of(self.names.sizes).rows():
            name = entry.path.format(i=layer)
            names["x"] = self.states[-1 if layer is None else layer]
            needs[name] = tuple(names[symbol] for symbol in entry.needs)
            names[entry.symbol] = name

        # The names are in the order of the forward pass, so that what a name needs is known before it.
        closed: dict[str, frozenset[str]] = {}
        for name in (*self.names.specs, VECTOR):
            unknown = [need for need in needs.get(name, ()) if need not in self.port]
            closed[name] = frozenset({name}).union(*(closed.get(need, {need}) for need in unknown))
        return {name: closed[name] for name in self.port}

    def affected(self, mistake: Mistake, names: Iterable[str]) -> list[str]:
        """Return the names whose computation from earlier names this mistake changes."""
        return [name for name in names if any(map(mistake.acts_at, self.segments[name]))]

    # --- forwards -----------------------------------------------------------------------------------------------------

    def run(self, mistakes: Sequence[Mistake] = (), only: int | None = None, **options: Any) -> Arrays:
        """Compute names of the port from its earlier names, with mistakes.

        Parameters
        ----------
        mistakes : what the port is supposed to do wrong
        only : the number of a span; None means all spans, one after the other
        compute : the names to compute; None means all. The others have the port's values.
        dtype : float64 or float32

        Raises
        ------
        InapplicableError
            A mistake is not possible here.
        """
        return {name: value for values in self._walk(mistakes, only, **options) for name, value in values.items()}

    def _walk(
        self,
        mistakes: Sequence[Mistake] = (),
        only: int | None = None,
        *,
        compute: Collection[str] | None = None,
        dtype: npt.DTypeLike = np.float64,
    ) -> Iterator[Arrays]:
        """Yield what `run` returns, span by span; hidden places may be zeros."""
        if self._parts and all(mistake.is_local for mistake in mistakes):
            walks = [part._walk(mistakes, only, compute=compute, dtype=dtype) for *_, part in self._parts]
            for several in zip(*walks, strict=True):
                joined = {name: np.zeros(self.port[name].shape, dtype) for name in several[0]}
                for (rows, width, _), values in zip(self._parts, several, strict=True):
                    for name, value in values.items():
                        joined[name][_place(value.ndim, rows, width)] = value
                yield joined
            return
        forward = Forward(self.model, self.inputs, mistakes, dtype=dtype, store=self._stores[np.dtype(dtype)])
        beginning = NOTHING if only is None else self._beginning(only, dtype)
        for number, span in enumerate(self.spans):
            if only not in (None, number):
                continue
            wanted = {*span.names} if compute is None else {*span.names} & {*compute}
            if number and not wanted and span.end in self._complete:
                beginning = {span.end: self.port[span.end].astype(dtype, copy=False)}
                yield {}  # another part of the texts may not skip this span
                continue
            computed, beginning = self._run_span(forward, span, beginning, wanted)
            yield computed

    @functools.cached_property
    def _beginnings(self) -> list[Arrays]:
        """The values of a forward without mistakes, at the beginning of each span and at the end of the last one."""
        beginnings: list[Arrays] = [NOTHING]
        forward = Forward(self.model, self.inputs, store=self._stores[np.dtype(np.float64)])
        for span in self.spans:
            beginnings.append(self._run_span(forward, span, beginnings[-1], span.names)[1])
        return beginnings

    def _beginning(self, number: int, dtype: npt.DTypeLike) -> Arrays:
        return {name: array.astype(dtype, copy=False) for name, array in self._beginnings[number].items()}

    def _run_span(
        self, forward: Forward, span: Span, beginning: Arrays, wanted: Collection[str]
    ) -> tuple[Arrays, Arrays]:
        """Compute the wanted names of a span; return them, and the values at the beginning of the next span.

        A stage begins with the hidden state of the one before it, and with the sum before that state's LayerNorm.
        """
        computed: dict[str, FloatArray] = {}
        states = dict(beginning)  # all hidden states and the pooler; a vector is made from them
        for stage in span.stages:
            forced = {name: self.port[name] for name in span.names if self._stage_of(name) == stage}
            # Places that the port does not have are computed, so only whole arrays can be left out.
            complete = {
                name: array.astype(forward.dtype, copy=False)
                for name, array in forced.items()
                if name not in wanted and name in self._complete
            }
            values = forward.run(stage, beginning, known=complete, forced=forced)
            computed |= {name: values[name] for name in wanted if name in values}
            if stage == len(self.states) - 1:
                states |= {name: array for name, array in forward.values.items() if name == "pooler"}
                continue
            state = self.states[stage + 1]
            total = "embeddings.LayerNorm.input" if stage == EMBEDDINGS_STAGE else f"{state}.output.LayerNorm.input"
            beginning = {name: forward.values[name] for name in (state, total) if name in forward.values}
            states |= beginning
        if VECTOR in wanted:
            assert self.recipe is not None
            values = self.filled(states, forward.dtype)
            computed[VECTOR] = vector(values, forward.inputs, self.states, self.recipe, forward.mistakes)
        return computed, beginning

    def filled(self, values: Arrays, dtype: npt.DTypeLike) -> dict[str, FloatArray]:
        """Return the hidden states and the pooler of the port; what it does not have is taken from `values`."""
        states = {name: array for name, array in self.port.items() if name in (*self.states, "pooler")}
        filled = {name: np.where(np.isfinite(array), array, values.get(name, 0.0)) for name, array in states.items()}
        return {name: array.astype(dtype) for name, array in {**values, **filled}.items()}

    # --- comparing ----------------------------------------------------------------------------------------------------

    def error(self, name: str, computed: FloatArray) -> float:
        """Return the RMS difference between a computed value and the port's over visible positions; NaN gives NaN."""
        mask = mask_of(name, self.inputs.mask)
        port = unmasked(self.port[name], mask)
        with np.errstate(all="ignore"):
            return rms(unmasked(computed, mask) - np.where(np.isfinite(port), port, np.nan))

    def error_with_hidden(self, name: str, computed: FloatArray) -> float:
        """Return the RMS difference, for probs over visible queries and all keys, else over visible positions."""
        port = self.port[name]
        queries = np.broadcast_to(self.inputs.mask[:, None, :, None], port.shape) if port.ndim == 4 else None
        if queries is None or not np.isfinite(port[queries]).all():
            return self.error(name, computed)
        return rms(computed[queries] - port[queries])

    def size(self, name: str, computed: FloatArray) -> float:
        """Return the RMS of a value over the visible positions."""
        return rms(unmasked(computed, mask_of(name, self.inputs.mask)))

    def unit(self, name: str, exact: FloatArray, *plain: FloatArray) -> float:
        """Return the RMS error of float32 computations over the visible positions; those that overflow do not count."""
        mask = mask_of(name, self.inputs.mask)
        values = [value for value in (unmasked(array, mask) for array in plain) if np.isfinite(value).all()]
        sums = any(symbol_of(needed) in DENSE for needed in self.segments[name])
        unit = Unit.of(unmasked(exact, mask), values, *([_LEAST_UNIT_OF_SUMS] if sums else [])).rms
        dense = f"{name}.dense"
        if symbol_of(name) == "intermediate" and dense in self._complete:
            unit = max(unit, _LEAST_UNIT_OF_CURVES * self.size(dense, self.port[dense]))
        return unit

    @functools.cached_property
    def _true_units(self) -> dict[str, tuple[float, float]]:
        """For each name the largest unit of several orders of summation, without mistakes, and the RMS of the value."""
        units: dict[str, tuple[float, float]] = {}
        walks = [self._walk(order, dtype=np.float32) for order in _ORDERS]
        for exact, *several in zip(self._walk(), *walks, strict=True):
            for name, value in exact.items():
                unit = self.unit(name, value, *(plain[name] for plain in several))
                units[name] = (unit, self.size(name, value))
        return units

    def measure(self, mistakes: Sequence[Mistake] = (), **options: Any) -> dict[str, Measured]:
        """Compare names of the port with a replay that makes these mistakes; `options` are as for `run`.

        The unit is that without mistakes, larger by as much as the value is larger; or that with them, if it is larger.
        """
        measured = {}
        walk = self._walk(mistakes, **options)
        plain_walk = self._walk(mistakes, **options, dtype=np.float32) if mistakes else itertools.repeat({})
        for exact, plain in zip(walk, plain_walk, strict=False):
            for name, value in exact.items():
                unit, true_size = self._true_units[name]
                size = self.size(name, value)
                if name in plain:
                    unit *= max(1.0, size / true_size if true_size and np.isfinite(size) else 1.0)
                    unit = max(unit, self.unit(name, value, plain[name]))
                measured[name] = Measured(name, self.error(name, value), unit, size)
        return {name: measured[name] for name in self.port if name in measured}
