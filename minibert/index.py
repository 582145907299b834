"""The functions of `minibert.vectors.search` for an index of another library, under their public name."""

from minibert.vectors.search import semantic_search_faiss, semantic_search_usearch

__all__ = ["semantic_search_faiss", "semantic_search_usearch"]
