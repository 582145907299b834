"""Many clients at a time: each gets its own answer, bit for bit, also while the process gets signals."""

from __future__ import annotations

import base64
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from minibert import CrossEncoder, SentenceTransformer
from tests.support.checkpoints import sentence_model
from tests.support.outcomes import PATIENCE
from tests.support.sentence_heads import model_folder
from tests.support.served import Served, served

CLIENTS = 50
BUSY = 20
WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "banks", "raised", "their", "interest", "rates", "!"]
EMBED, RANK = "embedder", "ranker"


class Models:
    """The models in this process, and their folders."""

    def __init__(self, folder: Path) -> None:
        embedder = sentence_model(folder / EMBED)
        ranker = model_folder(folder / RANK, "BertForSequenceClassification", num_labels=1, scale=5)
        self.arguments = (str(embedder), str(ranker))
        self.embedder, self.ranker = SentenceTransformer(embedder), CrossEncoder(ranker)

    def ask(self, client: httpx.Client, chance: random.Random) -> int:
        """Send a random request to a random route, compare its answer if there is one, and return the status."""
        number = chance.choice((1, 1, 1, 2, 5, 40))
        texts = [" ".join(chance.choices(WORDS, k=chance.choice((1, 5, 30, 90)))) for _ in range(number)]
        return chance.choice((self._openai, self._base64, self._tei, self._rerank))(client, texts)

    def _vectors(self, texts: list[str]) -> Any:
        return self.embedder.encode(texts, truncation="silent", normalize_embeddings=True)

    def _openai(self, client: httpx.Client, texts: list[str]) -> int:
        answer = client.post("/v1/embeddings", json={"input": texts, "model": EMBED})
        if answer.status_code == 200:
            rows = [np.float32(row["embedding"]) for row in answer.json()["data"]]
            np.testing.assert_array_equal(rows, self.embedder.encode(texts, truncation="silent"))
        return answer.status_code

    def _base64(self, client: httpx.Client, texts: list[str]) -> int:
        answer = client.post("/v1/embeddings", json={"input": texts, "model": EMBED, "encoding_format": "base64"})
        if answer.status_code == 200:
            rows = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in answer.json()["data"]]
            np.testing.assert_array_equal(rows, self.embedder.encode(texts, truncation="silent"))
        return answer.status_code

    def _tei(self, client: httpx.Client, texts: list[str]) -> int:
        answer = client.post("/embed", json={"inputs": texts, "model": EMBED})
        if answer.status_code == 200:
            np.testing.assert_array_equal(np.float32(answer.json()), self._vectors(texts))
        return answer.status_code

    def _rerank(self, client: httpx.Client, texts: list[str]) -> int:
        body = {"query": "a cat", "texts": texts, "model": RANK, "raw_scores": True}
        answer = client.post("/rerank", json=body)
        if answer.status_code == 200:
            scores = np.zeros(len(texts), np.float32)
            for row in answer.json():
                scores[row["index"]] = row["score"]
            pairs = [("a cat", text) for text in texts]
            expected = self.ranker.predict(pairs, truncation="silent", activation_fn="identity")
            np.testing.assert_array_equal(scores, np.float32(expected).ravel())
        return answer.status_code


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("mixed"))


@pytest.fixture
def service(models: Models) -> Iterator[Served]:
    with served(*models.arguments, "--shutdown-timeout", "20", errors=[]) as running:
        yield running


def at_once(service: Served, clients: int, work: Callable[[httpx.Client, int], Counter[Any]]) -> Any:
    """Do the work of all clients in threads, each with a connection, and return the pool and the futures."""

    def one(number: int) -> Counter[Any]:
        with httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
            return work(client, number)

    pool = ThreadPoolExecutor(clients)
    return pool, [pool.submit(one, number) for number in range(clients)]


@pytest.mark.parametrize("each", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_clients_get_their_own_answers(service: Served, models: Models, each: int) -> None:
    def work(client: httpx.Client, number: int) -> Counter[Any]:
        chance = random.Random(number)
        return Counter(models.ask(client, chance) for _ in range(each))

    pool, futures = at_once(service, CLIENTS, work)
    with pool:
        assert sum((one.result() for one in futures), Counter()) == {200: CLIENTS * each}


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_busy_service_in_order(service: Served, models: Models, number: signal.Signals) -> None:
    """Each request is answered or refused; a connection may end only between two requests."""
    ready = threading.Barrier(BUSY + 1)

    def work(client: httpx.Client, seed: int) -> Counter[Any]:
        chance, found = random.Random(seed), Counter[Any]()
        found[models.ask(client, chance)] += 1
        ready.wait(PATIENCE)
        while True:
            try:
                found[models.ask(client, chance)] += 1
            except httpx.TransportError as error:
                found["a part" if "complete" in str(error) else "ended"] += 1  # httpx: incomplete, or without complete
                return found

    pool, futures = at_once(service, BUSY, work)
    with pool:
        ready.wait(PATIENCE)
        time.sleep(0.5)
        began = time.monotonic()
        assert service.end(number) == 0
        assert time.monotonic() - began < 20
        found = sum((one.result() for one in futures), Counter[Any]())
    assert found.keys() <= {200, 429, 503, "ended"}
    assert found[200] >= BUSY


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_a_service_that_was_stopped_goes_on(service: Served, models: Models) -> None:
    def work(client: httpx.Client, seed: int) -> Counter[Any]:
        chance = random.Random(seed)
        return Counter(models.ask(client, chance) for _ in range(8))

    pool, futures = at_once(service, BUSY, work)
    with pool:
        for _ in range(3):
            time.sleep(0.1)
            service.process.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            service.process.send_signal(signal.SIGCONT)
        assert sum((one.result() for one in futures), Counter()) == {200: BUSY * 8}
    assert service.end(signal.SIGTERM) == 0
