"""modules.json and its modules, in both generations of files, against sentence-transformers; and refused modules."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer as Original
from sentence_transformers.sentence_transformer import modules

from minibert import ModelFormatError, SentenceTransformer
from minibert.encode.modules import ACTIVATIONS
from minibert.encode.pooling import POOLING_MODES
from tests.support.checkpoints import random_checkpoint, their_vectors
from tests.support.sentence_modules import MEAN, dense, model_with_modules, random_tensors, write_json

TOLERANCE = 2e-6
TEXTS = ["", "the cat", "a b c d e f g", "the the the", "cat sat on the mat " * 4]


CLS_OLD = ("Pooling", {"word_embedding_dimension": 24, "pooling_mode_cls_token": True}, None)


def assert_equal_to_theirs(folder: Path, atol: float = TOLERANCE) -> SentenceTransformer:
    model = SentenceTransformer(folder)
    vectors = model.encode(TEXTS)
    expected = their_vectors(folder, TEXTS)
    assert vectors.shape == expected.shape == (len(TEXTS), model.get_embedding_dimension())
    np.testing.assert_allclose(vectors, expected, atol=atol)
    for text, vector in zip(TEXTS, vectors, strict=True):  # vectors do not depend on the batch
        np.testing.assert_array_equal(model.encode(text), vector)
    return model


@pytest.mark.parametrize("new", [False, True], ids=["old", "v6"])
def test_the_modules_of_labse(tmp_path: Path, new: bool) -> None:
    """CLS -> Dense with tanh -> Normalize."""
    model = assert_equal_to_theirs(
        model_with_modules(tmp_path / "model", [CLS_OLD, dense(24, 24), ("Normalize", None, None)], new=new)
    )
    assert model.pipeline.names == ("Dense(24, 24, Tanh)", "Normalize")
    assert "cls pooling, Dense(24, 24, Tanh), Normalize" in repr(model)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("backend", ["kernels", "numpy"])
def test_activations(tmp_path: Path, activation: str, backend: str) -> None:
    folder = model_with_modules(tmp_path / "model", [MEAN, dense(24, 13, f"torch.nn.{activation}")])
    ours = SentenceTransformer(folder, backend=backend).encode(TEXTS)
    np.testing.assert_allclose(ours, their_vectors(folder, TEXTS), atol=TOLERANCE)


@pytest.mark.parametrize(
    "step",
    [
        dense(24, 50, bias=False),
        dense(24, 24, use_residual=True),
        dense(24, 7, use_residual=True),
        dense(24, 7, "torch.nn.modules.activation.Sigmoid", use_residual=True),
        dense(24, 7, "torch.nn.GELU", module_input_name="sentence_embedding", module_output_name="sentence_embedding"),
        ("LayerNorm", {"dimension": 24}, random_tensors(norm_weight=(24,), norm_bias=(24,))),
        ("Dropout", {"dropout": 0.5}, None),
    ],
    ids=["no bias", "residual", "projected residual", "sigmoid residual", "short name", "LayerNorm", "Dropout"],
)
def test_other_modules(tmp_path: Path, step: Any) -> None:
    assert_equal_to_theirs(model_with_modules(tmp_path / "model", [MEAN, step]))


def test_a_model_with_modules_can_be_copied(tmp_path: Path) -> None:
    """A vector of the copy has the same bits."""
    norm = ("LayerNorm", {"dimension": 7}, random_tensors(norm_weight=(7,), norm_bias=(7,)))
    steps = [MEAN, dense(24, 7, use_residual=True), norm, ("Normalize", None, None)]
    model = SentenceTransformer(model_with_modules(tmp_path / "model", steps))
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(copied.encode(TEXTS), model.encode(TEXTS))


def test_files_that_sentence_transformers_itself_saved(tmp_path: Path) -> None:
    """The model is made and saved by version 6.2, with every module and the config that this version writes."""
    bert = random_checkpoint(tmp_path / "bert", hidden_size=24, num_attention_heads=3, num_hidden_layers=1)
    torch.manual_seed(1)
    transformer = modules.Transformer(str(bert), max_seq_length=40)
    parts = [transformer, modules.Pooling(24, ("mean", "lasttoken"), include_prompt=False)]
    parts += [modules.Dense(48, 10, activation_function=torch.nn.SiLU()), modules.LayerNorm(10)]
    parts += [modules.Dropout(0.3), modules.Normalize()]
    original = Original(modules=parts, device="cpu", prompts={"query": "the man "}, similarity_fn_name="dot")
    original.truncate_dim = 6
    original.save(str(tmp_path / "model"), create_model_card=False)
    model = SentenceTransformer(tmp_path / "model")
    assert (model.similarity_fn_name, model.truncate_dim, model.max_seq_length) == ("dot", 6, 40)
    assert model.prompts == original.prompts
    for options in ({}, {"prompt_name": "query"}):
        ours, expected = (m.encode(TEXTS, **options) for m in (model, original))
        np.testing.assert_allclose(ours, expected, atol=TOLERANCE)
    np.testing.assert_allclose(model.similarity(ours, ours), original.similarity(ours, ours).numpy(), atol=1e-6)


OLD_MODES = ["cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]


@pytest.mark.parametrize("modes", [*([mode] for mode in OLD_MODES), ["max_tokens", "cls_token"], OLD_MODES, []])
def test_old_pooling_switches(tmp_path: Path, modes: list[str]) -> None:
    config = {"word_embedding_dimension": 24, **{f"pooling_mode_{mode}": mode in modes for mode in OLD_MODES}}
    assert_equal_to_theirs(model_with_modules(tmp_path / "model", [("Pooling", config, None)]))


@pytest.mark.parametrize("mode", POOLING_MODES)
@pytest.mark.parametrize("include_prompt", [True, False])
def test_pooling_modes_with_and_without_the_prompt(tmp_path: Path, mode: str, include_prompt: bool) -> None:
    config = {"embedding_dimension": 24, "pooling_mode": mode, "include_prompt": include_prompt}
    folder = model_with_modules(tmp_path / "model", [("Pooling", config, None)], new=True)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "the man ", "empty": ""}})
    for options in ({}, {"prompt_name": "query"}, {"prompt_name": "empty"}, {"prompt": "hello world"}):
        ours = SentenceTransformer(folder).encode(TEXTS, **options)
        np.testing.assert_allclose(ours, their_vectors(folder, TEXTS, **options), atol=TOLERANCE)


def test_other_pooling_than_the_models_own(tmp_path: Path) -> None:
    folder = model_with_modules(tmp_path / "model", [MEAN, dense(24, 13)])
    expected = their_vectors(model_with_modules(tmp_path / "other", [CLS_OLD, ("Dropout", {}, None)]), TEXTS)
    model = SentenceTransformer(folder)
    weight, bias = (model.pipeline.modules[0].tensors[f"linear.{part}"] for part in ("weight", "bias"))
    expected = np.tanh(expected @ weight.T + bias)
    np.testing.assert_allclose(model.encode(TEXTS, pooling="cls"), expected, atol=1e-5)
    for wider in ({"pooling": "mean_max"}, {"layers": [0, 1]}):
        with pytest.raises(ValueError, match=r"48 features; Dense\(24, 13, Tanh\) takes 24"):
            model.encode(TEXTS, **wider)
    assert model.encode(TEXTS, layers=[0, 1], layer_pooling="mean").shape == (5, 13)


# --- refused modules -------------------------------------------------------------------------------------------------


def listed(*modules: tuple[str, str]) -> list[dict[str, str]]:
    return [{"type": f"sentence_transformers.{kind}", "path": path} for kind, path in modules]


FIRST = ("models.Transformer", "")
POOLING = ("models.Pooling", "1_Pooling")


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([], "lists nothing"),
        ({}, "a type and a path"),
        ("text", "a type and a path"),
        (listed(FIRST), "lists Transformer;"),
        (listed(POOLING, FIRST), "Pooling, Transformer"),
        (listed(FIRST, POOLING, ("models.Asym", "2_Asym")), "Asym"),
        (listed(FIRST, ("models.WordWeights", "1"), POOLING), "WordWeights"),
        ([{"type": "os.system", "path": ""}], "never run"),
        ([{"type": "my_repo.custom.Pooling", "path": ""}], "never run"),
        (listed(FIRST, ("models.Pooling", "../elsewhere")), "leaves the model"),
        (listed(FIRST, ("models.Pooling", "/etc")), "leaves the model"),
        (listed(FIRST, ("models.Pooling", "..\\up")), "leaves the model"),
        (listed(FIRST, ("models.Pooling", "\\\\host\\share")), "leaves the model"),
        (listed(FIRST, ("models.Pooling", "C:x")), "cannot name a file"),
        (listed(FIRST, ("models.Pooling", "a\nb")), "cannot name a file"),
        (listed(FIRST, ("models.Pooling", "9_Nothing")), "9_Nothing/config.json"),
    ],
)
def test_bad_modules_json(tmp_path: Path, modules: object, message: str) -> None:
    folder = model_with_modules(tmp_path / "model", [MEAN])
    write_json(folder / "modules.json", modules)
    with pytest.raises(ModelFormatError, match=message.replace("\\", r"\\")):
        SentenceTransformer(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"out_features": 0}, "out_features=0"),
        ({"out_features": 14}, r"F32 \[13\]; expected \[14\]"),
        ({"bias": False}, r"linear.bias is F32 \[13\]; expected nothing"),
        ({"use_residual": True}, "residual.weight is missing"),
    ],
)
def test_dense_configs_that_do_not_fit_the_weights(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    kind, good, tensors = dense(24, 13)
    folder = model_with_modules(tmp_path / "model", [MEAN, (kind, {**good, **config}, tensors)])
    with pytest.raises(ModelFormatError, match=message):
        SentenceTransformer(folder)


def test_bad_dense_weights(tmp_path: Path) -> None:
    kind, config, tensors = dense(24, 13)
    folder = model_with_modules(tmp_path / "model", [MEAN, (kind, config, tensors)])
    weights = folder / "2_Dense" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-3])
    with pytest.raises(ModelFormatError, match="2_Dense"):
        SentenceTransformer(folder)
    save_file({**tensors, "linear.bias": tensors["linear.bias"] * np.float32(np.nan)}, weights)
    with pytest.raises(ModelFormatError, match=r"linear\.bias holds nan"):
        SentenceTransformer(folder)
    save_file({**tensors, "linear.bias": np.arange(13)}, weights)
    with pytest.raises(ModelFormatError, match=r"linear\.bias is I64"):
        SentenceTransformer(folder)
    weights.unlink()
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"\x80\x02\x8a\x0a not of torch")
    with pytest.raises(ModelFormatError, match=r"pytorch_model\.bin"):
        SentenceTransformer(folder)
