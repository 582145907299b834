"""What programs for torch expect of a model: the methods of every torch.nn.Module, and the embedding layer as modules.

`TorchLike` has the methods. They change nothing: a model is always in inference mode, on the CPU, in float32. What
would change something is refused, and the message says what to do. `Fixed` refuses new attributes.

`BertEmbeddings` is the embedding layer as separate steps: three tables, their sum, LayerNorm. Each step is callable and
has a `.weight`. A tensor gives a tensor; `.weight` is an array.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.keywords import is_float32
from minibert._utils.torch_interop import Scores, cpu_device, float32_dtype, holds_tensor, to_tensor
from minibert._utils.validation import FloatArray, brief, is_cpu
from minibert.bert import encoder, ops
from minibert.bert.ops import Ops
from minibert.bert.weights import Weights
from minibert.models.inputs import as_numbers, check_ids, pack, usable_rows

_GROW = "change it with transformers, save it, and load the folder here"
_CHOOSE_TYPE = "; for less memory, load the model with compute_type='int16' or 'int8'"
_LAYER = "model.trace(...) gives the values of every layer by name, and trace(..., edit=...) changes them"

# Parts of transformers' models that minibert's do not have -> what to use.
_PARTS = {
    "layer": f"{_LAYER}; to run fewer layers, give num_layers= to a call (bert-score: all_layers=True)",
    "pooler": "output.pooler_output is its result, None if the checkpoint does not have a pooler",
    **dict.fromkeys(("encoder", "cls", "classifier", "qa_outputs"), _LAYER),
}

# The same for methods and other attributes.
_ELSEWHERE = {
    **_PARTS,
    **dict.fromkeys(("register_forward_hook", "register_forward_pre_hook"), _LAYER),
    **dict.fromkeys(("resize_token_embeddings", "resize_position_embeddings", "add_adapter", "load_adapter"), _GROW),
    "dropout": "leave it out, because dropout is the identity at inference",
    "state_dict": "dict(model.named_parameters()) has the same names, without the buffers",
    "load_state_dict": "save the weights as model.safetensors in a folder, and load it",
    "set_input_embeddings": "give the vectors to a call, model(inputs_embeds=...)",
}


class Fixed:
    """An object whose attributes cannot be replaced, because the forward pass would not use the new ones.

    `vars(self)` sets the attributes when the object is made.
    """

    if not TYPE_CHECKING:  # type checkers know which attributes there are

        def __getattr__(self, name: str) -> Any:
            remedy = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{remedy}.")

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and (name in _PARTS or name in vars(self) or hasattr(type(self), name)):
            raise AttributeError(
                f"{type(self).__name__}.{name} cannot be set, because a model does not change after it was made. To "
                "change weights, change them with transformers, save the model, and load the folder here; to change "
                "values in one call, give trace(..., edit=...)."
            )
        super().__setattr__(name, value)


class Encoder(Fixed):
    """The value of `model.encoder`. It does not have layers; the error says what to use instead."""


class TorchLike:
    """The methods of a torch.nn.Module that inference programs call; the base of minibert's models."""

    training = False

    @property
    def device(self) -> Any:
        """The device "cpu": a torch.device if torch is loaded, else a str."""
        return cpu_device()

    @property
    def dtype(self) -> Any:
        """The type of all results: torch.float32 if torch is loaded, else NumPy's float32."""
        return float32_dtype()

    def eval(self) -> Self:
        """Return the model itself, because it is always in inference mode."""
        return self

    def train(self, mode: bool = True) -> Self:
        """Refuse to train; ``train(False)`` returns the model itself."""
        if mode:
            raise ValueError(
                "train() was called, but minibert only runs trained models. Train the model with transformers, then "
                "load it here."
            )
        return self

    def to(self, *args: object, **kwargs: object) -> Self:
        """Return the model itself for "cpu" and float32; refuse any other device or type."""
        harmless = ("non_blocking", "copy", "memory_format")
        values = [*args, *(value for name, value in kwargs.items() if name not in harmless)]
        for value in values or [None]:
            if not is_cpu(value) and (value is None or not is_float32(value)):
                raise ValueError(
                    f".to({brief(value)}) is not possible, because minibert runs on the CPU in float32. Use .to('cpu')."
                )
        return self

    def cpu(self) -> Self:
        """Return the model itself, because it is on the CPU."""
        return self

    def float(self) -> Self:
        """Return the model itself, because its results are float32 with every compute type.

        Weights that were rounded while loading stay rounded, as those of a model that torch has quantised. For weights
        in float32 load the model with compute_type="float32".
        """
        return self

    def half(self) -> Self:
        """Refuse float16, because a compute type is chosen while loading."""
        return self._refuse("half", _CHOOSE_TYPE)

    def bfloat16(self) -> Self:
        """Refuse bfloat16, because a compute type is chosen while loading."""
        return self._refuse("bfloat16", _CHOOSE_TYPE)

    def double(self) -> Self:
        """Refuse float64, because minibert computes in float32."""
        return self._refuse("double")

    def cuda(self, device: object = None) -> Self:
        """Refuse a GPU, because minibert runs on the CPU."""
        return self._refuse("cuda")

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Return the model itself for False; refuse gradients."""
        if requires_grad:
            raise ValueError(
                "requires_grad_() was called, but minibert does not compute gradients. Call requires_grad_(False), or "
                "leave the call out."
            )
        return self

    def _refuse(self, method: str, instead: str = "") -> Self:
        raise ValueError(
            f"{method}() is not possible, because minibert runs on the CPU in float32. Leave it out{instead}."
        )


_Anything = TypeVar("_Anything")


class Embedding(Fixed):
    """A table for look-ups by ids: ``table(ids) == table.weight[ids]``, and the ids are checked.

    Parameters
    ----------
    name : str                             used in messages
    weight : ndarray of shape (rows, H)    float32, read-only
    """

    name: str

    def __init__(self, name: str, weight: FloatArray) -> None:
        vars(self).update(name=name)
        self._weight = weight

    @property
    def weight(self) -> FloatArray:
        """The table: an array that shares the model's memory and also has a tensor's `detach` and `numpy`."""
        return self._weight.view(Scores)

    def __call__(self, ids: npt.ArrayLike) -> FloatArray:
        """Look up integer ids of any shape; return a new float32 array (for a tensor: a tensor), ids.shape + (H,).

        Raises
        ------
        TypeError, ValueError
            The ids are not integers, or not in [0, rows); the message says where.
        """
        rows = self._weight[check_ids(f"{self.name} ids", ids, len(self._weight), "rows", ndim=None)]
        return _like([ids], rows)

    def __repr__(self) -> str:
        return f"Embedding({self.name}, {self._weight.shape[0]} x {self._weight.shape[1]})"


class LayerNorm(Fixed):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""

    weight: FloatArray
    bias: FloatArray
    eps: float

    def __init__(self, norm: ops.LayerNorm, ops: Ops) -> None:
        self._norm = norm
        self._ops = ops
        vars(self).update(weight=norm.weight, bias=norm.bias, eps=norm.eps)

    def __call__(self, x: npt.ArrayLike) -> FloatArray:
        """Normalise a float array of shape (..., H); return a new float32 array of the same shape.

        Raises
        ------
        TypeError, ValueError
            The values are not floats, a value is not finite or beyond 1e17, or the last axis does not have length H.
        """
        array = as_numbers("LayerNorm's input", x)
        if array.dtype.kind != "f":
            raise TypeError(f"LayerNorm's input holds {array.dtype} values; expected floats.")
        if array.ndim < 1 or array.shape[-1] != len(self.weight):
            raise ValueError(f"LayerNorm's input has shape {array.shape}; expected (..., {len(self.weight)}).")
        with np.errstate(over="ignore"):  # a float64 too large for float32 becomes infinity, which is refused below
            rows = np.ascontiguousarray(array.reshape(-1, len(self.weight)), dtype=np.float32)
        usable = usable_rows(rows)
        if not usable.all():
            index = [int(i) for i in np.unravel_index(np.argmin(usable), array.shape[:-1])]
            raise ValueError(f"LayerNorm's input at {index} holds NaN, infinity or a value beyond 1e17.")
        return _like([x], self._ops.layer_norm(rows, self._norm).reshape(array.shape))

    def __repr__(self) -> str:
        return f"LayerNorm({len(self.weight)}, eps={self.eps})"


class BertEmbeddings(Fixed):
    """The embedding layer of a model: LayerNorm(word + token_type + position), as a whole or step by step.

    Attributes
    ----------
    word_embeddings, position_embeddings, token_type_embeddings : Embedding
    LayerNorm : LayerNorm
    """

    word_embeddings: Embedding
    position_embeddings: Embedding
    token_type_embeddings: Embedding
    LayerNorm: LayerNorm

    def __init__(self, weights: Weights, ops: Ops) -> None:
        self._weights = weights
        self._ops = ops
        names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        vars(self).update({name: Embedding(name, getattr(weights, name)) for name in names})
        vars(self).update(LayerNorm=LayerNorm(weights.embeddings_norm, ops))

    def dropout(self, x: _Anything) -> _Anything:
        """Return `x` itself: dropout is the identity at inference."""
        return x

    def __call__(
        self,
        input_ids: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        inputs_embeds: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Return the full embedding, equal to ``model(...).hidden_states[0]``, without running the encoder.

        Parameters
        ----------
        input_ids : int array of shape (B, S)
        token_type_ids, position_ids : int arrays of shape (B, S), optional
        inputs_embeds : float array of shape (B, S, H)
            Word vectors instead of `input_ids`: the result of ``word_embeddings(ids)``, changed as you like. Do not
            give the result of *this* call (or hidden_states[0]): it already contains positions, token types and
            LayerNorm, which would be applied a second time.

        Returns
        -------
        ndarray of shape (B, S, H), float32; a tensor if an input is one
        """
        batch = pack(self._weights.config, input_ids, None, token_type_ids, position_ids, inputs_embeds)
        embedded = batch.pad(encoder.embeddings(self._weights, batch, self._ops))
        return _like([input_ids, token_type_ids, position_ids, inputs_embeds], embedded)

    def __repr__(self) -> str:
        steps = (self.word_embeddings, self.position_embeddings, self.token_type_embeddings, self.LayerNorm)
        return f"BertEmbeddings({', '.join(map(repr, steps))})"


def _like(inputs: Iterable[object], result: FloatArray) -> FloatArray:
    """Return the result as a tensor if an input is one."""
    return to_tensor(result) if any(map(holds_tensor, inputs)) else result  # type: ignore[return-value]
