"""Search among many vectors: the most similar ones, paraphrases, communities; or with an index of another library.

The first functions compute block by block in bounded memory. Those for faiss and usearch, where these are installed,
let the index find candidates among quantized vectors; their scores are computed again with the queries' floats.

The names, the arguments and the results are those of sentence_transformers.util, version 6.2. Of equal scores the one
with the lower index comes first; that library does not define their order. Tensors of torch are searched like arrays; a
score function of the caller's is then called with tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils import torch_interop
from minibert._utils.system import missing_library
from minibert._utils.torch_interop import Scores
from minibert._utils.validation import FloatArray, Int64Array, IntArray, as_array, brief, check_choice, check_int
from minibert.vectors import similarity

__all__ = ["community_detection", "paraphrase_mining", "paraphrase_mining_embeddings", "semantic_search"]
__all__ += ["semantic_search_faiss", "semantic_search_usearch"]

ScoreFunction = Callable[[Any, Any], Any]

# Limits of the scores, and of the numbers of corpus vectors, held at a time. They also apply to larger chunk sizes.
_SCORES = 2**21
_NUMBERS = 2**23

_OUR_SCORES = tuple(function for functions in similarity.SIMILARITY_FUNCTIONS.values() for function in functions)


def semantic_search(
    query_embeddings: npt.ArrayLike,
    corpus_embeddings: npt.ArrayLike,
    query_chunk_size: int = 100,
    corpus_chunk_size: int = 500000,
    top_k: int = 10,
    score_function: ScoreFunction = similarity.cos_sim,
) -> list[list[dict[str, int | float]]]:
    """Find the `top_k` corpus vectors that score highest with each query.

    Parameters
    ----------
    query_embeddings : array-like or tensor of shape (m, H), or (H,) for one query; or a list of m vectors
    corpus_embeddings : array-like or tensor of shape (n, H), or a list of n vectors
    query_chunk_size, corpus_chunk_size : int
        The most vectors that are scored at a time. They change the result only by rounding.
    top_k : int
    score_function : (queries, corpus) -> scores (m, n)
        Such as `cos_sim` or `dot_score`.

    Returns
    -------
    list of m lists of dict
        {"corpus_id": int, "score": float}, best first; at most n in a list.

    Raises
    ------
    TypeError, ValueError
        The embeddings are not vectors of one length, or a number is below 1.
    """
    query_chunk_size = check_int("query_chunk_size", query_chunk_size, 1)
    corpus_chunk_size = check_int("corpus_chunk_size", corpus_chunk_size, 1)
    top_k = check_int("top_k", top_k, 1)
    queries, corpus = as_matrix("query_embeddings", query_embeddings), as_matrix("corpus_embeddings", corpus_embeddings)
    score_function = _of_arrays(score_function, query_embeddings, corpus_embeddings)
    if len(queries) and len(corpus) and queries.shape[1] != corpus.shape[1]:
        raise ValueError(f"query_embeddings is {queries.shape}, corpus_embeddings {corpus.shape}; expected one width.")
    found: list[list[dict[str, int | float]]] = []
    for first in range(0, len(queries), query_chunk_size):
        chunk = queries[first : first + query_chunk_size]
        found += _hits(*_best(chunk, corpus, top_k, corpus_chunk_size, score_function))
    return found


def paraphrase_mining(
    model: Any,
    sentences: Sequence[str],
    show_progress_bar: bool = False,
    batch_size: int = 32,
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100000,
    max_pairs: int = 500000,
    top_k: int = 100,
    score_function: ScoreFunction = similarity.cos_sim,
    truncate_dim: int | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
) -> list[list[float | int]]:
    """Encode texts with a `SentenceTransformer` and find the most similar pairs.

    The parameters are those of its `encode` and of `paraphrase_mining_embeddings`; the result is that of the latter.

    Raises
    ------
    TypeError, ValueError
        `model` is not a model, `sentences` is one str, or as in `encode` and `paraphrase_mining_embeddings`.
    """
    if isinstance(model, str) or not hasattr(model, "encode"):
        raise TypeError(f"model is a {type(model).__name__}; expected a SentenceTransformer.")
    if isinstance(sentences, str):
        raise TypeError("sentences is one str; expected a list of several str, to find pairs among them.")
    options = {"truncate_dim": truncate_dim, "prompt_name": prompt_name, "prompt": prompt}
    found = model.encode(sentences, show_progress_bar=show_progress_bar, batch_size=batch_size, **options)
    return paraphrase_mining_embeddings(found, query_chunk_size, corpus_chunk_size, max_pairs, top_k, score_function)


def paraphrase_mining_embeddings(
    embeddings: npt.ArrayLike,
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100000,
    max_pairs: int = 500000,
    top_k: int = 100,
    score_function: ScoreFunction = similarity.cos_sim,
) -> list[list[float | int]]:
    """Find the pairs of vectors that score highest.

    Parameters
    ----------
    embeddings : array-like or tensor of shape (n, H), or a list of n vectors
    query_chunk_size, corpus_chunk_size : int
        The most vectors that are scored at a time.
    max_pairs : int
        The most pairs to return.
    top_k : int
        Number of neighbours of each vector that are considered.
    score_function : (a, b) -> scores, symmetric

    Returns
    -------
    list of [score, i, j]
        With i < j, each pair once, best first.
    """
    query_chunk_size = check_int("query_chunk_size", query_chunk_size, 1)
    corpus_chunk_size = check_int("corpus_chunk_size", corpus_chunk_size, 1)
    max_pairs, top_k = check_int("max_pairs", max_pairs, 1), check_int("top_k", top_k, 1)
    x = as_matrix("embeddings", embeddings)
    score_function = _of_arrays(score_function, embeddings)
    pairs, scores = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64)
    for first in range(0, len(x), query_chunk_size):
        chunk = x[first : first + query_chunk_size]
        ids, found = _best(chunk, x, top_k + 1, corpus_chunk_size, score_function)
        itself = np.arange(first, first + len(chunk))[:, None]
        others = ids != itself
        others &= np.cumsum(others, axis=1) <= top_k  # if the vector itself is not among them, they are one too many
        low, high = np.minimum(ids, itself)[others], np.maximum(ids, itself)[others]
        pairs = np.concatenate([pairs, low * len(x) + high])
        scores = np.concatenate([scores, found[others]])
        pairs, firsts = np.unique(pairs, return_index=True)
        scores = scores[firsts]
        if len(pairs) > max_pairs:
            best = np.sort(np.argsort(-scores, kind="stable")[:max_pairs])
            pairs, scores = pairs[best], scores[best]
    order = np.argsort(-scores, kind="stable")
    return [[float(scores[i]), int(pairs[i] // len(x)), int(pairs[i] % len(x))] for i in order]


def community_detection(
    embeddings: npt.ArrayLike,
    threshold: float = 0.75,
    min_community_size: int = 10,
    batch_size: int = 1024,
    show_progress_bar: bool = False,
) -> list[list[int]]:
    """Find groups of vectors whose cosine with a central vector is at least `threshold`.

    Parameters
    ----------
    embeddings : array-like or tensor of shape (n, H), or a list of n vectors
    threshold : float
    min_community_size : int
    batch_size : int
        The most vectors that are compared with all vectors at a time.
    show_progress_bar : bool
        Ignored; sentence-transformers has this argument.

    Returns
    -------
    list of list of int
        Indices. The largest group is first, and the central vector is first in its group. No vector is in two groups.

    Raises
    ------
    TypeError, ValueError
        `embeddings` are not vectors of finite numbers, `threshold` is not a number, or a count is below 1.
    """
    is_number = isinstance(threshold, int | float | np.integer | np.floating) and not isinstance(threshold, bool)
    if not is_number or threshold != threshold:  # NaN
        raise TypeError(f"threshold={brief(threshold)}; expected a number, the least cosine.")
    least = float(max(-2, min(threshold, 2)))  # no cosine is beyond; an int of hundreds of digits is not a float
    min_community_size = check_int("min_community_size", min_community_size, 1)
    batch_size = check_int("batch_size", batch_size, 1)
    x = as_matrix("embeddings", embeddings)
    _check_finite("embeddings", x)
    if len(x) < min_community_size:
        return []
    unit = similarity.normalize_embeddings(x)
    limit = unit.dtype.type(least)
    communities: list[tuple[int, IntArray]] = []
    rows = max(1, min(batch_size, _SCORES // len(x)))
    for first in range(0, len(x), rows):
        scores = unit[first : first + rows] @ unit.T
        for i in np.flatnonzero((scores >= limit).sum(axis=1) >= min_community_size):
            members = np.flatnonzero(scores[i] >= limit).astype(np.int32)  # there may be many
            communities.append((first + int(i), members[np.argsort(-scores[i][members], kind="stable")]))

    communities.sort(key=lambda community: len(community[1]), reverse=True)
    taken = np.zeros(len(x), dtype=np.bool_)
    kept: list[list[int]] = []
    for center, around in communities:
        if taken[center]:
            continue
        free = around[~taken[around]]
        if len(free) >= min_community_size:
            kept.append([center, *free[free != center].tolist()])
            taken[kept[-1]] = True
    return sorted(kept, key=len, reverse=True)


def _best(
    queries: FloatArray, corpus: FloatArray, top_k: int, corpus_chunk_size: int, score_function: ScoreFunction
) -> tuple[Int64Array, FloatArray]:
    """Return ids and scores of the best `top_k` of the corpus for each query, best first: (m, min(top_k, n)) each."""
    m, n = len(queries), len(corpus)
    ids, best = np.zeros((m, 0), dtype=np.int64), np.zeros((m, 0), dtype=np.float32)
    rows = max(1, min(corpus_chunk_size, _SCORES // max(1, m), _NUMBERS // max(1, corpus.shape[1])))
    for first in range(0, n if m else 0, rows):
        chunk = corpus[first : first + rows]
        scores = as_array("score_function's result", score_function(queries, chunk))
        if scores.shape != (m, len(chunk)):
            raise ValueError(f"score_function gave shape {scores.shape}; expected {(m, len(chunk))}.")
        if np.isnan(scores).any():
            raise ValueError("score_function gave NaN; a vector holds NaN or infinity, which cannot be ranked.")
        ids = np.concatenate([ids, np.broadcast_to(np.arange(first, first + len(chunk)), scores.shape)], axis=1)
        best = np.concatenate([best, scores], axis=1)
        if best.shape[1] > top_k:
            # Keep the best `top_k`, and of equal scores the lower ids. The sort follows after the last chunk.
            threshold = np.partition(best, best.shape[1] - top_k, axis=1)[:, -top_k][:, None]
            order = _first_columns(best, threshold, top_k)
            ids, best = np.take_along_axis(ids, order, axis=1), np.take_along_axis(best, order, axis=1)
    order = np.argsort(-best, axis=1, kind="stable")
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(best, order, axis=1)


def _of_arrays(score_function: ScoreFunction, *given: object) -> ScoreFunction:
    """Return a function of arrays; the caller's own function gets tensors if those were given, else `Scores`.

    Functions of torch take `Scores`, as in ``torch.mm(a, b.T)``: sentence-transformers gives tensors here.
    """
    if not callable(score_function):
        raise TypeError(f"score_function={brief(score_function)}; expected a function, such as cos_sim or dot_score.")
    if any(score_function is ours for ours in _OUR_SCORES):
        return score_function
    if any(map(torch_interop.holds_tensor, given)):
        return lambda a, b: score_function(torch_interop.to_tensor(a), torch_interop.to_tensor(b))
    return lambda a, b: score_function(a.view(Scores), b.view(Scores))


def _first_columns(scores: FloatArray, threshold: FloatArray, count: int) -> Int64Array:
    """Return the `count` columns, in order, of all scores above the threshold and of the first scores equal to it."""
    above, at = scores > threshold, scores == threshold
    missing = count - above.sum(axis=1, keepdims=True)
    chosen = above | (at & (np.cumsum(at, axis=1) <= missing))
    return np.nonzero(chosen)[1].reshape(len(scores), count)


def as_matrix(name: str, values: npt.ArrayLike) -> FloatArray:
    """Return vectors as rows. The dtype does not change, because a converted corpus would need its memory twice."""
    array = as_array(name, values)
    if array.size == 0 and array.ndim == 1:
        return array.reshape(0, 1)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}; expected (n, H), or (H,) for one vector.")
    return array


def _check_finite(name: str, vectors: npt.NDArray[Any]) -> None:
    if not np.isfinite(vectors).all():
        raise ValueError(f"{name} holds NaN or infinity, which cannot be ranked; remove these vectors.")


def _hits(ids: Int64Array, scores: FloatArray) -> list[list[dict[str, int | float]]]:
    """Return the hits of each query as dicts; the id -1 is left out."""
    rows = zip(ids.tolist(), scores.tolist(), strict=True)
    return [[{"corpus_id": i, "score": s} for i, s in zip(*row, strict=True) if i >= 0] for row in rows]


# --- with an index of another library ---------------------------------------------------------------------------------

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
    kind, dtype = (faiss.IndexBinary, np.uint8) if binary else (faiss.Index, np.float32)
    if corpus is not None:
        width = corpus.shape[1] * (8 if binary else 1)
        if binary:
            corpus_index = faiss.index_binary_factory(width, "BFlat" if exact else "BHNSW16")
        else:
            corpus_index = faiss.index_factory(width, "Flat" if exact else "HNSW16", faiss.METRIC_INNER_PRODUCT)
        corpus_index.add(np.ascontiguousarray(corpus, dtype))
    elif not isinstance(corpus_index, kind):
        given = type(corpus_index).__name__
        raise TypeError(f"corpus_index is a {given}; expected a faiss.{kind.__name__} for {corpus_precision!r}.")

    def find(sent: npt.NDArray[Any], count: int) -> tuple[Int64Array, FloatArray]:
        scores, ids = corpus_index.search(np.ascontiguousarray(sent, dtype), max(1, min(count, corpus_index.ntotal)))
        return ids, scores

    def stored(ids: Int64Array) -> npt.NDArray[Any]:
        return np.stack([corpus_index.reconstruct(int(i)) for i in ids])

    settings = top_k, ranges, calibration_embeddings, rescore, rescore_multiplier
    found = _search(_Library(corpus_index.d, find, stored), query_embeddings, corpus_precision, settings)
    return (*found, corpus_index) if output_index else found


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
        raise TypeError(f"corpus_index is {given}; expected a usearch Index of {dtype!r} for {corpus_precision!r}.")

    def find(sent: npt.NDArray[Any], count: int) -> tuple[Int64Array, FloatArray]:
        if not len(sent) or not len(corpus_index):
            return np.zeros((len(sent), 0), dtype=np.int64), np.zeros((len(sent), 0), dtype=np.float32)
        matches = corpus_index.search(_as_bytes(sent, corpus_precision), count=count, exact=bool(exact))
        keys, scores = np.atleast_2d(matches.keys), np.atleast_2d(matches.distances)
        counts = getattr(matches, "counts", keys.shape[1])  # the matches of one query alone do not have this attribute
        filled = np.arange(keys.shape[1]) < np.reshape(np.asarray(counts), (-1, 1))
        return np.where(filled, keys.astype(np.int64), -1), scores

    def stored(ids: Int64Array) -> npt.NDArray[Any]:
        return np.asarray(corpus_index.get(ids.astype(np.uint64))).astype(np.uint8 if binary else np.int8)

    settings = top_k, ranges, calibration_embeddings, rescore, rescore_multiplier
    found = _search(_Library(corpus_index.ndim, find, stored), query_embeddings, corpus_precision, settings)
    return (*found, corpus_index) if output_index else found


class _Library(NamedTuple):
    """An index of a library.

    Parameters
    ----------
    width : int
        Of its vectors, in numbers or bits.
    find : (queries (m, w), count) -> ids (m, k) and scores (m, k), best first; the id -1 means "no more matches"
    stored : ids (n,) -> vectors (n, w)
    """

    width: int
    find: Callable[[npt.NDArray[Any], int], tuple[Int64Array, FloatArray]]
    stored: Callable[[Int64Array], npt.NDArray[Any]]


def _search(
    library: _Library, embeddings: npt.ArrayLike, precision: str, settings: tuple[Any, ...]
) -> tuple[list[list[dict[str, int | float]]], float]:
    top_k, ranges, calibration_embeddings, rescore, multiplier = settings
    queries = as_matrix("query_embeddings", embeddings)
    top_k = check_int("top_k", top_k, 1)
    candidates = top_k * check_int("rescore_multiplier", multiplier, 1)
    quantized, bits = queries.dtype.kind != "f", precision in ("binary", "ubinary")
    if quantized and queries.dtype != _STORED.get(precision):
        raise TypeError(f"query_embeddings holds {queries.dtype}; expected floats, or the type of a quantized corpus.")
    _check_finite("query_embeddings", queries)
    width = queries.shape[1] if quantized or not bits else (queries.shape[1] + 7) // 8
    if width * (8 if bits else 1) != library.width and len(queries):
        raise ValueError(
            f"query_embeddings has vectors of {queries.shape[1]} numbers, which do not fit the corpus, of "
            f"{library.width} {'bits' if bits else 'features'}; both must come from one model."
        )
    sent, found = queries, None
    if not quantized:
        if precision in ("int8", "uint8") and len(queries):
            found = similarity.quantization_ranges(queries, precision, ranges, calibration_embeddings)
        sent = similarity.quantize_embeddings(queries, precision, found)
    again = bool(rescore) and not quantized and precision != "float32"
    start = time.perf_counter()
    ids, scores = library.find(sent, candidates if again else top_k)
    if again and (ids >= 0).any():
        ids, scores = _rescored(library, queries, ids, precision, found)
    return _hits(ids[:, :top_k], scores[:, :top_k]), time.perf_counter() - start


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
    _check_finite("corpus_embeddings", corpus)
    return corpus


def _as_bytes(vectors: npt.NDArray[Any], precision: str) -> npt.NDArray[Any]:
    """Return vectors as usearch takes them; bits of "binary" without the offset of its signed bytes."""
    if precision == "float32":
        return np.ascontiguousarray(vectors, dtype=np.float32)
    vectors = np.ascontiguousarray(vectors)
    return vectors.view(np.uint8) ^ np.uint8(0x80) if precision == "binary" else vectors
