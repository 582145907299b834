"""`TooLong`: what happens to texts that have more tokens than a limit, and how many of them there were."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np

from minibert._utils.reporting import warn_caller

Truncation: TypeAlias = Literal["warn", "error", "split", "silent"]
"""What happens to a text that is too long: it is cut with a warning, refused, split into windows, or cut silently."""

TRUNCATIONS: tuple[str, ...] = get_args(Truncation)

TRUNCATIONS_WITHOUT_SPLIT = tuple(truncation for truncation in TRUNCATIONS if truncation != "split")
"""Those for pairs, and for texts whose tokens are all wanted."""

SPLIT_HINT = " truncation='split' uses all of a text."
"""The `instead` of a `TooLong` whose caller offers truncation="split"."""


@dataclasses.dataclass
class TooLong:
    """What happens to texts with more tokens than a limit, and a count of the texts of a call that were cut.

    Parameters
    ----------
    truncation : {"warn", "error", "split", "silent"}
    limit : int
        The most tokens of a text, special tokens included.
    things : str
        What the texts are called in messages.
    instead : str
        A sentence on what else can be done.
    limit_name : str
    silence : str
        How a caller ends the warning; empty where there is no way.

    Attributes
    ----------
    num_texts, num_cut : int
    first : int
        The index of the first text that was cut.
    """

    truncation: str
    limit: int
    things: str = "texts"
    instead: str = ""
    limit_name: str = "max_seq_length"
    silence: str = " Silence this with truncation='silent'."
    num_texts: int = 0
    num_cut: int = 0
    first: int = 0

    def error(self, name: str, n_tokens: int) -> ValueError:
        """Return the error about a text that truncation="error" refuses."""
        message = f"{name} has {n_tokens} tokens, the limit is {self.limit} ({self.limit_name})"
        return ValueError(f"{message}. Shorten it, or cut it: truncation='warn'.{self.instead}")

    def cut(self, name: str, n_tokens: int) -> None:
        """Refuse a text that is too long, or count it, in a call that answers before it has read all texts.

        With truncation="warn" it warns about the first such text of the call.
        """
        if self.truncation == "error":
            raise self.error(name, n_tokens)
        self.num_cut += 1
        if self.truncation == "warn" and self.num_cut == 1:
            warn_caller(
                f"{name} has {n_tokens} tokens, the limit is {self.limit} ({self.limit_name}), and was cut. Later "
                f"{self.things} of this call may be cut without a warning.{self.silence}{self.instead}"
            )

    def add(self, n_truncated: Sequence[int] | np.ndarray[Any, Any]) -> Self:
        """Count some texts, and return the count; `n_truncated` says how many tokens of each were cut off."""
        cut = np.asarray(n_truncated).nonzero()[0]
        if len(cut) and not self.num_cut:
            self.first = self.num_texts + int(cut[0])
        self.num_texts += len(n_truncated)
        self.num_cut += len(cut)
        return self

    def warn(self) -> None:
        """Warn about texts that were cut, with truncation="warn"."""
        if self.truncation == "warn" and self.num_cut:
            text = f"{self.num_cut} of {self.num_texts} {self.things} have more than {self.limit} tokens and were cut "
            text += f"(the first is at index {self.first})."
            if self.num_texts == 1:
                text = f"The {self.things.removesuffix('s')} has more than {self.limit} tokens and was cut."
            warn_caller(f"{text}{self.silence}{self.instead}")
