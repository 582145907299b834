"""Marks of tests that only some systems can run, and of those that run by default."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from typing import Any

import pytest

unix = pytest.mark.skipif(os.name != "posix", reason="needs links, pipes and devices of a Unix system")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not have fork")


def by_default(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return cases, of which the chosen ones run by default; the others are slow."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if case in chosen else pytest.mark.slow))
    return marked


def sampled(cases: Iterable[Any], one_in: int, always: Iterable[Any] = ()) -> list[Any]:
    """Return cases, of which a part runs by default, the same one each time; the others are slow."""
    found, kept = [*cases], {*always}
    runs = [case for case in found if case in kept or zlib.crc32(repr(case).encode()) % one_in == 0]
    return by_default(found, *runs)
