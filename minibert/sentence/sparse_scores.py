"""What follows from the vectors of a `SparseEncoder`: their words, and scores of two of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from minibert._utils.validation import check_int
from minibert.sentence.sparse_vectors import (
    SparseVectors,
    as_sparse,
    sparse_similarity,
    sparse_similarity_pairwise,
)
from minibert.sentence.text_habits import TextHabits
from minibert.similarity import SimilarityFunction, check_similarity

__all__ = ["SparseScores"]


class SparseScores(TextHabits):
    """The methods of a `SparseEncoder` that take vectors."""

    @property
    def similarity_fn_name(self) -> str:
        """What `similarity` computes: "dot", "cosine", "euclidean" or "manhattan". Settable, also as an enum."""
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: str | SimilarityFunction) -> None:
        self._similarity_fn_name = check_similarity("similarity_fn_name", value)

    def decode(self, embeddings: Any, top_k: int | None = None) -> Any:
        """Return the words of vectors with their weights, the largest first.

        Parameters
        ----------
        embeddings : SparseVectors, array, SciPy's array, or tensor of shape (V,) or (B, V)
        top_k : int, optional
            The most words of each vector; default: all whose weight is not 0.

        Returns
        -------
        list of (str, float) for one vector, else a list of such lists

        Raises
        ------
        TypeError, ValueError
            `embeddings` is something else, or its vectors have another length than V.
        """
        if top_k is not None:
            check_int("top_k", top_k, 1, also=", or None for all")
        vectors = self._vectors("embeddings", embeddings)
        found = []
        for vector in vectors.matrix():
            order = np.argsort(-vector.data, kind="stable")[:top_k]
            words = self.tokenizer.convert_ids_to_tokens(vector.indices[order].tolist())
            found.append(list(zip(words, vector.data[order].tolist(), strict=True)))
        return found[0] if vectors.ndim == 1 else found

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Score every vector of one collection with every one of another, by `similarity_fn_name`: (m, n).

        Parameters
        ----------
        embeddings1, embeddings2 : SparseVectors, arrays or tensors of shape (m, V) and (n, V), or (V,)
            For sparse vectors memory is bounded, apart from the result.

        Returns
        -------
        Scores, an ndarray with the methods ``numpy``, ``cpu`` and ``detach``; a tensor if an argument is one
        """
        return sparse_similarity(self.similarity_fn_name, *map(_unlisted, (embeddings1, embeddings2)))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Score vector i of one collection with vector i of another, by `similarity_fn_name`: (n,), as `similarity`."""
        return sparse_similarity_pairwise(self.similarity_fn_name, *map(_unlisted, (embeddings1, embeddings2)))

    @staticmethod
    def sparsity(embeddings: Any) -> dict[str, float]:
        """Return how sparse vectors are.

        Parameters
        ----------
        embeddings : SparseVectors, array or tensor of shape (V,) or (B, V)

        Returns
        -------
        dict
            "active_dims" is the mean number of weights that are not 0, "sparsity_ratio" the mean part that is 0.
        """
        vectors = as_sparse("embeddings", embeddings)
        if not vectors.matrix().shape[0] or not vectors.shape[-1]:
            return {"active_dims": 0.0, "sparsity_ratio": 1.0}
        active = float(np.float32(vectors.nnz / vectors.matrix().shape[0]))
        return {"active_dims": active, "sparsity_ratio": 1.0 - active / vectors.shape[-1]}

    @staticmethod
    def intersection(embeddings_1: Any, embeddings_2: Any) -> SparseVectors:
        """Multiply a vector with another, or with each of several, and keep what is above 0: the words of both.

        Parameters
        ----------
        embeddings_1 : SparseVectors, array or tensor of shape (V,)
        embeddings_2 : the same of shape (V,) or (B, V)

        Returns
        -------
        SparseVectors of the shape of `embeddings_2`
        """
        one, others = as_sparse("embeddings_1", embeddings_1), as_sparse("embeddings_2", embeddings_2)
        if one.ndim != 1 or one.shape[-1] != others.shape[-1]:
            raise ValueError(
                f"embeddings_1 has shape {one.shape}, embeddings_2 {others.shape}; expected (V,), and (V,) or (B, V)."
            )
        products = others.data * one.todense()[others.indices]
        kept = products > 0
        before = np.concatenate([[0], np.cumsum(kept)])
        return SparseVectors(others.shape, products[kept], others.indices[kept], before[others.indptr])

    def _vectors(self, name: str, values: Any) -> SparseVectors:
        vectors = as_sparse(name, values)
        if vectors.shape[-1] != self.get_embedding_dimension():
            raise ValueError(
                f"{name} has vectors of length {vectors.shape[-1]}; this model has {self.get_embedding_dimension()} "
                "words (vocab_size)."
            )
        return vectors


def _unlisted(values: Any) -> Any:
    """Return a list of sparse vectors as one object."""
    listed = isinstance(values, list | tuple) and values and isinstance(values[0], SparseVectors)
    return as_sparse("embeddings", values) if listed else values
