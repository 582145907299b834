"""The protocols of the service over ASGI: answers, errors, headers, the OpenAPI document."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from minibert import SentenceTransformer
from minibert.integrations.bert_serving import BertClient
from minibert.serving.asgi import app
from minibert.serving.engine import Engine
from minibert.serving.scheduler import MAX_STEP
from minibert.serving.settings import Settings
from minibert.vectors.similarity import pairwise_cos_sim
from tests.support.fake_kinds import PATIENCE_SECONDS, Gate, job

TEXTS = ["A cat sleeps.", "", "the bank", "A cat sleeps."]
LONG = "a long text of many words " * 100


@pytest.fixture(scope="module")
def engine(model: SentenceTransformer) -> Iterator[Engine]:
    with Engine({"org/small": model}) as made:
        yield made


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[TestClient]:
    with TestClient(app(engine), raise_server_exceptions=False) as made:
        yield made


def post(client: TestClient, path: str, body: Any, **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=content, headers=headers)


def floats(rows: Any) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


# --- OpenAI -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_openai_embeddings_are_those_of_encode(
    client: TestClient, model: SentenceTransformer, path: str, encoding: str | None
) -> None:
    body = {"input": TEXTS, "model": "small", **({} if encoding is None else {"encoding_format": encoding})}
    response = post(client, path, body)
    answer = response.json()
    assert response.status_code == 200
    assert (answer["object"], answer["model"]) == ("list", "org/small")
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2, 3]
    found = [entry["embedding"] for entry in answer["data"]]
    if encoding == "base64":
        found = [np.frombuffer(base64.b64decode(text), dtype="<f4") for text in found]
    np.testing.assert_array_equal(floats(found), model.encode(TEXTS))
    total = sum(model.num_tokens(TEXTS))
    assert answer["usage"] == {"prompt_tokens": total, "total_tokens": total}
    assert not {"truncated", "ignored", "prompt_name"} & set(answer)


def test_openai_takes_one_text_and_token_ids(client: TestClient, model: SentenceTransformer) -> None:
    ids = [model.tokenizer.encode(text) for text in TEXTS]
    for given, expected in ((TEXTS[0], TEXTS[:1]), (ids, TEXTS), (ids[0], TEXTS[:1])):
        found = post(client, "/v1/embeddings", {"input": given}).json()["data"]
        np.testing.assert_array_equal(floats([entry["embedding"] for entry in found]), model.encode(expected))


def test_what_was_done_to_the_texts_is_said_in_headers_body_metrics_and_log(
    client: TestClient, model: SentenceTransformer, caplog: pytest.LogCaptureFixture
) -> None:
    before = numbers(client)
    body = {"input": ["a", LONG], "input_type": "query", "user": "me", "x\r\ny": 1}
    with caplog.at_level(logging.INFO, "minibert.serving"):
        response = post(client, "/v1/embeddings", body, **{"x-request-id": "my-id"})
    answer = response.json()
    assert (answer["truncated"], answer["ignored"], answer["prompt_name"]) == ([1], ["user", "x\r\ny"], "query")
    headers = response.headers
    assert (headers["x-minibert-truncated"], headers["x-minibert-prompt"]) == ("1", "query")
    assert (headers["x-minibert-ignored"], headers["x-request-id"]) == ("user,x??y", "my-id")
    assert int(headers["x-compute-tokens"]) == answer["usage"]["total_tokens"]
    line = json.loads(caplog.messages[-1])
    assert (line["truncated"], line["ignored"], line["prompt"]) == (1, "user,x??y", "query")
    assert (line["request_id"], line["texts"], line["status"]) == ("my-id", 2, 200)
    assert "long text" not in caplog.text
    after = numbers(client)
    for name, more in (("truncated_texts", 1), ("ignored_fields", 2), ("prompted_texts", 2), ("texts", 2)):
        assert after[f"minibert_{name}_total"] - before[f"minibert_{name}_total"] == more


def test_models(client: TestClient, model: SentenceTransformer) -> None:
    for path in ("/v1/models", "/models"):
        [entry] = client.get(path).json()["data"]
        assert (entry["id"], entry["embedding_dimension"], entry["max_input_length"]) == ("org/small", 24, 64)
        assert client.get(f"{path}/org/small").json() == client.get(f"{path}/default").json() == entry
        assert client.get(f"{path}/none").status_code == 404


# --- text-embeddings-inference ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/embed", "/"])
def test_tei_vectors_are_those_of_encode(client: TestClient, model: SentenceTransformer, path: str) -> None:
    np.testing.assert_array_equal(floats(post(client, path, {"inputs": TEXTS}).json()), model.encode(TEXTS))
    one = post(client, path, {"inputs": TEXTS[0]}, accept="application/octet-stream")
    assert one.headers["content-type"] == "application/octet-stream"
    np.testing.assert_array_equal(np.frombuffer(one.content, dtype="<f4"), model.encode(TEXTS[0]))
    shorter = post(client, path, {"inputs": TEXTS, "dimensions": 4, "prompt_name": "query"})
    expected = model.encode(TEXTS, truncate_dim=4, normalize_embeddings=True, prompt_name="query")
    np.testing.assert_array_equal(floats(shorter.json()), expected)
    assert shorter.headers["x-minibert-prompt"] == "query"
    raw = floats(post(client, path, {"inputs": TEXTS[:1], "normalize": False}).json())
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1)


def test_tei_cuts_texts_on_the_side_that_is_asked_for(client: TestClient, model: SentenceTransformer) -> None:
    left = post(client, "/embed", {"inputs": LONG + "end", "truncate": True, "truncation_direction": "Left"})
    right = post(client, "/embed", {"inputs": LONG + "end", "truncate": True})
    assert left.headers["x-minibert-truncated"] == right.headers["x-minibert-truncated"] == "1"
    assert left.json() != right.json()
    whole = post(client, "/embed", {"inputs": LONG, "truncate": "split"})
    np.testing.assert_array_equal(floats(whole.json()), model.encode([LONG], truncation="split"))
    assert "x-minibert-truncated" not in whole.headers


def test_tei_vectors_of_tokens(client: TestClient, model: SentenceTransformer) -> None:
    response = post(client, "/embed_all", {"inputs": TEXTS, "dimensions": 3})
    expected = model.encode(TEXTS, output_value="token_embeddings")
    for found, vectors in zip(response.json(), expected, strict=True):
        np.testing.assert_array_equal(floats(found), vectors)
    assert response.headers["x-minibert-ignored"] == "dimensions"


@pytest.mark.parametrize("path", ["/similarity", "/"])
def test_tei_similarities(client: TestClient, model: SentenceTransformer, path: str) -> None:
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS}
    vectors = model.encode(TEXTS)
    expected = pairwise_cos_sim(np.broadcast_to(vectors[0], vectors.shape), vectors)
    np.testing.assert_array_equal(floats(post(client, path, {"inputs": inputs}).json()), expected)
    cut = {"inputs": {**inputs, "sentences": [LONG]}, "parameters": {"truncate": False}}
    assert post(client, path, cut).status_code == 413


def test_tei_tokens_and_back(client: TestClient, model: SentenceTransformer) -> None:
    text = "中文 bank"
    [rows] = post(client, "/tokenize", {"inputs": text}).json()
    assert [row["id"] for row in rows] == model.tokenizer.encode(text)
    assert [row["special"] for row in rows] == [True, *[False] * (len(rows) - 2), True]
    assert (rows[0]["text"], rows[0]["start"], rows[0]["stop"]) == ("[CLS]", None, None)
    assert all(row["text"] == text[row["start"] : row["stop"]] for row in rows[1:-1])
    [inner] = post(client, "/tokenize", {"inputs": [text], "add_special_tokens": False}).json()
    assert inner == rows[1:-1]
    ids = model.tokenizer.encode("A cat")
    for given in (ids, [ids]):
        assert post(client, "/decode", {"ids": given}).json() == [model.tokenizer.decode(ids, skip_special_tokens=True)]
    [shown] = post(client, "/decode", {"ids": ids, "skip_special_tokens": False}).json()
    assert shown.startswith("[CLS]")
    assert post(client, "/decode", {"ids": [10**12]}).status_code == 422
    assert post(client, "/tokenize", {"inputs": "a" * (2**20 + 1)}).status_code == 413


def test_tei_info(client: TestClient) -> None:
    found = client.get("/info").json()
    assert (found["model_id"], found["max_input_length"], found["auto_truncate"]) == ("org/small", 64, True)
    assert found["model_type"] == {"embedding": {"pooling": "mean"}}
    assert found["max_client_batch_size"] == 2048
    assert (found["max_batch_tokens"], found["tokenization_workers"]) == (MAX_STEP, 2)


# --- bert-as-service --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "named"), [(99, "99"), (2, "2"), ([0, -3], "-3")])
def test_bert_as_service_counts_layers_from_0(
    client: TestClient, model: SentenceTransformer, given: Any, named: str
) -> None:
    expected = f"={named}; this model has 2 layers: 0 to 1, or -2 to -1."
    answer = post(client, "/encode", {"texts": ["a"], "layers": given})
    assert (answer.status_code, answer.json()["error"]) == (400, f"layers{expected}")
    with pytest.raises(ValueError, match=re.escape(f"pooling_layer{expected}")):
        BertClient(model=model, pooling_layer=given)
    for one, same in ((0, -2), (1, -1), ([1, 0], [-1, -2])):
        first, second = (post(client, "/encode", {"texts": ["a"], "layers": layers}).json() for layers in (one, same))
        assert first["result"] == second["result"]
        of_client = BertClient(model=model, pooling_layer=one).encode(["a"])
        np.testing.assert_array_equal(np.float32(first["result"]), of_client)


def test_bert_as_service(client: TestClient, model: SentenceTransformer) -> None:
    texts = ["A cat sleeps.", "the bank"]
    answer = post(client, "/encode", {"id": 123, "texts": texts, "show_tokens": True}).json()
    vectors, tokens = BertClient(model=model).encode(texts, show_tokens=True)
    assert (answer["id"], answer["status"], answer["tokens"]) == (123, 200, tokens)
    np.testing.assert_array_equal(floats(answer["result"]), vectors)
    split = [row[1:-1] for row in tokens]
    answer = post(client, "/encode", {"texts": split, "is_tokenized": True}).json()
    np.testing.assert_array_equal(floats(answer["result"]), vectors)
    answer = post(
        client, "/encode", {"texts": [*split, ["the"] * 99], "is_tokenized": True, "show_tokens": True}
    ).json()
    assert answer["tokens"] == [*tokens, ["[CLS]", *["the"] * 62, "[SEP]"]]
    blank = post(client, "/encode", {"texts": ["a", " "]})
    assert (blank.status_code, blank.json()) == (
        400,
        {"status": 400, "error": "texts[1] is blank; expected some text."},
    )


# --- errors -----------------------------------------------------------------------------------------------------------

# body -> status of OpenAI's routes, of text-embeddings-inference's, and a part of the message. "F" is the field.
WRONG: dict[str, tuple[bytes, int, int, str]] = {
    "no JSON": (b"hello", 400, 400, "not JSON"),
    "nothing": (b"", 400, 400, "not JSON"),
    "half of it": (b'{"F": ["a"', 400, 400, "not JSON"),
    "more after it": (b'{"F": "a"} {}', 400, 400, "not JSON"),
    "not UTF-8": (b'{"F": "\xff"}', 400, 400, "not UTF-8"),
    "lone surrogate": (b'{"F": "\\ud800"}', 400, 400, "without its other half"),
    "lone surrogate elsewhere": (b'{"F": "a", "user": "\\udfff"}', 400, 400, "without its other half"),
    "nested brackets": (b'{"F": ' + b"[" * 60_000 + b"]" * 60_000 + b"}", 400, 400, "nested brackets"),
    "nested brackets elsewhere": (b'{"F": "a", "x": ' + b'{"a":' * 60_000 + b"}" * 60_000 + b"}", 400, 400, ""),
    "large number": (b'{"F": [1e400]}', 400, 422, "F[0]"),
    "large dimensions": (b'{"F": "a", "dimensions": 1e400}', 400, 422, "dimensions"),
    "many digits": (b'{"F": [' + b"9" * 5000 + b"]}", 400, 422, ""),
    "a list": (b"[]", 400, 422, "Expected object"),
    "no field": (b"{}", 400, 422, "missing required field F"),
    "null": (b'{"F": null}', 400, 422, "F is null"),
    "number": (b'{"F": 3}', 400, 422, "F is a number"),
    "true": (b'{"F": true}', 400, 422, "F is true"),
    "a wrong text": (b'{"F": ["a", "b", 3]}', 400, 422, "F[2]: Expected str, got int"),
    "ids and texts": (b'{"F": [3, "a"]}', 400, 422, "F[1]: Expected int, got str"),
    "a wrong id": (b'{"F": [[1, 2], [3, null]]}', 400, 422, "F[1][1]: Expected int, got null"),
    "foreign ids": (b'{"F": [[1, 2]]}', 400, 422, "F[0] is an array of token ids that does not begin with"),
    "empty": (b'{"F": []}', 400, 400, "F is an empty list"),
    "wrong type": (b'{"F": "a", "dimensions": "x"}', 400, 422, "dimensions: Expected int | null, got str"),
    "dimensions": (b'{"F": "a", "dimensions": 99}', 400, 422, "dimensions is 99; expected a number from 1 to 24"),
    "prompt": (b'{"F": "a", "prompt_name": "x"}', 400, 422, "prompt_name 'x' is not a prompt of this model"),
    "truncate": (b'{"F": "a", "truncate": "x"}', 400, 422, "truncate 'x'; expected true, false"),
    "priority": (b'{"F": "a", "priority": "high"}', 400, 422, "priority"),
    "layers": (b'{"F": "a", "layers": 99}', 400, 422, "layers"),
    "many layers": (b'{"F": "a", "layers": [1, 1, 1, 1]}', 400, 422, "layers has 4 items; the limit is 3"),
    "many modes": (json.dumps({"F": "a", "pooling": ["cls"] * 9}).encode(), 400, 422, "pooling has 9 items"),
    "very long": (json.dumps({"F": "word " * 10**5, "truncate": False}).encode(), 400, 413, "F[0] has "),
    "too many": (b'{"F": [' + b'"a",' * 2048 + b'"a"]}', 400, 413, "2049 inputs; the limit is 2048"),
    "too long": (json.dumps({"F": ["a", LONG], "truncate": False}).encode(), 400, 413, "F[1] has "),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests(client: TestClient, name: str) -> None:
    body, of_openai, of_tei, message = WRONG[name]
    for path, field, status in (("/v1/embeddings", "input", of_openai), ("/embed", "inputs", of_tei)):
        response = post(client, path, body.replace(b'"F"', f'"{field}"'.encode()))
        assert response.status_code == status, response.text
        found = response.json()
        text = found["error"]["message"] if path.startswith("/v1") else found["error"]
        assert re.sub(r"\bF\b", field, message) in text
        assert "Traceback" not in text
        assert response.headers["x-request-id"]


def test_the_shapes_of_errors(client: TestClient) -> None:
    long = {"input": LONG, "truncate": False}
    found = post(client, "/v1/embeddings", long).json()["error"]
    assert (found["type"], found["param"], found["code"]) == (
        "invalid_request_error",
        "input",
        "context_length_exceeded",
    )
    given = re.search(r"maximum context length is 64 tokens, however you requested (\d+) tokens", found["message"])
    assert given
    assert found["message"].endswith("Please reduce your prompt; or completion length.")
    found = post(client, "/embed", {"inputs": LONG, "truncate": False}).json()
    assert found["error"].endswith(f"`inputs` must have less than 64 tokens. Given: {given[1]}")
    assert found["error_type"] == "Validation"
    assert post(client, "/embed", {"inputs": []}).json()["error_type"] == "Empty"
    for field, wrong in (("layers", 99), ("pooling", "x"), ("dimensions", 0), ("prompt_name", "x"), ("model", 5)):
        assert post(client, "/v1/embeddings", {"input": "a", field: wrong}).json()["error"]["param"] == field
    found = post(client, "/v1/embeddings", {"input": "a", "model": "gpt"}).json()["error"]
    assert (found["code"], "'org/small'" in found["message"]) == ("model_not_found", True)


def test_unknown_routes_and_methods(client: TestClient) -> None:
    for method, path, status in (
        ("GET", "/none", 404),
        ("GET", "/embed", 405),
        ("PUT", "/", 405),
        ("POST", "/info", 405),
    ):
        response = client.request(method, path)
        assert response.status_code == status
        assert path in response.text
        assert response.headers["x-request-id"]
    assert client.get("/v1/none").json()["error"]["type"] == "invalid_request_error"
    assert client.get("/embed").json()["error_type"] == client.post("/info").json()["error_type"] == "Validation"
    for method, path in (("POST", "/api/pull"), ("POST", "/api/tags"), ("GET", "/api/embed")):  # of Ollama
        assert path in client.request(method, path).json()["error"][:20]


@pytest.mark.parametrize("path", ["/predict", "/rerank"])
def test_routes_for_other_models_say_so(client: TestClient, path: str) -> None:
    response = post(client, path, {"query": "a", "texts": ["a"], "inputs": "a"})
    assert (response.status_code, response.json()["error_type"]) == (424, "Backend")
    assert "needs a model that gives scores" in response.json()["error"]


def test_compressed_and_large_bodies_are_refused(model: SentenceTransformer) -> None:
    with Engine(model, settings=Settings(max_body_bytes=1000)) as engine, TestClient(app(engine)) as client:
        assert post(client, "/embed", {"inputs": "a"}, **{"content-encoding": "gzip"}).status_code == 415
        for path in ("/embed", "/v1/embeddings"):
            response = post(client, path, b'{"inputs":"' + b"a" * 1000 + b'"}')
            assert response.status_code == 413
            assert "1000 bytes" in response.text
            chunks = client.post(path, content=iter([b"a" * 400] * 3))
            assert chunks.status_code == 413
        assert client.app.state.service.inflight_bytes == 0  # type: ignore[attr-defined]


def test_any_content_type_is_read_as_json(client: TestClient) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert post(client, "/embed", {"inputs": "a"}, **form).status_code == 200


# --- operation --------------------------------------------------------------------------------------------------------


def numbers(client: TestClient) -> dict[str, float]:
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_health_and_metrics_answer_while_the_engine_computes(model: SentenceTransformer) -> None:
    engine = Engine(model)
    with TestClient(app(engine)) as client:
        gate = Gate()
        engine.submit(job([1], gate))
        assert gate.entered.wait(PATIENCE_SECONDS)
        engine.submit(job([5000] * 3))
        for path in ("/health", "/ping", "/readyz", "/livez", "/"):
            response = client.get(path)
            assert (response.status_code, response.content) == (200, b"")
        found = numbers(client)
        assert (found["minibert_queue_tokens"], found["minibert_queue_size"]) == (15000, 1)
        assert found['minibert_estimated_wait_seconds{class="bulk"}'] > 0
        gate.opened.set()
        engine.close()
        assert client.get("/livez").status_code == 200
        for path in ("/health", "/readyz"):
            assert client.get(path).status_code == 503
        for path in ("/embed", "/v1/embeddings"):
            refused = post(client, path, {"inputs": "a", "input": "a"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


def test_a_wait_that_is_too_long_is_429(model: SentenceTransformer) -> None:
    with Engine(model, settings=Settings(max_wait=0.5)) as engine, TestClient(app(engine)) as client:
        gate = Gate()
        engine.submit(job([1], gate))
        assert gate.entered.wait(PATIENCE_SECONDS)
        bulk = engine.submit(job([1000] * 50))
        texts = ["a " * number for number in range(1, 50)]
        refused = post(client, "/v1/embeddings", {"input": texts, "priority": "low"})
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert post(client, "/embed", {"inputs": texts, "priority": "low"}).json()["error_type"] == "Overloaded"
        gate.opened.set()
        assert len(bulk.result(PATIENCE_SECONDS)) == 50
        assert numbers(client)["minibert_shed_total"] == 2


def test_a_request_that_takes_too_long_is_503_and_leaves_the_queue(model: SentenceTransformer) -> None:
    with Engine(model, settings=Settings(request_timeout=0.05)) as engine, TestClient(app(engine)) as client:
        gate = Gate()
        engine.submit(job([1], gate))
        assert gate.entered.wait(PATIENCE_SECONDS)
        assert post(client, "/embed", {"inputs": ["a"]}).status_code == 503
        assert engine.load().queued_jobs == 0
        gate.opened.set()


def test_an_error_of_the_service_is_500_without_details(
    model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Engine(model) as engine, TestClient(app(engine)) as client:
        monkeypatch.setattr(engine.models["default"], "prepare", lambda *_: 1 / 0)
        response = post(client, "/v1/embeddings", {"input": "a"})
        assert response.status_code == 500
        assert "division" not in response.text
        assert "division" in caplog.text
        assert response.headers["x-request-id"] in response.json()["error"]["message"]


def test_the_openapi_document_has_every_route_and_struct(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    for path in ("/v1/embeddings", "/embed", "/", "/embed_all", "/similarity", "/tokenize", "/decode", "/encode"):
        assert "post" in document["paths"][path]
    schemas = document["components"]["schemas"]
    assert {"input", "model", "encoding_format", "dimensions", "truncate"} <= set(
        schemas["OpenAIEmbeddingRequest"]["properties"]
    )
    assert schemas["EmbedRequest"]["required"] == ["inputs"]
    refs = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert refs <= set(schemas)
