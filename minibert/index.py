"""`minibert.vectors.indices` under its public name."""

from minibert.vectors.indices import semantic_search_faiss, semantic_search_usearch

__all__ = ["semantic_search_faiss", "semantic_search_usearch"]
