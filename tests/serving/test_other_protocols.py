"""The protocols of Cohere and Ollama over ASGI: answers beside `encode`, and errors in their shapes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from minibert import SentenceTransformer
from minibert.serving.asgi import app
from minibert.serving.engine import Engine
from minibert.vectors.similarity import quantize_embeddings

TEXTS = ["A cat sleeps.", "", "the bank", "A cat sleeps."]
LONG = "a long text of many words " * 100


@pytest.fixture(scope="module")
def client(model: SentenceTransformer) -> Iterator[TestClient]:
    with Engine({"org/small": model}) as engine, TestClient(app(engine)) as made:
        yield made


def floats(rows: Any) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


# --- Cohere -----------------------------------------------------------------------------------------------------------


def test_cohere_gives_each_type_that_is_asked_for(client: TestClient, model: SentenceTransformer) -> None:
    body = {
        "model": "small",
        "texts": TEXTS,
        "input_type": "search_query",
        "embedding_types": ["float", "base64", "binary", "ubinary"],
    }
    response = client.post("/v2/embed", json=body)
    answer, expected = response.json(), model.encode(TEXTS, prompt_name="query")
    found = answer["embeddings"]
    np.testing.assert_array_equal(floats(found["float"]), expected)
    for row, wanted in zip(found["base64"], expected, strict=True):
        assert base64.b64decode(row) == wanted.tobytes()
    for kind in ("binary", "ubinary"):
        np.testing.assert_array_equal(found[kind], quantize_embeddings(expected, kind))
    assert (answer["texts"], answer["response_type"]) == (TEXTS, "embeddings_by_type")
    assert answer["meta"]["billed_units"]["input_tokens"] > 0
    assert response.headers["x-minibert-prompt"] == "query"


def test_cohere_without_types_gives_numbers(client: TestClient, model: SentenceTransformer) -> None:
    answer = client.post("/v1/embed", json={"texts": TEXTS, "images": []}).json()
    np.testing.assert_array_equal(floats(answer["embeddings"]), model.encode(TEXTS))
    assert answer["ignored"] == ["images"]
    short = client.post("/v1/embed", json={"texts": TEXTS[:1], "output_dimension": 4}).json()["embeddings"]
    np.testing.assert_array_equal(floats(short), model.encode(TEXTS[:1], truncate_dim=4, normalize_embeddings=True))


def test_cohere_without_types_in_version_2_gives_numbers_by_type(
    client: TestClient, model: SentenceTransformer
) -> None:
    for body in ({"texts": TEXTS}, {"texts": TEXTS, "embedding_types": []}):
        answer = client.post("/v2/embed", json=body).json()
        np.testing.assert_array_equal(floats(answer["embeddings"]["float"]), model.encode(TEXTS))
        assert answer["response_type"] == "embeddings_by_type"


def test_cohere_cuts_at_either_end_or_not_at_all(client: TestClient) -> None:
    end, start, unsaid = (
        client.post("/v2/embed", json={"texts": [LONG + "end"], **more})
        for more in ({"truncate": "END"}, {"truncate": "START"}, {})
    )
    assert end.json()["embeddings"] == unsaid.json()["embeddings"] != start.json()["embeddings"]
    assert end.json()["truncated"] == start.json()["truncated"] == [0]
    refused = client.post("/v2/embed", json={"texts": ["a", LONG], "truncate": "NONE"})
    assert refused.status_code == 400
    assert "texts[1] has" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"texts": []}, "texts is an empty list"),
        ({"texts": "a"}, "texts: Expected array, got str"),
        ({"texts": ["a"], "embedding_types": ["int8"]}, "int8 needs the ranges of a corpus"),
        ({"texts": ["a"], "embedding_types": ["x"]}, "embedding_types: 'x'; expected float"),
        ({"texts": ["a"], "truncate": "x"}, "truncate: Invalid enum value"),
        ({"texts": ["a"], "input_type": "x"}, "input_type 'x'"),
        ({"texts": ["a"], "output_dimension": 99}, "output_dimension is 99"),
    ],
)
def test_wrong_requests_of_cohere(client: TestClient, body: dict[str, Any], message: str) -> None:
    response = client.post("/v2/embed", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


# --- Ollama -----------------------------------------------------------------------------------------------------------


def test_ollama(client: TestClient, model: SentenceTransformer) -> None:
    body = {"model": "small:latest", "input": TEXTS, "keep_alive": "5m", "options": {}}
    response = client.post("/api/embed", json=body)
    answer = response.json()
    np.testing.assert_array_equal(floats(answer["embeddings"]), model.encode(TEXTS))
    assert answer["model"] == "small:latest"
    assert answer["prompt_eval_count"] == sum(model.num_tokens(TEXTS))
    assert {"total_duration", "load_duration"} <= set(answer)
    assert response.headers["x-minibert-ignored"] == "keep_alive,options"
    assert (answer["ignored"], "truncated" in answer) == (["keep_alive", "options"], False)
    assert client.post("/api/embed", json={"input": ["a", LONG]}).json()["truncated"] == [1]
    one = client.post("/api/embed", json={"model": "small", "input": TEXTS[0]}).json()["embeddings"]
    np.testing.assert_array_equal(floats(one[0]), model.encode(TEXTS[0]))
    old = client.post("/api/embeddings", json={"model": "small", "prompt": TEXTS[0]}).json()
    np.testing.assert_array_equal(floats(old["embedding"]), model.encode(TEXTS[0]))
    assert "truncated" not in old
    cut = client.post("/api/embeddings", json={"prompt": LONG, "keep_alive": 1}).json()
    assert (cut["truncated"], cut["ignored"]) == ([0], ["keep_alive"])
    assert [one["name"] for one in client.get("/api/tags").json()["models"]] == ["org/small:latest"]
    assert client.get("/api/version").json()["version"]


@pytest.mark.parametrize("route", ["/api/embed", "/api/embeddings"])
def test_a_name_without_a_tag_has_the_tag_latest(model: SentenceTransformer, route: str) -> None:
    """`a:v1` is served as another model than `a`; `b` is served under its name with the tag."""
    served = {"a": model, "org/b:latest": model, "a:v1": model}
    with Engine(served) as engine, TestClient(app(engine)) as client:

        def status(name: str) -> int:
            body = {"model": name, "input": "x", "prompt": "x"}
            return client.post(route, json=body).status_code

        for name in ("a", "a:latest", "a:v1", "b", "b:latest", "org/b", "org/b:latest", "default"):
            assert status(name) == 200, name
        for name in ("a:v2", "b:v1", "other/b", "a:", ":latest", ":", "", "a:latest:latest"):
            assert status(name) == 404, name
        assert engine.models.embedder("a:v1") is not engine.models.embedder("a")
        error = client.post(route, json={"model": "a:v2", "input": "x", "prompt": "x"}).json()["error"]
        assert error.startswith("model 'a:v2' not found: it is not served here")
        assert "another tag than :latest is another model" in error
        assert [one["name"] for one in client.get("/api/tags").json()["models"]] == ["a:latest", "org/b:latest", "a:v1"]


@pytest.mark.parametrize("empty", ["", []])
def test_ollama_answers_no_text_without_vectors(client: TestClient, empty: Any) -> None:
    response = client.post("/api/embed", json={"model": "small", "input": empty})
    assert (response.status_code, response.json()) == (200, {"model": "small", "embeddings": []})


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "none", "input": "a"}, 404, "model 'none' not found: it is not served here; expected 'org/small'"),
        ({"model": "small", "input": [1]}, 400, "input[0]: Expected str, got int"),
        (
            {"model": "small", "input": LONG, "truncate": False},
            400,
            "the input length exceeds the context length: input[0] has",
        ),
        ({"model": "small", "input": "a", "dimensions": 99}, 400, "dimensions is 99"),
        ({"model": "small"}, 400, "missing required field input"),
    ],
)
def test_wrong_requests_of_ollama(client: TestClient, body: dict[str, Any], status: int, message: str) -> None:
    response = client.post("/api/embed", json=body)
    assert response.status_code == status
    assert message in response.json()["error"]
