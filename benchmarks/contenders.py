"""minibert and the libraries it is compared with.

Each one runs in a process of its own, because the waiting threads of one library keep the cores from the next.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import multiprocessing
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import peak_memory
from minibert.checkpoint.hub import WEIGHTS
from tests.support.random_checkpoints import random_checkpoint, sizes

Compute = Callable[[Any], np.ndarray]
"""The timed function: ids (B, S) to last hidden states, or texts to vectors."""

Maker = Callable[[Path, int, Path], Compute]
"""Makes a `Compute` from a model's folder, a number of threads, and a folder for its own files."""


def make_base(folder: Path, num_layers: int = 12, num_words: int = 30522) -> Path:
    """Save a model of bert-base's sizes, with random weights."""
    fields = sizes(V=num_words, H=768, L=num_layers, A=12, F=3072, P=512)
    return random_checkpoint(folder, initializer_range=0.02, **fields)


KINDS = ("float32", "float16", "bfloat16")
"""The types of numbers of a file."""

SUCCESSORS = {"nomic-embed-text": "nomic_bert", "ModernBERT-base": "modernbert"}
"""Models after BERT that are timed."""

_BASE = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_ESM = {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "token_dropout": True}
_ESM |= {"position_embedding_type": "rotary", "emb_layer_norm_before": False}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "eurobert-210m": ("eurobert", {}),
    "ESM-2 35M": ("esm", _ESM | {**_BASE, "hidden_size": 480, "num_attention_heads": 20, "intermediate_size": 1920}),
    "ALBERT-base": ("albert", {**_BASE, "hidden_act": "gelu_new"}),
    "bert-base": ("bert", {}),
}
"""Other families that are timed: their type, and the sizes that are not those of transformers."""


# --- from ids to the last hidden state -----------------------------------------------------------------------------


def _minibert(folder: Path, threads: int, scratch: Path) -> Compute:
    from minibert import AutoModel

    model = AutoModel.from_pretrained(folder, output_hidden_states=False, add_pooling_layer=False, num_threads=threads)
    return lambda ids: model(ids).last_hidden_state


def _minibert_of(kind: str, folder: Path, threads: int, scratch: Path) -> Compute:
    """Make the contender of the file in a type of numbers; `write_kinds` has written it."""
    return _minibert(folder / kind, threads, scratch)


def write_kinds(folder: Path, model: Path) -> Path:
    """Write a model in each type of `KINDS`, into folders of these names; all have the same numbers."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / WEIGHTS)
    for kind in KINDS:
        target = folder / kind
        target.mkdir(parents=True)
        (target / "config.json").write_bytes((model / "config.json").read_bytes())
        # A number of bfloat16 that was rounded to float16 has few enough digits for both.
        rounded = {name: tensor.bfloat16().half().to(getattr(torch, kind)) for name, tensor in tensors.items()}
        save_file(rounded, target / WEIGHTS, {"format": "pt"})
    return folder


def _transformers(folder: Path, threads: int, scratch: Path) -> Compute:
    import torch

    torch.set_num_threads(threads)
    model = _of_transformers(folder)

    def forward(ids: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(input_ids=torch.from_numpy(ids)).last_hidden_state.numpy()

    return forward


def _of_transformers(folder: Path, **options: Any) -> Any:
    """Load a model of transformers, without a pooler."""
    import transformers

    kind = transformers.MODEL_MAPPING[type(transformers.AutoConfig.from_pretrained(folder))]
    if "add_pooling_layer" in inspect.signature(kind).parameters:
        options["add_pooling_layer"] = False
    return kind.from_pretrained(folder, **options).eval()


def export_onnx(folder: Path, scratch: Path) -> tuple[Path, object]:
    """Export the model as an ONNX graph of its inputs, of any batch and length; return its path and the config."""
    # The optimiser of onnxruntime knows the graph of eager attention.
    model = _of_transformers(folder, attn_implementation="eager")
    return export_graph(model, "last_hidden_state", scratch), model.config


def export_graph(model: Any, field: str, scratch: Path, *, leading: tuple[int, ...] = (2,)) -> Path:
    """Export a model of transformers as an ONNX graph from its inputs to one field of its output; return the path.

    `leading` are the axes of the inputs before the length: one, or two for multiple choice. All axes may change.
    """
    import torch

    class OneField(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: object) -> object:
            return self.model(**dict(zip(names, inputs, strict=True)))[field]

    accepted = inspect.signature(model.forward).parameters  # MPNet and DistilBERT have no token types
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in accepted]
    ones = torch.ones((*leading, 16), dtype=torch.int64)
    inputs = (ones, ones, ones * 0)[: len(names)]
    axes = dict(enumerate((*("batch", "choices")[: len(leading)], "length")))
    path = scratch / "model.onnx"
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        by_token = OneField().eval()(*inputs).shape[1] == ones.shape[-1]
        torch.onnx.export(
            OneField().eval(),
            inputs,
            str(path),
            input_names=names,
            output_names=[field],
            dynamic_axes={**dict.fromkeys(names, axes), field: {0: "batch", **({1: "length"} if by_token else {})}},
            opset_version=17,
            dynamo=False,
        )
    return path


def feed(inputs: np.ndarray | tuple[np.ndarray, np.ndarray], wanted: set[str]) -> dict[str, np.ndarray]:
    """Name the inputs that a graph wants, given ids or ids and their mask."""
    ids, mask = inputs if isinstance(inputs, tuple) else (inputs, np.ones_like(inputs))
    values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: value for name, value in values.items() if name in wanted}


def _onnxruntime(folder: Path, threads: int, scratch: Path) -> Compute:
    graph, config = export_onnx(folder, scratch)
    return fused_session(graph, config, threads, scratch)


def fused_session(graph: Path, config: Any, threads: int, scratch: Path) -> Compute:
    """Fuse the operators of a graph, and return a function that runs it with onnxruntime."""
    return session(fuse(graph, config, scratch / "fused.onnx"), threads)


def fuse(graph: Path, config: Any, path: Path) -> Path:
    """Fuse the operators of a graph with onnxruntime's optimiser for BERT; return `path`, which then has the graph."""
    from onnxruntime.transformers import optimizer

    fused = optimizer.optimize_model(
        str(graph), model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size
    )
    counts = fused.get_fused_operator_statistics()
    print(f"onnxruntime's fused operators: { {name: n for name, n in counts.items() if n} }", file=sys.stderr)
    fused.save_model_to_file(str(path))
    return path


def session(path: Path, threads: int) -> Compute:
    """Return a function that runs a graph with onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    loaded = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    wanted = {node.name for node in loaded.get_inputs()}
    return lambda inputs: loaded.run(None, feed(inputs, wanted))[0]


def openvino(folder: Path, threads: int, scratch: Path, precision: str = "f32") -> Compute:
    """Return a function that runs the exported model with OpenVINO."""
    return openvino_session(export_onnx(folder, scratch)[0], threads, precision)


def openvino_session(graph: Any, threads: int, precision: str = "f32") -> Compute:
    """Return a function that runs a graph, or the path of one, with OpenVINO."""
    from openvino import Core

    core = Core()
    options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(
        core.read_model(str(graph)) if isinstance(graph, Path) else graph, "CPU", options
    ).create_infer_request()
    wanted = {name for port in request.model_inputs for name in port.names}
    return lambda inputs: request.infer(feed(inputs, wanted), share_outputs=True)[0]


HIDDEN_STATES: dict[str, Maker] = {
    "minibert": _minibert,
    "transformers sdpa": _transformers,
    "onnxruntime fused": _onnxruntime,
    "OpenVINO f32": openvino,
}

OF_KINDS: dict[str, Maker] = {f"{kind} file": functools.partial(_minibert_of, kind) for kind in KINDS}
"""minibert with the files of `write_kinds`."""


# --- from texts to vectors -------------------------------------------------------------------------------------------

MAX_SEQ_LENGTH = 512
BATCH_SIZE = 32  # sentence-transformers' default


def _minibert_texts(folder: Path, threads: int, scratch: Path) -> Compute:
    from minibert import SentenceTransformer

    model = SentenceTransformer(folder, num_threads=threads)
    model.max_seq_length = MAX_SEQ_LENGTH
    return model.encode


def _sentence_transformers(folder: Path, threads: int, scratch: Path) -> Compute:
    import sentence_transformers
    import torch

    torch.set_num_threads(threads)
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = MAX_SEQ_LENGTH
    return lambda texts: model.encode(texts, show_progress_bar=False)


def _pipeline(folder: Path, forward: Compute) -> Compute:
    """Tokenize, sort by length, pad each batch to its longest, take the mean of the tokens, normalise to length 1."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    width = json.loads((folder / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_SEQ_LENGTH)

    def encode(texts: list[str]) -> np.ndarray:
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        vectors = np.empty((len(rows), width), dtype=np.float32)
        for first in range(0, len(order), BATCH_SIZE):
            chosen = order[first : first + BATCH_SIZE]
            ids = np.zeros((len(chosen), len(rows[chosen[0]])), dtype=np.int64)
            mask, counted = np.zeros_like(ids), np.zeros(ids.shape, np.float32)
            for place, index in enumerate(chosen):
                ids[place, : len(rows[index])] = rows[index]
                mask[place, : len(rows[index])] = counted[place, : len(rows[index])] = 1
            means = (counted[:, None] @ forward((ids, mask)))[:, 0] / counted.sum(axis=1, keepdims=True)
            vectors[chosen] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return vectors

    return encode


def _onnxruntime_texts(folder: Path, threads: int, scratch: Path) -> Compute:
    return _pipeline(folder, _onnxruntime(folder, threads, scratch))


def _openvino_texts(folder: Path, threads: int, scratch: Path) -> Compute:
    return _pipeline(folder, openvino(folder, threads, scratch))


VECTORS: dict[str, Maker] = {
    "minibert": _minibert_texts,
    "sentence-transformers": _sentence_transformers,
    "onnxruntime fused": _onnxruntime_texts,
    "OpenVINO f32": _openvino_texts,
}


# --- processes ---------------------------------------------------------------------------------------------------


def _serve(name: str, make: Maker, folder: Path, threads: int, scratch: Path, pipe: Connection) -> None:
    """Run in a contender's process: answer (inputs, seconds) with the median time of a call, the last result, the peak.

    If `seconds` is None, only one call is made; else one that is not timed goes before.
    """
    warnings.simplefilter("ignore")
    try:
        compute = make(folder, threads, scratch)
    except ImportError as error:
        pipe.send(f"{name}: left out ({error})")
        return
    pipe.send(None)
    with contextlib.suppress(OSError):  # the peak counts from here, not from the export of a graph
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    while (order := pipe.recv()) is not None:
        inputs, seconds = order
        if seconds is not None:
            compute(inputs)
        times, end = list[float](), time.perf_counter() + (seconds or 0.0)
        while time.perf_counter() < end or not times:
            start = time.perf_counter()
            result = compute(inputs)
            times.append(time.perf_counter() - start)
        pipe.send((float(np.median(times)), np.array(result), peak_memory()))


def on_threads(work: Callable[[int], object], count: int) -> None:
    """Call ``work(0)`` in this thread and ``work(1)``, ``work(2)`` and so on in others; wait for all."""
    helpers = [threading.Thread(target=work, args=(number,)) for number in range(1, count)]
    for helper in helpers:
        helper.start()
    work(0)
    for helper in helpers:
        helper.join()


def open_process(serve: Callable[..., None], *arguments: Any) -> Connection:
    """Call ``serve(*arguments, pipe)`` in a process of its own, and return the other end of the pipe."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    context.Process(target=serve, args=(*arguments, theirs), daemon=True).start()
    theirs.close()  # so a process that fails ends the run, which would wait for ever
    return pipe


def start_process(serve: Callable[..., None], *arguments: Any) -> Connection | None:
    """Start a contender's process and return the pipe to it; print a message and return None if it is not installed.

    ``serve(*arguments, pipe)`` sends the reason why it is left out, or None. Then it answers orders until it gets None.
    """
    pipe = open_process(serve, *arguments)
    if (absent := pipe.recv()) is not None:
        print(absent, file=sys.stderr)
        return None
    return pipe


class Contender:
    """A contender in a process of its own; it waits without computing between two orders.

    `peak` is the most memory that the process had in its calls so far, in bytes.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self.peak = pipe, math.nan

    def run(self, inputs: Any, seconds: float | None) -> tuple[float, Any]:
        """Return the median seconds of one call, and its result; inf and None if the system has killed the process."""
        time.sleep(0.3)  # the threads of the last contender stop waiting for work
        try:
            self._pipe.send((inputs, seconds))
            took, result, self.peak = self._pipe.recv()
        except (EOFError, OSError):
            return math.inf, None
        return took, result

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)


@contextlib.contextmanager
def start(makers: Mapping[str, Maker], folder: Path, threads: int, scratch: Path) -> Iterator[dict[str, Contender]]:
    """Start a process for each contender that is installed, print which are not, and end them with the block."""
    contenders = {}
    for name, make in makers.items():
        own = scratch / f"{name} {folder.name}"
        own.mkdir()
        pipe = start_process(_serve, name, make, folder, threads, own)
        if pipe is not None:
            contenders[name] = Contender(pipe)
    yield contenders
    for contender in contenders.values():
        contender.close()


def in_turn(
    contenders: Mapping[str, Contender],
    inputs: Any,
    runs: int,
    seconds: float | None,
    most: float | Mapping[str, float] = math.inf,
) -> dict[str, list[float]]:
    """Run the contenders one after the other, several times; return the median seconds of a call in each run.

    A contender that ran out of memory has inf. RuntimeError if a result differs from the first contender's by more than
    `most`, which may be given by name.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(runs):
        results = {}
        for name, contender in contenders.items():
            took, result = contender.run(inputs, seconds)
            times[name].append(took)
            if result is not None:
                results[name] = result
        check_same(results, most)
    return times


def check_same(results: Mapping[str, np.ndarray], most: float | Mapping[str, float]) -> None:
    """Raise a RuntimeError if a result differs from the first one by more than `most`."""
    first = next(iter(results))
    for name, result in results.items():
        limit = most if isinstance(most, float) else most[name]
        apart = float(np.abs(result - results[first]).max()) if limit < math.inf else 0.0
        if not apart <= limit:  # written so that NaN fails too
            raise RuntimeError(f"{name} differs from {first} by {apart}: it does not compute the same.")


def ratios(times: Mapping[str, Sequence[float]], *, faster: bool = False) -> dict[str, float]:
    """Return how many times the first contender's time each one needs; or how many times as fast as it each one is."""
    first = next(iter(times.values()))
    return {
        name: float(np.median(np.divide(first, own) if faster else np.divide(own, first)))
        for name, own in times.items()
    }


def cells(times: Mapping[str, Sequence[float]], texts: int = 0, *, faster: bool = False) -> list[str]:
    """Return a cell for each contender: the median in milliseconds, or texts per second, and the ratio of `ratios`.

    The cell of a contender that ran out of memory says so.
    """
    medians = {name: float(np.median(own)) for name, own in times.items()}
    shown = {name: f"{texts / own:.0f}" if texts else f"{1e3 * own:.2f}" for name, own in medians.items()}
    (_, first), *others = shown.items()
    found = ratios(times, faster=faster)
    return [
        first,
        *(f"{cell} ({found[name]:.2f}x)" if medians[name] < math.inf else "out of memory" for name, cell in others),
    ]
