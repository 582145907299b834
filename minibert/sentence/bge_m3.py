"""`BGEM3FlagModel`: three kinds of vectors of a text from one forward of bge-m3, which has a head for each.

Source: Chen et al. 2024, BGE M3-Embedding (arXiv 2402.03216), section 3.1; FlagEmbedding 1.3,
inference/embedder/encoder_only/m3.py, whose names and answers these are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import check_choice
from minibert.checkpoint.tensors import load_tensors
from minibert.encode.modules import dense_step
from minibert.encode.options import WindowOptions
from minibert.encode.run import encode_distinct, packed
from minibert.sentence.loading import LoadKeywords, check_load, full_name
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import as_texts
from minibert.tokenizer.too_long import WITHOUT_WINDOWS, TooLong
from minibert.vectors.similarity import normalize_embeddings


class BGEM3FlagModel:
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

    Raises
    ------
    ModelFormatError
        A file is missing or damaged, or its tensors do not fit the model; and as in `SentenceTransformer`.
    """

    def __init__(self, name: str | os.PathLike[str] = "BAAI/bge-m3", **load: Unpack[LoadKeywords]) -> None:
        self.model = SentenceTransformer(name, **load)
        files = check_load(type(self).__name__, load)[0].locate(full_name(name))
        size, heads = self.model.config.hidden_size, {}
        for head, n in (("colbert", size), ("sparse", 1)):
            tensors = load_tensors(files, {"weight": (n, size), "bias": (n,)}, f"{head}_linear.pt")
            heads[head] = dense_step(self.model.model.ops, {f"linear.{key}": one for key, one in tensors.items()})
        self._colbert, self._sparse = heads["colbert"], heads["sparse"]

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
        dict; for one text its values are those of the text
            "dense_vecs": float32, (B, H). "lexical_weights": a dict for each text, of the ids of tokens, as str, to
            weights above 0, without special tokens. "colbert_vecs": an array (tokens, H) for each text, all tokens but
            the first. Scores are products of dense vectors, sums of products of
            weights, and `mean_maxsim` of minibert.util.

        Raises
        ------
        TypeError, ValueError
            As in `SentenceTransformer.encode`.
        """
        texts, single = as_texts("sentences", sentences)
        check_choice("truncation", truncation, WITHOUT_WINDOWS)
        if not kinds.keys() <= _KINDS.keys():
            raise TypeError(f"{[*kinds]} are not all keywords of encode(); expected some of {[*_KINDS]}.")
        windows, rows = self.model.windows(WindowOptions(batch_size=batch_size, truncation=truncation)), list[Any]()
        bert, special = self.model.model, set(self.model.tokenizer.all_special_ids)

        def compute(groups: list[list[Encoding]], _: Sequence[int]) -> npt.NDArray[np.object_]:
            found, depth = list[Any](), bert.config.num_hidden_layers
            for step, states in bert.states(packed(bert.config, [group[0] for group in groups]), [depth]):
                x = states[depth]
                dense, vectors = normalize_embeddings(x[step.cu_seqlens[:-1]]), normalize_embeddings(self._colbert(x))
                weights = np.maximum(self._sparse(x)[:, 0], 0).tolist()
                for b, (start, end) in enumerate(pairwise(step.cu_seqlens.tolist())):
                    lexical = dict[str, float]()
                    for token, weight in zip(step.token_ids[start:end].tolist(), weights[start:end], strict=True):
                        if weight > 0 and token not in special:
                            lexical[str(token)] = max(weight, lexical.get(str(token), 0.0))
                    found.append((dense[b], lexical, vectors[start + 1 : end]))
            return np.fromiter(found, dtype=object)

        too_long = TooLong(truncation, self.model.max_seq_length)
        for chunk in encode_distinct(windows, texts, compute):
            rows += chunk.vectors.tolist()
            too_long.add(chunk.n_truncated)
        too_long.warn()
        columns: list[Any] = [[row[i] for row in rows] for i in range(len(_KINDS))]
        columns[0] = np.array(columns[0], np.float32).reshape(len(rows), bert.config.hidden_size)
        pairs = zip(_KINDS.items(), columns, strict=True)
        return {name: column[0] if single else column for (asked, name), column in pairs if kinds.get(asked, True)}


_KINDS = {"return_dense": "dense_vecs", "return_sparse": "lexical_weights", "return_colbert_vecs": "colbert_vecs"}
