"""Rotary positions: the angles by which attention turns queries and keys, from the fields of a config.json.

Pair j of a head's D features is turned by ``position * frequency[j]``, with ``frequency[j] = theta ** (-2 j / D)``. Two
more types of `rope_type` change the frequencies, so that a model takes longer texts than those of its training:
"linear" divides them, "dynamic" raises theta with the length of the text. The "ntk" of gte's own files is a "linear".

- Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding" (arXiv 2104.09864): section 3.2.2.
- https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/modeling_rope_utils.py

Frequencies and angles are rounded to float32, as in transformers, because both are part of what a model was trained
with: at position 8,192, an angle that is not rounded differs by up to 4e-4. Their cosines and sines are those of
float64, rounded once.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, IntArray, brief
from minibert.bert.ops import Rotation
from minibert.errors import ModelFormatError

OLD_FIELDS = (
    *("rope_scaling", "rope_theta", "rotary_emb_base", "rotary_scaling_factor"),
    *("global_rope_theta", "local_rope_theta"),
)
"""What older files have instead of ``rope_parameters``."""

_TYPES = ("default", "linear", "dynamic")


def complete(parameters: object, stated: Mapping[str, Any], theta: Mapping[str, float], D: int) -> dict[str, Any]:
    """Return ``rope_parameters`` as transformers completes them, with the values of older fields.

    Parameters
    ----------
    parameters : dict or None     the field of the config
    stated : mapping              config.json
    theta : mapping               the types of layers -> the default base; with several, there is a dict for each
    D : int                       features of a head
    """
    scaling = stated.get("rope_scaling")
    if stated.get("rotary_scaling_factor") is not None:  # of nomic's own files
        scaling = {"rope_type": "dynamic", "factor": stated["rotary_scaling_factor"]}
    current, scaling = (_object(value) for value in (parameters, scaling))
    if len(theta) == 1:
        (base,) = theta.values()
        return _completed(scaling or current, stated.get("rope_theta", stated.get("rotary_emb_base", base)), D)
    by_type = {}
    for layer_type, base in theta.items():
        base = stated.get(f"{'local' if layer_type == 'sliding_attention' else 'global'}_rope_theta", base)
        own = _object(current.get(layer_type)) or {"rope_type": "default"}
        by_type[layer_type] = _completed(own | scaling, base, D)
    return by_type


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise ModelFormatError(f"rope_parameters has {brief(value)}; expected an object or null.")
    return value or {}


def _completed(stated: dict[str, Any], base: object, D: int) -> dict[str, Any]:
    """Return the parameters of one type of layers, with rope_type and rope_theta."""
    parameters = {"rope_theta": base, **stated, "rope_type": stated.get("rope_type", stated.get("type", "default"))}
    parameters.pop("type", None)
    # In gte's own files: a fixed NTK scaling.
    if parameters["rope_type"] == "ntk" and parameters.get("mixed_b") is None:
        factor, theta = _number(parameters, "factor"), _number(parameters, "rope_theta")
        parameters |= {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / D)}
    return parameters


def _number(parameters: Mapping[str, Any], name: str) -> float:
    value = parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelFormatError(f"{name}={brief(value)} in rope_parameters; expected a number above 0.")
    return float(value)


@dataclasses.dataclass(eq=False)
class Rotary:
    """The rotations of the layers of one type; call it with the batch.

    Parameters
    ----------
    parameters : dict     as `complete` returns them
    D : int               features of a head
    P : int               max_position_embeddings
    stored : ndarray of shape (D / 2,), optional     the frequencies, if the checkpoint has them

    Raises
    ------
    ModelFormatError
        D is odd, the type is not known, or a number is missing.
    """

    parameters: dict[str, Any]
    D: int
    P: int
    stored: FloatArray | None = None
    _last: tuple[Any, Any, Rotation] | None = dataclasses.field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        rope_type = self.parameters.get("rope_type")
        if self.D % 2:
            raise ModelFormatError(f"a head has {self.D} features; rotary positions need an even number.")
        if rope_type not in _TYPES or (rope_type == "dynamic" and self.D == 2):
            raise ModelFormatError(f"rope_type={brief(rope_type)} is not implemented; expected {', '.join(_TYPES)}.")
        for name in ("rope_theta", "factor")[: 1 + (rope_type != "default")]:
            _number(self.parameters, name)

    def __call__(self, positions: IntArray, cu_seqlens: IntArray) -> Rotation:
        """Return the rotation of the tokens of a packed batch.

        "dynamic" has other frequencies for a text of more than P tokens. The length is that of each text, its largest
        position + 1, so a text has the same numbers in any batch. (In transformers, the longest text of a batch counts
        for all.)
        """
        if not len(positions) or int(positions.max()) < len(self._table):
            return Rotation(self._table, positions)
        last = self._last
        if last is not None and last[0] is positions and last[1] is cu_seqlens:  # the layers ask one after the other
            return last[2]
        table = np.empty((len(positions), self._table.shape[1]), np.float32)  # (T, R): a row for each token
        for start, end in pairwise(cu_seqlens.tolist()):
            table[start:end] = self._rows(positions[start:end], 1 + int(positions[start:end].max(initial=0)))
        rotation = Rotation(table, np.arange(len(positions), dtype=np.int32))
        self._last = positions, cu_seqlens, rotation
        return rotation

    @functools.cached_property
    def _table(self) -> FloatArray:
        """The cosines and sines of the first positions, (P, D)."""
        return self._rows(np.arange(min(self.P, 1 << 16)), 1)

    def _rows(self, positions: IntArray, length: int) -> FloatArray:
        angles = (positions[:, None].astype(np.float32) * self.frequencies(length)).astype(np.float64)
        rows: FloatArray = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        rows.flags.writeable = False
        return rows

    def frequencies(self, length: int) -> FloatArray:
        """Return the frequencies, (D / 2,) float32, for a text of this length."""
        if self.stored is not None:
            return self.stored
        rope_type, D = self.parameters["rope_type"], self.D
        theta, factor = float(self.parameters["rope_theta"]), float(self.parameters.get("factor") or 1.0)
        if rope_type == "dynamic" and length > self.P:  # all in float32, as in transformers
            growth = np.float32(factor) * np.float32(length) / np.float32(self.P) - np.float32(factor - 1)
            theta = float(np.float32(theta) * np.float32(float(growth) ** float(np.float32(D / (D - 2)))))
        exponents = np.arange(0, D, 2, dtype=np.float32) / np.float32(D)
        frequencies: FloatArray = np.float32(1) / (theta ** exponents.astype(np.float64)).astype(np.float32)
        return frequencies / np.float32(factor) if rope_type == "linear" else frequencies
