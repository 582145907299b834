"""What the models of sentence-transformers share, and what programs for inference call on each of them.

Most of it does little here: a model is on the CPU, computes in one process with several threads, and is not trained.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from minibert._utils.validation import brief, check_int
from minibert.bert.config import BertConfig
from minibert.models.habits import TorchHabits
from minibert.models.pretrained import BertPreTrainedModel
from minibert.sentence.keywords import Asked
from minibert.sentence.options import check_device, check_processing, check_task
from minibert.sentence.prompts import resolve_prompt
from minibert.tokenizer.bert_tokenizer import BertTokenizer

__all__ = ["ModelHabits", "check_pool"]

_POOL = ("input", "output", "processes")


class ModelHabits(TorchHabits):
    """The limit of tokens, the prompt of a call, and the methods that need nothing but the model and its tokenizer."""

    _takes_pairs: ClassVar[bool] = False

    model: BertPreTrainedModel
    tokenizer: BertTokenizer
    prompts: Any  # a dict, or a property of the model itself
    default_prompt_name: str | None

    @property
    def max_seq_length(self) -> int:
        """Most tokens of one input, special tokens included. Settable, up to the model's max_position_embeddings.

        It is the tokenizer's `model_max_length`, as in sentence-transformers, or max_position_embeddings if that is
        lower.
        """
        most, limit = self.model.config.max_position_embeddings, self.tokenizer.model_max_length
        return most if limit is None else min(check_int("tokenizer.model_max_length", limit, 1), most)

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        most = self.model.config.max_position_embeddings
        least = self.tokenizer.num_special_tokens_to_add(self._takes_pairs)
        self.tokenizer.model_max_length = check_int(
            "max_seq_length", value, least, most, also=" (the number of special tokens, and max_position_embeddings)"
        )

    def _set_limit(self, asked: Asked, settings: Mapping[str, Any]) -> None:
        """Set the limit of sentence_bert_config.json, unless the caller asked for another limit of the tokenizer."""
        # It replaces the limit that the tokenizer's files store, even if that is lower.
        if settings.get("max_seq_length") and not {"model_max_length", "max_len"} & {*asked.tokenizer}:
            self.tokenizer.model_max_length = settings["max_seq_length"]

    def resolve_prompt(self, prompt: str | None, prompt_name: str | None) -> str:
        """Return the text to put before each input."""
        return resolve_prompt(self.prompts, prompt, prompt_name, self.default_prompt_name)

    @staticmethod
    def _check_call(device: object, pool: object, chunk_size: object, task: object, processing: object) -> None:
        """Refuse arguments of one call that are there for programs written for sentence-transformers, if wrong."""
        check_device(device)
        check_pool(pool)
        check_task(task)
        check_processing(processing)
        if chunk_size is not None:
            check_int("chunk_size", chunk_size, 1)

    @property
    def compute_type(self) -> str:
        """The numbers that the encoder multiplies, as that of a model."""
        return self.model.compute_type

    def get_max_seq_length(self) -> int:
        """Return `max_seq_length`."""
        return self.max_seq_length

    @property
    def config(self) -> BertConfig:
        """The config of the BERT model."""
        return self.model.config

    @property
    def transformers_model(self) -> BertPreTrainedModel:
        """The BERT model."""
        return self.model

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the values of each trained array of the BERT model, as its `named_parameters` does."""
        return self.model.named_parameters()

    def parameters(self) -> Iterator[Any]:
        """Yield the trained arrays of the BERT model, as its `parameters` does."""
        return self.model.parameters()

    def start_multi_process_pool(self, target_devices: Sequence[object] | None = None) -> dict[str, Any]:
        """Return a pool without processes, for ``encode(pool=...)``: the threads of this process compute.

        Parameters
        ----------
        target_devices : list of "cpu", optional
            Its length is ignored. The number of threads is set with ``num_threads=`` when the model is loaded.
        """
        check_device(None if target_devices is None else list(target_devices))
        return {"input": None, "output": None, "processes": []}

    @staticmethod
    def stop_multi_process_pool(pool: Mapping[str, Any]) -> None:
        """Check that this is a pool of `start_multi_process_pool`; there is nothing to stop."""
        check_pool(pool)

    def get_model_kwargs(self) -> list[str]:
        """Return the further keywords of `encode` that the modules of this model have: there are none."""
        return []

    # -- programs around it

    def evaluate(self, evaluator: Any, output_path: str | os.PathLike[str] | None = None) -> Any:
        """Return the scores that an evaluator of sentence-transformers computes with this model."""
        if not callable(evaluator):
            raise TypeError(f"evaluator={brief(evaluator)}; expected an evaluator of sentence_transformers.evaluation.")
        if output_path is not None:
            os.makedirs(output_path, exist_ok=True)
        return evaluator(self, output_path)

    def push_to_hub(self, *args: object, **options: object) -> None:
        """Refuse to upload, and say how to do it."""
        raise ValueError(
            "minibert does not upload models. Write it with save_pretrained(folder), then upload the folder: "
            "huggingface_hub.upload_folder(repo_id=..., folder_path=folder)."
        )

    @classmethod
    def load(cls, input_path: str | os.PathLike[str]) -> Any:
        """Return the model in a folder, as calling the class does."""
        return cls(input_path)  # type: ignore[call-arg]


def check_pool(pool: object) -> None:
    """Refuse anything but None and a pool of `ModelHabits.start_multi_process_pool`."""
    if pool is None:
        return
    if not isinstance(pool, Mapping) or not all(name in pool for name in _POOL):
        raise TypeError(f"pool={brief(pool)}; expected None, or the result of start_multi_process_pool().")
    if pool["processes"]:
        raise ValueError(
            "pool holds processes of another model. Call start_multi_process_pool() of this model, or leave pool= out: "
            "the threads of this process compute."
        )
