"""``minibert inspect`` and ``explain``: what the model does with one text, as a page and in print."""

from __future__ import annotations

import argparse
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import minibert
from minibert._utils.validation import counted
from minibert.cli import options, output
from minibert.cli.notation import add_options, add_verb
from minibert.cli.options import add_model_options

if TYPE_CHECKING:
    from minibert import SentenceTransformer, Trace
    from minibert._utils.validation import FloatArray
    from minibert.trace.page.steps import VectorStep

_TITLE = 60  # characters of the text in the title of its page


def add_verbs(verbs: Any) -> None:
    """Add the two verbs to the command line."""
    text = """inspect: write a page that shows what the model does with a text
        Run the model on a text, and write one HTML file that shows it: all heads, their attention, each layer step by
        step. The file needs no network.
        TEXT: the text; "-" for a line of the standard input
        --pair TEXT: a second text, and how the cosine of the two comes about
        -o, --output FILE.html: the file to write
        --layers LAYERS: layers of the page, with commas between (default: all)
        --heads HEADS: attention heads of the page (default: all)
        --max-bytes N = 5000000: refuse to write a larger page
        """
    add_model_options(add_verb(verbs, _inspect, text, output={"required": True}))

    text = """explain: print the forward pass step by step, with numbers to compute again
        Run the model on a text, and print each step for one token: the formula, the shape, the line of code, what goes
        in and what comes out. Each printed result can be computed again from the printed numbers.
        TEXT: the text; "-" for a line of the standard input
        --token I: the token, counted from 0, or the first that is this word (default: the first of the text)
        """
    explain = add_verb(verbs, _explain, text, token={"type": _token})
    which = explain.add_mutually_exclusive_group()
    layer = {"dest": "layers", "type": int}
    add_options(which, "--layer L: the layer (default: 0)\n--all: all layers", layer=layer)
    add_model_options(explain)


def _token(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else text


def _load(arguments: argparse.Namespace, *, masked_lm: bool = False) -> tuple[Any, Any]:
    """Load the encoder and the tokenizer; with `masked_lm` the encoder with that head, if the checkpoint has it."""
    from minibert.models.stored import find_heads

    files = options.locate_model(arguments)
    kind = "BertForMaskedLM" if masked_lm and "BertForMaskedLM" in find_heads(files) else "BertModel"
    model = getattr(minibert, kind).from_files(files, **options.loading(arguments))
    return model, minibert.BertTokenizer.from_files(files)


def _inspect(arguments: argparse.Namespace) -> None:
    output.check_file(arguments.output, ".html")
    from minibert.inside.explain import trace_texts
    from minibert.inside.representations import page_guesses
    from minibert.trace.page.document import page

    model, tokenizer = _load(arguments, masked_lm=True)
    sentences = _sentences(arguments)
    arguments.text = output.read_text("TEXT", arguments.text, may_be_empty=True)
    texts = [arguments.text] if arguments.pair is None else [arguments.text, arguments.pair]
    beginning = texts[0] if len(texts[0]) <= _TITLE else texts[0][: _TITLE - 3].rstrip() + "..."
    trace, _ = trace_texts(model, tokenizer, texts)
    html = page(
        trace,
        title=f"{PurePath(arguments.model).name or arguments.model}: {beginning}",
        note=f"minibert {minibert.__version__}" + (f", revision {arguments.revision}" if arguments.revision else ""),
        **options.chosen(arguments, ("layers", "heads", "max_bytes")),
        parts=None if arguments.pair is None else _parts(arguments, sentences, trace),
        vector=[] if sentences is None else _vector(sentences, texts, trace),
        guesses=page_guesses(model, trace, tokenizer) if isinstance(model, minibert.BertForMaskedLM) else None,
    ).encode("utf-8")

    output.write_file(arguments.output, lambda file: file.write(html))
    tokens = sum(map(len, trace.tokens or []))
    output.report_written(arguments.output, f"a page of {len(html) / 1e6:.2f} MB, {counted(tokens, 'token')}")


def _sentences(arguments: argparse.Namespace) -> SentenceTransformer | None:
    """Load the model with the modules that make the vector of a text; None if its files do not say how it is made."""
    from minibert.encode.modules import list_modules, loader_of

    listed = list_modules(options.locate_model(arguments))
    return options.load_encoder("SentenceTransformer", arguments) if listed and loader_of(listed) is None else None


def _vector(model: SentenceTransformer, texts: list[str], trace: Trace) -> list[VectorStep]:
    """Return the steps to the vector of each text, or report why there are none."""
    from minibert.inside.sentences import vector_steps

    vectors = vector_steps(model, texts)
    if vectors.tokens == trace.tokens:
        return vectors.steps
    output.report_problem("the page does not show how the vector comes about: sentence vectors take other tokens")
    return []


def _parts(arguments: argparse.Namespace, sentences: SentenceTransformer | None, trace: Trace) -> FloatArray | None:
    """Return the parts of the cosine of the two texts, or report why there are none."""
    from minibert.inside.sentences import explain_similarity

    model = options.load_encoder("SentenceTransformer", arguments) if sentences is None else sentences
    try:
        similarity = explain_similarity(model, arguments.text, arguments.pair)
    except ValueError as error:
        output.report_problem(f"the page does not show how the cosine comes about: {error}")
        return None
    if [similarity.tokens_a, similarity.tokens_b] != trace.tokens:
        output.report_problem("the page does not show how the cosine comes about: sentence vectors take fewer tokens")
        return None
    return similarity.parts


def _explain(arguments: argparse.Namespace) -> None:
    from minibert.inside.explain import explain

    model, tokenizer = _load(arguments)
    layers = list(range(model.config.num_hidden_layers)) if arguments.all else arguments.layers or 0
    text = output.read_text("TEXT", arguments.text, may_be_empty=True)
    print(explain(model, tokenizer, text, token=arguments.token, layers=layers))
