"""The cost of recording: time compared with a plain call and with both outputs, peak memory with the recorded size.

    python -m benchmarks.trace [--write]

Time: MiniLM, ids in; each row is the same forward that keeps more. Each one runs in a process of its own with the same
number of threads, and they run in turn. First the bits are compared: all rows of minibert must give the same last
hidden state, and the recorded values must be those of the outputs. The last row is transformers (eager, the only
attention that gives probs there) with a forward hook on every module; scores have no module, so it records less.

Memory: the peak that Linux reports for a process that makes one call, above the peak of one that makes a plain call.
Beside it is what the trace keeps. A stream keeps nothing, so its peak must not grow with the number of tokens.
"""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Compute, Contender, in_turn, open_process, start
from benchmarks.environment import peak_memory
from benchmarks.readme import Table, publish, table_parser
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL, locate

SHAPES = ((1, 32), (8, 128), (32, 128))
BOTH = ("hidden_states.*", "attentions.*")
HOOKS = "transformers eager, hooks on all modules"


def _plain(model: Any, ids: np.ndarray) -> Any:
    return model(ids)


def _outputs(model: Any, ids: np.ndarray) -> Any:
    return model(ids, output_hidden_states=True, output_attentions=True)


def _trace(record: Any, model: Any, ids: np.ndarray) -> Any:
    return model.trace(ids, record=record).output


def _edit(model: Any, ids: np.ndarray) -> Any:
    """Call a function of the user for each layer and text; it leaves the bits."""
    edit = {"encoder.layer.*.attention.self": lambda context: context}
    return model.trace(ids, record=(), edit=edit, allow_noop=True).output


class _Last:
    """The last hidden state of a stream, as an output."""

    def __init__(self, model: Any, ids: np.ndarray, record: Any = "*") -> None:
        self.last_hidden_state = np.empty((*ids.shape, model.config.hidden_size), dtype=np.float32)
        last = f"encoder.layer.{model.config.num_hidden_layers - 1}"
        for site in model.stream(ids, record=record):
            if site.name == last:
                self.last_hidden_state[site.sequence] = site.array


ROWS: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "plain call": _plain,
    "both outputs: hidden states and attentions": _outputs,
    "trace of these two": functools.partial(_trace, BOTH),
    "trace of everything": functools.partial(_trace, "*"),
    "stream of everything": _Last,
    "a function that edits each context": _edit,
}
BASE, OUTPUTS = list(ROWS)[:2]


def load(folder: Path, threads: int | None) -> Any:
    """Load minibert's model, which keeps only the last hidden state."""
    from minibert import BertModel

    return BertModel.from_pretrained(folder, output_hidden_states=False, num_threads=threads)


def verify(folder: Path, ids: np.ndarray) -> None:
    """Compare the values of a trace with the outputs of a plain call, bit for bit.

    Raises
    ------
    RuntimeError
        They differ.
    """
    model = load(folder, None)
    output, trace = _outputs(model, ids), model.trace(ids)
    pairs = [(f"hidden_states.{i}", state) for i, state in enumerate(output.hidden_states)]
    pairs += [(f"attentions.{i}", probs) for i, probs in enumerate(output.attentions)]
    for name, array in pairs:
        if not np.array_equal(trace[name], array):
            raise RuntimeError(f"{name} of the trace differs from the output of a plain call.")


# --- time -------------------------------------------------------------------------------------------------------------


def _minibert(row: str, folder: Path, threads: int, scratch: Path) -> Compute:
    model = load(folder, threads)
    return lambda ids: ROWS[row](model, ids).last_hidden_state


def _hooks(folder: Path, threads: int, scratch: Path) -> Compute:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    kept: dict[str, Any] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: object, arguments: object, result: Any) -> None:
            kept[name] = result[0] if isinstance(result, tuple) else result

        return hook

    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(keep(name))

    def forward(ids: np.ndarray) -> np.ndarray:
        kept.clear()
        with torch.inference_mode():
            output = model(input_ids=torch.from_numpy(ids), output_attentions=True, output_hidden_states=True)
        return output.last_hidden_state.numpy()

    return forward


def times(contenders: dict[str, Contender], runs: int, seconds: float) -> list[str]:
    """Compare the results, then time; return the rows of the table."""
    table = Table("texts x tokens", "what is kept", "ms", "of a plain call", "of both outputs", texts=2)
    for rows, length in SHAPES:
        ids = np.random.default_rng(0).integers(1000, 2000, (rows, length))
        found = in_turn(contenders, ids, runs, seconds, {**dict.fromkeys(contenders, 0.0), HOOKS: 1e-4})
        for name, took in found.items():
            of = (f"{np.median(np.divide(took, found[other])):.2f}" for other in (BASE, OUTPUTS))
            table.add(f"{rows} x {length}", name, f"{1e3 * np.median(took):.2f}", *of)
    return table.lines


# --- memory -----------------------------------------------------------------------------------------------------------


def _peak(row: str, folder: Path, shape: tuple[int, int], pipe: Connection) -> None:
    """Make one call in a process; send its peak memory, and the bytes that a trace keeps."""
    warnings.simplefilter("ignore")
    model = load(folder, None)
    ids = np.random.default_rng(0).integers(1000, 2000, shape)
    model(ids[:1])
    if row.startswith("trace"):
        trace = model.trace(ids, record=ROWS[row].args[0])  # type: ignore[attr-defined]
        pipe.send((peak_memory() / 2**20, trace.nbytes / 2**20))
    elif row.startswith("stream"):
        for _ in model.stream(ids):
            pass
        pipe.send((peak_memory() / 2**20, 0.0))
    else:
        ROWS[row](model, ids)
        pipe.send((peak_memory() / 2**20, 0.0))


def peak(row: str, folder: Path, shape: tuple[int, int]) -> tuple[float, float]:
    """Return the peak of a process that makes one call, and what the trace keeps, in MB."""
    found: tuple[float, float] = open_process(_peak, row, folder, shape).recv()
    return found


def memory(folder: Path, shape: tuple[int, int], tokens: list[int]) -> list[str]:
    """Measure the peaks; return the rows of the table."""
    base, _ = peak(BASE, folder, shape)
    table = Table("texts x tokens", "what is kept", "recorded, MB", "peak above a plain call, MB", texts=2)
    for row in list(ROWS)[1:4]:
        most, recorded = peak(row, folder, shape)
        kept = f"{recorded:,.0f}" if recorded else ""
        table.add(f"{shape[0]} x {shape[1]}", row, kept, f"{most - base:,.0f}")
    stream = list(ROWS)[4]
    for count in tokens:
        rows = count // shape[1]
        most, _ = peak(stream, folder, (rows, shape[1]))
        table.add(f"{rows:,} x {shape[1]}", stream, 0, f"{most - base:,.0f}")
    return table.lines


def main() -> int:
    """Verify, measure time and memory, print the tables, and write them into README.md if asked."""
    parser = table_parser("trace", runs=5, seconds=0.5)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[4096, 131_072], help="tokens of the streams (default: %(default)s)"
    )
    options = parser.parse_args()
    threads = available_cores()
    folder = locate(DEFAULT_MODEL).require("config.json").parent
    verify(folder, np.random.default_rng(1).integers(1000, 2000, (3, 40)))
    makers: dict[str, Any] = {row: functools.partial(_minibert, row) for row in ROWS}
    makers[HOOKS] = _hooks
    with tempfile.TemporaryDirectory() as scratch, start(makers, folder, threads, Path(scratch)) as contenders:
        lines = times(contenders, options.runs, options.seconds)
    lines += ["", *memory(folder, SHAPES[-1], options.tokens)]
    publish("trace", lines, f"MiniLM, {threads} threads each; medians of {options.runs} runs", write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
