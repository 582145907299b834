"""The engine as an object of a program: forks, wrong arguments, observers that raise, interruptions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkpoints import sentence_model
from tests.support.fake_kinds import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("engine") / "small")


# --- forks ------------------------------------------------------------------------------------------------------------

FORKS = """
import os, signal, sys, warnings
import numpy as np
from starlette.testclient import TestClient
from minibert import SentenceTransformer
from minibert.serving.asgi import app
from minibert.serving.engine import Engine
from minibert.serving.errors import ServiceError
from tests.support.fake_kinds import Gate, job

warnings.simplefilter("ignore")  # Python warns of forks of processes with threads
model = SentenceTransformer(sys.argv[1])
texts = ["A cat sleeps.", "the bank " * 2000]
expected = model.encode(texts, truncation="silent")
engine = Engine(model)
client = TestClient(app(engine))

def is_right():
    found = engine.embed(texts).value
    answer = client.post("/v1/embeddings", json={"input": texts})  # long enough to be read in a thread
    vectors = np.float32([entry["embedding"] for entry in answer.json()["data"]])
    return np.array_equal(found, expected) and np.array_equal(vectors, expected)

def fork(work):
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def in_a_child_of_a_child():
    return is_right() and fork(is_right) == 0

assert is_right()
print("after use", fork(is_right))
print("in a child of a child", fork(in_a_child_of_a_child))

gate = Gate()
computed, waiting = engine.submit(job([1], gate)), engine.submit(job([1], gate))
gate.entered.wait()

def while_it_computes():
    for future in (computed, waiting):
        try:
            future.result()
        except ServiceError as error:
            assert error.kind == "unavailable" and "forked" in error.message
        else:
            return False
    load = engine.load()
    return load.alive and load.queued_tokens == 0 and load.wait_bulk == 0 and is_right() and engine.close()

print("while it computes", fork(while_it_computes))
gate.opened.set()
print("the first process", computed.result(), waiting.result(), is_right(), engine.close())
print("after the end", fork(engine.close))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_process_that_is_forked_computes(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(folder)], capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS
    )
    assert done.stdout.splitlines() == [
        "after use 0",
        "in a child of a child 0",
        "while it computes 0",
        "the first process [0] [0] True True",
        "after the end 0",
    ], done.stderr
