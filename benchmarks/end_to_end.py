"""The forward pass beside its peers: transformers (sdpa), onnxruntime (fused BERT graph) and OpenVINO (f32).

    python -m benchmarks.end_to_end [--write]

Every contender gets the same ids and the same number of threads, and a process of its own: in one process the waiting
threads of one library keep the cores from the next. Their results are compared first; then they run in turn, again and
again, one at a time, and the median of each is reported. Only the forward pass is timed: ids in, hidden state out.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.environment import environment, usable_cores
from benchmarks.readme import write_between
from minibert.hub import DEFAULT_MODEL, locate
from tests.checkpoints import random_checkpoint

SHAPES = ((1, 22), (1, 128), (8, 128), (32, 128), (4, 512))
Forward = Callable[[np.ndarray], np.ndarray]


def _minibert(folder: Path, threads: int, scratch: Path) -> Forward:
    from minibert import BertModel

    model = BertModel.from_pretrained(folder, output_hidden_states=False, add_pooling_layer=False, num_threads=threads)
    return lambda ids: model(ids).last_hidden_state


def _transformers(folder: Path, threads: int, scratch: Path) -> Forward:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="sdpa", add_pooling_layer=False).eval()

    def forward(ids: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(input_ids=torch.from_numpy(ids)).last_hidden_state.numpy()

    return forward


def _export(folder: Path, scratch: Path) -> tuple[Path, object]:
    """The model as an ONNX graph of three inputs, with free batch and length; and its config."""
    import torch
    import transformers

    # Eager attention is the graph that the optimiser of onnxruntime knows.
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()

    class LastHiddenState(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: object, attention_mask: object, token_type_ids: object) -> object:
            output = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            return output.last_hidden_state

    names = ["input_ids", "attention_mask", "token_type_ids"]
    ones = torch.ones((2, 16), dtype=torch.int64)
    path = scratch / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            LastHiddenState().eval(),
            (ones, ones, ones * 0),
            str(path),
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]},
            opset_version=17,
            dynamo=False,
        )
    return path, model.config


def _feed(ids: np.ndarray) -> dict[str, np.ndarray]:
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def _onnxruntime(folder: Path, threads: int, scratch: Path) -> Forward:
    import onnxruntime
    from onnxruntime.transformers import optimizer

    graph, config = _export(folder, scratch)
    fused = optimizer.optimize_model(
        str(graph), model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size
    )
    counts = fused.get_fused_operator_statistics()
    print(f"onnxruntime's fused operators: { {name: n for name, n in counts.items() if n} }", file=sys.stderr)
    path = scratch / "fused.onnx"
    fused.save_model_to_file(str(path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    wanted = {node.name for node in session.get_inputs()}
    return lambda ids: session.run(None, {k: v for k, v in _feed(ids).items() if k in wanted})[0]


def _openvino(folder: Path, threads: int, scratch: Path) -> Forward:
    import openvino

    graph, _ = _export(folder, scratch)
    core = openvino.Core()
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(core.read_model(str(graph)), "CPU", options).create_infer_request()
    return lambda ids: request.infer(_feed(ids))[0]


CONTENDERS = {
    "minibert": _minibert,
    "transformers sdpa": _transformers,
    "onnxruntime fused": _onnxruntime,
    "OpenVINO f32": _openvino,
}


def _serve(name: str, folder: Path, threads: int, scratch: Path, pipe: Connection) -> None:
    """A contender's process: answer (ids, seconds) with the median time of a forward and the result of the last."""
    warnings.simplefilter("ignore")
    try:
        forward = CONTENDERS[name](folder, threads, scratch)
    except ImportError as error:
        pipe.send(f"{name}: left out ({error})")
        return
    pipe.send(None)
    while (order := pipe.recv()) is not None:
        ids, seconds = order
        result, times, end = np.array(forward(ids)), [], time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            result = forward(ids)
            times.append(time.perf_counter() - start)
        pipe.send((float(np.median(times)), np.array(result)))


class Contender:
    """A contender in a process of its own, which waits without computing between two orders."""

    def __init__(self, name: str, folder: Path, threads: int, scratch: Path) -> None:
        context = multiprocessing.get_context("spawn")
        own = scratch / f"{name} {folder.name}"
        own.mkdir()
        self._pipe, theirs = context.Pipe()
        context.Process(target=_serve, args=(name, folder, threads, own, theirs), daemon=True).start()
        self.absent: str | None = self._pipe.recv()

    def run(self, ids: np.ndarray, seconds: float) -> tuple[float, np.ndarray]:
        """Median seconds of one forward, and its result."""
        time.sleep(0.3)  # the threads of the last contender stop waiting for work
        self._pipe.send((ids, seconds))
        return self._pipe.recv()

    def close(self) -> None:
        """End the process."""
        if self.absent is None:
            self._pipe.send(None)


def table(model: str, contenders: dict[str, Contender], runs: int, seconds: float) -> list[str]:
    """Compare, then time, every contender on every shape: a row of the table for each, and one of their means."""
    generator = np.random.default_rng(0)
    ratios: dict[str, list[float]] = {name: [] for name in contenders}
    rows = []
    for shape in SHAPES:
        ids = generator.integers(1000, 2000, shape)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(runs):
            results = {}
            for name, contender in contenders.items():
                took, results[name] = contender.run(ids, seconds)
                times[name].append(took)
            for name, result in results.items():
                apart = float(np.abs(result - results["transformers sdpa"]).max())
                if apart > 1e-4:
                    raise RuntimeError(f"{name} is {apart} from transformers: what it computes is something else.")
        cells = []
        for name in contenders:
            median = float(np.median(times[name])) * 1e3
            ratios[name].append(float(np.median(np.divide(times[name], times["minibert"]))))
            cells.append(f"{median:.2f}" + ("" if name == "minibert" else f" ({ratios[name][-1]:.2f}x)"))
        rows.append(f"| {model} | {shape[0]} x {shape[1]} | " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    means = [f"{math.exp(np.mean(np.log(values))):.2f}x" for values in list(ratios.values())[1:]]
    rows.append(f"| {model} | geometric mean | | " + " | ".join(means) + " |")
    print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Measure both models, print the table, perhaps write the README's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.end_to_end")
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    parser.add_argument("--runs", type=int, default=5, help="runs, of which the median counts (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run and shape (default: %(default)s)")
    options = parser.parse_args()
    threads = usable_cores()
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        base = random_checkpoint(
            scratch / "base",
            vocab_size=30522,
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            intermediate_size=3072,
            max_position_embeddings=512,
            initializer_range=0.02,
        )
        folders = {"MiniLM": locate(DEFAULT_MODEL).require("config.json").parent, "bert-base": base}
        for model, folder in folders.items():
            contenders = {name: Contender(name, folder, threads, scratch) for name in CONTENDERS}
            for name in [name for name, contender in contenders.items() if contender.absent]:
                print(contenders.pop(name).absent, file=sys.stderr)
            if not lines:
                names = " | ".join(contenders)
                lines = [f"| model | texts x tokens | {names} |", "|---|---|" + "--:|" * len(contenders)]
                print("\n".join(lines), flush=True)
            lines += table(model, contenders, options.runs, options.seconds)
            for contender in contenders.values():
                contender.close()
    lines += ["", f"{environment()}, {threads} threads each; medians of {options.runs} runs."]
    print(lines[-1])
    if options.write:
        write_between(Path(__file__).parent.parent / "README.md", "speed", "\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
