"""Late interaction beside sentence-transformers: encoding, MaxSim, and its memory.

    python -m benchmarks.late_interaction [--write] [--peers FOLDER]

The model has the sizes of MiniLM with random weights, and a projection to 128 dimensions. Queries are filled up to 32
tokens, and documents have 180. Each contender runs in a process of its own with the same number of threads. Their
results are compared first; then they run in turn, and each cell is the median of the runs. The memory is what MaxSim
takes in addition to the vectors: how far the resident size of a process that only scores rises above its size before.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import multiprocessing
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Compute, cells, export_graph, in_turn, start
from benchmarks.environment import peak_memory
from benchmarks.readme import Table, publish, table_parser
from minibert._utils.system import available_cores
from tests.support.random_checkpoints import VOCABULARY, random_checkpoint

QUERIES, DOCUMENTS, TOKENS, WIDTH = 32, 1000, 180, 128
TEXTS = {"queries": (128, 20), "documents": (64, 240)}  # their number, and their words
CASES = ("maxsim", "maxsim, 1 query", "maxsim, int8")


def make_model(folder: Path) -> Path:
    """Save a model in the format of ColBERTv2."""
    from safetensors.numpy import load_file, save_file

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    random_checkpoint(folder, **sizes, max_position_embeddings=512)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    weights = load_file(folder / "model.safetensors")
    weights["linear.weight"] = np.random.default_rng(1).standard_normal((WIDTH, 384)).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    metadata: dict[str, Any] = {"query_maxlen": 32, "doc_maxlen": TOKENS, "mask_punctuation": False}
    # fastembed has the ids 1 and 2 in its code.
    metadata |= {"query_token_id": VOCABULARY[1], "doc_token_id": VOCABULARY[2]}
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


def vectors(count: int, tokens: int, seed: int) -> list[np.ndarray]:
    """Return random vectors of length 1 for each token of some texts."""
    return list(_scaled(np.random.default_rng(seed).standard_normal((count, tokens, WIDTH)).astype(np.float32)))


def texts(kind: str) -> list[str]:
    """Return random texts."""
    rng, words = np.random.default_rng(2), [word for word in VOCABULARY[-40:] if word.isalpha()]
    count, length = TEXTS[kind]
    return [" ".join(rng.choice(words, length)) for _ in range(count)]


def _score(name: str, documents: Any, score: Any) -> Compute:
    queries = vectors(QUERIES, 32, 0)
    return lambda _: np.asarray(score(queries[:1] if name == CASES[1] else queries, documents))


def _minibert(name: str, folder: Path, threads: int, scratch: Path) -> Compute:
    from minibert import MultiVectorEncoder
    from minibert.vectors.multi_vectors import MultiVectors, maxsim

    model = MultiVectorEncoder(folder, num_threads=threads)
    if name in TEXTS:
        encode = model.encode_query if name == "queries" else model.encode_document
        return lambda given: np.concatenate(encode(given, truncation="silent"))
    documents = MultiVectors.of("documents", vectors(DOCUMENTS, TOKENS, 1))
    documents = documents.quantized() if name == CASES[2] else documents
    return _score(name, documents, functools.partial(maxsim, ops=model.model.ops))


def _theirs(name: str, folder: Path, threads: int, scratch: Path) -> Compute:
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.util import maxsim

    torch.set_num_threads(threads)
    if name in TEXTS:
        model = MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)
        encode = model.encode_query if name == "queries" else model.encode_document
        return lambda given: np.concatenate(encode(given, convert_to_numpy=True))
    return _score(name, [torch.from_numpy(one) for one in vectors(DOCUMENTS, TOKENS, 1)], maxsim)


def _pylate(peers: str, name: str, folder: Path, threads: int, scratch: Path) -> Compute:
    sys.path.insert(0, peers)  # this process imports its own versions of the libraries
    import torch
    from pylate import models, scores

    torch.set_num_threads(threads)
    if name == CASES[2]:
        raise ImportError("no int8")
    if name in TEXTS:
        model = models.ColBERT(str(folder), device="cpu", local_files_only=True)
        is_query = name == "queries"
        return lambda given: np.concatenate(
            model.encode(given, is_query=is_query, show_progress_bar=False, convert_to_numpy=True)
        )
    documents = torch.from_numpy(np.stack(vectors(DOCUMENTS, TOKENS, 1)))
    return _score(name, documents, lambda a, b: scores.colbert_scores(torch.from_numpy(np.stack(a)), b))


def _fastembed(peers: str, name: str, folder: Path, threads: int, scratch: Path) -> Compute:
    if name not in TEXTS:
        raise ImportError("no scores")
    sys.path.append(peers)
    import torch
    import transformers
    from fastembed import LateInteractionTextEmbedding
    from safetensors.numpy import load_file

    class Projected(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kind = transformers.AutoModel
            self.bert = kind.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()
            self.linear = torch.nn.Linear(384, WIDTH, bias=False)
            self.linear.weight.data = torch.from_numpy(load_file(folder / "model.safetensors")["linear.weight"])

        def forward(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:
            outputs = self.bert(input_ids, attention_mask=attention_mask)
            return {"vectors": self.linear(outputs.last_hidden_state)}

    shutil.copytree(folder, scratch, dirs_exist_ok=True)
    export_graph(Projected(), "vectors", scratch)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, model_max_length=TOKENS)
    tokenizer.save_pretrained(scratch)
    (scratch / "special_tokens_map.json").write_text(json.dumps(tokenizer.special_tokens_map))
    model = LateInteractionTextEmbedding("colbert-ir/colbertv2.0", threads=threads, specific_model_path=str(scratch))
    if name == "queries":
        return lambda given: _scaled(np.concatenate(list(model.query_embed(given))))
    return lambda given: np.concatenate(list(model.embed(given, batch_size=8)))


def _scaled(x: np.ndarray) -> np.ndarray:
    """Scale vectors to length 1, because fastembed does not do this with the vectors of queries."""
    scaled: np.ndarray = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return scaled


MAKERS = {"minibert": _minibert, "sentence-transformers": _theirs}
PEERS = {"pylate": _pylate, "fastembed": _fastembed}


def _growth(maker: Any, folder: Path, threads: int, answer: Any) -> None:
    compute = maker(CASES[0], folder, threads, folder)
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes the present size
    before = peak_memory()
    compute(None)
    answer.put((peak_memory() - before) / 2**20)


def memory(maker: Any, folder: Path, threads: int) -> float:
    """Return the MB that a process grows by when it scores."""
    context = multiprocessing.get_context("spawn")
    answer: Any = context.SimpleQueue()
    process = context.Process(target=_growth, args=(maker, folder, threads, answer))
    process.start()
    grown: float = answer.get()
    process.join()
    return grown


def loss() -> str:
    """Return how much int8 documents change scores and the order of documents."""
    from minibert.vectors.multi_vectors import MultiVectors, maxsim

    queries, documents = vectors(QUERIES, 32, 0), MultiVectors.of("documents", vectors(DOCUMENTS, TOKENS, 1))
    exact, rounded = (np.asarray(maxsim(queries, some)) for some in (documents, documents.quantized()))
    top = [np.argsort(-scores, axis=1)[:, :10] for scores in (exact, rounded)]
    same = np.mean([len(np.intersect1d(*rows)) / 10 for rows in zip(*top, strict=True)])
    error = np.sqrt(np.mean((rounded - exact) ** 2)) / exact.std()
    return f"int8: RMS error {100 * error:.1f} % of the deviation of the scores, {100 * same:.0f} % of the best 10 kept"


def main() -> int:
    """Measure, print the table, and write it into README.md if asked."""
    parser = table_parser("late_interaction", runs=5, seconds=0.5)
    parser.add_argument("--only", default="", help="measure only rows whose name contains this")
    parser.add_argument("--peers", metavar="FOLDER", help="also measure the pylate and fastembed in this site-packages")
    options = parser.parse_args()
    makers: dict[str, Any] = dict(MAKERS)
    if options.peers is not None:
        makers |= {peer: functools.partial(maker, options.peers) for peer, maker in PEERS.items()}
    threads, names = available_cores(), [name for name in (*TEXTS, *CASES) if options.only in name]
    sizes = {name: f"{count} texts of {words} words" for name, (count, words) in TEXTS.items()}
    sizes |= dict.fromkeys(CASES, f"{QUERIES} x 32 tokens, {DOCUMENTS:,} x {TOKENS}")
    sizes[CASES[1]] = sizes[CASES[1]].replace("32 x", "1 x", 1)
    table = Table("row", "size", *(f"{name}, ms" for name in makers), texts=2)
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        folder = make_model(scratch / "model")
        for name in names:
            own = scratch / name
            own.mkdir()
            given = texts(name) if name in TEXTS else np.zeros(0)
            contenders = {one: functools.partial(maker, name) for one, maker in makers.items()}
            with start(contenders, folder, threads, own) as running:
                allowed = 0.3 if name == CASES[2] else 1e-3
                times = in_turn(running, given, options.runs, options.seconds, allowed)
            shown = dict(zip(times, cells(times), strict=True))
            table.add(name, sizes[name], *(shown.get(one, "") for one in makers))
        if not options.only:
            grown = [f"{memory(maker, folder, threads):.0f}" for one, maker in makers.items() if one != "fastembed"]
            table.add("memory of maxsim, MB", sizes[CASES[0]], *grown, *[""] * (len(makers) - len(grown)))
    found = [] if options.peers is None else importlib.metadata.distributions(path=[options.peers])
    peers = [f"{one.name} {one.version}" for one in found if one.name in (*PEERS, "onnxruntime")]
    measured = f"{', '.join([*sorted(peers), f'{threads} threads each'])}; medians of {options.runs} runs; {loss()}"
    publish("late_interaction", table.lines, measured, write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
