"""A text's hidden states are equal bit for bit alone, in any batch, in any order, with any number of threads."""

from __future__ import annotations

import os

import numpy as np
import pytest

from minibert import BertModel, BertTokenizer
from minibert._utils.validation import FloatArray
from minibert.checkpoint.files import DEFAULT_MODEL
from tests.support.report import REPORT
from tests.support.text_data import VARIABLE, udhr_lines

WORDS = ("bank", "river", "money", "the", "of", "a", "time", "person", "year", "way", "day", "thing", "man", "world")


def texts(count: int) -> list[str]:
    """Return real texts if the test data exist, else made texts of 0 to 120 words."""
    if os.environ.get(VARIABLE):
        lines = udhr_lines()
        return [lines[i * len(lines) // count] for i in range(count)]
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(WORDS, int(n))) for n in generator.gamma(1.5, 20, count).clip(0, 120)]


@pytest.fixture(scope="module")
def models() -> dict[int, BertModel]:
    return {n: BertModel.from_pretrained(DEFAULT_MODEL, num_threads=n, backend="kernels") for n in (1, 2)}


def states(model: BertModel, tokenizer: BertTokenizer, batch: list[str]) -> list[FloatArray]:
    """Return all hidden states of each text, (layers + 1, its tokens, hidden_size)."""
    inputs = tokenizer(batch, padding=True, truncation=True, max_length=256, return_tensors="np")
    hidden = np.stack(model(**inputs).hidden_states)
    return [hidden[:, b, :length] for b, length in enumerate(inputs["attention_mask"].sum(axis=1))]


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_bitwise_invariance(models: dict[int, BertModel], tokenizer: BertTokenizer, count: int) -> None:
    all_texts = texts(count)
    alone = [states(models[1], tokenizer, [text])[0] for text in all_texts]
    generator = np.random.default_rng(0)
    order, compared, different = generator.permutation(len(all_texts)), 0, 0
    while order.size:
        size = int(generator.integers(1, 40))
        chosen, order = order[:size], order[size:]
        model = models[int(generator.integers(1, 3))]
        for i, found in zip(chosen, states(model, tokenizer, [all_texts[i] for i in chosen]), strict=True):
            compared += 1
            different += found.tobytes() != alone[i].tobytes()
    REPORT.append(f"bitwise invariance: {compared} texts, all hidden states, alone and in batches: {different} differ")
    assert compared == count
    assert different == 0


@pytest.mark.parametrize("length", [1, 2, 22, 129, 512])
def test_many_equal_texts(models: dict[int, BertModel], length: int) -> None:
    ids = np.tile(np.random.default_rng(length).integers(1000, 2000, (1, length)), (5, 1))
    hidden = models[2](ids).last_hidden_state
    assert all(row.tobytes() == hidden[0].tobytes() for row in hidden)
