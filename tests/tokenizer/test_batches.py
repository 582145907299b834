"""The result of a tokenizer, threads, and what is refused."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import transformers

from minibert.tokenizer.batch import TokenizedBatch
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from tests.support.checkpoints import locate_minilm
from tests.support.tokenizer_files import AWKWARD_TEXTS


def test_a_batch_is_a_mapping_of_int64_arrays(tokenizer: BertTokenizer) -> None:
    inputs = tokenizer(["first text", "second, longer text"], padding=True, return_tensors="np")
    assert isinstance(inputs, TokenizedBatch)
    assert list(inputs) == list(dict(**inputs)) == ["input_ids", "token_type_ids", "attention_mask"]
    assert all(array.dtype == np.int64 and array.shape == (2, 6) for array in inputs.values())
    assert inputs.input_ids is inputs["input_ids"]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert len(copy.copy(inputs)) == 3
    with pytest.raises(AttributeError, match=r"token_types.*holds input_ids"):
        _ = inputs.token_types
    assert inputs.tokens(-1)[2] == inputs.tokens(1)[2] == ","
    for call in (lambda: inputs.tokens(2), lambda: inputs.word_ids(-3), lambda: inputs.char_to_token(2, 0)):
        with pytest.raises(ValueError, match="the batch has 2 rows"):
            call()
    with pytest.raises(ValueError, match="row 0 has 6 tokens"):
        inputs.token_to_chars(0, 6)
    assert list(tokenizer("a", return_token_type_ids=False, return_attention_mask=False)) == ["input_ids"]


def test_rows_of_overflow_count_the_truncated_tokens(tokenizer: BertTokenizer) -> None:
    whole = tokenizer.encodings(["one two three four five six seven"])[0]
    options = {"max_length": 5, "stride": 1, "return_overflowing_tokens": True, "truncation": True, "padding": True}
    inputs = tokenizer(["one two three four five six seven", "one"], **options)
    assert inputs["overflow_to_sample_mapping"] == [0, 0, 0, 1]
    assert [encoding.n_truncated for encoding in inputs.encodings] == [4, 4, 4, 0]
    assert [encoding.n_truncated for encoding in tokenizer.encodings(["one two three four"], max_length=4)] == [2]
    kept = [token for encoding in inputs.encodings[:3] for token in encoding.tokens[1:-1]]
    assert sorted(set(kept)) == sorted(whole.tokens[1:-1])


def test_an_encoding_of_some_tokens(tokenizer: BertTokenizer) -> None:
    for whole in (
        tokenizer.encodings(["one two three"])[0],
        tokenizer.encodings(["one two three four"], max_length=5)[0],
    ):
        some = whole.take(np.array([0, 2, 4]))
        assert some.tokens == ["[CLS]", "two", "[SEP]"]
        assert some.ids.tolist() == whole.ids[[0, 2, 4]].tolist()
        assert some.n_truncated == whole.n_truncated
        assert some.take(np.array([1])).tokens == ["two"]


def test_an_empty_second_text_is_a_text(tokenizer: BertTokenizer) -> None:
    # transformers drops an empty second text from a single text, and keeps it in a list of texts.
    assert [tokenizer("a", "")["input_ids"]] == tokenizer(["a"], [""])["input_ids"] == [[101, 1037, 102, 102]]


@pytest.mark.parametrize("empty", [[], (), np.array([], dtype=str)])
def test_no_texts_give_no_rows(tokenizer: BertTokenizer, empty: Any) -> None:
    for options in ({}, {"padding": True}, {"padding": "max_length"}, {"truncation": True}):
        inputs = tokenizer(empty, **options, return_tensors="np", return_offsets_mapping=True, return_length=True)
        shapes = {key: array.shape for key, array in inputs.items()}
        assert shapes.pop("offset_mapping") == (0, 0, 2)
        assert shapes.pop("length") == (0,)
        assert set(shapes.values()) == {(0, 0)}
    assert tokenizer.encodings(empty) == []
    assert tokenizer.batch_decode(empty) == []


def test_texts_may_be_tuples_and_arrays(tokenizer: BertTokenizer) -> None:
    expected = tokenizer(["one", "two"])["input_ids"]
    for texts in (("one", "two"), np.array(["one", "two"]), np.array(["one", "two"], dtype=object)):
        assert tokenizer(texts)["input_ids"] == expected
    for one in (np.str_("one"), np.array("one"), np.array("one", dtype=object)):
        assert tokenizer(one)["input_ids"] == tokenizer.encode(one) == expected[0]


def test_max_length_alone_truncates_as_in_transformers(tokenizer: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(locate_minilm())
    assert tokenizer("a b c d", max_length=4)["input_ids"] == theirs("a b c d", max_length=4)["input_ids"]
    with pytest.warns(UserWarning, match="max_length=4 has no effect"):
        inputs = tokenizer(["a b c d", "e"], max_length=4, padding=True)
    assert [len(ids) for ids in inputs["input_ids"]] == [6, 6]


def test_very_long_words_and_texts(tokenizer: BertTokenizer) -> None:
    assert tokenizer("a" * 50_000)["input_ids"] == [101, 100, 102]
    inputs = tokenizer("a " * 50_000, truncation=True)
    assert len(inputs["input_ids"]) == 512
    assert inputs.encodings[0].n_truncated == 50_002 - 512


def test_sixteen_threads_share_one_tokenizer(tokenizer: BertTokenizer) -> None:
    texts = 3 * AWKWARD_TEXTS
    options = [
        {"padding": True},
        {"padding": "max_length", "truncation": True, "max_length": 32},
        {"padding": True, "truncation": True, "max_length": 9},
        {"padding": True, "truncation": True, "max_length": 12, "stride": 3, "return_overflowing_tokens": True},
        {"padding": True, "add_special_tokens": False},
        {"padding": True, "text_pair": texts[::-1], "truncation": True, "max_length": 40},
    ]
    expected = [tokenizer(texts, **some)["input_ids"] for some in options]
    with ThreadPoolExecutor(16) as pool:
        calls = [index % len(options) for index in range(96)]
        results = list(pool.map(lambda index: tokenizer(texts, **options[index])["input_ids"], calls))
    for index, result in zip(calls, results, strict=True):
        np.testing.assert_array_equal(result, expected[index])
    # With truncation or padding by the library, threads would have disturbed each other.
    assert tokenizer._tokenizer.truncation is None
    assert tokenizer._tokenizer.padding is None


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
    ("convert_ids_to_tokens", ValueError, "30522", [[30522], 30522]),
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
