"""``minibert fill-mask``, ``classify``, ``ner`` and ``answer``: apply the heads of BERT to texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from minibert.cli.notation import add_verb
from minibert.cli.options import TEXTS, TRUNCATE, add_model_options, chosen, loading
from minibert.cli.output import bar, one_line, print_json, read_text, read_texts, without_controls

_BATCH_SIZE = 32  # texts that are computed together

_JSON = '--json: JSON lines: {"text": ..., "answers": [...]} for each text'


def add_verbs(verbs: Any) -> None:
    """Add the four verbs to the command line."""
    text = f"""fill-mask: find the words that fit at [MASK]
        Print the most probable words for each [MASK] of each text.
        {TEXTS}
        -k, --top-k K = 5: words for each [MASK]
        --targets WORDS: only these words, separated by commas
        {_JSON}
        {TRUNCATE}
        """
    fill = add_verb(verbs, _fill_mask, text, targets={"type": lambda text: text.split(",")})
    text = f"""classify: find the label of a text, or of a pair of texts
        Print the labels of each text with their scores, the best first.
        {TEXTS}
        --text-pair TEXT: a second text, which the model reads together with each text
        -k, --top-k K = 5: labels of each text
        --function softmax|sigmoid|none: from logits to scores (default: what the model says)
        {_JSON}
        {TRUNCATE}
        """
    classify = add_verb(verbs, _classify, text, function={"dest": "function_to_apply"})
    text = f"""ner: find the names in texts: people, places and what else the model knows
        Print each text with its entities in brackets.
        {TEXTS}
        --aggregation none|simple|first|average|max = simple: how tokens become entities; none prints tokens
        --stride N: read long texts in windows that share N tokens, instead of cutting them
        {_JSON}
        {TRUNCATE}
        """
    ner = add_verb(verbs, _ner, text, aggregation={"dest": "aggregation_strategy"})
    text = f"""answer: find the answer to a question in texts
        Print the part of each text that answers the question. Long texts are read in windows.
        QUESTION: the question; "-" for a line of the standard input
        {TEXTS}
        -k, --top-k K = 1: answers of each text
        --no-answer: "no answer" may be an answer too, for models that were trained for it
        {_JSON}
        """
    answer = add_verb(verbs, _answer, text, no_answer={"dest": "handle_impossible_answer"})
    for parser in (fill, classify, ner, answer):
        add_model_options(parser, needs_head=True)


def _run(
    arguments: argparse.Namespace, task: str, options: str, show: Callable[[str, Any], object], of_text: Any = str
) -> None:
    """Load the model with its task, and print the answers of each text as JSON or with `show`.

    `options` are names of options that are arguments of the task; `of_text` makes its input from a text.
    """
    from minibert.tasks.pipelines import pipeline

    texts = read_texts(arguments.texts)
    keywords = {name: value for name, value in chosen(arguments, options.split()).items() if value is not None}
    find = pipeline(task, arguments.model, **loading(arguments), **keywords)
    # An iterator, because of a list of one text some tasks give the answer alone.
    for text, answers in zip(texts, find(map(of_text, texts), batch_size=_BATCH_SIZE), strict=True):
        if arguments.json:
            print_json(text=text, answers=answers if isinstance(answers, list) else [answers])
        else:
            show(text, answers)


def _row(score: float, what: str, *, of: float = 1.0) -> None:
    """Print a score, its bar (the part of `of`), and a word."""
    print(f"{score:8.3f}  {bar(score / of if of else 0.0)}  {what}".rstrip())


def _fill_mask(arguments: argparse.Namespace) -> None:
    def show(text: str, answers: Any) -> None:
        print(one_line(text))
        gaps = [answers] if isinstance(answers[0], dict) else answers
        for number, words in enumerate(gaps, 1):
            if len(gaps) > 1:
                print(f"  [MASK] {number}")
            for word in words:
                _row(word["score"], one_line(word["token_str"]))

    _run(arguments, "fill-mask", "top_k targets truncation", show)


def _classify(arguments: argparse.Namespace) -> None:
    def show(text: str, labels: Any) -> None:
        print(one_line(text))
        most = max(1.0, *(abs(label["score"]) for label in labels))  # logits can be above 1
        for label in labels:
            _row(label["score"], one_line(label["label"]), of=most)

    def of_text(text: str) -> Any:
        return text if arguments.text_pair is None else {"text": text, "text_pair": arguments.text_pair}

    _run(arguments, "text-classification", "top_k function_to_apply truncation", show, of_text)


def _ner(arguments: argparse.Namespace) -> None:
    def show(text: str, entities: Any) -> None:
        marked, end = "", 0
        for entity in sorted(entities, key=lambda entity: entity["start"]):
            label = entity.get("entity_group", entity.get("entity"))
            before, name = text[end : entity["start"]], text[entity["start"] : entity["end"]]
            marked, end = f"{marked}{before}[{name} {label}]", entity["end"]
        print(without_controls(marked + text[end:]).strip())

    _run(arguments, "token-classification", "aggregation_strategy stride truncation", show)


def _answer(arguments: argparse.Namespace) -> None:
    def show(text: str, answers: Any) -> None:
        for answer in answers if isinstance(answers, list) else [answers]:
            _row(answer["score"], one_line(answer["answer"]) or "(no answer)")
            start, end = answer["start"], answer["end"]
            around = text[max(0, start - 40) : start], text[end : end + 40]
            if end > start:
                print(" " * 32 + one_line(f"{around[0]}[{answer['answer']}]{around[1]}"))

    question = read_text("QUESTION", arguments.question)

    def of_text(text: str) -> Any:
        return {"question": question, "context": text}

    _run(arguments, "question-answering", "top_k handle_impossible_answer", show, of_text)
