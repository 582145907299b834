"""Matrix products of integers: what the compute types int16, int8_int16 and int8 compute, in NumPy.

What        Linear maps: y = activation(sum over groups of sx sw (qx . qw) + bias) + residual. A row of x and a row of
            the weight are cut into groups of features. Each group is integers (q) times one float32 scale (s)
int16       Groups of 128 features. The weight has 14 bits. x has 16 bits, but the sizes of a group's numbers have a sum
            of at most 8 times the largest 16-bit number. So the usual group has 14 bits, and only a few large numbers
            need more
int8        Groups of 128 features. Both have 8 bits
int8_int16  The second map of the feed-forward network (`output.dense`) in int8, the others in int16. Measured with one
            map of MiniLM in int8 and the others in int16: `output.dense` adds the least error for the time it saves
Attention   Queries and keys have 16 bits, in int8 8 bits, which add 1.4e-6 to the error of MiniLM's sentence vectors.
            Probs and values have 16 bits in all three types, because 8 bits of the probs would add 2.5e-4. A query and
            a key of a head have one scale each, and so has a feature of the values. The largest probs of a row are
            rounded to 15 bits, and the sum of a row is limited
Turned      Before the linear maps, x and the weight are multiplied by a Hadamard matrix. The product stays the same,
            because the matrix is orthogonal. A feature that is much larger than the others would need a large scale for
            its group; afterwards it is spread over all 128 features of a block in int8, and over 8 of them in int16,
            which has bits enough
Negated     Features whose mean is not zero, as after GELU, add up in one sum of the Hadamard matrix, which is then
            large. So in int8, a quarter of the features is negated before: there are four such sums, each half as
            large. The error of MiniLM's sentence vectors was 4.1e-4 without it, and 3.8e-4, 3.8e-4 and 4.0e-4 with
            three different quarters
Exact       The sum of a group's products is an integer below 2^31, whatever the numbers are (`Format` checks it).
            So its order does not matter. The groups are added in order, by fma. So the result has the same bits for any
            batch, any number of threads, and on any processor. The kernels have the bits of this file in attention, and
            in linear maps without an activation or with relu. They compute gelu, gelu_tanh, silu, tanh and sigmoid in
            float32 by other formulas than NumPy, so there the last bits of y differ: by at most 2e-6 (1 + |y|)
Extremes    A group of x that holds NaN or infinity makes all results of its row NaN, and so may numbers above 2^119,
            because their sums overflow. A group whose size is below 2^-100 counts as zeros. Loading refuses weights
            that are not finite. In attention, NaN or infinity in a query makes its row of the head NaN; in a key, all
            rows; in a value, its feature
Which       The linear maps and the attention of the encoder. The embeddings, LayerNorm, softmax, the pooler and the
            heads stay in float32
Source      The groups and bits were chosen by measurements (benchmarks/low_precision.py). The Hadamard matrix is
            Sylvester's; Ashkboos et al. 2024, QuaRot (arXiv 2404.00456) use it for large language models
"""

from __future__ import annotations

import dataclasses
import functools
import math
from itertools import pairwise

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert import reference
from minibert.bert.ops import AttentionInput, AttentionOutput, Linear, Ops, PreparedLinear, rows_of
from minibert.bert.weights import Weights

BLOCK = 128
"""Features that are quantised together; a row is filled up with zeros to whole blocks."""

SMALLEST = 2.0**-100
"""A group of a smaller size counts as zeros."""

PROB_MOST, PROB_TOTAL, VALUE_MOST = 32767, 180_000, 8191
"""In attention: the largest integer of a prob, the largest sum of a row of probs before they are rounded, and the
largest integer of a value. With up to LONGEST tokens, each sum of products fits into 32 bits."""

LONGEST = 1 << 17
"""The largest number of tokens of a sequence."""

KEYS_OF_A_SUM = 1024
"""In attention: over more keys, a sum of floats begins again, and these sums are added. Smaller parts help no more."""

BITS_PER_E = np.float32(1.4426950408889634)
"""1 / ln 2: e^x = 2^(x / ln 2)."""

EXPONENTS = 1.5 * 2.0**23 + 127
"""For small x, x + EXPONENTS is rounded to a whole number; its last bits are the exponent of 2^x as float32 has it."""

EXP2_SHORT = (0.99999926, 0.69312181, 0.24024745, 0.05591786, 0.0095701)
"""The coefficients of 2^r for |r| <= 1/2, lowest power first (benchmarks/polynomials.py)."""

_PART = 16  # features that are negated together: one vector of the kernels
_LANES = 16  # partial sums of a row of exponentials
_ROWS = 16  # that are quantised at once, so that a whole weight in float64 is never in memory


@dataclasses.dataclass(frozen=True)
class Format:
    """The number format of a compute type. The sum of the products of a group fits into 32 bits.

    Parameters
    ----------
    name : str
    group : int                     features with one scale, a power of two
    weight_most, x_most : int       the largest integer of the weight and of x
    total : int                     x_most times this is the largest sum of the sizes of a group's integers of x
                                    before they are rounded; `group`, if their sum is not limited
    distances : tuple of int        of the features of which the Hadamard matrix makes sums and differences, by rounds
    negated : tuple of int          for each k of these, the features 16 k, ..., 16 k + 15 of a block are negated before
                                    the Hadamard matrix; 0 to 7
    """

    name: str
    group: int
    weight_most: int
    x_most: int
    total: int
    distances: tuple[int, ...]
    negated: tuple[int, ...] = ()

    def groups(self, K: int) -> int:
        """Return the number of groups in a row of K features."""
        return -(-K // BLOCK) * (BLOCK // self.group)

    @property
    def signs(self) -> FloatArray:
        """The sign by which each feature of a block is multiplied: float32, (BLOCK,)."""
        return np.repeat([np.float32(-1 if k in self.negated else 1) for k in range(BLOCK // _PART)], _PART)


FORMATS = {
    "int16": Format("int16", 128, 8180, 32767, 8, (16, 32, 64)),
    "int8": Format("int8", 128, 127, 127, 128, (16, 32, 64, 1, 2, 4, 8), (3, 7)),
}
"""The formats by name."""

FORMATS_OF = {"float32": (), "int16": ("int16",), "int8_int16": ("int16", "int8"), "int8": ("int8",)}
"""Compute type -> the formats of its linear maps, by name. If there are two, the second one is for the output of the
feed-forward."""

COMPUTE_TYPES = tuple(FORMATS_OF)


def format_of(linear: PreparedLinear, compute_type: str) -> Format | None:
    """Return the format of a linear map; None if it is computed in float32."""
    names, path = FORMATS_OF[compute_type], linear.paths[0]
    if not names or not path.startswith("encoder."):
        return None
    is_feed_forward_output = path.endswith(".output.dense") and not path.endswith(".attention.output.dense")
    return FORMATS[names[-1 if is_feed_forward_output else 0]]


def compute_type_of(weights: Weights) -> str:
    """Return the compute type with which the weights of a model were prepared."""
    prepared = [linear for layer in weights.layers[:1] for linear in layer.linears]
    formats = [getattr(linear, "format", None) for linear in prepared]
    used = {form.name for form in formats if isinstance(form, Format)}
    return next(name for name, names in FORMATS_OF.items() if set(names) == used)


def quantise(
    values: FloatArray, form: Format, most: int, total: int, factor: float = 1.0
) -> tuple[IntArray, FloatArray]:
    """Represent each group of a row by integers and a scale: factor * values = whole * scale, rounded.

    The size of a group is its largest number, without signs, or the sum of its numbers divided by `total`, if that is
    larger. The size becomes the integer `most`.

    Parameters
    ----------
    values : ndarray of shape (rows, K), float32
    form : Format
    most : int       the largest size of an integer
    total : int      times `most`: the largest sum of the sizes of a group's numbers
    factor : float   a power of two

    Returns
    -------
    whole : ndarray of shape (rows, groups, form.group), int8 or int16
    scales : ndarray of shape (rows, groups), float32; NaN for a group that is not finite
    """
    rows, K = values.shape
    whole = np.empty((rows, form.groups(K), form.group), np.int8 if most < 128 else np.int16)
    scales = np.empty(whole.shape[:2], np.float32)
    for first in range(0, rows, _ROWS):
        part = slice(first, first + _ROWS)
        whole[part], scales[part] = _quantise(values[part] * np.float32(factor), form, most, total)
    return whole, scales


def _quantise(values: FloatArray, form: Format, most: int, total: int) -> tuple[FloatArray, FloatArray]:
    rows, K = values.shape
    filled_up = np.zeros((rows, form.groups(K) * form.group), np.float32)
    filled_up[:, :K] = values
    with np.errstate(all="ignore"):
        groups = turn(filled_up.reshape(-1, BLOCK) * form.signs, form.distances).reshape(rows, -1, form.group)
        sizes = np.abs(groups)
        size = sizes.max(axis=2)
        if total < form.group:
            sums = sizes * np.float32(1.0 / total)
            while sums.shape[2] > 1:  # this order is part of the definition, because float32 rounds each sum
                sums = np.add(*np.split(sums, 2, axis=2))
            size = np.maximum(size, sums[:, :, 0])
        whole, scales = _whole_numbers(groups, size[:, :, None], most)
    return whole, scales[:, :, 0]


def _whole_numbers(values: FloatArray, size: FloatArray, most: int) -> tuple[FloatArray, FloatArray]:
    """Return the integers of values of a size, which becomes the integer `most`, and the scale of each size."""
    is_finite, nothing = np.isfinite(size), size < np.float32(SMALLEST)
    factors = np.where(is_finite & ~nothing, np.float32(most) / size, np.float32(0.0))
    scales = np.where(nothing, np.float32(0.0), size * np.float32(1.0 / most))
    whole = np.rint(values.astype(np.float64) * factors)  # rounded once, because the product is exact
    return np.where(is_finite, whole, 0.0), np.where(is_finite, scales, np.float32(np.nan))


def turn(blocks: FloatArray, distances: tuple[int, ...]) -> FloatArray:
    """Multiply blocks, (..., BLOCK), by Sylvester's Hadamard matrix, in rounds of sums and differences.

    With all distances from 1 to 64 it is the matrix of BLOCK rows. With some of them, it is a smaller matrix for each
    set of features that these distances join.
    """
    turned = blocks.reshape(-1, BLOCK)
    for distance in distances:
        pairs = turned.reshape(-1, BLOCK // (2 * distance), 2, distance)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        turned = np.stack([first + second, first - second], axis=2)
    return turned.reshape(blocks.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class QuantisedLinear:
    """A `Linear` whose weight is stored as integers and scales.

    Parameters
    ----------
    paths : tuple of str
    shape : (N, K)
    whole : ndarray of shape (N, groups, format.group), int8 or int16
    scales : ndarray of shape (N, groups), float32
    bias : ndarray of shape (N,), float32
    format : Format
    gated : bool
    """

    paths: tuple[str, ...]
    shape: tuple[int, int]
    whole: IntArray
    scales: FloatArray
    bias: FloatArray
    format: Format
    gated: bool = False

    @property
    def weight(self) -> FloatArray:
        """The rounded weight, (N, K), that the integers and scales represent: a copy, read-only."""
        turned = (self.whole * self.scales[:, :, None]).reshape(len(self.whole), -1, BLOCK)
        blocks = turn(turned, self.format.distances) * self.format.signs
        weight = np.ascontiguousarray(blocks.reshape(len(blocks), -1)[:, : self.shape[1]])
        weight.flags.writeable = False
        return weight

    def part(self, first: int, last: int) -> QuantisedLinear:
        """Return the maps first, ..., last - 1 of those stacked, in the same memory."""
        rows = rows_of(self, first, last)
        arrays = {name: getattr(self, name)[rows] for name in ("whole", "scales", "bias")}
        shape = (rows.stop - rows.start, self.shape[1])
        return dataclasses.replace(self, paths=self.paths[first:last], shape=shape, gated=False, **arrays)


def quantise_linear(linear: Linear, form: Format) -> QuantisedLinear:
    """Quantise a weight after dividing it by n, the number of rows of the Hadamard matrix H, because H H = n I."""
    factor = 0.5 ** len(form.distances)
    whole, scales = quantise(linear.weight, form, form.weight_most, form.group, factor)
    bias = np.asarray(linear.bias, np.float32)
    return QuantisedLinear(linear.paths, linear.shape, whole, scales, bias, form, linear.gated)


def make_ops(compute_type: str) -> Ops:
    """Return the reference set of ops for a compute type."""
    if compute_type == "float32":
        return reference.OPS

    def prepare(linear: Linear) -> PreparedLinear:
        form = format_of(linear, compute_type)
        return reference.prepare(linear) if form is None else quantise_linear(linear, form)

    most = FORMATS[FORMATS_OF[compute_type][0]].x_most  # of queries and keys
    takes = functools.partial(is_prepared, compute_type, object, QuantisedLinear)
    return reference.OPS._replace(
        prepare=prepare, takes=takes, linear=apply_linear, attention=functools.partial(attention, most)
    )


def is_prepared(compute_type: str, floats: type, words: type, linear: PreparedLinear) -> bool:
    """Return whether a linear map has the format of a compute type, and the class of its floats or of its words."""
    form = format_of(linear, compute_type)
    return isinstance(linear, floats if form is None else words) and getattr(linear, "format", None) == form


def apply_linear(
    x: FloatArray, linear: PreparedLinear, *, activation: str | None = None, residual: FloatArray | None = None
) -> FloatArray:
    """Compute what `reference.apply_linear` computes, with the integers of a `QuantisedLinear`."""
    if not isinstance(linear, QuantisedLinear):
        return reference.apply_linear(x, linear, activation=activation, residual=residual)
    whole, scales = quantise(np.asarray(x, np.float32), linear.format, linear.format.x_most, linear.format.total)
    y: FloatArray = np.zeros((len(x), linear.shape[0]), np.float32)
    with np.errstate(all="ignore"):
        for g in range(whole.shape[1]):
            # Exact, because every sum is below 2^53; float64 because NumPy multiplies matrices of integers slowly.
            sums = whole[:, g].astype(np.float64) @ linear.whole[:, g].astype(np.float64).T
            y = fma(sums.astype(np.float32), scales[:, g, None] * linear.scales[:, g], y)
        y = y + linear.bias
        if linear.gated and activation is not None:
            gate, up = np.split(y, 2, axis=1)
            return reference.ACTIVATION_FUNCTIONS[activation](gate) * up
        if activation is not None:
            y = reference.ACTIVATION_FUNCTIONS[activation](y)
        return y if residual is None else y + residual


def attention(
    query_most: int, inputs: AttentionInput, *, return_scores: bool = False, return_probs: bool = False
) -> AttentionOutput:
    """Compute what `reference.attention` computes; both of its products are products of integers.

    `query_most` is the largest integer of a query and of a key, if the sums allow it. The probs that are returned are
    those before they are rounded.
    """
    query, key, value, cu_seqlens, num_heads, bias, rotation, window, queries, _ = inputs
    tokens, starts = (np.arange(len(query)), cu_seqlens) if queries is None else queries
    if rotation is not None:
        query = reference.rotate(query.astype(np.float32), num_heads, rotation, tokens)
        key = reference.rotate(key.astype(np.float32), inputs.num_key_heads, rotation)
    H = query.shape[1]
    D = H // num_heads
    most, factor = most_of_products(D, query_most), np.float32(1.0) / np.sqrt(np.float32(D))
    output = AttentionOutput(
        np.empty(query.shape, np.float32), [] if return_scores else None, [] if return_probs else None
    )
    for (start, end), (first, last) in zip(pairwise(cu_seqlens), pairwise(starts), strict=True):
        parts = query[first:last], key[start:end], value[start:end]
        q, k, v = (reference.split_heads(x.astype(np.float32), num_heads, x.shape[1] // D) for x in parts)
        with np.errstate(all="ignore"):
            q, q_scales = _whole_numbers(q, np.abs(q).max(axis=2, keepdims=True), most)
            k, k_scales = _whole_numbers(k, np.abs(k).max(axis=2, keepdims=True), most)
            v, v_scales = _whole_numbers(v, np.abs(v).max(axis=1, keepdims=True, initial=0.0), VALUE_MOST)
            # The products of whole numbers are exact, because every sum is below 2^53.
            # + 0.0 gives zeros the sign that they have in the kernels.
            scores = (q @ k.swapaxes(1, 2)).astype(np.float32) * (q_scales * k_scales.swapaxes(1, 2))  # (A, S, S)
            scores = scores + np.float32(0.0)
            scale = factor
            if bias is not None:
                distances = bias.columns[start:end] - bias.columns[tokens[first:last], None]
                scores = scores * factor + bias.table.astype(np.float32)[:, distances + bias.table.shape[1] // 2]
                scale = np.float32(1.0)
            if window is not None:
                distances = window.columns[start:end] - window.columns[tokens[first:last], None]
                scores = np.where(np.abs(distances) <= window.size, scores, np.float32(-np.inf))
            powers, norms = _exponentiate(scores, scale * BITS_PER_E)  # (A, S, S), (A, S, 1)
            if window is not None:  # a key beyond the window has no prob; 2^-125 of the sum changes no bit of it
                powers = np.where(np.abs(distances) <= window.size, powers, np.float32(0.0))
            factors = np.minimum(np.float32(PROB_MOST), np.float32(PROB_TOTAL) * norms)
            probs = np.rint(powers.astype(np.float64) * factors)
            # With the sum before rounding, equal probs would all have the same rounding error.
            totals = np.where(norms > 0, np.float32(1.0) / probs.sum(axis=2, keepdims=True, dtype=np.float32), norms)
            context = (probs @ v + 0.0).astype(np.float32) * v_scales * totals  # (A, S, D)
        output.context[first:last] = context.swapaxes(0, 1).reshape(last - first, H)
        if output.scores is not None:
            output.scores.append(scores * scale)
        if output.probs is not None:
            output.probs.append(powers * norms)
    return output


def _exponentiate(scores: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return 2^(scale (scores - their maximum)) of each row, and 1 / its sum, from _LANES sums of each part."""
    A, Q, S = scores.shape
    differences = np.full((A, Q, -(-S // _LANES) * _LANES), -np.inf, np.float32)
    differences[:, :, :S] = scores - scores.max(axis=2, keepdims=True, initial=-np.inf)
    powers = exp2_short(np.maximum(differences * scale, np.float32(-125.0)))
    totals: FloatArray = np.zeros((A, Q, _LANES), np.float32)
    for start in range(0, S, KEYS_OF_A_SUM):
        sums: FloatArray = np.zeros_like(totals)
        for first in range(start, min(S, start + KEYS_OF_A_SUM), _LANES):
            sums = sums + powers[:, :, first : first + _LANES]
        totals = totals + sums
    while totals.shape[2] > 1:
        totals = np.add(*np.split(totals, 2, axis=2))
    return powers[:, :, :S], np.float32(1.0) / totals


def most_of_products(D: int, query_most: int) -> int:
    """Return the largest integer of which D squares have a sum below 2^31, at most `query_most`."""
    return min(query_most, math.isqrt((2**31 - 1) // D))


def exp2_short(x: FloatArray) -> FloatArray:
    """Compute 2^x for -125 <= x <= 0 with a relative error of 2.7e-6, for results that are rounded to 16 bits."""
    whole = (x + np.float32(EXPONENTS)) - np.float32(EXPONENTS)
    power: FloatArray = np.full_like(x, EXP2_SHORT[-1])
    for coefficient in EXP2_SHORT[-2::-1]:
        power = fma(power, x - whole, np.full_like(x, coefficient))
    return np.ldexp(power, np.nan_to_num(whole).astype(np.int32))


def fma(a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
    """Compute a b + c in float32, rounded once.

    The product is exact in float64. The sum is rounded to odd there: to the neighbour with an odd last bit, if it is
    not exact. A second rounding, to float32, then gives the same as one rounding alone. Source: Boldo and Melquiond
    2008 (IEEE Transactions on Computers 57(4)), theorem 1.
    """
    product = a.astype(np.float64) * b
    total = product + c
    part = total - product
    rest = (product - (total - part)) + (c - part)  # what the sum has lost: Knuth's TwoSum
    bits = total.view(np.int64)
    to_odd = np.isfinite(total) & (rest != 0) & (bits & 1 == 0)
    bits += np.where(to_odd, np.where((rest > 0) == (total > 0), 1, -1), 0)
    return total.astype(np.float32)
