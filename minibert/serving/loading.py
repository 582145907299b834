"""The class that a model of the service needs: vectors of texts, or scores of pairs and labels."""

from __future__ import annotations

from minibert.checkpoint.files import locate
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.model import full_name
from minibert.sentence.modules import list_modules, loader_of
from minibert.sentence.sentence_transformers import SentenceTransformer

__all__ = ["load_served"]


def load_served(
    name: str,
    *,
    revision: str | None = None,
    backend: str | None = None,
    num_threads: int | None = None,
    compute_type: str | None = None,
    shared_weights: bool | None = None,
) -> SentenceTransformer | CrossEncoder:
    """Load a folder or a hub id: as a `CrossEncoder` if it has a head for sequence classification.

    modules.json decides if the model has it, else `architectures` of config.json.

    Raises
    ------
    ModelFormatError, DownloadError, TypeError, ValueError
        As for the two classes.
    """
    files = locate(full_name(name), revision=revision)
    listed = list_modules(files)
    if listed is None:
        named = files.settings("config.json").get("architectures")
        scores = isinstance(named, list) and "BertForSequenceClassification" in named
    else:
        scores = loader_of(listed) == "CrossEncoder"
    kind = CrossEncoder if scores else SentenceTransformer
    return kind(
        name,
        revision=revision,
        backend=backend,
        num_threads=num_threads,
        compute_type=compute_type,
        shared_weights=shared_weights,
    )
