"""`MultiVectorEncoder` against sentence-transformers: vectors, scores, options, and the three formats of folders."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import util as their_util
from sentence_transformers.multi_vector_encoder import modules as their_modules

from minibert import ModelFormatError, MultiVectorEncoder, SentenceTransformer, SparseEncoder, inside, util
from minibert.bert import reference
from minibert.bert.ops import AttentionInput, RelativeBias, Rotation, Window
from minibert.encode.token_plan import ExpandedOps
from minibert.kernels import make_ops
from minibert.sentence.bge_m3 import BGEM3FlagModel
from minibert.vectors.multi_vectors import HierarchicalTokenPooling, LambdaTokenPooling, MultiVectors
from tests.support.checkpoints import sentence_model
from tests.support.multi_vectors import FIXED, PREFIXES, PUNCTUATION, bert_folder, native, pylate, stanford
from tests.support.report import REPORT
from tests.support.sentence_heads import texts, theirs
from tests.support.text_data import VARIABLE

# Some punctuation is not in the small vocabularies.
pytestmark = pytest.mark.filterwarnings("ignore:skiplist_words")

REAL = bool(os.environ.get(VARIABLE))
METHODS = ("encode_query", "encode_document", "encode")
ATTEND = {**FIXED, "attend": True}
METADATA = {"query_maxlen": 20, "doc_maxlen": 50, "mask_punctuation": True, "attend_to_mask_tokens": False}
MASK = {"skiplist_words": PUNCTUATION}
Made = Callable[[Path, Path], Path]

FORMATS: dict[str, Made] = {
    "native": lambda bert, to: native(bert, to, mask=MASK, document_length=40, query_expansion=FIXED),
    "attend": lambda bert, to: native(bert, to, query_expansion=ATTEND),
    "min": lambda bert, to: native(bert, to, query_expansion={"strategy": "min", "length": 12, "token": "[SEP]"}),
    "lengths": lambda bert, to: native(bert, to, query_length=9, document_length=30),
    "pooling": lambda bert, to: native(bert, to, pooling=2.5, query_expansion=FIXED, mask={"skiplist_tasks": "query"}),
    "pylate 3": lambda bert, to: pylate(
        bert, to, query_prefix=PREFIXES["query"], document_prefix=PREFIXES["document"], query_length=20
    ),
    "pylate, attends": lambda bert, to: pylate(
        bert, to, query_length=20, attend_to_expansion_tokens=True, skiplist_words=["."], prompts={"query": "a "}
    ),
    "pylate, no expansion": lambda bert, to: pylate(bert, to, query_length=8, do_query_expansion=False),
    "pylate 1": lambda bert, to: pylate(
        bert, to, kind=None, query_prefix="[unused1] ", document_length=30, similarity_fn_name="cosine"
    ),
    "sentence": lambda bert, to: pylate(bert, to, kind=None, pooling=True),
    "stanford": lambda bert, to: stanford(bert, to, METADATA),
    "stanford, no settings": lambda bert, to: stanford(bert, to),
    "stanford, attends": lambda bert, to: stanford(
        bert, to, {"attend_to_mask_tokens": True, "mask_punctuation": False, "query_token_id": "[unused3]"}
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("multi")
    bert = bert_folder(home / "bert", real=REAL)
    return {name: make(bert, home / str(i)) for i, (name, make) in enumerate(FORMATS.items())}


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> MultiVectorEncoder:
    return MultiVectorEncoder(folders["native"])


def some_texts(count: int) -> list[str]:
    return [*texts(count), "", "a", "a cat, [MASK]. (the river)!", "[unused1] [unused2] a.b", texts(3)[1]]


def arrays(found: Any) -> list[np.ndarray]:
    return [np.asarray(one) for one in found]


def compare(found: Any, expected: Any, most: float = 2e-6) -> float:
    """Compare the vectors of texts with tensors, and return the largest difference."""
    worst = 0.0
    assert len(found) == len(expected)
    for ours, other in zip(found, expected, strict=True):
        assert ours.shape == tuple(other.shape)
        assert ours.dtype == np.float32
        worst = max(worst, np.abs(np.asarray(ours) - other.numpy()).max(initial=0))
    assert worst <= most
    return float(worst)


@pytest.mark.parametrize("name", FORMATS)
def test_vectors_and_scores_of_sentence_transformers(folders: dict[str, Path], name: str) -> None:
    ours, other = MultiVectorEncoder(folders[name]), theirs("MultiVectorEncoder", folders[name])
    given = some_texts(60 if name == "native" else 20)
    found, expected = {}, {}
    for method in METHODS:
        found[method] = getattr(ours, method)(given, truncation="silent")
        expected[method] = getattr(other, method)(given)
        worst = compare(found[method], expected[method])
        REPORT.append(f"MultiVectorEncoder, {name}, {method}: {len(given)} texts, at most {worst:.1e} from theirs")
    assert ours.prompts == other.prompts
    assert ours.similarity_fn_name == other.similarity_fn_name == "maxsim"
    assert ours.get_embedding_dimension() == other.get_embedding_dimension()
    settings = ("query_length", "document_length", "query_expansion")
    assert [getattr(ours[0], s) for s in settings] == [getattr(other[0], s) for s in settings]
    for function in ("maxsim", "meanmaxsim"):
        ours.similarity_fn_name = other.similarity_fn_name = function
        queries, documents = found["encode_query"][:20], found["encode_document"]
        scores = ours.similarity(queries, documents)
        theirs_ = other.similarity(expected["encode_query"][:20], expected["encode_document"])
        tokens = 1 if function == "meanmaxsim" else 24
        np.testing.assert_allclose(scores, theirs_, rtol=1e-6, atol=1e-6 * tokens)
        assert (scores.shape, scores.dtype) == (tuple(theirs_.shape), np.float32)
        pairs = ours.similarity_pairwise(queries, documents[:20])
        np.testing.assert_array_equal(pairs, np.diagonal(scores))


@pytest.mark.parametrize("name", ["native", "pooling", "pylate 3", "stanford", "lengths"])
def test_a_saved_model_is_the_same_model_here_and_there(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    first, given = MultiVectorEncoder(folders[name]), some_texts(20)
    first.save_pretrained(tmp_path)
    again, other = MultiVectorEncoder(tmp_path), theirs("MultiVectorEncoder", tmp_path)
    for method in METHODS:
        vectors = getattr(first, method)(given, truncation="silent")
        for ours, same in zip(vectors, getattr(again, method)(given, truncation="silent"), strict=True):
            np.testing.assert_array_equal(ours, same)
        compare(vectors, getattr(other, method)(given))
    assert again.prompts == first.prompts
    assert [type(module) for module in again] == [type(module) for module in first]
    assert len(again) == len(first) == len(list(other))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["native", "attend", "min"])
def test_a_text_has_the_same_bits_alone_and_in_any_batch(folders: dict[str, Path], name: str, threads: int) -> None:
    ours, given = MultiVectorEncoder(folders[name], num_threads=threads), some_texts(30)
    one = MultiVectorEncoder(folders[name], num_threads=1)
    queries = ours.encode_query(given, truncation="silent")
    documents = ours.encode_document(given, truncation="silent")
    for i, text in enumerate(given):
        np.testing.assert_array_equal(queries[i], one.encode_query(text, truncation="silent"))
        np.testing.assert_array_equal(documents[i], one.encode_document(text, truncation="silent"))
    scores = ours.similarity(queries, documents)
    for i in (0, 7, 20):
        for j in range(0, len(given), 5):
            assert one.similarity(queries[i], documents[j])[0, 0] == scores[i, j]
    np.testing.assert_array_equal(ours.similarity(queries[3:5], documents[10:])[:, 2], scores[3:5, 12])


OPTIONS: list[dict[str, Any]] = [
    {"prompt": "the cat "},
    {"prompt_name": "document"},
    {"normalize_embeddings": True},
    {"task": "image"},
    {"batch_size": 1},
    {"show_progress_bar": False, "chunk_size": 3, "device": "cpu"},
]


def test_options_of_sentence_transformers(model: MultiVectorEncoder, folders: dict[str, Path]) -> None:
    other, given = theirs("MultiVectorEncoder", folders["native"]), some_texts(12)
    for options in OPTIONS:
        for method in METHODS[2:] if "task" in options else METHODS:
            found = getattr(model, method)(given, truncation="silent", **options)
            compare(found, getattr(other, method)(given, **options))


def test_settings_can_be_changed(folders: dict[str, Path]) -> None:
    ours, other, given = (
        MultiVectorEncoder(folders["native"]),
        theirs("MultiVectorEncoder", folders["native"]),
        texts(9),
    )
    comma = ours.tokenizer.vocab["a"]
    for one in (ours, other):
        one[0].query_expansion = {"strategy": "min", "length": 8, "attend": True}
        one[0].query_length = 30
        one[0].document_length = 12
        one[2].skiplist_words, one[2].skiplist_tasks = ["the", "no such token"], ["query", "document"]
        one[2].keep_only_token_ids = None
    other[2].resolve_with_tokenizer(other.tokenizer)
    for method in METHODS:
        compare(getattr(ours, method)(given, truncation="silent"), getattr(other, method)(given))
    ours[2].keep_only_token_ids = other[2].keep_only_token_ids = [comma]
    compare(ours.encode_document(["a cat", "a a a", "no"]), other.encode_document(["a cat", "a a a", "no"]))
    with pytest.warns(UserWarning, match="12 tokens"):
        ours.encode_document("a cat " * 20)


def test_dicts_tensors_and_single_texts(folders: dict[str, Path]) -> None:
    ours, other = MultiVectorEncoder(folders["native"]), theirs("MultiVectorEncoder", folders["native"])
    for method in METHODS[:2]:
        for pooling in (None, 2.0):
            how: dict[str, Any] = {"normalize_embeddings": True}  # without effect
            their = dict(how)
            if pooling is not None:
                how["token_pooling"] = HierarchicalTokenPooling(pooling)
                their["token_pooling"] = their_modules.HierarchicalTokenPooling(pooling)
            found = getattr(ours, method)(["a cat.", "the river, the"], output_value=None, **how)
            expected = getattr(other, method)(["a cat.", "the river, the"], output_value=None, **their)
            for one, their_one in zip(found, expected, strict=True):
                width, length = len(one["attention_mask"]), len(one["input_ids"])
                assert one.keys() == their_one.keys()
                mask = their_one["attention_mask"].bool()
                assert not mask[width:].any()  # their padding
                np.testing.assert_array_equal(one["attention_mask"], mask[:width])
                np.testing.assert_array_equal(one["input_ids"], their_one["input_ids"][:length])
                vectors = their_one["token_embeddings"][:width]
                np.testing.assert_allclose(one["token_embeddings"], vectors, rtol=0, atol=2e-6)
                assert (one["modality"], one["prompt_length"]) == ("text", their_one["prompt_length"])
    for output_value in (None, "token_embeddings"):  # equal texts do not share an array
        first, second = ours.encode(["a cat", "a cat"], output_value=output_value)
        arrays = [x if isinstance(x, np.ndarray) else x["token_embeddings"] for x in (first, second)]
        arrays[0][:] = 0
        assert arrays[1].any()
    single = ours.encode_query("a cat")
    np.testing.assert_array_equal(single, ours.encode_query(["a cat"])[0])
    tensors = ours.encode_document(["a cat", "the"], convert_to_numpy=False)
    assert isinstance(tensors, list)
    assert all(isinstance(one, torch.Tensor) for one in tensors)
    assert isinstance(ours.encode_query("a", convert_to_numpy=False), torch.Tensor)
    assert isinstance(ours.encode_query("a", output_value=None), dict)
    assert isinstance(ours.similarity(tensors, tensors), torch.Tensor)
    assert ours.encode([]) == []
    chunks = ours.encode_chunks(iter(["a cat", "the", "a cat"]), chunk_size=2)
    for found, expected in zip(
        (one for chunk in chunks for one in chunk.vectors), ["a cat", "the", "a cat"], strict=True
    ):
        np.testing.assert_array_equal(found, ours.encode_document(expected))
    assert ours.similarity([], tensors).shape == (0, 2)


@pytest.mark.parametrize("factor", [1, 1.5, 2, 4, 100])
def test_pooling_of_sentence_transformers(folders: dict[str, Path], factor: float) -> None:
    rng = np.random.default_rng(3)
    given = [rng.standard_normal((n, 12)).astype(np.float32) for n in (1, 2, 3, 9, 33, 120)]
    given += [one / np.linalg.norm(one, axis=1, keepdims=True) for one in given]
    # Equal distances, and repeated vectors: their products are exact.
    given += [np.pad(rng.choice([-0.5, 0.5], (n, 4)), [(0, 0), (0, 8)]).astype(np.float32) for n in (2, 9, 33, 120)]
    given += [rng.integers(-1, 2, (33, 12)).astype(np.float32), np.zeros((9, 12), np.float32)]
    for options in ({}, {"num_protected_tokens": 0}, {"num_protected_tokens": 3, "normalize_embeddings": False}):
        found = HierarchicalTokenPooling(factor, **options).pool(given)
        expected = their_modules.HierarchicalTokenPooling(factor, **options).pool([torch.tensor(one) for one in given])
        compare(found, expected, 1e-6)
    tensors = HierarchicalTokenPooling(factor).pool([torch.tensor(one) for one in given])
    assert all(isinstance(one, torch.Tensor) for one in tensors)
    half = [torch.tensor(one).bfloat16() for one in given]
    expected = their_modules.HierarchicalTokenPooling(factor).pool(half)
    found = HierarchicalTokenPooling(factor).pool(half)
    assert [(one.dtype, one.shape) for one in found] == [(torch.bfloat16, one.shape) for one in expected]


def test_pooling_of_tasks_and_of_functions(model: MultiVectorEncoder) -> None:
    halves = LambdaTokenPooling(lambda vectors: vectors[::2], tasks="query")
    assert len(model.encode_query("a cat", token_pooling=halves)) == 12
    assert len(model.encode_document("a cat", token_pooling=halves)) == len(model.encode_document("a cat"))
    pooling = HierarchicalTokenPooling(2)
    found = model.encode_document("the river a cat no the", token_pooling=pooling)
    np.testing.assert_array_equal(found, pooling.pool([model.encode_document("the river a cat no the")])[0])
    with pytest.raises(ValueError, match="shape"):
        model.encode_query("a", token_pooling=LambdaTokenPooling(lambda vectors: vectors[0], tasks="query"))


def random_vectors(*lengths: int, width: int = 24, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, width)).astype(np.float32) for n in lengths]


def test_scores_of_sentence_transformers() -> None:
    queries, documents = random_vectors(3, 1, 32, 7), random_vectors(5, 1, 180, 33, 12, seed=1)
    padded = np.zeros((2, 6, 24), np.float32)
    padded[0, :4], padded[1, :6] = queries[2][:4], queries[2][6:12]
    a_mask, b_mask = np.array([[1, 1, 0, 1, 0, 0], [1] * 6]), [np.arange(len(one)) % 3 != 1 for one in documents]
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        (queries, documents, {}),
        (queries, documents, {"chunk_elements": 100, "device": "cpu"}),
        (queries, documents, {"length_normalize": True}),
        (queries[2], documents, {}),
        (padded, documents, {"length_normalize": True}),
        (padded, documents, {"a_mask": a_mask, "b_mask": b_mask, "length_normalize": True}),
        (queries, [*documents, np.zeros((0, 24), np.float32)], {}),
        ([one.astype(np.float16) for one in queries], [one.astype(np.float16) for one in documents], {}),
        (queries, [np.rint(one * 9).astype(np.int8) for one in documents], {}),
        (queries, [], {}),
    ]
    for a, b, options in cases:
        for name in ("maxsim", "mean_maxsim"):
            found, expected = (
                getattr(util, name)(a, b, **options),
                getattr(their_util.similarity, name)(a, b, **options),
            )
            rounding = 5e-3 if isinstance(a, list) and a[0].dtype == np.float16 else 2e-6
            np.testing.assert_allclose(found, expected, rtol=rounding, atol=1e-5)
            if len(a) == len(b):
                name += "_pairwise"
                np.testing.assert_allclose(getattr(util, name)(a, b), getattr(their_util.similarity, name)(a, b), 2e-6)
    exact = np.array([[(a.astype(float) @ b.T.astype(float)).max(axis=1).sum() for b in documents] for a in queries])
    np.testing.assert_allclose(util.maxsim(queries, documents), exact, rtol=1e-6)
    tensors = [torch.tensor(one) for one in documents]
    np.testing.assert_array_equal(util.maxsim(queries, tensors).numpy(), util.maxsim(queries, documents))
    pairs = util.maxsim_pairwise(queries, documents[:4])
    np.testing.assert_array_equal(pairs, np.diagonal(util.maxsim(queries, documents)))


def test_many_vectors_in_one_array(tmp_path: Path) -> None:
    given = random_vectors(5, 0, 180, 33, 2)
    kept = MultiVectors.of("given", given)
    assert (len(kept), kept.shape, kept.offsets.tolist()) == (5, (5, 24), [0, 5, 5, 185, 218, 220])
    for i, one in enumerate(kept):
        np.testing.assert_array_equal(one, given[i])
    np.testing.assert_array_equal(kept[[2, 0]][1], given[0])
    assert np.shares_memory(kept[2:4].vectors, kept.vectors)
    np.testing.assert_array_equal(kept[-1], given[4])
    np.save(tmp_path / "tokens.npy", kept.vectors)
    mapped = MultiVectors(np.load(tmp_path / "tokens.npy", mmap_mode="r"), kept.offsets)
    queries = random_vectors(4, 9, seed=5)
    np.testing.assert_array_equal(util.maxsim(queries, mapped), util.maxsim(queries, given))
    small = kept.quantized()
    assert small.vectors.dtype == np.int8
    assert np.abs(small.floats(0, 5) - kept.vectors).max() <= np.abs(kept.vectors).max() / 127
    scale = np.abs(util.maxsim(queries, given)).max()
    full = np.diff(kept.offsets) > 0
    loss = np.abs(util.maxsim(queries, small) - util.maxsim(queries, given))[:, full].max() / scale
    assert 0 < loss < 0.01
    hits = util.semantic_search(queries, kept, top_k=3, score_function=util.maxsim)
    scores = util.maxsim(queries, given)
    for row, found in zip(scores, hits, strict=True):
        assert [hit["corpus_id"] for hit in found] == np.argsort(-row, kind="stable")[:3].tolist()
        assert [hit["score"] for hit in found] == [row[hit["corpus_id"]] for hit in found]
    assert util.semantic_search(queries, given, top_k=3, score_function=util.maxsim) == hits
    assert util.semantic_search(queries[0], kept, top_k=3, score_function=util.maxsim) == hits[:1]


BAD_CALLS: list[tuple[Callable[[MultiVectorEncoder], object], str]] = [
    (lambda model: model.encode(["a"], output_value="sentence_embedding"), "output_value"),
    (lambda model: model.encode(["a"], truncation="split"), "truncation"),
    (lambda model: model.encode(["a"], token_pooling=2), "token_pooling"),
    (lambda model: model.encode(["a"], task=3), "task"),
    (lambda model: model.encode([1]), r"inputs\[0\]"),
    (lambda model: model.encode(["a"], batch_size=0), "batch_size"),
    (lambda model: model.encode(["a"], convert_to_tensor=True), "convert_to_tensor"),
    (lambda model: model.encode(["a"], normalize_embeddings="yes"), "normalize_embeddings"),
    (lambda model: model.encode_query("a " * 90, truncation="error"), "24"),
    (lambda model: setattr(model, "similarity_fn_name", "cosine"), "similarity_fn_name"),
    (lambda model: setattr(model[0], "query_expansion", {"strategy": "bogus", "length": 3}), "strategy"),
    (lambda model: setattr(model[0], "query_expansion", {"strategy": "fixed"}), "length"),
    (lambda model: setattr(model[0], "query_expansion", {"strategy": "fixed", "length": 65}), "length"),
    (lambda model: setattr(model[0], "query_expansion", {"strategy": "fixed", "length": True}), "length"),
    (lambda model: setattr(model[0], "query_expansion", {**FIXED, "count": 3}), "unknown keys"),
    (lambda model: setattr(model[0], "query_expansion", {**FIXED, "token": "no such token"}), "vocabulary"),
    (lambda model: setattr(model[0], "query_expansion", {**FIXED, "attend": 1}), "attend"),
    (lambda model: model.append(3), "module"),
    (lambda model: model.similarity([np.zeros((2, 3))], [np.zeros((2, 4))]), "length"),
    (lambda model: model.similarity([np.zeros((2, 3))], [np.zeros(4)]), "shapes"),
    (lambda model: model.similarity([np.full((2, 3), np.nan)], [np.ones((2, 3))]), "NaN"),
    (lambda model: model.similarity([np.ones((2, 3))], [np.full((2, 3), np.inf)]), "infinity"),
    (lambda model: model.similarity([np.full((2, 3), 1e30)], [np.full((2, 3), 1e30)]), "large"),
    (lambda model: model.similarity([np.ones((2, 3))], [np.ones((2, 3))], b_mask=[[1]]), "mask"),
    (lambda model: model.similarity(["a"], [np.ones((2, 3))]), "a"),
    (lambda model: model.similarity_pairwise([np.ones((2, 3))], []), "pairs"),
    (lambda model: model.similarity([np.ones((2, 3))], [np.ones((2, 3))], chunk_size=2), "chunk_size"),
    (lambda model: HierarchicalTokenPooling(0.5), "pool_factor"),
    (lambda model: HierarchicalTokenPooling(2, num_protected_tokens=-1), "num_protected_tokens"),
    (lambda model: HierarchicalTokenPooling(2, tasks=[1]), "tasks"),
    (lambda model: HierarchicalTokenPooling(2).pool(3), "embeddings"),
    (lambda model: MultiVectors(np.zeros((3, 2)), np.array([0, 2])), "offsets"),
    (lambda model: MultiVectors(np.zeros((3, 2)), np.array([0, 2, 1, 3])), "offsets"),
    (lambda model: MultiVectors(np.zeros(3), np.array([0, 3])), "vectors"),
    (lambda model: MultiVectors(np.zeros((3, 2)), np.array([0, 3]), np.ones(2)), "scales"),
    (lambda model: MultiVectors(np.zeros((3, 2)), np.array([0, 3]), np.array(["1", "2", "3"])), "scales"),
    (lambda model: MultiVectors(np.ma.masked_array(np.ones((1, 2)), [[True, False]]), np.array([0, 1])), "vectors"),
    (lambda model: MultiVectors(np.ones((3, 2)), np.array([0, 2**64 - 1, 3], np.uint64)), "offsets"),
    (lambda model: MultiVectors.of("x", [np.full((2, 3), np.nan)]).quantized(), "NaN"),
    (lambda model: MultiVectors.of("x", [np.ones((2, 3))], "abc"), "mask"),
    (lambda model: MultiVectors.of("x", [np.ones((2, 3))], 3), "mask"),
    (lambda model: MultiVectors.of("x", [np.ones((2, 3))], [None]), "mask"),
    (lambda model: MultiVectors.of("x", [np.ones((2, 3))], [np.ones((2, 3))]), "mask"),
    (lambda model: MultiVectors.of("x", [np.ones((2, 3))], [[1, 1], [1, 1]]), "mask"),
    (lambda model: HierarchicalTokenPooling(2).pool([np.full((6, 3), np.nan)]), "NaN"),
    (lambda model: HierarchicalTokenPooling(2).pool(torch.ones(1, 6, 3)), "list"),
    (lambda model: setattr(model[0], "query_length", -1), "query_length"),
    (lambda model: setattr(model[0], "document_length", "x"), "document_length"),
    (lambda model: setattr(model[2], "skiplist_words", [3]), "skiplist_words"),
    (lambda model: setattr(model[2], "skiplist_words", 3), "skiplist_words"),
    (lambda model: setattr(model[2], "skiplist_tasks", 3), "skiplist_tasks"),
    (lambda model: setattr(model[2], "keep_only_token_ids", ["a"]), "keep_only_token_ids"),
    (lambda model: setattr(model[2], "keep_only_token_ids", 3.5), "keep_only_token_ids"),
    (lambda model: util.semantic_search([np.ones((1, 3))], [np.ones((1, 4))], score_function=util.maxsim), "width"),
]


@pytest.mark.parametrize("i", range(len(BAD_CALLS)))
def test_bad_arguments_are_named(model: MultiVectorEncoder, i: int) -> None:
    call, word = BAD_CALLS[i]
    before = model[0].query_expansion
    with pytest.raises((TypeError, ValueError), match=word):
        call(model)
    assert model[0].query_expansion == before


def test_options_that_would_do_nothing_are_refused(model: MultiVectorEncoder) -> None:
    for name in ("layers", "pooling", "stride", "truncate_dim"):
        with pytest.raises(TypeError, match=name):
            model.encode_chunks(["a"], **{name: 1})
    for name in ("max_seq_length", "auto_model"):
        with pytest.raises(AttributeError, match=name):
            setattr(model[0], name, 9)
    assert model[0].max_seq_length == model.max_seq_length


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "float64": np.asarray,
    "big-endian": lambda x: x.astype(">f8"),
    "float16": lambda x: x.astype(np.float16),
    "lists": np.ndarray.tolist,
    "columns first": np.asfortranarray,
    "every second column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "read-only": lambda x: np.frombuffer(x.tobytes()).reshape(x.shape),
    "tensors": torch.tensor,
    "tensors with a gradient": lambda x: torch.tensor(x, requires_grad=True),
    "bfloat16": lambda x: torch.tensor(x).bfloat16(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_any_kind_have_the_same_scores(kind: str) -> None:
    queries, documents = ([x.astype(np.float64) for x in random_vectors(*sizes)] for sizes in ((3, 1), (5, 0, 9, 5)))
    expected = np.array([[(a @ b.T).max(axis=1).sum() if len(b) else -1e9 for b in documents] for a in queries])
    given = [[KINDS[kind](x) if len(x) or kind != "lists" else x for x in texts] for texts in (queries, documents)]
    scores = util.maxsim(*given)
    assert isinstance(scores, torch.Tensor) == (kind not in [*KINDS][:8])
    np.testing.assert_allclose(np.asarray(scores), expected, rtol=0.02 if "16" in kind else 1e-6, atol=1e-5)
    again = MultiVectors.of("documents", documents)[[2, 2, 0]]
    np.testing.assert_array_equal(util.maxsim(queries, again), util.maxsim(queries, documents)[:, [2, 2, 0]])


def test_texts_without_a_token_that_is_kept(folders: dict[str, Path]) -> None:
    ours = MultiVectorEncoder(folders["native"])
    ours[2].skiplist_words = [*PUNCTUATION, "[CLS]", "[SEP]"]
    documents = ours.encode_document(["...", "", "a cat", "a cat"], prompt="")
    count = len(ours.tokenizer.tokenize("a cat"))
    assert [len(one) for one in documents] == [0, 0, count, count]
    queries = ours.encode_query(["a", ""])
    scores = ours.similarity(queries, documents)
    assert (scores[:, :2] == -1e9).all()
    np.testing.assert_array_equal(scores[:, 2], scores[:, 3])
    hits = util.semantic_search(queries, documents, top_k=99, score_function=util.maxsim)
    assert [[hit["corpus_id"] for hit in row] for row in hits] == [[2, 3, 0, 1]] * 2
    pooling = HierarchicalTokenPooling(2)
    fewer = ours.encode_document(["...", "a cat"], prompt="", token_pooling=pooling)
    assert [len(one) for one in fewer] == [0, 2]  # the first token, and half of the others
    assert ours.encode_document("...", prompt="", output_value=None)["attention_mask"].sum() == 0


def test_words_to_skip_that_are_not_in_the_vocabulary_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["native"], tmp_path, dirs_exist_ok=True)
    (tmp_path / "2_MultiVectorMask" / "config.json").write_text(
        json.dumps({"skiplist_words": [".", "two words", "of 2"]})
    )
    with pytest.warns(UserWarning, match="'two words', 'of 2'"):
        ours = MultiVectorEncoder(tmp_path)
    ours[2].skiplist_words = ["no such token"]
    with pytest.warns(UserWarning, match="no such token"):
        ours[2].resolve_with_tokenizer(ours.tokenizer)


CONFIG, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"
BAD_FILES: list[tuple[str, str, dict[str, Any]]] = [
    ("native", TRANSFORMER, {"query_expansion": {"strategy": "fixed", "length": 10**9}}),
    ("native", TRANSFORMER, {"query_expansion": [1]}),
    ("native", TRANSFORMER, {"document_length": "many"}),
    ("native", TRANSFORMER, {"document_length": 0}),
    ("native", TRANSFORMER, {"query_length": 5, "query_expansion": FIXED}),
    ("native", "2_MultiVectorMask/config.json", {"skiplist_words": [1]}),
    ("native", "2_MultiVectorMask/config.json", {"keep_only_token_ids": "x"}),
    ("native", "2_MultiVectorMask/config.json", {"unknown": 1}),
    ("native", "1_Dense/config.json", {"in_features": 5}),
    ("native", "1_Dense/config.json", {"module_input_name": "scores"}),
    ("native", "1_Dense/config.json", {"module_input_name": "sentence_embedding"}),
    ("pooling", "4_HierarchicalTokenPooling/config.json", {"pool_factor": 0}),
    ("pooling", "4_HierarchicalTokenPooling/config.json", {"pool_factor": "x"}),
    ("native", CONFIG, {"model_type": "SparseEncoder"}),
    ("pylate 3", CONFIG, {"query_prefix": 3}),
    ("pylate 3", CONFIG, {"query_length": -1}),
    ("pylate 3", CONFIG, {"skiplist_words": "abc", "prompts": {"query": None}}),
    ("stanford", "artifact.metadata", {"query_maxlen": 10**6}),
    ("stanford", "artifact.metadata", {"doc_maxlen": [1]}),
]


@pytest.mark.parametrize("i", range(len(BAD_FILES)))
def test_bad_files_are_refused(folders: dict[str, Path], i: int, tmp_path: Path) -> None:
    name, file, content = BAD_FILES[i]
    MultiVectorEncoder(folders[name])
    shutil.copytree(folders[name], tmp_path, dirs_exist_ok=True)
    (tmp_path / file).write_text(json.dumps({**json.loads((tmp_path / file).read_text()), **content}))
    with pytest.raises(ModelFormatError) as caught:
        MultiVectorEncoder(tmp_path)
    assert str(caught.value).count(str(tmp_path)) == 1


@pytest.mark.parametrize("kind", ["bias", "rotation", "window"])
def test_added_tokens_attend_and_are_not_attended_to(kind: str) -> None:
    """With what other families add to attention: a bias, a rotation, a window."""
    rng, A, D, ends = np.random.default_rng(4), 2, 4, np.array([0, 8, 16, 24], np.int32)
    query, key, value = rng.standard_normal((3, 24, A * D)).astype(np.float32)
    columns, lengths = np.tile(np.arange(8, dtype=np.int32), 3), [3, 8, 6]
    table = rng.standard_normal((A, 15) if kind == "bias" else (8, D)).astype(np.float32)
    added: dict[str, Any] = {
        "bias": RelativeBias(table, columns),
        "rotation": Rotation(table, columns),
        "window": Window(3, columns),
    }
    inputs = AttentionInput(query, key, value, ends, A, **{kind: added[kind]})
    keys = np.concatenate([np.arange(start, start + n) for start, n in zip(ends, lengths, strict=False)])
    cu_seqlens = np.cumsum([0, *lengths]).astype(np.int32)
    found, compiled = (
        ExpandedOps(ops, keys, cu_seqlens).attention(inputs).context.reshape(3, 8, A, D)
        for ops in (reference.OPS, make_ops(1))
    )
    np.testing.assert_allclose(compiled, found, rtol=0, atol=1e-5)
    if kind == "rotation":
        query, key = (reference.rotate(x, A, added[kind]) for x in (query, key))
    q, k, v = (x.reshape(3, 8, A, D).astype(np.float64) for x in (query, key, value))
    apart = columns[:8] - columns[:8, None]
    for b, n in enumerate(lengths):
        scores = np.einsum("iad,jad->aij", q[b], k[b]) / np.sqrt(D)
        scores += table[:, apart + 7] if kind == "bias" else 0
        seen = (np.arange(8) < n) & (np.abs(apart) <= (3 if kind == "window" else 8))
        rows = seen.any(axis=1)
        powers = np.where(seen, np.exp(scores), 0)[:, rows]
        expected = np.einsum("aij,jad->iad", powers / powers.sum(axis=-1, keepdims=True), v[b])
        np.testing.assert_allclose(found[b, rows], expected, rtol=1e-4, atol=1e-5)
        assert not found[b, ~rows].any()
        assert rows.all() == (kind != "window" or n >= 5)


def test_matches_of_tokens(folders: dict[str, Path]) -> None:
    for name in ("native", "attend"):
        ours, query, document = MultiVectorEncoder(folders[name]), "a cat", "the river, a cat."
        found = inside.token_matches(ours, query, document)
        x, y = ours.encode_query(query), ours.encode_document(document)
        np.testing.assert_allclose(found.products, x.astype(np.float64) @ y.astype(np.float64).T, rtol=1e-12)
        assert found.score == pytest.approx(float(ours.similarity(x, y)[0, 0]), rel=1e-6)
        tokens = ours.tokenizer.tokenize(ours.prompts["query"] + query)
        assert found.query_tokens == [*["[CLS]", *tokens, "[SEP]"], *["[MASK]"] * (24 - len(tokens) - 2)]
        kept = ["[CLS]", *ours.tokenizer.tokenize(ours.prompts["document"] + document), "[SEP]"]
        words = ours[2].skiplist_words
        assert found.document_tokens == [token for token in kept if token not in words]
        best = [found.document_tokens[j] for j in found.products.argmax(axis=1)]
        expected = list(zip(found.query_tokens, best, found.products.max(axis=1).tolist(), strict=True))
        assert found.best() == expected
    pooled = MultiVectorEncoder(folders["pooling"])
    for wrong in ((pooled, "a", "b"), (3, "a", "b"), (ours, 3, "b")):
        with pytest.raises((TypeError, ValueError)):
            inside.token_matches(*wrong)


def test_three_vectors_of_bge_m3(tmp_path: Path) -> None:
    pooling = {"word_embedding_dimension": 24, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    folder = sentence_model(tmp_path, ["models.Transformer", "models.Pooling", "models.Normalize"], pooling)
    torch.manual_seed(0)
    heads = {name: torch.nn.Linear(24, n) for name, n in (("colbert", 24), ("sparse", 1))}
    for name, head in heads.items():
        torch.save(head.state_dict(), folder / f"{name}_linear.pt")
    model, given = BGEM3FlagModel(folder), ["a cat", "the river bank, the bank", "", "a cat"]
    found = model.encode(given)
    np.testing.assert_array_equal(found["dense_vecs"], model.model.encode(given))
    for i, text in enumerate(given):
        # As FlagEmbedding computes them.
        states = torch.tensor(np.asarray(model.model.encode(text, output_value="token_embeddings")))
        with torch.no_grad():
            weights = torch.relu(heads["sparse"](states))[:, 0].numpy()
            vectors = torch.nn.functional.normalize(heads["colbert"](states[1:]), dim=-1).numpy()
        lexical: dict[str, float] = {}
        for token, weight in zip(model.model.tokenizer.encode(text)[1:-1], weights[1:-1], strict=True):
            if weight > 0:
                lexical[str(token)] = max(lexical.get(str(token), 0.0), float(weight))
        assert found["lexical_weights"][i] == pytest.approx(lexical, rel=1e-5)
        np.testing.assert_allclose(found["colbert_vecs"][i], vectors, atol=2e-6)
    alone = model.encode(given[1], return_colbert_vecs=False, return_dense=False)
    assert alone == {"lexical_weights": found["lexical_weights"][1]}
    with pytest.raises(TypeError, match="return_all"):
        model.encode("a", return_all=True)
    assert model.encode([])["dense_vecs"].shape == (0, 24)
    for content in (b"no zip", None):
        (folder / "sparse_linear.pt").unlink(missing_ok=True)
        if content is not None:
            (folder / "sparse_linear.pt").write_bytes(content)
        with pytest.raises(ModelFormatError, match="sparse_linear"):
            BGEM3FlagModel(folder)
    torch.save(torch.nn.Linear(25, 1).state_dict(), folder / "sparse_linear.pt")
    with pytest.raises(ModelFormatError, match="weight"):
        BGEM3FlagModel(folder)


def test_folders_of_other_classes_are_refused_by_name(folders: dict[str, Path], tmp_path: Path) -> None:
    bert = bert_folder(tmp_path / "bert")
    with pytest.raises(ModelFormatError, match="SentenceTransformer"):
        MultiVectorEncoder(bert)
    for other in (SentenceTransformer, SparseEncoder):
        with pytest.raises(ModelFormatError, match="MultiVectorEncoder loads it"):
            other(folders["native"])
    with pytest.raises(TypeError, match="folder"):
        MultiVectorEncoder()
    function = MultiVectorEncoder(folders["native"]).append(LambdaTokenPooling(np.asarray))
    with pytest.raises(ValueError, match="function"):
        function.save_pretrained(tmp_path / "saved")
