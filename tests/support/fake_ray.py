"""The part of Ray that `RayWorkers` uses, in one process: actors end calls in any order, and die on demand."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(f"ray::method()\n{cause}")
        self.cause = cause


class Call:
    """The call of an actor's method; what `remote` returns."""

    def __init__(self, actor: Actor, run: Callable[[Any], Any]) -> None:
        self.actor, self.run, self.done, self.tries = actor, run, False, 0
        self.value: Any = None
        self.error: RayError | None = None


class Actor:
    """An actor, whose calls run in the order in which they were made. One that dies is made again."""

    def __init__(self, cluster: FakeRay, make: Callable[[], Any], retries: int) -> None:
        self._cluster, self._make, self._retries = cluster, make, retries
        self._object: Any = None
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Call:
            self.calls.append(Call(self, lambda made: getattr(made, name)(*arguments)))
            return self.calls[-1]

        return SimpleNamespace(remote=remote)

    def step(self) -> None:
        """Run the oldest call, or die."""
        call = self.calls[0]
        self._cluster.n_calls += 1
        if said := self._cluster.dies(self._cluster.n_calls):
            self._object, call.tries = None, call.tries + 1
            if call.tries <= self._retries:
                return
            call.error = RayError(said)
        else:
            try:
                self._object = self._object or self._make()
                call.value = call.run(self._object)
            except Exception as error:
                call.error = RayTaskError(error)
        call.done = True
        self.calls.pop(0)


class FakeRay:
    """The module.

    Parameters
    ----------
    cpus : sequence of int
        CPUs of each machine.
    dies : callable
        The number of a call, from 1 -> what Ray says about the death of its actor, or "".
    seed : int
        Decides which of the actors goes on first.
    """

    WORKER_MODE = 1
    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, cpus: tuple[int, ...] = (2,), dies: Callable[[int], str] = lambda number: "", seed: int = 0):
        self.cpus, self.dies, self.n_calls, self.up = cpus, dies, 0, False
        self._chance = random.Random(seed)
        self.resources: list[dict[str, Any]] = []
        self.killed: list[Actor] = []
        self.most_at_a_time = 0

    def is_initialized(self) -> bool:
        return self.up

    def init(self, **_: Any) -> None:
        self.up = True

    def shutdown(self) -> None:
        self.up = False

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": float(count)}} for count in self.cpus]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": float(sum(self.cpus))}

    def remote(self, kind: Any) -> Any:
        def options(**resources: Any) -> Any:
            def start(*arguments: Any) -> Actor:
                self.resources.append(resources)
                return Actor(self, lambda: kind(*arguments), resources["max_task_retries"])

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor)

    def wait(self, calls: list[Call], *, num_returns: int, timeout: float) -> tuple[list[Call], list[Call]]:
        assert 0 < num_returns <= len(calls)
        waiting = [call for call in calls if not call.done]
        self.most_at_a_time = max(self.most_at_a_time, len(waiting))
        if waiting and (timeout or self._chance.random() < 0.5):
            self._chance.choice(waiting).actor.step()
        ready = [call for call in calls if call.done][:num_returns]
        return ready, [call for call in calls if call not in ready]

    def get(self, call: Call) -> Any:
        while not call.done:
            call.actor.step()
        if call.error is not None:
            raise call.error
        return call.value
