"""Lines that tests want printed when the run ends, whether they passed or failed: counts, measured errors."""

from __future__ import annotations

REPORT: list[str] = []
