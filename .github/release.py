"""Checks for release.yml, each of which ends with a reason if it fails.

``notes v0.3.0`` prints the changelog's section of a version, which pyproject.toml and CITATION.cff must have, too.
``libraries WHEEL ...`` prints the kernels in wheels; they must need no other library, and show the functions that
libraries.py calls.
"""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

# What a library of macOS shows besides, and needs of the system: the header, and a function that fills memory.
OF_MACOS = {"mh_dylib_header", "dso_handle", "dyld_stub_binder", "memset_pattern16"}


def version() -> str:
    """Return the version of pyproject.toml, if CITATION.cff has the same one."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if f"\nversion: {found}\n" not in (ROOT / "CITATION.cff").read_text(encoding="utf-8"):
        sys.exit(f"CITATION.cff does not have the version {found} of pyproject.toml")
    return found


def section(number: str) -> tuple[str, str]:
    """Return the date of a version in the changelog, and its section."""
    changelog = (ROOT / ".github" / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"(?ms)^## {re.escape(number)} \(([^)]*)\)\n(.*?)(?=^## |\Z)", changelog)
    if found is None:
        sys.exit(f"CHANGELOG.md has no section '## {number} (DATE)'")
    return found[1], found[2].strip() + "\n"


def notes(tag: str) -> str:
    """Return the changelog's section of the version that a tag names."""
    if tag != f"v{version()}":
        sys.exit(f"the tag is {tag}, and the version of pyproject.toml is {version()}")
    date, text = section(version())
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        sys.exit(f"CHANGELOG.md has ({date}) for {version()}; expected a date such as (2026-12-01)")
    return text


def libraries(wheel: str) -> str:
    """Return a line for each library of a wheel: its format, size and functions."""
    import lief

    lines = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith((".so", ".dylib", ".dll")):
                continue
            content = archive.read(name)
            found = lief.parse(content)
            shown = {str(function.name).lstrip("_") for function in found.exported_functions} - OF_MACOS
            expected = {"run_task"} if "/arm64" in name else {"run_task", "cpuid", "xgetbv"}
            needed = {str(function.name).lstrip("_") for function in found.imported_functions} - OF_MACOS
            if shown != expected or needed:
                sys.exit(f"{name} shows {sorted(shown)} and needs {needed}; expected {sorted(expected)} and nothing")
            kind, machine = str(found.format).split(".")[-1], Path(name).stem
            lines.append(f"{Path(wheel).name} {machine} {kind} {len(content)} bytes {' '.join(sorted(shown))}\n")
    return "".join(lines)


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    for argument in arguments:
        sys.stdout.write({"notes": notes, "libraries": libraries}[verb](argument))
