"""A service whose engine stops after its first step, by an error ("die") or for a long time ("sleep").

Or that loads until a file is there ("load FILE"), or that fails to load ("fail").
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

from minibert import SentenceTransformer
from minibert.serving.engine import Engine
from minibert.serving.server import listen, serve


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder, what = sys.argv[1:3]

    def load() -> Engine:
        if what == "fail":
            raise ValueError("the model cannot be loaded")
        while what == "load" and not Path(sys.argv[3]).exists():
            time.sleep(0.01)
        engine = Engine(SentenceTransformer(folder))
        if what in ("die", "sleep"):
            engine.observers.append(lambda *step: 1 / 0 if what == "die" else time.sleep(3600))
        return engine

    code = serve(
        load,
        listen("127.0.0.1", 0),
        listening=lambda address: say(f"listening on {address}"),
        started=lambda address: say(f"serving on {address}"),
    )
    sys.exit(code)
