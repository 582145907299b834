"""Vectors of tokens and words; similarity scores, search, quantization and plots of vectors."""

__all__: list[str] = []
