"""minibert: from-scratch BERT inference in NumPy and Numba. Text in, every hidden state out.

>>> from minibert import BertModel, BertTokenizer
>>> tokenizer = BertTokenizer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
>>> model = BertModel.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
>>> output = model(**tokenizer(["Hello, BERT!"], return_tensors="np"))
>>> output.last_hidden_state.shape, len(output.hidden_states)
((1, 6, 384), 7)

To read how it works, begin with bert/tiny.py, then bert/encoder.py, bert/reference.py and kernels/.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from minibert._utils.foreign import ALIASES, Finder, missing_names

if TYPE_CHECKING:
    from minibert import exact, inside, parity
    from minibert.bert.config import BertConfig
    from minibert.errors import DownloadError, ModelFormatError
    from minibert.models.auto import (
        AutoConfig,
        AutoModel,
        AutoModelForMaskedLM,
        AutoModelForMultipleChoice,
        AutoModelForNextSentencePrediction,
        AutoModelForPreTraining,
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        load,
    )
    from minibert.models.bert import BertModel
    from minibert.models.heads import (
        BertForMaskedLM,
        BertForMultipleChoice,
        BertForNextSentencePrediction,
        BertForPreTraining,
        BertForQuestionAnswering,
        BertForSequenceClassification,
        BertForTokenClassification,
    )
    from minibert.models.outputs import BertModelOutput
    from minibert.sentence.cross_encoder import CrossEncoder
    from minibert.sentence.sentence_transformers import SentenceTransformer
    from minibert.sentence.sparse_encoder import SparseEncoder
    from minibert.sentence.sparse_vectors import SparseVectors
    from minibert.tasks.pipelines import pipeline
    from minibert.tokenizer.bert_tokenizer import AutoTokenizer, BertTokenizer, BertTokenizerFast
    from minibert.trace.edits import Edit, head_mask
    from minibert.trace.trace import Trace
    from minibert.util import LoggingHandler
    from minibert.vectors.layers import combine_layers
    from minibert.vectors.similarity import SimilarityFunction, quantize_embeddings
    from minibert.vectors.token_vectors import TokenVectors, embed_tokens, word_occurrences

__all__ = [
    "AutoConfig",
    "AutoModel",
    "AutoModelForMaskedLM",
    "AutoModelForMultipleChoice",
    "AutoModelForNextSentencePrediction",
    "AutoModelForPreTraining",
    "AutoModelForQuestionAnswering",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoTokenizer",
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "BertModelOutput",
    "BertTokenizer",
    "BertTokenizerFast",
    "CrossEncoder",
    "DownloadError",
    "Edit",
    "LoggingHandler",
    "ModelFormatError",
    "SentenceTransformer",
    "SimilarityFunction",
    "SparseEncoder",
    "SparseVectors",
    "TokenVectors",
    "Trace",
    "__version__",
    "combine_layers",
    "embed_tokens",
    "exact",
    "head_mask",
    "inside",
    "load",
    "parity",
    "pipeline",
    "quantize_embeddings",
    "word_occurrences",
]

__version__ = "0.3.0"

_MODULE_OF = {
    "AutoConfig": "models.auto",
    "AutoModel": "models.auto",
    "AutoModelForMaskedLM": "models.auto",
    "AutoModelForMultipleChoice": "models.auto",
    "AutoModelForNextSentencePrediction": "models.auto",
    "AutoModelForPreTraining": "models.auto",
    "AutoModelForQuestionAnswering": "models.auto",
    "AutoModelForSequenceClassification": "models.auto",
    "AutoModelForTokenClassification": "models.auto",
    "AutoTokenizer": "tokenizer.bert_tokenizer",
    "BertConfig": "bert.config",
    "BertForMaskedLM": "models.heads",
    "BertForMultipleChoice": "models.heads",
    "BertForNextSentencePrediction": "models.heads",
    "BertForPreTraining": "models.heads",
    "BertForQuestionAnswering": "models.heads",
    "BertForSequenceClassification": "models.heads",
    "BertForTokenClassification": "models.heads",
    "BertModel": "models.bert",
    "BertModelOutput": "models.outputs",
    "BertTokenizer": "tokenizer.bert_tokenizer",
    "BertTokenizerFast": "tokenizer.bert_tokenizer",
    "CrossEncoder": "sentence.cross_encoder",
    "DownloadError": "errors",
    "Edit": "trace.edits",
    "LoggingHandler": "util",
    "ModelFormatError": "errors",
    "SentenceTransformer": "sentence.sentence_transformers",
    "SimilarityFunction": "similarity",
    "SparseEncoder": "sentence.sparse_encoder",
    "SparseVectors": "sentence.sparse_vectors",
    "TokenVectors": "vectors.token_vectors",
    "Trace": "trace.trace",
    "combine_layers": "vectors.layers",
    "embed_tokens": "vectors.token_vectors",
    "head_mask": "trace.edits",
    "load": "models.auto",
    "pipeline": "tasks.pipelines",
    "quantize_embeddings": "similarity",
    "word_occurrences": "vectors.token_vectors",
}


# Modules that programs use without importing them, as they do with sentence_transformers.util.
_MODULES = ("search", "similarity", "util")


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that ``import minibert`` takes almost no time."""
    if name in ("exact", "inside", "parity"):  # modules
        return import_module(f"minibert.{name}")
    if name in _MODULE_OF:
        value = getattr(import_module(f"minibert.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in _MODULES or f"minibert.{name}" in ALIASES:
        return import_module(f"minibert.{name}")
    return _refuse(name)


_refuse = missing_names("minibert", __all__)
sys.meta_path.append(Finder)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
