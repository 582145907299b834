"""What the backends of BERTopic and KeyBERT share: both libraries call `embed`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minibert._utils.validation import FloatArray
from minibert.integrations.options import DEFAULT_MODEL, SentenceTransformer, load_model


class Backend:
    """A `SentenceTransformer` with the method `embed`; the other base class is the library's BaseEmbedder.

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
        options = {"show_progress_bar": verbose, **self.encode_options}
        vectors: FloatArray = self.embedding_model.encode(documents, **options)
        return vectors
