"""The real texts, which are not part of the repository: files in the folder that MINIBERT_TEST_DATA names."""

from __future__ import annotations

import functools
import os
from pathlib import Path

VARIABLE = "MINIBERT_TEST_DATA"


def data_path(name: str) -> Path:
    """Return the path of the file of this name."""
    return Path(os.environ[VARIABLE]) / name


@functools.cache
def udhr_lines() -> tuple[str, ...]:
    """Read the Universal Declaration of Human Rights in 45 language versions."""
    return tuple(line for lines in udhr_languages().values() for line in lines)


def udhr_languages() -> dict[str, list[str]]:
    """Read the same lines by language, such as "eng"."""
    texts: dict[str, list[str]] = {}
    for row in data_path("udhr.tsv").read_text(encoding="utf-8").splitlines():
        if row:
            language, line = row.split("\t", 1)
            texts.setdefault(language, []).append(line)
    return texts
