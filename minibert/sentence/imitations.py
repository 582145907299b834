"""What only imitates sentence-transformers: objects that its programs read. minibert computes without them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from minibert.models.bert import BertModel
from minibert.tokenizer.bert_tokenizer import BertTokenizer


class ModelCardData(SimpleNamespace):
    """Data that programs store with a model: any attribute, and scores of evaluators. minibert does not read it."""

    def __init__(self, **fields: Any) -> None:
        self.evaluations: dict[str, dict[str, Any]] = {}
        super().__init__(**fields)

    def set_evaluation_metrics(self, evaluator: Any, metrics: dict[str, Any], epoch: int = 0, step: int = 0) -> None:
        """Store the metrics that an evaluator of sentence-transformers computed, under the evaluator's name."""
        self.evaluations[getattr(evaluator, "name", "") or type(evaluator).__name__] = dict(metrics)


@dataclasses.dataclass(frozen=True)
class Transformer:
    """The attributes of ``model[0]`` that programs read; settings are set on the whole model."""

    auto_model: BertModel
    tokenizer: BertTokenizer
    max_seq_length: int

    @property
    def model(self) -> BertModel:
        """The BERT model, under its name in sentence-transformers 6."""
        return self.auto_model

    def get_word_embedding_dimension(self) -> int:
        """Return the length of the vector of a token."""
        return self.auto_model.config.hidden_size


@dataclasses.dataclass(frozen=True)
class Pooling:
    """The attributes of ``model[1]`` that programs read. To pool otherwise, call ``encode(texts, pooling="cls")``."""

    pooling_mode: str | tuple[str, ...]
    include_prompt: bool
    word_embedding_dimension: int

    def get_config_dict(self) -> dict[str, Any]:
        """Return the contents of this module's config.json."""
        modes = self.pooling_mode if isinstance(self.pooling_mode, str) else list(self.pooling_mode)
        return {
            "embedding_dimension": self.word_embedding_dimension,
            "pooling_mode": modes,
            "include_prompt": self.include_prompt,
        }
