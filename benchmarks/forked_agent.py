"""What a child of the fork server computes in `benchmarks.agents`. The server imports forked_agent_server.py once."""

from __future__ import annotations

import functools
import os
import time
from multiprocessing.connection import Connection

from minibert import SentenceTransformer

FOLDER, THREADS = "BENCHMARK_FOLDER", "BENCHMARK_THREADS"


@functools.cache
def model() -> SentenceTransformer:
    """Return the model of this process."""
    return SentenceTransformer(os.environ[FOLDER], num_threads=int(os.environ[THREADS]))


def answer_lines(pipe: Connection) -> None:
    """Answer each line with the seconds that this process has computed, and the vector; None is the end."""
    while (line := pipe.recv()) is not None:
        vector = model().encode(line)
        pipe.send((time.process_time(), vector))
