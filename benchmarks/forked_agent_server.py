"""The model of the fork server of `benchmarks.agents`, loaded by the import, with what a first call makes."""

from __future__ import annotations

import gc

from benchmarks.forked_agent import model

model().encode("The first text.")
gc.freeze()
