"""`SparseVectors`: vectors with few nonzero numbers, in compressed sparse rows (CSR), without SciPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils import torch_interop
from minibert._utils.system import needs, require_memory
from minibert._utils.torch_interop import Scores, Tensor, as_dense_array
from minibert._utils.validation import FloatArray, IntArray, as_vectors, brief
from minibert.vectors.similarity import SIMILARITY_FUNCTIONS

# Most bytes of dense rows, or of products, that a similarity holds at a time.
_BLOCK_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SparseVectors:
    """B vectors of length V, or one vector; only nonzero numbers are stored.

    The numbers of vector b are ``data[indptr[b]:indptr[b + 1]]``, and `indices` has the dimension of each, as in
    SciPy's csr_array. Indexing gives one vector, or several for a slice or a list; iteration gives one after another.
    ``np.asarray`` gives the dense vectors.

    Parameters
    ----------
    shape : (B, V), or (V,) for one vector
    data : float array of shape (n,)
    indices : int array of shape (n,), in [0, V); increasing within a vector
    indptr : int array of shape (B + 1,)

    Raises
    ------
    TypeError, ValueError
        The arrays do not describe such vectors.
    """

    shape: tuple[int, ...]
    data: FloatArray
    indices: IntArray
    indptr: IntArray

    def __post_init__(self) -> None:
        for name, kinds in (("data", "f"), ("indices", "iu"), ("indptr", "iu")):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in kinds:
                raise TypeError(f"{name}={brief(array)}; expected one axis of {'floats' if kinds == 'f' else 'ints'}.")
            object.__setattr__(self, name, array.astype(np.int64) if array.dtype.kind == "u" else array)
        if not self._is_valid():
            raise ValueError(
                f"shape={brief(self.shape)}, indices={brief(self.indices)} and indptr={brief(self.indptr)} do not "
                f"describe vectors with {len(self.data)} numbers. Expected (B, V), or (V,) for one vector; the "
                "dimension of each number, below V and increasing within a vector; the number of numbers before each "
                "vector, and at last their sum."
            )

    def _is_valid(self) -> bool:
        sizes = self.shape if isinstance(self.shape, tuple) else ()
        if len(sizes) not in (1, 2) or not all(isinstance(n, int | np.integer) and n >= 0 for n in sizes):
            return False
        indices, indptr, n = self.indices.astype(np.int64), self.indptr.astype(np.int64), len(self.data)
        if len(indptr) != (1 if self.ndim == 1 else sizes[0]) + 1 or len(indices) != n:
            return False
        if indptr[0] or indptr[-1] != n or (np.diff(indptr) < 0).any():
            return False
        begins = np.zeros(n + 1, dtype=np.bool_)
        begins[indptr] = True
        return not n or bool(
            indices.min() >= 0 and indices.max() < sizes[-1] and ((np.diff(indices) > 0) | begins[1:n]).all()
        )

    @property
    def ndim(self) -> int:
        """The number of axes: 2, or 1 for one vector."""
        return len(self.shape)

    @property
    def nnz(self) -> int:
        """The count of stored numbers."""
        return len(self.data)

    def todense(self) -> FloatArray:
        """Return an array of the same shape, with the zeros.

        Raises
        ------
        MemoryError
            It does not fit into the memory that this process may use.
        """
        nbytes = float(np.prod(self.shape, dtype=np.float64)) * self.data.itemsize
        require_memory(nbytes, f"{self.shape} numbers", "Convert fewer vectors at once: vectors[:1000].")
        dense = np.zeros(self.shape, dtype=self.data.dtype)
        dense.reshape(len(self.indptr) - 1, self.shape[-1])[self._rows(), self.indices] = self.data
        return dense

    to_dense = todense  # its name for tensors

    def to_scipy(self) -> Any:
        """Return a SciPy csr_array of shape (B, V) that shares the memory; one vector becomes a row, (1, V).

        Raises
        ------
        ImportError
            SciPy is not installed.
        """
        with needs("to_scipy()", "scipy"):
            from scipy.sparse import csr_array
        return csr_array((self.data, self.indices, self.indptr), shape=(len(self.indptr) - 1, self.shape[-1]))

    def to_tensor(self) -> Tensor:
        """Return a sparse torch tensor (COO) of the same shape, as sentence-transformers does.

        Raises
        ------
        ImportError
            torch is not installed.
        """
        rows = () if self.ndim == 1 else (self._rows(),)
        return torch_interop.to_sparse_tensor(np.stack([*rows, self.indices.astype(np.int64)]), self.data, self.shape)

    def _rows(self) -> IntArray:
        """Return the vector of each number."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def matrix(self) -> SparseVectors:
        """Return the vectors with two axes: one vector becomes (1, V)."""
        return self if self.ndim == 2 else SparseVectors((1, *self.shape), self.data, self.indices, self.indptr)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> SparseVectors:
        """Return the vector at an index, or several for a slice, a list or an array of indices or bools."""
        rows = np.arange(len(self))[index]
        if self.ndim == 1 or rows.ndim > 1:
            raise TypeError(f"index={brief(index)}; vectors[i] is a vector, and vectors[i].todense()[j] is a number.")
        shape, rows = (*rows.shape, self.shape[-1]), np.atleast_1d(rows)
        lengths = np.diff(self.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.repeat(self.indptr[:-1][rows] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return SparseVectors(shape, self.data[places], self.indices[places], indptr)

    def __iter__(self) -> Iterator[SparseVectors]:
        return (self[index] for index in range(len(self)))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("A dense array of sparse vectors is always a new one; give copy=None.")
        dense = self.todense()
        return dense if dtype is None else dense.astype(dtype)

    def __repr__(self) -> str:
        return f"SparseVectors(shape={self.shape}, nnz={self.nnz}, dtype={self.data.dtype})"


def make_sparse(rows: Sequence[tuple[IntArray, FloatArray]], length: int) -> SparseVectors:
    """Make vectors from the dimensions and the numbers of each row."""
    indptr = np.concatenate([[0], np.cumsum([len(indices) for indices, _ in rows], dtype=np.int64)]).astype(np.int64)
    indices = np.concatenate([np.zeros(0, np.int32), *(indices for indices, _ in rows)])
    data = np.concatenate([np.zeros(0, np.float32), *(numbers for _, numbers in rows)])
    return SparseVectors((len(rows), length), data, indices.astype(np.int32), indptr)


def as_sparse(name: str, values: Any) -> SparseVectors:
    """Return vectors as `SparseVectors`; arrays, lists, SciPy's arrays and tensors are converted.

    Raises
    ------
    TypeError, ValueError
        They are not vectors of numbers.
    """
    if isinstance(values, SparseVectors):
        return values
    if isinstance(values, list | tuple) and values and all(isinstance(vector, SparseVectors) for vector in values):
        if any(vector.ndim != 1 or vector.shape != values[0].shape for vector in values):
            raise ValueError(f"{name} holds vectors of different shapes; expected vectors of one length.")
        return make_sparse([(vector.indices, vector.data) for vector in values], values[0].shape[0])
    if hasattr(values, "tocsr"):
        csr = values.tocsr(copy=True)
        csr.sum_duplicates()
        csr.eliminate_zeros()
        return SparseVectors(csr.shape, as_vectors(name, csr.data), csr.indices, csr.indptr)
    dense = as_vectors(name, as_dense_array(values))
    if dense.ndim > 2:
        raise ValueError(f"{name} has shape {dense.shape}; expected (B, V), or (V,) for one vector.")
    matrix = dense[None] if dense.ndim == 1 else dense
    rows, indices = np.nonzero(matrix)
    indptr = np.searchsorted(rows, np.arange(len(matrix) + 1)).astype(np.int64)
    return SparseVectors(dense.shape, matrix[rows, indices], indices.astype(np.int32), indptr)


def similarity(function: str, a: Any, b: Any) -> Any:
    """Score each vector of `a` with each of `b`, (m, n), by a name of `SIMILARITY_FUNCTIONS`; dense ones too.

    Dot products and cosines of sparse vectors are computed from the numbers that are kept; memory is bounded.
    """
    compute, (a, b) = SIMILARITY_FUNCTIONS[function][0], _both_sparse(a, b)
    if not isinstance(a, SparseVectors):
        return compute(a, b)
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"a has shape {a.shape}, b has shape {b.shape}; expected vectors of the same length.")
    x, y = _narrow(a.matrix(), b.matrix())
    if function == "cosine":
        x, y = _normalized(x), _normalized(y)
    scores, rows = np.empty((len(x), len(y)), dtype=np.float32), _rows_at_once(x)
    for i in range(0, len(x), rows):
        dense = x[i : i + rows].todense()
        if function in ("dot", "cosine"):
            scores[i : i + rows] = _dots(dense.astype(np.float64), y)
            continue
        for j in range(0, len(y), rows):
            scores[i : i + rows, j : j + rows] = compute(dense, y[j : j + rows].todense())
    return scores.view(Scores)


def similarity_pairwise(function: str, a: Any, b: Any) -> Any:
    """Score vector i of `a` with vector i of `b`, (n,), by a name of `SIMILARITY_FUNCTIONS`; dense ones too."""
    compute, (a, b) = SIMILARITY_FUNCTIONS[function][1], _both_sparse(a, b)
    if not isinstance(a, SparseVectors):
        return compute(a, b)
    if a.shape != b.shape:
        raise ValueError(f"a has shape {a.shape}, b has shape {b.shape}; expected the same shape.")
    a, b = _narrow(a, b)
    if a.ndim == 1:
        return compute(a.todense(), b.todense())
    rows = _rows_at_once(a)
    blocks = [slice(i, i + rows) for i in range(0, max(1, len(a)), rows)]
    return np.concatenate([np.asarray(compute(a[i].todense(), b[i].todense())) for i in blocks]).view(Scores)


def _both_sparse(a: Any, b: Any) -> tuple[Any, Any]:
    """Return both arguments as `SparseVectors` if both are, or are lists of them; else both dense."""
    values = []
    for value in (a, b):
        listed = isinstance(value, list | tuple) and len(value) and isinstance(value[0], SparseVectors)
        values.append(as_sparse("embeddings", value) if listed or hasattr(value, "tocsr") else value)
    if not all(isinstance(value, SparseVectors) for value in values):
        values = [value.todense() if isinstance(value, SparseVectors) else value for value in values]
    return values[0], values[1]


def _narrow(*both: SparseVectors) -> Iterator[SparseVectors]:
    """Leave out the dimensions that no vector uses if a dense vector would take more memory than a block."""
    if both[0].shape[-1] <= _BLOCK_BYTES // 8:
        return iter(both)
    used = np.unique(np.concatenate([part.indices for part in both]))
    parts = ((part, (*part.shape[:-1], len(used)), np.searchsorted(used, part.indices)) for part in both)
    return (SparseVectors(shape, part.data, indices, part.indptr) for part, shape, indices in parts)


def _rows_at_once(x: SparseVectors) -> int:
    return max(1, _BLOCK_BYTES // (8 * max(1, x.shape[1])))


def _normalized(x: SparseVectors) -> SparseVectors:
    """Scale each vector to length 1; vectors of zeros remain zeros."""
    wide = x.data.astype(np.float64)
    lengths = np.sqrt(np.bincount(x._rows(), wide * wide, minlength=len(x)))
    lengths[lengths == 0] = 1  # of zeros that are stored
    return SparseVectors(x.shape, wide / np.repeat(lengths, np.diff(x.indptr)), x.indices, x.indptr)


def _dots(dense: FloatArray, y: SparseVectors) -> FloatArray:
    """Return the dot products of a few vectors with many, in float64: (m, V), (n, V) -> (m, n)."""
    scores = np.zeros((len(dense), len(y)))
    per_row = max(1, _BLOCK_BYTES // (8 * max(1, len(dense))))  # numbers of y that are multiplied at a time
    owners = y._rows()
    for start in range(0, y.nnz, per_row):
        chosen = slice(start, start + per_row)
        for i, row in enumerate(dense):
            scores[i] += np.bincount(owners[chosen], row[y.indices[chosen]] * y.data[chosen], minlength=len(y))
    return scores
