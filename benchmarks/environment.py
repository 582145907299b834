"""The versions and the processor of a measurement, and the peak memory of a process."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from pathlib import Path

from minibert import __version__


def environment(table: str) -> str:
    """Name the processor of a table, and the versions of minibert, NumPy and the libraries that the table names."""
    named = table.lower()
    names = ["numpy", *(["torch"] if "transformers" in named else [])]
    names += [name for name in ("transformers", "sentence-transformers", "onnxruntime", "openvino") if name in named]
    found = [f"minibert {__version__}"]  # of the code that runs, not of a package that is installed beside it
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return f"{', '.join(found)}; {processor()}"


def peak_memory() -> float:
    """Return the peak memory of this process in bytes; nan if the system does not report it."""
    with contextlib.suppress(OSError):
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
        return 1024 * float(fields["VmHWM"].split()[0])
    return float("nan")


def processor() -> str:
    """Name the processor, its generation and its vector width, because "AMD EPYC" alone does not tell them."""
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    flags = fields.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2") if name in flags), "no avx2")
    vectors += ", amx" if "amx_tile" in flags else ""
    return f"{fields['model name']} (family {fields.get('cpu family')}, model {fields.get('model')}, {vectors})"
