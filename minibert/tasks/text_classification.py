"""text-classification: the label of a text, or of a pair of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minibert._utils.reproducible_math import sigmoid, softmax
from minibert._utils.validation import FloatArray, check_choice, check_int
from minibert.tasks.base import TaskPipeline, TextOptions, as_pair
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_text, shown

FUNCTIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda logits: logits,
}
"""From logits to scores, by the names that transformers has."""

_NOT_GIVEN: Any = object()


@dataclasses.dataclass(kw_only=True)
class TextClassificationOptions(TextOptions):
    """The arguments of text-classification.

    Parameters
    ----------
    top_k : int or None
        The labels of an answer, most probable first; None: all. If it is not given, an answer is the best label alone.
    function_to_apply : {"softmax", "sigmoid", "none", "default"}, optional
        From logits to scores. Default: none for a regression, sigmoid for several labels at once and for a single one,
        else softmax; config.json says which in ``problem_type``.
    """

    top_k: int | None = _NOT_GIVEN
    function_to_apply: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k is not _NOT_GIVEN and self.top_k is not None:
            check_int("top_k", self.top_k, 1, also=", or None for all labels")
        name = getattr(self.function_to_apply, "value", self.function_to_apply)  # transformers has an enum
        name = name.lower() if isinstance(name, str) else name
        self.function_to_apply = None if name == "default" else name
        if self.function_to_apply is not None:
            check_choice("function_to_apply", self.function_to_apply, tuple(FUNCTIONS))


class TextClassificationPipeline(TaskPipeline):
    """Texts, or pairs of texts -> labels and scores, as transformers gives them.

    A pair is a dict with "text" and "text_pair". An answer is a dict of "label" and "score", or with `top_k` a list of
    them, most probable first.
    """

    task = "text-classification"
    options = TextClassificationOptions
    _input_is = "a str, or a dict with 'text' and 'text_pair'"

    def __call__(self, inputs: Any, *, batch_size: int | None = None, **arguments: Any) -> Any:
        """Classify one text or pair, a list of them, or an iterable.

        Parameters
        ----------
        inputs : str or dict, list of these, or iterable of these
        batch_size : int, optional
        **arguments
            Arguments of `TextClassificationOptions`; they replace the pipeline's.

        Returns
        -------
        list of answers
            For one str without ``top_k=`` in the call, a list that holds its answer; for one str with `top_k`, and for
            one dict, the answer itself, as in transformers. For an iterable, an iterator.

        Raises
        ------
        TypeError, ValueError
            An argument is wrong, or an input is neither a text nor a pair.
        """
        _, answers = self._call(inputs, batch_size, arguments)
        return [answers] if isinstance(inputs, str) and "top_k" not in arguments else answers

    def _is_one(self, value: Any, options: TextOptions) -> bool:
        return isinstance(value, str | Mapping)

    def _check_input(self, value: Any, name: str, options: TextClassificationOptions) -> tuple[str, str | None]:
        if isinstance(value, str):
            return check_text(value, name), None
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list) and len(value[0]) == 2:
            first, second = value[0]  # an old form of pairs, which transformers takes too
            return check_text(first, f"{name}[0][0]"), check_text(second, f"{name}[0][1]")
        if not isinstance(value, Mapping):
            raise TypeError(f"{name} is {shown(value)}; expected {self._input_is}.")
        if set(value) == {"text"}:
            return check_text(value["text"], f"{name}['text']"), None
        return as_pair(value, name, "text", "text_pair")

    def _answer(
        self, value: Any, windows: list[Encoding], logits: list[FloatArray], options: TextClassificationOptions
    ) -> Any:
        config = self.model.config
        apply = FUNCTIONS[options.function_to_apply or function_of(config.problem_type, config.num_labels)]
        answers = _ranked(config.id2label, np.asarray(apply(logits[0]), dtype=np.float32))
        return answers[0] if options.top_k is _NOT_GIVEN else answers[: options.top_k]


def _ranked(labels: Mapping[int, str], scores: FloatArray) -> list[dict[str, Any]]:
    """Return labels with their scores, the best first."""
    return [{"label": labels[int(i)], "score": float(scores[i])} for i in np.argsort(-scores, kind="stable")]


def function_of(problem_type: str | None, num_labels: int) -> str:
    """Return the name of the function from logits to scores that a config implies."""
    if problem_type == "regression":
        return "none"
    return "sigmoid" if problem_type == "multi_label_classification" or num_labels == 1 else "softmax"


_LABELS = {0: "IsNext", 1: "NotNext"}  # the names and the order of the paper's code


class NextSentencePipeline(TaskPipeline):
    """Pairs of texts -> the probabilities of "IsNext" and "NotNext".

    A pair is a dict with "text" and "text_pair", or in a list a tuple or list of two texts. An answer is a list of two
    dicts of "label" and "score", the more probable label first.
    """

    task = "next-sentence"
    _input_is = "a dict with 'text' and 'text_pair'"

    def __call__(self, inputs: Any, text_pair: Any = None, *, batch_size: int | None = None, **arguments: Any) -> Any:
        """Judge one pair, a list of pairs, or an iterable of pairs.

        Parameters
        ----------
        inputs : dict, list of pairs, iterable of pairs; or the first text
        text_pair : str, optional
            The second text, if `inputs` is the first one.
        batch_size : int, optional
        **arguments
            Arguments of `TextOptions`; they replace the pipeline's.

        Returns
        -------
        list of two dicts for one pair, list of such lists for a list; for an iterable an iterator

        Raises
        ------
        TypeError, ValueError
            An argument is wrong, or an input is not a pair.
        """
        if isinstance(inputs, str):
            if text_pair is None:
                raise TypeError("text_pair is missing; give two texts: pipe(first, second).")
            inputs = {"text": inputs, "text_pair": text_pair}
        elif text_pair is not None:
            raise TypeError("text_pair is given beside a list; put both texts of each pair into the list.")
        return super().__call__(inputs, batch_size=batch_size, **arguments)

    def _is_one(self, value: Any, options: TextOptions) -> bool:
        return isinstance(value, Mapping)

    def _check_input(self, value: Any, name: str, options: TextOptions) -> tuple[str, str]:
        if isinstance(value, list | tuple) and len(value) == 2:
            return check_text(value[0], f"{name}[0]"), check_text(value[1], f"{name}[1]")
        return as_pair(value, name, "text", "text_pair")

    def _answer(self, value: Any, windows: list[Encoding], logits: list[FloatArray], options: TextOptions) -> Any:
        return _ranked(_LABELS, softmax(logits[0]).astype(np.float32))
