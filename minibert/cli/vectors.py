"""``minibert embed``, ``sparse``, ``similarity``, ``search``, ``rerank``, ``extract``: vectors, and scores of texts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minibert._utils.files import check_output
from minibert._utils.validation import counted
from minibert.cli import options, output
from minibert.cli.files import COLUMNS, OF_COLUMNS, PROGRESS, UPDATE, inputs, run_over_files, sources_of, texts_or_files
from minibert.cli.notation import add_options, add_verb
from minibert.cli.options import TEXTS, add_model_options, chosen, load_encoder
from minibert.corpus.writers import OUTPUT_DTYPES, output_suffix
from minibert.encode.options import EncodeOptions, SparseOptions, TokenOptions
from minibert.tokenizer.too_long import TRUNCATIONS, TRUNCATIONS_WITHOUT_SPLIT
from minibert.vectors.layers import SUBWORD_POOLING
from minibert.vectors.multi_vectors import MULTI_VECTOR_SIMILARITIES
from minibert.vectors.similarity import PRECISIONS, SIMILARITY_FUNCTIONS

_OF_SENTENCES = (
    *(name for name in EncodeOptions.__dataclass_fields__ if name not in TokenOptions.__dataclass_fields__),
    "precision",
)
_OF_QUERIES = ("prompt_name", "prompt", "batch_size")  # those of a search in vectors; a manifest fixes the others

_Hit = tuple[float, dict[str, Any], str | None]
"""A score, the id or the line, and the text if that is known."""

_SCORES = SIMILARITY_FUNCTIONS | MULTI_VECTOR_SIMILARITIES


def add_verbs(verbs: Any) -> None:
    """Add the six verbs to the command line."""
    text = f"""embed: turn texts into sentence vectors
        Print one JSON object per text, with its vector, or save all vectors as an array. With --input a corpus is read
        from files, in bounded memory. Its manifest <output>.manifest.json is written beside the output, and --resume
        continues an interrupted run. With -o FOLDER/ the output is a folder of Parquet files, which can be read while
        the run goes on.
        {options.OPTIONAL_TEXTS}
        -o, --output FILE|FOLDER/: save an array (texts, dimension), an .npy file, instead of printing; with --input the
            suffix is the format: .npy (with the ids beside it in .ids.jsonl), .jsonl or .parquet; a name that ends in /
            or an existing folder gets part-00000.parquet, part-00001.parquet and so on, and must be empty
        {inputs()}
        {UPDATE}
        --dtype {"|".join(OUTPUT_DTYPES)} = float32: type of the numbers, with --input
        --normalize: scale each vector to length 1, even if the model does not
        --multi-vector: a vector for each token, of a model of late interaction (ColBERT); texts are its documents
        --precision {"|".join(PRECISIONS)} = float32: precision of the numbers, without --input
        """
    embed = add_verb(verbs, _embed, text, normalize={"dest": "normalize_embeddings"})
    options.add_prompt(embed, "each text")
    _add_vector_options(embed)

    text = f"""sparse: turn texts into sparse vectors: a weight for each word that a SPLADE model finds
        Print the words of each text with their weights. With --input the vectors of all texts of files are written, in
        bounded memory; --resume continues an interrupted run.
        {options.OPTIONAL_TEXTS}
        -k, --top-k K = 10: words to print
        --json: JSON lines with all words: {{"text": ..., "tokens": [...], "indices": [...], "values": [...]}}
        --max-active-dims N: keep only the N largest weights of each text
        {options.STRIDE}
        """
    _add_lines_options(add_verb(verbs, _sparse, text), TRUNCATIONS)

    text = f"""similarity: score texts against each other
        Print the similarity of each two texts, as the model defines it; usually the cosine.
        {TEXTS}
        --json: one JSON object: {{"texts": [...], "scores": [[...]]}}
        """
    _add_vector_options(add_verb(verbs, _similarity, text))
    text = f"""search: find the lines of a file, or the vectors of embed, that are nearest to a query
        Print the texts of a file that are most similar to the query, best first. The model's prompts for queries and
        documents are used. Empty texts are ignored. If the file holds vectors that embed wrote, its manifest names the
        model and the options.
        QUERY: the text to look for; "-" for a line of the standard input
        FILE: texts: one per line, .jsonl, .csv, .tsv or .parquet; "-" is the standard input; or vectors: .npy, .jsonl,
            .parquet, or a folder of Parquet files
        -k, --top-k K = 5: lines to print
        --json: JSON lines: {{"score": ..., "id": ..., "line": ..., "text": ...}}; of vectors without "line"
        --multi-vector: FILE holds texts, and the model is one of late interaction (ColBERT)
        {COLUMNS}
        {PROGRESS}
        """
    search = add_verb(verbs, _search, text)
    options.add_prompt(search, "the query")
    _add_vector_options(search)
    text = f"""rerank: sort texts by how well they answer a query
        Print the texts with their scores for the query, best first. With --input the scores of all texts of files are
        written, in the order of the files, in bounded memory; --resume continues an interrupted run.
        QUERY: the query; "-" for a line of the standard input
        {options.OPTIONAL_TEXTS}
        -k, --top-k K: texts to print (default: all)
        --json: JSON lines: {{"score": ..., "index": ..., "text": ...}}
        """
    _add_lines_options(add_verb(verbs, _rerank, text), TRUNCATIONS_WITHOUT_SPLIT)
    text = f"""extract: save hidden states of all tokens or words of a corpus
        Save the hidden states of every token of the texts in files, in bounded memory. The binary format is an .npy
        array (tokens, layers, hidden_size) and an index, .tokens.jsonl; minibert.corpus.extract.TokenFeatures reads
        both. The google format is the JSON lines of extract_features.py, where ' ||| ' separates the two texts of a
        pair. That script's spelling of the options, with underscores, works too. The words format is a table: the file,
        the sentence, the number of the word, the word, its pieces, the other columns of the input, the layer and the
        vector. The manifest <output>.manifest.json is written beside the output, and --resume continues an interrupted
        run.
        {inputs(1000)}
        -o, --output, --output_file FILE: the file to write: .npy, .jsonl for google, .parquet or .csv for words
        --format binary|google|words: format of the output (default: words for .parquet and .csv, else binary)
        --layers LAYERS = -1,-2,-3,-4: layers, such as 1-6 or -1,-2: -1 is the last layer; 0 is the embeddings' output
            as in transformers, but the first layer with --format google (default: -1,-2,-3,-4)
        --subwords {"|".join(SUBWORD_POOLING)} = mean: with words: how the vectors of a word's pieces are combined
        --max-length, --max-seq-length, --max_seq_length N: most tokens of a text; the rest is cut off (default: the
            model's limit; 128 with --format google)
        --batch-size, --batch_size N = 32: texts that are computed together
        --dtype {"|".join(OUTPUT_DTYPES)} = float32: type of the array
        --do-lower-case, --do_lower_case VALUE: compared with the model's tokenizer; it changes nothing
        """
    lower_case = {"nargs": "?", "const": "true", "type": str.lower, "choices": ("true", "1", "false", "0")}
    add_model_options(add_verb(verbs, _extract, text, max_length={"type": int}, do_lower_case=lower_case))


def _add_vector_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a text becomes a vector."""
    text = f"""
        --pooling MODE: replaces the model's pooling: mean, max, cls, lasttoken, weightedmean, mean_sqrt_len_tokens,
            first_last, pooler, or several separated by commas, whose vectors are concatenated
        {options.LAYERS}; default: -1
        {options.LAYER_POOLING} = concat: how several layers are combined
        --truncation {"|".join(TRUNCATIONS)} = warn: if a text is too long: cut it and warn, refuse it, average its
            windows, or cut it silently
        {options.STRIDE}
        --truncate-dim N: keep only the first N features
        {options.BATCH_SIZE}
        --builtin-prompts: use the prompts of the model's card, if its files do not store any
        """
    prompts = {"action": "store_const", "const": "builtin", "dest": "prompts"}
    add_options(parser, text, pooling={"type": lambda text: text.split(",")}, builtin_prompts=prompts)
    add_model_options(parser)


def _add_lines_options(parser: argparse.ArgumentParser, truncation: Sequence[str]) -> None:
    """Add the files, and the options of the verbs whose output is JSON lines."""
    text = f"""
        {inputs()}
        {UPDATE}
        -o, --output FILE: with --input: the .jsonl file to write
        --truncation {"|".join(truncation)} = warn: if a text is too long
        {options.BATCH_SIZE}
        """
    add_options(parser, text)
    options.add_prompt(parser, "each text, or before the query")
    add_model_options(parser, needs_head=True)


def _texts_or_files(arguments: argparse.Namespace) -> list[str] | None:
    """Return the texts of a verb whose output is JSON lines, or None if files are given."""
    return texts_or_files(
        arguments, lambda path: check_output(path, (".jsonl",)), for_texts=("json", "top_k"), for_files=("output",)
    )


def _encode_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `encode` that the verb has."""
    if getattr(arguments, "multi_vector", False):
        arguments.parser.refuse(_OF_SENTENCES, "is for sentence vectors; leave it out with --multi-vector.")
        return chosen(arguments, TokenOptions.__dataclass_fields__)
    if arguments.pooling in (["none"], ["NONE"]):
        raise ValueError("--pooling none does not give sentence vectors; minibert hidden saves the vectors of tokens.")
    return chosen(arguments, EncodeOptions.__dataclass_fields__)


def _load(arguments: argparse.Namespace) -> Any:
    return load_encoder("MultiVectorEncoder" if arguments.multi_vector else "SentenceTransformer", arguments)


def _embed(arguments: argparse.Namespace) -> None:
    if arguments.output is not None and arguments.texts and not arguments.input:
        output.check_file(arguments.output, ".npy")
        if os.path.lexists(beside := f"{os.path.realpath(arguments.output)}.manifest.json"):
            raise ValueError(f"{arguments.output} is the output of a run: {beside} describes it. Give another output.")
        if arguments.multi_vector:
            raise ValueError("--output with --multi-vector is for files of texts; give them with --input.")
    texts = texts_or_files(arguments, output_suffix, for_texts=("precision",), for_files=("dtype",))
    keywords, dtype = _encode_options(arguments), arguments.dtype
    model = _load(arguments)
    if texts is None:
        from minibert.corpus.embed import embed_corpus

        what = f"vectors of tokens ({{n_tokens}}, {{width}}) {dtype}"
        what = what if arguments.multi_vector else f"vectors ({{n_texts}}, {{width}}) {dtype}"
        run_over_files(arguments, embed_corpus, model, what=what, dtype=dtype, **keywords)
        return
    if arguments.multi_vector:
        vectors = model.encode_document(texts, **keywords)
    else:
        vectors = model.encode(texts, precision=arguments.precision, **keywords)
    if arguments.output is not None:
        output.write_file(arguments.output, lambda file: np.save(file, vectors))
        output.report_written(arguments.output, f"vectors {vectors.shape}")
        return
    for text, vector in zip(texts, vectors, strict=True):
        output.print_json(text=text, embedding=vector)


def _sparse(arguments: argparse.Namespace) -> None:
    texts, keywords = _texts_or_files(arguments), chosen(arguments, SparseOptions.__dataclass_fields__)
    model = load_encoder("SparseEncoder", arguments)
    if texts is None:
        from minibert.corpus.embed import sparse_corpus

        run_over_files(arguments, sparse_corpus, model, what="sparse vectors", **keywords)
        return
    for text, vector in zip(texts, model.encode(texts, **keywords), strict=True):
        if arguments.json:
            indices = vector.indices.tolist()
            tokens = model.tokenizer.convert_ids_to_tokens(indices)
            output.print_json(text=text, tokens=tokens, indices=indices, values=vector.data)
            continue
        print(f"{output.one_line(text)}   ({vector.nnz} of {vector.shape[0]} words)")
        words = model.decode(vector, top_k=arguments.top_k)
        most = max((weight for _, weight in words), default=1.0)
        for word, weight in words:
            print(f"{weight:8.3f}  {output.bar(weight / most)}  {output.one_line(word)}".rstrip())


def _similarity(arguments: argparse.Namespace) -> None:
    texts = output.read_texts(arguments.texts)
    if len(texts) < 2:
        raise ValueError("similarity compares texts with each other; give at least two.")
    model = load_encoder("SentenceTransformer", arguments)
    vectors = model.encode(texts, **_encode_options(arguments))
    scores = model.similarity(vectors, vectors)
    if arguments.json:
        output.print_json(texts=texts, scores=scores)
        return
    width = max(8, len(str(len(texts))) + 2, *(len(f"{score:.3f}") + 2 for score in (scores.min(), scores.max())))
    print(" " * 4 + "".join(f"{number:{width}}" for number in range(len(texts))))
    for number, (text, row) in enumerate(zip(texts, scores, strict=True)):
        print(f"{number:4}" + "".join(f"{score:{width}.3f}" for score in row) + f"   {' '.join(text.split())}")


def _search(arguments: argparse.Namespace) -> None:
    from minibert.corpus.readers import holds_vectors

    arguments.query = output.read_text("QUERY", arguments.query)
    for score, place, text in (_search_vectors if holds_vectors(arguments.file) else _search_texts)(arguments):
        fields = {} if text is None else {"text": text}
        if arguments.json:
            output.print_json(score=round(score, 6), **place, **fields)
        else:
            print(f"{score:8.3f}  {place['id']!s:>6}  {output.one_line(text or '')}".rstrip())


def _search_texts(arguments: argparse.Namespace) -> Iterator[_Hit]:
    from minibert.corpus.readers import LinesToSearch

    (source,) = sources_of(arguments, [arguments.file])
    lines, keywords = LinesToSearch(source), _encode_options(arguments)
    model = _load(arguments)
    score_function = _SCORES[model.similarity_fn_name][0]
    hits = lines.search(model, arguments.query, arguments.top_k, score_function, arguments.progress, **keywords)
    yield from ((score, {"id": line.id, "line": line.line}, line.text) for score, line in hits)


def _search_vectors(arguments: argparse.Namespace) -> Iterator[_Hit]:
    from minibert.corpus.readers import VectorFile

    path, file, parser = arguments.file, VectorFile(arguments.file), arguments.parser
    fixed = [name for name in EncodeOptions.__dataclass_fields__ if name not in _OF_QUERIES and file.manifest]
    fixed += ["prompts", "compute_type"] if file.manifest else []
    of_texts = {*OF_COLUMNS} - {"text_column"}
    parser.refuse((*of_texts, *fixed), f"is for texts, and {path} holds vectors; leave it out.")
    name, how = arguments.model if "model" in parser.given else None, options.loading(arguments)
    model, keywords = file.load_model(name, **how, prompts=arguments.prompts)
    keywords, of_query = keywords or _encode_options(arguments), chosen(arguments, _OF_QUERIES)
    prompt = keywords["prompt"] or keywords["prompt_name"]
    if arguments.prompt or arguments.prompt_name:
        keywords |= of_query
    elif prompt:
        output.report_problem(f"the query gets the prompt of the texts, {prompt!r}")
    keywords["batch_size"] = arguments.batch_size
    query = model.encode_query(arguments.query, **keywords)
    score_function, columns = _SCORES[model.similarity_fn_name][0], arguments.text_column
    hits = file.search(query, arguments.top_k, score_function, columns, output.report_problem)
    if not hits:
        raise ValueError(f"{path} does not hold a vector.")
    if columns and any(text is None for _, _, text in hits):
        raise ValueError(f"{path} has no texts in a column {', '.join(map(repr, columns))}.")
    yield from ((score, {"id": id}, text) for score, id, text in hits)


def _rerank(arguments: argparse.Namespace) -> None:
    arguments.query = output.read_text("QUERY", arguments.query)
    texts, keywords = _texts_or_files(arguments), chosen(arguments, SparseOptions.__dataclass_fields__)
    model = load_encoder("CrossEncoder", arguments)
    if texts is None:
        from minibert.corpus.embed import rerank_corpus

        run_over_files(arguments, rerank_corpus, model, arguments.query, what="scores", **keywords)
        return
    ranked = model.rank(arguments.query, texts, top_k=arguments.top_k, **keywords)
    scores = [float(str(np.float32(hit["score"]))) for hit in ranked]
    # A score of a model without sigmoid can be any number: the bars then go from the least to the greatest one.
    least, most = min([0.0, *scores]), max([1.0, *scores])
    for hit, score in zip(ranked, scores, strict=True):
        index, text = hit["corpus_id"], texts[hit["corpus_id"]]
        if arguments.json:
            output.print_json(score=score, index=index, text=text)
            continue
        bar = output.bar((score - least) / (most - least))
        print(f"{score:8.3f}  {bar}  {index:>4}  {output.one_line(text)}".rstrip())


def _extract(arguments: argparse.Namespace) -> None:
    from minibert.corpus.extract import check_format_of, extract_corpus

    if not arguments.input or not arguments.output:
        raise ValueError("extract needs --input FILE and --output FILE.")
    arguments.format = check_format_of(arguments.output, arguments.format)
    tokenizer = options.load_tokenizer(arguments)
    asked, own = arguments.do_lower_case, tokenizer.do_lower_case
    if asked is not None and (asked in ("true", "1")) != own:
        raise ValueError(f"--do_lower_case={asked}, but the tokenizer of {arguments.model} has {own}; leave it out.")
    if arguments.format == "google":
        arguments.parser.refuse(("dtype", "id_column"), "has no place in Google's lines of JSON; leave it out.")
    others = ["batch_size"] if arguments.format == "words" else ["subwords"]
    arguments.parser.refuse(others, f"is not for --format {arguments.format}; leave it out.")
    keywords = chosen(arguments, ("format", "layers", "max_length", "batch_size", "dtype", "subwords"))
    layers = len(arguments.layers)
    shapes = {"binary": f"vectors ({{n_tokens}}, {layers}, {{width}}) {arguments.dtype}", "google": "JSON lines"}
    what = shapes.get(arguments.format, f"words, each with {counted(layers, 'vector')} ({{width}}) {arguments.dtype}")
    run_over_files(arguments, extract_corpus, options.load_bert(arguments), tokenizer, what=what, **keywords)
