"""``minibert rerank`` and ``sparse``: cross-encoders and SPLADE models, for texts and for files of texts."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from minibert.cli.common import (
    add_inputs,
    add_model_options,
    add_texts,
    natural,
    positive,
    read_texts,
    report_run,
    resumable,
    run_options,
    sources_of,
)
from minibert.cli.display import bar, one_line

if TYPE_CHECKING:
    from minibert.sentence.cross_encoder import CrossEncoder
    from minibert.sentence.sparse_encoder import SparseEncoder

__all__ = ["add_verbs"]

_SHARD_SIZE = 10_000


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
    rerank.add_argument("-k", "--top-k", type=positive, metavar="K", help="texts to print (default: all)")
    rerank.add_argument("--json", action="store_true", help='JSON lines: {"score": ..., "index": ..., "text": ...}')
    _add_run_options(rerank, ("warn", "error", "silent"))
    rerank.set_defaults(run=_rerank)

    sparse = verbs.add_parser(
        "sparse",
        help="turn texts into sparse vectors: a weight for each word that a SPLADE model finds",
        description="Print the words of each text with their weights. With --input the vectors of all texts of files "
        "are written, in bounded memory; --resume continues an interrupted run.",
    )
    add_texts(sparse, optional=True)
    sparse.add_argument(
        "-k", "--top-k", type=positive, default=10, metavar="K", help="words to print (default: %(default)s)"
    )
    sparse.add_argument(
        "--json",
        action="store_true",
        help='JSON lines with all words: {"text": ..., "tokens": [...], "indices": [...], "values": [...]}',
    )
    sparse.add_argument(
        "--max-active-dims", type=positive, metavar="N", help="keep only the N largest weights of each text"
    )
    sparse.add_argument(
        "--stride",
        type=natural,
        default=0,
        metavar="N",
        help="tokens that a window repeats from the one before, with --truncation split (default: 0)",
    )
    _add_run_options(sparse, ("warn", "error", "split", "silent"))
    sparse.set_defaults(run=_sparse)


def _add_run_options(parser: argparse.ArgumentParser, truncation: tuple[str, ...]) -> None:
    """Add the files, and the options that both verbs have."""
    add_inputs(parser, shard_size=_SHARD_SIZE)
    parser.add_argument("-o", "--output", metavar="FILE", help="with --input: the .jsonl file to write")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt-name", metavar="NAME", help="name of a prompt of the model, such as query")
    prompt.add_argument("--prompt", metavar="TEXT", help="a text to put before each text, or before the query")
    parser.add_argument(
        "--truncation",
        choices=truncation,
        default="warn",
        help="if a text is too long (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size", type=positive, default=32, metavar="N", help="limits memory; the result does not depend on it"
    )
    add_model_options(parser, needs_head=True)


def _check_files(arguments: argparse.Namespace) -> bool:
    """Return whether files are given; ValueError for options that do not fit together."""
    if not arguments.input:
        if not arguments.texts:
            raise ValueError("there is no text; give texts, or a file with --input.")
        of_files = {
            "--output": arguments.output is not None,
            "--resume": arguments.resume,
            "--input-format": arguments.input_format is not None,
            "--text-column": arguments.text_column != "text",
            "--id-column": arguments.id_column is not None,
            "--on-error": arguments.on_error != "stop",
            "--shard-size": arguments.shard_size != _SHARD_SIZE,
        }
        for option, given in of_files.items():
            if given:
                raise ValueError(f"{option} is for files of texts; name them with --input.")
        return False
    if arguments.texts:
        raise ValueError("texts and --input are both given; give one of them.")
    if arguments.output is None:
        raise ValueError("--input needs --output FILE.")
    if arguments.json:
        raise ValueError("--json is for texts; the output of --input is JSON lines always.")
    if arguments.truncation == "error":
        raise ValueError("--truncation error does not work with --input; the report says how many texts were cut.")
    return True


def _run_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a run over files, whose numbers are written with all their digits."""
    options = run_options(argparse.Namespace(**vars(arguments), dtype="float32"))
    del options["dtype"]
    names = ("truncation", "prompt_name", "prompt", "batch_size")
    return {**options, **{name: getattr(arguments, name) for name in names}}


def _load_cross_encoder(arguments: argparse.Namespace) -> CrossEncoder:
    from minibert.sentence.cross_encoder import CrossEncoder

    return CrossEncoder(
        arguments.model,
        revision=arguments.revision,
        backend=arguments.backend,
        num_threads=arguments.num_threads,
        compute_type=arguments.compute_type,
    )


def _load_sparse_encoder(arguments: argparse.Namespace) -> SparseEncoder:
    from minibert.sentence.sparse_encoder import SparseEncoder

    return SparseEncoder(
        arguments.model,
        revision=arguments.revision,
        backend=arguments.backend,
        num_threads=arguments.num_threads,
        compute_type=arguments.compute_type,
    )


def _rerank(arguments: argparse.Namespace) -> None:
    if _check_files(arguments):
        from minibert.base.files import check_output
        from minibert.corpus.heads import rerank_corpus

        if arguments.top_k is not None:
            raise ValueError("--top-k does not work with --input; sort the scores of the output.")
        check_output(arguments.output, (".jsonl",))  # before a model is loaded
        with resumable(arguments.output):
            summary = rerank_corpus(
                _load_cross_encoder(arguments),
                arguments.query,
                sources_of(arguments),
                arguments.output,
                **_run_options(arguments),
            )
        report_run(arguments.output, "scores", summary)
        return
    texts = read_texts(arguments.texts)
    found = _load_cross_encoder(arguments).rank(
        arguments.query,
        texts,
        top_k=arguments.top_k,
        prompt_name=arguments.prompt_name,
        prompt=arguments.prompt,
        batch_size=arguments.batch_size,
        truncation=arguments.truncation,
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
        from minibert.base.files import check_output
        from minibert.corpus.heads import sparse_corpus

        check_output(arguments.output, (".jsonl",))  # before a model is loaded
        with resumable(arguments.output):
            summary = sparse_corpus(
                _load_sparse_encoder(arguments),
                sources_of(arguments),
                arguments.output,
                stride=arguments.stride,
                max_active_dims=arguments.max_active_dims,
                **_run_options(arguments),
            )
        report_run(arguments.output, "sparse vectors", summary)
        return
    texts = read_texts(arguments.texts)
    model = _load_sparse_encoder(arguments)
    vectors = model.encode(
        texts,
        prompt_name=arguments.prompt_name,
        prompt=arguments.prompt,
        batch_size=arguments.batch_size,
        max_active_dims=arguments.max_active_dims,
        truncation=arguments.truncation,
        stride=arguments.stride,
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
