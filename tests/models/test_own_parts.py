"""Rotary positions, gates and windows beside transformers: rope types, older files, odd shapes, long texts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import minibert
from minibert import ModelFormatError, inside, parity
from minibert.bert.families import FAMILIES
from minibert.bert.rotary import Rotary
from minibert.cli import main
from minibert.models import float64
from minibert.models.loading import balance
from minibert.sentence.facts import describe
from minibert.trace.page.document import page
from tests.models.test_families import PAIRS, ROTARY, exact_modernbert, make  # noqa: F401  # a fixture
from tests.support.family_tokenizers import family_folder, train

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
        wanted = theirs.double()(**tensors, output_hidden_states=True).hidden_states
    mask = np.asarray(given.get("attention_mask", np.ones(exact[0].shape[:2]))) == 1
    for one, other in zip(exact, wanted, strict=True):
        np.testing.assert_allclose(one[mask], other.numpy()[mask], rtol=0, atol=atol)


@pytest.mark.parametrize("family", ["gte", "modernbert"])
@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: f"{rope['rope_type']}-{len(rope)}")
def test_each_rope_type_gives_the_numbers_of_transformers(tmp_path: Path, family: str, rope: dict[str, Any]) -> None:
    nested = {"full_attention": dict(rope), "sliding_attention": {"rope_type": "default"}}
    theirs = make(tmp_path, family, rope_parameters=nested if family == "modernbert" else dict(rope))
    ours = minibert.load(tmp_path)
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
    path = tmp_path / "config.json"
    plain = json.loads(path.read_text())
    for rope, words in (
        ({"rope_type": "yarn", "factor": 4.0}, r"rope_type='yarn' is not implemented; expected default, linear, dynam"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4}, "rope_type='longrope'"),
        ({"rope_type": ["linear"]}, "rope_type="),
        ({"rope_type": "linear"}, "factor=None in rope_parameters; expected a number above 0"),
        ({"rope_type": "linear", "factor": 0}, "factor=0 in"),
        ({"rope_theta": "x"}, "rope_theta='x' in"),
        ([1], r"rope_parameters has \[1\]"),
    ):
        path.write_text(json.dumps({**plain, "rope_parameters": rope}))
        with pytest.raises(ModelFormatError, match=words):
            minibert.load(tmp_path)
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
}


def test_nomics_own_config(tmp_path: Path) -> None:
    theirs = make(tmp_path, "nomic_bert", rope_parameters={"rope_theta": 777.0})
    (tmp_path / "config.json").write_text(json.dumps(OLD_NOMIC))
    code = {"auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}}
    (tmp_path / "config.json").write_text(json.dumps({**OLD_NOMIC, **code}))
    ours, ids = minibert.load(tmp_path, trust_remote_code=True), np.random.default_rng(0).integers(3, 99, (2, 60))
    assert ours.config.max_length == 80
    compare(theirs, ours, {"input_ids": ids})
    ours.save_pretrained(tmp_path / "saved")
    compare(type(theirs).from_pretrained(tmp_path / "saved"), minibert.load(tmp_path / "saved"), {"input_ids": ids})
    masked = make(tmp_path / "masked", "nomic_bert", "ForMaskedLM")
    path = tmp_path / "masked" / "model.safetensors"
    stored = {name.replace("nomic_bert.", "bert."): tensor for name, tensor in load_file(path).items()}
    save_file(stored, path, {"format": "pt"})
    compare(masked, minibert.load(tmp_path / "masked"), {"input_ids": ids})
    (tmp_path / "config.json").write_text(json.dumps({**OLD_NOMIC, "rotary_scaling_factor": 2}))
    scaled = make(
        tmp_path / "scaled", "nomic_bert", rope_parameters={"rope_type": "dynamic", "rope_theta": 777.0, "factor": 2.0}
    )
    compare(scaled, minibert.load(tmp_path), {"input_ids": ids})
    for field, value in (
        *(("rotary_emb_fraction", 0.5), ("rotary_emb_interleaved", True), ("rotary_emb_scale_base", 512)),
        *(("prenorm", True), ("parallel_block", True), ("use_rms_norm", True), ("causal", True)),
        *(("scale_attn_weights", False), ("activation_function", "glu"), ("moe_every_n_layers", 2)),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**OLD_NOMIC, field: value}))
        with pytest.raises(ModelFormatError, match="hidden_act" if field == "activation_function" else field):
            minibert.load(tmp_path)


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_gtes_own_config_has_a_fixed_ntk_scaling(tmp_path: Path, kind: str) -> None:
    theirs = make(tmp_path, "gte", kind, type_vocab_size=0)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("rope_parameters")
    old = {"rope_theta": 500.0, "rope_scaling": {"type": "ntk", "factor": 2.0}, "position_embedding_type": "rope"}
    old |= {"layer_norm_type": "layer_norm", "logn_attention_scale": False, "unpad_inputs": True, "pack_qkv": True}
    config |= {"model_type": "new", "architectures": [f"New{kind}"], **old}
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = tmp_path / "model.safetensors"
    stored = {name.replace("gte.", "new."): tensor for name, tensor in load_file(path).items()}
    save_file(stored, path, {"format": "pt"})
    ours, ids = minibert.load(tmp_path), np.random.default_rng(0).integers(3, 99, (2, 60))
    assert type(ours).__name__ == f"Gte{kind}"
    theirs.base_model.rotary_emb.inv_freq = torch.tensor(1000.0) ** (-torch.arange(0, 8, 2) / 8) / 2.0 ** (2 / 8)
    compare(theirs.base_model, ours.base_model, {"input_ids": ids})
    ours.save_pretrained(tmp_path / "saved")
    again = type(theirs).from_pretrained(tmp_path / "saved")
    compare(again, minibert.load(tmp_path / "saved"), {"input_ids": ids})
    compare(again, ours, {"input_ids": ids})
    for field, value in (("logn_attention_scale", True), ("layer_norm_type", "rms_norm")):
        (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
        with pytest.raises(ModelFormatError, match=field):
            minibert.load(tmp_path)


def test_jinas_own_files_and_its_tables_of_lora(tmp_path: Path) -> None:
    theirs = make(tmp_path, "jina_embeddings_v3", "ForMaskedLM", rope_parameters={"rope_theta": 777.0})
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("rope_parameters")
    config |= {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"], "rotary_emb_base": 777.0}
    config |= {"position_embedding_type": "rotary", "auto_map": {"AutoModel": "a/b--c.D"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids = np.random.default_rng(0).integers(3, 99, (2, 40))
    compare(theirs, minibert.load(tmp_path, trust_remote_code=True), {"input_ids": ids})
    tasks = ["retrieval.query", "retrieval.passage"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "lora_adaptations": tasks}))
    modules = [{"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer", "kwargs": ["task"]}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for loader in (minibert.load, minibert.SentenceTransformer):
        with pytest.raises(ModelFormatError, match="jina-embeddings-v3-hf"):
            loader(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = load_file(tmp_path / "model.safetensors")
    table = "roberta.encoder.layers.0.mlp.fc1.parametrizations.weight.0.lora_A"
    save_file({**stored, table: torch.zeros(2, 4, 24)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelFormatError, match=r"lora_A belongs to an adapter"):
        minibert.load(tmp_path)


def test_a_file_with_a_map_by_both_names_is_refused(tmp_path: Path) -> None:
    theirs = make(tmp_path, "nomic_bert")
    path, native = tmp_path / "model.safetensors", dict(theirs.state_dict().items())
    save_file({**load_file(path), "layers.0.self_attn.q_proj.weight": torch.zeros(24, 24)}, path, {"format": "pt"})
    with pytest.raises(ModelFormatError, match=r"q_proj\.weight twice"):
        minibert.load(tmp_path)
    save_file(native, path, {"format": "pt"})
    compare(theirs, minibert.load(tmp_path), {"input_ids": np.arange(9)[None]})


def test_the_older_fields_of_modernbert(tmp_path: Path) -> None:
    rope = {"full_attention": {"rope_theta": 500.0}, "sliding_attention": {"rope_theta": 50.0}}
    types = ["full_attention", "sliding_attention", "full_attention"]
    theirs = make(tmp_path, "modernbert", rope_parameters=rope, layer_types=types)
    path = tmp_path / "config.json"
    config = {
        name: value
        for name, value in json.loads(path.read_text()).items()
        if name not in ("rope_parameters", "layer_types")
    }
    config |= {"global_rope_theta": 500.0, "local_rope_theta": 50.0, "global_attn_every_n_layers": 2}
    config |= {"position_embedding_type": "sans_pos", "layer_norm_eps": 0.5}  # no code reads these
    path.write_text(json.dumps(config))
    ids = np.random.default_rng(0).integers(3, 99, (2, 40))
    ours = minibert.load(tmp_path)
    assert ours.config.layer_types == tuple(types)
    compare(theirs, ours, {"input_ids": ids})
    for scaling in ({"rope_type": "linear", "factor": 3.0}, {"type": "linear", "factor": 3.0}):
        path.write_text(json.dumps({**config, "rope_scaling": scaling}))  # transformers 5 reads the first one only
        compare(type(theirs).from_pretrained(tmp_path), minibert.load(tmp_path), {"input_ids": ids})
    for field, value in (("layer_types", ["full_attention"]), ("layer_types", ["x"] * 3), ("local_attention", -1)):
        path.write_text(json.dumps({**config, field: value}))
        with pytest.raises(ModelFormatError, match=field):
            minibert.load(tmp_path)


# --- shapes and inputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("D", [8, 24, 80])
@pytest.mark.parametrize("family", ROTARY)
def test_odd_shapes_equal_transformers(tmp_path: Path, family: str, D: int) -> None:
    """One layer of two heads, one token, padding on both sides, holes, position_ids and vectors."""
    theirs = make(tmp_path, family, hidden_size=2 * D, num_attention_heads=2, num_hidden_layers=1 + (D == 24))
    ours, generator = minibert.load(tmp_path), np.random.default_rng(D)
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


@pytest.mark.parametrize("local_attention", [0, 1, 2, 3, 8, 31, 200])
def test_the_border_of_windows_is_that_of_transformers(tmp_path: Path, local_attention: int) -> None:
    """Windows count columns, also where tokens between are masked; eager and sdpa have the same border."""
    theirs = make(tmp_path, "modernbert", local_attention=local_attention, layer_types=["sliding_attention"] * 3)
    ours, generator = minibert.load(tmp_path), np.random.default_rng(0)
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


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForMultipleChoice"])
def test_modernberts_classifiers_of_sequences(tmp_path: Path, pooling: str, kind: str) -> None:
    theirs = make(tmp_path, "modernbert", kind, classifier_pooling=pooling, num_labels=3)
    ids, mask = np.random.default_rng(0).integers(3, 99, (4, 17)), np.ones((4, 17), int)
    mask[0, 9:], mask[1, :5], mask[2, 3:6] = 0, 0, 0
    shape = (2, 2, 17) if kind == "ForMultipleChoice" else (4, 17)
    found = minibert.load(tmp_path)(ids.reshape(shape), mask.reshape(shape)).logits
    with torch.no_grad():
        wanted = theirs(torch.as_tensor(ids.reshape(shape)), torch.as_tensor(mask.reshape(shape))).logits.numpy()
    # With "cls", transformers reads column 0 also where it is masked; minibert does not compute such a token.
    rows = np.array([0, 2, 3]) if (pooling, kind) == ("cls", "ForSequenceClassification") else np.arange(4)
    np.testing.assert_allclose(found.reshape(4, -1)[rows], wanted.reshape(4, -1)[rows], rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", ROTARY)
def test_positions_have_no_largest_number(tmp_path: Path, family: str) -> None:
    """There is no table that ends: transformers takes texts beyond max_position_embeddings, and so does a model."""
    theirs, ids = make(tmp_path, family, max_position_embeddings=16), np.random.default_rng(0).integers(3, 99, (1, 90))
    ours = minibert.load(tmp_path)
    assert ours.config.max_length == 16  # to which texts are cut
    compare(theirs, ours, {"input_ids": ids})


@pytest.mark.slow
@pytest.mark.parametrize("family", ROTARY)
def test_8192_tokens(tmp_path: Path, family: str) -> None:
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 2, "max_position_embeddings": 8192}
    theirs = make(tmp_path, family, **sizes, **({"local_attention": 128} if family == "modernbert" else {}))
    ids = np.random.default_rng(0).integers(3, 99, (1, 8192))
    found = minibert.load(tmp_path)(ids).last_hidden_state
    with torch.no_grad():
        exact = theirs.double()(torch.as_tensor(ids)).last_hidden_state
        rounded = theirs.float()(torch.as_tensor(ids)).last_hidden_state
    ours, other = (np.sqrt(np.mean((x - exact.numpy()) ** 2)) for x in (found, rounded.numpy()))
    assert ours <= other


def test_every_family_is_named_in_the_table_of_families() -> None:
    import minibert.bert.families

    assert all(name in (minibert.bert.families.__doc__ or "") for name in FAMILIES)


# --- what holds for BERT ----------------------------------------------------------------------------------------------

TEXTS = ["the cat sat on the mat", "a dog, and a longer text about a cat on a mat that sat there", "mat"] * 3


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a trained tokenizer of each family."""
    folders = {}
    for family in ROTARY:
        folder = tmp_path_factory.mktemp("tokenizers") / family
        folders[family] = family_folder(folder, family, train(family, TEXTS, 300), model_max_length=100)
    return folders


def with_tokenizer(folder: Path, family: str, kind: str, tokenizers: dict[str, Path], **more: Any) -> Any:
    theirs = make(folder, family, kind, **{"vocab_size": 999, "max_position_embeddings": 40, **more})
    for path in tokenizers[family].iterdir():
        if path.name != "config.json":
            shutil.copy(path, folder)
    return theirs


@pytest.mark.filterwarnings("ignore:.*has no modules.json", "ignore:.*tokens were truncated", "ignore:.*longer than")
@pytest.mark.parametrize("family", ROTARY)
def test_sentence_vectors_scores_and_lengths_equal_sentence_transformers(
    tmp_path: Path, family: str, tokenizers: dict[str, Path]
) -> None:
    with_tokenizer(tmp_path / "m", family, "Model", tokenizers)
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    ours = minibert.SentenceTransformer(tmp_path / "m")
    assert ours.max_seq_length == theirs.max_seq_length == 40
    texts = [*TEXTS, "the cat " * 60]
    np.testing.assert_allclose(ours.encode(texts, truncation="silent"), theirs.encode(texts), rtol=0, atol=2e-5)
    ours.max_seq_length = theirs.max_seq_length = 70  # beyond max_position_embeddings
    np.testing.assert_allclose(ours.encode(texts, truncation="silent"), theirs.encode(texts), rtol=0, atol=2e-5)
    alone = np.stack([ours.encode(text, truncation="silent") for text in texts])
    np.testing.assert_array_equal(ours.encode(texts, truncation="silent"), alone)
    probe = ours.tokenizer(TEXTS, padding=True, return_tensors="np")
    report = parity.check(ours, {"vectors": theirs.encode(TEXTS)}, probe)
    assert report.verdict == "float32", str(report)
    ours.save_pretrained(tmp_path / "saved")
    assert describe(tmp_path / "saved")["facts"]["max_seq_length"] == 70
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(again.encode(texts), theirs.encode(texts), rtol=0, atol=2e-5)
    spans = minibert.SentenceTransformer(tmp_path / "m").encode(texts[1], truncation="silent", spans=[(0, 5), (7, 20)])
    assert np.asarray(spans).shape == (2, 24)

    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])]
    for pooling in ("cls", "mean") if family == "modernbert" else ("",):
        own = {"classifier_pooling": pooling} if pooling else {}
        with_tokenizer(tmp_path / "c", family, "ForSequenceClassification", tokenizers, num_labels=1, **own)
        cross = sentence_transformers.CrossEncoder(str(tmp_path / "c"), device="cpu")
        scores = minibert.CrossEncoder(tmp_path / "c").predict(pairs, truncation="silent")
        np.testing.assert_allclose(scores, cross.predict(pairs), rtol=0, atol=2e-5)
    with_tokenizer(tmp_path / "s", family, "ForMaskedLM", tokenizers)
    sparse = sentence_transformers.SparseEncoder(str(tmp_path / "s"), device="cpu")
    found = minibert.SparseEncoder(tmp_path / "s").encode(TEXTS[:2], truncation="silent")
    wanted = sparse.encode(TEXTS[:2]).to_dense().numpy()
    dense = found.toarray() if hasattr(found, "toarray") else np.asarray(found.to_dense())
    np.testing.assert_allclose(dense, wanted, rtol=0, atol=2e-5)


PIPES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "text-classification": ("ForSequenceClassification", ("the cat",)),
    "token-classification": ("ForTokenClassification", ("the cat sat",)),
    "question-answering": ("ForQuestionAnswering", ("the cat", "a dog sat on the mat")),
    "fill-mask": ("ForMaskedLM", ("the [MASK] sat",)),
}


@pytest.mark.parametrize("task", PIPES)
@pytest.mark.parametrize("family", ROTARY)
def test_pipelines(tmp_path: Path, family: str, task: str, tokenizers: dict[str, Path]) -> None:
    kind, texts = PIPES[task]
    if (family, kind) not in PAIRS:
        return
    with_tokenizer(tmp_path, family, kind, tokenizers)
    ours = minibert.pipeline(task, model=tmp_path)
    if task == "question-answering":  # transformers 5 does not have it
        assert 0 <= ours(*texts)["score"] <= 1
        return
    theirs = transformers.pipeline(task, model=str(tmp_path))
    if task == "fill-mask":
        texts = (texts[0].replace("[MASK]", theirs.tokenizer.mask_token),)
    found, wanted = ours(*texts), theirs(*texts)
    for one, other in zip(*([x] if isinstance(x, dict) else x for x in (found, wanted)), strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=2e-5)


@pytest.mark.parametrize("family", ROTARY)
def test_traces_can_be_saved_edited_and_analysed(tmp_path: Path, family: str) -> None:
    make(tmp_path, family)
    model, ids = minibert.load(tmp_path), np.random.default_rng(0).integers(3, 99, (2, 12))
    mask = np.ones((2, 12), int)
    mask[1, 7:] = 0
    trace, given = model.trace(ids, mask), {"input_ids": ids, "attention_mask": mask}
    trace.save(tmp_path / "trace.npz")
    again = minibert.Trace.load(tmp_path / "trace.npz")
    assert list(again) == list(trace)
    for name in trace:
        np.testing.assert_array_equal(again[name], trace[name])
        if "scores" not in name and trace[name].size:  # the scores beyond a window are -inf
            assert np.isfinite(trace[name]).all()
    plain = trace["hidden_states.3"]
    for name in trace:
        if not name.startswith("embeddings.") and "LayerNorm.input" not in name:
            same = model.trace(**given, record=("hidden_states.3",), edit={name: np.copy}, allow_noop=True)
            np.testing.assert_array_equal(same["hidden_states.3"], plain)
    for part in ("query.rotated", "key.rotated"):
        edit = {f"encoder.layer.1.attention.self.{part}": lambda x: x * np.float32(0.5)}
        changed = model.trace(**given, edit=edit)
        scores = "encoder.layer.1.attention.self.scores"
        seen = np.isfinite(trace[scores]) & (np.abs(trace[scores]) < 1e9)
        np.testing.assert_allclose(changed[scores][seen], 0.5 * trace[scores][seen], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(inside.value_zeroing(model, given).sum(axis=3)[:, mask == 1], 1)
    assert inside.norms(model, given).shape == (3, 2, 12, 12)
    page(trace)


@pytest.mark.filterwarnings("ignore:.*has no modules.json")
@pytest.mark.parametrize("family", ["nomic_bert", "modernbert"])
def test_a_corpus_may_have_texts_of_8192_tokens(tmp_path: Path, family: str, tokenizers: dict[str, Path]) -> None:
    folder, texts = tmp_path / "m", tmp_path / "texts.txt"
    with_tokenizer(folder, family, "Model", tokenizers, max_position_embeddings=8192, num_hidden_layers=2)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 8192}))
    model = minibert.SentenceTransformer(folder)
    lines = ["a cat", "the cat " * 4094 + "the", "a dog sat"]
    assert 8190 <= model.tokenize(lines[1:2])["input_ids"].shape[1] <= 8192
    texts.write_text("\n".join(lines))
    assert main(["embed", "-i", str(texts), "-o", str(tmp_path / "v.npy"), "-m", str(folder)]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), np.stack([model.encode(line) for line in lines]))


def test_info_says_what_a_model_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tokenizers: dict[str, Path]
) -> None:
    for family in ROTARY:
        with_tokenizer(tmp_path / family, family, "Model", tokenizers)
        assert main(["info", "-m", str(tmp_path / family)]) == 0
        out = capsys.readouterr().out
        assert family in out
        assert "rope_theta" in out


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
        wanted = minibert.load(tmp_path)(ids).last_hidden_state
        for compute_type in ("int16", "int8_int16", "int8"):
            model = minibert.load(tmp_path, compute_type=compute_type)
            found = model(ids).last_hidden_state
            shared = minibert.load(tmp_path, compute_type=compute_type, shared_weights=True)
            twin = minibert.load(tmp_path, compute_type=compute_type, backend="numpy")
            assert shared(ids).last_hidden_state.tobytes() == found.tobytes()
            np.testing.assert_allclose(twin(ids).last_hidden_state, found, rtol=0, atol=0.05)
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
