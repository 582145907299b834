"""`minibert.parity.check`: verdicts, the first wrong name, units, places that are masked, names that hold others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.hashes import random_model
from minibert import BertModel, SentenceTransformer, exact, parity
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.parity.comparison import LARGEST, RMS
from minibert.parity.diagnosis.catalogue import simulate
from minibert.parity.truth import Subject, Values, measure_units, round_to
from minibert.trace.trace import Trace
from tests.support.checkpoints import random_checkpoint, sentence_model

Case = tuple[BertModel, dict[str, Any], Trace]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("parity"))


@pytest.fixture(scope="module")
def case(folder: Path) -> Case:
    model = BertModel.from_pretrained(folder, backend="numpy")
    inputs = dict(parity.probe(model).inputs)
    return model, inputs, model.trace(**inputs)


def theirs(folder: Path) -> Any:
    from transformers import BertModel as Original

    return Original.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def minilm() -> tuple[Subject, dict[str, Any]]:
    subject = Subject.of(SentenceTransformer(DEFAULT_MODEL, backend="numpy"))
    return subject, dict(parity.probe(subject).inputs)


def states(trace: Trace) -> dict[str, np.ndarray]:
    return {f"hidden_states.{i}": trace[f"hidden_states.{i}"] for i in range(3)}


def test_our_own_values_are_equal_bit_for_bit(case: Case) -> None:
    model, inputs, trace = case
    report = parity.check(model, trace, inputs)
    assert (report.verdict, report.first, report.diagnosis, report.exit_code) == ("bits", None, [], 0)
    assert [row.name for row in report.names] == list(trace)
    report.raise_for_divergence()


def test_the_true_values_rounded_to_float32_have_the_verdict_float32(case: Case) -> None:
    model, inputs, _ = case
    true = exact.forward(model, **inputs)
    report = parity.check(model, {name: true[name].astype(np.float32) for name in true}, inputs)
    assert report.verdict == "float32"
    assert max(row.ratio for row in report.names) < 1


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_the_first_wrong_name_is_the_first_in_the_order_of_the_forward_pass(case: Case, scale: float) -> None:
    model, inputs, trace = case
    dump = {name: trace[name] for name in reversed(list(trace))}
    wrong = [name for name in trace if name.startswith("encoder.layer.1.output")]
    for name in wrong:
        dump[name] = dump[name] + scale * np.float32(1e-3)
    report = parity.check(model, dump, inputs, diagnosis=False)
    assert (report.verdict, report.first) == ("wrong", wrong[0])
    assert [row.name for row in report.names if row.level == "wrong"] == wrong
    with pytest.raises(AssertionError, match=r"WRONG from encoder\.layer\.1\.output\.dense"):
        report.raise_for_divergence()


def test_one_wrong_number_is_found_with_its_place(case: Case) -> None:
    model, inputs, trace = case
    dump = states(trace)
    dump["hidden_states.1"][4, 2, 7] += np.float32(1e-3)
    (row,) = [row for row in parity.check(model, dump, inputs, diagnosis=False).names if row.level == "wrong"]
    assert (row.name, row.at) == ("encoder.layer.0", (4, 2, 7))
    assert row.largest == pytest.approx(1e-3, rel=1e-3)
    assert row.value - row.true == pytest.approx(1e-3, rel=1e-3)


def test_only_places_that_are_not_masked_count(case: Case) -> None:
    model, inputs, trace = case
    hidden = ~inputs["attention_mask"].astype(bool)
    dump = {name: trace[name] for name in trace}
    for array in dump.values():
        if array.ndim == 3:
            array[hidden] = np.nan
        elif array.ndim == 4:
            array[np.broadcast_to((hidden[:, :, None] | hidden[:, None, :])[:, None], array.shape)] = 7
    report = parity.check(model, dump, inputs)
    assert report.verdict == "bits"
    assert "masked hold numbers" in str(report)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_wrong(case: Case, value: float) -> None:
    model, inputs, trace = case
    dump = states(trace)
    dump["hidden_states.2"][0, 3, 5] = value
    report = parity.check(model, dump, inputs, diagnosis=False)
    assert (report.verdict, report.first) == ("wrong", "encoder.layer.1")
    assert report.names[-1].at == (0, 3, 5)
    assert "not finite" in str(report)
    assert str(report.names[-1].largest) == str(report.names[-1].ratio) == str(np.abs(value))


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (np.s_[:, :20], "has shape (5, 20, 24); expected (5, 24, 24). It was not compared."),
        (np.s_[:4], "It has 4 texts, and the inputs have 5: were these the inputs?"),
        (np.s_[:1], "It has 1 text, and the inputs have 5: were these the inputs?"),
    ],
)
def test_a_name_that_was_not_compared_is_in_the_headline(case: Case, cut: Any, said: str) -> None:
    model, inputs, trace = case
    dump = states(trace)
    for name in ("hidden_states.0", "hidden_states.2"):
        cut_dump = {**dump, name: dump[name][cut]}
        report = parity.check(model, cut_dump, inputs)
        assert (len(report.names), report.misfits) == (len(dump) - 1, [name])
        assert str(report).splitlines()[0].endswith(f"; NOT COMPARED, because of the shape: {name}")
        assert said in str(report)
    with pytest.raises(parity.NothingComparedError, match="The same is true of 1 other name"):
        parity.check(model, {name: dump[name][cut] for name in ("hidden_states.0", "hidden_states.2")}, inputs)


@pytest.mark.parametrize(
    "pattern",
    [
        *("model.layers.{i}.output", "tf_bert_model/bert/encoder/layer_._{i}/output", "encoder_layer_{i}_output"),
        *("transformer_layer_{i}", "EncoderLayer{i}", "l_out-{i}", "bert/encoder/layer_{i}/output:0"),
    ],
)
def test_names_of_other_frameworks(case: Case, pattern: str) -> None:
    model, inputs, trace = case
    depth = model.config.num_hidden_layers
    dump = {pattern.format(i=i): trace[f"encoder.layer.{i}"] for i in range(depth)}
    report = parity.check(model, dump, inputs)
    assert (report.verdict, [row.name for row in report.names]) == (
        "bits",
        [f"encoder.layer.{i}" for i in range(depth)],
    )
    dump = {f"hiddenStates[{i}]": value for i, value in enumerate(states(trace).values())}
    assert (parity.check(model, dump, inputs).verdict, len(dump)) == ("bits", depth + 1)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_values_in_half_precision_are_recognised(case: Case, precision: str) -> None:
    model, inputs, trace = case
    dump = {name: round_to(precision, array) for name, array in states(trace).items()}
    report = parity.check(model, dump, inputs)
    assert (report.verdict, report.first, report.exit_code) == (precision, None, 1)
    assert parity.check(model, dump, inputs, budget=precision).exit_code == 0


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_forward_in_half_precision_is_recognised(folder: Path, case: Case, precision: str) -> None:
    import torch

    model, inputs, _ = case
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    with torch.inference_mode():
        output = theirs(folder).to(getattr(torch, precision))(**tensors, output_hidden_states=True).hidden_states
    dump = {f"hidden_states.{i}": state.float().numpy() for i, state in enumerate(output)}
    assert parity.check(model, dump, inputs).verdict == precision
    for kind, ids in (("word", "input_ids"), ("token_type", "token_type_ids")):
        name = f"embeddings.{kind}_embeddings"
        looked_up = round_to(precision, Subject.of(model).weights()[f"{name}.weight"])[inputs[ids]]
        assert parity.check(model, {**dump, name: looked_up}, inputs).verdict == precision
        exact_rows = Subject.of(model).weights()[f"{name}.weight"][inputs[ids]]  # from a table in float32
        assert parity.check(model, {**dump, name: exact_rows}, inputs).verdict == precision
        assert parity.check(model, {**dump, name: looked_up * 2}, inputs, diagnosis=False).verdict == "wrong"


def test_an_error_as_small_as_that_of_float16_is_wrong_where_the_embeddings_are_exact(case: Case) -> None:
    model, inputs, trace = case
    dump = states(trace)
    for name in ("hidden_states.1", "hidden_states.2"):
        dump[name] = dump[name] * np.float32(1 + 2.0**-11)
    assert parity.check(model, dump, inputs, diagnosis=False).verdict == "wrong"
    assert parity.check(model, {"hidden_states.2": dump["hidden_states.2"]}, inputs, diagnosis=False).verdict == "wrong"


@pytest.mark.parametrize("id", ["N1.1e-5", "N2.1e-5", "N3.unbiased"])
def test_a_small_mistake_in_the_embeddings_is_not_taken_for_half_precision(minilm: Any, id: str) -> None:
    """The error of a wrong eps is as large as that of float16 in every state; but it is a factor for each token."""
    subject, inputs = minilm
    port = simulate(subject.model, inputs, id, record=["embeddings", "encoder.layer.0"])
    report = parity.check(subject, port, inputs, diagnosis=False)
    assert (report.verdict, report.first) == ("wrong", "embeddings")


def test_a_number_as_budget(case: Case) -> None:
    model, inputs, trace = case
    dump = states(trace)
    unit = parity.check(model, dump, inputs).names[1].unit
    dump["hidden_states.1"] = dump["hidden_states.1"] + np.float32(20 * unit)
    exit_codes = [parity.check(model, dump, inputs, budget=units, diagnosis=False).exit_code for units in (5, 30)]
    assert exit_codes == [1, 0]


@pytest.mark.parametrize("budget", ["double", 0, -1.0, float("inf"), True, None])
def test_a_budget_that_means_nothing_is_refused(case: Case, budget: Any) -> None:
    with pytest.raises(ValueError, match="budget="):
        parity.check(case[0], case[2], case[1], budget=budget)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("hidden_states.1", "encoder.layer.0"), ("encoder.layer.0", "bert.encoder.layer.0")])
@pytest.mark.parametrize("order", [1, -1])
def test_a_wrong_array_counts_although_another_name_of_the_value_is_right(
    case: Case, names: tuple[str, str], order: int
) -> None:
    model, inputs, trace = case
    right = trace["encoder.layer.0"]
    dump = dict(list(zip(names, (right, right * 0), strict=True))[::order])
    report = parity.check(model, dump, inputs)
    assert (report.verdict, report.first, len(report.names)) == ("wrong", "encoder.layer.0", 2)
    assert "hold different numbers" in report.warnings[0]
    dump = dict.fromkeys(names, right)
    assert (parity.check(model, dump, inputs).verdict, len(dump)) == ("bits", 2)


def test_one_wrong_state_beside_all_states_in_one_array(case: Case) -> None:
    model, inputs, trace = case
    stacked = np.stack(list(states(trace).values()))
    for one in ({"hidden_states.2": stacked[1]}, {"layer_1": stacked[0]}):
        report = parity.check(model, {"hidden_states": stacked, **one}, inputs, diagnosis=False)
        assert (report.verdict, report.first) == ("wrong", "encoder.layer.1")


def test_names_with_loose_numbers_are_counted_in_one_way(case: Case) -> None:
    model, inputs, trace = case
    dump = {f"layer_{i}": trace[f"hidden_states.{i}"] for i in range(3)}
    assert parity.check(model, dump, inputs).verdict == "bits"
    dump["layer_1"] = dump["layer_0"]
    assert parity.check(model, dump, inputs, diagnosis=False).verdict == "wrong"
    dump = {f"layer_{i}": trace[f"encoder.layer.{i}"] for i in (0, 0)}
    assert parity.check(model, dump, inputs).verdict == "bits"


def test_inputs_and_weights_with_two_names_are_both_compared(case: Case) -> None:
    model, inputs, trace = case
    ids = inputs["input_ids"]
    for dump in ({"ids": ids, "input_ids": ids + 1}, {"input_ids": ids + 1, "ids": ids}):
        assert parity.check(model, {**states(trace), **dump}, inputs).first == "input_ids"
    bias = Subject.of(model).weights()["embeddings.LayerNorm.bias"]
    pair = [("embeddings.LayerNorm.beta", bias), ("bert.embeddings.LayerNorm.bias", bias + 1)]
    for order in (1, -1):
        assert parity.check(model, {**states(trace), **dict(pair[::order])}, inputs).verdict == "wrong"


def test_inputs_that_are_not_given_are_compared_with_the_usual_ones_or_named(case: Case) -> None:
    model, _, _ = case
    inputs = {"input_ids": np.arange(5, 12)[None].repeat(2, 0)}
    trace = model.trace(**inputs, record="hidden_states.*")
    places = np.arange(7)[None]
    assert parity.check(model, {**trace, "position_ids": places, "mask": places < 7}, inputs).verdict == "bits"
    report = parity.check(model, {**trace, "position_ids": places + 1}, inputs)
    assert (report.verdict, report.first) == ("wrong", "position_ids")
    report = parity.check(model, {**trace, "position_ids": np.arange(512)}, inputs)
    assert (report.verdict, "position_ids in the dump, of shape (512,), was not compared" in str(report)) == (
        "bits",
        True,
    )


@pytest.mark.parametrize("shift", [1, 2])
def test_rotated_names_of_exact_states_are_wrong_although_they_are_near(case: Case, shift: int) -> None:
    model, inputs, trace = case
    values = list(states(trace).values())
    dump = {name: values[(i + shift) % 3] for i, name in enumerate(states(trace))}
    assert parity.check(model, dump, inputs, budget="bfloat16", diagnosis=False).exit_code == 1


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_with_names_that_are_off_by_one(tmp_path: Path, precision: str) -> None:
    """The layers of this model change the state less than half precision rounds it."""
    import transformers

    sizes = {"vocab_size": 90, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.BertConfig(**sizes, intermediate_size=40, initializer_range=1e-4)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    model = BertModel.from_pretrained(tmp_path, backend="numpy")
    inputs = dict(parity.probe(model).inputs)
    trace = model.trace(**inputs, record="hidden_states.*")
    values = [round_to(precision, value) for value in trace.values()]
    for shift in (0, 1):
        dump = {f"hidden_states.{i}": values[min(i + shift, 2)] for i in range(3)}
        report = parity.check(model, dump, inputs, budget=precision, diagnosis=False)
        assert (report.verdict, report.exit_code) == (precision, 0)
        assert "The dump cannot tell hidden_states.0 from encoder.layer.0" in report.warnings[0]


@pytest.mark.parametrize("shift", [1, -1])
def test_states_counted_from_another_number_are_found_before_any_verdict(case: Case, shift: int) -> None:
    model, inputs, trace = case
    dump = {f"hidden_states.{i}": trace[f"hidden_states.{i + shift}"] for i in range(3) if 0 <= i + shift < 3}
    report = parity.check(model, dump, inputs, diagnosis=False)
    assert (report.verdict, report.exit_code) == ("wrong", 1)
    (finding,) = report.diagnosis
    assert finding.mistake == ("H1.late" if shift == -1 else "H1.early")


@pytest.mark.parametrize("first", [0, 1])
def test_names_that_do_not_say_which_state_they_are_are_matched_by_value(case: Case, first: int) -> None:
    model, inputs, trace = case
    dump = {f"layer_{i:02d}": trace[f"hidden_states.{i + first}"] for i in range(2)}
    report = parity.check(model, dump, inputs)
    assert report.verdict == "bits"
    assert [row.name for row in report.names] == ["embeddings", "encoder.layer.0", "encoder.layer.1"][first : first + 2]


def test_all_states_in_one_array(case: Case) -> None:
    model, inputs, trace = case
    report = parity.check(model, {"hidden_states": np.stack(list(states(trace).values()))}, inputs)
    assert (report.verdict, len(report.names)) == ("bits", 3)


def test_a_value_before_its_norm_is_named(case: Case) -> None:
    model, inputs, trace = case
    dump = {"hidden_states.2": trace["encoder.layer.1.output.LayerNorm.input"]}
    report = parity.check(model, dump, inputs, diagnosis=False)
    assert report.names[0].holds == "encoder.layer.1.output.LayerNorm.input"
    assert "LayerNorm.input" in report.diagnosis[0].text


@pytest.mark.parametrize("prefix", ["bert.", "model.", "BertModel.", "0.auto_model."])
def test_prefixes_and_other_spellings(case: Case, prefix: str) -> None:
    model, inputs, trace = case
    dump = {f"{prefix}encoder.layer.0": trace["encoder.layer.0"], "blocks.1.ln1.hook_in": trace[1, "attention_sum"]}
    report = parity.check(model, dump, inputs)
    assert report.verdict == "bits"
    assert [row.name for row in report.names] == [
        "encoder.layer.0",
        "encoder.layer.1.attention.output.LayerNorm.input",
    ]


def test_a_map_renames(case: Case) -> None:
    model, inputs, trace = case
    dump = {"mine": trace["encoder.layer.1.attention.self.key"]}
    assert parity.check(model, dump, inputs, names={"mine": "encoder.layer.1.attention.self.key"}).verdict == "bits"
    with pytest.raises(ValueError, match=r"nearest names are encoder\.layer\.1"):
        parity.check(model, dump, inputs, names={"mine": "encoder.layer.1.attention.self.kei"})
    with pytest.raises(ValueError, match="not in the dump"):
        parity.check(model, dump, inputs, names={"his": "encoder.layer.1"})


@pytest.mark.parametrize("dump", [{"x": np.zeros((3, 2))}, {"embeddings": np.zeros((7, 7, 7))}])
def test_nothing_that_can_be_compared_is_an_error_of_its_own(case: Case, dump: dict[str, np.ndarray]) -> None:
    with pytest.raises(parity.NothingComparedError, match="Nothing can be compared"):
        parity.check(case[0], dump, case[1])


def test_unknown_names_are_listed(case: Case) -> None:
    model, inputs, trace = case
    report = parity.check(model, {**states(trace), "loss": np.zeros(3)}, inputs)
    assert (report.unknown, report.warnings) == (["loss"], [])
    assert "loss" in str(report)
    assert "1 unknown name not compared" in str(report).splitlines()[0]
    report = parity.check(model, {**states(trace), **{f"loss{i}": np.zeros(3) for i in range(4)}}, inputs)
    assert "More names are unknown (4) than were compared (3)" in report.warnings[0]


def test_a_loose_name_of_another_value_is_not_compared_beside_the_exact_name(case: Case) -> None:
    model, inputs, trace = case
    gradient = np.random.default_rng(0).standard_normal(trace["embeddings"].shape).astype(np.float32)
    for scale in (1e-6, 1):
        report = parity.check(model, {**states(trace), "grad/hidden_states.1": gradient * scale}, inputs)
        assert (report.verdict, report.unknown) == ("bits", ["grad/hidden_states.1"])


# --- inputs and weights -----------------------------------------------------------------------------------------------


def test_other_ids_stop_the_comparison(case: Case) -> None:
    model, inputs, trace = case
    ids = inputs["input_ids"].copy()
    ids[2, 3] += 1
    report = parity.check(model, {**states(trace), "input_ids": ids}, inputs)
    assert (report.verdict, report.first, report.names) == ("wrong", "input_ids", [])
    assert "row 2" in report.diagnosis[0].text


def test_ids_in_masked_places_may_differ(case: Case) -> None:
    model, inputs, trace = case
    ids = np.where(inputs["attention_mask"], inputs["input_ids"], 3)
    assert parity.check(model, {**states(trace), "input_ids": ids}, inputs).verdict == "bits"


def test_the_ids_in_the_dump_are_the_inputs_if_there_are_no_others(case: Case) -> None:
    model, inputs, trace = case
    assert parity.check(model, {**states(trace), **inputs}).verdict == "bits"
    with pytest.raises(ValueError, match="The inputs are not known"):
        parity.check(model, states(trace))


def test_weights_are_compared_first_and_bit_for_bit(case: Case) -> None:
    model, inputs, trace = case
    weights = {name: array.copy() for name, array in Subject.of(model).weights().items()}
    gamma = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): array for name, array in weights.items()}
    assert parity.check(model, {**states(trace), **gamma}, inputs).verdict == "bits"
    weights["encoder.layer.1.output.dense.bias"][3] += np.float32(1e-6)
    report = parity.check(model, {**states(trace), **weights}, inputs)
    assert (report.verdict, report.first) == ("wrong", "encoder.layer.1.output.dense.bias")
    rounded = round_to("float16", weights["embeddings.word_embeddings.weight"])
    report = parity.check(model, {**states(trace), "bert.embeddings.word_embeddings.weight": rounded}, inputs)
    assert "rounded to float16" in report.diagnosis[0].text


def test_transposed_weights_are_a_layout(case: Case) -> None:
    model, inputs, trace = case
    weight = Subject.of(model).weights()["encoder.layer.0.intermediate.dense.weight"].T
    report = parity.check(model, {**states(trace), "encoder.layer.0.intermediate.dense.weight": weight}, inputs)
    assert (report.verdict, report.warnings) == ("bits", [])
    assert "transposed" in str(report)


def test_a_square_weight_that_is_transposed_is_a_warning(case: Case) -> None:
    model, inputs, trace = case
    weights = Subject.of(model).weights()
    names = [f"encoder.layer.{i}.attention.output.dense.weight" for i in (0, 1)]
    report = parity.check(model, {**states(trace), names[0]: weights[names[0]].T, names[1]: weights[names[1]]}, inputs)
    assert names[0] in report.warnings[0]
    assert report.notes == ["1 weight in the dump: equal to the checkpoint's."]


def test_every_name_behind_one_prefix_is_compared(case: Case) -> None:
    model, inputs, trace = case
    dump = {f"/m/{name}": np.array(trace[name]) for name in trace.names}
    assert parity.check(model, dump, inputs).verdict == "bits"
    dump["/m/encoder.layer.1.attention.self.query"] *= 2
    assert parity.check(model, dump, inputs).verdict == "wrong"


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
    found = model(**inputs).hidden_states
    report = parity.check(model, {f"hidden_states.{3 - i}": state for i, state in enumerate(found)}, inputs)
    assert report.verdict == "float32"
    assert "cannot tell" in report.warnings[0]
    assert "11 other pairs" in report.warnings[0]  # each of 4 states from the 3 others


# --- units ------------------------------------------------------------------------------------------------------------


def test_the_values_in_several_groups_are_those_of_one_forward(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, _ = case
    subject, names = Subject.of(model), list(Subject.of(model).names.specs)
    batch = subject.pack(inputs)
    monkeypatch.setattr("minibert.parity.truth._GROUP_NBYTES", 50_000)
    values = Values(subject, inputs, batch, names)
    assert len(values._groups) > 5
    whole = exact.forward(model, **inputs)
    for name in names:
        np.testing.assert_array_equal(values[name], whole[name], err_msg=name)


def test_the_unit_is_the_error_of_transformers(folder: Path, case: Case) -> None:
    """Within a factor of two for each hidden state, on another library's own order of operations."""
    import torch

    model, inputs, _ = case
    subject = Subject.of(model)
    batch = subject.pack(inputs)
    names = ["embeddings", "encoder.layer.0", "encoder.layer.1"]
    truth = Values(subject, inputs, batch, names)
    units = measure_units(subject, inputs, batch, truth, names)
    with torch.inference_mode():
        tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
        output = theirs(folder)(**tensors, output_hidden_states=True).hidden_states
    shown = inputs["attention_mask"].astype(bool)
    for name, state in zip(names, output, strict=True):
        error = state.numpy().astype(np.float64)[shown] - truth[name][shown]
        assert 0.5 < np.sqrt(np.mean(error**2)) / units[name].rms < 2
        assert np.abs(error).max() / units[name].largest < LARGEST
    assert RMS < LARGEST


# --- vectors ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentence(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    modules = ["models.Transformer", "models.Pooling", "models.Normalize"]
    return SentenceTransformer(sentence_model(tmp_path_factory.mktemp("vectors"), modules), backend="numpy")


def test_sentence_vectors(sentence: SentenceTransformer) -> None:
    texts = ["the cat", "a dog sat on the mat", "hello"]
    vectors = sentence.encode(texts)
    inputs = sentence.tokenizer(texts, padding=True, return_tensors="np")
    report = parity.check(sentence, {"vectors": vectors}, inputs)
    assert (report.verdict, report.names[0].name) == ("float32", "sentence_embedding")
    report = parity.check(sentence, {"vectors": vectors * np.float32(1.001)}, inputs, diagnosis=False)
    assert (report.verdict, report.first) == ("wrong", "sentence_embedding")


def test_vectors_need_the_modules_of_the_model(sentence: SentenceTransformer) -> None:
    inputs = dict(parity.probe(sentence).inputs)
    with pytest.raises(parity.NothingComparedError):
        parity.check(sentence.model, {"sentence_embedding": np.zeros((5, 24), np.float32)}, inputs)


@pytest.mark.parametrize("model", [None, "name", np.zeros(3), {}])
def test_what_is_not_a_model_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match="expected a model of minibert"):
        parity.check(model, {"embeddings": np.zeros(3)}, {})


@pytest.mark.parametrize("inputs", [{}, {"input_ids": None}, 3, {"attention_mask": [[1]]}, {"input_ids": [[1e9]]}])
def test_inputs_that_are_not_the_models_are_refused(case: Case, inputs: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="input"):
        parity.check(case[0], case[2], inputs)
