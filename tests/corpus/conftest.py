"""Runs over a corpus in the folder of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minibert import SentenceTransformer
from minibert.corpus.embed import embed_corpus
from minibert.corpus.extract import extract_corpus
from minibert.corpus.sources import Source
from tests.support.corpus_runs import text_file, texts_of


@pytest.fixture
def embed(short_model: SentenceTransformer, tmp_path: Path) -> Any:
    """Return a function: output in the folder of the test, source (default a.txt, 45 texts), options -> summary."""
    usual = text_file(tmp_path / "a.txt", texts_of(45))

    def embed(
        output: str = "out.npy", source: Source = usual, *, model: Any = short_model, job: str = "", **how: Any
    ) -> Any:
        how = {"shard_size": 10, "report": lambda problem: None, **how}
        if job in ("binary", "google", "words", "csv"):
            how |= {"format": "words" if job == "csv" else job, "layers": [-1]}
            return extract_corpus(model.model, model.tokenizer, [source], f"{tmp_path}/{output}", **how)
        return embed_corpus(model, [source], f"{tmp_path}/{output}", **{"truncation": "silent", **how})

    return embed
