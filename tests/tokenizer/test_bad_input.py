"""Texts and arguments that are refused, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minibert.tokenizer.bert_tokenizer import BertTokenizer


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        (None, {}, TypeError, "text is a NoneType"),
        (7, {}, TypeError, "text is a int"),
        (b"text", {}, TypeError, "text is a bytes"),
        (float("nan"), {}, TypeError, "text is a float"),
        ({"text": 1}, {}, TypeError, "text is a dict"),
        (iter(["a"]), {}, TypeError, "text is a list_iterator"),
        (["a", None], {}, TypeError, r"text\[1\] is NoneType None"),
        (["a", float("nan")], {}, TypeError, r"text\[1\] is float nan"),
        (["a", "b", 3], {}, TypeError, r"text\[2\] is int 3"),
        ([b"a"], {}, TypeError, r"text\[0\] is bytes b'a'"),
        ([("a", "b", "c")], {}, TypeError, r"text\[0\] is tuple .* text_pair="),
        ([["a"]], {}, TypeError, r"text\[0\] is list .* is_split_into_words=True"),
        ([("a", "b"), "c"], {}, TypeError, r"text\[1\] is str 'c'"),
        (np.array([["a"]]), {}, TypeError, "text is a ndarray"),
        (np.array([1.5]), {}, TypeError, r"text\[0\] is float"),
        ("ab\ud800", {}, ValueError, r"text\[0\] holds .* surrogate '\\ud800', at position 2"),
        (["a", "\udfffb"], {}, ValueError, r"text\[1\] holds .* '\\udfff', at position 0"),
        (["a"], {"text_pair": ["x\udc80"]}, ValueError, r"text_pair\[0\] holds .* position 1"),
        ("a", {"text_pair": ["b"]}, TypeError, "both be one text"),
        (["a"], {"text_pair": "b"}, TypeError, "both be one text"),
        (["a", "b"], {"text_pair": ["c"]}, ValueError, "2 texts and 1 in text_pair"),
        (["a"], {"text_pair": [None]}, TypeError, r"text_pair\[0\] is NoneType"),
        ("a b", {"is_split_into_words": True}, TypeError, "text is str 'a b'"),
        ([["a"], "b"], {"is_split_into_words": True}, TypeError, r"text\[1\] is str 'b'"),
        ([["a", 2]], {"is_split_into_words": True}, TypeError, r"text\[0\]\[1\] is int 2"),
        (["a", ["b"]], {"is_split_into_words": True}, TypeError, r"text\[0\]\[1\] is list"),
        ([["a", "\ud812"]], {"is_split_into_words": True}, ValueError, r"text\[0\]\[1\] holds"),
        (["a", "b c"], {"return_tensors": "np"}, ValueError, "row 0 has 3 tokens, row 1 has 4; add padding=True"),
        ("a", {"return_tensors": "tf"}, ValueError, "'tf'"),
        ("a", {"return_tensors": 1}, ValueError, "return_tensors=1"),
        ("a", {"padding_side": "top"}, ValueError, "padding_side='top'"),
        ("a", {"text_target": 5}, ValueError, "text_target"),
        ("a", {"text_pair_target": "b"}, ValueError, "expected None or False. Tokenize the targets"),
        ("a", {"paddin": True}, TypeError, r"BertTokenizer\(\) has no keyword paddin=\. Did you mean padding=\?"),
        ("a", {"padding": "long"}, ValueError, "padding='long'"),
        ("a", {"padding": 1}, ValueError, "padding=1"),
        ("a", {"truncation": "first"}, ValueError, "truncation='first'"),
        ("a", {"max_length": 0}, ValueError, "max_length=0"),
        ("a", {"max_length": -5}, ValueError, "max_length=-5"),
        ("a", {"max_length": True}, TypeError, "max_length=True"),
        ("a", {"max_length": 5.0}, TypeError, r"max_length=5\.0"),
        ("a", {"max_length": "5"}, TypeError, "max_length='5'"),
        ("a", {"max_length": 1}, ValueError, "max_length=1 has no room for the 2 special tokens"),
        (["a"], {"text_pair": ["b"], "max_length": 2}, ValueError, "no room for the 3 special tokens"),
        ("a b c", {"truncation": "only_second", "max_length": 4}, ValueError, "needs text_pair="),
        (
            ["a", "b"],
            {"text_pair": ["c", "d e f g"], "truncation": "only_first", "max_length": 6},
            ValueError,
            "text 1 .*4",
        ),
        ("a", {"stride": -1}, ValueError, "stride=-1"),
        ("a", {"stride": 1.5}, TypeError, r"stride=1\.5"),
        (
            "a b c d e",
            {"max_length": 5, "stride": 3, "return_overflowing_tokens": True},
            ValueError,
            "stride=3 must be less than the 3",
        ),
        ("a b c", {"max_length": 2, "return_overflowing_tokens": True}, ValueError, "less than the 0 tokens"),
        (
            "a",
            {"padding": True, "pad_to_multiple_of": 0},
            ValueError,
            "pad_to_multiple_of=0",
        ),
        (
            "a",
            {"padding": True, "truncation": True, "max_length": 9, "pad_to_multiple_of": 8},
            ValueError,
            "max_length=9 is not a multiple",
        ),
        ("a", {"padding": "max_length", "max_length": 2**62}, MemoryError, "1 row of .* tokens take"),
        (
            ["a b c", "a"],
            {"padding": "max_length", "max_length": 3, "return_tensors": "np"},
            ValueError,
            "row 0 has 5 tokens, max_length=3; add truncation=True",
        ),
    ],
)
def test_bad_input_is_named(
    tokenizer: BertTokenizer, text: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        tokenizer(text, **options)
    assert raised.type is error


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda t: t.decode([101, 99999]),
            ValueError,
            "token id 99999 at position 1 has no token; ids run from 0 to 30521",
        ),
        (lambda t: t.decode(-1), ValueError, "token id -1"),
        (lambda t: t.decode(2**40), ValueError, f"token id {2**40}"),
        (lambda t: t.decode([1.0]), TypeError, r"token id 0=1\.0"),
        (lambda t: t.decode([True]), TypeError, "token id 0=True"),
        (lambda t: t.decode([101, [102]]), TypeError, "call batch_decode"),
        (lambda t: t.decode([[[101]]]), TypeError, "token id 0 is a sequence"),
        (lambda t: t.batch_decode(5), TypeError, "int"),
        (lambda t: t.decode(["a"]), TypeError, "token id 0='a'"),
        (lambda t: t.decode(np.array([1.5])), TypeError, "token id 0=.*1.5.*"),
        (lambda t: t.decode("101"), TypeError, "token id"),
        (lambda t: t.decode(None), TypeError, "token id"),
        (lambda t: t.decode({101}), TypeError, "token id"),
        (lambda t: t.convert_ids_to_tokens([30522]), ValueError, "token id 30522"),
        (lambda t: t.convert_ids_to_tokens(30522), ValueError, "token id 30522"),
        (lambda t: t.convert_tokens_to_ids(5), TypeError, "tokens are int 5"),
        (lambda t: t.convert_tokens_to_ids(["a", 5]), TypeError, "a token is int 5"),
        (lambda t: t.tokenize(["a", "b"]), TypeError, r"text is list .*expected one str\. For several"),
        (lambda t: t.tokenize("a b", is_split_into_words=True), TypeError, "text is str .*expected one list of words"),
        (lambda t: t.tokenize([["a"], ["b"]], is_split_into_words=True), TypeError, "expected a str"),
        (lambda t: t.encode("a", 5), TypeError, "pair is a int"),
        (lambda t: t.encode(None), TypeError, "text is a NoneType"),
    ],
)
def test_bad_calls_are_named(
    tokenizer: BertTokenizer, call: Callable[[BertTokenizer], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(tokenizer)


def test_every_lone_surrogate_is_refused(tokenizer: BertTokenizer) -> None:
    for code_point in range(0xD800, 0xE000, 7):
        with pytest.raises(ValueError, match=r"text\[1\] holds half a character"):
            tokenizer(["fine", f"x{chr(code_point)}y"])


def test_sides_and_limits_set_by_hand_are_checked_when_used(tiny: BertTokenizer) -> None:
    assert tiny.model_max_length is None
    for options in ({"truncation": True}, {"padding": "max_length"}):
        with pytest.raises(ValueError, match="need max_length=: neither"):
            tiny("a", **options)
    tiny.padding_side = "top"
    with pytest.raises(ValueError, match="padding_side='top'"):
        tiny("a")
