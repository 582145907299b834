"""What only some families have: rotary positions, windows, older files, distances, a discriminator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

import minibert
from minibert import BertModel, ModelFormatError, inside, load
from minibert.bert.rotary import Rotary
from minibert.bert.weights import bias_of_distances
from minibert.models import float64
from minibert.models.loading import balance
from tests.support.families import ROTARY, in_float64, make
from tests.support.json_files import change_json, read_json, write_json
from tests.support.marks import by_default

ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "default", "rope_theta": 777.0},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 1.3, "rope_theta": 500.0},
)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("D", [8, 24, 80])
@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: f"{rope['rope_type']}-{len(rope)}")
def test_frequencies_are_those_of_transformers(rope: dict[str, Any], D: int) -> None:
    config = transformers.GteConfig(
        hidden_size=3 * D, num_attention_heads=3, max_position_embeddings=40, rope_parameters=dict(rope)
    )
    for length in (1, 9, 10, 40, 41, 200):
        ours = Rotary({"rope_theta": 160_000.0, **rope}, D, 40).frequencies(length)
        if rope["rope_type"] == "default":
            inv_freq = transformers.models.gte.modeling_gte.GteRotaryEmbedding(config).inv_freq
        else:
            inv_freq, _ = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, None, seq_len=torch.tensor(length))
        np.testing.assert_allclose(ours, inv_freq.numpy(), rtol=5e-7)
        assert ours.dtype == np.float32


def compare(theirs: Any, ours: Any, given: dict[str, Any], atol: float = 3e-6) -> None:
    """Compare hidden states in float64 with those of transformers; its angles are rounded to float32 by a cosine."""
    exact = ours.with_ops(float64.OPS)(**given, output_hidden_states=True).hidden_states
    tensors = {name: torch.as_tensor(array) for name, array in given.items()}
    if "inputs_embeds" in tensors:
        tensors["inputs_embeds"] = tensors["inputs_embeds"].double()
    with torch.no_grad():
        wanted = in_float64(theirs)(**tensors, output_hidden_states=True).hidden_states
    mask = np.asarray(given.get("attention_mask", np.ones(exact[0].shape[:2]))) == 1
    for one, other in zip(exact, wanted, strict=True):
        np.testing.assert_allclose(one[mask], other.numpy()[mask], rtol=0, atol=atol)


@pytest.mark.parametrize("family", ["gte", "modernbert"])
@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: f"{rope['rope_type']}-{len(rope)}")
def test_each_rope_type_gives_the_numbers_of_transformers(tmp_path: Path, family: str, rope: dict[str, Any]) -> None:
    nested = {"full_attention": dict(rope), "sliding_attention": {"rope_type": "default"}}
    theirs = make(tmp_path, family, rope_parameters=nested if family == "modernbert" else dict(rope))
    ours = load(tmp_path)
    for length in (1, 9, 12, 40, 70):
        ids = np.random.default_rng(length).integers(3, 99, (2, length))
        compare(type(theirs).from_pretrained(tmp_path), ours, {"input_ids": ids})
    if rope["rope_type"] == "dynamic":  # the length is that of the text, not that of the batch
        mask = np.ones((1, 70), int)
        mask[0, 33:] = 0
        wide = ours(np.resize(ids, (1, 70)), mask).last_hidden_state[:, :33]
        np.testing.assert_allclose(wide, ours(np.resize(ids, (1, 70))[:, :33]).last_hidden_state, rtol=0, atol=1e-6)


def test_an_unknown_rope_type_and_wrong_parameters_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path, "gte")
    for rope, words in (
        ({"rope_type": "yarn", "factor": 4.0}, r"rope_type='yarn' is not implemented; expected default, linear, dynam"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4}, "rope_type='longrope'"),
        ({"rope_type": ["linear"]}, "rope_type="),
        ({"rope_type": "linear"}, "factor=None in rope_parameters; expected a number above 0"),
        ({"rope_type": "linear", "factor": 0}, "factor=0 in"),
        ({"rope_theta": "x"}, "rope_theta='x' in"),
        ([1], r"rope_parameters has \[1\]"),
    ):
        change_json(tmp_path / "config.json", rope_parameters=rope)
        with pytest.raises(ModelFormatError, match=words):
            load(tmp_path)
    config = transformers.GteConfig(hidden_size=21, num_attention_heads=3)
    with pytest.raises(ModelFormatError, match="a head has 7 features; rotary positions need an even number"):
        minibert.BertConfig.from_dict(config.to_dict())


# --- older files ------------------------------------------------------------------------------------------------------

OLD_NOMIC: dict[str, Any] = {
    **{"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "activation_function": "swiglu"},
    **{"n_embd": 24, "n_head": 3, "n_inner": 40, "n_layer": 3, "n_positions": 80, "vocab_size": 199},
    **{"layer_norm_epsilon": 1e-12, "type_vocab_size": 2, "rotary_emb_base": 777, "rotary_emb_fraction": 1.0},
    **{"rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None},
    **{"prenorm": False, "parallel_block": False, "use_rms_norm": False, "causal": False, "scale_attn_weights": True},
    **{"max_trained_positions": 40, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False},
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
}
REFUSED_OF_NOMIC: tuple[tuple[str, Any], ...] = (
    *(("rotary_emb_fraction", 0.5), ("rotary_emb_interleaved", True), ("rotary_emb_scale_base", 512)),
    *(("prenorm", True), ("parallel_block", True), ("use_rms_norm", True), ("causal", True)),
    *(("scale_attn_weights", False), ("activation_function", "glu"), ("moe_every_n_layers", 2)),
)
OLD_GTE: dict[str, Any] = {
    **{"model_type": "new", "rope_theta": 500.0, "rope_scaling": {"type": "ntk", "factor": 2.0}},
    **{"layer_norm_type": "layer_norm", "logn_attention_scale": False, "unpad_inputs": True, "pack_qkv": True},
    "position_embedding_type": "rope",
}
OLD_JINA: dict[str, Any] = {
    **{"model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"], "rotary_emb_base": 777.0},
    **{"position_embedding_type": "rotary", "auto_map": {"AutoModel": "a/b--c.D"}},
}
OLD_MODERNBERT: dict[str, Any] = {
    **{"global_rope_theta": 500.0, "local_rope_theta": 50.0, "global_attn_every_n_layers": 2},
    **{"position_embedding_type": "sans_pos", "layer_norm_eps": 0.5},  # no code reads these
}
TYPES = ["full_attention", "sliding_attention", "full_attention"]
WINDOWS = {
    "rope_parameters": {"full_attention": {"rope_theta": 500.0}, "sliding_attention": {"rope_theta": 50.0}},
    "layer_types": TYPES,
}
THETA = {"rope_parameters": {"rope_theta": 777.0}}


def check_old_files(
    theirs: Any, folder: Path, config: dict[str, Any], *renamed: str, refused: Sequence[tuple[str, Any]] = ()
) -> Any:
    """Check a model with this config.json and renamed tensors: its numbers, what it saves, fields that are refused."""
    path, ids = folder / "model.safetensors", np.random.default_rng(0).integers(3, 99, (2, 60))
    stored = {name.replace(*renamed) if renamed else name: tensor for name, tensor in load_file(path).items()}
    save_file(stored, path, {"format": "pt"})
    write_json(folder / "config.json", config)
    ours = load(folder, trust_remote_code="auto_map" in config)
    ours.save_pretrained(folder / "saved")
    again = type(theirs).from_pretrained(folder / "saved")
    for one, other in ((theirs, ours), (again, ours), (again, load(folder / "saved"))):
        compare(one.base_model, other.base_model, {"input_ids": ids})
    for field, value in refused:
        write_json(folder / "config.json", {**config, field: value})
        with pytest.raises(ModelFormatError, match=field.replace("activation_function", "hidden_act")):
            load(folder)
    write_json(folder / "config.json", config)
    return ours


def test_nomics_own_files(tmp_path: Path) -> None:
    theirs = make(tmp_path, "nomic_bert", **THETA)
    assert check_old_files(theirs, tmp_path, OLD_NOMIC, refused=REFUSED_OF_NOMIC).config.max_length == 80
    scaled = make(tmp_path, "nomic_bert", rope_parameters={"rope_type": "dynamic", "rope_theta": 777.0, "factor": 2.0})
    check_old_files(scaled, tmp_path, {**OLD_NOMIC, "rotary_scaling_factor": 2})
    masked = make(tmp_path / "masked", "nomic_bert", "ForMaskedLM")
    check_old_files(masked, tmp_path / "masked", read_json(tmp_path / "masked/config.json"), "nomic_bert.", "bert.")


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_gtes_own_config_has_a_fixed_ntk_scaling(tmp_path: Path, kind: str) -> None:
    theirs = make(tmp_path, "gte", kind, type_vocab_size=0)
    theirs.base_model.rotary_emb.inv_freq = torch.tensor(1000.0) ** (-torch.arange(0, 8, 2) / 8) / 2.0 ** (2 / 8)
    config = change_json(tmp_path / "config.json", "rope_parameters", **OLD_GTE, architectures=[f"New{kind}"])
    refused = (("logn_attention_scale", True), ("layer_norm_type", "rms_norm"))
    ours = check_old_files(theirs, tmp_path, config, "gte.", "new.", refused=refused)
    assert type(ours).__name__ == f"Gte{kind}"


def test_jinas_own_files_and_its_tables_of_lora(tmp_path: Path) -> None:
    theirs = make(tmp_path, "jina_embeddings_v3", "ForMaskedLM", **THETA)
    config = change_json(tmp_path / "config.json", "rope_parameters", **OLD_JINA)
    check_old_files(theirs, tmp_path, config)
    write_json(tmp_path / "config.json", {**config, "lora_adaptations": ["retrieval.query", "retrieval.passage"]})
    modules = [{"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer", "kwargs": ["task"]}]
    write_json(tmp_path / "modules.json", modules)
    for loader in (load, minibert.SentenceTransformer):
        with pytest.raises(ModelFormatError, match="jina-embeddings-v3-hf"):
            loader(tmp_path)
    write_json(tmp_path / "config.json", config)
    stored = load_file(tmp_path / "model.safetensors")
    table = "roberta.encoder.layers.0.mlp.fc1.parametrizations.weight.0.lora_A"
    save_file({**stored, table: torch.zeros(2, 4, 24)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelFormatError, match=r"lora_A belongs to an adapter"):
        load(tmp_path)


def test_the_older_fields_of_modernbert(tmp_path: Path) -> None:
    theirs = make(tmp_path, "modernbert", **WINDOWS)
    config = change_json(tmp_path / "config.json", "rope_parameters", "layer_types", **OLD_MODERNBERT)
    refused = (("layer_types", ["full_attention"]), ("layer_types", ["x"] * 3), ("local_attention", -1))
    ours = check_old_files(theirs, tmp_path, config, refused=refused)
    assert ours.config.layer_types == tuple(TYPES)
    for scaling in ({"rope_type": "linear", "factor": 3.0}, {"type": "linear", "factor": 3.0}):
        change_json(tmp_path / "config.json", rope_scaling=scaling)  # transformers 5 reads the first one only
        compare(type(theirs).from_pretrained(tmp_path), load(tmp_path), {"input_ids": np.arange(40)[None]})


def test_a_file_with_a_map_by_both_names_is_refused(tmp_path: Path) -> None:
    theirs = make(tmp_path, "nomic_bert")
    path, native = tmp_path / "model.safetensors", dict(theirs.state_dict().items())
    save_file({**load_file(path), "layers.0.self_attn.q_proj.weight": torch.zeros(24, 24)}, path, {"format": "pt"})
    with pytest.raises(ModelFormatError, match=r"q_proj\.weight twice"):
        load(tmp_path)
    save_file(native, path, {"format": "pt"})
    compare(theirs, load(tmp_path), {"input_ids": np.arange(9)[None]})


# --- shapes and inputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("D", by_default([8, 24, 80], 8, 80))
@pytest.mark.parametrize("family", ROTARY)
def test_odd_shapes_equal_transformers(tmp_path: Path, family: str, D: int) -> None:
    """One layer of two heads, one token, padding on both sides, holes, position_ids and vectors."""
    theirs = make(tmp_path, family, hidden_size=2 * D, num_attention_heads=2, num_hidden_layers=1 + (D == 24))
    ours, generator = load(tmp_path), np.random.default_rng(D)
    ids, mask = generator.integers(3, 99, (4, 33)), np.ones((4, 33), int)
    mask[1, 20:], mask[2, :7], mask[3, generator.integers(0, 33, 12)] = 0, 0, 0
    given = {"input_ids": ids, "attention_mask": mask}
    vectors = generator.standard_normal((4, 33, 2 * D)).astype(np.float32)
    for inputs in (
        *({"input_ids": ids[:1, :1]}, {"input_ids": ids}, given),
        *({**given, "position_ids": generator.integers(0, 40, ids.shape)}, {"inputs_embeds": vectors}),
        *([{**given, "token_type_ids": generator.integers(0, 2, ids.shape)}] if family == "nomic_bert" else []),
    ):
        compare(theirs, ours, inputs)
    assert ours.config.max_length == 40  # to which texts are cut; there is no table of positions that ends
    compare(theirs, ours, {"input_ids": generator.integers(3, 99, (1, 90))})


@pytest.mark.parametrize("local_attention", [0, 1, 2, 3, 8, 31, 200])
def test_the_border_of_windows_is_that_of_transformers(tmp_path: Path, local_attention: int) -> None:
    """Windows count columns, also where tokens between are masked; eager and sdpa have the same border."""
    theirs = make(tmp_path, "modernbert", local_attention=local_attention, layer_types=["sliding_attention"] * 3)
    ours, generator = load(tmp_path), np.random.default_rng(0)
    ids, mask = generator.integers(3, 99, (3, 40)), np.ones((3, 40), int)
    mask[1, :9], mask[2, generator.integers(0, 40, 15)] = 0, 0
    found = ours(ids, mask, output_attentions=True)
    compare(theirs, ours, {"input_ids": ids, "attention_mask": mask})
    columns = np.arange(40)
    far = np.abs(columns - columns[:, None]) > local_attention // 2
    for probs in found.attentions:
        assert not probs[:, :, far].any()
        np.testing.assert_allclose(probs.sum(axis=3)[:, 0][mask == 1], 1, atol=1e-6)
    theirs = type(theirs).from_pretrained(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        wanted = theirs(torch.as_tensor(ids[:1]), output_attentions=True)
    for probs, other in zip(found.attentions, wanted.attentions, strict=True):
        np.testing.assert_allclose(probs[:1], other.numpy(), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("family", ROTARY)
def test_8192_tokens(tmp_path: Path, family: str) -> None:
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 2, "max_position_embeddings": 8192}
    theirs = make(tmp_path, family, **sizes, **({"local_attention": 128} if family == "modernbert" else {}))
    ids = np.random.default_rng(0).integers(3, 99, (1, 8192))
    found = load(tmp_path)(ids).last_hidden_state
    with torch.no_grad():
        exact = in_float64(theirs)(torch.as_tensor(ids)).last_hidden_state
        rounded = theirs(torch.as_tensor(ids)).last_hidden_state
    ours, other = (np.sqrt(np.mean((x - exact.numpy()) ** 2)) for x in (found, rounded.numpy()))
    assert ours <= other


# --- large features ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:compute_type=")  # slow in NumPy
@pytest.mark.parametrize("norm_bias", [False, True])
def test_large_features_behind_a_norm_do_not_take_the_bits_of_the_others(tmp_path: Path, norm_bias: bool) -> None:
    """Each LayerNorm's weight times s, the next map's columns divided by it: the function is the same."""
    theirs = make(tmp_path, "modernbert", norm_bias=norm_bias, hidden_size=144, intermediate_size=160)
    ids, features, errors = np.random.default_rng(4).integers(3, 99, (9, 17)), [3, 60, 141], {}
    plain = {name: tensor / 2 if tensor.ndim > 1 else 1 + tensor / 4 for name, tensor in theirs.state_dict().items()}
    for s in (1, 30, 1000):
        tensors = {name: tensor.clone() for name, tensor in plain.items()}
        for name, tensor in tensors.items():
            if "attn_norm" in name or "mlp_norm" in name:
                tensor[features] *= s
            elif name.endswith("Wi.weight") or (name.endswith("Wqkv.weight") and "layers.0." not in name):
                tensor[:, features] /= s
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        wanted = load(tmp_path)(ids).last_hidden_state
        for compute_type in ("int16", "int8_int16", "int8"):
            model = load(tmp_path, compute_type=compute_type)
            found = model(ids).last_hidden_state
            shared = load(tmp_path, compute_type=compute_type, shared_weights=True)
            assert shared(ids).last_hidden_state.tobytes() == found.tobytes()
            if s == 1000:
                twin = load(tmp_path, compute_type=compute_type, backend="numpy")(ids[:3]).last_hidden_state
                np.testing.assert_allclose(twin, found[:3], rtol=0, atol=0.05)
            error = np.sqrt(np.mean((found - wanted) ** 2))
            assert error <= 1.3 * errors.setdefault(compute_type, error), (s, compute_type)


def test_usual_features_are_balanced_already() -> None:
    chance = np.random.default_rng(5)
    norm, weight = chance.uniform(0.8, 1.2, 200).astype(np.float32), chance.normal(size=(400, 200)).astype(np.float32)
    np.testing.assert_array_equal(balance(norm, weight), 1)
    norm[:3], weight[:, 3:6] = (0, 64, 2**-7), (0, 1e-38, 1e6)
    factors = balance(norm, weight)
    assert (factors[6:] == 1).all()
    assert factors[0] == 1
    assert factors[1] in (4, 8, 16)
    assert factors[2] < 0.5
    with np.errstate(all="raise"):
        assert np.isfinite(norm / factors).all()
        assert np.isfinite(weight * factors).all()
    np.testing.assert_array_equal(np.frexp(factors)[0], 0.5)  # powers of 2
    assert (balance(np.zeros(7, np.float32), np.zeros((3, 7), np.float32)) == 1).all()


# --- MPNet, RoBERTa, ELECTRA, classes -------------------------------------------------------------------------------


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


def test_a_change_of_electras_output_does_not_change_the_trace(tmp_path: Path) -> None:
    make(tmp_path, "electra")
    trace = load(tmp_path).trace(np.arange(7)[None])
    before = trace["embeddings_project"].copy()
    trace.output.hidden_states[0].fill(7)
    np.testing.assert_array_equal(trace["embeddings_project"], before)


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


def test_classes_of_another_family_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path, "distilbert", "ForSequenceClassification")
    for name, word in (("BertModel", "minibert.DistilBertModel"), ("MPNetModel", "minibert.DistilBertModel")):
        with pytest.raises(ModelFormatError, match=word):
            getattr(minibert, name).from_pretrained(tmp_path)
    kind = minibert.DistilBertForSequenceClassification
    assert isinstance(kind.from_pretrained(tmp_path).distilbert, BertModel)
    with pytest.raises(ModelFormatError, match=r"loaded as DistilBertForMaskedLM: vocab_transform.*SequenceClassif"):
        minibert.DistilBertForMaskedLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "DPRContextEncoder", "DebertaV2Model"])
def test_a_class_of_another_architecture_can_be_imported_and_not_used(name: str) -> None:
    kind = getattr(minibert, name)
    with pytest.raises(TypeError, match=f"has no {name}"):
        kind()
    with pytest.raises(AttributeError, match=f"has no {name}"):
        kind.from_pretrained("x")


# --- ESM --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", by_default([1, 2, 33, 300, 2048], 1, 2, 33, 300))
def test_masked_tokens_of_esm(tmp_path: Path, length: int) -> None:
    theirs = make(tmp_path, "esm", max_position_embeddings=2050, mask_token_id=32)
    model, generator = load(tmp_path), np.random.default_rng(length)
    ids, mask = generator.integers(4, 31, (4, length)), np.ones((4, length), int)
    ids[1:, :: max(2, length // 5)] = 32
    mask[2, length // 2 : length // 2 + 1 + length // 8] = length < 2  # a hole
    mask[3, length // 3 + 1 :] = 0
    ids[mask == 0] = 5
    ids[0, -1] = 32 if length > 1 else 5
    given = {"input_ids": ids, "attention_mask": mask}
    found = model(**given).hidden_states
    with torch.no_grad():
        wanted = theirs(**{name: torch.as_tensor(x) for name, x in given.items()}, output_hidden_states=True)
    rows = mask * (ids != 32).any(axis=1, keepdims=True, where=mask == 1) == 1  # of <mask> alone, theirs are NaN
    for state, other in zip(found, wanted.hidden_states, strict=True):
        np.testing.assert_allclose(state[rows], other.numpy()[rows], rtol=0, atol=2e-5)
        assert np.isfinite(state).all()
    assert not found[0][(ids == 32) & (mask == 1)].any()
    for row in range(4):
        alone = model(ids[row : row + 1], mask[row : row + 1])
        np.testing.assert_array_equal(alone.last_hidden_state[0], found[-1][row])
    hidden = model(np.where(mask == 0, 32, ids), mask).last_hidden_state  # what is hidden does not count
    np.testing.assert_array_equal(hidden, found[-1])
    np.testing.assert_array_equal(model(inputs_embeds=found[0], attention_mask=mask)[0], found[-1])


@pytest.mark.parametrize("name", ["rotary_embeddings", "encoder.layer.0.attention.self.rotary_embeddings"])
def test_frequencies_of_a_checkpoint_of_esm(tmp_path: Path, name: str) -> None:
    """Those in half precision were used in training, and so does transformers."""
    theirs, ids = make(tmp_path, "esm"), np.arange(4, 30)[None]
    theirs.rotary_embeddings.inv_freq.copy_(theirs.rotary_embeddings.inv_freq.half().float())
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        wanted = theirs(torch.as_tensor(ids)).last_hidden_state.numpy()
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{name}.inv_freq"] = tensors.pop("encoder.layer.*.attention.self.rotary_embeddings.inv_freq")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    for folder in (tmp_path, tmp_path / "saved"):
        model = load(folder)
        np.testing.assert_allclose(model(ids).last_hidden_state, wanted, rtol=0, atol=1e-5)
        model.save_pretrained(tmp_path / "saved")
