"""What the protocols share: a route, a request that was read, and the fields that several protocols have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from minibert.serving import wire
from minibert.serving.embedder import TextOptions
from minibert.serving.engine import Engine
from minibert.serving.prepared import Prepared, Report
from minibert.serving.scheduler import Job

__all__ = ["Post", "Work", "fields_without_effect", "notes_of", "text_options", "truncation_of", "work_of"]


@dataclasses.dataclass(frozen=True)
class Work:
    """A request that was read.

    Parameters
    ----------
    write : callable
        Makes the body of the answer from the job's value; without a job, from None.
    job : Job, optional
    report : Report, optional
    ignored : tuple of str
        Fields of the request without an effect.
    media_type : str
    """

    write: Callable[[Any], bytes]
    job: Job | None = None
    report: Report | None = None
    ignored: tuple[str, ...] = ()
    media_type: str = "application/json"


@dataclasses.dataclass(frozen=True)
class Post:
    """A route that takes a body.

    Parameters
    ----------
    family : {"openai", "tei", "ollama", "bert"}
        The shape of its errors.
    field : str
        The name of the field with the texts.
    kinds : tuple of structs
        What its body may be.
    read : callable
        (engine, body, Accept header) -> Work. It runs in a thread that may take its time.
    summary : str
    computes : bool
        Its answers need the engine.
    """

    family: str
    field: str
    kinds: tuple[type, ...]
    read: Callable[[Engine, bytes, str], Work]
    summary: str
    computes: bool = True


def text_options(request: wire.OpenAIEmbeddingRequest | wire.EmbedRequest, *, normalize: bool | None) -> TextOptions:
    """Return the options that OpenAI's and text-embeddings-inference's requests share."""
    return TextOptions(
        **truncation_of(request),
        normalize=normalize,
        dimensions=request.dimensions,
        max_tokens=request.truncate_prompt_tokens,
        input_type=request.input_type,
        layers=request.layers,
        pooling=request.pooling,
        add_special_tokens=bool(request.add_special_tokens),
        low=request.priority == "low",
    )


def fields_without_effect(
    request: wire.OpenAIEmbeddingRequest | wire.EmbedRequest, inputs: Sequence[Any], default: str
) -> tuple[str, ...]:
    """Return the names of the fields that have no effect on these texts or token ids.

    `default` is what happens to a text that is too long if the request does not say it.
    """
    found = []
    if not inputs or isinstance(inputs[0], str):
        if request.add_special_tokens is False:  # texts always get them, as in `encode`
            found.append("add_special_tokens")
        split = (truncation_of(request)["truncation"] or default) == "split"
        if split and request.truncation_direction is not None:
            found.append("truncation_direction")
    else:
        found += [name for name in ("prompt_name", "input_type") if getattr(request, name) is not None]
    return tuple(found)


def truncation_of(request: wire.TruncationFields) -> dict[str, Any]:
    """Return the fields that all options share: `truncation`, `side` and `prompt_name`."""
    truncate = request.truncate
    if isinstance(truncate, bool):
        truncate = "mark" if truncate else "error"
    side = None if request.truncation_direction is None else request.truncation_direction.lower()
    return {"truncation": truncate, "side": side, "prompt_name": request.prompt_name}


def notes_of(report: Report, ignored: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of an answer about texts that were cut and fields without an effect, if there are any."""
    notes: dict[str, Any] = {"truncated": report.truncated} if report.truncated else {}
    return notes | ({"ignored": ignored} if ignored else {})


def work_of(
    prepared: Prepared, write: Callable[[Any], bytes], ignored: tuple[str, ...], media_type: str = "application/json"
) -> Work:
    """Return the work of a request whose texts are prepared; `write` makes the body from the vectors or scores."""
    return Work(write, prepared.job, prepared.report, ignored, media_type)
