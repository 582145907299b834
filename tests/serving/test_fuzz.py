"""Random bodies for every route: an answer in the protocol's shape, never a 500."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from starlette.testclient import TestClient

from minibert import CrossEncoder, SentenceTransformer
from minibert.serving.asgi import app
from minibert.serving.engine import Engine
from minibert.serving.protocols import POSTS
from tests.support.sentence_heads import model_folder

WORDS = (
    "a",
    "",
    " ",
    "\0",
    "中文",
    "\U0001f600",
    "word " * 300,
    "[CLS] [SEP]",
    "query",
    "left",
    "split",
    "error",
    "low",
    "mean",
)
FIELDS = (
    *("query", "documents", "text", "top_n", "raw_scores", "return_text", "return_documents", "prompt"),
    *("embedding_types", "output_dimension"),
    *("input", "inputs", "texts", "ids", "model", "dimensions", "encoding_format", "truncate", "truncation_direction"),
    *("prompt_name", "input_type", "truncate_prompt_tokens", "normalize", "layers", "pooling", "add_special_tokens"),
    *(
        "priority",
        "parameters",
        "skip_special_tokens",
        "is_tokenized",
        "show_tokens",
        "id",
        "source_sentence",
        "sentences",
    ),
)


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(12 if depth < 3 else 8)
    if kind < 3:
        return chance.choice(WORDS)
    if kind < 8:
        numbers = (0, 1, -1, -2, 5, 24, 101, 102, 64, 10**20, 0.5, 1e308)
        return (chance.choice(numbers), None, chance.random() < 0.5, chance.randint(0, 200), 2)[kind - 3]
    if kind < 11:
        same = value(chance, depth + 1)
        return [same if chance.random() < 0.6 else value(chance, depth + 1) for _ in range(chance.randint(0, 4))]
    return {chance.choice(FIELDS): value(chance, depth + 1) for _ in range(chance.randint(0, 3))}


def body(chance: random.Random) -> bytes:
    content: dict[str, Any] = {chance.choice(FIELDS): value(chance) for _ in range(chance.randint(0, 5))}
    texts = [chance.choice(WORDS) for _ in range(chance.randint(1, 4))]
    if chance.random() < 0.8:
        for name in ("input", "inputs", "texts"):
            content[name] = texts
        content["query"], content["prompt"] = texts[0], texts[-1]
        if chance.random() < 0.3:
            content["documents"] = content.pop("texts")
        content["ids"] = [chance.randint(0, 120) for _ in range(4)]
    if chance.random() < 0.1:
        content["inputs"] = {"source_sentence": "a", "sentences": texts}
    written = json.dumps(content, ensure_ascii=chance.random() < 0.5).encode()
    if chance.random() < 0.15:
        place = chance.randrange(len(written))
        written = written[:place] + bytes([chance.randrange(256)]) * chance.randint(0, 2) + written[place + 1 :]
    return written


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> CrossEncoder:
    folder = tmp_path_factory.mktemp("fuzz") / "ranker"
    return CrossEncoder(model_folder(folder, "BertForSequenceClassification", num_labels=1))


def run_bodies(model: SentenceTransformer, ranker: CrossEncoder, seed: int, number: int) -> dict[int, int]:
    """Send bodies to random routes, and count the answers by status."""
    chance, counts = random.Random(seed), dict[int, int]()
    models = {"default": model, "ranker": ranker}
    with Engine(models) as engine, TestClient(app(engine), raise_server_exceptions=False) as client:
        for _ in range(number):
            path, content = chance.choice([*POSTS]), body(chance)
            response = client.post(path, content=content)
            counts[response.status_code] = counts.get(response.status_code, 0) + 1
            assert response.status_code in (200, 400, 404, 413, 422, 424), (path, content, response.text)
            found = response.json()
            if response.status_code != 200:
                message = found["error"]["message"] if POSTS[path].errors.name == "openai" else found["error"]
                assert message
                assert "Traceback" not in message
        load = engine.load()
        assert (load.queued_jobs, load.queued_tokens) == (0, 0)
    return counts


def test_random_bodies(model: SentenceTransformer, ranker: CrossEncoder) -> None:
    counts = run_bodies(model, ranker, 1, 600)
    assert counts[200] > 50
    assert counts[400] > 50
    assert counts[422] > 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 22))
def test_many_random_bodies(model: SentenceTransformer, ranker: CrossEncoder, seed: int) -> None:
    run_bodies(model, ranker, seed, 3000)
