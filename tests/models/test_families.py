"""Each family whose forward is BERT's beside transformers: random checkpoints, all heads, names, compute types."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.gte import modeling_gte
from transformers.models.modernbert import modeling_modernbert
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

import minibert
from minibert import BertModel, BertTokenizer, Edit, ModelFormatError, inside, load
from minibert.bert.families import FAMILIES
from minibert.bert.low_precision import COMPUTE_TYPES
from minibert.bert.weights import bias_of_distances
from minibert.checkpoint.files import locate
from minibert.inside.explain import explain
from minibert.models import float64
from minibert.models.stored import find_heads
from minibert.sentence.facts import describe
from minibert.trace.page.document import page
from minibert.trace.trace import Trace
from tests.support.checkpoints import random_checkpoint
from tests.trace.test_explain import check
from tests.trace.test_page import decoded

SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
}
ROTARY = tuple(family for family in FAMILIES if FAMILIES[family].theta)
MORE: dict[str, dict[str, Any]] = {
    **{family: {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} for family in ROTARY},
    "modernbert": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "local_attention": 8}
    | {"cls_token_id": 1, "sep_token_id": 2},
    "roberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "xlm-roberta": {"type_vocab_size": 1, "hidden_act": "relu"},
    "electra": {"embedding_size": 16},
}
KINDS = (
    *("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    *("ForQuestionAnswering", "ForMultipleChoice"),
)
# The classes that transformers has of each family.
KINDS_OF = {"nomic_bert": KINDS[:4], "gte": KINDS[:4], "jina_embeddings_v3": KINDS[:5]}
PAIRS = [(family, kind) for family in FAMILIES for kind in KINDS_OF.get(family, KINDS)]


@pytest.fixture(autouse=True)
def exact_modernbert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers rotates ModernBERT's queries and keys in float32, also if the model is in float64."""
    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", modeling_gte.apply_rotary_pos_emb)


def make(folder: Path, family: str, kind: str = "Model", **more: Any) -> Any:
    """Save a random model of transformers, and return it."""
    class_name = FAMILIES[family].class_name
    sizes = {FAMILIES[family].fields.get(name, name): value for name, value in SIZES.items()}
    config = getattr(transformers, f"{class_name}Config")(**{**sizes, **MORE.get(family, {}), **more})
    torch.manual_seed(0)
    model = getattr(transformers, f"{class_name}{kind}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
        for part in ("lm_head", "cls.predictions"):  # transformers ties the two names of this bias while it loads
            if kind == "ForMaskedLM" and hasattr(model, part.partition(".")[0]):
                head = model.get_submodule(part)
                if hasattr(head, "bias"):
                    head.bias.copy_(head.decoder.bias)
    model.save_pretrained(folder)
    return model


def inputs(padding: int, rows: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and a mask with padding at the right, at the left, inside, and a padding token that is not masked."""
    ids, mask = np.random.default_rng(1).integers(3, 99, (rows, 17)), np.ones((rows, 17), int)
    for row, columns in ((1, slice(9, None)), (3, slice(None, 3)), (2, slice(4, 5))):
        mask[row, columns] = 0
        if row != 2:
            ids[row, columns] = padding
    ids[0, 5] = padding
    return ids, mask


def test_a_change_of_electras_output_does_not_change_the_trace(tmp_path: Path) -> None:
    make(tmp_path, "electra")
    trace = load(tmp_path).trace(np.arange(7)[None])
    before = trace["embeddings_project"].copy()
    trace.output.hidden_states[0].fill(7)
    np.testing.assert_array_equal(trace["embeddings_project"], before)


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_models_and_heads_equal_transformers(tmp_path: Path, family: str, kind: str) -> None:
    untied = {"tie_word_embeddings": False} if kind == "ForMaskedLM" and family in ("electra", "mpnet") else {}
    labels = {} if kind == "ForQuestionAnswering" else {"num_labels": 5}
    theirs = make(tmp_path, family, kind, **untied, **labels)
    ours = load(tmp_path)
    assert type(ours).__name__ == type(theirs).__name__
    assert pickle.loads(pickle.dumps(type(ours))) is type(ours)
    assert untied or ours.num_parameters() == sum(parameter.numel() for parameter in theirs.parameters())
    ids, mask = inputs(theirs.config.pad_token_id)
    shape = (2, 2, 17) if kind == "ForMultipleChoice" else ids.shape
    given = {"input_ids": ids.reshape(shape), "attention_mask": mask.reshape(shape)}
    found = ours(**given, output_hidden_states=True, output_attentions=True)
    tensors = {name: torch.as_tensor(array) for name, array in given.items()}
    with torch.no_grad():
        wanted = theirs.double()(**tensors, output_hidden_states=True, output_attentions=True)
        rounded = theirs.float()(**tensors, output_hidden_states=True)
    shown = mask.astype(bool)
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
    ours.save_pretrained(tmp_path / "saved")
    again = type(theirs).from_pretrained(tmp_path / "saved").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in theirs.state_dict().items())
    reloaded = load(tmp_path / "saved")(**given, output_hidden_states=True)
    np.testing.assert_array_equal(reloaded.hidden_states[-1], found.hidden_states[-1])


@pytest.mark.parametrize("width", [24, 96])  # three heads of 8 and of 32; the maps of 96 features fill panels
@pytest.mark.parametrize("kind", ["ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_that_are_not_read_do_not_change_a_bit(tmp_path: Path, family: str, kind: str, width: int) -> None:
    make(tmp_path, family, kind, **{FAMILIES[family].fields.get("hidden_size", "hidden_size"): width})
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
        exact = [each.with_ops(each.ops._replace(**_float64)) for each in (model, whole)]
        np.testing.assert_allclose(*(each(ids, mask, **positions).logits for each in exact), rtol=0, atol=1e-11)


_float64 = {name: getattr(float64.OPS, name) for name in ("embed", "linear", "attention", "layer_norm", "dtype")}


# The decoder of each family, and the names of its bias.
DECODERS = {
    "bert": ("cls.predictions.decoder", "cls.predictions"),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), ("lm_head.decoder", "lm_head")),
    "distilbert": ("vocab_projector",),
    "electra": ("generator_lm_head",),
    "nomic_bert": ("cls.predictions.decoder", "cls.predictions"),
    "gte": ("lm_head.decoder",),
    "jina_embeddings_v3": ("lm_head.decoder", "lm_head"),
    "modernbert": ("decoder",),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_tied_weights_by_either_name(tmp_path: Path, family: str) -> None:
    """Of two tensors with one storage, `safetensors.torch.save_model` keeps the name that is first in the alphabet."""
    theirs, ids, path = make(tmp_path, family, "ForMaskedLM"), np.arange(5, 20)[None], tmp_path / "model.safetensors"
    expected, field = load(tmp_path)(ids, output_hidden_states=True), f"{FAMILIES[family].field}."
    whole = {name: tensor.clone() for name, tensor in theirs.state_dict().items() if "position_ids" not in name}
    own = FAMILIES[family].own_path("embeddings.word_embeddings")
    words, decoder = f"{field}{own}.weight", f"{DECODERS[family][0]}.weight"
    biases = [f"{name}.bias" for name in DECODERS[family]]
    renames: list[Callable[[str], str]] = [str, lambda name: f"model.{name}", lambda name: name.removeprefix(field)]
    for weight, bias, rename in product([words, decoder, None], [*biases, None], renames):
        left_out = ({words, decoder} - {weight} if weight else set()) | ({*biases} - {bias} if bias else set())
        save_file({rename(name): whole[name] for name in whole if name not in left_out}, path, {"format": "pt"})
        found = load(tmp_path)
        np.testing.assert_array_equal(found(ids).logits, expected.logits)
        assert found.num_parameters() == sum(parameter.numel() for parameter in theirs.parameters())
        states = minibert.AutoModel.from_pretrained(tmp_path)(ids).last_hidden_state
        np.testing.assert_array_equal(states, expected.hidden_states[-1])
    save_file({name: value for name, value in whole.items() if name != words}, path, {"format": "pt"})
    with pytest.raises(ModelFormatError, match=r"_embeddings\.weight is missing"):
        load(tmp_path, config=replace(minibert.BertConfig.from_pretrained(tmp_path), tie_word_embeddings=False))
    save_file({name: value for name, value in whole.items() if name != decoder}, path, {"format": "pt"})
    with pytest.raises(ModelFormatError, match=r"weight is missing.*tie_word_embeddings false in config\.json"):
        type(found).from_pretrained(
            tmp_path, config=replace(minibert.BertConfig.from_pretrained(tmp_path), tie_word_embeddings=False)
        )
    save_file({**whole, decoder: 0.5 * whole[words]}, path, {"format": "pt"})  # transformers 5 does not tie them then
    with torch.no_grad():
        wanted = type(theirs).from_pretrained(tmp_path)(torch.as_tensor(ids)).logits
    np.testing.assert_allclose(load(tmp_path)(ids).logits, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_heads_are_found_and_every_name_of_a_trace_is_read_and_saved(tmp_path: Path, family: str, kind: str) -> None:
    labels = {"num_labels": 1} if kind == "ForSequenceClassification" else {}
    bare = {"decoder_bias": False} if family == "modernbert" else {}
    theirs = make(tmp_path, family, kind, **labels, **bare)
    files, name = locate(tmp_path), f"Bert{kind}"
    assert find_heads(files) == (() if kind == "Model" else (name,))
    assert describe(tmp_path)["facts"]["heads"] == [type(theirs).__name__] * bool(kind != "Model")
    ids = np.arange(5, 15).reshape((1, 2, 5) if kind == "ForMultipleChoice" else (2, 5))
    trace = load(tmp_path).trace(ids)
    values = {value: np.asarray(trace[value]) for value in trace}
    assert all(array.size for array in values.values())
    trace.save(tmp_path / "trace.npz")
    saved = Trace.load(tmp_path / "trace.npz")
    assert [*saved] == [*values] == [*load(tmp_path).value_names().specs]
    for value, array in values.items():
        np.testing.assert_array_equal(saved[value], array)
    # Without the name of the class, a head that is a part of another one is not there.
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    heads = find_heads(files)
    assert kind == "Model" or name in heads
    assert ("BertForMaskedLM" in heads) == (kind == "ForMaskedLM")


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_that_the_model_does_not_have(tmp_path: Path, family: str) -> None:
    """Published files of ELECTRA have a projection, also where the embeddings have the hidden size."""
    theirs = make(tmp_path, family, **({"embedding_size": 24} if family == "electra" else {}))
    whole, ids = theirs.state_dict(), np.arange(5, 20)[None]
    expected = load(tmp_path)(ids).last_hidden_state
    strays = {"embeddings_project.weight": torch.ones(24, 24), "embeddings_project.bias": torch.ones(24)}
    if not FAMILIES[family].has_token_types:
        strays["embeddings.token_type_embeddings.weight"] = torch.ones(2, 24)
    save_file({**whole, **strays}, tmp_path / "model.safetensors", {"format": "pt"})
    model = load(tmp_path)
    assert {*model.weights.ignored} >= {*strays}
    np.testing.assert_array_equal(model(ids).last_hidden_state, expected)
    with torch.no_grad():
        wanted = type(theirs).from_pretrained(tmp_path)(torch.as_tensor(ids)).last_hidden_state
    np.testing.assert_allclose(expected, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_names_edits_and_compute_types(tmp_path: Path, family: str) -> None:
    theirs, ours = make(tmp_path, family), load(tmp_path)
    ids = np.random.default_rng(2).integers(3, 99, (2, 9))
    values: dict[str, np.ndarray] = {}
    for name, module in theirs.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.LayerNorm | torch.nn.Embedding):
            module.register_forward_hook(lambda m, i, out, name=name: values.update({name: out.numpy()}))
    with torch.no_grad():
        theirs(torch.as_tensor(ids))
    trace, output = ours.trace(input_ids=ids), ours(input_ids=ids)
    for name, value in values.items():
        if name != "encoder.relative_attention_bias" and not name.endswith(tuple(FAMILIES[family].stacked)):
            np.testing.assert_allclose(trace[name], np.broadcast_to(value, trace[name].shape), rtol=0, atol=1e-5)
    for i, state in enumerate(output.hidden_states):
        np.testing.assert_array_equal(trace[f"hidden_states.{i}"], state)
    edited = ours.trace(
        input_ids=ids, edit={"encoder.layer.1.attention.self.scores": lambda scores: scores + np.float32(1)}
    )
    np.testing.assert_allclose(edited["hidden_states.3"], output.last_hidden_state, rtol=0, atol=1e-5)
    for name, most in (("int16", 1e-3), ("int8", 0.1), ("int8_int16", 0.05)):
        low = load(tmp_path, compute_type=name)(input_ids=ids).last_hidden_state
        assert 0 < np.abs(low - output.last_hidden_state).max() < most
    for options in ({"shared_weights": True}, {"num_threads": 1}):
        np.testing.assert_array_equal(load(tmp_path, **options)(input_ids=ids)[0], output.last_hidden_state)
    alone = ours(input_ids=ids[:1, :4]).last_hidden_state
    mask = np.array([[1, 1, 1, 1, 0, 0, 0, 0, 0], [1] * 9])
    np.testing.assert_array_equal(ours(input_ids=ids, attention_mask=mask).last_hidden_state[:1, :4], alone)


def test_the_ranges_of_distances_are_those_of_transformers() -> None:
    distances = torch.arange(1 - 700, 700)
    table = bias_of_distances(np.arange(32, dtype=np.float32)[:, None], 700)
    np.testing.assert_array_equal(table[0], MPNetEncoder.relative_position_bucket(distances).numpy())


def test_too_many_tokens_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "roberta")
    model = load(tmp_path)
    assert model.config.max_length == 38
    ids = np.full((1, 38), 5)
    assert model(input_ids=ids).last_hidden_state.shape == (1, 38, 24)
    for given in ({"input_ids": np.full((1, 39), 5)}, {"inputs_embeds": np.zeros((1, 39, 24), np.float32)}):
        with pytest.raises(ValueError, match="takes 38 tokens"):
            model(**given)


def test_padding_beyond_the_longest_text_changes_no_analysis(tmp_path: Path) -> None:
    make(tmp_path, "roberta")
    model, ids = load(tmp_path), np.full((1, 60), 1)
    ids[0, :9] = 5
    wide = inside.value_zeroing(model, {"input_ids": ids, "attention_mask": ids != 1})
    narrow = inside.value_zeroing(model, {"input_ids": ids[:, :9]})
    np.testing.assert_array_equal(wide[..., :9, :9], narrow)


def test_classes_of_another_family_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path, "distilbert", "ForSequenceClassification")
    for name, word in (("BertModel", "minibert.DistilBertModel"), ("MPNetModel", "minibert.DistilBertModel")):
        with pytest.raises(ModelFormatError, match=word):
            getattr(minibert, name).from_pretrained(tmp_path)
    kind = minibert.DistilBertForSequenceClassification
    assert isinstance(kind.from_pretrained(tmp_path).distilbert, BertModel)
    with pytest.raises(ModelFormatError, match=r"loaded as DistilBertForMaskedLM: vocab_transform.*SequenceClassif"):
        minibert.DistilBertForMaskedLM.from_pretrained(tmp_path)


def test_the_discriminator_of_electra_loads_as_its_encoder(tmp_path: Path) -> None:
    theirs, ids = make(tmp_path, "electra", "ForPreTraining").electra, np.arange(12).reshape(2, 6)
    expected = theirs(torch.from_numpy(ids)).last_hidden_state.detach().numpy()
    with pytest.warns(UserWarning, match=r"names 'ElectraForPreTraining'.*loaded as ElectraModel"):
        models = [load(tmp_path), minibert.AutoModel.from_pretrained(tmp_path)]
    for model in models:
        np.testing.assert_allclose(model(ids).last_hidden_state, expected, atol=2e-5)
    with pytest.raises(ModelFormatError, match="It has no head"):
        minibert.AutoModelForPreTraining.from_pretrained(tmp_path)
    with pytest.raises(ModelFormatError, match=r"'electra', not 'bert'. Use minibert.load"):
        minibert.BertForPreTraining.from_pretrained(tmp_path)


@pytest.mark.parametrize("family", ["distilbert", "mpnet"])
def test_tasks_and_rerankers_give_no_token_types_to_a_model_without_them(tmp_path: Path, family: str) -> None:
    tokenizer = BertTokenizer.from_pretrained(random_checkpoint(tmp_path / "bert"))
    question, context = "the cat", "a dog sat on the mat"
    for kind in ("ForQuestionAnswering", "ForSequenceClassification"):
        make(tmp_path / kind, family, kind)
        tokenizer.save_pretrained(tmp_path / kind)
    pipe = minibert.pipeline(model=tmp_path / "ForQuestionAnswering")
    assert context[slice(*(pipe(question, context)[part] for part in ("start", "end")))]
    ids = tokenizer(question, context)["input_ids"]
    logits = load(tmp_path / "ForSequenceClassification")([ids]).logits
    classify = minibert.pipeline(model=tmp_path / "ForSequenceClassification", function_to_apply="none", top_k=None)
    found = classify({"text": question, "text_pair": context})
    np.testing.assert_array_equal(sorted(one["score"] for one in found), np.sort(logits[0]))
    scores = minibert.CrossEncoder(tmp_path / "ForSequenceClassification").predict((question, context))
    np.testing.assert_array_equal(scores, logits[0])


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "DPRContextEncoder", "DebertaV2Model"])
def test_a_class_of_another_architecture_can_be_imported_and_not_used(name: str) -> None:
    kind = getattr(minibert, name)
    with pytest.raises(TypeError, match=f"has no {name}"):
        kind()
    with pytest.raises(AttributeError, match=f"has no {name}"):
        kind.from_pretrained("x")


@pytest.mark.parametrize("family", FAMILIES)
def test_each_step_is_explained_and_shown(tmp_path: Path, family: str, small_folder: Path) -> None:
    make(tmp_path, family)
    model, tokenizer = load(tmp_path), BertTokenizer.from_pretrained(small_folder)
    for layers in (0, [1, 2]):
        explanation = explain(model, tokenizer, "the cat sat on a mat", token=2, layers=layers)
        check(explanation, model)
    about, read = decoded(page(explanation.trace))
    (text,), steps = about["texts"], about["steps"]
    assert ("types" in [step["symbol"] for step in steps["embeddings"]]) == FAMILIES[family].has_token_types
    assert ("bias" in " ".join(step["formula"] for step in steps["layer"])) == (family == "mpnet")
    assert text["cosines"]["states"] == [0, 1, 2, 3]
    np.testing.assert_allclose(read(text["embedding"]).sum(axis=1), 1, atol=3e-5)
    assert text["values"]["embeddings"]["symbols"] == [step["symbol"] for step in steps["embeddings"]]


@pytest.mark.parametrize("family", ["bert", "mpnet", "electra"])
def test_analyses_run_from_any_state(tmp_path: Path, family: str) -> None:
    make(tmp_path, family)
    single = load(tmp_path)
    ids, mask = inputs(single.config.pad_token_id)
    given = {"input_ids": ids, "attention_mask": mask}
    for model in (single, single.with_ops(float64.OPS)):
        measure = lambda output: float(output.last_hidden_state[0, 3, 5])  # noqa: E731
        changes = inside.ablate_heads(model, given, measure)
        one = model.trace(**given, record=(), edit={"encoder.layer.1.attention.self": Edit.zero(heads=2)}).output
        assert changes[1, 2] == measure(one) - measure(model(**given))
        np.testing.assert_allclose(inside.value_zeroing(model, given).sum(axis=3)[:, mask == 1], 1)
    assert inside.norms(single, given).shape == (3, 4, 17, 17)
