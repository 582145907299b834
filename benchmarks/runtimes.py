"""The runtimes that `benchmarks.ports` compares with the float64 truth: each runs a checkpoint on inputs.

A runtime that is not installed, or that cannot run the checkpoint or the inputs, raises `LeftOutError` with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import export_onnx, fuse
from minibert import BertModel
from minibert.checkpoint.files import locate
from minibert.checkpoint.tensors import open_checkpoint

Inputs = Mapping[str, Any]
Dump = Mapping[str, Any]
Runtime = Callable[[Path, Inputs, Path], Dump]
"""Runs the checkpoint of a folder on inputs, and returns values by name; the last argument is a scratch folder."""


class LeftOutError(Exception):
    """A runtime cannot run this checkpoint or these inputs; the message is the reason."""


def exported(folder: Path, scratch: Path) -> Path:
    """Export the checkpoint as an ONNX graph, once; return its path."""
    path = scratch / "model.onnx"
    return path if path.is_file() else export_onnx(folder, scratch)[0]


def shown_rows(inputs: Inputs, name: str) -> list[np.ndarray]:
    """Return the visible entries of each row of an input."""
    rows = zip(np.asarray(inputs[name]), np.asarray(inputs["attention_mask"]), strict=True)
    return [row[mask > 0] for row, mask in rows]


def without_holes(inputs: Inputs) -> None:
    """Check that each row is visible up to a length, because the runtime takes lengths and no mask."""
    mask = np.asarray(inputs["attention_mask"])
    if (np.diff(mask, axis=1) > 0).any() or not mask[:, 0].all():
        raise LeftOutError("takes lengths, so no holes and no padding on the left")


def _transformers(attention: str) -> Runtime:
    def run(folder: Path, inputs: Inputs, scratch: Path) -> Dump:
        """Keep the output of each module, and of a checkpoint without a pooler none of a pooler."""
        import torch
        import transformers

        pooler = any(name.endswith("pooler.dense.weight") for name in open_checkpoint(locate(str(folder))))
        model = transformers.BertModel.from_pretrained(
            folder, attn_implementation=attention, dtype="float32", add_pooling_layer=pooler
        ).eval()
        values: dict[str, Any] = {}

        def keep(name: str, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if torch.is_tensor(first):
                values[name] = first.numpy().copy()

        for name, module in model.named_modules():
            if name:
                module.register_forward_hook(lambda module, inputs, output, name=name: keep(name, output))
        eager = attention == "eager"
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(np.asarray(value)) for name, value in inputs.items()}
            output = model(**tensors, output_hidden_states=True, output_attentions=eager)
        values |= {f"hidden_states.{i}": state.numpy() for i, state in enumerate(output.hidden_states)}
        return values | {f"attentions.{i}": probs.numpy() for i, probs in enumerate(output.attentions or ())}

    return run


# The last ops of modules; the names of their outputs are in minibert/trace/names.py.
_LAST_OPS = ("Add", "LayerNormalization", "Softmax", "Gather", "Gemm", "Tanh")


def _run_graph(path: Path, inputs: Inputs) -> Dump:
    """Run a graph with onnxruntime; all values of modules are outputs."""
    import onnx
    import onnxruntime

    graph = onnx.load(str(path))
    names = [name for node in graph.graph.node if node.op_type in _LAST_OPS for name in node.output]
    graph.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names if name.startswith("/"))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = session.run(None, {node.name: np.asarray(inputs[node.name], np.int64) for node in session.get_inputs()})
    return dict(zip((node.name for node in session.get_outputs()), values, strict=True))


def _onnxruntime(folder: Path, inputs: Inputs, scratch: Path) -> Dump:
    return _run_graph(exported(folder, scratch), inputs)


def _onnxruntime_fused(folder: Path, inputs: Inputs, scratch: Path) -> Dump:
    path = scratch / "fused.onnx"
    if not path.is_file():
        fuse(exported(folder, scratch), BertModel.from_pretrained(folder, backend="numpy").config, path)
    return _run_graph(path, inputs)


def _openvino(folder: Path, inputs: Inputs, scratch: Path) -> Dump:
    """Run the exported graph in float32; all values of modules are outputs."""
    import openvino

    core = openvino.Core()
    graph = core.read_model(str(exported(folder, scratch)))
    names = {name for op in graph.get_ops() for output in op.outputs() for name in output.get_names()}
    names -= {name for output in graph.outputs for name in output.get_names()}
    graph.add_outputs(sorted(n for n in names if n.startswith("/") and n.rpartition("/")[2].startswith(_LAST_OPS)))
    compiled = core.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    result = compiled({one.any_name: np.asarray(inputs[one.any_name], np.int64) for one in compiled.inputs})
    return {name: np.array(result[output]) for output in compiled.outputs for name in output.get_names()}


def _minibert(backend: str) -> Runtime:
    def run(folder: Path, inputs: Inputs, scratch: Path) -> Dump:
        return {**BertModel.from_pretrained(folder, backend=backend).trace(**inputs)}

    return run


def _sentence_transformers(folder: Path, inputs: Inputs, scratch: Path) -> Dump:
    """Give the ids to its modules, so that it sees the same mask."""
    import sentence_transformers
    import torch

    if not (folder / "modules.json").is_file():
        raise LeftOutError("this checkpoint has no modules.json")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    with torch.inference_mode():
        output = model({name: torch.from_numpy(np.asarray(value)) for name, value in inputs.items()})
    return {
        "sentence_embedding": output["sentence_embedding"].numpy(),
        "token_embeddings": output["token_embeddings"].numpy(),
    }


def ctranslate2_files(folder: Path, scratch: Path, quantization: str) -> Path:
    """Convert a checkpoint for CTranslate2, once; return the folder."""
    from ctranslate2.converters import TransformersConverter

    converted = scratch / "ctranslate2"
    if not converted.is_dir():
        copied = Path(shutil.copytree(folder, scratch / "ctranslate2 from"))
        config = json.loads((copied / "config.json").read_text(encoding="utf-8"))
        # transformers 5 does not have this field of older checkpoints any more; the converter reads it.
        (copied / "config.json").write_text(json.dumps({"position_embedding_type": "absolute", **config}))
        TransformersConverter(str(copied)).convert(str(converted), quantization=quantization)
    return converted


def _ctranslate2(folder: Path, inputs: Inputs, scratch: Path) -> Dump:
    """Run CTranslate2's encoder, which takes lengths and no mask."""
    import ctranslate2

    without_holes(inputs)
    converted = ctranslate2_files(folder, scratch, "float32")
    encoder = ctranslate2.Encoder(str(converted), device="cpu", compute_type="float32")
    ids, types = ([row.tolist() for row in shown_rows(inputs, name)] for name in ("input_ids", "token_type_ids"))
    output = encoder.forward_batch(ids, token_type_ids=types)
    return {"last_hidden_state": np.array(output.last_hidden_state)}


def _keras_hub(folder: Path, inputs: Inputs, scratch: Path) -> Dump:
    """Run keras-hub's BertBackbone with the weights of the folder, as its own converter reads them."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras_hub

    backbone = keras_hub.models.BertBackbone.from_preset(str(folder))
    output = backbone.predict(
        {
            "token_ids": np.asarray(inputs["input_ids"]),
            "segment_ids": np.asarray(inputs["token_type_ids"]),
            "padding_mask": np.asarray(inputs["attention_mask"]),
        },
        verbose=0,
    )
    return {"last_hidden_state": output["sequence_output"], "pooler_output": output["pooled_output"]}


RUNTIMES: dict[str, Runtime] = {
    "minibert, kernels": _minibert("kernels"),
    "minibert, numpy": _minibert("numpy"),
    "transformers, eager": _transformers("eager"),
    "transformers, sdpa": _transformers("sdpa"),
    "sentence-transformers": _sentence_transformers,
    "onnxruntime": _onnxruntime,
    "onnxruntime, fused": _onnxruntime_fused,
    "OpenVINO, float32": _openvino,
    "CTranslate2": _ctranslate2,
    "keras-hub": _keras_hub,
}
"""The runtimes that are Python packages, by name."""
