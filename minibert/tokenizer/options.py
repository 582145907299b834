"""The settings of a tokenizer as keywords: those that a from_pretrained is given, and those that are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibert._utils.keywords import check_agreement
from minibert.tokenizer.files import SPECIAL_TOKEN_NAMES, normalizer_settings
from minibert.tokenizer.padding import Padding
from minibert.tokenizer.vocabulary import EXTRA_NAMES

__all__ = ["GONE", "SETTINGS", "set_asked", "settings_of"]

# Methods of transformers 4 that transformers 5 and minibert do not have -> what to use.
GONE = {
    "encode_plus": "call the tokenizer itself: tokenizer(text, ...)",
    "batch_encode_plus": "call the tokenizer itself: tokenizer(texts, ...)",
    "prepare_for_model": "call the tokenizer itself: tokenizer(text, ...)",
    "build_inputs_with_special_tokens": "call tokenizer.encode(text), or tokenizer(text, text_pair)",
    "create_token_type_ids_from_sequences": "call the tokenizer itself; the result holds token_type_ids",
    "save_vocabulary": "call save_pretrained(folder), which writes vocab.txt too",
    "additional_special_tokens": "it is extra_special_tokens in transformers 5",
    "additional_special_tokens_ids": "it is extra_special_tokens_ids in transformers 5",
    "train_new_from_iterator": "train a tokenizer with the tokenizers library, and load its folder here",
    "push_to_hub": "call save_pretrained(folder), then run `hf upload`",
}

# Settings that decide the tokens of a text. A keyword of this name must agree with the model.
_SETTINGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "unk_token", "sep_token", "cls_token")

# Special tokens that do not decide the tokens of other texts: a keyword sets them.
_SETTABLE = tuple(name for name in SPECIAL_TOKEN_NAMES if name not in _SETTINGS)

SETTINGS = (*_SETTINGS, *_SETTABLE, *EXTRA_NAMES, "max_len")
"""The keywords of a from_pretrained that name a setting."""


def set_asked(tokenizer: Padding, call: str, asked: Mapping[str, Any]) -> None:
    """Set the special tokens that a from_pretrained was given, and compare the other settings with the model.

    Raises
    ------
    ValueError
        A setting would change the tokens, or the model has no row for a new token.
    """
    if not asked:
        return
    own = normalizer_settings(tokenizer._tokenizer) | tokenizer.special_tokens_map
    settings = {name: own.get(name) for name in _SETTINGS} | {"do_lower_case": tokenizer.do_lower_case}
    check_agreement(
        call,
        {name: value for name, value in asked.items() if name in settings},
        settings,
        "It would change the tokens, and the model was trained with its own. Leave it out; or change the setting in "
        "tokenizer_config.json, in a copy of the model's folder.",
    )
    tokens = {name: asked[name] for name in (*_SETTABLE, *EXTRA_NAMES) if asked.get(name) is not None}
    if tokens:
        tokenizer.add_special_tokens(tokens)


def settings_of(tokenizer: Padding) -> dict[str, Any]:
    """Return the settings of a tokenizer under their names in tokenizer_config.json."""
    settings: dict[str, Any] = normalizer_settings(tokenizer._tokenizer) | tokenizer.special_tokens_map
    if tokenizer.extra_special_tokens:
        settings["extra_special_tokens"] = tokenizer.extra_special_tokens
    if tokenizer.model_max_length is not None:
        settings["model_max_length"] = tokenizer.model_max_length
    for name in ("padding_side", "truncation_side", "clean_up_tokenization_spaces"):
        settings[name] = getattr(tokenizer, name)
    return settings
