"""Combined layers, vectors of tokens, words and spans, occurrences of a word: against transformers and formulas."""

from __future__ import annotations

import html
import os
import re
import unicodedata
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
import transformers
from tokenizers import AddedToken

import minibert
from minibert import BertModel, BertTokenizer, TokenVectors, combine_layers, embed_tokens, word_occurrences
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.vectors.layers import join_subwords
from tests.support.checkpoints import random_checkpoint
from tests.support.families import SAMPLES, family_folder, train
from tests.support.random_checkpoints import random_model
from tests.support.refusals import Refused, check_refused
from tests.support.report import REPORT
from tests.support.text_data import VARIABLE, naughty_lines, udhr_lines
from tests.support.tokenizer_files import AWKWARD_TEXTS

BANK = "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank."
TEXTS = [BANK, *AWKWARD_TEXTS]
TOLERANCE = 1e-5  # measured: 5.8e-6 on the texts below


def their_states(theirs: Any, encodings: list[Any]) -> list[np.ndarray]:
    """Return all hidden states of each text, [layers, tokens, H]."""
    with torch.no_grad():
        outputs = [theirs(torch.tensor([one["input_ids"]]), output_hidden_states=True) for one in encodings]
    return [torch.cat(output.hidden_states).numpy() for output in outputs]


Embed: TypeAlias = Callable[..., Any]


@pytest.fixture(scope="module")
def embed(minilm: BertModel, tokenizer: BertTokenizer) -> Embed:
    """Return `embed_tokens` of the real model."""
    return partial(embed_tokens, minilm, tokenizer)


# --- layers -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def states() -> list[np.ndarray]:
    return list(np.random.default_rng(0).standard_normal((13, 5, 8)).astype(np.float32))


def test_combined_layers_by_formula(states: list[np.ndarray]) -> None:
    a, b, c, d = states[-4:]
    np.testing.assert_array_equal(combine_layers(states[-4:]), np.concatenate([a, b, c, d], axis=1))
    np.testing.assert_array_equal(combine_layers(states[:-5:-1]), np.concatenate([d, c, b, a], axis=1))
    exact = a.astype(np.float64) + b + c + d
    np.testing.assert_array_equal(combine_layers(states[-4:], "sum"), exact.astype(np.float32))
    np.testing.assert_array_equal(combine_layers(states[-4:], "mean"), (exact / 4).astype(np.float32))
    stacked = torch.stack([torch.from_numpy(state) for state in states])
    np.testing.assert_array_equal(combine_layers(states, "stack"), stacked.numpy())
    np.testing.assert_array_equal(combine_layers(states, "tokens_first"), stacked.permute(1, 0, 2).numpy())
    for how in ("concat", "sum", "mean"):
        alone = combine_layers([a], how)
        np.testing.assert_array_equal(alone, a)
        assert not np.shares_memory(alone, a)
        assert alone.dtype == np.float32


def test_padded_hidden_states_are_combined_too(states: list[np.ndarray]) -> None:
    padded = [state.reshape(1, 5, 8).repeat(2, axis=0) for state in states[:3]]
    shapes = {how: combine_layers(padded, how).shape for how in ("concat", "sum", "stack", "tokens_first")}
    assert shapes == {"concat": (2, 5, 24), "sum": (2, 5, 8), "stack": (3, 2, 5, 8), "tokens_first": (2, 5, 3, 8)}


# --- sub-words --------------------------------------------------------------------------------------------------------


def test_subwords_joined_by_formula(states: list[np.ndarray]) -> None:
    pieces = states[0][:3]
    total = pieces[0].astype(np.float64) + pieces[1] + pieces[2]
    np.testing.assert_array_equal(join_subwords(pieces), (total / 3).astype(np.float32))
    np.testing.assert_array_equal(join_subwords(pieces, "sum"), total.astype(np.float32))
    np.testing.assert_array_equal(join_subwords(pieces, "first"), pieces[0])
    np.testing.assert_array_equal(join_subwords(pieces, "last"), pieces[2])
    np.testing.assert_array_equal(
        join_subwords(pieces, "max"), [max(float(piece[h]) for piece in pieces) for h in range(8)]
    )


# --- tokens and words beside transformers -----------------------------------------------------------------------------


def real_texts(every: int = 1) -> list[str]:
    if not os.environ.get(VARIABLE):
        return TEXTS
    short = [line for line in udhr_lines() if len(line) < 150]
    naughty = [line for line in naughty_lines()[::9] if len(line) < 150]
    return [*TEXTS, *short[:: 12 * every], *naughty[::every]]


all_or_some = pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])


@all_or_some
def test_tokens_and_words_equal_transformers(embed: Embed, their_tokenizer: Any, their_minilm: Any, every: int) -> None:
    """Tokens, ids, offsets and words are equal; vectors of tokens and words differ by no more than two forwards do."""
    texts = real_texts(every)
    layers = [0, 3, -1]
    ours = embed(texts, layers=layers, layer_pooling="tokens_first", truncation="silent")
    apart, num_words, num_tokens = 0.0, 0, 0
    options = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    encodings = [their_tokenizer(text, truncation=True, max_length=512, **options) for text in texts]
    all_states = their_states(their_minilm, encodings)
    for text, embedded, encoded, every_state in zip(texts, ours, encodings, all_states, strict=True):
        assert embedded.tokens == tuple(encoded.tokens())
        assert embedded.ids.tolist() == encoded["input_ids"]
        assert embedded.offsets.tolist() == [list(offset) for offset in encoded["offset_mapping"]]
        assert embedded.word_ids == tuple(encoded.word_ids())
        assert embedded.special.tolist() == [bool(mask) for mask in encoded["special_tokens_mask"]]
        states = every_state[layers].transpose(1, 0, 2)  # [tokens, layers, H]
        apart = max(apart, float(np.abs(embedded.vectors - states).max()))

        words = embedded.words()
        numbers = sorted({word for word in encoded.word_ids() if word is not None} - embedded.cut_words)
        assert len(words) == len(numbers)
        for number, word, offsets, vector in zip(numbers, words.words, words.offsets, words.vectors, strict=True):
            span = encoded.word_to_chars(number)
            assert offsets.tolist() == [span.start, span.end]
            assert word == text[span.start : span.end]
            own = [i for i, w in enumerate(encoded.word_ids()) if w == number]
            apart = max(apart, float(np.abs(vector - states[own].mean(axis=0)).max()))
        num_words, num_tokens = num_words + len(words), num_tokens + len(embedded)
    REPORT.append(
        f"token and word vectors beside transformers: {len(texts)} texts, {num_tokens} tokens, {num_words} words, "
        f"differences of at most {apart:.1e}"
    )
    assert apart < TOLERANCE


@all_or_some
def test_words_given_split(embed: Embed, their_tokenizer: Any, their_minilm: Any, every: int) -> None:
    texts = [text.split() for text in real_texts(every)]
    ours = embed(texts, is_split_into_words=True, truncation="silent")
    apart = 0.0
    options = {"is_split_into_words": True, "return_offsets_mapping": True}
    encodings = [their_tokenizer(given, truncation=True, max_length=512, **options) for given in texts]
    all_states = their_states(their_minilm, encodings)
    for given, embedded, encoded, every_state in zip(texts, ours, encodings, all_states, strict=True):
        assert embedded.ids.tolist() == encoded["input_ids"]
        assert embedded.word_ids == tuple(encoded.word_ids())
        states = every_state[-1]
        words = embedded.words()
        assert words.words == tuple(given)
        for number, vector in enumerate(words.vectors):
            own = [i for i, w in enumerate(encoded.word_ids()) if w == number]
            if not own or number in embedded.cut_words:
                assert np.isnan(vector).all()
                continue
            apart = max(apart, float(np.abs(vector - states[own].mean(axis=0)).max()))
            assert embedded.text[slice(*words.offsets[number])] == given[number]
            in_word = [encoded["offset_mapping"][i] for i in own]
            start = int(words.offsets[number, 0])
            assert (embedded.offsets[own] - start).tolist() == [list(offset) for offset in in_word]
    assert apart < TOLERANCE


def test_a_given_word_without_tokens_has_no_vector_and_keeps_its_row(embed: Embed) -> None:
    given = ["New", "", "\u200b", "York"]
    (text,) = embed([given], is_split_into_words=True)
    words = text.words()
    assert words.words == tuple(given)
    assert np.isnan(words.vectors).any(axis=1).tolist() == [False, True, True, False]
    assert words.tokens == (slice(1, 2), slice(0, 0), slice(0, 0), slice(2, 3))
    np.testing.assert_array_equal(words.vectors[3], text.vectors[2])
    assert text.text == "New  \u200b York"
    np.testing.assert_array_equal(text.span(6, 10), text.vectors[2])


@all_or_some
def test_each_text_has_the_bits_it_has_alone(embed: Embed, every: int) -> None:
    texts = real_texts(every)
    options: dict[str, Any] = {"layers": [-2, 1], "layer_pooling": "sum", "truncation": "silent"}
    together = embed(texts, **options)
    for text, embedded in zip(texts, together, strict=True):
        alone = embed(text, **options)
        np.testing.assert_array_equal(embedded.vectors, alone.vectors)
        assert embedded.tokens == alone.tokens
    backwards = embed(texts[::-1], **options)[::-1]
    for one, other in zip(together, backwards, strict=True):
        np.testing.assert_array_equal(one.vectors, other.vectors)


def test_layers_of_a_text_are_those_of_the_model(embed: Embed, minilm: BertModel, tokenizer: BertTokenizer) -> None:
    states = minilm(**tokenizer(BANK, return_tensors="np")).hidden_states
    kept = embed(BANK, layers=range(7), layer_pooling="tokens_first")
    np.testing.assert_array_equal(kept.vectors, np.stack(states)[:, 0].transpose(1, 0, 2))
    assert kept.layers == tuple(range(7))
    for how, expected in (("concat", 4 * 384), ("sum", 384), ("mean", 384)):
        text = embed(BANK, layers=range(-4, 0), layer_pooling=how)
        assert text.vectors.shape == (22, expected)
        assert text.layers == (3, 4, 5, 6)
        np.testing.assert_array_equal(text.vectors, combine_layers(states[-4:], how)[0])
    np.testing.assert_array_equal(embed(BANK).vectors, states[-1][0])


# --- spans ------------------------------------------------------------------------------------------------------------


def test_spans_hold_the_tokens_of_their_characters(embed: Embed, their_tokenizer: Any) -> None:
    text = "Größe, naïve CAFÉ embeddings 北京"
    embedded = embed(text)
    encoded = their_tokenizer(text)
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            own = sorted({encoded.char_to_token(i) for i in range(start, end)} - {None})
            if not own:
                with pytest.raises(ValueError, match="no token holds any of the characters"):
                    embedded.span_tokens(start, end)
                continue
            assert embedded.span_tokens(start, end) == slice(own[0], own[-1] + 1)
    start = text.index("embeddings")
    pieces = embedded.vectors[embedded.span_tokens(start, start + 10)]
    assert len(pieces) == 4
    for how in ("mean", "first", "last", "max", "sum"):
        np.testing.assert_array_equal(embedded.span(start, start + 10, how), join_subwords(pieces, how))
    np.testing.assert_array_equal(embedded.span(start, start + 10), embedded.words().vectors[4])


# --- truncation -------------------------------------------------------------------------------------------------------


def test_truncation_is_never_silent_unless_asked(embed: Embed, tokenizer: BertTokenizer) -> None:
    texts = ["short", "embeddings " * 200]
    with pytest.warns(UserWarning, match="1 of 2 texts"):
        embedded = embed(texts)
    with pytest.raises(ValueError, match=r"texts\[1\] has 802"):
        embed(texts, truncation="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embed(texts, truncation="silent")
        assert embed(texts[:1], truncation="error")[0].n_truncated == 0
    cut = embedded[1]
    assert (len(cut), cut.n_truncated, "290 more were cut" in repr(cut)) == (512, 290, True)
    assert len(cut.words()) == 127, "510 tokens are 127 words of four tokens, and half a word"
    assert min(cut.cut_words) == 127
    last = 11 * 126
    np.testing.assert_array_equal(cut.span(last, last + 10), cut.words().vectors[126])
    for start, end in ((0, 1403), (2000, 2010)):
        with pytest.raises(ValueError, match="1402"):
            cut.span(start, end)
    assert len(word_occurrences("embeddings", cut, tokenizer)) == 127


def test_a_shorter_limit_truncates_given_words(embed: Embed) -> None:
    given = ["a", "embeddings", "b"]
    (text,) = embed([given], is_split_into_words=True, max_length=5, truncation="silent", layers=0)
    assert text.tokens == ("[CLS]", "a", "em", "##bed", "[SEP]")
    assert np.isnan(text.words().vectors).any(axis=1).tolist() == [False, True, True]


def test_the_other_end_of_a_text_may_be_cut(minilm: BertModel) -> None:
    tokenizer = BertTokenizer.from_pretrained(DEFAULT_MODEL)
    tokenizer.truncation_side = "left"
    text = embed_tokens(minilm, tokenizer, "one embeddings and two", max_length=6, truncation="silent", layers=0)
    assert text.tokens == ("[CLS]", "##ding", "##s", "and", "two", "[SEP]")
    assert text.words().words == ("and", "two")
    np.testing.assert_array_equal(text.span(15, 22), text.vectors[3:5].mean(axis=0, dtype=np.float64).astype("f4"))
    with pytest.raises(ValueError, match="reaches beyond characters 9 to 22"):
        text.span(4, 14)


# --- occurrences ------------------------------------------------------------------------------------------------------


def test_occurrences_and_their_similarities(
    embed: Embed, tokenizer: BertTokenizer, their_minilm: Any, their_tokenizer: Any
) -> None:
    texts = ["The BANK robber", "no such word here", "a river bank, a bank vault", "bankers"]
    embedded = embed(texts, layers=range(7), layer_pooling="tokens_first")
    banks = word_occurrences("bank", embedded, tokenizer)
    assert [place.text_index for place in banks.places] == [0, 2, 2]
    assert [place.text[place.start : place.end] for place in banks.places] == ["BANK", "bank", "bank"]
    contexts = [place.in_context(4) for place in banks.places]
    assert contexts == ["The [BANK] rob...", "...ver [bank], a ...", "..., a [bank] vau..."]
    vectors = []
    for index, token in ((0, 2), (2, 3), (2, 6)):
        encoded = their_tokenizer(texts[index])
        assert encoded.tokens()[token] == "bank"
        vectors.append(their_states(their_minilm, [encoded])[0][:, token])
    similarities = banks.similarities()
    unit = np.stack(vectors, axis=1).astype(np.float64)  # [layers, occurrences, H]
    unit /= np.linalg.norm(unit, axis=2, keepdims=True)
    np.testing.assert_allclose(similarities, unit @ unit.swapaxes(1, 2), rtol=0, atol=1e-6)

    last = word_occurrences("bank", embed(texts), tokenizer)
    np.testing.assert_allclose(last.similarities(), similarities[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("flags", [{}, {"lstrip": True}, {"rstrip": True}, {"special": True}], ids=str)
def test_an_added_token_behind_a_space_is_one_occurrence(flags: dict[str, bool], tmp_path: Path) -> None:
    """RoBERTa writes "Über" behind a space as the token of the space and the added token."""
    folder = family_folder(tmp_path, "roberta", train("roberta", ["the quick fox jumps"] * 9, 300))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.add_tokens([AddedToken("Über", **flags)])
    config = transformers.RobertaConfig(
        vocab_size=len(theirs), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    transformers.RobertaModel(config).save_pretrained(folder)
    theirs.save_pretrained(folder)
    own = BertTokenizer.from_pretrained(folder)
    text = embed_tokens(minibert.load(folder), own, "the Über fox Über, Über")
    found = word_occurrences("Über", text, own)
    assert [text.ids[one.tokens].tolist() for one in found.places] == [[own.vocab["Über"]]] * 3


# The library knows the punctuation of older versions of Unicode than Python does.
VERSIONS = (unicodedata, unicodedata.ucd_3_2_0)
MARKS = [chr(code) for code in range(0x3100) if all(version.category(chr(code))[0] == "P" for version in VERSIONS)]
MARKS += list("$+<=>^`|~（）！")


@pytest.fixture(scope="module", params=[family for family in SAMPLES if family != "esm"])  # it has no words
def find(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return a function: a word and texts -> its places, with the trained tokenizer of a family."""
    folder, texts = tmp_path_factory.mktemp(request.param), ["a bank, no bankers", "".join(MARKS), "中 央 銀 行 法 é"]
    own = BertTokenizer.from_pretrained(
        family_folder(folder / "tokenizer", request.param, train(request.param, texts * 9, 600))
    )
    model = BertModel.from_pretrained(random_model(folder / "model", (8, 1, 2, 8, "gelu"), 2000))

    def find(word: str, *texts: str, **options: Any) -> list[tuple[int, int, int]]:
        embedded = embed_tokens(model, own, list(texts), **options)
        places = word_occurrences(word, embedded, own).places
        for one in places:
            spans = embedded[one.text_index].offsets[one.tokens]
            assert one.text[one.start : one.end] in one.text[spans[0, 0] : spans[-1, 1]]
        return [(one.text_index, one.start, one.end) for one in places]

    return find


def test_a_word_is_found_beside_every_mark(find: Callable[..., Any]) -> None:
    """Unigram's tokenizers split at spaces only, and have other tokens for a word behind a mark than behind a space."""
    texts = [f"a {m}bank{m} bank{m}{m}bank bank{m}s a{m}bank {m}bank {m} bank." for m in MARKS]
    expected = [(i, m.start(), m.end()) for i, text in enumerate(texts) for m in re.finditer("bank", text)]
    assert find("bank", *texts) == expected


@pytest.mark.parametrize(
    ("word", "text", "places"),
    [
        ("bank", "bankers embank bank2 2bank [bank]", [28]),
        ("a bank", "a  bank, a (bank) a-bank a bank", [0, 25]),
        ("a-bank", "a-bank a bank", [0]),
        ("銀行", "中央銀行法 銀行, 行銀", [2, 6]),
        ("é", "é, (é) éa", [0, 4]),
    ],
)
def test_a_word_is_found_as_a_whole_word_only(
    find: Callable[..., Any], word: str, text: str, places: list[int]
) -> None:
    assert [start for _, start, _ in find(word, text)] == places


def test_a_word_is_found_in_what_was_kept_of_a_text(find: Callable[..., Any]) -> None:
    """For Unigram the whole text is one word, which was cut; a word whose last token may be missing does not count."""
    places = find("銀行", "銀行" * 90, max_length=40, truncation="silent")
    assert 3 <= len(places) <= 19
    assert places == [(0, start, start + 2) for start in range(0, 2 * len(places), 2)]


def test_a_word_in_pieces_is_joined_as_asked(embed: Embed, tokenizer: BertTokenizer) -> None:
    text = embed("EMBEDDINGS, embedding, embeddings")
    for how in ("mean", "first", "last", "max", "sum"):
        found = word_occurrences("embeddings", text, tokenizer, subwords=how)
        assert len(found) == 2, "an embedding is another word"
        for place, vector in zip(found.places, found.vectors, strict=True):
            np.testing.assert_array_equal(vector, join_subwords(text.vectors[place.tokens], how))


# --- notebooks --------------------------------------------------------------------------------------------------------


def test_tables_for_notebooks_are_escaped_and_short(embed: Embed, tokenizer: BertTokenizer) -> None:
    hostile = "<script>alert('x')</script> & \"more\""
    text = embed(hostile)
    inputs = tokenizer([hostile, "a"], padding=True, return_tensors="np")
    long = embed("a " * 500)
    for shown in (text, inputs, inputs.encodings[0], long):
        table = shown._repr_html_()
        assert not re.findall(r"<(?!/?(div|p|code|table|thead|tbody|tr|th|td)\b)", table), "only a table is allowed"
        assert table.count("<td>") == table.count("</td>") > 0
        assert len(repr(shown)) < 200
        assert html.escape(repr(shown).split("(")[0]) in table
    assert "<td>&lt;</td>" in text._repr_html_()
    assert long._repr_html_().count("<tr>") == 41


# --- refused arguments ------------------------------------------------------------------------------------------------


def test_bad_arguments(embed: Embed) -> None:
    table: Refused = {
        ("layers", ValueError): (7, [-8], [], [6, -1]),
        ("layers", TypeError): ("-1", 1.0, True, [0, None]),
        ("layer_pooling", ValueError): ("median", "stack", None),
        ("truncation", ValueError): ("split", True),
        ("max_length", ValueError): (1, 513),
        ("max_length", TypeError): ("9",),
        ("texts", TypeError): (5, None, b"a", ["a", None], ["a", ["b"]]),
        ("texts", ValueError): (["a", "b\ud800"],),
    }
    check_refused(embed, {"texts": "a text"}, table)
    check_refused(embed, {"is_split_into_words": True}, {("texts", TypeError): (["a", "b"], "a b", [["a", 5]])})


@pytest.fixture(scope="module")
def text(embed: Embed) -> TokenVectors:
    return embed("one bank 🙂")


def test_bad_spans(text: TokenVectors) -> None:
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        *((start, end, ValueError, "start=|end=") for start, end in ((0, 11), (-1, 3), (3, 3), (5, 2), (10, 10))),
        (3, 4, ValueError, "' '"),
        (0.0, 3, TypeError, "start="),
    ]
    for start, end, error, match in cases:
        with pytest.raises(error, match=match):
            text.span(start, end)


def test_bad_words(embed: Embed, text: TokenVectors, tokenizer: BertTokenizer, minilm: BertModel) -> None:
    other = embed("one", layers=0)
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        *((word, text, ValueError, re.escape(repr(word))) for word in ("money", "[CLS]", "", " ")),
        ("one", [], ValueError, "'one'"),
        ("🐈", text, ValueError, "vocabulary"),
        (5, text, TypeError, "word"),
        *(("one", wrong, TypeError, "texts") for wrong in ("one bank", ["one bank"])),
        ("one", [text, other], ValueError, "first"),
    ]
    for word, texts, error, match in cases:
        with pytest.raises(error, match=match):
            word_occurrences(word, texts, tokenizer)
    with pytest.raises(TypeError, match="BertTokenizer"):
        word_occurrences("one", text, minilm)  # type: ignore[arg-type]
    for call in (
        text.words,
        lambda how: text.span(0, 3, how),
        lambda how: word_occurrences("one", text, tokenizer, subwords=how),
    ):
        with pytest.raises(ValueError, match="subwords='median'"):
            call("median")
    with pytest.raises(ValueError, match="tokens"):
        join_subwords(np.zeros((0, 4), dtype=np.float32))


def test_bad_hidden_states(minilm: BertModel, tokenizer: BertTokenizer, states: list[np.ndarray]) -> None:
    kept = minilm(**tokenizer("a text", return_tensors="np"), output_hidden_states=[1]).hidden_states
    with pytest.raises(ValueError, match="how='median'"):
        combine_layers(states, "median")
    for wrong in ([], kept, [states[0], states[1][:2]]):
        with pytest.raises(ValueError, match="hidden_states"):
            combine_layers(wrong, "sum")
    for wrong in (3, [[1.0]], [states[0][0]]):
        with pytest.raises(TypeError, match=r"hidden_states|shape|iterable"):
            combine_layers(wrong, "sum")  # type: ignore[arg-type]


def test_a_tokenizer_of_another_model_is_refused(minilm: BertModel, tokenizer: BertTokenizer, tmp_path: Path) -> None:
    """Kernels do not check ids, so an id beyond the table must not reach them."""
    small = BertModel.from_pretrained(random_checkpoint(tmp_path))
    with pytest.raises(ValueError, match="tokenizer"):
        embed_tokens(small, tokenizer, ["", "bank"], max_length=9)
    with pytest.raises(TypeError, match="BertTokenizer"):
        embed_tokens(tokenizer, minilm, "swapped")  # type: ignore[call-overload]
    assert embed_tokens(minilm, tokenizer, []) == []
    assert embed_tokens(minilm, tokenizer, np.array(["a", "b"]))[1].text == "b"
