"""``minibert embed``, ``similarity`` and ``search``: sentence vectors and their similarities."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from minibert.cli.options import (
    add_batch_size,
    add_layer_pooling,
    add_layers,
    add_model_options,
    add_prompt,
    add_stride,
    add_texts,
    load_encoder,
    option,
    positive,
)
from minibert.cli.output import check_file, read_lines, read_texts, report_problem, report_written, write_file
from minibert.cli.runs import SHARD_SIZE, add_inputs, has_files, report_run, resumable, run_options, sources_of

if TYPE_CHECKING:
    from minibert.corpus.embed import Workers
    from minibert.sentence.sentence_transformers import SentenceTransformer


def add_verbs(verbs: Any) -> None:
    """Add the three verbs to the command line."""
    embed = verbs.add_parser(
        "embed",
        help="turn texts into sentence vectors",
        description="Print one JSON object per text, with its vector, or save all vectors as an array. With --input "
        "a corpus is read from files, in bounded memory. Its manifest <output>.manifest.json is written beside the "
        "output, and --resume continues an interrupted run. With -o FOLDER/ the output is a folder of Parquet files, "
        "which can be read while the run goes on.",
    )
    add_texts(embed, optional=True)
    option(
        embed,
        "-o --output FILE|FOLDER/",
        "save an array (texts, dimension), an .npy file, instead of printing; with --input the suffix is the "
        "format: .npy (with the ids beside it in .ids.jsonl), .jsonl or .parquet; a name that ends in / or an existing "
        "folder gets part-00000.parquet, part-00001.parquet and so on, and must be empty",
    )
    add_inputs(embed, shard_size=SHARD_SIZE)
    option(embed, "--dtype", "type of the numbers, with --input", choices=("float32", "float16"), default="float32")
    option(
        embed,
        "--on ray[:ADDRESS]",
        "compute with the machines of a Ray cluster, with --input: the address of its head, such as "
        "ray:10.0.0.1:6379; ray:local starts Ray on this machine; ray alone is RAY_ADDRESS, or this machine's cluster. "
        "--threads is that of each worker",
    )
    option(embed, "--actors N", "workers, with --on (default: as many as the cluster has room for)", type=positive)
    add_prompt(embed, "each text")
    option(
        embed, "--normalize", "scale each vector to length 1, even if the model does not", dest="normalize_embeddings"
    )
    option(
        embed,
        "--precision",
        "precision of the numbers, without --input",
        choices=("float32", "float16", "int8", "uint8", "binary", "ubinary"),
        default="float32",
    )
    _add_vector_options(embed)
    embed.set_defaults(run=_embed)

    similarity = verbs.add_parser(
        "similarity",
        help="score texts against each other",
        description="Print the similarity of each two texts, as the model defines it; usually the cosine.",
    )
    add_texts(similarity)
    option(similarity, "--json", 'one JSON object: {"texts": [...], "scores": [[...]]}')
    _add_vector_options(similarity)
    similarity.set_defaults(run=_similarity)

    search = verbs.add_parser(
        "search",
        help="find the lines of a file that are nearest to a query",
        description="Print the lines of a file that are most similar to the query, best first. The model's prompts for "
        "queries and documents are used. Empty lines are ignored.",
    )
    search.add_argument("query", metavar="QUERY", help="the text to look for")
    search.add_argument("file", metavar="FILE", help='one text per line; "-" is the standard input')
    option(search, "-k --top-k K", "lines to print", type=positive, default=5)
    option(search, "--json", 'JSON lines: {"score": ..., "line": ..., "text": ...}')
    _add_vector_options(search)
    search.set_defaults(run=_search)


def _add_vector_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a text becomes a vector."""
    option(
        parser,
        "--pooling MODE",
        "replaces the model's pooling: mean, max, cls, lasttoken, weightedmean, mean_sqrt_len_tokens, first_last, "
        "pooler, or several separated by commas, whose vectors are concatenated",
        type=lambda text: text.split(","),
    )
    add_layers(parser, "default: -1")
    add_layer_pooling(parser, "concat")
    option(
        parser,
        "--truncation",
        "if a text is too long: cut it and warn, refuse it, average its windows, or cut it silently "
        "(default: %(default)s)",
        choices=("warn", "error", "split", "silent"),
        default="warn",
    )
    add_stride(parser)
    option(parser, "--truncate-dim N", "keep only the first N features", type=positive)
    add_batch_size(parser)
    option(parser, "--builtin-prompts", "use the prompts of the model's card, if its files do not store any")
    add_model_options(parser)


def _load(arguments: argparse.Namespace) -> SentenceTransformer:
    return load_encoder("SentenceTransformer", arguments, prompts=_prompts(arguments))


def _prompts(arguments: argparse.Namespace) -> str | None:
    return "builtin" if arguments.builtin_prompts else None


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `encode` that the verb has."""
    from minibert.sentence.options import EncodeOptions

    if arguments.pooling == ["none"] or arguments.pooling == ["NONE"]:
        raise ValueError("--pooling none does not give sentence vectors; minibert hidden saves the vectors of tokens.")
    names = [field.name for field in dataclasses.fields(EncodeOptions)]
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


def _embed(arguments: argparse.Namespace) -> None:
    import numpy as np

    of_files = {
        "--dtype": arguments.dtype != "float32",
        "--on": arguments.on is not None,
        "--actors": arguments.actors is not None,
    }
    if has_files(arguments, of_files):
        _embed_corpus(arguments)
        return
    if arguments.output is not None:
        check_file(arguments.output, ".npy")
    texts = read_texts(arguments.texts)
    vectors = _load(arguments).encode(
        texts,
        precision=arguments.precision,
        **_options(arguments),
    )
    if arguments.output is not None:
        write_file(arguments.output, lambda file: np.save(file, vectors))
        report_written(arguments.output, f"vectors {vectors.shape}")
        return
    for text, vector in zip(texts, vectors, strict=True):
        # str() of a float32 has the fewest digits that restore it; the equal float64 would print eight more.
        numbers = [float(str(x)) for x in vector] if vector.dtype.kind == "f" else vector.tolist()
        print(json.dumps({"text": text, "embedding": numbers}, ensure_ascii=False))


def _embed_corpus(arguments: argparse.Namespace) -> None:
    from minibert.corpus.embed import embed_corpus
    from minibert.corpus.writers import output_suffix

    if arguments.precision != "float32":
        raise ValueError("--precision does not work with --input; give --dtype float16, or leave it out.")
    output_suffix(arguments.output)  # raises before a model is loaded
    workers = _workers(arguments)
    model, sources = _load(arguments), sources_of(arguments)  # before a cluster is asked for, which takes longer
    with resumable(arguments.output), workers as entered:
        summary = embed_corpus(
            model,
            sources,
            arguments.output,
            dtype=arguments.dtype,
            workers=entered,
            **run_options(arguments),
            **_options(arguments),
        )
    shape = "" if summary is None else f"vectors ({summary.n_texts}, {summary.width}) {arguments.dtype}"
    report_run(arguments.output, shape, summary)


def _workers(arguments: argparse.Namespace) -> contextlib.AbstractContextManager[Workers | None]:
    """Return the workers that the options name; None if this process computes."""
    if arguments.on is None:
        if arguments.actors is not None:
            raise ValueError("--actors is the number of workers of a cluster; name it with --on.")
        return contextlib.nullcontext()
    engine, _, address = arguments.on.partition(":")
    if engine != "ray":
        raise ValueError(f"--on {arguments.on}: expected ray, ray:local or ray:HOST:PORT.")
    from minibert.integrations.ray import RayWorkers

    options = {
        name: getattr(arguments, name)
        for name in ("num_threads", "revision", "backend", "compute_type", "shared_weights")
    }
    return RayWorkers(
        arguments.model,
        address=address or None,
        actors=arguments.actors,
        report=report_problem,
        prompts=_prompts(arguments),
        **options,
    )


def _similarity(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.texts)
    if len(texts) < 2:
        raise ValueError("similarity compares texts with each other; give at least two.")
    model = _load(arguments)
    vectors = model.encode(texts, **_options(arguments))
    scores = model.similarity(vectors, vectors)
    if arguments.json:
        table = [[float(str(score)) for score in row] for row in scores]
        print(json.dumps({"texts": texts, "scores": table}, ensure_ascii=False))
        return
    width = max(8, len(str(len(texts))) + 2, *(len(f"{score:.3f}") + 2 for score in (scores.min(), scores.max())))
    print(" " * 4 + "".join(f"{number:{width}}" for number in range(len(texts))))
    for number, (text, row) in enumerate(zip(texts, scores, strict=True)):
        print(f"{number:4}" + "".join(f"{score:{width}.3f}" for score in row) + f"   {' '.join(text.split())}")


def _search(arguments: argparse.Namespace) -> None:
    from minibert.vectors.search import semantic_search
    from minibert.vectors.similarity import SIMILARITY_FUNCTIONS

    lines = [(number, line) for number, line in enumerate(read_lines(arguments.file), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{arguments.file} does not hold a text to search in; give a file with one text per line.")
    model = _load(arguments)
    corpus = model.encode_document([line for _, line in lines], **_options(arguments))
    query = model.encode_query(arguments.query, **_options(arguments))
    score_function = SIMILARITY_FUNCTIONS[model.similarity_fn_name][0]
    for hit in semantic_search(query, corpus, top_k=arguments.top_k, score_function=score_function)[0]:
        number, line = lines[int(hit["corpus_id"])]
        if arguments.json:
            print(json.dumps({"score": round(hit["score"], 6), "line": number, "text": line}, ensure_ascii=False))
        else:
            print(f"{hit['score']:8.3f}  {number:>6}  {line}")
