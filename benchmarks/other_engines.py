"""Another engine behind minibert's scheduler and protocols, which separates the engine's speed from the server's.

    python -m benchmarks.other_engines "onnxruntime fused" FOLDER PORT THREADS

The texts of a step are padded to the longest, as these engines need it. All else is minibert's.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import HIDDEN_STATES, Compute
from minibert import BertModel, SentenceTransformer
from minibert._utils.validation import FloatArray
from minibert.bert.packed import PackedBatch
from minibert.models.steps import TOKENS_PER_STEP


class OtherForward:
    """A `BertModel` whose last hidden state another engine computes.

    Parameters
    ----------
    model : BertModel
        Everything else is asked of it.
    compute : callable
        (ids, mask) of shape (B, S) -> (B, S, H).
    """

    def __init__(self, model: BertModel, compute: Compute) -> None:
        self._model, self._compute = model, compute

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def states(
        self, batch: PackedBatch, layers: Collection[int], needed_tokens: object = None
    ) -> Iterator[tuple[PackedBatch, dict[int, FloatArray]]]:
        """Yield as `BertModel.states` does; only the last layer can be asked for."""
        [last] = set(layers)
        assert last == self._model.config.num_hidden_layers
        for _, step in batch.steps(TOKENS_PER_STEP):
            rows = np.split(step.token_ids, step.cu_seqlens[1:-1])
            lengths = np.array([len(row) for row in rows])
            mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
            ids = np.zeros_like(mask)
            ids[mask == 1] = step.token_ids
            yield step, {last: self._compute((ids, mask))[mask == 1]}


def main() -> int:
    """Serve until the process is asked to end."""
    from minibert.serving.engine import Engine
    from minibert.serving.server import listen, serve

    name, folder, port, threads = sys.argv[1:5]
    with tempfile.TemporaryDirectory() as scratch:

        def load() -> Engine:
            model = SentenceTransformer(folder, num_threads=1)
            compute = HIDDEN_STATES[name](Path(folder), int(threads), Path(scratch))
            model.model = OtherForward(model.model, compute)  # type: ignore[assignment]
            engine = Engine(model)
            engine.warm_up()
            return engine

        return serve(load, listen("127.0.0.1", int(port)))


if __name__ == "__main__":
    raise SystemExit(main())
