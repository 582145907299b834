"""`CrossEncoder` against sentence-transformers: the same scores and orders; the same bits alone and in any batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from minibert import BertForSequenceClassification, CrossEncoder
from tests.support.report import REPORT
from tests.support.sentence_heads import CLASSIFY, SEQUENCE, TRANSFORMER, model_folder, modules, texts, theirs
from tests.support.text_data import VARIABLE

REAL = bool(os.environ.get(VARIABLE))
IDENTITY = "torch.nn.modules.linear.Identity"
ODD = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 37, "type_vocab_size": 16}
SHAPES: dict[str, dict[str, Any]] = {
    "one label": {"num_labels": 1, "scale": 8.0},
    "three labels": {"num_labels": 3, "scale": 4.0},
    "odd sizes": {"num_labels": 1, "scale": 2.0, **ODD},
    "one layer, gelu_new": {"num_labels": 2, "num_hidden_layers": 1, "hidden_act": "gelu_new"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("cross")
    return {
        name: model_folder(home / str(i), SEQUENCE, real=REAL, **fields)
        for i, (name, fields) in enumerate(SHAPES.items())
    }


@pytest.fixture(scope="module")
def one(folders: dict[str, Path]) -> CrossEncoder:
    return CrossEncoder(folders["one label"])


def pairs(count: int) -> list[tuple[str, str]]:
    found = texts(count)
    return [*zip(found, reversed(found), strict=True), ("", ""), ("a", ""), ("", "a cat"), (found[0], found[0])]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", [None, "Identity"])
def test_scores_of_sentence_transformers(folders: dict[str, Path], shape: str, activation: str | None) -> None:
    ours, given = CrossEncoder(folders[shape]), pairs(60)
    other = None if activation is None else torch.nn.Identity()
    expected = theirs("CrossEncoder", folders[shape]).predict(given, activation_fn=other)
    found = ours.predict(given, activation_fn=activation, truncation="silent")
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert len(np.unique(expected.round(5))) > 40
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    worst = np.abs(found - expected).max()
    REPORT.append(f"CrossEncoder, {shape}, {activation}: {len(given)} pairs, at most {worst:.1e} from theirs")


def test_softmax_of_several_labels(folders: dict[str, Path]) -> None:
    given = pairs(20)
    expected = theirs("CrossEncoder", folders["three labels"]).predict(given, apply_softmax=True)
    found = CrossEncoder(folders["three labels"]).predict(given, apply_softmax=True, truncation="silent")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    single = CrossEncoder(folders["one label"])
    same = [single.predict(given, apply_softmax=on, truncation="silent").tobytes() for on in (True, False)]
    assert same[0] == same[1]


def test_rank_of_a_shuffled_column(one: CrossEncoder) -> None:
    """sentence-transformers 6.2 takes the texts of a column by pandas' index: those of other rows."""
    documents = ["A cat sleeps.", "Stocks fell.", "A kitten naps on the sofa.", "Rain."]
    column = pandas.Series(documents).iloc[[2, 0, 3, 1]]
    shuffled = [documents[i] for i in (2, 0, 3, 1)]
    assert one.rank("sleep", column, return_documents=True) == one.rank("sleep", shuffled, return_documents=True)


def test_equal_scores_keep_the_order_of_the_documents(one: CrossEncoder) -> None:
    found = one.rank("a", ["b", "cat", "b", "cat", "b"])
    best = found[0]["corpus_id"]
    expected = [0, 2, 4, 1, 3] if best == 0 else [1, 3, 0, 2, 4]
    assert [one["corpus_id"] for one in found] == expected
    assert one.rank("a", []) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_a_pair_has_the_same_bits_alone_and_in_any_batch(folders: dict[str, Path], threads: int) -> None:
    for shape in ("one label", "three labels"):
        model, given = CrossEncoder(folders[shape], num_threads=threads), pairs(30)
        whole = model.predict(given, truncation="silent", apply_softmax=True)
        for index, pair in enumerate(given):
            assert model.predict(pair, truncation="silent", apply_softmax=True).tobytes() == whole[index].tobytes()
        backwards = model.predict(given[::-1], batch_size=1, truncation="silent", apply_softmax=True)
        assert backwards[::-1].tobytes() == whole.tobytes()


def test_the_forms_of_inputs_and_answers(one: CrossEncoder) -> None:
    given = [("a cat", "the dog"), ("a", "b")]
    whole = one.predict(given)
    pandas = pytest.importorskip("pandas")
    for form in ([list(pair) for pair in given], tuple(given), np.array(given), np.array(given, dtype=object)):
        assert one.predict(form).tobytes() == whole.tobytes()
    assert one.predict(pandas.DataFrame(given)).tobytes() == whole.tobytes()
    assert one.predict(sentences=given).tobytes() == whole.tobytes()
    assert one.predict(np.array(given[0])).tobytes() == whole[0].tobytes()
    assert one.predict(given[0]).shape == ()
    assert one.predict([]).shape == (0,)
    pool = one.start_multi_process_pool()
    assert one.predict(given, pool=pool, device="cpu", chunk_size=3).tobytes() == whole.tobytes()


def test_activations(one: CrossEncoder) -> None:
    given = [("a cat", "the dog"), ("a", "b"), ("river", "bank")]
    logits = one.predict(given, activation_fn="Identity")
    exact = 1 / (1 + np.exp(-logits.astype(np.float64)))
    for form in (None, "Sigmoid", "sigmoid", "torch.nn.Sigmoid", torch.nn.Sigmoid(), torch.nn.Sigmoid):
        np.testing.assert_allclose(one.predict(given, activation_fn=form), exact, rtol=3e-7)
    for form in (torch.sigmoid, lambda x: torch.sigmoid(x), lambda x: 1 / (1 + np.exp(-x))):
        np.testing.assert_allclose(one.predict(given, activation_fn=form), exact, rtol=3e-7)
    np.testing.assert_allclose(one.predict(given, activation_fct="Tanh"), np.tanh(logits), rtol=3e-7)
    assert repr(one.activation_fn) == "Sigmoid()"
    with pytest.raises(ValueError, match="one score for each document"):
        one.rank("a", ["b", "c"], activation_fn=lambda x: np.hstack([x, -x]))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "Sigmoid()"),
        (
            {"config.json": {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}},
            "Identity()",
        ),
        ({"config.json": {"sbert_ce_default_activation_function": IDENTITY}}, "Identity()"),
        (
            {
                "modules.json": modules(TRANSFORMER),
                "sentence_bert_config.json": CLASSIFY,
                "config_sentence_transformers.json": {"activation_fn": "torch.nn.Tanh", "model_type": "CrossEncoder"},
                "config.json": {"sbert_ce_default_activation_function": IDENTITY},
            },
            "Tanh()",
        ),
    ],
)
def test_the_activation_of_the_files(tmp_path: Path, files: dict[str, Any], expected: str) -> None:
    folder = model_folder(tmp_path / "model", SEQUENCE, num_labels=1, files=files)
    ours, given = CrossEncoder(folder), [("a cat", "the dog"), ("a", "b")]
    assert repr(ours.activation_fn) == expected
    np.testing.assert_allclose(ours.predict(given), theirs("CrossEncoder", folder).predict(given), rtol=0, atol=1e-5)
    assert repr(CrossEncoder(folder, activation_fn="SiLU").activation_fn) == "SiLU()"


def test_a_foreign_activation_is_not_imported(tmp_path: Path) -> None:
    folder = model_folder(
        tmp_path / "model",
        SEQUENCE,
        num_labels=1,
        files={"config.json": {"sentence_transformers": {"activation_fn": "os.getcwd"}}},
    )
    with pytest.warns(UserWarning, match=r"names the activation 'os.getcwd', which minibert does not have"):
        assert repr(CrossEncoder(folder).activation_fn) == "Sigmoid()"


def test_prompts(folders: dict[str, Path]) -> None:
    given, prompts = pairs(10), {"query": "the text: "}
    other = theirs("CrossEncoder", folders["one label"], prompts=prompts)
    ours = CrossEncoder(folders["one label"], prompts=prompts, default_prompt_name=None)
    for options in ({"prompt_name": "query"}, {"prompt": "hello "}, {}):
        found = ours.predict(given, truncation="silent", **options)
        np.testing.assert_allclose(found, other.predict(given, **options), rtol=0, atol=1e-5)
    assert CrossEncoder(folders["one label"]).prompts == {}
    by_default = CrossEncoder(folders["one label"], prompts=prompts, default_prompt_name="query")
    assert (
        by_default.predict(given, truncation="silent").tobytes()
        == ours.predict(given, "query", truncation="silent").tobytes()
    )


def test_no_pair_is_cut_silently(folders: dict[str, Path]) -> None:
    long = [("a", "b"), ("a cat " * 40, "the dog"), ("a", "the dog " * 50)]
    model = CrossEncoder(folders["one label"])
    assert model.max_length == model.max_seq_length == 64
    with pytest.warns(UserWarning, match=r"2 of 3 pairs have more than 64 tokens .* at index 1\)"):
        found = model.predict(long)
    np.testing.assert_allclose(found, theirs("CrossEncoder", folders["one label"]).predict(long), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"inputs\[1\] has \d+ tokens, the limit is 64"):
        model.predict(long, truncation="error")
    with pytest.warns(UserWarning, match="The pair has more than 64 tokens and was cut"):
        model.rank("a", ["the dog " * 50])
    short = CrossEncoder(folders["one label"], max_length=12)
    assert short.max_seq_length == 12
    expected = theirs("CrossEncoder", folders["one label"], max_length=12).predict(long)
    np.testing.assert_allclose(short.predict(long, truncation="silent"), expected, rtol=0, atol=1e-5)


def test_saved_models_are_the_same_models(folders: dict[str, Path], tmp_path: Path) -> None:
    given = pairs(10)
    for shape in ("one label", "three labels"):
        ours = CrossEncoder(folders[shape], activation_fn="Identity", prompts={"query": "a "})
        ours.save_pretrained(tmp_path / shape)
        again = CrossEncoder(tmp_path / shape)
        assert (repr(again.activation_fn), again.prompts, again.max_seq_length) == ("Identity()", {"query": "a "}, 64)
        expected = ours.predict(given, truncation="silent")
        assert again.predict(given, truncation="silent").tobytes() == expected.tobytes()
        np.testing.assert_allclose(theirs("CrossEncoder", tmp_path / shape).predict(given), expected, rtol=0, atol=1e-5)
    theirs("CrossEncoder", folders["one label"]).save_pretrained(str(tmp_path / "theirs"))
    first = CrossEncoder(tmp_path / "theirs").predict(given, truncation="silent")
    assert first.tobytes() == CrossEncoder(folders["one label"]).predict(given, truncation="silent").tobytes()


def test_what_programs_read(one: CrossEncoder, folders: dict[str, Path]) -> None:
    assert isinstance(one.model, BertForSequenceClassification)
    assert (one.num_labels, one.config.num_labels) == (1, 1)
    assert one.eval() is one
    for model in (one, one.model, one.tokenizer("a")):  # torch and torchmetrics give None for "as it is"
        assert model.to("cpu") is model.to(None) is model.to(device=None) is model
    assert repr(one).startswith("CrossEncoder(BertForSequenceClassification(2 layers")
    old = CrossEncoder(model_name=folders["one label"], default_activation_function="Identity", classifier_dropout=0.1)
    assert repr(old.default_activation_function) == "Identity()"
    assert CrossEncoder(folders["one label"], num_labels=1, config_kwargs={"num_labels": 1}).num_labels == 1
