"""The same bytes for the same text: alone in this process, under many mixed clients, and after a restart."""

from __future__ import annotations

import base64
import random
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from minibert import SentenceTransformer
from tests.support.outcomes import PATIENCE
from tests.support.served import Served, served

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals end processes at once there")

PATIENT = ("--max-wait", "100000", "--request-timeout", "100000")  # a busy machine must not refuse requests


def made_texts(number: int) -> list[str]:
    """Return texts of 0 to 400 words; some are equal, some are cut."""
    chance = random.Random(11)
    words = ["cat", "sat", "mat", "banks", "raised", "interest", "rates", "nobody", "slept", "here", "中文", "Ünïcode"]
    texts = [" ".join(chance.choices(words, k=chance.choice((0, 3, 8, 8, 20, 60, 200, 400)))) for _ in range(number)]
    return [texts[i // 2] if i % 9 == 0 else text for i, text in enumerate(texts)]


def post(client: httpx.Client, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def ask(client: httpx.Client, texts: list[str], kind: int) -> list[bytes]:
    """Return the bytes of the vectors of texts, by one of the protocols."""
    if kind == 0:
        found = post(client, "/v1/embeddings", {"input": texts, "encoding_format": "base64"}).json()["data"]
        return [base64.b64decode(one["embedding"]) for one in found]
    if kind == 1:
        raw = post(client, "/embed", {"inputs": texts}, accept="application/octet-stream").content
        return [raw[i : i + len(raw) // len(texts)] for i in range(0, len(raw), len(raw) // len(texts))]
    floats = post(client, "/v1/embeddings", {"input": texts, "priority": "low"}).json()["data"]
    return [np.array(one["embedding"], dtype="<f4").tobytes() for one in floats]


def compare(service: Served, texts: list[str], alone: list[bytes], clients: int) -> int:
    """Ask for all texts by many clients at once, in requests of 1 to 64 texts; return the number of vectors."""

    def run(number: int) -> int:
        chance, checked = random.Random(number), 0
        order = [*range(len(texts))]
        chance.shuffle(order)
        with httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
            mine = order[: max(8, 2 * len(order) // clients)]
            while mine:
                size = chance.choice((1, 1, 1, 2, 7, 64))
                rows, mine = mine[:size], mine[size:]
                for row, found in zip(rows, ask(client, [texts[i] for i in rows], chance.randrange(3)), strict=True):
                    assert found == alone[row], (number, row)
                checked += len(rows)
        return checked

    with ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(run, range(clients)))


def all_the_same(folder: Path, number: int, clients: int) -> None:
    texts = made_texts(number)
    model = SentenceTransformer(folder)
    alone = [model.encode(text, truncation="silent").tobytes() for text in texts]
    assert alone == [row.tobytes() for row in model.encode(texts, truncation="silent")]
    for _ in range(2):  # the second one is another process
        with served(str(folder), "--json-logs", *PATIENT, errors=[]) as running:
            checked = compare(running, texts, alone, clients)
            with httpx.Client(base_url=running.url, timeout=PATIENCE) as client:
                assert ask(client, texts, 0) == alone
            assert running.end(signal.SIGTERM) == 0
        print(f"{number} texts, {clients} clients: {checked + number} vectors, all with the bytes of encode")


def test_a_sample_of_texts_has_the_same_bytes_everywhere(minilm_folder: Path) -> None:
    all_the_same(minilm_folder, 40, 12)


@pytest.mark.slow
def test_500_texts_have_the_same_bytes_under_64_clients(minilm_folder: Path) -> None:
    all_the_same(minilm_folder, 500, 64)
