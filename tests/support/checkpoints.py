"""Folders of models that several test files use; `random_checkpoint` itself is benchmarks/checkpoints.py's."""

from __future__ import annotations

from benchmarks.checkpoints import SPECIAL_TOKENS, VOCABULARY, random_checkpoint

__all__ = ["SPECIAL_TOKENS", "VOCABULARY", "random_checkpoint"]
