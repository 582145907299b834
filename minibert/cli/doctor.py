"""``minibert doctor``: print the facts about this machine, and the checks of every op on it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from minibert._utils.private_files import delete_files
from minibert._utils.validation import counted
from minibert.cli.notation import add_verb
from minibert.cli.options import COMPUTE_TYPE
from minibert.models.shared_weights import FILE_NAMES, shared_folder


def add_verbs(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = f"""doctor: describe this machine, and check every op
        Print versions, processor, kernels, threads and BLAS, and compare every op with float64. The exit code is 1 if a
        check fails.
        --json: print one JSON object
        --clear: delete the shared weights of all models instead, and print what was deleted; they are made again when
            they are needed
        {COMPUTE_TYPE}
        """
    add_verb(verbs, _doctor, text)


def _doctor(arguments: argparse.Namespace) -> None:
    if arguments.clear:
        arguments.parser.refuse(("json", "compute_type"), "is for the report; leave it out with --clear.")
        _clear()
        return
    from minibert.models.doctor import examine

    report = examine(arguments.compute_type)
    print(json.dumps(report, indent=2) if arguments.json else _as_text(report))
    failed = [check["name"] for check in report["checks"] if not check["passed"]]
    if failed:
        raise ValueError(f"{len(failed)} of {len(report['checks'])} checks failed: {', '.join(failed)}.")


def _as_text(report: dict[str, Any]) -> str:
    versions, shared, blas = dict(report["versions"]), report["shared_weights"], report["blas"]
    system = versions.pop("system")
    packages = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    rows = [("versions", packages), ("system", system)]
    if "processor" in report:
        cpu, kernels = report["processor"], report["kernels"]
        cores = f"{cpu['available_cores']} of {cpu['cores']} cores may be used"
        named = ", ".join(f"{name} by {instruction}" for name, instruction in cpu["instructions"].items())
        built = f"{kernels['folder']}: {', '.join(kernels['built'])}"
        rows += [
            ("processor", f"{cpu['name']} ({cpu['machine']}), vectors of {cpu['vector_width']} floats"),
            ("threads", f"{cpu['num_threads']}: {cpu['rule']} ({cores})"),
            ("computes", f"in {cpu['compute_type']}, unless a program chooses; {named}"),
            ("kernels", f"{kernels['level']}, because {kernels['reason']}; {built}"),
        ]
    chosen = "shared" if shared["chosen"] else "not shared"
    size = sum(file["bytes"] for file in shared["files"]) / 1e6
    files = f"{shared['folder']}: {counted(len(shared['files']), 'file')}, {size:.0f} MB"
    ignored = f", not used: {shared['untrusted']}" if shared["untrusted"] else ""
    rows += [("weights", f"{chosen}, unless a program chooses; {files}{ignored}")]
    rows += [("BLAS", f"{blas['name']} {blas['version']}")]
    rows += [("ok" if row["passed"] else "FAILED", f"{row['name']}: {row['detail']}") for row in report["checks"]]
    return "\n".join(f"{name:10} {text}" for name, text in rows)


def _clear() -> None:
    """Delete the shared weights of all models. Processes that use them keep them."""
    folder = shared_folder()
    count, size = (0, 0) if folder is None else delete_files(folder, FILE_NAMES)
    print(f"{folder}: {counted(count, 'file')}, {size / 1e6:.0f} MB deleted")
