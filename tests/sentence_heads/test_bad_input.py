"""Bad input of `CrossEncoder` and `SparseEncoder`: a typed error that says what was given and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import CrossEncoder, ModelFormatError, SparseEncoder, SparseVectors
from minibert.bert import heads
from minibert.sentence import pooling as splade
from tests.support.sentence_heads import (
    CLASSIFY,
    FILL_MASK,
    MASKED,
    MLM,
    SEQUENCE,
    SPLADE,
    TRANSFORMER,
    add_json,
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


PREDICT: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ("a cat", {}, TypeError, r"inputs is str 'a cat'; expected a pair of texts"),
    (None, {}, TypeError, "inputs is a NoneType"),
    (7, {}, TypeError, "inputs is a int"),
    ({"a": "b"}, {}, TypeError, "inputs is a dict"),
    (iter(PAIR), {}, TypeError, "Convert other iterables to a list"),
    (["a"], {}, ValueError, r"inputs has 1 parts, \['a'\]; expected a pair of texts"),
    (["a", "b", "c"], {}, ValueError, "inputs has 3 parts.*Give several pairs as a list of pairs"),
    ([("a", "b"), "c"], {}, TypeError, r"inputs\[1\] is str 'c'; expected a pair"),
    ([("a", "b"), ("c",)], {}, ValueError, r"inputs\[1\] has 1 parts"),
    ([("a", None)], {}, TypeError, r"inputs\[0\]\[1\] is NoneType None; expected a str. Leave missing texts out"),
    ([("a", float("nan"))], {}, TypeError, r"inputs\[0\]\[1\] is float nan; .* replace them by ''"),
    ([(b"a", "b")], {}, TypeError, r"inputs\[0\]\[0\] is bytes"),
    ([("a", "\ud800")], {}, ValueError, r"inputs\[0\]\[1\] holds half a character"),
    (np.zeros((2, 2)), {}, TypeError, r"inputs\[0\]\[0\] is float"),
    (PAIR, {"sentences": PAIR}, TypeError, "sentences= is the old name of inputs="),
    (PAIR, {"batch_size": 0}, ValueError, "batch_size=0; expected an int of at least 1"),
    (PAIR, {"batch_size": "8"}, TypeError, "batch_size='8'"),
    (PAIR, {"prompt_name": "query"}, ValueError, "prompt_name='query'; this model has none"),
    (PAIR, {"prompt": 3}, TypeError, "prompt is a int"),
    (PAIR, {"truncation": "split"}, ValueError, "truncation='split' is not for pairs"),
    (PAIR, {"truncation": None}, ValueError, "truncation=None; expected one of 'warn', 'error', 'silent'"),
    (PAIR, {"activation_fn": "softplus"}, ValueError, "activation_fn='softplus'; expected one of 'Identity', 'Tanh'"),
    (PAIR, {"activation_fn": 3}, TypeError, "activation_fn=3; expected one of"),
    (PAIR, {"activation_fn": dict}, TypeError, "is a class; expected an object or a function"),
    (PAIR, {"activation_fn": lambda x: 1 / 0}, ValueError, "activation_fn <lambda> failed .* ZeroDivisionError"),
    (PAIR, {"activation_fn": lambda x: 3.0}, ValueError, r"returned array\(3.*for logits of shape \(1, 1\)"),
    (PAIR, {"activation_fn": "Tanh", "activation_fct": "Tanh"}, TypeError, "activation_fct= is the old name"),
    (PAIR, {"device": "cuda"}, ValueError, "minibert runs on the CPU"),
    (PAIR, {"pool": {}}, TypeError, "expected None, or the result of start_multi_process_pool"),
    (PAIR, {"processing_kwargs": {"text": {}}}, ValueError, "set max_seq_length of the model"),
]


@pytest.mark.parametrize(("inputs", "options", "error", "message"), PREDICT, ids=range(len(PREDICT)))
def test_predict(
    cross: CrossEncoder, inputs: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cross.predict(inputs, **options)


RANK: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((None, ["a"]), {}, TypeError, "query is a NoneType; expected a str"),
    ((["q"], ["a"]), {}, TypeError, "For several queries call rank often"),
    (("q", "a"), {}, TypeError, "documents is one str"),
    (("q", None), {}, TypeError, "documents is a NoneType"),
    (("q", ["a", None]), {}, TypeError, r"documents\[1\] is NoneType"),
    (("q", ["\udfff"]), {}, ValueError, r"documents\[0\] holds half a character"),
    (("q", ["a"]), {"activation_fn": lambda x: x * np.nan}, ValueError, "activation_fn <lambda> returned"),
    (("q", ["a"]), {"top_k": 0}, ValueError, "top_k=0; expected an int of at least 1, or None for all"),
    (("q", ["a"]), {"top_k": -1}, ValueError, "top_k=-1"),
    (("q", ["a"]), {"top_k": True}, TypeError, "top_k=True"),
]


@pytest.mark.parametrize(("given", "options", "error", "message"), RANK, ids=range(len(RANK)))
def test_rank(
    cross: CrossEncoder, given: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cross.rank(*given, **options)


def test_rank_with_several_labels(three: CrossEncoder) -> None:
    with pytest.raises(ValueError, match="rank needs a model with one label, and this one has 3"):
        three.rank("q", ["a"])


LOAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_labels": 2}, ValueError, "num_labels=2, but the head of .* has 1. Leave it out"),
    ({"num_labels": 0}, ValueError, "num_labels=0"),
    ({"config_kwargs": {"num_labels": 4}}, ValueError, "num_labels=4, but"),
    ({"max_length": 65}, ValueError, "max_seq_length=65; expected an int, 3 to 64"),
    ({"max_length": 0}, ValueError, "max_length=0"),
    ({"max_length": "long"}, TypeError, "max_length='long'"),
    ({"activation_fn": "Softmax"}, ValueError, "activation_fn='Softmax'"),
    ({"prompts": ["a"]}, TypeError, "prompts must hold prompts as a mapping"),
    ({"default_prompt_name": "query"}, ValueError, "default_prompt_name='query', which is not a prompt"),
    ({"device": "mps"}, ValueError, "minibert runs on the CPU"),
    ({"backend": "onnx"}, ValueError, "runs other files of the model"),
    ({"modules": [1]}, ValueError, r"CrossEncoder\(modules=\[1\]\)"),
    ({"model_kwargs": {"torch_dtype": "float16"}}, ValueError, "model_kwargs of CrossEncoder"),
    ({"config_kwargs": {"num_hidden_layers": 1}}, ValueError, "config_kwargs of CrossEncoder.*Save fewer layers"),
    ({"processor_kwargs": {"truncation_side": "left"}}, ValueError, "processor_kwargs of CrossEncoder"),
    ({"max_len": 3}, TypeError, "max_len"),
    ({"automodel_args": {}, "model_kwargs": {"dtype": "float32"}}, TypeError, "automodel_args= is the old name"),
]


@pytest.mark.parametrize(("options", "error", "message"), LOAD, ids=range(len(LOAD)))
def test_load(home: Path, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CrossEncoder(home / "cross", **options)


@pytest.mark.parametrize("kind", [CrossEncoder, SparseEncoder])
def test_a_model_must_be_named(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"needs a folder or a hub id; it does not have a default model"):
        kind()


def _files(**files: Any) -> Callable[[Path], object]:
    """Return a function that writes JSON files into a folder; "__" is a folder."""
    return lambda folder: [add_json(folder / f"{name.replace('__', '/')}.json", value) for name, value in files.items()]


def _pooling(**config: Any) -> Callable[[Path], object]:
    return _files(modules=modules(MLM, SPLADE), **{"1_SpladePooling__config": config})


FOLDERS: list[tuple[Any, str, Callable[[Path], object], str]] = [
    (CrossEncoder, MASKED, lambda folder: None, "classifier.weight, .*are missing, and minibert never makes random"),
    (SparseEncoder, SEQUENCE, lambda folder: None, "it is not a SPLADE model, whose architecture ends in ForMaskedLM"),
    (SparseEncoder, MASKED, _files(config={"architectures": None}), "names no architectures: it is not a SPLADE model"),
    (
        SparseEncoder,
        SEQUENCE,
        _files(config={"architectures": [MASKED]}),
        "cannot be loaded as BertForMaskedLM",
    ),
    (
        CrossEncoder,
        SEQUENCE,
        _files(modules=modules(TRANSFORMER, "sentence_transformers.models.Pooling")),
        "lists Transformer, Pooling; CrossEncoder implements Transformer. SentenceTransformer loads it",
    ),
    (CrossEncoder, SEQUENCE, _files(modules=modules(MLM, SPLADE)), "SparseEncoder loads it"),
    (CrossEncoder, SEQUENCE, _files(modules=[]), "modules.json lists nothing"),
    (CrossEncoder, SEQUENCE, _files(modules=modules(TRANSFORMER)), "transformer_task='feature-extraction'"),
    (
        CrossEncoder,
        SEQUENCE,
        _files(modules=modules(TRANSFORMER), sentence_bert_config={**CLASSIFY, "module_output_name": "x"}),
        "module_output_name='x' is not implemented here; expected 'scores'",
    ),
    (
        SparseEncoder,
        MASKED,
        _files(modules=modules(TRANSFORMER)),
        "MLMTransformer and then SpladePooling",
    ),
    (SparseEncoder, MASKED, _files(modules=modules(TRANSFORMER, SPLADE)), "transformer_task='feature-extraction'"),
    (SparseEncoder, MASKED, _files(modules=modules("custom.Thing", SPLADE)), "code of the repository"),
    (SparseEncoder, MASKED, _pooling(pooling_strategy="mean"), "pooling_strategy='mean'; expected one of max, sum"),
    (SparseEncoder, MASKED, _pooling(activation_function=["relu"]), "expected one of relu, log1p_relu"),
    (SparseEncoder, MASKED, _pooling(embedding_dimension=5), "embedding_dimension=5, but the vocabulary has"),
    (SparseEncoder, MASKED, _files(modules=modules(MLM, SPLADE)), "has no 1_SpladePooling/config.json"),
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


ENCODE: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (None, {}, TypeError, "inputs is a NoneType"),
    ([1], {}, TypeError, r"inputs\[0\] is int 1; expected a str"),
    (["a", "\udfff"], {}, ValueError, r"inputs\[1\] holds half a character"),
    (["a"], {"max_active_dims": 0}, ValueError, "max_active_dims=0; expected an int of at least 1, or None"),
    (["a"], {"max_active_dims": 2.5}, TypeError, "max_active_dims=2.5"),
    (["a"], {"truncation": "cut"}, ValueError, "truncation='cut'; expected one of"),
    (["a"], {"stride": 3}, ValueError, "needs truncation='split'"),
    (["a"], {"batch_size": -1}, ValueError, "batch_size=-1"),
    (["a"], {"prompt_name": "passage"}, ValueError, "prompt_name='passage'; this model has 'query', 'document'"),
    (["a"], {"sentences": ["a"]}, TypeError, "sentences= is the old name"),
    (["a"], {"device": "cuda:0"}, ValueError, "minibert runs on the CPU"),
]


@pytest.mark.parametrize(("inputs", "options", "error", "message"), ENCODE, ids=range(len(ENCODE)))
def test_encode(
    sparse: SparseEncoder, inputs: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        sparse.encode(inputs, **options)


def test_vectors_that_do_not_fit(sparse: SparseEncoder) -> None:
    vectors = sparse.encode(["a", "b"])
    for call, error, message in (
        (lambda: sparse.decode(vectors, top_k=0), ValueError, "top_k=0"),
        (lambda: sparse.decode("a"), TypeError, "embeddings holds"),
        (lambda: sparse.decode(np.zeros(3)), ValueError, "embeddings has vectors of length 3; this model has"),
        (lambda: sparse.decode(np.zeros((1, 1, 3))), ValueError, r"expected \(B, V\)"),
        (lambda: sparse.intersection(vectors, vectors), ValueError, r"embeddings_1 has shape \(2, "),
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
        (lambda: setattr(sparse, "similarity_fn_name", "maxsim"), ValueError, "does not have"),
        (lambda: sparse.save_pretrained("x", safe_serialization=False), ValueError, "writes a pickle"),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity(
    cross: CrossEncoder, sparse: SparseEncoder, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """A loaded weight is finite, so only products that are too large give these."""
    for name in ("sequence_classification", "masked_lm"):
        compute = getattr(heads, name)
        monkeypatch.setattr(heads, name, lambda *given, compute=compute: np.full_like(compute(*given), value))
    message = "the model computes NaN or infinity.*too large, or damaged"
    with pytest.raises(ModelFormatError, match=message):
        cross.predict(PAIR)
    message = r"the model computes NaN or infinity for inputs\[1\].*too large, or damaged"
    for strategy in ("sum", "max"):
        sparse.pooling = splade.SpladePooling(strategy)
        with pytest.raises(ModelFormatError, match=message):  # the longest text is computed first
            sparse.encode(["a", "a longer text"])


def test_a_custom_activation_cannot_be_saved(home: Path, tmp_path: Path) -> None:
    model = CrossEncoder(home / "cross", activation_fn=lambda x: x)
    with pytest.raises(ValueError, match="does not have a name that files can hold"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    assert json.loads((home / "cross" / "config.json").read_text())["architectures"] == [SEQUENCE]
