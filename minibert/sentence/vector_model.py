"""`VectorModel`: what the classes share that turn single texts into vectors; all but the `CrossEncoder`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, overload

from minibert._utils.reporting import warn_caller
from minibert._utils.torch_interop import Scores, Tensor
from minibert._utils.validation import check_int
from minibert.encode.options import EncodeOptions, WindowOptions
from minibert.encode.run import CHUNK_SIZE, EncodedTexts, TextPlan
from minibert.sentence.base import FINGERPRINT_TEXTS, SentenceModel
from minibert.sentence.sparse_vectors import similarity, similarity_pairwise
from minibert.tokenizer.batch import TokenizedBatch
from minibert.tokenizer.texts import checked_texts
from minibert.tokenizer.windows import count_tokens
from minibert.vectors.similarity import SIMILARITY_FUNCTIONS, SimilarityFunction, check_similarity

if TYPE_CHECKING:
    from minibert.sentence.keywords import Vectors


class VectorModel(SentenceModel):
    """A model that turns single texts into vectors: all but the `CrossEncoder`."""

    SUPPORTED_SIMILARITY_FN_NAMES: ClassVar[tuple[str, ...]] = tuple(SIMILARITY_FUNCTIONS)
    _default_similarity: ClassVar[str] = "cosine"

    options_class: ClassVar[type[WindowOptions]] = EncodeOptions  # what `plan` takes

    def encode(self, *arguments: Any, **options: Any) -> Any:
        """Turn texts into vectors."""
        raise NotImplementedError

    def plan(self, options: Any) -> TextPlan:
        """Return what happens to each text of a call of `encode`."""
        raise NotImplementedError

    def _results(self) -> Iterator[Any]:
        yield self.plan(self.options_class(truncation="silent")).run_at_once(FINGERPRINT_TEXTS)

    def get_embedding_dimension(self) -> int:
        """Return the length of a vector."""
        raise NotImplementedError

    @property
    def similarity_fn_name(self) -> str:
        """The function of `similarity`, one of `SUPPORTED_SIMILARITY_FN_NAMES`. Settable, also as an enum.

        None sets the default of the class.
        """
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: str | SimilarityFunction | None) -> None:
        name = self._default_similarity if value is None else value
        self._similarity_fn_name = check_similarity("similarity_fn_name", name, self.SUPPORTED_SIMILARITY_FN_NAMES)

    def get_sentence_embedding_dimension(self) -> int:
        """Return `get_embedding_dimension()`. This is the name before sentence-transformers 6."""
        return self.get_embedding_dimension()

    # fmt: off
    @overload
    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Scores: ...
    @overload
    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor: ...
    # fmt: on
    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Score every vector of one collection with every vector of another, by `similarity_fn_name`: (m, n).

        Parameters
        ----------
        embeddings1, embeddings2 : arrays, tensors or SparseVectors of shape (m, H) and (n, H), or (H,)
            For sparse vectors memory is bounded, apart from the result.

        Returns
        -------
        Scores, an ndarray with the methods ``numpy``, ``cpu`` and ``detach``; a tensor if an argument is one
        """
        return similarity(self.similarity_fn_name, embeddings1, embeddings2)

    # fmt: off
    @overload  # of two single vectors, a number
    def similarity_pairwise(self, embeddings1: Vectors, embeddings2: Vectors) -> Scores: ...
    @overload
    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor: ...
    # fmt: on
    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Score vector i of one collection with vector i of another, by `similarity_fn_name`: (n,), as `similarity`."""
        return similarity_pairwise(self.similarity_fn_name, embeddings1, embeddings2)

    def tokenize(self, texts: str | Sequence[str]) -> TokenizedBatch:
        """Return the ids and masks of texts, cut to `max_seq_length` and padded to the longest: int64 arrays (B, S)."""
        return self.tokenizer(texts, padding=True, truncation=True, max_length=self.max_seq_length, return_tensors="np")

    preprocess = tokenize  # its name in sentence-transformers 6

    def num_tokens(self, texts: Sequence[str], prompt_name: str | None = None, prompt: str | None = None) -> list[int]:
        """Count the tokens of each of B texts, with its prompt and the special tokens, before anything is cut."""
        windows = self.windows(WindowOptions(prompt=prompt, prompt_name=prompt_name, truncation="silent"))
        texts, single = checked_texts("texts", texts)
        if single:
            raise TypeError("texts is one str; expected a sequence of str, such as [text].")
        return [count_tokens(group)[0] for _, groups in windows.of(texts, range(len(texts))) for group in groups]

    def encode_chunks(
        self,
        inputs: Iterable[str],
        *,
        chunk_size: int = CHUNK_SIZE,
        progress: Callable[[int], object] | None = None,
        return_info: bool = False,
        **options: Any,
    ) -> Iterator[EncodedTexts]:
        """Turn any iterable of texts into vectors, a chunk of texts at a time.

        Within a chunk each distinct text is computed once, and texts of similar length are computed together.

        Parameters
        ----------
        inputs : iterable of str
        chunk_size : int
            Texts that are read, and held in memory, at a time.
        progress : callable, optional
            Called with the number of texts done since its last call.
        return_info : bool
            Also make a `TextInfo` per text.
        **options
            The fields of `EncodeOptions`, as in `encode`; of the other classes those of `SparseOptions` and
            `TokenOptions`. With truncation="warn" the caller warns: `n_truncated` says which texts were cut.

        Raises
        ------
        TypeError, ValueError
            As in `encode`.
        """
        if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
            remedy = "expected an iterable of str. For one text use encode."
            raise TypeError(f"inputs is a {type(inputs).__name__}; {remedy}")
        chunk_size = check_int("chunk_size", chunk_size, 1)
        plan = self.plan(self.options_class(**options))
        exact = return_info or plan.windows.truncation != "silent"
        return plan.run(inputs, chunk_size=chunk_size, progress=progress, exact=exact, info=return_info)

    def encode_multi_process(self, inputs: Sequence[str], pool: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        """Return ``encode(inputs)``; sentence-transformers keeps this method for older programs."""
        return self.encode(inputs, *args, pool=pool, **options)

    def encode_query(
        self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """Turn queries into vectors: `encode` with the prompt "query" unless the caller gives another."""
        name = self._choose_prompt(prompt_name, prompt, "query")
        return self.encode(inputs=inputs, prompt_name=name, prompt=prompt, **{"task": "query", **options})

    def encode_document(
        self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """Turn documents into vectors: `encode` with the first of the prompts "document", "passage" and "corpus".

        The empty default "document" of `prompts` is ignored unless the caller gave it. In sentence-transformers 6.2
        it is not ignored, so a model's "passage" is never used there.
        """
        name = self._choose_prompt(prompt_name, prompt, "document", "passage", "corpus")
        return self.encode(inputs=inputs, prompt_name=name, prompt=prompt, **{"task": "document", **options})

    def _choose_prompt(self, prompt_name: str | None, prompt: str | None, *names: str) -> str | None:
        """Choose the first of these prompts that is set; warn once if none is, but the model's card asks for one."""
        if prompt_name is not None or prompt is not None:
            return prompt_name
        present = [name for name in names if self.prompts.get(name) or name in self._given_prompts]
        needed = next((name for name in names if self._builtin_prompts.get(name)), None)
        if not present and needed is not None and needed not in self._warned:
            self._warned.add(needed)
            warn_caller(
                f"This model was trained with {self._builtin_prompts[needed]!r} before each {needed}, but its files do "
                f"not store this prompt, so it is not used. {self._call}(..., prompts='builtin') uses it; "
                f"prompt='' silences this warning."
            )
        return present[0] if present else (names[0] if names[0] in self.prompts else None)
