"""`Padded`: the inputs of a model as arrays (B, S), those of the padding too."""

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
from minibert.models.inputs import pack

__all__ = ["InapplicableError", "Padded", "visible"]


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
