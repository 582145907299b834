"""Files of the repositories that the hub tests use, and checks of the result of a load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.support.hub_server import HubServer, Outcome

CONFIG = b'{"model_type": "bert"}'
FILES = {"config.json": CONFIG, "model.safetensors": b"w" * 3000, "1_Pooling/config.json": b"{}"}
BOT_FILES = {"config.json": CONFIG, "pytorch_model.bin": b"a pickle"}


def requests(server: HubServer, name: str, method: str | None = None) -> list[str]:
    return [request.path for request in server.asked(name, method)]


def assert_error(outcome: Outcome, kind: type[Exception], *words: str) -> None:
    assert outcome.error == kind.__name__, f"{outcome.error}: {outcome.message} {outcome.values}"
    for word in words:
        assert word in outcome.message


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for filename, content in files.items():
        path = folder / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def index(*shards: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": {f"t{i}": s for i, s in enumerate(shards)}}).encode()
