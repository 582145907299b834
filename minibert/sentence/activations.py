"""The activations of a `CrossEncoder`: from logits to scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from minibert._utils import torch_interop
from minibert._utils.reporting import warn_caller
from minibert._utils.reproducible_math import sigmoid
from minibert._utils.validation import FloatArray, brief
from minibert.bert.ops import Linear, Ops
from minibert.encode.modules import ACTIVATIONS, activation_name, activation_path
from minibert.sentence.loading import SentenceFiles

_EXPECTED = f"expected one of {', '.join(map(repr, ACTIVATIONS))}, or a function"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Activation:
    """A function of logits (B, N). The functions of torch.nn give the same bits in any batch.

    Parameters
    ----------
    name : str
        A key of `ACTIVATIONS`, or the name of the caller's function.
    ops : Ops
    function : callable, optional
        The caller's function of a float32 array, or of a tensor.
    """

    name: str
    ops: Ops
    function: Callable[[Any], Any] | None = None

    def __call__(self, logits: FloatArray) -> FloatArray:
        """Return the scores, (B, ...), float32.

        Raises
        ------
        ValueError
            The caller's function failed, returned NaN, or did not return one row of numbers for each pair.
        """
        if self.function is not None:
            return self._of_caller(self.function, logits)
        if ACTIVATIONS[self.name] is None:
            return logits
        if self.name == "Sigmoid":  # the op's is a tanh, whose error is 2e-4 of a score near 0
            return sigmoid(logits).astype(np.float32)
        # Each logit times 1: the activation is an epilogue of the op.
        unit = self.ops.prepare(Linear(("activation_fn",), np.ones((1, 1), np.float32), np.zeros(1, np.float32)))
        flat = np.ascontiguousarray(logits.reshape(-1, 1))
        return self.ops.linear(flat, unit, activation=ACTIVATIONS[self.name]).reshape(logits.shape)

    def _of_caller(self, function: Callable[[Any], Any], logits: FloatArray) -> FloatArray:
        """Call a function of arrays, or of tensors if it refuses an array."""
        try:
            try:
                result = function(logits.copy())
            except (TypeError, AttributeError):
                if not torch_interop.torch_is_loaded():
                    raise
                result = function(torch_interop.to_tensor(logits.copy()))
            scores = np.asarray(torch_interop.to_array(result), dtype=np.float32)
        except Exception as error:  # any error of the caller's function
            raise ValueError(
                f"activation_fn {self.name} failed for logits of shape {logits.shape}: {type(error).__name__}: {error}."
            ) from error
        if np.isnan(scores).any() or scores.shape[:1] != logits.shape[:1]:
            raise ValueError(f"activation_fn {self.name} gave {brief(scores)}; expected {len(logits)} rows, no NaN.")
        return scores

    def path(self) -> str:
        """Return the name of the class in torch.nn; raise a ValueError for a function of the caller."""
        if self.function is not None:
            raise ValueError(f"activation_fn {self.name} cannot be saved. Set one of {', '.join(ACTIVATIONS)}.")
        return activation_path(self.name)

    def __repr__(self) -> str:
        return f"{self.name}()"


def as_activation(argument: str, value: Any, ops: Ops) -> Activation:
    """Return an activation from a name, an object or class of torch.nn, or a function.

    Raises
    ------
    TypeError, ValueError
        It is something else, or a name that is not known.
    """
    if isinstance(value, Activation):
        return dataclasses.replace(value, ops=ops)
    if isinstance(value, str):
        name = next((known for known in ACTIVATIONS if known.lower() == value.lower()), activation_name(value))
        if name is None:
            raise ValueError(f"{argument}={brief(value)}; {_EXPECTED}.")
        return Activation(name, ops)
    if not callable(value):
        raise TypeError(f"{argument}={brief(value)}; {_EXPECTED}.")
    kind = value if isinstance(value, type) else type(value)
    name = activation_name(f"{kind.__module__}.{kind.__qualname__}")
    if name is not None and getattr(value, "approximate", "none") == "none":
        return Activation(name, ops)
    if isinstance(value, type):
        raise TypeError(f"{argument}={brief(value)} is a class; expected an object or a function: give {argument}=X().")
    return Activation(getattr(value, "__name__", kind.__name__), ops, value)


def stored_activation(files: SentenceFiles) -> str | None:
    """Return the key in `ACTIVATIONS` of the activation in a model's files; None if they do not name one.

    It is in config_sentence_transformers.json; in config.json under sentence_transformers.activation_fn; or, in files
    of versions before 4, there under sbert_ce_default_activation_function.

    Warns
    -----
    UserWarning
        The name is not one of torch.nn. As in sentence-transformers, the default is used then, and no code is imported.
    """
    newer = files.config.get("sentence_transformers")
    places = (
        ("config_sentence_transformers.json", files.stored.get("activation_fn")),
        ("config.json", newer.get("activation_fn") if isinstance(newer, dict) else None),
        ("config.json", files.config.get("sbert_ce_default_activation_function")),
    )
    for file, path in places:
        if name := activation_name(path):
            return name
        if path is not None:
            warn_caller(
                f"{files.source}: {file} names the activation {brief(path)}, which minibert does not have; the default "
                f"is used. Or give activation_fn=; {_EXPECTED}."
            )
    return None
