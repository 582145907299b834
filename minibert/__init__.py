"""minibert: from-scratch BERT inference in NumPy and Numba. Text in, every hidden state out.

>>> from minibert import BertModel, BertTokenizer
>>> tokenizer = BertTokenizer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
>>> model = BertModel.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
>>> output = model(**tokenizer(["Hello, BERT!"]))
>>> output.last_hidden_state.shape, len(output.hidden_states)
((1, 6, 384), 7)

To read how it works, begin with bert/tiny.py, then bert/encoder.py, bert/reference.py and kernels/.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minibert.bert.config import BertConfig
    from minibert.errors import DownloadError, ModelFormatError
    from minibert.models.bert_model import BertModel
    from minibert.models.heads import (
        BertForMaskedLM,
        BertForMultipleChoice,
        BertForNextSentencePrediction,
        BertForPreTraining,
        BertForQuestionAnswering,
        BertForSequenceClassification,
        BertForTokenClassification,
    )
    from minibert.models.load import load
    from minibert.models.outputs import BertModelOutput
    from minibert.sentence.sentence_transformer import SentenceTransformer
    from minibert.tokenizer.bert_tokenizer import BertTokenizer
    from minibert.tokens.embed import embed_tokens
    from minibert.tokens.layers import combine_layers
    from minibert.tokens.occurrences import word_occurrences
    from minibert.tokens.token_vectors import TokenVectors

__all__ = [
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
    "DownloadError",
    "ModelFormatError",
    "SentenceTransformer",
    "TokenVectors",
    "__version__",
    "combine_layers",
    "embed_tokens",
    "load",
    "word_occurrences",
]

__version__ = "0.3.0"

_MODULE_OF = {
    "BertConfig": "bert.config",
    "BertForMaskedLM": "models.heads",
    "BertForMultipleChoice": "models.heads",
    "BertForNextSentencePrediction": "models.heads",
    "BertForPreTraining": "models.heads",
    "BertForQuestionAnswering": "models.heads",
    "BertForSequenceClassification": "models.heads",
    "BertForTokenClassification": "models.heads",
    "BertModel": "models.bert_model",
    "BertModelOutput": "models.outputs",
    "BertTokenizer": "tokenizer.bert_tokenizer",
    "DownloadError": "errors",
    "ModelFormatError": "errors",
    "SentenceTransformer": "sentence.sentence_transformer",
    "TokenVectors": "tokens.token_vectors",
    "combine_layers": "tokens.layers",
    "embed_tokens": "tokens.embed",
    "load": "models.load",
    "word_occurrences": "tokens.occurrences",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that ``import minibert`` takes almost no time."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'minibert' has no attribute {name!r}; it has {', '.join(__all__)}.")
    value = getattr(import_module(f"minibert.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
