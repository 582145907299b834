"""The contract between the forward pass and the code that computes it: five ops, their shapes, dtypes and aliasing.

Two sets of ops are the model: `reference.OPS` in NumPy (the specification that people read) and `kernels.make_ops()` in
Numba (the code that people run). `low_precision.make_ops` is the specification of the other compute types.
`reference.make_ops()` gives the formulas in another arithmetic, such as float64. An oracle without their code
is in tests/support/definition.py. `encoder.forward` takes a set of ops as an argument; there is no global switch.

Rules for every set of ops
--------------------------
- Arrays are C-contiguous float32 unless the docstring says otherwise; results are new arrays that belong to the caller.
- An op does not modify its inputs, and does not keep them after the call.
- Ops do not check ids, lengths and shapes, because packed.py and weights.py have checked them.
- An op must be callable from several threads at once.

A set of ops can be wrapped (`WrappedOps`): a wrapper sees every argument and result of an op, can name them (every
weight has its module path), and may replace the result. It must return arrays of the same shapes
and dtypes. With other shapes the next kernel would read memory outside its arrays, and Python could crash. Each
epilogue of `linear` equals the separate formulas in reference.py.

The letters of the shapes are explained in encoder.py; N and K are the rows and columns of one weight.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """One affine map of the checkpoint, y = x weight^T + bias; or several maps of the same input, stacked.

    Parameters
    ----------
    paths : tuple of str
        The module path of each map stacked here, for example ``("encoder.layer.0.intermediate.dense",)``. Each map
        has the same number of rows of `weight`, in this order: [Q; K; V] has H rows of each.
    weight : ndarray of shape (N, K), float32, read-only
        As the checkpoint has it: one row per output.
    bias : ndarray of shape (N,), float32, read-only
    gated : bool
        The first half of the rows is the gate, the second half is what the gate multiplies: see `ApplyLinear`.
    half : str
        "F16" or "BF16" if each number of the weight fits into 16 bits of this kind, as the checkpoint has it; else "".
    """

    paths: tuple[str, ...]
    weight: FloatArray
    bias: FloatArray
    gated: bool = False
    half: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weight, (N, K)."""
        N, K = self.weight.shape
        return N, K

    def part(self, first: int, last: int) -> Linear:
        """Return the maps first, ..., last - 1 of those stacked, in the same memory."""
        rows = rows_of(self, first, last)
        return Linear(self.paths[first:last], self.weight[rows], self.bias[rows], half=self.half)


def rows_of(linear: PreparedLinear, first: int, last: int) -> slice:
    """Return the rows of the weight that belong to the maps first, ..., last - 1 of those stacked."""
    rows = linear.shape[0] // len(linear.paths)
    return slice(first * rows, last * rows)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerNorm:
    """One LayerNorm of the checkpoint: its module path, weight and bias of shape (H,), and the eps of the config.

    If it is not `centered`, it is an RMSNorm, which does not subtract the mean.
    """

    path: str
    weight: FloatArray
    bias: FloatArray
    eps: float
    centered: bool = True


class PreparedLinear(Protocol):
    """The result of `Ops.prepare`: any layout, but it must keep `paths`, `gated` and be able to return the weight."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The module paths of the `Linear` from which it was made."""

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weight, (N, K); the weight is not computed for that."""

    @property
    def weight(self) -> FloatArray:
        """The weight, (N, K): as the checkpoint has it, or rounded by the compute type; it may be computed again."""

    @property
    def bias(self) -> FloatArray:
        """The bias, (N,)."""

    @property
    def gated(self) -> bool:
        """Whether the first half of the rows is a gate."""

    def part(self, first: int, last: int) -> PreparedLinear:
        """Return the maps first, ..., last - 1 of those stacked; it need not be a copy."""


class LookUp(NamedTuple):
    """A look-up in an embedding table: ``table[ids]``. The table has shape (rows, H), the int32 ids have shape (T,)."""

    table: FloatArray
    ids: IntArray


class StoredRows(Protocol):
    """A table in a file. The rows that are needed are read; NumPy reads the whole table, as an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table."""

    def look_up(self, ids: IntArray) -> tuple[FloatArray, IntArray]:
        """Return some rows of the table, those of `ids` among them, and the place of each id in them."""

    def pieces(self) -> Iterator[FloatArray]:
        """Yield the whole table, some rows at a time."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray: ...


Table: TypeAlias = FloatArray | StoredRows


def look_up(table: Table, ids: IntArray) -> LookUp:
    """Return the look-up of ids, of any shape, in a table; from a file, its table has only some of the rows."""
    return LookUp(table, ids) if isinstance(table, np.ndarray) else LookUp(*table.look_up(ids))


class AttentionOutput(NamedTuple):
    """Context (T, H); scores and probs, one (A, S, S) array per sequence, are None if not requested.

    With `queries` there are only their rows: context (Q, H), scores and probs (A, Q of the sequence, S).
    """

    context: FloatArray
    scores: list[FloatArray] | None
    probs: list[FloatArray] | None


class RelativeBias(NamedTuple):
    """What MPNet adds to the score of two tokens of a sequence: a number for each head and distance.

    `table` has shape (A, 2 R - 1): ``table[:, R - 1 + r]`` is the bias for a key r columns after its query (r may be
    negative). `columns`, of shape (T,), has the column of each token in the padded batch. In each sequence it increases
    by less than R in all.
    """

    table: FloatArray
    columns: IntArray


class Rotation(NamedTuple):
    """The rotary positions of queries and keys.

    `table`, of shape (P, R), has R / 2 cosines, then R / 2 sines, for each position; `positions`, of shape (T,), has
    the position of each token. The first R numbers of each head are rotated (`reference.rotate`); R <= D is even.
    """

    table: FloatArray
    positions: IntArray


class Window(NamedTuple):
    """Which keys a query sees: the keys of its sequence that are at most `size` columns away, on both sides.

    `columns`, of shape (T,), has the column of each token in the padded batch; it increases in each sequence.
    """

    size: int
    columns: IntArray


class Queries(NamedTuple):
    """Some of the T tokens: their indices, (Q,), increasing; `cu_seqlens` says where those of each sequence begin."""

    tokens: IntArray
    cu_seqlens: IntArray


class AttentionInput(NamedTuple):
    """What attention computes from: query, key and value of all tokens and heads, and where each sequence begins.

    query has shape (T, H); head a owns columns [a D, (a + 1) D). key and value have shape (T, G): G is H, or less if
    neighbours of the A heads share one of the `num_key_heads`. They may be column blocks of one
    array, so the distance between two rows may be more than H. `cu_seqlens` has shape (B + 1,), and a sequence may be
    empty; `num_heads` is A, which divides H. With `queries`, `query` has their rows only, (Q, H). `path` is the path of
    the attention module, for wrappers that record or label calls; in the other ops the weights have the paths.
    """

    query: FloatArray
    key: FloatArray
    value: FloatArray
    cu_seqlens: IntArray
    num_heads: int
    bias: RelativeBias | None = None
    rotation: Rotation | None = None
    window: Window | None = None
    queries: Queries | None = None
    path: str = ""

    @property
    def num_key_heads(self) -> int:
        """The number of heads of keys and values, which divides `num_heads`."""
        return self.num_heads * self.key.shape[1] // self.query.shape[1]


class Prepare(Protocol):
    """The op that turns a weight of the checkpoint into the layout that `linear` needs.

    The layout may be a packed weight, a transposed one, or the weight as it is. The loader calls `prepare` once per
    weight, and the original may be dropped afterwards.
    """

    def __call__(self, linear: Linear) -> PreparedLinear: ...


class Embed(Protocol):
    """The sum of up to three look-ups, of shape (T, H): words, then token types and positions if the model adds them.

    The table of `words` is that of word embeddings (V, H), or some of its rows, or the inputs_embeds of the batch
    (T, H); the ids are the places of the words in it. `scale`, (T,) in float64, multiplies each row of the sum. A
    forward calls `embed` once; the path of its module is "embeddings". The look-ups have no keywords, so a wrapper may
    take them as one tuple.
    """

    def __call__(self, words: LookUp, /, *added: LookUp, scale: FloatArray | None = None) -> FloatArray: ...


class ApplyLinear(Protocol):
    """x (T, K) times a prepared weight, with an epilogue: y = activation(x weight^T + bias) + residual, (T, N).

    `activation` is a value of `reference.ACTIVATIONS`, `residual` an array of shape (T, N). None leaves the step out.
    With a gated weight, of 2 F rows, x weight^T + bias is [gate, up], and y = activation(gate) * up, (T, F); such a
    call has an activation and no residual.
    """

    def __call__(
        self,
        x: FloatArray,
        linear: PreparedLinear,
        *,
        activation: str | None = None,
        residual: FloatArray | None = None,
    ) -> FloatArray: ...


class Attention(Protocol):
    """softmax(query key^T / sqrt(D) + bias) value for each sequence and attention head; BERT has no bias.

    With a rotation, query and key are rotated first. With a window, a query sees only some keys of its sequence.
    """

    def __call__(
        self, inputs: AttentionInput, *, return_scores: bool = False, return_probs: bool = False
    ) -> AttentionOutput: ...


class ApplyLayerNorm(Protocol):
    """(x - mean) / sqrt(variance + eps) * weight + bias over each row of x, (T, H); in an RMSNorm the mean is 0."""

    def __call__(self, x: FloatArray, norm: LayerNorm) -> FloatArray: ...


def _nothing() -> None:
    """Do nothing, because NumPy keeps neither threads nor memory."""


class Ops(NamedTuple):
    """A set of ops: five functions that belong together. The protocol of each one says what it computes.

    `takes` says whether they can compute with a linear map that other ops prepared; None: they can with each, because
    they read its `weight`. `processor` returns the name of what they compute with, for people: by default the kind of
    this machine's processor. Two machines for which ops return the same more exact name compute the same bits.
    `num_threads` says how many threads compute at most; those of NumPy's BLAS are not counted. `dtype` is that of all
    results. `all_tokens` asks for all tokens in the last layer too: a wrapper may read values that the model does not.
    `release` ends the threads and frees the memory that the ops keep between two calls; they may be called afterwards,
    and while it runs. `rest` lets helper threads, which wait a while for the next op, leave their cores to others at
    once. `recorder` takes the ops of the caller, and returns a function that computes the hidden states of a short text
    with less Python: ``states(forward, words, key, wanted, owner)``, see kernels/recordings.py. It returns None if one
    of the ops is another.
    `max_similarity`, which only compiled ops have, is not a part of a forward: it computes what
    `minibert.vectors.multi_vectors.max_similarity` says.
    """

    prepare: Prepare
    embed: Embed
    linear: ApplyLinear
    attention: Attention
    layer_norm: ApplyLayerNorm
    processor: Callable[[], str] = platform.machine
    num_threads: int = 1
    takes: Callable[[PreparedLinear], bool] | None = None
    dtype: npt.DTypeLike = np.float32
    all_tokens: bool = False
    release: Callable[[], None] = _nothing
    rest: Callable[[], None] = _nothing
    recorder: Callable[[Any], Callable[..., dict[int, FloatArray]] | None] | None = None
    max_similarity: Callable[[FloatArray, IntArray, PreparedLinear, IntArray], FloatArray] | None = None


class WrappedOps:
    """A set of ops around another one: a method with the name of an op replaces it, the other ops stay as they are."""

    def __init__(self, inner: Ops) -> None:
        self.inner = inner

    @property
    def ops(self) -> Ops:
        """The wrapped ops."""
        replaced = {name: getattr(self, name) for name in Ops._fields if hasattr(self, name)}
        return self.inner._replace(**{"all_tokens": True, **replaced})


class KeptProbs(WrappedOps):
    """Ops that keep the attention probs of some modules.

    Parameters
    ----------
    inner : Ops
    probs : mapping
        The path of each module -> the list to which the probs of each sequence are added, (A, S, S).
    """

    def __init__(self, inner: Ops, probs: Mapping[str, list[FloatArray]]) -> None:
        super().__init__(inner)
        self.probs = probs

    def attention(self, inputs: AttentionInput, **returned: bool) -> AttentionOutput:
        """Compute attention, and keep the probs if the module is one of them."""
        if inputs.path not in self.probs:
            return self.inner.attention(inputs, **returned)
        output = self.inner.attention(inputs, **{**returned, "return_probs": True})
        self.probs[inputs.path].extend(output.probs or ())
        return output
