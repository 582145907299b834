"""What a model that gives vectors and one that gives scores share: a request's job and report, and checks of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from minibert.models.pretrained import BertPreTrainedModel
from minibert.serving.errors import ServiceError
from minibert.serving.scheduler import Job
from minibert.serving.settings import Settings

__all__ = [
    *("COUNTED", "Prepared", "Report", "check_number", "check_prompt", "check_result", "check_side", "computation_of"),
]

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
