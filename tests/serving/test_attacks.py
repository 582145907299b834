"""Clients that ask for too much: other clients do not wait for them, and the resources they use are counted."""

from __future__ import annotations

import json
import random
import signal
import string
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from starlette.testclient import TestClient

from minibert import CrossEncoder, SentenceTransformer
from minibert.serving.asgi import POSTS, app
from minibert.serving.engine import Engine
from minibert.serving.reading import LONG_BODY, Readers, in_turns
from minibert.serving.settings import ServiceError, Settings
from tests.support.outcomes import PATIENCE
from tests.support.served import Served, message_of, request, served, until


@pytest.fixture(scope="module")
def client(model: SentenceTransformer, ranker: CrossEncoder) -> Iterator[TestClient]:
    models = {"default": model, "ranker": ranker}
    with Engine(models) as engine, TestClient(app(engine), raise_server_exceptions=False) as made:
        yield made
        load = engine.load()
        assert (load.queued_jobs, load.queued_tokens) == (0, 0)


def post(client: Any, path: str, body: Any) -> Any:
    return client.post(path, content=body if isinstance(body, bytes) else json.dumps(body).encode())


# --- random bodies for every route: an answer in the protocol's shape, never a 500 ------------------------------------

STRUCTS = {route.struct for route in POSTS.values()}
FIELDS = {name for kind in STRUCTS for name in kind.__struct_fields__}
NAMES = sorted(FIELDS | {"source_sentence", "sentences", "other"})
WORDS = ["", " ", "\0", "中文", "\U0001f600", "word " * 300, "[CLS] [SEP]", "query", "left", "split", "error"]
texts = st.sampled_from([*WORDS, "mean", "none", "small"]) | st.text(max_size=8)
values = st.recursive(
    texts | st.none() | st.booleans() | st.integers(-3, 200) | st.sampled_from([10**20, 0.5, 1e308]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)
LISTS = st.lists(texts, min_size=1, max_size=4)
USUAL = {
    **dict.fromkeys(("input", "inputs", "texts", "documents"), LISTS),
    **dict.fromkeys(("query", "prompt"), texts),
    "ids": st.lists(st.integers(0, 120), min_size=1, max_size=4),
}


@st.composite
def bodies(draw: st.DrawFn, path: str) -> bytes:
    """A body that is nearly right: the field with the texts, some others, at times a byte that is another one."""
    content = draw(st.dictionaries(st.sampled_from(NAMES), values, max_size=3))
    if draw(st.integers(0, 4)):
        usual = {POSTS[path].field, "query"} & USUAL.keys()
        content = {**{name: draw(USUAL[name]) for name in sorted(usual)}, **content}
    if path in ("/", "/similarity") and draw(st.booleans()):
        content["inputs"] = {"source_sentence": draw(texts), "sentences": draw(LISTS)}
    written = json.dumps(content, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    if not draw(st.integers(0, 6)):
        place = draw(st.integers(0, len(written) - 1))
        written = written[:place] + draw(st.binary(max_size=2)) + written[place + 1 :]
    return written


@pytest.mark.parametrize("number", [60, pytest.param(60_000, marks=pytest.mark.slow)])
def test_random_bodies(client: TestClient, number: int) -> None:
    seen = set[int]()

    @settings(max_examples=number, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck])
    @given(st.data())
    def run(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(POSTS)))
        body = data.draw(bodies(path))
        response = post(client, path, body)
        seen.add(response.status_code)
        assert response.status_code in (200, 400, 404, 413, 422, 424), (path, body, response.text)
        if response.status_code != 200:
            message = message_of(response)
            assert message
            assert "Traceback" not in message

    run()
    assert seen >= {200, 400, 422}


# --- what one request may cost ----------------------------------------------------------------------------------------


def test_repeated_types_are_computed_once(client: TestClient) -> None:
    body = {"texts": ["a b c"] * 16, "embedding_types": ["ubinary", "binary"] * 50_000}
    started = time.monotonic()
    assert [*post(client, "/v2/embed", body).json()["embeddings"]] == ["ubinary", "binary"]
    assert time.monotonic() - started < PATIENCE


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [' + b"[]," * 100_000 + b"[]]}",
        b'{"inputs": "a"' + b"".join(b',"%d":0' % i for i in range(100_000)) + b"}",
        b'{"inputs": [' + b"9," * 3_000_000 + b"9]}",
        b'{"inputs": [' + b'"ab",' * 1_100_000 + b'"ab"]}',
        b'{"inputs": "\\\\", "x": [' + b'"\\"",[],' * 100_000 + b"0]}",
    ],
    ids=["lists", "keys", "numbers", "texts", "quotes"],
)
def test_json_of_very_many_values_is_refused_unread(client: TestClient, body: bytes) -> None:
    assert post(client, "/embed", body).status_code == 413


@pytest.mark.parametrize("text", ["[[[[" * 50_000, '{"a": [1, 2]}, ' * 30_000, "\\" * 100_001, 'say "a", ' * 50_000])
def test_texts_of_brackets_and_quotes_are_not_values(client: TestClient, model: SentenceTransformer, text: str) -> None:
    found = post(client, "/embed", {"inputs": text})
    np.testing.assert_array_equal(np.float32(found.json()), model.encode([text], truncation="silent"))


TEXTS = [
    *("word " * 3000, "a" * 5000, " " * 9000 + "the end", "!" * 9000, "中" * 3000, "e\u0301" * 4000, "cat", "x" * 700),
    "".join(random.Random(5).choices(string.printable, k=9000)),
]


@pytest.mark.parametrize("side", ["Right", "Left"])
@pytest.mark.parametrize("prompt", [None, "query"])
def test_long_texts_have_the_vectors_of_their_first_tokens(
    client: TestClient, model: SentenceTransformer, side: str, prompt: str | None
) -> None:
    """Though only a part of them is tokenized."""
    response = post(client, "/embed", {"inputs": TEXTS, "truncation_direction": side, "prompt_name": prompt})
    model.tokenizer.truncation_side = side.lower()
    try:
        expected = model.encode(TEXTS, truncation="silent", prompt_name=prompt)
    finally:
        model.tokenizer.truncation_side = "right"
    np.testing.assert_array_equal(np.float32(response.json()), expected)
    cut = [i for i, number in enumerate(model.num_tokens(TEXTS)) if number > 64]
    assert int(response.headers["x-minibert-truncated"]) >= len(cut)


def test_long_pairs_have_the_scores_of_their_first_tokens(ranker: CrossEncoder) -> None:
    pairs = [(query, text) for query in ("a cat", "word " * 20, "word " * 400, "!" * 9000) for text in TEXTS]
    with Engine(ranker) as engine:
        found = engine.score(pairs, scores="rank").value[:, 0]
        np.testing.assert_array_equal(found, ranker.predict(pairs, truncation="silent"))
        with pytest.raises(ServiceError, match="1,200,001 characters") as raised:
            engine.score([("a " * 600_000, "b")])
        assert raised.value.kind == "too_large"
        assert engine.score([("a", "b " * 400_000)]).usage.truncated == (0,)


# --- requests that are read -------------------------------------------------------------------------------------------


def test_long_requests_take_turns_and_those_that_are_cancelled_stop() -> None:
    ended, order, started = list[tuple[int, bool]](), list[str](), threading.Event()
    readers = Readers(lambda reading, whole: ended.append((reading.size, whole)))
    hold = threading.Event()

    def read(name: str, parts: int) -> str:
        for part in in_turns(range(parts)):
            if name == "long" and part == 0:
                started.set()
                assert hold.wait(PATIENCE)
            order.append(name)
        return name

    long = readers.submit(LONG_BODY + 1, read, "long", 10**7)
    assert started.wait(PATIENCE)
    left = readers.submit(LONG_BODY + 2, read, "left", 50)
    other = readers.submit(LONG_BODY + 3, read, "other", 2)
    left.cancel()
    hold.set()
    assert other.future.result(PATIENCE) == "other"
    long.cancel()
    with pytest.raises(CancelledError):
        long.future.result(PATIENCE)
    assert (order.count("other"), order.count("left") <= 1, order.count("long") < 10**7) == (2, True, True)
    assert (LONG_BODY + 3, True) in ended


def test_smaller_requests_are_read_before_larger_ones_but_not_for_ever() -> None:
    """While one small request is read, the next three wait."""
    readers, order, hold = Readers(lambda *_: None), list[int](), threading.Event()
    small, large = LONG_BODY + 1, 10 * LONG_BODY
    readings = list[Any]()

    def read(size: int) -> None:
        assert hold.wait(PATIENCE)
        order.append(size)
        if size == small and order.count(small) < 400:
            readings.append(readers.submit(small, read, small))

    readings += [readers.submit(size, read, size) for size in (2 * LONG_BODY, large, small, small, small)]
    hold.set()
    for reading in readings:  # which grows meanwhile
        reading.future.result(PATIENCE)
    assert len(order) == 404
    assert 130 < order.index(large) < 170


def test_a_request_that_is_read_for_too_long_is_503(model: SentenceTransformer) -> None:
    with Engine(model, settings=Settings(request_timeout=0.05)) as engine, TestClient(app(engine)) as other:
        body = {"inputs": [f"{i} " + "! ? " * 4000 for i in range(1500)], "truncate": "split"}
        response = post(other, "/embed", body)
        assert response.status_code == 503
        assert "0.05 seconds" in response.text


def leavers_are_dropped(service: Served, number: int, bodies: list[tuple[str, bytes]]) -> None:
    """An honest request waits at most 2 seconds longer than alone, and /livez half a second."""
    honest = {"inputs": [f"honest text {i} " * 8 for i in range(600)]}
    with service.client() as client:

        def seconds(path: str) -> float:
            started = time.monotonic()
            assert (client.get(path) if path == "/livez" else client.post(path, json=honest)).status_code == 200
            return time.monotonic() - started

        alone = min(seconds("/embed") for _ in range(2))
        for path, body in bodies * number:
            service.connect(request(body, path)).close()
        livez, beside = seconds("/livez"), seconds("/embed")
        print(f"alone {alone:.2f} s, beside clients that left {beside:.2f} s, /livez {livez:.2f} s")
        until(lambda: service.numbers()["minibert_inflight_bytes"] == 0)
        numbers = service.numbers()
        refused = [n for name, n in numbers.items() if name.startswith("minibert_request_failure_total")]
        assert numbers["minibert_request_disconnected_total"] + sum(refused) == len(bodies) * number
        assert numbers["minibert_request_disconnected_total"] >= number


def large(number: int, characters: int) -> bytes:
    given = [(f"{i} word, {7 * i} other! " * characters)[:characters] for i in range(number)]
    return json.dumps({"inputs": given}).encode()


LARGE = [("/embed", (2000, 3000)), ("/tokenize", None), ("/embed", (1900, 16_000))]


@pytest.mark.parametrize(
    ("number", "kinds"), [(3, [("/embed", (1000, 3000))]), pytest.param(12, LARGE, marks=pytest.mark.slow)]
)
def test_requests_of_clients_that_left_are_not_read(folder: Path, number: int, kinds: list[Any]) -> None:
    with served(str(folder), errors=[]) as service:
        tokens = json.dumps({"inputs": "!" * 130_000}).encode()
        leavers_are_dropped(service, number, [(path, large(*size) if size else tokens) for path, size in kinds])
        assert service.end(signal.SIGTERM) == 0
