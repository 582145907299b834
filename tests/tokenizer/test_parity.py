"""Ids, offsets, windows and words equal those of transformers, on made and on real texts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from minibert.tokenizer.bert_tokenizer import BertTokenizer
from tests.support.report import REPORT
from tests.support.text_data import naughty_lines, needs_data, tokenization_cases, udhr_lines
from tests.support.tokenizer_files import (
    AWKWARD_TEXTS,
    EVERYTHING,
    REAL_VOCABULARIES,
    random_texts,
    shuffled,
)

SINGLE_OPTIONS: list[dict[str, Any]] = [
    {},
    {"add_special_tokens": False, "truncation": True, "max_length": 30},
    {"truncation": "only_first", "max_length": 2},
    {"truncation": "longest_first", "max_length": 3},
    {"truncation": "only_first", "max_length": 17},
    {"truncation": True, "max_length": 9, "truncation_side": "left", "padding_side": "left"},
    {"truncation": True, "max_length": 16, "stride": 5, "return_overflowing_tokens": True},
    {"truncation": True, "max_length": 12, "stride": 2, "return_overflowing_tokens": True, "truncation_side": "left"},
    {"truncation": True, "max_length": 48, "padding": "max_length", "pad_to_multiple_of": 16},
    {"truncation": True, "padding": "longest", "pad_to_multiple_of": 8},
]

PAIR_OPTIONS: list[dict[str, Any]] = [
    {},
    {"add_special_tokens": False, "truncation": True, "max_length": 5},
    {"truncation": "only_second", "max_length": 3},
    {"truncation": "longest_first", "max_length": 4},
    {"truncation": True, "max_length": 33, "padding": "max_length", "padding_side": "left", "truncation_side": "left"},
    {"truncation": True, "max_length": 64, "stride": 3, "return_overflowing_tokens": True},
]

# One text is long; the other is one of these, so short that tokens are left for the long one.
SHORT_TEXTS = ["", "a", "Is it?", "?"]

ONE_SIDED_OPTIONS: list[dict[str, Any]] = [
    {"max_length": 16},
    {"max_length": 24, "stride": 4, "return_overflowing_tokens": True},
    {"max_length": 16, "truncation_side": "left", "stride": 1, "return_overflowing_tokens": True},
]


def described(batch: Any) -> list[tuple[Any, ...]]:
    """Return everything that a batch tells about each of its rows, and the names of its arrays in their order."""
    names = tuple(batch)
    values = list(batch.values())
    rows = range(len(values[0]))
    described_by = (batch.tokens, batch.word_ids, batch.sequence_ids)
    return [(names, *(value[row] for value in values), *(describe(row) for describe in described_by)) for row in rows]


def count_mismatches(
    ours: BertTokenizer,
    theirs: Any,
    texts: list[str],
    pairs: list[str] | None,
    options: dict[str, Any],
    batch_size: int = 32,
) -> tuple[int, int]:
    """Count the compared rows, and the rows with any difference."""
    options = {"padding": True} | options
    sides = {name: options.pop(name, "right") for name in ("truncation_side", "padding_side")}
    for name, side in sides.items():
        setattr(ours, name, side)
        setattr(theirs, name, side)
    compared = mismatches = 0
    try:
        for start in range(0, len(texts), batch_size):
            some = slice(start, start + batch_size)
            batch = (texts[some], None if pairs is None else pairs[some])
            mine, reference = ours(*batch, **EVERYTHING, **options), theirs(*batch, **EVERYTHING, **options)
            rows, expected = described(mine), described(reference)
            compared += len(expected)
            mismatches += sum(row != other for row, other in itertools.zip_longest(rows, expected))
    finally:
        for name in sides:
            setattr(ours, name, "right")
            setattr(theirs, name, "right")
    return compared, mismatches


def compare_everything(folder: Path, name: str, texts: list[str], all_windows: bool = True) -> None:
    """Compare singles and pairs under all options; report the counts.

    transformers makes all windows of a text, and all combinations of the windows of a pair. If there are many and
    `all_windows` is False, each text is compared under one of those options in turn, and under every other option.
    """
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    assert ours.get_vocab() == theirs.get_vocab()
    short = [SHORT_TEXTS[index % len(SHORT_TEXTS)] for index in range(len(texts))]
    singles = [(texts, None, options) for options in SINGLE_OPTIONS]
    pairs = [(texts, shuffled(texts), options) for options in PAIR_OPTIONS]
    pairs += [(texts, short, {"truncation": "only_first"} | options) for options in ONE_SIDED_OPTIONS]
    pairs += [(short, texts, {"truncation": "only_second"} | options) for options in ONE_SIDED_OPTIONS]
    total = mismatches = 0
    for runs in (singles, pairs):
        many = [options for *_, options in runs if makes_many_windows(options)]
        for first, second, options in runs:
            turn = slice(many.index(options), None, len(many)) if options in many and not all_windows else slice(None)
            compared, wrong = count_mismatches(ours, theirs, first[turn], second and second[turn], options)
            assert compared >= len(first[turn])
            total, mismatches = total + compared, mismatches + wrong
    REPORT.append(f"tokenizer parity, {name}: {total:,} rows compared, {mismatches} mismatches")
    assert mismatches == 0


def makes_many_windows(options: dict[str, Any]) -> bool:
    return "return_overflowing_tokens" in options or options.get("max_length") in (4, 5)


@pytest.mark.parametrize("name", ["uncased", "uncased tokenizer.json"])
def test_equals_transformers_on_made_texts(folders: Callable[[str], Path], name: str) -> None:
    compare_everything(folders(name), f"{name}, made texts", AWKWARD_TEXTS + random_texts(150))


@needs_data
@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", REAL_VOCABULARIES)
def test_equals_transformers_on_real_texts(folders: Callable[[str], Path], name: str, every: int) -> None:
    """The default run has a twentieth of the texts, other ones for each vocabulary."""
    first = REAL_VOCABULARIES.index(name)
    compare_everything(folders(name), f"{name}, 1/{every} of the texts", real_texts()[first % every :: every], False)


def real_texts() -> list[str]:
    assert len(udhr_lines()) == 4101
    assert len(naughty_lines()) > 500
    # Sorted by length, because transformers is slow if a batch is mostly padding.
    return sorted([*udhr_lines(), *naughty_lines(), *case_texts()], key=len)


def case_texts() -> Iterator[str]:
    for case in tokenization_cases():
        text = case.get("text", [])
        yield from [text] if isinstance(text, str) else text


def test_single_texts_equal_transformers_row_by_row(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    for text, pair in zip(AWKWARD_TEXTS, reversed(AWKWARD_TEXTS), strict=True):
        words = text.split()
        calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
            ("__call__", (text,), {"return_offsets_mapping": True, "return_special_tokens_mask": True}),
            ("tokenize", (text,), {}),
            *(("encode", (text,), options) for options in ({}, {"add_special_tokens": False}, {"max_length": 6})),
        ]
        if pair:  # transformers drops an empty one
            calls += [("encode", (text, pair), {}), ("tokenize", (text, pair), {}), ("tokenize", ([text],), {})]
            calls += [("tokenize", (one,), {"is_split_into_words": True}) for one in (words, [words])][
                : 2 * bool(words)
            ]
        for name, arguments, options in calls:
            ours, theirs = (getattr(one, name)(*arguments, **options) for one in (tokenizer, their_tokenizer))
            assert ours == theirs or dict(ours) == dict(theirs), (name, arguments)


def test_rows_above_max_length_stay_long_without_truncation(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    """A tutorial of Hugging Face prints such rows."""
    options: dict[str, Any] = {"padding": "max_length", "max_length": 5, "truncation": False}
    for texts in (["a b c d e f", "a"], "a b c d e f", "a"):
        for multiple in (None, 4):
            expected = their_tokenizer(texts, pad_to_multiple_of=multiple, **options)
            found = tokenizer(texts, pad_to_multiple_of=multiple, **options)
            assert {name: found[name] for name in found} == {name: expected[name] for name in expected}
            assert repr(found.keys()) == repr(expected.keys())
    whole = tokenizer("a b c d e f", return_tensors="np", **options)["input_ids"]
    assert whole.tolist() == [tokenizer("a b c d e f")["input_ids"]]


def test_words_equal_transformers(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    sentences = [text.split(" ") for text in AWKWARD_TEXTS] + [[], ["New York", "", "embeddings"]]
    for options in ({}, {"truncation": True, "max_length": 7}, {"text_pair": sentences[::-1]}):
        options = {"padding": True, "is_split_into_words": True} | options
        mine, reference = (
            tokenizer(sentences, **EVERYTHING, **options),
            their_tokenizer(sentences, **EVERYTHING, **options),
        )
        assert described(mine) == described(reference)
    for words in (["one", "text"], []):
        mine, reference = tokenizer(words, is_split_into_words=True), their_tokenizer(words, is_split_into_words=True)
        assert mine["input_ids"] == reference["input_ids"]


def test_character_positions_equal_transformers(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    for side in ("right", "left"):
        tokenizer.padding_side = their_tokenizer.padding_side = side
        batch = (AWKWARD_TEXTS, AWKWARD_TEXTS[::-1])
        options = {"padding": True, "truncation": True, "max_length": 40}
        mine, reference = tokenizer(*batch, **options), their_tokenizer(*batch, **options)
        for row, texts in enumerate(zip(*batch, strict=True)):
            for sequence, text in enumerate(texts):
                for char in range(min(len(text), 60)):
                    assert mine.char_to_token(row, char, sequence) == reference.char_to_token(row, char, sequence)
            for token in range(len(mine["input_ids"][0])):
                assert mine.token_to_chars(row, token) == reference.token_to_chars(row, token)
                assert repr(mine.token_to_chars(row, token)) == repr(reference.token_to_chars(row, token))
    tokenizer.padding_side = their_tokenizer.padding_side = "right"


def test_decoding_equals_transformers(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    sequences = [their_tokenizer.encode(text, truncation=True) for text in AWKWARD_TEXTS + random_texts(50)]
    generator = np.random.default_rng(3)
    sequences += [generator.integers(0, 30522, size=40).tolist() for _ in range(50)]
    for skip in (False, True):
        for clean_up in (None, False, True):
            options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": clean_up}
            expected = [their_tokenizer.decode(ids, **options) for ids in sequences]
            assert tokenizer.batch_decode(sequences, **options) == expected
            assert [tokenizer.decode(np.array(ids), **options) for ids in sequences] == expected
        for ids in sequences:
            assert tokenizer.convert_ids_to_tokens(ids, skip) == their_tokenizer.convert_ids_to_tokens(ids, skip)
    assert tokenizer.decode(101) == their_tokenizer.decode(101)
    assert tokenizer.decode([]) == their_tokenizer.decode([]) == ""


def test_vocabulary_equals_transformers(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    names = ["cls", "sep", "pad", "unk", "mask"]
    for name in [f"{name}_token" for name in names] + [f"{name}_token_id" for name in names]:
        assert getattr(tokenizer, name) == getattr(their_tokenizer, name) is not None
    for name in ("all_special_tokens", "all_special_ids", "vocab_size", "padding_side", "truncation_side"):
        assert getattr(tokenizer, name) == getattr(their_tokenizer, name)
    assert len(tokenizer) == len(their_tokenizer) == 30522
    assert tokenizer.vocab == tokenizer.get_vocab() == their_tokenizer.vocab
    assert list(tokenizer.vocab.values()) == list(range(30522))
    tokens = ["[CLS]", "hello", "##ing", "no such token", ""]
    assert tokenizer.convert_tokens_to_ids(tokens) == their_tokenizer.convert_tokens_to_ids(tokens)
    assert tokenizer.convert_tokens_to_ids("hello") == 7592
    assert tokenizer.convert_ids_to_tokens(7592) == "hello"
    for pair in (False, True):
        assert tokenizer.num_special_tokens_to_add(pair) == their_tokenizer.num_special_tokens_to_add(pair) == 2 + pair


ALL_CODE_POINTS = [code_point for code_point in range(0x110000) if not 0xD800 <= code_point < 0xE000]


@needs_data
@pytest.mark.parametrize("name", ["uncased", pytest.param("bert-base-cased", marks=pytest.mark.slow)])
@pytest.mark.parametrize("every", [300, pytest.param(1, marks=pytest.mark.slow)])
def test_single_code_points_equal_transformers(folders: Callable[[str], Path], name: str, every: int) -> None:
    code_points = sorted({*ALL_CODE_POINTS[:0x500], *ALL_CODE_POINTS[::every]})
    folder = folders(name)
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    texts = [f"a{chr(code_point)}b {chr(code_point)}" for code_point in code_points]
    compared, mismatches = count_mismatches(ours, theirs, texts, None, {}, batch_size=256)
    REPORT.append(f"tokenizer parity, {name}, one character each: {compared:,} rows compared, {mismatches} mismatches")
    assert (compared, mismatches) == (len(code_points), 0)


def test_encode_takes_lists_as_transformers_does(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    calls: list[tuple[Any, dict[str, Any]]] = [
        (["a cat", "dog"], {}),
        (["a cat", "dog"], {"return_tensors": "np", "padding": True}),
        (["a", "cat"], {"is_split_into_words": True}),
        ([("a", "cat")], {"add_special_tokens": False}),
    ]
    for text, options in calls:
        np.testing.assert_array_equal(
            np.array(tokenizer.encode(text, **options), dtype=object),
            np.array(their_tokenizer.encode(text, **options), dtype=object),
        )
    with pytest.raises(TypeError, match=r"101"):
        tokenizer.encode([101, 102])
