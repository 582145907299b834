"""A small model, and the same one in transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.esm import modeling_esm
from transformers.models.gte import modeling_gte
from transformers.models.modernbert import modeling_modernbert

from minibert import BertModel
from tests.support.checkpoints import random_checkpoint
from tests.support.model_calls import A, F, H, L, P, V


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(
        tmp_path_factory.mktemp("checkpoint"),
        vocab_size=V,
        hidden_size=H,
        num_hidden_layers=L,
        num_attention_heads=A,
        intermediate_size=F,
        max_position_embeddings=P,
        type_vocab_size=3,
        initializer_range=0.1,
    )


@pytest.fixture(scope="session")
def model(folder: Path) -> BertModel:
    return BertModel.from_pretrained(folder)


@pytest.fixture(scope="session", params=["eager", "sdpa"])
def theirs(folder: Path, request: pytest.FixtureRequest) -> transformers.BertModel:
    return transformers.BertModel.from_pretrained(folder, attn_implementation=request.param).eval()


@pytest.fixture(scope="session")
def eager(folder: Path) -> transformers.BertModel:
    return transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.fixture(params=["kernels", "numpy"])
def prepared(folder: Path, request: pytest.FixtureRequest) -> BertModel:
    return BertModel.from_pretrained(folder, backend=request.param)


@pytest.fixture(autouse=True)
def no_choice_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIBERT_BACKEND", raising=False)
    monkeypatch.delenv("MINIBERT_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of torch take longer to start than small models to run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def exact_modernbert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers rotates the queries and keys of ModernBERT and ESM in float32, also if the model is in float64."""
    for modeling in (modeling_modernbert, modeling_esm):
        monkeypatch.setattr(modeling, "apply_rotary_pos_emb", modeling_gte.apply_rotary_pos_emb)
