"""`examine`: the facts about this machine, and a check of every op on it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import distributions
from typing import Any, NamedTuple

import numpy as np

import minibert
from minibert._utils.private_files import why_untrusted
from minibert._utils.system import available_cores
from minibert._utils.validation import FloatArray
from minibert.bert import low_precision, reference
from minibert.bert.ops import AttentionInput, LayerNorm, Linear, LookUp, Ops
from minibert.bert.reference import ACTIVATIONS
from minibert.models.backend import choose_compute_type, choose_num_threads, choose_sharing
from minibert.models.shared_weights import list_files, shared_folder

# Limits of the error, relative to the root mean square of the exact result. float32 rounds by 6e-8, and a sum of some
# hundred terms by a few times that. A wrong formula or instruction has an error that is larger by orders of magnitude.
_RMS_LIMIT, _MAX_LIMIT = 1e-6, 2e-5


class Check(NamedTuple):
    """The result of one check: its name, whether it passed, and details."""

    name: str
    passed: bool
    detail: str


def examine(compute_type: str | None = None) -> dict[str, Any]:
    """Return the facts about this machine, and what the checks found, as JSON can hold them.

    Parameters
    ----------
    compute_type : str, optional
        As in `BertModel.from_pretrained`.

    Returns
    -------
    dict
        "versions", "blas", "shared_weights"; "processor" and "kernels" unless NumPy computes; "checks": for each a
        dict with "name", "passed" and "detail".
    """
    compute_type = choose_compute_type(compute_type)
    report: dict[str, Any] = {"versions": versions(), "blas": blas(), "shared_weights": shared_weights()}
    if os.environ.get("MINIBERT_BACKEND") == "numpy":
        checks = check_ops(reference.OPS)
    else:
        try:
            from minibert.kernels import make_ops

            report |= kernels(compute_type)
            checks = [*check_ops(make_ops(available_cores())), check_threads(max(2, available_cores()))]
            if compute_type != "float32":
                checks.append(check_low_precision(compute_type))
        except ImportError as error:
            checks = [Check("kernels", False, f"{error}, so minibert computes with NumPy alone")]
    report["checks"] = [check._asdict() for check in checks]
    return report


# --- the machine -----------------------------------------------------------------------------------------------------


def versions() -> dict[str, str | None]:
    """Return the versions of minibert, Python and the runtime packages; None for a package that is not installed."""
    names = ("numpy", "safetensors", "tokenizers", "huggingface-hub")
    packages = {name: next((distribution.version for distribution in distributions(name=name)), None) for name in names}
    packages |= {"python": platform.python_version(), "system": platform.platform()}
    return {"minibert": minibert.__version__, **packages}  # this code's version, also if pip installed another one


def kernels(compute_type: str) -> dict[str, dict[str, Any]]:
    """Return the facts about the processor, and about the kernels that a compute type uses.

    Raises
    ------
    ImportError
        The kernels cannot be loaded.
    """
    from minibert.kernels import libraries, processor

    low = low_precision.FORMATS if len(processor.LEVEL.compute_types) > 1 else ()
    level = os.environ.get("MINIBERT_LEVEL")
    return {
        "processor": {
            "name": processor.LEVEL.name,
            "machine": platform.machine(),
            "features": sorted(processor.LEVEL.features),
            "vector_width": processor.REGISTER_LANES,
            "cores": os.cpu_count(),
            "available_cores": available_cores(),
            "compute_type": compute_type,
            "instructions": {name: processor.words_of(name).dot.name or "plain multiplications" for name in low},
            **choose_num_threads()._asdict(),
        },
        "kernels": {
            "level": libraries.level_of(compute_type).name,
            "reason": f"MINIBERT_LEVEL={level}" if level else "it is the best one built that fits this processor",
            "folder": str(libraries.FOLDER),
            "built": [*libraries.libraries()],
        },
    }


def shared_weights() -> dict[str, Any]:
    """Return whether weights are shared by default, the folder of their files, and its contents."""
    chosen = choose_sharing(None, "kernels") is not None
    if (folder := shared_folder()) is None:
        return {"chosen": chosen, "folder": None, "untrusted": "the user does not have a home folder", "files": []}
    files = [file._asdict() for file in list_files(folder)]
    return {"chosen": chosen, "folder": str(folder), "untrusted": why_untrusted(folder), "files": files}


def blas() -> dict[str, Any]:
    """Return the name and the version of NumPy's BLAS."""
    build = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return {"name": build.get("name"), "version": build.get("version")}


# --- checks ----------------------------------------------------------------------------------------------------------


def check_ops(ops: Ops) -> list[Check]:
    """Compare every op with its definition in bert/reference.py, computed in float64."""
    exact = _results(reference.OPS, np.float64)
    return [_compare(name, result, exact[name]) for name, result in _results(ops, np.float32).items()]


def _results(ops: Ops, kind: type[np.floating[Any]]) -> dict[str, FloatArray]:
    """Return the results of every op for numbers that are always the same; `kind` is their type."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> FloatArray:
        return generator.standard_normal(shape).astype(np.float32).astype(kind)

    num_tokens, hidden, wide, heads = 77, 72, 200, 3
    cu_seqlens = np.array([0, 50, 50, 76, 77], dtype=np.int32)
    x, residual = normal(num_tokens, hidden), normal(num_tokens, wide)
    words, types, positions = (normal(rows, hidden) for rows in (30, 2, 60))
    ids = [generator.integers(0, rows, num_tokens, np.int32) for rows in (30, 2, 60)]
    norm = LayerNorm("norm", normal(hidden), normal(hidden), 1e-12)
    dense = ops.prepare(Linear(("dense",), normal(wide, hidden), normal(wide)))
    query, key, value = np.split(normal(num_tokens, 3 * hidden), 3, axis=1)
    attention = ops.attention(AttentionInput(query, key, value, cu_seqlens, heads), return_probs=True)
    return {
        "embed": ops.embed(*map(LookUp, (words, types, positions), ids)),
        "layer_norm": ops.layer_norm(x, norm),
        "linear": ops.linear(x, dense),
        **{
            f"linear, {name}, residual": ops.linear(x, dense, activation=name, residual=residual)
            for name in dict.fromkeys(ACTIVATIONS.values())
        },
        "attention": attention.context,
        "attention, probs": np.concatenate([probs.ravel() for probs in attention.probs or ()]),
    }


def _compare(name: str, result: FloatArray, exact: FloatArray) -> Check:
    error = np.abs(result - exact)
    scale = float(np.sqrt(np.mean(exact * exact)))
    rms, largest = float(np.sqrt(np.mean(error * error))) / scale, float(error.max()) / scale
    return Check(name, rms <= _RMS_LIMIT and largest <= _MAX_LIMIT, f"error {rms:.1e} RMS, {largest:.1e} at most")


def check_low_precision(compute_type: str) -> Check:
    """Check that the products of a compute type equal bert/low_precision.py's, bit for bit."""
    from minibert.kernels import make_ops

    ours, theirs = make_ops(1, compute_type=compute_type), low_precision.make_ops(compute_type)
    paths = ["encoder.layer.0.intermediate.dense", "encoder.layer.0.output.dense"]
    query, key, value = np.random.default_rng(0).standard_normal((3, 60, 128)).astype(np.float32)
    inputs = AttentionInput(query, key, value, np.array([0, 60], dtype=np.int32), 2)
    results, wanted = ([*_products(ops, paths, 33, 77), ops.attention(inputs).context] for ops in (ours, theirs))
    same = all(map(np.array_equal, results, wanted))
    details = "the same bits as NumPy" if same else "other numbers than NumPy"
    return Check(f"linear, attention, {compute_type}", same, details)


def check_threads(num_threads: int) -> Check:
    """Check that a product on several threads equals one on a single thread, bit for bit."""
    from minibert.kernels import make_ops

    alone, several = (_products(make_ops(count), ["dense"], 333, 777) for count in (1, num_threads))
    same = np.array_equal(alone, several)
    return Check("threads", same, f"1 and {num_threads} threads give {'the same bits' if same else 'other numbers'}")


def _products(ops: Ops, paths: list[str], *rows: int) -> list[FloatArray]:
    """Return a product with a weight of each name."""
    generator = np.random.default_rng(0)
    x, weight = (generator.standard_normal((count, 200)).astype(np.float32) for count in rows)
    return [ops.linear(x, ops.prepare(Linear((path,), weight, weight[:, 0].copy()))) for path in paths]
