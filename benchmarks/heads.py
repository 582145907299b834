"""The models with heads compared with transformers (sdpa), onnxruntime (fused graph) and OpenVINO: ids in, logits out.

    python -m benchmarks.heads [--write]

The checkpoints have MiniLM's sizes, a vocabulary of 30,522 words and random weights. Each contender runs in a process
of its own with the same number of threads. Their logits are compared first; then they run in turn, and each cell is the
median of the runs. The masked-LM head computes logits for every token; in the row "one position" minibert computes only
those of one token of each text, as for a text with one [MASK]. The others compute all of them there too, because they
cannot compute fewer. onnxruntime and OpenVINO have numbers if they are installed.

The second table has models of other sizes that read one token of each text: rerankers, and the state of [CLS] as the
text's vector. minibert computes their last layer for these tokens only. "all tokens" is minibert without that.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contenders import (
    Compute,
    Contender,
    cells,
    export_graph,
    fused_session,
    in_turn,
    openvino_session,
    start,
)
from benchmarks.readme import Table, publish, table_parser
from minibert._utils.system import available_cores

SHAPES = ((1, 32), (32, 128))
MORE_SHAPES = ((1, 32), (32, 32), (32, 128))  # of the second table
HEADS = {
    "BertForMaskedLM": "logits",
    "BertForNextSentencePrediction": "logits",
    "BertForPreTraining": "prediction_logits",
    "BertForSequenceClassification": "logits",
    "BertForTokenClassification": "logits",
    "BertForQuestionAnswering": "start_logits",
    "BertForMultipleChoice": "logits",
}
OTHERS = ("all tokens", "transformers sdpa", "onnxruntime fused", "OpenVINO f32")
LABELS = {"BertForQuestionAnswering": 2}  # the begin and the end of an answer
MASKED = 5  # the column of the token whose logits are wanted in the row "one position"


class Row(NamedTuple):
    """A class, its layers, features and attention heads, and the column of the only token that is read, if any."""

    name: str
    sizes: tuple[int, int, int] = (6, 384, 12)
    column: int | None = None


ALL_TOKENS = {name: Row(name) for name in HEADS} | {
    "BertForMaskedLM, one position": Row("BertForMaskedLM", column=MASKED)
}
# The sizes are those of ms-marco-TinyBERT-L2, ms-marco-MiniLM-L6 and bge-reranker-base, of bge-small and of bge-base.
ONE_TOKEN = {
    f"{what}, {sizes[0]} x {sizes[1]}": Row(name, sizes, column)
    for what, name, column, each in (
        ("reranker", "BertForSequenceClassification", None, ((2, 128, 2), (6, 384, 12), (12, 768, 12))),
        ("vector of [CLS]", "BertModel", 0, ((12, 384, 12), (12, 768, 12))),
    )
    for sizes in each
}


def make_checkpoint(row: Row, folder: Path) -> Path:
    """Save a random model of this class and these sizes."""
    import torch
    import transformers

    name, (L, H, A), _ = row
    sizes = {"hidden_size": H, "num_hidden_layers": L, "num_attention_heads": A, "intermediate_size": 4 * H}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, name)(transformers.BertConfig(**sizes, num_labels=LABELS.get(name, 3)))
    model.save_pretrained(folder)
    return folder


def inputs_of(name: str, ids: np.ndarray) -> np.ndarray:
    """Return the ids as the class takes them: two choices for each question of multiple choice."""
    return ids.reshape(len(ids) // 2, 2, -1) if name == "BertForMultipleChoice" and len(ids) > 1 else ids


def wanted(logits: np.ndarray, column: int | None) -> np.ndarray:
    """Return what is sent back and compared: large results only in part."""
    return logits[..., :100] if column is None or logits.ndim < 3 else logits[:, column]


def _minibert(row: Row, all_tokens: bool, folder: Path, threads: int, scratch: Path) -> Compute:
    import minibert

    name, column = row.name, row.column
    model: Any = getattr(minibert, name).from_pretrained(folder, num_threads=threads)
    model = model.with_ops(model.ops._replace(all_tokens=all_tokens))

    def compute(ids: np.ndarray) -> np.ndarray:
        ids = inputs_of(name, ids)
        if name == "BertModel":
            batch, depth = model.pack({"input_ids": ids}), row.sizes[0]
            steps = model.states(batch, [depth], batch.first_tokens)
            return np.concatenate([found[depth][step.first_tokens] for step, found in steps])
        if column is not None:
            rows = np.arange(len(ids))
            return model(ids, positions=np.stack([rows, np.full_like(rows, column)], axis=1)).logits
        return wanted(model(ids)[HEADS[name]], column)

    return compute


def _transformers(row: Row, folder: Path, threads: int, scratch: Path) -> Compute:
    import torch
    import transformers

    torch.set_num_threads(threads)
    name, field = row.name, HEADS.get(row.name, "last_hidden_state")
    model: Any = getattr(transformers, name).from_pretrained(folder, attn_implementation="sdpa").eval()

    def compute(ids: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            logits = model(input_ids=torch.from_numpy(inputs_of(name, ids)))[field].numpy()
        return wanted(logits, row.column)

    return compute


def _exported(row: Row, runtime: str, folder: Path, threads: int, scratch: Path) -> Compute:
    import transformers

    name = row.name
    model: Any = getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").eval()
    leading = (2, 2) if name == "BertForMultipleChoice" else (2,)
    graph = export_graph(model, HEADS.get(name, "last_hidden_state"), scratch, leading=leading)
    fused = runtime == "onnxruntime fused"
    run = fused_session(graph, model.config, threads, scratch) if fused else openvino_session(graph, threads)
    return lambda ids: wanted(run(np.ascontiguousarray(inputs_of(name, ids))), row.column)


def measure(row: str, name: str, contenders: dict[str, Contender], table: Table, runs: int, seconds: float) -> None:
    """Compare, then time; add a row for each shape."""
    for shape in MORE_SHAPES if row in ONE_TOKEN else SHAPES:
        ids = np.random.default_rng(0).integers(1000, 2000, (max(shape[0], 2), shape[1]))
        if name != "BertForMultipleChoice":
            ids = ids[: shape[0]]
        times = in_turn(contenders, ids, runs, seconds, 1e-4)
        shown = dict(zip(times, cells(times), strict=True))
        table.add(row, f"{len(ids)} x {shape[1]}", *(shown.get(one, "-") for one in ("minibert", *OTHERS)))


def main() -> int:
    """Measure all heads, print the table, and write it into README.md if asked."""
    parser = table_parser("heads", runs=5, seconds=0.5)
    parser.add_argument("--only", default="", help="measure only heads whose name contains this")
    options = parser.parse_args()
    for name, rows in (("heads", ALL_TOKENS), ("one token", ONE_TOKEN)):
        chosen = {row: kind for row, kind in rows.items() if options.only in row}
        if chosen:
            write_table(name, chosen, options)
    return 0


def write_table(name: str, rows: dict[str, Row], options: argparse.Namespace) -> None:
    """Measure these rows."""
    threads = available_cores()
    table = Table("head", "texts x tokens", *(f"{one}, ms" for one in ("minibert", *OTHERS)), texts=2)
    with tempfile.TemporaryDirectory() as scratch_name:
        for i, (title, row) in enumerate(rows.items()):
            scratch = Path(scratch_name) / str(i)
            folder = make_checkpoint(row, scratch / "model")
            makers = {
                "minibert": functools.partial(_minibert, row, False),
                "all tokens": functools.partial(_minibert, row, True),
                "transformers sdpa": functools.partial(_transformers, row),
                "onnxruntime fused": functools.partial(_exported, row, "onnxruntime fused"),
                "OpenVINO f32": functools.partial(_exported, row, "OpenVINO f32"),
            }
            with start(makers, folder, threads, scratch) as contenders:
                measure(title, row.name, contenders, table, options.runs, options.seconds)
    publish(name, table.lines, f"{threads} threads each; medians of {options.runs} runs", write=options.write)


if __name__ == "__main__":
    raise SystemExit(main())
