"""Write a sentence model as files, which minibert and sentence-transformers load as the same model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minibert._utils.files import make_folder, write_json
from minibert.models.bert_model import BertModel
from minibert.models.pretrained import BertPreTrainedModel
from minibert.models.saving import write_safetensors
from minibert.sentence.modules import Pipeline
from minibert.tokenizer.bert_tokenizer import BertTokenizer

__all__ = ["save_head_model", "save_sentence_model"]

# sentence-transformers has had modules under these names since its beginning, and still reads them.
_HOME = "sentence_transformers.models"


def save_sentence_model(
    path: str | os.PathLike[str],
    *,
    model: BertModel,
    tokenizer: BertTokenizer,
    pipeline: Pipeline,
    max_seq_length: int,
    settings: Mapping[str, Any],
) -> None:
    """Write a model into a folder: modules.json, the BERT model and its tokenizer, and a folder for each other module.

    modules.json is written last, so that a folder that was not written to its end is not taken for a whole model.

    Parameters
    ----------
    path : str or path
        The folder; it is made if it does not exist.
    max_seq_length : int
        For sentence_bert_config.json.
    settings : mapping
        For config_sentence_transformers.json.

    Raises
    ------
    OSError
        A file cannot be written.
    """
    folder = Path(make_folder(path))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    modes = pipeline.pooling[0] if len(pipeline.pooling) == 1 else list(pipeline.pooling)
    pooling = {
        "embedding_dimension": model.config.hidden_size,
        "pooling_mode": modes,
        "include_prompt": pipeline.include_prompt,
    }
    listed = [("", f"{_HOME}.Transformer"), ("1_Pooling", f"{_HOME}.Pooling")]
    write_json(Path(make_folder(folder / "1_Pooling")) / "config.json", pooling)
    for number, (step, name) in enumerate(zip(pipeline.steps, pipeline.names, strict=True), start=2):
        kind = name.partition("(")[0]
        part = Path(make_folder(folder / f"{number}_{kind}"))
        write_json(part / "config.json", step.config())
        if step.tensors():
            write_safetensors(part / "model.safetensors", step.tensors().items())
        listed.append((part.name, f"{_HOME}.{kind}"))
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SentenceTransformer", **settings})
    _write_modules(folder, listed)


def save_head_model(
    path: str | os.PathLike[str],
    model: BertPreTrainedModel,
    tokenizer: BertTokenizer,
    *,
    safe_serialization: bool,
    transformer: Mapping[str, Any],
    modules: Sequence[tuple[str, str, Mapping[str, Any]]],
    settings: Mapping[str, Any],
) -> None:
    """Write a model with a head into a folder, as `save_sentence_model` does for one without.

    Parameters
    ----------
    transformer : mapping
        For sentence_bert_config.json: the task, and the limit of tokens.
    modules : sequence of (folder, type, mapping)
        The modules after the Transformer: the folder of each, its type inside sentence_transformers, its config.json.
    settings : mapping
        For config_sentence_transformers.json.

    Raises
    ------
    ValueError, OSError
        `safe_serialization` is False; a file cannot be written.
    """
    if not safe_serialization:
        raise ValueError("safe_serialization=False writes a pickle, which minibert never does; leave it out.")
    folder = Path(make_folder(path))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    listed = [("", "sentence_transformers.base.modules.transformer.Transformer")]
    for name, kind, config in modules:
        write_json(Path(make_folder(folder / name)) / "config.json", dict(config))
        listed.append((name, f"sentence_transformers.{kind}"))
    write_json(folder / "sentence_bert_config.json", dict(transformer))
    write_json(folder / "config_sentence_transformers.json", dict(settings))
    _write_modules(folder, listed)


def _write_modules(folder: Path, listed: Sequence[tuple[str, str]]) -> None:
    """Write modules.json, given the folder and the type of each module."""
    write_json(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": name, "type": kind}
            for number, (name, kind) in enumerate(listed)
        ],
    )
