"""The tensors of a head: which are read, tied decoders, old names, labels; checkpoints that do not have the head."""

from __future__ import annotations

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
from minibert.bert.weights import HEADS
from minibert.checkpoint.files import locate
from minibert.models.loading import find_heads, load_weights
from tests.support.head_models import (
    CLASSES,
    NUM_LABELS,
    SIZES,
    WITH_LABELS,
    WITH_WORDS,
    head_checkpoint,
    inputs_of,
    logits_of,
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
def test_every_tensor_of_the_file_is_read(folder_of: FolderOf, name: str) -> None:
    model = load(name, folder_of(name))
    assert model.weights.ignored == ()
    assert model.bert.weights is model.weights
    assert model.bert.ops is model.ops
    assert type(model.bert) is BertModel
    assert model.num_parameters() == their_model(folder_of(name), name).num_parameters()
    head, arrays = model.weights.head, arrays_in(folder_of(name))
    assert head.name == name
    for row in HEADS[name].rows:
        part = getattr(head.owner(row.field), row.field)
        assert row.path == (part.path if row.field == "transform_norm" else part.paths[0])
        weight = arrays.get(f"{row.path}.weight", arrays[WORDS] if row.field == "decoder" else None)
        np.testing.assert_array_equal(part.weight, weight)
        np.testing.assert_array_equal(part.bias, arrays[BIAS if row.field == "decoder" else f"{row.path}.bias"])


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_the_model_inside_is_the_model_alone(folder_of: FolderOf, name: str, backend: str) -> None:
    model, alone = (load(n, folder_of(name), backend=backend) for n in (name, "BertModel"))
    inputs = {key: value.reshape(-1, value.shape[-1]) for key, value in inputs_of(name).items()}
    for a, b in zip(model.bert(**inputs, output_hidden_states=True)[1 if model.weights.pooler is None else 2],
                    alone(**inputs).hidden_states, strict=True):  # fmt: skip
        assert a.tobytes() == b.tobytes()
    assert (model.weights.pooler is not None) == HEADS[name].pooled


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize("name", CLASSES)
def test_half_precision_files(folder_of: FolderOf, write: Write, name: str, dtype: str) -> None:
    halves = {key: stored(array, dtype) for key, array in arrays_in(folder_of(name)).items()}
    folder = write(name, halves)
    inputs = inputs_of(name)
    theirs = logits_of(run_theirs(their_model(folder, name), inputs))
    shown = inputs["attention_mask"].astype(bool)
    for field, logits in logits_of(load(name, folder)(**inputs)).items():
        where = shown if logits.shape[:2] == shown.shape and name != "BertForMultipleChoice" else shown[..., 0]
        np.testing.assert_allclose(logits[where], theirs[field][where], rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", CLASSES)
def test_old_names_other_heads_and_prefixes(folder_of: FolderOf, write: Write, name: str) -> None:
    arrays = arrays_in(folder_of(name))
    expected = load(name, folder_of(name))(**inputs_of(name))
    old = {old_name(key): array for key, array in arrays.items()}
    assert old.keys() != arrays.keys()
    assert_same_logits(load(name, write(name, old))(**inputs_of(name)), expected)

    inner = {f"model.{key}": array for key, array in arrays.items()}
    assert_same_logits(load(name, write(name, inner))(**inputs_of(name)), expected)
    bare = {key.removeprefix("bert."): array for key, array in arrays.items()}
    assert_same_logits(load(name, write(name, bare))(**inputs_of(name)), expected)

    others = {
        "cls.seq_relationship.weight": stored(np.full((7, 3), np.nan)),
        "classifier.weight": stored(np.zeros((2, 3, 4)), "BOOL"),
        "qa_outputs.bias": stored(np.array(1.0), "F64"),
        "cls.predictions.transform.LayerNorm.gamma": stored(np.zeros(3)),
        "cls.predictions.transform.LayerNorm.weight": stored(np.zeros(3)),
    }
    own = {row.path for row in HEADS[name].rows}
    beside = {key: value for key, value in others.items() if key.rpartition(".")[0] not in own}
    model = load(name, write(name, {**beside, **arrays}))
    assert set(model.weights.ignored) == set(beside)
    assert_same_logits(model(**inputs_of(name)), expected)


# --- the decoder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_WORDS)
def test_a_decoder_that_equals_the_word_embeddings_is_tied(folder_of: FolderOf, write: Write, name: str) -> None:
    arrays = arrays_in(folder_of(name))
    assert DECODER not in arrays
    expected = load(name, folder_of(name))
    assert expected.weights.head.predictions.tied
    stated = {**arrays, DECODER: arrays[WORDS], DECODER_BIAS: arrays[BIAS]}
    for tensors in (stated, {key: value for key, value in stated.items() if key != BIAS}):
        model = load(name, write(name, tensors, tie_word_embeddings=False), backend="numpy")
        assert model.weights.head.predictions.tied
        assert model.weights.head.predictions.decoder.weight is model.weights.word_embeddings
        assert model.num_parameters() == expected.num_parameters()
        packed = load(name, tmp := write(name, tensors))
        assert_same_logits(packed(**inputs_of(name)), expected(**inputs_of(name)))
        assert tmp


@pytest.mark.parametrize("name", WITH_WORDS)
@pytest.mark.parametrize("tie", [True, False])
def test_a_decoder_of_its_own(folder_of: FolderOf, write: Write, name: str, tie: bool) -> None:
    """transformers 5 does not tie weights that differ in the file, whatever config.json says."""
    arrays = arrays_in(folder_of(name))
    generator = np.random.default_rng(0)
    own = {DECODER: generator.standard_normal(arrays[WORDS].shape), DECODER_BIAS: generator.standard_normal(97)}
    folder = write(name, {**arrays, **own}, tie_word_embeddings=tie)
    model, inputs = load(name, folder), inputs_of(name)
    assert not model.weights.head.predictions.tied
    assert model.num_parameters() == load(name, folder_of(name)).num_parameters() + arrays[WORDS].size
    shown = inputs["attention_mask"].astype(bool)
    expected = run_theirs(their_model(folder, name), inputs)[0].numpy()
    np.testing.assert_allclose(model(**inputs)[0][shown], expected[shown], rtol=0, atol=5e-5)


def test_the_decoder_takes_the_memory_that_is_documented(tmp_path: Path) -> None:
    """A tied decoder takes 4 V H bytes for minibert's kernels, and nothing for NumPy."""
    folder = head_checkpoint(tmp_path / "model", "BertForMaskedLM", vocab_size=60_000, hidden_size=24)
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
}


@pytest.mark.parametrize("name", WITH_LABELS)
@pytest.mark.parametrize("labels", LABELS)
def test_labels(folder_of: FolderOf, write: Write, name: str, labels: str) -> None:
    model = load(name, write(name, arrays_in(folder_of(name)), **LABELS[labels]))
    config = model.config
    prefix = "LABEL_" if labels == "num_labels" else "L"
    assert config.id2label == {i: f"{prefix}{i}" for i in range(NUM_LABELS)}
    assert list(config.id2label) == list(range(NUM_LABELS))
    assert config.label2id == {label: i for i, label in config.id2label.items()}
    assert config.num_labels == NUM_LABELS
    assert model(**inputs_of(name)).logits.shape[-1] == NUM_LABELS


def test_a_config_without_labels_means_two_as_in_transformers(tmp_path: Path, write: Write) -> None:
    name = "BertForSequenceClassification"
    two = head_checkpoint(tmp_path / "two", name, num_labels=2)
    model = load(name, write(name, arrays_in(two), id2label=None, label2id=None))
    assert model.config.id2label == BertConfig().id2label == {0: "LABEL_0", 1: "LABEL_1"}


@pytest.mark.parametrize("problem", [None, "regression", "single_label_classification", "multi_label_classification"])
@pytest.mark.parametrize("num_labels", [1, 3])
def test_the_problem_type_is_kept_and_does_not_change_the_logits(
    tmp_path: Path, problem: str | None, num_labels: int
) -> None:
    name = "BertForSequenceClassification"
    folder = head_checkpoint(tmp_path / "model", name, num_labels=num_labels)
    expected = load(name, folder)(**inputs_of(name))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "problem_type": problem}))
    model = load(name, folder)
    assert model.config.problem_type == problem
    assert_same_logits(model(**inputs_of(name)), expected)


BAD_LABELS: list[tuple[dict[str, Any], str]] = [
    ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "config.json means 3 labels"),
    ({"id2label": None, "label2id": None}, "classifier.weight has shape [5, 24], expected [2, 24]"),
    ({"id2label": None, "label2id": {"a": 0}}, "config.json means 1 label,"),
    ({"id2label": None, "label2id": None, "num_labels": 6}, "config.json means 6 labels"),
    ({"id2label": {}}, "id2label has the ids nothing; expected 0, 1, 2"),
    ({"id2label": {"1": "a", "2": "b", "3": "c", "4": "d", "5": "e"}}, "id2label has the ids 1, 2, 3, 4, 5; expected"),
    ({"id2label": ["a", "b", "c", "d", "e"]}, "expected an object of labels by id"),
    ({"id2label": {"x": "a"}}, "id2label has the id 'x'; expected a whole number"),
    ({"id2label": {"-1": "a"}}, "id2label has the id '-1'"),
    ({"id2label": {"0": "a", "00": "b"}}, "id2label has the id 0 twice"),
    ({"id2label": {"0": ["a"]}}, "id2label names label 0 ['a']; expected a text"),
    ({"id2label": None, "label2id": [1, 2]}, "label2id=[1, 2]; expected an object"),
    ({"id2label": None, "label2id": {"a": 0, "b": 0}}, "has an id twice"),
    ({"id2label": None, "label2id": None, "num_labels": "5"}, "num_labels='5'; expected an int"),
    ({"id2label": None, "label2id": None, "num_labels": 10**9}, "num_labels=1000000000; expected an int, 0 to"),
    ({"problem_type": "guessing"}, "problem_type='guessing'; expected one of regression"),
    ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no'; expected true or false"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_LABELS)
def test_labels_that_do_not_fit(folder_of: FolderOf, write: Write, changes: dict[str, Any], message: str) -> None:
    for name in WITH_LABELS:
        assert_refused(name, write(name, arrays_in(folder_of(name)), **changes), str(message))


def test_labels_do_not_matter_for_a_model_without_a_classifier(folder_of: FolderOf, write: Write) -> None:
    name = "BertForSequenceClassification"
    folder = write(name, arrays_in(folder_of(name)), id2label={"7": "x"})
    assert BertModel.from_pretrained(folder).config.id2label == {7: "x"}


# --- checkpoints without the head, or with a damaged one -------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("other", CLASSES)
def test_a_checkpoint_of_another_class(folder_of: FolderOf, name: str, other: str) -> None:
    """It is refused unless it has all the tensors; random weights are never made."""
    folder = folder_of(other)
    there = find_heads(locate(folder))
    assert other in there
    if name in WITH_LABELS and other == "BertForMultipleChoice":
        assert_refused(name, folder, "classifier.weight has shape [1, 24]", "config.json means 2 labels")
    elif name in there:
        load(name, folder)
    elif (name, other) == ("BertForMultipleChoice", "BertForSequenceClassification"):
        there = "It has what BertForSequenceClassification and BertForTokenClassification need"
        assert_refused(name, folder, "classifier.weight has shape [5, 24], expected [1, 24]", there, "minibert.load")
    else:
        message = f"cannot be loaded as {name}: "
        assert_refused(
            name, folder, message, "missing, and minibert never makes random weights", f"It has what {there[0]}"
        )


def test_a_checkpoint_without_any_head(folder_of: FolderOf, write: Write) -> None:
    arrays = {
        key: value for key, value in arrays_in(folder_of("BertForPreTraining")).items() if key.startswith("bert.")
    }
    folder = write("BertForPreTraining", arrays)
    assert find_heads(locate(folder)) == ()
    for name in CLASSES:
        assert_refused(name, folder, f"cannot be loaded as {name}", "It has no head, so BertModel loads it")


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
        assert_refused(name, write(name, {**arrays, key: stored(arrays[key], "F64")}), f"{key} is F64, minibert reads")
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


def test_absurd_sizes_of_a_head_allocate_nothing(folder_of: FolderOf, write: Write) -> None:
    name = "BertForSequenceClassification"
    folder = write(name, arrays_in(folder_of(name)), id2label=None, label2id=None, num_labels=1_000_000)
    assert_refused(name, folder, "expected [1000000, 24]")


def test_weights_of_another_head_are_refused(folder_of: FolderOf) -> None:
    masked, pairs = (load(name, folder_of(name)) for name in ("BertForMaskedLM", "BertForNextSentencePrediction"))
    both = load("BertForPreTraining", folder_of("BertForPreTraining"))
    with pytest.raises(ValueError, match=r"BertForMaskedLM was given weights with the head of BertForNextSentence"):
        minibert.BertForMaskedLM(pairs.weights, pairs.ops)
    bare = BertModel.from_pretrained(folder_of("BertForMaskedLM"))
    with pytest.raises(ValueError, match=r"given weights with no head\. Use BertForMaskedLM\.from_pretrained"):
        minibert.BertForMaskedLM(bare.weights, bare.ops)
    with pytest.raises(TypeError, match=r"BertForMaskedLM was given BertConfig and NoneType"):
        minibert.BertForMaskedLM(masked.config)
    for name in ("BertForMaskedLM", "BertForNextSentencePrediction"):
        inner = getattr(minibert, name)(both.weights, both.ops)
        index = 0 if name == "BertForMaskedLM" else 1
        assert inner(**inputs_of(name)).logits.tobytes() == both(**inputs_of(name))[index].tobytes()
        assert inner.num_parameters() < both.num_parameters()


def test_weights_that_do_not_fit_the_config_are_refused(folder_of: FolderOf) -> None:
    """Kernels trust the shapes, so the dataclass itself compares them."""
    import dataclasses

    weights = load("BertForSequenceClassification", folder_of("BertForSequenceClassification")).weights
    config = dataclasses.replace(weights.config, id2label={0: "a"})
    with pytest.raises(ValueError, match=r"classifier has shape \(5, 24\); the config says \(1, 24\)"):
        dataclasses.replace(weights, config=config)


def test_the_sizes_of_the_test_models_differ() -> None:
    assert len({SIZES["vocab_size"], SIZES["hidden_size"], NUM_LABELS, SIZES["intermediate_size"]}) == 4
