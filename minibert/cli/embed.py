"""``minibert embed``: sentence vectors."""

from __future__ import annotations

import argparse
import json
from typing import Any

from minibert.cli.common import add_model_options, add_texts, read_texts, report_written, write_file

__all__ = ["add_verbs"]


def add_verbs(verbs: Any) -> None:
    """Add the verb to the command line."""
    embed = verbs.add_parser(
        "embed",
        help="turn texts into sentence vectors",
        description="Print one JSON object per text, with its vector, or save all vectors as an array.",
    )
    add_texts(embed)
    embed.add_argument(
        "-o", "--output", metavar="FILE.npy", help="save an array (texts, hidden_size), float32, instead of printing"
    )
    add_model_options(embed)
    embed.set_defaults(run=_embed)


def _embed(arguments: argparse.Namespace) -> None:
    import numpy as np

    from minibert.sentence import SentenceTransformer

    texts = read_texts(arguments.texts)
    model = SentenceTransformer(arguments.model, revision=arguments.revision, backend=arguments.backend)
    vectors = model.encode(texts)
    if arguments.output is not None:
        write_file(arguments.output, lambda file: np.save(file, vectors))
        report_written(arguments.output, f"vectors {vectors.shape}")
        return
    for text, vector in zip(texts, vectors, strict=True):
        # str() of a float32 has just the digits that bring it back; the float64 beneath would print eight more.
        print(json.dumps({"text": text, "embedding": [float(str(x)) for x in vector]}, ensure_ascii=False))
