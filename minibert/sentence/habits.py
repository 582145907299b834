"""Methods of sentence-transformers' models, beyond `encode`, that programs for inference call.

Most of them do little here: the model is on the CPU, computes in one process with several threads, and is not trained.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minibert.base.checks import brief, check_int
from minibert.bert.config import BertConfig
from minibert.models.bert_model import BertModel
from minibert.models.habits import TorchHabits
from minibert.sentence.modules import Pipeline
from minibert.sentence.options import check_device
from minibert.sentence.parts import PoolingPart, TransformerPart
from minibert.similarity import SIMILARITY_FUNCTIONS
from minibert.tokenizer.batch import TokenizedBatch
from minibert.tokenizer.bert_tokenizer import BertTokenizer

__all__ = ["SentenceHabits", "check_pool"]

_POOL = ("input", "output", "processes")


class SentenceHabits(TorchHabits):
    """The methods of a sentence-transformers model that need nothing but `encode` and the model's settings."""

    SUPPORTED_SIMILARITY_FN_NAMES = tuple(SIMILARITY_FUNCTIONS)

    model: BertModel
    tokenizer: BertTokenizer
    pipeline: Pipeline
    model_card_data: Any
    truncate_dim: Any  # this and the next are properties of the model itself
    max_seq_length: Any

    def tokenize(self, texts: Any) -> TokenizedBatch:
        """Return the ids and masks of texts; the model itself has this method."""
        raise NotImplementedError

    def encode(self, inputs: Any = None, *args: Any, **options: Any) -> Any:
        """Turn texts into vectors; the model itself has this method."""
        raise NotImplementedError

    # -- several processes

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

    def encode_multi_process(
        self,
        sentences: Sequence[str],
        pool: Mapping[str, Any],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        chunk_size: int | None = None,
        show_progress_bar: bool | None = None,
        precision: str | None = "float32",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Return `encode` of the texts; sentence-transformers keeps this method for older programs."""
        return self.encode(
            sentences,
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            precision=precision,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            pool=pool,
            chunk_size=chunk_size,
        )

    # -- settings

    @contextlib.contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Set `truncate_dim` for the calls inside a ``with`` block."""
        before = self.truncate_dim
        self.truncate_dim = truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    def truncate_sentence_embeddings(self, truncate_dim: int | None) -> contextlib.AbstractContextManager[None]:
        """Return `truncate_embeddings`, which is its newer name."""
        return self.truncate_embeddings(truncate_dim)

    def set_pooling_include_prompt(self, include_prompt: bool) -> None:
        """Set whether the tokens of a prompt count in pooling."""
        if not isinstance(include_prompt, bool):
            raise TypeError(f"include_prompt={brief(include_prompt)}; expected True or False.")
        self.pipeline = dataclasses.replace(self.pipeline, include_prompt=include_prompt)

    def get_model_kwargs(self) -> list[str]:
        """Return the further keywords of `encode` that the modules of this model have: there are none."""
        return []

    # -- what it is made of

    @property
    def config(self) -> BertConfig:
        """The config of the BERT model."""
        return self.model.config

    @property
    def transformers_model(self) -> BertModel:
        """The BERT model."""
        return self.model

    def _parts(self) -> list[Any]:
        return [TransformerPart(self), PoolingPart(self), *self.pipeline.steps]

    def __len__(self) -> int:
        return 2 + len(self.pipeline.steps)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: int) -> Any:
        """Return a part: 0 is the tokenizer with the BERT model, 1 the pooling, then the modules after it."""
        number = check_int("index", index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"index {number}: this model has {len(self)} parts, 0 to {len(self) - 1}.")
        return self._parts()[number]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts())

    def _first_module(self) -> Any:
        return self[0]

    def _last_module(self) -> Any:
        return self[-1]

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the values of each trained array of the BERT model, as its `named_parameters` does."""
        return self.model.named_parameters()

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
        """Return the model in a folder, as ``SentenceTransformer(input_path)`` does."""
        return cls(input_path)  # type: ignore[call-arg]


def check_pool(pool: object) -> None:
    """Refuse anything but None and a pool of `SentenceHabits.start_multi_process_pool`."""
    if pool is None:
        return
    if not isinstance(pool, Mapping) or not all(name in pool for name in _POOL):
        raise TypeError(f"pool={brief(pool)}; expected None, or the result of start_multi_process_pool().")
    if pool["processes"]:
        raise ValueError(
            "pool holds processes of another model. Call start_multi_process_pool() of this model, or leave pool= out: "
            "the threads of this process compute."
        )
