"""The call sequences of well-known tutorials, on the real MiniLM weights beside transformers.

The tests of the values that the authors printed need bert-base-uncased from the hub, so they are marked `network`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from minibert import BertModel, BertTokenizer, combine_layers, embed_tokens, word_occurrences
from minibert.vectors.plot import plot_hidden_values
from tests.support.report import REPORT

SENTENCE = "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank."
IDS = [
    *(101, 2044, 11065, 2769, 2013, 1996, 2924, 11632, 1010, 1996, 2924),
    *(27307, 2001, 2464, 5645, 2006, 1996, 5900, 2314, 2924, 1012, 102),
]
VAULT, ROBBER, RIVER = 6, 10, 19  # the three banks
TEST_SENTENCE = "this is a test sentence"
TEST_IDS = [101, 2023, 2003, 1037, 3231, 6251, 102]

# The measured differences are at most 2.5e-6 for one hidden state, and 7.2e-6 for the sum of four.
TOLERANCE = 1e-5

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def assert_close(ours: np.ndarray, other: Any, tolerance: float = TOLERANCE) -> None:
    assert isinstance(ours, np.ndarray)
    np.testing.assert_allclose(ours, np.asarray(other), rtol=0, atol=tolerance)


# --- the words --------------------------------------------------------------------------------------------------------


def test_the_sentence_and_its_ids(tokenizer: BertTokenizer, their_tokenizer: Any) -> None:
    assert tokenizer(SENTENCE)["input_ids"] == IDS
    assert their_tokenizer(SENTENCE)["input_ids"] == IDS
    by_hand = tokenizer.convert_tokens_to_ids(["[CLS]", *tokenizer.tokenize(SENTENCE), "[SEP]"])
    assert by_hand == IDS
    assert [i for i, token in enumerate(tokenizer.convert_ids_to_tokens(IDS)) if token == "bank"] == [6, 10, 19]


def test_a_word_in_pieces(tokenizer: BertTokenizer) -> None:
    tokens = tokenizer.tokenize("Here is the sentence I want embeddings for.")
    assert tokens == ["here", "is", "the", "sentence", "i", "want", "em", "##bed", "##ding", "##s", "for", "."]


def test_the_vocabulary_is_in_the_order_of_its_ids(tokenizer: BertTokenizer) -> None:
    assert list(tokenizer.vocab.keys())[5000:5020] == [
        *("knight", "lap", "survey", "ma", "##ow", "noise", "billy", "##ium", "shooting", "guide"),
        *("bedroom", "priest", "resistance", "motor", "homes", "sounded", "giant", "##mer", "150", "scenes"),
    ]


# --- T1 and T2: word vectors from the last four layers ----------------------------------------------------------------


@pytest.mark.parametrize("token_type", [1, 0], ids=["T1: token types 1", "T2: token types 0"])
def test_word_and_sentence_vectors(
    tokenizer: BertTokenizer, minilm: BertModel, their_tokenizer: Any, their_minilm: Any, token_type: int
) -> None:
    inputs = tokenizer(SENTENCE, return_tensors="np")
    token_types = np.full_like(inputs["input_ids"], token_type)
    output = minilm(inputs["input_ids"], token_type_ids=token_types)

    their_inputs = their_tokenizer(SENTENCE, return_tensors="pt")
    with torch.no_grad():
        expected = their_minilm(
            their_inputs["input_ids"],
            token_type_ids=torch.full_like(their_inputs["input_ids"], token_type),
            output_hidden_states=True,
        )

    # [layers, batch, tokens, features] -> [tokens, layers, features]
    assert len(output.hidden_states) == len(output[2]) == 7
    states = np.stack(output.hidden_states).squeeze(1).transpose(1, 0, 2)
    their_states = torch.stack(expected[2]).squeeze(1).permute(1, 0, 2).numpy()
    assert states.shape == (22, 7, 384)
    assert_close(states, their_states)

    concatenated = np.stack([np.concatenate(token[-4:][::-1]) for token in states])
    assert concatenated.shape == (22, 4 * 384)
    assert_close(concatenated, [np.concatenate([t[-1], t[-2], t[-3], t[-4]]) for t in their_states])
    summed = states[:, -4:].sum(axis=1)
    assert summed.shape == (22, 384)
    assert_close(summed, their_states[:, -4:].sum(axis=1), 3 * TOLERANCE)
    sentence = output.hidden_states[-2][0].mean(axis=0)
    assert sentence.shape == (384,)
    assert_close(sentence, expected.hidden_states[-2][0].mean(dim=0))

    same, different = cosine(summed[ROBBER], summed[VAULT]), cosine(summed[ROBBER], summed[RIVER])
    their_sum = their_states[:, -4:].sum(axis=1)
    assert same == pytest.approx(cosine(their_sum[ROBBER], their_sum[VAULT]), abs=1e-6)
    assert different == pytest.approx(cosine(their_sum[ROBBER], their_sum[RIVER]), abs=1e-6)
    assert same > different + 0.03, "the two senses of bank must differ"
    REPORT.append(
        f"'bank' in MiniLM, sum of the last four layers, token types {token_type}: "
        f"robber/vault {same:.4f}, robber/river {different:.4f}"
    )


def test_the_tutorial_with_the_calls_of_this_library(
    tokenizer: BertTokenizer, minilm: BertModel, their_tokenizer: Any, their_minilm: Any
) -> None:
    """Each step of the tutorial (regroup, concatenate, sum, average, plot) is one call instead of a loop."""
    with torch.no_grad():
        inputs = their_tokenizer(SENTENCE, return_tensors="pt")
        expected = torch.stack(their_minilm(**inputs, output_hidden_states=True).hidden_states).squeeze(1)
    states = minilm(**tokenizer(SENTENCE, return_tensors="np")).hidden_states
    assert_close(combine_layers(states, "stack"), expected.unsqueeze(1))
    regrouped = embed_tokens(minilm, tokenizer, SENTENCE, layers=range(7), layer_pooling="tokens_first")
    assert regrouped.tokens[VAULT] == regrouped.tokens[ROBBER] == regrouped.tokens[RIVER] == "bank"
    assert_close(regrouped.vectors, expected.permute(1, 0, 2))
    joined = embed_tokens(minilm, tokenizer, SENTENCE, layers=[-1, -2, -3, -4])
    assert joined.vectors.shape == (22, 4 * 384)
    assert_close(joined.vectors, torch.cat([expected[i] for i in (-1, -2, -3, -4)], dim=-1))
    summed = embed_tokens(minilm, tokenizer, SENTENCE, layers=range(-4, 0), layer_pooling="sum")
    their_sum = expected[-4:].sum(dim=0).numpy()
    assert_close(summed.vectors, their_sum, 3 * TOLERANCE)
    banks = word_occurrences("bank", summed, tokenizer)
    assert [place.tokens.start for place in banks.places] == [VAULT, ROBBER, RIVER]
    for i, a in enumerate((VAULT, ROBBER, RIVER)):
        for j, b in enumerate((VAULT, ROBBER, RIVER)):
            assert banks.similarities()[i, j] == pytest.approx(cosine(their_sum[a], their_sum[b]), abs=1e-6)
    assert_close(embed_tokens(minilm, tokenizer, SENTENCE, layers=-2).vectors.mean(axis=0), expected[-2].mean(dim=0))
    figure = plot_hidden_values(regrouped.vectors[5, 5], bins=200)
    assert sum(patch.get_height() for patch in figure.axes[0].patches) == 384


def test_the_pieces_of_a_word_averaged_summed_or_the_last_taken(
    tokenizer: BertTokenizer, minilm: BertModel, their_tokenizer: Any, their_minilm: Any
) -> None:
    text = "Here is the sentence I want embeddings for."
    with torch.no_grad():
        encoded = their_tokenizer(text, return_tensors="pt")
        pieces = their_minilm(**encoded).last_hidden_state[0, 7:11]
    assert encoded.tokens()[7:11] == ["em", "##bed", "##ding", "##s"]
    embedded = embed_tokens(minilm, tokenizer, text)
    for how, expected in (("mean", pieces.mean(dim=0)), ("sum", pieces.sum(dim=0)), ("last", pieces[-1])):
        words = embedded.words(how)
        assert words.words[6] == "embeddings"
        assert_close(words.vectors[6], expected, 3 * TOLERANCE)


def test_the_token_types_of_the_first_edition_change_the_vectors(minilm: BertModel) -> None:
    """The editions differ only in this: the second positional argument is the mask, not the token types."""
    ones = np.ones((1, 22), dtype=np.int64)
    as_mask = minilm([IDS], ones).last_hidden_state
    as_types = minilm([IDS], None, ones).last_hidden_state
    np.testing.assert_array_equal(as_mask, minilm([IDS]).last_hidden_state)
    assert np.abs(as_mask - as_types).max() > 0.01


# --- T3: the layer and the pooling for sentences ----------------------------------------------------------------------


@pytest.mark.parametrize("layer", [-1, -2, 3])
def test_each_choice_of_layer_and_pooling_is_one_argument(
    tokenizer: BertTokenizer, minilm: BertModel, their_tokenizer: Any, their_minilm: Any, layer: int
) -> None:
    text = "Which layer, and which pooling?"
    with torch.no_grad():
        expected = their_minilm(**their_tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[
            layer
        ]
    output = minilm(**tokenizer(text, return_tensors="np"))
    assert output.hidden_states[layer].shape == tuple(expected.shape) == (1, 10, 384)
    vectors = embed_tokens(minilm, tokenizer, text, layers=layer).vectors
    assert_close(vectors.mean(axis=0), expected[0].mean(dim=0))
    assert_close(vectors[0], expected[0, 0])
    assert_close(vectors.max(axis=0), expected[0].max(dim=0).values)


def test_a_model_trained_for_sentences_tells_related_from_unrelated(
    tokenizer: BertTokenizer, minilm: BertModel
) -> None:
    """Cosines are useful in a model that was trained for them, at its last layer; this answers the question."""
    texts = embed_tokens(minilm, tokenizer, ["A cat sleeps.", "A kitten naps.", "Stocks fell sharply."])
    cat, kitten, stocks = (text.vectors.mean(axis=0) for text in texts)
    assert cosine(cat, kitten) > 0.6 > 0.2 > cosine(cat, stocks)


# --- T4: the embeddings by hand ---------------------------------------------------------------------------------------


def test_embeddings_by_hand(tokenizer: BertTokenizer, minilm: BertModel, their_minilm: Any) -> None:
    ids = tokenizer(TEST_SENTENCE, return_tensors="np")["input_ids"]
    assert ids.tolist() == [TEST_IDS]
    ours, other = minilm.embeddings, their_minilm.embeddings
    their_ids = torch.tensor([TEST_IDS])
    with torch.no_grad():
        words, their_words = ours.word_embeddings(ids), other.word_embeddings(their_ids)
        assert words.shape == (1, 7, 384)
        np.testing.assert_array_equal(words, their_words.numpy())
        types = ours.token_type_embeddings(np.zeros((1, 7), dtype=np.int64))
        their_types = other.token_type_embeddings(torch.zeros((1, 7), dtype=torch.long))
        np.testing.assert_array_equal(types, their_types.numpy())
        positions = ours.position_embeddings(np.arange(7))
        their_positions = other.position_embeddings(torch.arange(7))
        np.testing.assert_array_equal(positions, their_positions.numpy())
        x, their_x = words + types + positions, their_words + their_types + their_positions
        np.testing.assert_array_equal(x, their_x.numpy())
        exact = (words.astype(np.float64) + types + positions).astype(np.float32)
        normed = ours.dropout(ours.LayerNorm(exact))
        assert_close(normed, ours.LayerNorm(x))
        assert_close(normed, other.dropout(other.LayerNorm(their_x)))
        assert_close(normed, other(their_ids))
    np.testing.assert_array_equal(normed, ours(ids))
    np.testing.assert_array_equal(normed, minilm(ids).hidden_states[0])
    tables = (ours.word_embeddings, ours.position_embeddings, ours.token_type_embeddings)
    assert [table.weight.shape for table in tables] == [(30522, 384), (512, 384), (2, 384)]


# --- T5: the look-up without a full pass ------------------------------------------------------------------------------


def test_word_embeddings_as_inputs_embeds_are_the_right_way(minilm: BertModel, their_minilm: Any) -> None:
    vectors = minilm.get_input_embeddings()([TEST_IDS])
    output = minilm(inputs_embeds=vectors)
    for state, expected in zip(output.hidden_states, minilm([TEST_IDS]).hidden_states, strict=True):
        np.testing.assert_array_equal(state, expected)
    with torch.no_grad():
        expected = their_minilm(inputs_embeds=their_minilm.get_input_embeddings()(torch.tensor([TEST_IDS])))
    assert_close(output.last_hidden_state, expected.last_hidden_state)

    processed = vectors * 0.5  # any change of the vectors
    with torch.no_grad():
        expected = their_minilm(inputs_embeds=torch.from_numpy(processed))
    assert_close(minilm(inputs_embeds=processed).last_hidden_state, expected.last_hidden_state)


def test_the_embeddings_module_gives_the_full_embedding_alone(minilm: BertModel, their_minilm: Any) -> None:
    vectors = minilm.get_input_embeddings()([TEST_IDS])
    token_types, positions = np.array([[0, 0, 0, 1, 1, 1, 1]]), np.arange(7)[None] + 3
    full = minilm.embeddings(inputs_embeds=vectors, token_type_ids=token_types, position_ids=positions)
    with torch.no_grad():
        expected = their_minilm.embeddings(
            inputs_embeds=torch.from_numpy(vectors),
            token_type_ids=torch.from_numpy(token_types),
            position_ids=torch.from_numpy(positions),
        )
    assert_close(full, expected)
    output = minilm([TEST_IDS], token_type_ids=token_types, position_ids=positions)
    np.testing.assert_array_equal(full, output.hidden_states[0])


def test_hidden_state_0_as_inputs_embeds_is_a_mistake(minilm: BertModel, their_minilm: Any) -> None:
    """It already includes positions, token types and LayerNorm; both libraries would apply them a second time."""
    right = minilm([TEST_IDS])
    trapped = minilm(inputs_embeds=right.hidden_states[0])
    with torch.no_grad():
        ids = torch.tensor([TEST_IDS])
        first = their_minilm(ids, output_hidden_states=True)
        expected = their_minilm(inputs_embeds=first.hidden_states[0])
    assert_close(trapped.last_hidden_state, expected.last_hidden_state)
    assert np.abs(trapped.hidden_states[0] - right.hidden_states[0]).max() > 0.1
    assert np.abs(trapped.last_hidden_state - right.last_hidden_state).max() > 0.1


# --- the printed values, with bert-base-uncased -----------------------------------------------------------------------

PRINTED = 1e-4  # four decimals were printed


@pytest.fixture(scope="module")
def base_tokenizer() -> BertTokenizer:
    return BertTokenizer.from_pretrained("bert-base-uncased")


@pytest.fixture(scope="module")
def base() -> BertModel:
    return BertModel.from_pretrained("bert-base-uncased")


def sums_of_the_last_four(base: BertModel, tokenizer: BertTokenizer, token_type: int) -> np.ndarray:
    ids = tokenizer(SENTENCE, return_tensors="np")["input_ids"]
    assert ids.tolist() == [IDS]
    output = base(ids, token_type_ids=np.full_like(ids, token_type))
    states = np.stack(output.hidden_states)
    assert states.shape == (13, 1, 22, 768)
    concatenated = np.concatenate(states[-4:, 0], axis=1)
    assert concatenated.shape == (22, 3072)
    return states[-4:, 0].sum(axis=0)


@pytest.mark.network
def test_t1_prints_its_values(base: BertModel, base_tokenizer: BertTokenizer) -> None:
    summed = sums_of_the_last_four(base, base_tokenizer, token_type=1)
    assert_close(summed[ROBBER, :5], [1.1868, -1.5298, -1.3770, 1.0648, 3.1446], PRINTED)
    assert_close(summed[VAULT, :5], [2.1319, -2.1413, -1.6260, 0.8638, 3.3173], PRINTED)
    assert_close(summed[RIVER, :5], [1.1295, -1.4725, -0.7296, -0.0901, 2.4970], PRINTED)
    assert cosine(summed[ROBBER], summed[VAULT]) == pytest.approx(0.94567525, abs=1e-5)
    assert cosine(summed[ROBBER], summed[RIVER]) == pytest.approx(0.6797334, abs=1e-5)
    first_layer = base([IDS], token_type_ids=np.ones((1, 22), int)).hidden_states[1]
    assert_close(first_layer[0, 0, :3], [0.0570, 0.0508, -0.2146], PRINTED)


@pytest.mark.network
def test_t2_prints_its_values(base: BertModel, base_tokenizer: BertTokenizer) -> None:
    summed = sums_of_the_last_four(base, base_tokenizer, token_type=0)
    assert_close(summed[VAULT, :4], [3.3596, -2.9805, -1.5421, 0.7065], PRINTED)
    assert_close(summed[ROBBER, :4], [2.7359, -2.5577, -1.3094, 0.6797], PRINTED)
    assert_close(summed[RIVER, :4], [1.5266, -0.8895, -0.5152, -0.9298], PRINTED)
    assert round(cosine(summed[ROBBER], summed[VAULT]), 2) == 0.94
    assert round(cosine(summed[ROBBER], summed[RIVER]), 2) == 0.69


@pytest.mark.network
def test_t4_prints_its_values(base: BertModel, base_tokenizer: BertTokenizer) -> None:
    ids = base_tokenizer(TEST_SENTENCE, return_tensors="np")["input_ids"]
    assert ids.tolist() == [TEST_IDS]
    e = base.embeddings
    tables = (e.word_embeddings, e.position_embeddings, e.token_type_embeddings)
    assert [table.weight.shape for table in tables] == [(30522, 768), (512, 768), (2, 768)]
    words, types, positions = e.word_embeddings(ids), e.token_type_embeddings([0]), e.position_embeddings(np.arange(7))
    assert words.shape == (1, 7, 768)
    assert_close(words[0, 0, :3], [1.3630e-02, -2.6490e-02, -2.3503e-02], 1e-6)
    assert_close(types[0, :6], [0.0004, 0.0110, 0.0037, -0.0066, -0.0034, -0.0086], PRINTED)
    assert_close(positions[0, :3], [1.7505e-02, -2.5631e-02, -3.6642e-02], 1e-6)
    x = words + types + positions
    assert_close(x[0, 0, :3], [0.0316, -0.0411, -0.0564], PRINTED)
    assert_close(e.dropout(e.LayerNorm(x))[0, 0, :3], [0.1686, -0.2858, -0.3261], PRINTED)


@pytest.mark.network
def test_t3_the_multilingual_model_gives_one_vector_a_token() -> None:
    name = "bert-base-multilingual-cased"
    tokenizer, model = BertTokenizer.from_pretrained(name), BertModel.from_pretrained(name)
    text = "Which layer, and which pooling?"
    embedded = embed_tokens(model, tokenizer, text)
    assert embedded.vectors.shape == (len(tokenizer.encode(text)), 768)
    np.testing.assert_array_equal(embedded.vectors, model(**tokenizer(text, return_tensors="np")).last_hidden_state[0])


@pytest.mark.network
def test_the_slice_that_transformers_publishes(base: BertModel) -> None:
    ids = [[0, 345, 232, 328, 740, 140, 1695, 69, 6078, 1588, 2]]
    mask = [[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]]
    last = base(ids, mask).last_hidden_state
    assert last.shape == (1, 11, 768)
    expected = [[0.4249, 0.1008, 0.7531], [0.3771, 0.1188, 0.7467], [0.4152, 0.1098, 0.7108]]
    assert_close(last[0, 1:4, 1:4], expected, PRINTED)
