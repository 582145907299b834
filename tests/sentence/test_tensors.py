"""Tensors of torch: in, out, and never loaded unless they are asked for; compared with sentence-transformers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer as Original
from sentence_transformers import util

from minibert import SentenceTransformer, search, similarity
from minibert._utils.torch_interop import Scores
from tests.support.checkpoints import locate_minilm
from tests.support.outcomes import printed

TEXTS = ["A cat sleeps on the sofa.", "a kitten naps", "", "Stocks fell sharply."]
RNG = np.random.default_rng(7)
A, B = RNG.standard_normal((9, 24)).astype(np.float32), RNG.standard_normal((12, 24)).astype(np.float32)
SCORES = [name for name in similarity.__all__ if name.endswith(("_sim", "_score"))]


@pytest.fixture(scope="module")
def original() -> Any:
    return Original(str(locate_minilm()), device="cpu")


# --- encode -----------------------------------------------------------------------------------------------------------


def test_tensors_of_tokens(minilm_sentences: SentenceTransformer, original: Any) -> None:
    ours = minilm_sentences.encode(TEXTS, output_value="token_embeddings", convert_to_tensor=True)
    theirs = original.encode(TEXTS, output_value="token_embeddings")
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    dicts = minilm_sentences.encode(TEXTS, output_value=None, convert_to_tensor=True, prompt="query: ")
    assert all(isinstance(one["token_embeddings"], torch.Tensor) for one in dicts)
    assert {*dicts[0]} == {*original.encode(TEXTS, output_value=None, prompt="query: ")[0]}
    assert dicts[0]["prompt_length"] == original.encode(TEXTS, output_value=None, prompt="query: ")[0]["prompt_length"]
    one = minilm_sentences.encode(TEXTS[1], output_value=None, convert_to_numpy=False)
    assert isinstance(one["sentence_embedding"], torch.Tensor)
    assert "prompt_length" not in one


# --- scores and search ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("kind", ["tensors", "a tensor and an array", "lists", "bfloat16", "with gradients", "sparse"])
def test_scores_of_tensors_are_tensors(name: str, kind: str) -> None:
    a, b = A[:9], B[:9] if name.startswith("pairwise") else B
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    given: Any = {
        "tensors": (x, y),
        "a tensor and an array": (x, b),
        "lists": (list(x), tuple(y)),
        "bfloat16": (x.bfloat16(), y.bfloat16()),
        "with gradients": (x.clone().requires_grad_(), y),
        "sparse": (x.to_sparse(), y.to_sparse()),
    }[kind]
    ours = getattr(similarity, name)(*given)
    expected = given if kind not in ("lists", "sparse") else (x, y)
    theirs = getattr(util, name)(*expected).detach()
    assert isinstance(ours, torch.Tensor)
    assert (ours.dtype, ours.shape, ours.requires_grad) == (torch.float32, theirs.shape, False)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


def test_the_scores_of_a_model(minilm_sentences: SentenceTransformer, original: Any) -> None:
    vectors = minilm_sentences.encode(TEXTS)
    tensors = torch.from_numpy(vectors)
    assert isinstance(minilm_sentences.similarity(tensors, vectors), torch.Tensor)
    assert isinstance(minilm_sentences.similarity_pairwise(tensors, tensors), torch.Tensor)
    scores = minilm_sentences.similarity(vectors, vectors)
    assert isinstance(scores, np.ndarray)
    np.testing.assert_allclose(scores.numpy(), original.similarity(vectors, vectors).numpy(), atol=1e-6)
    np.testing.assert_allclose(scores[0].cpu().detach().numpy(), scores[0], atol=0)


def test_scores_are_arrays_with_a_few_methods_more() -> None:
    scores = similarity.cos_sim(A, B)
    plain = scores.numpy()
    assert type(plain) is np.ndarray
    assert (repr(scores), str(scores)) == (repr(plain), str(plain))
    for result in (scores[0], scores.T, 1 - scores, np.abs(scores)):
        assert type(result.numpy()) is np.ndarray
    for number in (scores[0, 0], scores.max(), scores.sum(axis=1)[0], np.mean(scores)):
        assert type(number) is np.float32
    with pytest.raises((TypeError, ValueError)):
        float(scores[0])
    for copied in (pickle.loads(pickle.dumps(scores, protocol=5)), copy.deepcopy(scores).numpy()):
        assert type(copied) is np.ndarray
        np.testing.assert_array_equal(copied, plain)


def test_calls_that_mean_another_thing_for_a_tensor_are_refused() -> None:
    scores = similarity.cos_sim(A, B)
    torch.testing.assert_close(torch.topk(scores, 2), torch.topk(torch.tensor(scores.numpy()), 2))
    with pytest.raises(AttributeError, match=r"array of NumPy, which has no 'topk'. For a tensor: torch.tensor"):
        scores.topk(2)
    plain = scores.numpy()
    for call in (lambda: scores.max(1), lambda: scores.min(0), lambda: scores.std(), lambda: scores.repeat(2, 1)):
        with pytest.raises(TypeError, match="one thing for an array and another for a tensor"):
            call()
    for of_array in (lambda s: s.max(axis=1), lambda s: s.mean(1), np.std, np.sort, np.median):
        np.testing.assert_array_equal(of_array(scores), of_array(plain))


def test_vectors_are_normalized_and_cut_in_the_kind_that_was_given() -> None:
    x = torch.from_numpy(A)
    torch.testing.assert_close(similarity.normalize_embeddings(x), torch.nn.functional.normalize(x))
    assert similarity.truncate_embeddings(x, 5).equal(x[:, :5])
    assert type(similarity.truncate_embeddings(A, 5)) is np.ndarray


def test_quantized_tensors_are_arrays_as_theirs() -> None:
    many = torch.from_numpy(RNG.standard_normal((120, 24)).astype(np.float32))
    for precision in ("int8", "ubinary"):
        ours, theirs = similarity.quantize_embeddings(many, precision), util.quantize_embeddings(many, precision)
        assert type(ours) is type(theirs) is np.ndarray
        np.testing.assert_array_equal(ours, theirs)


def test_searches_among_tensors() -> None:
    x, y = torch.from_numpy(A), torch.from_numpy(B)
    expected = search.semantic_search(A, B, top_k=3)
    assert search.semantic_search(x, y, top_k=3) == search.semantic_search(list(x), list(y), top_k=3) == expected
    assert search.semantic_search(x.bfloat16(), y.bfloat16(), top_k=3)[0][0]["corpus_id"] == expected[0][0]["corpus_id"]
    assert search.community_detection(y, threshold=0.1, min_community_size=2) == search.community_detection(
        B, threshold=0.1, min_community_size=2
    )
    pairs = search.paraphrase_mining_embeddings(y, top_k=2)
    assert pairs == search.paraphrase_mining_embeddings(B, top_k=2)


def test_a_score_function_of_the_caller_gets_what_the_caller_gave() -> None:
    seen = []

    def theirs(a: Any, b: Any) -> Any:
        seen.append((type(a), type(b)))
        return a @ b.T

    x, y = torch.from_numpy(A), torch.from_numpy(B)
    found = [
        search.semantic_search(x, y, top_k=2, score_function=theirs),
        search.semantic_search(A, B, top_k=2, score_function=theirs),
        search.semantic_search(A, B, top_k=2, score_function=util.dot_score),
    ]
    assert seen == [(torch.Tensor, torch.Tensor), (Scores, Scores)]
    found.append(search.semantic_search(A, B, top_k=2, score_function=lambda a, b: torch.mm(a, b.T)))
    ids = [[[hit["corpus_id"] for hit in hits] for hits in one] for one in found]
    assert ids[0] == ids[1] == ids[2] == ids[3]


# --- torch is only imported for tensors -------------------------------------------------------------------------------


def test_torch_is_not_loaded_unless_tensors_are_asked_for() -> None:
    code = """
import sys
from minibert import SentenceTransformer, util
model = SentenceTransformer()
vectors = model.encode(["a cat", "a kitten"])
model.similarity(vectors, vectors).numpy(), model.device, model.to("cpu"), model[0], repr(model)
util.semantic_search(vectors, vectors), util.quantize_embeddings(vectors, "ubinary")
util.paraphrase_mining(model, ["a"])
print("torch" in sys.modules, end=" ")
model.encode("a cat", convert_to_tensor=True)
print("torch" in sys.modules)
"""
    assert printed(code) == "False True\n"
