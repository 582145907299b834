"""`SparseVectors`: vectors of which few numbers are not zero, in compressed sparse rows (CSR), without SciPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils import torch_interop
from minibert._utils.system import missing_library, require_memory
from minibert._utils.torch_interop import Scores, as_dense_array
from minibert._utils.validation import FloatArray, IntArray, as_vectors, brief, check_indices
from minibert.vectors.similarity import SIMILARITY_FUNCTIONS

# Most bytes of dense rows, or of products, that a similarity holds at a time.
_BLOCK_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SparseVectors:
    """B vectors of length V, or one vector; only the numbers that are not zero are kept.

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
        sizes = self.shape if isinstance(self.shape, tuple) else ()
        if len(sizes) not in (1, 2) or not all(isinstance(n, int | np.integer) and n >= 0 for n in sizes):
            raise ValueError(f"shape={brief(self.shape)}; expected (B, V), or (V,) for one vector.")
        for name, kinds in (("data", "f"), ("indices", "iu"), ("indptr", "iu")):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in kinds:
                expected = "floats" if kinds == "f" else "integers"
                raise TypeError(f"{name} is {brief(array)}; expected an array of {expected} with one axis.")
        rows = 1 if len(self.shape) == 1 else self.shape[0]
        lengths = np.diff(self.indptr.astype(np.int64))
        if len(self.indptr) != rows + 1 or self.indptr[0] or (lengths < 0).any() or self.indptr[-1] != len(self.data):
            raise ValueError(
                f"indptr={brief(self.indptr)} does not describe {rows} vectors with {len(self.data)} numbers; expected "
                "the number of numbers before each vector, from 0, and at last their sum."
            )
        if len(self.indices) != len(self.data):
            raise ValueError(f"There are {len(self.indices)} indices and {len(self.data)} numbers; expected one each.")
        if len(self.indices):
            within = np.ones(len(self.indices), dtype=np.bool_)
            within[1:] = np.diff(self.indices.astype(np.int64)) > 0
            within[self.indptr[:-1][lengths > 0]] = True
            if self.indices.min() < 0 or self.indices.max() >= self.shape[-1] or not within.all():
                raise ValueError(
                    f"indices must increase within each vector, and lie in 0 to {self.shape[-1] - 1}; they do not."
                )

    @property
    def ndim(self) -> int:
        """The number of axes: 2, or 1 for one vector."""
        return len(self.shape)

    @property
    def nnz(self) -> int:
        """The number of numbers that are kept."""
        return len(self.data)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""
        return self.data.dtype

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

    def to_dense(self) -> FloatArray:
        """Return the same as `todense`; tensors have this name."""
        return self.todense()

    def to_scipy(self) -> Any:
        """Return a csr_array of SciPy of shape (B, V), which shares the memory; one vector is a row, (1, V).

        Raises
        ------
        ImportError
            SciPy is not installed.
        """
        try:
            from scipy.sparse import csr_array
        except ImportError as error:
            raise missing_library("to_scipy()", error, "scipy") from error
        return csr_array((self.data, self.indices, self.indptr), shape=(len(self.indptr) - 1, self.shape[-1]))

    def to_tensor(self) -> Any:
        """Return a sparse tensor of torch (COO) of the same shape, as sentence-transformers gives it.

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

    def _chosen(self, rows: IntArray) -> SparseVectors:
        """Return some of the vectors."""
        lengths = np.diff(self.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.repeat(self.indptr[:-1][rows] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return SparseVectors((len(rows), self.shape[-1]), self.data[places], self.indices[places], indptr)

    def matrix(self) -> SparseVectors:
        """Return the vectors with two axes: one vector becomes (1, V)."""
        return self if self.ndim == 2 else SparseVectors((1, *self.shape), self.data, self.indices, self.indptr)

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> SparseVectors:
        """Return the vector at an index, or several for a slice, a list or an array of indices or bools."""
        if self.ndim == 1:
            raise TypeError("This is one vector, which cannot be indexed; vector.todense()[i] gives one number.")
        if isinstance(index, tuple):  # (i, j) means one number for an array, and two vectors for a list
            raise TypeError(
                f"index={brief(index)}; expected an int, a slice or a list of ints. vectors[i].todense()[j] gives one "
                "number."
            )
        if isinstance(index, slice):
            return self._chosen(np.arange(len(self))[index])
        if isinstance(index, np.ndarray) and index.dtype == np.bool_:
            if index.shape != (len(self),):
                raise IndexError(f"index has shape {index.shape}; expected ({len(self)},), one bool for each vector.")
            return self._chosen(np.flatnonzero(index))
        try:
            rows = check_indices("index", index, len(self), what="vectors", expected="an int, a slice or several ints")
        except ValueError:
            raise IndexError(
                f"index={brief(index)}; there are {len(self)} vectors, 0 to {len(self) - 1}; -1 is the last one."
            ) from None
        found = self._chosen(np.array(rows, dtype=np.int64))
        if isinstance(index, list | np.ndarray) and np.ndim(index):
            return found
        return SparseVectors(self.shape[1:], found.data, found.indices, found.indptr)

    def __iter__(self) -> Iterator[SparseVectors]:
        return (self[index] for index in range(len(self)))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("A dense array of sparse vectors is always a new one; give copy=None.")
        dense = self.todense()
        return dense if dtype is None else dense.astype(dtype)

    def __repr__(self) -> str:
        return f"SparseVectors(shape={self.shape}, nnz={self.nnz}, dtype={self.dtype})"


def make_sparse(rows: Sequence[tuple[IntArray, FloatArray]], length: int) -> SparseVectors:
    """Make vectors of the dimensions and the numbers of each."""
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
    if isinstance(values, list | tuple) and values and all(isinstance(one, SparseVectors) for one in values):
        if any(one.ndim != 1 or one.shape != values[0].shape for one in values):
            raise ValueError(f"{name} holds vectors of different shapes; expected vectors of one length.")
        return make_sparse([(one.indices, one.data) for one in values], values[0].shape[0])
    if hasattr(values, "tocsr"):  # SciPy
        values = values.toarray()
    dense = as_vectors(name, as_dense_array(values))
    if dense.ndim > 2:
        raise ValueError(f"{name} has shape {dense.shape}; expected (B, V), or (V,) for one vector.")
    matrix = dense[None] if dense.ndim == 1 else dense
    rows, indices = np.nonzero(matrix)
    indptr = np.searchsorted(rows, np.arange(len(matrix) + 1)).astype(np.int64)
    return SparseVectors(dense.shape, matrix[rows, indices], indices.astype(np.int32), indptr)


def sparse_similarity(function: str, a: Any, b: Any) -> Any:
    """Score each vector of `a` with each of `b`, (m, n), by a name of `SIMILARITY_FUNCTIONS`.

    Dot products and cosines of sparse vectors are computed from the numbers that are kept; memory is bounded.
    """
    if not (isinstance(a, SparseVectors) and isinstance(b, SparseVectors)):
        return SIMILARITY_FUNCTIONS[function][0](*map(_dense, (a, b)))
    x, y = a.matrix(), b.matrix()
    _check_lengths(x, y)
    found = np.empty((len(x), len(y)), dtype=np.float32)
    compute = _dots if function in ("dot", "cosine") else _blocks
    rows = max(1, _BLOCK_BYTES // (8 * max(1, x.shape[1])))
    if function == "cosine":
        x, y = _normalized(x), _normalized(y)
    for start in range(0, len(x), rows):
        found[start : start + rows] = compute(function, x[start : start + rows], y, rows)
    return found.view(Scores)


def sparse_similarity_pairwise(function: str, a: Any, b: Any) -> Any:
    """Score vector i of `a` with vector i of `b`, (n,), by a name of `SIMILARITY_FUNCTIONS`."""
    pairwise: Callable[[Any, Any], Any] = SIMILARITY_FUNCTIONS[function][1]
    if not (isinstance(a, SparseVectors) and isinstance(b, SparseVectors)):
        return pairwise(*map(_dense, (a, b)))
    _check_lengths(a.matrix(), b.matrix())
    if a.shape != b.shape:
        raise ValueError(f"a has shape {a.shape}, b has shape {b.shape}; expected the same shape.")
    if a.ndim == 1:
        return pairwise(a.todense(), b.todense())
    rows = max(1, _BLOCK_BYTES // (8 * max(1, a.shape[1])))
    parts = [np.zeros(0, dtype=np.float32)]
    for start in range(0, len(a), rows):
        parts.append(np.asarray(pairwise(a[start : start + rows].todense(), b[start : start + rows].todense())))
    return np.concatenate(parts).view(Scores)


def _dense(values: Any) -> Any:
    if hasattr(values, "tocsr"):  # SciPy
        return values.toarray()
    return values.todense() if isinstance(values, SparseVectors) else values


def _check_lengths(x: SparseVectors, y: SparseVectors) -> None:
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"a has vectors of length {x.shape[1]}, b of length {y.shape[1]}; expected the same length.")


def _normalized(x: SparseVectors) -> SparseVectors:
    """Scale each vector to length 1; vectors of zeros remain zeros."""
    wide = x.data.astype(np.float64)
    lengths = np.sqrt(np.bincount(x._rows(), wide * wide, minlength=len(x)))
    lengths[lengths == 0] = 1  # of zeros that are stored
    return SparseVectors(x.shape, wide / np.repeat(lengths, np.diff(x.indptr)), x.indices, x.indptr)


def _dots(function: str, x: SparseVectors, y: SparseVectors, rows: int) -> FloatArray:
    """Return the dot products of a few vectors with many, in float64: (m, V), (n, V) -> (m, n)."""
    dense = x.todense().astype(np.float64)
    found = np.zeros((len(x), len(y)))
    per_row = max(1, _BLOCK_BYTES // (8 * max(1, len(x))))  # numbers of y that are multiplied at a time
    owners = y._rows()
    for start in range(0, y.nnz, per_row):
        some = slice(start, start + per_row)
        for i, row in enumerate(dense):
            found[i] += np.bincount(owners[some], row[y.indices[some]] * y.data[some], minlength=len(y))
    return found


def _blocks(function: str, x: SparseVectors, y: SparseVectors, rows: int) -> FloatArray:
    """Return the scores of a few vectors with many, from dense blocks."""
    found = np.empty((len(x), len(y)), dtype=np.float32)
    dense = x.todense()
    for start in range(0, len(y), rows):
        block = y[start : start + rows].todense()
        found[:, start : start + rows] = SIMILARITY_FUNCTIONS[function][0](dense, block)
    return found
