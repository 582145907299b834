"""The inputs and the length of texts that all tasks share: which limit holds, and what happens to longer texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from minibert._utils.reporting import warn_caller
from minibert._utils.validation import brief, check_int
from minibert.bert.config import BertConfig
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import PADDING, STRATEGIES, Encoding, choose_strategy
from minibert.tokenizer.texts import as_texts, check_text, shown
from minibert.tokenizer.windows import WITHOUT_WINDOWS, encode_pairs

# Values of truncation= -> the rule that each means. The names of transformers ask for a cut, so it is not silent.
_RULES: dict[Any, str] = {
    None: "warn",
    **{rule: rule for rule in WITHOUT_WINDOWS},
    True: "silent",
    **dict.fromkeys(STRATEGIES, "silent"),
    False: "error",
    "do_not_truncate": "error",
}


@dataclasses.dataclass(frozen=True)
class Limit:
    """The most tokens of a text, special tokens included, and what happens to a longer one.

    Parameters
    ----------
    max_length : int
    rule : {"warn", "error", "silent"}
        Cut the text and warn, raise, or cut it because the caller asked for that.
    strategy : {"longest_first", "only_first", "only_second"}
        Which text of a pair is cut.
    """

    max_length: int
    rule: str
    strategy: str

    def check(self, encoding: Encoding, index: int, cut: CutWarning) -> None:
        """Raise, or warn, for a text of which tokens were cut off; refuse a text without tokens."""
        if len(encoding) == 0:
            raise ValueError(f"inputs[{index}] has no tokens, so there is nothing to compute. Leave it out.")
        if encoding.n_truncated and self.rule != "silent":
            found = f"inputs[{index}] has {len(encoding) + encoding.n_truncated} tokens, the limit is {self.max_length}"
            if self.rule == "error":
                raise ValueError(f"{found}. Shorten it, or cut it: truncation='warn' or True.")
            cut.warn(found)

    def encode(
        self,
        tokenizer: BertTokenizer,
        inputs: Sequence[tuple[str, str | None]],
        indices: Sequence[int],
        cut: CutWarning,
    ) -> list[Encoding]:
        """Tokenize texts and pairs, which may be mixed, and cut them to the limit; `indices` are for messages."""
        encodings = encode_pairs(tokenizer, inputs, indices, self.max_length, strategy=self.strategy)
        for index, encoding in zip(indices, encodings, strict=True):
            self.check(encoding, index, cut)
        return encodings


class CutWarning:
    """The warning about texts that were cut; a call of a pipeline gives it once, for the first of them."""

    def __init__(self, remedy: str = "") -> None:
        self._given = False
        self._remedy = remedy

    def warn(self, found: str) -> None:
        """Warn, unless this call has warned already."""
        if not self._given:
            self._given = True
            warn_caller(
                f"{found}, and was cut; other texts of this call may have been cut too. truncation='error' refuses "
                f"such texts, truncation=True cuts them without a warning.{self._remedy}"
            )


@dataclasses.dataclass(kw_only=True)
class TextOptions:
    """The arguments about the length of texts that the tasks share.

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

    def __post_init__(self) -> None:
        if self.mapping and getattr(self, self.mapping) is not None:
            self._take(getattr(self, self.mapping))
        truncation: object = self.truncation
        if not (truncation is None or isinstance(truncation, bool | str)) or truncation not in _RULES:
            raise ValueError(f"truncation={brief(truncation)}; expected 'warn' (cut and warn), 'error', or True (cut).")
        if self.max_length is not None:
            check_int("max_length", self.max_length, 1)
        if self.padding is not None:
            choose_strategy("padding", self.padding, PADDING)

    def _take(self, given: Any) -> None:
        """Set the options of a mapping of arguments for the tokenizer."""
        if not isinstance(given, Mapping):
            raise TypeError(f"{self.mapping}={brief(given)}; expected a mapping, such as {{'truncation': True}}.")
        known = [field.name for field in dataclasses.fields(TextOptions)]
        for key, value in given.items():
            if key not in known:
                raise ValueError(f"{self.mapping} has {brief(key)}; expected {', '.join(known)}. Leave it out.")
            if getattr(self, key) is not None:
                raise ValueError(f"{key} is given twice: as {key}=, and in {self.mapping}. Give it once.")
            setattr(self, key, value)

    def limit(self, config: BertConfig, tokenizer: BertTokenizer, *, strategy: str = "longest_first") -> Limit:
        """Return the limit for a model; `strategy` is used unless `truncation` names one."""
        most, length = config.max_position_embeddings, self.max_length
        if length is not None and length > most:
            raise ValueError(f"max_length={length}, but the model takes {most} tokens (max_position_embeddings).")
        if isinstance(self.truncation, str) and self.truncation in STRATEGIES:
            strategy = self.truncation
        return Limit(model_limit(config, tokenizer) if length is None else length, _RULES[self.truncation], strategy)


def model_limit(config: BertConfig, tokenizer: BertTokenizer) -> int:
    """Return the tokens of a text that both the model and the tokenizer's settings take."""
    most = config.max_position_embeddings
    return most if tokenizer.model_max_length is None else min(most, tokenizer.model_max_length)


def sort_inputs(inputs: Any, is_one: Callable[[Any], bool], what: str) -> tuple[str, Iterable[Any]]:
    """Return "one", "several" or "lazy", and the inputs as an iterable.

    A list, tuple, array or column is computed at once. Any other iterable, such as a generator or a dataset, is lazy:
    the caller gets an iterator. `what` names one input, for the message.

    Raises
    ------
    TypeError
        It is neither an input nor an iterable.
    """
    if is_one(inputs):
        return "one", [inputs]
    if isinstance(inputs, list | tuple):
        return "several", inputs
    if isinstance(inputs, str | bytes | bytearray | memoryview | Mapping) or not isinstance(inputs, Iterable):
        raise TypeError(f"inputs is {shown(inputs)}; expected {what}, or a list or an iterable of such inputs.")
    if hasattr(inputs, "ndim") or hasattr(inputs, "to_pylist"):
        return "several", as_texts("inputs", inputs)[0]
    return "lazy", inputs


def is_text(value: Any) -> bool:
    """Return whether a value is one text."""
    return isinstance(value, str)


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
        keys = ", ".join(sorted(map(repr, value)))[:200] or "no keys"
        raise ValueError(f"{name} has {keys}; expected {first!r} and {second!r}.")
    return check_text(value[first], f"{name}[{first!r}]"), check_text(value[second], f"{name}[{second!r}]")
