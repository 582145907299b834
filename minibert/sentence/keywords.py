"""Keywords of sentence-transformers' constructor: values that change nothing here are accepted, others are refused.

Programs and libraries pass these keywords even where they mean nothing, such as ``trust_remote_code=False`` or
``model_kwargs={}``. What the keywords inside the dicts may be is said by the tables of `minibert._utils.keywords`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from minibert._utils.keywords import HUB_KEYWORDS, MODEL_KEYWORDS, TOKENIZER_KEYWORDS, Keyword, check_keywords
from minibert._utils.validation import brief, check_int
from minibert.bert.config import SETTINGS as CONFIG_SETTINGS
from minibert.bert.config import BertConfig, check_settings
from minibert.tokenizer.bert_tokenizer import SETTINGS, BertTokenizer

__all__ = ["Asked", "check_backend", "check_config", "check_constructor", "choose_token", "set_keywords"]


class Asked(NamedTuple):
    """The keywords inside the dicts that name a setting, to be compared with the model when it is found."""

    tokenizer: dict[str, Any]
    model: dict[str, Any]
    config: dict[str, Any]


_ANYTHING = Keyword(lambda value: True, "any value", "")

_TOKENIZER = "BertTokenizer.from_pretrained"

# Sentence vectors use neither the pooler nor other outputs than the hidden states; scores have outputs of their own.
_OUTPUTS = dict.fromkeys(("add_pooling_layer", "output_hidden_states", "output_attentions", "return_dict"), _ANYTHING)

_TABLES: Mapping[str, tuple[str, Mapping[str, Keyword]]] = {
    "model_kwargs": ("BertModel.from_pretrained", {**MODEL_KEYWORDS, **_OUTPUTS}),
    "processor_kwargs": (
        _TOKENIZER,
        {
            **TOKENIZER_KEYWORDS,
            "clean_up_tokenization_spaces": _ANYTHING,  # of decoding only
            "padding_side": Keyword(
                lambda value: value in (None, "right"),
                "'right'",
                "Vectors are computed without padding; padding on the left would shift the positions. Leave it out.",
            ),
            "truncation_side": Keyword(
                lambda value: value in (None, "right"), "'right'", "minibert cuts the end of a text. Leave it out."
            ),
        },
    ),
    "config_kwargs": ("BertConfig.from_pretrained", {**MODEL_KEYWORDS, **_OUTPUTS}),
}


def check_constructor(
    call: str,
    *,
    modules: object,
    trust_remote_code: object,
    model_kwargs: object,
    processor_kwargs: object,
    tokenizer_kwargs: object,
    config_kwargs: object,
) -> Asked:
    """Refuse values that would change the vectors, or that minibert cannot heed.

    Parameters
    ----------
    call : str
        The class, for messages.
    others : the keywords

    Returns
    -------
    Asked
        The keywords that name a setting of the tokenizer, for `set_keywords`, or of the config, for `check_config`.

    Raises
    ------
    TypeError, ValueError
        The message names the keyword, the values that it can have, and what to do instead.
    """
    if modules is not None:
        raise ValueError(
            f"{call}(modules={brief(modules)}); expected None: minibert does not run modules of torch. Save that "
            "model with sentence-transformers, model.save_pretrained(folder), and give the folder."
        )
    check_keywords(call, {"trust_remote_code": trust_remote_code}, HUB_KEYWORDS)
    if processor_kwargs and tokenizer_kwargs:
        raise TypeError("tokenizer_kwargs= is the old name of processor_kwargs=; give one of them.")
    settings = (*SETTINGS, "model_max_length")
    asked = _check_inner(call, "processor_kwargs", processor_kwargs, settings)
    return Asked(
        asked | _check_inner(call, "tokenizer_kwargs", tokenizer_kwargs, settings),
        _check_inner(call, "model_kwargs", model_kwargs, CONFIG_SETTINGS),
        _check_inner(call, "config_kwargs", config_kwargs, CONFIG_SETTINGS),
    )


def check_config(call: str, config: BertConfig, asked: Asked, fewer_layers: str) -> None:
    """Raise a ValueError for a keyword of the model or the config whose value is not that of the model.

    `fewer_layers` is a sentence that says how to run fewer layers.
    """
    change = "save the model with {} in its config, with transformers, and give the folder"
    for name, given in (("model_kwargs", asked.model), ("config_kwargs", asked.config)):
        try:
            check_settings(_TABLES[name][0], given, config, change, fewer_layers)
        except ValueError as error:
            raise ValueError(f"{name} of {call}: {error}") from None


def set_keywords(call: str, tokenizer: BertTokenizer, asked: Asked) -> None:
    """Set `model_max_length` of a tokenizer, and compare the other settings that were asked for with its own."""
    others = dict(asked.tokenizer)
    limit = others.pop("model_max_length", None)
    limit = others.pop("max_len", limit)
    try:
        tokenizer.set_asked(_TOKENIZER, others)
        if limit is not None:
            tokenizer.model_max_length = check_int("model_max_length", limit, 1)
    except (TypeError, ValueError) as error:
        raise type(error)(f"processor_kwargs of {call}: {error}") from None


def _check_inner(call: str, name: str, given: object, settings: Collection[str] = ()) -> dict[str, Any]:
    """Check keywords for the model, the tokenizer or the config, given as a dict; return those that name settings."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise TypeError(f"{name}={brief(given)}; expected a dict of keywords, or None.")
    method, table = _TABLES["processor_kwargs" if name == "tokenizer_kwargs" else name]
    try:
        return check_keywords(method, given, table, settings=settings)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} of {call}: {error}") from None


def check_backend(backend: str | None) -> str | None:
    """Return the backend for `BertModel`; "torch", the default of sentence-transformers, means minibert's default.

    Libraries pass ``backend="torch"`` where their user did not choose. "onnx" and "openvino" are a choice, of other
    files and other numbers, so they are refused.
    """
    if isinstance(backend, str) and backend in ("onnx", "openvino"):
        raise ValueError(
            f"backend={backend!r} runs other files of the model in another library; minibert computes by itself. Leave "
            "backend= out."
        )
    return None if isinstance(backend, str) and backend == "torch" else backend


def choose_token(token: str | bool | None, use_auth_token: str | bool | None) -> str | bool | None:
    """Return the access token, which older programs give as `use_auth_token`; TypeError if both are given."""
    if token is not None and use_auth_token is not None:
        raise TypeError("use_auth_token= is the old name of token=; give one of them.")
    return token if use_auth_token is None else use_auth_token
