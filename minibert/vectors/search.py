"""Search among many vectors, block by block in bounded memory: the most similar ones, paraphrases, communities.

The names, arguments and results are as in sentence_transformers.util, version 6.2. Of equal scores the one
with the lower index comes first; that library does not define their order. Tensors of torch are searched like arrays; a
score function of the caller's is then called with tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils import torch_interop
from minibert._utils.torch_interop import Scores
from minibert._utils.validation import FloatArray, Int64Array, IntArray, as_array, brief, check_int
from minibert.vectors import similarity
from minibert.vectors.multi_vectors import MULTI_VECTOR_SIMILARITIES, MultiVectors

__all__ = ["community_detection", "paraphrase_mining", "paraphrase_mining_embeddings", "semantic_search"]

ScoreFunction = Callable[[Any, Any], Any]

# Limits of the scores, and of the numbers of corpus vectors, held at a time. They also apply to larger chunk sizes.
_SCORES = 2**21
_NUMBERS = 2**23

_OF_TOKENS = tuple(function for functions in MULTI_VECTOR_SIMILARITIES.values() for function in functions)
_OUR_SCORES = tuple(function for functions in similarity.SIMILARITY_FUNCTIONS.values() for function in functions)
_OUR_SCORES += _OF_TOKENS


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
        With `maxsim` or `mean_maxsim` both are texts with a vector for each token, as `MultiVectors.of` takes them.
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
    of_tokens = any(score_function is ours for ours in _OF_TOKENS)
    as_rows: Any = MultiVectors.of if of_tokens else as_matrix  # both have a length, a shape and slices
    queries, corpus = as_rows("query_embeddings", query_embeddings), as_rows("corpus_embeddings", corpus_embeddings)
    score_function = _of_arrays(score_function, query_embeddings, corpus_embeddings)
    if len(queries) and len(corpus) and queries.shape[1] != corpus.shape[1]:
        raise ValueError(f"query_embeddings is {queries.shape}, corpus_embeddings {corpus.shape}; expected one width.")
    hits: list[list[dict[str, int | float]]] = []
    for first in range(0, len(queries), query_chunk_size):
        chunk = queries[first : first + query_chunk_size]
        hits += as_hits(*_best(chunk, corpus, top_k, corpus_chunk_size, score_function))
    return hits


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

    The parameters are as in `encode` and `paraphrase_mining_embeddings`; the result is as in the latter.

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
    vectors = model.encode(sentences, show_progress_bar=show_progress_bar, batch_size=batch_size, **options)
    return paraphrase_mining_embeddings(vectors, query_chunk_size, corpus_chunk_size, max_pairs, top_k, score_function)


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
        ids, best_scores = _best(chunk, x, top_k + 1, corpus_chunk_size, score_function)
        itself = np.arange(first, first + len(chunk))[:, None]
        others = ids != itself
        others &= np.cumsum(others, axis=1) <= top_k  # if the vector itself is not among them, they are one too many
        low, high = np.minimum(ids, itself)[others], np.maximum(ids, itself)[others]
        pairs = np.concatenate([pairs, low * len(x) + high])
        scores = np.concatenate([scores, best_scores[others]])
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
    check_finite("embeddings", x)
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


def _of_arrays(score_function: ScoreFunction, *inputs: object) -> ScoreFunction:
    """Return a function of arrays; the caller's own function gets tensors if those were given, else `Scores`.

    Functions of torch take `Scores`, as in ``torch.mm(a, b.T)``: sentence-transformers gives tensors here.
    """
    if not callable(score_function):
        raise TypeError(f"score_function={brief(score_function)}; expected a function, such as cos_sim or dot_score.")
    if any(score_function is ours for ours in _OUR_SCORES):
        return score_function
    if any(map(torch_interop.holds_tensor, inputs)):
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


def check_finite(name: str, vectors: npt.NDArray[Any]) -> None:
    """Raise an error for vectors with NaN or infinity."""
    if not np.isfinite(vectors).all():
        raise ValueError(f"{name} holds NaN or infinity, which cannot be ranked; remove these vectors.")


def as_hits(ids: Int64Array, scores: FloatArray) -> list[list[dict[str, int | float]]]:
    """Return the hits of each query as dicts; the id -1 is left out."""
    rows = zip(ids.tolist(), scores.tolist(), strict=True)
    return [[{"corpus_id": i, "score": s} for i, s in zip(*row, strict=True) if i >= 0] for row in rows]
