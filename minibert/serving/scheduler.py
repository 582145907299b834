"""Choose the texts to compute next: steps of few tokens, two classes of requests, turns within a class.

Nothing here computes, waits or reads a clock. The engine asks for a step, and says how long it took.

A step takes texts of one class. Where both classes wait, their steps alternate, so that a short request waits for one
step of a long one at most. Within a class the requests take turns (deficit round robin: Shreedhar and Varghese 1996):
each may have `QUANTUM` tokens computed in its turn, so that a client with many texts does not delay the others. Every
second step of bulk requests begins with the shortest one, if it is much shorter than most, so that it ends soon.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from minibert.serving.settings import ServiceError

INTERACTIVE_TOKENS = 512
"""A request of at most so many tokens is interactive; any other is bulk."""

QUANTUM = 128
"""Tokens that a request may have computed in each of its turns."""

MIN_STEP, MAX_STEP = 128, 1024
"""Limits of a step's tokens. Below, the products are too small to be fast; above, a step of the encoder ends anyway."""

MUCH_SHORTER = 8
"""A bulk request is much shorter than the others if the mean bulk request has this many times as many tokens."""

SLOWEST = 8.0
"""A step that took this many times longer counts as this: the machine slept, or the process was stopped."""

_DECAY = 0.9  # how much a step counts for the rate, compared with the step after it
_FIRST_RATE = 2000.0  # tokens per second, before anything was computed
_FIRST_READ_RATE = 2e6  # bytes per second, before anything was read


class Kind(Protocol):
    """A kind of computation. Units of equal kinds are computed together; a result does not depend on other units."""

    @property
    def rate_key(self) -> Hashable:
        """The key on which the speed depends: the model."""

    def compute(self, units: Sequence[Any], /) -> Sequence[Any]:
        """Return one result per unit."""

    def __hash__(self) -> int: ...


@dataclasses.dataclass(eq=False, repr=False)
class Job:
    """The work of one request, admitted as a whole.

    Parameters
    ----------
    kind : Kind
    units : sequence
        What `kind` computes: texts, or windows of texts.
    costs : sequence of int
        Tokens of each unit, at least 1.
    assemble : callable
        Makes the answer from the results of all units. It runs where the units are computed.

    Attributes
    ----------
    tokens : int
    queued_tokens : int
        Of the units that are not taken yet.
    bulk : bool
    future : Future
        Gets the answer, or the error. Cancelling it drops the units that are still queued.
    queue_seconds, compute_seconds : float
        The time until its first step began, and the time of the steps that it took part in.
    """

    kind: Kind
    units: Sequence[Any]
    costs: Sequence[int]
    assemble: Callable[[list[Any]], Any]

    def __post_init__(self) -> None:
        self.tokens = self.queued_tokens = sum(self.costs)
        self.bulk = self.tokens > INTERACTIVE_TOKENS
        self.future: Future[Any] = Future()
        self.results: list[Any] = [None] * len(self.units)
        self.missing = len(self.units)
        self.admitted = self.queue_seconds = self.compute_seconds = 0.0
        self.started = False
        # of the scheduler: the first unit that is not taken, tokens left of this turn, whether it has its turn
        self.next, self.deficit, self.in_turn = 0, 0, False


@dataclasses.dataclass(frozen=True, eq=False)
class EngineStep:
    """Units that are computed together: pairs of a job and the index of its unit."""

    kind: Kind
    members: list[tuple[Job, int]]
    tokens: int


class _Rate:
    """Tokens or bytes per second: a mean over the last steps, weighted by their time; `first` before there are any."""

    def __init__(self, first: float = _FIRST_RATE) -> None:
        self._first = first
        self._tokens = self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        seconds = min(max(seconds, 1e-9), SLOWEST * tokens / self.value)
        if tokens / seconds > SLOWEST * self.value:  # what slowed the steps before has ended, such as a cold start
            self._tokens = self._seconds = 0.0
        self._tokens = _DECAY * self._tokens + tokens
        self._seconds = _DECAY * self._seconds + seconds

    @property
    def value(self) -> float:
        return self._tokens / self._seconds if self._seconds else self._first


class Scheduler:
    """The queue of requests. It is not thread-safe: the owner must hold a lock.

    Parameters
    ----------
    step_seconds : float
        How long a step should take. A text with more tokens than a step is a step of its own.
    max_wait : float
        Seconds. A request whose estimated wait is longer is refused, unless nothing is queued.

    Attributes
    ----------
    running : float
        Estimated seconds of the step that is computed now.
    """

    def __init__(self, *, step_seconds: float = 0.05, max_wait: float = 60.0) -> None:
        self._step_seconds, self._max_wait = step_seconds, max_wait
        self._queues: dict[bool, deque[Job]] = {False: deque(), True: deque()}  # bulk or not -> jobs in turn
        self._tokens: dict[bool, Counter[Hashable]] = {False: Counter(), True: Counter()}
        self._rates: dict[Hashable, _Rate] = {}
        self._last_was_bulk, self._favours_short = True, False
        self.refused_jobs = 0
        self.running = 0.0
        # long or not -> bytes of a request that waits to be tokenized -> number of such requests
        self._unread: dict[bool, Counter[int]] = {False: Counter(), True: Counter()}
        self._read_rate = _Rate(_FIRST_READ_RATE)

    # -- what is queued

    @property
    def queued_jobs(self) -> int:
        """The number of requests with units that are not taken yet."""
        return sum(map(len, self._queues.values()))

    @property
    def queued_tokens(self) -> int:
        """The number of tokens of the units that are not taken yet."""
        return sum(sum(tokens.values()) for tokens in self._tokens.values())

    def rate(self, key: Hashable) -> float:
        """Return the tokens per second of the latest steps with this key, or a guess before the first step."""
        return self._rates[key].value if key in self._rates else _FIRST_RATE

    def budget(self, kind: Kind) -> int:
        """Return the number of tokens for a step of this kind."""
        return round(min(max(self._step_seconds * self.rate(kind.rate_key), MIN_STEP), MAX_STEP))

    def estimated_wait(self, bulk: bool) -> float:
        """Return the seconds until a class's queue is computed, with the other class's steps in between.

        The requests that wait to be tokenized are counted by the time that this takes.
        """
        return self._reading(bulk) + self._computing(bulk)

    def _reading(self, long: bool, most: float = math.inf) -> float:
        """Return the seconds to tokenize what waits, and at most so many bytes of each request."""
        sizes = self._unread[long].items()
        return sum(min(size, most) * number for size, number in sizes) / self._read_rate.value

    def _computing(self, bulk: bool, most: float = math.inf) -> float:
        """Return the seconds to compute what is queued, and at most so many tokens of each request of the class."""
        if most == math.inf:
            own = self._seconds(bulk)
        else:
            own = sum(min(job.queued_tokens, most) / self.rate(job.kind.rate_key) for job in self._queues[bulk])
        return self.running + own + min(self._seconds(not bulk), own + self._step_seconds)

    def _seconds(self, bulk: bool) -> float:
        return sum(tokens / self.rate(key) for key, tokens in self._tokens[bulk].items())

    # -- requests come, are computed, and leave

    def admit(self, job: Job) -> None:
        """Queue a request with at least one unit, as a whole.

        Raises
        ------
        ServiceError
            Its estimated wait is longer than the limit. Requests take turns: it waits for at most as many tokens of
            another request as it has itself, and for one turn.
        """
        if self._computing(job.bulk) > self._max_wait:  # this sum is the fast one
            self._refuse(self._computing(job.bulk, job.tokens + QUANTUM))
        self._queues[job.bulk].append(job)
        self._tokens[job.bulk][job.kind.rate_key] += job.queued_tokens

    def check_room(self, size: int, long: bool, bulk: bool | None) -> None:
        """Raise an error if a request that is not tokenized yet must be refused.

        Parameters
        ----------
        size : int
            Bytes, and the most tokens that it may have.
        long : bool
            It is tokenized with the long ones.
        bulk : bool, optional
            The class that it will be in; None: not known, so it is refused only if both are full.
        """
        classes = (False, True) if bulk is None else (bulk,)
        if self._reading(long) + min(map(self._computing, classes)) > self._max_wait:
            self._refuse(self._reading(long, size) + min(self._computing(each, size + QUANTUM) for each in classes))

    def waits(self, size: int, long: bool) -> None:
        """Note that a request of `size` bytes waits to be tokenized."""
        self._unread[long][size] += 1

    def was_read(self, size: int, long: bool, seconds: float | None) -> None:
        """Note that a request was read and how long it took; None if it was dropped."""
        self._unread[long] -= Counter([size])  # a count of 0 is dropped
        if seconds is not None:
            self._read_rate.add(size, seconds)

    def _refuse(self, wait: float) -> None:
        if wait > self._max_wait and (self.queued_jobs or any(self._unread.values())):
            self.refused_jobs += 1
            message = f"the estimated wait is {wait:.0f} seconds, the limit is {self._max_wait:g}; send it again later."
            raise ServiceError("overloaded", message, retry_after=min(max(wait - self._max_wait, 1.0), 60.0))

    def next_step(self) -> EngineStep | None:
        """Take the units for the next step; return None if nothing is queued."""
        if not self.queued_jobs:
            return None
        bulk = not self._queues[False] or (bool(self._queues[True]) and not self._last_was_bulk)
        self._last_was_bulk = bulk
        queue = self._queues[bulk]
        if bulk:
            self._favours_short = not self._favours_short
            shortest = min(queue, key=lambda job: job.tokens)
            if self._favours_short and shortest.tokens * MUCH_SHORTER * len(queue) <= sum(job.tokens for job in queue):
                queue.remove(shortest)
                queue.appendleft(shortest)
                shortest.in_turn, shortest.deficit = True, shortest.deficit + self.budget(shortest.kind)
        kind = queue[0].kind
        budget, tokens = self.budget(kind), 0
        members: list[tuple[Job, int]] = []
        others: list[Job] = []  # of another kind: they keep their places
        while queue and tokens < budget:
            job = queue.popleft()
            if job.kind != kind:
                others.append(job)
                continue
            if not job.in_turn:
                job.in_turn = True
                job.deficit += QUANTUM
            room = True
            while job.next < len(job.units) and (cost := job.costs[job.next]) <= job.deficit:
                room = not members or tokens + cost <= budget
                if not room:
                    break
                members.append((job, job.next))
                tokens += cost
                job.deficit -= cost
                job.queued_tokens -= cost
                job.next += 1
            if job.next == len(job.units):
                continue
            if not room:  # its turn goes on in the next step
                queue.appendleft(job)
                break
            job.in_turn = False
            queue.append(job)
        queue.extendleft(reversed(others))
        self._tokens[bulk] -= Counter({kind.rate_key: tokens})
        self.running = tokens / self.rate(kind.rate_key)
        return EngineStep(kind, members, tokens)

    def finished(self, step: EngineStep, seconds: float) -> None:
        """Note how long a step took."""
        self.running = 0.0
        self._rates.setdefault(step.kind.rate_key, _Rate()).add(step.tokens, seconds)

    def remove(self, job: Job) -> int:
        """Drop the units of a request that are not taken yet; return the number of these units."""
        queue = self._queues[job.bulk]
        if job not in queue:
            return 0
        queue.remove(job)
        dropped = len(job.units) - job.next
        self._tokens[job.bulk] -= Counter({job.kind.rate_key: job.queued_tokens})
        job.next, job.queued_tokens = len(job.units), 0
        return dropped

    def clear(self) -> None:
        """Drop all requests. No step may be running."""
        for job in [*self._queues[False], *self._queues[True]]:
            self.remove(job)
        self.running = 0.0
