"""Every setting in the files that sentence-transformers reads is used as there, or refused or warned of by name."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling

import minibert
from minibert import ModelFormatError
from tests.support.sentence_heads import (
    CLASSIFY,
    FILL_MASK,
    MASKED,
    SEQUENCE,
    SPLADE,
    TRANSFORMER,
    model_folder,
    modules,
)
from tests.support.sentence_modules import MEAN, dense, model_with_modules, random_tensors, write_json

TEXTS = ["the cat sat on the MAT by the river", "A man, Hello World: first second longer short text", "e"]
TOLERANCE = 2e-5

SETTINGS, TOKENS, HOME = "sentence_bert_config.json", "tokenizer_config.json", "config_sentence_transformers.json"
POOLING, DENSE, NORM, LAST = (f"{name}/config.json" for name in ("1_Pooling", "2_Dense", "3_LayerNorm", "4_Normalize"))
TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
ACTIVATION = "torch.nn.modules.activation."
Case = tuple[str, dict[str, Any]]  # a file, and its new or changed settings; a value of Ellipsis deletes the setting

# The vectors are those of sentence-transformers, which differ from those of the unchanged files.
CHANGES: list[Case] = [
    *((f"sentence_{kind}_config.json", {"max_seq_length": 6}) for kind in (
        "bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")),
    (SETTINGS, {"tokenizer_args": {"model_max_length": 7}}),
    (SETTINGS, {"max_seq_length": 9, "processor_kwargs": {"model_max_length": 7}}),
    (TOKENS, {"model_max_length": 7}),
    (TOKENS, {"model_max_length": 7, "truncation_side": "left"}),
    *((POOLING, {"pooling_mode": mode}) for mode in (
        "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")),
    (POOLING, {"pooling_mode": ..., "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}),
    (POOLING, {"include_prompt": False}),
    *((DENSE, {"activation_function": f"{ACTIVATION}{name}"}) for name in ("ReLU", "GELU", "SiLU", "Sigmoid")),
    (DENSE, {"activation_function": "torch.nn.modules.linear.Identity"}),
    (DENSE, {"use_residual": True}),
    (HOME, {"default_prompt_name": "query"}),
    (HOME, {"prompts": {"query": "short ", "other": "x"}}),
    (HOME, {"truncate_dim": 7}),
    (HOME, {"similarity_fn_name": "euclidean"}),
]  # fmt: skip

# The vectors are those of the unchanged files, as in sentence-transformers.
CHANGES_NOTHING: list[Case] = [
    (
        SETTINGS,
        {"do_lower_case": True, "max_seq_length": None, "unpad_inputs": False, "backend": "onnx", "cache_dir": "x"},
    ),
    (SETTINGS, {"processing_kwargs": {}, "query_length": None, "document_length": None, "query_expansion": None}),
    (SETTINGS, {"modality_config": {"text": TEXT, "image": TEXT}, "module_output_name": "token_embeddings"}),
    (SETTINGS, {"transformer_task": "feature-extraction", "tokenizer_name_or_path": None}),
    (
        SETTINGS,
        {"tokenizer_args": {"do_lower_case": True, "use_fast": True, "subfolder": "x", "trust_remote_code": True}},
    ),
    (
        SETTINGS,
        {"model_args": {"torch_dtype": "float32", "attn_implementation": "flash_attention_2", "revision": "x"}},
    ),
    (SETTINGS, {"model_kwargs": {}, "config_kwargs": {"hidden_act": "gelu", "attention_probs_dropout_prob": 0.5}}),
    (POOLING, {"embedding_dimension": ..., "word_embedding_dimension": 24, "pooling_mode_max_tokens": True}),
    (DENSE, {"module_output_name": None, "use_residual": False}),
    ("5_Dropout/config.json", {"dropout": 0.9}),
    (HOME, {"__version__": {"sentence_transformers": "99"}, "activation_fn": "x", "max_active_dims": 3}),
]

# (file, setting, values): each is refused, or warned of, by its name.
NAMED: list[tuple[str, str, list[Any]]] = [
    (SETTINGS, "max_seq_length", [0, 1, -1, "7", 7.0, True]),
    (SETTINGS, "transformer_task", ["fill-mask", "x", None]),
    (SETTINGS, "modality_config", [None, {}, {"text": {**TEXT, "method_output_name": "pooler_output"}},
                                   {"text": TEXT, "message": {**TEXT, "format": "flat"}}]),
    (SETTINGS, "module_output_name", ["sentence_embedding"]),
    (SETTINGS, "processing_kwargs", [{"text": {"max_length": 6}}, {"common": {"add_special_tokens": False}}]),
    (SETTINGS, "query_length", [0, 5]),
    (SETTINGS, "document_length", [5]),
    (SETTINGS, "query_expansion", [{"strategy": "fixed", "length": 32}]),
    (SETTINGS, "tokenizer_name_or_path", ["other"]),
    (SETTINGS, "model_name_or_path", ["other"]),
    (SETTINGS, "another", [1, "x"]),
    *((SETTINGS, name, [{"torch_dtype": "float16"}, {"dtype": "bfloat16"}, {"hidden_act": "relu"}, {"another": 1}, [1]])
      for name in ("model_kwargs", "model_args")),
    *((SETTINGS, name, [{"do_lower_case": False}, {"strip_accents": False}, {"truncation_side": "left"}, {"max_len": 7},
                        {"padding_side": "left"}, {"cls_token": "[SEP]"}, {"model_max_length": "7"}, {"another": 1}])
      for name in ("processor_kwargs", "tokenizer_args")),
    *((SETTINGS, name, [{"hidden_act": "relu"}, {"layer_norm_eps": 0.1}, {"num_hidden_layers": 0}, {"is_decoder": True},
                        {"num_attention_heads": 2}, {"another": 1}]) for name in ("config_kwargs", "config_args")),
    ("sentence_xlnet_config.json", "query_length", [5]),
    (TOKENS, "padding_side", ["left"]),
    (TOKENS, "model_input_names", [["input_ids"]]),
    (POOLING, "pooling_mode", ["x", 5, [], ["mean", "median"], {"a": 1}]),
    (POOLING, "pooling_mode_x", [True, False]),
    (POOLING, "include_prompt", ["x", None]),
    (POOLING, "embedding_dimension", [25, None]),
    (POOLING, "word_embedding_dimension", [25]),
    (POOLING, "another", [1]),
    (DENSE, "activation_function", [f"{ACTIVATION}ELU", "torch.nn.functional.relu", "os.system", "Tanh", None]),
    (DENSE, "in_features", [25]),
    (DENSE, "bias", ["x", None]),
    (DENSE, "module_input_name", ["token_embeddings"]),
    (DENSE, "module_output_name", ["token_embeddings"]),
    (DENSE, "use_residual", ["x"]),
    (DENSE, "init_weight", [[1.0]]),
    (DENSE, "init_bias", [[1.0]]),
    (DENSE, "another", [1]),
    (NORM, "dimension", [23]),
    (NORM, "eps", [0.1]),
    (LAST, "module_input_name", ["token_embeddings"]),
    (LAST, "module_output_name", ["token_embeddings"]),
    (LAST, "another", [1]),
    (HOME, "model_type", ["CrossEncoder", "SparseEncoder", "MultiVectorEncoder", "x"]),
    (HOME, "default_prompt_name", ["x", ["query"]]),
    (HOME, "prompts", [{"query": None}, {"query": 3}, ["x"]]),
    (HOME, "similarity_fn_name", ["maxsim"]),
    (HOME, "truncate_dim", [0, -1, "x"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    norm = ("LayerNorm", {"dimension": 24}, random_tensors(norm_weight=(24,), norm_bias=(24,)))
    steps = [MEAN, dense(24, 24), norm, ("Normalize", {"module_input_name": "sentence_embedding"}, None)]
    folder = model_with_modules(
        tmp_path_factory.mktemp("settings") / "model", [*steps, ("Dropout", {"dropout": 0.2}, None)], new=True
    )
    write_json(folder / HOME, {"model_type": "SentenceTransformer", "prompts": {"query": "a text of the cat "}})
    return folder


def changed(model: Path, folder: Path, file: str, settings: dict[str, Any]) -> Path:
    """Copy a model, with other settings in one of its files."""
    shutil.copytree(model, folder)
    before = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    write_json(folder / file, {name: value for name, value in {**before, **settings}.items() if value is not ...})
    return folder


def results(model: Any, **options: Any) -> list[np.ndarray]:
    """Return vectors of texts and of queries, and similarities."""
    pairs = model.similarity(np.eye(3, dtype=np.float32), np.full((2, 3), 0.5, np.float32))
    return [np.asarray(x) for x in (model.encode(TEXTS, **options), model.encode_query(TEXTS, **options), pairs)]


def ours(folder: Path) -> list[np.ndarray]:
    return results(minibert.SentenceTransformer(folder), truncation="silent")


def differ(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return any(x.shape != y.shape or np.abs(x - y).max() > TOLERANCE for x, y in zip(some, others, strict=True))


@pytest.mark.parametrize(("file", "settings"), CHANGES)
def test_settings_change_the_vectors_as_in_sentence_transformers(
    file: str, settings: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    found = ours(folder := changed(model, tmp_path / "model", file, settings))
    assert not differ(found, results(sentence_transformers.SentenceTransformer(str(folder), device="cpu")))
    assert differ(found, ours(model))


def test_settings_that_change_nothing(model: Path, tmp_path: Path) -> None:
    expected = ours(model)
    assert not differ(expected, results(sentence_transformers.SentenceTransformer(str(model), device="cpu")))
    for i, (file, settings) in enumerate(CHANGES_NOTHING):
        assert not differ(ours(changed(model, tmp_path / str(i), file, settings)), expected), (file, settings)


@pytest.mark.parametrize(("file", "name", "values"), NAMED)
def test_settings_that_are_refused_or_warned_of_by_name(
    file: str, name: str, values: list[Any], model: Path, tmp_path: Path
) -> None:
    for i, value in enumerate(values):
        folder = changed(model, tmp_path / str(i), file, {name: value})
        inner = min(value) if isinstance(value, dict) and name.endswith(("args", "kwargs")) else name
        with pytest.raises((ModelFormatError, UserWarning), match=re.escape(name)) as caught:
            minibert.SentenceTransformer(folder)
        assert inner in str(caught.value), value


@pytest.mark.parametrize("file", [SETTINGS, HOME, DENSE])
def test_a_file_that_holds_no_object_is_named(file: str, model: Path, tmp_path: Path) -> None:
    write_json(changed(model, tmp_path / "model", file, {}) / file, [])
    with pytest.raises(ModelFormatError, match=re.escape(file)):
        minibert.SentenceTransformer(tmp_path / "model")


@pytest.mark.parametrize("value", [False, 0, "", [], {}, None])
def test_unknown_settings_that_are_off_do_nothing(value: object, model: Path, tmp_path: Path) -> None:
    """sentence-transformers 6.2 refuses each unknown setting; another version knows this one, and it is off."""
    found = minibert.SentenceTransformer(changed(model, tmp_path / "model", SETTINGS, {"another": value}))
    assert not differ(
        results(found, truncation="silent"), results(minibert.SentenceTransformer(model), truncation="silent")
    )


def test_what_the_caller_gives_replaces_what_the_file_gives(model: Path, tmp_path: Path) -> None:
    stored = {
        "model_args": {"torch_dtype": "float16"},
        "tokenizer_args": {"model_max_length": 7, "padding_side": "left"},
    }
    folder = changed(model, tmp_path / "model", SETTINGS, stored)
    given = {"model_kwargs": {"torch_dtype": "float32"}}
    tokens = {"model_max_length": 9, "padding_side": "right"}
    for keywords in ({"processor_kwargs": tokens}, {"tokenizer_kwargs": tokens}):
        found = minibert.SentenceTransformer(folder, **given, **keywords)
        assert found.max_seq_length == 9
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu", **given, processor_kwargs=tokens)
    assert not differ(results(found, truncation="silent"), results(theirs))
    with pytest.raises(TypeError, match=r"^tokenizer_kwargs of SentenceTransformer: .*another"):
        minibert.SentenceTransformer(model, tokenizer_kwargs={"another": 1})


def test_a_folder_without_modules_is_a_plain_bert(model: Path, tmp_path: Path) -> None:
    """Without modules.json sentence-transformers reads none of its other files."""
    folder = changed(model, tmp_path / "model", SETTINGS, {"max_seq_length": 5, "query_length": 3})
    write_json(folder / HOME, {"model_type": "x", "default_prompt_name": "query", "prompts": {"query": "a text "}})
    (folder / "modules.json").unlink()
    with pytest.warns(UserWarning, match=r"no modules\.json"):
        found = ours(folder)
    assert not differ(found, results(sentence_transformers.SentenceTransformer(str(folder), device="cpu")))


def test_two_modules_with_the_same_name(model: Path, tmp_path: Path) -> None:
    """sentence-transformers keeps the last one in the place of the first one."""
    folder = shutil.copytree(model, tmp_path / "model")
    listed = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [*listed[:-1], {**listed[-1], "name": "2"}])
    with pytest.raises(ModelFormatError, match=r"modules\.json has two modules with the same name"):
        minibert.SentenceTransformer(folder)


@pytest.mark.parametrize(
    ("kind", "load", "file", "settings", "message"),
    [
        (SEQUENCE, minibert.CrossEncoder, SETTINGS, {**CLASSIFY, "modality_config": {"text": TEXT}}, "modality_config"),
        (SEQUENCE, minibert.CrossEncoder, SETTINGS, {**CLASSIFY, "config_args": {"hidden_act": "relu"}}, "hidden_act"),
        (SEQUENCE, minibert.CrossEncoder, HOME, {"model_type": "SparseEncoder"}, "model_type"),
        (MASKED, minibert.SparseEncoder, SETTINGS, {**FILL_MASK, "another": 1}, "another"),
        (MASKED, minibert.SparseEncoder, "1_SpladePooling/config.json", {"another": 1}, "another"),
        (
            MASKED,
            minibert.SparseEncoder,
            "1_SpladePooling/config.json",
            {"pooling_strategy": "mean"},
            "pooling_strategy",
        ),
    ],
)
def test_the_other_encoders(
    kind: str, load: Callable[..., Any], file: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = model_folder(tmp_path / "model", kind, num_labels=1)
    of_kind, more = (CLASSIFY, []) if kind == SEQUENCE else (FILL_MASK, [SPLADE])
    write_json(folder / "modules.json", modules(TRANSFORMER, *more))
    write_json(folder / SETTINGS, of_kind)
    write_json(folder / "1_SpladePooling/config.json", {"chunk_size": 3})
    load(folder)
    write_json(folder / file, settings)
    with pytest.raises(ModelFormatError, match=message):
        load(folder)


def test_the_tables_have_all_settings_of_sentence_transformers() -> None:
    tables = [*CHANGES, *CHANGES_NOTHING, *((file, {name: values}) for file, name, values in NAMED)]
    classes = {SETTINGS: Transformer, POOLING: Pooling, DENSE: Dense, NORM: LayerNorm, LAST: Normalize}
    for file, kind in classes.items():
        known = {name for other, settings in tables if other == file for name in settings} | {"self", "out_features"}
        assert inspect.signature(kind.__init__).parameters.keys() <= known, file
    splade = inspect.signature(SpladePooling.__init__).parameters.keys() - {"self"}
    assert splade <= {*minibert.sentence.sparse_encoder.SPLADE_KEYS}
