"""Models that score: /predict and /rerank beside CrossEncoder and the pipeline; several models in one process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import minibert
from minibert import CrossEncoder, SentenceTransformer
from minibert.serving.asgi import app
from minibert.serving.engine import Engine
from minibert.serving.models import load_served
from minibert.serving.settings import ServiceError, Settings
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.sentence_heads import model_folder

QUERY = "the bank"
TEXTS = ["A cat sleeps.", "", "the bank", "A cat sleeps.", "word " * 300, "中文"]
LABELS = {"id2label": {0: "good", 1: "bad", 2: "odd"}, "label2id": {"good": 0, "bad": 1, "odd": 2}}


@pytest.fixture(scope="module")
def ranker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(
        tmp_path_factory.mktemp("ranker") / "ranker", "BertForSequenceClassification", num_labels=1, scale=5
    )


@pytest.fixture(scope="module")
def labels_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels") / "labels"
    return model_folder(folder, "BertForSequenceClassification", num_labels=3, **LABELS)


@pytest.fixture(scope="module")
def ranker(ranker_folder: Path) -> CrossEncoder:
    return CrossEncoder(ranker_folder)


@pytest.fixture(scope="module")
def classifier(labels_folder: Path) -> CrossEncoder:
    return CrossEncoder(labels_folder, prompts={"ask": "question: "})


@pytest.fixture(scope="module")
def engine(model: SentenceTransformer, ranker: CrossEncoder, classifier: CrossEncoder) -> Iterator[Engine]:
    with Engine({"labels": classifier, "org/small": model, "org/ranker": ranker}) as made:
        yield made


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[TestClient]:
    with TestClient(app(engine), raise_server_exceptions=False) as made:
        yield made


def post(client: TestClient, path: str, body: Any) -> Any:
    return client.post(path, content=json.dumps(body).encode())


def scores_by_index(rows: list[dict[str, Any]], key: str = "score") -> np.ndarray:
    return np.array([row[key] for row in sorted(rows, key=lambda row: row["index"])], dtype=np.float32)


@pytest.mark.parametrize(("raw", "activation"), [(False, "Sigmoid"), (True, "Identity")])
def test_ranks_are_those_of_the_cross_encoder(
    client: TestClient, ranker: CrossEncoder, raw: bool, activation: str
) -> None:
    response = post(client, "/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": raw, "return_text": True})
    rows = response.json()
    expected = ranker.predict([(QUERY, text) for text in TEXTS], activation_fn=activation, truncation="silent")
    np.testing.assert_array_equal(scores_by_index(rows), expected)
    order = [row["corpus_id"] for row in ranker.rank(QUERY, TEXTS, truncation="silent")]
    assert [row["index"] for row in rows] == order
    assert [row["text"] for row in rows] == [TEXTS[i] for i in order]
    assert response.headers["x-minibert-truncated"] == "1"
    assert "text" not in post(client, "/rerank", {"query": QUERY, "texts": TEXTS}).json()[0]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_ranks_in_the_form_of_cohere_and_jina(client: TestClient, ranker: CrossEncoder, path: str) -> None:
    documents = [TEXTS[0], {"text": TEXTS[2]}, TEXTS[4]]
    body = {"query": QUERY, "documents": documents, "model": "ranker", "top_n": 2, "return_documents": True, "user": 1}
    answer = post(client, path, body).json()
    pairs = [(QUERY, TEXTS[i]) for i in (0, 2, 4)]
    expected = ranker.predict(pairs, activation_fn="Sigmoid", truncation="silent")
    best = np.argsort(-expected, kind="stable")[:2].tolist()
    assert [row["index"] for row in answer["results"]] == best
    assert [row["document"]["text"] for row in answer["results"]] == [pairs[i][1] for i in best]
    found = np.array([row["relevance_score"] for row in answer["results"]], dtype=np.float32)
    np.testing.assert_array_equal(found, expected[best])
    assert (answer["model"], answer["truncated"], answer["ignored"]) == ("org/ranker", [2], ["user"])
    assert answer["usage"]["total_tokens"] > ranker.max_seq_length
    assert answer["meta"] == {"billed_units": {"search_units": 1}}


def test_labels_are_those_of_the_pipeline(client: TestClient, labels_folder: Path) -> None:
    pipeline = minibert.pipeline("text-classification", str(labels_folder), top_k=None)
    rows = post(client, "/predict", {"inputs": [[TEXTS[0]], [QUERY, TEXTS[2]], [TEXTS[0]]]}).json()
    assert len(rows) == 3
    for row, given in zip(rows, (TEXTS[0], {"text": QUERY, "text_pair": TEXTS[2]}, TEXTS[0]), strict=True):
        expected = pipeline([given])[0]
        assert [one["label"] for one in row] == [one["label"] for one in expected]
        assert [np.float32(one["score"]) for one in row] == [np.float32(one["score"]) for one in expected]
    assert post(client, "/predict", {"inputs": TEXTS[0]}).json() == rows[0]
    assert post(client, "/predict", {"inputs": [TEXTS[0]]}).json() == rows[0]
    assert post(client, "/predict", {"inputs": [QUERY, TEXTS[2]]}).json() == rows[1]
    assert {one["label"] for one in rows[0]} == {"good", "bad", "odd"}


def test_raw_scores_and_prompts(client: TestClient, classifier: CrossEncoder) -> None:
    body = {"inputs": [[QUERY, TEXTS[0]]], "raw_scores": True, "prompt_name": "ask", "model": "labels"}
    response = post(client, "/predict", body)
    expected = classifier.predict([(QUERY, TEXTS[0])], prompt_name="ask", activation_fn="Identity")[0]
    found = {one["label"]: np.float32(one["score"]) for one in response.json()[0]}
    assert [found[name] for name in ("good", "bad", "odd")] == expected.tolist()
    assert response.headers["x-minibert-prompt"] == "ask"


@pytest.mark.parametrize(
    ("problem_type", "function"),
    [("regression", "none"), ("multi_label_classification", "sigmoid"), ("single_label_classification", "softmax")],
)
def test_what_the_labels_mean_is_in_the_config(tmp_path: Path, problem_type: str, function: str) -> None:
    folder = model_folder(tmp_path / "m", "BertForSequenceClassification", num_labels=3, problem_type=problem_type)
    [expected] = minibert.pipeline("text-classification", str(folder), top_k=None, function_to_apply=function)(["a"])
    with Engine(CrossEncoder(folder)) as engine:
        found = engine.score([("a", None)]).value[0]
    assert sorted(found.tolist(), reverse=True) == [np.float32(one["score"]) for one in expected]


def test_texts_can_be_cut_on_the_left(client: TestClient) -> None:
    body = {"inputs": "word " * 300 + "cat", "raw_scores": True}
    right, left = (
        post(client, "/predict", {**body, "truncation_direction": side}).json() for side in ("right", "Left")
    )
    assert right != left


def test_each_request_finds_a_model_that_can_answer_it(client: TestClient, model: SentenceTransformer) -> None:
    names = [one["id"] for one in client.get("/v1/models").json()["data"]]
    assert names == ["labels", "org/small", "org/ranker"]
    assert client.get("/v1/models/ranker").json()["num_labels"] == 1
    found = client.get("/info").json()
    assert found["model_type"]["classifier"]["id2label"] == {"0": "good", "1": "bad", "2": "odd"}
    vectors = np.array(post(client, "/embed", {"inputs": QUERY}).json(), dtype=np.float32)
    np.testing.assert_array_equal(vectors[0], model.encode(QUERY))
    assert len(post(client, "/embed", {"inputs": QUERY, "model": "small"}).json()) == 1
    assert post(client, "/embed", {"inputs": QUERY, "model": "none"}).status_code == 404


WRONG: dict[str, tuple[str, Any, int, str]] = {
    "vectors of a classifier": ("/embed", {"inputs": "a", "model": "labels"}, 424, "such as org/small"),
    "scores of an encoder": ("/predict", {"inputs": "a", "model": "small"}, 424, "such as labels"),
    "ranks of labels": ("/rerank", {"query": "a", "texts": ["a"], "model": "labels"}, 424, "has 3 labels"),
    "no texts": ("/rerank", {"query": "a"}, 422, "needs texts or documents"),
    "both": ("/rerank", {"query": "a", "texts": ["a"], "documents": ["a"]}, 422, "and not both"),
    "empty texts": ("/rerank", {"query": "a", "texts": []}, 400, "texts is an empty list"),
    "empty documents": ("/v1/rerank", {"query": "a", "documents": []}, 400, "documents is an empty list"),
    "no query": ("/rerank", {"texts": ["a"]}, 422, "missing required field query"),
    "a number": ("/rerank", {"query": "a", "texts": ["a", 3]}, 422, "texts[1]: Expected str, got int"),
    "top_n": ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, 400, "top_n is 0"),
    "three texts": ("/predict", {"inputs": ["a", "b", "c"]}, 422, "inputs has 3 texts; expected one, or a pair"),
    "three of a pair": ("/predict", {"inputs": [["a"], ["a", "b", "c"]]}, 422, "inputs[1] has 3 texts"),
    "none of a pair": ("/predict", {"inputs": [[]]}, 422, "inputs[0] has 0 texts"),
    "no inputs": ("/predict", {"inputs": []}, 400, "inputs is an empty list"),
    "no pair": ("/predict", {"inputs": [["a", None]]}, 422, "inputs[0][1]: Expected str, got null"),
    "a split": ("/predict", {"inputs": "a", "truncate": "split"}, 422, "truncate 'split'"),
    "a prompt": ("/predict", {"inputs": "a", "prompt_name": "x"}, 422, "prompt_name 'x' is not a prompt"),
    "a side": ("/predict", {"inputs": "a", "truncation_direction": "up"}, 422, "truncation_direction 'up'"),
    "too long": (
        "/rerank",
        {"query": "a", "texts": ["b", "c " * 999], "truncate": False},
        413,
        "texts[1] has 1003 tok",
    ),
    "too many": ("/rerank", {"query": "a", "texts": ["b"] * 2049}, 413, "2049 inputs; the limit is 2048"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests(client: TestClient, name: str) -> None:
    path, body, status, message = WRONG[name]
    response = post(client, path, body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert message in (error["message"] if path.startswith("/v1") else error)


def test_pairs_of_a_program_are_checked_too(engine: Engine) -> None:
    for pairs, message in (([("a", 3)], r"inputs\[0\] is int 3"), ([("a", "\ud800")], r"inputs\[0\]")):
        with pytest.raises(ServiceError, match=message) as caught:
            engine.score(pairs)
        assert caught.value.kind == "invalid"
    with pytest.raises(ServiceError, match="scores 'x'"):
        engine.score([("a", "b")], scores="x")
    with pytest.raises(ValueError, match="models is empty"):
        Engine({})


def test_an_engine_of_a_cross_encoder_alone(ranker: CrossEncoder) -> None:
    with pytest.raises(ValueError, match="truncation='warn'"):
        Engine(ranker, settings=Settings(truncation="warn"))
    with Engine(ranker, settings=Settings(truncation="error")) as engine:
        engine.warm_up()
        with pytest.raises(ServiceError, match="gives scores of texts; this route needs a model that gives vectors"):
            engine.models.embedder()
        with pytest.raises(ServiceError, match=r"inputs\[0\] has \d+ tokens"):
            engine.score([("a", TEXTS[4])])


def test_scores_have_the_same_bytes_beside_any_others(engine: Engine, ranker: CrossEncoder) -> None:
    pairs = [(f"query {i}", f"text number {j} " * (1 + j)) for i in range(8) for j in range(6)]
    expected = ranker.predict(pairs, activation_fn="Sigmoid", truncation="silent")
    with ThreadPoolExecutor(8) as pool:
        rows = [[i] for i in range(48)] + [[*range(48)]] * 4
        found = pool.map(lambda some: engine.score([pairs[i] for i in some], "ranker", scores="rank").value[:, 0], rows)
        vectors = pool.map(lambda i: engine.embed([f"text {i}"]).value, range(30))
        for some, scores in zip(rows, found, strict=True):
            np.testing.assert_array_equal(scores, expected[some])
        assert len([*vectors]) == 30


def test_the_class_of_a_model_is_chosen_by_its_files(tmp_path: Path, ranker_folder: Path, labels_folder: Path) -> None:
    assert isinstance(load_served(str(ranker_folder)), CrossEncoder)
    assert isinstance(load_served(str(labels_folder)), CrossEncoder)
    random_checkpoint(tmp_path / "plain")
    with pytest.warns(UserWarning, match=r"has no modules\.json"):
        assert isinstance(load_served(str(tmp_path / "plain")), SentenceTransformer)
    assert isinstance(load_served(str(sentence_model(tmp_path / "modules"))), SentenceTransformer)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("ab", r"inputs is str 'ab'; expected a list of pairs of texts, such as \[\(query, text\)\]"),
        (["ab"], r"input\[0\] is str 'ab'; expected two texts, or \(text, None\) for one alone"),
        ([("a", "b"), ("a",)], r"input\[1\] is tuple"),
        ([(None, "a")], r"input\[0\] is tuple \(None, 'a'\)"),
        ([("a", 5)], r"inputs\[0\] is int 5; expected a str"),
        ((pair for pair in [("a", "b")]), "inputs is generator"),
    ],
)
def test_inputs_that_are_not_pairs_are_refused(engine: Engine, inputs: Any, message: str) -> None:
    with pytest.raises(ServiceError, match=message) as caught:
        engine.score(inputs)
    assert caught.value.kind == "invalid"


def test_wrong_options_of_scores_are_refused(engine: Engine) -> None:
    for options in ({"scores": 3}, {"low": "yes"}, {"model": 5}):
        with pytest.raises(ServiceError, match=r"expected (a str|a bool|the name of a model)"):
            engine.score([("a", "b")], **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="there is no option 'normalize'; expected scores, truncation, "):
        engine.score([("a", "b")], normalize=True)
    pairs = [["a", "b"], ("a", None)]
    np.testing.assert_array_equal(
        engine.score(pairs).value,  # type: ignore[arg-type]
        engine.score([("a", "b"), ("a", None)]).value,
    )
