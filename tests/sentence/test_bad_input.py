"""Bad input of `CrossEncoder` and `SparseEncoder`: a typed error that says what was given and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import CrossEncoder, ModelFormatError, SparseEncoder, SparseVectors
from minibert.bert import heads
from minibert.sentence import sparse_encoder as splade
from tests.support.head_models import add_json
from tests.support.refusals import Refused, check_refused
from tests.support.sentence_heads import (
    CLASSIFY,
    FILL_MASK,
    MASKED,
    MLM,
    SEQUENCE,
    SPLADE,
    TRANSFORMER,
    model_folder,
    modules,
)

PAIR = [("a cat", "the dog")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bad")
    model_folder(made / "cross", SEQUENCE, num_labels=1)
    model_folder(made / "three", SEQUENCE, num_labels=3)
    model_folder(made / "sparse", MASKED)
    return made


@pytest.fixture(scope="module")
def cross(home: Path) -> CrossEncoder:
    return CrossEncoder(home / "cross")


@pytest.fixture(scope="module")
def three(home: Path) -> CrossEncoder:
    return CrossEncoder(home / "three")


@pytest.fixture(scope="module")
def sparse(home: Path) -> SparseEncoder:
    return SparseEncoder(home / "sparse")


PREDICT: Refused = {
    ("inputs", TypeError): (
        *("a cat", None, 7, {"a": "b"}, iter(PAIR), [("a", "b"), "c"]),
        *([("a", None)], [("a", float("nan"))], [(b"a", "b")], np.zeros((2, 2))),
    ),
    ("inputs", ValueError): (["a"], ["a", "b", "c"], [("a", "b"), ("c",)], [("a", "\ud800")]),
    ("sentences", TypeError): (PAIR,),
    ("batch_size", ValueError): (0,),
    ("prompt_name", ValueError): ("query",),
    ("truncation", ValueError): ("split", None),
    ("activation_fn", TypeError): (3, dict),
    ("activation_fn", ValueError): ("softplus", lambda x: 1 / 0, lambda x: 3.0, lambda x: x * np.nan),
    ("device", ValueError): ("cuda",),
    ("processing_kwargs", ValueError): ({"text": {}},),
}
RANK: Refused = {
    ("query", TypeError): (None, ["q"]),
    ("documents", TypeError): ("a", None, ["a", None]),
    ("documents", ValueError): (["\udfff"],),
    ("top_k", ValueError): (0, -1),
    ("maximum", TypeError): (3,),
}
ENCODE: Refused = {
    ("inputs", TypeError): (None, [1]),
    ("inputs", ValueError): (["a", "\udfff"],),
    ("sentences", TypeError): (["a"],),
    ("max_active_dims", ValueError): (0,),
    ("truncation", ValueError): ("cut",),
    ("stride", ValueError): (3,),
    ("prompt_name", ValueError): ("passage",),
    ("device", ValueError): ("cuda:0",),
}
LOAD: Refused = {
    ("max_length", TypeError): ("long",),
    ("max_length", ValueError): (0,),
    ("max_len", TypeError): (3,),
    ("prompts", TypeError): (["a"],),
    ("default_prompt_name", ValueError): ("query",),
    ("num_labels", ValueError): (2, 0),
    ("activation_fn", ValueError): ("Softmax",),
    ("device", ValueError): ("mps",),
    ("backend", ValueError): ("onnx",),
    ("modules", ValueError): ([1],),
    ("model_kwargs", ValueError): ({"torch_dtype": "float16"},),
    ("config_kwargs", ValueError): ({"num_hidden_layers": 1},),
    ("processor_kwargs", ValueError): ({"truncation_side": "left"},),
}


def test_wrong_arguments(home: Path, cross: CrossEncoder, sparse: SparseEncoder) -> None:
    check_refused(cross.predict, {"inputs": PAIR}, PREDICT)
    check_refused(cross.predict, {"inputs": PAIR, "activation_fn": "Tanh"}, {("activation_fct", TypeError): ("Tanh",)})
    check_refused(cross.rank, {"query": "q", "documents": ["a"]}, RANK)
    check_refused(sparse.encode, {"inputs": ["a"]}, ENCODE)
    check_refused(partial(CrossEncoder, home / "cross"), {}, LOAD)
    old = {("automodel_args", TypeError): ({},)}
    check_refused(partial(CrossEncoder, home / "cross"), {"model_kwargs": {"dtype": "float32"}}, old)


def test_arguments_that_do_not_fit_the_model(home: Path, three: CrossEncoder) -> None:
    with pytest.raises(ValueError, match="rank needs a model with one label, and this one has 3"):
        three.rank("q", ["a"])
    for options, name in (({"config_kwargs": {"num_labels": 4}}, "num_labels=4"), ({"max_length": 65}, "3 to 64")):
        with pytest.raises(ValueError, match=name):
            CrossEncoder(home / "cross", **options)
    for kind in (CrossEncoder, SparseEncoder):
        with pytest.raises(TypeError, match=r"needs a folder or a hub id; it does not have a default model"):
            kind()


def _files(**files: Any) -> Callable[[Path], object]:
    """Return a function that writes JSON files into a folder; "__" is a folder."""
    return lambda folder: [add_json(folder / f"{name.replace('__', '/')}.json", value) for name, value in files.items()]


def _pooling(**config: Any) -> Callable[[Path], object]:
    return _files(modules=modules(MLM, SPLADE), **{"1_SpladePooling__config": config})


FOLDERS: list[tuple[Any, str, Callable[[Path], object], str]] = [
    (CrossEncoder, MASKED, lambda folder: None, "classifier.weight, .*are missing, and minibert never makes random"),
    (SparseEncoder, SEQUENCE, lambda folder: None, "it is not a SPLADE model"),
    (SparseEncoder, MASKED, _files(config={"architectures": ["GteModel"]}), "names 'GteModel': it is not a SPLADE"),
    (SparseEncoder, MASKED, _files(config={"architectures": None}), "names no architectures: it is not a SPLADE model"),
    (SparseEncoder, SEQUENCE, _files(config={"architectures": [MASKED]}), "cannot be loaded as BertForMaskedLM"),
    (
        CrossEncoder,
        SEQUENCE,
        _files(modules=modules(TRANSFORMER, "sentence_transformers.models.Pooling")),
        "lists Transformer, Pooling; CrossEncoder implements Transformer. SentenceTransformer loads it",
    ),
    (CrossEncoder, SEQUENCE, _files(modules=modules(MLM, SPLADE)), "SparseEncoder loads it"),
    (CrossEncoder, SEQUENCE, _files(modules=modules(TRANSFORMER)), "transformer_task='feature-extraction'"),
    (
        CrossEncoder,
        SEQUENCE,
        _files(modules=modules(TRANSFORMER), sentence_bert_config={**CLASSIFY, "module_output_name": "x"}),
        "module_output_name='x'; expected 'scores'",
    ),
    (SparseEncoder, MASKED, _files(modules=modules(TRANSFORMER)), "MLMTransformer and then SpladePooling"),
    (SparseEncoder, MASKED, _pooling(pooling_strategy="mean"), "pooling_strategy='mean'; expected one of max, sum"),
    (SparseEncoder, MASKED, _pooling(activation_function=["relu"]), "expected one of relu, log1p_relu"),
    (SparseEncoder, MASKED, _pooling(embedding_dimension=5), "embedding_dimension=5; expected vocab_size"),
    (
        SparseEncoder,
        MASKED,
        _files(
            modules=modules(TRANSFORMER, SPLADE),
            sentence_bert_config=FILL_MASK,
            config_sentence_transformers={"max_active_dims": 0},
            **{"1_SpladePooling__config": {}},
        ),
        "config_sentence_transformers.json has max_active_dims=0",
    ),
]


@pytest.mark.parametrize(("kind", "head", "spoil", "message"), FOLDERS, ids=range(len(FOLDERS)))
def test_folders(tmp_path: Path, kind: Any, head: str, spoil: Callable[[Path], object], message: str) -> None:
    folder = model_folder(tmp_path / "model", head)
    spoil(folder)
    with pytest.raises(ModelFormatError, match=message):
        kind(folder)


def test_vectors_that_do_not_fit(sparse: SparseEncoder) -> None:
    vectors = sparse.encode(["a", "b"])
    for call, error, message in (
        (lambda: sparse.decode(vectors, top_k=0), ValueError, "top_k=0"),
        (lambda: sparse.decode("a"), TypeError, "embeddings holds"),
        (lambda: sparse.decode(np.zeros(3)), ValueError, "embeddings has vectors of length 3"),
        (lambda: sparse.decode(np.zeros((1, 1, 3))), ValueError, r"expected \(B, V\)"),
        (lambda: sparse.sparsity(None), TypeError, "embeddings holds"),
        (lambda: sparse.similarity(vectors, np.zeros((2, 3))), ValueError, "with the same H"),
        (lambda: sparse.similarity_pairwise(vectors, vectors[:1]), ValueError, "expected the same shape"),
        (lambda: vectors[2], IndexError, "ind"),
        (lambda: vectors[0, 1], IndexError, "ind"),
        (lambda: vectors[None], TypeError, r"vectors\[i\].todense\(\)\[j\] is a number"),
        (lambda: vectors[0][0], TypeError, "index=0"),
        (lambda: vectors["a"], IndexError, "ind"),
        *(
            (lambda given=given: SparseVectors(*given), error, name)
            for given, error, name in (
                (((1, 3), np.ones(1), np.array([3]), np.array([0, 1])), ValueError, "below V"),
                (((1, 3), np.ones(1), np.array([-1]), np.array([0, 1])), ValueError, "below V"),
                (((1, 3), np.ones(1), np.array([0]), np.array([0, 2])), ValueError, "indptr"),
                (((2, 3), np.ones(1), np.array([0]), np.array([0, 2, 1])), ValueError, "indptr"),
                (((1, 3), np.ones(2), np.array([1, 1]), np.array([0, 2])), ValueError, "increasing"),
                (((3,), [1.0], np.array([1]), np.array([0, 1])), TypeError, "data"),
                (((3,), np.ones(1), np.ones(1), np.array([0, 1])), TypeError, "indices"),
                (((1.0, 3), np.ones(0), np.ones(0, int), np.zeros(2, int)), ValueError, "shape="),
                (((1, "3"), np.ones(0), np.ones(0, int), np.zeros(2, int)), ValueError, "shape="),
                (((-1, 3), np.ones(0), np.ones(0, int), np.zeros(1, int)), ValueError, "shape="),
            )
        ),
        (lambda: setattr(sparse, "similarity_fn_name", "maxsim"), ValueError, "similarity_fn_name="),
        (lambda: sparse.save_pretrained("x", safe_serialization=False), ValueError, "safe_serialization="),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity(
    cross: CrossEncoder, sparse: SparseEncoder, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """A loaded weight is finite, so only products that are too large give these."""
    for name in ("of_first_token", "masked_lm"):
        compute = getattr(heads, name)
        monkeypatch.setattr(heads, name, lambda *given, compute=compute: np.full_like(compute(*given), value))
    message = "the model computes NaN or infinity"
    with pytest.raises(ModelFormatError, match=message):
        cross.predict(PAIR)
    message = r"the model computes NaN or infinity for inputs\[1\]"
    for strategy in ("sum", "max"):
        sparse.pooling = splade.SpladePooling(strategy)
        with pytest.raises(ModelFormatError, match=message):  # the longest text is computed first
            sparse.encode(["a", "a longer text"])


def test_a_custom_activation_cannot_be_saved(home: Path, tmp_path: Path) -> None:
    model = CrossEncoder(home / "cross", activation_fn=lambda x: x)
    with pytest.raises(ValueError, match="cannot be saved"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    assert json.loads((home / "cross" / "config.json").read_text())["architectures"] == [SEQUENCE]
