"""`TaskPipeline`, the base class of the tasks: inputs, their limit of tokens, batches, logits."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from minibert._utils.validation import FloatArray, brief, check_int
from minibert.bert.config import BertConfig
from minibert.errors import ModelFormatError
from minibert.models.torch_like import Closes
from minibert.tokenizer.batch import PADDING, STRATEGIES, choose_strategy, pad_rows
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import as_texts, check_text, shown
from minibert.tokenizer.too_long import TRUNCATIONS_WITHOUT_SPLIT, TooLong
from minibert.tokenizer.windows import encode_pairs, in_chunks
from minibert.vectors.token_vectors import token_limit

BATCH_SIZE = 32
"""Texts of a list, and windows, that are computed together unless batch_size= says otherwise."""

# Values of truncation= -> that of `TooLong`. With the names of transformers the caller asks for a cut, so it is silent.
_TRUNCATIONS: dict[Any, str] = {None: "warn", **{name: name for name in TRUNCATIONS_WITHOUT_SPLIT}}
_TRUNCATIONS |= dict.fromkeys((True, *STRATEGIES), "silent") | dict.fromkeys((False, "do_not_truncate"), "error")


@dataclasses.dataclass(kw_only=True)
class TextOptions:
    """The arguments about the length of texts. All tasks have them.

    Parameters
    ----------
    truncation : {"warn", "error", "silent"}, bool or str, optional
        What happens to a text that is too long: it is cut, with a warning; it is refused; it is cut. True and the names
        of transformers ("longest_first", "only_first", "only_second") cut it; False refuses it. Default: "warn".
    max_length : int, optional
        The most tokens of a text, special tokens included. Default: what the tokenizer and the model take.
    padding : bool or str, optional
        It changes nothing, because padding is never computed.
    """

    truncation: bool | str | None = None
    max_length: int | None = None
    padding: bool | str | None = None

    # A field that holds these options in a mapping, as transformers takes them.
    mapping: ClassVar[str] = ""
    # Which text of a pair is cut unless `truncation` says it, and a sentence on what else can be done.
    strategy: ClassVar[str] = "longest_first"
    instead: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.mapping and getattr(self, self.mapping) is not None:
            self._take(getattr(self, self.mapping))
        truncation: object = self.truncation
        if not (truncation is None or isinstance(truncation, bool | str)) or truncation not in _TRUNCATIONS:
            raise ValueError(f"truncation={brief(truncation)}; expected 'warn' (cut and warn), 'error', or True (cut).")
        if self.max_length is not None:
            check_int("max_length", self.max_length, 1)
        if self.padding is not None:
            choose_strategy("padding", self.padding, PADDING)

    def _take(self, mapping: Any) -> None:
        """Set the options of a mapping of arguments for the tokenizer."""
        if not isinstance(mapping, Mapping):
            raise TypeError(f"{self.mapping}={brief(mapping)}; expected a mapping, such as {{'truncation': True}}.")
        known = [field.name for field in dataclasses.fields(TextOptions)]
        for key, value in mapping.items():
            if key not in known:
                raise ValueError(f"{self.mapping} has {brief(key)}; expected {', '.join(known)}. Leave it out.")
            if getattr(self, key) is not None:
                raise ValueError(f"{key} is given twice: as {key}=, and in {self.mapping}. Give it once.")
            setattr(self, key, value)

    def too_long(self, config: BertConfig, tokenizer: BertTokenizer) -> TooLong:
        """Return the limit of a call on a model, and what happens to texts beyond it."""
        most, length = config.longest, self.max_length
        if length is not None and length > most:
            given = f"max_length={brief(length)}"
            raise ValueError(f"{given}, but the model takes {most} tokens (max_position_embeddings).")
        length = token_limit(config, tokenizer) if length is None else length
        return TooLong(_TRUNCATIONS[self.truncation], length, "inputs", self.instead, "max_length")


class TaskPipeline(Closes):
    """A task on a model: call it with texts. `minibert.pipeline` makes it.

    A call takes one text, a list, or any iterable. For an iterable it returns an iterator, and reads `batch_size` texts
    (default: one) when the next answer is asked for. The answers do not depend on `batch_size`. Threads may share a
    pipeline, because it does not change.

    Attributes
    ----------
    task : str
    model : the model with its head
    tokenizer : BertTokenizer
    owns_model : bool                   whether it was loaded by name
    """

    task: ClassVar[str]
    owns_model = False
    options: ClassVar[type[TextOptions]] = TextOptions
    _input_is: ClassVar[str] = "a str"

    def __init__(
        self, model: Any, tokenizer: BertTokenizer, *, batch_size: int | None = None, **arguments: Any
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._batch_size = None if batch_size is None else check_int("batch_size", batch_size, 1)
        self._arguments = arguments
        self._check_options(self._options({}))

    def close(self) -> None:
        """Close the model if it was loaded by name; see `BertModel.close`."""
        if self.owns_model:
            self.model.close()

    @property
    def device(self) -> Any:
        """The device "cpu", as for a model."""
        return self.model.device

    @property
    def dtype(self) -> Any:
        """The type of the model's results, float32."""
        return self.model.dtype

    torch_dtype = dtype

    @property
    def compute_type(self) -> str:
        """The type of numbers that the encoder multiplies; see `BertModel.compute_type`."""
        return str(self.model.compute_type)

    def __call__(self, inputs: Any, *, batch_size: int | None = None, **arguments: Any) -> Any:
        """Compute the answer for one input, a list of answers for a list, an iterator of answers for an iterable.

        Parameters
        ----------
        inputs : an input, a list of inputs, or an iterable of inputs
        batch_size : int, optional
        **arguments
            Arguments of the class `options`; they replace the pipeline's.

        Raises
        ------
        TypeError, ValueError
            An argument or an input is wrong.
        """
        return self._call(inputs, batch_size, arguments)[1]

    def predict(self, X: Any) -> Any:
        """Return ``self(X)``; the pipelines of scikit-learn call this."""
        return self(X)

    transform = predict

    def save_pretrained(self, save_directory: str | os.PathLike[str], **harmless: Any) -> None:
        """Write the model and the tokenizer into a folder, from which `pipeline` makes the same task.

        The arguments and errors are as for `BertModel.save_pretrained`.
        """
        self.model.save_pretrained(save_directory, **harmless)
        self.tokenizer.save_pretrained(save_directory)

    def __repr__(self) -> str:
        return f"pipeline({self.task!r}, {self.model!r})"

    # --- what a task defines ---

    def _check_options(self, options: Any) -> None:
        """Compare the options with the model and the tokenizer."""
        options.too_long(self.model.config, self.tokenizer)

    def _is_one(self, value: Any, options: Any) -> bool:
        """Return whether a value is one input, and not several."""
        return isinstance(value, str)

    def _check_input(self, value: Any, name: str, options: Any) -> Any:
        """Return an input in the form that the next methods take, or raise."""
        return check_text(value, name)

    def _tokenize(self, inputs: list[Any], first: int, options: Any, too_long: TooLong) -> list[list[Encoding]]:
        """Return the encodings of each input: one, or its windows. `first` is the index of the first input."""
        pairs = [value if isinstance(value, tuple) else (value, None) for value in inputs]
        indices = range(first, first + len(inputs))
        return [[encoding] for encoding in self._encodings(pairs, indices, options, too_long)]

    def _encodings(
        self, pairs: Sequence[tuple[str, str | None]], indices: Sequence[int], options: Any, too_long: TooLong
    ) -> list[Encoding]:
        """Tokenize texts and pairs (they may be mixed), and cut them to the limit; `indices` are for messages."""
        strategy = options.truncation if options.truncation in STRATEGIES else options.strategy
        encodings = encode_pairs(self.tokenizer, pairs, indices, too_long.limit, strategy=strategy)
        self.tokenizer.warn_of_unknown(encodings)
        for index, encoding in zip(indices, encodings, strict=True):
            check_encoding(encoding, index, too_long)
        return encodings

    def _compute(self, windows: Sequence[Encoding]) -> list[FloatArray]:
        """Return the logits of each encoding."""
        return list(self.model(**self._inputs(windows), return_dict=True).logits)

    def _answer(self, value: Any, windows: list[Encoding], logits: list[FloatArray], options: Any) -> Any:
        """Return the answer for one input."""
        raise NotImplementedError

    def _inputs(self, windows: Sequence[Encoding]) -> dict[str, Any]:
        """Return the inputs of the model as arrays of shape (B, S): ids and mask, and token types if it has them."""
        widths = [max(map(len, windows))] * len(windows)
        rows = {
            "input_ids": [window.ids for window in windows],
            "attention_mask": [np.ones(len(window), dtype=np.int64) for window in windows],
        }
        if self.model.config.family.has_token_types:
            rows["token_type_ids"] = [window.token_types for window in windows]
        return {name: pad_rows(values, widths, "right", 0) for name, values in rows.items()}

    # --- calls ---

    def _options(self, arguments: Mapping[str, Any]) -> Any:
        """Return the arguments of this call; where the call has none, the pipeline's."""
        known = self.argument_names()
        # num_workers is the number of processes that read texts.
        own = {name: value for name, value in arguments.items() if name != "num_workers"}
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
        """Return the message about an argument that the task does not have; the message may also suggest `others`."""
        known = [*cls.argument_names(), "batch_size"]
        close = difflib.get_close_matches(name, [*known, *others], 1)
        hint = f" Did you mean {close[0]}=?" if close else ""
        return f"the task {cls.task!r} has no argument {name}=.{hint} It has {', '.join(known)}."

    def _call(self, inputs: Any, batch_size: int | None, arguments: Mapping[str, Any]) -> tuple[str, Any]:
        """Return "one", "several" or "lazy", and the answer, the list of answers, or an iterator of answers."""
        options = self._options(arguments)
        self._check_options(options)
        kind, values = self._sorted(inputs, options)
        size = self._batch_size if batch_size is None else check_int("batch_size", batch_size, 1)
        answers = self._answers(values, options, size or (1 if kind == "lazy" else BATCH_SIZE))
        if kind == "lazy":
            return kind, answers
        results = list(answers)
        return kind, results[0] if kind == "one" else results

    def _sorted(self, inputs: Any, options: Any) -> tuple[str, Iterable[Any]]:
        """Return "one", "several" or "lazy", and the inputs as an iterable.

        A list, tuple, array or column is computed at once. Any other iterable, such as a generator or a dataset, is
        lazy: the caller gets an iterator.
        """
        if self._is_one(inputs, options):
            return "one", [inputs]
        if isinstance(inputs, list | tuple):
            return "several", inputs
        if isinstance(inputs, str | bytes | bytearray | memoryview | Mapping) or not isinstance(inputs, Iterable):
            what = f"expected {self._input_is}, or a list or an iterable of such inputs"
            raise TypeError(f"inputs is {shown(inputs)}; {what}.")
        if hasattr(inputs, "ndim") or hasattr(inputs, "to_pylist"):
            return "several", as_texts("inputs", inputs)[0]
        return "lazy", inputs

    def _answers(self, inputs: Iterable[Any], options: Any, batch_size: int) -> Iterator[Any]:
        too_long, first = options.too_long(self.model.config, self.tokenizer), 0
        for chunk in in_chunks(inputs, batch_size):
            values = [self._check_input(value, f"inputs[{i}]", options) for i, value in enumerate(chunk, first)]
            groups = self._tokenize(values, first, options, too_long)
            logits = self._run([window for group in groups for window in group], batch_size)
            for index, (value, group) in enumerate(zip(values, groups, strict=True), first):
                own = [next(logits) for _ in group]
                if not all(np.isfinite(array).all() for array in own):
                    raise ModelFormatError(f"the model computes NaN or infinity for inputs[{index}]: it is damaged.")
                yield self._answer(value, group, own, options)
            first += len(values)

    def _run(self, windows: list[Encoding], batch_size: int) -> Iterator[FloatArray]:
        for chunk in in_chunks(windows, batch_size):
            yield from self._compute(chunk)


def check_encoding(encoding: Encoding, index: int, too_long: TooLong) -> None:
    """Raise an error for an input without tokens; refuse or count one that was cut."""
    if len(encoding) == 0:
        raise ValueError(f"inputs[{index}] has no tokens, so there is nothing to compute. Leave it out.")
    if encoding.n_truncated:
        too_long.cut(f"inputs[{index}]", len(encoding) + encoding.n_truncated)


def as_pair(value: Any, name: str, first: str, second: str) -> tuple[str, str]:
    """Return the two texts of a mapping with these keys.

    Raises
    ------
    TypeError, ValueError
        It is not a mapping, has other keys, or its values are not texts.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {shown(value)}; expected a dict with {first!r} and {second!r}.")
    if set(value) != {first, second}:
        keys = ", ".join(sorted(map(brief, value)))[:200] or "no keys"
        raise ValueError(f"{name} has {keys}; expected {first!r} and {second!r}.")
    return check_text(value[first], f"{name}[{first!r}]"), check_text(value[second], f"{name}[{second!r}]")
