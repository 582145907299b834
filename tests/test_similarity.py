"""Scores, quantization and search, beside sentence_transformers.util and their formulas."""

from __future__ import annotations

import os
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

from minibert.vectors import search, similarity
from minibert.vectors.similarity import cos_sim, normalize_embeddings, quantize_embeddings, truncate_embeddings
from tests.support.report import REPORT
from tests.support.text_data import VARIABLE, udhr_lines

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of torch and transformers themselves
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
        (np.ma.masked_greater(A, 1), A, TypeError),
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
    for single in (True, 3, np.float32(2), np.array(1.0)):
        with pytest.raises(ValueError, match="embeddings"):
            truncate_embeddings(single, 2)


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


@pytest.mark.parametrize(
    ("embeddings", "precision", "options", "error", "match"),
    [
        *((np.where(MANY > 2, np.nan, MANY), name, {}, ValueError, name) for name in similarity.PRECISIONS[1:]),
        (MANY, "int8", {"ranges": [MANY.max(0), MANY.min(0)]}, ValueError, "least values"),
        (MANY, "int8", {"ranges": "wide"}, TypeError, "ranges"),
        (MANY, "int8", {"ranges": MANY[:3]}, ValueError, "ranges"),
        *((MANY, "int8", {"ranges": [[-bad] * 43, [bad] * 43]}, ValueError, "ranges") for bad in (np.nan, np.inf)),
        (MANY, "int8", {"calibration_embeddings": MANY * np.nan}, ValueError, "calibration_embeddings"),
        (MANY, "int8", {"calibration_embeddings": MANY[:, :3]}, ValueError, "calibration_embeddings"),
        ([[1.0, 2.0], [3.0]], "int8", {}, ValueError, "embeddings"),
        (MANY[0], "int8", {}, ValueError, "single vector"),
        (MANY[:1], "uint8", {}, ValueError, "single vector"),
        (MANY, "int4", {}, ValueError, "precision='int4'"),
        (MANY.astype(np.int8), "int8", {}, TypeError, "int8"),
        (MANY * 0 + 70000, "float16", {}, ValueError, "70000"),
        (np.array([1.0, -1e300, np.inf]), "float32", {}, ValueError, r"1e\+300"),
    ],
)
def test_values_that_cannot_be_quantized(
    embeddings: Any, precision: str, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        quantize_embeddings(embeddings, precision, **options)


def test_quantized_ends_of_ranges() -> None:
    with pytest.warns(UserWarning, match="5 vectors"):
        quantize_embeddings(MANY[:5], "int8")
    np.testing.assert_array_equal(quantize_embeddings(np.ones((200, 3), np.float32), "uint8"), 0)  # the range is empty
    np.testing.assert_array_equal(quantize_embeddings(MANY, "float16"), MANY.astype(np.float16))
    assert quantize_embeddings(MANY[0], "float16").dtype == np.float16
    found = quantize_embeddings(np.array([1.0, np.inf, np.nan]), "float32")
    np.testing.assert_array_equal(found, np.array([1, np.inf, np.nan], np.float32))


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


def test_searching_an_empty_array() -> None:
    assert search.semantic_search([], MANY) == search.paraphrase_mining_embeddings([]) == []
    assert search.paraphrase_mining_embeddings(MANY[:1]) == search.community_detection([]) == []
    for corpus in (np.zeros((0, 43)), []):
        assert search.semantic_search(MANY[:2], corpus) == [[], []]


def test_semantic_search_in_bounded_memory() -> None:
    """A million scores for each of 50 queries are never in memory together; they alone would take 200 MB."""
    corpus, queries = np.zeros((1_000_000, 8), dtype=np.float32), np.ones((50, 8), dtype=np.float32)
    corpus[777_777] = 1
    tracemalloc.start()
    hits = search.semantic_search(queries, corpus, top_k=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    REPORT.append(f"semantic_search, 50 queries in 1,000,000: {peak / 2**20:.0f} MB in addition to the vectors")
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
    """The articles of the declaration have the same pairs and groups with our vectors and functions as with theirs."""
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
    ("name", "arguments", "options", "error", "match"),
    [
        ("semantic_search", (A, B[:, :3]), {}, ValueError, "one model"),
        ("semantic_search", (A, B), {"top_k": 0}, ValueError, "top_k"),
        ("semantic_search", (A, B), {"top_k": 2.5}, TypeError, "top_k"),
        ("semantic_search", (A, B), {"query_chunk_size": 0}, ValueError, "query_chunk_size"),
        ("semantic_search", (A, ["text"]), {}, TypeError, "corpus_embeddings"),
        ("semantic_search", (A[None], B), {}, ValueError, "query_embeddings"),
        ("semantic_search", (A, B), {"score_function": lambda a, b: a}, ValueError, "score_function"),
        ("semantic_search", (A, B), {"score_function": "cos"}, TypeError, "score_function"),
        ("semantic_search", (A * np.nan, B), {}, ValueError, "NaN"),
        ("paraphrase_mining_embeddings", (A,), {"max_pairs": 0}, ValueError, "max_pairs"),
        ("paraphrase_mining_embeddings", ([[1.0], [1.0, 2.0]],), {}, ValueError, "one length"),
        ("community_detection", (A,), {"min_community_size": 0}, ValueError, "min_community_size"),
        ("community_detection", (A,), {"batch_size": True}, TypeError, "batch_size"),
        ("community_detection", (A,), {"threshold": "high"}, TypeError, "threshold"),
        ("community_detection", (A,), {"threshold": np.nan}, TypeError, "threshold"),
        ("community_detection", (A * np.nan,), {}, ValueError, "NaN"),
        ("paraphrase_mining", ("all-MiniLM-L6-v2", ["a", "b"]), {}, TypeError, "model"),
        ("paraphrase_mining", (_Encodes(), "abc"), {}, TypeError, "sentences"),
    ],
)
def test_bad_searches(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        getattr(search, name)(*arguments, **options)


# --- numbers near the ends of their range ----------------------------------------------------------------------------

# Random vectors of length about 1 are multiplied by these factors; their squares overflow, or become 0, in that type.
EXTREME = [
    (np.float32, 2.0**100),
    (np.float32, 2.0**-100),
    (np.float32, 2.0**-120),
    (np.float64, 2.0**660),
    (np.float64, 2.0**1020),
    (np.float64, 2.0**-660),
]


@pytest.mark.parametrize(("dtype", "factor"), EXTREME)
def test_large_and_small_vectors_have_the_cosines_of_ordinary_ones(dtype: type, factor: float) -> None:
    """A factor that is a power of two changes no bit of a cosine, if no number loses digits."""
    x, y = (np.where(np.abs(v) < 0.1, 0.5, v).astype(np.float16).astype(dtype) / 4 for v in (A[:9], B[:9]))
    u, v = x * dtype(factor), y * dtype(factor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(normalize_embeddings(u), normalize_embeddings(x))
        np.testing.assert_array_equal(cos_sim(u, v), cos_sim(x, y))
        np.testing.assert_array_equal(similarity.pairwise_cos_sim(u, v), similarity.pairwise_cos_sim(x, y))
        np.testing.assert_array_equal(similarity.pairwise_cos_sim(u[0], v[0]), similarity.pairwise_cos_sim(x[0], y[0]))
    assert ranked(search.semantic_search(u, v)) == ranked(search.semantic_search(x, y))
    assert search.community_detection(u, 0.1, 2) == search.community_detection(x, 0.1, 2)


@pytest.mark.parametrize(("dtype", "factor"), EXTREME)
@pytest.mark.parametrize("name", ["euclidean_sim", "pairwise_euclidean_sim", "manhattan_sim", "pairwise_manhattan_sim"])
def test_distances_of_large_and_small_vectors(name: str, dtype: type, factor: float) -> None:
    """Distances are proportional to the vectors, unless the distance itself overflows."""
    function = getattr(similarity, name)
    x, y = (v[:9, :8].astype(np.float16).astype(dtype) / 16 for v in (A, B))
    found = function(x * dtype(factor), y * dtype(factor))
    np.testing.assert_allclose(found.astype(np.float64), function(x, y).astype(np.float64) * factor, rtol=1e-6)
    assert np.isfinite(found).all()
    assert (found < 0).all()
    one = getattr(similarity, f"pairwise_{name.removeprefix('pairwise_')}")(x[0] * dtype(factor), y[0] * dtype(factor))
    assert np.ndim(one) == 0
    np.testing.assert_allclose(one, found[0] if found.ndim == 1 else found[0, 0], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_too_large_for_a_float_are_infinite_and_never_nan(dtype: type) -> None:
    large = np.array([[0.9, 0.9, 0.0]], dtype=np.float64) * float(np.finfo(dtype).max)
    large = large.astype(dtype)
    root = np.sqrt(np.finfo(dtype).max).astype(dtype) * dtype(2)
    cancels, plain = np.array([[root, -root, 3]], dtype=dtype), np.array([[root, root, 2]], dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dot in (similarity.dot_score, similarity.pairwise_dot_score):
            assert dot(cancels, plain).item() == pytest.approx(6), "inf - inf in between"
            assert dot(large, large).item() == np.inf
            assert dot(large, -large).item() == -np.inf
        for name in ("euclidean_sim", "manhattan_sim"):
            for function in (getattr(similarity, name), getattr(similarity, f"pairwise_{name}")):
                assert function(large, -large).item() == -np.inf
                assert function(large, large).item() == 0
        with np.errstate(all="raise"):
            assert similarity.dot_score(large, large).item() == np.inf
            assert cos_sim(large, large).item() == pytest.approx(1)
    mixed = np.concatenate([cancels, large, np.ones_like(large)])
    scores = similarity.dot_score(mixed, mixed)
    assert scores.tolist() == [[np.inf, 0, 3], [0, np.inf, np.inf], [3, np.inf, 3]]
    assert similarity.dot_score(mixed, plain).ravel().tolist() == pytest.approx([6, np.inf, 2 * float(root) + 2])


def test_values_that_are_not_finite_stay_so() -> None:
    for bad in (np.nan, np.inf):
        x = A[:3].copy()
        x[1, 2] = bad
        for name in ALL:
            scores = getattr(similarity, name)(x, B)
            assert not np.isfinite(scores[1]).any()
            np.testing.assert_array_equal(scores[::2], getattr(similarity, name)(A[:3:2], B))


LEVELS = np.linspace(0, 1, 103)[:, None] * [1, 1, -1] + [0, -0.5, 0]


@pytest.mark.parametrize("precision", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("dtype", "factor"),
    [(np.float32, 2.0**127), (np.float64, 2.0**1022), (np.float64, 2.0**300), (np.float64, 2.0**-300)],
)
def test_any_finite_range_has_255_steps(dtype: type, factor: float, precision: str) -> None:
    expected = quantize_embeddings(LEVELS, precision).astype(int)
    values = (LEVELS * factor).astype(dtype)
    ranges = np.stack([values.min(axis=0), values.max(axis=0)])
    for options in ({}, {"calibration_embeddings": values}, {"ranges": ranges}):
        found = quantize_embeddings(values, precision, **options).astype(int)
        assert np.abs(found - expected).max() <= 1  # a value may be on the boundary of a step


def test_ranges_of_one_value_or_beyond_float32() -> None:
    wide = [[-3e38, -1e300, 1e300, -1.0], [3e38, 1e300, 1e300, 1.0]]
    values = np.array([[0, 0, 1e300, 0], [3.2e38, 1e301, 1e301, 2], [-3.2e38, -1e301, 0, -2]])
    expected = [[127, 127, 0, 127], [255, 255, 255, 255], [0, 0, 0, 0]]
    assert quantize_embeddings(values, "uint8", ranges=wide).tolist() == expected
    narrow = np.array([[1.0], [1.0 + 1e-12], [1.0 + 5e-13]])  # one value in float32
    assert quantize_embeddings(np.repeat(narrow, 40, 0), "uint8")[::40].ravel().tolist() == [0, 254, 127]


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_numbers_of_a_small_type_are_counted_as_ints(kind: type) -> None:
    """Rows are counted up to more than 127 and 255, where sums of these types overflow."""
    vectors, small = RNG.standard_normal((300, 5)).astype(np.float32), kind(100)
    assert search.semantic_search(vectors, vectors, small, small, kind(127)) == search.semantic_search(
        vectors, vectors, 100, 100, 127
    )
    assert search.paraphrase_mining_embeddings(vectors, small, small, small, small) == (
        search.paraphrase_mining_embeddings(vectors, 100, 100, 100, 100)
    )
    assert search.community_detection(vectors, 0.9, kind(3), small) == search.community_detection(vectors, 0.9, 3, 100)


@pytest.mark.parametrize(("threshold", "found"), [(10**400, 0), (np.inf, 0), (-(10**400), 1), (1e300, 0)])
def test_thresholds_outside_the_range_of_cosines(threshold: float, found: int) -> None:
    assert len(search.community_detection(A, threshold, 2)) == found
