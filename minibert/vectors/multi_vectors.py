"""Texts with a vector for each token: how they are kept, their scores (MaxSim), and fewer vectors for a text.

MaxSim is the score of late interaction: the largest dot product of each query token with a token of the document,
summed over the query tokens. Source: Khattab and Zaharia 2020, ColBERT (arXiv 2004.12832), section 3.3. The names, the
arguments and the results are as in sentence-transformers 6.2 (util/similarity.py, multi_vector_encoder/modules/).

With minibert's kernels the score of a query and a document has the same bits alone and among others. The products of
all pairs of tokens are never held at once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.torch_interop import as_scores, is_tensor, to_tensor
from minibert._utils.validation import FloatArray, IntArray, as_vectors, brief, check_bool, check_int, is_masked
from minibert.bert.ops import Linear, Ops, PreparedLinear
from minibert.models.backend import choose_ops
from minibert.vectors.similarity import normalize_embeddings

__all__ = ["maxsim", "maxsim_pairwise", "mean_maxsim", "mean_maxsim_pairwise"]

EMPTY_DOCUMENT = -1e9
"""The score of a document without a token. It is below all others, and sentence-transformers gives the same number."""

_TOKENS = 4096  # of queries, and of documents, that are multiplied together; a single text may have more


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MultiVectors:
    """n texts with a vector for each token; all vectors lie in one array. It may be memory-mapped.

    The vectors of text i are ``vectors[offsets[i]:offsets[i + 1]]``. Indexing gives the vectors of a text, float32, or
    several texts for a slice or a list.

    Parameters
    ----------
    vectors : float or int8 array of shape (T, D)
    offsets : int array of shape (n + 1,)
        It begins with 0, does not decrease, and ends with T.
    scales : float array of shape (T,), optional
        The factor of each vector; see `quantized`.

    Raises
    ------
    TypeError, ValueError
        The arrays do not describe such texts.
    """

    vectors: npt.NDArray[Any]
    offsets: IntArray
    scales: FloatArray | None = None

    def __post_init__(self) -> None:
        vectors, offsets, scales = self.vectors, np.asarray(self.offsets), self.scales
        numbers = isinstance(vectors, np.ndarray) and vectors.dtype.kind in "fiu" and offsets.dtype.kind in "iu"
        if not numbers or is_masked(vectors) or vectors.ndim != 2 or offsets.ndim != 1:
            raise TypeError(f"vectors={brief(vectors)}, offsets={brief(offsets)}; expected arrays (T, D) and (n + 1,).")
        object.__setattr__(self, "offsets", offsets := offsets.astype(np.int64))
        if offsets[:1].tolist() != [0] or offsets[-1] != len(vectors) or (np.diff(offsets) < 0).any():
            raise ValueError(f"offsets={brief(offsets)}; expected 0, increasing, up to {len(vectors)}, the vectors.")
        if scales is not None and (np.shape(scales) != (len(vectors),) or np.asarray(scales).dtype.kind != "f"):
            raise ValueError(f"scales={brief(scales)}; expected a float for each of the {len(vectors)} vectors.")

    @classmethod
    def of(cls, name: str, values: Any, mask: Any = None) -> MultiVectors:
        """Return texts with vectors as `MultiVectors`; `name` is the argument's name.

        Parameters
        ----------
        values : MultiVectors; list of n arrays or tensors (S, D); array or tensor (n, S, D), or (S, D) for one text
            Of an array (n, S, D) without a mask, tokens whose numbers are all 0 do not count.
        mask : array of shape (n, S), or list of n arrays, optional
            0 or False for tokens that do not count.

        Raises
        ------
        TypeError, ValueError
            They are something else, or their vectors have different lengths.
        """
        if isinstance(values, MultiVectors) and mask is None:
            return values
        if not isinstance(values, list | tuple | MultiVectors):
            values = as_vectors(name, values)
            mask = values.any(axis=-1) if values.ndim == 3 and mask is None else mask
            values, mask = (values, mask) if values.ndim == 3 else ([values], mask if np.ndim(mask) != 1 else [mask])
        texts = [as_vectors(f"{name}[{i}]", text) for i, text in enumerate(values)]
        if any(text.ndim != 2 or text.shape[1] != texts[0].shape[1] for text in texts):
            shapes = brief([text.shape for text in texts])
            raise ValueError(f"{name} has texts of shapes {shapes}; expected (tokens, D) with one D.")
        if mask is not None:
            of_mask = f"the mask of {name}"
            rows = mask if isinstance(mask, list | tuple) else as_vectors(of_mask, mask)
            pairs = [*zip(texts, (as_vectors(of_mask, row) for row in rows), strict=False)]
            # A mask of several texts may be as wide as the longest one.
            alike = len(rows) == len(texts) and all(row.ndim == 1 and len(row) >= len(text) for text, row in pairs)
            if not alike:
                raise ValueError(f"{name} and its mask have different shapes; expected a 0 or 1 for each token.")
            texts = [text[row[: len(text)] != 0] for text, row in pairs]
        offsets = np.cumsum([0, *map(len, texts)])
        return cls(np.concatenate(texts) if texts else np.zeros((0, 0), np.float32), offsets)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of texts, and the length of the vectors."""
        return len(self), self.vectors.shape[1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        chosen = np.arange(len(self))[index]
        if chosen.ndim == 0:
            return self.floats(int(chosen), int(chosen) + 1)
        first, last, lengths = self.offsets[:-1][chosen], self.offsets[1:][chosen], np.diff(self.offsets)[chosen]
        offsets = np.cumsum([0, *lengths])
        rows: Any = np.repeat(first - offsets[:-1], lengths) + np.arange(offsets[-1])
        if len(chosen) and (np.diff(chosen) == 1).all():  # one part of the array; it is not copied
            rows = slice(int(first[0]), int(last[-1]))
        return MultiVectors(self.vectors[rows], offsets, None if self.scales is None else self.scales[rows])

    def __iter__(self) -> Iterator[FloatArray]:
        return (self[i] for i in range(len(self)))

    def floats(self, first: int, last: int) -> FloatArray:
        """Return the vectors of the texts from `first` to `last`, float32; a copy if they are not float32."""
        rows = slice(int(self.offsets[first]), int(self.offsets[last]))
        vectors = np.asarray(self.vectors[rows]).astype(np.float32, copy=False)
        return vectors if self.scales is None else vectors * np.asarray(self.scales[rows], np.float32)[:, None]

    def quantized(self) -> MultiVectors:
        """Return the texts with vectors of int8, and a factor for each: a quarter of the memory of float32.

        The greatest size of each vector's numbers becomes 127.

        Raises
        ------
        ValueError
            A vector holds NaN or infinity.
        """
        x = self.floats(0, len(self))
        scales = np.abs(x).max(axis=1, initial=0) / np.float32(127)
        if not np.isfinite(scales).all():
            raise ValueError("a vector holds NaN or infinity, and int8 does not have these.")
        levels = np.rint(x / np.where(scales == 0, 1, scales)[:, None])
        return MultiVectors(levels.astype(np.int8), self.offsets, scales.astype(np.float32))

    def parts(self) -> Iterator[tuple[int, int]]:
        """Yield texts to compute together: the first, and the one after the last."""
        first = 0
        while first < len(self):
            limit = self.offsets[first] + _TOKENS
            last = max(first + 1, int(np.searchsorted(self.offsets, limit, side="right")) - 1)
            yield first, last
            first = last

    def __repr__(self) -> str:
        return f"MultiVectors({len(self)} texts, vectors {self.vectors.shape} {self.vectors.dtype})"


# --- scores -----------------------------------------------------------------------------------------------------------


@functools.cache
def _default_ops() -> Ops:
    return choose_ops(None, None, "float32")


@as_scores
def maxsim(
    a: Any,
    b: Any,
    a_mask: Any = None,
    b_mask: Any = None,
    chunk_elements: int | None = None,
    length_normalize: bool = False,
    device: object = None,
    *,
    ops: Ops | None = None,
) -> FloatArray:
    """Score each query with each document: sum over query tokens i of max over document tokens j of a_i . b_j.

    Parameters
    ----------
    a, b : queries and documents, as `MultiVectors.of` takes them
    a_mask, b_mask : optional
        As there.
    chunk_elements, device
        Arguments of sentence-transformers without effect here, because memory is always bounded.
    length_normalize : bool
        Divide by the number of query tokens.
    ops : Ops, optional
        What computes the products, such as ``model.model.ops``; default: the kernels, with all cores.

    Returns
    -------
    Scores, an ndarray, of shape (m, n), float32; a tensor if `a` or `b` is one
        A document without tokens has the score -1e9.

    Raises
    ------
    TypeError, ValueError
        The arguments are not such texts, their vectors differ in length, or hold NaN or infinity, or too large numbers.
    """
    queries, documents = MultiVectors.of("a", a, a_mask), MultiVectors.of("b", b, b_mask)
    scores = np.zeros((len(queries), len(documents)), np.float32)
    if len(queries.vectors) and len(documents.vectors) and queries.shape[1] != documents.shape[1]:
        raise ValueError(f"a has vectors of length {queries.shape[1]}, b of {documents.shape[1]}; expected one length.")
    with np.errstate(over="ignore", invalid="ignore"):  # such scores are refused below
        for first, last in queries.parts():
            x, offsets = queries.floats(first, last), queries.offsets[first : last + 1] - queries.offsets[first]
            if len(x):
                _score(ops or _default_ops(), x, offsets, documents, scores[first:last])
    scores[:, np.diff(documents.offsets) == 0] = EMPTY_DOCUMENT
    if not np.isfinite(scores).all():
        raise ValueError("a vector holds NaN or infinity, or numbers so large that their products are.")
    if check_bool("length_normalize", length_normalize):
        scores /= np.maximum(np.diff(queries.offsets), 1).astype(np.float32)[:, None]
    return scores


def _score(ops: Ops, queries: FloatArray, offsets: IntArray, documents: MultiVectors, scores: FloatArray) -> None:
    """Compute the scores of a few queries, of (t, D) vectors, with all documents."""
    compute = ops.max_similarity or functools.partial(max_similarity, ops)
    prepared = ops.prepare(Linear(("queries",), queries, np.zeros(len(queries), np.float32)))
    for first, last in documents.parts():
        ends = documents.offsets[first : last + 1] - documents.offsets[first]
        full = np.flatnonzero(np.diff(ends))
        if len(full):
            x = documents.floats(first, last)
            scores[:, first + full] = compute(x, np.append(ends[full], ends[-1]), prepared, offsets).T


def max_similarity(
    ops: Ops, x: FloatArray, offsets: IntArray, queries: PreparedLinear, query_offsets: IntArray
) -> FloatArray:
    """Compute MaxSim with the products of any ops, of all pairs of tokens: (documents, queries).

    Parameters
    ----------
    x : ndarray of shape (T, D)
        The tokens of documents; each document has at least one.
    offsets, query_offsets : int arrays
        As in `MultiVectors`.
    queries : the tokens of the queries, a prepared weight
    """
    best = np.maximum.reduceat(ops.linear(x, queries), offsets[:-1], axis=0).astype(np.float64)
    sums, asked = np.zeros((len(best), len(query_offsets) - 1)), np.diff(query_offsets) > 0
    sums[:, asked] = np.add.reduceat(best, query_offsets[:-1][asked], axis=1)  # it does not have empty sums
    return sums.astype(np.float32)


@as_scores
def maxsim_pairwise(a: Any, b: Any, a_mask: Any = None, b_mask: Any = None, **options: Any) -> FloatArray:
    """Score query i with document i, (n,); arguments and errors as in `maxsim`.

    Raises
    ------
    ValueError
        There are not as many queries as documents.
    """
    queries, documents = MultiVectors.of("a", a, a_mask), MultiVectors.of("b", b, b_mask)
    if len(queries) != len(documents):
        raise ValueError(f"a has {len(queries)} texts, b has {len(documents)}; expected pairs.")
    pairs = (maxsim(queries[i : i + 1], documents[i : i + 1], **options) for i in range(len(queries)))
    return np.array([float(score[0, 0]) for score in pairs], np.float32)


mean_maxsim = functools.partial(maxsim, length_normalize=True)
"""`maxsim` divided by the number of query tokens."""

mean_maxsim_pairwise = functools.partial(maxsim_pairwise, length_normalize=True)
"""`maxsim_pairwise` divided by the number of query tokens."""

MULTI_VECTOR_SIMILARITIES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "maxsim": (maxsim, maxsim_pairwise),
    "meanmaxsim": (mean_maxsim, mean_maxsim_pairwise),
}
"""The values of ``similarity_fn_name`` of a `MultiVectorEncoder`: for all pairs, and for text i with text i."""


# --- fewer vectors for a text -----------------------------------------------------------------------------------------


class TokenPooling:
    """The base class of poolings: they make fewer vectors of a text's; a subclass has ``pool_one``.

    Parameters
    ----------
    tasks : str or list of str, optional
        The tasks whose texts are pooled; others stay as they are. Default: ["document"]. A text that is encoded without
        a task is a document.
    """

    pool_one: Callable[[FloatArray], FloatArray]

    def __init__(self, *, tasks: str | list[str] | None = None) -> None:
        self.tasks = check_names("tasks", tasks)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"

    def applies_to(self, task: str | None) -> bool:
        """Return whether texts of this task are pooled."""
        return (task or "document") in self.tasks

    def pool(self, embeddings: Sequence[Any], *, task: str | None = None) -> Any:
        """Pool the vectors of several texts.

        Parameters
        ----------
        embeddings : list of arrays or tensors (S, D)
        task : str, optional
            Of the texts.

        Returns
        -------
        list of arrays or tensors (s, D)
        """
        if not self.applies_to(task):
            return embeddings
        if not isinstance(embeddings, list | tuple | MultiVectors):
            raise ValueError(f"embeddings is a {type(embeddings).__name__}; expected a list of arrays (tokens, D).")
        texts = MultiVectors.of("embeddings", embeddings)
        dtype = next((text.dtype for text in embeddings if is_tensor(text)), None)
        if not np.isfinite(texts.vectors).all():
            raise ValueError("embeddings holds NaN or infinity, which cannot be pooled.")
        pooled = [self.pool_one(text) for text in texts]
        return pooled if dtype is None else [to_tensor(text).to(dtype) for text in pooled]


def check_names(name: str, value: object) -> list[str]:
    """Return names of tasks as a list; a single one may be a str, and None means ["document"]."""
    names = ["document"] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(word, str) for word in names):
        raise TypeError(f"{name}={brief(value)}; expected a list of str, or None.")
    return list(names)


class HierarchicalTokenPooling(TokenPooling):
    """Group the tokens of a text by Ward's clustering of their cosines; a group becomes the mean of its vectors.

    The groups are those of sentence-transformers with SciPy. They can differ for repeated vectors: there the last bit
    of a float32 product decides, and NumPy and torch may round it differently.

    Parameters
    ----------
    pool_factor : float, at least 1
        About one of so many vectors is kept.
    num_protected_tokens : int
        Tokens at the start that are not grouped, such as [CLS].
    normalize_embeddings : bool
        Scale all vectors to length 1 afterwards.
    tasks
        As in `TokenPooling`.

    Raises
    ------
    TypeError, ValueError
        A number is too small.
    """

    def __init__(
        self,
        pool_factor: float = 1.0,
        *,
        num_protected_tokens: int = 1,
        normalize_embeddings: bool = True,
        tasks: str | list[str] | None = None,
    ) -> None:
        super().__init__(tasks=tasks)
        factor: Any = pool_factor
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 1 <= float(factor) < np.inf:
            raise ValueError(f"pool_factor={brief(factor)}; expected a number of at least 1.")
        self.pool_factor = float(factor)
        self.num_protected_tokens = check_int("num_protected_tokens", num_protected_tokens, 0)
        self.normalize_embeddings = check_bool("normalize_embeddings", normalize_embeddings)

    def pool_one(self, embedding: FloatArray) -> FloatArray:
        """Pool the vectors of one text: (S, D) -> (s, D)."""
        first, others = np.split(embedding.astype(np.float64), [self.num_protected_tokens])
        count = max(int(len(others) // self.pool_factor), 1)
        if count < len(others):
            x = others.astype(np.float32)  # as in sentence-transformers; it decides which distances are equal
            groups = _ward(np.clip(1 - x @ x.T, 0, 2), count)
            others = np.stack([others[group].mean(axis=0) for group in groups])
        pooled = np.concatenate([first, others]).astype(embedding.dtype)
        return np.asarray(normalize_embeddings(pooled)) if self.normalize_embeddings else pooled


class LambdaTokenPooling(TokenPooling):
    """Pool with a function of your own: the vectors of a text, (S, D), to fewer, (s, D). It cannot be saved."""

    def __init__(self, pool_fn: Callable[[FloatArray], FloatArray], *, tasks: str | list[str] | None = None) -> None:
        super().__init__(tasks=tasks)
        self.pool_fn = pool_fn

    def pool_one(self, embedding: FloatArray) -> FloatArray:
        """Pool the vectors of one text."""
        pooled = as_vectors("pool_fn's result", self.pool_fn(embedding))
        if pooled.ndim != 2 or pooled.shape[1] != embedding.shape[1]:
            raise ValueError(f"pool_fn gave shape {pooled.shape}; expected (tokens, {embedding.shape[1]}).")
        return pooled


def _ward(distances: FloatArray, count: int) -> list[list[int]]:
    """Group n items into `count` groups or, where distances are equal, fewer; the groups and their order are SciPy's.

    A path goes from an item to its nearest, and on, until two are nearest to each other. These are merged. Of equally
    near items the one before in the path is taken, else the first. At the end the merges are sorted by distance.

    Source: scipy/cluster/_hierarchy.pyx (1.17), nn_chain with label and cluster_monocrit. The roundings are the same.
    """
    n = len(distances)
    upper, sizes = np.triu(distances, 1), np.ones(n)  # a product may round differently below the diagonal
    d = upper + upper.T + np.diag(np.full(n, np.inf))  # float64
    merges, path = list[tuple[float, int, int]](), list[int]()
    while len(merges) < n - 1:
        path = path or [int(np.flatnonzero(sizes)[0])]
        nearest = int(d[path[-1]].argmin())
        if len(path) == 1 or d[path[-1], nearest] < d[path[-1], path[-2]]:
            path.append(nearest)
            continue
        i, j = sorted((path.pop(), path.pop()))
        merges.append((least := d[i, j], i, j))
        t = 1 / (sizes[i] + sizes[j] + sizes)
        a, b, c = (sizes + sizes[i]) * t, (sizes + sizes[j]) * t, sizes * t
        d[j] = d[:, j] = np.sqrt(a * d[i] * d[i] + b * d[j] * d[j] - c * least * least)
        d[i] = d[:, i] = d[j, j] = np.inf
        sizes[i], sizes[j] = 0, sizes[i] + sizes[j]
    merges.sort(key=lambda merge: merge[0])
    greatest, ids = merges[n - count - 1][0], np.arange(n)
    groups = {i: [[i]] for i in range(n)}
    for number, (distance, i, j) in enumerate(merges, n):
        first, second = sorted((int(ids[i]), int(ids[j])))
        ids[(ids == first) | (ids == second)] = number
        left, right = groups.pop(first), groups.pop(second)
        both = right + left if first < n <= second else left + right  # single items come after groups
        groups[number] = [[*chain(*both)]] if distance <= greatest else both
    return groups[2 * n - 2]
