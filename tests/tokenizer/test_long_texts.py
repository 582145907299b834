"""Long texts are tokenized in pieces: the tokens equal those of the whole text, and no more is read than needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert import BertTokenizer
from minibert.tokenizer import raw_encoder
from minibert.tokenizer.encodings import Encoding, JoinedEncoding
from tests.support.checkpoints import SPECIAL_TOKENS, VOCABULARY
from tests.support.damage import both, sampled

WHOLE = 10**9  # characters: no text is cut

# Spaces of Python, Rust, BERT and Unicode; removed characters; accents; punctuation; Chinese; words and added tokens.
PARTS = (
    *(" ", "\n", "\r\n", "\t", "\x0b", "\x1c", "\x85", "\xa0", "\u2028", "\u3000", "\u200b", "\ufeff", "\x00"),
    *("\u0301", " \u0301", "!\u0338", "_", "!", "\u3002", "\u5317", "Café", "x" * 120, "the cat sat", "foobar bar"),
    *("[MASK]", " [SEP] ", "foo", "bar", "!?", "<X>"),
)
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=5), min_size=8, max_size=60).map("".join)

TOKENIZERS: dict[str, dict[str, Any]] = {
    "lower": {},
    "cased": {"do_lower_case": False},
    "accents": {"strip_accents": False, "tokenize_chinese_chars": False},
    "added": {
        "added": [
            *({"content": "<X>"}, {"content": "foo", "normalized": True}, {"content": "Café", "normalized": True}),
            *({"content": "bar", "single_word": True}, {"content": "!?"}, {"content": "\u5317", "normalized": False}),
        ]
    },
}


def tokenizer_of(
    folder: Path, vocabulary: Sequence[str] = VOCABULARY, added: Sequence[dict[str, Any]] = (), **options: Any
) -> BertTokenizer:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary), encoding="utf-8")
    tokens = {str(len(vocabulary) + i): token for i, token in enumerate(added)}
    tokens |= {str(i): {"content": token, "special": True} for i, token in enumerate(SPECIAL_TOKENS)} if added else {}
    options |= {"added_tokens_decoder": tokens} if added else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return BertTokenizer.from_pretrained(folder)


def calls_of(tokenizer: BertTokenizer, text: str) -> Iterator[list[Encoding]]:
    """Tokenize a text in every possible way."""
    yield tokenizer.encodings([text], truncation=False)
    yield tokenizer.encodings(["a cat", text, "a dog"], truncation=False, add_special_tokens=False)
    for length in (3, 20):
        for side in ("right", "left"):
            yield tokenizer.encodings([text, "a"], max_length=length, truncation_side=side)
            yield tokenizer.encodings([text], max_length=length, truncation_side=side, add_special_tokens=False)
    yield list(tokenizer(text, max_length=30, truncation=True, stride=7, return_overflowing_tokens=True).encodings)
    yield [one for row in tokenizer.windows([text], max_length=40, stride=5, prompt="a cat: ") for one in row]


def check(tokenizer: BertTokenizer, text: str, length: int) -> list[Encoding]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_encoder, "LONG_TEXT", WHOLE)
        expected = [one for call in calls_of(tokenizer, text) for one in call]
        patch.setattr(raw_encoder, "LONG_TEXT", length)
        found = [one for call in calls_of(tokenizer, text) for one in call]
    for one, other in zip(found, expected, strict=True):
        for name in ("ids", "token_types", "special_tokens_mask", "offsets"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        for name in ("tokens", "word_ids", "sequence_ids", "n_truncated"):
            assert getattr(one, name) == getattr(other, name), name
    return found


@both(40)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_have_the_tokens_of_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory, name: str, most: int
) -> None:
    tokenizer = tokenizer_of(tmp_path_factory.mktemp(name), **TOKENIZERS[name])

    @sampled(most)
    @given(text=TEXTS, length=st.sampled_from([1, 4, 20, 64]))
    def compare(text: str, length: int) -> None:
        check(tokenizer, text, length)

    compare()
    assert isinstance(check(tokenizer, "a cat " * 40, 20)[0]._raw, JoinedEncoding)


@both(15)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_part_of_a_text_or_a_pair_has_the_tokens_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, name: str, side: str, most: int
) -> None:
    """With `exact=False` a part is read first, then eight times as many characters; here one for each token."""
    tokenizer = tokenizer_of(tmp_path_factory.mktemp(name), **TOKENIZERS[name])
    options: dict[str, Any] = {"truncation_side": side}

    @sampled(most)
    @given(text=TEXTS, other=TEXTS | st.just("a cat"), length=st.integers(3, 40), read=st.sampled_from([1, 8]))
    def compare(text: str, other: str, length: int, read: int) -> None:
        for pairs in (None, [text, other, text]):
            for strategy in ("longest_first", "only_first", "only_second")[: 1 if pairs is None else 3]:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(raw_encoder, "_CHARACTERS_PER_TOKEN", read)
                    patch.setattr(raw_encoder, "LONG_TEXT", 64)
                    found, expected = (
                        outcome_of(tokenizer, [other, text, text], pairs, length, strategy, exact=exact, **options)
                        for exact in (False, True)
                    )
                assert found == expected

    compare()


def outcome_of(
    tokenizer: BertTokenizer, texts: list[str], pairs: list[str] | None, length: int, strategy: str, **options: Any
) -> Any:
    try:
        made = tokenizer.encodings(texts, pairs, max_length=length, truncation=strategy, **options)
    except ValueError as error:
        return str(error)
    return [(e.ids.tolist(), e.token_types.tolist(), e.offsets.tolist(), e.n_truncated > 0) for e in made]


@pytest.mark.parametrize(
    ("added", "file"),
    [
        ([{"content": "a b", "special": False}], None),
        ([{"content": "X", "rstrip": True}], None),
        ([{"content": "X", "lstrip": True}], None),
        ([{"content": "\u5317", "normalized": True}], None),  # the normalizer puts spaces around it
        ([], {"pre_tokenizer": {"type": "Whitespace"}}),
        ([], {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}}),
        ([], {"normalizer": None}),
        ([], {"post_processor": {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2],
                                 "trim_offsets": True, "add_prefix_space": False}}),
    ],
)  # fmt: skip
def test_where_pieces_might_differ_nothing_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: list[dict[str, Any]], file: dict[str, Any] | None
) -> None:
    tokenizer = tokenizer_of(tmp_path / "model", added=added)
    if file is not None:
        changed = json.loads(tokenizer._tokenizer.to_str()) | file
        (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(changed))
        (tmp_path / "model" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        tokenizer = BertTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer._raw.around is None
    assert tokenizer.num_read("a cat " * 99, max_length=1) == 594
    monkeypatch.setattr(raw_encoder, "LONG_TEXT", 20)
    encoding = tokenizer.encodings(["a b X " * 50], truncation=False)[0]
    assert not isinstance(encoding._raw, JoinedEncoding)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the end of each piece that is read; a piece has at most 100 characters."""
    ends: list[int] = []
    pieces = raw_encoder._pieces

    def counted(*arguments: Any) -> Iterator[tuple[int, str]]:
        for first, piece in pieces(*arguments):
            ends.append(first + len(piece))
            yield first, piece

    monkeypatch.setattr(raw_encoder, "LONG_TEXT", 100)
    monkeypatch.setattr(raw_encoder, "_pieces", counted)
    return ends


def test_a_text_that_is_cut_is_read_no_further_than_needed(tmp_path: Path, read: list[int]) -> None:
    tokenizer = tokenizer_of(tmp_path / "model")
    text = "a cat " * 1000
    exact = tokenizer.encodings([text], max_length=60)[0]
    assert (read[-1], exact.n_truncated) == (6000, 1942)
    read.clear()
    quick = tokenizer.encodings([text], max_length=60, exact=False)[0]
    assert read[-1] < 600
    assert quick.n_truncated >= 1
    np.testing.assert_array_equal(quick.ids, exact.ids)
    short = tokenizer.encodings(["a cat " * 20], max_length=60, exact=False)[0]
    assert (len(short), short.n_truncated) == (42, 0)
    with pytest.raises(ValueError, match=r"text\[1\] holds half a character"):
        tokenizer.encodings(["a", text + "\ud800"], max_length=60, exact=False)


def test_what_cannot_be_cut_is_refused_before_it_takes_all_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BertTokenizer, "most_characters", 2**15 - 1)
    whole, plain = tokenizer_of(tmp_path / "whole", added=[{"content": "a b"}]), tokenizer_of(tmp_path / "plain")
    text = "a cat " * 2**13
    refused: list[Callable[[], Any]] = [
        lambda: whole.encodings(["a", text]),
        lambda: plain.encodings(["a", "x" * 2**15]),
        lambda: plain(["a", text], ["b", "b"], truncation=True, max_length=9),
        lambda: plain([["a"], text.split()], is_split_into_words=True, truncation=True, max_length=9),
    ]
    for call in refused:
        with pytest.raises(ValueError, match=r"text 1 .*\d\d,\d\d\d characters"):
            call()
    for tokenizer, accepted in ((whole, text[:30_000]), (plain, text)):
        assert len(tokenizer.encodings([accepted], truncation=False)[0]) > 10_000
