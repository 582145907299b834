"""Ids, offsets, windows and words equal those of transformers, on made and on real texts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.transformers_classes import INSTEAD
from tests.support.damage import both, sampled
from tests.support.report import REPORT
from tests.support.text_data import naughty_lines, needs_data, tokenization_cases, udhr_lines
from tests.support.tokenizer_files import AWKWARD_TEXTS, EVERYTHING, REAL_VOCABULARIES

PIECES = ["the ", "Word", " ", "ing", "[MASK]", "é", "的", ".", "\u0301", "[SEP] "]
MADE = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=40).map("".join)
TEXTS = st.sampled_from(AWKWARD_TEXTS) | MADE
# So short that tokens are left for the other text, which alone is cut.
SHORT = st.sampled_from(["", "a", "Is it?", "?"])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "padding": st.sampled_from(["longest", "max_length", False]),
        "truncation": st.just(True),
        "max_length": st.sampled_from([8, 16, 48]),
        "stride": st.integers(0, 1),
        "return_overflowing_tokens": st.just(True),
        "add_special_tokens": st.booleans(),
        "pad_to_multiple_of": st.sampled_from([4, 8]),
        "padding_side": st.just("left"),
        "truncation_side": st.just("left"),
    },
)


@st.composite
def batches(draw: Any) -> tuple[list[str], list[str] | None, dict[str, Any]]:
    """Texts, the second texts of pairs, and options that both libraries take."""
    texts, options = draw(st.lists(TEXTS, min_size=1, max_size=4)), draw(OPTIONS)
    kind = draw(st.sampled_from(["single", "pair", "only_first", "only_second"]))
    others = [draw(TEXTS if kind == "pair" else SHORT) for _ in texts]
    if kind.startswith("only") and "truncation" in options:
        options["truncation"] = kind
    if kind == "only_second":
        texts, others = others, texts
    return texts, None if kind == "single" else others, options


def described(batch: Any) -> list[tuple[Any, ...]]:
    """Return everything that a batch tells about each of its rows, and the names of its arrays in their order."""
    names, values = tuple(batch), list(batch.values())
    about = (batch.tokens, batch.word_ids, batch.sequence_ids)
    return [(names, *(value[i] for value in values), *(tell(i) for tell in about)) for i in range(len(values[0]))]


def compare(ours: BertTokenizer, theirs: Any, texts: list[str], pairs: list[str] | None = None, **options: Any) -> int:
    """Compare the rows of texts or pairs, 32 texts at a time; return their number."""
    options = {"padding": True} | EVERYTHING | options
    ours.truncation_side = theirs.truncation_side = options.pop("truncation_side", "right")
    compared = 0
    try:
        for start in range(0, len(texts), 32):
            batch = (texts[start : start + 32], pairs and pairs[start : start + 32])
            rows, expected = described(ours(*batch, **options)), described(theirs(*batch, **options))
            for row, other in itertools.zip_longest(rows, expected):
                assert row == other
            compared += len(expected)
    finally:
        ours.truncation_side = theirs.truncation_side = "right"
    return compared


def load(folder: Path) -> tuple[BertTokenizer, Any]:
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    assert ours.get_vocab() == theirs.get_vocab()
    return ours, theirs


@both(80)
@pytest.mark.parametrize("name", ["uncased", "uncased tokenizer.json"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_made_texts(folders: Callable[[str], Path], name: str, most: int) -> None:
    ours, theirs = load(folders(name))

    @sampled(most)
    @given(batches())
    def run(batch: tuple[list[str], list[str] | None, dict[str, Any]]) -> None:
        texts, pairs, options = batch
        compare(ours, theirs, texts, pairs, **options)

    run()
    options = {"truncation": True, "max_length": 40}
    assert compare(ours, theirs, AWKWARD_TEXTS, AWKWARD_TEXTS[::-1], **options) == len(AWKWARD_TEXTS)


@needs_data
@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", REAL_VOCABULARIES)
def test_real_texts(folders: Callable[[str], Path], name: str, every: int) -> None:
    """The default run has a twentieth of the texts, other ones for each vocabulary."""
    ours, theirs = load(folders(name))
    texts = real_texts()[REAL_VOCABULARIES.index(name) % every :: every]
    windows = {"truncation": True, "max_length": 16, "stride": 5, "return_overflowing_tokens": True}
    compared = compare(ours, theirs, texts)
    for first, second, options in (
        (texts, None, windows | {"truncation_side": "left"}),
        (texts, None, {"truncation": True, "max_length": 48, "padding": "max_length", "padding_side": "left"}),
        (texts, texts[::-1], {"truncation": True, "max_length": 33}),
        (texts, ["Is it?"] * len(texts), windows | {"truncation": "only_first"}),
    ):
        compared += compare(ours, theirs, first, second, **options)
    REPORT.append(f"tokenizer parity, {name}, 1/{every} of the texts: {compared:,} rows compared, 0 mismatches")


def real_texts() -> list[str]:
    assert len(udhr_lines()) == 4101
    assert len(naughty_lines()) > 500
    # Sorted by length, because transformers is slow if a batch is mostly padding.
    return sorted([*udhr_lines(), *naughty_lines(), *case_texts()], key=len)


def case_texts() -> Iterator[str]:
    for case in tokenization_cases():
        text = case.get("text", [])
        yield from [text] if isinstance(text, str) else text


@pytest.mark.parametrize("every", [300, pytest.param(1, marks=pytest.mark.slow)])
def test_single_characters(folders: Callable[[str], Path], every: int) -> None:
    characters = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = [f"a{chr(code)}b {chr(code)}" for code in sorted({*characters[:0x500], *characters[::every]})]
    assert compare(*load(folders("uncased")), texts) == len(texts)


def test_single_texts_equal_transformers(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    for text, pair in zip(AWKWARD_TEXTS, reversed(AWKWARD_TEXTS), strict=True):
        words = text.split()
        calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
            ("__call__", (text,), {"return_offsets_mapping": True, "return_special_tokens_mask": True}),
            ("tokenize", (text,), {}),
            *(("encode", (text,), options) for options in ({}, {"add_special_tokens": False}, {"max_length": 6})),
        ]
        if pair:  # transformers drops an empty one
            calls += [("encode", (text, pair), {}), ("tokenize", (text, pair), {}), ("tokenize", ([text],), {})]
        if pair and words:
            calls += [("tokenize", (one,), {"is_split_into_words": True}) for one in (words, [words])]
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
            assert {**found} == {**expected}
            assert repr(found.keys()) == repr(expected.keys())
    whole = tokenizer("a b c d e f", return_tensors="np", **options)["input_ids"]
    assert whole.tolist() == [tokenizer("a b c d e f")["input_ids"]]


def test_words_equal_transformers(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    sentences: Any = [text.split(" ") for text in AWKWARD_TEXTS] + [[], ["New York", "", "embeddings"]]
    for options in ({}, {"truncation": True, "max_length": 7}):
        for pairs in (None, sentences[::-1]):
            compare(tokenizer, their_tokenizer, sentences, pairs, **options, is_split_into_words=True)
    for words in (["one", "text"], []):
        mine, reference = (one(words, is_split_into_words=True) for one in (tokenizer, their_tokenizer))
        assert mine["input_ids"] == reference["input_ids"]


def positions(batch: Any, row: int, pairs: bool) -> list[Any]:
    """Return the answers of all methods that map tokens, words and characters of a row to each other."""
    answers: list[Any] = []
    for token in range(len(batch["input_ids"][row])):
        answers += [getattr(batch, f"token_to_{to}")(row, token) for to in ("sequence", "word", "chars")]
    for sequence in range(1 + pairs):
        for char in range(45):
            answers += [getattr(batch, f"char_to_{to}")(row, char, sequence) for to in ("token", "word")]
        for word in range(16):
            answers.append(batch.word_to_tokens(row, word, sequence_index=sequence))
            if answers[-1] is not None:  # with None, transformers has no characters, and raises
                answers.append(batch.word_to_chars(row, word, sequence))
    return [repr(answer) for answer in answers]


@pytest.mark.parametrize(
    "options",
    [
        {"padding": True, "truncation": True, "max_length": 40, "padding_side": "left"},
        {"padding": "max_length", "truncation": True, "max_length": 24},
        {"truncation": "only_first", "max_length": 30, "stride": 3, "return_overflowing_tokens": True},
        {"add_special_tokens": False},
        {"is_split_into_words": True},
    ],
    ids=str,
)
def test_positions_equal_transformers(tokenizer: BertTokenizer, their_tokenizer: Any, options: dict[str, Any]) -> None:
    texts: list[Any] = [text for text in AWKWARD_TEXTS if len(text) < 200]
    if "is_split_into_words" in options:
        texts = [text.split(" ") for text in texts]
    others = ["a cat"] * len(texts) if "stride" in options else texts[::-1]
    for pairs in (None, others):
        ours, theirs = tokenizer(texts, pairs, **options), their_tokenizer(texts, pairs, **options)
        assert len(ours.encodings) == len(theirs["input_ids"])
        for row in range(len(ours.encodings)):
            assert positions(ours, row, pairs is not None) == positions(theirs, row, pairs is not None)
    ours, theirs = tokenizer("a cat's"), their_tokenizer("a cat's")  # the row may be left out
    for name in ("char_to_token", "char_to_word", "token_to_chars", "token_to_word", "token_to_sequence"):
        assert [getattr(ours, name)(i) for i in range(6)] == [getattr(theirs, name)(i) for i in range(6)]
    assert ours.word_to_tokens(1) == theirs.word_to_tokens(1) == (2, 3)
    assert ours.word_to_chars(1) == theirs.word_to_chars(1) == (2, 5)
    assert ours.word_to_chars(99) is None


PADDED = ["a cat", "the longer text is this one", "x"]


@pytest.mark.parametrize("kind", ["np", "pt"])
@pytest.mark.parametrize(
    "options", [{}, {"pad_to_multiple_of": 8}, {"padding": "max_length", "max_length": 12}], ids=str
)
def test_rows_are_collated_as_in_transformers(
    tokenizer: BertTokenizer, their_tokenizer: Any, kind: str, options: dict[str, Any]
) -> None:
    for collator in (transformers.DataCollatorWithPadding, transformers.DataCollatorForTokenClassification):
        batches = []
        for one in (tokenizer, their_tokenizer):
            rows = [{**one(text, return_special_tokens_mask=True), "labels": [0]} for text in PADDED]
            if collator is transformers.DataCollatorWithPadding:
                rows = [row | {"labels": number} for number, row in enumerate(rows)]
            batches.append(collator(one, return_tensors=kind, **options)(rows))
        ours, theirs = batches
        assert list(ours) == list(theirs)
        for name, value in theirs.items():
            assert type(ours[name]) is type(value)
            np.testing.assert_array_equal(ours[name], value)


def test_pad_equals_transformers(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    rows: list[Callable[[Any], Any]] = [
        lambda one: one(PADDED, return_special_tokens_mask=True),
        lambda one: one("a cat"),
        lambda one: {"input_ids": one(PADDED)["input_ids"]},
        lambda one: [{"input_ids": ids, "number": 3} for ids in one(PADDED)["input_ids"]],
        lambda one: one("a cat", return_tensors="np"),
    ]
    for options in ({}, {"padding": "max_length", "max_length": 9}, {"padding_side": "left", "pad_to_multiple_of": 4}):
        for make in rows:
            ours, theirs = (one.pad(make(one), **options) for one in (tokenizer, their_tokenizer))
            assert list(ours) == list(theirs)
            for name, value in theirs.items():
                np.testing.assert_array_equal(ours[name], value)
    for wrong in ([], [{}], {"ids": [1]}, {"input_ids": [[0.5]]}, {"input_ids": [[1], [2, [3]]]}):
        with pytest.raises(ValueError, match="expected input_ids"):
            tokenizer.pad(wrong)


def test_names_of_transformers(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    """What is not here says what to use instead."""
    for name in ("max_len_single_sentence", "max_len_sentences_pair", "added_tokens_encoder"):
        assert getattr(tokenizer, name) == getattr(their_tokenizer, name)
    assert tokenizer.get_added_vocab() == their_tokenizer.get_added_vocab()
    ids = their_tokenizer.encode("a [MASK] cat", "x [PAD]")
    options = {"already_has_special_tokens": True}
    expected = their_tokenizer.get_special_tokens_mask(ids, **options)
    assert tokenizer.get_special_tokens_mask(ids, **options) == expected
    for arguments in ((ids,), (ids, ids, True)):
        with pytest.raises(ValueError, match="return_special_tokens_mask=True"):
            tokenizer.get_special_tokens_mask(*arguments)
    with pytest.raises(ValueError, match="call of their own"):
        tokenizer("a", text_target="b")
    for name, remedy in INSTEAD.items():
        with pytest.raises(AttributeError, match=f"BertTokenizer has no attribute '{name}': ") as raised:
            getattr(tokenizer, name)
        assert remedy in str(raised.value)
    assert not hasattr(tokenizer, "deprecation_warnings")


def test_decoding_equals_transformers(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    sequences = [their_tokenizer.encode(text, truncation=True) for text in AWKWARD_TEXTS]
    sequences += np.random.default_rng(3).integers(0, 30522, size=(50, 40)).tolist()
    for skip, clean_up in itertools.product((False, True), (None, False, True)):
        options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": clean_up}
        expected = [their_tokenizer.decode(ids, **options) for ids in sequences]
        assert tokenizer.batch_decode(sequences, **options) == expected
        assert [tokenizer.decode(np.array(ids), **options) for ids in sequences] == expected
        for ids in sequences:
            assert tokenizer.convert_ids_to_tokens(ids, skip) == their_tokenizer.convert_ids_to_tokens(ids, skip)
    assert tokenizer.decode(101) == their_tokenizer.decode(101)
    assert tokenizer.decode([]) == their_tokenizer.decode([]) == ""


def test_encode_takes_lists_as_transformers_does(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    calls: list[tuple[Any, dict[str, Any]]] = [
        (["a cat", "dog"], {}),
        (["a cat", "dog"], {"return_tensors": "np", "padding": True}),
        (["a", "cat"], {"is_split_into_words": True}),
        ([("a", "cat")], {"add_special_tokens": False}),
    ]
    for text, options in calls:
        found, expected = (np.array(one.encode(text, **options), object) for one in (tokenizer, their_tokenizer))
        np.testing.assert_array_equal(found, expected)
