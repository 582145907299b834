"""Write a sentence model as files, which minibert and sentence-transformers load as the same model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from minibert._utils.files import make_folder, write_json
from minibert._utils.validation import FloatArray
from minibert.models.bert import BertPreTrainedModel
from minibert.models.saving import write_safetensors
from minibert.tokenizer.bert_tokenizer import BertTokenizer

# sentence-transformers has had modules under these names since its beginning, and still reads them.
HOME = "sentence_transformers.models"


class SavedModule(NamedTuple):
    """A module after the Transformer: its folder, its type, its config.json, and its weights by name."""

    folder: str
    kind: str
    config: Mapping[str, Any]
    tensors: Mapping[str, FloatArray] = {}


def save_model(
    path: str | os.PathLike[str],
    model: BertPreTrainedModel,
    tokenizer: BertTokenizer,
    *,
    transformer: Mapping[str, Any],
    modules: Sequence[SavedModule],
    settings: Mapping[str, Any],
) -> None:
    """Write a model into a folder: the BERT model and its tokenizer, and a folder for each other module.

    modules.json is written last, so that a folder that was not written to its end is not taken for a whole model.

    Parameters
    ----------
    path : str or path
        The folder; it is made if it does not exist.
    transformer, settings : mapping
        For sentence_bert_config.json and config_sentence_transformers.json.
    """
    folder = Path(make_folder(path))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for module in modules:
        part = Path(make_folder(folder / module.folder))
        write_json(part / "config.json", dict(module.config))
        if module.tensors:
            write_safetensors(part / "model.safetensors", module.tensors.items())
    write_json(folder / "sentence_bert_config.json", dict(transformer))
    write_json(folder / "config_sentence_transformers.json", dict(settings))
    listed = [("", f"{HOME}.Transformer"), *((module.folder, module.kind) for module in modules)]
    write_json(
        folder / "modules.json",
        [{"idx": i, "name": str(i), "path": name, "type": kind} for i, (name, kind) in enumerate(listed)],
    )
