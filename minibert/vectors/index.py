"""Search with an index of another library, over quantized vectors: faiss and usearch, where they are installed.

The names, the arguments and the results are those of sentence_transformers.util, version 6.2. The index finds
candidates among quantized vectors; then their scores are computed again with the queries' floats.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.system import missing_library
from minibert._utils.validation import FloatArray, Int64Array, check_choice, check_int
from minibert.vectors.quantization import quantization_ranges, quantize_embeddings
from minibert.vectors.search import as_matrix

__all__ = ["semantic_search_faiss", "semantic_search_usearch"]

# The types of a quantized corpus, by its precision. A float32 corpus may be of any floats.
_STORED = {"uint8": np.uint8, "int8": np.int8, "ubinary": np.uint8, "binary": np.int8}


def semantic_search_faiss(
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
    """Find the `top_k` corpus vectors that score highest with each query, by their dot products, with faiss.

    Parameters
    ----------
    query_embeddings : array-like or tensor of shape (m, H), or (H,) for one query
        Floats; or vectors quantized like the corpus, which are not rescored.
    corpus_embeddings : array-like or tensor of shape (n, H), or (n, H / 8 rounded up) for "ubinary"
        As `quantize_embeddings` gives them.
    corpus_index : faiss.Index or faiss.IndexBinary
        The index of an earlier call, instead of `corpus_embeddings`.
    corpus_precision : {"float32", "uint8", "ubinary"}
    top_k : int
    ranges : array-like of shape (2, H), optional
        Least and greatest value of each feature, for "uint8": those with which the corpus was quantized.
    calibration_embeddings : array-like of shape (k, H), optional
        Vectors from which the ranges are computed; default: the queries, which gives poor ranges.
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
        {"corpus_id": int, "score": float}, best first; at most n in a list. Without rescoring the scores are those of
        the index: for "ubinary" the number of bits that differ.

    Raises
    ------
    ImportError
        faiss is not installed.
    TypeError, ValueError
        An argument is wrong, or the corpus, the index and the queries do not fit each other.
    """
    try:
        import faiss
    except ImportError as error:
        raise missing_library("this search", error, "faiss-cpu") from error
    check_choice("corpus_precision", corpus_precision, ("float32", "uint8", "ubinary"))
    corpus = _one_corpus(corpus_embeddings, corpus_index, corpus_precision)
    binary = corpus_precision == "ubinary"
    kind = faiss.IndexBinary if binary else faiss.Index
    if corpus is not None:
        width = corpus.shape[1] * (8 if binary else 1)
        if binary:
            corpus_index = faiss.IndexBinaryFlat(width) if exact else faiss.IndexBinaryHNSW(width, 16)
        elif exact:
            corpus_index = faiss.IndexFlatIP(width)
        else:
            corpus_index = faiss.IndexHNSWFlat(width, 16, faiss.METRIC_INNER_PRODUCT)
        corpus_index.add(np.ascontiguousarray(corpus, dtype=np.uint8 if binary else np.float32))
    elif not isinstance(corpus_index, kind):
        raise TypeError(
            f"corpus_index is a {type(corpus_index).__name__}; expected a faiss.{kind.__name__} for "
            f"corpus_precision={corpus_precision!r}."
        )
    query = _Query.of(
        query_embeddings, corpus_precision, corpus_index.d, top_k, rescore, rescore_multiplier, ranges,
        calibration_embeddings,
    )  # fmt: skip

    def stored(ids: Int64Array) -> npt.NDArray[Any]:
        found = np.zeros((*ids.shape, query.sent.shape[1]), dtype=np.uint8 if binary else np.float32)
        for place in zip(*np.nonzero(ids >= 0), strict=True):  # faiss may crash for -1, which means "no more matches"
            found[place] = corpus_index.reconstruct(int(ids[place]))
        return found

    start = time.perf_counter()
    sent = query.sent if binary else query.sent.astype(np.float32, copy=False)
    scores, ids = corpus_index.search(np.ascontiguousarray(sent), query.candidates)
    answers = query.answers(ids, scores, ids >= 0, stored)
    seconds = time.perf_counter() - start
    return (answers, seconds, corpus_index) if output_index else (answers, seconds)


def semantic_search_usearch(
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
    try:
        from usearch.index import Index
    except ImportError as error:
        raise missing_library("this search", error, "usearch") from error
    check_choice("corpus_precision", corpus_precision, ("float32", "int8", "binary", "ubinary"))
    corpus = _one_corpus(corpus_embeddings, corpus_index, corpus_precision)
    binary = corpus_precision in ("binary", "ubinary")
    metric, dtype = {"float32": ("cos", "f32"), "int8": ("ip", "i8")}.get(corpus_precision, ("hamming", "b1"))
    if corpus is not None:
        corpus_index = Index(ndim=corpus.shape[1] * (8 if binary else 1), metric=metric, dtype=dtype)
        if len(corpus):
            corpus_index.add(np.arange(len(corpus)), _as_bytes(corpus, corpus_precision))
    elif not isinstance(corpus_index, Index) or corpus_index.dtype.name.lower() != dtype:
        given = corpus_index.dtype.name if isinstance(corpus_index, Index) else type(corpus_index).__name__
        raise TypeError(
            f"corpus_index is {given}; expected a usearch.index.Index with dtype={dtype!r} for "
            f"corpus_precision={corpus_precision!r}."
        )
    query = _Query.of(
        query_embeddings, corpus_precision, corpus_index.ndim, top_k, rescore, rescore_multiplier, ranges,
        calibration_embeddings,
    )  # fmt: skip

    def stored(ids: Int64Array) -> npt.NDArray[Any]:
        found = np.zeros((*ids.shape, query.sent.shape[1]), dtype=np.uint8 if binary else np.int8)
        valid = ids >= 0
        if valid.any():
            found[valid] = np.asarray(corpus_index.get(ids[valid].astype(np.uint64))).astype(found.dtype)
        return found

    start = time.perf_counter()
    ids, scores = np.full((len(query.sent), 0), -1, dtype=np.int64), np.zeros((len(query.sent), 0), dtype=np.float32)
    if len(query.sent) and len(corpus_index):
        sent = _as_bytes(query.sent, corpus_precision)
        matches = corpus_index.search(sent, count=query.candidates, exact=bool(exact))
        keys, scores = np.atleast_2d(matches.keys), np.atleast_2d(matches.distances)
        counts = getattr(matches, "counts", keys.shape[1])  # the matches of one query alone do not have this attribute
        filled = np.arange(keys.shape[1]) < np.reshape(np.asarray(counts), (-1, 1))
        ids = np.where(filled, keys.astype(np.int64), -1)
    answers = query.answers(ids, scores, ids >= 0, stored)
    seconds = time.perf_counter() - start
    return (answers, seconds, corpus_index) if output_index else (answers, seconds)


@dataclasses.dataclass(frozen=True, eq=False)
class _Query:
    """The queries of one search, as the index takes them and as they are rescored.

    Parameters
    ----------
    sent : ndarray of shape (m, width)
        Of the corpus's precision.
    floats : ndarray of shape (m, H), or None
        The queries, if candidates are rescored.
    precision : str
    ranges : ndarray of shape (2, H), or None
    candidates, top_k : int
        How many matches the index is asked for, and how many are answered.
    """

    sent: npt.NDArray[Any]
    floats: FloatArray | None
    precision: str
    ranges: FloatArray | None
    candidates: int
    top_k: int

    @classmethod
    def of(
        cls,
        embeddings: npt.ArrayLike,
        precision: str,
        index_width: int,
        top_k: int,
        rescore: bool,
        multiplier: int,
        ranges: npt.ArrayLike | None,
        calibration_embeddings: npt.ArrayLike | None,
    ) -> _Query:
        queries = as_matrix("query_embeddings", embeddings)
        top_k = check_int("top_k", top_k, 1)
        candidates = top_k * check_int("rescore_multiplier", multiplier, 1)
        quantized = queries.dtype.kind != "f"
        if quantized and queries.dtype != _STORED.get(precision):
            raise TypeError(
                f"query_embeddings holds {queries.dtype}; expected floats"
                + (f", or {np.dtype(_STORED[precision])} as the corpus." if precision in _STORED else ".")
            )
        if not np.isfinite(queries).all():
            raise ValueError("query_embeddings holds NaN or infinity, which cannot be ranked.")
        bits = precision in ("binary", "ubinary")
        width = queries.shape[1] if quantized or not bits else (queries.shape[1] + 7) // 8
        if width * (8 if bits else 1) != index_width and len(queries):
            raise ValueError(
                f"query_embeddings has vectors of {queries.shape[1]} {'bytes' if quantized and bits else 'features'}, "
                f"which does not fit the corpus, of {index_width} {'bits' if bits else 'features'}; both must come "
                "from one model."
            )
        if quantized or not len(queries):
            sent = queries if quantized else np.zeros((0, width), dtype=_STORED.get(precision, np.float32))
            return cls(sent, None, precision, None, top_k, top_k)
        found = None
        if precision in ("int8", "uint8"):
            found = quantization_ranges(queries, precision, ranges, calibration_embeddings)
        sent = quantize_embeddings(queries, precision, found)
        if precision == "float32" or not rescore:
            return cls(sent, None, precision, found, top_k, top_k)
        return cls(sent, queries, precision, found, candidates, top_k)

    def answers(
        self,
        ids: Int64Array,
        scores: FloatArray,
        valid: npt.NDArray[np.bool_],
        stored: Callable[[Int64Array], npt.NDArray[Any]],
    ) -> list[list[dict[str, int | float]]]:
        """Rescore candidates, if that was asked for, and return the best of each query: ids and scores (m, k)."""
        if self.floats is not None and ids.size:
            try:
                candidates = self._as_floats(stored(ids))
            except RuntimeError as error:
                raise ValueError(
                    f"this index does not give its vectors back ({str(error).splitlines()[0]}); give rescore=False."
                ) from error
            rescored = np.einsum("ij,ikj->ik", self.floats.astype(np.float64), candidates)
            rescored[~valid] = -np.inf
            order = np.argsort(-rescored, axis=1, kind="stable")[:, : self.top_k]
            ids, scores, valid = (np.take_along_axis(x, order, axis=1) for x in (ids, rescored, valid))
        return [
            [{"corpus_id": int(i), "score": float(s)} for i, s, ok in zip(*row, strict=True) if ok]
            for row in zip(ids[:, : self.top_k], scores[:, : self.top_k], valid[:, : self.top_k], strict=True)
        ]

    def _as_floats(self, candidates: npt.NDArray[Any]) -> FloatArray:
        """Turn stored vectors into numbers: bits 0 and 1, or the lower ends of the steps: (m, k, H)."""
        assert self.floats is not None
        if self.ranges is None:
            return np.unpackbits(candidates, axis=-1)[..., : self.floats.shape[1]].astype(np.float64)
        least, greatest = self.ranges.astype(np.float32)
        steps = (greatest - least) / 255
        levels = candidates.astype(np.float64) + (128 if self.precision == "int8" else 0)
        return levels * np.where(steps == 0, 1, steps) + least


def _one_corpus(embeddings: npt.ArrayLike | None, index: object, precision: str) -> npt.NDArray[Any] | None:
    """Return the corpus as rows of the type of its precision, or None if an index is given instead."""
    if (embeddings is None) == (index is None):
        raise ValueError(
            "corpus_embeddings and corpus_index are "
            + ("both given; give one of them." if index is not None else "both missing; give one of them.")
        )
    if embeddings is None:
        return None
    corpus = as_matrix("corpus_embeddings", embeddings)
    expected = _STORED.get(precision)
    if corpus.dtype != expected if expected else corpus.dtype.kind != "f":
        raise TypeError(
            f"corpus_embeddings holds {corpus.dtype}; expected {np.dtype(expected) if expected else 'floats'} for "
            f"corpus_precision={precision!r}, as quantize_embeddings(embeddings, precision={precision!r}) gives them."
        )
    if corpus.dtype.kind == "f" and not np.isfinite(corpus).all():
        raise ValueError("corpus_embeddings holds NaN or infinity, which cannot be ranked.")
    return corpus


def _as_bytes(vectors: npt.NDArray[Any], precision: str) -> npt.NDArray[Any]:
    """Return vectors as usearch takes them; bits of "binary" without the offset of its signed bytes."""
    if precision == "float32":
        return np.ascontiguousarray(vectors, dtype=np.float32)
    vectors = np.ascontiguousarray(vectors)
    return vectors.view(np.uint8) ^ np.uint8(0x80) if precision == "binary" else vectors
