"""The parts of a sentence model, as programs for sentence-transformers see them: ``model[0].auto_model``, ``model[1]``.

A part is a view: it reads the settings of its model, and what is set on it is set on the model.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from minibert.models.bert_model import BertModel
from minibert.sentence.modules import Pipeline
from minibert.sentence.pooling import POOLING_MODES
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import TokenizedBatch

__all__ = ["PoolingPart", "TransformerPart"]


class _Model(Protocol):
    """What the parts read and set."""

    model: BertModel
    tokenizer: BertTokenizer
    pipeline: Pipeline
    max_seq_length: int

    def tokenize(self, texts: Any) -> TokenizedBatch: ...

    def set_pooling_include_prompt(self, include_prompt: bool) -> None: ...


class _Part:
    """A view of a model: setting anything but its settings is refused, because it would be lost."""

    _name: ClassVar[str]
    _remedy: ClassVar[str]

    def __init__(self, model: _Model) -> None:
        object.__setattr__(self, "_model", model)

    def __setattr__(self, name: str, value: object) -> None:
        if getattr(getattr(type(self), name, None), "fset", None) is None:
            raise AttributeError(f"{name} of this {self._name} cannot be set. {self._remedy}")
        object.__setattr__(self, name, value)

    _model: _Model


class TransformerPart(_Part):
    """The first part of a model: the tokenizer and the BERT model."""

    _name = "Transformer"
    _remedy = "max_seq_length can; the tokenizer and the BERT model are attributes of the whole model."

    @property
    def auto_model(self) -> BertModel:
        """The BERT model."""
        return self._model.model

    @property
    def model(self) -> BertModel:
        """The BERT model; sentence-transformers 6 calls it so."""
        return self._model.model

    @property
    def tokenizer(self) -> BertTokenizer:
        """The tokenizer."""
        return self._model.tokenizer

    @property
    def max_seq_length(self) -> int:
        """As `SentenceTransformer.max_seq_length`; settable."""
        return self._model.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self._model.max_seq_length = value

    def get_embedding_dimension(self) -> int:
        """Return the length of the vector of a token."""
        return self._model.model.config.hidden_size

    def get_word_embedding_dimension(self) -> int:
        """Return the same as `get_embedding_dimension`, which is its newer name."""
        return self.get_embedding_dimension()

    def tokenize(self, texts: Any) -> TokenizedBatch:
        """As `SentenceTransformer.tokenize`."""
        return self._model.tokenize(texts)

    def preprocess(self, inputs: Any) -> TokenizedBatch:
        """Return the same as `tokenize`; sentence-transformers 6 calls it so."""
        return self._model.tokenize(inputs)

    def __repr__(self) -> str:
        return f"Transformer({self._model.model!r}, max_seq_length={self.max_seq_length})"


class PoolingPart(_Part):
    """The second part of a model: tokens -> one vector."""

    _name = "Pooling"
    _remedy = "include_prompt can. For another pooling give it to each call: encode(texts, pooling='cls')."

    @property
    def pooling_mode(self) -> str | tuple[str, ...]:
        """The name of the pooling mode, or the names of several."""
        modes = self._model.pipeline.pooling
        return modes[0] if len(modes) == 1 else modes

    @property
    def include_prompt(self) -> bool:
        """True if the tokens of a prompt count; settable."""
        return self._model.pipeline.include_prompt

    @include_prompt.setter
    def include_prompt(self, value: bool) -> None:
        self._model.set_pooling_include_prompt(value)

    @property
    def embedding_dimension(self) -> int:
        """The length of the vector of a token."""
        return self._model.model.config.hidden_size

    @property
    def word_embedding_dimension(self) -> int:
        """The same as `embedding_dimension`, which is its newer name."""
        return self.embedding_dimension

    @property
    def pooling_output_dimension(self) -> int:
        """The length of the pooled vector."""
        return self._model.pipeline.widths[0]

    def get_embedding_dimension(self) -> int:
        """Return the length of the pooled vector."""
        return self.pooling_output_dimension

    def get_sentence_embedding_dimension(self) -> int:
        """Return the same as `get_embedding_dimension`, which is its newer name."""
        return self.pooling_output_dimension

    def get_pooling_mode_str(self) -> str:
        """Return the names of the pooling modes, with "+" between them."""
        return "+".join(self._model.pipeline.pooling)

    def get_config_dict(self) -> dict[str, Any]:
        """Return what config.json of this part holds."""
        modes = self.pooling_mode
        return {
            "embedding_dimension": self.embedding_dimension,
            "pooling_mode": modes if isinstance(modes, str) else list(modes),
            "include_prompt": self.include_prompt,
        }

    def __getattr__(self, name: str) -> Any:
        # The names of sentence-transformers before 6: one bool for each mode, pooling_mode_mean_tokens and so on.
        mode = name.removeprefix("pooling_mode_")
        for known in POOLING_MODES:
            if name != mode and mode in (known, f"{known}_tokens", f"{known}_token"):
                return known in self._model.pipeline.pooling
        raise AttributeError(
            f"This Pooling has no attribute {name!r}; pooling_mode and include_prompt are its settings."
        )

    def __repr__(self) -> str:
        return f"Pooling({self.embedding_dimension}, {self.pooling_mode!r}, include_prompt={self.include_prompt})"
