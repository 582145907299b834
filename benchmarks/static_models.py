"""A static model beside MiniLM, of which it is made: what it costs, and what it loses.

    python -m benchmarks.static_models [--write]

The static model is distilled from MiniLM as model2vec 0.10 does it (distill/): the vector of a token is the mean of the
last hidden state of "[CLS] token [SEP]"; then a principal component analysis to 256 features; then a factor
1e-4 / (1e-4 + p), with p of Zipf's law for the token's place in the vocabulary. model2vec itself needs an older
transformers. Both models run in minibert, in turn, in this process.

Three measures on the English lines of the Declaration of Human Rights (MINIBERT_TEST_DATA): lines per second; the share
of second halves of lines that are the nearest one to their first half, as in the inverse cloze task of Lee et al. 2019
(arXiv 1906.00300); the rank correlation of the cosines of all pairs of lines with those of MiniLM.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from benchmarks.low_precision_error import spearman
from benchmarks.readme import Table, publish, table_parser
from minibert import BertModel, SentenceTransformer
from minibert._utils.system import available_cores
from minibert._utils.validation import FloatArray
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from tests.support.real_texts import udhr_languages

FEATURES = 256
LEAST_WORDS = 8  # of a line that is cut into halves


def distil(minilm: Path, folder: Path, tokens: int | None = None) -> Path:
    """Write a folder of model2vec that is made of MiniLM; `tokens` other than the first ones have zeros."""
    with BertModel.from_pretrained(minilm, add_pooling_layer=False) as model:
        V = model.config.vocab_size
        ids = np.array([[101, token, 102] for token in range(V if tokens is None else tokens)])
        parts = np.array_split(ids, max(1, len(ids) // 512))
        means = [model(part).last_hidden_state.mean(axis=1, dtype=np.float64) for part in parts]
    vectors = np.concatenate(means)  # (V, H)
    vectors -= vectors.mean(axis=0)
    _, directions = np.linalg.eigh(vectors.T @ vectors)
    shares = 1 / np.arange(2, V + 2)
    factors = 1e-4 / (1e-4 + shares / shares.sum())
    table = np.zeros((V, FEATURES), np.float32)
    table[: len(ids)] = vectors @ directions[:, : -FEATURES - 1 : -1] * factors[: len(ids), None]
    folder.mkdir()
    save_file({"embeddings": table}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}), encoding="utf-8")
    shutil.copy(minilm / "tokenizer.json", folder)
    return folder


def cosines(model: SentenceTransformer, first: list[str], second: list[str]) -> FloatArray:
    """Return the cosine of each text of the one list and each of the other, float64."""
    a, b = (model.encode(texts, normalize_embeddings=True, truncation="silent") for texts in (first, second))
    return a.astype(np.float64) @ b.T.astype(np.float64)


def main() -> int:
    """Measure, print the table, and write it into README.md if asked."""
    parser = table_parser("static_models", runs=5)
    parser.add_argument("--tokens", type=int, help="distil only the first tokens of the vocabulary, to try the program")
    options = parser.parse_args()
    lines = [line for line in udhr_languages()["eng"] if len(line.split()) >= LEAST_WORDS]
    words = [line.split() for line in lines]
    halves = [" ".join(w[: len(w) // 2]) for w in words], [" ".join(w[len(w) // 2 :]) for w in words]
    minilm = locate(DEFAULT_MODEL).require("config.json").parent
    pairs = np.triu_indices(len(lines), 1)
    with tempfile.TemporaryDirectory() as scratch:
        folders = {"MiniLM": minilm, "static, of MiniLM": distil(minilm, Path(scratch) / "static", options.tokens)}
        models = {name: SentenceTransformer(folder) for name, folder in folders.items()}
        times: dict[str, list[float]] = {name: [] for name in models}
        for run in range(options.runs + 1):
            for name, model in models.items():
                start = time.perf_counter()
                model.encode(lines, truncation="silent")
                times[name] += [time.perf_counter() - start] * bool(run)  # the first run fills the caches
        truth = cosines(models["MiniLM"], lines, lines)[pairs]
        table = Table("model", "MB", "lines per second", "halves found", "order of MiniLM's cosines")
        for name, model in models.items():
            size = (folders[name] / "model.safetensors").stat().st_size / 1e6
            found = (cosines(model, *halves).argmax(axis=1) == np.arange(len(lines))).mean()
            order = spearman(cosines(model, lines, lines)[pairs], truth)
            table.add(
                name, f"{size:.0f}", f"{len(lines) / np.median(times[name]):,.0f}", f"{found:.1%}", f"{order:.3f}"
            )
    note = f"{available_cores()} threads; medians of {options.runs} runs; {len(lines)} lines"
    publish("static models", table.lines, note, write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
