"""`minibert.util`: the names of sentence_transformers.util."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import util as theirs
from sentence_transformers.util import quantization as their_quantization

import minibert
from minibert import search, similarity, util
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.outcomes import printed

# --- names ------------------------------------------------------------------------------------------------------------


def test_a_name_of_theirs_says_what_to_use() -> None:
    for name in ("http_get", "mine_hard_negatives", "semantic_search_faiss"):
        assert any(hasattr(module, name) for module in (theirs, their_quantization))
        with pytest.raises(AttributeError, match=rf"minibert.util has no {name}: ."):
            getattr(util, name)
        with pytest.raises(ImportError, match=rf"minibert.util has no {name}: ."):
            exec(f"from minibert.util import {name}")
    with pytest.raises(AttributeError, match=r"cosine_sim.*cos_sim"):
        _ = util.cosine_sim
    assert not hasattr(util, "http_get")


def test_submodules_are_here_or_say_where_they_are() -> None:
    for line in (
        "from minibert.util.quantization import quantize_embeddings",
        "from minibert.cross_encoder import CrossEncoder",
        "from minibert.sparse_encoder import SparseEncoder",
        "from minibert.pipelines import pipeline",
        "from minibert import quantization; quantization.quantize_embeddings",
    ):
        exec(line, {})
    assert "quantize_embeddings" in dir(minibert.util.quantization)
    for line, remedy in (
        ("from minibert import evaluation", "sentence-transformers has it"),
        ("from minibert import nothing", "cannot import name"),
        ("from minibert import TextClassificationPipeline", r"pipeline\(.text-classification."),
        ("import minibert.nothing", "No module named"),
    ):
        with pytest.raises(ImportError, match=remedy):
            exec(line, {})
    assert isinstance(minibert.SentenceTransformer, type)


def test_the_names_are_those_of_the_other_modules() -> None:
    for home in (similarity, search):
        for name in home.__all__:
            if name in util.__all__:
                assert getattr(util, name) is getattr(home, name)
    assert util.pytorch_cos_sim is similarity.cos_sim
    assert util.information_retrieval is search.semantic_search
    assert minibert.SimilarityFunction is util.SimilarityFunction
    assert minibert.LoggingHandler is util.LoggingHandler
    code = "import minibert; print(minibert.util.cos_sim([1, 0], [1, 0]).item())"
    assert printed(code) == "1.0\n"


def test_small_functions(tmp_path: Path) -> None:
    batch = {"input_ids": np.zeros(3)}
    assert util.batch_to_device(batch, "cpu") is batch
    with pytest.raises(ValueError, match="device='cuda'"):
        util.batch_to_device(batch, "cuda")
    with pytest.raises(TypeError, match="batch=3"):
        util.batch_to_device(3, "cpu")
    assert util.get_device_name() == "cpu"
    assert util.is_sentence_transformer_model(sentence_model(tmp_path / "sentences"))
    assert not util.is_sentence_transformer_model(random_checkpoint(tmp_path / "plain"))


def test_lines_of_a_log_appear_above_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("minibert.test")
    handler = util.LoggingHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s - %(message)s"))
    logger.addHandler(handler)
    try:
        logger.warning("one %d", 1)
    finally:
        logger.removeHandler(handler)
    assert capsys.readouterr().out == "WARNING - one 1\n"
