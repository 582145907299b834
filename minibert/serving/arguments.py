"""Checks of what programs give to `Engine`. What clients send is checked by wire.py, before it comes here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Any, TypeVar

import numpy as np

from minibert._utils.validation import brief, check_int
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving.settings import ServiceError
from minibert.tokenizer.texts import shown

_Options = TypeVar("_Options")
_KINDS = {"bool": bool, "int": int, "str": str}


def named_models(models: object) -> dict[str, SentenceTransformer | CrossEncoder]:
    """Return models by their names; a single one is "default".

    Raises
    ------
    TypeError, ValueError
        There is none, or one of them is of another class.
    """
    named: dict[Any, Any] = dict(models) if isinstance(models, Mapping) else {"default": models}
    if not named:
        raise ValueError("models is empty; an engine needs at least one model.")
    for name, model in named.items():
        where = f"models[{brief(name)}]" if isinstance(models, Mapping) else "models"
        if not isinstance(name, str):
            raise TypeError(f"{where}: the name is a {type(name).__name__}; expected a str.")
        if not name:
            raise ValueError(f"{where}: the name is empty; clients ask for the model by it.")
        if not isinstance(model, SentenceTransformer | CrossEncoder):
            raise TypeError(
                f"{where} is {shown(model)}; expected a SentenceTransformer or a CrossEncoder, or a dict of names and "
                "these. Load a folder or a hub id first: Engine(SentenceTransformer(name))."
            )
    return named


def check_model_name(name: object) -> None:
    """Refuse a name of a model that is not a str."""
    if name is not None and not isinstance(name, str):
        raise ServiceError("invalid", f"model is {shown(name)}; expected the name of a model.", param="model")


def texts_of(inputs: object) -> list[Any]:
    """Return texts, or rows of token ids, as a list of str or of lists of int.

    Raises
    ------
    ServiceError
        It is a text alone or not a list, or an item is not a row of ids. Items among texts are checked later.
    """
    rows = _listed(inputs, "texts, such as [text]")
    if rows and not isinstance(rows[0], str):
        return [_ids(index, row) for index, row in enumerate(rows)]
    return rows


def pairs_of(inputs: object) -> list[tuple[Any, Any]]:
    """Return pairs of texts as a list of tuples; the second text may be None, and is checked later.

    Raises
    ------
    ServiceError
        It is not a list, or an item is not a pair that begins with a str.
    """
    pairs = _listed(inputs, "pairs of texts, such as [(query, text)]")
    for index, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ServiceError(
                "invalid",
                f"input[{index}] is {shown(pair)}; expected two texts, or (text, None) for one alone.",
                param="input",
            )
    return [(first, second) for first, second in pairs]


def options_of(kind: type[_Options], given: Mapping[str, Any]) -> _Options:
    """Make the options of a call, a dataclass whose fields are annotated with simple types.

    Raises
    ------
    TypeError
        There is no such option.
    ServiceError
        An option is of another type.
    """
    fields = {field.name: str(field.type).split(" | ") for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    made = dict(given)
    for name, value in given.items():
        if name not in fields:
            raise TypeError(f"there is no option {brief(name)}; expected {', '.join(fields)}.")
        first, *rest = fields[name]
        if first not in _KINDS or (value is None and rest) or len(rest) > 1:  # `encode` checks layers and pooling
            continue
        also = ", or None" if rest else ""
        try:
            if first == "int":
                made[name] = check_int(name, value, also=also)
            elif not isinstance(value, _KINDS[first]):
                raise TypeError(f"{name}={brief(value)}; expected a {first}{also}.")
        except TypeError as error:
            raise ServiceError("invalid", str(error), param=name) from None
    return kind(**made)


def _listed(inputs: object, expected: str) -> list[Any]:
    countable = hasattr(inputs, "__len__") and hasattr(inputs, "__iter__")
    if countable and not isinstance(inputs, str | bytes | Mapping | Set):
        try:
            return [*inputs]  # type: ignore[misc]
        except TypeError:  # an array without axes
            pass
    raise ServiceError("invalid", f"inputs is {shown(inputs)}; expected a list of {expected}.", param="input")


def _ids(index: int, row: object) -> list[int]:
    try:
        if isinstance(row, list | tuple | np.ndarray):
            return [check_int("id", one) for one in row]
    except TypeError:  # an item is not an int, or an array does not have axes
        pass
    raise ServiceError(
        "invalid", f"input[{index}] is {shown(row)}; expected a str, or a list of token ids.", param="input"
    )
