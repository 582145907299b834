"""Kinds of work for the engine of the service that compute nothing, and a clock that a test moves."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

from minibert.serving.scheduler import Job

__all__ = ["PATIENCE_SECONDS", "Clock", "FakeKind", "Gate", "job"]

PATIENCE_SECONDS = 60.0  # ends a test that hangs


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclasses.dataclass(frozen=True)
class FakeKind:
    """Work whose result is the unit itself; units named "bad" raise."""

    rate_key: str = "model"
    name: str = "a"

    def compute(self, units: Sequence[Any]) -> list[Any]:
        for unit in units:
            if isinstance(unit, BaseException):
                raise unit
        return list(units)


@dataclasses.dataclass(frozen=True, eq=False)
class Gate:
    """Work that waits until the test opens it, and that notes its steps."""

    rate_key: str = "model"
    steps: list[list[Any]] = dataclasses.field(default_factory=list)
    entered: threading.Event = dataclasses.field(default_factory=threading.Event)
    opened: threading.Event = dataclasses.field(default_factory=threading.Event)

    def compute(self, units: Sequence[Any]) -> list[Any]:
        self.steps.append(list(units))
        self.entered.set()
        assert self.opened.wait(PATIENCE_SECONDS)
        return FakeKind().compute(units)


def job(costs: Sequence[int], kind: Any = None, units: Sequence[Any] | None = None) -> Job:
    """Return a job of units with these costs, named by their numbers; its answer is the list of them."""
    return Job(FakeKind() if kind is None else kind, units or [*range(len(costs))], costs, list)
