"""The files and settings that configure a tokenizer."""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers

import minibert
from minibert.checkpoint.files import locate
from minibert.errors import ModelFormatError
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from tests.support.tokenizer_files import SPECIALS, WORDS, flags, model_folder, tokenizer_json

SETTINGS: list[dict[str, Any] | None] = [
    *(None, {}, {"tokenizer_class": "BertTokenizer"}, {"tokenizer_class": "PreTrainedTokenizerFast"}),
    {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False},
    *({"do_lower_case": lower, "strip_accents": strip} for lower in (True, False) for strip in (None, True, False)),
    {"strip_accents": None, "tokenize_chinese_chars": False},
]


@pytest.mark.parametrize("cased_file", [True, False])
@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_decide_as_in_transformers(tmp_path: Path, settings: dict[str, Any] | None, cased_file: bool) -> None:
    """The truncation and the padding that tokenizer.json stores are dropped."""
    files: dict[str, Any] = {
        "tokenizer": tokenizer_json(SPECIALS + WORDS, lowercase=not cased_file, strip_accents=cased_file),
        "config": {"model_type": "bert", "vocab_size": 100},
    } | ({} if settings is None else {"tokenizer_config": settings})
    folder = model_folder(tmp_path, **files)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    with warnings.catch_warnings(record=True, action="always") as told:
        ours = BertTokenizer.from_pretrained(folder)
    is_silent = "do_lower_case" not in (settings or {}) and settings != {"tokenizer_class": "PreTrainedTokenizerFast"}
    assert [str(folder) in str(one.message) for one in told] == [True] * is_silent
    for text in ("Hello, wörld", "hello", "é É", "的人", "HELLO"):
        assert ours.tokenize(text) == theirs.tokenize(text)
    assert ours.do_lower_case == json.loads(theirs.backend_tokenizer.to_str())["normalizer"]["lowercase"]
    assert [len(ids) for ids in ours(["a b c a b c", "a"])["input_ids"]] == [8, 3]


def test_sides_are_those_of_the_files(tmp_path: Path) -> None:
    saved = tokenizer_json(SPECIALS + WORDS)
    saved["padding"]["direction"] = saved["truncation"]["direction"] = "Left"
    folder = model_folder(tmp_path, tokenizer=saved)
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    assert ours.padding_side == theirs.padding_side == "left"
    assert ours.truncation_side == theirs.truncation_side == "left"
    model_folder(folder, tokenizer_config={"padding_side": "right", "truncation_side": "right"})
    assert BertTokenizer.from_pretrained(folder).padding_side == "right"
    assert BertTokenizer.from_pretrained(folder).truncation_side == "right"


@pytest.mark.parametrize(
    ("stated", "positions", "limit"),
    [
        (None, None, None),
        (512, None, 512),
        (None, 512, 512),
        (512, 128, 128),
        (64, 512, 64),
        (10**30, 512, 512),
        (1e30, None, None),
        (0, 512, 512),
        (-1, 512, 512),
        (True, None, None),
        ("512", 256, 256),
    ],
)
def test_model_max_length(tmp_path: Path, stated: Any, positions: int | None, limit: int | None) -> None:
    folder = model_folder(
        tmp_path,
        vocab=SPECIALS + WORDS,
        tokenizer_config={} if stated is None else {"model_max_length": stated},
        config={} if positions is None else {"max_position_embeddings": positions},
    )
    tokenizer = BertTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == limit
    if limit is not None:
        assert len(tokenizer("a " * 1000, truncation=True)["input_ids"]) == limit
        assert len(tokenizer("a", padding="max_length")["input_ids"]) == limit


ADDED_TOKEN_FILES: dict[str, dict[str, Any]] = {
    "added_tokens_decoder": {
        "tokenizer_config": {
            "added_tokens_decoder": {
                "0": {"content": "[PAD]"} | flags(special=True),
                "23": {"content": "<x>"} | flags(lstrip=True, rstrip=True),
                "24": {"content": "Hello World"} | flags(normalized=True),
                "8": {"content": "ab"} | flags(single_word=True, special=True),
            }
        }
    },
    "added_tokens.json": {"added_tokens": {"<y>": 24, "<x>": 23}},
    "special_tokens_map.json": {
        "special_tokens_map": {
            "mask_token": {"content": "<x>"} | flags(lstrip=True),
            "additional_special_tokens": ["<y>", "<z>"],
        }
    },
    "special by its name alone": {
        "tokenizer_config": {
            "mask_token": "<x>",
            "added_tokens_decoder": {
                "4": {"content": "[MASK]"} | flags(special=True),
                "23": {"content": "<x>"} | flags(),
            },
        }
    },
    "extra_special_tokens": {"tokenizer_config": {"extra_special_tokens": ["<y>", "<x>"]}},
    "special tokens with other names": {
        "tokenizer_config": {"cls_token": "h", "sep_token": {"content": "!", "__type": "AddedToken"} | flags()}
    },
}


@pytest.mark.parametrize("name", ADDED_TOKEN_FILES)
@pytest.mark.parametrize("with_tokenizer_json", [False, True])
def test_added_tokens_equal_transformers(tmp_path: Path, name: str, with_tokenizer_json: bool) -> None:
    files: dict[str, Any] = {"vocab": SPECIALS + WORDS, **ADDED_TOKEN_FILES[name]}
    if with_tokenizer_json:
        files["tokenizer"] = tokenizer_json(SPECIALS + WORDS, lowercase=True)
        if name == "special tokens with other names":
            files["tokenizer"]["post_processor"] = None
    folder = model_folder(tmp_path, **files)
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.all_special_tokens == theirs.all_special_tokens
    for text in ("a <x> b<x>c", "<y><x> <Y>", "hello world Hello World", "cab ab abc", "[MASK]a [PAD]", "h ! <z>"):
        assert ours.tokenize(text) == theirs.tokenize(text)
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text), True) == theirs.decode(theirs.encode(text), True)


def test_vocab_txt_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    lines = [*SPECIALS, "b", "hello ", "a\t", "b", "", "\u3000", "##c", "c\r"]
    folder = model_folder(tmp_path, vocab=lines)
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    assert ours.vocab == theirs.vocab
    assert ours.vocab["b"] == 8
    assert ours.encode("hello a b bc") == theirs.encode("hello a b bc")
    with pytest.raises(ValueError, match="token id 0 is 5"):
        ours.decode([5])


def test_a_missing_mask_token_is_not_an_error(tmp_path: Path) -> None:
    tokenizer = BertTokenizer.from_pretrained(model_folder(tmp_path, vocab=SPECIALS[:4] + WORDS))
    assert tokenizer.mask_token is None
    assert tokenizer.mask_token_id is None
    assert tokenizer.all_special_tokens == ["[UNK]", "[SEP]", "[PAD]", "[CLS]"]


def test_a_tokenizer_without_a_padding_token(tmp_path: Path) -> None:
    saved = tokenizer_json([token for token in SPECIALS if token != "[PAD]"] + WORDS)
    tokenizer = BertTokenizer.from_pretrained(model_folder(tmp_path, tokenizer=saved))
    assert tokenizer(["a", "b"], return_tensors="np")["input_ids"].shape == (2, 3)
    with pytest.raises(ValueError, match="no padding token"):
        tokenizer(["a", "b c"], padding=True)


def test_from_files_and_subfolder(tmp_path: Path) -> None:
    model_folder(tmp_path / "inner", vocab=SPECIALS + WORDS)
    expected = BertTokenizer.from_pretrained(tmp_path / "inner").vocab
    assert BertTokenizer.from_pretrained(tmp_path, subfolder="inner").vocab == expected
    assert BertTokenizer.from_files(locate(tmp_path / "inner")).vocab == expected
    with pytest.raises(ModelFormatError, match=r"has neither tokenizer\.json nor vocab\.txt"):
        BertTokenizer.from_pretrained(tmp_path)


@pytest.mark.filterwarnings("ignore:.*replaces the normalizer")
def test_a_setting_that_the_files_do_not_state_may_be_given(tmp_path: Path) -> None:
    """It has its effect, as in transformers, and is saved; what the files state, or what has no effect, is refused."""
    config = {"model_type": "bert", "vocab_size": 100}
    silent = [
        model_folder(tmp_path / "vocabulary", vocab=SPECIALS + WORDS, config=config),
        model_folder(tmp_path / "library", tokenizer=tokenizer_json(SPECIALS + WORDS), config=config),
    ]
    for folder in silent:
        for setting, value in itertools.product(
            ("do_lower_case", "strip_accents", "tokenize_chinese_chars"), (True, False)
        ):
            ours, theirs = (
                library.BertTokenizer.from_pretrained(folder, **{setting: value})
                for library in (minibert, transformers)
            )
            ours.save_pretrained(tmp_path / "saved")
            for tokenizer in (ours, minibert.AutoTokenizer.from_pretrained(tmp_path / "saved")):
                assert tokenizer("Hello é 人人 B")["input_ids"] == theirs("Hello é 人人 B")["input_ids"]
    stated = model_folder(tmp_path / "stated", vocab=SPECIALS + WORDS, tokenizer_config={"do_lower_case": True})
    generic = model_folder(tmp_path / "generic", tokenizer=tokenizer_json(SPECIALS + WORDS))
    for load, folder in ((BertTokenizer, stated), (minibert.AutoTokenizer, generic)):
        with pytest.raises(ValueError, match="do_lower_case=False"):
            load.from_pretrained(folder, do_lower_case=False)
    with pytest.raises(ValueError, match="do_lower_case='no'"):
        BertTokenizer.from_pretrained(silent[0], do_lower_case="no")
