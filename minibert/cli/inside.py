"""``minibert inspect`` and ``minibert explain``: the values inside a model."""

from __future__ import annotations

import argparse
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import minibert
from minibert._utils.validation import counted
from minibert.cli.options import add_model_options, add_options, add_verb, load_encoder, loading, locate_model
from minibert.cli.output import check_file, report_problem, report_written, write_file

if TYPE_CHECKING:
    from minibert._utils.validation import FloatArray
    from minibert.sentence.sentence_transformers import SentenceTransformer
    from minibert.trace.page.steps import VectorStep
    from minibert.trace.trace import Trace


# Characters of the text in the title of its page.
_TITLE = 60


def add_verbs(verbs: Any) -> None:
    """Add the two verbs to the command line."""
    text = """inspect: write a page that shows what the model does with a text
        Run the model on a text, and write one HTML file that shows it: all heads, their attention, each layer step by
        step. The file needs no network.
        TEXT: the text
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
        TEXT: the text
        --token I: the token, counted from 0, or the first that is this word (default: the first of the text)
        """
    explain = add_verb(verbs, _explain, text, token={"type": _token})
    which = explain.add_mutually_exclusive_group()
    add_options(which, "--layer L: the layer (default: 0)\n--all: all layers", layer={"dest": "layers", "type": int})
    add_model_options(explain)


def _token(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else text


def _load(arguments: argparse.Namespace, *, masked_lm: bool = False) -> tuple[Any, Any]:
    """Load the encoder and the tokenizer; with `masked_lm` the encoder with that head, if the checkpoint has it."""
    from minibert.models.bert import BertModel
    from minibert.models.heads import BertForMaskedLM
    from minibert.models.loading import find_heads
    from minibert.tokenizer.bert_tokenizer import BertTokenizer

    files = locate_model(arguments)
    wanted: Any = BertForMaskedLM if masked_lm and "BertForMaskedLM" in find_heads(files) else BertModel
    model = wanted.from_files(files, **loading(arguments))
    return model, BertTokenizer.from_files(files)


def _inspect(arguments: argparse.Namespace) -> None:
    check_file(arguments.output, ".html")
    from minibert.inside.explain import trace_texts
    from minibert.inside.representations import page_guesses
    from minibert.models.heads import BertForMaskedLM
    from minibert.trace.page.document import page

    model, tokenizer = _load(arguments, masked_lm=True)
    sentences = _sentences(arguments)
    texts = [arguments.text] if arguments.pair is None else [arguments.text, arguments.pair]
    trace, _ = trace_texts(model, tokenizer, texts)
    html = page(
        trace,
        title=f"{PurePath(arguments.model).name or arguments.model}: {_beginning(arguments.text)}",
        note=f"minibert {minibert.__version__}" + (f", revision {arguments.revision}" if arguments.revision else ""),
        layers=arguments.layers,
        heads=arguments.heads,
        max_bytes=arguments.max_bytes,
        parts=None if arguments.pair is None else _parts(arguments, sentences, trace),
        vector=[] if sentences is None else _vector(sentences, texts, trace),
        guesses=page_guesses(model, trace, tokenizer) if isinstance(model, BertForMaskedLM) else None,
    ).encode("utf-8")

    write_file(arguments.output, lambda file: file.write(html))
    tokens = sum(map(len, trace.tokens or []))
    report_written(arguments.output, f"a page of {len(html) / 1e6:.2f} MB, {counted(tokens, 'token')}")


def _beginning(text: str) -> str:
    return text if len(text) <= _TITLE else text[: _TITLE - 3].rstrip() + "..."


def _sentences(arguments: argparse.Namespace) -> SentenceTransformer | None:
    """Load the model with the modules that make the vector of a text; None if its files do not say how it is made."""
    from minibert.sentence.modules import list_modules, loader_of

    listed = list_modules(locate_model(arguments))
    return load_encoder("SentenceTransformer", arguments) if listed and loader_of(listed) is None else None


def _vector(model: SentenceTransformer, texts: list[str], trace: Trace) -> list[VectorStep]:
    """Return the steps to the vector of each text, or report why there are none."""
    from minibert.inside.sentences import vector_steps

    found = vector_steps(model, texts)
    if found.tokens == trace.tokens:
        return found.steps
    report_problem("the page does not show how the vector comes about, because sentence vectors take other tokens")
    return []


def _parts(arguments: argparse.Namespace, sentences: SentenceTransformer | None, trace: Trace) -> FloatArray | None:
    """Return the parts of the cosine of the two texts, or report why there are none."""
    from minibert.inside.sentences import explain_similarity

    model = load_encoder("SentenceTransformer", arguments) if sentences is None else sentences
    try:
        found = explain_similarity(model, arguments.text, arguments.pair)
    except ValueError as error:
        report_problem(f"the page does not show how the cosine comes about: {error}")
        return None
    if [found.tokens_a, found.tokens_b] != trace.tokens:
        report_problem("the page does not show how the cosine comes about, because sentence vectors take fewer tokens")
        return None
    return found.parts


def _explain(arguments: argparse.Namespace) -> None:
    from minibert.inside.explain import explain

    model, tokenizer = _load(arguments)
    layers = list(range(model.config.num_hidden_layers)) if arguments.all else arguments.layers or 0
    print(explain(model, tokenizer, arguments.text, token=arguments.token, layers=layers))
