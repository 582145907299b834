"""Keywords and names of transformers: values that do not change a result are accepted, others refused with a remedy."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from minibert import AutoConfig, AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizer, ModelFormatError
from tests.support.refusals import Refused, check_refused

HARMLESS: list[dict[str, Any]] = [
    {"trust_remote_code": False, "force_download": False, "proxies": None, "resume_download": True},
    {"torch_dtype": torch.float32, "low_cpu_mem_usage": True, "device_map": "cpu"},
    {"dtype": "float32", "attn_implementation": "sdpa", "device_map": {"": "cpu"}},
    {"dtype": np.float32, "attn_implementation": "eager", "device_map": "auto"},
    {"dtype": "auto", "use_safetensors": True, "return_dict": True},
    {"torch_dtype": np.dtype("float32"), "quantization_config": None, "hidden_dropout_prob": 0.0, "num_labels": 2},
    {"num_hidden_layers": 4, "vocab_size": 73, "hidden_act": "gelu"},
]


@pytest.mark.parametrize("options", HARMLESS, ids=str)
def test_harmless_keywords_change_nothing(small_folder: Path, options: dict[str, Any]) -> None:
    config = BertConfig.from_pretrained(small_folder)
    sizes = {name: value for name, value in options.items() if not hasattr(config, name)}
    sizes |= {name: getattr(config, name) for name in options if hasattr(config, name)}
    expected = BertModel.from_pretrained(small_folder)([[1, 2, 3]])
    for load in (BertModel.from_pretrained, AutoModel.from_pretrained):
        model = load(pretrained_model_name_or_path=str(small_folder), **sizes)
        np.testing.assert_array_equal(model([[1, 2, 3]]).last_hidden_state, expected.last_hidden_state)
    assert AutoConfig.from_pretrained(pretrained_model_name_or_path=small_folder, **sizes) == config


def test_keywords_that_change_the_result_are_refused(small_folder: Path) -> None:
    table: Refused = {
        ("trust_remote_code", ValueError): ("yes",),
        ("torch_dtype", ValueError): (torch.float16,),
        ("dtype", ValueError): ("bfloat16", 10**5000),
        ("attn_implementation", ValueError): ("flash_attention_2",),
        ("device_map", ValueError): ("cuda", {"": 0}),
        ("use_safetensors", ValueError): (False,),
        ("load_in_8bit", ValueError): (True,),
        ("num_hidden_layers", ValueError): (3,),
        ("vocab_size", ValueError): (3,),
        ("num_labels", ValueError): (3,),
        ("layer_norm_eps", ValueError): (1e-3,),
        ("hidden_act", ValueError): ("relu",),
        ("torch_dtyp", TypeError): (None,),
        ("pretrained_model_name_or_path", TypeError): ("x",),
    }
    for load in (BertModel.from_pretrained, AutoModel.from_pretrained, AutoConfig.from_pretrained):
        check_refused(partial(load, small_folder), {}, table)


def test_the_name_is_needed() -> None:
    for kind in (BertModel, BertConfig, BertTokenizer, AutoModel, AutoConfig, AutoTokenizer):
        with pytest.raises(TypeError, match="needs the name of a model"):
            kind.from_pretrained()


def test_auto_dtype_computes_in_float32_whatever_the_file_has(small_folder: Path, tmp_path: Path) -> None:
    transformers.BertModel.from_pretrained(small_folder).half().save_pretrained(tmp_path)
    outputs = [BertModel.from_pretrained(tmp_path, dtype=dtype)([[1, 2, 3]]) for dtype in ("auto", "float32")]
    np.testing.assert_array_equal(outputs[0].last_hidden_state, outputs[1].last_hidden_state)


def test_choices_of_the_model_in_the_config(small_folder: Path) -> None:
    BertConfig.from_pretrained(small_folder, output_hidden_states=True, output_attentions=False)
    with pytest.raises(ValueError, match="Give it to BertModel"):
        BertConfig.from_pretrained(small_folder, output_attentions=True)


def test_a_config_does_not_change() -> None:
    config = BertConfig()
    assert config.model_type == config.to_dict()["model_type"] == transformers.BertConfig().model_type
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"BertModel\.from_pretrained\(name, output_att"):
        config.output_attentions = True
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"hidden_act cannot be set.*dataclasses\.replace"):
        config.hidden_act = "relu"
    config.output_hidden_states = True  # as it is here
    assert config == BertConfig()
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


@pytest.mark.parametrize(
    "options",
    [
        {"do_lower_case": True, "use_fast": True, "strip_accents": None, "tokenize_chinese_chars": True},
        {"cls_token": "[CLS]", "pad_token": "[PAD]", "mask_token": transformers.AddedToken("[MASK]"), "legacy": False},
        {"padding_side": "right", "truncation_side": "right", "config": object(), "add_bos_token": False},
    ],
    ids=["settings", "special tokens", "sides"],
)
def test_harmless_tokenizer_keywords(tokenizer: BertTokenizer, minilm_folder: Path, options: dict[str, Any]) -> None:
    for load in (BertTokenizer.from_pretrained, AutoTokenizer.from_pretrained):
        loaded = load(minilm_folder, **options)
        assert loaded("Hello, wörld!") == tokenizer("Hello, wörld!")
        assert loaded.vocab == tokenizer.vocab


def test_refused_keywords_of_tokenizers(minilm_folder: Path) -> None:
    table: Refused = {
        ("do_lower_case", ValueError): (False,),
        ("strip_accents", ValueError): (False,),
        ("cls_token", ValueError): ("[SEP]",),
        ("padding_side", ValueError): ("top",),
        ("truncation_side", ValueError): (1,),
        ("pad_token", ValueError): (5, "[MASK]"),
        ("extra_special_tokens", ValueError): ("<x>", ["<x>"]),
        ("model_max_length", ValueError): (0,),
        ("add_special_tokens", TypeError): (True,),
    }
    check_refused(partial(BertTokenizer.from_pretrained, minilm_folder), {}, table)


def test_options_of_a_tokenizer_are_set(minilm_folder: Path) -> None:
    options = {"model_max_length": 42, "padding_side": "left", "clean_up_tokenization_spaces": True}
    ours = BertTokenizer.from_pretrained(minilm_folder, **options)
    theirs = transformers.BertTokenizer.from_pretrained(minilm_folder, **options)
    texts = ["a text", "a longer text, " * 30]
    assert ours(texts, padding=True, truncation=True).data == theirs(texts, padding=True, truncation=True).data


@pytest.mark.parametrize("model_type", ["deberta-v2", "gpt2"])
def test_auto_classes_refuse_other_models_by_name(minilm_folder: Path, tmp_path: Path, model_type: str) -> None:
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        shutil.copy(minilm_folder / name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for kind in (AutoModel, AutoTokenizer, AutoConfig):
        with pytest.raises(ModelFormatError, match=f"model_type='{model_type}'"):
            kind.from_pretrained(tmp_path)
        with pytest.raises(TypeError, match=r"Call Auto\w+\.from_pretrained"):
            kind()
