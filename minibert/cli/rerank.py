"""``minibert rerank`` and ``sparse``: cross-encoders and SPLADE models, for texts and for files of texts."""

from __future__ import annotations

import argparse
import json
from typing import Any

from minibert.cli.options import (
    add_batch_size,
    add_model_options,
    add_prompt,
    add_stride,
    add_texts,
    load_encoder,
    option,
    positive,
)
from minibert.cli.output import bar, one_line, read_texts
from minibert.cli.runs import SHARD_SIZE, add_inputs, has_files, report_run, resumable, run_options, sources_of


def add_verbs(verbs: Any) -> None:
    """Add the two verbs to the command line."""
    rerank = verbs.add_parser(
        "rerank",
        help="sort texts by how well they answer a query",
        description="Print the texts with their scores for the query, best first. With --input the scores of all texts "
        "of files are written, in the order of the files, in bounded memory; --resume continues an interrupted run.",
    )
    rerank.add_argument("query", metavar="QUERY", help="the query")
    add_texts(rerank, optional=True)
    option(rerank, "-k --top-k K", "texts to print (default: all)", type=positive)
    option(rerank, "--json", 'JSON lines: {"score": ..., "index": ..., "text": ...}')
    _add_run_options(rerank, ("warn", "error", "silent"))
    rerank.set_defaults(run=_rerank)

    sparse = verbs.add_parser(
        "sparse",
        help="turn texts into sparse vectors: a weight for each word that a SPLADE model finds",
        description="Print the words of each text with their weights. With --input the vectors of all texts of files "
        "are written, in bounded memory; --resume continues an interrupted run.",
    )
    add_texts(sparse, optional=True)
    option(sparse, "-k --top-k K", "words to print", type=positive, default=10)
    option(
        sparse, "--json", 'JSON lines with all words: {"text": ..., "tokens": [...], "indices": [...], "values": [...]}'
    )
    option(sparse, "--max-active-dims N", "keep only the N largest weights of each text", type=positive)
    add_stride(sparse)
    _add_run_options(sparse, ("warn", "error", "split", "silent"))
    sparse.set_defaults(run=_sparse)


def _add_run_options(parser: argparse.ArgumentParser, truncation: tuple[str, ...]) -> None:
    """Add the files, and the options that both verbs have."""
    add_inputs(parser, shard_size=SHARD_SIZE)
    option(parser, "-o --output FILE", "with --input: the .jsonl file to write")
    add_prompt(parser, "each text, or before the query")
    option(parser, "--truncation", "if a text is too long", choices=truncation, default="warn")
    add_batch_size(parser)
    add_model_options(parser, needs_head=True)


def _check_files(arguments: argparse.Namespace) -> bool:
    """Return whether files are given; ValueError for options that do not fit together."""
    if not has_files(arguments, {"--output": arguments.output is not None}):
        return False
    if arguments.json:
        raise ValueError("--json is for texts; the output of --input is JSON lines always.")
    if arguments.truncation == "error":
        raise ValueError("--truncation error does not work with --input; the report says how many texts were cut.")
    return True


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that both verbs have, for texts and for files."""
    return {name: getattr(arguments, name) for name in ("truncation", "prompt_name", "prompt", "batch_size")}


def _rerank(arguments: argparse.Namespace) -> None:
    if _check_files(arguments):
        from minibert._utils.files import check_output
        from minibert.corpus.score import rerank_corpus

        if arguments.top_k is not None:
            raise ValueError("--top-k does not work with --input; sort the scores of the output.")
        check_output(arguments.output, (".jsonl",))  # before a model is loaded
        with resumable(arguments.output):
            summary = rerank_corpus(
                load_encoder("CrossEncoder", arguments),
                arguments.query,
                sources_of(arguments),
                arguments.output,
                **_options(arguments),
                **run_options(arguments),
            )
        report_run(arguments.output, "scores", summary)
        return
    texts = read_texts(arguments.texts)
    found = load_encoder("CrossEncoder", arguments).rank(
        arguments.query,
        texts,
        top_k=arguments.top_k,
        **_options(arguments),
    )
    scores = [float(str(_float32(hit["score"]))) for hit in found]
    # A score of a model without sigmoid can be any number: the bars then go from the least to the greatest one.
    least, most = min([0.0, *scores]), max([1.0, *scores])
    for hit, score in zip(found, scores, strict=True):
        index, text = hit["corpus_id"], texts[hit["corpus_id"]]
        if arguments.json:
            print(json.dumps({"score": score, "index": index, "text": text}, ensure_ascii=False))
        else:
            print(f"{score:8.3f}  {bar((score - least) / (most - least))}  {index:>4}  {one_line(text)}".rstrip())


def _sparse(arguments: argparse.Namespace) -> None:
    if _check_files(arguments):
        from minibert._utils.files import check_output
        from minibert.corpus.score import sparse_corpus

        check_output(arguments.output, (".jsonl",))  # before a model is loaded
        with resumable(arguments.output):
            summary = sparse_corpus(
                load_encoder("SparseEncoder", arguments),
                sources_of(arguments),
                arguments.output,
                stride=arguments.stride,
                max_active_dims=arguments.max_active_dims,
                **_options(arguments),
                **run_options(arguments),
            )
        report_run(arguments.output, "sparse vectors", summary)
        return
    texts = read_texts(arguments.texts)
    model = load_encoder("SparseEncoder", arguments)
    vectors = model.encode(
        texts, max_active_dims=arguments.max_active_dims, stride=arguments.stride, **_options(arguments)
    )
    for text, vector in zip(texts, vectors, strict=True):
        if arguments.json:
            line = {
                "text": text,
                "tokens": model.tokenizer.convert_ids_to_tokens(vector.indices.tolist()),
                "indices": vector.indices.tolist(),
                "values": [float(str(value)) for value in vector.data],
            }
            print(json.dumps(line, ensure_ascii=False))
            continue
        print(f"{one_line(text)}   ({vector.nnz} of {vector.shape[0]} words)")
        words = model.decode(vector, top_k=arguments.top_k)
        most = max((weight for _, weight in words), default=1.0)
        for word, weight in words:
            print(f"{weight:8.3f}  {bar(weight / most)}  {one_line(word)}".rstrip())


def _float32(number: float) -> Any:
    """Return a number as float32, whose str has the fewest digits that restore it."""
    import numpy as np

    return np.float32(number)
