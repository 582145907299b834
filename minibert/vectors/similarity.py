"""Similarity of vectors, and functions that normalize, truncate and quantize vectors.

The names, arguments and results are as in sentence_transformers.util, version 6.2. The answer is a tensor if
an argument is a tensor of torch, or a list of tensors; otherwise it is a NumPy array, where that library answers with a
tensor too. Scores are arrays with the methods ``numpy``, ``cpu`` and ``detach`` of a tensor, see `Scores`.
Floats are computed in their own dtype, at least float32; integers, such as quantized vectors, as float32.

Finite vectors never give NaN. A score beyond the greatest number of its dtype is infinity, with the right sign. A score
below the least one is 0. Intermediate results do not overflow or underflow: if they would, rows are first scaled by a
power of two, which is exact. For vectors that hold NaN or infinity, NumPy's arithmetic decides.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import warn_caller
from minibert._utils.torch_interop import Scores, Tensor, as_given, as_scores
from minibert._utils.validation import FloatArray, IntArray, as_array, as_vectors, check_choice, check_int, not_single

__all__ = ["PRECISIONS", "SIMILARITY_FUNCTIONS", "SimilarityFunction", "check_similarity", "check_truncate_dim"]
__all__ += ["cos_sim", "dot_score", "euclidean_sim", "manhattan_sim", "normalize_embeddings", "pairwise_cos_sim"]
__all__ += ["pairwise_dot_score", "pairwise_euclidean_sim", "pairwise_manhattan_sim", "pytorch_cos_sim"]
__all__ += ["quantize_embeddings", "truncate_embeddings"]

DenseVectors: TypeAlias = npt.NDArray[Any] | Sequence[npt.NDArray[Any]] | Sequence[Sequence[float]]
"""What functions of similarity answer with arrays; for tensors the answer is a tensor."""

# Numbers in a block of differences (rows x rows x features) that manhattan_sim and euclidean_sim hold at a time.
_BLOCK = 2**22

# Infinities are valid results here, and overflows on the way are repaired, so NumPy must not warn or raise.
_quietly = np.errstate(over="ignore", under="ignore", invalid="ignore")


class _ScoreFunction(Protocol):  # two single vectors have one number, which the pairwise functions return as it is
    # fmt: off
    @overload
    def __call__(self, a: DenseVectors, b: DenseVectors) -> Scores: ...
    @overload
    def __call__(self, a: Any, b: Any) -> Tensor: ...
    # fmt: on


def _score(function: Callable[[Any, Any], FloatArray]) -> _ScoreFunction:
    scored: Any = as_scores(_quietly(function))
    return scored


@_score
def cos_sim(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return the cosine of the angle between each row of `a` and each row of `b`; 0 for a row of zeros.

    Parameters
    ----------
    a, b : array-like or tensors of shape (m, H) and (n, H); a single vector (H,) is one row

    Returns
    -------
    Scores, an ndarray, of shape (m, n); a tensor if `a` or `b` is one

    Raises
    ------
    TypeError, ValueError
        The arguments are not vectors of one length.
    """
    x, y = _rows(a, b)
    return normalize_embeddings(x) @ normalize_embeddings(y).T


pytorch_cos_sim = cos_sim
"""The name of `cos_sim` in older programs."""


@_score
def dot_score(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return the dot product of each row of `a` with each row of `b`; arguments and errors as in `cos_sim`."""
    x, y = _rows(a, b)
    scores = x @ y.T
    lost = ~np.isfinite(scores)
    for i in np.flatnonzero(lost.any(axis=1)):
        scores[i, lost[i]] = _scaled_dots(x[i], y[lost[i]])
    return scores


@_score
def euclidean_sim(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return -|a_i - b_j|, the negative Euclidean distance; arguments and errors as in `cos_sim`."""
    return -_distances(*_rows(a, b), _lengths)


@_score
def manhattan_sim(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return -sum |a_i - b_j|, the negative Manhattan distance; arguments and errors as in `cos_sim`."""
    return -_distances(*_rows(a, b), lambda difference: np.abs(difference).sum(axis=-1))


@_score
def pairwise_cos_sim(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return the cosine of the angle between row i of `a` and row i of `b`.

    Parameters
    ----------
    a, b : array-like or tensors of shape (n, H) each, or (H,)

    Returns
    -------
    Scores, an ndarray, of shape (n,), or a single number for two single vectors; a tensor if `a` or `b` is one

    Raises
    ------
    TypeError, ValueError
        The arguments are not vectors of one length, or their numbers of rows differ.
    """
    x, y = _pairs(a, b)
    return (normalize_embeddings(x) * normalize_embeddings(y)).sum(axis=-1)


@_score
def pairwise_dot_score(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return the dot product of row i of `a` and row i of `b`; arguments and errors as in `pairwise_cos_sim`."""
    x, y = _pairs(a, b)
    scores = np.asarray((x * y).sum(axis=-1))
    lost = ~np.isfinite(scores)
    if lost.any():
        scores[lost] = _scaled_dots(x[lost], y[lost])
    return scores[()]


@_score
def pairwise_euclidean_sim(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return -|a_i - b_i|; arguments and errors as in `pairwise_cos_sim`."""
    x, y = _pairs(a, b)
    return -_lengths(x - y)


@_score
def pairwise_manhattan_sim(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return -sum |a_i - b_i|; arguments and errors as in `pairwise_cos_sim`."""
    x, y = _pairs(a, b)
    return -np.abs(x - y).sum(axis=-1)


SIMILARITY_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "cosine": (cos_sim, pairwise_cos_sim),
    "dot": (dot_score, pairwise_dot_score),
    "euclidean": (euclidean_sim, pairwise_euclidean_sim),
    "manhattan": (manhattan_sim, pairwise_manhattan_sim),
}
"""The values of ``similarity_fn_name``: a function for all pairs of rows, and one for row i with row i."""


class SimilarityFunction(str, enum.Enum):  # noqa: UP042  # a StrEnum prints otherwise than theirs
    """The names of the similarity functions, for programs that write ``SimilarityFunction.COSINE``.

    A member is a str, so that the enum of sentence-transformers, and with it its evaluators, take it.
    """

    COSINE = "cosine"
    DOT_PRODUCT = "dot"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"
    MAXSIM = "maxsim"
    MEAN_MAXSIM = "meanmaxsim"


def check_similarity(name: str, value: object, known: Iterable[str] = SIMILARITY_FUNCTIONS) -> str:
    """Return the name of a similarity function, given as a str or as a `SimilarityFunction` of any library.

    Raises
    ------
    ValueError
        It is another name.
    """
    value = value.value if isinstance(value, enum.Enum) else value
    check_choice(name, value, known)
    return str(value)


# --- normalize, truncate ---------------------------------------------------------------------------------------------


@as_given
def normalize_embeddings(embeddings: npt.ArrayLike) -> FloatArray:
    """Scale each row to length 1; a row of zeros remains zeros.

    Torch divides by max(|v|, 1e-12) instead, so rows shorter than 1e-12 keep a length below 1 there.

    Parameters
    ----------
    embeddings : array-like or tensor of shape (..., H)

    Returns
    -------
    ndarray or tensor of the same shape; the lengths are computed in float64
    """
    return unit_vectors(as_vectors("embeddings", embeddings))


@_quietly
def unit_vectors(x: FloatArray) -> FloatArray:
    """Compute the same as `normalize_embeddings`, of an array of float32 or wider."""
    squares, exponents = _sum_squares(x.astype(np.result_type(x, np.float64), copy=False))
    if exponents is None:
        return (x / np.sqrt(squares)[..., None]).astype(x.dtype)
    lengths = np.sqrt(np.where(squares == 0, 1, squares))[..., None]
    return (np.ldexp(x, -exponents[..., None]) / lengths).astype(x.dtype)


@as_given
def truncate_embeddings(embeddings: npt.ArrayLike, truncate_dim: int | None) -> FloatArray:
    """Keep the first `truncate_dim` features of each vector, or all for None; do not normalize again.

    Parameters
    ----------
    embeddings : array-like or tensor of shape (..., H)
    truncate_dim : int, at least 1, or None

    Returns
    -------
    ndarray or tensor of shape (..., min(truncate_dim, H)); a view if `embeddings` is one
    """
    kept = check_truncate_dim(truncate_dim)
    return not_single("embeddings", as_array("embeddings", embeddings))[..., :kept]


def check_truncate_dim(truncate_dim: int | None) -> int | None:
    """Check a number of features, or None, and return it."""
    return None if truncate_dim is None else check_int("truncate_dim", truncate_dim, 1, also=", or None")


# --- checks ----------------------------------------------------------------------------------------------------------


def _rows(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    x, y = (as_vectors(name, values) for name, values in (("a", a), ("b", b)))
    x, y = (array[None] if array.ndim == 1 else array for array in (x, y))
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"a has shape {np.shape(a)}, b {np.shape(b)}; expected (m, H) and (n, H) with the same H.")
    return x, y


def _pairs(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    x, y = (as_vectors(name, values) for name, values in (("a", a), ("b", b)))
    if x.ndim > 2 or x.shape != y.shape:
        raise ValueError(f"a has shape {x.shape}, b has shape {y.shape}; expected (n, H) for both, or (H,).")
    return x, y


def _sum_squares(x: FloatArray) -> tuple[FloatArray, IntArray | None]:
    """Sum the squares of each row, (..., H) -> (...); the sum is squares * 4**exponents. None: all exponents are 0.

    Otherwise they are 0 except for rows whose squares would overflow, or underflow so far that the sum loses precision.
    Such rows are scaled by a power of two, without a rounding error, so that their greatest number lies in [1/2, 1).
    """
    squares = np.asarray(np.add.reduce(x * x, -1))
    limits = np.finfo(x.dtype)
    kept = (squares >= limits.tiny / limits.eps) & (squares <= limits.max)
    if kept.all():
        return squares, None
    exponents = np.zeros(squares.shape, dtype=np.int32)
    scaled, exponents[~kept] = _scaled(x[~kept])
    squares[~kept] = (scaled * scaled).sum(axis=-1)
    return squares, exponents


def _scaled(x: FloatArray) -> tuple[FloatArray, IntArray]:
    """Scale rows by powers of two, 2**-exponent, so that their numbers lie in (-1, 1): (..., H) -> (..., H), (...)."""
    exponents = np.frexp(np.abs(x).max(axis=-1, initial=0))[1]
    return np.ldexp(x, -exponents[..., None]), exponents


def _scaled_dots(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return dot products of rows whose numbers are too large to be multiplied: (..., H), (..., H) -> (...)."""
    wide = np.result_type(x, y, np.float64)
    (u, i), (v, j) = _scaled(x.astype(wide)), _scaled(y.astype(wide))
    return np.ldexp((u * v).sum(axis=-1), i + j)


def _lengths(x: FloatArray) -> FloatArray:
    """Return the length |x| of each row: (..., H) -> (...)."""
    squares, exponents = _sum_squares(x)
    lengths = np.sqrt(squares)
    return lengths[()] if exponents is None else np.ldexp(lengths, exponents)


def _distances(x: FloatArray, y: FloatArray, distance: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return the distance of each pair of rows, from their difference, block by block: (m, H), (n, H) -> (m, n)."""
    distances = np.empty((len(x), len(y)), dtype=np.result_type(x, y))
    columns = max(1, min(len(y), _BLOCK // max(1, x.shape[1])))
    rows = max(1, _BLOCK // max(1, columns * x.shape[1]))
    for i in range(0, len(x), rows):
        for j in range(0, len(y), columns):
            distances[i : i + rows, j : j + columns] = distance(x[i : i + rows, None] - y[None, j : j + columns])
    return distances


# --- quantize ---------------------------------------------------------------------------------------------------------

PRECISIONS = ("float32", "float16", "int8", "uint8", "binary", "ubinary")
"""The precisions of `quantize_embeddings`."""


def quantize_embeddings(
    embeddings: npt.ArrayLike,
    precision: str,
    ranges: npt.ArrayLike | None = None,
    calibration_embeddings: npt.ArrayLike | None = None,
) -> Any:
    """Quantize vectors, to store them in fewer bits.

    Parameters
    ----------
    embeddings : array-like or tensor of shape (n, H), or (H,), or list of n arrays or tensors (tokens, H); floats
    precision : {"float32", "float16", "int8", "uint8", "binary", "ubinary"}
        float16 rounds each number to 11 bits; sentence-transformers does not have it. int8 and uint8 have 256
        levels in the range of each feature. binary and ubinary keep one bit per feature, 1 if it is above 0, packed
        into bytes.
    ranges : array-like of shape (2, H), optional
        Least and greatest value of each feature, for int8 and uint8.
    calibration_embeddings : array-like of shape (m, H), optional
        Vectors from which the ranges are computed; default: `embeddings`.

    Returns
    -------
    ndarray, also for tensors, as in sentence-transformers
        Of shape (n, H), or (n, H / 8 rounded up) for binary (int8) and ubinary (uint8). For a list of arrays of tokens,
        as `MultiVectorEncoder.encode` gives it, a list: all texts have the same ranges.

    Raises
    ------
    TypeError, ValueError
        `embeddings` is not an array of floats, or holds NaN, infinity or a number too large for float16; the precision
        is unknown; or the ranges would have to come from a single vector.

    Warns
    -----
    UserWarning
        The ranges come from fewer than 100 vectors, so other texts will have values outside the ranges.
    """
    check_choice("precision", precision, PRECISIONS)
    if isinstance(embeddings, list) and getattr(embeddings[0] if embeddings else None, "ndim", 0) == 2:
        texts = [as_array("embeddings", text) for text in embeddings]
        if len(widths := {text.shape[1:] for text in texts}) > 1:
            raise ValueError(f"embeddings has texts (tokens, H) with H = {sorted(widths)}; expected one H.")
        levels = quantize_embeddings(np.concatenate(texts), precision, ranges, calibration_embeddings)
        return np.split(levels, np.cumsum([len(text) for text in texts])[:-1])
    x = as_array("embeddings", embeddings)
    if x.dtype.kind != "f" or x.ndim not in (1, 2):
        raise TypeError(f"embeddings is {x.dtype} of shape {x.shape}; expected floats of shape (n, H) or (H,).")
    if precision != "float32" and not np.isfinite(x).all():
        raise ValueError(f"embeddings holds NaN or infinity, which {precision} does not have.")
    if precision in ("float32", "float16"):
        return rounded(x, np.dtype(precision))
    if precision in ("binary", "ubinary"):
        packed = np.packbits(x > 0, axis=-1)
        return packed if precision == "ubinary" else (packed.astype(np.int16) - 128).astype(np.int8)
    if len(x) == 0:
        return x.astype(precision)
    levels = np.clip(_levels(x, quantization_ranges(x, precision, ranges, calibration_embeddings)), 0, 255)
    return levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)


@_quietly
def rounded(x: FloatArray, dtype: np.dtype[Any]) -> FloatArray:
    """Convert to a float dtype; ValueError if a finite number would become infinity."""
    if x.dtype.itemsize > dtype.itemsize:
        size, greatest = np.abs(x[np.isfinite(x)]).max(initial=0), np.finfo(dtype).max
        if size > greatest:
            raise ValueError(f"embeddings holds {size:.6g}; the greatest number of {dtype} is {float(greatest):g}.")
    return x.astype(dtype)


@_quietly
def _levels(x: FloatArray, ranges: FloatArray) -> FloatArray:
    """Return for each number its step, of the 255 steps of its feature's range: (..., H), (2, H) -> (..., H).

    Numbers outside the range give steps below 0 or above 255. As in sentence-transformers, ranges are rounded to
    float32. Features whose range or steps float32 cannot hold are computed in float64, scaled so that the ends of their
    range lie within [-1, 1].
    """
    least, greatest = ranges.astype(np.float32)
    steps = (greatest - least) / 255
    levels = np.floor((x - least) / np.where(steps == 0, 1, steps))
    constant = ranges[0] == ranges[1]
    held = np.isfinite(steps) & (constant | (steps >= np.finfo(np.float32).tiny))
    if not held.all():
        wide = np.result_type(x, ranges, np.float64)
        ends = ranges[:, ~held].astype(wide)
        exponents = np.frexp(np.abs(ends).max(axis=0))[1]
        low, high = np.ldexp(ends, -exponents)
        steps = np.where(low == high, np.ldexp(wide.type(1), -exponents), (high - low) / 255)
        levels[..., ~held] = np.floor((np.ldexp(x[..., ~held].astype(wide), -exponents) - low) / steps)
    return levels


def quantization_ranges(
    x: FloatArray, precision: str, ranges: npt.ArrayLike | None, calibration_embeddings: npt.ArrayLike | None
) -> FloatArray:
    """Return the least and the greatest value of each feature, of shape (2, H); ValueError if one is not finite."""
    if ranges is not None:
        limits = as_vectors("ranges", ranges)
        if limits.shape != (2, x.shape[-1]):
            raise ValueError(f"ranges has shape {limits.shape}; expected (2, {x.shape[-1]}): least and greatest.")
        if not np.isfinite(limits).all() or not (limits[0] <= limits[1]).all():
            raise ValueError("ranges must hold the least value of each feature, then the greatest, all finite.")
        return limits
    source = x
    if calibration_embeddings is not None:
        source = as_vectors("calibration_embeddings", calibration_embeddings)
        if source.ndim != 2 or source.shape[1] != x.shape[-1] or not len(source) or not np.isfinite(source).all():
            expected = f"expected (m, {x.shape[-1]}) with m at least 1, of finite numbers"
            raise ValueError(f"calibration_embeddings has shape {source.shape}; {expected}.")
    elif x.ndim == 1 or len(x) == 1:
        raise ValueError(
            f"precision={precision!r} needs the range of each feature, which a single vector does not have; give "
            "more vectors (100 are enough), or give quantize_embeddings the ranges of a representative set."
        )
    elif len(x) < 100:
        warn_caller(
            f"The {precision} ranges come from {len(x)} vectors only. For more reliable ranges give at least 100 "
            "vectors, or give quantize_embeddings the ranges of a representative set."
        )
    return np.stack([source.min(axis=0), source.max(axis=0)])
