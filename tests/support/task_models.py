"""Random checkpoints with a vocabulary for the tasks, their pipelines in transformers, and a comparison of answers."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.checkpoints import VOCABULARY, locate_minilm
from tests.support.head_models import make_model, their_model
from tests.support.text_data import VARIABLE, data_path, udhr_lines

CLASS_OF = {
    "fill-mask": "BertForMaskedLM",
    "text-classification": "BertForSequenceClassification",
    "token-classification": "BertForTokenClassification",
    "question-answering": "BertForQuestionAnswering",
    "zero-shot-classification": "BertForSequenceClassification",
    "next-sentence": "BertForNextSentencePrediction",
    "feature-extraction": "BertModel",
}

# Shapes of models: the third one is odd.
SHAPES: dict[str, dict[str, Any]] = {
    "2 x 24": {},
    "1 x 48, relu": {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "hidden_act": "relu"},
    "2 x 32, odd": {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 37, "type_vocab_size": 16},
    "4 x 24": {"num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 96},
}

ENTITY_LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC", 5: "MISC"}
NLI_LABELS = {0: "contradiction", 1: "neutral", 2: "entailment"}


def task_folder(
    folder: Path, name: str, *, vocabulary: str = "made", length: int = 512, scale: float = 4.0, **fields: Any
) -> Path:
    """Save a random model of a class, with a tokenizer; its last linear map is `scale` times as large as usual.

    The vocabulary is "made" (some 130 tokens), "uncased" (that of MiniLM), or "multilingual" (that of
    bert-base-multilingual-cased, which is in the test data); `length` is the tokens of a text that the model takes.
    """
    words = list(VOCABULARY)
    if vocabulary != "made":
        path = locate_minilm() / "vocab.txt" if vocabulary == "uncased" else _multilingual()
        words = path.read_text(encoding="utf-8").splitlines()
    if "id2label" in fields:
        fields["label2id"] = {label: index for index, label in fields["id2label"].items()}
    scaled = dict.fromkeys(("classifier", "qa_outputs", "cls.seq", "cls.predictions.transform.LayerNorm"), scale)
    fields = {"vocabulary": words, "cased": vocabulary == "multilingual", "max_position_embeddings": length, **fields}
    return make_model(folder, name, scale=scaled, **fields)


def _multilingual() -> Path:
    return data_path("vocab/bert-base-multilingual-cased.txt")


def vocabularies() -> list[str]:
    """Return the vocabularies that this machine has."""
    return ["uncased", "multilingual"] if os.environ.get(VARIABLE) else ["uncased"]


def their_pipeline(task: str, folder: Path, **options: Any) -> Any:
    """Load a pipeline of transformers."""
    model = their_model(folder, CLASS_OF[task])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.pipeline(task, model=model, tokenizer=tokenizer, **options)


def run_theirs(pipe: Any, *inputs: Any, **options: Any) -> Any:
    """Call a pipeline of transformers without its warnings."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return pipe(*inputs, **options)


def real_texts(count: int = 45) -> list[str]:
    """Return real texts of 45 language versions if the test data exist, else made ones."""
    if os.environ.get(VARIABLE):
        lines = udhr_lines()
        return [lines[(2 * i + 1) * len(lines) // (2 * count)] for i in range(count)]
    made = [
        "Paris is the capital of France.",
        "The cat sat on the mat, and Ann saw Bob in New-York.",
        "Ünïcode, naïve!",
    ]
    return [" ".join([made[i % 3]] * (2 + i % 4)) for i in range(count)]
