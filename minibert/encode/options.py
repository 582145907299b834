"""The options of a call that turns texts into vectors. The public methods take their fields as arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from minibert.vectors.layers import LayerSelection


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """The options that say how a text becomes windows of tokens; `SentenceTransformer.encode` describes them."""

    prompt_name: str | None = None
    prompt: str | None = None
    batch_size: int = 32
    truncation: str = "warn"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitOptions(WindowOptions):
    """The same where a long text may have several windows."""

    stride: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseOptions(SplitOptions):
    """The options that say how a text becomes a sparse vector; `SparseEncoder.encode` describes them."""

    max_active_dims: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenOptions(WindowOptions):
    """The options that say how a text becomes vectors of its tokens; `MultiVectorEncoder.encode` describes them."""

    normalize_embeddings: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodeOptions(SplitOptions):
    """The options that say how a text becomes a vector; `SentenceTransformer.encode` describes them."""

    normalize_embeddings: bool = False
    truncate_dim: int | None = None
    layers: LayerSelection | None = None
    layer_pooling: str = "concat"
    pooling: str | Sequence[str] | None = None
    special_tokens: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.layers, Iterator):  # an iterator can be read once, but options may be used again
            object.__setattr__(self, "layers", tuple(self.layers))
