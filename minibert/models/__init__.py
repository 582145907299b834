"""`BertModel` and what it needs: outputs, the embedding layer, checks of inputs, loading, the choice of ops."""

from __future__ import annotations

from minibert._utils.foreign import missing_names

__all__: list[str] = []

__getattr__ = missing_names("minibert.models", __all__)
