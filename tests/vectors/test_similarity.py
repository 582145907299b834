"""Scores, quantization and search, compared with sentence_transformers.util and their formulas."""

from __future__ import annotations

import inspect
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import util

from minibert import util as ours_util
from minibert.vectors import search, similarity
from minibert.vectors.similarity import cos_sim, normalize_embeddings, quantize_embeddings, truncate_embeddings
from tests.support.refusals import Refused, check_refused
from tests.support.report import REPORT

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
def test_wrong_vectors(name: str) -> None:
    table: Refused = {
        ("a", TypeError): (["text"], "text", None, B.astype(object), np.ma.masked_greater(B, 1)),
        ("a", ValueError): (B[:, :10], B[None], 3.0, [[1.0], [1.0, 2.0]]),
    }
    check_refused(getattr(similarity, name), {"b": B}, table)


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


# Vectors of tokens, as MultiVectorEncoder.encode gives them: of one length (queries), of several, of no token.
TOKENS = {
    name: np.split(MANY, np.cumsum(lengths))[: len(lengths)]
    for name, lengths in {"one length": (40,) * 4, "several": (60, 1, 0, 90), "one text": (130,)}.items()
}
_SCALES = {"ranges": np.stack([MANY.min(0) * 0.5, MANY.max(0) * 0.5])}
OF_TOKENS = {
    **{
        f"quantize_embeddings {name}": ({"precision": name}, True)
        for name in similarity.PRECISIONS
        if name != "float16"
    },
    "quantize_embeddings ranges": ({"precision": "int8", **_SCALES}, True),
    "quantize_embeddings calibration": ({"precision": "uint8", "calibration_embeddings": MANY}, True),
    **{f"{name}{way}": (2, True) for name in ("maxsim", "mean_maxsim") for way in ("", "_pairwise")},
    **{f"{way}{name}_sim": (2, False) for name in ("cos", "euclidean", "manhattan") for way in ("", "pairwise_")},
    **dict.fromkeys(("dot_score", "pairwise_dot_score", "semantic_search"), (2, False)),
    **dict.fromkeys(("community_detection", "paraphrase_mining_embeddings"), (1, False)),
}


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("lengths", TOKENS)
@pytest.mark.parametrize("call", OF_TOKENS)
def test_lists_of_token_vectors(call: str, lengths: str, tensors: bool) -> None:
    """Functions of token vectors answer as theirs; those of vectors refuse them and name the argument."""
    given = [torch.from_numpy(text) for text in TOKENS[lengths]] if tensors else TOKENS[lengths]
    function, (options, has_them) = call.split()[0], OF_TOKENS[call]
    arguments = [given] * (options if isinstance(options, int) else 1)
    options = options if isinstance(options, dict) else {}
    if not has_them:
        with pytest.raises((TypeError, ValueError), match=r"^(a|embeddings|query_embeddings)\b"):
            getattr(ours_util, function)(*arguments, **options)
        return
    found, expected = (getattr(module, function)(*arguments, **options) for module in (ours_util, util))
    assert len(found) == len(expected)
    assert isinstance(found, list) == isinstance(expected, list)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0 if options else 1e-5)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


def test_every_function_of_embeddings_has_a_row() -> None:
    rows = {call.split()[0] for call in OF_TOKENS}
    others = {"normalize_embeddings", "truncate_embeddings"}  # any number of axes
    taking = {
        name
        for name in ours_util.__all__
        if callable(function := getattr(ours_util, name))
        and not inspect.isclass(function)
        and {"a", "embeddings", "query_embeddings"} & {*inspect.signature(function).parameters}
    }
    assert taking - others == rows | {"pytorch_cos_sim", "information_retrieval"} & taking


def test_token_vectors_that_cannot_be_quantized() -> None:
    (first, *_), wide = TOKENS["several"], np.zeros((2, 44), np.float32)
    for wrong, error in (([first, wide], ValueError), ([first, MANY[0]], ValueError), ([first.astype("U")], TypeError)):
        with pytest.raises(error, match="embeddings"):
            quantize_embeddings(wrong, "binary")
    with pytest.raises(ValueError, match="embeddings holds NaN"):
        quantize_embeddings([first, first * np.nan], "int8")


def test_values_that_cannot_be_quantized() -> None:
    table: Refused = {
        ("embeddings", ValueError): (np.where(MANY > 2, np.nan, MANY), [[1.0, 2.0], [3.0]]),
        ("embeddings", TypeError): (MANY.astype(np.int8),),
        ("ranges", TypeError): ("wide",),
        ("ranges", ValueError): (MANY[:3], [MANY.max(0), MANY.min(0)], [[-np.nan] * 43] * 2, [[-np.inf] * 43] * 2),
        ("calibration_embeddings", ValueError): (MANY * np.nan, MANY[:, :3]),
        ("precision", ValueError): ("int4",),
    }
    check_refused(quantize_embeddings, {"embeddings": MANY, "precision": "int8"}, table)
    for values, precision, message in (
        *((np.where(MANY > 2, np.nan, MANY), name, name) for name in similarity.PRECISIONS[1:]),
        *((MANY[0], "int8", "single vector"), (MANY[:1], "uint8", "single vector")),
        *((MANY * 0 + 70000, "float16", "70000"), (np.array([1.0, -1e300, np.inf]), "float32", r"1e\+300")),
    ):
        with pytest.raises(ValueError, match=message):
            quantize_embeddings(values, precision)


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


class _Encodes:
    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        return A[: len(texts)]


def test_bad_searches() -> None:
    search_: Refused = {
        ("corpus_embeddings", TypeError): (["text"],),
        ("corpus_embeddings", ValueError): (B[:, :3],),
        ("query_embeddings", ValueError): (A[None],),
        ("top_k", TypeError): (2.5,),
        ("top_k", ValueError): (0,),
        ("query_chunk_size", ValueError): (0,),
        ("score_function", TypeError): ("cos",),
        ("score_function", ValueError): (lambda a, b: a, lambda a, b: np.full((len(a), len(b)), np.nan)),
    }
    check_refused(search.semantic_search, {"query_embeddings": A, "corpus_embeddings": B}, search_)
    mining: Refused = {("max_pairs", ValueError): (0,), ("embeddings", ValueError): ([[1.0], [1.0, 2.0]],)}
    check_refused(search.paraphrase_mining_embeddings, {"embeddings": A}, mining)
    groups: Refused = {
        ("embeddings", ValueError): (A * np.nan,),
        ("min_community_size", ValueError): (0,),
        ("batch_size", TypeError): (True,),
        ("threshold", TypeError): ("high", np.nan),
    }
    check_refused(search.community_detection, {"embeddings": A}, groups)
    texts: Refused = {("model", TypeError): ("all-MiniLM-L6-v2",), ("sentences", TypeError): ("abc",)}
    check_refused(search.paraphrase_mining, {"model": _Encodes(), "sentences": ["a", "b"]}, texts)


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


@pytest.mark.parametrize(("threshold", "found"), [(10**400, 0), (np.inf, 0), (-(10**400), 1), (1e300, 0)])
def test_thresholds_outside_the_range_of_cosines(threshold: float, found: int) -> None:
    assert len(search.community_detection(A, threshold, 2)) == found
