"""The tensors of a head: which are read, tied decoders, old names, labels; checkpoints that do not have the head."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import minibert
from minibert import BertConfig, BertModel, ModelFormatError
from minibert.bert.rows import HEADS
from minibert.checkpoint.files import locate
from minibert.models.loading import load_weights
from minibert.models.stored import find_heads
from tests.support.head_models import (
    CLASSES,
    NUM_LABELS,
    WITH_LABELS,
    WITH_WORDS,
    inputs_of,
    logits_of,
    make_model,
    run_theirs,
    their_model,
)
from tests.support.safetensors_files import Tensor, old_name, safetensors_bytes, stored

FolderOf = Callable[[str], Path]
Write = Callable[..., Path]
DECODER, BIAS, DECODER_BIAS = "cls.predictions.decoder.weight", "cls.predictions.bias", "cls.predictions.decoder.bias"
WORDS = "bert.embeddings.word_embeddings.weight"


def arrays_in(folder: Path) -> dict[str, np.ndarray]:
    return dict(load_file(folder / "model.safetensors"))


@pytest.fixture
def write(tmp_path: Path, folder_of: FolderOf) -> Write:
    """Return a function that writes tensors beside the config.json of a class, with changes; None drops a field."""

    def write(name: str, tensors: Mapping[str, np.ndarray | Tensor], **changes: Any) -> Path:
        config = {**json.loads((folder_of(name) / "config.json").read_text()), **changes}
        config = {key: value for key, value in config.items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(config))
        raw = {key: value if isinstance(value, tuple) else stored(value) for key, value in tensors.items()}
        (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(raw))
        return tmp_path

    return write


def load(name: str, folder: Path, **options: Any) -> Any:
    return getattr(minibert, name).from_pretrained(folder, **options)


def assert_refused(name: str, folder: Path, *matches: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        load(name, folder)
    for match in matches:
        assert match in str(caught.value), str(caught.value)


def assert_same_logits(ours: Any, other: Any) -> None:
    for a, b in zip(logits_of(ours).values(), logits_of(other).values(), strict=True):
        assert a.tobytes() == b.tobytes()


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_old_names_other_heads_and_prefixes(folder_of: FolderOf, write: Write, name: str) -> None:
    arrays, inputs = arrays_in(folder_of(name)), inputs_of(name)
    expected = load(name, folder_of(name))(**inputs)
    for rename in (old_name, lambda key: f"model.{key}", lambda key: key.removeprefix("bert.")):
        renamed = {rename(key): array for key, array in arrays.items()}
        assert renamed.keys() != arrays.keys()
        assert_same_logits(load(name, write(name, renamed))(**inputs), expected)
    others = {
        "cls.seq_relationship.weight": stored(np.full((7, 3), np.nan)),
        "classifier.weight": stored(np.zeros((2, 3, 4)), "BOOL"),
        "qa_outputs.bias": stored(np.array(1.0), "F64"),
        "cls.predictions.transform.LayerNorm.gamma": stored(np.zeros(3)),
    }
    own = {row.path for row in HEADS[name].rows}
    beside = {key: value for key, value in others.items() if key.rpartition(".")[0] not in own}
    model = load(name, write(name, {**beside, **arrays}))
    assert set(model.weights.ignored) == set(beside)
    assert_same_logits(model(**inputs), expected)


# --- the decoder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_WORDS)
@pytest.mark.parametrize("tie", [True, False])
def test_a_decoder_of_its_own(folder_of: FolderOf, write: Write, name: str, tie: bool) -> None:
    """transformers 5 does not tie weights that differ in the file, whatever config.json says."""
    arrays = arrays_in(folder_of(name))
    generator = np.random.default_rng(0)
    own = {DECODER: generator.standard_normal(arrays[WORDS].shape), DECODER_BIAS: generator.standard_normal(97)}
    folder = write(name, {**arrays, **own}, tie_word_embeddings=tie)
    model, inputs = load(name, folder), inputs_of(name)
    assert not model.weights.head.tied
    assert model.num_parameters() == load(name, folder_of(name)).num_parameters() + arrays[WORDS].size
    shown = inputs["attention_mask"].astype(bool)
    model.save_pretrained(folder / "saved")
    for saved in (folder, folder / "saved"):
        expected = run_theirs(their_model(saved, name), inputs)[0].numpy()
        np.testing.assert_allclose(model(**inputs)[0][shown], expected[shown], rtol=0, atol=5e-5)
        assert_same_logits(load(name, saved)(**inputs), model(**inputs))


def test_the_decoder_takes_the_memory_that_is_documented(tmp_path: Path) -> None:
    """A tied decoder takes 4 V H bytes for minibert's kernels, and nothing for NumPy."""
    folder = make_model(tmp_path / "model", "BertForMaskedLM", vocab_size=60_000, hidden_size=24)
    files, config = locate(folder), BertConfig.from_pretrained(folder)
    table, sizes = 4 * 60_000 * 24, {}
    for head in (None, "BertForMaskedLM"):
        tracemalloc.start()
        try:
            kept = load_weights(files, config, lambda linear: linear, head=head)
            sizes[head] = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert kept.word_embeddings.nbytes == table
    assert sizes["BertForMaskedLM"] - sizes[None] < 4 * 60_000 + 50_000, "the bias and the transform, no second table"


# --- labels ----------------------------------------------------------------------------------------------------------

LABELS = {
    "strings": {"id2label": {str(i): f"L{i}" for i in range(NUM_LABELS)}},
    "any order": {"id2label": {str(i): f"L{i}" for i in reversed(range(NUM_LABELS))}},
    "label2id": {"id2label": None, "label2id": {f"L{i}": i for i in range(NUM_LABELS)}},
    "label2id, strings": {"id2label": None, "label2id": {f"L{i}": str(i) for i in range(NUM_LABELS)}},
    "num_labels": {"id2label": None, "label2id": None, "num_labels": NUM_LABELS},
    "num_labels and another": {"id2label": {"0": "x"}, "label2id": {"x": 0}, "num_labels": NUM_LABELS},
}


@pytest.mark.parametrize("name", WITH_LABELS)
@pytest.mark.parametrize("labels", LABELS)
def test_labels(folder_of: FolderOf, write: Write, name: str, labels: str) -> None:
    config = load(name, write(name, arrays_in(folder_of(name)), **LABELS[labels])).config
    prefix = "LABEL_" if labels.startswith("num_labels") else "L"
    assert list(config.id2label.items()) == [(i, f"{prefix}{i}") for i in range(NUM_LABELS)]
    assert config.label2id == {label: i for i, label in config.id2label.items()}
    assert config.num_labels == NUM_LABELS


NOTHING: dict[str, Any] = {"id2label": None, "label2id": None}
BAD_LABELS: list[tuple[str, list[dict[str, Any]]]] = [
    ("expected [3, 24]", [{"id2label": {"0": "a", "1": "b", "2": "c"}}]),
    ("classifier.weight has shape [5, 24], expected [2, 24]", [NOTHING]),
    ("num_labels=", [{**NOTHING, "num_labels": "5"}, {**NOTHING, "num_labels": 10**9}]),
    ("expected [1000000, 24]", [{**NOTHING, "num_labels": 1_000_000}]),
    ("id2label", [{"id2label": value} for value in (
        {}, {str(i): "abcdef"[i] for i in range(1, 6)}, [*"abcde"], {"x": "a"}, {"-1": "a"}, {"0": "a", "00": "b"},
        {"0": ["a"]})]),
    ("label2id", [{**NOTHING, "label2id": [1, 2]}, {**NOTHING, "label2id": {"a": 0, "b": 0}}]),
    ("problem_type='guessing'", [{"problem_type": "guessing"}]),
    ("tie_word_embeddings='no'", [{"tie_word_embeddings": "no"}]),
]  # fmt: skip


@pytest.mark.parametrize("name", WITH_LABELS)
def test_labels_that_do_not_fit(folder_of: FolderOf, write: Write, name: str) -> None:
    arrays = arrays_in(folder_of(name))
    for word, changes in BAD_LABELS:
        for change in changes:
            assert_refused(name, write(name, arrays, **change), word)
    folder = write(name, arrays, id2label={"7": "x"})
    assert BertModel.from_pretrained(folder).config.id2label == {7: "x"}, "a model without a head does not use them"


# --- checkpoints without the head, or with a damaged one -------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("other", [*CLASSES, None])
def test_a_checkpoint_of_another_class(folder_of: FolderOf, write: Write, name: str, other: str | None) -> None:
    """It is refused unless it has all the tensors; random weights are never made."""
    tensors = arrays_in(folder_of(other or "BertForPreTraining"))
    bare = {key: value for key, value in tensors.items() if key.startswith("bert.")}
    folder = folder_of(other) if other else write("BertForPreTraining", bare)
    there = find_heads(locate(folder))
    assert (other in there) if other else there == ()
    if name in WITH_LABELS and other == "BertForMultipleChoice":
        assert_refused(name, folder, "classifier.weight has shape [1, 24]")
    elif (name, other) == ("BertForMultipleChoice", "BertForSequenceClassification"):
        assert_refused(name, folder, "classifier.weight has shape [5, 24], expected [1, 24]", *there[:2])
    elif name in there or (name, other) == ("BertForTokenClassification", "BertForSequenceClassification"):
        load(name, folder)  # the two classifiers have the same tensors, and config.json names one
    else:
        assert_refused(name, folder, f"cannot be loaded as {name}", "missing", there[0] if other else "BertModel")


@pytest.mark.parametrize("name", CLASSES)
def test_each_tensor_of_a_head_is_needed_and_checked(folder_of: FolderOf, write: Write, name: str) -> None:
    arrays = arrays_in(folder_of(name))
    own = [key for key in arrays if not key.startswith("bert.")] + ["bert.pooler.dense.bias"] * HEADS[name].pooled
    assert len(own) >= 2
    for key in own:
        short = key.removeprefix("bert.")
        others = {other: array for other, array in arrays.items() if other != key}
        assert_refused(name, write(name, others), f"{short} is missing")
        assert_refused(name, write(name, {**arrays, key: arrays[key][:-1]}), f"{key} has shape")
        assert_refused(name, write(name, {**arrays, key: stored(arrays[key], "I32")}), f"{key} is I32, minibert reads")
        for value in (np.nan, np.inf, 1e7):
            broken = arrays[key].copy()
            broken.flat[-1] = value
            assert_refused(name, write(name, {**arrays, key: broken}), f"tensor {key} holds {value}")


@pytest.mark.parametrize("name", WITH_WORDS)
def test_faults_of_the_masked_lm_head(folder_of: FolderOf, write: Write, name: str) -> None:
    arrays = arrays_in(folder_of(name))
    assert_refused(name, write(name, arrays, tie_word_embeddings=False), f"{DECODER} is missing")
    assert_refused(name, write(name, {**arrays, DECODER: np.zeros((3, 24))}), f"{DECODER} has shape [3, 24]")
    assert_refused(name, write(name, {**arrays, DECODER: np.full((97, 24), np.nan)}), f"tensor {DECODER} holds nan")
    norm = "cls.predictions.transform.LayerNorm"
    twice = {**arrays, f"{norm}.gamma": arrays[f"{norm}.weight"]}
    assert_refused(name, write(name, twice), f"{norm}.weight twice", "gamma")


def test_the_pooler_cannot_be_left_out_if_the_head_reads_it(folder_of: FolderOf) -> None:
    for name in CLASSES:
        if HEADS[name].pooled:
            with pytest.raises(ValueError, match=f"add_pooling_layer=False, but the head of {name} reads the pooler"):
                load(name, folder_of(name), add_pooling_layer=False)
        else:
            load(name, folder_of(name), add_pooling_layer=False)


def test_weights_of_another_head_are_refused(folder_of: FolderOf) -> None:
    masked, pairs = (load(name, folder_of(name)) for name in ("BertForMaskedLM", "BertForNextSentencePrediction"))
    bare = BertModel.from_pretrained(folder_of("BertForMaskedLM"))
    for arguments, error, word in (
        ((pairs.weights, pairs.ops), ValueError, "BertForNextSentence"),
        ((bare.weights, bare.ops), ValueError, "no head"),
        ((masked.config,), TypeError, "BertConfig"),
    ):
        with pytest.raises(error, match=word):
            minibert.BertForMaskedLM(*arguments)
    both = load("BertForPreTraining", folder_of("BertForPreTraining"))
    for index, name in enumerate(("BertForMaskedLM", "BertForNextSentencePrediction")):
        inner = getattr(minibert, name)(both.weights, both.ops)
        assert inner(**inputs_of(name)).logits.tobytes() == both(**inputs_of(name))[index].tobytes()
        assert inner.num_parameters() < both.num_parameters()


def test_weights_that_do_not_fit_the_config_are_refused(folder_of: FolderOf) -> None:
    """Kernels trust the shapes, so the dataclass itself compares them."""
    weights = load("BertForSequenceClassification", folder_of("BertForSequenceClassification")).weights
    with pytest.raises(ValueError, match="classifier"):
        dataclasses.replace(weights, config=dataclasses.replace(weights.config, id2label={0: "a"}))
