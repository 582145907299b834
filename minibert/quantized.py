"""The quantization functions of `minibert.vectors.similarity`, under their public name."""

from minibert.vectors.similarity import PRECISIONS, quantization_ranges, quantize_embeddings

__all__ = ["PRECISIONS", "quantization_ranges", "quantize_embeddings"]
