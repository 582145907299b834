"""Texts per second, from text to vector, on texts with the lengths of real ones; compared with three other pipelines.

    python -m benchmarks.texts [--model FOLDER | --successors] [--write]

MiniLM on texts of whole words whose lengths in tokens follow three real collections: questions and captions (mean 14),
news (54) and passages (163). The pipelines that pad sort by length and use batches of 32. In a large collection a
sorted batch has hardly any padding; in a few hundred texts the batch of the longest would be half padding. So some
sorted batches of a large collection are timed: the middle one of each 20, 40 or 48 batches. (They do not contain the
longest texts, of 46, 278 and 512 tokens.) The vectors are compared before anything is timed. Each contender runs in a
process of its own, in turn. --successors measures models of the sizes of nomic-embed-text and ModernBERT-base, with the
tokenizer of MiniLM, on a quarter of the batches.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.contenders import BATCH_SIZE, SUCCESSORS, VECTORS, cells, in_turn, start
from benchmarks.readme import Table, publish, table_parser
from minibert import AutoTokenizer
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from tests.support.random_checkpoints import random_successor

# Quantiles of the lengths, in tokens with [CLS] and [SEP], and the number of sorted batches that are timed.
COLLECTIONS = {
    "short": (((0, 5), (0.5, 11), (0.9, 24), (0.99, 38), (1, 46)), 24),
    "news": (((0, 23), (0.5, 52), (0.9, 70), (0.99, 123), (1, 278)), 12),
    "passages": (((0, 58), (0.5, 143), (0.9, 247), (0.99, 446), (1, 512)), 10),
}
NUM_BATCHES = 480  # of each collection


def make_sentence_model(folder: Path, model_type: str) -> Path:
    """Make a sentence model of a successor: random weights, MiniLM's tokenizer and modules."""
    minilm = locate(DEFAULT_MODEL).require("config.json").parent
    shutil.copytree(minilm, folder, ignore=shutil.ignore_patterns("config.json", "*.safetensors", "*.bin", "*.onnx"))
    pooling = {"word_embedding_dimension": 768, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    return random_successor(folder, model_type)


def make_texts(name: str, words: list[str], parts: int = 1) -> tuple[list[str], np.ndarray]:
    """Make texts of this collection's lengths, in random order; return them and their lengths."""
    quantiles, num_timed = COLLECTIONS[name]
    num_timed //= parts
    generator = np.random.default_rng(0)
    count, every = NUM_BATCHES * BATCH_SIZE, NUM_BATCHES // num_timed
    lengths = np.interp((np.arange(count) + 0.5) / count, *np.transpose(quantiles)).round().astype(int)
    lengths = lengths.reshape(NUM_BATCHES, BATCH_SIZE)[every // 2 :: every].reshape(-1)
    generator.shuffle(lengths)
    return [" ".join(generator.choice(words, length - 2)) for length in lengths], lengths


def main() -> int:
    """Measure the three collections, print the table, and write it into README.md if asked."""
    parser = table_parser("texts", runs=5)
    parser.add_argument("--seconds", type=float, default=0.0, help="seconds of each run, which is at least one call")
    parser.add_argument("--model", type=Path, help="the folder of another sentence model than MiniLM")
    parser.add_argument("--successors", action="store_true", help="measure models after BERT")
    options = parser.parse_args()
    threads = available_cores()
    table: Table | None = None
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        minilm = locate(DEFAULT_MODEL).require("config.json").parent
        folders = {options.model.name: options.model} if options.model else {"MiniLM": minilm}
        if options.successors:
            folders = {name: make_sentence_model(scratch / name, kind) for name, kind in SUCCESSORS.items()}
        for model, folder in folders.items():
            tokenizer = AutoTokenizer.from_pretrained(folder)
            words = [word for word in tokenizer.vocab if word.isascii() and word.isalpha() and len(word) > 2]
            with start(VECTORS, folder, threads, scratch) as contenders:
                table = table or Table("texts per second", "mean tokens", *contenders)
                for name in COLLECTIONS:
                    texts, lengths = make_texts(name, words, 4 if options.successors else 1)
                    times = in_turn(contenders, texts, options.runs, options.seconds, 1e-5)
                    table.add(f"{model}, {name}", f"{lengths.mean():.0f}", *cells(times, len(texts)))
    assert table is not None
    note = f"{threads} threads each; medians of {options.runs} runs"
    publish("texts of successors" if options.successors else "texts", table.lines, note, write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
