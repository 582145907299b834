"""The part of `minibert.vectors.similarity` that quantizes, under its public name."""

from minibert.vectors.similarity import PRECISIONS, quantization_ranges, quantize_embeddings

__all__ = ["PRECISIONS", "quantization_ranges", "quantize_embeddings"]
