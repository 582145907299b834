"""Scores that model cards and the pages of sentence-transformers publish, with the true models of the hub."""

from __future__ import annotations

import numpy as np
import pytest

from minibert import CrossEncoder

pytestmark = pytest.mark.network

QUERY = "How many people live in Berlin?"
POPULATION = "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers."


@pytest.mark.parametrize(
    ("others", "scores"),
    [
        (["Berlin is well known for its museums."], [8.607138, -4.320078]),
        (
            [
                "Berlin has a yearly total of about 135 million day visitors, making it one of the most-visited cities "
                "in the European Union.",
                "In 2013 around 600,000 Berliners were registered in one of the more than 2,300 sport and fitness "
                "clubs.",
            ],
            [8.607139, 5.506266, 6.352977],
        ),
    ],
    ids=["card", "README"],
)
def test_the_examples_of_ms_marco_minilm(others: list[str], scores: list[float]) -> None:
    """https://huggingface.co/cross-encoder/ms-marco-MiniLM-L6-v2, "Usage with SentenceTransformers".

    And "Reranker Models" in README.md of https://github.com/huggingface/sentence-transformers.
    """
    model = CrossEncoder("cross-encoder/ms-marco-MiniLM-L6-v2")
    texts = [POPULATION, *others]
    assert repr(model.activation_fn) == "Identity()"
    found = model.predict([(QUERY, text) for text in texts])
    np.testing.assert_allclose(found, scores, rtol=0, atol=1e-4)
    assert [one["corpus_id"] for one in model.rank(QUERY, texts)] == np.argsort(scores)[::-1].tolist()
