"""What a model that gives vectors and one that gives scores share: a request's job and report, and checks of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from minibert._utils.validation import Int64Array
from minibert.models.bert import BertPreTrainedModel
from minibert.serving.scheduler import Job
from minibert.serving.settings import ServiceError, Settings
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding

__all__ = [
    *("COUNTED", "Ids", "Prepared", "Report", "check_number", "check_prompt", "check_result", "check_side"),
    *("computation_of", "enough_of", "without_rest"),
]

_MOST_WHOLE = 2**20  # characters of a text that cannot be cut at a space
_CHARACTERS_PER_TOKEN = 8  # English has 4 to 5, with its spaces

COUNTED = 2**16
"""Characters. The tokens of a longer text are not counted to its end only to refuse it."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What was done to the texts of a request.

    Parameters
    ----------
    n_tokens : tuple of int
        Tokens of each text that are computed, its prompt and the special tokens included.
    truncated : tuple of int
        Indices of the texts that were cut.
    prompt_name : str or None
        The prompt before each text; None if there is none.
    n_characters : int
        Of all texts.
    n_bytes : int
        Of the answer's numbers.
    compute_type : str
        The numbers that the model multiplies.
    """

    n_tokens: tuple[int, ...]
    truncated: tuple[int, ...]
    prompt_name: str | None
    n_characters: int
    n_bytes: int = 0
    compute_type: str = "float32"


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The job of a request, and the report that goes with its answer."""

    job: Job
    report: Report


def computation_of(model: BertPreTrainedModel) -> dict[str, Any]:
    """Return how a model computes, for /info, /v1/models and the metrics."""
    return {
        "compute_type": model.compute_type,
        "num_threads": model.num_threads,
        "shared_weights": model.shared_weights,
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Ids:
    """The tokens that are computed: what `Encoding` needs, without the rest of a long text."""

    ids: Int64Array
    special_tokens_mask: Int64Array
    type_ids: Int64Array

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """The characters of tokens are not known."""
        return [(0, 0)] * len(self.ids)

    @property
    def tokens(self) -> list[str]:
        """The texts of tokens are not known."""
        return [""] * len(self.ids)

    @property
    def word_ids(self) -> list[int | None]:
        """The words of tokens are not known."""
        return [None] * len(self.ids)

    @property
    def sequence_ids(self) -> list[int | None]:
        """None for special tokens, else 0."""
        return [None if special else 0 for special in self.special_tokens_mask]

    def __len__(self) -> int:
        return len(self.ids)


def without_rest(encoding: Encoding) -> Encoding:
    """Return an encoding that does not keep the tokens that were cut in memory."""
    if not encoding.n_truncated:
        return encoding
    ids = Ids(encoding.ids, encoding.special_tokens_mask, encoding.token_types)
    return Encoding(ids, None, encoding.n_truncated)


def enough_of(text: str, tokenizer: BertTokenizer, limit: int) -> str:
    """Return a part of a long text that should have more than `limit` tokens, at the end that is kept.

    It ends where the tokenizer can cut the text with any text beside it. So if this part is cut to `limit` tokens, they
    are those of the whole text; if not, the whole text must be tokenized.
    """
    most = _CHARACTERS_PER_TOKEN * limit
    if len(text) <= most:
        return text
    left = tokenizer.truncation_side == "left"
    place = tokenizer.last_cut(text[:-most] if left else text[:most])
    if place is None:
        if len(text) > _MOST_WHOLE:
            raise ServiceError("too_large", f"a text of {len(text)} characters has hardly any spaces; send less of it.")
        return text
    return text[place:] if left else text[:place]


def check_number(number: int, settings: Settings) -> None:
    """Refuse a request with too many inputs."""
    if number > settings.max_inputs:
        raise ServiceError(
            "too_many",
            f"the request has {number} inputs; the limit is {settings.max_inputs}. Send them in several requests.",
        )


def check_result(nbytes: int, number: int, settings: Settings) -> None:
    """Refuse a request whose answer would take too much memory."""
    if nbytes > settings.max_result_bytes:
        raise ServiceError(
            "too_large",
            f"the numbers of the {number} inputs take {nbytes} bytes; the limit is {settings.max_result_bytes}. Send "
            "fewer at once.",
        )


def check_prompt(name: str, prompts: Mapping[str, str]) -> str:
    """Return the name of a prompt; refuse one that the model does not have."""
    if name not in prompts:
        known = ", ".join(f'"{one}"' for one in prompts)  # tei-client reads the names from this message
        raise ServiceError(
            "invalid",
            f"prompt_name {name[:200]!r} is not a prompt of this model. Available prompts: [{known}]",
            param="prompt_name",
        )
    return name


def check_side(side: str | None) -> None:
    """Refuse a side of texts that is neither left nor right."""
    if side not in (None, "left", "right"):
        raise ServiceError(
            "invalid",
            f"truncation_direction {side[:50]!r}; expected 'left' or 'right'.",
            param="truncation_direction",
        )
