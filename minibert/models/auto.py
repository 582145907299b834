"""`AutoModel` and `AutoConfig`: transformers' names for the classes that fit a checkpoint; here they are BERT's."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from minibert.bert.config import BertConfig
from minibert.models.bert_model import BertModel

__all__ = ["AutoConfig", "AutoModel"]


class AutoModel:
    """The model of a BERT checkpoint: `from_pretrained` gives a `BertModel`."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        raise TypeError("AutoModel is not a model. Call AutoModel.from_pretrained(name_or_path).")

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> BertModel:
        """Load a BERT model, as `BertModel.from_pretrained` does; other types of models are refused by name.

        Raises
        ------
        ModelFormatError
            The checkpoint is not BERT; or as in `BertModel.from_pretrained`.
        """
        return BertModel.from_pretrained(name_or_path, **options)

    @classmethod
    def from_config(cls, config: object, **options: object) -> NoReturn:
        """Refuse to make a model with random weights."""
        raise ValueError("AutoModel.from_config makes random weights; minibert loads trained ones: from_pretrained.")


class AutoConfig:
    """The config of a BERT checkpoint: `from_pretrained` gives a `BertConfig`."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        raise TypeError("AutoConfig is not a config. Call AutoConfig.from_pretrained(name_or_path).")

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> BertConfig:
        """Read a BERT config, as `BertConfig.from_pretrained` does; other types of models are refused by name."""
        return BertConfig.from_pretrained(name_or_path, **options)
