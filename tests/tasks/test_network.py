"""Tasks on the hub's models, with the examples of their cards."""

from __future__ import annotations

import pytest

import minibert

pytestmark = pytest.mark.network


def test_the_capital_of_france() -> None:
    fill_mask = minibert.pipeline("fill-mask", "google-bert/bert-base-uncased")
    best = fill_mask("Paris is the capital of [MASK].")[0]
    assert (best["token_str"], best["sequence"]) == ("france", "paris is the capital of france.")


def test_the_card_of_bert_base_uncased() -> None:
    fill_mask = minibert.pipeline("fill-mask", "google-bert/bert-base-uncased")
    found = fill_mask("Hello I'm a [MASK] model.")
    assert [one["token_str"] for one in found] == ["fashion", "role", "new", "super", "fine"]
    scores = [0.1073106899857521, 0.08774490654468536, 0.05338378623127937, 0.04667217284440994, 0.027095865458250046]
    assert [one["score"] for one in found] == pytest.approx(scores, abs=1e-4)


def test_the_card_of_bert_base_ner() -> None:
    ner = minibert.pipeline("ner", "dslim/bert-base-NER")
    text = "My name is Wolfgang and I live in Berlin"
    found = [(one["entity"], one["word"], one["index"], one["start"], one["end"]) for one in ner(text)]
    assert found == [("B-PER", "Wolfgang", 4, 11, 19), ("B-LOC", "Berlin", 9, 34, 40)]
    assert min(one["score"] for one in ner(text)) > 0.99  # the card shows the call only
    grouped = ner(text, aggregation_strategy="simple")
    assert [(one["entity_group"], one["word"]) for one in grouped] == [("PER", "Wolfgang"), ("LOC", "Berlin")]
