"""Search with an index of another library, faiss or usearch, where these are installed.

The index finds candidates among quantized vectors; their scores are computed again with the queries' floats. The names,
arguments and results are as in sentence_transformers.util, version 6.2.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils.system import is_forked, missing_library
from minibert._utils.validation import FloatArray, Int64Array, check_choice, check_int
from minibert.vectors import similarity
from minibert.vectors.search import as_hits, as_matrix, check_finite

__all__ = ["semantic_search_faiss", "semantic_search_usearch"]

# The types of a quantized corpus, by its precision. A float32 corpus may be of any floats.
_STORED = {"uint8": np.uint8, "int8": np.int8, "ubinary": np.uint8, "binary": np.int8}


class _Library(NamedTuple):
    """An index of a library.

    Parameters
    ----------
    index : the object of the library
    width : int
        Of its vectors, in numbers or bits.
    find : (queries (m, w), count) -> ids (m, k) and scores (m, k), best first; the id -1 means "no more matches"
    stored : ids (n,) -> vectors (n, w)
    """

    index: Any
    width: int
    find: Callable[[npt.NDArray[Any], int], tuple[Int64Array, FloatArray]]
    stored: Callable[[Int64Array], npt.NDArray[Any]]


def _open_faiss(corpus: npt.NDArray[Any] | None, index: Any, precision: str, exact: bool) -> _Library:
    """Make an index of a corpus, or check the caller's."""
    try:
        import faiss
    except ImportError as error:
        raise missing_library("this search", error, "faiss-cpu") from error
    if is_forked():
        faiss.omp_set_num_threads(1)  # a child does not have the threads of its parent, and OpenMP would wait for them
    check_choice("corpus_precision", precision, ("float32", "uint8", "ubinary"))
    binary = precision == "ubinary"
    kind, dtype = (faiss.IndexBinary, np.uint8) if binary else (faiss.Index, np.float32)
    if corpus is not None:
        width = corpus.shape[1] * (8 if binary else 1)
        if binary:
            index = faiss.index_binary_factory(width, "BFlat" if exact else "BHNSW16")
        else:
            index = faiss.index_factory(width, "Flat" if exact else "HNSW16", faiss.METRIC_INNER_PRODUCT)
        index.add(np.ascontiguousarray(corpus, dtype))
    elif not isinstance(index, kind):
        kind_of_index = type(index).__name__
        raise TypeError(f"corpus_index is a {kind_of_index}; expected a faiss.{kind.__name__} for {precision!r}.")

    def find(sent: npt.NDArray[Any], count: int) -> tuple[Int64Array, FloatArray]:
        scores, ids = index.search(np.ascontiguousarray(sent, dtype), max(1, min(count, index.ntotal)))
        return ids, scores

    return _Library(index, index.d, find, lambda ids: np.stack([index.reconstruct(int(i)) for i in ids]))


def _open_usearch(corpus: npt.NDArray[Any] | None, index: Any, precision: str, exact: bool) -> _Library:
    """Make an index of a corpus, or check the caller's."""
    try:
        from usearch.index import Index
    except ImportError as error:
        raise missing_library("this search", error, "usearch") from error
    check_choice("corpus_precision", precision, ("float32", "int8", "binary", "ubinary"))
    binary = precision in ("binary", "ubinary")
    metric, dtype = {"float32": ("cos", "f32"), "int8": ("ip", "i8")}.get(precision, ("hamming", "b1"))
    if corpus is not None:
        index = Index(ndim=corpus.shape[1] * (8 if binary else 1), metric=metric, dtype=dtype)
        if len(corpus):
            index.add(np.arange(len(corpus)), _as_bytes(corpus, precision))
    elif not isinstance(index, Index) or index.dtype.name.lower() != dtype:
        kind = index.dtype.name if isinstance(index, Index) else type(index).__name__
        raise TypeError(f"corpus_index is {kind}; expected a usearch Index of {dtype!r} for {precision!r}.")

    def find(sent: npt.NDArray[Any], count: int) -> tuple[Int64Array, FloatArray]:
        if not len(sent) or not len(index):
            return np.zeros((len(sent), 0), dtype=np.int64), np.zeros((len(sent), 0), dtype=np.float32)
        matches = index.search(_as_bytes(sent, precision), count=count, exact=bool(exact))
        keys, scores = np.atleast_2d(matches.keys), np.atleast_2d(matches.distances)
        counts = getattr(matches, "counts", keys.shape[1])  # the matches of one query alone do not have this attribute
        filled = np.arange(keys.shape[1]) < np.reshape(np.asarray(counts), (-1, 1))
        return np.where(filled, keys.astype(np.int64), -1), scores

    def stored(ids: Int64Array) -> npt.NDArray[Any]:
        return np.asarray(index.get(ids.astype(np.uint64))).astype(np.uint8 if binary else np.int8)

    return _Library(index, index.ndim, find, stored)


def _search(
    opener: Callable[..., _Library],
    query_embeddings: npt.ArrayLike,
    corpus_embeddings: npt.ArrayLike | None = None,
    corpus_index: Any = None,
    corpus_precision: str = "float32",
    top_k: int = 10,
    ranges: npt.ArrayLike | None = None,
    calibration_embeddings: npt.ArrayLike | None = None,
    rescore: bool = True,
    rescore_multiplier: int = 2,
    exact: bool = True,
    output_index: bool = False,
) -> Any:
    """Search with the library that `opener` opens."""
    precision = corpus_precision
    library = opener(_one_corpus(corpus_embeddings, corpus_index, precision), corpus_index, precision, exact)
    queries = as_matrix("query_embeddings", query_embeddings)
    top_k = check_int("top_k", top_k, 1)
    candidates = top_k * check_int("rescore_multiplier", rescore_multiplier, 1)
    quantized, bits = queries.dtype.kind != "f", precision in ("binary", "ubinary")
    if quantized and queries.dtype != _STORED.get(precision):
        raise TypeError(f"query_embeddings holds {queries.dtype}; expected floats, or the type of a quantized corpus.")
    check_finite("query_embeddings", queries)
    width = queries.shape[1] if quantized or not bits else (queries.shape[1] + 7) // 8
    if width * (8 if bits else 1) != library.width and len(queries):
        raise ValueError(
            f"query_embeddings has vectors of {queries.shape[1]} numbers, which do not fit the corpus, of "
            f"{library.width} {'bits' if bits else 'features'}; both must come from one model."
        )
    sent, limits = queries, None
    if not quantized:
        if precision in ("int8", "uint8") and len(queries):
            limits = similarity.quantization_ranges(queries, precision, ranges, calibration_embeddings)
        sent = similarity.quantize_embeddings(queries, precision, limits)
    again = bool(rescore) and not quantized and precision != "float32"
    start = time.perf_counter()
    ids, scores = library.find(sent, candidates if again else top_k)
    if again and (ids >= 0).any():
        ids, scores = _rescored(library, queries, ids, precision, limits)
    hits, seconds = as_hits(ids[:, :top_k], scores[:, :top_k]), time.perf_counter() - start
    return (hits, seconds, library.index) if output_index else (hits, seconds)


def _searches(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function of any arguments the signature of `_search`, without the opener."""
    function.__signature__ = inspect.signature(functools.partial(_search, _open_faiss))  # type: ignore[attr-defined]
    return function


@_searches
def semantic_search_faiss(*arguments: Any, **options: Any) -> Any:
    """Find the `top_k` corpus vectors that score highest with each query, by their dot products, with faiss.

    Parameters
    ----------
    query_embeddings : array-like or tensor of shape (m, H), or (H,) for one query
        Floats; or vectors quantized like the corpus. These are not rescored.
    corpus_embeddings : array-like or tensor of shape (n, H), or (n, H / 8 rounded up) for "ubinary"
        As `quantize_embeddings` gives them.
    corpus_index : faiss.Index or faiss.IndexBinary
        The index of an earlier call, instead of `corpus_embeddings`.
    corpus_precision : {"float32", "uint8", "ubinary"}
    top_k : int
    ranges : array-like of shape (2, H), optional
        Least and greatest value of each feature, for "uint8": those with which the corpus was quantized.
    calibration_embeddings : array-like of shape (k, H), optional
        Vectors from which the ranges are computed. Default: the queries; they give poor ranges.
    rescore : bool
        Ask the index for `rescore_multiplier` times as many candidates, and score them with the queries' floats. It has
        no effect on a float32 corpus and on quantized queries.
    rescore_multiplier : int
    exact : bool
        Compare each query with each vector; False makes an HNSW index. Only for `corpus_embeddings`.
    output_index : bool
        Also return the index.

    Returns
    -------
    list of m lists of dict, seconds[, index]
        {"corpus_id": int, "score": float}, best first; at most n in a list. Without rescoring these are the scores
        of the index: for "ubinary" the number of bits that differ.

    Raises
    ------
    ImportError
        faiss is not installed.
    TypeError, ValueError
        An argument is wrong, or the corpus, the index and the queries do not fit each other.
    """
    return _search(_open_faiss, *arguments, **options)


@_searches
def semantic_search_usearch(*arguments: Any, **options: Any) -> Any:
    """Find the `top_k` corpus vectors that are nearest to each query, with usearch.

    Parameters
    ----------
    corpus_embeddings : array-like or tensor of shape (n, H), or (n, H / 8 rounded up) for "binary" and "ubinary"
    corpus_index : usearch.index.Index
    corpus_precision : {"float32", "int8", "binary", "ubinary"}
        The index compares float32 vectors by cosine, int8 ones by dot product, bits by their number that differ.
    exact : bool
        Compare each query with each vector instead of using the graph of the index.
    **others
        As in `semantic_search_faiss`, with "int8" instead of "uint8".

    Returns
    -------
    list of m lists of dict, seconds[, index]
        As in `semantic_search_faiss`. Without rescoring "score" is the distance of usearch; the least is first.

    Raises
    ------
    ImportError
        usearch is not installed.
    TypeError, ValueError
        As in `semantic_search_faiss`.
    """
    return _search(_open_usearch, *arguments, **options)


def _rescored(
    library: _Library, queries: FloatArray, ids: Int64Array, precision: str, ranges: FloatArray | None
) -> tuple[Int64Array, FloatArray]:
    """Sort the candidates by their dot products with the queries' floats: (m, k), (m, k)."""
    valid = ids >= 0
    try:
        stored = library.stored(ids[valid])
    except RuntimeError as error:
        raise ValueError(f"the index keeps no vectors ({str(error).splitlines()[0]}); give rescore=False.") from error
    candidates = np.zeros((*ids.shape, queries.shape[1]))
    if ranges is None:  # bits 0 and 1
        candidates[valid] = np.unpackbits(stored, axis=-1)[:, : queries.shape[1]]
    else:  # the lower ends of the steps
        least, greatest = ranges.astype(np.float32)
        steps = (greatest - least) / 255
        levels = stored.astype(np.float64) + (128 if precision == "int8" else 0)
        candidates[valid] = levels * np.where(steps == 0, 1, steps) + least
    scores = np.einsum("ij,ikj->ik", queries.astype(np.float64), candidates)
    scores[~valid] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _one_corpus(embeddings: npt.ArrayLike | None, index: object, precision: str) -> npt.NDArray[Any] | None:
    """Return the corpus as rows of the type of its precision, or None if an index is given instead."""
    if (embeddings is None) == (index is None):
        raise ValueError("give either corpus_embeddings or corpus_index, and not both.")
    if embeddings is None:
        return None
    corpus = as_matrix("corpus_embeddings", embeddings)
    expected = _STORED.get(precision)
    if corpus.dtype != expected if expected else corpus.dtype.kind != "f":
        raise TypeError(
            f"corpus_embeddings holds {corpus.dtype}; corpus_precision={precision!r} is what quantize_embeddings gives."
        )
    check_finite("corpus_embeddings", corpus)
    return corpus


def _as_bytes(vectors: npt.NDArray[Any], precision: str) -> npt.NDArray[Any]:
    """Return vectors as usearch takes them; bits of "binary" without the offset of its signed bytes."""
    if precision == "float32":
        return np.ascontiguousarray(vectors, dtype=np.float32)
    vectors = np.ascontiguousarray(vectors)
    return vectors.view(np.uint8) ^ np.uint8(0x80) if precision == "binary" else vectors
