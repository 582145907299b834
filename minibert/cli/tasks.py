"""``minibert fill-mask``, ``classify``, ``ner`` and ``answer``: apply the heads of BERT to texts."""

from __future__ import annotations

import argparse
from typing import Any

from minibert.cli.options import TEXTS, TRUNCATE, add_model_options, add_verb, loading
from minibert.cli.output import bar, one_line, print_json, read_texts

# Texts that are computed together. They are given as an iterator: then each text has one answer, where a list of one
# text would have the answer alone.
_BATCH_SIZE = 32

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
        QUESTION: the question
        {TEXTS}
        -k, --top-k K = 1: answers of each text
        --no-answer: "no answer" may be an answer too, for models that were trained for it
        {_JSON}
        """
    answer = add_verb(verbs, _answer, text, no_answer={"dest": "handle_impossible_answer"})
    for parser in (fill, classify, ner, answer):
        add_model_options(parser, needs_head=True)


def _load(arguments: argparse.Namespace, task: str, *names: str) -> Any:
    """Load the model with its task; `names` are options that are arguments of the task."""
    from minibert.tasks.pipelines import pipeline

    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name, None) is not None}
    return pipeline(task, arguments.model, **loading(arguments), **given)


def _row(score: float, what: str, *, of: float = 1.0) -> str:
    """Return a line with a score, its bar (the part of `of`), and a word."""
    return f"{score:8.3f}  {bar(score / of if of else 0.0)}  {what}".rstrip()


def _fill_mask(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.texts)
    fill = _load(arguments, "fill-mask", "top_k", "targets", "truncation")
    for text, answers in zip(texts, fill(iter(texts), batch_size=_BATCH_SIZE), strict=True):
        if arguments.json:
            print_json(text=text, answers=answers)
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
            print_json(text=text, answers=labels)
            continue
        print(one_line(text))
        most = max(1.0, *(abs(label["score"]) for label in labels))  # logits can be above 1
        for label in labels:
            print(_row(label["score"], one_line(label["label"]), of=most))


def _ner(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.texts)
    find = _load(arguments, "token-classification", "aggregation_strategy", "stride", "truncation")
    for text, entities in zip(texts, find(iter(texts), batch_size=_BATCH_SIZE), strict=True):
        if arguments.json:
            print_json(text=text, answers=entities)
            continue
        marked, end = "", 0
        for entity in sorted(entities, key=lambda entity: entity["start"]):
            label = entity.get("entity_group", entity.get("entity"))
            before, name = text[end : entity["start"]], text[entity["start"] : entity["end"]]
            marked += f"{_shown(before)}[{_shown(name)} {label}]"
            end = entity["end"]
        print((marked + _shown(text[end:])).strip())


def _answer(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.texts)
    find = _load(arguments, "question-answering", "top_k", "handle_impossible_answer")
    for text in texts:
        found = find(question=arguments.question, context=text)
        answers = found if isinstance(found, list) else [found]
        if arguments.json:
            print_json(text=text, answers=answers)
            continue
        for answer in answers:
            print(_row(answer["score"], one_line(answer["answer"]) or "(no answer)"))
            start, end = answer["start"], answer["end"]
            around = text[max(0, start - 40) : start], text[end : end + 40]
            if end > start:
                print(" " * 32 + one_line(f"{around[0]}[{answer['answer']}]{around[1]}"))


def _shown(text: str) -> str:
    """Return a part of a text with control characters and line ends as spaces."""
    return "".join(one if one.isprintable() else " " for one in text)
