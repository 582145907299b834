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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from minibert._utils.foreign import add_aliases, missing_names
from minibert._version import __version__ as __version__

if TYPE_CHECKING:
    from minibert import exact as exact
    from minibert import inside as inside
    from minibert import learn as learn
    from minibert import parity as parity
    from minibert.bert.config import BertConfig as BertConfig
    from minibert.errors import DownloadError as DownloadError
    from minibert.errors import ModelFormatError as ModelFormatError
    from minibert.models.bert import BertModel as BertModel
    from minibert.models.heads import AutoConfig as AutoConfig
    from minibert.models.heads import AutoModel as AutoModel
    from minibert.models.heads import AutoModelForMaskedLM as AutoModelForMaskedLM
    from minibert.models.heads import AutoModelForMultipleChoice as AutoModelForMultipleChoice
    from minibert.models.heads import AutoModelForNextSentencePrediction as AutoModelForNextSentencePrediction
    from minibert.models.heads import AutoModelForPreTraining as AutoModelForPreTraining
    from minibert.models.heads import AutoModelForQuestionAnswering as AutoModelForQuestionAnswering
    from minibert.models.heads import AutoModelForSequenceClassification as AutoModelForSequenceClassification
    from minibert.models.heads import AutoModelForTokenClassification as AutoModelForTokenClassification
    from minibert.models.heads import BertForMaskedLM as BertForMaskedLM
    from minibert.models.heads import BertForMultipleChoice as BertForMultipleChoice
    from minibert.models.heads import BertForNextSentencePrediction as BertForNextSentencePrediction
    from minibert.models.heads import BertForPreTraining as BertForPreTraining
    from minibert.models.heads import BertForQuestionAnswering as BertForQuestionAnswering
    from minibert.models.heads import BertForSequenceClassification as BertForSequenceClassification
    from minibert.models.heads import BertForTokenClassification as BertForTokenClassification
    from minibert.models.heads import load as load
    from minibert.models.outputs import BertModelOutput as BertModelOutput
    from minibert.sentence.cross_encoder import CrossEncoder as CrossEncoder
    from minibert.sentence.multi_vector_encoder import MultiVectorEncoder as MultiVectorEncoder
    from minibert.sentence.sentence_transformers import SentenceTransformer as SentenceTransformer
    from minibert.sentence.sparse_encoder import SparseEncoder as SparseEncoder
    from minibert.sentence.sparse_vectors import SparseVectors as SparseVectors
    from minibert.tasks.pipelines import pipeline as pipeline
    from minibert.tokenizer.bert_tokenizer import AutoTokenizer as AutoTokenizer
    from minibert.tokenizer.bert_tokenizer import BertTokenizer as BertTokenizer
    from minibert.tokenizer.bert_tokenizer import BertTokenizerFast as BertTokenizerFast
    from minibert.trace.edits import Edit as Edit
    from minibert.trace.edits import head_mask as head_mask
    from minibert.trace.trace import Trace as Trace
    from minibert.util import LoggingHandler as LoggingHandler
    from minibert.vectors.layers import combine_layers as combine_layers
    from minibert.vectors.similarity import SimilarityFunction as SimilarityFunction
    from minibert.vectors.similarity import quantize_embeddings as quantize_embeddings
    from minibert.vectors.token_vectors import TokenVectors as TokenVectors
    from minibert.vectors.token_vectors import embed_tokens as embed_tokens
    from minibert.vectors.token_vectors import word_occurrences as word_occurrences

# Module -> the public names that are imported from it at their first use.
_NAMES = {
    "bert.config": "BertConfig",
    "errors": "DownloadError ModelFormatError",
    "models.bert": "BertModel",
    "models.heads": "AutoConfig AutoModel AutoModelForMaskedLM AutoModelForMultipleChoice AutoModelForPreTraining "
    "AutoModelForNextSentencePrediction AutoModelForQuestionAnswering AutoModelForSequenceClassification "
    "AutoModelForTokenClassification BertForMaskedLM BertForMultipleChoice BertForNextSentencePrediction "
    "BertForPreTraining BertForQuestionAnswering BertForSequenceClassification BertForTokenClassification load",
    "models.outputs": "BertModelOutput",
    "sentence.cross_encoder": "CrossEncoder",
    "sentence.multi_vector_encoder": "MultiVectorEncoder",
    "sentence.sentence_transformers": "SentenceTransformer",
    "sentence.sparse_encoder": "SparseEncoder",
    "sentence.sparse_vectors": "SparseVectors",
    "similarity": "SimilarityFunction quantize_embeddings",
    "tasks.pipelines": "pipeline",
    "tokenizer.bert_tokenizer": "AutoTokenizer BertTokenizer BertTokenizerFast",
    "trace.edits": "Edit head_mask",
    "trace.trace": "Trace",
    "util": "LoggingHandler",
    "vectors.layers": "combine_layers",
    "vectors.token_vectors": "TokenVectors embed_tokens word_occurrences",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
_PUBLIC_MODULES = ("exact", "inside", "learn", "parity")
__all__ = sorted((*_MODULE_OF, *_PUBLIC_MODULES, "__version__"))


# Modules that programs use without importing them, as they do with sentence_transformers.util.
_MODULES = ("search", "similarity", "util")


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that ``import minibert`` takes almost no time."""
    if name in _MODULE_OF:
        value = getattr(import_module(f"minibert.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in (*_PUBLIC_MODULES, *_MODULES):
        return import_module(f"minibert.{name}")
    from minibert.bert.families import NAMES, bert_class, family_of_class

    bert = bert_class(name)
    if bert == name or bert not in NAMES:
        return _refuse(name)
    if "Tokenizer" in name:
        from minibert.tokenizer.bert_tokenizer import named_class

        return named_class(name.removesuffix("Fast"))
    family: Any = family_of_class(name)
    if bert == "BertConfig":
        from minibert.bert.config import config_class

        return config_class(family)
    from minibert.models.pretrained import class_of

    return class_of(__getattr__(bert), family)


_refuse = missing_names("minibert", __all__)
add_aliases()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
