"""As much of Ray as `ray_workers` uses, in one process: actors whose calls end in any order, and that die on demand."""

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


class RayActorError(RayError):
    pass


class Call:
    """The call of an actor's method; what `remote` returns. It runs when somebody waits for it."""

    def __init__(self, actor: Actor, method: str, run: Callable[[], Any]) -> None:
        self.actor, self.method, self.run, self.done = actor, method, run, False
        self.value: Any = None
        self.error: RayError | None = None


class Actor:
    """An actor, whose calls run in the order in which they were made."""

    def __init__(self, cluster: FakeRay, make: Callable[[], Any]) -> None:
        self._cluster, self._make, self._object = cluster, make, None
        self.calls: list[Call] = []
        self.dead: RayActorError | None = None

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Call:
            call = Call(self, name, lambda: getattr(self._made(), name)(*arguments))
            call.done, call.error = self.dead is not None, self.dead
            self.calls.append(call)
            return call

        return SimpleNamespace(remote=remote)

    def _made(self) -> Any:
        if self._object is None:
            self._object = self._make()
        return self._object

    def step(self) -> None:
        """Run the oldest call, or die."""
        call = next(call for call in self.calls if not call.done)
        self._cluster.n_calls += 1
        if self.dead is None and (said := self._cluster.dies(self._cluster.n_calls, call.method)):
            self.dead = RayActorError(said)
        if self.dead is not None:
            for waiting in [call for call in self.calls if not call.done]:
                waiting.done, waiting.error = True, self.dead
            return
        try:
            call.value = call.run()
        except Exception as error:
            call.error = RayTaskError(error)
        call.done = True


class FakeRay:
    """The module.

    Parameters
    ----------
    cpus : sequence of int
        CPUs of each machine.
    dies : callable
        The number of a call, from 1, and its method -> what Ray says about the death of its actor, or "".
    seed : int
        Decides which of the actors goes on first.
    """

    WORKER_MODE = 1
    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, RayActorError=RayActorError)

    def __init__(
        self, cpus: tuple[int, ...] = (2,), dies: Callable[[int, str], str] = lambda number, method: "", seed: int = 0
    ) -> None:
        self.cpus, self.dies, self.n_calls, self.n_actors, self.up = cpus, dies, 0, 0, False
        self._chance = random.Random(seed)
        self.resources: list[dict[str, Any]] = []
        self.killed: list[Actor] = []

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
                self.n_actors += 1
                self.resources.append(resources)
                return Actor(self, lambda: kind(*arguments))

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor)
        actor.dead = actor.dead or RayActorError("killed")

    def wait(self, calls: list[Call], *, num_returns: int, timeout: float) -> tuple[list[Call], list[Call]]:
        waiting = [call for call in calls if not call.done]
        if waiting and timeout and len(waiting) == len(calls):
            self._chance.choice(waiting).actor.step()
        ready = [call for call in calls if call.done][:num_returns]
        return ready, [call for call in calls if call not in ready]

    def get(self, call: Call) -> Any:
        assert call.done, "nothing waits without a time limit"
        if call.error is not None:
            raise call.error
        return call.value
