"""The call tree that transformers' model_addition_debugger_context writes -> arrays by name.

A node has module_path ("BertModel.encoder.layer.0.attention.self.query"), inputs, outputs and children. Only modules
without children have outputs. With use_repr=False each tensor is in a safetensors file beside the tree; with
use_repr=True, the default, the tree holds the text that printing gives, from which numbers are missing.
Source: transformers 5.23, model_debugging_utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy.typing as npt

from minibert._utils.files import printable
from minibert._utils.validation import brief
from minibert.parity.numbers import DEEPEST

__all__ = ["TREE_SUFFIX", "TREE_SUFFIXES", "read_tree"]

TREE_SUFFIX = "_debug_tree_FULL_TENSORS.json"
TREE_SUFFIXES = (TREE_SUFFIX, "_debug_tree_SUMMARY.json")

_REMEDY = (
    "Write it again with model_addition_debugger_context(model, debug_path=..., use_repr=False, do_prune_layers=False)."
)
# Modules whose input is a value of its own; the inputs of the others are outputs of other modules.
_WITH_INPUT = re.compile(r"(?:LayerNorm|\boutput\.dense|intermediate\.dense)$")
_LAYER = re.compile(r"encoder\.layer\.(\d{1,6})$")

Load = Callable[[Path], npt.NDArray[Any]]


def read_tree(tree: Any, path: Path, load: Load) -> dict[str, npt.NDArray[Any]]:
    """Return the values of a call tree by name: outputs of modules, and inputs as "module.input".

    Parameters
    ----------
    tree : the parsed JSON of the file `path`
    load : reads the tensor of a safetensors file

    Raises
    ------
    ValueError
        It is the summary, which has no values; its tensors are printed text; layers were left out; or it is damaged.
    """
    shown = printable(str(path))
    if path.name.endswith("SUMMARY.json"):
        raise ValueError(f"{shown} is the summary, which has no values. Give the file that ends in {TREE_SUFFIX}.")
    if not isinstance(tree, dict) or not isinstance(tree.get("module_path"), str):
        raise ValueError(f"{shown} is not a call tree of transformers: it has no module_path. {_REMEDY}")
    nodes = list(_nodes(tree, shown))
    root = tree["module_path"]
    layers = sorted({int(match[1]) for path_, _ in nodes if (match := _LAYER.search(path_))})
    if layers and layers != list(range(layers[-1] + 1)):
        raise ValueError(f"{shown} has only the layers {', '.join(map(str, layers))}; others were left out. {_REMEDY}")
    values: dict[str, npt.NDArray[Any]] = {}
    for module, node in nodes:
        name = module.removeprefix(f"{root}.").removeprefix("bert.")
        if name == root:
            continue
        for key, end in (("outputs", ""), ("inputs", ".input")):
            if end and not _WITH_INPUT.search(name):
                continue
            file = _first_tensor(node.get(key), shown)
            if file is not None and f"{name}{end}" not in values:
                values[f"{name}{end}"] = load(_beside(path, file, shown))
    return values


def _nodes(tree: dict[str, Any], shown: str) -> Iterator[tuple[str, dict[str, Any]]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        children = node.get("children") if isinstance(node, dict) else None
        if not isinstance(node, dict) or not isinstance(node.get("module_path"), str):
            raise ValueError(f"{shown} has a node {brief(node)}; expected an object with module_path. {_REMEDY}")
        yield node["module_path"], node
        if isinstance(children, list):
            waiting += reversed(children)


def _first_tensor(value: Any, shown: str, depth: int = 0) -> str | None:
    """Return the file of the first tensor among the inputs or outputs of a module; None if there is none."""
    if depth > DEEPEST:
        raise ValueError(f"{shown} has inputs or outputs of more than {DEEPEST} levels. {_REMEDY}")
    if isinstance(value, dict) and {"shape", "dtype", "value"} <= set(value):
        stored = value["value"]
        if isinstance(stored, list):
            raise ValueError(f"{shown} holds printed tensors, from which most numbers are missing. {_REMEDY}")
        return stored if isinstance(stored, str) else None
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return next((file for part in parts[:8] if (file := _first_tensor(part, shown, depth + 1)) is not None), None)


def _beside(path: Path, file: str, shown: str) -> Path:
    name = PurePosixPath(file).name
    if file not in (name, f"./{name}") or not name.endswith(".safetensors"):
        raise ValueError(f"{shown} names the file {brief(file)}; expected a safetensors file in the same folder.")
    return path.parent / name
