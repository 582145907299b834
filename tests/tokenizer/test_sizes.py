"""Tokenizer files that are too large for the library, or make a model read beyond a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from minibert.errors import ModelFormatError
from minibert.tokenizer import files as tokenizer_files
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from tests.support.tokenizer_files import SPECIALS, WORDS, model_folder, tokenizer_json, unigram_json


def steps(count: int, key: str, step: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", key: [step] * count}


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "Strip"}
    for _ in range(depth):
        inner = steps(1, "normalizers", inner)
    return inner


REPLACE = {"type": "Replace", "pattern": {"Regex": "a" * 5000}, "content": ""}
TEMPLATE = tokenizer_json(SPECIALS + WORDS)["post_processor"]
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "special", "normalized"), False)
TOO_LARGE: dict[str, Any] = {
    "steps": {"normalizer": steps(17, "normalizers", {"type": "Lowercase"})},
    "steps in steps": {"normalizer": nested(100)},
    "pattern": {"normalizer": REPLACE},
    "text": {"decoder": REPLACE | {"pattern": {"String": "a"}, "content": "a" * 5000}},
    "pieces": {"post_processor": TEMPLATE | {"single": TEMPLATE["single"] * 9}},
    "ids": {"post_processor": TEMPLATE | {"special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2] * 3000}}}},
    "added token": {"added_tokens": [FLAGS | {"id": 23, "content": "x" * 1001}]},
    "token": {"model": {"vocab": {"a" * 1001: 0}}},
    "piece": {"model": {"vocab": [["a" * 1001, -1.0]]}},
    "prefix": {"model": {"continuing_subword_prefix": "#" * 1001}},
    "word": {"model": {"max_input_chars_per_word": 2**63}},
}


def refuse(folder: Path, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        BertTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", TOO_LARGE)
def test_large_parts_do_not_reach_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It could end the process that runs the tests."""
    folder = model_folder(tmp_path, tokenizer=tokenizer_json(SPECIALS + WORDS) | TOO_LARGE[name])
    monkeypatch.setattr(tokenizers, "Tokenizer", None)
    refuse(folder, r"more than|at most|nested")


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(32 * 2**20 + 1)
    refuse(tmp_path, "larger than 33554432 bytes")


def test_a_vocabulary_as_large_as_a_multilingual_one_is_read(tmp_path: Path) -> None:
    saved = unigram_json()
    saved["model"]["vocab"] += [[f"▁{number:07}", -12.345678825378418] for number in range(250_000)]
    assert len(BertTokenizer.from_pretrained(model_folder(tmp_path, tokenizer=saved))) == 250_012


def test_declared_tokens_are_added_in_one_call_and_limited(tmp_path: Path) -> None:
    """Each call rebuilds the library's table of added tokens, so 100,000 calls would take hours."""
    calls = []

    class Counted:
        def add_tokens(self, tokens: list[Any]) -> None:
            calls.append(len(tokens))

        def token_to_id(self, content: str) -> int:
            return int(content)

        def get_added_tokens_decoder(self) -> dict[int, Any]:
            return {}

    declared = {number: tokenizers.AddedToken(str(number)) for number in range(1000)}
    tokenizer_files._add_tokens(Counted(), declared, [tokenizers.AddedToken("x")])  # type: ignore[arg-type]
    assert calls == [1000, 1]
    config = {"added_tokens_decoder": {"23": {"content": "x" * 1001}}}
    refuse(model_folder(tmp_path, vocab=SPECIALS + WORDS, tokenizer_config=config), "token of 1001 characters")


def test_a_decoder_that_fails_raises_a_value_error(tmp_path: Path) -> None:
    saved = tokenizer_json(SPECIALS + WORDS) | {"decoder": {"type": "Strip", "content": "a", "start": 9, "stop": 2**63}}
    tokenizer = BertTokenizer.from_pretrained(model_folder(tmp_path, tokenizer=saved))
    with pytest.raises(ValueError, match="the token ids cannot be decoded: "):
        tokenizer.decode([5, 6])


@pytest.mark.parametrize(
    ("layout", "token_type", "config", "works"),
    [
        *(("single", kind, {"type_vocab_size": 2}, False) for kind in (2, 1000, 2**31 - 1, 2**31, 2**32 - 1)),
        *(("single", 2, config, False) for config in (None, {}, {"type_vocab_size": 1}, {"type_vocab_size": "2"})),
        *(("pair", kind, {"type_vocab_size": 2}, False) for kind in (2**31 - 1, 2**31, 2**32 - 1)),
        ("single", 2, {"type_vocab_size": 3}, True),
        ("single", 0, {"type_vocab_size": 1}, True),
        ("pair", 7, {"type_vocab_size": 2}, True),
        ("pair", 1, {"type_vocab_size": 1}, True),  # the model refuses the pair
    ],
)
def test_token_types(tmp_path: Path, layout: str, token_type: int, config: dict[str, Any] | None, works: bool) -> None:
    saved = tokenizer_json(SPECIALS + WORDS)
    for piece in saved["post_processor"][layout]:
        next(iter(piece.values()))["type_id"] = token_type
    folder = model_folder(tmp_path, tokenizer=saved, **({} if config is None else {"config": config}))
    if works:
        BertTokenizer.from_pretrained(folder)
    else:
        refuse(folder, f"the token type {token_type}")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "config.json", "tokenizer_config.json"])
def test_a_file_without_a_size_is_not_read(tmp_path: Path, name: str) -> None:
    """A read of some files of /proc, such as kmsg, never ends; all of these files have the size 0."""
    folder = model_folder(tmp_path, vocab=SPECIALS + WORDS)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/proc/kmsg" if os.access("/proc/kmsg", os.R_OK) else "/proc/self/status")
    refuse(folder, r"it is empty|\(0 tokens\)")
