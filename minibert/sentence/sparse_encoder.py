"""`SparseEncoder`: texts in, one sparse vector each out, as sentence-transformers computes them with SPLADE models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from minibert._utils.reporting import progress_bar
from minibert._utils.validation import check_int
from minibert.checkpoint.files import ModelFiles
from minibert.errors import ModelFormatError
from minibert.models.heads import BertForMaskedLM
from minibert.sentence.encode import CHUNK_SIZE, CutTexts
from minibert.sentence.head_model import HeadModel
from minibert.sentence.modules import Module, read_config
from minibert.sentence.options import one_of
from minibert.sentence.saving import save_head_model
from minibert.sentence.sparse_encode import EncodedSparse, encode_sparse
from minibert.sentence.sparse_scores import SparseScores
from minibert.sentence.sparse_vectors import make_sparse
from minibert.sentence.splade import SpladePooling
from minibert.similarity import SimilarityFunction
from minibert.tokenizer.texts import as_texts

__all__ = ["SparseEncoder"]


class SparseEncoder(SparseScores, HeadModel):
    """A SPLADE model: texts in, a weight for each word of the vocabulary out; most weights are 0.

    The names and arguments are those of sentence-transformers 6. Answers are `SparseVectors` and arrays of NumPy; SciPy
    and torch are not needed. With minibert's kernels the vector of a text has the same bits alone, in any batch, with
    any number of threads and on every processor. At most 16 MB of logits are held at a time.

    Parameters
    ----------
    model_name_or_path : str or path
        A folder, or a hub id. A short id is one of the organisation sparse-encoder. modules.json lists Transformer
        (with the task fill-mask) or MLMTransformer, then SpladePooling. Without this file, a model whose
        `architectures` end in ForMaskedLM is SPLADE with the maximum.
    prompts, default_prompt_name, cache_folder, revision, local_files_only, token, device, backend, num_threads,
    compute_type, shared_weights
        As in `SentenceTransformer`.
    modules, trust_remote_code, model_kwargs, processor_kwargs, tokenizer_kwargs, config_kwargs, model_card_data
        As in `SentenceTransformer`.
    similarity_fn_name : {"dot", "cosine", "euclidean", "manhattan"} or SimilarityFunction, optional
        What `similarity` computes; default: the model's setting, else "dot".
    max_active_dims : int, optional
        Keep only this number of the largest weights of each vector; default: the model's setting, else all.

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

    Raises
    ------
    TypeError, ValueError
        A keyword has a value that would change the result and that minibert does not implement.
    ModelFormatError
        The model is not SPLADE, or minibert does not implement a module or file of it.
    DownloadError
        The model is not on this machine and cannot be downloaded.
    """

    _call = "SparseEncoder"
    _organisation = "sparse-encoder"
    _head = BertForMaskedLM
    _task = "fill-mask"
    _output = "token_embeddings"
    _modules = "Transformer or MLMTransformer, and then SpladePooling"
    _prompt_names = ("query", "document")

    model: BertForMaskedLM

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        modules: None = None,
        device: object = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        config_kwargs: Mapping[str, Any] | None = None,
        model_card_data: Any = None,
        backend: str | None = None,
        num_threads: int | None = None,
        compute_type: str | None = None,
        shared_weights: bool | None = None,
        similarity_fn_name: str | SimilarityFunction | None = None,
        max_active_dims: int | None = None,
    ) -> None:
        if similarity_fn_name is not None:  # checked before anything is downloaded
            self.similarity_fn_name = similarity_fn_name
        self.max_active_dims = max_active_dims
        files, listed, stored = self._load(
            model_name_or_path,
            device=device,
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            token=token,
            model_card_data=model_card_data,
            backend=backend,
            num_threads=num_threads,
            compute_type=compute_type,
            shared_weights=shared_weights,
            modules=modules,
            trust_remote_code=trust_remote_code,
            model_kwargs=model_kwargs,
            processor_kwargs=processor_kwargs,
            tokenizer_kwargs=tokenizer_kwargs,
            config_kwargs=config_kwargs,
        )
        self.pooling = SpladePooling()
        if listed is not None:
            self.pooling = SpladePooling.read(*read_config(files, listed[1]), self.get_embedding_dimension())
        try:
            self.similarity_fn_name = similarity_fn_name or stored.get("similarity_fn_name") or "dot"
            if max_active_dims is None:
                self.max_active_dims = stored.get("max_active_dims")
        except (TypeError, ValueError) as error:
            raise ModelFormatError(f"{files.source}: config_sentence_transformers.json has {error}") from error

    def _check_kind(self, files: ModelFiles, listed: list[Module] | None) -> None:
        """Refuse a model that is not SPLADE."""
        super()._check_kind(files, listed)
        if listed is not None:
            return
        named = files.settings("config.json").get("architectures")
        names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        if not any(name.endswith("ForMaskedLM") for name in names):
            shown = ", ".join(f"{name[:60]!a}" for name in names) or "no architectures"
            raise ModelFormatError(
                f"{files.source} has no modules.json, and its config.json names {shown}: it is not a SPLADE model, "
                "whose architecture ends in ForMaskedLM. SentenceTransformer gives dense vectors."
            )

    # -- settings

    @property
    def max_active_dims(self) -> int | None:
        """The most weights above 0 that each vector keeps; None keeps all. Settable."""
        return self._max_active_dims

    @max_active_dims.setter
    def max_active_dims(self, value: int | None) -> None:
        self._max_active_dims = _check_most(value)

    @property
    def splade_pooling_chunk_size(self) -> int | None:
        """A setting of sentence-transformers that limits memory; here memory is always limited. Settable."""
        return self._chunk_size

    @splade_pooling_chunk_size.setter
    def splade_pooling_chunk_size(self, value: int | None) -> None:
        self._chunk_size = None if value is None else check_int("splade_pooling_chunk_size", value, 1)

    _chunk_size: int | None = None

    def get_embedding_dimension(self) -> int:
        """Return the length of the vectors: the number of words in the vocabulary."""
        return self.model.config.vocab_size

    # -- texts to vectors

    def encode(
        self,
        inputs: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = True,
        convert_to_sparse_tensor: bool = True,
        save_to_cpu: bool = False,
        device: object = None,
        max_active_dims: int | None = None,
        pool: Mapping[str, Any] | None = None,
        chunk_size: int | None = None,
        *,
        truncation: str = "warn",
        stride: int = 0,
        sentences: Any = None,
        task: str | None = None,
        processing_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Turn texts into sparse vectors; equal texts are computed once.

        Parameters
        ----------
        inputs : str, or sequence, array, pandas or Arrow column of B str
            `sentences` is its old name.
        prompt_name, prompt : str, optional
            A key of `prompts`, or a text, to put before each input.
        batch_size : int
            Limits memory: 32 times as many texts, at most 1024, are tokenized together. The result does not depend on
            it.
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
        """
        texts, single = as_texts("inputs", one_of("inputs", inputs, "sentences", sentences))
        self._check_call(device, pool, chunk_size, task, processing_kwargs)
        with progress_bar(len(texts), show=bool(show_progress_bar)) as count:
            chunks = self.encode_chunks(
                texts,
                prompt_name=prompt_name,
                prompt=prompt,
                batch_size=batch_size,
                max_active_dims=max_active_dims,
                truncation=truncation,
                stride=stride,
                chunk_size=max(1, len(texts)),
                progress=count,
            )
            chunk = next(chunks, None)
        vectors = make_sparse([], self.get_embedding_dimension()) if chunk is None else chunk.vectors
        found: Any = vectors if convert_to_sparse_tensor else vectors.todense()
        if truncation == "warn" and chunk is not None:
            cut = CutTexts()
            cut.add(chunk.n_truncated)
            cut.warn(self.max_seq_length)
        if single:
            return found[0]
        return found if convert_to_tensor else list(found)

    def encode_chunks(
        self,
        inputs: Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        max_active_dims: int | None = None,
        truncation: str = "warn",
        stride: int = 0,
        chunk_size: int = CHUNK_SIZE,
        progress: Callable[[int], object] = lambda _: None,
    ) -> Iterator[EncodedSparse]:
        """Turn any iterable of texts into sparse vectors, a chunk of texts at a time.

        Parameters
        ----------
        inputs : iterable of str
        chunk_size : int
            Texts that are read, and held in memory, at a time.
        progress : callable
            Called with the number of texts done since its last call.
        others
            As in `encode`. With truncation="warn" the caller warns: `n_truncated` says which texts were cut.

        Raises
        ------
        ModelFormatError, TypeError, ValueError
            As in `encode`.
        """
        if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
            raise TypeError(
                f"inputs is a {type(inputs).__name__}; expected an iterable of str. For one text use encode."
            )
        most = self.max_active_dims if max_active_dims is None else _check_most(max_active_dims)
        prompt = self.resolve_prompt(prompt, prompt_name)
        windows = self._windows(prompt, batch_size, truncation, stride)
        size = check_int("chunk_size", chunk_size, 1)
        exact = truncation == "error"
        return encode_sparse(
            self.model, self.pooling, windows, inputs, most=most, size=size, progress=progress, exact=exact
        )

    def encode_query(
        self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None, *args: Any, **options: Any
    ) -> Any:
        """Turn queries into vectors: `encode` with the prompt "query", unless another is given."""
        return self._encode_as("query", ("query",), inputs, prompt_name, prompt, *args, **options)

    def encode_document(
        self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None, *args: Any, **options: Any
    ) -> Any:
        """Turn documents into vectors: `encode` with the first of the prompts "document", "passage" and "corpus".

        An empty prompt "document" is ignored if one of the other two has a text.
        """
        names = ("document", "passage", "corpus")
        return self._encode_as("document", names, inputs, prompt_name, prompt, *args, **options)

    def _encode_as(
        self,
        task: str,
        names: Sequence[str],
        inputs: Any,
        prompt_name: str | None,
        prompt: str | None,
        *args: Any,
        **options: Any,
    ) -> Any:
        if prompt_name is None and prompt is None:
            known = [name for name in names if name in self.prompts]
            prompt_name = next((name for name in known if self.prompts[name]), known[0] if known else None)
        return self.encode(inputs, prompt_name, prompt, *args, **{"task": task, **options})

    # -- to files

    def save_pretrained(self, path: str | os.PathLike[str], *ignored: Any, safe_serialization: bool = True) -> None:
        """Write the model into a folder; minibert and sentence-transformers load it as the same model.

        The arguments and errors are those of `SentenceTransformer.save_pretrained`.
        """
        save_head_model(
            path,
            self.model,
            self.tokenizer,
            safe_serialization=safe_serialization,
            transformer=self._transformer_settings(),
            modules=[
                (
                    "1_SpladePooling",
                    "sparse_encoder.modules.splade_pooling.SpladePooling",
                    {**vars(self.pooling), "embedding_dimension": self.get_embedding_dimension()},
                )
            ],
            settings={
                "model_type": self._call,
                "prompts": self.prompts,
                "default_prompt_name": self.default_prompt_name,
                "similarity_fn_name": self.similarity_fn_name,
                **({} if self.max_active_dims is None else {"max_active_dims": self.max_active_dims}),
            },
        )

    save = save_pretrained


def _check_most(value: int | None) -> int | None:
    return None if value is None else check_int("max_active_dims", value, 1, also=", or None")
