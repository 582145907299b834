"""A program: hash all that minibert computes here, to compare the processor's results with those of another one.

python -m tests.support.processor_hashes FOLDER...    # prints one JSON object: the level of the kernels, and for
                                                      # the ops and each model: name of an array -> SHA-256
python -m tests.support.processor_hashes --write      # writes those of MiniLM into expected_hashes.json
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from minibert import (
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertModel,
    BertTokenizer,
    SentenceTransformer,
)
from minibert._utils.reproducible_math import softmax
from minibert._utils.validation import FloatArray
from minibert.bert.low_precision import FORMATS
from minibert.bert.ops import Linear, PreparedLinear
from minibert.bert.weights import HeadWeights
from minibert.encode.pooling import POOLING_MODES
from minibert.kernels import make_ops
from minibert.kernels.processor import LEVEL
from minibert.sentence.activations import Activation
from minibert.sentence.sparse_encoder import SpladePooling, pool_words
from tests.support import oracle
from tests.support.cases import OP_CASES
from tests.support.checkpoints import locate_minilm

EXPECTED = Path(__file__).parents[1] / "kernels" / "expected_hashes.json"
"""Hashes of MiniLM's results for TEXTS: made by one processor, and the same on all others."""

TEXTS = [
    "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank.",
    "Two lines of text.",
    "a",
]


def digest(*arrays: Any) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def of_heads(model: BertModel, tokenizer: BertTokenizer, inputs: Any) -> dict[str, str]:
    """Hash the logits of heads that are made of the model's own weights: one of each kind, all tokens and [CLS].

    Also hash the scores and sparse vectors that cross-encoders and SPLADE models make of logits.
    """
    weights, words = model.weights, model.weights.word_embeddings
    assert weights.pooler is not None

    def linear(rows: FloatArray) -> PreparedLinear:
        return model.ops.prepare(Linear(("made",), rows, np.ascontiguousarray(rows[:, 0])))

    predictions = linear(weights.pooler.weight), weights.embeddings_norm, linear(words), True
    hashes = {}
    for kind, head in (
        (BertForPreTraining, HeadWeights("BertForPreTraining", *predictions, seq_relationship=linear(words[:2]))),
        (BertForQuestionAnswering, HeadWeights("BertForQuestionAnswering", qa_outputs=linear(words[2:4]))),
    ):
        output = kind(dataclasses.replace(weights, head=head), model.ops)(**inputs)
        hashes |= {name: digest(logits) for name, logits in output.items()}
        if kind is BertForPreTraining:
            pairs = output.seq_relationship_logits
            hashes |= {name: digest(Activation(name, model.ops)(pairs)) for name in ("Sigmoid", "Tanh")}
            hashes["softmax"] = digest(softmax(pairs))
    masked = BertForMaskedLM(dataclasses.replace(weights, head=HeadWeights("BertForMaskedLM", *predictions)), model.ops)
    groups = [[encoding] for encoding in tokenizer.encodings(TEXTS)]
    for strategy in ("max", "sum"):
        rows = pool_words(masked, SpladePooling(strategy, "log1p_relu"), groups, range(len(groups)))
        hashes[f"sparse vectors, {strategy}"] = digest(*(array for row in rows for array in row))
    return hashes


def of_model(folder: str) -> dict[str, str]:
    """Hash the hidden states, attentions, pooler output and logits, and the sentence vectors of each pooling mode."""
    model = SentenceTransformer(folder)
    tokenizer = BertTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS, padding=True)
    output = BertModel.from_pretrained(folder)(**inputs, output_hidden_states=True, output_attentions=True)
    hashes = {f"hidden_states.{i}": digest(state) for i, state in enumerate(output.hidden_states)}
    hashes |= {f"attentions.{i}": digest(probs) for i, probs in enumerate(output.attentions)}
    if output.pooler_output is not None:
        hashes["pooler_output"] = digest(output.pooler_output)
        hashes |= of_heads(BertModel.from_pretrained(folder), tokenizer, inputs)
    hashes |= {f"vectors, {mode}": digest(model.encode(TEXTS, pooling=mode)) for mode in (*POOLING_MODES, "first_last")}
    for name in LEVEL.compute_types[1:]:
        low = BertModel.from_pretrained(folder, compute_type=name)(**inputs)
        hashes |= {f"hidden_states.{i}, {name}": digest(state) for i, state in enumerate(low.hidden_states)}
        hashes[f"vectors, {name}"] = digest(SentenceTransformer(folder, compute_type=name).encode(TEXTS))
    return {
        **hashes,
        "vectors": digest(model.encode(TEXTS)),
        "unit vectors": digest(model.encode(TEXTS, normalize_embeddings=True)),
    }


def of_ops() -> dict[str, str]:
    """Hash the results of every second case of the ops, and of the ops in low precision."""
    ops = make_ops(2)
    hashes = {str(case): digest(*oracle.arrays(case.run(ops, case.arguments()))) for case in OP_CASES[::2]}
    for name in FORMATS if len(LEVEL.compute_types) > 1 else ():
        low = make_ops(2, compute_type=name)
        for case in OP_CASES[::2]:
            if case.op == "linear":
                arguments = case.arguments()
                arguments["linear"] = dataclasses.replace(arguments["linear"], paths=("encoder.dense",))
                hashes[f"{case}, {name}"] = digest(case.run(low, arguments))
            elif case.op == "attention":
                hashes[f"{case}, {name}"] = digest(*oracle.arrays(case.run(low, case.arguments())))
    return hashes


def main(arguments: list[str]) -> None:
    if arguments != ["--write"]:
        print(json.dumps({"level": LEVEL.name, "ops": of_ops(), **{name: of_model(name) for name in arguments}}))
        return
    content = {"format": 1, "texts": TEXTS, "MiniLM": of_model(str(locate_minilm()))}
    EXPECTED.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
