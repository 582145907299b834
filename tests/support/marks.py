"""Marks of tests that only some systems can run, and of those that run by default."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from typing import Any

import pytest

unix = pytest.mark.skipif(os.name != "posix", reason="needs links, pipes and devices of a Unix system")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not have fork")


def sampled(cases: Iterable[Any], one_in: int, always: Iterable[Any] = ()) -> list[Any]:
    """Return cases, of which a part runs by default, the same one each time; the others are slow."""
    marked, kept = [], {*always}
    for case in cases:
        runs = case in kept or zlib.crc32(repr(case).encode()) % one_in == 0
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if runs else pytest.mark.slow))
    return marked
