"""`Tracer`: a set of ops that names, records and changes every value. Each forward pass has a new tracer.

The wrapped ops compute as before, and their results go on. So recording changes no bit. Two values exist only inside a
fused op: the result of a linear map before its activation or residual. To record one, the map is computed a second time
without that. scores and probs are copies that the attention op gives.

An edit inside a fused op is different: what follows is computed again, in float64 by the formulas of reference.py, but
only the numbers that depend on a changed one are replaced. So an edit that changes nothing changes no bit either.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.bert.ops import AttentionInput, AttentionOutput, LayerNorm, LookUp, Ops, PreparedLinear, WrappedOps
from minibert.bert.packed import PackedBatch
from minibert.bert.reference import ACTIVATION_FUNCTIONS, rotate, softmax
from minibert.trace.applied_edits import Edits
from minibert.trace.names import Names
from minibert.trace.trace import Site, Value


class Step:
    """One step of a forward pass: its batch, and its place in the whole batch.

    Parameters
    ----------
    batch : PackedBatch     the step
    tokens : slice          its rows among the T tokens
    sequences : slice       its rows in the padded batch
    pooled : slice          its rows among the sequences that have a pooled result
    """

    def __init__(
        self, batch: PackedBatch, tokens: slice, first_sequence: int, first_pooled: int, reads_any: bool = False
    ) -> None:
        self.batch = batch
        self.tokens = tokens
        self.sequences = slice(first_sequence, first_sequence + batch.num_sequences)
        self.with_result = np.flatnonzero(batch.has_result(reads_any))
        self.pooled = slice(first_pooled, first_pooled + len(self.with_result))
        self.rows = [slice(int(start), int(end)) for start, end in pairwise(batch.cu_seqlens)]

    def places(self, kind: str) -> Iterator[tuple[int, Any]]:
        """Yield each sequence of the step that has a value of this kind, and where it is in the value of the step."""
        if kind == "pooled":
            return ((j, place) for place, j in enumerate(self.with_result.tolist()))
        return enumerate(self.rows if kind == "tokens" else range(len(self.rows)))


Deliver = Callable[[str, Step, Value], None]
"""Takes in a value of a whole step: the rows of its tokens or of its [CLS]s, or a list of (A, S, S) arrays."""


@dataclasses.dataclass(eq=False)
class Tracer(WrappedOps):
    """The ops of one forward pass.

    Parameters
    ----------
    inner : Ops                           compute
    names : Names
    steps : the steps of the forward, as `PackedBatch.steps` gives them
    record : the names to deliver
    edits : Edits
    deliver : Deliver
    """

    inner: Ops
    names: Names
    steps: Iterator[tuple[slice, PackedBatch]]
    record: Set[str]
    edits: Edits
    deliver: Deliver

    def __post_init__(self) -> None:
        self._parts: dict[str, list[FloatArray]] = {}
        self._sequences = self._pooled = 0
        self._step: Step

    # --- the ops ------------------------------------------------------------------------------------------------------

    def embed(self, *look_ups: LookUp, scale: FloatArray | None = None) -> FloatArray:
        """Begin the next step, and deliver the look-ups and their sum."""
        tokens, batch = next(self.steps)
        self._step = Step(batch, tokens, self._sequences, self._pooled, self.names.sizes.reads_any)
        self._sequences, self._pooled = self._step.sequences.stop, self._step.pooled.stop
        total = self.inner.embed(*map(self._look_up, self.names.look_ups, look_ups), scale=scale)
        return self._pass(self.names.embedded, total)

    def _look_up(self, name: str, look_up: LookUp) -> LookUp:
        if not self._wants(name):
            return look_up
        rows = look_up.table[look_up.ids].astype(self.inner.dtype, copy=False)
        changed = self._pass(name, rows)
        if changed is rows:  # rows that are the table's own give the same bits
            return look_up
        return LookUp(changed, np.arange(len(rows), dtype=np.int32))

    def layer_norm(self, x: FloatArray, norm: LayerNorm) -> FloatArray:
        """Deliver the result of the LayerNorm."""
        return self._pass(self.names.by_module.get(norm.path, ""), self.inner.layer_norm(x, norm))

    def linear(
        self, x: FloatArray, linear: PreparedLinear, *, activation: str | None = None, residual: Any = None
    ) -> FloatArray:
        """Deliver the result of each linear map, and of the activation or the sum."""
        y = self.inner.linear(x, linear, activation=activation, residual=residual)
        if len(linear.paths) > 1 and not linear.gated:
            return self._stacked(y, linear.paths)
        *_, name = linear.paths
        if activation is None and residual is None:
            return self._pass(name, y)
        if any(map(self._wants, linear.paths)):
            inner = [self.inner.linear(x, linear.part(i, i + 1)) for i in range(len(linear.paths))]
            changed = list(map(self._pass, linear.paths, inner))
            if any(map(operator.is_not, changed, inner)):
                y = _redo(y, inner, changed, activation, residual)
        return self._pass(self.names.after[name], y)

    def _stacked(self, y: FloatArray, paths: tuple[str, ...]) -> FloatArray:
        """Pass each block of columns of stacked maps; an edit is written into the result, a new array."""
        width = y.shape[1] // len(paths)
        for i, name in enumerate(paths):
            if self._wants(name):
                block = np.ascontiguousarray(y[:, i * width : (i + 1) * width])
                changed = self._pass(name, block)
                if changed is not block:
                    y[:, i * width : (i + 1) * width] = changed
        return y

    def attention(
        self, inputs: AttentionInput, *, return_scores: bool = False, return_probs: bool = False
    ) -> AttentionOutput:
        """Deliver scores, probs and context."""
        path = inputs.path
        inputs = self._rotated(inputs)
        scores_name, probs_name = f"{path}.scores", f"{path}.probs"
        edited = scores_name in self.edits or probs_name in self.edits
        output = self.inner.attention(
            inputs,
            return_scores=return_scores or self._wants(scores_name),
            return_probs=return_probs or self._wants(probs_name) or edited,
        )
        context, scores, probs = output
        if edited:
            context, scores, probs = self._edited_attention(output, inputs.value, path)
        if scores_name in self.record and scores is not None:
            self.deliver(scores_name, self._step, scores)
        if probs_name in self.record and probs is not None:
            # The output of the model may hold these arrays, so the trace keeps others.
            self.deliver(probs_name, self._step, [array.copy() for array in probs] if return_probs else probs)
        context = self._pass(path, context)
        return AttentionOutput(context, scores if return_scores else None, probs if return_probs else None)

    def _rotated(self, inputs: AttentionInput) -> AttentionInput:
        """Deliver the rotated queries and keys; if an edit changes them, return inputs without a rotation."""
        names, rotation = [f"{inputs.path}.{part}.rotated" for part in ("query", "key")], inputs.rotation
        if rotation is None or not any(map(self._wants, names)):
            return inputs
        heads = inputs.num_heads, inputs.num_key_heads
        before = [rotate(np.ascontiguousarray(x), n, rotation) for x, n in zip(inputs[:2], heads, strict=True)]
        after = list(map(self._pass, names, before))
        if not any(map(operator.is_not, after, before)):
            return inputs
        return inputs._replace(query=after[0], key=after[1], rotation=None)

    def _edited_attention(
        self, output: AttentionOutput, value: FloatArray, path: str
    ) -> tuple[FloatArray, list[FloatArray] | None, list[FloatArray]]:
        """Edit scores and probs; compute again the probs of changed scores, and the context of changed probs."""
        context, scores = output.context, output.scores
        all_probs: list[FloatArray] = []
        for j, rows in enumerate(self._step.rows):
            sequence, before = self._step.sequences.start + j, (output.probs or [])[j]
            probs = before
            if scores is not None and f"{path}.scores" in self.edits:
                changed = self.edits.apply(f"{path}.scores", sequence, scores[j])
                if changed is not scores[j]:
                    lines = (changed != scores[j]).any(axis=2)
                    probs = before.copy()
                    probs[lines] = softmax(changed[lines].astype(np.float64))
                    scores = [*scores[:j], changed, *scores[j + 1 :]]
            if f"{path}.probs" in self.edits:
                probs = self.edits.apply(f"{path}.probs", sequence, probs)
            if probs is not before:
                size = context.shape[1] // len(probs)
                lines = (probs != before).any(axis=2)
                for head in np.flatnonzero(lines.any(axis=1)):
                    columns = slice(head * size, (head + 1) * size)
                    own = head * value.shape[1] // context.shape[1] * size  # heads may share values
                    new = probs[head, lines[head]].astype(np.float64) @ value[rows, own : own + size]
                    context[rows, columns][lines[head]] = new  # nobody else has the op's result
            all_probs.append(probs)
        return context, scores, all_probs

    # --- values that pass ---------------------------------------------------------------------------------------------

    def _wants(self, name: str) -> bool:
        return name in self.record or name in self.edits

    def _pass(self, name: str, packed: FloatArray) -> FloatArray:
        """Edit and deliver a value; return what goes on: the same object if no edit reached it."""
        if name in self.edits:
            packed = self._edited(name, packed)
        if name in self.record:
            self._collect(name, packed)
        return packed

    def _edited(self, name: str, packed: FloatArray) -> FloatArray:
        if len(packed) != self._rows_of(name):
            raise RuntimeError(f"{name} has {len(packed)} of {self._rows_of(name)} rows")
        result = packed
        for j, place in self._step.places(self.names.specs[name].kind):
            before = packed[place]
            after = self.edits.apply(name, self._step.sequences.start + j, before)
            if after is not before:
                if result is packed:
                    result = packed.copy()
                result[place] = after
        return result

    def _rows_of(self, name: str) -> int:
        """Return how many rows a value has in this step."""
        pooled = self.names.specs[name].kind == "pooled"
        return len(self._step.with_result) if pooled else self._step.batch.num_tokens

    def _collect(self, name: str, packed: FloatArray) -> None:
        """Deliver a value when all of its rows are there; a head with a large vocabulary comes in parts."""
        parts = self._parts.setdefault(name, [])
        parts.append(packed)
        if sum(map(len, parts)) == self._rows_of(name):
            del self._parts[name]
            self.deliver(name, self._step, parts[0] if len(parts) == 1 else np.concatenate(parts))


def _redo(
    fused: FloatArray,
    inner: Sequence[FloatArray],
    changed: Sequence[FloatArray],
    activation: str | None,
    residual: FloatArray | None,
) -> FloatArray:
    """Compute activation(changed) + residual, or activation(gate) * up, where `changed` differs from `inner`.

    The fused result stays elsewhere.
    """
    y = fused.copy()
    places = np.logical_or.reduce(list(map(np.not_equal, changed, inner)))
    factors: list[FloatArray] = [array[places].astype(np.float64) for array in changed]
    if activation is not None:
        factors[0] = ACTIVATION_FUNCTIONS[activation](factors[0])
    new = np.prod(factors, axis=0)
    y[places] = new if residual is None else new + residual[places]
    return y


# --- what becomes of the values ---------------------------------------------------------------------------------------


class Recorder:
    """A `Deliver` that keeps all values, packed.

    Parameters
    ----------
    names : Names
    batch : PackedBatch
    record : the names, in order
    dtype : of the values
    """

    def __init__(self, names: Names, batch: PackedBatch, record: Iterable[str], dtype: npt.DTypeLike) -> None:
        self._names = names
        self._rows = {"tokens": batch.num_tokens, "pooled": _count_pooled(names, batch)}
        # What a batch without tokens has: its head does not compute anything.
        self.values: dict[str, Value] = {
            name: [] if names.specs[name].kind == "pairs" else np.zeros((0, names.specs[name].width), dtype)
            for name in record
        }

    def __call__(self, name: str, step: Step, value: Value) -> None:
        """Keep a value of a step."""
        kept, spec = self.values[name], self._names.specs[name]
        if isinstance(kept, list):
            kept.extend(value)
            return
        rows = self._rows[spec.kind]
        # The output of the model holds the hidden states and the pooler's output too. Nobody else has the other arrays,
        # so they are not copied.
        if len(value) == rows and name not in (*self._names.states, "pooler"):
            self.values[name] = value
            return
        if len(kept) != rows:
            kept = self.values[name] = np.empty((rows, spec.width), kept.dtype)
        kept[step.tokens if spec.kind == "tokens" else step.pooled] = value


class Queue:
    """A `Deliver` that keeps values as `Site`s until `take` returns them."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._sites: list[Site] = []

    def __call__(self, name: str, step: Step, value: Value) -> None:
        """Cut a value of a step into the sequences' own."""
        spec = self._names.specs[name]
        for j, place in step.places(spec.kind):
            array = value[place].view()
            array.flags.writeable = False  # the model may still need it
            columns = np.flatnonzero(step.batch.mask[j])
            self._sites.append(Site(name, spec.layer, step.sequences.start + j, columns, array))

    def take(self) -> list[Site]:
        """Return the values that came since the last call."""
        sites, self._sites = self._sites, []
        return sites


def _count_pooled(names: Names, batch: PackedBatch) -> int:
    return int(np.count_nonzero(batch.has_result(names.sizes.reads_any)))


def nbytes_of(names: Names, batch: PackedBatch, record: Iterable[str], itemsize: int) -> dict[str, int]:
    """Return the size in bytes of each name's values in a trace."""
    lengths = np.diff(batch.cu_seqlens).astype(object)  # Python's integers do not overflow
    per_width = {
        "tokens": batch.num_tokens,
        "pairs": int((lengths * lengths).sum()),
        "pooled": _count_pooled(names, batch),
    }
    return {name: itemsize * names.specs[name].width * per_width[names.specs[name].kind] for name in record}
