"""The names and the settings files of sentence-transformers' models."""

from __future__ import annotations

import os
from typing import Any

from minibert._utils.validation import check_stored_int
from minibert.errors import ModelFormatError
from minibert.tokenizer.bert_tokenizer import BertTokenizer

__all__ = ["check_settings", "full_name"]

# Hub ids without an organisation that do not belong to sentence-transformers: the BERT models of that library's list.
_PLAIN_BERT = (
    "bert-base-uncased",
    "bert-base-cased",
    "bert-base-cased-finetuned-mrpc",
    "bert-large-uncased",
    "bert-large-uncased-whole-word-masking",
    "bert-large-uncased-whole-word-masking-finetuned-squad",
    "bert-large-cased",
    "bert-large-cased-whole-word-masking",
    "bert-large-cased-whole-word-masking-finetuned-squad",
    "bert-base-multilingual-uncased",
    "bert-base-multilingual-cased",
    "bert-base-chinese",
    "bert-base-german-cased",
    "bert-base-german-dbmdz-cased",
    "bert-base-german-dbmdz-uncased",
)


def full_name(
    name_or_path: str | os.PathLike[str], organisation: str = "sentence-transformers"
) -> str | os.PathLike[str]:
    """Put an organisation of sentence-transformers before a short hub id, as that library does."""
    if not isinstance(name_or_path, str) or not name_or_path or set(name_or_path) & set("/\\."):
        return name_or_path
    if name_or_path.lower() not in _PLAIN_BERT and not os.path.exists(name_or_path):
        return f"{organisation}/{name_or_path}"
    return name_or_path


def check_settings(
    settings: dict[str, Any],
    tokenizer: BertTokenizer,
    task: str = "feature-extraction",
    output: str = "token_embeddings",
    default_task: str = "feature-extraction",
) -> None:
    """Refuse settings of sentence_bert_config.json that minibert does not implement.

    Parameters
    ----------
    settings : the object in the file
    tokenizer : BertTokenizer
    task, output : str
        What its transformer_task and module_output_name must be.
    default_task : str
        What a file without transformer_task means.
    """
    limit = settings.get("max_seq_length")
    least = tokenizer.num_special_tokens_to_add()
    if limit is not None:
        check_stored_int("sentence_bert_config.json: max_seq_length", limit, least)
    if settings.get("do_lower_case") and not tokenizer.do_lower_case:
        raise ModelFormatError("sentence_bert_config.json: do_lower_case with a cased tokenizer is not implemented.")
    for name, only, default in (("transformer_task", task, default_task), ("module_output_name", output, output)):
        if settings.get(name, default) != only:
            raise ModelFormatError(
                f"sentence_bert_config.json: {name}={settings.get(name, default)!r} is not implemented here; expected "
                f"{only!r}."
            )
    for name in ("processing_kwargs", "query_length", "document_length", "query_expansion"):
        if settings.get(name):
            raise ModelFormatError(f"sentence_bert_config.json: {name}={settings[name]!r} is not implemented.")
