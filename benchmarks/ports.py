"""How far correct runtimes are from the float64 truth, in the units of `minibert.parity`: the budget must let all pass.

``python -m benchmarks.ports`` runs each runtime that is installed, on some checkpoints and inputs, and prints for each
the largest RMS error and the largest single error. The largest of all sets `RMS` and `LARGEST` of parity/comparison.py.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoints import random_checkpoint
from benchmarks.contenders import export_onnx, make_base
from minibert import BertModel, SentenceTransformer
from minibert.checkpoint.hub import DEFAULT_MODEL, locate
from minibert.parity import Report, check, probe
from minibert.parity.comparison import LARGEST, RMS
from minibert.parity.peers import run_peer
from minibert.parity.subject import Subject

Dump = Mapping[str, Any]
Runtime = Callable[[Path, Mapping[str, Any], Path], Dump]
"""Runs the checkpoint of a folder on inputs, and returns values by name; the last argument is a scratch folder."""


def _minibert(backend: str) -> Runtime:
    def run(folder: Path, inputs: Mapping[str, Any], scratch: Path) -> Dump:
        model = BertModel.from_pretrained(folder, backend=backend)
        return {**model.trace(**inputs)}

    return run


def _transformers(attention: str) -> Runtime:
    return lambda folder, inputs, scratch: run_peer("transformers", [attention], locate(str(folder)), inputs)


def _sentence_transformers(folder: Path, inputs: Mapping[str, Any], scratch: Path) -> Dump:
    """Give the ids to its modules, so that it sees the same mask."""
    import sentence_transformers
    import torch

    if not (folder / "modules.json").is_file():
        raise ImportError("this checkpoint is not one of sentence-transformers")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    with torch.inference_mode():
        output = model({name: torch.from_numpy(np.asarray(value)) for name, value in inputs.items()})
    return {
        "sentence_embedding": output["sentence_embedding"].numpy(),
        "token_embeddings": output["token_embeddings"].numpy(),
    }


def _exported(folder: Path, scratch: Path) -> Path:
    path = scratch / "model.onnx"
    return path if path.is_file() else export_onnx(folder, scratch)[0]


def _onnxruntime(folder: Path, inputs: Mapping[str, Any], scratch: Path) -> Dump:
    return run_peer("onnx", [str(_exported(folder, scratch))], locate(str(folder)), inputs)


def _onnxruntime_fused(folder: Path, inputs: Mapping[str, Any], scratch: Path) -> Dump:
    from onnxruntime.transformers import optimizer

    path = scratch / "fused.onnx"
    if not path.is_file():
        config = BertModel.from_pretrained(folder, backend="numpy").config
        fused = optimizer.optimize_model(
            str(_exported(folder, scratch)),
            model_type="bert",
            num_heads=config.num_attention_heads,
            hidden_size=config.hidden_size,
        )
        fused.save_model_to_file(str(path))
    return run_peer("onnx", [str(path)], locate(str(folder)), inputs)


def _openvino(folder: Path, inputs: Mapping[str, Any], scratch: Path) -> Dump:
    return run_peer("openvino", [str(_exported(folder, scratch))], locate(str(folder)), inputs)


def _ctranslate2(folder: Path, inputs: Mapping[str, Any], scratch: Path) -> Dump:
    """Run CTranslate2's encoder, which takes lengths and no mask: so only rows without holes and left padding."""
    import ctranslate2

    converted = scratch / "ctranslate2"
    if not converted.is_dir():
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted), quantization="float32")
    encoder = ctranslate2.Encoder(str(converted), device="cpu", compute_type="float32")
    ids, mask = np.asarray(inputs["input_ids"]), np.asarray(inputs["attention_mask"])
    lengths = mask.sum(axis=1)
    if any(not row[:length].all() for row, length in zip(mask, lengths, strict=True)):
        raise ImportError("CTranslate2 takes lengths, so no holes and no padding on the left")
    rows = [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]
    types = [row[:length].tolist() for row, length in zip(inputs["token_type_ids"], lengths, strict=True)]
    output = encoder.forward_batch(rows, token_type_ids=types)
    return {"last_hidden_state": np.array(output.last_hidden_state)}


def _keras_hub(folder: Path, inputs: Mapping[str, Any], scratch: Path) -> Dump:
    """Run keras-hub's BertBackbone with the weights of the folder, as its own converter reads them."""
    import os

    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras_hub

    backbone = keras_hub.models.BertBackbone.from_preset(str(folder))
    output = backbone.predict(
        {
            "token_ids": np.asarray(inputs["input_ids"]),
            "segment_ids": np.asarray(inputs["token_type_ids"]),
            "padding_mask": np.asarray(inputs["attention_mask"]),
        },
        verbose=0,
    )
    return {"last_hidden_state": output["sequence_output"], "pooler_output": output["pooled_output"]}


RUNTIMES: dict[str, Runtime] = {
    "minibert numba": _minibert("numba"),
    "minibert numba-blas": _minibert("numba-blas"),
    "minibert numpy": _minibert("numpy"),
    "transformers eager": _transformers("eager"),
    "transformers sdpa": _transformers("sdpa"),
    "sentence-transformers": _sentence_transformers,
    "onnxruntime": _onnxruntime,
    "onnxruntime fused": _onnxruntime_fused,
    "OpenVINO f32": _openvino,
    "CTranslate2": _ctranslate2,
    "keras-hub": _keras_hub,
}


CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "MiniLM": lambda scratch: locate(DEFAULT_MODEL).require("config.json").parent,
    "2 x 24": lambda scratch: random_checkpoint(scratch / "small"),
    "3 x 768": lambda scratch: make_base(scratch / "base", 3),
}


def _probes(subject: Subject) -> Iterator[tuple[str, dict[str, Any]]]:
    made = probe(subject)
    yield "probe", dict(made.inputs)
    plain = [row for row, shown in enumerate(made.shows) if shown not in ("a hole in the mask", "padding on the left")]
    yield "without holes", {name: array[plain] for name, array in made.inputs.items()}
    generator = np.random.default_rng(0)
    ids = generator.integers(5, subject.config.vocab_size, (3, 96))
    mask = (np.arange(96) < np.array([[96], [64], [96]])).astype(np.int64)
    yield "3 x 96", {"input_ids": ids, "attention_mask": mask, "token_type_ids": mask * (np.arange(96) > 48)}


def _subject(folder: Path) -> Subject:
    if (folder / "modules.json").is_file():
        return Subject.of(SentenceTransformer(folder, backend="numpy"))
    return Subject(BertModel.from_pretrained(folder, backend="numpy"))


def _compare(runtime: Runtime, folder: Path, subject: Subject, inputs: dict[str, Any], scratch: Path) -> Report | str:
    try:
        dump = runtime(folder, inputs, scratch)
        return check(subject, dump, inputs, diagnosis=False)
    except ImportError as error:
        return str(error)
    except ValueError as error:
        return str(error).splitlines()[0]


def main() -> None:
    """Print one line for each runtime and checkpoint, and the largest of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(RUNTIMES), default=list(RUNTIMES))
    parser.add_argument("--checkpoints", nargs="*", choices=list(CHECKPOINTS), default=list(CHECKPOINTS))
    arguments = parser.parse_args()
    chosen = arguments.only
    warnings.simplefilter("ignore")
    largest = [0.0, 0.0]
    with tempfile.TemporaryDirectory() as name:
        for checkpoint in arguments.checkpoints:
            folder = CHECKPOINTS[checkpoint](Path(name))
            subject = _subject(folder)
            probes = list(_probes(subject))
            for runtime in chosen:
                scratch = Path(name) / f"{checkpoint} files"
                scratch.mkdir(exist_ok=True)
                cells = []
                for kind, inputs in probes:
                    report = _compare(RUNTIMES[runtime], folder, subject, inputs, scratch)
                    if isinstance(report, str):
                        cells.append(f"{kind}: left out ({report[:150]})")
                        continue
                    ratio, worst = (max(getattr(row, key) for row in report.names) for key in ("ratio", "worst"))
                    at = max(report.names, key=lambda row: row.ratio).name
                    if report.verdict != "wrong":
                        largest = [max(largest[0], ratio), max(largest[1], worst)]
                    cells.append(f"{kind}: {report.verdict} {ratio:.2f} {worst:.2f} ({len(report.names)} names; {at})")
                print(f"{checkpoint:8} {runtime:22} " + "; ".join(cells), flush=True)
    print(f"the largest: RMS {largest[0]:.2f} of {RMS}, single errors {largest[1]:.2f} of {LARGEST}")


if __name__ == "__main__":
    main()
