"""KeyBERT's backend. Source: keybert, backend/_base.py (BaseEmbedder), backend/_utils.py (select_backend)."""

from __future__ import annotations

from minibert._utils.system import missing_library
from minibert.integrations.common import Backend

try:
    from keybert.backend import BaseEmbedder
except ModuleNotFoundError as error:
    raise missing_library("this part of minibert", error, "keybert") from error


class KeyBERTBackend(Backend, BaseEmbedder):
    """A `SentenceTransformer` for ``KeyBERT(model=...)``: see `Backend` for its arguments.

    KeyBERT recognises only instances of its own classes. It ignores a `SentenceTransformer` of minibert that is given
    directly, and uses another model.
    """
