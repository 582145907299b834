"""Scores that model cards publish, with the true models of the hub."""

from __future__ import annotations

import numpy as np
import pytest

from minibert import CrossEncoder

pytestmark = pytest.mark.network


def test_the_example_of_ms_marco_minilm() -> None:
    """https://huggingface.co/cross-encoder/ms-marco-MiniLM-L6-v2, "Usage with SentenceTransformers"."""
    model = CrossEncoder("cross-encoder/ms-marco-MiniLM-L6-v2")
    query = "How many people live in Berlin?"
    texts = [
        "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
        "Berlin is well known for its museums.",
    ]
    assert repr(model.activation_fn) == "Identity()"
    scores = model.predict([(query, text) for text in texts])
    np.testing.assert_allclose(scores, [8.607138, -4.320078], rtol=0, atol=1e-3)
    assert [one["corpus_id"] for one in model.rank(query, texts[::-1])] == [1, 0]
