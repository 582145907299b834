"""Objects of sentence-transformers that its programs read: the data of a model card, and the first parts of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from minibert._utils.validation import brief, check_bool, check_choice, check_int
from minibert.tokenizer.bert_tokenizer import BertTokenizer


class ModelCardData(SimpleNamespace):
    """Data that programs store with a model: any attribute, and scores of evaluators. minibert does not read it."""

    def __init__(self, **fields: Any) -> None:
        self.evaluations: dict[str, dict[str, Any]] = {}
        super().__init__(**fields)

    def set_evaluation_metrics(self, evaluator: Any, metrics: dict[str, Any], epoch: int = 0, step: int = 0) -> None:
        """Store the metrics that an evaluator of sentence-transformers computed, under the evaluator's name."""
        self.evaluations[getattr(evaluator, "name", "") or type(evaluator).__name__] = dict(metrics)


class Transformer:
    """``model[0]``: the model, the tokenizer, and settings. Only those of a `MultiVectorEncoder` can be set here.

    Attributes
    ----------
    auto_model : BertModel, or the model with the head
    tokenizer : BertTokenizer
    query_length, document_length : int or None
        Of a `MultiVectorEncoder`: the most tokens of a query and of a document; None means `max_seq_length`.
    query_expansion : dict or None
        Of a `MultiVectorEncoder`: what makes short queries longer. "length" is their number of tokens. "strategy" is
        "min", or "fixed": then longer queries are cut to this length. "token" is added, by default the mask token. With
        "attend", all tokens attend to the added ones; without it none does, and the added ones attend to the other
        tokens of the query.
    """

    _settings: tuple[str, ...]  # that can be set
    auto_model: Any
    tokenizer: BertTokenizer
    query_length: int | None
    document_length: int | None
    query_expansion: dict[str, Any] | None

    def __init__(self, auto_model: Any, tokenizer: BertTokenizer, **settings: Any) -> None:
        vars(self).update(auto_model=auto_model, tokenizer=tokenizer, _settings=(*settings,), **dict.fromkeys(settings))
        for name, value in settings.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._settings:
            raise AttributeError(f"{name} cannot be set on model[0]; settings are those of the model, model.{name}.")
        if name == "query_expansion" and value is not None:
            value = self._checked(name, value)
        elif value is not None:
            check_int(name, value, self.tokenizer.num_special_tokens_to_add(), also=", or None")
        super().__setattr__(name, value)

    @property
    def model(self) -> Any:
        """The BERT model, under its name in sentence-transformers 6."""
        return self.auto_model

    @property
    def max_seq_length(self) -> int:
        """The largest number of tokens of one input, special tokens included."""
        config, limit = self.auto_model.config, self.tokenizer.model_max_length
        if limit is None:
            return config.max_length
        return min(check_int("tokenizer.model_max_length", limit, 1), config.longest)

    def get_word_embedding_dimension(self) -> int:
        """Return the length of the vector of a token."""
        return self.auto_model.config.hidden_size

    def __repr__(self) -> str:
        settings = {"max_seq_length": self.max_seq_length, **{name: getattr(self, name) for name in self._settings}}
        shown = [repr(self.auto_model), *(f"{name}={value!r}" for name, value in settings.items())]
        return f"Transformer({', '.join(shown)})"

    def _checked(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole of the settings of an expansion."""
        usual: dict[str, Any] = {"strategy": None, "attend": False, "token": None, "length": None}
        if not isinstance(value, Mapping) or not value.keys() <= usual.keys():
            raise ValueError(f"{name}={brief(value)} has unknown keys; expected {', '.join(usual)}, or None.")
        value, tokenizer, config = {**usual, **value}, self.tokenizer, self.auto_model.config
        check_choice(f"{name}['strategy']", value["strategy"], ("fixed", "min"))
        check_int(f"{name}['length']", value["length"], tokenizer.num_special_tokens_to_add(), config.longest)
        if self.query_length is not None and self.query_length < value["length"]:
            raise ValueError(f"query_length={self.query_length} is less than {name}['length']={value['length']}.")
        if self.id_of(value["token"]) is None:
            raise ValueError(f"{name}['token']={brief(value['token'])}; the vocabulary does not have it.")
        check_bool(f"{name}['attend']", value["attend"])
        if tokenizer.padding_side == "left":
            raise ValueError(f"{name} is not implemented for a tokenizer with padding_side='left'.")
        return value

    def id_of(self, token: str | None) -> int | None:
        """Return the id of the token that makes queries longer; None if the tokenizer does not have it."""
        ids = self.tokenizer
        if token is None:
            return ids.eos_token_id if ids.mask_token_id is None else ids.mask_token_id
        return ids.vocab.get(token) if isinstance(token, str) else None


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
