"""A plugin of pytest for the suite of sentence-transformers: its tests see minibert's functions and model.

MINIBERT_SUITE_MODELS is a JSON object: names of models that the suite loads -> folders. MINIBERT_SUITE_SIDE is
"minibert", or "theirs" to run the same tests on the library itself.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sentence_transformers
    from sentence_transformers import util
    from sentence_transformers.sentence_transformer import evaluation  # noqa: F401  evaluators keep their functions

FOLDERS = json.loads(os.environ["MINIBERT_SUITE_MODELS"])


def with_folders(base: type) -> type:
    """Return a model class that finds the suite's models in folders."""

    def load(self: Any, model_name_or_path: Any = None, *args: Any, **options: Any) -> None:
        name = FOLDERS.get(model_name_or_path, model_name_or_path)
        base.__init__(self, *([] if name is None else [name]), *args, **options)  # type: ignore[misc]

    return type(base.__name__, (base,), {"__init__": load, "__module__": base.__module__})


if os.environ["MINIBERT_SUITE_SIDE"] == "minibert":
    import minibert
    import minibert.util

    model = with_folders(minibert.SentenceTransformer)
    for part in ("similarity", "retrieval", "quantization", "tensor"):
        module = importlib.import_module(f"sentence_transformers.util.{part}")
        for name in minibert.util.__all__:
            for home in (module, util):
                if hasattr(home, name):
                    setattr(home, name, getattr(minibert.util, name))
else:
    model = with_folders(sentence_transformers.SentenceTransformer)
for home in (
    sentence_transformers,
    sys.modules["sentence_transformers.sentence_transformer"],
    sys.modules["sentence_transformers.sentence_transformer.model"],
):
    home.SentenceTransformer = model
