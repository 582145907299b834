"""The mistakes of hints.txt: what somebody may write in the place of a part of right.py, and functions that do so."""

from __future__ import annotations

import builtins
import functools
import importlib.abc
import inspect
import re
import types
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert.learn import right


class Mistake(NamedTuple):
    """One mistake.

    Parameters
    ----------
    section : str       the exercise
    hint : str          a question that leads to it
    text : str          what is wrong
    edits : list of (str, str)      parts of right.py, and what is written instead; none if the numbers show it
    """

    section: str
    hint: str
    text: str
    edits: list[tuple[str, str]]


@functools.cache
def mistakes() -> dict[str, Mistake]:
    """Return all of hints.txt by id: the mistakes, and in the section "Errors" what it says of errors."""
    mistakes: dict[str, Mistake] = {}
    above = section = ""
    for block in (files(__package__) / "hints.txt").read_text(encoding="utf-8").split("\n\n"):
        items = [" ".join(item.split()) for item in re.split(r"^- ", block, flags=re.MULTILINE) if item]
        for _, id, item in (item.split("`", 2) for item in items if item[0] == "`"):
            edits = re.findall("`([^`]+)` -> `([^`]+)`", item)
            mistakes[id] = Mistake(section, above, item.partition(": `")[0].strip(": "), edits)
        above, section = items[0], block.removeprefix("## ") if block.startswith("## ") else section
    return mistakes


@functools.cache
def mistakes_in(exercise: str) -> list[str]:
    """Return the ids of the mistakes in a function, and in those that it calls."""
    parts = dict(re.findall(r"^def (\w+)(.*?)(?=^def |\Z)", inspect.getsource(right), re.MULTILINE | re.DOTALL))
    seen: set[str] = set()
    names = {exercise}
    while names := names - seen:
        seen |= names
        names = {name for function in names for name in re.findall(r"(\w+)\(", parts[function]) if name in parts}
    text = "".join(parts[name] for name in seen)
    known = {id: mistake for id, mistake in mistakes().items() if mistake.section != "batch" or exercise == "batch"}
    return [id for id, mistake in known.items() if any(old in text for old, _ in mistake.edits)]


def execute(source: str, module: types.ModuleType, path: str = "<string>") -> None:
    """Run the source of a module."""
    vars(module)["__builtins__"] = builtins  # NumPy looks for it in what calls it
    types.FunctionType(importlib.abc.InspectLoader.source_to_code(source, path), vars(module))()


@functools.cache
def functions(id: str = "") -> Mapping[str, Callable[..., Any]]:
    """Return the functions of right.py by name, with a mistake."""
    if not id:
        return right.RIGHT
    edits = [edit for one in id.split() for edit in mistakes()[one].edits]
    module = types.ModuleType(right.__name__)
    execute(functools.reduce(lambda text, edit: text.replace(*edit), edits, inspect.getsource(right)), module)
    return module.RIGHT


def run(exercise: str, *arguments: Any, dtype: npt.DTypeLike = np.float64, mistake: str = "") -> Any:
    """Call a right function, or one with a mistake, with arrays, lists or tensors; it computes in `dtype`."""

    def convert(argument: Any, name: str = "embeddings") -> Any:
        if isinstance(argument, str | int | float) or argument is None or exercise == "tokenize":
            return argument
        if isinstance(argument, Mapping):
            return {name: convert(value, name) for name, value in argument.items()}
        array = np.asarray(argument)
        # The others become float64 where they meet float64: weights of layers, and rows of the large table of words.
        converted = array.dtype.kind == "f" and array.size < 2**22 and name.startswith("embeddings")
        return array.astype(dtype, copy=False) if converted else array

    return functions(mistake)[exercise](*map(convert, arguments))


def as_list(result: Any) -> list[Any]:
    """Return a result as a list: of tokens, of the states and the vector, or of one array."""
    return [*result[0], result[1]] if isinstance(result, tuple) else result if isinstance(result, list) else [result]
