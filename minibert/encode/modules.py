"""The modules that turn hidden states into vectors: modules.json, the file of each module, and what it computes.

Old and new files of sentence-transformers can be read. A file is only data: no code is imported by a name in it.
Source: sentence-transformers 6.2, base/modules and sentence_transformer/modules; the old spellings: its 2.2, models/.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from minibert._utils.files import read_json, read_json_object
from minibert._utils.validation import FloatArray, check_stored_int
from minibert.bert.config import BertConfig
from minibert.bert.ops import LayerNorm, Linear, Ops, PreparedLinear
from minibert.checkpoint.files import ModelFiles
from minibert.checkpoint.tensors import load_tensors
from minibert.encode.pooling import POOLING_MODES
from minibert.errors import ModelFormatError
from minibert.vectors.similarity import unit_vectors

HEAD_MODULES = {
    ("Transformer",): "CrossEncoder",
    ("Transformer", "SpladePooling"): "SparseEncoder",
    ("MLMTransformer", "SpladePooling"): "SparseEncoder",
}
"""The kinds in modules.json of models whose BERT has a head -> the class that loads them."""

STATIC = "StaticEmbedding"
"""The kind of the first module of a static model, which has neither a Transformer nor a Pooling; see static.py."""

TOKEN_MODULES = ("MultiVectorMask", "HierarchicalTokenPooling")
"""The kinds in modules.json that only a `MultiVectorEncoder` has."""

_PYLATE_DENSE = "pylate.models.Dense.Dense"  # the name of Dense in the files of PyLate


@dataclasses.dataclass(frozen=True)
class ModuleEntry:
    """One entry of modules.json: the kind (last word of its type) and its folder ("" is the model's folder)."""

    kind: str
    path: str


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class VectorModule:
    """A module after the pooling: vectors (B, in) -> (B, width). No row depends on another row.

    Parameters
    ----------
    name : str
        Its kind, and its sizes in parentheses.
    width : int
        The length of its results.
    compute : (vectors) -> vectors
        It can be pickled, as a model can.
    config : mapping
        What its config.json holds.
    tensors : mapping of str to ndarray
        Its weights by their names in model.safetensors.
    """

    name: str
    width: int
    compute: Callable[[FloatArray], FloatArray]
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tensors: Mapping[str, FloatArray] = dataclasses.field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Dense, LayerNorm or Normalize."""
        return self.name.partition("(")[0]

    def __call__(self, vectors: FloatArray) -> FloatArray:
        """Compute the vectors."""
        return self.compute(vectors)

    def __repr__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The modules that turn hidden states into sentence vectors, in the order of modules.json.

    Parameters
    ----------
    hidden_size : int
    pooling : tuple of str
        Names of `POOLING_MODES`; their vectors are concatenated.
    include_prompt : bool
        Whether the tokens of a prompt count in pooling.
    modules : tuple of VectorModule
        The modules after the pooling: Dense, LayerNorm, Normalize.
    """

    hidden_size: int
    pooling: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    modules: tuple[VectorModule, ...] = ()

    @property
    def widths(self) -> tuple[int, ...]:
        """The lengths of the vectors after the pooling and after each module."""
        return len(self.pooling) * self.hidden_size, *(module.width for module in self.modules)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each module after the pooling."""
        return tuple(module.name for module in self.modules)

    def width_after(self, pooled: int) -> int:
        """Return the length of the vectors that the modules make of pooled vectors; these may have another length.

        Raises
        ------
        ValueError
            A module takes vectors of the length `widths[0]` only.
        """
        fixed = [name for name in self.names if name != "Normalize"]
        if fixed and pooled != self.widths[0]:
            raise ValueError(f"layers= and pooling= give {pooled} features; {fixed[0]} takes {self.widths[0]}.")
        return self.widths[-1] if fixed else pooled

    def finish(self, pooled: FloatArray) -> FloatArray:
        """Run the modules: pooled (B, widths[0]) -> (B, widths[-1])."""
        for module in self.modules:
            pooled = module(pooled)
        return pooled


def check_modules(
    files: ModelFiles, modules: list[ModuleEntry], loader: str = "SentenceTransformer"
) -> list[ModuleEntry]:
    """Return the modules if the class `loader` can load them; else a ModelFormatError names the class that can."""
    kinds = [module.kind for module in modules]
    first = 1 if kinds[:1] == [STATIC] else 2 if kinds[:2] == ["Transformer", "Pooling"] else 0
    plain = first > 0 and {*kinds[first:]} <= {*_READERS}
    loaded_by = "SentenceTransformer" if plain else loader_of(modules)
    # A `MultiVectorEncoder` reads the Dense of a SentenceTransformer for tokens, as sentence-transformers does.
    dense = first == 2 and "Dense" in kinds and "LayerNorm" not in kinds
    if loaded_by == loader or (loader == "MultiVectorEncoder" and plain and dense):
        return modules
    known = [" and then ".join(known) for known, name in HEAD_MODULES.items() if name == loader]
    if loader == "MultiVectorEncoder":
        known = [f"Transformer and then any of Dense, Normalize, {', '.join(TOKEN_MODULES)}, with a Dense or a mask"]
    expected = " or ".join(known or [f"Transformer and Pooling, or {STATIC}, and then any of {', '.join(_READERS)}"])
    raise ModelFormatError(
        f"{files.source}: modules.json lists {', '.join(kinds) or 'nothing'}; {loader} implements {expected}."
        f" {loaded_by or 'sentence-transformers'} loads it."
    )


def list_modules(files: ModelFiles) -> list[ModuleEntry] | None:
    """Read the modules.json of any sentence-transformers model; return None if the model does not have this file.

    Raises
    ------
    ModelFormatError
        The file is not a list of modules, or a path leaves the model.
    """
    path = files.find("modules.json")
    if path is None:
        return None
    listed = read_json(path)
    listed = listed if isinstance(listed, list) else [listed]
    modules = [_read_module(entry, str(path), files) for entry in listed]
    if len({str(entry.get("name", i)) for i, entry in enumerate(listed)}) < len(modules):
        raise ModelFormatError(f"{path} has two modules with the same name; sentence-transformers keeps only one.")
    return modules


def loader_of(modules: list[ModuleEntry] | None) -> str | None:
    """Return the name of the class that loads a model with these modules, if it is no `SentenceTransformer`."""
    kinds = tuple(module.kind for module in modules or ())
    of_tokens = kinds[:1] == ("Transformer",) and {*kinds[1:]} <= {"Dense", "Normalize", *TOKEN_MODULES}
    if of_tokens and ("Dense" in kinds or "MultiVectorMask" in kinds):
        return "MultiVectorEncoder"
    return HEAD_MODULES.get(kinds)


def _read_module(entry: object, name: str, files: ModelFiles) -> ModuleEntry:
    kind, folder = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(folder, str):
        raise ModelFormatError(f"{name} must hold a list of objects with a type and a path; found {entry!r}.")
    if not kind.startswith("sentence_transformers.") and kind != _PYLATE_DENSE:
        if files.find("config.json"):
            BertConfig.from_files(files)  # if the model is refused, too, its message says what to use instead
        raise ModelFormatError(f"{name} asks for {kind}, which is code of the repository; such code is never run.")
    if folder.startswith(("/", "\\")) or ".." in folder.replace("\\", "/").split("/"):
        raise ModelFormatError(f"{name} has the path {folder!r}, which leaves the model.")
    folder = folder.strip("/").removeprefix("./")
    return ModuleEntry(kind.rpartition(".")[2], "" if folder == "." else folder)


def read_pipeline(files: ModelFiles, entries: list[ModuleEntry], hidden_size: int, ops: Ops) -> Pipeline:
    """Read the configs and weights of all modules after the Transformer; its vectors have the length `hidden_size`.

    Parameters
    ----------
    entries : list of ModuleEntry
        An empty list means mean pooling, as that of a static model.
    ops : Ops
        Computes the products. With minibert's kernels a vector does not depend on the others in its batch.

    Raises
    ------
    ModelFormatError
        A setting is not implemented, a file is damaged, or the sizes of two modules do not fit.
    """
    if not entries:
        return Pipeline(hidden_size)
    pipeline, rest = Pipeline(hidden_size), entries[1:]
    if entries[0].kind != STATIC:
        pipeline, rest = Pipeline(hidden_size, *_read_pooling(files, rest[0], hidden_size)), rest[1:]
    for entry in rest:
        if read := _READERS[entry.kind]:
            module = read(files, entry, pipeline.widths[-1], ops, _SENTENCE)
            pipeline = dataclasses.replace(pipeline, modules=(*pipeline.modules, module))
    return pipeline


def read_token_modules(
    files: ModelFiles, entries: list[ModuleEntry], hidden_size: int, ops: Ops
) -> Iterator[VectorModule | ModuleEntry]:
    """Read the modules after the Transformer of a `MultiVectorEncoder`; those of `TOKEN_MODULES` stay entries.

    Modules for sentence vectors are left out, as sentence-transformers does. If a Pooling is among them, a Dense for
    sentence vectors becomes a Dense for tokens.
    """
    width = hidden_size
    of_sentences = [_SENTENCE] if "Pooling" in [entry.kind for entry in entries] else []
    for entry in entries[1:]:
        if entry.kind == "Dense":
            dense = _read_dense(files, entry, width, ops, _TOKENS, *of_sentences)
            width = dense.width
            yield dense
        elif entry.kind in TOKEN_MODULES:
            yield entry
        elif entry.kind == "Normalize":
            config = files.settings(f"{entry.path}/config.json") if entry.path else {}
            if config.get(_NAMES[0]) == _TOKENS:
                yield _read_normalize(files, entry, width, ops, _TOKENS)


# --- Pooling ---------------------------------------------------------------------------------------------------------

_POOLING = ("pooling_mode", "include_prompt", "embedding_dimension", "word_embedding_dimension")

# In the order in which the vectors of several modes are concatenated.
_OLD_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def _read_pooling(files: ModelFiles, entry: ModuleEntry, hidden_size: int) -> tuple[tuple[str, ...], bool]:
    config, name = read_config(files, entry, (*_POOLING, *_OLD_POOLING))
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_POOLING.items() if _stored_bool(name, config, key, False)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(isinstance(m, str) and m in POOLING_MODES for m in modes):
        raise ModelFormatError(f"{name} has pooling_mode={modes!r}; expected names of {', '.join(POOLING_MODES)}.")
    for key in ("embedding_dimension", "word_embedding_dimension"):
        if config.get(key, hidden_size) != hidden_size:
            raise ModelFormatError(f"{name} has {key}={config[key]!r}; expected hidden_size, {hidden_size}.")
    return tuple(modes), _stored_bool(name, config, "include_prompt", True)


# --- the modules after the pooling -----------------------------------------------------------------------------------


ACTIVATIONS = {"Identity": None, "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Sigmoid": "sigmoid"}
"""The names of activations in torch.nn -> those in minibert's ops; None is the identity."""

LAYER_NORM_EPS = 1e-5
"""The epsilon of torch.nn.LayerNorm."""

_ACTIVATION_HOMES = ("torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear")


def activation_path(name: str) -> str:
    """Return the name of a class of torch.nn as files hold it."""
    return f"torch.nn.modules.{'linear' if name == 'Identity' else 'activation'}.{name}"


def activation_name(path: object) -> str | None:
    """Return the key in `ACTIVATIONS` of a class of torch.nn, given as a dotted name; None for anything else."""
    home, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    return name if home in _ACTIVATION_HOMES and name in ACTIVATIONS else None


_NAMES = ("module_input_name", "module_output_name")
_SENTENCE, _TOKENS = "sentence_embedding", "token_embeddings"  # values of these names
_DENSE = ("in_features", "out_features", "bias", "activation_function", "use_residual", *_NAMES)


def _read_dense(files: ModelFiles, entry: ModuleEntry, width: int, ops: Ops, *names: str) -> VectorModule:
    """Read the settings and the weights of `dense_module`."""
    config, name = read_config(files, entry, _DENSE)
    _check_names(config, name, *names)
    inward = _check_width(config, "in_features", width, name)
    outward = check_stored_int(f"{name}: out_features", config.get("out_features"), 1, 2**20)
    bias, use_residual = _stored_bool(name, config, "bias", True), _stored_bool(name, config, "use_residual", False)
    asked = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = activation_name(asked)
    if activation is None:
        raise ModelFormatError(f"{name} has activation_function={asked!r}; expected one of torch.nn: {[*ACTIVATIONS]}.")
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (outward, inward)}
    if bias:
        shapes["linear.bias"] = (outward,)
    if use_residual and inward != outward:
        shapes["residual.weight"] = (outward, inward)
    return dense_module(ops, load_tensors(files.subfolder(entry.path), shapes), activation, use_residual, entry.path)


def dense_module(
    ops: Ops,
    tensors: Mapping[str, FloatArray],
    activation: str = "Identity",
    use_residual: bool = False,
    path: str = "",
) -> VectorModule:
    """Make activation(x weight^T + bias), + x (or + x residual^T where the lengths differ) if there is a residual.

    Parameters
    ----------
    tensors : mapping
        "linear.weight" of shape (out, in), and where they are there "linear.bias" and "residual.weight".
    activation : str
        A key of `ACTIVATIONS`.
    path : str
        Of the module, for wrapped ops.
    """
    outward, inward = tensors["linear.weight"].shape
    maps, nothing = dict[str, PreparedLinear](), np.zeros(outward, dtype=np.float32)
    for part in [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]:
        weight, added = tensors[f"{part}.weight"], tensors.get(f"{part}.bias", nothing)
        maps[part] = ops.prepare(Linear((f"{path}.{part}",), weight, added))
    compute = functools.partial(_dense, ops, maps, ACTIVATIONS[activation], use_residual)
    saved = {
        "in_features": inward,
        "out_features": outward,
        "bias": "linear.bias" in tensors,
        "activation_function": activation_path(activation),
        **({"use_residual": True} if use_residual else {}),
    }
    return VectorModule(f"Dense({inward}, {outward}, {activation})", outward, compute, saved, tensors)


def _dense(
    ops: Ops, maps: Mapping[str, PreparedLinear], activation: str | None, use_residual: bool, vectors: FloatArray
) -> FloatArray:
    added = vectors if use_residual else None
    if "residual" in maps:
        added = ops.linear(vectors, maps["residual"])
    return ops.linear(vectors, maps["linear"], activation=activation, residual=added)


def _read_layer_norm(files: ModelFiles, entry: ModuleEntry, width: int, ops: Ops, *names: str) -> VectorModule:
    config, name = read_config(files, entry, ("dimension",))
    _check_width(config, "dimension", width, name)
    tensors = load_tensors(files.subfolder(entry.path), {"norm.weight": (width,), "norm.bias": (width,)})
    norm = LayerNorm(f"{entry.path}.norm", tensors["norm.weight"], tensors["norm.bias"], LAYER_NORM_EPS)
    compute = functools.partial(_layer_norm, ops, norm)
    return VectorModule(f"LayerNorm({width})", width, compute, {"dimension": width}, tensors)


def _layer_norm(ops: Ops, norm: LayerNorm, vectors: FloatArray) -> FloatArray:
    return ops.layer_norm(vectors, norm)


def _read_normalize(files: ModelFiles, entry: ModuleEntry, width: int, ops: Ops, *names: str) -> VectorModule:
    if entry.path and files.find(f"{entry.path}/config.json") is not None:  # only new files have one
        _check_names(*read_config(files, entry, _NAMES), *names)
    return VectorModule("Normalize", width, unit_vectors)


_READERS: Mapping[str, Callable[..., VectorModule] | None] = {
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Normalize": _read_normalize,
    "Dropout": None,  # does nothing outside training
}


def read_config(files: ModelFiles, entry: ModuleEntry, known: Collection[str]) -> tuple[dict[str, Any], str]:
    """Return a module's config.json, and the file's name for messages; refuse other keys than the `known` ones.

    sentence-transformers writes a key of later versions only if it changes the vectors.
    """
    name = f"{entry.path}/config.json" if entry.path else "config.json"
    config, where = read_json_object(files.require(name)), f"{files.source}: {name}"
    if more := ", ".join(repr(key) for key in config if key not in known):
        raise ModelFormatError(f"{where} has {more}; minibert knows {', '.join(known)} of {entry.kind}.")
    return config, where


def _stored_bool(name: str, config: dict[str, Any], key: str, default: bool) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ModelFormatError(f"{name} has {key}={value!r}; expected true or false.")
    return value


def _check_names(config: dict[str, Any], name: str, *names: str) -> None:
    for key in _NAMES:
        if config.get(key) not in (None, *names):
            raise ModelFormatError(f"{name} has {key}={config[key]!r}; minibert implements {names[0]!r} here.")


def _check_width(config: dict[str, Any], key: str, width: int, name: str) -> int:
    """Check the length of the vectors that a module expects; the one before it gives `width`."""
    size = check_stored_int(f"{name}: {key}", config.get(key), 1, 2**20)
    if size != width:
        raise ModelFormatError(f"{name} has {key}={size}, but the module before it gives vectors of length {width}.")
    return size
