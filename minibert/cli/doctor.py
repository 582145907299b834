"""``minibert doctor``, ``minibert warmup`` and ``minibert bench``: this machine, its kernels, its speed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import islice
from typing import Any

from minibert._utils.validation import counted
from minibert.cli.common import add_compute_type, add_model_options, read_lines
from minibert.cli.loading import locate_model

__all__ = ["add_verbs"]


def add_verbs(verbs: Any) -> None:
    """Add the verbs to the command line."""
    doctor = verbs.add_parser(
        "doctor",
        help="describe this machine, and check every op",
        description="Print versions, processor, threads, cache and BLAS, and compare every op with float64.",
        epilog="Exit code 1 if a check fails.",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    add_compute_type(doctor)
    doctor.set_defaults(run=_doctor)

    warmup = verbs.add_parser(
        "warmup",
        help="compile the kernels in advance",
        description="Compile every kernel now, so that later starts are fast. Use it for example in a container image.",
    )
    warmup.add_argument(
        "--clear",
        action="store_true",
        help="delete the compiled kernels and the shared weights of all models instead, and print what was deleted; "
        "both are made again when they are needed",
    )
    add_compute_type(warmup)
    warmup.set_defaults(run=_warmup)

    bench = verbs.add_parser(
        "bench",
        help="time the forward pass beside transformers'",
        description="Time the forward pass of a model on this machine, beside transformers (sdpa) if that is "
        "installed. Results are compared before anything is timed. With --texts, also show the speed and the error of "
        "int16 and int8 on your own texts.",
    )
    add_model_options(bench, backend=False)
    bench.add_argument("--seconds", type=float, default=1.0, help="time per shape and run (default: %(default)s)")
    bench.add_argument(
        "--texts", metavar="FILE", help='a text per line ("-": the standard input); the first 1,000 are used'
    )
    bench.add_argument("--json", action="store_true", help="print one JSON object")
    bench.set_defaults(run=_bench)


def _doctor(arguments: argparse.Namespace) -> None:
    from minibert._utils.system import available_cores
    from minibert.cli import diagnostics
    from minibert.models.backend import choose_compute_type

    compute_type = choose_compute_type(arguments.compute_type)
    report: dict[str, Any] = {"versions": diagnostics.versions(), "blas": diagnostics.blas()}
    try:
        report["processor"] = diagnostics.processor()
        report["cache"] = diagnostics.cache_state()
        report["shared_weights"] = diagnostics.shared_weights()
        report["processor"]["compute_type"] = compute_type
        from minibert.kernels import make_ops

        checks = [
            *diagnostics.check_ops(make_ops(available_cores())),
            diagnostics.check_threads(max(2, available_cores())),
            diagnostics.check_cache(),
        ]
        if compute_type != "float32":
            checks.append(diagnostics.check_low_precision(compute_type))
    except ImportError as error:
        detail = f"cannot be imported ({error}), so minibert computes with NumPy alone"
        checks = [diagnostics.Check("numba", False, detail)]
    report["checks"] = [vars(check) for check in checks]
    print(json.dumps(report, indent=2) if arguments.json else _as_text(report))
    failed = [check.name for check in checks if not check.passed]
    if failed:
        raise ValueError(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}.")


def _as_text(report: dict[str, Any]) -> str:
    found = report["versions"]
    packages = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items() if name != "system")
    lines = [f"versions   {packages}", f"system     {found['system']}"]
    if "processor" in report:
        cpu = report["processor"]
        vectors = f"vectors of {cpu['vector_width']} floats"
        lines.append(f"processor  {cpu['name']} ({cpu['machine']}), {vectors}")
        if not cpu["fma"]:
            lines.append(
                "WARNING    the processor does not have FMA instructions. The results are the same, but each fma is a "
                "call of a library function, so a text takes about 20 times as long."
            )
        cores = f"{cpu['available_cores']} of {cpu['cores']} cores may be used"
        lines.append(f"threads    {cpu['num_threads']}: {cpu['rule']} ({cores})")
        named = ", ".join(f"{name} by {instruction}" for name, instruction in cpu["instructions"].items())
        lines.append(f"computes   in {cpu['compute_type']}, unless a program chooses; {named}")
        for state in report["cache"]:
            warmth = "warm" if state["kernels"] else "cold"
            access = "writable" if state["writable"] else "not writable"
            ignored = f", ignored: {state['untrusted']}" if state["untrusted"] else ""
            lines.append(f"cache      {state['folder']}: {warmth}, {access}{ignored}")
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
    lines.append(f"BLAS       {blas['name']} {blas['version']}; for backend='numba-blas' and 'numpy' only")
    for check in report["checks"]:
        lines.append(f"{'ok' if check['passed'] else 'FAILED':10} {check['name']}: {check['detail']}")
    return "\n".join(lines)


def _warmup(arguments: argparse.Namespace) -> None:
    from minibert.cli import diagnostics
    from minibert.models.backend import choose_compute_type

    if arguments.clear:
        for found in diagnostics.clear():
            print(f"{found['folder']}: {counted(found['files'], 'file')}, {found['bytes'] / 1e6:.0f} MB deleted")
        return
    start = time.perf_counter()
    try:
        diagnostics.warm_up(choose_compute_type(arguments.compute_type))
    except ImportError as error:
        raise ValueError(f"there is nothing to compile: numba cannot be imported ({error}).") from error
    seconds = time.perf_counter() - start
    check = diagnostics.check_cache()
    if not check.passed:
        raise OSError(check.detail)
    print(f"{check.detail}, after {seconds:.1f} s")


def _bench(arguments: argparse.Namespace) -> None:
    from minibert.cli import bench

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    files, texts = locate_model(arguments), None
    if arguments.texts is not None:
        texts = list(islice((line for line in read_lines(arguments.texts) if line.strip()), bench.MOST_TEXTS))
        if not texts:
            raise ValueError(f"{arguments.texts} holds no text.")
    result = bench.measure(files, arguments.seconds, say=say)
    if texts is not None:
        result["on_texts"] = bench.measure_texts(arguments.model, arguments.revision, texts)
    print(json.dumps(result, indent=2) if arguments.json else bench.as_table(result))
