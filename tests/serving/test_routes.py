"""The routes of all protocols over ASGI: answers compared with `encode` and `predict`, errors, headers."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

import minibert
from minibert import CrossEncoder, MultiVectorEncoder, SentenceTransformer
from minibert.compat.bert_serving import BertClient
from minibert.serving import asgi
from minibert.serving.asgi import POSTS, app
from minibert.serving.engine import Engine
from minibert.serving.observability import LOG, REQUESTS
from minibert.serving.protocols import common
from minibert.serving.scheduler import MAX_STEP
from minibert.serving.served_models import TextEmbedder
from minibert.serving.settings import Settings
from minibert.vectors.similarity import pairwise_cos_sim, quantize_embeddings
from tests.support.sentence_heads import model_folder
from tests.support.served import message_of, numbers

TEXTS = ["A cat sleeps.", "", "the bank", "A cat sleeps."]
LONG = "a long text of many words " * 100
QUERY, SCORED = "the bank", [*TEXTS, "word " * 300, "中文"]
LABELS = {"id2label": {0: "good", 1: "bad", 2: "odd"}, "label2id": {"good": 0, "bad": 1, "odd": 2}}


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads") / "labels"
    return model_folder(folder, "BertForSequenceClassification", num_labels=3, **LABELS)


@pytest.fixture(scope="module")
def classifier(labels: Path) -> CrossEncoder:
    return CrossEncoder(labels, prompts={"ask": "question: "})


@pytest.fixture(scope="module")
def client(
    model: SentenceTransformer, ranker: CrossEncoder, classifier: CrossEncoder, late: MultiVectorEncoder
) -> Iterator[TestClient]:
    models = {"org/small": model, "labels": classifier, "org/ranker": ranker, "late": late}
    with Engine(models) as engine, TestClient(app(engine), raise_server_exceptions=False) as made:
        yield made


def post(client: TestClient, path: str, body: Any, **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=content, headers=headers)


# --- vectors ----------------------------------------------------------------------------------------------------------


def openai(answer: Any) -> list[Any]:
    assert [entry["index"] for entry in answer["data"]] == [*range(len(answer["data"]))]
    assert (answer["object"], answer["model"]) == ("list", "org/small")
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"]
    assert not {"truncated", "ignored"} & set(answer)
    return [entry["embedding"] for entry in answer["data"]]


def in_base64(rows: list[str]) -> list[Any]:
    return [np.frombuffer(base64.b64decode(row), dtype="<f4") for row in rows]


def cohere(answer: Any) -> list[Any]:
    assert (answer["texts"], answer["response_type"]) == (TEXTS, "embeddings_by_type")
    assert answer["meta"]["billed_units"]["input_tokens"] > 0
    return answer["embeddings"]["float"]  # type: ignore[no-any-return]


IDS = "the token ids of these texts"
SHORT = {"truncate_dim": 4, "normalize_embeddings": True}
# path, body, the vectors of its answer, arguments of `encode`
VECTORS: list[tuple[str, dict[str, Any], Callable[[Any], Any], dict[str, Any]]] = [
    ("/v1/embeddings", {"input": TEXTS, "model": "small"}, openai, {}),
    ("/embeddings", {"input": TEXTS, "encoding_format": "float"}, openai, {}),
    ("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"}, lambda answer: in_base64(openai(answer)), {}),
    ("/v1/embeddings", {"input": TEXTS[0]}, openai, {"inputs": TEXTS[:1]}),
    ("/v1/embeddings", {"input": IDS}, openai, {}),
    ("/v1/embeddings", {"input": IDS + ": the first"}, openai, {"inputs": TEXTS[:1]}),
    *((path, {"inputs": TEXTS}, list, {}) for path in ("/embed", "/", "/invocations")),
    ("/", {"inputs": TEXTS, "dimensions": 4, "prompt_name": "query"}, list, {**SHORT, "prompt_name": "query"}),
    ("/embed", {"inputs": LONG, "truncate": "split"}, list, {"inputs": [LONG], "truncation": "split"}),
    ("/embed", {"inputs": TEXTS, "pooling": "cls"}, list, {"pooling": "cls", "normalize_embeddings": True}),
    ("/embed", {"inputs": TEXTS, "layers": [1]}, list, {"layers": [1], "normalize_embeddings": True}),
    ("/embed", {"inputs": TEXTS, "input_type": "search_document"}, list, {}),
    ("/v1/embeddings", {"input": TEXTS, "task": "retrieval.query"}, openai, {"prompt_name": "query"}),
    *(("/v1/embeddings", {"input": TEXTS, "task": task}, openai, {}) for task in ("retrieval.passage", "separation")),
    ("/embed", {"inputs": TEXTS, "task": "retrieval.query"}, list, {"prompt_name": "query"}),
    ("/v2/embed", {"texts": TEXTS}, cohere, {}),
    ("/v2/embed", {"texts": TEXTS, "embedding_types": []}, cohere, {}),
    ("/v2/embed", {"texts": TEXTS, "input_type": "search_query"}, cohere, {"prompt_name": "query"}),
    ("/v1/embed", {"texts": TEXTS}, lambda answer: answer["embeddings"], {}),
    ("/v1/embed", {"texts": TEXTS, "output_dimension": 4}, lambda answer: answer["embeddings"], SHORT),
    ("/api/embed", {"model": "small:latest", "input": TEXTS}, lambda answer: answer["embeddings"], {}),
    ("/api/embed", {"input": TEXTS[0]}, lambda answer: answer["embeddings"], {"inputs": TEXTS[:1]}),
    ("/api/embeddings", {"prompt": TEXTS[0]}, lambda answer: [answer["embedding"]], {"inputs": TEXTS[:1]}),
]


@pytest.mark.parametrize(("path", "body", "read", "options"), VECTORS)
def test_vectors_are_those_of_encode(
    client: TestClient,
    model: SentenceTransformer,
    path: str,
    body: dict[str, Any],
    read: Callable[[Any], Any],
    options: dict[str, Any],
) -> None:
    if str(body.get("input")).startswith(IDS):
        ids = [model.tokenizer.encode(text) for text in TEXTS]
        body = {"input": ids if body["input"] == IDS else ids[0]}
    response = post(client, path, body)
    assert response.status_code == 200
    expected = model.encode(**{"inputs": TEXTS, **options})
    np.testing.assert_array_equal(np.array(read(response.json()), dtype=np.float32), expected)
    assert response.headers.get("x-minibert-prompt") == options.get("prompt_name")
    assert "x-minibert-truncated" not in response.headers


def test_tei_gives_bytes_vectors_of_tokens_and_similarities(client: TestClient, model: SentenceTransformer) -> None:
    one = post(client, "/embed", {"inputs": TEXTS[0]}, accept="application/octet-stream")
    assert one.headers["content-type"] == "application/octet-stream"
    np.testing.assert_array_equal(np.frombuffer(one.content, dtype="<f4"), model.encode(TEXTS[0]))
    raw = np.float32(post(client, "/embed", {"inputs": TEXTS[:1], "normalize": False}).json())
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1)
    response = post(client, "/embed_all", {"inputs": TEXTS, "dimensions": 3})
    for found, vectors in zip(response.json(), model.encode(TEXTS, output_value="token_embeddings"), strict=True):
        np.testing.assert_array_equal(np.float32(found), vectors)
    assert response.headers["x-minibert-ignored"] == "dimensions"
    inputs, vectors = {"source_sentence": TEXTS[0], "sentences": TEXTS}, model.encode(TEXTS)
    expected = pairwise_cos_sim(np.broadcast_to(vectors[0], vectors.shape), vectors)
    for path in ("/similarity", "/"):
        np.testing.assert_array_equal(np.float32(post(client, path, {"inputs": inputs}).json()), expected)
        cut = {"inputs": {**inputs, "sentences": [LONG]}, "parameters": {"truncate": False}}
        assert post(client, path, cut).status_code == 413


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_hidden_states(model: SentenceTransformer, encoding_format: str) -> None:
    """They are those of the model, without a prompt, also if there is a default one; tokens have places and words."""
    body = {"inputs": [*TEXTS, "中文 bank"], "layers": [0, -1], "encoding_format": encoding_format, "truncate": True}
    with Engine(model, settings=Settings(default_prompt_name="query")) as engine, TestClient(app(engine)) as client:
        response = post(client, "/hidden_states", body)
    assert response.headers["x-minibert-ignored"] == "truncate"
    answer, last = response.json(), model.model.config.num_hidden_layers
    assert answer["layers"] == [0, last]
    for index, (text, entry) in enumerate(zip(body["inputs"], answer["data"], strict=True)):
        inputs = model.tokenizer([text], return_offsets_mapping=True)
        expected = model.model(np.array(inputs["input_ids"]), output_hidden_states=True).hidden_states
        assert (entry["index"], entry["tokens"], entry["words"]) == (index, inputs.tokens(0), inputs.word_ids(0))
        np.testing.assert_array_equal(entry["offsets"], inputs["offset_mapping"][0])
        states = entry["hidden_states"]
        found = in_base64(states) if encoding_format == "base64" else np.float32(states)
        assert entry["shape"] == [2, *expected[0].shape[1:]]
        np.testing.assert_array_equal(np.reshape(found, entry["shape"]), np.stack([expected[0][0], expected[last][0]]))


def test_hidden_states_that_take_too_much_memory(model: SentenceTransformer) -> None:
    settings = Settings(max_result_bytes=4 * 24 * 10)
    with Engine(model, settings=settings) as engine, TestClient(app(engine)) as client:
        assert post(client, "/hidden_states", {"inputs": "a b c"}).status_code == 200
        refused = post(client, "/hidden_states", {"inputs": "a b c", "layers": [0, 1, 2]})
    assert (refused.status_code, "960" in refused.text) == (413, True)


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


PARTS = ["The river bank", " is flood", "ed. It", " is dry.", "It rains. "]


@pytest.mark.parametrize("more", [{}, {"dimensions": 8}, {"normalize": False}, {"layers": 1}, {"prompt_name": "query"}])
def test_late_chunking_gives_the_vectors_of_parts_of_one_text(
    client: TestClient, model: SentenceTransformer, more: dict[str, Any]
) -> None:
    """Jina's field: the inputs are concatenated, and computed as one text."""
    body = {"input": PARTS, "late_chunking": True, "truncate": True, **more}
    answer = post(client, "/v1/embeddings", {**body, "model": "small"}).json()
    ends = [*accumulate(map(len, PARTS), initial=0)]
    given = {
        "prompt_name": more.get("prompt_name"),
        "layers": more.get("layers"),
        "truncate_dim": more.get("dimensions"),
    }
    expected = model.encode("".join(PARTS), spans=[*pairwise(ends)], **given)
    found = np.array(openai(answer), dtype=np.float32)
    if more in ({"dimensions": 8}, {"normalize": False}):
        assert np.allclose(np.linalg.norm(found, axis=1), 1) == ("dimensions" in more)
        found, expected = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (found, expected))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, expected)
    prompt = model.prompts["query"] if "prompt_name" in more else ""
    assert answer["usage"]["total_tokens"] == model.num_tokens(["".join(PARTS)], prompt=prompt)[0]
    refused = post(client, "/v1/embeddings", {**body, "input": ["a", " ", "b"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    assert "input[1]=(1, 2) has no token" in message_of(refused)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"input": ["word "] * 600}, "tokens together; the limit is"),
        ({"input": [[101, 7, 102]]}, "input[0]"),
        ({"pooling": "cls"}, "'mean'"),
        ({"truncate": "split"}, "late_chunking"),
        ({"late_chunking": "yes"}, "late_chunking"),
    ],
)
def test_wrong_requests_for_late_chunking(client: TestClient, fields: dict[str, Any], part: str) -> None:
    refused = post(client, "/v1/embeddings", {"input": PARTS, "late_chunking": True, **fields})
    assert refused.status_code == 400
    assert part in message_of(refused)


def test_cohere_gives_each_type_that_is_asked_for(client: TestClient, model: SentenceTransformer) -> None:
    kinds = ["float", "base64", "binary", "ubinary"]
    answer = post(client, "/v2/embed", {"texts": TEXTS, "embedding_types": kinds}).json()
    found, expected = answer["embeddings"], model.encode(TEXTS)
    np.testing.assert_array_equal(in_base64(found["base64"]), expected)
    for kind in ("binary", "ubinary"):
        np.testing.assert_array_equal(found[kind], quantize_embeddings(expected, kind))
    end, start, unsaid = (
        post(client, "/v2/embed", {"texts": [LONG + "end"], **more}).json()
        for more in ({"truncate": "END"}, {"truncate": "START"}, {})
    )
    assert end["embeddings"] == unsaid["embeddings"] != start["embeddings"]
    assert end["truncated"] == start["truncated"] == [0]


def test_ollama_says_what_was_done(client: TestClient, model: SentenceTransformer) -> None:
    body = {"model": "small:latest", "input": TEXTS, "keep_alive": "5m", "options": {}}
    response = post(client, "/api/embed", body)
    answer = response.json()
    assert (answer["model"], answer["prompt_eval_count"]) == ("small:latest", sum(model.num_tokens(TEXTS)))
    assert {"total_duration", "load_duration"} <= set(answer)
    assert response.headers["x-minibert-ignored"] == "keep_alive,options"
    assert (answer["ignored"], "truncated" in answer) == (["keep_alive", "options"], False)
    cut = post(client, "/api/embeddings", {"prompt": LONG, "keep_alive": 1}).json()
    assert (cut["truncated"], cut["ignored"]) == ([0], ["keep_alive"])
    for empty in ("", []):
        nothing = post(client, "/api/embed", {"model": "small", "input": empty})
        assert (nothing.status_code, nothing.json()) == (200, {"model": "small", "embeddings": []})
    nothing = post(client, "/api/embeddings", {"model": "small", "prompt": ""})
    assert (nothing.status_code, nothing.json()) == (200, {"embedding": []})
    assert client.get("/api/tags").json()["models"][0]["name"] == "org/small:latest"
    assert client.get("/api/ps").json() == client.get("/api/tags").json()
    assert client.get("/api/version").json()["version"]
    shown = post(client, "/api/show", {"name": "small"}).json()
    assert (shown["capabilities"], shown["model_info"]["bert.embedding_length"]) == (["embedding"], 24)


def test_ollama_takes_a_name_without_a_tag_for_latest(model: SentenceTransformer) -> None:
    """`a:v1` is served as another model than `a`; `b` is served under its name with the tag."""
    with Engine({"a": model, "org/b:latest": model, "a:v1": model}) as engine, TestClient(app(engine)) as client:
        for route in ("/api/embed", "/api/embeddings", "/api/show"):

            def status(name: str, route: str = route) -> int:
                return int(post(client, route, {"model": name, "input": "x", "prompt": "x"}).status_code)

            for name in ("a", "a:latest", "a:v1", "b", "b:latest", "org/b", "org/b:latest", "default"):
                assert status(name) == 200, name
            for name in ("a:v2", "b:v1", "other/b", "a:", ":latest", ":", "a:latest:latest"):
                assert status(name) == 404, name
        assert engine.models.of(TextEmbedder, "a:v1") is not engine.models.of(TextEmbedder, "a")
        assert [one["name"] for one in client.get("/api/tags").json()["models"]] == ["a:latest", "org/b:latest", "a:v1"]


def test_bert_as_service(client: TestClient, model: SentenceTransformer) -> None:
    texts = ["A cat sleeps.", "the bank"]
    answer = post(client, "/encode", {"id": 123, "texts": texts, "show_tokens": True}).json()
    vectors, tokens = BertClient(model=model).encode(texts, show_tokens=True)
    assert (answer["id"], answer["status"], answer["tokens"]) == (123, 200, tokens)
    np.testing.assert_array_equal(np.float32(answer["result"]), vectors)
    body = {"texts": [*[row[1:-1] for row in tokens], ["the"] * 99], "is_tokenized": True, "show_tokens": True}
    answer = post(client, "/encode", body).json()
    np.testing.assert_array_equal(np.float32(answer["result"])[:2], vectors)
    assert answer["tokens"] == [*tokens, ["[CLS]", *["the"] * 62, "[SEP]"]]
    for layers, same in ((0, -2), (1, -1), ([1, 0], [-1, -2])):
        first, second = (post(client, "/encode", {"texts": ["a"], "layers": one}).json() for one in (layers, same))
        assert first["result"] == second["result"]
        of_client = BertClient(model=model, pooling_layer=layers).encode(["a"])
        np.testing.assert_array_equal(np.float32(first["result"]), of_client)


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("raw", "activation"), [(False, "Sigmoid"), (True, "Identity")])
def test_ranks_are_those_of_the_cross_encoder(
    client: TestClient, ranker: CrossEncoder, raw: bool, activation: str
) -> None:
    response = post(client, "/rerank", {"query": QUERY, "texts": SCORED, "raw_scores": raw, "return_text": True})
    rows = response.json()
    expected = ranker.predict([(QUERY, text) for text in SCORED], activation_fn=activation, truncation="silent")
    order = [row["corpus_id"] for row in ranker.rank(QUERY, SCORED, truncation="silent")]
    assert [(row["index"], row["text"]) for row in rows] == [(i, SCORED[i]) for i in order]
    np.testing.assert_array_equal(np.float32([row["score"] for row in rows]), expected[order])
    assert response.headers["x-minibert-truncated"] == "1"
    assert "text" not in post(client, "/rerank", {"query": QUERY, "texts": SCORED}).json()[0]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_ranks_in_the_form_of_cohere_and_jina(client: TestClient, ranker: CrossEncoder, path: str) -> None:
    documents = [SCORED[0], {"text": SCORED[2]}, SCORED[4]]
    body = {"query": QUERY, "documents": documents, "model": "ranker", "top_n": 2, "return_documents": True, "user": 1}
    answer = post(client, path, body).json()
    pairs = [(QUERY, SCORED[i]) for i in (0, 2, 4)]
    expected = ranker.predict(pairs, activation_fn="Sigmoid", truncation="silent")
    best = np.argsort(-expected, kind="stable")[:2].tolist()
    assert [(row["index"], row["document"]["text"]) for row in answer["results"]] == [(i, pairs[i][1]) for i in best]
    found = np.float32([row["relevance_score"] for row in answer["results"]])
    np.testing.assert_array_equal(found, expected[best])
    assert (answer["model"], answer["truncated"], answer["ignored"]) == ("org/ranker", [2], ["user"])
    assert answer["usage"]["total_tokens"] > ranker.max_seq_length
    assert answer["meta"] == {"billed_units": {"search_units": 1}}


def test_labels_are_those_of_the_pipeline(client: TestClient, labels: Path) -> None:
    pipeline = minibert.pipeline("text-classification", str(labels), top_k=None)
    rows = post(client, "/predict", {"inputs": [[TEXTS[0]], [QUERY, TEXTS[2]], [TEXTS[0]]]}).json()
    for row, given in zip(rows, (TEXTS[0], {"text": QUERY, "text_pair": TEXTS[2]}, TEXTS[0]), strict=True):
        expected = [(one["label"], np.float32(one["score"])) for one in pipeline([given])[0]]
        assert [(one["label"], np.float32(one["score"])) for one in row] == expected
    for inputs, row in ((TEXTS[0], rows[0]), ([TEXTS[0]], rows[0]), ([QUERY, TEXTS[2]], rows[1])):
        assert post(client, "/predict", {"inputs": inputs}).json() == row
    assert {one["label"] for one in rows[0]} == {"good", "bad", "odd"}


def test_raw_scores_prompts_and_sides(client: TestClient, classifier: CrossEncoder) -> None:
    body = {"inputs": [[QUERY, TEXTS[0]]], "raw_scores": True, "prompt_name": "ask", "model": "labels"}
    response = post(client, "/predict", body)
    expected = classifier.predict([(QUERY, TEXTS[0])], prompt_name="ask", activation_fn="Identity")[0]
    found = {one["label"]: np.float32(one["score"]) for one in response.json()[0]}
    assert [found[name] for name in ("good", "bad", "odd")] == expected.tolist()
    assert response.headers["x-minibert-prompt"] == "ask"
    body = {"inputs": "word " * 300 + "cat", "raw_scores": True}
    right, left = (post(client, "/predict", body | {"truncation_direction": side}).json() for side in ("right", "Left"))
    assert right != left


def test_each_request_finds_a_model_that_can_answer_it(
    client: TestClient,
    model: SentenceTransformer,
    ranker: CrossEncoder,
    classifier: CrossEncoder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for path in ("/v1/models", "/models"):
        listed = client.get(path).json()["data"]
        assert [one["id"] for one in listed] == ["org/small", "labels", "org/ranker", "late"]
        assert (listed[0]["embedding_dimension"], listed[0]["max_input_length"]) == (24, 64)
        for name in ("org/small", "small", "default"):
            assert client.get(f"{path}/{name}").json() == listed[0]
        assert client.get(f"{path}/none").status_code == 404
    assert client.get("/v1/models/ranker").json()["num_labels"] == 1
    found = client.get("/info").json()
    assert (found["model_id"], found["max_input_length"], found["auto_truncate"]) == ("org/small", 64, True)
    assert found["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (found["max_client_batch_size"], found["max_batch_tokens"]) == (2048, MAX_STEP)
    assert found["tokenization_workers"] == 2
    with monkeypatch.context() as longer:
        longer.setattr(SentenceTransformer, "max_seq_length", 8192, raising=False)
        assert client.get("/info").json()["max_batch_tokens"] == 8192  # a text of so many tokens is a step of its own
    models = {"labels": classifier, "vectors": model, "ranker": ranker}
    with Engine(models) as engine, TestClient(app(engine)) as other:
        ids = {"0": "good", "1": "bad", "2": "odd"}
        assert other.get("/info").json()["model_type"]["classifier"]["id2label"] == ids
        found = post(other, "/embed", {"inputs": [QUERY]}).json()
        np.testing.assert_array_equal(np.float32(found), model.encode([QUERY]))
        for path in ("/", "/invocations"):  # what the model is for
            for same, body in (
                ("/predict", {"inputs": "a"}),
                ("/rerank", {"query": "a", "texts": ["b", "c d"], "model": "ranker"}),
                ("/embed", {"inputs": ["a"], "model": "vectors"}),
            ):
                assert post(other, path, body).json() == post(other, same, body).json()


# --- what was done ----------------------------------------------------------------------------------------------------


def test_what_was_done_to_the_texts_is_said_in_headers_body_metrics_and_log(
    client: TestClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = numbers(client)
    monkeypatch.setattr(LOG, "propagate", True)
    monkeypatch.setattr(REQUESTS, "disabled", False)
    body = {"input": ["a", LONG], "input_type": "query", "user": "me", "x\r\ny": 1}
    with caplog.at_level(logging.INFO, "minibert.serving"):
        response = post(client, "/v1/embeddings", body, **{"x-request-id": "my-id"})
    answer, headers = response.json(), response.headers
    assert (answer["truncated"], answer["ignored"], answer["prompt_name"]) == ([1], ["user", "x\r\ny"], "query")
    assert (headers["x-minibert-truncated"], headers["x-minibert-prompt"]) == ("1", "query")
    assert (headers["x-minibert-ignored"], headers["x-request-id"]) == ("user,x??y", "my-id")
    assert int(headers["x-compute-tokens"]) == answer["usage"]["total_tokens"]
    times = ("total", "queue", "inference", "tokenization")
    assert all(headers[f"x-{name}-time"].isdigit() for name in times)
    line = json.loads(caplog.messages[-1])
    assert (line["truncated"], line["ignored"], line["prompt"]) == (1, "user,x??y", "query")
    assert (line["request_id"], line["texts"], line["status"]) == ("my-id", 2, 200)
    assert "long text" not in caplog.text
    after = numbers(client)
    for name, more in (("truncated_texts", 1), ("ignored_fields", 2), ("prompted_texts", 2), ("texts", 2)):
        assert after[f"minibert_{name}_total"] - before[f"minibert_{name}_total"] == more


@pytest.mark.parametrize(
    "fields",
    [
        {"truncate_prompt_tokens": 5},
        {"truncate_prompt_tokens": 5, "truncation_direction": "left"},
        {"truncation_direction": "left"},
        {"dimensions": 3, "normalize": False},
        {"layers": [0, 1], "pooling": ["max", "cls"]},
        {"prompt_name": "query"},
        {"truncate": "split"},
    ],
)
def test_the_fields_of_a_request_do_not_change_the_next_one(client: TestClient, fields: dict[str, Any]) -> None:
    expected = post(client, "/embed", {"inputs": LONG}).content
    first = post(client, "/embed", {"inputs": LONG, **fields})
    assert first.status_code == 200
    assert first.content != expected
    assert post(client, "/embed", {"inputs": LONG, **fields}).content == first.content
    assert post(client, "/embed", {"inputs": LONG}).content == expected
    assert client.get("/info").json()["max_input_length"] == 64


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"inputs": ["CLS", 5, "SEP"], "prompt_name": "query", "input_type": "query"}, "prompt_name,input_type"),
        ({"inputs": ["CLS", 5, "SEP"], "task": "retrieval.query"}, "task"),
        ({"inputs": ["CLS", 5, "SEP"], "add_special_tokens": False}, None),
        ({"inputs": "a", "add_special_tokens": False}, "add_special_tokens"),
        ({"inputs": "a", "add_special_tokens": True}, None),
        ({"inputs": "a", "truncate": "split", "truncation_direction": "left", "x": 1}, "x,truncation_direction"),
        ({"inputs": "a", "prompt_name": "query", "truncation_direction": "left"}, None),
    ],
)
def test_fields_without_an_effect_are_named(
    client: TestClient, model: SentenceTransformer, fields: dict[str, Any], ignored: str | None
) -> None:
    special = {"CLS": model.tokenizer.cls_token_id, "SEP": model.tokenizer.sep_token_id}
    inputs = fields["inputs"]
    given = inputs if isinstance(inputs, str) else [special.get(one, one) for one in inputs]
    for path in ("/v1/embeddings", "/embed", "/embed_all")[: 2 if "truncate" in fields else 3]:  # it refuses "split"
        answer = post(client, path, {**fields, "inputs": given, **({"input": given} if "v1" in path else {})})
        assert answer.status_code == 200
        named = answer.headers.get("x-minibert-ignored")
        assert (named or "").replace("inputs", "").strip(",") == (ignored or "")


def test_a_default_of_the_service_takes_the_effect_of_a_field(model: SentenceTransformer) -> None:
    body = {"inputs": LONG, "truncation_direction": "left"}
    with Engine(model, settings=Settings(truncation="split")) as engine, TestClient(app(engine)) as client:
        assert post(client, "/embed", body).headers["x-minibert-ignored"] == "truncation_direction"
        cut = post(client, "/embed_all", body)
        assert "x-minibert-ignored" not in cut.headers
        assert cut.content != post(client, "/embed_all", {"inputs": LONG}).content
        assert "x-minibert-ignored" not in post(client, "/embed", {**body, "truncate": True}).headers


# --- fields that are null, and fields with two names ------------------------------------------------------------------

SIMILARITY = {"inputs": {"source_sentence": QUERY, "sentences": TEXTS}}
RANKED = {"query": QUERY, "texts": SCORED}
BODIES: list[tuple[str, dict[str, Any]]] = [
    *((path, {"input": TEXTS}) for path in ("/v1/embeddings", "/embeddings", "/api/embed")),
    *((path, {"inputs": TEXTS}) for path in ("/embed", "/embed_all", "/", "/invocations", "/tokenize")),
    *((path, SIMILARITY) for path in ("/similarity", "/")),
    ("/predict", {"inputs": [TEXTS[0], QUERY]}),
    ("/", {"inputs": [TEXTS[0], QUERY], "model": "labels"}),
    ("/", {**RANKED, "model": "ranker"}),
    *((path, {"texts": TEXTS}) for path in ("/v1/embed", "/v2/embed")),
    *((path, {"query": QUERY, "documents": SCORED}) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    ("/rerank", RANKED),
    ("/api/embeddings", {"prompt": QUERY}),
    ("/api/show", {"name": "small"}),
    ("/encode", {"texts": [QUERY]}),
    ("/decode", {"ids": [5, 6]}),
    ("/v1/multi-vector", {"input": TEXTS, "model": "late"}),
    ("/embed_all", {"inputs": TEXTS, "model": "late"}),
    ("/hidden_states", {"inputs": TEXTS}),
]
FIELDS = {field.encode_name for route in POSTS.values() for field in msgspec.structs.fields(route.struct)}


def content_of(response: Any) -> Any:
    """Return the JSON of an answer without what differs each time."""
    assert response.status_code == 200, response.text
    content = response.json()
    return {**content, "id": 0, "total_duration": 0} if isinstance(content, dict) else content


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_field_that_is_null_is_not_given(client: TestClient, path: str, body: dict[str, Any]) -> None:
    """Each optional field of each protocol, some by some and all at once, and a field that no protocol has."""
    expected = content_of(post(client, path, body))
    optional = [*sorted(FIELDS - body.keys()), "user"]
    for some in (*(optional[i::8] for i in range(8)), optional):
        response = post(client, path, {**body, **dict.fromkeys(some)})
        assert content_of(response) == expected, some
        assert "x-minibert-ignored" not in response.headers


def test_all_routes_are_among_these() -> None:
    assert {path for path, _ in BODIES} == POSTS.keys()


def test_equal_values_under_two_names_of_a_field_are_one(client: TestClient) -> None:
    theirs = {"query": QUERY, "documents": [TEXTS[0], {"text": QUERY}], "return_documents": True, "top_n": 1}
    both = {**theirs, "texts": [TEXTS[0], QUERY], "return_text": True}
    for path in ("/rerank", "/v1/rerank"):
        assert content_of(post(client, path, both)) == content_of(post(client, path, theirs))
    assert content_of(post(client, "/api/show", {"model": "small", "name": "small"}))
    assert content_of(post(client, "/api/show", {"model": "small", "name": ""}))
    cut = {"truncate": True, "truncation_direction": "left"}
    body = {"inputs": {"source_sentence": QUERY, "sentences": [LONG]}}
    left, right, both = ({**body, "parameters": cut}, body, {**body, **cut, "parameters": {**cut, "prompt_name": None}})
    assert content_of(post(client, "/similarity", left)) == content_of(post(client, "/similarity", both))
    assert content_of(post(client, "/similarity", left)) != content_of(post(client, "/similarity", right))


# --- long answers -----------------------------------------------------------------------------------------------------

MANY = [f"text number {i}" for i in range(100)]
LONG_ANSWERS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("/v1/embeddings", {"input": MANY}, {}),
    ("/v1/embeddings", {"input": MANY, "encoding_format": "base64"}, {}),
    ("/embed", {"inputs": MANY}, {}),
    ("/embed", {"inputs": MANY}, {"accept": "application/octet-stream"}),
    ("/embed_all", {"inputs": MANY}, {}),
    ("/hidden_states", {"inputs": MANY, "layers": [0, -1]}, {}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": MANY}}, {}),
    ("/v1/embed", {"texts": MANY}, {}),
    ("/v2/embed", {"texts": MANY, "embedding_types": ["ubinary", "float", "base64"]}, {}),
    ("/api/embed", {"input": MANY}, {}),
    ("/encode", {"texts": MANY}, {}),
    ("/rerank", {"query": "a", "documents": MANY, "return_documents": True}, {}),
    ("/tokenize", {"inputs": MANY}, {}),
]


@pytest.mark.parametrize(("path", "body", "headers"), LONG_ANSWERS)
def test_a_long_answer_has_the_content_of_a_short_one(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], headers: dict[str, str]
) -> None:
    whole = post(client, path, body, **headers)
    assert int(whole.headers["content-length"]) == len(whole.content)
    monkeypatch.setattr(asgi, "_MOST_AT_ONCE", 500)
    monkeypatch.setattr(asgi, "_PART_BYTES", 300)
    parts = post(client, path, body, **headers)
    assert "content-length" not in parts.headers
    assert parts.headers["content-type"] == whole.headers["content-type"]
    if headers:
        assert parts.content == whole.content
    else:
        assert content_of(parts) == content_of(whole)
    assert client.app.inflight_bytes == 0  # type: ignore[attr-defined]


class Caller:
    """A client of the application, without a server between: `read` is called with each part of the answer."""

    def __init__(self, engine: Engine, path: str, body: Any, read: Callable[[bytes], Awaitable[object]]) -> None:
        self.application, self.body, self.read = app(engine), [json.dumps(body).encode()], read
        self.left, self.status, self.parts = asyncio.Event(), 0, list[bytes]()
        self.scope = {"type": "http", "method": "POST", "path": path, "headers": [], "http_version": "1.1"}

    async def receive(self) -> dict[str, Any]:
        if self.body:
            return {"type": "http.request", "body": self.body.pop()}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        if message["type"] == "http.response.body":
            self.parts.append(message["body"])
            await self.read(message["body"])

    async def run(self) -> None:
        await self.application(self.scope, self.receive, self.send)
        assert self.application.inflight_bytes == 0


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the JSON values that were written, in small parts. If it begins with -1, the 60th value fails."""
    monkeypatch.setattr(asgi, "_MOST_AT_ONCE", 2000)
    monkeypatch.setattr(asgi, "_PART_BYTES", 1000)
    sizes, dump = list[int](), common.dump

    def counted(value: Any) -> bytes:
        sizes.append(len(dump(value)))
        if sizes[0] == -1 and len(sizes) > 60:
            raise ArithmeticError("a fault of the writer")
        return dump(value)

    monkeypatch.setattr(common, "dump", counted)
    return sizes


def asked(model: SentenceTransformer, read: Callable[[Caller], Awaitable[object]]) -> Caller:
    """Return a client that got a long answer; `read` is called with it after each part."""
    with Engine(model) as engine:
        caller = Caller(engine, "/embed", {"inputs": MANY}, lambda _: read(caller))
        try:
            asyncio.run(caller.run())
        finally:
            assert caller.status == 200
    return caller


def test_a_long_answer_is_written_as_fast_as_its_client_reads(model: SentenceTransformer, written: list[int]) -> None:
    async def read(caller: Caller) -> None:
        await asyncio.sleep(0.01)  # more could be written meanwhile
        assert sum(written) < sum(map(len, caller.parts)) + 4000

    np.testing.assert_array_equal(np.float32(json.loads(b"".join(asked(model, read).parts))), model.encode(MANY))


def test_the_rest_of_a_long_answer_is_not_written_for_a_client_that_left(
    model: SentenceTransformer, written: list[int]
) -> None:
    async def leave(caller: Caller) -> None:
        caller.left.set()
        await asyncio.sleep(0.01)

    asked(model, leave)
    assert sum(written) < 5000


def test_an_error_within_a_long_answer_is_logged_and_ends_it_before_its_end(
    model: SentenceTransformer, caplog: pytest.LogCaptureFixture, written: list[int]
) -> None:
    callers = list[Caller]()

    async def read(caller: Caller) -> None:
        callers.append(caller)

    written.append(-1)
    with pytest.raises(ArithmeticError, match="a fault"):
        asked(model, read)
    assert not b"".join(callers[-1].parts).endswith(b"]]")
    assert "the answer ends within its body" in caplog.text


@pytest.mark.parametrize("arrived", [False, True], ids=["within the body", "waits for the engine"])
def test_a_request_whose_task_is_cancelled_is_answered(model: SentenceTransformer, arrived: bool) -> None:
    """Servers do that when they end."""

    async def ask(engine: Engine) -> None:
        async def read(part: bytes) -> None:
            pass

        caller = Caller(engine, "/v1/embeddings", {"input": [f"{i} " + LONG for i in range(1500)]}, read)
        if not arrived:
            caller.body.clear()
        task = asyncio.create_task(caller.run())
        await asyncio.sleep(0.3)
        task.cancel()
        await task
        assert caller.status == 503
        assert json.loads(b"".join(caller.parts))["error"]["code"] == "unavailable"

    with Engine(model) as engine:
        asyncio.run(ask(engine))
        engine.close(0)


# --- errors -----------------------------------------------------------------------------------------------------------

# body -> status of OpenAI's routes, of text-embeddings-inference's, and a part of the message. "F" is the field.
WRONG: list[tuple[bytes, int, int, str]] = [
    (b"hello", 400, 400, "not JSON"),
    (b"", 400, 400, "not JSON"),
    (b'{"F": "a"} {}', 400, 400, "not JSON"),
    (b'{"F": "\xff"}', 400, 400, "not UTF-8"),
    (b'{"F": "\\ud800"}', 400, 400, "without its other half"),
    (b'{"F": ' + b"[" * 60_000 + b"]" * 60_000 + b"}", 400, 400, "nested brackets"),
    (b'{"F": "a", "x": ' + b'{"a":' * 60_000 + b"}" * 60_000 + b"}", 400, 400, ""),
    (b'{"F": [1e400]}', 400, 422, "F[0]"),
    (b'{"F": "a", "dimensions": 1e400}', 400, 422, "dimensions"),
    (b'{"F": [' + b"9" * 5000 + b"]}", 400, 422, ""),
    (b"[]", 400, 422, "object"),
    (b"{}", 400, 422, "F"),
    (b'{"F": null}', 400, 422, "F: Expected"),
    (b'{"F": ["a", "b", 3]}', 400, 422, "F[2]"),
    (b'{"F": [[1, 2], [3, null]]}', 400, 422, "F[1][1]"),
    (b'{"F": [[1, 2]]}', 400, 422, "F[0] is an array of token ids"),
    (b'{"F": []}', 400, 400, "F is an empty list"),
    (b'{"F": "a", "dimensions": 99}', 400, 422, "dimensions is 99; expected a number from 1 to 24"),
    (b'{"F": "a", "prompt_name": "x"}', 400, 422, "prompt_name 'x' is not a prompt of this model. Available prompts"),
    (b'{"F": "a", "truncate": "x"}', 400, 422, "truncate 'x'"),
    (b'{"F": "a", "layers": 99}', 400, 422, "layers"),
    (b'{"F": "a", "layers": [1, 1, 1, 1]}', 400, 422, "layers has 4 items; the limit is 3"),
    (json.dumps({"F": "a", "pooling": ["cls"] * 9}).encode(), 400, 422, "pooling has 9 items"),
    (json.dumps({"F": "word " * 10**5, "truncate": False}).encode(), 400, 413, "F[0] has "),
    (b'{"F": [' + b'"a",' * 2048 + b'"a"]}', 400, 413, "2049 inputs; the limit is 2048"),
    (json.dumps({"F": ["a", LONG], "truncate": False}).encode(), 400, 413, "F[1] has "),
]
LATE: dict[str, Any] = {"inputs": TEXTS, "model": "late"}
WRONG_OF_OTHERS: list[tuple[str, dict[str, Any], int, str]] = [
    ("/v2/embed", {"texts": []}, 400, "texts"),
    ("/v2/embed", {"texts": "a"}, 400, "texts"),
    ("/v2/embed", {"texts": [], "model": "labels"}, 400, "the model labels gives scores"),
    ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, 400, "embedding_types: 'int8'"),
    ("/v2/embed", {"texts": ["a"], "embedding_types": ["x"]}, 400, "embedding_types: 'x'"),
    ("/v2/embed", {"texts": ["a"], "input_type": "x"}, 400, "input_type 'x'"),
    ("/v2/embed", {"texts": ["a"], "output_dimension": 99}, 400, "output_dimension is 99"),
    ("/v2/embed", {"texts": ["a", LONG], "truncate": "NONE"}, 400, "texts[1] has"),
    ("/v2/embed", {"texts": ["a"], "truncate": "MID"}, 400, "NONE, START or END."),
    ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, 400, "float or base64."),
    ("/v1/embeddings", {"input": "a", "task": "code"}, 400, "'code'; expected one of"),
    ("/v1/embeddings", {"input": "a", "task": "retrieval.query", "input_type": "document"}, 400, "task"),
    ("/v1/embeddings", {"input": [[2, 7, 3]], "late_chunking": True}, 400, "input[0] is a list; send a text."),
    ("/api/embed", {"model": "none", "input": "a"}, 404, "model 'none' not found: "),
    ("/api/embed", {"input": [1]}, 400, "input[0]"),
    ("/api/embed", {"input": LONG, "truncate": False}, 400, "the input length exceeds the context length: input[0]"),
    ("/api/embed", {"model": "small"}, 400, "input"),
    ("/api/show", {"model": "other"}, 404, "model 'other' not found: "),
    ("/encode", {"texts": ["a", " "]}, 400, "texts[1] is blank"),
    *(("/encode", {"texts": ["a"], "layers": given}, 400, "has 2 layers: 0 to 1") for given in (99, 2, [0, -3])),
    ("/decode", {"ids": [10**12]}, 422, "ids"),
    ("/decode", {"ids": "a"}, 422, "ids"),
    ("/tokenize", {"inputs": "a" * (2**20 + 1)}, 413, "characters"),
    ("/embed", {"inputs": "a", "model": "labels"}, 424, "such as org/small"),
    ("/embed", {"inputs": "a", "model": "none"}, 404, "'none'"),
    ("/predict", {"inputs": "a", "model": "small"}, 424, "such as labels"),
    ("/rerank", {"query": "a", "texts": ["a"], "model": "labels"}, 424, "has 3 labels"),
    ("/rerank", {"query": "a"}, 422, "texts or documents"),
    ("/rerank", {"query": "a", "texts": ["a"], "documents": ["b"]}, 422, "texts and documents"),
    ("/rerank", {"query": "a", "texts": ["a"], "documents": []}, 422, "texts and documents"),
    ("/rerank", {"query": "a", "texts": ["a"], "return_text": True, "return_documents": False}, 422, "differ"),
    ("/api/show", {"model": "small", "name": "labels"}, 400, "differ"),
    ("/similarity", {**SIMILARITY, "truncate": True, "parameters": {"truncate": False}}, 422, "parameters.truncate"),
    ("/rerank", {"query": "a", "texts": []}, 400, "texts is an empty list"),
    ("/rerank", {"texts": ["a"]}, 422, "query"),
    ("/rerank", {"query": "a", "texts": ["a", 3]}, 422, "texts[1]"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, 400, "top_n is 0"),
    ("/predict", {"inputs": ["a", "b", "c"]}, 422, "inputs has 3 texts"),
    ("/predict", {"inputs": [[]]}, 422, "inputs[0] has 0 texts"),
    ("/predict", {"inputs": []}, 400, "inputs is an empty list"),
    ("/predict", {"inputs": [["a", None]]}, 422, "inputs[0][1]"),
    ("/predict", {"inputs": "a", "truncate": "split"}, 422, "truncate 'split'"),
    ("/predict", {"inputs": "a", "truncation_direction": "up"}, 422, "truncation_direction 'up'"),
    ("/rerank", {"query": "a", "texts": ["b", "c " * 999], "truncate": False}, 413, "texts[1] has 1003 tok"),
    ("/embed_all", {**LATE, "truncate": False, "inputs": [LONG]}, 413, "inputs[0] has "),
    ("/rerank", {"query": "a", "texts": [LONG], "truncate": False, "model": "late"}, 413, "texts[0] has "),
    ("/rerank", {"query": LONG, "texts": ["a"], "truncate": False, "model": "late"}, 413, "query[0] has "),
    *(("/embed_all", {**LATE, "input_type": kind}, 422, f"input_type '{kind}'") for kind in ("classification", "no")),
    ("/embed_all", {**LATE, "truncate": "split"}, 422, "'split'"),
    ("/embed_all", {**LATE, "inputs": [[5, 6]]}, 422, "inputs[0] is a list"),
    ("/embed_all", {**LATE, "prompt_name": "no"}, 422, "prompt_name 'no'"),
    ("/embed_all", {**LATE, "layers": [1]}, 422, "layers is not for"),
    ("/v1/multi-vector", {"input": TEXTS, "dimensions": 8}, 400, "dimensions is not for"),
    ("/v1/multi-vector", {"input": []}, 400, "input is an empty list"),
    ("/v1/multi-vector", {"input": TEXTS, "model": "small"}, 400, "the model org/small gives vectors"),
    ("/v1/embeddings", {"input": TEXTS, "model": "late"}, 400, "the model late gives vectors of tokens"),
    ("/predict", {"inputs": TEXTS, "model": "late"}, 424, "such as labels"),
    ("/hidden_states", {"inputs": ["a", LONG]}, 400, "inputs[1] has "),
    ("/hidden_states", {"inputs": [[5, 6]]}, 400, "inputs[0]"),
    ("/hidden_states", {"inputs": TEXTS, "layers": 9}, 400, "layers=9"),
    ("/hidden_states", {"inputs": TEXTS, "layers": [0] * 99}, 400, "layers has 99 items"),
    ("/hidden_states", {"inputs": TEXTS, "encoding_format": "hex"}, 400, "encoding_format"),
    ("/hidden_states", {"inputs": TEXTS, "model": "late"}, 400, "the model late gives vectors of tokens"),
]


@pytest.mark.parametrize(("body", "of_openai", "of_tei", "part"), WRONG, ids=[str(row[0][:40]) for row in WRONG])
def test_wrong_requests(client: TestClient, body: bytes, of_openai: int, of_tei: int, part: str) -> None:
    for path, field, status in (("/v1/embeddings", "input", of_openai), ("/embed", "inputs", of_tei)):
        response = post(client, path, body.replace(b'"F"', f'"{field}"'.encode()))
        assert response.status_code == status, response.text
        assert re.sub(r"\bF\b", field, part) in message_of(response)
        assert "Traceback" not in response.text
        assert response.headers["x-request-id"]


@pytest.mark.parametrize(("path", "body", "status", "part"), WRONG_OF_OTHERS)
def test_wrong_requests_of_other_protocols(client: TestClient, path: str, body: Any, status: int, part: str) -> None:
    response = post(client, path, body)
    assert response.status_code == status, response.text
    assert part in message_of(response)
    assert not any(advice in response.text for advice in ("CrossEncoder", "is_split_into_words", "text_pair="))


def test_the_shapes_of_errors(client: TestClient) -> None:
    found = post(client, "/v1/embeddings", {"input": LONG, "truncate": False}).json()["error"]
    assert (found["type"], found["param"]) == ("invalid_request_error", "input")
    assert found["code"] == "context_length_exceeded"
    given = re.search(r"maximum context length is 64 tokens, however you requested (\d+) tokens", found["message"])
    assert given
    assert found["message"].endswith("Please reduce your prompt; or completion length.")
    found = post(client, "/embed", {"inputs": LONG, "truncate": False}).json()
    assert found["error"].endswith(f"`inputs` must have less than 64 tokens. Given: {given[1]}")
    assert found["error_type"] == "Validation"
    assert post(client, "/embed", {"inputs": []}).json()["error_type"] == "Empty"
    assert post(client, "/embed", {"inputs": "a", "model": "labels"}).json()["error_type"] == "Backend"
    wrong = {"layers": 99, "pooling": "x", "dimensions": 0, "prompt_name": "x", "model": 5, "truncation_direction": ""}
    for field, value in wrong.items():
        body = {"input": "a", "prompt_name": "query", field: value}
        assert post(client, "/v1/embeddings", body).json()["error"]["param"] == field
    body = {"texts": ["a"], "output_dimension": 99}
    assert post(client, "/v2/embed", body).json()["error"]["param"] == "output_dimension"
    found = post(client, "/v1/embeddings", {"input": "a", "model": "gpt"}).json()["error"]
    assert (found["code"], "'org/small'" in found["message"]) == ("model_not_found", True)
    blank = post(client, "/encode", {"texts": [" "]}).json()
    assert blank == {"status": 400, "error": "texts[0] is blank; expected some text.", "param": "texts"}


@pytest.mark.parametrize(
    ("method", "path", "status", "part"),
    [
        ("GET", "/none", 404, "/none is not a route"),
        ("GET", "/embed", 405, "/embed does not accept GET; send POST."),
        ("PUT", "/", 405, "/ does not accept PUT"),
        ("PUT", "/info", 405, "/info does not accept PUT; send GET, HEAD."),
        ("POST", "/info", 405, "/info"),
        ("GET", "/v1/none", 404, "/v1/none"),
        *((method, path, 404, path) for method, path in (("POST", "/api/pull"), ("POST", "/embed/"))),
        *((method, path, 405, path) for method, path in (("POST", "/api/tags"), ("GET", "/api/embed"))),
    ],
)
def test_unknown_routes_and_methods(client: TestClient, method: str, path: str, status: int, part: str) -> None:
    """Each answer has the shape of its protocol; a slash at the end is not a redirect to the host of the client."""
    response = client.request(method, path, headers={"host": "evil.example"}, follow_redirects=False)
    assert (response.status_code, "location" in response.headers) == (status, False)
    assert part in message_of(response)
    assert response.headers["x-request-id"]
    of_tei = path in ("/", "/embed", "/info")
    assert set(response.json()) == ({"error", "error_type"} if of_tei else {"error"})


def test_compressed_and_large_bodies_are_refused(model: SentenceTransformer) -> None:
    with Engine(model, settings=Settings(max_body_bytes=1000)) as engine, TestClient(app(engine)) as client:
        assert post(client, "/embed", {"inputs": "a"}, **{"content-encoding": "gzip"}).status_code == 415
        assert post(client, "/embed", {"inputs": "a"}, **{"content-type": "text/plain"}).status_code == 200
        for path in ("/embed", "/v1/embeddings"):
            response = post(client, path, b'{"inputs":"' + b"a" * 1000 + b'"}')
            assert response.status_code == 413
            assert "1000 bytes" in response.text
            assert client.post(path, content=iter([b"a" * 400] * 3)).status_code == 413
        assert client.app.inflight_bytes == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/embeddings"), ("GET", "/v1/models"), ("GET", "/info")])
def test_an_error_of_the_service_is_500_without_details(
    model: SentenceTransformer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    path: str,
) -> None:
    with Engine(model) as engine, TestClient(app(engine)) as client:
        for name in ("prepare", "details"):
            monkeypatch.setattr(engine.models["default"], name, lambda *_: 1 / 0)
        response = client.request(method, path, json={"input": "a"})
        assert response.status_code == 500
        assert "division" not in response.text
        assert "division" in caplog.text
        assert response.headers["x-request-id"] in message_of(response)


def test_the_routes_that_the_files_of_docker_name() -> None:
    """Open WebUI asks for embeddings below its base URL, and for ranks at the URL itself."""
    folder = Path(__file__).parents[2] / ".docker"
    named = re.findall(r"http://minibert:8080(/\S+)", (folder / "compose.yaml").read_text(encoding="utf-8"))
    assert named == ["/v1", "/v1/rerank"]
    assert {"/v1/embeddings", "/v1/rerank"} <= {*POSTS}
    dockerfile = (folder / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"http://127.0.0.1:8080(/\w+)", dockerfile) == ["/readyz"]
