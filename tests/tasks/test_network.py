"""Tasks on the hub's models, with published answers; each test names where its numbers are published."""

from __future__ import annotations

import numpy as np
import pytest

import minibert

pytestmark = pytest.mark.network

BERT = "google-bert/bert-base-uncased"


def test_the_example_of_bert_for_masked_lm() -> None:
    """The docstring of transformers 4's BertForMaskedLM: the word 'paris', and the loss at [MASK], 0.88.

    https://github.com/huggingface/transformers/blob/v4.40.0/src/transformers/models/bert/modeling_bert.py,
    ``expected_output="'paris'", expected_loss=0.88``. The loss is computed here from the logits.
    """
    model, tokenizer = minibert.BertForMaskedLM.from_pretrained(BERT), minibert.BertTokenizer.from_pretrained(BERT)
    inputs = tokenizer("The capital of France is [MASK].", return_tensors="np")
    labels = tokenizer("The capital of France is Paris.", return_tensors="np")["input_ids"][0]
    place = int(np.flatnonzero(inputs["input_ids"][0] == tokenizer.mask_token_id)[0])
    logits = model(**inputs).logits[0, place].astype(np.float64)
    assert tokenizer.convert_ids_to_tokens([int(logits.argmax())]) == ["paris"]
    # transformers gives the label -100, which does not count, to all tokens but the masked one.
    loss = np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[labels[place]]
    assert loss == pytest.approx(0.88, abs=0.006)


@pytest.mark.parametrize(
    ("text", "words", "scores"),
    [
        (
            "Hello I'm a [MASK] model.",
            ["fashion", "role", "new", "super", "fine"],
            [0.1073106899857521, 0.08774490654468536, 0.05338378623127937, 0.04667217284440994, 0.027095865458250046],
        ),
        (
            "The man worked as a [MASK].",
            ["carpenter", "waiter", "barber", "mechanic", "salesman"],
            [0.09747550636529922, 0.0523831807076931, 0.04962705448269844, 0.03788609802722931, 0.037680890411138535],
        ),
    ],
)
def test_the_card_of_bert_base_uncased(text: str, words: list[str], scores: list[float]) -> None:
    """https://huggingface.co/google-bert/bert-base-uncased, "How to use" and "Limitations and bias".

    The same card is in the repository of transformers 3: model_cards/bert-base-uncased-README.md.
    """
    found = minibert.pipeline("fill-mask", BERT)(text)
    assert [one["token_str"] for one in found] == words
    assert [one["score"] for one in found] == pytest.approx(scores, abs=1e-4)


def test_the_card_of_bert_base_ner() -> None:
    """https://huggingface.co/dslim/bert-base-NER, "How to use"; the card shows the call without its answer.

    The answer is in the guide "integration with pipelines" of https://github.com/RelevanceAI/relevanceai.
    """
    ner = minibert.pipeline("ner", "dslim/bert-base-NER")
    text = "My name is Wolfgang and I live in Berlin"
    answers = ner(text)
    found = [(one["entity"], one["word"], one["index"], one["start"], one["end"]) for one in answers]
    assert found == [("B-PER", "Wolfgang", 4, 11, 19), ("B-LOC", "Berlin", 9, 34, 40)]
    assert [one["score"] for one in answers] == pytest.approx([0.9990139, 0.999645], abs=1e-5)
    grouped = ner(text, aggregation_strategy="simple")
    assert [(one["entity_group"], one["word"]) for one in grouped] == [("PER", "Wolfgang"), ("LOC", "Berlin")]
