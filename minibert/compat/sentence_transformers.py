"""Import this module before a library that uses sentence-transformers, and the library computes with minibert.

It makes `import sentence_transformers` give a stand-in, in this process only. `SentenceTransformer` there is minibert's
class itself, so that models made with either name are instances of both. The names can also be imported from here.
"""

from __future__ import annotations

from typing import Any

import minibert
from minibert._utils.foreign import MODULES_ARE_READ
from minibert.compat.stand_in import Contents, Package, install

__all__ = ["PACKAGE"]

# The version of sentence-transformers whose names and arguments minibert has; libraries compare it.
VERSION = f"6.2.0+minibert.{minibert.__version__}"

_WITHOUT = "leave out `import minibert.compat.sentence_transformers`"
_TRAINING = f"minibert does not train. Use sentence-transformers itself: {_WITHOUT}. minibert loads what it saves."
_PARTS = f"{MODULES_ARE_READ} To build a model from single modules use sentence-transformers itself: {_WITHOUT}."
_EVALUATION = (
    "evaluators are part of sentence-transformers. They accept minibert's models in a process that loads the real "
    f"library: {_WITHOUT}."
)
_NOT_YET = f"use sentence-transformers itself: {_WITHOUT}."

_MODEL = {"SentenceTransformer": "minibert:SentenceTransformer"}
_OTHER_MODELS = {name: f"minibert:{name}" for name in ("CrossEncoder", "SparseEncoder", "MultiVectorEncoder")}
_OF_UTIL = ("LoggingHandler", "SimilarityFunction", "quantize_embeddings")
_TRAINERS = tuple(
    f"{model}{part}"
    for model in ("SentenceTransformer", *_OTHER_MODELS)
    for part in ("Trainer", "TrainingArguments", "ModelCardData")
)
# In versions before 5.4 each class of sentence_transformers.models has a module of its own name.
_OF_MODELS = (
    *("BoW", "CLIPModel", "CNN", "Dense", "Dropout", "InputModule", "LayerNorm", "LSTM", "Module", "Normalize"),
    *("Pooling", "Router", "StaticEmbedding", "Transformer", "WeightedLayerPooling", "WordEmbeddings", "WordWeights"),
)
_DATA = ("DefaultBatchSampler", "InputExample", "MultiDatasetDefaultBatchSampler", "ParallelSentencesDataset")

_MINING = (
    f"it prepares training data. Use sentence-transformers itself, which works with a model of minibert: {_WITHOUT}."
)
_UTIL = Contents(source="minibert.util", reasons={"mine_hard_negatives": _MINING})


def _only(reason: str) -> Contents:
    return Contents(reasons={"*": reason})


def _model(name: str) -> Contents:
    return Contents({name: f"minibert:{name}"}, reasons={name: _NOT_YET, "*": _TRAINING})


# Modules of sentence-transformers 6.2, and the names of versions before 5.4 that libraries still try.
MODULES = {
    "": Contents(
        names={**_MODEL, **_OTHER_MODELS, **{name: f"minibert.util:{name}" for name in _OF_UTIL}},
        reasons={
            "mine_hard_negatives": _MINING,
            **dict.fromkeys(_OTHER_MODELS, _NOT_YET),
            **dict.fromkeys((*_TRAINERS, *_DATA), _TRAINING),
        },
    ),
    "SentenceTransformer": Contents(_MODEL),
    "sentence_transformer": Contents(_MODEL, reasons={"*": _TRAINING}),
    "sentence_transformer.model": Contents(_MODEL),
    "cross_encoder": _model("CrossEncoder"),
    "cross_encoder.CrossEncoder": _model("CrossEncoder"),
    "cross_encoder.model": _model("CrossEncoder"),
    "sparse_encoder": _model("SparseEncoder"),
    "sparse_encoder.model": _model("SparseEncoder"),
    "multi_vector_encoder": _model("MultiVectorEncoder"),
    "util": _UTIL,
    **{f"util.{name}": _UTIL for name in ("similarity", "retrieval", "quantization", "tensor", "logging")},
    "similarity_functions": _UTIL,
    "quantization": _UTIL,
    "models": Contents(reasons=dict.fromkeys((*_OF_MODELS, "*"), _PARTS)),
    **{f"models.{name}": _only(_PARTS) for name in _OF_MODELS},
    "base": Contents(),
    "base.modules": _only(_PARTS),
    "sentence_transformer.modules": _only(_PARTS),
    "evaluation": _only(_EVALUATION),
    "sentence_transformer.evaluation": _only(_EVALUATION),
    **{
        f"{folder}{name}": _only(_TRAINING)
        for folder in ("", "sentence_transformer.")
        for name in ("losses", "datasets", "readers", "trainer", "training_args", "model_card")
    },
}

PACKAGE = Package(
    name="sentence_transformers",
    distribution="sentence-transformers",
    version=VERSION,
    maker="minibert.compat.sentence_transformers",
    modules=MODULES,
)

_STAND_IN = install(PACKAGE)


def __getattr__(name: str) -> Any:
    """Look a name up in the stand-in."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_STAND_IN, name)
