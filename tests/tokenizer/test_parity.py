"""Ids, offsets, windows and words equal those of transformers, on made and on real texts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from minibert.tokenizer.bert_tokenizer import BertTokenizer
from tests.support.checkpoints import locate_minilm
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
    runs = [("single texts", texts, None, options) for options in SINGLE_OPTIONS]
    runs += [("pairs", texts, shuffled(texts), options) for options in PAIR_OPTIONS]
    runs += [("pairs", texts, short, {"truncation": "only_first"} | options) for options in ONE_SIDED_OPTIONS]
    runs += [("pairs", short, texts, {"truncation": "only_second"} | options) for options in ONE_SIDED_OPTIONS]
    counts = {"single texts": [0, 0], "pairs": [0, 0]}
    for kind, first, second, options in runs:
        many = [run[3] for run in runs if run[0] == kind and makes_many_windows(run[3])]
        turn = slice(many.index(options), None, len(many)) if options in many and not all_windows else slice(None)
        compared, mismatches = count_mismatches(ours, theirs, first[turn], second and second[turn], options)
        assert compared >= len(first[turn])
        counts[kind][0] += compared
        counts[kind][1] += mismatches
    for kind, (compared, mismatches) in counts.items():
        REPORT.append(f"tokenizer parity, {name}, {kind}: {compared:,} rows compared, {mismatches} mismatches")
    assert [mismatches for _, mismatches in counts.values()] == [0, 0]


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


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", REAL_VOCABULARIES)
def test_equals_transformers_in_all_windows_of_real_texts(folders: Callable[[str], Path], name: str) -> None:
    compare_everything(folders(name), f"{name}, all windows", real_texts())


def real_texts() -> list[str]:
    assert len(udhr_lines()) == 4101
    assert len(naughty_lines()) > 500
    # Sorted by length, because transformers is slow if a batch is mostly padding.
    return sorted([*udhr_lines(), *naughty_lines(), *case_texts()], key=len)


def case_texts() -> Iterator[str]:
    for case in tokenization_cases():
        text = case.get("text", [])
        yield from [text] if isinstance(text, str) else text


def test_encodings_equal_transformers_without_padding(tokenizer: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(locate_minilm())
    reference = theirs(AWKWARD_TEXTS, return_offsets_mapping=True, return_special_tokens_mask=True)
    encodings = tokenizer.encodings(AWKWARD_TEXTS)
    assert len(encodings) == len(AWKWARD_TEXTS)
    for row, encoding in enumerate(encodings):
        assert encoding.ids.dtype == encoding.token_types.dtype == encoding.offsets.dtype == np.int64
        assert encoding.ids.tolist() == reference["input_ids"][row]
        assert encoding.token_types.tolist() == reference["token_type_ids"][row]
        assert encoding.special_tokens_mask.tolist() == reference["special_tokens_mask"][row]
        assert [tuple(offsets) for offsets in encoding.offsets] == reference["offset_mapping"][row]
        assert encoding.tokens == reference.tokens(row)
        assert encoding.word_ids == reference.word_ids(row)
        assert encoding.sequence_ids == reference.sequence_ids(row)
        assert encoding.n_truncated == 0
        assert len(encoding) == len(encoding.ids)


def test_single_texts_equal_transformers_row_by_row(tokenizer: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(locate_minilm())
    for text, pair in zip(AWKWARD_TEXTS, reversed(AWKWARD_TEXTS), strict=True):
        assert tokenizer(text)["input_ids"] == theirs(text)["input_ids"]
        assert tokenizer.tokenize(text) == theirs.tokenize(text)
        assert tokenizer.encode(text) == theirs.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, max_length=6) == theirs.encode(text, max_length=6)
        if pair:
            assert tokenizer.encode(text, pair) == theirs.encode(text, pair)
            assert tokenizer.tokenize(text, pair) == theirs.tokenize(text, pair)
            assert tokenizer.tokenize([text]) == theirs.tokenize([text])
            words = text.split()
            expected = theirs.tokenize(words, is_split_into_words=True)
            assert tokenizer.tokenize(words, is_split_into_words=True) == expected
            assert tokenizer.tokenize([words], is_split_into_words=True) == expected


def test_rows_above_max_length_stay_long_without_truncation(tokenizer: BertTokenizer) -> None:
    """A tutorial of Hugging Face prints such rows."""
    theirs = transformers.BertTokenizer.from_pretrained(locate_minilm())
    options: dict[str, Any] = {"padding": "max_length", "max_length": 5, "truncation": False}
    for texts in (["a b c d e f", "a"], "a b c d e f", "a"):
        for multiple in (None, 4):
            expected = theirs(texts, pad_to_multiple_of=multiple, **options)
            found = tokenizer(texts, pad_to_multiple_of=multiple, **options)
            assert {name: found[name] for name in found} == {name: expected[name] for name in expected}
            assert repr(found.keys()) == repr(expected.keys())
    whole = tokenizer("a b c d e f", return_tensors="np", **options)["input_ids"]
    assert whole.tolist() == [tokenizer("a b c d e f")["input_ids"]]


def test_words_equal_transformers(tokenizer: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(locate_minilm())
    sentences = [text.split(" ") for text in AWKWARD_TEXTS] + [[], ["New York", "", "embeddings"]]
    for options in ({}, {"truncation": True, "max_length": 7}, {"text_pair": sentences[::-1]}):
        options = {"padding": True, "is_split_into_words": True} | options
        mine, reference = tokenizer(sentences, **EVERYTHING, **options), theirs(sentences, **EVERYTHING, **options)
        assert described(mine) == described(reference)
    for words in (["one", "text"], []):
        mine, reference = tokenizer(words, is_split_into_words=True), theirs(words, is_split_into_words=True)
        assert mine["input_ids"] == reference["input_ids"]


def test_character_positions_equal_transformers(tokenizer: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(locate_minilm())
    for side in ("right", "left"):
        tokenizer.padding_side = theirs.padding_side = side
        batch = (AWKWARD_TEXTS, AWKWARD_TEXTS[::-1])
        options = {"padding": True, "truncation": True, "max_length": 40}
        mine, reference = tokenizer(*batch, **options), theirs(*batch, **options)
        for row, texts in enumerate(zip(*batch, strict=True)):
            for sequence, text in enumerate(texts):
                for char in range(min(len(text), 60)):
                    assert mine.char_to_token(row, char, sequence) == reference.char_to_token(row, char, sequence)
            for token in range(len(mine["input_ids"][0])):
                assert mine.token_to_chars(row, token) == reference.token_to_chars(row, token)
                assert repr(mine.token_to_chars(row, token)) == repr(reference.token_to_chars(row, token))
    tokenizer.padding_side = "right"


def test_decoding_equals_transformers(tokenizer: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(locate_minilm())
    sequences = [theirs.encode(text, truncation=True) for text in AWKWARD_TEXTS + random_texts(50)]
    generator = np.random.default_rng(3)
    sequences += [generator.integers(0, 30522, size=40).tolist() for _ in range(50)]
    for skip in (False, True):
        for clean_up in (None, False, True):
            options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": clean_up}
            expected = [theirs.decode(ids, **options) for ids in sequences]
            assert tokenizer.batch_decode(sequences, **options) == expected
            assert [tokenizer.decode(np.array(ids), **options) for ids in sequences] == expected
        for ids in sequences:
            assert tokenizer.convert_ids_to_tokens(ids, skip) == theirs.convert_ids_to_tokens(ids, skip)
    assert tokenizer.decode(101) == theirs.decode(101)
    assert tokenizer.decode([]) == theirs.decode([]) == ""


def test_vocabulary_equals_transformers(tokenizer: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(locate_minilm())
    names = ["cls", "sep", "pad", "unk", "mask"]
    for name in [f"{name}_token" for name in names] + [f"{name}_token_id" for name in names]:
        assert getattr(tokenizer, name) == getattr(theirs, name) is not None
    for name in ("all_special_tokens", "all_special_ids", "vocab_size", "padding_side", "truncation_side"):
        assert getattr(tokenizer, name) == getattr(theirs, name)
    assert len(tokenizer) == len(theirs) == 30522
    assert tokenizer.vocab == tokenizer.get_vocab() == theirs.vocab
    assert list(tokenizer.vocab.values()) == list(range(30522))
    tokens = ["[CLS]", "hello", "##ing", "no such token", ""]
    assert tokenizer.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    assert tokenizer.convert_tokens_to_ids("hello") == 7592
    assert tokenizer.convert_ids_to_tokens(7592) == "hello"
    for pair in (False, True):
        assert tokenizer.num_special_tokens_to_add(pair) == theirs.num_special_tokens_to_add(pair) == 2 + pair


def test_tutorial_sequences(tokenizer: BertTokenizer) -> None:
    sentence = (
        "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank."
    )
    expected = (
        "101 2044 11065 2769 2013 1996 2924 11632 1010 1996 2924 27307 2001 2464 5645 2006 1996 5900 2314 2924 1012 102"
    )
    assert tokenizer.encode(sentence) == [int(token_id) for token_id in expected.split()]
    listed = (
        "knight lap survey ma ##ow noise billy ##ium shooting guide bedroom priest resistance motor homes sounded giant"
    )
    assert list(tokenizer.vocab.keys())[5000:5020] == [*listed.split(), "##mer", "150", "scenes"]
    assert tokenizer.tokenize("embeddings") == ["em", "##bed", "##ding", "##s"]
    assert tokenizer.encode("this is a test sentence") == [101, 2023, 2003, 1037, 3231, 6251, 102]


def compare_code_points(folder: Path, name: str, code_points: list[int]) -> None:
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    texts = [f"a{chr(code_point)}b {chr(code_point)}" for code_point in code_points]
    compared, mismatches = count_mismatches(ours, theirs, texts, None, {}, batch_size=256)
    REPORT.append(f"tokenizer parity, {name}, one character each: {compared:,} rows compared, {mismatches} mismatches")
    assert (compared, mismatches) == (len(code_points), 0)


ALL_CODE_POINTS = [code_point for code_point in range(0x110000) if not 0xD800 <= code_point < 0xE000]


def test_single_code_points_equal_transformers(folders: Callable[[str], Path]) -> None:
    sample = sorted({*ALL_CODE_POINTS[:0x500], *random.Random(4).sample(ALL_CODE_POINTS, 5000)})
    compare_code_points(folders("uncased"), "uncased", sample)


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", ["uncased", "bert-base-cased"])
def test_every_code_point_equals_transformers(folders: Callable[[str], Path], name: str) -> None:
    compare_code_points(folders(name), name, ALL_CODE_POINTS)


def test_encode_takes_lists_as_transformers_does(tokenizer: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(locate_minilm())
    calls: list[tuple[Any, dict[str, Any]]] = [
        (["a cat", "dog"], {}),
        (["a cat", "dog"], {"return_tensors": "np", "padding": True}),
        (["a", "cat"], {"is_split_into_words": True}),
        ([("a", "cat")], {"add_special_tokens": False}),
    ]
    for text, options in calls:
        np.testing.assert_array_equal(
            np.array(tokenizer.encode(text, **options), dtype=object),
            np.array(theirs.encode(text, **options), dtype=object),
        )
    with pytest.raises(TypeError, match=r"101"):
        tokenizer.encode([101, 102])
