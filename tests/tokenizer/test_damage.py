"""Damaged files: each one is refused with a reason, or works; none crashes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert.errors import ModelFormatError
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from tests.support.report import REPORT
from tests.support.tokenizer_files import SPECIALS, WORDS, model_folder, tokenizer_json


def expect_refusal(folder: Path, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message) as raised:
        BertTokenizer.from_pretrained(folder)
    assert raised.type is ModelFormatError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"vocab\.txt \(0 tokens\) lacks '\[UNK\]'"),
        (b"\n\n\n", r"lacks '\[UNK\]', the unk_token"),
        (b"[PAD]\n[UNK]\n[SEP]\na\n", r"lacks '\[CLS\]', the cls_token"),
        (b"[PAD]\n[UNK]\n[CLS]\na\n", r"lacks '\[SEP\]', the sep_token"),
        (b"[UNK]\n[CLS]\n[SEP]\na\n", r"lacks '\[PAD\]', the pad_token"),
        (b"[PAD]\n[CLS]\n[SEP]\na\n", r"lacks '\[UNK\]', the unk_token"),
        (b"\xef\xbb\xbf[PAD]\n[UNK]\n[CLS]\n[SEP]\n", r"lacks '\[PAD\]'"),
        ("\n".join(SPECIALS).encode("utf-16"), r"vocab\.txt is not a vocabulary that can be read"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nh\xe9llo\n", r"vocab\.txt is not a vocabulary that can be read.*UTF-8"),
    ],
)
def test_damaged_vocab_txt(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    expect_refusal(tmp_path, message)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config", [], "tokenizer_config.json"),
        ("tokenizer_config", {"do_lower_case": "false"}, "do_lower_case 'false'; expected true or false"),
        ("tokenizer_config", {"do_lower_case": None}, "do_lower_case None"),
        ("tokenizer_config", {"tokenize_chinese_chars": 1}, "tokenize_chinese_chars 1"),
        ("tokenizer_config", {"strip_accents": "yes"}, "strip_accents 'yes'"),
        ("tokenizer_config", {"padding_side": "up"}, "padding_side 'up'"),
        ("tokenizer_config", {"truncation_side": 5}, "truncation_side 5"),
        ("tokenizer_config", {"cls_token": 5}, "cls_token"),
        ("tokenizer_config", {"cls_token": {"content": 5}}, "cls_token"),
        ("tokenizer_config", {"mask_token": {"content": "[MASK]", "lstrip": "no"}}, "mask_token"),
        ("tokenizer_config", {"cls_token": "<nowhere>"}, "lacks '<nowhere>', the cls_token"),
        ("tokenizer_config", {"extra_special_tokens": 5}, "extra_special_tokens"),
        ("tokenizer_config", {"extra_special_tokens": [None]}, "extra_special_tokens"),
        ("tokenizer_config", {"extra_special_tokens": ["<x>"]}, "'<x>' the id 23, but config.json has vocab_size 23"),
        ("tokenizer_config", {"added_tokens_decoder": []}, "added_tokens_decoder"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": {"content": "y"}}}, "expected integers"),
        ("tokenizer_config", {"added_tokens_decoder": {"-1": {"content": "y"}}}, "expected integers"),
        ("tokenizer_config", {"added_tokens_decoder": {"9" * 5000: {"content": "y"}}}, "expected integers"),
        ("tokenizer_config", {"added_tokens_decoder": {"23": {"lstrip": True}}}, "added_tokens_decoder"),
        ("tokenizer_config", {"added_tokens_decoder": {"7": {"content": "y"}}}, "declared to have id 7, its id is 23"),
        ("added_tokens", {"<x>": "a"}, "expected integers"),
        ("added_tokens", {"<x>": 1.5}, "expected integers"),
        ("special_tokens_map", ["[CLS]"], "special_tokens_map.json"),
        ("special_tokens_map", {"sep_token": ["[SEP]"]}, "sep_token"),
        ("config", {"vocab_size": 10}, r"config\.json has vocab_size 10"),
    ],
)
@pytest.mark.parametrize("with_tokenizer_json", [False, True])
def test_damaged_settings(tmp_path: Path, file: str, content: Any, message: str, with_tokenizer_json: bool) -> None:
    files: dict[str, Any] = {"vocab": SPECIALS + WORDS, "config": {"vocab_size": 23}, file: content}
    if with_tokenizer_json:
        files["tokenizer"] = tokenizer_json(SPECIALS + WORDS)
        message = message.replace("lacks '<nowhere>', the cls_token", "'<nowhere>' the id 23")
    expect_refusal(model_folder(tmp_path, **files), message)


def replaced(*path: str | int, by: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a change of a tokenizer.json: another value at one path."""

    def change(saved: Any) -> Any:
        place = saved
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = by
        return saved

    return change


def without(*path: str | int) -> Callable[[dict[str, Any]], Any]:
    """Return a change of a tokenizer.json: one path is missing."""

    def change(saved: Any) -> Any:
        place = saved
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]
        return saved

    return change


TEMPLATE_ID = ("post_processor", "special_tokens", "[CLS]", "ids")

# Every change of a tokenizer.json with its result: a refusal with this message, or None for a tokenizer that works: it
# gives ids of the vocabulary or a ValueError.
MUTATIONS: dict[str, tuple[Callable[[dict[str, Any]], Any], str | None]] = {
    "not an object": (lambda saved: [saved], "not a tokenizer"),
    "null": (lambda saved: None, "not a tokenizer"),
    "no model": (without("model"), "not a tokenizer"),
    "model null": (replaced("model", by=None), "not a tokenizer"),
    "model of unknown type": (replaced("model", "type", by="GPT"), "not a tokenizer"),
    "no vocabulary": (without("model", "vocab"), "not a tokenizer"),
    "empty vocabulary": (replaced("model", "vocab", by={}), "tokenizer.json"),
    "vocabulary is a list": (replaced("model", "vocab", by=["a"]), "not a tokenizer"),
    "id is a string": (replaced("model", "vocab", "a", by="5"), "not a tokenizer"),
    "id is negative": (replaced("model", "vocab", "a", by=-1), "not a tokenizer"),
    "id is a fraction": (replaced("model", "vocab", "a", by=5.5), "not a tokenizer"),
    "id is null": (replaced("model", "vocab", "a", by=None), "not a tokenizer"),
    "id beyond 32 bits": (replaced("model", "vocab", "a", by=2**32), "not a tokenizer"),
    "largest id of 32 bits": (
        replaced("model", "vocab", "a", by=2**32 - 1),
        f"'a' the id {2**32 - 1}, but config.json",
    ),
    "id just beyond the model": (replaced("model", "vocab", "a", by=50), "'a' the id 50, but config.json"),
    "id in a gap": (replaced("model", "vocab", "a", by=49), None),
    "two tokens with one id": (replaced("model", "vocab", "a", by=6), "the id 6 to two tokens"),
    "unknown token not in the vocabulary": (replaced("model", "unk_token", by="<no>"), "'<no>' for unknown words"),
    "unknown token null": (replaced("model", "unk_token", by=None), "not a tokenizer"),
    "words of no characters": (replaced("model", "max_input_chars_per_word", by=0), None),
    "words of a thousand characters": (replaced("model", "max_input_chars_per_word", by=1000), None),
    "words of any length": (replaced("model", "max_input_chars_per_word", by=2**63), "max_input_chars_per_word"),
    "words of negative length": (replaced("model", "max_input_chars_per_word", by=-1), "not a tokenizer"),
    "other prefix": (replaced("model", "continuing_subword_prefix", by=""), None),
    "no version": (without("version"), None),
    "unknown version": (replaced("version", by="9.9"), "not a tokenizer"),
    "unknown field": (replaced("surprise", by={"code": "import os"}), "not a tokenizer"),
    "no normalizer": (replaced("normalizer", by=None), None),
    "unknown normalizer": (replaced("normalizer", by={"type": "Nothing"}), "not a tokenizer"),
    "normalizer without its fields": (replaced("normalizer", by={"type": "BertNormalizer"}), "not a tokenizer"),
    "normalizer with a bad pattern": (
        replaced("normalizer", by={"type": "Replace", "pattern": {"Regex": "(("}, "content": ""}),
        "not a tokenizer",
    ),
    "normalizer that removes everything": (
        replaced("normalizer", by={"type": "Replace", "pattern": {"Regex": "[\\s\\S]"}, "content": ""}),
        "does not lay out 1 texts",
    ),
    "normalizer that grows": (
        replaced("normalizer", by={"type": "Replace", "pattern": {"String": "a"}, "content": "a b " * 500}),
        None,
    ),
    "precompiled normalizer of garbage": (
        replaced("normalizer", by={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "tokenizer.json",
    ),
    "no pre_tokenizer": (replaced("pre_tokenizer", by=None), None),
    "pre_tokenizer that explodes": (
        replaced(
            "pre_tokenizer",
            by={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
        ),
        None,
    ),
    "no post_processor": (replaced("post_processor", by=None), None),
    "post_processor without its tokens": (replaced("post_processor", "special_tokens", by={}), "does not work"),
    "post_processor adds an id beyond the model": (replaced(*TEMPLATE_ID, by=[99]), "with id 99; its id .* is 2"),
    "post_processor adds another token's id": (replaced(*TEMPLATE_ID, by=[7]), "with id 7; its id .* is 2"),
    "post_processor adds the largest id": (replaced(*TEMPLATE_ID, by=[2**32 - 1]), f"with id {2**32 - 1}"),
    "post_processor with more ids than tokens": (replaced(*TEMPLATE_ID, by=[2, 3]), "tokenizer.json"),
    "post_processor without ids": (replaced(*TEMPLATE_ID, by=[]), "tokenizer.json"),
    "post_processor without the second text": (without("post_processor", "pair", 3), "does not lay out 2 texts"),
    "post_processor with the first text twice": (
        replaced("post_processor", "single", 2, by={"Sequence": {"id": "A", "type_id": 0}}),
        "tokenizer.json",
    ),
    "post_processor that adds nothing": (
        replaced("post_processor", "single", by=[{"Sequence": {"id": "A", "type_id": 0}}]),
        None,
    ),
    "decoder null": (replaced("decoder", by=None), None),
    "decoder unknown": (replaced("decoder", by={"type": "Nothing"}), "not a tokenizer"),
    "added tokens null": (replaced("added_tokens", by=None), "not a tokenizer"),
    "no added tokens": (replaced("added_tokens", by=[]), None),
    "added token without content": (without("added_tokens", 0, "content"), "not a tokenizer"),
    "added token that is empty": (replaced("added_tokens", 0, "content", by=""), None),
    "added token with another id": (replaced("added_tokens", 2, "id", by=2**32 - 1), None),
    "truncation to nothing": (replaced("truncation", "max_length", by=0), None),
    "truncation with a long stride": (replaced("truncation", "stride", by=10**6), None),
    "truncation that is not an object": (replaced("truncation", by=5), "not a tokenizer"),
    "padding to 2**40": (replaced("padding", "strategy", by={"Fixed": 2**40}), None),
    "padding with another token": (replaced("padding", "pad_token", by="<other>"), None),
    "padding without fields": (replaced("padding", by={}), "not a tokenizer"),
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
    change, message = MUTATIONS[name]
    saved = change(tokenizer_json(SPECIALS + WORDS))
    folder = model_folder(tmp_path, tokenizer=saved, config={"vocab_size": 50, "max_position_embeddings": 64})
    if message is not None:
        expect_refusal(folder, message)
    else:
        run_loaded(BertTokenizer.from_pretrained(folder), vocab_size=50)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"tokenizer\.json is not valid JSON: it is empty"),
        (b"{", r"tokenizer\.json is not valid JSON: Expecting property name"),
        (b"\xff\xfe{}", r"tokenizer\.json is not UTF-8 text"),
        (b"null", r"tokenizer\.json is not a tokenizer that can be read: it does not hold a JSON object"),
        (b"{}", r"tokenizer\.json is not a tokenizer that can be read"),
        (b'{"version": NaN}', r"tokenizer\.json is not valid JSON: NaN"),
        (b'{"version": "1.0", "version": "1.0"}', r"tokenizer\.json is not valid JSON: the key 'version' occurs twice"),
        (b"\x00" * 100, r"tokenizer\.json is not valid JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", r"tokenizer\.json is a Git LFS pointer"),
    ],
)
def test_tokenizer_json_that_is_not_json(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    expect_refusal(tmp_path, message)


def test_truncated_tokenizer_json(tmp_path: Path) -> None:
    whole = json.dumps(tokenizer_json(SPECIALS + WORDS)).encode()
    for length in range(0, len(whole), 29):
        (tmp_path / "tokenizer.json").write_bytes(whole[:length])
        expect_refusal(tmp_path, "tokenizer.json")


JUNK = [
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    2**32 - 1,
    2**63,
    1.5,
    1e300,
    "",
    "a",
    "[CLS]",
    "x" * 300,
    [],
    {},
    [[]],
    {"a": 1},
]


def mutate(saved: Any, generator: random.Random) -> Any:
    """Insert a wrong value, delete a value, or swap two values."""
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            places.append((node, key))
            if isinstance(value, dict | list):
                collect(value)

    collect(saved)
    (node, key), (other, other_key) = generator.choice(places), generator.choice(places)
    kind = generator.randrange(4)
    if kind == 0:
        del node[key]
    elif kind == 1:
        node[key] = copy.deepcopy(other[other_key])
    else:
        node[key] = copy.deepcopy(generator.choice(JUNK))
    return saved


def run_random_mutations(folder: Path, number: int) -> None:
    generator = random.Random(number)
    whole = tokenizer_json([*SPECIALS, "a", "b", "##c"])
    refused = 0
    for _ in range(number):
        saved = copy.deepcopy(whole)
        for _ in range(generator.choice([1, 1, 2])):
            saved = mutate(saved, generator)
        model_folder(folder, tokenizer=saved, config={"vocab_size": 20, "max_position_embeddings": 16})
        try:
            tokenizer = BertTokenizer.from_pretrained(folder)
        except ModelFormatError:
            refused += 1
        else:
            run_loaded(tokenizer, vocab_size=20)
    assert 0 < refused < number
    REPORT.append(f"tokenizer: {number:,} random damages of tokenizer.json, {refused:,} refused, the rest work")


def test_random_damage_of_tokenizer_json(tmp_path: Path) -> None:
    run_random_mutations(tmp_path, 1500)


@pytest.mark.slow
def test_much_random_damage_of_tokenizer_json(tmp_path: Path) -> None:
    run_random_mutations(tmp_path, 60_000)


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
