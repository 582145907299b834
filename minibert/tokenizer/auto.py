"""`AutoTokenizer`: transformers' name for the tokenizer that fits a checkpoint; here it is BERT's."""

from __future__ import annotations

import os
from typing import Any

from minibert._utils.keywords import given_name
from minibert.bert.config import check_model_type
from minibert.checkpoint.files import locate
from minibert.tokenizer.bert_tokenizer import BertTokenizer

__all__ = ["AutoTokenizer"]

_WHERE = ("revision", "cache_dir", "token", "local_files_only", "subfolder")


class AutoTokenizer:
    """The tokenizer of a BERT checkpoint: `from_pretrained` gives a `BertTokenizer`."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        raise TypeError("AutoTokenizer is not a tokenizer. Call AutoTokenizer.from_pretrained(name_or_path).")

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> BertTokenizer:
        """Load the tokenizer of a BERT model, as `BertTokenizer.from_pretrained` does.

        Raises
        ------
        ModelFormatError
            config.json says that the model is of another type; or as in `BertTokenizer.from_pretrained`.
        """
        name = given_name("AutoTokenizer.from_pretrained", name_or_path, options)
        files = locate(name, **{option: options[option] for option in _WHERE if option in options})
        check_model_type(files.settings("config.json"))
        return BertTokenizer.from_pretrained(name, **options)
