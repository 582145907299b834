"""BERTopic's backend. Source: bertopic, backend/_base.py (BaseEmbedder), backend/_utils.py (select_backend)."""

from __future__ import annotations

from minibert._utils.system import missing_library
from minibert.integrations.common import Backend

try:
    from bertopic.backend import BaseEmbedder
except ModuleNotFoundError as error:
    raise missing_library("this part of minibert", error, "bertopic") from error


class BERTopicBackend(Backend, BaseEmbedder):
    """A `SentenceTransformer` for ``BERTopic(embedding_model=...)``: see `Backend` for its arguments.

    BERTopic recognises only instances of its own classes. It ignores a `SentenceTransformer` of minibert that is given
    directly, and uses another model.
    """
