"""A service whose engine stops after its first step, by an error ("die") or for a long time ("sleep").

"sleep SECONDS" sets what its requests get at its end. Or that loads until a file is there ("load FILE"), or that fails
to load ("fail").
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

from minibert import SentenceTransformer
from minibert.serving.engine import Engine
from minibert.serving.scheduler import EngineStep, Scheduler
from minibert.serving.server import listen, serve
from minibert.serving.settings import Settings


def stop_after_a_step() -> None:
    """Make the scheduler of the engine fail when it is asked for a second step."""
    next_step, steps = Scheduler.next_step, list[EngineStep]()

    def fail_later(scheduler: Scheduler) -> EngineStep | None:
        if steps:
            raise ArithmeticError("a fault of the scheduler")
        step = next_step(scheduler)
        steps.extend([] if step is None else [step])
        return step

    Scheduler.next_step = fail_later  # type: ignore[method-assign]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder, what = sys.argv[1:3]

    def load() -> Engine:
        if what == "fail":
            raise ValueError("the model cannot be loaded")
        while what == "load" and not Path(sys.argv[3]).exists():
            time.sleep(0.01)
        engine = Engine(SentenceTransformer(folder))
        if what == "sleep":
            engine.observers.append(lambda *step: time.sleep(3600))
        if what == "die":
            stop_after_a_step()
        return engine

    def announce(ready: bool, address: str) -> None:
        print(f"{'serving' if ready else 'listening'} on {address}", file=sys.stderr, flush=True)

    seconds = float(sys.argv[3]) if what == "sleep" and sys.argv[3:] else 30.0
    sys.exit(serve(load, listen("127.0.0.1", 0), Settings(shutdown_timeout=seconds), announce=announce))
