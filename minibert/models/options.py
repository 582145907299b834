"""The options of loading: their choices, the object that holds them, and the keywords of the constructors.

A public constructor takes ``**keywords``, splits them once with `LoadOptions.split`, and gives the object to everything
below. This module imports the standard library only, so that the command line can read the choices from it.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar, get_args

if TYPE_CHECKING:
    from minibert.bert.config import BertConfig
    from minibert.checkpoint.files import ModelFiles


Backend: TypeAlias = Literal["kernels", "numpy", "numba"]
"""minibert's compiled kernels; NumPy alone; "numba" is the old name of "kernels"."""

ComputeType: TypeAlias = Literal["float32", "int16", "int8_int16", "int8"]
"""The numbers that the encoder multiplies."""

BACKENDS: tuple[str, ...] = get_args(Backend)
COMPUTE_TYPES: tuple[str, ...] = get_args(ComputeType)

Selection: TypeAlias = bool | int | Iterable[int]
"""Which layers to keep: True all, False none, one or several ints these layers (negative ints count from the end)."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options: where a model's files are, and how it computes; `BertModel.from_pretrained` explains each option."""

    revision: str | None = None
    cache_dir: str | os.PathLike[str] | None = None
    token: str | bool | None = None
    local_files_only: bool = False
    subfolder: str = ""
    backend: Backend | None = None
    num_threads: int | None = None
    compute_type: ComputeType | None = None
    shared_weights: bool | None = None
    idle_release: float | None = None

    @classmethod
    def split(cls, keywords: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Split the keywords of a constructor into the options and the keywords that are not options."""
        names = {field.name for field in fields(cls)}
        own = {name: value for name, value in keywords.items() if name in names}
        return cls(**own), {name: value for name, value in keywords.items() if name not in names}

    def locate(self, name: str | os.PathLike[str]) -> "ModelFiles":
        """Find the files of a model; see `minibert.checkpoint.files.locate`."""
        from minibert.checkpoint.files import locate

        names = ("revision", "cache_dir", "token", "local_files_only", "subfolder")
        return locate(name, **{key: getattr(self, key) for key in names})


@dataclass(frozen=True, kw_only=True)
class ModelOptions(LoadOptions):
    """The options of `BertModel` and of the models with heads: all of `LoadOptions`, and some more."""

    config: "BertConfig | None" = None
    output_hidden_states: Selection | None = None
    output_attentions: Selection = False
    add_pooling_layer: bool = True
    return_dict: bool = True

    def __post_init__(self) -> None:
        if self.config is not None:
            from minibert.bert.config import BertConfig

            if not isinstance(self.config, BertConfig):
                raise TypeError(f"config is a {type(self.config).__name__}; expected a minibert.BertConfig.")

    @classmethod
    def of(cls, options: LoadOptions | None, keywords: Mapping[str, Any]) -> Self:
        """Return `options` with the values in `keywords` replacing theirs."""
        return cls(**{**vars(options or cls()), **keywords})


def lists_keywords(
    names: Iterable[str] | None = None, options: type[Any] = ModelOptions
) -> Callable[[_Function], _Function]:
    """Return a decorator that makes help() and inspect.signature list the keywords that a function unpacks.

    They stand before its last parameter, ``**harmless``, with the types and defaults of a class of options; without
    `names` all of these are listed.
    """
    own_fields = {field.name: field for field in fields(options)}

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        *own, rest = signature.parameters.values()
        listed = [
            inspect.Parameter(name, rest.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for name, field in own_fields.items()
            if names is None or name in names
        ]
        parameters = [*own, *listed, rest.replace(annotation=Any)]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorate
