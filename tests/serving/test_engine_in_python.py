"""The engine as an object of a program: wrong arguments, observers that raise, interruptions."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from minibert import SentenceTransformer
from minibert.serving.asgi import app
from minibert.serving.engine import Engine
from minibert.serving.settings import ServiceError, Settings
from tests.support.checkpoints import sentence_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("engine") / "small")


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(model: SentenceTransformer) -> Iterator[Engine]:
    with Engine(model) as made:
        yield made


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("abc", r"inputs is str 'abc'; expected a list of texts, such as \[text\]"),
        (b"abc", "inputs is bytes b'abc'"),
        (None, "inputs is NoneType None"),
        (5, "inputs is int 5"),
        ({"a": 1}, "inputs is dict"),
        ({"a"}, "inputs is set"),
        ((text for text in "ab"), "inputs is generator"),
        (np.array("abc"), "inputs is ndarray"),
        ([1, 2], r"input\[0\] is int 1; expected a str, or a list of token ids"),
        ([None], r"input\[0\] is NoneType None"),
        ([["a"]], r"input\[0\] is list \['a'\]"),
        ([[101, 102], "a"], r"input\[1\] is str 'a'"),
        ([[101, 5.0, 102]], r"input\[0\] is list"),
        ([[101, True, 102]], r"input\[0\] is list"),
        ([np.array(3)], r"input\[0\] is ndarray"),
        (["a", [101, 102]], r"inputs\[1\] is list .*; expected a str"),
    ],
)
def test_inputs_that_are_not_lists_of_texts_are_refused(engine: Engine, inputs: Any, message: str) -> None:
    with pytest.raises(ServiceError, match=message) as caught:
        engine.embed(inputs)
    assert caught.value.kind == "invalid"


def test_other_sequences_of_texts_and_ids_are_taken(engine: Engine, model: SentenceTransformer) -> None:
    texts = ["A cat sleeps.", "the bank"]
    expected = model.encode(texts)
    for given in (tuple(texts), np.array(texts)):
        np.testing.assert_array_equal(engine.embed(given).value, expected)
    ids = [model.tokenizer.encode(text) for text in texts]
    for rows in (ids, [np.array(row) for row in ids], [tuple(row) for row in ids]):
        np.testing.assert_array_equal(engine.embed(rows).value, expected)
    assert engine.embed(texts, dimensions=np.int64(3)).value.shape == (2, 3)
    assert engine.embed([]).value.shape[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimensions": "3"}, "dimensions='3'; expected an int, or None"),
        ({"dimensions": True}, "dimensions=True; expected an int, or None"),
        ({"max_tokens": 5.0}, "max_tokens=5.0; expected an int, or None"),
        ({"normalize": "no"}, "normalize='no'; expected a bool, or None"),
        ({"tokens": None}, "tokens=None; expected a bool"),
        ({"truncation": 1}, "truncation=1; expected a str, or None"),
        ({"prompt_name": ["query"]}, r"prompt_name=\['query'\]; expected a str, or None"),
        ({"layers": "x"}, "layers='x'"),
        ({"pooling": 3}, "pooling=3"),
        ({"model": 5}, "model is int 5; expected the name of a model"),
    ],
)
def test_options_of_another_type_are_refused(engine: Engine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ServiceError, match=message) as caught:
        engine.embed(["a"], **options)
    assert caught.value.kind == "invalid"


def test_an_unknown_option_is_refused(engine: Engine) -> None:
    with pytest.raises(TypeError, match="there is no option 'dimension'; expected normalize, dimensions, "):
        engine.embed(["a"], dimension=3)


@pytest.mark.parametrize(
    ("models", "kind", "message"),
    [
        ("all-MiniLM-L6-v2", TypeError, "models is str 'all-MiniLM-L6-v2'; expected a SentenceTransformer"),
        (None, TypeError, "models is NoneType None"),
        ([], TypeError, r"models is list \[\]"),
        ({}, ValueError, "models is empty"),
        ({"a": "b"}, TypeError, r"models\['a'\] is str 'b'"),
        ({1: None}, TypeError, r"models\[1\]: the name is a int"),
        ({"": None}, ValueError, r"models\[''\]: the name is empty"),
    ],
)
def test_models_of_another_class_are_refused(models: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Engine(models)


def test_settings_and_a_clock_of_another_class_are_refused(model: SentenceTransformer) -> None:
    with pytest.raises(TypeError, match=r"settings is dict .*; expected Settings"):
        Engine(model, settings={"max_wait": 3})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"clock is float 3.0; expected a function"):
        Engine(model, clock=3.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["step_seconds", "max_wait", "request_timeout", "body_timeout"])
def test_times_of_the_settings_are_checked(name: str) -> None:
    for wrong in (-1, 0, float("nan"), float("inf"), 10**10):
        with pytest.raises(ValueError, match=f"{name}=.*; expected a number of seconds above 0"):
            Settings(**{name: wrong})
    for odd in ("1", None, True):
        with pytest.raises(TypeError, match=f"{name}=.*; expected a number of seconds above 0"):
            Settings(**{name: odd})


@pytest.mark.parametrize("name", ["max_inputs", "max_body_bytes", "max_inflight_bytes", "max_result_bytes"])
def test_limits_of_the_settings_are_checked(name: str) -> None:
    for wrong in (-1, 0):
        with pytest.raises(ValueError, match=f"{name}=.*; expected an int of at least 1"):
            Settings(**{name: wrong})
    for odd in ("a", None, 1.5, True):
        with pytest.raises(TypeError, match=f"{name}=.*; expected an int of at least 1"):
            Settings(**{name: odd})


def test_other_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="truncation=None; expected one of 'mark', 'error', 'split'"):
        Settings(truncation=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="default_prompt_name=3; expected a str, or None"):
        Settings(default_prompt_name=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="any_model_name='no'; expected a bool"):
        Settings(any_model_name="no")  # type: ignore[arg-type]


def test_arguments_of_app_are_checked(engine: Engine, model: SentenceTransformer) -> None:
    wrong: Any
    for wrong, message in (
        ({"engine": model}, "engine is SentenceTransformer .*; expected an Engine"),
        ({"keys": "secret"}, "keys is a str; expected ApiKeys"),
        (
            {"allow_origins": "https://example.org"},
            "allow_origins is str 'https://example.org'; expected a list of str",
        ),
        ({"allow_origins": [1]}, "allow_origins is list"),
    ):
        with pytest.raises(TypeError, match=message) as caught:
            app(**{"engine": engine, **wrong})
        assert "secret" not in str(caught.value)
    for namespace in ("a b", "", "1a", None):
        with pytest.raises(ValueError, match=r"metrics_namespace=.*; expected letters, digits and _"):
            app(engine, metrics_namespace=namespace)  # type: ignore[arg-type]
    with TestClient(app(engine, metrics_namespace="te")) as client:
        assert b"te_queue_size 0.0" in client.get("/metrics").content


def test_an_engine_is_not_copied(engine: Engine) -> None:
    for function in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="an Engine cannot be copied or pickled"):
            function(engine)


# --- observers --------------------------------------------------------------------------------------------------------


def test_an_observer_that_raises_is_logged_and_removed(
    model: SentenceTransformer, caplog: pytest.LogCaptureFixture
) -> None:
    seen = list[int]()

    def count(units: int, tokens: int, seconds: float) -> None:
        seen.append(tokens)

    def fail(*step: float) -> None:
        raise ArithmeticError("a fault of the observer")

    with Engine(model) as engine:
        engine.observers += [fail, count]
        for _ in range(3):
            assert engine.embed(["a"]).report.n_tokens == (3,)
        assert engine.load().alive
    assert seen == [3, 3, 3]
    assert engine.observers == [count]
    assert caplog.text.count("an observer has failed") == caplog.text.count("\nArithmeticError: a fault") == 1


# --- how the models compute -------------------------------------------------------------------------------------------


def test_threads_and_shared_weights_are_in_the_descriptions(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    options: dict[str, dict[str, Any]] = {
        "shared": {"shared_weights": True, "num_threads": 1},
        "own": {"shared_weights": False, "num_threads": 2},
        "numpy": {"backend": "numpy", "num_threads": 2},
    }
    models = {name: SentenceTransformer(folder, **given) for name, given in options.items()}
    expected = {"shared": (1, True), "own": (2, False), "numpy": (1, False)}
    with Engine(models) as engine, TestClient(app(engine)) as client:
        listed = client.get("/v1/models").json()["data"]
        assert {one["id"]: (one["num_threads"], one["shared_weights"]) for one in listed} == expected
        found = client.get("/info").json()
        assert (found["num_threads"], found["shared_weights"]) == expected["shared"]
        metrics = client.get("/metrics").text
        for name, (threads, shared) in expected.items():
            labels = f'model="{name}",num_threads="{threads}",shared_weights="{int(shared)}"'
            assert f'minibert_model_info{{compute_type="float32",{labels}}} 1.0' in metrics


# --- low precision ----------------------------------------------------------------------------------------------------


def test_a_low_precision_is_named_in_every_place(folder: Path) -> None:
    """float32 and int8 beside each other: the first does not need a header, the second one has it everywhere."""
    models = {name: SentenceTransformer(folder, compute_type=name) for name in ("float32", "int8")}
    with Engine(models) as engine, TestClient(app(engine)) as client:
        listed = client.get("/v1/models").json()["data"]
        assert {one["id"]: one["compute_type"] for one in listed} == {"float32": "float32", "int8": "int8"}
        assert client.get("/v1/models/int8").json()["compute_type"] == "int8"
        assert client.get("/info").json()["model_dtype"] == "float32"
        line = 'minibert_model_info{compute_type="int8",model="int8",num_threads="%d",shared_weights="0"} 1.0'
        assert line % models["int8"].model.num_threads in client.get("/metrics").text
        for name, header in (("float32", None), ("int8", "int8")):
            answer = client.post("/v1/embeddings", json={"input": "a", "model": name})
            assert (answer.status_code, answer.headers.get("x-minibert-compute-type")) == (200, header)
    with Engine({"low": models["int8"]}) as engine, TestClient(app(engine)) as client:
        found = client.get("/info").json()
        assert (found["model_dtype"], found["compute_type"]) == ("int8", "int8")
