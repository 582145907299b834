r"""Hash every number that minibert computes for 500 real texts, to show that a change of the code changes none.

    python -m benchmarks.hashes before.json                      # writes the hashes
    python -m benchmarks.hashes after.json --compare before.json # exit code 1 if one differs

All hidden states, attentions and pooler outputs of MiniLM and of random models of odd shapes are hashed, and sentence
vectors of MiniLM, for each backend. The hashes of "numpy" are valid on one machine only, because BLAS libraries
round differently on different machines. Those of "kernels" are the same on every processor, so this compares
two of them::

    python -m benchmarks.hashes here.json --backend kernels
    MINIBERT_LEVEL=x86-64-avx2 python -m benchmarks.hashes avx2.json --backend kernels --compare here.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert import BertModel, BertTokenizer, SentenceTransformer, __version__
from tests.support.random_checkpoints import random_model
from tests.support.real_texts import VARIABLE, udhr_lines

FORMAT = 1
BACKENDS = ("kernels", "numpy")
POOLING = ("mean", "max", "cls", "mean_sqrt_len_tokens", "weightedmean", "first_last", "pooler")
MINILM = "sentence-transformers/all-MiniLM-L6-v2"

# hidden_size, layers, heads, intermediate_size, activation: no size is a multiple of the vector width.
SHAPES = {
    "3 x 84": (84, 3, 3, 331, "gelu"),
    "2 x 65": (65, 2, 5, 97, "gelu_new"),
    "1 x 20": (20, 1, 4, 33, "relu"),
    "4 x 300": (300, 4, 6, 511, "silu"),
}


def texts(count: int) -> list[str]:
    """Choose lines of the Universal Declaration of Human Rights, in all of its languages."""
    if not os.environ.get(VARIABLE):
        sys.exit(f"{VARIABLE} is not set; set it to the folder with udhr.tsv.")
    lines = udhr_lines()
    return [lines[i] for i in np.linspace(0, len(lines) - 1, count).astype(int)]


def hashes_of(model: BertModel, tokenizer: BertTokenizer, lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the SHA-256 of each array of all forwards, 32 texts at a time."""
    digests: dict[str, Any] = {}
    for first in range(0, len(lines), 32):
        inputs = tokenizer(lines[first : first + 32], padding=True, truncation=True, max_length=128)
        output = model(**inputs, output_hidden_states=True, output_attentions=True)
        arrays = {f"hidden_states.{i}": state for i, state in enumerate(output.hidden_states)}
        arrays |= {f"attentions.{i}": probs for i, probs in enumerate(output.attentions)}
        arrays |= {"pooler_output": output.pooler_output}
        for name, array in arrays.items():
            if array is not None:
                digests.setdefault(name, hashlib.sha256()).update(np.ascontiguousarray(array).tobytes())
    yield from ((name, digest.hexdigest()) for name, digest in digests.items())


def measure(lines: list[str], backends: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return "model, backend" -> name of an array -> SHA-256."""
    tokenizer = BertTokenizer.from_pretrained(MINILM)
    hashes: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        names = {"MiniLM": MINILM}
        for name, shape in SHAPES.items():
            names[name] = str(random_model(Path(scratch) / name.replace(" ", ""), shape, len(tokenizer)))
        for name, where in names.items():
            for backend in backends:
                model = BertModel.from_pretrained(where, backend=backend)
                hashes[f"{name}, {backend}"] = dict(hashes_of(model, tokenizer, lines))
                print(f"{name}, {backend}: {len(hashes[f'{name}, {backend}'])} arrays", file=sys.stderr)
    for backend in backends:
        sentences = SentenceTransformer(MINILM, backend=backend)
        hashes[f"sentence vectors, {backend}"] = {
            pooling: hashlib.sha256(sentences.encode(lines, pooling=pooling, truncation="silent").tobytes()).hexdigest()
            for pooling in POOLING
        }
    return hashes


def main() -> None:
    """Write the hashes, and compare them if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--compare", type=Path, metavar="FILE", help="the hashes of an earlier run, to compare with")
    parser.add_argument("--backend", choices=BACKENDS, help="only this one (default: all)")
    parser.add_argument("--texts", type=int, default=500, help="number of texts (default: %(default)s)")
    arguments = parser.parse_args()
    hashes = measure(texts(arguments.texts), [arguments.backend] if arguments.backend else BACKENDS)
    content = {"format": FORMAT, "minibert": __version__, "texts": arguments.texts, "hashes": hashes}
    arguments.output.write_text(json.dumps(content, indent=1), encoding="utf-8")
    count = sum(map(len, hashes.values()))
    if arguments.compare is None:
        print(f"{count} hashes")
        return
    before = json.loads(arguments.compare.read_text(encoding="utf-8"))
    if (before["format"], before["texts"]) != (FORMAT, arguments.texts):
        sys.exit(f"{arguments.compare} has format {before['format']} and {before['texts']} texts: not comparable.")
    differ = [
        f"{group}: {name}"
        for group in sorted({*hashes, *before["hashes"]})
        for name in sorted({*hashes.get(group, {}), *before["hashes"].get(group, {})})
        if hashes.get(group, {}).get(name) != before["hashes"].get(group, {}).get(name)
    ]
    print(f"{count} hashes, {len(differ)} differ", *differ[:20], sep="\n")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
