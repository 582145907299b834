"""The cases of all ops: each op with the shapes that it must compute correctly.

The sizes are awkward on purpose: 1, primes, one below and one above the 8, 16 and 32 of vector units and micro-tiles,
rectangles, and the real sizes of BERT (384, 768, 1536, 3072). The tests run all of them.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.ops import AttentionInput, LayerNorm, Linear, LookUp, Ops, Queries, RelativeBias, Rotation, Window
from minibert.bert.reference import ACTIVATIONS

__all__ = ["OP_CASES", "Arguments", "OpCase", "compute", "pack_lengths"]

Arguments: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class OpCase:
    """One call of one op.

    Parameters
    ----------
    op : str                          a field of `Ops`
    label : str                       the op, its shapes and its options: the test's id, and the seed
    make : (Generator) -> arguments   of `compute`; the linear maps are not prepared yet
    """

    op: str
    label: str
    make: Callable[[np.random.Generator], Arguments]

    def arguments(self) -> Arguments:
        """Make new arrays, with the same numbers at every call."""
        return self.make(_generator(self.label))

    def prepare(self, ops: Ops, arguments: Arguments) -> Arguments:
        """Return the arguments with their linear maps prepared by `ops`."""
        return {name: ops.prepare(v) if isinstance(v, Linear) else v for name, v in arguments.items()}

    def run(self, ops: Ops, arguments: Arguments) -> Any:
        """Run the op of this set on these arguments."""
        return compute(ops, self.op, **self.prepare(ops, arguments))

    def __str__(self) -> str:
        return self.label


def compute(ops: Ops, op: str, **arguments: Any) -> Any:
    """Run an op on flat arguments: a table and its ids for each look-up, and each field of `AttentionInput`."""
    if op == "embed":
        values = iter(arguments.values())
        return ops.embed(*map(LookUp, values, values))
    if op == "attention":
        fields = {name: arguments.pop(name) for name in AttentionInput._fields if name in arguments}
        return ops.attention(AttentionInput(**fields), **arguments)
    return getattr(ops, op)(**arguments)


def pack_lengths(lengths: tuple[int, ...]) -> IntArray:
    """Return the cu_seqlens of sequences of these lengths."""
    return np.cumsum([0, *lengths]).astype(np.int32)


def _generator(label: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(label.encode()))


def _normal(generator: np.random.Generator, *shape: int, scale: float = 1.0) -> FloatArray:
    return (scale * generator.standard_normal(shape)).astype(np.float32)


# --- embed -----------------------------------------------------------------------------------------------------------


def _embed_case(T: int, H: int, V: int = 101, P: int = 67, types: int = 2, *, own_vectors: bool = False) -> OpCase:
    def make(generator: np.random.Generator) -> Arguments:
        return {
            "words": _normal(generator, T if own_vectors else V, H),
            "token_ids": np.arange(T, dtype=np.int32) if own_vectors else _ids(generator, V, T),
            "token_type_table": _normal(generator, types, H),
            "token_types": _ids(generator, types, T),
            "position_table": _normal(generator, P, H),
            "positions": _ids(generator, P, T),
        }

    label = f"embed T={T} H={H} V={V} P={P} types={types}{' inputs_embeds' if own_vectors else ''}"
    return OpCase("embed", label, make)


def _ids(generator: np.random.Generator, limit: int, count: int) -> IntArray:
    return generator.integers(0, limit, size=count, dtype=np.int32)


def _embed_cases() -> Iterator[OpCase]:
    yield _embed_case(0, 8)
    yield _embed_case(1, 1, V=1, P=1, types=1)
    yield _embed_case(2, 7, types=3)
    yield _embed_case(37, 9)
    yield _embed_case(128, 384, V=997, P=512)
    yield _embed_case(22, 84, own_vectors=True)
    yield _embed_case(512, 768, V=997, P=512)


# --- linear ----------------------------------------------------------------------------------------------------------

# T, K, N of x (T, K) and weight (N, K).
# There are 4, 5, 8 and 17 groups of 128 (AMX computes multiples of other numbers), and several blocks of tiles.
_LINEAR_SHAPES = """0 8 8, 1 1 1, 1 7 5, 2 1 13, 5 13 1, 7 8 9, 8 9 7, 9 7 8, 15 31 33, 16 32 16, 17 33 31, 22 384 1152,
    31 15 17, 33 17 15, 37 101 205, 127 64 65, 128 384 384, 129 65 127, 33 512 65, 17 600 33, 22 1024 95, 5 2049 40,
    300 65 127, 301 300 97"""
_LARGE_LINEAR_SHAPES = "1 768 768, 22 768 3072, 128 384 1536, 128 1536 384, 37 768 2304, 128 3072 768"
# The epilogues that the forward uses, and the others that the contract allows.
_EPILOGUES: tuple[tuple[str | None, bool], ...] = ((None, False), ("gelu", False), (None, True), ("gelu", True))


def _linear_case(T: int, K: int, N: int, activation: str | None, residual: bool, gated: bool = False) -> OpCase:
    def make(generator: np.random.Generator) -> Arguments:
        # The weights are scaled so that the results have sizes of 1 to 3, where activations are not linear.
        weight, bias = _normal(generator, N, K, scale=1.5 / K**0.5), _normal(generator, N)
        linear = Linear(("some.dense",), weight, bias, gated)
        arguments: Arguments = {"x": _normal(generator, T, K), "linear": linear}
        if activation is not None:
            arguments["activation"] = activation
        if residual:
            arguments["residual"] = _normal(generator, T, N)
        return arguments

    options = f"{f' {activation}' if activation else ''}{' residual' if residual else ''}{' gated' if gated else ''}"
    return OpCase("linear", f"linear T={T} K={K} N={N}{options}", make)


def _linear_cases() -> Iterator[OpCase]:
    for shapes, epilogues in ((_LINEAR_SHAPES, _EPILOGUES), (_LARGE_LINEAR_SHAPES, _EPILOGUES[:3])):
        for shape in shapes.split(","):
            for activation, residual in epilogues:
                T, K, N = map(int, shape.split())
                yield _linear_case(T, K, N, activation, residual)
    for activation in dict.fromkeys(ACTIVATIONS.values()):
        if activation != "gelu":
            yield _linear_case(17, 33, 31, activation, False)
            yield _linear_case(9, 7, 8, activation, True)
    for shape in ("0 8 8", "1 1 2", "7 5 6", "22 384 126", "22 128 128", "37 101 410", "128 768 194", "300 65 254"):
        for activation in ("silu", "gelu", None):
            yield _linear_case(*map(int, shape.split()), activation, False, gated=True)
    yield _linear_case(33, 512, 100, "relu", False, gated=True)


# --- attention -------------------------------------------------------------------------------------------------------

# Lengths of the sequences, A attention heads, D of one head.
_ATTENTION_SHAPES: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((), 2, 4),
    ((0,), 1, 1),
    ((0, 0, 0), 3, 8),
    ((1,), 1, 1),
    ((1, 1, 1), 2, 7),
    ((2,), 1, 9),
    ((22,), 12, 32),
    ((7, 8, 9), 7, 12),
    ((15, 0, 16, 1, 17), 3, 5),
    ((31, 32, 33), 2, 16),
    ((37,), 5, 13),
    ((128,), 12, 64),
    ((0, 1, 512, 0), 3, 32),
    ((127, 129), 4, 31),
    ((26, 1), 2, 129),  # AMX multiplies the first one, in three steps of features
    ((65,), 2, 50),
)


def _attention_case(
    lengths: tuple[int, ...],
    A: int,
    D: int,
    *,
    sharp: float = 1.0,
    apart: bool = False,
    columns: int = 0,
    queries: float = 0.0,
    rotated: int = 0,
    window: int = -1,
    bias: bool = True,
) -> OpCase:
    """Return a case of attention.

    With `columns`, each token is in one of so many columns, and there is a relative bias, if it is not excluded. With
    `queries`, only this part of the tokens are queries. So many numbers of each head are `rotated`. A `window` of -1
    is none; there are no scores with a window, because some would be infinite.
    """

    def make(generator: np.random.Generator) -> Arguments:
        cu_seqlens = pack_lengths(lengths)
        T, H = int(cu_seqlens[-1]), A * D
        if apart:  # column blocks of one array, as in the forward
            query, key, value = np.split(_normal(generator, T, 3 * H, scale=sharp), 3, axis=1)
        else:
            query, key, value = (_normal(generator, T, H, scale=s) for s in (sharp, sharp, 1.0))
        asked = np.flatnonzero(generator.random(T) < queries)
        return {
            **{"query": query[asked] if queries else query, "key": key, "value": value},
            **{"cu_seqlens": cu_seqlens, "num_heads": A},
            "queries": Queries(asked, np.searchsorted(asked, cu_seqlens)) if queries else None,
            **{"return_scores": window < 0, "return_probs": True},
            "bias": RelativeBias(_normal(generator, A, 2 * columns - 1), places) if columns and bias else None,
            "rotation": Rotation(_angles(generator, rotated), places) if rotated else None,
            "window": Window(window, places) if window >= 0 else None,
        }

    count = columns or max(lengths, default=0)
    places = np.concatenate([np.sort(np.random.default_rng(0).permutation(count)[:n]) for n in lengths] or [[]])
    places = places.astype(np.int32)
    joined = "+".join(map(str, lengths)) or "none"
    options = f"{f' sharp={sharp:g}' if sharp != 1 else ''}{' column-blocks' if apart else ''}"
    options += f" bias of {columns} columns" if columns else ""
    options += f" {queries:.0%} queries" if queries else ""
    options += f"{f' {rotated} rotated' if rotated else ''}{f' window {window}' if window >= 0 else ''}"
    options += "" if bias else " without bias"
    return OpCase("attention", f"attention S={joined} A={A} D={D}{options}", make)


def _angles(generator: np.random.Generator, size: int) -> FloatArray:
    """Return cosines and sines of 600 positions."""
    angles = generator.random((600, size // 2)) * 7
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def _attention_cases() -> Iterator[OpCase]:
    for shape in _ATTENTION_SHAPES:
        yield _attention_case(*shape)
    yield _attention_case((15, 0, 16, 1, 17), 3, 5, apart=True)
    yield _attention_case((15, 0, 16, 1, 17), 3, 5, columns=17)  # some have a masked token between two others
    yield _attention_case((70, 65), 2, 32, columns=70)
    yield _attention_case((120, 110), 2, 32, columns=120)
    for options in ({"queries": 0.02}, {"queries": 0.5, "apart": True}, {"queries": 0.5, "columns": 17}):
        yield _attention_case((15, 0, 16, 1, 17), 3, 5, **options)
    yield _attention_case((128, 30), 2, 64, queries=0.1, columns=130)
    for D, rotated in ((2, 2), (8, 8), (24, 24), (24, 10), (32, 32), (64, 64), (80, 80), (80, 48), (129, 128)):
        yield _attention_case((15, 0, 16, 5, 33), 3, D, rotated=rotated, apart=True, queries=0.4 * (D == 24))
    for size in (0, 1, 15, 16, 64, 128):
        yield _attention_case((1, 0, 290, 37), 2, 64, window=size, rotated=64 * (size == 64), apart=size > 1)
        yield _attention_case((150, 70), 3, 24, window=size, columns=170, bias=size == 1)
    for queries in (0.01, 0.3):
        yield _attention_case((300, 20, 129), 2, 32, window=20, columns=310, bias=False, queries=queries, rotated=32)
    yield _attention_case((22, 37), 12, 32, apart=True)
    yield _attention_case((22, 37), 2, 8, sharp=10.0)  # scores up to a few hundred: probs of 1 and of 0
    yield _attention_case((9, 2), 2, 8, sharp=30.0)  # scores in the thousands: exp overflows if they are not shifted


# --- layer_norm ------------------------------------------------------------------------------------------------------


def _layer_norm_case(T: int, H: int, *, eps: float = 1e-12, offset: float = 0.0, scale: float = 1.0) -> OpCase:
    def make(generator: np.random.Generator) -> Arguments:
        weight, bias = 1 + _normal(generator, H, scale=0.2), _normal(generator, H)
        x = np.float32(offset) + _normal(generator, T, H, scale=scale)
        return {"x": x, "norm": LayerNorm("some.LayerNorm", weight.astype(np.float32), bias, eps)}

    options = f"{f' offset={offset:g}' if offset else ''}{f' scale={scale:g}' if scale != 1 else ''}"
    label = f"layer_norm T={T} H={H} eps={eps:g}{options}"
    return OpCase("layer_norm", label, make)


def _layer_norm_cases() -> Iterator[OpCase]:
    yield _layer_norm_case(0, 8)
    for H in (1, 2, 5, 7, 8, 9, 15, 16, 17, 31, 33, 205):
        yield _layer_norm_case(3, H, eps=1e-5 if H == 1 else 1e-12)
    for T in (1, 2, 22, 37, 128):
        yield _layer_norm_case(T, 84)
    for H in (384, 768, 1536, 3072):
        yield _layer_norm_case(128, H)
    yield _layer_norm_case(37, 384, offset=100.0)
    yield _layer_norm_case(37, 384, scale=1e-6)
    yield _layer_norm_case(37, 384, scale=1e6)
    yield _layer_norm_case(37, 84, eps=1e-2, scale=0.1)


OP_CASES: tuple[OpCase, ...] = (*_embed_cases(), *_linear_cases(), *_attention_cases(), *_layer_norm_cases())
"""Every op with every shape and option."""


def activation_grid() -> FloatArray:
    """Return the values at which activations are tested: close to 0, around it, and far from it."""
    positive = np.concatenate([np.linspace(0, 20, 50_001), np.geomspace(1e-30, 1e4, 10_001)])
    return np.concatenate([positive, -positive]).astype(np.float32)
