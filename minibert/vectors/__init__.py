"""Vectors of tokens and words; scores, search, quantization and pictures of vectors."""

__all__: list[str] = []
