"""The cases of the tests of transformers and of google-research/bert."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minibert.tokenizer.bert_tokenizer import BertTokenizer
from tests.support.report import REPORT
from tests.support.text_data import data_path, needs_data, tokenization_cases
from tests.support.tokenizer_files import SPECIALS, model_folder


def case_tokenizer(tmp_path: Path, vocab: list[str], **settings: Any) -> BertTokenizer:
    vocab = vocab + [token for token in SPECIALS if token not in vocab]
    return BertTokenizer.from_pretrained(model_folder(tmp_path, vocab=vocab, tokenizer_config=settings))


def check_basic(case: dict[str, Any], tmp_path: Path) -> None:
    """Check the splitting into words: with a vocabulary of only these words, every word is a token."""
    options = case["options"]
    settings = {"do_lower_case": options["lower"], "strip_accents": options.get("strip_accents")}
    tokenizer = case_tokenizer(tmp_path, list(dict.fromkeys(case["tokens"])), **settings)
    if options.get("remove_control") is False:
        # Only a tokenizer.json can have this setting.
        saved = json.loads(tokenizer._tokenizer.to_str())
        saved["normalizer"]["clean_text"] = False
        tokenizer = BertTokenizer.from_pretrained(model_folder(tmp_path, tokenizer=saved))
    assert tokenizer.tokenize(case["text"]) == case["tokens"]


def check_wordpiece(case: dict[str, Any], tmp_path: Path) -> None:
    """Check the splitting of words into pieces, on text that needs only lowercasing, if the case has that."""
    tokenizer = case_tokenizer(tmp_path, case["vocab"], do_lower_case=case["kind"] == "full")
    texts, expected = case["text"], case["tokens"]
    if isinstance(texts, str):
        texts, expected = [texts], [expected]
    assert [tokenizer.tokenize(text) for text in texts] == expected
    if "ids" in case:
        assert tokenizer.convert_tokens_to_ids(case["tokens"]) == case["ids"]
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"]


def check_character_classes(case: dict[str, Any], tmp_path: Path) -> None:
    """Check that whitespace separates, control characters are removed, and punctuation is a token of its own."""
    inside = "Aab💩"
    vocab = ["a", "b", "ab", *case["punct_true"], *(f"a{character}b" for character in inside)]
    tokenizer = case_tokenizer(tmp_path, vocab, do_lower_case=False)
    found = {character: tokenizer.tokenize(f"a{character}b") for key in case for character in case[key] if "_" in key}
    assert all(found[character] == ["a", "b"] for character in case["whitespace_true"])
    assert all(found[character] != ["a", "b"] for character in case["whitespace_false"])
    assert all(found[character] == ["ab"] for character in case["control_true"])
    assert all(found[character] != ["ab"] for character in case["control_false"])
    assert all(found[character] == ["a", character, "b"] for character in case["punct_true"])
    assert all(found[character] != ["a", character, "b"] for character in case["punct_false"])


def check_offsets(case: dict[str, Any], folders: Callable[[str], Path]) -> None:
    name = "uncased" if case["vocab"] == "bert-base-uncased" else case["vocab"]
    (encoding,) = BertTokenizer.from_pretrained(folders(name)).encodings([case["text"]])
    assert encoding.tokens == case["tokens"]
    assert encoding.offsets.tolist() == case["offsets"]


def check_specials(case: dict[str, Any], folders: Callable[[str], Path]) -> None:
    tokenizer = BertTokenizer.from_pretrained(folders("uncased"))
    text, pair = (tokenizer.encode(case[key], add_special_tokens=False) for key in ("text", "pair"))
    assert tokenizer.encode(case["text"]) == [101, *text, 102]
    assert tokenizer.encode(case["text"], case["pair"]) == [101, *text, 102, *pair, 102]


def check_chinese_toggle(case: dict[str, Any], tmp_path: Path) -> None:
    lines = data_path("vocab/bert-base-chinese.txt").read_text(encoding="utf-8").split("\n")
    for tokenize_chinese_chars, key in ((True, "tokenize_chinese_true"), (False, "tokenize_chinese_false")):
        tokenizer = case_tokenizer(tmp_path, lines[:-1], tokenize_chinese_chars=tokenize_chinese_chars)
        assert tokenizer.tokenize(case["text"]) == case[key]


@needs_data
def test_the_cases_of_the_original_tests(tmp_path: Path, folders: Callable[[str], Path]) -> None:
    checks: dict[str, Callable[[dict[str, Any], Any], None]] = {
        "basic": check_basic,
        "wordpiece": check_wordpiece,
        "full": check_wordpiece,
        "char_class": check_character_classes,
        "offsets": check_offsets,
        "specials": check_specials,
        "chinese_toggle": check_chinese_toggle,
    }
    for index, case in enumerate(tokenization_cases()):
        place = folders if case["kind"] in ("offsets", "specials") else tmp_path / str(index)
        checks[case["kind"]](case, place)
    REPORT.append(f"tokenizer: {index + 1} cases of the original tests, 0 mismatches")
    assert index + 1 == 33
