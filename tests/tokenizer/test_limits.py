"""Tokenizer files that would need too much time or memory, or make a model read beyond a table."""

from __future__ import annotations

import base64
import os
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from minibert.errors import ModelFormatError
from minibert.tokenizer import files as tokenizer_files
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.limits import check_content
from tests.support.tokenizer_files import SPECIALS, WORDS, model_folder, tokenizer_json, unigram_json


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def steps(key: str, *items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", key: list(items)}


def nested(depth: int, key: str) -> dict[str, Any]:
    inner = {"type": "Strip"}
    for _ in range(depth):
        inner = steps(key, inner)
    return inner


def charsmap(trie_size: int, trie: bytes, texts: bytes) -> dict[str, Any]:
    table = trie_size.to_bytes(4, "little") + trie + texts
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def template(single: int = 1, ids: int = 1) -> dict[str, Any]:
    saved: dict[str, Any] = tokenizer_json(SPECIALS + WORDS)["post_processor"]
    saved["single"] = saved["single"][:1] * single + saved["single"][1:]
    saved["special_tokens"]["[CLS]"] |= {"ids": [2] * ids, "tokens": ["[CLS]"] * ids}
    return saved


def added_token(content: str, token_id: int = 23, normalized: bool = False) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    return {"id": token_id, "content": content, "normalized": normalized} | flags


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
METASPACE = {"type": "Metaspace", "replacement": "x", "prepend_scheme": "always", "split": True}
CTC = {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}
GROWS = "can make a text more than 2048 times as long"
# name: (part of tokenizer.json, its content, the message)
EXPLOSIVE: dict[str, tuple[str, Any, str]] = {
    "24 doublings": ("normalizer", steps("normalizers", *[replace("a", "aa")] * 24), "more than 16 steps"),
    "15 doublings": ("normalizer", steps("normalizers", *[replace("a", "aa")] * 15), GROWS),
    "3 of 100,000": ("normalizer", steps("normalizers", *[replace("a", "a" * 100_000)] * 3), GROWS),
    "one of 100,000": ("normalizer", replace("a", "a" * 100_000), GROWS),
    "of nothing": ("normalizer", steps("normalizers", *[replace("", "a" * 15)] * 3), GROWS),
    "of anything": ("normalizer", steps("normalizers", *[replace(".", "a" * 15, "Regex")] * 3), GROWS),
    "prepend": ("normalizer", {"type": "Prepend", "prepend": "a" * 100_000}, GROWS),
    "bytes of bytes": ("normalizer", steps("normalizers", *[{"type": "ByteLevel"}] * 10), GROWS),
    "forms of forms": ("normalizer", steps("normalizers", *[replace("a", "ﷺ"), {"type": "NFKC"}] * 4), GROWS),
    "steps in steps": ("normalizer", nested(100, "normalizers"), "more than 16 steps"),
    "wide steps in steps": (
        "normalizer",
        steps("normalizers", *[steps("normalizers", *[{"type": "Strip"}] * 5)] * 3),
        "more than 16 steps",
    ),
    "no type": ("normalizer", {"normalizers": []}, "expected an object with a type"),
    "trie of 4 GB": (
        "normalizer",
        charsmap(2**32 - 1, b"\xff" * 60, b""),
        "64 bytes, and should hold a trie of 4294967",
    ),
    "no trie": ("normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}, "0 bytes"),
    "long texts in a table": ("normalizer", charsmap(4, bytes(4), b"a\0" + b"b" * 5000 + b"\0"), GROWS),
    "long regular expression": ("normalizer", replace("(?i)" + "ßſﬃ" * 30_000, "", "Regex"), "90004 characters"),
    "pre-tokenizers": ("pre_tokenizer", steps("pretokenizers", *[BYTE_LEVEL] * 10), GROWS),
    "pre-tokenizers that add": ("pre_tokenizer", steps("pretokenizers", *[METASPACE] * 15), GROWS),
    "decoders": ("decoder", steps("decoders", *[CTC] * 15), GROWS),
    "decoder": ("decoder", replace("a", "a" * 5000), GROWS),
    "many processors": ("post_processor", steps("processors", *[template()] * 17), "more than 16 steps"),
    "template": ("post_processor", template(single=17), "list of 19 pieces or ids"),
    "template of ids": ("post_processor", template(ids=3000), "list of 3000 pieces or ids"),
    "long added token": ("added_tokens", [added_token("x" * 1001)], "token of 1001 characters"),
    "added tokens": ("added_tokens", [added_token("x" * 1000)] * 17_000, "may have 68000000 characters"),
}


def refuse(folder: Path, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        BertTokenizer.from_pretrained(folder)


def refuse_unread(folder: Path, message: str) -> None:
    """Check that the library is not called, because it could end the process that runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizers, "Tokenizer", None)
        refuse(folder, message)


@pytest.mark.parametrize("name", EXPLOSIVE)
def test_files_that_explode_do_not_reach_the_library(tmp_path: Path, name: str) -> None:
    part, content, message = EXPLOSIVE[name]
    saved = tokenizer_json(SPECIALS + WORDS) | {part: content}
    refuse_unread(model_folder(tmp_path, tokenizer=saved), message)


def test_models_that_explode_do_not_reach_the_library(tmp_path: Path) -> None:
    for field, value, message in (
        ("max_input_chars_per_word", 2**63, "max_input_chars_per_word is 9223372036854775808; at most 1000"),
        ("continuing_subword_prefix", "#" * 17, "has 17 characters"),
        ("vocab", {"a" * 1001: 0}, "token of 1001 characters"),
    ):
        saved = tokenizer_json(SPECIALS + WORDS)
        saved["model"][field] = value
        refuse_unread(model_folder(tmp_path, tokenizer=saved), message)
    for pieces, message in (
        (["a" * 1_000_000], "token of 1000000 characters"),
        ([f"{number:0500}" for number in range(8400)], "bytes, more than 4194304"),
    ):
        saved = unigram_json()
        saved["model"]["vocab"] += [[piece, -1.0] for piece in pieces]
        refuse_unread(model_folder(tmp_path, tokenizer=saved), message)


def test_a_tokenizer_json_of_more_than_32_megabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(32 * 2**20 + 1)
    refuse_unread(tmp_path, "larger than 33554432 bytes")


def test_real_steps_are_allowed(tmp_path: Path) -> None:
    """Load the steps of BERT, XLM-R, ALBERT and Llama, and a vocabulary as large as multilingual-e5-small's."""
    albert = [
        replace("``", '"'),
        replace("''", '"'),
        *({"type": name} for name in ("NFKD", "StripAccents", "Lowercase")),
    ]
    spaces = replace(" {2,}", " ", "Regex")
    longest = charsmap(1024, bytes(1024), "صلى الله عليه وسلم".encode() + b"\0")
    for part, content in (
        ("normalizer", longest),
        ("normalizer", steps("normalizers", *albert, longest, spaces)),
        ("normalizer", steps("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))),
        ("pre_tokenizer", steps("pretokenizers", {"type": "WhitespaceSplit"}, METASPACE)),
        ("decoder", steps("decoders", replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"})),
    ):
        check_content(unigram_json() | {part: content})
    saved = unigram_json()
    saved["model"]["vocab"] += [[f"▁{number:07}", -12.345678825378418] for number in range(250_000)]
    folder = model_folder(tmp_path, tokenizer=saved)
    assert len(BertTokenizer.from_pretrained(folder)) == 250_012


def test_declared_tokens_are_added_in_one_call_and_limited(tmp_path: Path) -> None:
    """Each call rebuilds the library's table of added tokens, so 100,000 calls would take hours."""
    calls = []

    class Counted:
        def add_tokens(self, tokens: list[Any]) -> None:
            calls.append([token.content for token in tokens])

        def token_to_id(self, content: str) -> int:
            return int(content)

        def get_added_tokens_decoder(self) -> dict[int, Any]:
            return {}

    declared = {number: tokenizers.AddedToken(str(number)) for number in range(1000)}
    tokenizer_files._add_tokens(Counted(), declared, [tokenizers.AddedToken("x")])  # type: ignore[arg-type]
    assert calls == [[str(number) for number in range(1000)], ["x"]]

    long = {"23": {"content": "x" * 1001}}
    files = {"vocab": SPECIALS + WORDS, "tokenizer_config": {"added_tokens_decoder": long}}
    refuse(model_folder(tmp_path, **files), "token of 1001 characters")


def test_a_decoder_that_fails_raises_a_value_error(tmp_path: Path) -> None:
    saved = tokenizer_json(SPECIALS + WORDS) | {"decoder": {"type": "Strip", "content": "a", "start": 9, "stop": 2**63}}
    tokenizer = BertTokenizer.from_pretrained(model_folder(tmp_path, tokenizer=saved))
    with pytest.raises(ValueError, match="the token ids cannot be decoded: "):
        tokenizer.decode([5, 6])


# ---------------------------------------------------------------------------------------------------------------------
# Token types
# ---------------------------------------------------------------------------------------------------------------------


def with_types(layout: str, token_type: int) -> dict[str, Any]:
    saved = tokenizer_json(SPECIALS + WORDS)
    for piece in saved["post_processor"][layout]:
        next(iter(piece.values()))["type_id"] = token_type
    return saved


@pytest.mark.parametrize("token_type", [2, 7, 1000, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("config", [None, {}, {"type_vocab_size": 2}, {"type_vocab_size": 1}, {"type_vocab_size": "2"}])
def test_token_types_that_the_model_lacks(tmp_path: Path, token_type: int, config: dict[str, Any] | None) -> None:
    files = {"tokenizer": with_types("single", token_type)} | ({} if config is None else {"config": config})
    refuse(model_folder(tmp_path, **files), f"gives 1 texts the token type {token_type}; the model has [12] types")


@pytest.mark.parametrize("token_type", [2**31 - 1, 2**31, 2**32 - 1])
def test_token_types_of_pairs_that_no_model_has(tmp_path: Path, token_type: int) -> None:
    folder = model_folder(tmp_path, tokenizer=with_types("pair", token_type), config={"type_vocab_size": 2})
    refuse(folder, f"gives 2 texts the token type {token_type}")


def test_token_types_that_the_model_has(tmp_path: Path) -> None:
    """A model of one token type loads with the usual template, which gives the second text of a pair the type 1."""
    for layout, token_type, size in (("single", 2, 3), ("single", 1, 2), ("single", 0, 1), ("pair", 7, 2)):
        folder = model_folder(tmp_path, tokenizer=with_types(layout, token_type), config={"type_vocab_size": size})
        BertTokenizer.from_pretrained(folder)
    folder = model_folder(tmp_path, tokenizer=tokenizer_json(SPECIALS + WORDS), config={"type_vocab_size": 1})
    pair = BertTokenizer.from_pretrained(folder)("a", "b")
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tokenizer.json", "it is empty"),
        ("vocab.txt", r"\(0 tokens\) lacks"),
        ("config.json", "it is empty"),
        ("tokenizer_config.json", "it is empty"),
    ],
)
def test_a_file_without_a_size_is_not_read(tmp_path: Path, name: str, message: str) -> None:
    """A read of some files of /proc, such as kmsg, never ends; all of these files have the size 0."""
    folder = model_folder(tmp_path, vocab=SPECIALS + WORDS)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/proc/kmsg" if os.access("/proc/kmsg", os.R_OK) else "/proc/self/status")
    refuse(folder, message)


def test_vocab_txt_is_split_as_the_library_splits_it(tmp_path: Path) -> None:
    """Lines end at a line feed only, and Unicode's white space, which differs from Python's, is stripped."""
    chance = random.Random(5)
    ends = [
        "",
        " ",
        "\r",
        "\r\r",
        "\t",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x1d",
        "\x1e",
        "\x1f",
        "\x85",
        "\xa0",
        "\u1680",
        "\u180e",
    ]
    ends += ["\u2000", "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff", "\0"]
    path = tmp_path / "vocab.txt"
    for _ in range(300):
        lines = [
            chance.choice("abcé的") + chance.choice(ends) + chance.choice(ends) for _ in range(chance.randrange(20))
        ]
        text = "\n".join(lines) + chance.choice(["", "\n", "\n\n", "\r\n"])
        path.write_bytes(text.encode())
        theirs = tokenizers.models.WordPiece.read_file(str(path))
        assert tokenizer_files._vocab_of(path.read_bytes(), path) == theirs, repr(text)
