"""Damaged and too large files: each one is refused with a reason, or works; none crashes."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given

from minibert.errors import ModelFormatError
from minibert.tokenizer import files as tokenizer_files
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from tests.support.damage import both, chances, damaged_json, sampled, values
from tests.support.report import REPORT
from tests.support.tokenizer_files import SPECIALS, WORDS, flags, model_folder, tokenizer_json


def expect_refusal(folder: Path, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message) as raised:
        BertTokenizer.from_pretrained(folder)
    assert raised.type is ModelFormatError


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", r"0 tokens.*'\[UNK\]'"),
        *((b"\n".join(one for one in (b"[PAD]", b"[UNK]", b"[CLS]", b"[SEP]", b"a") if one != lost), lost.decode())
          for lost in (b"[CLS]", b"[SEP]", b"[PAD]", b"[UNK]")),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nh\xe9llo\n", "UTF-8"),
    ],
)  # fmt: skip
def test_damaged_vocab_txt(tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    expect_refusal(tmp_path, rf"vocab\.txt.*{word}")


CONFIG = "tokenizer_config"
DAMAGED_SETTINGS: list[tuple[str, str, list[Any]]] = [
    (CONFIG, r"tokenizer_config\.json", [[]]),
    *((CONFIG, name, [{name: value} for value in values]) for name, values in {
        "do_lower_case": ["false", None], "tokenize_chinese_chars": [1], "strip_accents": ["yes"],
        "padding_side": ["up"], "truncation_side": [5], "cls_token": [5, {"content": 5}],
        "mask_token": [{"content": "[MASK]", "lstrip": "no"}], "extra_special_tokens": [5, [None]],
        "added_tokens_decoder": [[], {"23": {"lstrip": True}}]}.items()),
    (CONFIG, "'<nowhere>'", [{"cls_token": "<nowhere>"}]),
    (CONFIG, "'<x>' the id 23, but config.json has vocab_size 23", [{"extra_special_tokens": ["<x>"]}]),
    (CONFIG, "expected integers", [{"added_tokens_decoder": {key: {"content": "y"}}}
        for key in ("x", "-1", "9" * 5000)]),
    (CONFIG, "declared to have id 7, its id is 23", [{"added_tokens_decoder": {"7": {"content": "y"}}}]),
    ("added_tokens", "expected integers", [{"<x>": "a"}, {"<x>": 1.5}]),
    ("special_tokens_map", "special_tokens_map.json", [["[CLS]"]]),
    ("special_tokens_map", "sep_token", [{"sep_token": ["[SEP]"]}]),
    ("config", r"config\.json has vocab_size 10", [{"vocab_size": 10}]),
    (CONFIG, "model_input_names", [{"model_input_names": names} for names in (5, "input_ids", [1])]),
]  # fmt: skip


@pytest.mark.parametrize(("file", "word", "contents"), DAMAGED_SETTINGS)
@pytest.mark.parametrize("with_tokenizer_json", [False, True])
def test_damaged_settings(tmp_path: Path, file: str, word: str, contents: list[Any], with_tokenizer_json: bool) -> None:
    for content in contents:
        files: dict[str, Any] = {"vocab": SPECIALS + WORDS, "config": {"vocab_size": 23}, file: content}
        if with_tokenizer_json:
            files["tokenizer"] = tokenizer_json(SPECIALS + WORDS)
        expect_refusal(model_folder(tmp_path, **files), word)


TEMPLATE_ID = ("post_processor", "special_tokens", "[CLS]", "ids")

# Changes that would give wrong ids, and the message of the refusal.
REMOVING = {"type": "Replace", "pattern": {"Regex": "[\\s\\S]"}, "content": ""}
MUTATIONS: dict[str, tuple[tuple[str | int, ...], Any, str]] = {
    "id just beyond the model": (("model", "vocab", "a"), 50, "'a' the id 50, but config.json"),
    "two tokens with one id": (("model", "vocab", "a"), 6, "the id 6 to two tokens"),
    "unknown token not in the vocabulary": (("model", "unk_token"), "<no>", "'<no>' for unknown words"),
    "normalizer that removes everything": (("normalizer",), REMOVING, "does not lay out 1 texts"),
    "post_processor adds an id beyond the model": (TEMPLATE_ID, [99], "with id 99; .* 2"),
    "post_processor adds another token's id": (TEMPLATE_ID, [7], "with id 7; .* 2"),
    "post_processor without ids": (TEMPLATE_ID, [], "tokenizer.json"),
    "post_processor without the second text": (
        ("post_processor", "pair", 3),
        {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
        "lay out 2 texts",
    ),
}

PROBES = ["", "a b c", "Hello, wörld! 的人 [MASK] [CLS]", "a" * 60 + "!", "\x00 é 👩‍👩‍👧‍👦", "abc " * 50]


def run_loaded(tokenizer: BertTokenizer, vocab_size: int) -> None:
    """Use a tokenizer in every way; it must give correct ids or a ValueError."""
    calls: list[Callable[[], Any]] = [
        lambda: tokenizer(PROBES, padding=True, truncation=True, max_length=7, return_tensors="np")["input_ids"],
        lambda: np.concatenate([encoding.ids for encoding in tokenizer.encodings(PROBES)]),
        lambda: np.array(tokenizer.encode("a b", "c")),
        lambda: np.array(tokenizer.all_special_ids, dtype=np.int64),
    ]
    for call in calls:
        try:
            ids = call()
        except ValueError:
            continue
        assert ids.min(initial=0) >= 0
        assert ids.max(initial=0) < vocab_size
        assert isinstance(tokenizer.batch_decode(ids if ids.ndim == 2 else [ids]), list)


@pytest.mark.parametrize("name", MUTATIONS)
def test_changed_tokenizer_json(tmp_path: Path, name: str) -> None:
    path, value, message = MUTATIONS[name]
    saved: Any = tokenizer_json(SPECIALS + WORDS)
    place = functools.reduce(lambda inner, key: inner[key], path[:-1], saved)
    place[path[-1]] = value
    folder = model_folder(tmp_path, tokenizer=saved, config={"vocab_size": 50, "max_position_embeddings": 64})
    expect_refusal(folder, message)


@pytest.mark.filterwarnings("ignore:.*replaces the normalizer")
@both(100)
def test_random_damage_of_tokenizer_json(tmp_path: Path, most: int) -> None:
    whole = json.dumps(tokenizer_json([*SPECIALS, "a", "b", "##c"])).encode()
    model_folder(tmp_path, config={"vocab_size": 20, "max_position_embeddings": 16})
    counts: Counter[bool] = Counter()

    @sampled(most)
    @given(chances, values)
    def run(chance: random.Random, value: Any) -> None:
        (tmp_path / "tokenizer.json").write_bytes(damaged_json(whole, chance, value))
        try:
            tokenizer = BertTokenizer.from_pretrained(tmp_path)
        except ModelFormatError:
            counts[False] += 1
        else:
            counts[True] += 1
            run_loaded(tokenizer, vocab_size=20)

    run()
    assert min(counts.values()) > 0
    REPORT.append(f"tokenizer: {counts.total():,} random damages of tokenizer.json, {counts[True]:,} work")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, MemoryError])
def test_interruptions_pass(
    tokenizer: BertTokenizer, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    class Interrupted:
        def encode_batch(self, *arguments: Any, **options: Any) -> Any:
            raise interruption

    monkeypatch.setattr(tokenizer._raw, "_tokenizer", Interrupted())
    with pytest.raises(interruption):
        tokenizer("a")


# --- sizes ----


REPLACE = {"type": "Replace", "pattern": {"Regex": "a" * 9000}, "content": ""}
TEMPLATE = tokenizer_json(SPECIALS + WORDS)["post_processor"]
TOO_LARGE: dict[str, Any] = {
    "pattern": {"normalizer": REPLACE},
    "steps": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 1000}},
    "text": {"decoder": REPLACE | {"pattern": {"String": "a"}, "content": "a" * 9000}},
    "ids": {"post_processor": TEMPLATE | {"special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2] * 3000}}}},
    "added token": {"added_tokens": [flags() | {"id": 23, "content": "x" * 1001}]},
    "token": {"model": {"vocab": {"a" * 1001: 0}}},
    "piece": {"model": {"vocab": [["a" * 1001, -1.0]]}},
    "prefix": {"model": {"continuing_subword_prefix": "#" * 1001}},
    "word": {"model": {"max_input_chars_per_word": 2**63}},
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_large_parts_do_not_reach_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It could end the process that runs the tests."""
    folder = model_folder(tmp_path, tokenizer=tokenizer_json(SPECIALS + WORDS) | TOO_LARGE[name])
    monkeypatch.setattr(tokenizers, "Tokenizer", None)
    expect_refusal(folder, r"more than|at most|nested")


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(64 * 2**20 + 1)
    expect_refusal(tmp_path, "larger than 67108864 bytes")


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
    expect_refusal(model_folder(tmp_path, vocab=SPECIALS + WORDS, tokenizer_config=config), "token of 1001 characters")


def test_a_decoder_that_fails_raises_a_value_error(tmp_path: Path) -> None:
    saved = tokenizer_json(SPECIALS + WORDS) | {"decoder": {"type": "Strip", "content": "a", "start": 9, "stop": 2**63}}
    generic = {"tokenizer_class": "PreTrainedTokenizerFast"}  # BERT's classes have a decoder of their own
    tokenizer = BertTokenizer.from_pretrained(model_folder(tmp_path, tokenizer=saved, tokenizer_config=generic))
    with pytest.raises(ValueError, match="the token ids cannot be decoded: "):
        tokenizer.decode([5, 6])


@pytest.mark.parametrize(
    ("layout", "token_type", "config", "works"),
    [
        *(("single", kind, {"type_vocab_size": 2}, False) for kind in (2, 2**31 - 1, 2**31, 2**32 - 1)),
        *(("single", 2, config, False) for config in (None, {"type_vocab_size": 1}, {"type_vocab_size": "2"})),
        *(("pair", kind, {"type_vocab_size": 2}, False) for kind in (2**31 - 1, 2**31, 2**32 - 1)),
        *(("single", size - 1, {"type_vocab_size": size}, True) for size in (1, 3)),
        ("pair", 7, {"type_vocab_size": 2}, True),  # the model refuses the pair
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
        expect_refusal(folder, f"the token type {token_type}")
