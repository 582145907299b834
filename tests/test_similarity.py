"""Scores, quantization and search against sentence_transformers.util, and against their formulas written out."""

from __future__ import annotations

import os
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

from minibert import search, similarity
from minibert.similarity import cos_sim, normalize_embeddings, quantize_embeddings, truncate_embeddings
from tests.report import REPORT
from tests.text_data import VARIABLE, udhr_lines

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of torch's and transformers' own making
    from sentence_transformers import util

RNG = np.random.default_rng(5)
A, B = RNG.standard_normal((17, 48)).astype(np.float32), RNG.standard_normal((23, 48)).astype(np.float32)
ALL = ["cos_sim", "dot_score", "euclidean_sim", "manhattan_sim"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", ["many", "one and many", "single vectors", "lists", "float64", "float16", "zeros"])
def test_scores_equal_theirs(name: str, shape: str) -> None:
    a, b = {
        "many": (A, B),
        "one and many": (A[0], B),
        "single vectors": (A[0], B[0]),
        "lists": (A.tolist(), list(B)),
        "float64": (A.astype(np.float64), B.astype(np.float64)),
        "float16": (A.astype(np.float16), B.astype(np.float16)),
        "zeros": (np.zeros_like(A), B),
    }[shape]
    ours, theirs = getattr(similarity, name)(a, b), getattr(util, name)(a, b).numpy()
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=1e-5)
    pairs = (a, b) if shape == "single vectors" else (np.asarray(a)[:10], np.asarray(b)[:10])
    if np.ndim(a) == np.ndim(b):
        ours, theirs = getattr(similarity, f"pairwise_{name}")(*pairs), getattr(util, f"pairwise_{name}")(*pairs)
        np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-5, rtol=1e-5)


def test_scores_are_their_formulas() -> None:
    x, y = A.astype(np.float64), B.astype(np.float64)
    lengths = np.sqrt((x**2).sum(1))[:, None] * np.sqrt((y**2).sum(1))
    np.testing.assert_allclose(cos_sim(A, B), x @ y.T / lengths, atol=1e-6)
    difference = x[:, None] - y[None]
    np.testing.assert_allclose(similarity.euclidean_sim(A, B), -np.sqrt((difference**2).sum(2)), atol=1e-5)
    np.testing.assert_allclose(similarity.manhattan_sim(A, B), -np.abs(difference).sum(2), atol=1e-4)


def test_distances_do_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = similarity.manhattan_sim(A, B)
    for block in (1, 48, 200, 48 * 23 * 2):
        monkeypatch.setattr(similarity, "_BLOCK", block)
        np.testing.assert_array_equal(similarity.manhattan_sim(A, B), whole)


def test_integers_are_computed_as_floats() -> None:
    """int8 times int8 in int8, which torch computes, overflows."""
    bits = quantize_embeddings(np.concatenate([A] * 6), "int8")
    expected = bits.astype(np.float64) @ bits.astype(np.float64).T
    np.testing.assert_allclose(similarity.dot_score(bits, bits), expected, rtol=1e-6)


@pytest.mark.parametrize("name", [*ALL, *(f"pairwise_{name}" for name in ALL)])
@pytest.mark.parametrize(
    ("a", "b", "error"),
    [
        (A, B[:, :10], ValueError),
        (A[None], B, ValueError),
        (3.0, B, ValueError),
        (["text"], B, TypeError),
        ("text", B, TypeError),
        (None, B, TypeError),
        ([[1.0], [1.0, 2.0]], B, ValueError),
        (A.astype(object), B, TypeError),
    ],
)
def test_wrong_vectors(name: str, a: Any, b: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"\ba\b"):
        getattr(similarity, name)(a, b)


def test_normalize_and_truncate() -> None:
    np.testing.assert_allclose(np.linalg.norm(normalize_embeddings(A), axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(normalize_embeddings(np.zeros((2, 3))), np.zeros((2, 3)))
    np.testing.assert_array_equal(truncate_embeddings(A, 7), A[:, :7])
    np.testing.assert_array_equal(truncate_embeddings(A, None), A)
    np.testing.assert_array_equal(truncate_embeddings(A[0], 100), A[0])
    for wrong, error in ((0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError), ("3", TypeError)):
        with pytest.raises(error, match="truncate_dim="):
            truncate_embeddings(A, wrong)


# --- quantization ----------------------------------------------------------------------------------------------------

MANY = RNG.standard_normal((300, 43)).astype(np.float32)


@pytest.mark.parametrize("precision", [name for name in similarity.PRECISIONS if name != "float16"])
def test_quantized_as_theirs(precision: str) -> None:
    ours, theirs = quantize_embeddings(MANY, precision), util.quantize_embeddings(MANY, precision)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)
    ranges = np.stack([MANY.min(0) * 0.5, MANY.max(0) * 0.5])
    for options in ({"ranges": ranges}, {"calibration_embeddings": MANY[:200]}):
        for embeddings in (MANY[:5], MANY[0], np.zeros((0, 43), dtype=np.float32)):
            np.testing.assert_array_equal(
                quantize_embeddings(embeddings, precision, **options),
                util.quantize_embeddings(embeddings, precision, **options),
            )


def test_float16_is_rounded_once() -> None:
    np.testing.assert_array_equal(quantize_embeddings(MANY, "float16"), MANY.astype(np.float16))
    assert quantize_embeddings(MANY[0], "float16").dtype == np.float16
    with pytest.raises(ValueError, match=r"holds 70000; the greatest number of float16 is 65504"):
        quantize_embeddings(MANY * 0 + 70000, "float16")


def test_what_cannot_be_quantized() -> None:
    for precision in similarity.PRECISIONS[1:]:
        with pytest.raises(ValueError, match=f"NaN or infinity, which {precision}"):
            quantize_embeddings(np.where(MANY > 2, np.nan, MANY), precision)
    with pytest.raises(ValueError, match="least values"):
        quantize_embeddings(MANY, "int8", ranges=[MANY.max(0), MANY.min(0)])
    with pytest.raises(TypeError, match="ranges holds"):
        quantize_embeddings(MANY, "int8", ranges="wide")
    with pytest.raises(ValueError, match="calibration_embeddings holds NaN"):
        quantize_embeddings(MANY, "int8", calibration_embeddings=MANY * np.nan)
    with pytest.raises(ValueError, match="embeddings is not an array of vectors"):
        quantize_embeddings([[1.0, 2.0], [3.0]], "int8")
    with pytest.raises(ValueError, match="single vector"):
        quantize_embeddings(MANY[0], "int8")
    with pytest.raises(ValueError, match="single vector"):
        quantize_embeddings(MANY[:1], "uint8")
    with pytest.raises(ValueError, match="precision='int4'"):
        quantize_embeddings(MANY, "int4")
    with pytest.raises(TypeError, match="int8"):
        quantize_embeddings(MANY.astype(np.int8), "int8")
    with pytest.raises(ValueError, match="ranges has shape"):
        quantize_embeddings(MANY, "int8", ranges=MANY[:3])
    with pytest.raises(ValueError, match="calibration_embeddings has shape"):
        quantize_embeddings(MANY, "int8", calibration_embeddings=MANY[:, :3])
    with pytest.warns(UserWarning, match="come from 5 vectors only"):
        quantize_embeddings(MANY[:5], "int8")
    np.testing.assert_array_equal(quantize_embeddings(np.ones((200, 3), np.float32), "uint8"), 0)  # no range at all


# --- search ----------------------------------------------------------------------------------------------------------


def ranked(hits: list[list[dict[str, Any]]]) -> list[list[int]]:
    return [[hit["corpus_id"] for hit in row] for row in hits]


@pytest.mark.parametrize("top_k", [1, 7, 300, 1000])
@pytest.mark.parametrize("function", ["cos_sim", "dot_score"])
def test_semantic_search_equals_theirs(top_k: int, function: str) -> None:
    queries = RNG.standard_normal((12, 43)).astype(np.float32)
    ours = search.semantic_search(queries, MANY, top_k=top_k, score_function=getattr(similarity, function))
    theirs = util.semantic_search(queries, MANY, top_k=top_k, score_function=getattr(util, function))
    assert ranked(ours) == ranked(theirs)
    scores, expected = ([[hit["score"] for hit in row] for row in hits] for hits in (ours, theirs))
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert all(type(hit["corpus_id"]) is int and type(hit["score"]) is float for hit in ours[0])


def test_semantic_search_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = MANY[:9] + np.float32(0.3)
    whole = search.semantic_search(queries, MANY, top_k=20)
    chunked = search.semantic_search(queries, MANY, query_chunk_size=2, corpus_chunk_size=7, top_k=20)
    assert ranked(whole) == ranked(chunked)
    monkeypatch.setattr(search, "_SCORES", 50)
    assert ranked(search.semantic_search(queries, MANY, top_k=20)) == ranked(whole)


def test_of_equal_scores_the_lower_id_comes_first() -> None:
    same = np.ones((30, 4), dtype=np.float32)
    for chunk in (1, 4, 100):
        hits = search.semantic_search(same[0], same, top_k=5, corpus_chunk_size=chunk)
        assert ranked(hits) == [[0, 1, 2, 3, 4]]


def test_searching_nothing() -> None:
    assert search.semantic_search([], MANY) == []
    assert search.semantic_search(MANY[:2], np.zeros((0, 43))) == [[], []]
    assert search.semantic_search(MANY[:2], []) == [[], []]
    assert search.paraphrase_mining_embeddings([]) == []
    assert search.paraphrase_mining_embeddings(MANY[:1]) == []
    assert search.community_detection([]) == []


def test_semantic_search_in_bounded_memory() -> None:
    """A million scores for each of 50 queries are never held together: they alone would take 200 MB."""
    corpus, queries = np.zeros((1_000_000, 8), dtype=np.float32), np.ones((50, 8), dtype=np.float32)
    corpus[777_777] = 1
    tracemalloc.start()
    hits = search.semantic_search(queries, corpus, top_k=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    REPORT.append(f"semantic_search, 50 queries in 1,000,000: {peak / 2**20:.0f} MB beyond the vectors")
    assert all(row[0]["corpus_id"] == 777_777 for row in hits)
    assert peak < 150 * 2**20


@pytest.mark.parametrize("options", [{}, {"max_pairs": 40}, {"top_k": 3}, {"query_chunk_size": 13, "top_k": 5}])
def test_paraphrase_mining_equals_theirs(options: dict[str, int]) -> None:
    ours = search.paraphrase_mining_embeddings(MANY[:120], **options)
    import torch

    theirs = util.paraphrase_mining_embeddings(torch.from_numpy(MANY[:120]), **options)
    assert {(i, j) for _, i, j in ours} == {(i, j) for _, i, j in theirs}
    np.testing.assert_allclose([pair[0] for pair in ours], [pair[0] for pair in theirs], atol=1e-6)
    assert all(i < j for _, i, j in ours)


@pytest.mark.parametrize("threshold", [0.3, 0.8])
@pytest.mark.parametrize("batch_size", [10, 1024])
def test_community_detection_equals_theirs(threshold: float, batch_size: int) -> None:
    centers = RNG.standard_normal((6, 43)) * 2
    points = np.concatenate(
        [center + 0.5 * RNG.standard_normal((n, 43)) for n, center in zip(range(5, 35, 5), centers, strict=True)]
    )
    points = points[RNG.permutation(len(points))].astype(np.float32)
    for smallest in (2, 10):
        options = {"threshold": threshold, "min_community_size": smallest, "batch_size": batch_size}
        ours, theirs = search.community_detection(points, **options), util.community_detection(points, **options)
        assert [len(group) for group in ours] == [len(group) for group in theirs]
        assert [(group[0], set(group)) for group in ours] == [(group[0], set(group)) for group in theirs]
        assert ours


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} is not set")
def test_paraphrases_and_communities_of_real_texts() -> None:
    """The declaration's articles: the same pairs and groups from our vectors and functions as from theirs."""
    import torch

    from minibert import SentenceTransformer

    texts = [text for text in dict.fromkeys(udhr_lines()) if len(text) < 200][:150]
    model = SentenceTransformer()
    vectors = model.encode(texts)
    ours, theirs = search.community_detection(vectors, 0.6, 3), util.community_detection(vectors, 0.6, 3)
    assert [set(group) for group in ours] == [set(group) for group in theirs]
    # Where scores are equal theirs leaves the order open, and texts of unknown words only have equal vectors.
    firsts = np.flatnonzero(np.triu(vectors @ vectors.T > 0.999, 1).sum(axis=0) == 0)
    assert len(firsts) > 50
    pairs = search.paraphrase_mining(model, [texts[i] for i in firsts], top_k=2)
    expected = util.paraphrase_mining_embeddings(torch.from_numpy(vectors[firsts]), top_k=2)
    assert {tuple(pair[1:]) for pair in pairs} == {tuple(pair[1:]) for pair in expected}
    np.testing.assert_allclose([pair[0] for pair in pairs], [pair[0] for pair in expected], atol=2e-6)


class _Encodes:
    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        return A[: len(texts)]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: search.semantic_search(A, B[:, :3]), ValueError, "must come from one model"),
        (lambda: search.semantic_search(A, B, top_k=0), ValueError, "top_k=0"),
        (lambda: search.semantic_search(A, B, top_k=2.5), TypeError, "top_k=2.5"),
        (lambda: search.semantic_search(A, B, query_chunk_size=0), ValueError, "query_chunk_size=0"),
        (lambda: search.semantic_search(A, ["text"]), TypeError, "corpus_embeddings"),
        (lambda: search.semantic_search(A[None], B), ValueError, "query_embeddings has shape"),
        (lambda: search.semantic_search(A, B, score_function=lambda a, b: a), ValueError, "score_function gave"),
        (lambda: search.semantic_search(A * np.nan, B), ValueError, "NaN"),
        (lambda: search.paraphrase_mining_embeddings(A, max_pairs=0), ValueError, "max_pairs=0"),
        (lambda: search.paraphrase_mining_embeddings([[1.0], [1.0, 2.0]]), ValueError, "one length"),
        (lambda: search.community_detection(A, min_community_size=0), ValueError, "min_community_size=0"),
        (lambda: search.community_detection(A, batch_size=True), TypeError, "batch_size=True"),
        (lambda: search.community_detection(A, threshold="high"), TypeError, "threshold='high'"),
        (lambda: search.community_detection(A, threshold=np.nan), TypeError, "threshold=nan"),
        (lambda: search.community_detection(A * np.nan), ValueError, "NaN"),
        (lambda: search.semantic_search(A, B, score_function="cos"), TypeError, "score_function='cos'"),
        (lambda: search.paraphrase_mining("all-MiniLM-L6-v2", ["a", "b"]), TypeError, "model is a str"),
        (lambda: search.paraphrase_mining(_Encodes(), "abc"), TypeError, "sentences is one str"),
    ],
)
def test_bad_searches(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
