"""What computes the vectors of a run's shards: the model of this process, or workers elsewhere."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.sentence.encoding import EncodedTexts
from minibert.sentence.options import EncodeOptions
from minibert.sentence.sentence_transformers import SentenceTransformer

__all__ = ["Encoder", "LocalEncoder", "Workers", "number_settings", "probe_vector"]


class Encoder(Protocol):
    """Computes the vectors of shards: one after the other, or several at a time."""

    def submit(self, texts: Sequence[str], progress: Callable[[int], object]) -> Callable[[], EncodedTexts | None]:
        """Begin to compute the vectors of n texts, and return the function that waits for them.

        Parameters
        ----------
        texts : sequence of n str
        progress : callable
            Called with the number of texts done since its last call.

        Returns
        -------
        callable
            Returns the results of the n texts, in their order; None if n is 0.
        """
        ...

    def has_room(self) -> bool:
        """Return whether a further shard should be submitted before the results of the oldest one are taken."""
        ...

    def processors(self) -> Collection[str]:
        """Return the names of the processors that have computed something, see `Ops.processor`."""
        ...


class Workers(Protocol):
    """Processes elsewhere, of which a run makes its `Encoder` when it knows its options."""

    def start(self, options: EncodeOptions, probe: FloatArray, processor: str) -> Encoder:
        """Let each worker load its model, and return the encoder that they are.

        Parameters
        ----------
        options : EncodeOptions
        probe : ndarray of shape (width,)
            The vector that this process's model has for a fixed text (`probe_vector`). Each worker must have the same.
        processor : str
            The name of what this process computes with, see `Ops.processor`.
        """
        ...


@dataclasses.dataclass(frozen=True)
class LocalEncoder:
    """The encoder that is this process's model. A shard is computed when its results are asked for."""

    model: SentenceTransformer
    options: EncodeOptions

    def submit(self, texts: Sequence[str], progress: Callable[[int], object]) -> Callable[[], EncodedTexts | None]:
        """Return a function that computes the vectors."""
        size = max(1, len(texts))
        chunks = self.model.encode_chunks(texts, chunk_size=size, progress=progress, **vars(self.options))
        return lambda: next(chunks, None)

    def has_room(self) -> bool:
        """Return False: nothing is computed while this process reads."""
        return False

    def processors(self) -> Collection[str]:
        """Return the name of this machine's processor."""
        return (self.model.model.ops.processor(),)


def number_settings(model: Any) -> dict[str, Any]:
    """Return what decides a model's rounding, as settings of a run; what is the default is left out.

    Parameters
    ----------
    model : BertModel or a model with a head
    """
    settings = {} if model.compute_type == "float32" else {"compute_type": model.compute_type}
    # Ops with the products of NumPy name the kind of processor only. They do not have the bits of the kernels.
    return {**settings, "products": "NumPy"} if model.ops.processor() == platform.machine() else settings


def probe_vector(model: SentenceTransformer, options: EncodeOptions) -> FloatArray:
    """Compute the vector of a fixed text: (width,). Two runs with the same model and options have the same vector.

    If texts are split, this text is long: then windows that cannot hold any of a text's tokens are refused at once.
    """
    text = "minibert " * (model.max_seq_length if options.truncation == "split" else 1)
    vector: FloatArray = np.asarray(next(model.encode_chunks([text], **vars(options))).vectors[0])
    return vector
