"""next-sentence: the probability that one text follows another, the second task of BERT's pre-training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minibert._utils.reproducible_math import softmax
from minibert._utils.validation import FloatArray
from minibert.tasks.base import TaskPipeline, model_inputs
from minibert.tasks.inputs import as_pair, check_text
from minibert.tasks.lengths import CutWarning, TextOptions
from minibert.tokenizer.encodings import Encoding

__all__ = ["NextSentencePipeline"]

_LABELS = ("IsNext", "NotNext")  # the names and the order of the paper's code


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
            Those of `TextOptions`, instead of those of the pipeline.

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
        return self._call(inputs, batch_size, arguments, lambda value: isinstance(value, Mapping))[1]

    def _check_input(self, value: Any, name: str, options: TextOptions) -> tuple[str, str]:
        if isinstance(value, list | tuple) and len(value) == 2:
            return check_text(value[0], f"{name}[0]"), check_text(value[1], f"{name}[1]")
        return as_pair(value, name, "text", "text_pair")

    def _tokenize(self, inputs: list[Any], first: int, options: TextOptions, cut: CutWarning) -> list[list[Encoding]]:
        limit = options.limit(self.model.config, self.tokenizer)
        encodings = limit.encode(self.tokenizer, inputs, range(first, first + len(inputs)), cut)
        return [[encoding] for encoding in encodings]

    def _compute(self, windows: Sequence[Encoding]) -> list[FloatArray]:
        return list(self.model(**model_inputs(windows), return_dict=True).logits)

    def _answer(self, value: Any, windows: list[Encoding], logits: list[FloatArray], options: TextOptions) -> Any:
        scores = softmax(logits[0]).astype(np.float32)
        order = np.argsort(-scores, kind="stable")
        return [{"label": _LABELS[i], "score": float(scores[i])} for i in order]
