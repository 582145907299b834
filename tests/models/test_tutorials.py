"""The values that well-known tutorials print, with bert-base-uncased from the hub."""

from __future__ import annotations

import numpy as np
import pytest

from minibert import BertModel, BertTokenizer

SENTENCE = "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank."
IDS = [
    *(101, 2044, 11065, 2769, 2013, 1996, 2924, 11632, 1010, 1996, 2924),
    *(27307, 2001, 2464, 5645, 2006, 1996, 5900, 2314, 2924, 1012, 102),
]
VAULT, ROBBER, RIVER = 6, 10, 19  # the three banks
TEST_SENTENCE = "this is a test sentence"
TEST_IDS = [101, 2023, 2003, 1037, 3231, 6251, 102]
PRINTED = 1e-4  # four decimals were printed

pytestmark = pytest.mark.network


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def assert_close(ours: np.ndarray, printed: object, tolerance: float = PRINTED) -> None:
    np.testing.assert_allclose(ours, np.array(printed), rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def base_tokenizer() -> BertTokenizer:
    return BertTokenizer.from_pretrained("bert-base-uncased")


@pytest.fixture(scope="module")
def base() -> BertModel:
    return BertModel.from_pretrained("bert-base-uncased")


def sums_of_the_last_four(base: BertModel, tokenizer: BertTokenizer, token_type: int) -> np.ndarray:
    ids = tokenizer(SENTENCE, return_tensors="np")["input_ids"]
    assert ids.tolist() == [IDS]
    states = np.stack(base(ids, token_type_ids=np.full_like(ids, token_type)).hidden_states)
    assert states.shape == (13, 1, 22, 768)
    return states[-4:, 0].sum(axis=0)


def test_t1_and_t2_print_their_values(base: BertModel, base_tokenizer: BertTokenizer) -> None:
    first, second = (sums_of_the_last_four(base, base_tokenizer, token_type) for token_type in (1, 0))
    for summed, word, printed in (
        (first, ROBBER, [1.1868, -1.5298, -1.3770, 1.0648, 3.1446]),
        (first, VAULT, [2.1319, -2.1413, -1.6260, 0.8638, 3.3173]),
        (first, RIVER, [1.1295, -1.4725, -0.7296, -0.0901, 2.4970]),
        (second, VAULT, [3.3596, -2.9805, -1.5421, 0.7065]),
        (second, ROBBER, [2.7359, -2.5577, -1.3094, 0.6797]),
        (second, RIVER, [1.5266, -0.8895, -0.5152, -0.9298]),
    ):
        assert_close(summed[word, : len(printed)], printed)
    assert cosine(first[ROBBER], first[VAULT]) == pytest.approx(0.94567525, abs=1e-5)
    assert cosine(first[ROBBER], first[RIVER]) == pytest.approx(0.6797334, abs=1e-5)
    assert round(cosine(second[ROBBER], second[VAULT]), 2) == 0.94
    assert round(cosine(second[ROBBER], second[RIVER]), 2) == 0.69


def test_t4_prints_its_values(base: BertModel, base_tokenizer: BertTokenizer) -> None:
    ids = base_tokenizer(TEST_SENTENCE, return_tensors="np")["input_ids"]
    assert ids.tolist() == [TEST_IDS]
    e = base.embeddings
    tables = (e.word_embeddings, e.position_embeddings, e.token_type_embeddings)
    assert [table.weight.shape for table in tables] == [(30522, 768), (512, 768), (2, 768)]
    words, types, positions = e.word_embeddings(ids), e.token_type_embeddings([0]), e.position_embeddings(np.arange(7))
    assert words.shape == (1, 7, 768)
    assert_close(words[0, 0, :3], [1.3630e-02, -2.6490e-02, -2.3503e-02], 1e-6)
    assert_close(types[0, :6], [0.0004, 0.0110, 0.0037, -0.0066, -0.0034, -0.0086])
    assert_close(positions[0, :3], [1.7505e-02, -2.5631e-02, -3.6642e-02], 1e-6)
    x = words + types + positions
    assert_close(x[0, 0, :3], [0.0316, -0.0411, -0.0564])
    assert_close(e.dropout(e.LayerNorm(x))[0, 0, :3], [0.1686, -0.2858, -0.3261])


def test_the_slice_that_transformers_publishes(base: BertModel) -> None:
    ids = [[0, 345, 232, 328, 740, 140, 1695, 69, 6078, 1588, 2]]
    mask = [[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]]
    last = base(ids, mask).last_hidden_state
    assert last.shape == (1, 11, 768)
    expected = [[0.4249, 0.1008, 0.7531], [0.3771, 0.1188, 0.7467], [0.4152, 0.1098, 0.7108]]
    assert_close(last[0, 1:4, 1:4], expected)
