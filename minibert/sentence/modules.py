"""Read modules.json: the modules that turn hidden states into sentence vectors.

Old and new files of sentence-transformers can be read. A file is only data: no code is imported by a name in it.
Source: sentence-transformers 6.2, base/modules and sentence_transformer/modules; the old spellings: its 2.2, models/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from minibert._utils import torch_interop
from minibert._utils.files import read_json, read_json_object
from minibert._utils.reporting import warn_caller
from minibert._utils.reproducible_math import sigmoid
from minibert._utils.validation import FloatArray, brief, check_stored_int
from minibert.bert.ops import LayerNorm, Linear, Ops, PreparedLinear
from minibert.checkpoint.files import ModelFiles
from minibert.checkpoint.safetensors import load_tensors
from minibert.errors import ModelFormatError
from minibert.sentence.pooling import POOLING_MODES
from minibert.vectors.similarity import normalize_embeddings

HEAD_MODULES = {
    ("Transformer",): "CrossEncoder",
    ("Transformer", "SpladePooling"): "SparseEncoder",
    ("MLMTransformer", "SpladePooling"): "SparseEncoder",
}
"""The kinds in modules.json of models whose BERT has a head -> the class that loads them."""


@dataclasses.dataclass(frozen=True)
class Module:
    """One entry of modules.json: the kind (last word of its type) and its folder ("" is the model's folder)."""

    kind: str
    path: str


class Step(Protocol):
    """A module after the pooling: vectors (B, in) -> (B, out). No row depends on another row."""

    def __call__(self, vectors: FloatArray, /) -> FloatArray:
        """Compute the vectors."""

    def config(self) -> dict[str, Any]:
        """Return what its config.json holds."""

    def tensors(self) -> dict[str, FloatArray]:
        """Return its weights by their names in model.safetensors; empty if it has none."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline:
    """The modules that turn hidden states into sentence vectors, in the order of modules.json.

    Parameters
    ----------
    pooling : tuple of str
        Names of `POOLING_MODES`; their vectors are concatenated.
    include_prompt : bool
        Whether the tokens of a prompt count in pooling.
    steps : tuple of (vectors) -> vectors
        The modules after the pooling: Dense, LayerNorm, Normalize.
    widths : tuple of int
        The length of the vectors after the pooling, and after each step.
    names : tuple of str
        A description of each step.
    """

    pooling: tuple[str, ...]
    include_prompt: bool
    steps: tuple[Step, ...]
    widths: tuple[int, ...]
    names: tuple[str, ...]

    def finish(self, pooled: FloatArray) -> FloatArray:
        """Run the steps: pooled (B, widths[0]) -> (B, widths[-1])."""
        for step in self.steps:
            pooled = step(pooled)
        return pooled


def check_modules(files: ModelFiles, modules: list[Module]) -> list[Module]:
    """Return modules of a `SentenceTransformer`; for others raise a ModelFormatError that names their loader."""
    kinds = [module.kind for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or not {*kinds[2:]} <= {*_READERS}:
        loader = loader_of(modules)
        instead = "" if loader is None else f" {loader} loads it."
        raise ModelFormatError(
            f"{files.source}: modules.json lists {', '.join(kinds) or 'nothing'}; minibert implements Transformer, "
            f"Pooling and then any of {', '.join(_READERS)}.{instead}"
        )
    return modules


def list_modules(files: ModelFiles) -> list[Module] | None:
    """Read modules.json, of any model of sentence-transformers; return None if the model does not have this file.

    Raises
    ------
    ModelFormatError
        The file is not a list of modules, or a path leaves the model.
    """
    path = files.find("modules.json")
    if path is None:
        return None
    listed = read_json(path)
    return [_read_module(entry, str(path)) for entry in (listed if isinstance(listed, list) else [listed])]


def loader_of(modules: list[Module] | None) -> str | None:
    """Return the class that loads a model with a head, by its modules; None for other models."""
    return HEAD_MODULES.get(tuple(module.kind for module in modules or ()))


def _read_module(entry: object, name: str) -> Module:
    kind, folder = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(folder, str):
        raise ModelFormatError(f"{name} must hold a list of objects with a type and a path; found {entry!r}.")
    if not kind.startswith("sentence_transformers."):
        raise ModelFormatError(f"{name} asks for {kind}, which is code of the repository; such code is never run.")
    if folder.startswith(("/", "\\")) or ".." in folder.replace("\\", "/").split("/"):
        raise ModelFormatError(f"{name} has the path {folder!r}, which leaves the model.")
    folder = folder.strip("/").removeprefix("./")
    return Module(kind.rpartition(".")[2], "" if folder == "." else folder)


def read_pipeline(files: ModelFiles, modules: list[Module], hidden_size: int, ops: Ops) -> Pipeline:
    """Read the configs and weights of all modules after the Transformer, whose vectors have length `hidden_size`.

    Parameters
    ----------
    modules : list of Module
        An empty list means mean pooling.
    ops : Ops
        Computes the products. With minibert's kernels a vector does not depend on the others in its batch.

    Raises
    ------
    ModelFormatError
        A setting is not implemented, a file is damaged, or the sizes of two modules do not fit.
    """
    if not modules:
        return Pipeline(("mean",), True, (), (hidden_size,), ())
    pooling, include_prompt = _read_pooling(files, modules[1], hidden_size)
    steps: list[Step] = []
    widths, names = [len(pooling) * hidden_size], []
    for module in modules[2:]:
        read = _READERS[module.kind]
        if read is None:
            continue
        step, width, name = read(files, module, widths[-1], ops)
        steps.append(step)
        widths.append(width)
        names.append(name)
    return Pipeline(pooling, include_prompt, tuple(steps), tuple(widths), tuple(names))


# --- Pooling ---------------------------------------------------------------------------------------------------------

# In the order in which the vectors of several modes are concatenated.
_OLD_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def _read_pooling(files: ModelFiles, module: Module, hidden_size: int) -> tuple[tuple[str, ...], bool]:
    config, name = read_config(files, module)
    modes = config.get("pooling_mode")
    if modes is None:
        switches = {key: on for key, on in config.items() if key.startswith("pooling_mode_")}
        unknown = [key for key, on in switches.items() if key not in _OLD_POOLING and on is not False]
        if unknown or not all(isinstance(on, bool) for on in switches.values()):
            raise ModelFormatError(f"{name} asks for a pooling that minibert does not know: {unknown or switches}.")
        modes = [mode for key, mode in _OLD_POOLING.items() if switches.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(isinstance(m, str) and m in POOLING_MODES for m in modes):
        raise ModelFormatError(f"{name} asks for the pooling {modes!r}; expected names of {', '.join(POOLING_MODES)}.")
    include_prompt = config.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise ModelFormatError(f"{name} has include_prompt={include_prompt!r}; expected true or false.")
    width = config.get("embedding_dimension", config.get("word_embedding_dimension", hidden_size))
    if width != hidden_size:
        raise ModelFormatError(
            f"{name}: this Pooling expects vectors of length {width!r}, but hidden_size is {hidden_size}."
        )
    return tuple(modes), include_prompt


# --- the modules after it --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class _Dense:
    """activation(x weight^T + bias), + x (or + x residual^T where the lengths differ) if there is a residual."""

    ops: Ops
    linear: PreparedLinear
    bias: bool
    activation: str
    residual: PreparedLinear | bool

    def __call__(self, vectors: FloatArray) -> FloatArray:
        added = vectors if self.residual is True else None
        if not isinstance(self.residual, bool):
            added = self.ops.linear(vectors, self.residual)
        return self.ops.linear(vectors, self.linear, activation=ACTIVATIONS[self.activation], residual=added)

    def config(self) -> dict[str, Any]:
        outward, inward = self.linear.shape
        home = "linear" if self.activation == "Identity" else "activation"
        return {
            "in_features": inward,
            "out_features": outward,
            "bias": self.bias,
            "activation_function": f"torch.nn.modules.{home}.{self.activation}",
            **({} if self.residual is False else {"use_residual": True}),
        }

    def tensors(self) -> dict[str, FloatArray]:
        found = {"linear.weight": self.linear.weight}
        if self.bias:
            found["linear.bias"] = self.linear.bias
        if not isinstance(self.residual, bool):
            found["residual.weight"] = self.residual.weight
        return found

    def __repr__(self) -> str:
        outward, inward = self.linear.shape
        return f"Dense({inward}, {outward}, {self.activation})"


@dataclasses.dataclass(frozen=True, eq=False)
class _LayerNorm:
    """The op `layer_norm` with the weights of one module."""

    ops: Ops
    norm: LayerNorm

    def __call__(self, vectors: FloatArray) -> FloatArray:
        return self.ops.layer_norm(vectors, self.norm)

    def config(self) -> dict[str, Any]:
        return {"dimension": len(self.norm.weight)}

    def tensors(self) -> dict[str, FloatArray]:
        return {"norm.weight": self.norm.weight, "norm.bias": self.norm.bias}

    def __repr__(self) -> str:
        return f"LayerNorm({len(self.norm.weight)})"


@dataclasses.dataclass(frozen=True)
class _Normalize:
    """Scale vectors to length 1."""

    def __call__(self, vectors: FloatArray) -> FloatArray:
        return normalize_embeddings(vectors)

    def config(self) -> dict[str, Any]:
        return {}

    def tensors(self) -> dict[str, FloatArray]:
        return {}

    def __repr__(self) -> str:
        return "Normalize()"


ACTIVATIONS = {
    "Identity": None,
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}
"""The names of activations in torch.nn -> those in minibert's ops; None is the identity."""

_ACTIVATION_HOMES = ("torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear")


def activation_name(path: object) -> str | None:
    """Return the key in `ACTIVATIONS` of a class of torch.nn, given as a dotted name; None for anything else."""
    home, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    return name if home in _ACTIVATION_HOMES and name in ACTIVATIONS else None


def _read_dense(files: ModelFiles, module: Module, width: int, ops: Ops) -> tuple[Step, int, str]:
    config, name = read_config(files, module)
    _only_sentence_vectors(config, name)
    inward, outward = (_size(config, key, name) for key in ("in_features", "out_features"))
    _check_width(inward, width, name)
    bias, use_residual = config.get("bias", True), config.get("use_residual", False)
    if not isinstance(bias, bool) or not isinstance(use_residual, bool):
        raise ModelFormatError(f"{name}: bias={bias!r}, use_residual={use_residual!r}; expected true or false.")
    asked = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = activation_name(asked)
    if activation is None:
        raise ModelFormatError(
            f"{name} asks for activation_function={asked!r}; expected one of torch.nn: "
            f"{', '.join(ACTIVATIONS)}. No code is imported by name."
        )
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (outward, inward)}
    if bias:
        shapes["linear.bias"] = (outward,)
    if use_residual and inward != outward:
        shapes["residual.weight"] = (outward, inward)
    tensors = load_tensors(files.subfolder(module.path), shapes)

    def prepare(part: str) -> PreparedLinear:
        nothing = np.zeros(outward, dtype=np.float32)
        return ops.prepare(
            Linear((f"{module.path}.{part}",), tensors[f"{part}.weight"], tensors.get(f"{part}.bias", nothing))
        )

    residual = prepare("residual") if "residual.weight" in shapes else use_residual
    dense = _Dense(ops, prepare("linear"), bias, activation, residual)
    return dense, outward, f"Dense({inward}, {outward}, {activation})"


def _read_layer_norm(files: ModelFiles, module: Module, width: int, ops: Ops) -> tuple[Step, int, str]:
    config, name = read_config(files, module)
    _check_width(_size(config, "dimension", name), width, name)
    tensors = load_tensors(files.subfolder(module.path), {"norm.weight": (width,), "norm.bias": (width,)})
    norm = LayerNorm(f"{module.path}.norm", tensors["norm.weight"], tensors["norm.bias"], 1e-5)  # torch.nn's eps
    return _LayerNorm(ops, norm), width, f"LayerNorm({width})"


def _read_normalize(files: ModelFiles, module: Module, width: int, ops: Ops) -> tuple[Step, int, str]:
    if module.path and files.find(f"{module.path}/config.json") is not None:  # only new files have one
        _only_sentence_vectors(*read_config(files, module))
    return _Normalize(), width, "Normalize"


_Reader = Callable[[ModelFiles, Module, int, Ops], tuple[Step, int, str]]
_READERS: Mapping[str, _Reader | None] = {
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Normalize": _read_normalize,
    "Dropout": None,  # does nothing outside training
}


def read_config(files: ModelFiles, module: Module) -> tuple[dict[str, Any], str]:
    """Return a module's config.json, and the file's name for messages."""
    name = f"{module.path}/config.json" if module.path else "config.json"
    return read_json_object(files.require(name)), f"{files.source}: {name}"


def _only_sentence_vectors(config: dict[str, Any], name: str) -> None:
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise ModelFormatError(f"{name} has {key}={config[key]!r}; minibert implements 'sentence_embedding'.")


def _size(config: dict[str, Any], key: str, name: str) -> int:
    return check_stored_int(f"{name}: {key}", config.get(key), 1, 2**20)


def _check_width(size: int, width: int, name: str) -> None:
    if size != width:
        raise ModelFormatError(
            f"{name}: this module expects vectors of length {size}, but the one before it gives {width}."
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Activation:
    """A function of logits (B, N). One of torch.nn gives the same bits in any batch.

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
                found = function(logits.copy())
            except (TypeError, AttributeError):
                if not torch_interop.torch_is_loaded():
                    raise
                found = function(torch_interop.to_tensor(logits.copy()))
            scores = np.asarray(torch_interop.to_array(found), dtype=np.float32)
        except Exception as error:  # any error of the caller's function
            raise ValueError(
                f"activation_fn {self.name} failed for logits of shape {logits.shape}: {type(error).__name__}: {error}."
            ) from error
        if np.isnan(scores).any():
            raise ValueError(
                f"activation_fn {self.name} returned NaN for logits of shape {logits.shape}; expected numbers, because "
                "scores are sorted."
            )
        if scores.ndim == 0 or len(scores) != len(logits):
            raise ValueError(
                f"activation_fn {self.name} returned shape {scores.shape} for logits of shape {logits.shape}; expected "
                "one row for each pair."
            )
        return scores

    def path(self) -> str:
        """Return the name of the class in torch.nn; ValueError for a function of the caller."""
        if self.function is not None:
            raise ValueError(
                f"activation_fn {self.name} does not have a name that files can hold. Set activation_fn to one of "
                f"{', '.join(map(repr, ACTIVATIONS))} before you save the model."
            )
        home = "linear" if self.name == "Identity" else "activation"
        return f"torch.nn.modules.{home}.{self.name}"

    def __repr__(self) -> str:
        return f"{self.name}()"


def as_activation(argument: str, value: Any, ops: Ops) -> Activation:
    """Return an activation that was given by name, as an object or class of torch.nn, or as a function.

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
            raise ValueError(
                f"{argument}={brief(value)}; expected one of {', '.join(map(repr, ACTIVATIONS))}, or a function."
            )
        return Activation(name, ops)
    if not callable(value):
        raise TypeError(
            f"{argument}={brief(value)}; expected one of {', '.join(map(repr, ACTIVATIONS))}, or a function."
        )
    kind = value if isinstance(value, type) else type(value)
    name = activation_name(f"{kind.__module__}.{kind.__qualname__}")
    if name is not None and getattr(value, "approximate", "none") == "none":
        return Activation(name, ops)
    if isinstance(value, type):
        raise TypeError(f"{argument}={brief(value)} is a class; expected an object or a function: give {argument}=X().")
    return Activation(getattr(value, "__name__", kind.__name__), ops, value)


def stored_activation(stored: Mapping[str, Any], files: ModelFiles) -> str | None:
    """Return the key in `ACTIVATIONS` of the activation that a model's files name; None if they name none.

    Parameters
    ----------
    stored : the object in config_sentence_transformers.json, which is read first
    files : ModelFiles
        The model; config.json holds the name under sentence_transformers.activation_fn, and in files of versions
        before 4 under sbert_ce_default_activation_function.

    Warns
    -----
    UserWarning
        The name is not one of torch.nn. As in sentence-transformers, the default is used then, and no code is imported.
    """
    config = files.settings("config.json")
    newer = config.get("sentence_transformers")
    places = (
        ("config_sentence_transformers.json", stored.get("activation_fn")),
        ("config.json", newer.get("activation_fn") if isinstance(newer, dict) else None),
        ("config.json", config.get("sbert_ce_default_activation_function")),
    )
    for file, path in places:
        if path is None:
            continue
        name = activation_name(path)
        if name is None:
            warn_caller(
                f"{files.source}: {file} names the activation {brief(path)}, which minibert does not have; the default "
                f"is used. activation_fn= can be one of {', '.join(map(repr, ACTIVATIONS))}, or a function."
            )
            continue
        return name
    return None
