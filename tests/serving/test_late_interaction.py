"""A `MultiVectorEncoder` in the service: vectors of tokens, and texts in the order of their MaxSim."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

from minibert import CrossEncoder, MultiVectorEncoder, SentenceTransformer
from minibert.encode.token_plan import TokenPlan
from minibert.serving.asgi import POSTS, app
from minibert.serving.classifier import ScoreOptions
from minibert.serving.engine import Engine
from minibert.serving.models_by_name import load_served
from minibert.serving.served_models import VectorOptions
from tests.support.multi_vectors import bert_folder, pylate, stanford
from tests.support.served import message_of

TEXTS = ["A cat sleeps.", "", "the bank, the river", "A cat sleeps."]
LONG = "a long text of many words " * 30


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    home = tmp_path_factory.mktemp("late")
    bert = bert_folder(home / "bert")
    made = pylate(bert, home / "pylate", query_prefix="[unused1] ", document_prefix="[unused2] ", query_length=24)
    return made, stanford(bert, home / "stanford"), bert


@pytest.fixture(scope="module")
def encoder(folders: tuple[Path, Path, Path]) -> MultiVectorEncoder:
    return MultiVectorEncoder(folders[0])


@pytest.fixture(scope="module")
def client(model: SentenceTransformer, encoder: MultiVectorEncoder) -> Iterator[TestClient]:
    with Engine({"org/late": encoder, "small": model}) as engine, TestClient(app(engine)) as made:
        engine.warm_up()
        yield made


def post(client: TestClient, path: str, **body: Any) -> Any:
    return client.post(path, content=json.dumps(body))


def same(found: list[Any], vectors: list[np.ndarray]) -> None:
    assert len(found) == len(vectors)
    for ours, expected in zip(found, vectors, strict=True):
        np.testing.assert_array_equal(np.float32(ours).reshape(expected.shape), expected)


def test_vectors_of_tokens(client: TestClient, encoder: MultiVectorEncoder) -> None:
    documents, queries = encoder.encode_document(TEXTS), encoder.encode_query(TEXTS, truncation="silent")
    for path in ("/embed_all", "/"):
        same(post(client, path, inputs=TEXTS).json(), documents)
    same(post(client, "/embed_all", inputs=TEXTS[0]).json(), documents[:1])
    for fields in ({"prompt_name": "query"}, {"input_type": "query"}):
        same(post(client, "/embed_all", inputs=TEXTS, **fields).json(), queries)
    whole = {"model": "jina-colbert-v2", "dimensions": 16, "embedding_type": "float", "input": TEXTS}
    assert post(client, "/v1/multi-vector", **whole).status_code == 404  # it is not served here
    for kind, vectors in (("document", documents), ("query", queries)):
        answer = post(client, "/v1/multi-vector", **{**whole, "model": "late", "input_type": kind}).json()
        same([entry["embeddings"] for entry in answer["data"]], vectors)
        assert [entry["index"] for entry in answer["data"]] == [0, 1, 2, 3]
        assert (answer["model"], answer["usage"]["total_tokens"] > 0) == ("org/late", True)
    small = post(client, "/embed_all", inputs=TEXTS, model="small")
    assert len(small.json()[0][0]) == 24


def test_a_field_that_is_null_is_not_given(client: TestClient) -> None:
    for path, body in (("/embed_all", {"inputs": TEXTS}), ("/v1/multi-vector", {"input": TEXTS, "model": "late"})):
        fields = {field.encode_name for field in msgspec.structs.fields(POSTS[path].struct)} - body.keys()
        expected = post(client, path, **body)
        for null in (*([field] for field in fields), fields):
            found = post(client, path, **body, **dict.fromkeys(null))
            assert (found.status_code, found.json()) == (200, expected.json())


def test_texts_in_the_order_of_their_scores(client: TestClient, encoder: MultiVectorEncoder) -> None:
    given = [*TEXTS, LONG]
    query = encoder.encode_query("the cat")
    scores = np.asarray(encoder.similarity(query, encoder.encode_document(given, truncation="silent")))[0]
    order = np.argsort(-scores, kind="stable").tolist()
    for path in ("/rerank", "/"):
        found = post(client, path, query="the cat", texts=given).json()
        assert [one["index"] for one in found] == order
        assert [np.float32(one["score"]) for one in found] == scores[order].tolist()
    answer = post(client, "/v1/rerank", query="the cat", documents=given, top_n=2, return_documents=True).json()
    assert [one["index"] for one in answer["results"]] == order[:2]
    assert [one["document"]["text"] for one in answer["results"]] == [given[i] for i in order[:2]]
    alone = post(client, "/rerank", query="the cat", texts=[given[2]]).json()
    assert np.float32(alone[0]["score"]) == scores[2]


def test_what_a_request_holds_is_counted(
    encoder: MultiVectorEncoder, model: SentenceTransformer, ranker: CrossEncoder
) -> None:
    """Its results, and the vectors of a query, between its first and its last step; for each kind of request."""
    texts = [f"{i} the cat sat on the mat in the sun " * 4 for i in range(60)]
    with Engine({"late": encoder, "small": model, "rank": ranker}) as engine:
        late, small, rank = (cast(Any, engine.models[name]) for name in ("late", "small", "rank"))
        for prepared in (
            small.prepare(texts, VectorOptions()),
            small.prepare(texts, VectorOptions(dimensions=2)),
            small.prepare([" ".join(texts)], VectorOptions(truncation="split")),
            small.prepare(texts, VectorOptions(layers=[0, 1], pooling=["mean", "cls"], truncation="split")),
            small.prepare(texts, VectorOptions(tokens=True)),
            small.prepare(["the cat ", "sat on", " the mat"], VectorOptions(late_chunking=True)),
            late.prepare(texts, VectorOptions()),
            late.prepare(texts, VectorOptions(prompt_name="query")),
            late.prepare_scores("the cat", texts, ScoreOptions()),
            rank.prepare([("the cat", text) for text in texts], ScoreOptions()),
        ):
            engine.submit(prepared.job).result()
            held = sum(result.nbytes for result in prepared.job.results)
            queries = {id(query): query for unit in prepared.job.units if (query := getattr(unit, "query", None))}
            held += sum(query.vectors.nbytes for query in queries.values())
            assert 0 < held <= prepared.usage.n_bytes


def test_a_text_whose_vectors_are_not_finite_fails_alone(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = TokenPlan.tokens

    def some_nan(plan: TokenPlan, encodings: Any) -> Iterator[Any]:
        for encoding, vectors in zip(encodings, tokens(plan, encodings), strict=True):
            yield vectors * (np.nan if encoding.n_truncated else 1)

    monkeypatch.setattr(TokenPlan, "tokens", some_nan)
    failed = post(client, "/rerank", query="the cat", texts=["a", LONG, "the mat"])
    assert (failed.status_code, "input 1 " in message_of(failed), "finite" in message_of(failed)) == (500, True, True)
    failed = post(client, "/rerank", query=LONG, texts=["a", "the mat"])
    assert (failed.status_code, "input 0 " in message_of(failed)) == (500, True)
    assert post(client, "/rerank", query="the cat", texts=["a", "the mat"]).status_code == 200


BAD: list[tuple[str, dict[str, Any], int]] = [
    ("/embed_all", {"inputs": [LONG], "truncate": False}, 413),
    ("/rerank", {"query": "a", "texts": [LONG], "truncate": False}, 413),
    ("/rerank", {"query": LONG, "texts": ["a"], "truncate": False}, 413),
    ("/embed_all", {"inputs": TEXTS, "input_type": "classification"}, 422),
    ("/embed_all", {"inputs": TEXTS, "truncate": "split"}, 422),
    ("/embed_all", {"inputs": [[5, 6]]}, 422),
    ("/embed_all", {"inputs": TEXTS, "prompt_name": "no"}, 422),
    ("/embed_all", {"inputs": TEXTS, "input_type": "no"}, 422),
    ("/embed_all", {"inputs": TEXTS, "layers": [1]}, 422),
    ("/v1/multi-vector", {"input": TEXTS, "dimensions": 8}, 400),
    ("/v1/multi-vector", {"input": []}, 400),
    ("/v1/multi-vector", {"input": TEXTS, "model": "small"}, 400),
    ("/v1/embeddings", {"input": TEXTS, "model": "late"}, 400),
    ("/predict", {"inputs": TEXTS, "model": "late"}, 424),
]


@pytest.mark.parametrize("i", range(len(BAD)))
def test_wrong_requests_are_refused(client: TestClient, i: int) -> None:
    path, body, status = BAD[i]
    answer = post(client, path, **body)
    assert not any(advice in answer.text for advice in ("CrossEncoder", "is_split_into_words", "text_pair="))
    assert (answer.status_code, bool(message_of(answer))) == (status, True)


def test_the_class_is_that_of_the_files(client: TestClient, folders: tuple[Path, Path, Path]) -> None:
    kinds = [type(load_served(str(folder))).__name__ for folder in folders[:2]]
    assert kinds == ["MultiVectorEncoder", "MultiVectorEncoder"]
    assert client.get("/info").json()["model_type"] == {"embedding": {"pooling": "none"}}
    assert client.get("/v1/models/late").json()["embedding_dimension"] == 16
