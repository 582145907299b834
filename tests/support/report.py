"""Lines that are printed at the end of the run, whether the tests passed or failed: counts, measured errors."""

from __future__ import annotations

REPORT: list[str] = []
