"""Keywords, methods and attributes of sentence-transformers programs: accepted if they do not change a result."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer as Original
from sentence_transformers.sentence_transformer import evaluation
from sentence_transformers.util import SimilarityFunction as Theirs

from minibert import BertModel, SentenceTransformer
from minibert.vectors.similarity import SimilarityFunction
from tests.support.checkpoints import locate_minilm, sentence_model
from tests.support.refusals import Refused, check_refused
from tests.support.sentence_modules import MEAN, dense, model_with_modules, random_tensors

TEXTS = ["a b", "c d e"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(folder)


# --- the constructor --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"modules": None, "device": None, "trust_remote_code": False, "use_auth_token": None, "backend": "torch"},
        {"model_kwargs": {}, "processor_kwargs": {}, "tokenizer_kwargs": None, "config_kwargs": {}},
        {"model_kwargs": {"torch_dtype": torch.float32, "attn_implementation": "eager", "low_cpu_mem_usage": True}},
        {"model_kwargs": {"dtype": "float32", "device_map": "cpu", "add_pooling_layer": False}},
        {"tokenizer_kwargs": {"use_fast": True, "padding_side": "right", "do_lower_case": True}},
        {"processor_kwargs": {"clean_up_tokenization_spaces": True, "truncation_side": "right"}},
        {"config_kwargs": {"num_hidden_layers": 2, "output_attentions": True, "output_hidden_states": True}},
        {"model_kwargs": {"hidden_act": "gelu"}, "config_kwargs": {"use_cache": False}},
        {"config_kwargs": {"trust_remote_code": False}, "device": torch.device("cpu"), "local_files_only": True},
    ],
)
def test_keywords_that_change_nothing(folder: Path, model: SentenceTransformer, options: dict[str, Any]) -> None:
    np.testing.assert_array_equal(SentenceTransformer(folder, **options).encode(TEXTS), model.encode(TEXTS))


def test_keywords_that_would_change_the_vectors(folder: Path) -> None:
    load = partial(SentenceTransformer, folder)
    table: Refused = {
        ("modules", ValueError): ([3],),
        ("trust_remote_code", ValueError): ("yes",),
        ("model_kwargs", TypeError): (3, {"file_name": "model.onnx"}),
        ("model_kwargs", ValueError): ({"torch_dtype": torch.float16}, {"attn_implementation": "flash_attention_2"}),
        ("config_kwargs", TypeError): ({3: 4}, {"num_hidden_layer": 1}),
        ("config_kwargs", ValueError): ({"num_hidden_layers": 1}, {"hidden_act": "relu"}, {"vocab_size": 3}),
        ("processor_kwargs", ValueError): ({"truncation_side": "left"}, {"padding_side": "left"}, {"max_len": 7}),
        ("backend", ValueError): ("openvino", "onnx"),
        ("device", ValueError): ("cuda:0",),
        ("similarity_fn_name", ValueError): ("maxsim", "angle", 3),
        ("prompts", TypeError): ("other", {"query": 3}),
        ("prompts", ValueError): ("builtin",),
        ("default_prompt_name", ValueError): ("task",),
        ("truncate_dim", ValueError): (0,),
    }
    check_refused(load, {}, table)
    check_refused(load, {"token": "a"}, {("use_auth_token", TypeError): ("b",)})
    check_refused(load, {"processor_kwargs": {"a": 1}}, {("tokenizer_kwargs", TypeError): ({"a": 1},)})
    with pytest.raises(ValueError, match=r"Give encode\(\) a layer: encode\(texts, layers=2\)"):
        load(config_kwargs={"num_hidden_layers": 1})


@pytest.mark.parametrize("stored", [{}, {"sentence_bert_config": {"max_seq_length": 9}}])
@pytest.mark.parametrize("limit", [7, 10_000])
def test_the_limit_of_the_tokenizer_is_heeded_as_theirs(tmp_path: Path, limit: int, stored: dict[str, Any]) -> None:
    folder = sentence_model(tmp_path / "model", **stored)
    ours = SentenceTransformer(folder, processor_kwargs={"model_max_length": limit})
    theirs = Original(str(folder), device="cpu", processor_kwargs={"model_max_length": limit})
    most = ours.config.max_position_embeddings
    assert ours.max_seq_length == min(theirs.max_seq_length, most) == min(limit, most)
    for one in (ours, theirs):  # in both it is one limit, under two names
        one.tokenizer.model_max_length = 5
        assert one.max_seq_length == 5
        one.max_seq_length = 6
        assert one.tokenizer.model_max_length == 6
    long = "a b c d e a b c d e"
    with pytest.warns(UserWarning, match="The text has more than 6 tokens and was cut"):
        np.testing.assert_allclose(ours.encode(long), theirs.encode(long), atol=2e-6)


def test_the_similarity_function_as_an_enum(folder: Path, model: SentenceTransformer) -> None:
    for value in (SimilarityFunction.DOT_PRODUCT, SimilarityFunction.DOT, Theirs.DOT, "dot"):
        model.similarity_fn_name = value
        assert model.similarity_fn_name == "dot"
    assert SentenceTransformer(folder, similarity_fn_name=Theirs.MANHATTAN).similarity_fn_name == "manhattan"
    assert Theirs(SimilarityFunction.MANHATTAN) is Theirs.MANHATTAN  # so their evaluators take it
    assert str(SimilarityFunction.MANHATTAN) == str(Theirs.MANHATTAN)
    model.similarity_fn_name = None
    assert model.similarity_fn_name == "cosine"
    with pytest.raises(ValueError, match="similarity_fn_name="):
        model.similarity_fn_name = Theirs.MAXSIM


# --- encode -----------------------------------------------------------------------------------------------------------


def test_arguments_of_encode_that_change_nothing(model: SentenceTransformer) -> None:
    expected = model.encode(TEXTS)
    pool = model.start_multi_process_pool(["cpu"] * 4)
    for options in (
        {"precision": None, "pool": None, "chunk_size": None, "task": None, "processing_kwargs": {}},
        {"device": "cpu"},
        {"device": ["cpu", "cpu"]},
        {"pool": pool, "chunk_size": 3},
    ):
        np.testing.assert_array_equal(model.encode(inputs=TEXTS, **options), expected)
    np.testing.assert_array_equal(model.encode_multi_process(TEXTS, pool), expected)
    model.stop_multi_process_pool(pool)
    with pytest.raises(ValueError, match="device="):
        model.start_multi_process_pool(["cuda:0"])


def test_prompts_that_are_set_are_all_the_prompts(model: SentenceTransformer) -> None:
    model.prompts = {"passage": "passage: "}
    np.testing.assert_array_equal(model.encode_document(TEXTS), model.encode(TEXTS, prompt="passage: "))
    np.testing.assert_array_equal(model.encode_query(TEXTS), model.encode(TEXTS))


def test_vectors_are_cut_inside_a_block(model: SentenceTransformer) -> None:
    with model.truncate_embeddings(5):
        assert model.encode(TEXTS).shape == (2, 5)
        with pytest.raises(ValueError, match="truncate_dim=0"), model.truncate_embeddings(0):
            pass
        assert model.get_embedding_dimension() == 5
    with pytest.raises(RuntimeError), model.truncate_embeddings(5):
        raise RuntimeError
    assert model.truncate_dim is None


# --- the parts --------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_model_beside_theirs(tmp_path: Path) -> None:
    steps = [MEAN, dense(24, 10), ("LayerNorm", {"dimension": 10}, random_tensors(norm_weight=(10,), norm_bias=(10,)))]
    path = model_with_modules(tmp_path / "model", [*steps, ("Normalize", {}, None)], new=True)
    ours, theirs = SentenceTransformer(path), Original(str(path), device="cpu")
    assert len(ours) == len(theirs) == 5
    assert bool(ours)
    for one, other in zip(ours, theirs, strict=True):
        assert repr(one).partition("(")[0] == type(other).__name__
    assert ours[0].auto_model is ours[0].model is ours.model
    assert isinstance(ours[0].auto_model, BertModel)
    assert ours[0].tokenizer is ours.tokenizer
    assert ours[0].max_seq_length == ours.max_seq_length == theirs[0].max_seq_length
    assert ours[0].get_word_embedding_dimension() == theirs[0].get_embedding_dimension() == 24
    for name in ("pooling_mode", "include_prompt"):
        assert getattr(ours[1], name) == getattr(theirs[1], name), name
    assert ours[1].get_config_dict() == theirs[1].get_config_dict()
    assert ours.config is ours.model.config
    with pytest.raises(IndexError):
        ours[5]


def test_what_would_be_lost_on_a_part_is_refused(model: SentenceTransformer) -> None:
    of_transformer = [(model[0], name) for name in ("auto_model", "max_seq_length", "query_length")]
    for part, name in ((model[1], "pooling_mode"), (model[1], "pooling_mode_cls_token"), *of_transformer):
        with pytest.raises(AttributeError, match=name):
            setattr(part, name, True)


def test_features_are_made_from_texts_and_not_taken(model: SentenceTransformer, folder: Path) -> None:
    theirs = Original(str(folder), device="cpu").preprocess(TEXTS)
    for features in (model.preprocess(TEXTS), model.tokenize(TEXTS)):
        np.testing.assert_array_equal(features["input_ids"], theirs["input_ids"])


def test_whether_a_prompt_counts_can_be_set(model: SentenceTransformer, folder: Path) -> None:
    theirs = Original(str(folder), device="cpu")
    for one in (model, theirs):
        one.set_pooling_include_prompt(False)
        assert one[1].include_prompt is False
    np.testing.assert_allclose(model.encode(TEXTS, prompt="a c: "), theirs.encode(TEXTS, prompt="a c: "), atol=2e-6)
    with pytest.raises(TypeError, match="include_prompt=3"):
        model.set_pooling_include_prompt(3)


# --- evaluators and cards ---------------------------------------------------------------------------------------------


def test_evaluators_of_sentence_transformers_give_the_same_scores() -> None:
    first, second = ["A cat sleeps.", "A cat sleeps.", "Rain."], ["A kitten naps.", "Stocks fell.", "It rains."]
    ours, theirs = SentenceTransformer(), Original(str(locate_minilm()), device="cpu")
    evaluator = evaluation.EmbeddingSimilarityEvaluator(first, second, [0.9, 0.1, 0.8], name="pairs")
    expected = evaluator(theirs)
    assert evaluator(ours) == pytest.approx(expected)
    assert ours.model_card_data.evaluations["pairs"] == pytest.approx(expected)
    triplets = evaluation.TripletEvaluator(["A cat sleeps."], ["A kitten naps."], ["Stocks fell."])
    assert triplets(ours) == triplets(theirs) == {"cosine_accuracy": 1.0}


def test_the_data_of_the_model_card(folder: Path, model: SentenceTransformer) -> None:
    model.model_card_data.language = "en"  # any attribute
    given = SimpleNamespace()
    assert SentenceTransformer(folder, model_card_data=given).model_card_data is given


# --- to files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mean", "several modes", "modules", "without biases"])
def test_a_saved_model_is_the_same_model(tmp_path: Path, kind: str) -> None:
    several = ("Pooling", {"embedding_dimension": 24, "pooling_mode": ["cls", "mean"], "include_prompt": False}, None)
    norm = ("LayerNorm", {"dimension": 10}, random_tensors(norm_weight=(10,), norm_bias=(10,)))
    steps: list[Any] = {
        "mean": [MEAN],
        "several modes": [several, dense(48, 48, use_residual=True)],
        "modules": [MEAN, dense(24, 10, use_residual=True), norm, ("Normalize", {}, None), ("Dropout", {}, None)],
        "without biases": [MEAN, dense(24, 24, "torch.nn.modules.linear.Identity", bias=False)],
    }[kind]
    model = SentenceTransformer(model_with_modules(tmp_path / "model", steps, new=True), prompts={"query": "a: "})
    model.max_seq_length, model.similarity_fn_name, model.truncate_dim = 9, "dot", 8
    model.default_prompt_name = "query"
    expected = model.encode(TEXTS)
    model.save_pretrained(tmp_path / "saved", create_model_card=True, safe_serialization=True)
    model.save(str(tmp_path / "saved"))  # a second time, over the first
    again, theirs = SentenceTransformer(tmp_path / "saved"), Original(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_array_equal(again.encode(TEXTS), expected)
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=2e-6)
    for one in (again, theirs):
        assert (one.max_seq_length, one.similarity_fn_name, one.truncate_dim) == (9, "dot", 8)
        assert one.prompts == {"query": "a: ", "document": ""}
        assert one.default_prompt_name == "query"
    np.testing.assert_allclose(again.encode(TEXTS, prompt="c d: "), theirs.encode(TEXTS, prompt="c d: "), atol=2e-6)


def test_saving_over_a_model_that_stops_leaves_no_mixture(
    short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_model.save_pretrained(tmp_path)

    def stop(*arguments: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(type(short_model.tokenizer), "save_pretrained", stop)
    with pytest.raises(OSError, match="the disk is full"):
        short_model.save_pretrained(tmp_path)
    assert not (tmp_path / "modules.json").exists()


def test_a_plain_bert_is_saved_with_its_mean_pooling(short_model: SentenceTransformer, tmp_path: Path) -> None:
    short_model.save_pretrained(tmp_path / "deep" / "model")
    again = SentenceTransformer(tmp_path / "deep" / "model")  # without the warning that modules.json is missing
    np.testing.assert_array_equal(again.encode(TEXTS), short_model.encode(TEXTS))


def test_what_saving_refuses(model: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="safe_serialization="):
        model.save_pretrained(tmp_path, safe_serialization=False)
    for folder, error in ((3, TypeError), (b"x", TypeError), ("  ", OSError)):
        with pytest.raises(error, match="path="):
            model.save_pretrained(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        model.save_pretrained(tmp_path / "file")
