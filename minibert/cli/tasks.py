"""``minibert fill-mask``, ``classify``, ``ner`` and ``answer``: what the heads of BERT say about texts."""

from __future__ import annotations

import argparse
import json
from typing import Any

from minibert.cli.options import add_model_options, add_texts, loading, natural, option, positive
from minibert.cli.output import bar, one_line, painter, read_texts

# Texts that are computed together. They are given as an iterator: then each text has one answer, where a list of one
# text would have the answer alone.
_BATCH_SIZE = 32


def add_verbs(verbs: Any) -> None:
    """Add the four verbs to the command line."""
    fill = verbs.add_parser(
        "fill-mask",
        help="find the words that fit at [MASK]",
        description="Print the most probable words for each [MASK] of each text.",
    )
    add_texts(fill)
    option(fill, "-k --top-k K", "words for each [MASK]", type=positive, default=5)
    option(fill, "--targets WORDS", "only these words, separated by commas", type=lambda text: text.split(","))
    _finish(fill, _fill_mask, '{"text": ..., "answers": [...]} for each text')

    classify = verbs.add_parser(
        "classify",
        help="find the label of a text, or of a pair of texts",
        description="Print the labels of each text with their scores, the best first.",
    )
    add_texts(classify)
    option(classify, "--text-pair TEXT", "a second text, which the model reads together with each text")
    option(classify, "-k --top-k K", "labels of each text", type=positive, default=5)
    option(
        classify,
        "--function",
        "from logits to scores (default: what the model says)",
        dest="function_to_apply",
        choices=("softmax", "sigmoid", "none"),
    )
    _finish(classify, _classify, '{"text": ..., "answers": [...]} for each text')

    ner = verbs.add_parser(
        "ner",
        help="find the names in texts: people, places and what else the model knows",
        description="Print each text with its entities in brackets, in colour on a terminal.",
    )
    add_texts(ner)
    option(
        ner,
        "--aggregation",
        "how tokens become entities; none prints tokens",
        dest="aggregation_strategy",
        choices=("simple", "first", "average", "max", "none"),
        default="simple",
    )
    option(ner, "--stride N", "read long texts in windows that share N tokens, instead of cutting them", type=natural)
    _finish(ner, _ner, '{"text": ..., "answers": [...]} for each text')

    answer = verbs.add_parser(
        "answer",
        help="find the answer to a question in texts",
        description="Print the part of each text that answers the question. Long texts are read in windows.",
    )
    answer.add_argument("question", metavar="QUESTION", help="the question")
    add_texts(answer)
    option(answer, "-k --top-k K", "answers of each text", type=positive, default=1)
    option(
        answer,
        "--no-answer",
        '"no answer" may be an answer too, for models that were trained for it',
        dest="handle_impossible_answer",
    )
    _finish(answer, _answer, '{"text": ..., "answers": [...]} for each text', truncation=False)


def _finish(parser: argparse.ArgumentParser, run: Any, what: str, *, truncation: bool = True) -> None:
    """Add the options that all four verbs have."""
    option(parser, "--json", f"JSON lines: {what}")
    if truncation:
        option(
            parser,
            "--truncation",
            "if a text is too long: cut it and warn, refuse it, or cut it silently",
            choices=("warn", "error", "silent"),
            default="warn",
        )
    add_model_options(parser, needs_head=True)
    parser.set_defaults(run=run)


def _load(arguments: argparse.Namespace, task: str, *names: str) -> Any:
    """Load the model with its task; `names` are options that are arguments of the task."""
    from minibert.tasks.pipelines import pipeline

    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name, None) is not None}
    return pipeline(task, arguments.model, **loading(arguments), **given)


def _print_json(text: str, answers: Any) -> None:
    print(json.dumps({"text": text, "answers": answers}, ensure_ascii=False))


def _row(score: float, what: str, *, of: float = 1.0) -> str:
    """Return a line with a score, its bar (the part of `of`), and a word."""
    return f"{score:8.3f}  {bar(score / of if of else 0.0)}  {what}".rstrip()


def _fill_mask(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.texts)
    fill = _load(arguments, "fill-mask", "top_k", "targets", "truncation")
    for text, answers in zip(texts, fill(iter(texts), batch_size=_BATCH_SIZE), strict=True):
        if arguments.json:
            _print_json(text, answers)
            continue
        print(one_line(text))
        gaps = [answers] if isinstance(answers[0], dict) else answers
        for number, words in enumerate(gaps, 1):
            if len(gaps) > 1:
                print(f"  [MASK] {number}")
            for word in words:
                print(_row(word["score"], one_line(word["token_str"])))


def _classify(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.texts)
    inputs: list[Any] = texts
    if arguments.text_pair is not None:
        inputs = [{"text": text, "text_pair": arguments.text_pair} for text in texts]
    classify = _load(arguments, "text-classification", "top_k", "function_to_apply", "truncation")
    for text, labels in zip(texts, classify(iter(inputs), batch_size=_BATCH_SIZE), strict=True):
        if arguments.json:
            _print_json(text, labels)
            continue
        print(one_line(text))
        most = max(1.0, *(abs(label["score"]) for label in labels))  # logits can be above 1
        for label in labels:
            print(_row(label["score"], one_line(label["label"]), of=most))


def _ner(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.texts)
    find = _load(arguments, "token-classification", "aggregation_strategy", "stride", "truncation")
    paint = painter()
    for text, entities in zip(texts, find(iter(texts), batch_size=_BATCH_SIZE), strict=True):
        if arguments.json:
            _print_json(text, entities)
            continue
        marked, end = "", 0
        for entity in sorted(entities, key=lambda entity: entity["start"]):
            label = entity.get("entity_group", entity.get("entity"))
            before, name = text[end : entity["start"]], text[entity["start"] : entity["end"]]
            marked += _shown(before) + paint(f"[{_shown(name)} {label}]", label)
            end = entity["end"]
        print((marked + _shown(text[end:])).strip())


def _answer(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.texts)
    find = _load(arguments, "question-answering", "top_k", "handle_impossible_answer")
    paint = painter()
    for text in texts:
        found = find(question=arguments.question, context=text)
        answers = found if isinstance(found, list) else [found]
        if arguments.json:
            _print_json(text, answers)
            continue
        for answer in answers:
            words = one_line(answer["answer"]) or "(no answer)"
            print(_row(answer["score"], paint(words, "answer")))
            start, end = answer["start"], answer["end"]
            around = text[max(0, start - 40) : start], text[end : end + 40]
            if end > start:
                print(" " * 32 + one_line(f"{around[0]}[{answer['answer']}]{around[1]}"))


def _shown(text: str) -> str:
    """Return a part of a text with control characters and line ends as spaces."""
    return "".join(one if one.isprintable() else " " for one in text)
