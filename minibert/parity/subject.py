"""The model that a port is a port of, its inputs in padded form, and the places that count."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray, brief
from minibert.bert.config import BertConfig
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import Weights
from minibert.checkpoint.files import ModelFiles
from minibert.models.inputs import pack
from minibert.models.saving import named_arrays
from minibert.sentence.modules import Pipeline
from minibert.sentence.pooling import pool
from minibert.trace.names import Names

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
    name : str                      that of the checkpoint, for reports
    files : ModelFiles or None      those of the model, for reports
    """

    model: Any
    pipeline: Pipeline | None = None
    tokenizer: Any = None
    name: str = ""
    files: ModelFiles | None = None

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


class InapplicableError(ValueError):
    """A mistake cannot be made with this model or these inputs, for example a position beyond the table."""


@dataclasses.dataclass(frozen=True)
class Padded:
    """The inputs of a model, each of shape (B, S); `embeds` (B, S, H) replaces the look-up of the ids."""

    ids: IntArray
    mask: npt.NDArray[np.bool_]
    types: IntArray
    positions: IntArray
    embeds: FloatArray | None = None

    @classmethod
    def of(cls, config: BertConfig, inputs: Mapping[str, Any]) -> Padded:
        """Check inputs as a model does, and fill in the defaults.

        Raises
        ------
        TypeError, ValueError
            As for `BertModel.__call__`; or a name is not that of an input.
        """
        keys = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
        unknown = [key for key in inputs if key not in keys]
        if unknown:
            raise ValueError(f"inputs has {brief(unknown[0])}; expected {', '.join(keys)}.")
        given = {key: inputs.get(key) for key in keys}
        batch = pack(config, **given)
        shape = batch.mask.shape
        embeds = None if given["inputs_embeds"] is None else np.array(given["inputs_embeds"], dtype=np.float64)
        ids = np.zeros(shape, np.int64) if embeds is not None else np.array(given["input_ids"], dtype=np.int64)
        types, positions = (
            np.broadcast_to(np.asarray(default if given[key] is None else given[key], dtype=np.int64), shape)
            for key, default in (("token_type_ids", 0), ("position_ids", np.arange(shape[1])))
        )
        return cls(ids, batch.mask, types, positions, embeds)

    @functools.cached_property
    def packed(self) -> PackedBatch:
        """All tokens, those of the padding too, as a packed batch of B sequences of S tokens."""
        rows, length = self.ids.shape
        embeds = None if self.embeds is None else self.embeds.reshape(rows * length, -1).astype(np.float32)
        return PackedBatch(
            token_ids=self.ids.ravel() if embeds is None else np.arange(rows * length),
            token_types=self.types.ravel(),
            positions=self.positions.ravel(),
            cu_seqlens=np.arange(rows + 1) * length,
            mask=np.ones((rows, length), np.bool_),
            inputs_embeds=embeds,
        )

    def cut(self, chosen: Collection[int], width: int | None = None) -> Padded:
        """Return some of the B sequences, and their first `width` places."""
        index = np.array(sorted(chosen), dtype=np.int64)
        ids, types, positions = (array[index, :width] for array in (self.ids, self.types, self.positions))
        embeds = None if self.embeds is None else self.embeds[index, :width]
        return Padded(ids, self.mask[index, :width], types, positions, embeds)


def visible(array: FloatArray, mask: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the values at visible places, flat: of tokens, of pairs of visible tokens, or of visible first tokens.

    Parameters
    ----------
    array : in the padded form: (B, S, width), (B, A, S, S) or (B, width)
    mask : bool array of shape (B, S)
    """
    if array.ndim == 4:
        pairs = np.broadcast_to((mask[:, :, None] & mask[:, None, :])[:, None], array.shape)
        return array[pairs]
    if array.ndim == 3:
        return array[mask].reshape(-1)
    return array[mask[:, :1].any(axis=1)].reshape(-1)
