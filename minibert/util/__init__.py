"""The names of sentence_transformers.util that programs for inference use: ``from minibert import util``.

The functions are those of `minibert.similarity`, `minibert.search` and `minibert.index`; this module collects them. A
name that minibert does not have is refused with the reason.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from minibert._utils.foreign import refuse_name
from minibert._utils.reporting import write_line
from minibert._utils.validation import brief
from minibert.checkpoint.files import locate
from minibert.index import semantic_search_faiss, semantic_search_usearch
from minibert.search import community_detection, paraphrase_mining, paraphrase_mining_embeddings, semantic_search
from minibert.sentence.model import full_name
from minibert.sentence.options import check_device
from minibert.similarity import (
    SimilarityFunction,
    cos_sim,
    dot_score,
    euclidean_sim,
    manhattan_sim,
    normalize_embeddings,
    pairwise_cos_sim,
    pairwise_dot_score,
    pairwise_euclidean_sim,
    pairwise_manhattan_sim,
    pytorch_cos_sim,
    quantize_embeddings,
    truncate_embeddings,
)

__all__ = [
    "LoggingHandler",
    "SimilarityFunction",
    "batch_to_device",
    "community_detection",
    "cos_sim",
    "dot_score",
    "euclidean_sim",
    "get_device_name",
    "information_retrieval",
    "is_sentence_transformer_model",
    "manhattan_sim",
    "normalize_embeddings",
    "pairwise_cos_sim",
    "pairwise_dot_score",
    "pairwise_euclidean_sim",
    "pairwise_manhattan_sim",
    "paraphrase_mining",
    "paraphrase_mining_embeddings",
    "pytorch_cos_sim",
    "quantize_embeddings",
    "semantic_search",
    "semantic_search_faiss",
    "semantic_search_usearch",
    "truncate_embeddings",
]

_Batch = TypeVar("_Batch", bound=Mapping[str, Any])

information_retrieval = semantic_search
"""The name of `semantic_search` in older programs."""


def batch_to_device(batch: _Batch, target_device: object) -> _Batch:
    """Return the batch itself, because it is in the memory of the CPU; refuse any other device."""
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
    files = locate(
        full_name(model_name_or_path),
        revision=revision,
        cache_dir=cache_folder,
        token=token,
        local_files_only=local_files_only,
    )
    return files.find("modules.json") is not None


class LoggingHandler(logging.Handler):
    """A handler for ``logging.basicConfig(handlers=[LoggingHandler()])``: lines appear above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record on the standard output."""
        try:
            write_line(self.format(record))
        except Exception:
            self.handleError(record)


_THEIR_TRAINING = "it prepares or checks training, which minibert does not do"
_TOKENS = "it compares the vectors of all tokens, for models of MultiVectorEncoder, which minibert does not have"
_SPARSE = "it is for sparse tensors of torch"
_INSIDE = "it is an inner function of that library"

_REASONS = {
    **dict.fromkeys(("maxsim", "maxsim_pairwise", "mean_maxsim", "mean_maxsim_pairwise"), _TOKENS),
    **dict.fromkeys(("select_max_active_dims", "to_scipy_coo", "compute_count_vector"), _SPARSE),
    "pairwise_angle_sim": "it is the score of a loss; for searching use cos_sim",
    "mine_hard_negatives": (
        "it prepares training data; that of sentence_transformers.util works with a model of minibert"
    ),
    **dict.fromkeys(
        (
            *("resolve_ids", "check_teacher_targets", "cat_padded_token_embeddings", "stack_padded_token_embeddings"),
            *("repad_flattened_features", "all_gather", "all_gather_padded", "all_gather_with_grad", "get_rank"),
            *("get_world_size", "is_dist_initialized", "is_training_available", "is_accelerate_available"),
            *("is_datasets_available", "disable_datasets_caching", "append_to_last_row", "similarity_fct_name"),
        ),
        _THEIR_TRAINING,
    ),
    **dict.fromkeys(("import_from_string", "import_module_class"), "minibert never imports code by a name in a file"),
    **dict.fromkeys(("load_file_path", "load_dir_path"), "huggingface_hub.snapshot_download fetches files"),
    "http_get": "urllib.request.urlretrieve downloads a file",
    "install_logger": "use logging.basicConfig",
    "disable_logging": "use logging.disable",
    **dict.fromkeys(
        (
            *("fullname", "disabled_tqdm", "save_to_hub_args_decorator", "check_package_availability"),
            *("check_version_requirements", "ORIGINAL_TRANSFORMER_MODELS"),
        ),
        _INSIDE,
    ),
}


def __getattr__(name: str) -> Any:
    """Say why a name of sentence_transformers.util is not here."""
    if name not in _REASONS:
        raise AttributeError(f"module 'minibert.util' has no attribute {name!r}; it has {', '.join(__all__)}.")
    refuse_name("minibert.util", f"minibert.util does not have {name} of sentence_transformers.util: {_REASONS[name]}.")
