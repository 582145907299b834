"""Vectors of tokens and words; similarity scores, search, quantization and plots of vectors."""
