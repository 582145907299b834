"""A service whose engine stops after its first step: by an error ("die"), or for a long time ("sleep")."""

from __future__ import annotations

import sys
import time
import warnings

from minibert import SentenceTransformer
from minibert.serving.engine import Engine
from minibert.serving.server import listen, serve

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder, what = sys.argv[1:3]
    engine = Engine(SentenceTransformer(folder))
    engine.observers.append(lambda *step: 1 / 0 if what == "die" else time.sleep(3600))
    bound = listen("127.0.0.1", 0)
    sys.exit(
        serve(
            lambda: engine, bound, started=lambda address: print(f"serving on {address}", file=sys.stderr, flush=True)
        )
    )
