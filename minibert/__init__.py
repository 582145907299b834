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
from typing import Any

from minibert._utils.foreign import add_aliases, missing_names
from minibert._version import __version__ as __version__

# Module -> the public names that are imported from it at their first use. __init__.pyi has their types.
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
    "vectors.occurrences": "word_occurrences",
    "vectors.token_vectors": "TokenVectors embed_tokens",
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
