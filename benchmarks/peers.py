"""Run another library on the same inputs, and return its values by name, for `benchmarks.ports`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert._utils.files import printable
from minibert._utils.system import missing_library
from minibert._utils.torch_interop import to_tensor
from minibert._utils.validation import brief
from minibert.checkpoint.files import ModelFiles
from minibert.checkpoint.tensors import open_checkpoint
from minibert.parity.dumps import Dump
from minibert.parity.truth import INPUTS


def run_peer(library: str, files: Sequence[str], model: ModelFiles, inputs: Mapping[str, Any]) -> Dump:
    """Run an installed library, and return all values that it exposes.

    Parameters
    ----------
    library : str               a key of `PEERS`
    files : sequence of str     for "onnx" the exported model
    model : ModelFiles          the checkpoint, for "transformers"
    inputs : mapping of str to int array

    Raises
    ------
    ImportError
        The library is not installed.
    ValueError
        The library is unknown, cannot run the file, or a file is missing.
    """
    if library not in PEERS:
        raise ValueError(f"against={brief(library)}; expected one of {', '.join(PEERS)}.")
    return PEERS[library](list(files), model, inputs)


# --- transformers -----------------------------------------------------------------------------------------------------


def _transformers(files: list[str], model: ModelFiles, inputs: Mapping[str, Any]) -> Dump:
    """Run transformers' model in float32, and keep the output of each of its modules."""
    attention = files[0] if files else "eager"
    if len(files) > 1 or attention not in ("eager", "sdpa"):
        raise ValueError(f"transformers takes eager or sdpa; given was {brief(files)}.")
    try:
        import transformers
    except ImportError as error:
        raise missing_library("this comparison", error, "transformers", "torch") from error
    folder = model.require("config.json").parent
    try:
        with _silent(transformers.utils.logging):
            theirs: Any = transformers.BertModel.from_pretrained(
                os.fspath(folder), attn_implementation=attention, dtype="float32", local_files_only=True
            )
        theirs.eval()
        found: Dump = {}
        handles = [
            module.register_forward_hook(_keeper(found, name)) for name, module in theirs.named_modules() if name
        ]
        output = theirs(
            **{name: to_tensor(np.asarray(value)) for name, value in inputs.items()},
            output_hidden_states=True,
            output_attentions=attention == "eager",
        )
        for handle in handles:
            handle.remove()
    except Exception as error:  # a foreign library raises errors of many types
        raise ValueError(f"transformers cannot run {printable(str(folder))}: {_first_line(error)}") from error
    found |= {f"hidden_states.{i}": _array(state) for i, state in enumerate(output.hidden_states)}
    found |= {f"attentions.{i}": _array(probs) for i, probs in enumerate(output.attentions or ()) if probs is not None}
    if "pooler.dense.weight" not in {name.removeprefix("bert.") for name in open_checkpoint(model)}:
        found = {name: value for name, value in found.items() if not name.startswith("pooler")}
    return found


@contextlib.contextmanager
def _silent(logging: Any) -> Iterator[None]:
    """Let transformers load without bars and without its table of tensors that are not used."""
    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _keeper(found: Dump, name: str) -> Any:
    def keep(module: Any, inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if hasattr(first, "detach"):
            found[name] = _array(first)

    return keep


def _array(tensor: Any) -> Any:
    return tensor.detach().numpy().copy()


# --- exported models --------------------------------------------------------------------------------------------------


def _onnx(files: list[str], model: ModelFiles, inputs: Mapping[str, Any]) -> Dump:
    """Run an .onnx file with onnxruntime; with the package onnx, all values whose names mean something are kept."""
    if len(files) != 1 or not Path(files[0]).is_file():
        raise ValueError(f"onnx needs one file of an exported model; given was {brief(files)}.")
    path = Path(files[0])
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_library("this comparison", error, "onnxruntime") from error
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(_with_outputs(path), options, providers=["CPUExecutionProvider"])
        given = {one.name: _typed(inputs, one.name, one.type) for one in session.get_inputs()}
        names = [one.name for one in session.get_outputs()]
        values = session.run(names, given)
    except Exception as error:  # a foreign library raises errors of many types
        raise ValueError(f"onnxruntime cannot run {printable(str(path))}: {_first_line(error)}") from error
    return {name: np.asarray(value) for name, value in zip(names, values, strict=True) if np.asarray(value).size}


def _with_outputs(path: Path) -> Any:
    """Return a graph all of whose values are outputs; without the package onnx, or for a large graph, the file."""
    if path.stat().st_size > 2**30 or list(path.parent.glob(f"{path.name}*data")):
        return os.fspath(path)
    try:
        import onnx
    except ImportError:
        return os.fspath(path)
    graph = onnx.load(os.fspath(path))
    there = {one.name for one in graph.graph.output}
    for node in graph.graph.node:
        for name in node.output:
            if name.startswith("/") and name not in there and node.op_type in _OPS:
                graph.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return graph.SerializeToString()


# The last ops of modules; the names of their outputs are in trace/names.py.
_OPS = ("Add", "LayerNormalization", "Softmax", "Gather", "Gemm", "Tanh")


def _typed(inputs: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in INPUTS:
        raise ValueError(f"its input {name} is unknown; expected {', '.join(INPUTS)}")
    default = np.zeros_like if name == "token_type_ids" else np.ones_like
    value = inputs[name] if name in inputs else default(inputs["input_ids"])
    return np.asarray(value, np.int32 if "int32" in kind or "i32" in kind else np.int64)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).split("\n")), "")[:300] or type(error).__name__


PEERS = {"transformers": _transformers, "onnx": _onnx}
"""The libraries that `run_peer` can run."""
