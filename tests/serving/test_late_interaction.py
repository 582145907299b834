"""A `MultiVectorEncoder` in the service: vectors of tokens, and texts in the order of their MaxSim."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from starlette.testclient import TestClient

from minibert import CrossEncoder, MultiVectorEncoder, SentenceTransformer
from minibert.encode.token_plan import TokenPlan
from minibert.serving.asgi import app
from minibert.serving.classifier import ScoreOptions
from minibert.serving.engine import Engine
from minibert.serving.models_by_name import load_served
from minibert.serving.served_models import VectorOptions
from tests.support.multi_vectors import stanford
from tests.support.served import message_of

TEXTS = ["A cat sleeps.", "", "the bank, the river", "A cat sleeps."]
LONG = "a long text of many words " * 30


@pytest.fixture(scope="module")
def client(model: SentenceTransformer, late: MultiVectorEncoder) -> Iterator[TestClient]:
    with Engine({"org/late": late, "small": model}) as engine, TestClient(app(engine)) as made:
        engine.warm_up()
        yield made


def post(client: TestClient, path: str, **body: Any) -> Any:
    return client.post(path, content=json.dumps(body))


def same(found: list[Any], vectors: list[np.ndarray]) -> None:
    assert len(found) == len(vectors)
    for ours, expected in zip(found, vectors, strict=True):
        np.testing.assert_array_equal(np.float32(ours).reshape(expected.shape), expected)


def test_vectors_of_tokens(client: TestClient, late: MultiVectorEncoder) -> None:
    documents, queries = late.encode_document(TEXTS), late.encode_query(TEXTS, truncation="silent")
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


def test_texts_in_the_order_of_their_scores(client: TestClient, late: MultiVectorEncoder) -> None:
    given = [*TEXTS, LONG]
    query = late.encode_query("the cat")
    scores = np.asarray(late.similarity(query, late.encode_document(given, truncation="silent")))[0]
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
    late: MultiVectorEncoder, model: SentenceTransformer, ranker: CrossEncoder
) -> None:
    """Its results, and the vectors of a query, between its first and its last step; for each kind of request."""
    texts = [f"{i} the cat sat on the mat in the sun " * 4 for i in range(60)]
    with Engine({"late": late, "small": model, "rank": ranker}) as engine:
        tokens, small, rank = (cast(Any, engine.models[name]) for name in ("late", "small", "rank"))
        for prepared in (
            small.prepare(texts, VectorOptions()),
            small.prepare(texts, VectorOptions(dimensions=2)),
            small.prepare([" ".join(texts)], VectorOptions(truncation="split")),
            small.prepare(texts, VectorOptions(layers=[0, 1], pooling=["mean", "cls"], truncation="split")),
            small.prepare(texts, VectorOptions(tokens=True)),
            small.prepare(["the cat ", "sat on", " the mat"], VectorOptions(late_chunking=True)),
            tokens.prepare(texts, VectorOptions()),
            tokens.prepare(texts, VectorOptions(prompt_name="query")),
            tokens.prepare_scores("the cat", texts, ScoreOptions()),
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


def test_the_class_is_that_of_the_files(client: TestClient, late_folder: Path, tmp_path: Path) -> None:
    folders = (late_folder, stanford(late_folder.parent / "bert", tmp_path / "stanford"))
    kinds = [type(load_served(str(folder))).__name__ for folder in folders]
    assert kinds == ["MultiVectorEncoder", "MultiVectorEncoder"]
    assert client.get("/info").json()["model_type"] == {"embedding": {"pooling": "none"}}
    assert client.get("/v1/models/late").json()["embedding_dimension"] == 16
