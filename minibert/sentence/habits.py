"""Methods of sentence-transformers' `SentenceTransformer`, beyond `encode`, that programs for inference call."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from minibert._utils.validation import brief, check_int
from minibert.models.bert_model import BertModel
from minibert.sentence.modules import Pipeline
from minibert.sentence.parts import PoolingPart, TransformerPart
from minibert.sentence.text_habits import TextHabits
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import TokenizedBatch

__all__ = ["SentenceHabits"]


class SentenceHabits(TextHabits):
    """The methods of a `SentenceTransformer` that need nothing but `encode` and the model's settings."""

    model: BertModel
    tokenizer: BertTokenizer
    pipeline: Pipeline
    model_card_data: Any
    truncate_dim: Any  # a property of the model itself

    def encode(self, inputs: Any = None, *args: Any, **options: Any) -> Any:
        """Turn texts into vectors; the model itself has this method."""
        raise NotImplementedError

    def preprocess(self, inputs: Any) -> TokenizedBatch:
        """Return the same as `tokenize`; sentence-transformers 6 calls it so."""
        return self.tokenize(inputs)

    def forward(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse features of `tokenize`, and say how to compute from texts."""
        raise TypeError(
            "minibert computes sentence vectors from texts, not from the features of tokenize: call encode(texts). "
            "encode(texts, output_value=None) also gives the vectors of the tokens, and model.model(**features) the "
            "hidden states."
        )

    __call__ = forward

    # -- several processes

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

    # -- what it is made of

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
