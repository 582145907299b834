"""Texts and arguments that are refused, and their messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minibert.tokenizer.bert_tokenizer import BertTokenizer

TEXTS: list[tuple[type[Exception], str, list[Any]]] = [
    (TypeError, "text is a ", [None, 7, b"text", float("nan"), {"text": 1}, iter(["a"]), np.array([["a"]])]),
    (TypeError, r"text\[0\] is ", [[b"a"], [("a", "b", "c")], [["a"]], np.array([1.5])]),
    (TypeError, r"text\[1\] is ", [["a", None], ["a", float("nan")], [("a", "b"), "c"]]),
    (ValueError, r"text\[0\] holds .*'\\ud800', at position 2", ["ab\ud800"]),
    (ValueError, r"text\[1\] holds .* '\\udfff', at position 0", [["a", "\udfffb"]]),
]
LONG, OVERFLOW = "a b c d e", {"return_overflowing_tokens": True}
OPTIONS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    *((value, {}, error, word) for error, word, values in TEXTS for value in values),
    (["a"], {"text_pair": ["x\udc80"]}, ValueError, r"text_pair\[0\] holds .* position 1"),
    ("a", {"text_pair": ["b"]}, TypeError, "both be one text"),
    (["a"], {"text_pair": "b"}, TypeError, "both be one text"),
    (["a", "b"], {"text_pair": ["c"]}, ValueError, "2 texts and 1 in text_pair"),
    (["a"], {"text_pair": [None]}, TypeError, r"text_pair\[0\]"),
    ("a b", {"is_split_into_words": True}, TypeError, "text is str 'a b'"),
    ([["a"], "b"], {"is_split_into_words": True}, TypeError, r"text\[1\] is str 'b'"),
    ([["a", 2]], {"is_split_into_words": True}, TypeError, r"text\[0\]\[1\] is int 2"),
    ([["a", "\ud812"]], {"is_split_into_words": True}, ValueError, r"text\[0\]\[1\] holds"),
    (["a", "b c"], {"return_tensors": "np"}, ValueError, "row 0 has 3 tokens, row 1 has 4; add padding=True"),
    ("a", {"paddin": True}, TypeError, r"Did you mean padding=\?"),
    *(("a", {name: value}, ValueError, name) for name, values in {
        "return_tensors": ["tf", 1], "padding_side": ["top"],
        "padding": ["long", 1], "truncation": ["first"], "max_length": [0, -5, 1], "stride": [-1]}.items()
      for value in values),
    *(("a", {name: value}, TypeError, name) for name, value in (
        ("max_length", True), ("max_length", 5.0), ("max_length", "5"), ("stride", 1.5))),
    (["a"], {"text_pair": ["b"], "max_length": 2}, ValueError, "no room for the 3 special tokens"),
    ("a b c", {"truncation": "only_second", "max_length": 4}, ValueError, "text_pair="),
    (["a", "b"], {"text_pair": ["c", LONG], "truncation": "only_first", "max_length": 6}, ValueError, "text 1 "),
    (LONG, {"max_length": 5, "stride": 3, **OVERFLOW}, ValueError, "stride=3 must be less than the 3"),
    ("a b c", {"max_length": 2, **OVERFLOW}, ValueError, "less than the 0 tokens"),
    ("a", {"padding": True, "pad_to_multiple_of": 0}, ValueError, "pad_to_multiple_of=0"),
    ("a", {"padding": True, "truncation": True, "max_length": 9, "pad_to_multiple_of": 8}, ValueError, "max_length=9"),
    ("a", {"padding": "max_length", "max_length": 2**62}, MemoryError, "tokens"),
    ([LONG, "a"], {"padding": "max_length", "max_length": 3, "return_tensors": "np"}, ValueError, "row 0 has 7"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "error", "word"), OPTIONS)
def test_bad_input_is_named(
    tokenizer: BertTokenizer, text: Any, options: dict[str, Any], error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word) as raised:
        tokenizer(text, **options)
    assert raised.type is error


CALLS: list[tuple[str, type[Exception], str, list[Any]]] = [
    ("decode", ValueError, "token id ", [[101, 99999], -1, 2**40]),
    ("decode", TypeError, "token id", [[1.0], [True], ["a"], np.array([1.5]), "101", None, {101}]),
    ("decode", TypeError, "batch_decode", [[101, [102]]]),
    ("decode", TypeError, "token id", [[[[101]]]]),
    ("batch_decode", TypeError, "sequences", [5]),
    ("encode", TypeError, "101", [[101, 102]]),
    ("convert_ids_to_tokens", ValueError, "token id 30522", [[30522], 30522]),
    ("convert_tokens_to_ids", TypeError, "token", [5, ["a", 5]]),
    ("tokenize", TypeError, "text", [["a", "b"]]),
    ("encode", TypeError, "text", [None]),
]


@pytest.mark.parametrize(("method", "error", "word", "values"), CALLS)
def test_bad_calls_are_named(
    tokenizer: BertTokenizer, method: str, error: type[Exception], word: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(error, match=word):
            getattr(tokenizer, method)(value)
    for words in ("a b", [["a"], ["b"]]):
        with pytest.raises(TypeError, match="expected"):
            tokenizer.tokenize(words, is_split_into_words=True)


def test_sides_and_limits_set_by_hand_are_checked_when_used(tiny: BertTokenizer) -> None:
    assert tiny.model_max_length is None
    for options in ({"truncation": True}, {"padding": "max_length"}):
        with pytest.raises(ValueError, match="need max_length=: neither"):
            tiny("a", **options)
    tiny.padding_side = "top"
    with pytest.raises(ValueError, match="padding_side='top'"):
        tiny("a")
