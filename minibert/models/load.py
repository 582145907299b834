"""`load`: a model with the head that its checkpoint really has."""

from __future__ import annotations

import os
from typing import Any

from minibert.base.warn import warn_caller
from minibert.bert.config import BertConfig
from minibert.bert.weights import HEADS
from minibert.checkpoint.hub import ModelFiles
from minibert.models import heads
from minibert.models.bert_model import BertModel
from minibert.models.heads import BertHead
from minibert.models.loading import find_heads
from minibert.models.options import find_model
from minibert.models.pretrained import Selection

__all__ = ["choose_class", "load"]


def load(
    name_or_path: str | os.PathLike[str] | None = None,
    *,
    config: BertConfig | None = None,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    subfolder: str = "",
    output_hidden_states: Selection | None = None,
    output_attentions: Selection = False,
    add_pooling_layer: bool = True,
    return_dict: bool = True,
    backend: str | None = None,
    num_threads: int | None = None,
    compute_type: str | None = None,
    shared_weights: bool | None = None,
    **harmless: Any,
) -> BertModel | BertHead:
    """Load a model with the head that its checkpoint has; the arguments are those of `BertModel.from_pretrained`.

    The class is the one that config.json names in ``architectures`` if the checkpoint has the tensors of its head.
    Otherwise the tensors decide, and a warning says so. A checkpoint without a head is a `BertModel`.

    Returns
    -------
    BertModel, or one of the classes with a head
        `BertModel` keeps all hidden states by default, a model with a head keeps none.

    Warns
    -----
    UserWarning
        config.json and the tensors disagree, or the tensors fit several classes and config.json names none of them.

    Raises
    ------
    ModelFormatError, DownloadError, TypeError, ValueError
        As for `BertModel.from_pretrained`.
    """
    files, config = find_model(
        "minibert.load",
        name_or_path,
        harmless,
        config,
        revision=revision,
        cache_dir=cache_dir,
        token=token,
        local_files_only=local_files_only,
        subfolder=subfolder,
        function=load,
    )
    return choose_class(files).from_files(
        files,
        config=config,
        output_hidden_states=output_hidden_states,
        output_attentions=output_attentions,
        add_pooling_layer=add_pooling_layer,
        return_dict=return_dict,
        backend=backend,
        num_threads=num_threads,
        compute_type=compute_type,
        shared_weights=shared_weights,
    )


def choose_class(files: ModelFiles) -> type[BertModel | BertHead]:
    """Choose the class for a checkpoint by config.json and by the names of the tensors; warn if they disagree."""
    named = files.settings("config.json").get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    found = find_heads(files)
    for name in names:
        if name in found or (name == "BertModel" and not found):
            return _class_of(name)
    chosen = found[0] if found else "BertModel"  # the first one in `HEADS` that fits: it uses most of the tensors
    says = f"config.json names {names[0][:60]!a}" if names else "config.json names no class"
    if not found:
        if any(name in HEADS for name in names):
            warn_caller(
                f"{says}, but {files.source} does not have the tensors of its head, so it is loaded as BertModel."
            )
    elif names or not all(name == chosen or _is_part(name, chosen) for name in found):
        others = ", ".join(name for name in found if name != chosen)
        fits = f"; {others} would fit too" if others else ""
        has = "has the tensors of a head"
        if any(name in HEADS for name in names):
            has = "does not have the tensors of its head. It has those of another head"
        warn_caller(
            f"{says}, but {files.source} {has}, so it is loaded as {chosen}{fits}. To choose the class, call its "
            "from_pretrained."
        )
    return _class_of(chosen)


def _is_part(name: str, whole: str) -> bool:
    """Return whether a class has some of the modules of another one, and no other modules."""
    return set(HEADS[name].rows) < set(HEADS[whole].rows)


def _class_of(name: str) -> type[BertModel | BertHead]:
    return BertModel if name == "BertModel" else getattr(heads, name)
