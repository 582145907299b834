"""Prompts: the texts that retrieval models expect before each input.

They come from the model's files, from the caller, or from the table in this module. The table holds prompts that model
cards document but repositories do not store. It is searched by hub id, and by `_name_or_path` of config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from minibert._utils.reporting import warn_caller
from minibert._utils.validation import brief
from minibert.errors import ModelFormatError
from minibert.tokenizer.texts import check_text

_E5 = {"query": "query: ", "passage": "passage: "}
_SEARCH = {"query": "Represent this sentence for searching relevant passages: "}
_SEARCH_ZH = {"query": "为这个句子生成表示以用于检索相关文章："}

_TABLE: tuple[tuple[str, dict[str, str]], ...] = (
    # https://huggingface.co/intfloat/e5-base-v2: "Each input text should start with "query: " or "passage: "".
    (r"intfloat/(e5-(small|base|large)(-v2)?|multilingual-e5-small)", _E5),
    # https://huggingface.co/BAAI/bge-base-en-v1.5, the table of its "Model List".
    (r"BAAI/bge-(small|base|large)-en(-v1\.5)?", _SEARCH),
    (r"BAAI/bge-(small|base|large)-zh(-v1\.5)?", _SEARCH_ZH),
    # https://huggingface.co/Snowflake/snowflake-arctic-embed-m, "Usage".
    (r"Snowflake/snowflake-arctic-embed-(xs|s|m|l|m-v1\.5)", _SEARCH),
    # https://huggingface.co/mixedbread-ai/mxbai-embed-large-v1, "Quickstart".
    (r"mixedbread-ai/mxbai-embed-(large|xsmall)-v1", _SEARCH),
)


def builtin_prompts(*names: object) -> dict[str, str]:
    """Return the prompts of the first of these model names that is in the table; an empty dict if none is.

    Parameters
    ----------
    *names : hub ids or paths; other objects than str are ignored
    """
    for name in names:
        for pattern, prompts in _TABLE:
            if isinstance(name, str) and re.fullmatch(pattern, name, flags=re.IGNORECASE):
                return dict(prompts)
    return {}


def merge_prompts(
    stored: Mapping[str, Any],
    given: Mapping[str, str] | str | None,
    builtin: Mapping[str, str],
    source: str,
    always: Iterable[str],
) -> dict[str, str]:
    """Merge a model's stored prompts with the prompts of its card or of the caller.

    Stored prompts replace those of the card. The caller's replace stored ones.

    Parameters
    ----------
    stored : config_sentence_transformers.json's object
    given : dict of str to str, or "builtin", optional
    builtin : as `builtin_prompts` gives them
    source : str
        The model, for messages.

    Returns
    -------
    dict of str to str
        The names in `always` are there, with an empty text if nobody gives one.

    Raises
    ------
    ModelFormatError, TypeError, ValueError
        The stored or given prompts do not map names to texts, or the table does not have prompts of this model's card.
    """
    prompts = check_prompts(stored.get("prompts") or {}, _file(source), ModelFormatError)
    if given == "builtin":
        if not builtin:
            raise ValueError(
                f"prompts='builtin': minibert knows those of E5, BGE, Arctic Embed and mxbai models, and {source} is "
                "not one of them. Give them as prompts={'query': ..., 'document': ...}."
            )
        prompts = {**builtin, **{name: text for name, text in prompts.items() if text}}
    elif given is not None:
        prompts = {**prompts, **check_prompts(given, "prompts", TypeError)}
    return {**dict.fromkeys(always, ""), **prompts}


def choose_default(prompts: Mapping[str, str], stored: Mapping[str, Any], given: str | None, source: str) -> str | None:
    """Return the name of the default prompt: the caller's, else the model's, else None.

    Raises
    ------
    ModelFormatError, ValueError
        The name is not one of the prompts.
    """
    name = given if given is not None else stored.get("default_prompt_name")
    if name is not None and (not isinstance(name, str) or name not in prompts):
        error = ModelFormatError if given is None else ValueError
        where = f"{_file(source)} has " if given is None else ""
        raise error(f"{where}default_prompt_name={brief(name)}, which is not a prompt; expected one of {[*prompts]}.")
    return name


def resolve_prompt(
    prompts: Mapping[str, str], prompt: str | None, prompt_name: str | None, default_prompt_name: str | None
) -> str:
    """Return the text to put before each input: `prompt`, else the prompt with the name, else an empty text.

    Raises
    ------
    TypeError, ValueError
        The prompt is not a text, or the name is not one of the prompts.

    Warns
    -----
    UserWarning
        Both a prompt and a name are given. The name is ignored.
    """
    if prompt is not None:
        check_text(prompt, "prompt")
        if prompt_name is not None:
            warn_caller(
                f"prompt={brief(prompt)} and prompt_name={brief(prompt_name)} are both given; the prompt is used, "
                "and prompt_name is ignored. Give one of them."
            )
        return prompt
    name = prompt_name if prompt_name is not None else default_prompt_name
    if name is None:
        return ""
    if not isinstance(name, str) or name not in prompts:
        raise ValueError(f"prompt_name={brief(name)}; this model has {', '.join(map(repr, prompts)) or 'none'}.")
    return check_text(prompts[name], f"prompts[{name!r}]")  # callers may change the dict


def check_prompts(prompts: object, where: str, error: type[Exception]) -> dict[str, str]:
    """Return prompts as a new dict; raise `error` if they do not map names to texts."""
    if not isinstance(prompts, Mapping) or not all(isinstance(x, str) for x in [*prompts, *prompts.values()]):
        raise error(f"{where} must hold prompts as a mapping of names to texts, not {brief(prompts)}.")
    return dict(prompts)


def _file(source: str) -> str:
    return f"{source}: config_sentence_transformers.json"
