"""The real texts, which are not part of the repository: files in the folder that MINIBERT_TEST_DATA names."""

from __future__ import annotations

import functools
import os
from pathlib import Path

__all__ = ["VARIABLE", "data_path", "udhr_lines"]

VARIABLE = "MINIBERT_TEST_DATA"


def data_path(name: str) -> Path:
    """Return the path of the file of this name."""
    return Path(os.environ[VARIABLE]) / name


@functools.cache
def udhr_lines() -> tuple[str, ...]:
    """Read the Universal Declaration of Human Rights in 45 language versions."""
    lines = data_path("udhr.tsv").read_text(encoding="utf-8").splitlines()
    return tuple(line.split("\t", 1)[1] for line in lines if line)
