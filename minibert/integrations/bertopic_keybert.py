"""The backends of BERTopic and KeyBERT: each of the two libraries has a class `BaseEmbedder` with the same method.

Sources: bertopic and keybert, backend/_base.py (BaseEmbedder), backend/_utils.py (select_backend).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from minibert._utils.validation import FloatArray
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.integrations import load_model
from minibert.sentence.sentence_transformers import SentenceTransformer

_LIBRARIES = {"BERTopicBackend": "bertopic", "KeyBERTBackend": "keybert"}


class _Backend:
    """A `SentenceTransformer` for ``BERTopic(embedding_model=...)`` or ``KeyBERT(model=...)``.

    BERTopic and KeyBERT recognise only instances of their own classes. They ignore a `SentenceTransformer` of minibert
    that is given directly, and use another model.

    Parameters
    ----------
    model : SentenceTransformer or str
        A model, or the name of one.
    **encode_options
        Passed to every `encode`, such as ``normalize_embeddings=True``.

    Raises
    ------
    TypeError, ValueError
        An option is not one of `encode`, its value is wrong, or with it the result is not an array of one vector per
        text.
    """

    def __init__(self, model: SentenceTransformer | str = DEFAULT_MODEL, **encode_options: Any) -> None:
        self.embedding_model = load_model(model, encode_options)
        self.word_embedding_model = None
        self.encode_options = encode_options

    def embed(self, documents: Sequence[str], verbose: bool = False) -> FloatArray:
        """Return the vectors of documents or words: (B, width); `verbose` shows a progress bar."""
        return self.embedding_model.encode(documents, **{"show_progress_bar": verbose, **self.encode_options})


def __getattr__(name: str) -> Any:
    """Make a class when it is first used, because its base class is that of a library."""
    if name not in _LIBRARIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = import_module(f"{_LIBRARIES[name]}.backend").BaseEmbedder
    made = type(name, (_Backend, base), {"__doc__": _Backend.__doc__, "__module__": __name__})
    globals()[name] = made
    return made
