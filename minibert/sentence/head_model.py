"""What `CrossEncoder` and `SparseEncoder` share: loading, prompts, and saving."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from minibert._utils.validation import brief
from minibert.bert.config import BertConfig
from minibert.checkpoint.files import ModelFiles, locate
from minibert.errors import ModelFormatError
from minibert.models.bert_head import BertHead
from minibert.sentence.card import ModelCardData
from minibert.sentence.keywords import check_backend, check_config, check_constructor, choose_token, set_keywords
from minibert.sentence.model_habits import ModelHabits
from minibert.sentence.modules import Module, list_modules, loader_of
from minibert.sentence.options import check_device
from minibert.sentence.prompts import check_prompts, choose_default
from minibert.sentence.settings import check_settings, full_name
from minibert.tokenizer.bert_tokenizer import BertTokenizer

__all__ = ["HeadModel"]


class HeadModel(ModelHabits):
    """A model of sentence-transformers whose BERT has a head.

    Attributes
    ----------
    model : BertHead
    tokenizer : BertTokenizer
    prompts : dict of str to str
    default_prompt_name : str or None
    model_card_data : ModelCardData, or the given object
    """

    _call: ClassVar[str]  # the class, for messages
    _organisation: ClassVar[str]  # of short hub ids
    _head: ClassVar[type[BertHead]]
    _task: ClassVar[str]  # transformer_task of sentence_bert_config.json
    _output: ClassVar[str]  # its module_output_name
    _modules: ClassVar[str]  # what modules.json must list
    _prompt_names: ClassVar[tuple[str, ...]] = ()  # prompts that are empty unless the files or the caller set them

    model: BertHead

    def _load(
        self,
        name: Any,
        *,
        device: object,
        prompts: Mapping[str, str] | None,
        default_prompt_name: str | None,
        cache_folder: str | os.PathLike[str] | None,
        revision: str | None,
        local_files_only: bool,
        token: str | bool | None,
        model_card_data: Any,
        backend: str | None,
        num_threads: int | None,
        compute_type: str | None,
        shared_weights: bool | None,
        **keywords: Any,
    ) -> tuple[ModelFiles, list[Module] | None, dict[str, Any]]:
        """Load prompts, tokenizer and model; return the files, modules.json and config_sentence_transformers.json.

        The arguments are those of the constructor. `keywords` are those that must have values which change nothing.
        """
        if name is None:
            raise TypeError(f"{self._call}() needs a folder or a hub id; it does not have a default model.")
        check_device(device)
        asked = check_constructor(self._call, **keywords)
        files = locate(
            full_name(name, self._organisation),
            revision=revision,
            cache_dir=cache_folder,
            token=choose_token(token, None),
            local_files_only=local_files_only,
        )
        listed = list_modules(files)
        self._check_kind(files, listed)
        stored = files.settings("config_sentence_transformers.json") if listed is not None else {}
        where = f"{files.source}: config_sentence_transformers.json"
        self.prompts = {
            **dict.fromkeys(self._prompt_names, ""),
            **check_prompts(stored.get("prompts") or {}, where, ModelFormatError),
            **({} if prompts is None else check_prompts(prompts, "prompts", TypeError)),
        }
        self.default_prompt_name = choose_default(self.prompts, stored, default_prompt_name, files.source)
        self.model_card_data = ModelCardData() if model_card_data is None else model_card_data
        bert_files = files.subfolder(listed[0].path) if listed else files
        self.tokenizer = BertTokenizer.from_files(bert_files)
        set_keywords(self._call, self.tokenizer, asked)
        settings = bert_files.settings("sentence_bert_config.json")
        # A Transformer without a task computes features; other modules, and folders without modules.json, tell it.
        plain = listed is not None and listed[0].kind == "Transformer"
        default_task = "feature-extraction" if plain else self._task
        check_settings(settings, self.tokenizer, self._task, self._output, default_task)
        self._set_limit(asked, settings)
        config = BertConfig.from_files(bert_files)
        check_config(self._call, config, asked, "Save fewer layers with transformers, and give the folder.")
        self.model = self._head.from_files(
            bert_files,
            config=config,
            backend=check_backend(backend),
            num_threads=num_threads,
            compute_type=compute_type,
            shared_weights=shared_weights,
        )
        return files, listed, stored

    def _check_kind(self, files: ModelFiles, listed: list[Module] | None) -> None:
        """Refuse a modules.json that the class does not implement."""
        if listed is None or loader_of(listed) == self._call:
            return
        kinds = [module.kind for module in listed]
        instead = ""
        for kind, loader in (("SpladePooling", "SparseEncoder"), ("Pooling", "SentenceTransformer")):
            if kind in kinds and loader != self._call:
                instead = f" {loader} loads such a model."
                break
        raise ModelFormatError(
            f"{files.source}: modules.json lists {', '.join(map(brief, kinds)) or 'nothing'}; {self._call} implements "
            f"{self._modules}.{instead}"
        )

    def _transformer_settings(self) -> dict[str, Any]:
        """Return what sentence_bert_config.json holds."""
        return {
            "transformer_task": self._task,
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": self._output,
            "max_seq_length": self.max_seq_length,
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, max_seq_length={self.max_seq_length})"
