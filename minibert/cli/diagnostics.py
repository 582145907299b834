"""The checks of `minibert doctor`: versions, processor, threads, cache, BLAS, and the results of every op."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import minibert
from minibert._utils.system import available_cores
from minibert._utils.validation import FloatArray
from minibert.bert import low_precision, reference
from minibert.bert.config import ACTIVATIONS, BertConfig
from minibert.bert.ops import LayerNorm, Linear, Ops
from minibert.bert.weights import LayerWeights, Weights
from minibert.models.backend import choose_compute_type, choose_num_threads, choose_sharing
from minibert.models.bert_model import BertModel
from minibert.models.sharing import shared_folder

__all__ = [
    "Check",
    "blas",
    "cache_state",
    "check_cache",
    "check_low_precision",
    "check_ops",
    "check_threads",
    "clear",
    "processor",
    "versions",
    "warm_up",
]

# Limits of the error, relative to the root mean square of the exact result. float32 rounds by 6e-8, and a sum of some
# hundred terms by a few times that. A wrong formula or instruction has an error that is larger by orders of magnitude.
_RMS_LIMIT, _MAX_LIMIT = 1e-6, 2e-5

# Files of a folder of compiled kernels.
_KERNELS = re.compile(r".*\.(bin|partial)")


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check: its name, whether it passed, and details."""

    name: str
    passed: bool
    detail: str


# --- the machine -----------------------------------------------------------------------------------------------------


def versions() -> dict[str, str | None]:
    """Return the versions of minibert, Python and the runtime packages; None for a package that is not installed."""
    found: dict[str, str | None] = {"minibert": minibert.__version__}  # of this code, not of what pip has installed
    for name in ("numpy", "numba", "llvmlite", "safetensors", "tokenizers", "huggingface-hub"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return {**found, "python": platform.python_version(), "system": platform.platform()}


def processor() -> dict[str, Any]:
    """Return the processor as the compiler sees it, its vectors and instructions, the threads and the rule for them.

    Raises
    ------
    ImportError
        Numba cannot be imported.
    """
    from minibert.kernels import processor
    from minibert.kernels.words import words_of

    target = processor.target()
    return {
        "name": target.name,
        "machine": platform.machine(),
        "features": sorted(feature[1:] for feature in target.features.split(",") if feature.startswith("+")),
        "vector_width": processor.REGISTER_LANES,
        "fma": target.has("fma") or processor.ARM64,
        "cores": os.cpu_count(),
        "available_cores": available_cores(),
        "compute_type": choose_compute_type(),
        "instructions": {name: words_of(name).dot.name or "plain multiplications" for name in low_precision.FORMATS},
        **choose_num_threads()._asdict(),
    }


def cache_state() -> list[dict[str, Any]]:
    """Return the folders that are searched for compiled kernels, in order, and their contents.

    Raises
    ------
    ImportError
        Numba cannot be imported.
    """
    from minibert._utils.private_files import why_untrusted
    from minibert.kernels import machine_code

    states = []
    for folder in machine_code.cache_folders():
        files = [file for file in folder.glob("*.bin") if os.path.isfile(file)] if os.path.isdir(folder) else []
        nearest = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
        states.append(
            {
                "folder": str(folder),
                "kernels": len(files),
                "bytes": sum(file.stat().st_size for file in files),
                "writable": os.path.isdir(nearest) and os.access(nearest, os.W_OK),
                "untrusted": why_untrusted(folder),
            }
        )
    return states


def shared_weights() -> dict[str, Any]:
    """Return whether weights are shared unless a program chooses, the folder of the files, and what it holds."""
    from minibert._utils.mapped import list_files
    from minibert._utils.private_files import why_untrusted

    folder = shared_folder()
    return {
        "chosen": choose_sharing(None, "numba") is not None,
        "folder": None if folder is None else str(folder),
        "untrusted": "the user does not have a home folder" if folder is None else why_untrusted(folder),
        "files": [] if folder is None else [file._asdict() for file in list_files(folder)],
    }


def clear() -> list[dict[str, Any]]:
    """Delete the compiled kernels of all versions and the shared weights; return each folder with what was deleted.

    Processes that use them keep them. Nothing else is deleted.

    Raises
    ------
    OSError
        A folder or a file cannot be changed.
    """
    from minibert._utils.mapped import FILE_NAMES
    from minibert._utils.private_files import delete_files

    folders: list[tuple[Path, re.Pattern[str]]] = []
    with contextlib.suppress(ImportError):  # without Numba there are no kernels
        from minibert.kernels import machine_code

        for folder in machine_code.cache_folders():
            found = folder.parent.glob("kernels-*") if folder.parent.is_dir() else ()
            folders += [(one, _KERNELS) for one in sorted(found) if re.fullmatch("kernels-[0-9a-f]{16}", one.name)]
    if (weights := shared_folder()) is not None:
        folders.append((weights, FILE_NAMES))
    return [{"folder": str(folder), **delete_files(folder, names)._asdict()} for folder, names in folders]


def blas() -> dict[str, Any]:
    """Return the name and the version of NumPy's BLAS."""
    build = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return {"name": build.get("name"), "version": build.get("version")}


# --- checks ----------------------------------------------------------------------------------------------------------


def check_ops(ops: Ops) -> list[Check]:
    """Compare every op with its definition in reference.py, computed in float64."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> FloatArray:
        return generator.standard_normal(shape).astype(np.float32)

    def weight(*shape: int) -> FloatArray:
        made = normal(*shape)
        made.flags.writeable = False  # like a checkpoint's arrays; a read-only array is another type for the compiler
        return made

    num_tokens, hidden, wide, heads = 77, 72, 200, 3
    cu_seqlens = np.array([0, 50, 50, 76, 77], dtype=np.int32)
    x, words, types, positions = normal(num_tokens, hidden), weight(30, hidden), weight(2, hidden), weight(60, hidden)
    ids = [generator.integers(0, len(table), num_tokens).astype(np.int32) for table in (words, types, positions)]
    norm = LayerNorm("norm", weight(hidden), weight(hidden), 1e-12)
    dense = Linear(("dense",), weight(wide, hidden), weight(wide))
    residual = normal(num_tokens, wide)
    query, key, value = np.split(normal(num_tokens, 3 * hidden), 3, axis=1)
    prepared = ops.prepare(dense)
    x64, dense64 = _double(x), Linear(dense.paths, _double(dense.weight), _double(dense.bias))

    found = ops.embed(words, ids[0], types, ids[1], positions, ids[2])
    exact = reference.embed(_double(words), ids[0], _double(types), ids[1], _double(positions), ids[2])
    checks = [
        _compare("embed", found, exact),
        _compare("layer_norm", ops.layer_norm(x, norm), reference.layer_norm(x64, norm)),
        _compare("linear", ops.linear(x, prepared), reference.apply_linear(x64, dense64)),
    ]
    for name in dict.fromkeys(ACTIVATIONS.values()):
        found = ops.linear(x, prepared, activation=name, residual=residual)
        exact = reference.apply_linear(x64, dense64, activation=name, residual=_double(residual))
        checks.append(_compare(f"linear, {name}, residual", found, exact))
    wanted = reference.attention(_double(query), _double(key), _double(value), cu_seqlens, heads, return_probs=True)
    output = ops.attention(query, key, value, cu_seqlens, heads, return_probs=True)
    checks.append(_compare("attention", output.context, wanted.context))
    found, exact = (np.concatenate([p.ravel() for p in probs or ()]) for probs in (output.probs, wanted.probs))
    checks.append(_compare("attention, probs", found, exact))
    return checks


def _double(array: FloatArray) -> npt.NDArray[np.float64]:
    return array.astype(np.float64)


def _compare(name: str, found: FloatArray, exact: FloatArray) -> Check:
    error = np.abs(found - exact)
    scale = float(np.sqrt(np.mean(exact * exact)))
    rms, largest = float(np.sqrt(np.mean(error * error))) / scale, float(error.max()) / scale
    return Check(name, rms <= _RMS_LIMIT and largest <= _MAX_LIMIT, f"error {rms:.1e} RMS, {largest:.1e} at most")


def check_low_precision(compute_type: str) -> Check:
    """Check that the products of a compute type have the bits of low_precision.py."""
    from minibert.kernels import make_ops

    generator = np.random.default_rng(0)
    x, weight = (generator.standard_normal((rows, 200)).astype(np.float32) for rows in (33, 77))
    paths = "encoder.layer.0.intermediate.dense", "encoder.layer.0.output.dense"
    maps = [Linear((path,), weight, weight[:, 0].copy()) for path in paths]
    both = make_ops(1, compute_type=compute_type), low_precision.make_ops(compute_type)
    ours, theirs = ([ops.linear(x, ops.prepare(dense)) for dense in maps] for ops in both)
    same = np.array_equal(ours, theirs)
    return Check(f"linear, {compute_type}", same, f"{'the same bits as' if same else 'other numbers than'} NumPy")


def check_threads(num_threads: int) -> Check:
    """Check that a forward on several threads equals one on a single thread, bit for bit."""
    one, several = (
        _tiny_model(threads)(np.arange(60).reshape(4, 15) % 8).to_tuple()[0] for threads in (1, num_threads)
    )
    same = np.array_equal(one, several)
    return Check("threads", same, f"1 and {num_threads} threads give {'the same bits' if same else 'other numbers'}")


def check_cache() -> Check:
    """Check that compiled kernels are kept, or can be kept."""
    reasons = []
    for state in cache_state():
        if state["untrusted"] is None and (state["kernels"] or state["writable"]):
            state_of_it = "the compiled kernels are in" if state["kernels"] else "the kernels will be kept in"
            return Check("cache", True, f"{state_of_it} {state['folder']}")
        reasons.append(f"{state['folder']}: {state['untrusted'] or 'it cannot be written to'}")
    why = "; ".join(reasons) or "there is no folder for them"
    return Check(
        "cache",
        False,
        f"compiled kernels cannot be kept ({why}), so every start is slow; set NUMBA_CACHE_DIR to a folder to which "
        "you can write and others cannot",
    )


# --- compiling ahead -------------------------------------------------------------------------------------------------


def warm_up(compute_type: str) -> None:
    """Compile the kernels of a compute type, or load them from the cache.

    Raises
    ------
    ImportError
        Numba cannot be imported.
    """
    from minibert.kernels.machine_code import load_run_task

    load_run_task(compute_type)


def _tiny_model(num_threads: int) -> BertModel:
    """Return a model of one layer. A formula gives its weights, which are read-only like those of a checkpoint."""
    from minibert.kernels import make_ops

    config = BertConfig(
        vocab_size=8,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=16,
    )
    ops = make_ops(num_threads)

    def array(*shape: int) -> FloatArray:
        made = np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)
        made.flags.writeable = False
        return made

    def dense(rows: int, columns: int) -> Any:
        return ops.prepare(Linear(("dense",), array(rows, columns), array(rows)))

    hidden, inner = config.hidden_size, config.intermediate_size
    norm = LayerNorm("norm", array(hidden), array(hidden), config.layer_norm_eps)
    layer = LayerWeights(
        path="encoder.layer.0",
        query_key_value=dense(3 * hidden, hidden),
        attention_output=dense(hidden, hidden),
        attention_norm=norm,
        intermediate=dense(inner, hidden),
        output=dense(hidden, inner),
        output_norm=norm,
    )
    weights = Weights(
        config=config,
        word_embeddings=array(config.vocab_size, hidden),
        position_embeddings=array(config.max_position_embeddings, hidden),
        token_type_embeddings=array(config.type_vocab_size, hidden),
        embeddings_norm=norm,
        layers=(layer,),
        pooler=dense(hidden, hidden),
    )
    return BertModel(weights, ops)
