"""What programs for torch expect of a model.

`TorchLike` has the methods of a torch.nn.Module. They change nothing: a model is always in inference mode, on the CPU,
in float32. What would change something is refused, and the message says what to do. `Fixed` refuses new values of its
attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from minibert._utils.keywords import is_float32
from minibert._utils.torch_interop import cpu_device, float32_dtype
from minibert._utils.validation import brief, is_cpu

_GROW = "change it with transformers, save it, and load the folder here"
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
    **dict.fromkeys(("_modules", "modules", "named_modules", "children", "named_children"), _LAYER),  # NNsight
    **dict.fromkeys(("resize_token_embeddings", "resize_position_embeddings", "add_adapter", "load_adapter"), _GROW),
    "dropout": "leave it out, because dropout is the identity at inference",
    "state_dict": "dict(model.named_parameters()) has the same names, without the buffers",
    "load_state_dict": "save the weights as model.safetensors in a folder, and load it",
    "set_input_embeddings": "give the vectors to a call, model(inputs_embeds=...)",
}


class Fixed:
    """An object whose attributes cannot be replaced, because the forward pass would not use the new ones."""

    if not TYPE_CHECKING:  # type checkers know which attributes there are

        def __getattr__(self, name: str) -> Any:
            remedy = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{remedy}.")

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and (name in _PARTS or name in vars(self) or hasattr(type(self), name)):
            raise AttributeError(
                f"{type(self).__name__}.{name} cannot be set, because a model does not change. Change values in a call "
                "by trace(..., edit=...); change weights with transformers, save them, and load the folder."
            )
        super().__setattr__(name, value)


class Closes:
    """An object that is closed at the end of a ``with`` block."""

    def close(self) -> None:
        """Give back memory and threads; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TorchLike(Closes):
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
            raise ValueError("train(): minibert only runs trained models. Train with transformers, and load that.")
        return self

    def to(self, *args: object, **kwargs: object) -> Self:
        """Return the model itself for "cpu", float32 and None; refuse any other device or type."""
        harmless = ("non_blocking", "copy", "memory_format")
        for value in (*args, *(value for name, value in kwargs.items() if name not in harmless)):
            if not is_cpu(value) and not is_float32(value):
                raise ValueError(f"{brief(value)}: minibert runs on the CPU in float32. See compute_type= of loading.")
        return self

    def cpu(self) -> Self:
        """Return the model itself, because it is on the CPU."""
        return self

    def float(self) -> Self:
        """Return the model itself, because its results are float32 with every compute type.

        Weights that were rounded while loading stay rounded, as in a model that torch has quantised. For weights
        in float32 load the model with compute_type="float32".
        """
        return self

    def half(self) -> Self:
        """Refuse float16, because a compute type is chosen while loading."""
        return self.to("float16")

    def bfloat16(self) -> Self:
        """Refuse bfloat16, because a compute type is chosen while loading."""
        return self.to("bfloat16")

    def double(self) -> Self:
        """Refuse float64, because minibert computes in float32."""
        return self.to("float64")

    def cuda(self, device: object = None) -> Self:
        """Refuse a GPU, because minibert runs on the CPU."""
        return self.to("cuda")

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Return the model itself for False; refuse gradients."""
        if requires_grad:
            raise ValueError("requires_grad_(): minibert does not compute gradients. Leave the call out.")
        return self
