"""Similarity of vectors, and functions that normalize and truncate vectors; quantized.py quantizes them.

The names, the arguments and the results are those of sentence_transformers.util, version 6.2. The answer is a tensor if
an argument is a tensor of torch, or a list of tensors; otherwise it is a NumPy array, where that library answers with a
tensor too. Scores are arrays with the methods ``numpy``, ``cpu`` and ``detach`` of a tensor, see `Scores`.
Floats are computed in their own dtype, at least float32; integers, such as quantized vectors, as float32.

Finite vectors never give NaN. A score beyond the greatest number of its dtype is infinity, with the right sign. A score
below the least one is 0. Intermediate results do not overflow or underflow: if they would, rows are first scaled by a
power of two, which is exact. For vectors that hold NaN or infinity, NumPy's arithmetic decides.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.torch_interop import as_given, as_scores
from minibert._utils.validation import FloatArray, IntArray, as_array, as_vectors, check_choice, check_int, not_single
from minibert.vectors.quantization import PRECISIONS, quantize_embeddings

__all__ = [
    "PRECISIONS",
    "SIMILARITY_FUNCTIONS",
    "SimilarityFunction",
    "check_similarity",
    "check_truncate_dim",
    "cos_sim",
    "dot_score",
    "euclidean_sim",
    "manhattan_sim",
    "normalize_embeddings",
    "pairwise_cos_sim",
    "pairwise_dot_score",
    "pairwise_euclidean_sim",
    "pairwise_manhattan_sim",
    "pytorch_cos_sim",
    "quantize_embeddings",
    "truncate_embeddings",
]

# Numbers in a block of differences (rows x rows x features) that manhattan_sim and euclidean_sim hold at a time.
_BLOCK = 2**22

# Infinities are valid results here, and overflows on the way are repaired, so NumPy must not warn or raise.
_quietly = np.errstate(over="ignore", under="ignore", invalid="ignore")


@as_scores
@_quietly
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


@as_scores
@_quietly
def dot_score(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return the dot product of each row of `a` with each row of `b`; arguments and errors as in `cos_sim`."""
    x, y = _rows(a, b)
    scores = x @ y.T
    lost = ~np.isfinite(scores)
    for i in np.flatnonzero(lost.any(axis=1)):
        scores[i, lost[i]] = _scaled_dots(x[i], y[lost[i]])
    return scores


@as_scores
@_quietly
def euclidean_sim(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return -|a_i - b_j|, the negative Euclidean distance; arguments and errors as in `cos_sim`."""
    return -_distances(*_rows(a, b), _lengths)


@as_scores
@_quietly
def manhattan_sim(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return -sum |a_i - b_j|, the negative Manhattan distance; arguments and errors as in `cos_sim`."""
    return -_distances(*_rows(a, b), lambda difference: np.abs(difference).sum(axis=-1))


@as_scores
@_quietly
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


@as_scores
@_quietly
def pairwise_dot_score(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return the dot product of row i of `a` and row i of `b`; arguments and errors as in `pairwise_cos_sim`."""
    x, y = _pairs(a, b)
    scores = np.asarray((x * y).sum(axis=-1))
    lost = ~np.isfinite(scores)
    if lost.any():
        scores[lost] = _scaled_dots(x[lost], y[lost])
    return scores[()]


@as_scores
@_quietly
def pairwise_euclidean_sim(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return -|a_i - b_i|; arguments and errors as in `pairwise_cos_sim`."""
    x, y = _pairs(a, b)
    return -_lengths(x - y)


@as_scores
@_quietly
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

    @staticmethod
    def to_similarity_fn(similarity_function: str | SimilarityFunction) -> Callable[..., Any]:
        """Return the function that scores all pairs of rows, such as `cos_sim`; ValueError for an unknown name."""
        return SIMILARITY_FUNCTIONS[check_similarity("similarity_function", similarity_function)][0]

    @staticmethod
    def to_similarity_pairwise_fn(similarity_function: str | SimilarityFunction) -> Callable[..., Any]:
        """Return the function that scores row i with row i, such as `pairwise_cos_sim`; ValueError as above."""
        return SIMILARITY_FUNCTIONS[check_similarity("similarity_function", similarity_function)][1]

    @staticmethod
    def possible_values() -> list[str]:
        """Return the names: "cosine", "dot", "euclidean", "manhattan"."""
        return [*SIMILARITY_FUNCTIONS]


def check_similarity(name: str, value: object) -> str:
    """Return the name of a similarity function, given as a str or as a `SimilarityFunction`, also of another library.

    Raises
    ------
    ValueError
        It is another name.
    """
    given = value.value if isinstance(value, enum.Enum) else value
    if given in ("maxsim", "meanmaxsim"):
        raise ValueError(
            f"{name}={given!r} compares the vectors of all tokens, for models of MultiVectorEncoder, which minibert "
            f"does not have; expected one of {', '.join(map(repr, SIMILARITY_FUNCTIONS))}."
        )
    check_choice(name, given, SIMILARITY_FUNCTIONS)
    return str(given)


# --- normalize, truncate ---------------------------------------------------------------------------------------------


@as_given
@_quietly
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
    x = as_vectors("embeddings", embeddings)
    squares, exponents = _sum_squares(x.astype(np.result_type(x, np.float64), copy=False))
    lengths = np.sqrt(np.where(squares == 0, 1, squares))[..., None]
    scaled = np.ldexp(x, -exponents[..., None]) if exponents.any() else x
    return (scaled / lengths).astype(x.dtype)


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
    """Return a number of features, or None, after checking it."""
    return None if truncate_dim is None else check_int("truncate_dim", truncate_dim, 1, also=", or None")


# --- checks ----------------------------------------------------------------------------------------------------------


def _rows(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    x, y = (as_vectors(name, values) for name, values in (("a", a), ("b", b)))
    x, y = (array[None] if array.ndim == 1 else array for array in (x, y))
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(
            f"a has shape {np.shape(a)}, b has shape {np.shape(b)}; expected (m, H) and (n, H) with the same H."
        )
    return x, y


def _pairs(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    x, y = (as_vectors(name, values) for name, values in (("a", a), ("b", b)))
    if x.ndim > 2 or x.shape != y.shape:
        raise ValueError(f"a has shape {x.shape}, b has shape {y.shape}; expected (n, H) for both, or (H,).")
    return x, y


def _sum_squares(x: FloatArray) -> tuple[FloatArray, IntArray]:
    """Sum the squares of each row, (..., H) -> (...); the sum is squares * 4**exponents.

    The exponents are 0, except for rows whose squares would overflow, or underflow so far that the sum loses precision.
    Such rows are scaled by a power of two, which is exact, so that their greatest number lies in [1/2, 1).
    """
    squares = np.asarray((x * x).sum(axis=-1))
    exponents = np.zeros(squares.shape, dtype=np.int32)
    limits = np.finfo(x.dtype)
    lost = ~((squares >= limits.tiny / limits.eps) & (squares <= limits.max))
    if lost.any():
        scaled, exponents[lost] = _scaled(x[lost])
        squares[lost] = (scaled * scaled).sum(axis=-1)
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
    return np.ldexp(lengths, exponents) if exponents.any() else lengths[()]


def _distances(x: FloatArray, y: FloatArray, distance: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return the distance of each pair of rows, from their difference, block by block: (m, H), (n, H) -> (m, n)."""
    found = np.empty((len(x), len(y)), dtype=np.result_type(x, y))
    columns = max(1, min(len(y), _BLOCK // max(1, x.shape[1])))
    rows = max(1, _BLOCK // max(1, columns * x.shape[1]))
    for i in range(0, len(x), rows):
        for j in range(0, len(y), columns):
            found[i : i + rows, j : j + columns] = distance(x[i : i + rows, None] - y[None, j : j + columns])
    return found
