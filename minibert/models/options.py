"""The keywords of a model's from_pretrained: the files they lead to, and what they must agree with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from minibert.base.keywords import MODEL_KEYWORDS, check_keywords, check_remote_code, given_name
from minibert.bert.config import SETTINGS, BertConfig, check_settings
from minibert.checkpoint.hub import ModelFiles, locate
from minibert.checkpoint.tensors import open_checkpoint

__all__ = ["find_model"]

_CHANGE = "config=dataclasses.replace(BertConfig.from_pretrained(name), {})"


def find_model(
    call: str,
    name_or_path: str | os.PathLike[str] | None,
    keywords: Mapping[str, Any],
    config: BertConfig | None = None,
    *,
    function: Callable[..., object],
    **where: Any,
) -> tuple[ModelFiles, BertConfig]:
    """Check the keywords of a from_pretrained, and find the files and the config of the model.

    Parameters
    ----------
    call : str
        The name of the function, for messages.
    name_or_path : str or path, or None
        None if the name is in `keywords`, as transformers spells it.
    keywords : mapping of str
        The keywords that the function itself does not have; see `minibert.base.keywords`.
    config : BertConfig, optional
        Used instead of the model's own.
    function : callable
        The function that was called; see `check_keywords`.
    **where
        revision, cache_dir, token, local_files_only and subfolder of `locate`.

    Raises
    ------
    TypeError, ValueError
        A keyword is not known, or would change the result.
    """
    if config is not None and not isinstance(config, BertConfig):
        raise TypeError(f"config is a {type(config).__name__}; expected a minibert.BertConfig.")
    given = dict(keywords)
    name = given_name(call, name_or_path, given)
    settings = check_keywords(call, given, MODEL_KEYWORDS, settings=SETTINGS, function=function)
    files = locate(name, **where)
    check_remote_code(call, given.get("trust_remote_code"), files.settings("config.json"))
    if config is None:
        config = BertConfig.from_files(files)
    check_settings(call, settings, config, _CHANGE)
    if any(isinstance(given.get(name), str) and given[name] == "auto" for name in ("dtype", "torch_dtype")):
        _check_float32(call, files)
    return files, config


def _check_float32(call: str, files: ModelFiles) -> None:
    """Raise a ValueError if dtype="auto" would give another type than float32 in transformers."""
    others = {tensor.dtype for tensor in open_checkpoint(files).values() if tensor.dtype in ("F16", "BF16")}
    if others:
        raise ValueError(
            f"{call}(dtype='auto'), but {files.source} holds {' and '.join(sorted(others))} numbers; minibert computes "
            "in float32. Leave dtype= out."
        )
