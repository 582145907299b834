"""`minibert.util`: the names of sentence_transformers.util; search with an index of another library."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import util as theirs
from sentence_transformers.util import quantization as their_quantization

import minibert
from minibert import index, search, similarity, util
from minibert.vectors.similarity import quantize_embeddings
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.marks import needs_fork
from tests.support.outcomes import printed
from tests.support.refusals import Refused, check_refused

RNG = np.random.default_rng(3)


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_name_of_theirs_says_what_to_use() -> None:
    for name in ("http_get", "mine_hard_negatives"):
        assert name in theirs.__all__ or hasattr(theirs, name)
        with pytest.raises(AttributeError, match=rf"minibert.util has no {name}: ."):
            getattr(util, name)
        with pytest.raises(ImportError, match=rf"minibert.util has no {name}: ."):
            exec(f"from minibert.util import {name}")
    with pytest.raises(AttributeError, match=r"has no attribute 'cosine_sim'; the nearest names are .*cos_sim"):
        _ = util.cosine_sim
    assert not hasattr(util, "http_get")


def test_submodules_are_here_or_say_where_they_are() -> None:
    for line in (
        "from minibert.util.quantization import quantize_embeddings",
        "from minibert.cross_encoder import CrossEncoder",
        "from minibert.sparse_encoder import SparseEncoder",
        "from minibert.pipelines import pipeline",
        "from minibert import quantization; quantization.semantic_search_faiss",
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
    for home in (similarity, search, index):
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


# --- faiss and usearch ------------------------------------------------------------------------------------------------

CORPUS, QUERIES = (similarity.normalize_embeddings(RNG.standard_normal((n, 44)).astype(np.float32)) for n in (300, 7))
RANGES = np.stack([CORPUS.min(0), CORPUS.max(0)])
PRECISIONS = [
    *(("faiss", precision) for precision in ("float32", "uint8", "ubinary")),
    *(("usearch", precision) for precision in ("float32", "int8", "binary", "ubinary")),
]


def _search(library: str) -> tuple[Any, Any]:
    pytest.importorskip(library, reason=f"needs {library}")
    name = f"semantic_search_{library}"
    return getattr(index, name), getattr(their_quantization, name)


def stored_as(precision: str) -> dict[str, Any]:
    return {"corpus_precision": precision, "ranges": RANGES if "int8" in precision else None}


def _scores(hits: list[list[dict[str, Any]]]) -> list[list[float]]:
    return [[hit["score"] for hit in found] for found in hits]


@pytest.mark.parametrize(("library", "precision"), PRECISIONS)
@pytest.mark.parametrize("rescore", [True, False])
@pytest.mark.parametrize(("number", "top_k"), [(7, 3), (1, 3), (7, 400)])
def test_search_with_an_index_is_theirs(library: str, precision: str, rescore: bool, number: int, top_k: int) -> None:
    """Only the scores are compared, because many numbers of bits are equal, and their order is that of threads."""
    ours, other = _search(library)
    corpus = quantize_embeddings(CORPUS, precision, RANGES)
    options = {**stored_as(precision), "rescore": rescore, "top_k": top_k}
    found, seconds = ours(QUERIES[:number], corpus, **options)
    expected, _ = other(QUERIES[:number], corpus, **options)
    assert [len(hits) for hits in found] == [min(top_k, 300)] * number
    if not (rescore and precision in ("binary", "ubinary")):  # equal numbers of bits: other candidates are rescored
        np.testing.assert_allclose(_scores(found), _scores(expected), atol=1e-5)
    if precision == "float32":
        ids = [[[hit["corpus_id"] for hit in hits] for hits in one] for one in (found, expected)]
        assert ids[0] == ids[1]
    assert seconds >= 0


@pytest.mark.parametrize(("library", "precision"), PRECISIONS)
def test_rescored_scores_are_products_with_the_stored_vectors(library: str, precision: str) -> None:
    ours, _ = _search(library)
    corpus = quantize_embeddings(CORPUS, precision, RANGES)
    options = stored_as(precision)
    found, _, made = ours(QUERIES, corpus, output_index=True, rescore_multiplier=100, **options)
    again, _ = ours(QUERIES, corpus_index=made, rescore_multiplier=100, **options)
    assert found == again
    one, _ = ours(QUERIES[2], corpus_index=made, rescore_multiplier=100, **options)
    np.testing.assert_allclose(_scores(one), _scores(found[2:3]), atol=1e-6)
    if precision != "float32":
        steps = (RANGES[1] - RANGES[0]) / 255
        floats = {
            "uint8": lambda: corpus * steps + RANGES[0],
            "int8": lambda: (corpus.astype(np.float64) + 128) * steps + RANGES[0],
            "ubinary": lambda: (CORPUS > 0) * 1.0,
            "binary": lambda: (CORPUS > 0) * 1.0,
        }[precision]()
        expected = -np.sort(-(QUERIES @ floats.T), axis=1)[:, :10]
        np.testing.assert_allclose(_scores(found), expected, atol=1e-5)
        quantized, _ = ours(quantize_embeddings(QUERIES, precision, RANGES), corpus_index=made, **options)
        assert [len(hits) for hits in quantized] == [10] * 7
    empty, _ = ours(QUERIES, corpus[:0], **options)
    assert empty == [[]] * 7
    assert ours(QUERIES[:0], corpus, **options)[0] == []


@needs_fork
@pytest.mark.parametrize("library", ["faiss", "usearch"])
def test_an_index_after_a_fork(library: str) -> None:
    """faiss computes with OpenMP, whose threads do not exist in a forked child."""
    pytest.importorskip(library, reason=f"needs {library}")
    program = f"""
        import os, signal, time
        import numpy as np
        from minibert import index
        vectors = np.random.default_rng(0).standard_normal((4000, 64), dtype=np.float32)
        def search(exact):
            hits, _ = index.semantic_search_{library}(vectors[:200], vectors, exact=exact)
            return [one[0]["corpus_id"] for one in hits]
        expected = search(True)
        child = os.fork()
        if not child:
            os._exit(42 if search(True) == expected and len(search(False)) == 200 else 1)
        end = time.monotonic() + 60
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
            time.sleep(0.01)
        if not ended[0]:
            os.kill(child, signal.SIGKILL)
        print(os.waitstatus_to_exitcode(ended[1]))
        """
    assert printed(program) == "42\n"


@pytest.mark.parametrize("library", ["faiss", "usearch"])
def test_bad_searches_with_an_index(library: str) -> None:
    ours, _ = _search(library)
    table: Refused = {
        ("corpus_embeddings", ValueError): (None, CORPUS * np.nan),
        ("corpus_index", ValueError): (3,),
        ("corpus_precision", ValueError): ("float16",),
        ("corpus_precision", TypeError): ("ubinary",),
        ("top_k", ValueError): (0,),
        ("rescore_multiplier", ValueError): (0,),
        ("query_embeddings", ValueError): (QUERIES * np.inf, QUERIES[:, :9]),
        ("query_embeddings", TypeError): ([[1, 2]],),
    }
    check_refused(ours, {"query_embeddings": QUERIES, "corpus_embeddings": CORPUS}, table)
    check_refused(ours, {"query_embeddings": QUERIES}, {("corpus_index", TypeError): (3,)})


@pytest.mark.parametrize(("library", "package"), [("faiss", "faiss-cpu"), ("usearch", "usearch")])
def test_a_missing_library_is_named(library: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (library, f"{library}.index"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"needs {library}.*pip install {package}"):
        getattr(index, f"semantic_search_{library}")(QUERIES, CORPUS)
