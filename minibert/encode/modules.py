"""The modules that turn hidden states into sentence vectors: how modules.json is read, and the formulas of pooling.

Old and new files of sentence-transformers can be read. A file is only data: no code is imported by a name in it.
Source: sentence-transformers 6.2, base/modules and sentence_transformer/modules; the old spellings: its 2.2, models/.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.files import read_json, read_json_object
from minibert._utils.validation import FloatArray, IntArray, brief, check_stored_int
from minibert.bert.config import BertConfig
from minibert.bert.ops import LayerNorm, Linear, Ops, PreparedLinear
from minibert.checkpoint.files import ModelFiles
from minibert.checkpoint.tensors import load_tensors
from minibert.errors import ModelFormatError
from minibert.vectors.similarity import normalize_embeddings

HEAD_MODULES = {
    ("Transformer",): "CrossEncoder",
    ("Transformer", "SpladePooling"): "SparseEncoder",
    ("MLMTransformer", "SpladePooling"): "SparseEncoder",
}
"""The kinds in modules.json of models whose BERT has a head -> the class that loads them."""

TOKEN_MODULES = ("MultiVectorMask", "HierarchicalTokenPooling")
"""The kinds in modules.json that only a `MultiVectorEncoder` has."""

_PYLATE_DENSE = "pylate.models.Dense.Dense"  # the name of Dense in the files of PyLate


@dataclasses.dataclass(frozen=True)
class Module:
    """One entry of modules.json: the kind (last word of its type) and its folder ("" is the model's folder)."""

    kind: str
    path: str


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Step:
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
    steps : tuple of Step
        The modules after the pooling: Dense, LayerNorm, Normalize.
    """

    hidden_size: int
    pooling: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    steps: tuple[Step, ...] = ()

    @property
    def widths(self) -> tuple[int, ...]:
        """The lengths of the vectors after the pooling and after each step."""
        return len(self.pooling) * self.hidden_size, *(step.width for step in self.steps)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each step."""
        return tuple(step.name for step in self.steps)

    def width_after(self, pooled: int) -> int:
        """Return the length of the vectors that the steps make of pooled vectors; these may have another length.

        Raises
        ------
        ValueError
            A step takes vectors of the length `widths[0]` only.
        """
        fixed = [name for name in self.names if name != "Normalize"]
        if fixed and pooled != self.widths[0]:
            raise ValueError(f"layers= and pooling= give {pooled} features; {fixed[0]} takes {self.widths[0]}.")
        return self.widths[-1] if fixed else pooled

    def finish(self, pooled: FloatArray) -> FloatArray:
        """Run the steps: pooled (B, widths[0]) -> (B, widths[-1])."""
        for step in self.steps:
            pooled = step(pooled)
        return pooled


def check_modules(files: ModelFiles, modules: list[Module], loader: str = "SentenceTransformer") -> list[Module]:
    """Return the modules if the class `loader` can load them; else a ModelFormatError names the class that can."""
    kinds = [module.kind for module in modules]
    plain = kinds[:2] == ["Transformer", "Pooling"] and {*kinds[2:]} <= {*_READERS}
    loaded_by = "SentenceTransformer" if plain else loader_of(modules)
    # A `MultiVectorEncoder` reads the Dense of a SentenceTransformer for tokens, as sentence-transformers does.
    of_tokens = loader == "MultiVectorEncoder" and plain and "Dense" in kinds and "LayerNorm" not in kinds
    if loaded_by == loader or of_tokens:
        return modules
    known = [" and then ".join(known) for known, name in HEAD_MODULES.items() if name == loader]
    if loader == "MultiVectorEncoder":
        known = [f"Transformer and then any of Dense, Normalize, {', '.join(TOKEN_MODULES)}, with a Dense or a mask"]
    expected = " or ".join(known or [f"Transformer, Pooling and then any of {', '.join(_READERS)}"])
    raise ModelFormatError(
        f"{files.source}: modules.json lists {', '.join(kinds) or 'nothing'}; {loader} implements {expected}."
        + (f" {loaded_by} loads it." if loaded_by else "")
    )


def list_modules(files: ModelFiles) -> list[Module] | None:
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


def loader_of(modules: list[Module] | None) -> str | None:
    """Return the name of the class that loads a model with these modules, if it is no `SentenceTransformer`."""
    kinds = tuple(module.kind for module in modules or ())
    of_tokens = kinds[:1] == ("Transformer",) and {*kinds[1:]} <= {"Dense", "Normalize", *TOKEN_MODULES}
    if of_tokens and ("Dense" in kinds or "MultiVectorMask" in kinds):
        return "MultiVectorEncoder"
    return HEAD_MODULES.get(kinds)


def _read_module(entry: object, name: str, files: ModelFiles) -> Module:
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
    return Module(kind.rpartition(".")[2], "" if folder == "." else folder)


def read_pipeline(files: ModelFiles, modules: list[Module], hidden_size: int, ops: Ops) -> Pipeline:
    """Read the configs and weights of all modules after the Transformer; its vectors have the length `hidden_size`.

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
        return Pipeline(hidden_size)
    pipeline = Pipeline(hidden_size, *_read_pooling(files, modules[1], hidden_size))
    for module in modules[2:]:
        if read := _READERS[module.kind]:
            step = read(files, module, pipeline.widths[-1], ops, _SENTENCE)
            pipeline = dataclasses.replace(pipeline, steps=(*pipeline.steps, step))
    return pipeline


def read_token_steps(files: ModelFiles, modules: list[Module], hidden_size: int, ops: Ops) -> list[Step | Module]:
    """Read the modules after the Transformer of a `MultiVectorEncoder`; modules of `TOKEN_MODULES` stay as they are.

    Modules for sentence vectors are left out, as sentence-transformers does. If a Pooling is among them, a Dense for
    sentence vectors becomes a Dense for tokens.
    """
    steps, width = list[Step | Module](), hidden_size
    of_sentences = [_SENTENCE] if "Pooling" in [module.kind for module in modules] else []
    for module in modules[1:]:
        if module.kind == "Dense":
            steps.append(dense := _read_dense(files, module, width, ops, _TOKENS, *of_sentences))
            width = dense.width
        elif module.kind in TOKEN_MODULES:
            steps.append(module)
        elif module.kind == "Normalize":
            path = f"{module.path}/config.json"
            config = files.settings(path) if module.path else {}
            if config.get(_NAMES[0]) == _TOKENS:
                steps.append(_read_normalize(files, module, width, ops, _TOKENS))
    return steps


# --- Pooling ---------------------------------------------------------------------------------------------------------

POOLING_MODES: dict[str, Callable[[FloatArray, IntArray], FloatArray]] = {
    "cls": lambda x, positions: x[0],
    "max": lambda x, positions: x.max(axis=0),
    "mean": lambda x, positions: x.mean(axis=0, dtype=np.float64),
    "mean_sqrt_len_tokens": lambda x, positions: x.sum(axis=0, dtype=np.float64) / np.sqrt(len(x)),
    "weightedmean": lambda x, positions: ((positions[:, None] + 1.0) * x).sum(axis=0) / (positions + 1.0).sum(),
    "lasttoken": lambda x, positions: x[-1],
}
"""Formulas by sentence-transformers' names: tokens that count, x (S, H), and their positions (S,) in the text -> (H,).

Sums are computed in float64 and rounded once, when the result is stored.

Sources: Reimers and Gurevych 2019 (arXiv 1908.10084), section 3, for cls, max and mean; Muennighoff 2022 (arXiv
2202.08904), section 3, for weightedmean; sentence-transformers 6, sentence_transformer/modules/pooling.py.
"""

_ALIASES: dict[str, tuple[str, ...]] = {
    "mean_max": ("mean", "max"),
    "sep": ("lasttoken",),
    # bert-as-service's names. Source: server/bert_serving/server/graph.py of that project.
    "NONE": ("none",),
    "REDUCE_MEAN": ("mean",),
    "REDUCE_MAX": ("max",),
    "REDUCE_MEAN_MAX": ("mean", "max"),
    "CLS_TOKEN": ("cls",),
    "FIRST_TOKEN": ("cls",),
    "SEP_TOKEN": ("lasttoken",),
    "LAST_TOKEN": ("lasttoken",),
}

# These need more than the token vectors of one hidden state, or do not give one vector. plan.py computes them.
_ALONE = ("first_last", "pooler", "none")


def pooling_modes(pooling: str | Sequence[str], argument: str = "pooling") -> tuple[str, ...]:
    """Turn the argument `pooling` into names of `POOLING_MODES`, or one of "first_last", "pooler", "none".

    Parameters
    ----------
    pooling : str or sequence of str
        One mode, or several whose vectors are concatenated; aliases are "mean_max", "sep" and bert-as-service's NONE,
        REDUCE_MEAN, REDUCE_MAX, REDUCE_MEAN_MAX, CLS_TOKEN, FIRST_TOKEN, SEP_TOKEN, LAST_TOKEN.
    argument : str
        The caller's name of the argument, for messages.

    Raises
    ------
    TypeError, ValueError
        A name is not the name of a mode, or "first_last", "pooler" or "none" is combined with another mode.
    """
    names = [pooling] if isinstance(pooling, str) else pooling
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument}={brief(pooling)}; expected the name of a pooling mode, or a list of names.")
    modes: list[str] = []
    for name in names:
        if name not in POOLING_MODES and name not in _ALONE and name not in _ALIASES:
            known = ", ".join([*POOLING_MODES, *_ALONE])
            raise ValueError(f"{argument}={brief(name)}; expected {known}, or bert-as-service's names.")
        modes += _ALIASES.get(name, (name,))
    if len(modes) > 1 and (alone := [mode for mode in modes if mode in _ALONE]):
        raise ValueError(f"{argument} {alone[0]!r} cannot be combined with others; got {', '.join(map(repr, modes))}.")
    return tuple(modes)


def pool(
    hidden_state: FloatArray, cu_seqlens: IntArray, modes: Sequence[str], counts: npt.NDArray[np.bool_] | None = None
) -> FloatArray:
    """Pool each sequence of a packed batch; the vectors of several modes are concatenated.

    Parameters
    ----------
    hidden_state : ndarray of shape (T, H), float32
    cu_seqlens : int ndarray of shape (B + 1,)
    modes : names of `POOLING_MODES`
    counts : bool ndarray of shape (T,), optional
        Which tokens count; default: all. "weightedmean" still counts the positions of the others.

    Returns
    -------
    ndarray of shape (B, len(modes) * H), float32
        Zeros for a sequence without a token that counts.
    """
    H = hidden_state.shape[1]
    pooled = np.zeros((len(cu_seqlens) - 1, len(modes) * H), dtype=np.float32)
    for b, (start, end) in enumerate(pairwise(cu_seqlens)):
        x = hidden_state[start:end]
        positions = np.arange(end - start) if counts is None else np.flatnonzero(counts[start:end])
        if len(positions) == 0:
            continue
        if counts is not None:
            x = x[positions]
        for i, mode in enumerate(modes):
            pooled[b, i * H : (i + 1) * H] = POOLING_MODES[mode](x, positions)
    return pooled


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


def _read_pooling(files: ModelFiles, module: Module, hidden_size: int) -> tuple[tuple[str, ...], bool]:
    config, name = read_config(files, module, (*_POOLING, *_OLD_POOLING))
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


# --- the modules after it --------------------------------------------------------------------------------------------


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
_DENSE = ("in_features", "out_features", "bias", "activation_function", "use_residual", *_NAMES)


_SENTENCE, _TOKENS = "sentence_embedding", "token_embeddings"


def _read_dense(files: ModelFiles, module: Module, width: int, ops: Ops, *names: str) -> Step:
    """Read the settings and the weights of `dense_step`."""
    config, name = read_config(files, module, _DENSE)
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
    return dense_step(ops, load_tensors(files.subfolder(module.path), shapes), activation, use_residual, module.path)


def dense_step(
    ops: Ops,
    tensors: Mapping[str, FloatArray],
    activation: str = "Identity",
    use_residual: bool = False,
    path: str = "",
) -> Step:
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
    return Step(f"Dense({inward}, {outward}, {activation})", outward, compute, saved, tensors)


def _dense(
    ops: Ops, maps: Mapping[str, PreparedLinear], activation: str | None, use_residual: bool, vectors: FloatArray
) -> FloatArray:
    added = vectors if use_residual else None
    if "residual" in maps:
        added = ops.linear(vectors, maps["residual"])
    return ops.linear(vectors, maps["linear"], activation=activation, residual=added)


def _read_layer_norm(files: ModelFiles, module: Module, width: int, ops: Ops, *names: str) -> Step:
    config, name = read_config(files, module, ("dimension",))
    _check_width(config, "dimension", width, name)
    tensors = load_tensors(files.subfolder(module.path), {"norm.weight": (width,), "norm.bias": (width,)})
    norm = LayerNorm(f"{module.path}.norm", tensors["norm.weight"], tensors["norm.bias"], LAYER_NORM_EPS)
    return Step(f"LayerNorm({width})", width, functools.partial(_layer_norm, ops, norm), {"dimension": width}, tensors)


def _layer_norm(ops: Ops, norm: LayerNorm, vectors: FloatArray) -> FloatArray:
    return ops.layer_norm(vectors, norm)


def _read_normalize(files: ModelFiles, module: Module, width: int, ops: Ops, *names: str) -> Step:
    if module.path and files.find(f"{module.path}/config.json") is not None:  # only new files have one
        _check_names(*read_config(files, module, _NAMES), *names)
    return Step("Normalize", width, normalize_embeddings)


_Reader = Callable[..., Step]
_READERS: Mapping[str, _Reader | None] = {
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Normalize": _read_normalize,
    "Dropout": None,  # does nothing outside training
}


def read_config(files: ModelFiles, module: Module, known: Collection[str]) -> tuple[dict[str, Any], str]:
    """Return a module's config.json, and the file's name for messages; refuse other keys than the `known` ones.

    sentence-transformers writes a key of later versions only if it changes the vectors.
    """
    name = f"{module.path}/config.json" if module.path else "config.json"
    config, where = read_json_object(files.require(name)), f"{files.source}: {name}"
    if more := ", ".join(repr(key) for key in config if key not in known):
        raise ModelFormatError(f"{where} has {more}; minibert knows {', '.join(known)} of {module.kind}.")
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
