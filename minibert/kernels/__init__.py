"""The ops as compiled code: `make_ops` returns them. README.md says how they are compiled, and where to begin."""

from __future__ import annotations

from minibert.kernels.ops import make_ops

__all__ = ["make_ops"]
