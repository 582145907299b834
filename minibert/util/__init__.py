"""The names of sentence_transformers.util that programs for inference use: ``from minibert import util``.

The functions are those of `minibert.similarity` and `minibert.search`; this module collects them. A name that minibert
does not have is refused with the reason.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from minibert._utils.foreign import missing_names
from minibert._utils.reporting import write_line
from minibert._utils.validation import brief
from minibert.checkpoint.files import locate
from minibert.sentence.loading import check_device, full_name
from minibert.vectors import multi_vectors, search, similarity
from minibert.vectors.multi_vectors import *  # noqa: F403
from minibert.vectors.search import *  # noqa: F403
from minibert.vectors.search import semantic_search
from minibert.vectors.similarity import *  # noqa: F403

_OWN = ["LoggingHandler", "batch_to_device", "get_device_name", "information_retrieval"]
_OWN += ["is_sentence_transformer_model"]
_NOT_OF_UTIL = ("PRECISIONS", "SIMILARITY_FUNCTIONS", "check_similarity", "check_truncate_dim")
__all__ = sorted({*_OWN, *multi_vectors.__all__, *search.__all__, *similarity.__all__}.difference(_NOT_OF_UTIL))

_Batch = TypeVar("_Batch", bound=Mapping[str, Any])

information_retrieval = semantic_search
"""The name of `semantic_search` in older programs."""


def batch_to_device(batch: _Batch, target_device: object) -> _Batch:
    """Return the batch itself, because it is in the CPU's memory; raise an error for any other device."""
    if not isinstance(batch, Mapping):
        raise TypeError(f"batch={brief(batch)}; expected a mapping of names to arrays or tensors.")
    check_device(target_device)
    return batch


def get_device_name() -> str:
    """Return "cpu", the device on which minibert computes."""
    return "cpu"


def is_sentence_transformer_model(
    model_name_or_path: str | os.PathLike[str],
    token: str | bool | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
) -> bool:
    """Return whether a folder or a hub repository has modules.json; arguments as in `SentenceTransformer`."""
    name, offline = full_name(model_name_or_path), local_files_only
    files = locate(name, revision=revision, cache_dir=cache_folder, token=token, local_files_only=offline)
    return files.find("modules.json") is not None


class LoggingHandler(logging.Handler):
    """A handler for ``logging.basicConfig(handlers=[LoggingHandler()])``: lines appear above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record on the standard output."""
        try:
            write_line(self.format(record))
        except Exception:
            self.handleError(record)


__getattr__ = missing_names("minibert.util", __all__)
