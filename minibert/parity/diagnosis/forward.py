"""A forward pass in small parts, padded as in most ports; a mistake can replace each part.

`Forward` wraps a set of ops, as trace/ does, and runs the functions of encoder.py with it. Each op is split into parts
(`PARTS`): a linear map is the weights, the product, the activation and the sum; attention is the split into heads, the
scores, the mask, the softmax, the weighted sum and the merge. A mistake is a function in the place of one part. Several
mistakes can be in one forward; a later one is around an earlier one.

Values can be *known*, so that they are not computed, or *forced*: computed, kept as computed, and then replaced by the
port's own value for everything that follows. With forced values each op is computed on the port's own inputs.

Here the tokens of the padding are computed too, and the mask is a part, because mistakes with the mask would not be
possible in a packed batch.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert import encoder, reference
from minibert.bert.norm_first import LAYERS
from minibert.bert.ops import AttentionInput, AttentionOutput, LayerNorm, LookUp, PreparedLinear, WrappedOps
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import LayerWeights
from minibert.parity.diagnosis.mistake import NOTHING, Arrays, Mistake, Part
from minibert.parity.symbols import ENTRIES, names_of, states_of
from minibert.parity.truth import Model, Padded

EMBEDDINGS_STAGE = -1
"""The stage before layer 0."""

_COLUMNS = ("ids", "mask", "types", "positions")


class Store:
    """The weights of a model in one dtype: of the current layer, and of other layers while there is room."""

    _MOST_BYTES = 1 << 26

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self._layer: object = None
        self._nbytes = 0
        self._kept: dict[int, tuple[PreparedLinear, FloatArray, FloatArray]] = {}

    def enter(self, layer: object) -> None:
        """Begin a layer; drop the weights of the others if they take much memory."""
        if layer != self._layer and self._nbytes > self._MOST_BYTES:
            self._kept, self._nbytes = {}, 0
        self._layer = layer

    def get(self, linear: PreparedLinear, index: int) -> tuple[FloatArray, FloatArray]:
        """Return the weight and bias of one of the maps that are stacked in `linear`."""
        if id(linear) not in self._kept:
            weight, bias = (array.astype(self.dtype, copy=False) for array in (linear.weight, linear.bias))
            self._kept[id(linear)] = (linear, weight, bias)
            self._nbytes += weight.nbytes
        _, weight, bias = self._kept[id(linear)]
        size = len(bias) // len(linear.paths)
        rows = slice(index * size, (index + 1) * size)
        return weight[rows], bias[rows]


class Here(NamedTuple):
    """The place where a part is computed: the name of its value, its layer, and the forward pass."""

    name: str
    layer: int | None
    forward: Forward


def _dense(here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
    """Compute x W^T + b of one of the maps that are stacked in `linear`."""
    weight, bias = here.forward.part("weights", here, *here.forward.store.get(linear, index))
    return here.forward.part("product", here, x, weight) + bias


def _pool(here: Here, x: FloatArray) -> FloatArray:
    """Return what a head with one result for a sequence reads, from the last hidden state: (B, H)."""
    mask, pooling = here.forward.visible, here.forward.config.classifier_pooling
    if pooling in ("mean", "late"):
        return (x * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True).astype(x.dtype)
    return x[np.arange(len(x)), mask.argmax(axis=1)] if pooling == "cls" else x[:, 0]


def distances(here: Here) -> IntArray:
    """Return the column of each key minus the column of each query, (S, S)."""
    columns = np.arange(here.forward.inputs.ids.shape[1])
    return columns - columns[:, None]


def layer_of(here: Here) -> LayerWeights:
    """Return the weights of the layer that is computed."""
    assert here.layer is not None
    return here.forward.weights.layers[here.layer]


# In attention (B, A, S, D) are heads, scores and probs are (B, A, S, S), and `visible` (B, S) is False for hidden keys.
PARTS: dict[str, Callable[..., Any]] = {
    "layer": lambda here, layers: layers[here.layer],
    "rows": lambda here, table, ids: table[ids].astype(here.forward.dtype),
    "scale": lambda here, words, scale: words * scale[:, None],
    "total": lambda here, words, types, positions: words + types + positions,
    "norm": lambda here, x, norm: reference.layer_norm(x, norm, dtype=here.forward.dtype),
    "weights": lambda here, weight, bias: (weight, bias),
    "product": lambda here, x, weight: x @ weight.T,
    "dense": _dense,
    "activation": lambda here, x, name: reference.ACTIVATION_FUNCTIONS[name](x),
    "gate": lambda here, gate, up, name: here.forward.part("activation", here, gate, name) * up,
    "add": lambda here, dense, residual: dense + residual,
    "split": lambda here, x, num_heads: x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3),
    "share": lambda here, x, num_heads: np.repeat(x, num_heads // x.shape[1], axis=1),
    "scores": lambda here, query, key: (
        query @ key.transpose(0, 1, 3, 2) * query.dtype.type(1 / math.sqrt(query.shape[-1]))
    ),
    "rotation": lambda here, rotation: rotation,
    "rotate": lambda here, x, num_heads, rotation: reference.rotate(x, num_heads, rotation),
    "window": lambda here, size: size,
    "bias": lambda here, bias: bias.table.astype(here.forward.dtype)[:, distances(here) + bias.table.shape[1] // 2],
    "mask": lambda here, scores, visible: np.where(visible[:, None, None, :], scores, scores.dtype.type(-np.inf)),
    "softmax": lambda here, masked: reference.softmax(masked),
    "weigh": lambda here, probs, value: probs @ value,
    "merge": lambda here, context: context.transpose(0, 2, 1, 3).reshape(len(context), context.shape[2], -1),
    "pool": _pool,
    "value": lambda here, value: value,
}
"""The parts by name, as they are right: each is called with `Here` and its own arguments."""


def head_activation(model: Model) -> str:
    """Return the activation of the pooler, or of the dense map that a head has in its place."""
    config, head = model.config, model.weights.head
    otherwise = "tanh" if model.weights.pooler is not None else config.classifier_activation or config.activation
    return reference.ACTIVATIONS[config.family.activation(None if head is None else head.name, otherwise)]


def _where_it_acts(acts_at: Callable[[str], bool], part: Part, inner: Part, here: Here, *arguments: Any) -> Any:
    return part(inner, here, *arguments) if acts_at(here.name) else inner(here, *arguments)


class Forward(WrappedOps):
    """One forward pass in parts, stage by stage: `EMBEDDINGS_STAGE`, each layer by its number, then pooler and head.

    Parameters
    ----------
    model : Model
    inputs : Padded
    mistakes : the mistakes to make, none for the true forward
    dtype : float64, or float32 for a forward such as a port has
    store : Store, optional
        To share the weights with other forwards.
    """

    def __init__(
        self,
        model: Model,
        inputs: Padded,
        mistakes: Iterable[Mistake] = (),
        dtype: npt.DTypeLike = np.float64,
        store: Store | None = None,
    ) -> None:
        super().__init__(model.ops)
        self.model, self.config, self.weights = model, model.config, model.weights
        self.dtype, self.states, self.names = np.dtype(dtype), states_of(model.config), names_of(model)
        self.store = Store(dtype) if store is None else store
        self._parts = dict(PARTS)
        self.true_inputs, self.mistakes = inputs, tuple(mistakes)
        for mistake in self.mistakes:
            for name, part in mistake.parts.items():
                self._parts[name] = functools.partial(_where_it_acts, mistake.acts_at, part, self._parts[name])
            if mistake.inputs is not None:
                inputs = mistake.inputs(inputs, self.config)
        self.inputs = inputs
        # A row that shows nothing attends to everything, so that no number becomes NaN. Nobody compares such a row.
        self.visible = inputs.mask | ~inputs.mask.any(axis=1, keepdims=True)
        self._layer: int | None = None
        self._known, self._forced = NOTHING, NOTHING
        self._computed: dict[str, FloatArray] = {}
        self.head_input: FloatArray = np.zeros(0)
        """The rows of the last hidden state that the head reads: of all tokens, or one for each sequence."""
        self.values: dict[str, FloatArray] = {}
        """The values of this stage and of the one before it, as the next part sees them."""

    # --- stages -------------------------------------------------------------------------------------------------------

    def run(
        self, stage: int, beginning: Arrays = NOTHING, known: Arrays = NOTHING, forced: Arrays = NOTHING
    ) -> dict[str, FloatArray]:
        """Compute one stage.

        Parameters
        ----------
        stage : `EMBEDDINGS_STAGE`, the number of a layer, or the number of layers for the pooler
        beginning : mapping of names to padded arrays
            Values of the stage before it: the hidden state at least.
        known : values that are not computed
        forced : values that replace the computed ones for what follows

        Returns
        -------
        dict of names to padded arrays
            The values that were computed, before they were replaced.
        """
        self._known, self._forced, self._computed, self.values = known, forced, {}, dict(beginning)
        self._layer = stage if 0 <= stage < self.config.num_hidden_layers else None
        self.store.enter(stage)
        batch = self.inputs.packed
        with np.errstate(all="ignore"):  # what a mistake overflows is part of the mistake
            if stage == EMBEDDINGS_STAGE:
                encoder.embeddings(self.weights, batch, self.ops)
                return self._computed
            x = self._flat(self.values[self.states[stage]])
            if self._layer is None:
                self._run_head(x)
            else:
                layer = self.part("layer", self._here(f"encoder.layer.{stage}"), self.weights.layers)
                own = self.weights.layers[stage]
                of_layer: dict[str, Any] = {"rotary": own.rotary, "window": own.window}
                if own.attention_norm is None or layer.attention_norm is None:  # the first layer of ModernBERT has none
                    of_layer["attention_norm"] = own.attention_norm
                run_layer = LAYERS[self.config.family.forward]
                x = run_layer(x, dataclasses.replace(layer, **of_layer), batch, self.config, self.ops)
                if self.states[stage + 1] == "final_norm" and self.weights.final_norm is not None:
                    self.layer_norm(x, self.weights.final_norm)
        return self._computed

    def run_all(self) -> Iterator[tuple[str, FloatArray]]:
        """Compute all stages, and yield every value by name, in the order of the forward pass."""
        values: dict[str, FloatArray] = {}
        for stage in range(EMBEDDINGS_STAGE, self.config.num_hidden_layers + bool(self.model.result_kinds)):
            values = self.run(stage, values)
            yield from values.items()

    def _run_head(self, x: FloatArray) -> None:
        """Compute what the model computes from its last hidden state: the pooler, or the head."""
        first = dataclasses.replace(self.inputs, **{name: getattr(self.inputs, name)[:, :1] for name in _COLUMNS})
        for kind in self.model.result_kinds:
            self.head_input, batch = x, self.inputs.packed
            if kind in ("pooler", "sequences"):  # the pooled rows are a batch of sequences of one token
                name = "pooler.dense" if self.weights.pooler is not None else "cls.predictions.transform.dense"
                self.head_input, batch = self.part("pool", self._here(name), self._padded(x)), first.packed
                if self.config.classifier_pooling == "late" and self.weights.pooler is not None:
                    head: Any = self.weights.head
                    x = self.ops.linear(x, self.weights.pooler, activation=head_activation(self.model))
                    self.ops.linear(self.part("pool", self._here("classifier"), self._padded(x)), head.classifier)
                    continue
            self.model.with_ops(self.ops).compute(kind, self.head_input, batch)

    def part(self, name: str, here: Here, *arguments: Any) -> Any:
        """Compute a part, with the mistakes that replace it."""
        return self._parts[name](here, *arguments)

    # --- the ops ------------------------------------------------------------------------------------------------------

    def embed(self, *look_ups: LookUp, scale: FloatArray | None = None) -> FloatArray:
        """Compute the look-ups and their sum; one that the model does not have is zeros."""
        named = zip(self.names.look_ups, look_ups, strict=True)
        rows = {name: self._result_of(name, "rows", *look_up) for name, look_up in named}
        words, *others = (entry.path for entry in ENTRIES if entry.kind == "rows")
        added = (rows.get(name, np.zeros_like(rows[words])) for name in others)
        if scale is None:
            return self._result_of(self.names.embedded, "total", rows[words], *added)
        return self._result_of(self.names.embedded, "scale", rows[words], self._own_scale())

    def _own_scale(self) -> FloatArray:
        """Return the factors of ESM's embeddings, from the tokens that are attended to."""
        scale, visible = np.ones(self.inputs.ids.shape), self.inputs.mask
        batch = PackedBatch.from_sequences(
            self.config,
            [ids[row] for ids, row in zip(self.inputs.ids, visible, strict=True)],
            [np.zeros(row.sum(), int) for row in visible],
        )
        scale[visible] = batch.scale(self.config)
        return scale.reshape(-1).astype(self.dtype)

    def layer_norm(self, x: FloatArray, norm: LayerNorm) -> FloatArray:
        """Compute a LayerNorm."""
        path = self._placed(norm.path)
        return self._result_of(self.names.by_module.get(path, path), "norm", x, norm)

    def linear(
        self, x: FloatArray, linear: PreparedLinear, *, activation: str | None = None, residual: Any = None
    ) -> FloatArray:
        """Compute the linear maps one after the other, the activation and the sum."""
        names = [self._placed(path) for path in linear.paths]
        ys = [self._result_of(name, "dense", x, linear, index) for index, name in enumerate(names)]
        if linear.gated:
            return self._result_of(self.names.after[names[1]], "gate", *ys, activation)
        y, name = np.concatenate(ys, axis=1) if len(ys) > 1 else ys[0], names[0]
        if activation is not None:
            y = self._result_of(self.names.after[name], "activation", y, activation)
        if residual is not None:
            y = self._result_of(self.names.after[name], "add", y, residual)
        return y

    def attention(self, inputs: AttentionInput, **returned: Any) -> AttentionOutput:
        """Compute scores, probs and context of padded sequences; return the context as rows."""
        path, bias = self._placed(inputs.path), inputs.bias
        query, key, value = map(self._padded, (*self._rotated(inputs, path), inputs.value))
        self.attended = query, key
        scores_name, probs_name = f"{path}.scores", f"{path}.probs"

        def split(x: FloatArray, name: str) -> Any:
            return self.split(self._here(name), x)

        def scores_of() -> Any:
            at = self._here(scores_name)
            scores = self.part("scores", at, split(query, scores_name), split(key, scores_name))
            size = self.part("window", at, None if inputs.window is None else inputs.window.size)
            if size is not None:
                scores = np.where(np.abs(distances(at)) <= size, scores, scores.dtype.type(-np.inf))
            return scores if bias is None else scores + self.part("bias", at, bias)

        def probs_of() -> Any:
            at = self._here(probs_name)
            masked = self.part("mask", at, scores, self.visible)
            if self.config.family.has_windows:  # a hidden query may have no token in its window
                masked = np.where(np.isneginf(masked).all(axis=-1, keepdims=True), masked.dtype.type(0), masked)
            return self.part("softmax", at, masked)

        def context_of() -> FloatArray:
            weighed = self.part("weigh", self._here(path), probs, split(value, path))
            return self._flat(self.part("merge", self._here(path), weighed))

        needs_probs = path not in self._known or self._is_wanted(probs_name)
        if self._is_wanted(scores_name) or (needs_probs and probs_name not in self._known):
            scores = self._rows_of(scores_name, scores_of)
        if needs_probs:
            probs = self._rows_of(probs_name, probs_of)
        return AttentionOutput(self._rows_of(path, context_of), None, None)

    def split(self, here: Here, x: FloatArray) -> Any:
        """Return the heads of queries, keys or values, (B, A, S, D), also of keys and values that heads share."""
        heads = self.part("split", here, x, x.shape[-1] // self.config.head_size)
        return self.part("share", here, heads, self.config.num_attention_heads)

    def _rotated(self, inputs: AttentionInput, path: str) -> list[FloatArray]:
        """Return the query and the key, rotated if the model has rotary positions."""
        if inputs.rotation is None:
            return [inputs.query, inputs.key]
        rotated = []
        for part, x in (("query", inputs.query), ("key", inputs.key)):
            name = f"{path}.{part}.rotated"
            rotation = self.part("rotation", self._here(name), inputs.rotation)
            num_heads = x.shape[1] // self.config.head_size
            rotated.append(self._result_of(name, "rotate", np.ascontiguousarray(x), num_heads, rotation))
        return rotated

    # --- values by name -----------------------------------------------------------------------------------------------

    def _here(self, name: str) -> Here:
        return Here(name, self._layer, self)

    def _placed(self, path: str) -> str:
        """Return a path in the layer that is computed, because a mistake may use the weights of another layer."""
        parts = path.split(".")
        return path if parts[0] != "encoder" else ".".join([*parts[:2], str(self._layer), *parts[3:]])

    def _padded(self, flat: FloatArray) -> FloatArray:
        return flat.reshape(*self.inputs.ids.shape, flat.shape[1])

    def _flat(self, padded: FloatArray) -> FloatArray:
        return padded.reshape(-1, padded.shape[-1]) if padded.ndim == 3 else padded

    def _result_of(self, name: str, part: str, *arguments: Any) -> FloatArray:
        """Return the value of a name: the result of one part."""
        return self._rows_of(name, functools.partial(self.part, part, self._here(name), *arguments))

    def _rows_of(self, name: str, compute: Callable[[], FloatArray]) -> FloatArray:
        """Return the value of a name as rows, or as pairs: the known one, or the computed one, or the forced one."""
        if name in self._known:
            self.values[name] = self._known[name]
            return self._flat(self._known[name])
        value = self.part("value", self._here(name), compute())
        is_padded = value.ndim == 4 or self.names.specs[name].kind == "pooled"
        return self._flat(self._keep(name, value if is_padded else self._padded(value)))

    def _is_wanted(self, name: str) -> bool:
        """Return whether a value that the port has is computed all the same."""
        return name in self._forced and name not in self._known

    def _keep(self, name: str, padded: FloatArray) -> FloatArray:
        self._computed[name] = padded
        if name in self._forced:
            # A port may have NaN or nothing at all in hidden places; a value that follows must not become NaN.
            forced = self._forced[name]
            padded = np.where(np.isfinite(forced), forced, padded).astype(self.dtype, copy=False)
        self.values[name] = padded
        return padded
