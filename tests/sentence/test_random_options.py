"""Encoders with random options, compared with sentence-transformers.

Each case draws its options from a seed. A sample runs by default, a few hundred cases under `slow`.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from tests.support import sentence_heads
from tests.support.checkpoints import VOCABULARY, sentence_model

WORDS = [word for word in VOCABULARY if word.isalpha()]
Draw = Callable[[random.Random], dict[str, Any]]


def texts(draw: random.Random, least: int = 1) -> list[str]:
    return [" ".join(draw.choices(WORDS, k=draw.choice((least, 1, 3, 9, 25)))) for _ in range(draw.randint(1, 6))]


def some(draw: random.Random, **choices: tuple[Any, ...]) -> dict[str, Any]:
    """Choose some of these options, and a value for each."""
    return {name: draw.choice(values) for name, values in choices.items() if draw.random() < 0.5}


def close(ours: Any, theirs: Any, atol: float) -> None:
    """Compare arrays, tensors, and lists of these; shapes, types and kinds must be the same, too."""
    if isinstance(theirs, list):
        for mine, other in zip(ours, theirs, strict=True):
            close(mine, other, atol)
        return
    assert isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor)
    found, expected = np.asarray(ours), np.asarray(theirs)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind == "U":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), atol=atol)


# --- encoders ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """Return the three encoders, each of minibert and of sentence-transformers."""
    top = tmp_path_factory.mktemp("models")
    prompts = {"prompts": {"query": "the river ", "passage": "a cat "}}
    made = {
        "SentenceTransformer": sentence_model(top / "dense", config_sentence_transformers=prompts),
        "CrossEncoder": sentence_heads.model_folder(top / "pairs", sentence_heads.SEQUENCE, scale=4, num_labels=1),
        "SparseEncoder": sentence_heads.model_folder(top / "sparse", sentence_heads.MASKED),
    }
    return {
        name: (getattr(minibert, name)(folder), sentence_heads.theirs(name, folder)) for name, folder in made.items()
    }


def encode(draw: random.Random, model: Any) -> Any:
    options = some(
        draw,
        prompt_name=("query", "passage"),
        batch_size=(1, 2, 7, np.int8(3)),
        normalize_embeddings=(True, False),
        truncate_dim=(1, 5, 24),
        convert_to_tensor=(True, False),
        convert_to_numpy=(True, False),
        show_progress_bar=(False,),
        precision=("float32", "ubinary", "binary"),
    )
    method = draw.choice(("encode", "encode", "encode_query"))
    given = texts(draw)
    return getattr(model, method)(draw.choice((given, given[0], tuple(given), np.array(given))), **options)


def predict(draw: random.Random, model: Any) -> Any:
    pairs = list(zip(texts(draw) * 6, texts(draw) * 6, strict=False))[: draw.randint(1, 7)]
    kinds = {"convert_to_tensor": (True, False), "convert_to_numpy": (True, False), "show_progress_bar": (False,)}
    options = some(draw, batch_size=(1, 3), apply_softmax=(True, False), **kinds)
    if draw.random() < 0.6:
        return model.predict(draw.choice((pairs, [list(pair) for pair in pairs], pairs[0])), **options)
    options = some(draw, batch_size=(2, 5), top_k=(1, 2, 9), return_documents=(True, False))
    ranked = model.rank(pairs[0][0], sorted({text for _, text in pairs}), **options)
    scores = np.array([hit["score"] for hit in ranked], np.float32)
    return [scores, [hit["corpus_id"] for hit in ranked], [hit.get("text", "") for hit in ranked]]


def encode_sparse(draw: random.Random, model: Any) -> Any:
    kinds = {"convert_to_sparse_tensor": (True, False), "show_progress_bar": (False,)}
    options = some(draw, batch_size=(1, 4), max_active_dims=(1, 3, 50), **kinds)
    given = texts(draw)
    found = model.encode(draw.choice((given, given[0])), **options)
    return np.asarray(found.to_dense() if hasattr(found, "to_dense") else found)  # tensors there, arrays here


CALLS = {"SentenceTransformer": (encode, 2e-6), "CrossEncoder": (predict, 3e-5), "SparseEncoder": (encode_sparse, 1e-4)}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 150), marks=pytest.mark.slow)], ids=str)
def test_an_encoder_with_random_options(models: dict[str, tuple[Any, Any]], name: str, seeds: range) -> None:
    call, atol = CALLS[name]
    for seed in seeds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of texts that are cut
            ours, theirs = (call(random.Random(seed), model) for model in models[name])
        try:
            close(ours, theirs, atol)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
