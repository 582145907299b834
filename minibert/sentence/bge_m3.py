"""`BGEM3FlagModel`: three kinds of vectors of a text from one forward of bge-m3; it has a head for each kind.

Source: Chen et al. 2024, BGE M3-Embedding (arXiv 2402.03216), section 3.1; FlagEmbedding 1.3,
inference/embedder/encoder_only/m3.py, whose names and answers these are.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Unpack

import numpy as np

from minibert.checkpoint.tensors import load_tensors
from minibert.encode.modules import VectorModule, dense_module
from minibert.encode.options import WindowOptions
from minibert.encode.run import ObjectPlan, packed
from minibert.models.fingerprint import Fingerprinted, sha256_of_arrays
from minibert.sentence.loading import LoadKeywords, check_load, full_name
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import as_texts
from minibert.tokenizer.windows import WholeTexts
from minibert.vectors.similarity import normalize_embeddings


class BGEM3FlagModel(Fingerprinted):
    """bge-m3, and models with its files: a dense vector, weights of tokens, and a vector for each token.

    Parameters
    ----------
    name : str or path
        A folder or a hub id of a `SentenceTransformer`, with colbert_linear.pt and sparse_linear.pt beside it. These
        are read as data; nothing in them is executed.
    **load
        As in `SentenceTransformer`.

    Attributes
    ----------
    model : SentenceTransformer
        It gives the dense vectors alone.
    heads : dict of str to VectorModule
        "colbert" and "sparse": what they make of hidden states.

    Raises
    ------
    ModelFormatError
        A file is missing or damaged, or its tensors do not fit the model; and as in `SentenceTransformer`.
    """

    def __init__(self, name: str | os.PathLike[str] = "BAAI/bge-m3", **load: Unpack[LoadKeywords]) -> None:
        self.model = SentenceTransformer(name, **load)
        files = check_load(type(self).__name__, load)[0].locate(full_name(name))
        size, self.heads = self.model.config.hidden_size, dict[str, VectorModule]()
        for head, n in (("colbert", size), ("sparse", 1)):
            tensors = load_tensors(files, {"weight": (n, size), "bias": (n,)}, f"{head}_linear.pt")
            named = {f"linear.{key}": tensor for key, tensor in tensors.items()}
            self.heads[head] = dense_module(self.model.model.ops, named)

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return what `fingerprint` is computed from, by name: that of the model, and the heads."""
        heads = {name: sha256_of_arrays(head.tensors.items()) for name, head in self.heads.items()}
        return {**self.model.fingerprint_parts(), "heads": heads}

    def encode(
        self, sentences: str | Sequence[str], batch_size: int = 32, *, truncation: str = "warn", **kinds: bool
    ) -> dict[str, Any]:
        """Turn texts into vectors of three kinds with one forward; equal texts are computed once.

        Parameters
        ----------
        sentences : str, or sequence of B str
        batch_size, truncation
            As in `MultiVectorEncoder.encode`.
        **kinds : bool
            return_dense, return_sparse and return_colbert_vecs. False leaves a kind out; all are computed.

        Returns
        -------
        dict; for one text it has the values of this text
            "dense_vecs": float32, (B, H). "lexical_weights": a dict for each text, of the ids of tokens, as str, to
            weights above 0, without special tokens. "colbert_vecs": an array (tokens, H) for each text, all tokens but
            the first. Scores are products of dense vectors, sums of products of weights, and `mean_maxsim` of
            minibert.util.

        Raises
        ------
        TypeError, ValueError
            As in `SentenceTransformer.encode`.
        """
        texts, single = as_texts("sentences", sentences)
        if not kinds.keys() <= _KINDS.keys():
            raise TypeError(f"{[*kinds]} are not all keywords of encode(); expected some of {[*_KINDS]}.")
        options = WindowOptions(batch_size=batch_size, truncation=truncation)
        rows = _Plan(self.model.windows(options, windows_class=WholeTexts), self.model, self.heads).run_at_once(texts)
        columns: list[Any] = [[row[i] for row in rows] for i in range(len(_KINDS))]
        columns[0] = np.array(columns[0], np.float32).reshape(len(rows), self.model.config.hidden_size)
        pairs = zip(_KINDS.items(), columns, strict=True)
        return {name: column[0] if single else column for (asked, name), column in pairs if kinds.get(asked, True)}


@dataclasses.dataclass(frozen=True)
class _Plan(ObjectPlan):
    model: SentenceTransformer
    heads: Mapping[str, VectorModule]

    def items(self, windows: list[Encoding], indices: Sequence[int]) -> list[Any]:
        bert, special = self.model.model, set(self.model.tokenizer.all_special_ids)
        texts, depth = list[Any](), bert.config.num_hidden_layers
        for step, states in bert.states(packed(bert.config, windows), [depth]):
            x = states[depth]
            dense = normalize_embeddings(x[step.cu_seqlens[:-1]])
            vectors = normalize_embeddings(self.heads["colbert"](x))
            weights = np.maximum(self.heads["sparse"](x)[:, 0], 0).tolist()
            for b, (start, end) in enumerate(pairwise(step.cu_seqlens.tolist())):
                lexical = dict[str, float]()
                for token, weight in zip(step.token_ids[start:end].tolist(), weights[start:end], strict=True):
                    if weight > 0 and token not in special:
                        lexical[str(token)] = max(weight, lexical.get(str(token), 0.0))
                texts.append((dense[b], lexical, vectors[start + 1 : end]))
        return texts


_KINDS = {"return_dense": "dense_vecs", "return_sparse": "lexical_weights", "return_colbert_vecs": "colbert_vecs"}
