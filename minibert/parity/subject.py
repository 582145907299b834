"""`Subject`: the model that a port is a port of, with the parts that a comparison needs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert.config import BertConfig
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import Weights
from minibert.models.inputs import pack
from minibert.models.saving import named_arrays
from minibert.sentence.modules import Pipeline
from minibert.sentence.pooling import pool
from minibert.trace.names import Names

__all__ = ["INPUTS", "Subject"]

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
"""The names of the inputs of a model."""


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model of minibert, and what belongs to it.

    Parameters
    ----------
    model : BertModel or a model with a head
    pipeline : Pipeline or None     what makes vectors of its hidden states; None if it is not known
    tokenizer : BertTokenizer or None
    """

    model: Any
    pipeline: Pipeline | None = None
    tokenizer: Any = None

    @classmethod
    def of(cls, model: Any) -> Subject:
        """Take a `BertModel`, a model with a head, or a `SentenceTransformer`.

        Raises
        ------
        TypeError
            It is something else.
        ValueError
            Its weights are rounded, because its compute type is not float32.
        """
        if isinstance(model, Subject):
            return model
        pipeline, tokenizer = None, None
        if hasattr(model, "pipeline") and hasattr(model, "model"):
            model, pipeline, tokenizer = model.model, model.pipeline, model.tokenizer
        if not hasattr(model, "with_ops") or not hasattr(model, "trace"):
            raise TypeError(
                f"parity.check was given a {type(model).__name__}; expected a model of minibert: "
                "BertModel.from_pretrained(...), minibert.load(...) or SentenceTransformer(...)."
            )
        if model.compute_type != "float32":
            raise ValueError(
                f"the model was loaded with compute_type={model.compute_type!r}, so its weights are rounded; the true "
                "values need those of the checkpoint. Load it with compute_type='float32'."
            )
        return cls(model, pipeline, tokenizer)

    @property
    def config(self) -> BertConfig:
        """The config of the encoder."""
        config: BertConfig = self.model.config
        return config

    @functools.cached_property
    def names(self) -> Names:
        """The names of all values of the model."""
        names: Names = self.model.value_names()
        return names

    @property
    def head(self) -> str | None:
        """The class of its head, or None."""
        return self.names.sizes.head

    def weights(self) -> Mapping[str, FloatArray]:
        """Return the arrays of the checkpoint by their names, without the prefix "bert."."""
        weights: Weights = self.model.weights
        return {name.removeprefix("bert."): array for name, array in named_arrays(weights, self.head)}

    def pack(self, inputs: Mapping[str, Any]) -> PackedBatch:
        """Check inputs, and pack them without padding.

        Raises
        ------
        TypeError, ValueError
        """
        return pack(self.config, **{name: inputs.get(name) for name in INPUTS})

    def vectors(self, last_state: FloatArray, batch: PackedBatch) -> FloatArray:
        """Return the sentence vectors of a last hidden state in padded form: (B, width).

        The state is rounded to float32 only where a module after the pooling computes in float32.
        """
        assert self.pipeline is not None
        packed = np.ascontiguousarray(last_state[batch.mask])
        return self.pipeline.finish(pool(packed, batch.cu_seqlens, self.pipeline.pooling))
