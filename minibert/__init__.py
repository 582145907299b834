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

from minibert._utils.foreign import SubmoduleFinder

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
    from minibert.models.outputs import BertModelOutput
    from minibert.sentence.cross_encoder import CrossEncoder
    from minibert.sentence.sentence_transformers import SentenceTransformer
    from minibert.sentence.sparse_encoder import SparseEncoder
    from minibert.sentence.sparse_vectors import SparseVectors
    from minibert.similarity import SimilarityFunction, quantize_embeddings
    from minibert.tasks.pipelines import pipeline
    from minibert.tokenizer.bert_tokenizer import AutoTokenizer, BertTokenizer, BertTokenizerFast
    from minibert.tokens.embed import embed_tokens
    from minibert.tokens.layers import combine_layers
    from minibert.tokens.occurrences import word_occurrences
    from minibert.tokens.token_vectors import TokenVectors
    from minibert.trace.edits import Edit, head_mask
    from minibert.trace.trace import Trace
    from minibert.util import LoggingHandler

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
    "BertModel": "models.bert_model",
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
    "TokenVectors": "tokens.token_vectors",
    "Trace": "trace.trace",
    "combine_layers": "tokens.layers",
    "embed_tokens": "tokens.embed",
    "head_mask": "trace.edits",
    "load": "models.auto",
    "pipeline": "tasks.pipelines",
    "quantize_embeddings": "similarity",
    "word_occurrences": "tokens.occurrences",
}


_OTHER_MODEL = "minibert runs BERT only; BertModel loads a BERT checkpoint for the same use"
_TRAINING = "minibert does not train; train with transformers or sentence-transformers, and load the folder here"
_FAST = "BertTokenizer; it is as fast"

# Names of transformers and sentence-transformers that people import -> what to use instead. A name leaves this table
# when minibert has it.
_INSTEAD = {
    **dict.fromkeys(("BertLMHeadModel", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"), _OTHER_MODEL),
    **dict.fromkeys(("PreTrainedTokenizerFast", "PreTrainedTokenizer"), _FAST),
    "AutoProcessor": "AutoTokenizer",
    "BatchEncoding": "minibert.tokenizer.batch.TokenizedBatch, which the tokenizer returns",
    "DataCollatorWithPadding": (
        'collate_fn=lambda rows: tokenizer.pad(rows, return_tensors="pt"); transformers\' works with our tokenizer'
    ),
    "default_data_collator": "that of transformers, which works with rows of our tokenizer; it only stacks them",
    **{
        f"{name}Pipeline": f'pipeline("{task}", model=model, tokenizer=tokenizer)'
        for name, task in (
            ("TextClassification", "text-classification"),
            ("TokenClassification", "token-classification"),
            ("FillMask", "fill-mask"),
            ("QuestionAnswering", "question-answering"),
            ("FeatureExtraction", "feature-extraction"),
            ("ZeroShotClassification", "zero-shot-classification"),
        )
    },
    **dict.fromkeys(
        ("DPRContextEncoder", "DPRQuestionEncoder"),
        "SentenceTransformer, with one of the copies such as facebook-dpr-ctx_encoder-single-nq-base",
    ),
    "MultiVectorEncoder": "embed_tokens, which gives a vector for each token, without a projection",
    **dict.fromkeys(
        (
            *("DistilBertModel", "RobertaModel", "XLMRobertaModel", "AlbertModel", "ElectraModel", "MPNetModel"),
            *("DebertaV2Model", "ModernBertModel", "GPT2Model", "T5Model"),
        ),
        _OTHER_MODEL,
    ),
    **dict.fromkeys(
        (
            *("DistilBertTokenizer", "RobertaTokenizer", "AlbertTokenizer", "XLMRobertaTokenizer", "GPT2Tokenizer"),
            *("DistilBertTokenizerFast", "RobertaTokenizerFast", "AlbertTokenizerFast", "XLMRobertaTokenizerFast"),
            *("GPT2TokenizerFast", "MPNetTokenizer", "MPNetTokenizerFast"),
        ),
        "BertTokenizer, for a BERT checkpoint",
    ),
    **dict.fromkeys(
        (
            *("Trainer", "TrainingArguments", "SentenceTransformerTrainer", "SentenceTransformerTrainingArguments"),
            *("InputExample", "losses", "AdamW", "get_linear_schedule_with_warmup", "datasets"),
        ),
        _TRAINING,
    ),
    **dict.fromkeys(("evaluation", "readers", "SentenceTransformerModelCardData"), "sentence-transformers has it"),
    "mine_hard_negatives": "sentence_transformers.util has it, and it works with a model of minibert",
    "logging": 'use Python\'s: logging.getLogger("minibert")',
    "set_seed": "leave it out; minibert has no random numbers",
    "PreTrainedModel": "BertModel",
    "PretrainedConfig": "BertConfig",
}

# Submodules of transformers and sentence-transformers -> the modules that have their names here.
_ALIASES = {
    "minibert.cross_encoder": "minibert.sentence.cross_encoder",
    "minibert.sparse_encoder": "minibert.sentence.sparse_encoder",
    "minibert.sentence_transformer": "minibert.sentence.sentence_transformers",
    "minibert.pipelines": "minibert.tasks.pipelines",
    "minibert.quantization": "minibert.util",
    "minibert.similarity_functions": "minibert.util",
    **{
        f"minibert.util.{name}": "minibert.util"
        for name in ("logging", "quantization", "retrieval", "similarity", "tensor")
    },
}

# Modules that programs use without importing them, as they do with sentence_transformers.util.
_MODULES = ("search", "similarity", "util")

# The modules in which Python handles `from minibert import name`. An AttributeError would lose its message there.
_IMPORT_MODULES = ("importlib._bootstrap", "_frozen_importlib")


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that ``import minibert`` takes almost no time."""
    if name in ("exact", "inside", "parity"):  # modules
        return import_module(f"minibert.{name}")
    if name in _MODULE_OF:
        value = getattr(import_module(f"minibert.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in _MODULES or f"minibert.{name}" in _ALIASES:
        return import_module(f"minibert.{name}")
    if name not in _INSTEAD:
        raise AttributeError(f"module 'minibert' has no attribute {name!r}; it has {', '.join(__all__)}.")
    message = _advice(name)
    if sys._getframe(1).f_globals.get("__name__") in _IMPORT_MODULES:
        raise ImportError(message, name="minibert")
    raise AttributeError(message)


def _advice(name: str) -> str | None:
    """Say what to use instead of a name, or of a module, that minibert does not have; None if that is not known."""
    if name in __all__:
        return f"minibert.{name} is not a module. Write: from minibert import {name}"
    return f"minibert has no {name}. Instead: {_INSTEAD[name]}." if name in _INSTEAD else None


sys.meta_path.append(SubmoduleFinder("minibert", _ALIASES, _advice))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
