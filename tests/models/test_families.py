"""What every family must do: the numbers, heads, files, traces and answers of transformers.

A new family is a record in minibert/bert/families/ and one in tests/support/families.py. All tests of this file run
on it, and those of test_family_configs.py, tests/tokenizer/test_families.py and tests/parity/test_families.py.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto.modeling_auto import MODEL_FOR_PRETRAINING_MAPPING_NAMES

import minibert
import minibert.bert.families
import minibert.models.steps
from minibert import AutoModelForPreTraining, BertTokenizer, Edit, ModelFormatError, inside, load, parity
from minibert.bert.families import FAMILIES
from minibert.bert.low_precision import COMPUTE_TYPES
from minibert.checkpoint.files import locate
from minibert.inside.explain import explain
from minibert.kernels.threads import Team
from minibert.models import float64
from minibert.models.stored import find_heads
from minibert.sentence.facts import describe
from minibert.trace.page.document import page
from minibert.trace.trace import Trace
from tests.support.families import (
    KINDS,
    OTHER_NAMES,
    PAIRS,
    ROTARY,
    SAMPLES,
    by_forward,
    family_folder,
    in_float64,
    inputs,
    make,
    modules_of,
    train,
)
from tests.support.json_files import change_json
from tests.support.marks import by_default, sampled
from tests.trace.test_explain import check
from tests.trace.test_page import decoded

pytestmark = pytest.mark.usefixtures("one_thread")

NLI = ("contradiction", "neutral", "entailment")
LABELS = {"id2label": dict(enumerate(NLI)), "label2id": {name: i for i, name in enumerate(NLI)}}
UNTIED = {"tie_word_embeddings": False}
FORWARDS = [family for family in FAMILIES if family not in OTHER_NAMES]


def test_every_family_has_a_sample_and_a_row_in_the_table_of_families() -> None:
    assert list(SAMPLES) == list(FAMILIES)
    assert all(name in (minibert.bert.families.__doc__ or "") for name in FAMILIES)


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_vector_of_ernies_first_task_is_in_those_of_the_token_types(tmp_path: Path, kind: str) -> None:
    """The model is then one without tasks, for transformers too."""
    theirs = make(tmp_path, "ernie", kind, use_task_id=True, task_type_vocab_size=4)
    ours, (ids, _) = load(tmp_path), inputs(0)
    given = {"input_ids": ids[None] if kind == "ForMultipleChoice" else ids}
    expected = theirs(**{name: torch.as_tensor(array) for name, array in given.items()})[0].detach().numpy()
    ours.save_pretrained(tmp_path / "saved")
    for model in (ours, load(tmp_path / "saved")):
        np.testing.assert_allclose(np.asarray(model(**given)[0]), expected, rtol=0, atol=2e-5)
    again = type(theirs).from_pretrained(tmp_path / "saved")
    assert not again.config.use_task_id
    found = again(**{name: torch.as_tensor(array) for name, array in given.items()})[0].detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    with pytest.raises((TypeError, ValueError), match="task_type_ids"):
        ours(**given, task_type_ids=np.ones_like(given["input_ids"]))


def test_alberts_two_heads_of_pre_training(tmp_path: Path) -> None:
    theirs, (ids, _) = make(tmp_path, "albert", "ForPreTraining"), inputs(0)
    ours, expected = load(tmp_path), theirs(torch.as_tensor(ids))
    assert type(ours).__name__ == type(theirs).__name__
    for name, logits in zip(("prediction_logits", "seq_relationship_logits"), expected[:2], strict=True):
        np.testing.assert_allclose(getattr(ours(ids), name), logits.detach().numpy(), rtol=0, atol=2e-5)
    ours.save_pretrained(tmp_path / "saved")
    again = type(theirs).from_pretrained(tmp_path / "saved").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in theirs.state_dict().items())


@pytest.mark.parametrize(
    ("family", "kind", "tied"),
    sampled(
        [*((*pair, True) for pair in PAIRS), *((family, "ForMaskedLM", False) for family in FAMILIES)],
        *(6, [*product(FORWARDS, KINDS, (True, False)), *product(FAMILIES, ("Model", "ForPreTraining"), (True,))]),
    ),
)
def test_models_heads_and_saved_files_equal_transformers(tmp_path: Path, family: str, kind: str, tied: bool) -> None:
    more: dict[str, Any] = {} if tied else UNTIED
    more = more | {"dropout" if family == "distilbert" else "hidden_dropout_prob": 0.25, "initializer_range": 0.5}
    more |= {"bos_token_id": 7, "classifier_dropout": 0.5, "of_a_team": {"a": [1]}}
    more |= {} if kind == "ForQuestionAnswering" else LABELS | {"problem_type": "multi_label_classification"}
    theirs = make(tmp_path, family, kind, **more)
    ours = load(tmp_path)
    assert type(ours).__name__ == type(theirs).__name__
    assert pickle.loads(pickle.dumps(type(ours))) is type(ours)
    left_out = {name: tensor for name, tensor in theirs.state_dict().items() if "contact_head" in name}  # of ESM
    if "tie_word_embeddings" not in more:
        count = theirs.num_parameters() - sum(tensor.numel() for tensor in left_out.values())
        assert (ours.num_parameters(), {*ours.weights.ignored}) == (count, {*left_out})
    if not FAMILIES[family].has_windows:  # with windows, masked rows are NaN there; test_own_parts.py compares them
        theirs.set_attn_implementation("eager")
    ids, mask = inputs(theirs.config.pad_token_id)
    shape = (2, 2, 17) if kind == "ForMultipleChoice" else ids.shape
    given = {"input_ids": ids.reshape(shape), "attention_mask": mask.reshape(shape)}
    found = ours(**given, output_hidden_states=True, output_attentions=True)
    tensors = {name: torch.as_tensor(array) for name, array in given.items()}
    with torch.no_grad():
        wanted = in_float64(theirs)(**tensors, output_hidden_states=True, output_attentions=True)
        rounded = theirs(**tensors, output_hidden_states=True)
    assert kind == "Model" or (type(found).__name__, *found.keys()) == (type(wanted).__name__, *wanted.keys())
    shown = mask.astype(bool)
    if not FAMILIES[family].has_windows:
        for probs, exact in zip(found.attentions, wanted.attentions, strict=True):
            pairs = np.broadcast_to((shown[:, :, None] & shown[:, None, :])[:, None], probs.shape)
            np.testing.assert_allclose(probs[pairs], exact.numpy()[pairs], rtol=0, atol=1e-5)
    for state, exact, single in zip(found.hidden_states, wanted.hidden_states, rounded.hidden_states, strict=True):
        error, other = (np.sqrt(np.mean((x[shown] - exact.numpy()[shown]) ** 2)) for x in (state, single.numpy()))
        assert error <= other
    for name, value in wanted.items():
        if not isinstance(value, torch.Tensor):
            continue
        exact, array = value.numpy(), np.asarray(found[name])
        rows: Any = shown if exact.shape[:2] == ids.shape else slice(0, 3)  # the last row shows no first token
        if kind == "ForMultipleChoice":
            exact, array = exact.ravel(), array.ravel()
        np.testing.assert_allclose(array[rows], exact[rows], rtol=0, atol=2e-5)
    saved = tmp_path / "saved"
    ours.save_pretrained(saved)
    again = type(theirs).from_pretrained(saved).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in theirs.state_dict().items() if name not in left_out)
    if family not in ROTARY:  # transformers names the tensors of these as older files do
        assert load_file(saved / "model.safetensors").keys() == load_file(tmp_path / "model.safetensors").keys()
    np.testing.assert_array_equal(load(saved)(**given, output_hidden_states=True)[-1][-1], found.hidden_states[-1])
    before, after = (transformers.AutoConfig.from_pretrained(folder).to_dict() for folder in (tmp_path, saved))
    assert before.pop("_name_or_path") != after.pop("_name_or_path")
    before.setdefault("tie_word_embeddings", True)  # that of nomic does not have the field
    assert after == before
    if MODEL_FOR_PRETRAINING_MAPPING_NAMES.get(family) == type(ours).__name__:
        assert type(AutoModelForPreTraining.from_pretrained(tmp_path)) is type(ours)
    elif kind == "ForMaskedLM" and family in ("bert", "electra"):
        with pytest.raises(ModelFormatError, match=f"{FAMILIES[family].class_name}ForPreTraining|has no head"):
            AutoModelForPreTraining.from_pretrained(tmp_path)


_FLOAT64 = {name: getattr(float64.OPS, name) for name in ("embed", "linear", "attention", "layer_norm", "dtype")}


WIDTHS = {"ForMaskedLM": 96, "ForSequenceClassification": 24}
"""Three heads of 32 and of 8; the maps of 96 features fill panels."""


@pytest.mark.parametrize(
    ("family", "kind"),
    by_default(
        product(FAMILIES, WIDTHS), *zip(FORWARDS, itertools.cycle(WIDTHS)), ("bert", "ForSequenceClassification")
    ),
)
def test_tokens_that_are_not_read_do_not_change_a_bit(
    tmp_path: Path, family: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minibert.models.steps, "TOGETHER_BYTES", 0)  # with few tokens all are computed
    make(tmp_path, family, kind, **{FAMILIES[family].own_name("hidden_size"): WIDTHS[kind]})
    ids, mask = inputs(1, rows=70)
    ids[:, 0], mask[5], mask[60:, 0] = 4, 0, 0
    positions = {"positions": [(3, 3), (0, 5), (0, 2), (3, 1), (9, 16), (66, 4)]} if kind == "ForMaskedLM" else {}
    for compute_type in COMPUTE_TYPES:
        model = load(tmp_path, compute_type=compute_type)
        whole = model.with_ops(model.ops._replace(all_tokens=True))
        for threads in (None, 1):
            part = model if threads is None else load(tmp_path, compute_type=compute_type, num_threads=threads)
            found, expected = (each(ids, mask, **positions).logits for each in (part, whole))
            assert found.any()
            assert found.tobytes() == expected.tobytes()
        if compute_type in ("float32", "int8"):
            exact = [each.with_ops(each.ops._replace(**_FLOAT64)) for each in (model, whole)]
            np.testing.assert_allclose(*(each(ids, mask, **positions).logits for each in exact), rtol=0, atol=1e-11)


# --- tensors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute_type", ["float32", "int8"])
@pytest.mark.parametrize("family", by_forward(FAMILIES))
def test_a_forward_in_one_call_has_the_bits_of_one_call_for_each_op(
    tmp_path: Path, family: str, compute_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, family, "Model")
    options = {"backend": "kernels", "compute_type": compute_type, "num_threads": 2}
    model = minibert.AutoModel.from_pretrained(tmp_path, **options)
    calls: list[int] = []
    start = Team.start
    monkeypatch.setattr(
        Team,
        "start",
        lambda team, helpers, states, size: (calls.append(len(states)), start(team, helpers, states, size)),
    )
    ids, mask = inputs(1)
    together = model(ids, mask).hidden_states
    assert max(calls) > 3 * model.config.num_hidden_layers
    others = np.where(ids > 3, ids - 1, ids)
    again = model(others, mask).hidden_states
    assert [x.tobytes() for x in model(ids, mask).hidden_states] == [x.tobytes() for x in together]
    monkeypatch.setattr(minibert.models.steps, "TOGETHER_BYTES", 0)
    calls.clear()
    separate = model(ids, mask).hidden_states
    assert max(calls) == 1
    assert [x.tobytes() for x in again] == [x.tobytes() for x in model(others, mask).hidden_states]
    assert [x.tobytes() for x in together] == [x.tobytes() for x in separate]


@pytest.mark.parametrize("family", by_forward(FAMILIES))
def test_tied_weights_by_either_name(tmp_path: Path, family: str) -> None:
    """Of two tensors with one storage, `safetensors.torch.save_model` keeps the name that is first in the alphabet."""
    theirs, ids = make(tmp_path, family, "ForMaskedLM", tie_word_embeddings=True), np.arange(5, 20)[None]
    path = tmp_path / "model.safetensors"
    count = theirs.num_parameters() - sum(x.numel() for name, x in theirs.named_parameters() if "contact_head" in name)
    expected, field = load(tmp_path)(ids, output_hidden_states=True), f"{FAMILIES[family].field}."
    whole = {name: tensor.clone() for name, tensor in theirs.state_dict().items() if "position_ids" not in name}
    words = f"{field}{FAMILIES[family].own_path('embeddings.word_embeddings')}.weight"
    parts = [FAMILIES[family].own_path(f"cls.predictions{part}", "BertForMaskedLM") for part in (".decoder", "")]
    decoder, biases = f"{parts[0]}.weight", {f"{part}.bias" for part in parts} & {*whole}
    renames: list[Callable[[str], str]] = [lambda name: f"model.{name}", lambda name: name.removeprefix(field)]
    assert biases or family in ("eurobert", "ultrabert")
    stored = [*((*pair, str) for pair in product([words, decoder, None], [*biases, None]))]
    for weight, bias, rename in [*stored, *((decoder, None, rename) for rename in renames)]:
        left_out = ({words, decoder} - {weight} if weight else set()) | (biases - {bias} if bias else set())
        save_file({rename(name): whole[name] for name in whole if name not in left_out}, path, {"format": "pt"})
        found = load(tmp_path)
        np.testing.assert_array_equal(found(ids).logits, expected.logits)
        assert found.num_parameters() == count
        states = minibert.AutoModel.from_pretrained(tmp_path)(ids).last_hidden_state
        np.testing.assert_array_equal(states, expected.hidden_states[-1])
    save_file(whole, path, {"format": "pt"})
    untied = replace(minibert.BertConfig.from_pretrained(tmp_path), tie_word_embeddings=False)
    assert load(tmp_path, config=untied).num_parameters() == count  # equal tensors are tied
    for left, message in ((words, r"embed.*\.weight is missing"), (decoder, "missing.*tie_word_embeddings false")):
        save_file({name: value for name, value in whole.items() if name != left}, path, {"format": "pt"})
        with pytest.raises(ModelFormatError, match=message):
            load(tmp_path, config=untied)
    save_file({**whole, decoder: 0.5 * whole[words]}, path, {"format": "pt"})  # transformers 5 does not tie them then
    with torch.no_grad():
        wanted = type(theirs).from_pretrained(tmp_path)(torch.as_tensor(ids)).logits
    np.testing.assert_allclose(load(tmp_path)(ids).logits, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", by_forward(FAMILIES))
def test_tensors_that_the_model_does_not_have(tmp_path: Path, family: str) -> None:
    """Published files of ELECTRA have a projection, also where the embeddings have the hidden size."""
    theirs = make(tmp_path, family, **({"embedding_size": 24} if family == "electra" else {}))
    whole, ids = theirs.state_dict(), np.arange(5, 20)[None]
    expected = load(tmp_path)(ids).last_hidden_state
    strays = {"embeddings_project.weight": torch.ones(24, 24), "embeddings_project.bias": torch.ones(24)}
    strays = {} if FAMILIES[family].always_projects else strays
    if not FAMILIES[family].has_token_types:
        strays["embeddings.token_type_embeddings.weight"] = torch.ones(2, 24)
    save_file({**whole, **strays}, tmp_path / "model.safetensors", {"format": "pt"})
    model = load(tmp_path)
    assert {*model.weights.ignored} >= {*strays}
    np.testing.assert_array_equal(model(ids).last_hidden_state, expected)
    with torch.no_grad():
        wanted = type(theirs).from_pretrained(tmp_path)(torch.as_tensor(ids)).last_hidden_state
    np.testing.assert_allclose(expected, wanted, rtol=0, atol=2e-5)


# --- intermediate values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "kind"), sampled(PAIRS, 4, product(FORWARDS, ("Model", "ForMaskedLM"))))
def test_heads_are_found_and_every_name_of_a_trace_is_read_and_saved(tmp_path: Path, family: str, kind: str) -> None:
    labels = {"num_labels": 1} if kind == "ForSequenceClassification" else {}
    bare = {"decoder_bias": False} if family == "modernbert" else {}
    theirs = make(tmp_path, family, kind, **labels, **bare)
    files, name = locate(tmp_path), f"Bert{kind}"
    parts = ("BertForMaskedLM", "BertForNextSentencePrediction") if kind == "ForPreTraining" else ()
    assert find_heads(files) == (() if kind == "Model" else (name, *parts))
    assert describe(tmp_path)["facts"]["heads"][:1] == [type(theirs).__name__] * bool(kind != "Model")
    ids = np.arange(5, 15).reshape((1, 2, 5) if kind == "ForMultipleChoice" else (2, 5))
    trace = load(tmp_path).trace(ids)
    values = {value: np.asarray(trace[value]) for value in trace}
    assert all(array.size for array in values.values())
    for module, array in modules_of(theirs, input_ids=ids)[0].items() if kind == "Model" else ():
        if not module.endswith(tuple(FAMILIES[family].stacked)):
            np.testing.assert_allclose(trace[module], np.broadcast_to(array, trace[module].shape), rtol=0, atol=1e-5)
    trace.save(tmp_path / "trace.npz")
    saved = Trace.load(tmp_path / "trace.npz")
    assert [*saved] == [*values] == [*load(tmp_path).value_names().specs]
    for value, array in values.items():
        np.testing.assert_array_equal(saved[value], array)
    # Without the name of the class, a head that is a part of another one is not there.
    change_json(tmp_path / "config.json", "architectures")
    heads = find_heads(files)
    assert kind == "Model" or name in heads
    assert ("BertForMaskedLM" in heads) == (kind in ("ForMaskedLM", "ForPreTraining"))


@pytest.mark.parametrize("family", by_forward(FAMILIES))
def test_edits_analyses_and_options(tmp_path: Path, family: str) -> None:
    make(tmp_path, family)
    model = load(tmp_path)
    ids, mask = inputs(model.config.pad_token_id)
    given, layer = {"input_ids": ids, "attention_mask": mask}, "encoder.layer.1.attention.self"
    output, trace = model(**given), model.trace(**given)
    for i, state in enumerate(output.hidden_states):
        np.testing.assert_array_equal(trace[f"hidden_states.{i}"], state)
    for name in trace:
        if not name.startswith("embeddings.") and "LayerNorm.input" not in name:
            same = model.trace(**given, record=("hidden_states.3",), edit={name: np.copy}, allow_noop=True)
            np.testing.assert_array_equal(same["hidden_states.3"], output[0])
    edited = model.trace(**given, edit={f"{layer}.scores": lambda scores: scores + np.float32(1)})
    np.testing.assert_allclose(edited["hidden_states.3"], output[0], rtol=0, atol=1e-5)
    for rotated in ("query.rotated", "key.rotated") if family in ROTARY else ():
        changed = model.trace(**given, edit={f"{layer}.{rotated}": lambda x: x * np.float32(0.5)})[f"{layer}.scores"]
        plain = trace[f"{layer}.scores"]
        seen = np.isfinite(plain) & (np.abs(plain) < 1e9)  # the scores beyond a window are -inf
        np.testing.assert_allclose(changed[seen], 0.5 * plain[seen], rtol=1e-4, atol=1e-6)
    measure = lambda output: float(output.last_hidden_state[0, 3, 5])  # noqa: E731
    for each in (model, model.with_ops(float64.OPS)):
        changes = inside.ablate_heads(each, given, measure)
        one = each.trace(**given, record=(), edit={layer: Edit.zero(heads=2)}).output
        assert changes[1, 2] == measure(one) - measure(each(**given))
        np.testing.assert_allclose(inside.value_zeroing(each, given).sum(axis=3)[:, mask == 1], 1)
    assert inside.norms(model, given).shape == (3, 4, 17, 17)
    for compute_type, most in (("int16", 1e-3), ("int8", 0.1), ("int8_int16", 0.05)):
        low = load(tmp_path, compute_type=compute_type)(**given)[0]
        assert 0 < np.abs(low - output[0]).max() < most
    for options in ({"shared_weights": True}, {"num_threads": 1}):
        np.testing.assert_array_equal(load(tmp_path, **options)(**given)[0], output[0])
    np.testing.assert_array_equal(model(ids[1:2, :9])[0], output[0][1:2, :9])


@pytest.mark.parametrize("family", by_forward(FAMILIES))
def test_each_step_is_explained_and_shown(tmp_path: Path, family: str, small_folder: Path) -> None:
    make(tmp_path, family)
    model, tokenizer = load(tmp_path), BertTokenizer.from_pretrained(small_folder)
    for layers in (0, [1, 2]):
        explanation = explain(model, tokenizer, "the cat sat on a mat", token=2, layers=layers)
        check(explanation, model)
    about, read = decoded(page(explanation.trace))
    (text,), steps = about["texts"], about["steps"]
    assert ("types" in [step["symbol"] for step in steps["embeddings"]]) == FAMILIES[family].has_token_types
    assert ("bias" in " ".join(step["formula"] for step in steps["layer"])) == FAMILIES[family].has_relative_bias
    assert text["cosines"]["states"] == [0, 1, 2, 3]
    np.testing.assert_allclose(read(text["embedding"]).sum(axis=1), 1, atol=3e-5)
    assert text["values"]["embeddings"]["symbols"] == [step["symbol"] for step in steps["embeddings"]]


# --- answers for texts ------------------------------------------------------------------------------------------------

TEXTS = ["the cat sat on the mat", "a dog, and a longer text about a cat on a mat that sat there", "mat"] * 3


@pytest.fixture(scope="module")
def with_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes a model beside a tokenizer of its family that was trained once."""
    home = tmp_path_factory.mktemp("tokenizers")

    def with_tokenizer(folder: Path, family: str, kind: str = "Model", **more: Any) -> Path:
        trained = home / family
        if not trained.exists():
            family_folder(trained, family, train(family, TEXTS, 300), model_max_length=100)
        make(folder, family, kind, **{"vocab_size": 999, **more})
        for path in trained.iterdir():
            if path.name != "config.json":
                (folder / path.name).write_bytes(path.read_bytes())
        return folder

    return with_tokenizer


@pytest.mark.filterwarnings("ignore:.*has no modules.json", "ignore:.*tokens were truncated", "ignore:.*longer than")
@pytest.mark.parametrize("family", by_forward(FAMILIES))
def test_sentence_vectors_scores_and_lengths_equal_sentence_transformers(
    tmp_path: Path, family: str, with_tokenizer: Callable[..., Path]
) -> None:
    folder = with_tokenizer(tmp_path / "m", family)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    ours = minibert.SentenceTransformer(folder)
    assert ours.max_seq_length == ours.model.config.max_length  # transformers has no room for the numbers of padding
    texts = [*TEXTS, "the cat " * 60]
    # Without a table of positions, texts may be longer than max_position_embeddings.
    for length in (12, 70 if family in ROTARY else ours.max_seq_length):
        ours.max_seq_length = theirs.max_seq_length = length
        vectors = ours.encode(texts, truncation="silent")
        np.testing.assert_allclose(vectors, theirs.encode(texts), rtol=0, atol=2e-5)
        alone = np.stack([ours.encode(text, truncation="silent") for text in texts])
        np.testing.assert_array_equal(vectors, alone)
    report = parity.check(ours, {"vectors": theirs.encode(TEXTS)}, ours.tokenize(TEXTS))
    assert report.verdict == "float32", str(report)
    ours.save_pretrained(tmp_path / "saved")
    assert describe(tmp_path / "saved")["facts"]["max_seq_length"] == length
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(again.encode(texts), theirs.encode(texts), rtol=0, atol=2e-5)
    spans = minibert.SentenceTransformer(folder).encode(texts[1], truncation="silent", spans=[(0, 5), (7, 20)])
    assert np.asarray(spans).shape == (2, 24)
    info = describe(folder)["facts"]
    assert family in str(info)
    assert ("rope_theta" in str(info)) == (family in ROTARY)
    short = [TEXTS[0], TEXTS[2]]  # XLM-RoBERTa of transformers fails at 39 tokens
    folder = with_tokenizer(tmp_path / "s", family, "ForMaskedLM")
    sparse = sentence_transformers.SparseEncoder(str(folder), device="cpu").encode(short).to_dense().numpy()
    found = minibert.SparseEncoder(folder).encode(short, truncation="silent")
    np.testing.assert_allclose(found.todense(), sparse, rtol=0, atol=2e-5)
    folder = with_tokenizer(tmp_path / "c", family, "ForSequenceClassification", num_labels=1)
    pairs = [(short[0], short[1]), (short[1], short[0])]
    cross, encoder = sentence_transformers.CrossEncoder(str(folder), device="cpu"), minibert.CrossEncoder(folder)
    cross.tokenizer.model_input_names = encoder.tokenizer.model_input_names  # transformers' ALBERT has no token types
    np.testing.assert_allclose(encoder.predict(pairs, truncation="silent"), cross.predict(pairs), rtol=0, atol=2e-5)


TASKS: dict[str, tuple[Any, ...]] = {
    "fill-mask": ("ForMaskedLM", "the cat {mask} on the mat"),
    "text-classification": ("ForSequenceClassification", {"text": "the cat", "text_pair": "a dog sat"}),
    "zero-shot-classification": ("ForSequenceClassification", "the cat", ["dog", "mat"]),
    "token-classification": ("ForTokenClassification", "the cat sat"),
    "question-answering": ("ForQuestionAnswering", "the cat", "a dog sat on the mat"),
}


@pytest.mark.parametrize(
    ("family", "task"),
    sampled(
        [(family, task) for family, task in product(FAMILIES, TASKS) if (family, TASKS[task][0]) in PAIRS],
        *(3, product(FORWARDS, [*TASKS][:2])),
    ),
)
def test_pipelines_equal_those_of_transformers_which_run_on_a_saved_model_too(
    tmp_path: Path, family: str, task: str, with_tokenizer: Callable[..., Path]
) -> None:
    kind, *texts = TASKS[task]
    with_tokenizer(tmp_path, family, kind, **({} if kind in ("ForMaskedLM", "ForQuestionAnswering") else LABELS))
    ours = minibert.pipeline(task, model=tmp_path)
    if task == "question-answering":  # transformers 5 does not have it
        assert texts[1][slice(*(ours(*texts)[part] for part in ("start", "end")))]
        return
    ours.model.save_pretrained(tmp_path / "saved")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.model_input_names = ours.tokenizer.model_input_names  # transformers' ALBERT has no token types
    theirs, saved = (
        transformers.pipeline(task, model=str(folder), tokenizer=tokenizer) for folder in (tmp_path, tmp_path / "saved")
    )
    if task == "fill-mask":
        texts = [texts[0].format(mask=tokenizer.mask_token)]
    wanted = theirs(*texts)
    # torch's products depend on where an array lies in memory, so two models of the same weights may differ by a bit.
    for found, atol in ((saved(*texts), 1e-6), (ours(*texts), 2e-5)):
        if task == "zero-shot-classification":
            assert found["labels"] == wanted["labels"]
            np.testing.assert_allclose(found["scores"], wanted["scores"], atol=atol)
            continue
        for one, other in zip(*([x] if isinstance(x, dict) else x for x in (found, wanted)), strict=True):
            assert one["score"] == pytest.approx(other["score"], abs=atol)
