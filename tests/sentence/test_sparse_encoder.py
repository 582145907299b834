"""`SparseEncoder` against sentence-transformers: the same words and weights; the same bits alone and in any batch."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from minibert import BertForMaskedLM, SparseEncoder, SparseVectors
from minibert.bert import heads
from minibert.sentence import sparse_encoder as splade
from minibert.sentence.sparse_vectors import similarity
from tests.support.report import REPORT
from tests.support.sentence_heads import (
    FILL_MASK,
    MASKED,
    MLM,
    SPLADE,
    TRANSFORMER,
    model_folder,
    modules,
    texts,
    theirs,
)
from tests.support.splade_tiny import REASON, splade_tiny
from tests.support.text_data import VARIABLE

REAL = bool(os.environ.get(VARIABLE))
ODD = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 37, "type_vocab_size": 16}
POOLING = "1_SpladePooling/config.json"
KIND = {"model_type": "SparseEncoder"}
FILES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {
        "modules.json": modules(TRANSFORMER, SPLADE),
        "sentence_bert_config.json": FILL_MASK,
        POOLING: {"pooling_strategy": "sum", "activation_function": "relu", "embedding_dimension": None},
        "config_sentence_transformers.json": KIND,
    },
    "log twice": {
        "modules.json": modules(MLM, SPLADE),
        "sentence_bert_config.json": {"max_seq_length": 48},
        POOLING: {"pooling_strategy": "max", "activation_function": "log1p_relu", "word_embedding_dimension": None},
        "config_sentence_transformers.json": {**KIND, "similarity_fn_name": "cosine", "prompts": {"query": "a "}},
    },
    "sum, log twice": {
        "modules.json": modules(MLM, SPLADE),
        POOLING: {"pooling_strategy": "sum", "activation_function": "log1p_relu"},
        "sentence_bert_config.json": {},
        "config_sentence_transformers.json": {**KIND, "max_active_dims": 9, "default_prompt_name": "document"},
    },
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("sparse")
    made = {
        name: model_folder(home / str(i), MASKED, files=files, **(ODD if i == 2 else {}))
        for i, (name, files) in enumerate(FILES.items())
    }
    tiny = splade_tiny()
    return made if tiny is None else {**made, "splade-tiny": tiny}


NAMES = [*FILES, pytest.param("splade-tiny", marks=pytest.mark.skipif(splade_tiny() is None, reason=REASON))]


def some_texts(count: int = 30) -> list[str]:
    return [*texts(count), "", "a", "a cat [MASK]", texts(3)[1]]


@pytest.mark.parametrize("name", NAMES)
def test_vectors_of_sentence_transformers(folders: dict[str, Path], name: str) -> None:
    ours, other = SparseEncoder(folders[name]), theirs("SparseEncoder", folders[name])
    given = some_texts(8 if name == "splade-tiny" else 30)  # which has 30,522 logits for each token
    for options in ({}, {"max_active_dims": 5}, {"prompt": "the river "}):
        expected = other.encode(given, convert_to_sparse_tensor=False, **options).numpy()
        found = ours.encode(given, truncation="silent", **options)
        dense = found.todense()
        assert isinstance(found, SparseVectors)
        assert (dense.dtype, dense.shape) == (expected.dtype, expected.shape)
        # A sum has the rounding of all its tokens.
        scale = max(1.0, float(expected.max()))
        np.testing.assert_allclose(dense, expected, rtol=0, atol=1e-5 * scale)
        assert not ((dense > 0) ^ (expected > 0))[np.maximum(dense, expected) > 1e-4].any()
        worst = np.abs(dense - expected).max()
        REPORT.append(f"SparseEncoder, {name}, {options or ''}: {len(given)} texts, at most {worst:.1e} from theirs")
    for method in ("encode_query", "encode_document"):
        expected = getattr(other, method)(given[:20], convert_to_sparse_tensor=False).numpy()
        found = getattr(ours, method)(given[:20], convert_to_sparse_tensor=False, truncation="silent")
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1.0, float(expected.max())))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:Sparse .*:UserWarning")  # of torch, for their own tensors
def test_words_scores_and_sparsity_of_sentence_transformers(folders: dict[str, Path], name: str) -> None:
    ours, other, given = SparseEncoder(folders[name]), theirs("SparseEncoder", folders[name]), some_texts(20)
    theirs_, found = other.encode(given), ours.encode(given, truncation="silent")
    for expected, words in zip(other.decode(theirs_, top_k=8), ours.decode(found, top_k=8), strict=True):
        np.testing.assert_allclose([w for _, w in words], [w for _, w in expected], rtol=1e-5, atol=1e-5)
        gaps = -np.diff([weight for _, weight in expected])
        if (gaps > 2e-5).all():
            assert [word for word, _ in words] == [word for word, _ in expected]
    assert ours.similarity_fn_name == other.similarity_fn_name
    wide = found.todense().astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1)
    differences = wide[:, None] - wide
    exact = {
        "dot": wide @ wide.T,
        "cosine": wide @ wide.T / np.maximum(lengths[:, None] * lengths, 1e-30),
        "euclidean": -np.sqrt((differences**2).sum(axis=-1)),
        "manhattan": -np.abs(differences).sum(axis=-1),
    }
    for function, scores in exact.items():
        ours.similarity_fn_name = other.similarity_fn_name = function
        np.testing.assert_allclose(ours.similarity(found, found), scores, rtol=1e-5, atol=1e-6)
        pairs = ours.similarity_pairwise(found, found[::-1])
        np.testing.assert_allclose(pairs, np.diagonal(scores[:, ::-1]), rtol=1e-5, atol=1e-6)
        if function in ("dot", "cosine"):  # the other two lose digits there, because squares of lengths are subtracted
            np.testing.assert_allclose(other.similarity(theirs_, theirs_), scores, rtol=1e-4, atol=1e-5)
    if name in ("plain", "splade-tiny"):
        expected = other.sparsity(theirs_)
        assert ours.sparsity(found) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_text_has_the_same_bits_alone_and_in_any_batch(folders: dict[str, Path], name: str, threads: int) -> None:
    model, given = SparseEncoder(folders[name], num_threads=threads), some_texts(24)
    whole = model.encode(given, truncation="silent")
    other = SparseEncoder(folders[name], num_threads=1).encode(given[::-1], batch_size=1, truncation="silent")[::-1]
    for index, text in enumerate(given):
        alone = model.encode(text, truncation="silent")
        assert alone.shape == (model.get_embedding_dimension(),)
        for vector in (alone, other[index]):
            assert vector.data.tobytes() == whole[index].data.tobytes()
            assert vector.indices.tolist() == whole[index].indices.tolist()


@pytest.mark.parametrize("name", ["plain", "sum"])
def test_the_size_of_a_slice_changes_no_bit(
    folders: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = SparseEncoder(folders[name]), some_texts(24)
    whole = model.encode(given, truncation="silent")
    for tokens in (1, 2, 7):
        monkeypatch.setattr(splade, "LOGITS_BYTES", 4 * model.get_embedding_dimension() * (tokens + 3))
        found = model.encode(given, truncation="silent")
        assert found.data.tobytes() == whole.data.tobytes()
        assert found.indptr.tolist() == whole.indptr.tolist()


@pytest.mark.skipif(splade_tiny() is None, reason=REASON)
def test_at_most_16_mb_of_logits_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = (
        SparseEncoder(splade_tiny()),
        [f"the cat sat on mat {i} " * 80 for i in range(3)] + [f"text {i}" for i in range(900)],
    )
    model.encode(given[:2], truncation="silent")
    sizes, held, compute = list[int](), list[int](), heads.masked_lm
    alive = weakref.WeakValueDictionary[int, Any]()

    def measured(*arguments: Any) -> Any:
        logits = compute(*arguments)
        sizes.append(logits.nbytes)
        alive[len(sizes)] = logits
        held.append(sum(one.nbytes for one in alive.values()))
        return logits

    monkeypatch.setattr(heads, "masked_lm", measured)
    tracemalloc.start()
    try:
        found = model.encode(given, truncation="silent")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    num_tokens = int(sum(min(512, n) for n in model.num_tokens([*dict.fromkeys(given)])))
    assert sum(sizes) == 4 * 30_522 * num_tokens
    assert len(held) > 30
    assert max(held) + 3 * 4 * 30_522 <= 16 * 2**20, "the logits before were still held"
    REPORT.append(f"SparseEncoder: {sum(sizes) / 2**20:,.0f} MB of logits, a peak of {peak / 2**20:.0f} MB")
    assert peak < 16 * 2**20 + 24 * 2**20  # the logits; hidden states, tokens and the result
    assert len(found) == len(given)


def test_neither_torch_nor_scipy_is_imported(folders: dict[str, Path]) -> None:
    program = (
        "import sys; from minibert import SparseEncoder, CrossEncoder\n"
        f"model = SparseEncoder({str(folders['plain'])!r}, backend='numpy')\n"
        "vectors = model.encode(['a cat', 'the dog'])\n"
        "print(model.decode(vectors, 3), model.similarity(vectors, vectors), vectors.todense().sum())\n"
        "assert not {'torch', 'scipy', 'transformers'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_forms_of_answers(folders: dict[str, Path]) -> None:
    model, given = SparseEncoder(folders["plain"]), ["a cat", "the dog", "a cat", ""]
    whole = model.encode(given)
    assert repr(whole) == f"SparseVectors(shape=(4, {model.get_embedding_dimension()}), nnz={whole.nnz}, dtype=float32)"
    dense = model.encode(given, convert_to_sparse_tensor=False)
    np.testing.assert_array_equal(dense, whole.todense())
    np.testing.assert_array_equal(whole.to_scipy().toarray(), dense)
    tensor = whole.to_tensor()
    assert torch.equal(tensor.to_dense(), torch.from_numpy(whole.to_dense()))
    assert tensor.is_sparse
    assert torch.equal(tensor.to_dense(), torch.from_numpy(dense))
    assert torch.equal(whole[1].to_tensor().to_dense(), torch.from_numpy(dense[1]))
    listed = model.encode(given, convert_to_tensor=False)
    assert [one.shape for one in listed] == [(model.get_embedding_dimension(),)] * 4
    assert model.similarity(listed, listed).tobytes() == model.similarity(whole, whole).tobytes()
    assert model.encode([]).shape == (0, model.get_embedding_dimension())
    assert model.encode([], convert_to_sparse_tensor=False).shape == (0, model.get_embedding_dimension())
    for rows in (slice(1, 3), [2, 0], np.array([True, False, True, False]), slice(None, None, -1), [-1]):
        np.testing.assert_array_equal(whole[rows].todense(), dense[rows])
    np.testing.assert_array_equal(np.asarray(whole[-1]), dense[-1])
    np.testing.assert_array_equal(np.stack([one.todense() for one in whole]), dense)
    for form in (whole, dense, torch.from_numpy(dense), tensor, whole.to_scipy(), dense.tolist()):
        assert model.decode(form, top_k=2) == model.decode(whole, top_k=2)
        np.testing.assert_allclose(model.similarity(form, whole), dense @ dense.T, rtol=1e-5)
    assert model.sparsity(whole[:0]) == {"active_dims": 0.0, "sparsity_ratio": 1.0}
    assert isinstance(model.model, BertForMaskedLM)
    assert (model.prompts, model.similarity_fn_name) == ({"query": "", "document": ""}, "dot")


def test_stored_zeros_are_vectors_of_length_0(folders: dict[str, Path]) -> None:
    model = SparseEncoder(folders["plain"], similarity_fn_name="cosine")
    zero = SparseVectors((1, 4), np.zeros(1, np.float32), np.array([2]), np.array([0, 1]))
    one = SparseVectors((1, 4), np.ones(1, np.float32), np.array([2]), np.array([0, 1]))
    assert model.similarity(zero, one).tolist() == model.similarity(zero.todense(), one).tolist() == [[0.0]]
    assert SparseVectors((0, 0), np.zeros(0), np.zeros(0, int), np.zeros(1, int)).todense().shape == (0, 0)


def test_vectors_with_unsigned_indices_and_large_ones_of_scipy(folders: dict[str, Path]) -> None:
    model = SparseEncoder(folders["plain"])
    numbers, places = np.array([3, 1], np.float32), np.array([2, 0])
    found = SparseVectors((2, 4), numbers, places.astype(np.uint64), np.arange(3, dtype=np.uint64))
    assert found[0].todense().tolist() == [0, 0, 3, 0]
    wide = csr_array((numbers, (np.arange(2), [2**30, 5])), shape=(2, 2**31 - 1))  # 16 GB, if it were dense
    tracemalloc.start()
    assert model.similarity(wide, wide).tolist() == [[9, 0], [0, 1]]
    assert model.similarity_pairwise(wide, wide).tolist() == [9, 1]
    assert similarity("manhattan", wide, wide).tolist() == [[0, -4], [-4, 0]]
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert model.sparsity(wide)["active_dims"] == 1.0


def test_long_texts(folders: dict[str, Path]) -> None:
    model, long = SparseEncoder(folders["plain"]), "the dog sat on the river bank " * 30
    with pytest.warns(UserWarning, match=r"1 of 2 texts have more than 64 tokens"):
        cut = model.encode(["a", long])[1]
    with pytest.raises(ValueError, match=r"inputs\[1\] has 212 tokens, the limit is 64"):
        model.encode(["a", long], truncation="error")
    split = model.encode(long, truncation="split")
    windows = model.tokenizer.windows([long], max_length=64)[0]
    assert len(windows) == 4
    each = [model.encode(model.tokenizer.decode(w.ids, skip_special_tokens=True)).todense() for w in windows]
    np.testing.assert_array_equal(split.todense(), np.max(each, axis=0))
    assert split.nnz >= cut.nnz


def test_saved_models_are_the_same_models(folders: dict[str, Path], tmp_path: Path) -> None:
    given = some_texts(10)
    for name in FILES:
        ours = SparseEncoder(folders[name])
        ours.save_pretrained(tmp_path / name)
        again = SparseEncoder(tmp_path / name)
        kept = ("pooling", "prompts", "default_prompt_name", "max_active_dims", "similarity_fn_name", "max_seq_length")
        assert [getattr(again, one) for one in kept] == [getattr(ours, one) for one in kept]
        expected = ours.encode(given, truncation="silent")
        assert again.encode(given, truncation="silent").data.tobytes() == expected.data.tobytes()
        found = theirs("SparseEncoder", tmp_path / name).encode(given, convert_to_sparse_tensor=False).numpy()
        np.testing.assert_allclose(found, expected.todense(), rtol=1e-5, atol=1e-5)
