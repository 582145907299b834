"""The texts that retrieval models want before each input, for repositories that do not store them.

Every text stands on its model's card; families are found by hub id, or by `_name_or_path` in config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["FAMILIES", "builtin_prompts", "check_prompts"]

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

FAMILIES = ("intfloat/e5", "BAAI/bge", "Snowflake/snowflake-arctic-embed", "mixedbread-ai/mxbai-embed")
"""The families of the table, for messages."""


def builtin_prompts(*names: object) -> dict[str, str]:
    """Return the prompts of the first of some model names that the table knows; empty where it knows none.

    Parameters
    ----------
    *names : hub ids, or whatever stands in their place; what is no str is passed over
    """
    for name in names:
        for pattern, prompts in _TABLE:
            if isinstance(name, str) and re.fullmatch(pattern, name, flags=re.IGNORECASE):
                return dict(prompts)
    return {}


def check_prompts(prompts: object, where: str, error: type[Exception]) -> dict[str, str]:
    """Return prompts as a new dict; raise `error`, naming the place, for what are no texts by name."""
    if not isinstance(prompts, Mapping) or not all(isinstance(x, str) for x in [*prompts, *prompts.values()]):
        raise error(f"{where} must hold prompts as texts by name, not {prompts!r}.")
    return dict(prompts)
