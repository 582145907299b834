"""`TaskPipeline`: what the tasks share, from the inputs of a call to the logits of each text."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from minibert._utils.validation import FloatArray, check_int
from minibert.errors import ModelFormatError
from minibert.sentence.batching import in_chunks
from minibert.tasks.options import CutWarning, TextOptions, is_text, sort_inputs
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding, padded_array
from minibert.tokenizer.texts import check_text

BATCH_SIZE = 32
"""Texts of a list, and windows, that are computed together unless batch_size= says otherwise."""

# Arguments of transformers, most of them of older versions -> what to write.
_INSTEAD = {
    "return_all_scores": "top_k=None",
    "grouped_entities": "aggregation_strategy='simple'",
    "ignore_subwords": "aggregation_strategy='first'",
    "offset_mapping": "nothing, because the tokenizer gives the characters of each token",
    "multi_class": "multi_label=",
    "text_pair": "a dict as the input, {'text': ..., 'text_pair': ...}",
}


class TaskPipeline:
    """A task on a model: call it with texts. `minibert.pipeline` makes it.

    A call takes one text, a list, or any iterable. For an iterable it returns an iterator, which reads `batch_size`
    texts (default: one) when the next answer is asked for. The answers do not depend on `batch_size`. Threads may share
    a pipeline, because it does not change.

    Attributes
    ----------
    task : str
    model : the model with its head
    tokenizer : BertTokenizer
    """

    task: ClassVar[str]
    options: ClassVar[type[TextOptions]] = TextOptions
    _cut_remedy: ClassVar[str] = ""
    _input_is: ClassVar[str] = "a str"

    def __init__(
        self, model: Any, tokenizer: BertTokenizer, *, batch_size: int | None = None, **arguments: Any
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._batch_size = None if batch_size is None else check_int("batch_size", batch_size, 1)
        self._arguments = arguments
        self._check_options(self._options({}))

    @property
    def device(self) -> Any:
        """The device "cpu", as that of a model."""
        return self.model.device

    @property
    def dtype(self) -> Any:
        """The type of the model's results, float32."""
        return self.model.dtype

    torch_dtype = dtype

    @property
    def compute_type(self) -> str:
        """The numbers that the encoder multiplies, as that of the model."""
        found: str = self.model.compute_type
        return found

    def __call__(self, *inputs: Any, **arguments: Any) -> Any:
        """Compute the answers; each task has its own arguments."""
        raise NotImplementedError

    def predict(self, X: Any) -> Any:
        """Return ``self(X)``; the pipelines of scikit-learn call this."""
        return self(X)

    transform = predict

    def save_pretrained(self, save_directory: str | os.PathLike[str], **harmless: Any) -> None:
        """Write the model and the tokenizer into a folder, from which `pipeline` makes the same task.

        The arguments and errors are those of `BertModel.save_pretrained`.
        """
        self.model.save_pretrained(save_directory, **harmless)
        self.tokenizer.save_pretrained(save_directory)

    def __repr__(self) -> str:
        return f"pipeline({self.task!r}, {self.model!r})"

    # --- what a task defines ---

    def _check_options(self, options: Any) -> None:
        """Compare the options with the model and the tokenizer."""
        options.limit(self.model.config, self.tokenizer)

    def _check_input(self, value: Any, name: str, options: Any) -> Any:
        """Return an input in the form that the next methods take, or raise."""
        return check_text(value, name)

    def _tokenize(self, inputs: list[Any], first: int, options: Any, cut: CutWarning) -> list[list[Encoding]]:
        """Return the encodings of each input: one, or its windows. `first` is the index of the first input."""
        limit = options.limit(self.model.config, self.tokenizer)
        pairs = [one if isinstance(one, tuple) else (one, None) for one in inputs]
        return [[one] for one in limit.encode(self.tokenizer, pairs, range(first, first + len(inputs)), cut)]

    def _compute(self, windows: Sequence[Encoding]) -> list[FloatArray]:
        """Return the logits of each encoding."""
        return list(self.model(**model_inputs(windows), return_dict=True).logits)

    def _answer(self, value: Any, windows: list[Encoding], logits: list[FloatArray], options: Any) -> Any:
        """Return the answer for one input."""
        raise NotImplementedError

    # --- calls ---

    def _options(self, given: Mapping[str, Any]) -> Any:
        """Return the arguments of this call, and those of the pipeline where the call has none."""
        known = self.argument_names()
        own = {name: value for name, value in given.items() if name != "num_workers"}  # of processes that read texts
        for name in own:
            if name not in known:
                raise TypeError(self.unknown_argument(name))
        return self.options(**{**self._arguments, **own})

    @classmethod
    def argument_names(cls) -> list[str]:
        """Return the names of the arguments of the task, without `batch_size`."""
        return [field.name for field in dataclasses.fields(cls.options) if field.init]

    @classmethod
    def unknown_argument(cls, name: str, others: Iterable[str] = ()) -> str:
        """Return the message about an argument that the task does not have; it can suggest `others` too."""
        known = [*cls.argument_names(), "batch_size"]
        close = difflib.get_close_matches(name, [*known, *others], 1)
        hint = f" Did you mean {close[0]}=?" if close else ""
        if name in _INSTEAD:
            hint = f" Write {_INSTEAD[name]}."
        return f"the task {cls.task!r} has no argument {name}=.{hint} It has {', '.join(known)}."

    def _call(
        self,
        inputs: Any,
        batch_size: int | None,
        arguments: Mapping[str, Any],
        is_one: Callable[[Any], bool] = is_text,
    ) -> tuple[str, Any]:
        """Return "one", "several" or "lazy", and the answer, the list of answers, or an iterator of answers."""
        options = self._options(arguments)
        self._check_options(options)
        kind, values = sort_inputs(inputs, is_one, self._input_is)
        size = self._batch_size if batch_size is None else check_int("batch_size", batch_size, 1)
        answers = self._answers(values, options, size or (1 if kind == "lazy" else BATCH_SIZE))
        if kind == "lazy":
            return kind, answers
        found = list(answers)
        return kind, found[0] if kind == "one" else found

    def _answers(self, inputs: Iterable[Any], options: Any, batch_size: int) -> Iterator[Any]:
        cut, first = CutWarning(self._cut_remedy), 0
        for chunk in in_chunks(inputs, batch_size):
            values = [self._check_input(one, f"inputs[{i}]", options) for i, one in enumerate(chunk, first)]
            groups = self._tokenize(values, first, options, cut)
            logits = self._run([window for group in groups for window in group], batch_size)
            for index, (value, group) in enumerate(zip(values, groups, strict=True), first):
                own = [next(logits) for _ in group]
                if not all(np.isfinite(array).all() for array in own):
                    raise ModelFormatError(
                        f"the model computes NaN or infinity for inputs[{index}]: its weights are too large or damaged."
                    )
                yield self._answer(value, group, own, options)
            first += len(values)

    def _run(self, windows: list[Encoding], batch_size: int) -> Iterator[FloatArray]:
        for some in in_chunks(windows, batch_size):
            yield from self._compute(some)


def model_inputs(windows: Sequence[Encoding]) -> dict[str, Any]:
    """Return the ids, token types and mask of encodings as arrays of shape (B, S)."""
    lengths = [len(window) for window in windows]
    spans = [slice(0, length) for length in lengths]
    width = max(lengths)
    return {
        "input_ids": padded_array([window.ids for window in windows], spans, width, 0),
        "token_type_ids": padded_array([window.token_types for window in windows], spans, width, 0),
        "attention_mask": padded_array([np.ones(length, dtype=np.int64) for length in lengths], spans, width, 0),
    }
