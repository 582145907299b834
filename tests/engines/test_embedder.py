"""`Embedder` as a class, without Ray; test_recipes.py runs it in Ray's actors."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.integrations import ray as module
from minibert.integrations.ray import Embedder
from tests.support.corpus_runs import texts_of

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")

LONG = "the cat " * 40


def test_a_column_is_added(short_folder: Path, short_model: SentenceTransformer) -> None:
    texts = np.array(texts_of(50), dtype=object)
    embedder = Embedder(str(short_folder), column="body", output="v", truncation="silent")
    batch = embedder({"id": np.arange(50), "body": texts})
    assert [*batch] == ["id", "body", "v"]
    assert batch["v"].dtype == np.float32
    np.testing.assert_array_equal(batch["v"], short_model.encode(texts.tolist(), truncation="silent"))
    np.testing.assert_array_equal(embedder({"body": texts.astype(np.str_)})["v"], batch["v"])
    assert embedder({"body": texts[:0]})["v"].shape == (0, batch["v"].shape[1])


def test_cut_texts_are_counted_and_warned_of_once(short_folder: Path) -> None:
    embedder = Embedder(str(short_folder))
    with pytest.warns(UserWarning, match="2 of 3 texts"):
        embedder({"text": ["a cat", LONG, LONG]})
    embedder({"text": ["a cat", LONG, LONG]})  # warnings are errors
    assert (embedder.cut.num_texts, embedder.cut.num_cut) == (6, 4)


def test_texts_that_cannot_be_used(short_folder: Path, short_model: SentenceTransformer) -> None:
    bad: dict[str, Any] = {"id": np.arange(5), "text": ["a", None, LONG, "\ud800", "b"]}
    good = short_model.encode(["a", "b"])
    null, skip, stop = (
        Embedder(str(short_folder), truncation="error", on_error=on_error) for on_error in ("null", "skip", "stop")
    )
    np.testing.assert_array_equal(np.isnan(null(bad)["vector"]).all(axis=1), [False, True, True, True, False])
    np.testing.assert_array_equal(null(bad)["vector"][[0, 4]], good)
    assert skip(bad)["id"].tolist() == [0, 4]
    np.testing.assert_array_equal(skip(bad)["vector"], good)
    for index, kind, problem in (
        (1, TypeError, "NoneType"),
        (2, ValueError, "82 tokens.* 32"),
        (3, ValueError, "half"),
    ):
        with pytest.raises(kind, match=rf"text\[0\] .*{problem}"):
            stop({"text": bad["text"][index : index + 1]})


@pytest.mark.parametrize(
    ("batch", "kind", "problem"),
    [
        ({"body": ["a"]}, ValueError, "'text'.* body"),
        ({"text": "abc"}, TypeError, "text.* str"),
        ({"text": 3}, TypeError, "text.* int"),
    ],
)
def test_a_batch_without_a_column_of_texts(short_folder: Path, batch: Any, kind: type[Exception], problem: str) -> None:
    with pytest.raises(kind, match=problem):
        Embedder(str(short_folder))(batch)


@pytest.mark.parametrize(("option", "kind"), [({"on_error": "ignore"}, ValueError), ({"colour": "red"}, TypeError)])
def test_wrong_options_are_refused_before_a_model_is_loaded(option: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(option))):
        Embedder("no/such/model", **option)


def test_the_threads_are_those_that_ray_has_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._assigned_threads() is None
    context = SimpleNamespace(worker=SimpleNamespace(mode=1), get_assigned_resources=lambda: {"CPU": 3.0})
    ray = SimpleNamespace(WORKER_MODE=1, is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert module._assigned_threads() == 3


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        ({}, {}, True),
        ({"shared_weights": False}, {}, False),
        ({"backend": "numpy"}, {"BACKEND": "numba"}, None),
        ({}, {"BACKEND": "numpy"}, None),
        ({}, {"SHARED_WEIGHTS": "0"}, None),
        ({"shared_weights": True}, {"SHARED_WEIGHTS": "0"}, True),
    ],
)
def test_actors_share_the_weights_unless_something_else_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], variables: dict[str, str], expected: bool | None
) -> None:
    """None leaves it to the variable, or to the backend."""
    for name in ("BACKEND", "SHARED_WEIGHTS"):
        monkeypatch.setenv(f"MINIBERT_{name}", variables.get(name, ""))
    assert module._shared({**options, "revision": "main"}).get("shared_weights") == expected
