"""For type checkers: the keywords of `encode` and `predict` that do not change the type of the result; and arrays.

The overloads of these methods unpack them. No module has this name at run time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from minibert.sentence.sparse_vectors import SparseVectors
from minibert.vectors.layers import LayerSelection
from minibert.vectors.multi_vectors import TokenPooling
from minibert.vectors.similarity import DenseVectors

Many: TypeAlias = Sequence[str] | npt.NDArray[Any]
"""Several texts."""

Pair: TypeAlias = tuple[str, str] | list[str]
Pairs: TypeAlias = Sequence[Pair] | npt.NDArray[Any]

Vectors: TypeAlias = DenseVectors | SparseVectors
"""What `similarity` answers with arrays; with tensors it answers with a tensor."""

Float32Array: TypeAlias = npt.NDArray[np.float32]

class CallKeywords(TypedDict, total=False):
    """Those that all classes take."""

    prompt_name: str | None
    prompt: str | None
    batch_size: int
    show_progress_bar: bool | None
    truncation: str
    device: object
    pool: Mapping[str, Any] | None
    chunk_size: int | None
    task: str | None
    processing_kwargs: Mapping[str, Any] | None

class EncodeKeywords(CallKeywords, total=False):
    """Those of `SentenceTransformer.encode`."""

    stride: int
    normalize_embeddings: bool
    truncate_dim: int | None
    layers: LayerSelection | None
    layer_pooling: str
    special_tokens: bool

class Arrays(EncodeKeywords, total=False):
    """Those of `SentenceTransformer.encode`, and the values of others with which it returns arrays of float32."""

    convert_to_numpy: Literal[True]
    convert_to_tensor: Literal[False]
    precision: Literal["float32"] | None
    return_info: Literal[False]

class PairKeywords(CallKeywords, total=False):
    """Those of `CrossEncoder.predict`."""

    activation_fn: Any
    apply_softmax: bool | None
    activation_fct: Any
    num_workers: object

class SparseKeywords(CallKeywords, total=False):
    """Those of `SparseEncoder.encode`."""

    stride: int
    save_to_cpu: bool
    max_active_dims: int | None

class TokenKeywords(CallKeywords, total=False):
    """Those of `MultiVectorEncoder.encode`."""

    normalize_embeddings: bool
    token_pooling: TokenPooling | None
