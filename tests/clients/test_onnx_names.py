"""The names of an exported ONNX graph: each alias of the table against the value that onnxruntime computes there."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks.checkpoints import random_checkpoint
from minibert import BertModel
from tests.support.report import REPORT

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        find_spec("onnx") is None or find_spec("onnxruntime") is None, reason="onnx and onnxruntime are not installed"
    ),
]

# Exports the model, makes every value an output of the graph, and runs it without fusing anything.
_PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np, onnx, onnxruntime, torch
from transformers import BertModel

folder, source, graph_file, result, opset = sys.argv[1:]
inputs = dict(np.load(source))
names = ["input_ids", "attention_mask", "token_type_ids"]

class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    def forward(self, input_ids, attention_mask, token_type_ids):
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return output.last_hidden_state, output.pooler_output

arguments = tuple(torch.as_tensor(inputs[name]) for name in names)
torch.onnx.export(Both().eval(), arguments, graph_file, input_names=names, opset_version=int(opset), dynamo=False)
graph = onnx.load(graph_file)
outputs = {value.name for value in graph.graph.output}
found = [name for node in graph.graph.node for name in node.output if name.startswith("/") and name not in outputs]
graph.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in found)
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
needed = {value.name for value in session.get_inputs()}
values = session.run(found, {name: inputs[name] for name in names if name in needed})
np.savez(result, names=np.array(found), **{f"value {i}": value for i, value in enumerate(values)})
"""


@pytest.mark.parametrize("opset", [14, 17])
def test_every_alias_has_the_value_of_the_graph(opset: int, tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path / "model")
    generator = np.random.default_rng(0)
    mask = np.ones((4, 11), dtype=np.int64)
    mask[1, 7:], mask[2, [2, 5]] = 0, 0
    ids, types = generator.integers(90, size=mask.shape), generator.integers(2, size=mask.shape)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    np.savez(tmp_path / "inputs.npz", **inputs)
    files = [folder, *(tmp_path / name for name in ("inputs.npz", "model.onnx", "values.npz"))]
    command = [sys.executable, "-c", _PROGRAM, *map(str, files), str(opset)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    trace = BertModel.from_pretrained(folder).trace(**inputs)
    values, seen = np.load(tmp_path / "values.npz"), set()
    shown = mask.astype(bool)
    for i, name in enumerate(values["names"].tolist()):
        if name not in trace:
            continue
        ours = trace[name]
        theirs = np.broadcast_to(values[f"value {i}"], ours.shape)  # positions are the same in all rows
        where = shown if ours.ndim == 3 else shown[:, 0]
        if ours.ndim == 4:
            where = np.broadcast_to(shown[:, None, :, None] & shown[:, None, None], ours.shape)
        np.testing.assert_allclose(theirs[where], ours[where], rtol=0, atol=2e-5, err_msg=name)
        seen.add(trace._names.resolve(name)[0])
    assert len(seen) >= 5 + 2 * 10, f"not seen: {sorted(set(trace) - seen)}"
    REPORT.append(f"ONNX, opset {opset}: {len(seen)} names of the table have the values of the graph")
