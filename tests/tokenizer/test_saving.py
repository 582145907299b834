"""save_pretrained: minibert and transformers load the folder as the tokenizer that was saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from minibert import BertConfig, BertModel, BertTokenizer
from minibert.models.stored import named_arrays
from tests.support.tokenizer_files import AWKWARD_TEXTS, SPECIALS, WORDS, flags, model_folder, tokenizer_json

IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])


@pytest.mark.parametrize("backend", ["kernels", "numpy"])
def test_a_saved_model_is_the_same_model(small_folder: Path, tmp_path: Path, backend: str) -> None:
    model = BertModel.from_pretrained(small_folder, backend=backend)
    model.save_pretrained(tmp_path / "new" / "copy", safe_serialization=True)
    again = BertModel.from_pretrained(tmp_path / "new" / "copy", backend=backend)
    assert again.config == model.config
    for one, other in zip(again(IDS).hidden_states, model(IDS).hidden_states, strict=True):
        np.testing.assert_array_equal(one, other)
    theirs, original = (
        transformers.BertModel.from_pretrained(folder).eval() for folder in (tmp_path / "new" / "copy", small_folder)
    )
    assert theirs.state_dict().keys() == original.state_dict().keys()
    for name, values in theirs.state_dict().items():
        assert torch.equal(values, original.state_dict()[name]), name


def test_a_model_without_a_pooler_and_in_float16(small_folder: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    transformers.BertModel.from_pretrained(small_folder).half().save_pretrained(half)
    model = BertModel.from_pretrained(half, add_pooling_layer=False)
    model.save_pretrained(tmp_path / "copy")
    again = BertModel.from_pretrained(tmp_path / "copy", dtype="auto")  # in float32
    assert again(IDS).pooler_output is None
    np.testing.assert_array_equal(again(IDS).last_hidden_state, model(IDS).last_hidden_state)
    assert dict(named_arrays(again.weights)).keys() == dict(named_arrays(model.weights)).keys()


def test_a_saved_config_is_the_same_config(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=70, hidden_act="gelu_new", pad_token_id=None, layer_norm_eps=1e-7)
    config.save_pretrained(tmp_path, architectures=["BertModel"], push_to_hub=False)
    assert BertConfig.from_pretrained(tmp_path) == config
    theirs = transformers.BertConfig.from_pretrained(tmp_path)
    assert theirs.architectures == ["BertModel"]
    own = {name: value for name, value in vars(config).items() if name in config.to_dict()}
    assert {"vocab_size", "hidden_act", "pad_token_id", "layer_norm_eps"} <= set(own)
    assert {name: getattr(theirs, name) for name in own} == own


@pytest.mark.parametrize("name", ["uncased", "uncased tokenizer.json"])
def test_a_saved_tokenizer_is_the_same_tokenizer(folders: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    tokenizer = BertTokenizer.from_pretrained(folders(name))
    written = tokenizer.save_pretrained(tmp_path, legacy_format=False)
    assert [Path(path).name for path in written] == ["tokenizer.json", "vocab.txt", "tokenizer_config.json"]
    assert all(Path(path).is_file() for path in written)
    assert (tmp_path / "vocab.txt").read_text(encoding="utf-8").splitlines()[101] == "[CLS]"
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "[MASK]"}')  # of another model; nobody reads it
    (tmp_path / "added_tokens.json").write_text('{"<other>": 5}')
    again = BertTokenizer.from_pretrained(tmp_path)
    for theirs in (
        again,
        transformers.BertTokenizer.from_pretrained(tmp_path),
        transformers.AutoTokenizer.from_pretrained(tmp_path),
    ):
        options = {"padding": True, "truncation": True, "max_length": 40, "return_special_tokens_mask": True}
        assert tokenizer(AWKWARD_TEXTS, **options).data == theirs(AWKWARD_TEXTS, **options).data
        assert tokenizer.vocab == theirs.get_vocab()
        assert tokenizer.all_special_tokens == theirs.all_special_tokens
    assert again.init_kwargs == tokenizer.init_kwargs


def test_special_tokens_and_settings_are_saved(tmp_path: Path) -> None:
    saved = tokenizer_json(SPECIALS + WORDS)
    saved["added_tokens"].append({"id": 23, "content": "<x>"} | flags(special=True))
    folder = model_folder(tmp_path / "model", tokenizer=saved, config={"vocab_size": 24})
    options = {"padding_side": "left", "model_max_length": 20, "eos_token": "<x>", "extra_special_tokens": ["[MASK]"]}
    model_folder(folder, tokenizer_config=options)
    tokenizer = BertTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(tmp_path / "copy")
    again = BertTokenizer.from_pretrained(tmp_path / "copy")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert again.vocab == tokenizer.vocab == theirs.get_vocab()
    for name, value in options.items():
        assert getattr(again, name) == getattr(tokenizer, name) == getattr(theirs, name) == value, name
    for text in ("a <x>b[MASK]", "<x> c"):
        assert again(text) == tokenizer(text)
        assert again(text)["input_ids"] == theirs(text)["input_ids"]


def test_files_of_another_model_are_not_mixed_with_the_new_one(small_folder: Path, tmp_path: Path) -> None:
    model = BertModel.from_pretrained(small_folder)
    (tmp_path / "notes.txt").write_text("mine")
    model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors", "notes.txt"]
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"another model.*new folder"):
        model.save_pretrained(tmp_path)


def test_bad_folders_and_keywords_are_refused(small_folder: Path, tmp_path: Path) -> None:
    model, config = BertModel.from_pretrained(small_folder), BertConfig.from_pretrained(small_folder)
    tokenizer = BertTokenizer.from_pretrained(small_folder)
    file, new = tmp_path / "file", tmp_path / "new"
    file.write_text("x")
    for owner, folder, options, error, word in (
        *((owner, file, {}, OSError, "file") for owner in (model, config, tokenizer)),
        *((owner, "", {}, OSError, "folder") for owner in (model, config, tokenizer)),
        *((owner, 5, {}, TypeError, "save_directory") for owner in (model, config, tokenizer)),
        *((owner, new, {"push_to_hub": True}, ValueError, "hf upload") for owner in (model, config, tokenizer)),
        (model, new, {"safe_serialization": False}, ValueError, "safetensors"),
    ):
        with pytest.raises(error, match=word):
            owner.save_pretrained(folder, **options)
    assert not new.exists()
