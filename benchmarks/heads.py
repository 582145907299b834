"""The models with heads compared with transformers (sdpa) and onnxruntime (fused BERT graph): ids in, logits out.

    python -m benchmarks.heads [--write]

The checkpoints have MiniLM's sizes, a vocabulary of 30,522 words and random weights. Each contender runs in a process
of its own with the same number of threads. Their logits are compared first; then they run in turn, and each cell is the
median of the runs. The masked-LM head computes logits for every token; in the row "one position" minibert computes only
those of one token of each text, as for a text with one [MASK]. The others compute all of them there too, because they
cannot compute fewer. onnxruntime has a column if it is installed.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Compute, Contender, cells, export_graph, fused_session, in_turn, start
from benchmarks.readme import Table, publish, table_parser
from minibert._utils.system import available_cores

SHAPES = ((1, 32), (32, 128))
HEADS = {
    "BertForMaskedLM": "logits",
    "BertForNextSentencePrediction": "logits",
    "BertForPreTraining": "prediction_logits",
    "BertForSequenceClassification": "logits",
    "BertForTokenClassification": "logits",
    "BertForQuestionAnswering": "start_logits",
    "BertForMultipleChoice": "logits",
}
OTHERS = ("transformers sdpa", "onnxruntime fused")
LABELS = {"BertForQuestionAnswering": 2}  # the begin and the end of an answer
ONE_POSITION = "BertForMaskedLM, one position"
MASKED = 5  # the column of the token whose logits are wanted in the row "one position"


def make_checkpoint(name: str, folder: Path) -> Path:
    """Save a random model of this class, with MiniLM's sizes."""
    import torch
    import transformers

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, name)(transformers.BertConfig(**sizes, num_labels=LABELS.get(name, 3)))
    model.save_pretrained(folder)
    return folder


def inputs_of(name: str, ids: np.ndarray) -> np.ndarray:
    """Return the ids as the class takes them: two choices for each question of multiple choice."""
    return ids.reshape(len(ids) // 2, 2, -1) if name == "BertForMultipleChoice" and len(ids) > 1 else ids


def wanted(logits: np.ndarray, one_position: bool) -> np.ndarray:
    """Return what is sent back and compared: large results only in part."""
    return logits[:, MASKED] if one_position and logits.ndim == 3 else logits[..., :100]


def _minibert(name: str, one_position: bool, folder: Path, threads: int, scratch: Path) -> Compute:
    import minibert

    model: Any = getattr(minibert, name).from_pretrained(folder, num_threads=threads)

    def compute(ids: np.ndarray) -> np.ndarray:
        ids = inputs_of(name, ids)
        if one_position:
            rows = np.arange(len(ids))
            return model(ids, positions=np.stack([rows, np.full_like(rows, MASKED)], axis=1)).logits
        return wanted(model(ids)[HEADS[name]], one_position)

    return compute


def _transformers(name: str, one_position: bool, folder: Path, threads: int, scratch: Path) -> Compute:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model: Any = getattr(transformers, name).from_pretrained(folder, attn_implementation="sdpa").eval()

    def compute(ids: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            logits = model(input_ids=torch.from_numpy(inputs_of(name, ids)))[HEADS[name]].numpy()
        return wanted(logits, one_position)

    return compute


def _onnxruntime(name: str, one_position: bool, folder: Path, threads: int, scratch: Path) -> Compute:
    import transformers

    model: Any = getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").eval()
    leading = (2, 2) if name == "BertForMultipleChoice" else (2,)
    graph = export_graph(model, HEADS[name], scratch, leading=leading)
    run = fused_session(graph, model.config, threads, scratch)
    return lambda ids: wanted(run(np.ascontiguousarray(inputs_of(name, ids))), one_position)


def measure(row: str, contenders: dict[str, Contender], table: Table, runs: int, seconds: float) -> None:
    """Compare, then time; add a row for each shape."""
    name = row.partition(",")[0]
    for shape in SHAPES:
        ids = np.random.default_rng(0).integers(1000, 2000, (max(shape[0], 2), shape[1]))
        if name != "BertForMultipleChoice":
            ids = ids[: shape[0]]
        times = in_turn(contenders, ids, runs, seconds, 1e-4)
        shown = dict(zip(times, cells(times), strict=True))
        table.add(row, f"{len(ids)} x {shape[1]}", *(shown.get(one, "-") for one in ("minibert", *OTHERS)))


def main() -> int:
    """Measure all heads, print the table, and write it into README.md if asked."""
    parser = table_parser("heads")
    parser.add_argument("--runs", type=int, default=5, help="number of runs, for the medians (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per run and shape (default: %(default)s)")
    parser.add_argument("--only", default="", help="measure only heads whose name contains this")
    options = parser.parse_args()
    threads = available_cores()
    columns = (f"{name}, ms" for name in ("minibert", *OTHERS))
    table = Table("head", "texts x tokens", *columns, texts=2)
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        for row in (row for row in (*HEADS, ONE_POSITION) if options.only in row):
            name, one_position = row.partition(",")[0], row == ONE_POSITION
            folder = scratch / name
            if not folder.exists():
                make_checkpoint(name, folder)
            makers = {
                "minibert": functools.partial(_minibert, name, one_position),
                "transformers sdpa": functools.partial(_transformers, name, one_position),
                "onnxruntime fused": functools.partial(_onnxruntime, name, one_position),
            }
            own = scratch / f"contenders of {row}"
            own.mkdir()
            with start(makers, folder, threads, own) as contenders:
                measure(row, contenders, table, options.runs, options.seconds)
    publish("heads", table.lines, f"{threads} threads each; medians of {options.runs} runs", write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
