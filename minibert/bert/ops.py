"""The contract between the forward and whoever computes: five ops, their shapes, dtypes and aliasing.

`reference.OPS` fulfils it in NumPy (the specification, what people read), `kernels.make_ops()` in Numba (what people
run), benchmarks/float64.py in float64. `encoder.forward` takes one as an argument; nothing is switched globally.

Rules for every set of ops
--------------------------
- Arrays are C-contiguous float32 unless the docstring says otherwise; results are new arrays that belong to the caller.
- Inputs are never modified, and never kept beyond the call.
- Ids, lengths and shapes were checked by packed.py and weights.py: ops trust them and check nothing.
- An op must be callable from several threads at once.

A set of ops can be wrapped: `ops._replace(linear=...)` sees, names (every weight carries its module path) and may
replace everything that passes. It must return arrays of the same shapes and dtypes, because the next kernel would read
memory outside its arrays, and Python could crash. Each epilogue of `linear` equals the separate formulas in
reference.py.

The letters of the shapes are explained in encoder.py; N and K are the rows and columns of one weight.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

from minibert.base.arrays import FloatArray, IntArray

__all__ = ["AttentionOutput", "LayerNorm", "Linear", "Ops", "PreparedLinear"]


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """One affine map of the checkpoint, y = x weight^T + bias; or several with the same input, stacked.

    Parameters
    ----------
    paths : tuple of str
        The module path of each map stacked here, for example ``("encoder.layer.0.intermediate.dense",)``. Each map
        has the same number of rows of `weight`, in this order: [Q; K; V] has H rows of each.
    weight : ndarray of shape (N, K), float32, read-only
        As the checkpoint has it: one row per output.
    bias : ndarray of shape (N,), float32, read-only
    """

    paths: tuple[str, ...]
    weight: FloatArray
    bias: FloatArray

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        N, K = self.weight.shape
        return N, K


@dataclasses.dataclass(frozen=True, eq=False)
class LayerNorm:
    """One LayerNorm of the checkpoint: its module path, weight and bias of shape (H,), and the eps of the config."""

    path: str
    weight: FloatArray
    bias: FloatArray
    eps: float


class PreparedLinear(Protocol):
    """The result of `Ops.prepare`: any layout, but it must keep `paths` and be able to return the original weight."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The module paths of the `Linear` it was made from."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K), without computing the weight."""

    @property
    def weight(self) -> FloatArray:
        """The weight as the checkpoint has it, (N, K); may be computed anew at each look."""

    @property
    def bias(self) -> FloatArray:
        """The bias, (N,)."""


class AttentionOutput(NamedTuple):
    """Context (T, H); scores and probs, one (A, S, S) array per sequence, are None unless asked for."""

    context: FloatArray
    scores: list[FloatArray] | None
    probs: list[FloatArray] | None


class Prepare(Protocol):
    """See `Ops.prepare`."""

    def __call__(self, linear: Linear) -> PreparedLinear: ...


class Embed(Protocol):
    """See `Ops.embed`."""

    def __call__(
        self,
        words: FloatArray,
        token_ids: IntArray,
        token_type_table: FloatArray,
        token_types: IntArray,
        position_table: FloatArray,
        positions: IntArray,
    ) -> FloatArray: ...


class ApplyLinear(Protocol):
    """See `Ops.linear`."""

    def __call__(
        self,
        x: FloatArray,
        linear: PreparedLinear,
        *,
        activation: str | None = None,
        residual: FloatArray | None = None,
    ) -> FloatArray: ...


class Attention(Protocol):
    """See `Ops.attention`."""

    def __call__(
        self,
        query: FloatArray,
        key: FloatArray,
        value: FloatArray,
        cu_seqlens: IntArray,
        num_heads: int,
        *,
        path: str = "",
        return_scores: bool = False,
        return_probs: bool = False,
    ) -> AttentionOutput: ...


class ApplyLayerNorm(Protocol):
    """See `Ops.layer_norm`."""

    def __call__(self, x: FloatArray, norm: LayerNorm) -> FloatArray: ...


class Ops(NamedTuple):
    """A set of ops: five functions that belong together.

    Attributes
    ----------
    prepare : (linear: Linear) -> PreparedLinear
        Turn a weight of the checkpoint into the layout `linear` wants (packed weights, transposed, as it is); called
        once per weight while loading, after which the original may be dropped.
    embed : (words, token_ids, token_type_table, token_types, position_table, positions) -> (T, H)
        ``words[token_ids] + token_type_table[token_types] + position_table[positions]``. `words` is the table of word
        embeddings (V, H), or a batch's own inputs_embeds (T, H).
    linear : (x, linear, *, activation=None, residual=None) -> (T, N)
        x (T, K) times a prepared weight, with the epilogue on the way out: + bias, then activation (a name of
        `config.ACTIVATIONS`), then + residual (T, N).
    attention : (query, key, value, cu_seqlens, num_heads, ...) -> AttentionOutput
        softmax(query key^T / sqrt(D)) value for each sequence and head. query, key and value are (T, H); they may be
        column blocks of one array, so rows may lie further apart than H. Empty sequences are allowed. `path` names the
        module, as the weights' own paths do in the other ops; `embed` is called once, for "embeddings".
    layer_norm : (x, norm) -> (T, H)
        (x - mean) / sqrt(variance + eps) * weight + bias over each row.
    """

    prepare: Prepare
    embed: Embed
    linear: ApplyLinear
    attention: Attention
    layer_norm: ApplyLayerNorm
