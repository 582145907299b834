"""zero-shot-classification: a model of natural language inference scores labels that each call chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from minibert._utils.reproducible_math import softmax
from minibert._utils.validation import FloatArray, brief, check_bool
from minibert.tasks.base import TaskPipeline, TextOptions
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_text
from minibert.tokenizer.too_long import TooLong

_TEMPLATE = "This example is {}."


@dataclasses.dataclass(kw_only=True)
class ZeroShotOptions(TextOptions):
    """The arguments of zero-shot-classification.

    Parameters
    ----------
    candidate_labels : str or list of str
        The labels; a str is split at its commas.
    hypothesis_template : str
        The sentence that the model compares with a text; {} is the place of the label.
    multi_label : bool
        True: several labels may be right, so each score is a probability of its own. False: the scores add up to 1.
    """

    candidate_labels: str | Iterable[str] | None = None
    hypothesis_template: str = _TEMPLATE
    multi_label: bool = False
    strategy = "only_first"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool("multi_label", self.multi_label)
        check_text(self.hypothesis_template, "hypothesis_template")
        labels: Any = self.candidate_labels
        if labels is not None:
            self.candidate_labels = _labels_of(labels)
        _hypothesis(self.hypothesis_template, "a label")


class ZeroShotClassificationPipeline(TaskPipeline):
    """Texts and candidate labels -> the labels in the order of their scores, as transformers gives them.

    The model judges pairs of a text and a hypothesis, and has a label that begins with "entail". An answer is a dict:
    "sequence", "labels", "scores".
    """

    task = "zero-shot-classification"
    options = ZeroShotOptions

    def __init__(self, model: Any, tokenizer: BertTokenizer, **arguments: Any) -> None:
        self._entailment, self._contradiction = _label_ids(model.config.id2label)
        if isinstance(labels := arguments.get("candidate_labels"), Iterator):  # every call reads them again
            arguments["candidate_labels"] = list(labels)
        super().__init__(model, tokenizer, **arguments)

    def __call__(  # type: ignore[override]
        self, sequences: Any, *labels: Any, batch_size: int | None = None, **arguments: Any
    ) -> Any:
        """Classify one text, a list of texts, or an iterable of texts.

        Parameters
        ----------
        sequences : str, list of str, or iterable of str
        *labels
            `candidate_labels` may be the second positional argument.
        batch_size : int, optional
        **arguments
            Arguments of `ZeroShotOptions`; they replace the pipeline's.

        Returns
        -------
        dict for one text, list of dicts for a list; for an iterable an iterator

        Raises
        ------
        TypeError, ValueError
            An argument is wrong, a text is empty, or there are no labels.
        """
        if labels:
            if len(labels) > 1 or "candidate_labels" in arguments:
                raise TypeError("candidate_labels is given twice; give one list of labels.")
            arguments = {**arguments, "candidate_labels": labels[0]}
        together = {**self._arguments, **arguments}
        if together.get("candidate_labels") is None:
            raise TypeError("candidate_labels is missing; give the labels to choose from, such as ['sports', 'news'].")
        return super().__call__(sequences, batch_size=batch_size, **arguments)

    def _check_input(self, value: Any, name: str, options: ZeroShotOptions) -> str:
        if not check_text(value, name):
            raise ValueError(f"{name} is empty; give a text.")
        return value

    def _tokenize(
        self, inputs: list[str], first: int, options: ZeroShotOptions, too_long: TooLong
    ) -> list[list[Encoding]]:
        hypotheses = [_hypothesis(options.hypothesis_template, label) for label in options.candidate_labels or ()]
        groups = []
        for index, text in enumerate(inputs, first):
            pairs = [(text, hypothesis) for hypothesis in hypotheses]
            groups.append(self._encodings(pairs, [index] * len(pairs), options, too_long))
        return groups

    def _answer(
        self, value: str, windows: list[Encoding], logits: list[FloatArray], options: ZeroShotOptions
    ) -> dict[str, Any]:
        labels = list(options.candidate_labels or ())
        rows = np.stack(logits)
        if options.multi_label or len(labels) == 1:
            scores = softmax(rows[:, [self._contradiction, self._entailment]])[:, 1]
        else:
            scores = softmax(rows[:, self._entailment])
        scores = scores.astype(np.float32)
        order = np.argsort(scores, kind="stable")[::-1]  # of equal scores the later label is first, as in transformers
        return {"sequence": value, "labels": [labels[i] for i in order], "scores": [float(scores[i]) for i in order]}


def _labels_of(labels: Any) -> tuple[str, ...]:
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",") if label.strip()]
    if not isinstance(labels, Iterable) or isinstance(labels, bytes):
        raise TypeError(f"candidate_labels={brief(labels)}; expected a list of str, or a str with commas.")
    texts = tuple(check_text(label, "a label of candidate_labels") for label in labels)
    if not texts or not all(label.strip() for label in texts):
        what = "has an empty label" if texts else "is empty"
        raise ValueError(f"candidate_labels {what}; give at least one label, and each must have a character.")
    return texts


def _hypothesis(template: str, label: str) -> str:
    """Return the template with a label in the place of {}."""
    try:
        hypothesis = template.format(label)
    except (IndexError, KeyError, ValueError, AttributeError, TypeError):
        hypothesis = template
    if hypothesis == template:
        raise ValueError(f"hypothesis_template={brief(template)} has no place for the label; write {{}} there.")
    return hypothesis


def _label_ids(labels: dict[int, str]) -> tuple[int, int]:
    """Return the ids of the labels "entailment" and "contradiction"; of two labels the other one is the latter.

    Raises
    ------
    ValueError
        No label begins with "entail", or the label against it is not clear.
    """
    names = {index: label.lower() for index, label in labels.items()}
    entailments = [index for index, name in names.items() if name.startswith("entail")]
    others = [index for index, name in names.items() if name.startswith("contra")]
    if not others and len(names) == 2:
        others = [index for index in names if index not in entailments]
    if len(entailments) != 1 or len(others) != 1:
        listed = ", ".join(map(repr, labels.values()))
        raise ValueError(f"the model has the labels {listed}; expected one like 'entailment', and 'contradiction'.")
    return entailments[0], others[0]
