"""``minibert doctor``: describe this machine, and check every op on it."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
from typing import Any

import numpy as np

import minibert
from minibert._utils.system import available_cores
from minibert._utils.validation import FloatArray, counted
from minibert.bert import low_precision, reference
from minibert.bert.ops import LayerNorm, Linear, Ops
from minibert.bert.reference import ACTIVATIONS
from minibert.cli.options import add_compute_type, add_verb
from minibert.models.backend import choose_compute_type, choose_num_threads, choose_sharing
from minibert.models.shared_weights import shared_folder

# Limits of the error, relative to the root mean square of the exact result. float32 rounds by 6e-8, and a sum of some
# hundred terms by a few times that. A wrong formula or instruction has an error that is larger by orders of magnitude.
_RMS_LIMIT, _MAX_LIMIT = 1e-6, 2e-5


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check: its name, whether it passed, and details."""

    name: str
    passed: bool
    detail: str


def add_verbs(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = """doctor: describe this machine, and check every op
        Print versions, processor, kernels, threads and BLAS, and compare every op with float64.
        --json: print one JSON object
        --clear: delete the shared weights of all models instead, and print what was deleted; they are made again when
            they are needed
        """
    doctor = add_verb(verbs, _doctor, text)
    doctor.epilog = "Exit code 1 if a check fails."
    add_compute_type(doctor)


def _doctor(arguments: argparse.Namespace) -> None:
    if arguments.clear:
        found = clear()
        print(f"{found['folder']}: {counted(found['files'], 'file')}, {found['bytes'] / 1e6:.0f} MB deleted")
        return
    compute_type = choose_compute_type(arguments.compute_type)
    report: dict[str, Any] = {"versions": versions(), "blas": blas(), "shared_weights": shared_weights()}
    if os.environ.get("MINIBERT_BACKEND") == "numpy":
        checks = check_ops(reference.OPS)
    else:
        try:
            from minibert.kernels import make_ops

            report["processor"] = {**processor(), "compute_type": compute_type}
            report["kernels"] = kernels(compute_type)
            checks = [*check_ops(make_ops(available_cores())), check_threads(max(2, available_cores()))]
            if compute_type != "float32":
                checks.append(check_low_precision(compute_type))
        except ImportError as error:
            checks = [Check("kernels", False, f"{error}, so minibert computes with NumPy alone")]
    report["checks"] = [vars(check) for check in checks]
    print(json.dumps(report, indent=2) if arguments.json else _as_text(report))
    failed = [check.name for check in checks if not check.passed]
    if failed:
        raise ValueError(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}.")


def _as_text(report: dict[str, Any]) -> str:
    named = report["versions"]
    packages = ", ".join(f"{name} {version or 'missing'}" for name, version in named.items() if name != "system")
    lines = [f"versions   {packages}", f"system     {named['system']}"]
    if "processor" in report:
        cpu = report["processor"]
        vectors = f"vectors of {cpu['vector_width']} floats"
        lines.append(f"processor  {cpu['name']} ({cpu['machine']}), {vectors}")
        cores = f"{cpu['available_cores']} of {cpu['cores']} cores may be used"
        lines.append(f"threads    {cpu['num_threads']}: {cpu['rule']} ({cores})")
        named = ", ".join(f"{name} by {instruction}" for name, instruction in cpu["instructions"].items())
        lines.append(f"computes   in {cpu['compute_type']}, unless a program chooses; {named}")
        found = report["kernels"]
        lines.append(
            f"kernels    {found['level']}, because {found['reason']}; {found['folder']}: {', '.join(found['built'])}"
        )
    if "shared_weights" in report:
        shared = report["shared_weights"]
        size = sum(file["bytes"] for file in shared["files"]) / 1e6
        ignored = f", not used: {shared['untrusted']}" if shared["untrusted"] else ""
        chosen = "shared" if shared["chosen"] else "not shared"
        lines.append(
            f"weights    {chosen}, unless a program chooses; {shared['folder']}: "
            f"{counted(len(shared['files']), 'file')}, {size:.0f} MB{ignored}"
        )
    blas = report["blas"]
    lines.append(f"BLAS       {blas['name']} {blas['version']}")
    for check in report["checks"]:
        lines.append(f"{'ok' if check['passed'] else 'FAILED':10} {check['name']}: {check['detail']}")
    return "\n".join(lines)


# --- the machine -----------------------------------------------------------------------------------------------------


def versions() -> dict[str, str | None]:
    """Return the versions of minibert, Python and the runtime packages; None for a package that is not installed."""
    found: dict[str, str | None] = {"minibert": minibert.__version__}  # of this code, not of what pip has installed
    for name in ("numpy", "safetensors", "tokenizers", "huggingface-hub"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return {**found, "python": platform.python_version(), "system": platform.platform()}


def processor() -> dict[str, Any]:
    """Return the level of the kernels, their vectors and instructions, the threads and their rule.

    Raises
    ------
    ImportError
        The kernels cannot be loaded.
    """
    from minibert.kernels import processor
    from minibert.kernels.processor import words_of

    low = low_precision.FORMATS if len(processor.LEVEL.compute_types) > 1 else ()
    return {
        "name": processor.LEVEL.name,
        "machine": platform.machine(),
        "features": sorted(processor.LEVEL.features),
        "vector_width": processor.REGISTER_LANES,
        "cores": os.cpu_count(),
        "available_cores": available_cores(),
        "compute_type": choose_compute_type(),
        "instructions": {name: words_of(name).dot.name or "plain multiplications" for name in low},
        **choose_num_threads()._asdict(),
    }


def kernels(compute_type: str) -> dict[str, Any]:
    """Return the level of the kernels that a compute type uses, the reason, and the levels that were built.

    Raises
    ------
    ImportError
        The kernels cannot be loaded.
    """
    from minibert.kernels.libraries import FOLDER, level_of, libraries

    chosen = os.environ.get("MINIBERT_LEVEL")
    reason = f"MINIBERT_LEVEL={chosen}" if chosen else "it is the best one that was built and fits this processor"
    return {"level": level_of(compute_type).name, "reason": reason, "folder": str(FOLDER), "built": [*libraries()]}


def shared_weights() -> dict[str, Any]:
    """Return whether weights are shared by default, the folder of their files, and its contents."""
    from minibert._utils.private_files import why_untrusted
    from minibert.models.shared_weights import list_files

    folder = shared_folder()
    return {
        "chosen": choose_sharing(None, "kernels") is not None,
        "folder": None if folder is None else str(folder),
        "untrusted": "the user does not have a home folder" if folder is None else why_untrusted(folder),
        "files": [] if folder is None else [file._asdict() for file in list_files(folder)],
    }


def clear() -> dict[str, Any]:
    """Delete the shared weights of all models; return their folder, and the number and size of the deleted files.

    Processes that use them keep them. Nothing else is deleted.

    Raises
    ------
    OSError
        The folder or a file cannot be changed.
    """
    from minibert._utils.private_files import delete_files
    from minibert.models.shared_weights import FILE_NAMES

    if (folder := shared_folder()) is None:
        return {"folder": None, "files": 0, "bytes": 0}
    return {"folder": str(folder), **delete_files(folder, FILE_NAMES)._asdict()}


def blas() -> dict[str, Any]:
    """Return the name and the version of NumPy's BLAS."""
    build = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return {"name": build.get("name"), "version": build.get("version")}


# --- checks ----------------------------------------------------------------------------------------------------------


def check_ops(ops: Ops) -> list[Check]:
    """Compare every op with its definition in bert/reference.py, computed in float64."""
    exact = _results(reference.OPS, np.float64)
    return [_compare(name, found, exact[name]) for name, found in _results(ops, np.float32).items()]


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
    attention = ops.attention(query, key, value, cu_seqlens, heads, return_probs=True)
    return {
        "embed": ops.embed(words, ids[0], types, ids[1], positions, ids[2]),
        "layer_norm": ops.layer_norm(x, norm),
        "linear": ops.linear(x, dense),
        **{
            f"linear, {name}, residual": ops.linear(x, dense, activation=name, residual=residual)
            for name in dict.fromkeys(ACTIVATIONS.values())
        },
        "attention": attention.context,
        "attention, probs": np.concatenate([probs.ravel() for probs in attention.probs or ()]),
    }


def _compare(name: str, found: FloatArray, exact: FloatArray) -> Check:
    error = np.abs(found - exact)
    scale = float(np.sqrt(np.mean(exact * exact)))
    rms, largest = float(np.sqrt(np.mean(error * error))) / scale, float(error.max()) / scale
    return Check(name, rms <= _RMS_LIMIT and largest <= _MAX_LIMIT, f"error {rms:.1e} RMS, {largest:.1e} at most")


def check_low_precision(compute_type: str) -> Check:
    """Check that the products of a compute type equal those of bert/low_precision.py, bit for bit."""
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
    """Check that a product on several threads equals one on a single thread, bit for bit."""
    from minibert.kernels import make_ops

    x, weight = (np.random.default_rng(0).standard_normal((rows, 200)).astype(np.float32) for rows in (333, 777))
    dense = Linear(("dense",), weight, weight[:, 0].copy())
    one, several = (ops.linear(x, ops.prepare(dense)) for ops in (make_ops(1), make_ops(num_threads)))
    same = np.array_equal(one, several)
    return Check("threads", same, f"1 and {num_threads} threads give {'the same bits' if same else 'other numbers'}")
