"""``minibert similarity``, ``search`` and ``rerank``: score texts with each other, or for a query."""

from __future__ import annotations

import argparse
from typing import Any

from minibert.cli.corpus import run_over_files
from minibert.cli.embed import (
    add_lines_options,
    add_vector_options,
    chosen,
    encode_options,
    has_files_for_lines,
    load_sentences,
)
from minibert.cli.options import OPTIONAL_TEXTS, TEXTS, add_verb, load_encoder
from minibert.cli.output import bar, one_line, print_json, read_lines, read_texts


def add_verbs(verbs: Any) -> None:
    """Add the three verbs to the command line."""
    text = f"""similarity: score texts against each other
        Print the similarity of each two texts, as the model defines it; usually the cosine.
        {TEXTS}
        --json: one JSON object: {{"texts": [...], "scores": [[...]]}}
        """
    add_vector_options(add_verb(verbs, _similarity, text))
    text = """search: find the lines of a file that are nearest to a query
        Print the lines of a file that are most similar to the query, best first. The model's prompts for queries and
        documents are used. Empty lines are ignored.
        QUERY: the text to look for
        FILE: one text per line; "-" is the standard input
        -k, --top-k K = 5: lines to print
        --json: JSON lines: {"score": ..., "line": ..., "text": ...}
        """
    add_vector_options(add_verb(verbs, _search, text))
    text = f"""rerank: sort texts by how well they answer a query
        Print the texts with their scores for the query, best first. With --input the scores of all texts of files are
        written, in the order of the files, in bounded memory; --resume continues an interrupted run.
        QUERY: the query
        {OPTIONAL_TEXTS}
        -k, --top-k K: texts to print (default: all)
        --json: JSON lines: {{"score": ..., "index": ..., "text": ...}}
        """
    add_lines_options(add_verb(verbs, _rerank, text), "warn|error|silent")


def _similarity(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.texts)
    if len(texts) < 2:
        raise ValueError("similarity compares texts with each other; give at least two.")
    model = load_sentences(arguments)
    vectors = model.encode(texts, **encode_options(arguments))
    scores = model.similarity(vectors, vectors)
    if arguments.json:
        print_json(texts=texts, scores=scores)
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
    model, options = load_sentences(arguments), encode_options(arguments)
    corpus = model.encode_document([line for _, line in lines], **options)
    query = model.encode_query(arguments.query, **options)
    score_function = SIMILARITY_FUNCTIONS[model.similarity_fn_name][0]
    for hit in semantic_search(query, corpus, top_k=arguments.top_k, score_function=score_function)[0]:
        number, line = lines[int(hit["corpus_id"])]
        if arguments.json:
            print_json(score=round(hit["score"], 6), line=number, text=line)
        else:
            print(f"{hit['score']:8.3f}  {number:>6}  {line}")


def _rerank(arguments: argparse.Namespace) -> None:
    if has_files_for_lines(arguments):
        from minibert.corpus.sparse_rerank import rerank_corpus

        if arguments.top_k is not None:
            raise ValueError("--top-k does not work with --input; sort the scores of the output.")
        model = load_encoder("CrossEncoder", arguments)
        run_over_files(arguments, rerank_corpus, model, arguments.query, what="scores", **chosen(arguments))
        return
    import numpy as np

    texts = read_texts(arguments.texts)
    model = load_encoder("CrossEncoder", arguments)
    found = model.rank(arguments.query, texts, top_k=arguments.top_k, **chosen(arguments))
    scores = [float(str(np.float32(hit["score"]))) for hit in found]
    # A score of a model without sigmoid can be any number: the bars then go from the least to the greatest one.
    least, most = min([0.0, *scores]), max([1.0, *scores])
    for hit, score in zip(found, scores, strict=True):
        index, text = hit["corpus_id"], texts[hit["corpus_id"]]
        if arguments.json:
            print_json(score=score, index=index, text=text)
        else:
            print(f"{score:8.3f}  {bar((score - least) / (most - least))}  {index:>4}  {one_line(text)}".rstrip())
