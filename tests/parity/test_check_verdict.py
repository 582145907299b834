"""`minibert.parity.check`: verdicts, the first wrong name, units, masked positions, mislabelled names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minibert import BertModel, SentenceTransformer, exact, load, parity
from minibert.parity.comparison import LARGEST, RMS
from minibert.parity.diagnosis.simulation import simulate
from minibert.parity.truth import HALF_PRECISIONS, Subject, Values, round_to
from tests.parity.conftest import Case, states_of_theirs
from tests.support.checkpoints import sentence_model
from tests.support.families import make
from tests.support.random_checkpoints import random_model


def theirs(folder: Path) -> Any:
    from transformers import BertModel as Original

    return Original.from_pretrained(folder, attn_implementation="eager").eval()


def test_our_own_values_are_equal_bit_for_bit(case: Case) -> None:
    report = case.check(case.trace)
    assert (report.verdict, report.first, report.diagnosis, report.exit_code) == ("bits", None, [], 0)
    assert [row.name for row in report.names] == list(case.trace)
    report.raise_for_divergence()


def test_the_first_wrong_name_is_the_first_in_the_order_of_the_forward_pass(case: Case) -> None:
    dump = {name: case.trace[name] for name in reversed(list(case.trace))}
    wrong = [name for name in case.trace if name.startswith("encoder.layer.1.output")]
    for name in wrong:
        dump[name] = dump[name] + np.float32(1e-3)
    report = case.check(dump)
    assert (report.verdict, report.first) == ("wrong", wrong[0])
    assert [row.name for row in report.names if row.level == "wrong"] == wrong
    with pytest.raises(AssertionError, match=r"encoder\.layer\.1\.output\.dense"):
        report.raise_for_divergence()


@pytest.mark.parametrize("value", [1e-3, np.nan, np.inf])
def test_one_wrong_number_is_found_with_its_place(case: Case, value: float) -> None:
    dump = case.states
    dump["hidden_states.1"][4, 2, 7] += np.float32(value)
    report = case.check(dump)
    (row,) = [row for row in report.names if row.level == "wrong"]
    assert ("[4, 2, 7] is" in report.findings()) == (not np.isfinite(value))
    assert (row.name, row.at) == ("encoder.layer.0", (4, 2, 7))
    assert row.largest == pytest.approx(value, rel=1e-3, nan_ok=True) == row.value - row.true
    assert np.isfinite(value) or str(row.ratio) == str(value)


def test_only_places_that_are_not_masked_count(case: Case) -> None:
    hidden = ~case.inputs["attention_mask"].astype(bool)
    dump = {name: np.array(case.trace[name]) for name in case.trace}
    for array in dump.values():
        if array.ndim == 3:
            array[hidden] = np.nan
        elif array.ndim == 4:
            array[np.broadcast_to((hidden[:, :, None] | hidden[:, None, :])[:, None], array.shape)] = 7
    assert case.check(dump).verdict == "bits"


@pytest.mark.parametrize("cut", [np.s_[:, :20], np.s_[:4]])
def test_a_name_that_was_not_compared_is_in_the_headline(case: Case, cut: Any) -> None:
    dump = case.states
    for name in ("hidden_states.0", "hidden_states.2"):
        report = case.check({**dump, name: dump[name][cut]})
        assert (len(report.names), report.misfits) == (len(dump) - 1, [name])
        assert name in str(report).splitlines()[0]
        assert (report.verdict, report.exit_code) == ("bits", 1)
    with pytest.raises(parity.NothingComparedError):
        case.check({name: dump[name][cut] for name in ("hidden_states.0", "hidden_states.2")})


def test_a_number_as_budget(case: Case) -> None:
    dump = case.states
    dump["hidden_states.1"] += np.float32(20 * case.check(dump).names[1].unit)
    assert [case.check(dump, budget=units).exit_code for units in (5, 30)] == [1, 0]
    for budget in ("double", 0, -1.0, float("inf"), 10**400, True, None):
        with pytest.raises(ValueError, match="budget="):
            case.check(dump, budget=budget)


# --- half precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", HALF_PRECISIONS)
def test_half_precision_is_recognised(folder: Path, case: Case, precision: str) -> None:
    import torch

    dump = {name: round_to(precision, array) for name, array in case.states.items()}
    report = case.check(dump)
    assert (report.verdict, report.first, report.exit_code) == (precision, None, 1)
    assert case.check(dump, budget=precision).exit_code == 0
    computed = states_of_theirs(theirs(folder).to(getattr(torch, precision)), case.inputs)
    dump = {f"hidden_states.{i}": state for i, state in enumerate(computed)}
    assert case.check(dump).verdict == precision
    for kind, ids in (("word", "input_ids"), ("token_type", "token_type_ids")):
        name = f"embeddings.{kind}_embeddings"
        rows = Subject.of(case.model).weights()[f"{name}.weight"][case.inputs[ids]]
        for look_up in (round_to(precision, rows), rows):  # of a table in this precision, or in float32
            assert case.check({**dump, name: look_up}).verdict == precision
        assert case.check({**dump, name: rows * 2}).verdict == "wrong"


def test_an_error_as_small_as_that_of_float16_is_wrong_where_the_embeddings_are_exact(case: Case) -> None:
    dump = case.states
    for name in ("hidden_states.1", "hidden_states.2"):
        dump[name] *= np.float32(1 + 2.0**-11)
    assert case.check(dump).verdict == case.check({"hidden_states.2": dump["hidden_states.2"]}).verdict == "wrong"


@pytest.mark.parametrize("id", ["N1.1e-5", "N2.1e-5", "N3.unbiased"])
def test_a_small_mistake_in_the_embeddings_is_not_taken_for_half_precision(
    minilm_sentences: SentenceTransformer, id: str
) -> None:
    """The error of a wrong eps is as large as that of float16 in every state; but it is a factor for each token."""
    inputs = {name: array[:4, :24] for name, array in parity.probe(minilm_sentences).inputs.items()}
    port = simulate(minilm_sentences.model, inputs, id, record=["embeddings", "encoder.layer.0"])
    report = parity.check(minilm_sentences, port, inputs, diagnosis=False)
    assert (report.verdict, report.first) == ("wrong", "embeddings")


@pytest.mark.parametrize("precision", HALF_PRECISIONS)
def test_half_precision_with_names_that_are_off_by_one(tmp_path: Path, precision: str) -> None:
    """The layers of this model change the state less than half precision rounds it."""
    import transformers

    sizes = {"vocab_size": 90, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.BertConfig(**sizes, intermediate_size=40, initializer_range=1e-4)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    model = BertModel.from_pretrained(tmp_path, backend="numpy")
    inputs = dict(parity.probe(model).inputs)
    values = [round_to(precision, value) for value in model.trace(**inputs, record="hidden_states.*").values()]
    for shift in (0, 1):
        dump = {f"hidden_states.{i}": values[min(i + shift, 2)] for i in range(3)}
        report = parity.check(model, dump, inputs, budget=precision, diagnosis=False)
        assert (report.verdict, report.exit_code) == (precision, 0)
        assert "cannot tell hidden_states.0 from encoder.layer.0" in report.warnings[0]


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        *("model.layers.{i}.output", "tf_bert_model/bert/encoder/layer_._{i}/output", "encoder_layer_{i}_output"),
        *("transformer_layer_{i}", "EncoderLayer{i}", "l_out-{i}", "bert/encoder/layer_{i}/output:0"),
        *("bert.encoder.layer.{i}", "0.auto_model.encoder.layer.{i}"),
    ],
)
def test_names_of_other_frameworks(case: Case, pattern: str) -> None:
    layers = [f"encoder.layer.{i}" for i in range(2)]
    report = case.check({pattern.format(i=i): case.trace[name] for i, name in enumerate(layers)})
    assert (report.verdict, [row.name for row in report.names]) == ("bits", layers)


@pytest.mark.parametrize("names", [("hidden_states.1", "encoder.layer.0"), ("encoder.layer.0", "bert.encoder.layer.0")])
@pytest.mark.parametrize("order", [1, -1])
def test_a_wrong_array_counts_although_another_name_of_the_value_is_right(
    case: Case, names: tuple[str, str], order: int
) -> None:
    right = case.trace["encoder.layer.0"]
    report = case.check(dict(list(zip(names, (right, right * 0), strict=True))[::order]))
    assert (report.verdict, report.first, len(report.names)) == ("wrong", "encoder.layer.0", 2)
    assert "hold different numbers" in report.warnings[0]
    assert case.check(dict.fromkeys(names, right)).verdict == "bits"


def test_one_wrong_state_beside_all_states_in_one_array(case: Case) -> None:
    stacked = np.stack(list(case.states.values()))
    assert case.check({"hidden_states": stacked}).verdict == "bits"
    for one in ({"hidden_states.2": stacked[1]}, {"layer_1": stacked[0]}):
        report = case.check({"hidden_states": stacked, **one})
        assert (report.verdict, report.first) == ("wrong", "encoder.layer.1")


def test_a_loose_name_of_another_value_is_not_compared_beside_the_exact_name(case: Case) -> None:
    gradient = np.random.default_rng(0).standard_normal(case.trace["embeddings"].shape).astype(np.float32)
    for scale in (1e-6, 1):
        report = case.check({**case.states, "grad/hidden_states.1": gradient * scale})
        assert (report.verdict, report.unknown) == ("bits", ["grad/hidden_states.1"])


def test_names_with_loose_numbers_are_counted_in_one_way(case: Case) -> None:
    dump = {f"layer_{i}": state for i, state in enumerate(case.states.values())}
    assert case.check(dump).verdict == "bits"
    assert case.check({f"hiddenStates[{i}]": state for i, state in enumerate(dump.values())}).verdict == "bits"
    assert case.check({**dump, "layer_1": dump["layer_0"]}).verdict == "wrong"
    for first in (0, 1):
        report = case.check({f"layer_{i:02d}": case.trace[f"hidden_states.{i + first}"] for i in range(2)})
        names = ["embeddings", "encoder.layer.0", "encoder.layer.1"][first : first + 2]
        assert (report.verdict, [row.name for row in report.names]) == ("bits", names)


def test_a_map_renames(case: Case) -> None:
    name = "encoder.layer.1.attention.self.key"
    dump = {"mine": case.trace[name]}
    assert case.check(dump, names={"mine": name}).verdict == "bits"
    for names in ({"mine": f"{name}s"}, {"his": name}):
        with pytest.raises(ValueError, match=r"encoder\.layer|his"):
            case.check(dump, names=names)


def test_names_that_mean_nothing(case: Case) -> None:
    for dump in ({"x": np.zeros((3, 2))}, {"embeddings": np.zeros((7, 7, 7))}):
        with pytest.raises(parity.NothingComparedError):
            case.check(dump)
    report = case.check({**case.states, "loss": np.zeros(3)})
    assert (report.unknown, report.warnings) == (["loss"], [])
    assert "1 unknown name not compared" in str(report).splitlines()[0]
    report = case.check({**case.states, **{f"loss{i}": np.zeros(3) for i in range(4)}})
    assert "More names are unknown (4) than were compared (3)" in report.warnings[0]


def test_layers_that_change_nothing_cannot_be_told_apart(tmp_path: Path) -> None:
    folder = random_model(tmp_path / "model", (24, 3, 3, 40, "gelu"), 97, 32)
    weights = load_file(folder / "model.safetensors")
    for name, array in weights.items():
        if "LayerNorm" in name:
            weights[name] = np.full_like(array, float(name.endswith("weight")))
        elif "output.dense" in name:
            weights[name] = np.zeros_like(array)
    save_file(weights, folder / "model.safetensors")
    model, inputs = BertModel.from_pretrained(folder), {"input_ids": np.arange(20).reshape(2, 10)}
    states = model(**inputs).hidden_states
    report = parity.check(model, {f"hidden_states.{3 - i}": state for i, state in enumerate(states)}, inputs)
    assert report.verdict == "float32"
    assert "5 other pairs" in report.warnings[0]  # each of 4 states from the one before it, and the one after it


# --- inputs and weights -----------------------------------------------------------------------------------------------


def test_inputs_in_the_dump_are_compared_first(case: Case) -> None:
    ids = case.inputs["input_ids"]
    wrong = ids.copy()
    wrong[2, 3] += 1
    for dump in ({"input_ids": wrong}, {"ids": ids, "input_ids": wrong}, {"input_ids": wrong, "ids": ids}):
        report = case.check({**case.states, **dump})
        assert (report.verdict, report.first, report.names) == ("wrong", "input_ids", [])
        assert "row 2" in report.diagnosis[0].text
    hidden = np.where(case.inputs["attention_mask"], ids, 3)
    assert case.check({**case.states, "input_ids": hidden}).verdict == "bits"
    assert parity.check(case.model, {**case.states, **case.inputs}).verdict == "bits"  # there are no others
    with pytest.raises(ValueError, match="inputs"):
        parity.check(case.model, case.states)


def test_inputs_that_are_not_given_are_compared_with_the_usual_ones_or_named(case: Case) -> None:
    inputs = {"input_ids": np.arange(5, 12)[None].repeat(2, 0)}
    trace, places = case.model.trace(**inputs, record="hidden_states.*"), np.arange(7)[None]
    assert parity.check(case.model, {**trace, "position_ids": places, "mask": places < 7}, inputs).verdict == "bits"
    report = parity.check(case.model, {**trace, "position_ids": places + 1}, inputs)
    assert (report.verdict, report.first) == ("wrong", "position_ids")
    report = parity.check(case.model, {**trace, "position_ids": np.arange(512)}, inputs)
    assert report.verdict == "bits"
    assert "position_ids in the dump, of shape (512,), was not compared" in str(report)


def test_positions_of_the_dump_are_compared_and_not_taken(case: Case) -> None:
    right = np.broadcast_to(np.arange(case.inputs["input_ids"].shape[1]), case.inputs["input_ids"].shape)
    own = {name: case.inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    dump = {**case.states, **own}
    assert parity.check(case.model, {**dump, "position_ids": right}).verdict == "bits"
    wrong = right[:, ::-1]
    states = case.model.trace(**own, position_ids=wrong, record="hidden_states.*")
    report = parity.check(case.model, {**states, **own, "position_ids": wrong})
    assert (report.verdict, report.first) == ("wrong", "position_ids")
    words = case.model.get_input_embeddings()(own["input_ids"])
    assert parity.check(case.model, {**dump, "inputs_embeds": words}).verdict == "bits"
    assert parity.check(case.model, {**dump, "position_ids": right[0] + 2}).first == "position_ids"
    for given in (right[:1], right):  # positions of one row are those of each row
        assert case.check({**case.states, "position_ids": right}).verdict == "bits"
        assert (
            parity.check(case.model, {**dump, "position_ids": right}, {**own, "position_ids": given}).verdict == "bits"
        )
    hidden = right[:1].copy()
    hidden[0, ~case.inputs["attention_mask"][2].astype(bool)] += 1
    assert parity.check(case.model, {**dump, "position_ids": hidden}, {**own, "position_ids": right[:1]}).first


def test_an_additive_mask_is_not_an_input(case: Case) -> None:
    additive = np.where(case.inputs["attention_mask"][:, None, None], 0, -1e9).astype(np.float32)
    for name in ("mask", "attention_mask"):
        report = case.check({**case.states, name: additive})
        assert (report.verdict, report.unknown) == ("bits", [name])
        with pytest.raises(ValueError, match=r"mask of the dump .* \(B, S\)"):
            parity.check(case.model, {**case.states, "input_ids": case.inputs["input_ids"], name: additive})


def test_a_value_without_visible_places_is_not_compared(case: Case) -> None:
    ids, mask = np.full((2, 6), 7), np.array([[0, 1, 1, 1, 1, 1]] * 2)
    states = case.model.trace(ids, mask, record="hidden_states.*")
    dump = {**states, "pooler_output": np.full((2, case.model.config.hidden_size), 9, np.float32)}
    report = parity.check(case.model, dump, {"input_ids": ids, "attention_mask": mask})
    assert (report.verdict, len(report.names)) == ("bits", len(dump) - 1)
    assert "pooler_output was not compared" in str(report)
    with pytest.raises(parity.NothingComparedError, match="all its places are masked"):
        parity.check(case.model, {"pooler_output": dump["pooler_output"]}, {"input_ids": ids, "attention_mask": mask})


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_nan_in_masked_places_does_not_hide_a_half_precision(case: Case, precision: str) -> None:
    state = round_to(precision, case.states["hidden_states.2"])
    state[~case.inputs["attention_mask"].astype(bool)] = np.nan
    assert case.check({"hidden_states.2": state}).verdict == precision


def test_a_model_with_inputs_of_three_axes_is_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path, "bert", "ForMultipleChoice")
    with pytest.raises(ValueError, match=r"BertForMultipleChoice.*base_model"):
        parity.check(load(tmp_path), {"hidden_states.0": np.zeros(3)})


def test_weights_are_compared_first_and_bit_for_bit(case: Case) -> None:
    weights = {name: array.copy() for name, array in Subject.of(case.model).weights().items()}
    gamma = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): array for name, array in weights.items()}
    assert case.check({**case.states, **gamma}).verdict == "bits"
    bias = weights["embeddings.LayerNorm.bias"]
    pair = [("embeddings.LayerNorm.beta", bias), ("bert.embeddings.LayerNorm.bias", bias + 1)]
    for order in (1, -1):
        assert case.check({**case.states, **dict(pair[::order])}).verdict == "wrong"
    weights["encoder.layer.1.output.dense.bias"][3] += np.float32(1e-6)
    report = case.check({**case.states, **weights})
    assert (report.verdict, report.first) == ("wrong", "encoder.layer.1.output.dense.bias")
    rounded = round_to("float16", weights["embeddings.word_embeddings.weight"])
    report = case.check({**case.states, "bert.embeddings.word_embeddings.weight": rounded})
    assert "rounded to float16" in report.diagnosis[0].text


def test_transposed_weights_are_a_layout_and_a_warning_if_they_are_square(case: Case) -> None:
    weights = Subject.of(case.model).weights()
    wide, square, other = (
        f"encoder.layer.{name}.dense.weight" for name in ("0.intermediate", "0.attention.output", "1.attention.output")
    )
    report = case.check({**case.states, wide: weights[wide].T})
    assert (report.verdict, report.warnings) == ("bits", [])
    assert wide in report.notes[0]
    report = case.check({**case.states, square: weights[square].T, other: weights[other]})
    assert square in report.warnings[0]
    assert report.notes == ["1 weight in the dump: equal to the checkpoint's."]


@pytest.mark.parametrize(
    "inputs",
    [{}, {"input_ids": None}, 3, {"attention_mask": [[1]]}, {"input_ids": [[1e9]]}, {"input_ids": [[1, 2], [3]]}],
)
def test_inputs_that_are_not_the_models_are_refused(case: Case, inputs: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="input"):
        parity.check(case.model, case.trace, inputs)


# --- units ------------------------------------------------------------------------------------------------------------


def test_the_values_in_several_groups_are_those_of_one_forward(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject.of(case.model)
    monkeypatch.setattr("minibert.parity.truth._GROUP_NBYTES", 50_000)
    values = Values(subject, case.inputs, subject.names.specs)
    assert len(values._groups) > 5
    whole = exact.forward(case.model, **case.inputs)
    for name in subject.names.specs:
        np.testing.assert_array_equal(values[name], whole[name], err_msg=name)


def test_the_unit_is_the_error_of_transformers(folder: Path, case: Case) -> None:
    """Within a factor of two for each hidden state, on another library's own order of operations."""
    subject = Subject.of(case.model)
    names = ["embeddings", "encoder.layer.0", "encoder.layer.1"]
    truth = Values(subject, case.inputs, names)
    units = truth.units(names)
    shown = case.inputs["attention_mask"].astype(bool)
    for name, state in zip(names, states_of_theirs(theirs(folder), case.inputs), strict=True):
        error = state.astype(np.float64)[shown] - truth[name][shown]
        assert 0.5 < np.sqrt(np.mean(error**2)) / units[name].rms < 2
        assert np.abs(error).max() / units[name].largest < LARGEST
    assert RMS < LARGEST


# --- vectors ----------------------------------------------------------------------------------------------------------


def test_sentence_vectors(tmp_path: Path) -> None:
    modules = ["models.Transformer", "models.Pooling", "models.Normalize"]
    model = SentenceTransformer(sentence_model(tmp_path, modules), backend="numpy")
    texts = ["the cat", "a dog sat on the mat", "hello"]
    vectors, inputs = model.encode(texts), model.tokenizer(texts, padding=True, return_tensors="np")
    report = parity.check(model, {"vectors": vectors}, inputs)
    assert (report.verdict, report.names[0].name) == ("float32", "sentence_embedding")
    report = parity.check(model, {"vectors": vectors * np.float32(1.001)}, inputs, diagnosis=False)
    assert (report.verdict, report.first) == ("wrong", "sentence_embedding")
    both = {"word_embedding_dimension": 24, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    two = SentenceTransformer(sentence_model(tmp_path / "two", pooling=both), backend="numpy")
    (finding,) = parity.check(two, {"vectors": two.encode(texts) * np.float32(1.001)}, inputs).diagnosis
    assert "Only one pooling" in finding.text
    with pytest.raises(parity.NothingComparedError):  # its modules are not known
        parity.check(model.model, {"sentence_embedding": vectors}, inputs)


@pytest.mark.parametrize("model", [None, 3, np.zeros(3), {}])
def test_what_is_not_a_model_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match="expected a model of minibert"):
        parity.check(model, {"embeddings": np.zeros(3)}, {})


def test_a_folder_is_a_model(small_folder: Path) -> None:
    model = BertModel.from_pretrained(small_folder)
    for one in (small_folder, str(small_folder)):
        inputs = parity.probe(one).inputs
        assert parity.check(one, dict(model.trace(**inputs)), inputs).verdict == "bits"
