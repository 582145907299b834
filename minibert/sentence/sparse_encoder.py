"""`SparseEncoder`: texts in, one sparse vector each out, as sentence-transformers computes them with SPLADE models."""

# mypy: disable-error-code="overload-overlap"
# A str is a Sequence[str] too; the overload of one text comes first.

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
import numpy.typing as npt

from minibert._utils.reproducible_math import log1p
from minibert._utils.validation import FloatArray, IntArray, brief, check_int
from minibert.bert.families import named_classes
from minibert.encode.modules import read_config
from minibert.encode.options import SparseOptions
from minibert.encode.run import TextPlan, check_finite, packed
from minibert.errors import ModelFormatError
from minibert.models.heads import BertForMaskedLM
from minibert.sentence.base import SavedModule
from minibert.sentence.loading import LoadKeywords, SentenceFiles, one_of
from minibert.sentence.sparse_vectors import SparseVectors, as_sparse, make_sparse
from minibert.sentence.vector_model import VectorModel
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import as_texts
from minibert.vectors.similarity import SimilarityFunction

if TYPE_CHECKING:
    from minibert.sentence.keywords import Float32Array, Many, SparseKeywords

# One text: its words, their weights.
_Row = tuple[IntArray, FloatArray]


class SparseEncoder(VectorModel):
    """A SPLADE model: texts in, a weight for each word of the vocabulary out; most weights are 0.

    The names and arguments are as in sentence-transformers 6. Answers are `SparseVectors` and arrays of NumPy; SciPy
    and torch are not needed. With minibert's kernels the vector of a text has the same bits alone, in any batch, with
    any number of threads and on every processor. At most 16 MB of logits are held at a time.

    Parameters
    ----------
    model_name_or_path : str or path
        A folder, or a hub id. A short id is one of the organisation sparse-encoder. modules.json lists Transformer
        (with the task fill-mask) or MLMTransformer, then SpladePooling. Without this file, a model whose
        `architectures` end in ForMaskedLM is SPLADE with the maximum.
    similarity_fn_name : {"dot", "cosine", "euclidean", "manhattan"} or SimilarityFunction, optional
        What `similarity` computes; default: the model's setting, else "dot".
    max_active_dims : int, optional
        Keep only this number of the largest weights of each vector; default: the model's setting, else all.
    **load
        As in `SentenceTransformer`.

    Attributes
    ----------
    model : BertForMaskedLM
    tokenizer : BertTokenizer
    pooling : SpladePooling
    prompts : dict of str to str
        "query" and "document" are empty texts if neither the model nor the caller set them.
    default_prompt_name : str or None
    max_active_dims : int or None
    model_card_data : ModelCardData, or the given object

    Errors are as in `SentenceTransformer`; a model that is not SPLADE is refused.
    """

    _call = "SparseEncoder"
    _organisation = "sparse-encoder"
    _model = BertForMaskedLM
    _default_similarity = "dot"
    options_class = SparseOptions

    model: BertForMaskedLM

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        similarity_fn_name: str | SimilarityFunction | None = None,
        max_active_dims: int | None = None,
        **load: Unpack[LoadKeywords],
    ) -> None:
        files = self._load(
            model_name_or_path, load, similarity_fn_name=similarity_fn_name, max_active_dims=max_active_dims
        )
        self.pooling = SpladePooling()
        if files.modules:
            config, where = read_config(files.files, files.modules[1], SPLADE_KEYS)
            self.pooling = SpladePooling.read(config, where, self.get_embedding_dimension())

    def _check_plain(self, files: SentenceFiles) -> None:
        """Refuse a model that is not SPLADE."""
        names = named_classes(files.config)
        if not any(name.endswith("ForMaskedLM") for name in names):
            listed = ", ".join(f"{name[:60]!a}" for name in names) or "no architectures"
            raise ModelFormatError(
                f"{files.source} has no modules.json, and its config.json names {listed}: it is not a SPLADE model, "
                "which is a ForMaskedLM. SentenceTransformer gives dense vectors."
            )

    # -- settings

    @property
    def max_active_dims(self) -> int | None:
        """The largest number of weights above 0 that each vector keeps; None keeps all. Settable."""
        return self._max_active_dims

    @max_active_dims.setter
    def max_active_dims(self, value: int | None) -> None:
        self._max_active_dims = None if value is None else _check_most(value)

    splade_pooling_chunk_size: int | None = None  # of sentence-transformers; here memory is always limited

    def get_embedding_dimension(self) -> int:
        """Return the length of the vectors: the number of words in the vocabulary."""
        return self.model.config.vocab_size

    # -- texts to vectors

    # fmt: off
    @overload
    def encode(self, inputs: str, *, convert_to_tensor: bool = ..., convert_to_sparse_tensor: Literal[True] = ...,
               **options: Unpack[SparseKeywords]) -> SparseVectors: ...
    @overload
    def encode(self, inputs: Many, *, convert_to_tensor: Literal[True] = ...,
               convert_to_sparse_tensor: Literal[True] = ..., **options: Unpack[SparseKeywords]) -> SparseVectors: ...
    @overload
    def encode(self, inputs: str, *, convert_to_tensor: bool = ..., convert_to_sparse_tensor: Literal[False],
               **options: Unpack[SparseKeywords]) -> Float32Array: ...
    @overload
    def encode(self, inputs: Many, *, convert_to_tensor: Literal[True] = ...,
               convert_to_sparse_tensor: Literal[False], **options: Unpack[SparseKeywords]) -> Float32Array: ...
    @overload
    def encode(self, inputs: Many, *, convert_to_tensor: Literal[False], convert_to_sparse_tensor: Literal[True] = ...,
               **options: Unpack[SparseKeywords]) -> list[SparseVectors]: ...
    @overload
    def encode(self, inputs: Many, *, convert_to_tensor: Literal[False], convert_to_sparse_tensor: Literal[False],
               **options: Unpack[SparseKeywords]) -> list[Float32Array]: ...
    @overload  # other calls
    def encode(self, inputs: str | Many | None = ..., *arguments: Any, convert_to_tensor: bool = ...,
               convert_to_sparse_tensor: bool = ..., sentences: str | Many | None = ...,
               **options: Unpack[SparseKeywords]) -> Any: ...
    # fmt: on
    def encode(  # type: ignore[misc]  # it does not take any number of arguments by position
        self, inputs: str | Sequence[str] | None = None, prompt_name: str | None = None, prompt: str | None = None,
        batch_size: int = 32, show_progress_bar: bool | None = None, convert_to_tensor: bool = True,
        convert_to_sparse_tensor: bool = True, save_to_cpu: bool = False, device: object = None,
        max_active_dims: int | None = None, pool: Mapping[str, Any] | None = None, chunk_size: int | None = None, *,
        truncation: str = "warn", stride: int = 0, sentences: Any = None, task: str | None = None,
        processing_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Turn texts into sparse vectors; equal texts are computed once.

        Parameters
        ----------
        inputs : str, or sequence, array, pandas or Arrow column of B str
            `sentences` is its old name.
        prompt_name, prompt : str, optional
            A key of `prompts`, or a text, to put before each input.
        batch_size : int
            Limits memory, see `SentenceTransformer.encode`. The result does not depend on it.
        show_progress_bar : bool, optional
            Show the number of texts done and the time left, on the standard error.
        convert_to_tensor : bool
            False: a list with the vector of each text.
        convert_to_sparse_tensor : bool
            False: dense float32 arrays, (B, V).
        max_active_dims : int, optional
            Keep only this number of the largest weights of each vector, the word with the lower id first where weights
            are equal. Default: the model's `max_active_dims`.
        save_to_cpu, device, pool, chunk_size, task, processing_kwargs
            Arguments of sentence-transformers without effect here, see `SentenceTransformer.encode`.
        truncation : {"warn", "error", "split", "silent"}
            What happens to a text of more than `max_seq_length` tokens. "warn" cuts it and warns, "error" refuses it,
            "split" pools the tokens of several windows, "silent" cuts it.
        stride : int
            Tokens that a window repeats from the one before, for truncation="split".

        Returns
        -------
        SparseVectors of shape (V,) for a str, (B, V) for a sequence
            Dense arrays or a list, if they are asked for. For a tensor of torch call its ``to_tensor()``.

        Raises
        ------
        MemoryError
            Dense vectors are asked for, and they do not fit into the memory that this process may use.
        ModelFormatError
            The model computes NaN or infinity.
        TypeError, ValueError
            An argument is wrong. An input is not a text, or is too long with truncation="error"; its index is named.

        Examples
        --------
        >>> from minibert import SparseEncoder
        >>> model = SparseEncoder("naver/splade-v3")
        >>> vectors = model.encode(["A cat sleeps.", "Stocks fell sharply."], max_active_dims=8)
        >>> vectors
        SparseVectors(shape=(2, 30522), nnz=16, dtype=float32)
        >>> len(model.decode(vectors[0])), vectors.todense().shape
        (8, (2, 30522))
        """
        options = SparseOptions(
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            truncation=truncation,
            stride=stride,
            max_active_dims=max_active_dims,
        )
        texts, single = as_texts("inputs", one_of("inputs", inputs, "sentences", sentences))
        self._check_call(device, processing_kwargs)
        vectors: Any = self.plan(options).run_at_once(texts, show_progress_bar)
        vectors = vectors if convert_to_sparse_tensor else vectors.todense()
        if single:
            return vectors[0]
        return vectors if convert_to_tensor else list(vectors)

    if TYPE_CHECKING:
        encode_query = encode_document = encode  # type: ignore[assignment]

    def plan(self, options: SparseOptions) -> SparsePlan:
        """Return what happens to each text of a call of `encode`.

        Raises
        ------
        TypeError, ValueError
            An option is wrong, or does not fit the model.
        """
        most = self.max_active_dims if options.max_active_dims is None else _check_most(options.max_active_dims)
        return SparsePlan(self.windows(options), self.model, self.pooling, most)

    def _results(self) -> Iterator[Any]:
        (vectors,) = super()._results()
        yield from (vectors.indptr, vectors.indices, vectors.data)

    # -- vectors to words and scores

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
        vectors, size = as_sparse("embeddings", embeddings), self.get_embedding_dimension()
        if vectors.shape[-1] != size:
            raise ValueError(
                f"embeddings has vectors of length {vectors.shape[-1]}; expected {size}, the vocabulary's."
            )
        decoded = []
        for vector in vectors.matrix():
            order = np.argsort(-vector.data, kind="stable")[:top_k]
            words = self.tokenizer.convert_ids_to_tokens(vector.indices[order].tolist())
            decoded.append(list(zip(words, vector.data[order].tolist(), strict=True)))
        return decoded[0] if vectors.ndim == 1 else decoded

    @staticmethod
    def sparsity(embeddings: Any) -> dict[str, float]:
        """Measure how sparse vectors are.

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

    def _saved_modules(self) -> list[SavedModule]:
        config = {**vars(self.pooling), "embedding_dimension": self.get_embedding_dimension()}
        return [("sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling", config, {})]


def _check_most(value: int) -> int:
    return check_int("max_active_dims", value, 1, also=", or None")


@dataclasses.dataclass(frozen=True)
class SparsePlan(TextPlan):
    """The work of one call of a `SparseEncoder`; each vector keeps the `most` largest weights."""

    model: BertForMaskedLM
    pooling: SpladePooling
    most: int | None

    def compute(self, groups: list[list[Encoding]], indices: Sequence[int]) -> npt.NDArray[np.object_]:
        """Compute the words and the weights of each text."""
        pooled = pool_words(self.model, self.pooling, groups, indices)
        return np.fromiter((_largest(row, self.most) for row in pooled), dtype=object)

    def gather(self, items: npt.NDArray[np.object_]) -> SparseVectors:
        """Make vectors of the words and weights of a chunk."""
        return make_sparse(items.tolist(), self.model.config.vocab_size)


def _largest(row: _Row, most: int | None) -> _Row:
    """Keep the largest weights of a vector."""
    words, numbers = row
    kept = np.sort(np.argsort(-numbers, kind="stable")[:most])
    return words[kept], numbers[kept]


# --- pooling over the vocabulary --------------------------------------------------------------------------------------

LOGITS_BYTES = 1 << 24
"""Most bytes of logits that are held at a time, those that a pooled text has so far included."""

STRATEGIES = ("max", "sum")
ACTIVATIONS = ("relu", "log1p_relu")
_WIDTHS = ("embedding_dimension", "word_embedding_dimension")
SPLADE_KEYS = ("pooling_strategy", "activation_function", *_WIDTHS, "chunk_size")  # the last one changes no vector


@dataclasses.dataclass(frozen=True)
class SpladePooling:
    """The settings of the module SpladePooling.

    Parameters
    ----------
    pooling_strategy : {"max", "sum"}
        Over the tokens of a text.
    activation_function : {"relu", "log1p_relu"}
        "log1p_relu" takes the logarithm twice, as OpenSearch's models do.
    """

    pooling_strategy: str = "max"
    activation_function: str = "relu"

    @classmethod
    def read(cls, config: Mapping[str, Any], where: str, vocab_size: int) -> SpladePooling:
        """Read the config.json of the module; a ModelFormatError names a setting that minibert does not implement."""
        poolings = []
        for key, choices in (("pooling_strategy", STRATEGIES), ("activation_function", ACTIVATIONS)):
            poolings.append(value := config.get(key, choices[0]))
            if not isinstance(value, str) or value not in choices:
                raise ModelFormatError(f"{where} has {key}={brief(value)}; expected one of {', '.join(choices)}.")
        for key in _WIDTHS:
            if config.get(key) not in (None, vocab_size):
                raise ModelFormatError(f"{where} has {key}={brief(config[key])}; expected vocab_size, {vocab_size}.")
        return cls(*poolings)

    def add(self, row: FloatArray, logits: FloatArray) -> None:
        """Add the logits of some tokens of a text, (t, V), to the maximum or the sum of each word, (V,)."""
        if self.pooling_strategy == "max":
            np.maximum(row, logits.max(axis=0, initial=0), out=row)
            return
        for token in logits:  # one after another: the bits of a sum depend on its order
            if not np.isfinite(token).all():
                row[0] = np.nan  # which the caller finds
                return
            active = np.flatnonzero(token > 0)
            row[active] += self._weights(token[active])

    def take(self, row: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the words and the weights of a text, and set the row to zeros for the next one."""
        words = np.flatnonzero(row > 0)
        numbers = row[words] if self.pooling_strategy == "sum" else self._weights(row[words])
        row[:] = 0
        return words.astype(np.int32), numbers.astype(np.float32)

    def _weights(self, numbers: FloatArray) -> FloatArray:
        """Compute log(1 + x), once or twice, in float64; the numbers are at least 0."""
        once = log1p(numbers)
        return log1p(once) if self.activation_function == "log1p_relu" else once


def pool_words(
    model: BertForMaskedLM, pooling: SpladePooling, groups: Sequence[Sequence[Encoding]], indices: Sequence[int]
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Compute the weight of each word of the vocabulary for each text, from all tokens of the text's windows.

    For each group of windows it yields the words with weights above 0 in increasing order, and their weights.
    `indices` says where each text is in the caller's input, for errors.

    Raises
    ------
    ModelFormatError
        The model computes NaN or infinity for a text.
    """
    windows = [window for group in groups for window in group]
    if not windows:
        return
    ends_of_texts = np.cumsum([len(group) for group in groups]).tolist()
    index_at = dict(zip(ends_of_texts, indices, strict=True))  # windows done -> the text that has ended there
    depth, vocab_size = model.config.num_hidden_layers, model.config.vocab_size
    # One row of logits is the pooled one, in float64 for sums, and one more is a temporary.
    tokens_at_once = max(1, LOGITS_BYTES // (4 * vocab_size) - 3)
    row: FloatArray = np.zeros(vocab_size, dtype=np.float64 if pooling.pooling_strategy == "sum" else np.float32)
    done = 0
    for step, states in model.bert.states(packed(model.config, windows), [depth]):
        x, ends = states[depth], step.cu_seqlens
        b = 0
        for start in range(0, max(1, len(x)), tokens_at_once):  # texts without tokens are texts too
            stop = min(start + tokens_at_once, len(x))
            logits = model.compute("words", x[start:stop]) if stop else np.zeros((0, vocab_size), np.float32)
            while b < step.num_sequences:
                end = int(ends[b + 1])
                pooling.add(row, logits[max(int(ends[b]), start) - start : min(end, stop) - start])
                if end > stop:
                    break
                b += 1
                done += 1
                if done in index_at:
                    check_finite(row[None], [index_at[done]])
                    yield pooling.take(row)
            del logits  # before the next ones are computed
