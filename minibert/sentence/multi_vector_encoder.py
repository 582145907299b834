"""`MultiVectorEncoder`: texts in, a vector for each token out, as sentence-transformers computes them (ColBERT).

Folders of three formats are read: sentence-transformers', PyLate's up to its version 3, and Stanford's ColBERTv2, which
has its settings in artifact.metadata and its projection in the checkpoint. Source: sentence-transformers 6.2,
multi_vector_encoder/model.py, multi_vector_encoder/modules/ and base/modules/transformer.py.
"""

# mypy: disable-error-code="overload-overlap"
# A str is a Sequence[str] too; the overload of one text comes first.

from __future__ import annotations

import dataclasses
import inspect
import os
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack, overload

import numpy as np

from minibert._utils.torch_interop import Scores, Tensor
from minibert._utils.validation import FloatArray, check_bool, check_choice
from minibert.bert.families import architectures
from minibert.checkpoint.files import ModelFiles
from minibert.checkpoint.tensors import open_checkpoint, read_tensor
from minibert.encode.modules import ModuleEntry, VectorModule, dense_module, read_config, read_token_modules
from minibert.encode.options import TokenOptions
from minibert.encode.token_plan import Expansion, MultiVectorMask, TokenPlan
from minibert.errors import ModelFormatError
from minibert.models.bert import BertModel
from minibert.sentence.base import FINGERPRINT_TEXTS, SavedModule, as_requested
from minibert.sentence.imitations import Transformer
from minibert.sentence.loading import LoadKeywords, SentenceFiles, check_prompts, one_of, prefixed
from minibert.sentence.vector_model import VectorModel
from minibert.tokenizer.texts import as_texts
from minibert.tokenizer.windows import WholeTexts
from minibert.vectors.multi_vectors import MULTI_VECTOR_SIMILARITIES, HierarchicalTokenPooling, TokenPooling
from minibert.vectors.similarity import SimilarityFunction, normalize_embeddings

if TYPE_CHECKING:
    from minibert.sentence.keywords import Float32Array, Many, TokenKeywords, Vectors

_HOMES = {
    "Dense": "base.modules.dense.Dense",
    "Normalize": "base.modules.normalize.Normalize",
    "MultiVectorMask": "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "HierarchicalTokenPooling": "multi_vector_encoder.modules.token_pooling.HierarchicalTokenPooling",
}
_NORMALIZE = VectorModule("Normalize", 0, normalize_embeddings)  # of calls; one object, so that equal plans are equal
_FOR_TOKENS = dict.fromkeys(("module_input_name", "module_output_name"), "token_embeddings")
# The settings that PyLate stores; with one of them, queries are expanded unless the files say otherwise.
_PYLATE = {"query_length", "document_length", "query_expansion", "do_query_expansion", "attend_to_expansion_tokens"}
_PYLATE |= {"attend_to_mask_tokens", "query_prefix", "document_prefix", "skiplist_words"}


class MultiVectorEncoder(VectorModel):
    """A model of late interaction (ColBERT), with the names and arguments of sentence-transformers 6.

    Vectors are arrays of NumPy, where that library gives tensors. With minibert's kernels they have the same bits
    alone, in any batch and with any number of threads.

    Parameters
    ----------
    model_name_or_path : str or path
        A folder, or a hub id. Its modules.json lists Transformer and then any of Dense, Normalize, MultiVectorMask and
        HierarchicalTokenPooling; or it is a folder of PyLate or of Stanford's ColBERTv2; or of a SentenceTransformer
        with a Dense. The Dense is then applied to each token.
    similarity_fn_name : {"maxsim", "meanmaxsim"} or SimilarityFunction, optional
        What `similarity` computes; default: the model's setting, else "maxsim".
    **load
        As in `SentenceTransformer`.

    Attributes
    ----------
    model : BertModel
    tokenizer : BertTokenizer
    prompts : dict of str to str
        "query" and "document" hold the markers of ColBERT, such as "[Q] ", if the model has them.
    default_prompt_name : str or None
    model_card_data : ModelCardData, or the given object

    ``model[0]`` has the lengths and the expansion of queries (`Transformer`), the other items are the modules after it;
    the words to skip are in the `MultiVectorMask`. Errors are as in `SentenceTransformer`.
    """

    _call = "MultiVectorEncoder"
    _organisation = ""
    _model = BertModel
    _of_transformer = ("query_length", "document_length", "query_expansion")
    _default_similarity = "maxsim"
    _windows = WholeTexts
    options_class = TokenOptions
    SUPPORTED_SIMILARITY_FN_NAMES: ClassVar[tuple[str, ...]] = tuple(MULTI_VECTOR_SIMILARITIES)

    model: BertModel

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        similarity_fn_name: str | SimilarityFunction | None = None,
        **load: Unpack[LoadKeywords],
    ) -> None:
        files = self._load(model_name_or_path, load, similarity_fn_name=similarity_fn_name)
        for text in files.stored["prefixes"].values():
            self._register(text)
        size, ops = self.model.config.hidden_size, self.model.ops
        lengths = {name: files.settings.get(name) for name in self._of_transformer}
        with prefixed(f"{files.source}:", ModelFormatError):
            self._modules: list[Any] = [Transformer(self.model, self.tokenizer, **lengths)]
            mask = MultiVectorMask(files.stored["skiplist_words"])
        for item in read_token_modules(files.files, files.modules, size, ops):
            self._modules.append(item if isinstance(item, VectorModule) else _read_module(files.files, item))
        if not files.modules:
            self._modules.append(dense_module(ops, {"linear.weight": _projection(files, size)}))
        if files.stored.get("model_type") != self._call:
            self._modules += [mask, VectorModule("Normalize", self.get_embedding_dimension(), normalize_embeddings)]
        for module in self._modules:
            if isinstance(module, MultiVectorMask):
                module.resolve_with_tokenizer(self.tokenizer)

    def _check_plain(self, files: SentenceFiles) -> None:
        """Refuse a model that does not have a projection."""
        if "HF_ColBERT" not in architectures(files.config):
            raise ModelFormatError(
                f"{files.source} has no modules.json, and is not a ColBERT by its architectures: it does not have the "
                "trained projection of a MultiVectorEncoder. SentenceTransformer gives its vectors."
            )

    def _read_older(self, files: SentenceFiles) -> SentenceFiles:
        """Translate the settings of ColBERTv2 and of PyLate, as sentence-transformers does."""
        stored, settings = dict(files.stored), dict[str, Any]()
        where = f"{files.source}: config_sentence_transformers.json"
        if not files.modules:
            where = f"{files.source}: artifact.metadata"
            kept = files.files.settings("artifact.metadata")
            markers = {"query": kept.get("query_token_id") or "[unused0]"}
            markers["document"] = kept.get("doc_token_id") or "[unused1]"
            stored |= {f"{task}_prefix": f"{marker} " for task, marker in markers.items()}
            stored["skiplist_words"] = [*string.punctuation] if kept.get("mask_punctuation", True) else []
            stored |= {"query_length": kept.get("query_maxlen"), "document_length": kept.get("doc_maxlen")}
            stored["attend_to_mask_tokens"] = kept.get("attend_to_mask_tokens")
        prefixes = {task: stored[f"{task}_prefix"] or "" for task in self._prompt_names if f"{task}_prefix" in stored}
        prefixes = check_prompts(prefixes, where, ModelFormatError)
        prompts = check_prompts(stored.get("prompts") or {}, where, ModelFormatError)
        prompts |= {task: text + prompts.get(task, "").removeprefix(text) for task, text in prefixes.items()}
        settings = {key: stored[key] for key in self._of_transformer if stored.get(key) is not None}
        expands = "query_expansion" not in stored and stored.get("do_query_expansion") is not False
        if expands and stored.keys() & _PYLATE:
            attend = stored.get("attend_to_expansion_tokens", stored.get("attend_to_mask_tokens"))
            length = settings.pop("query_length", 32)
            settings["query_expansion"] = {"strategy": "fixed", "attend": bool(attend), "length": length}
        skipped = stored.get("skiplist_words")
        if skipped is None and (prefixes or stored.get("model_type") == "ColBERT"):
            skipped = [*string.punctuation]
        if stored.get("similarity_fn_name") not in self.SUPPORTED_SIMILARITY_FN_NAMES:
            stored.pop("similarity_fn_name", None)  # of single vectors
        stored |= {"prompts": prompts, "prefixes": prefixes, "skiplist_words": skipped}
        return files._replace(stored=stored, settings={**settings, **files.settings}, where=files.where or where)

    def _register(self, prefix: str) -> None:
        """Let the tokenizer read a marker such as "[unused0]" as one token, if it is in the vocabulary."""
        for text in (prefix, *prefix.split(None, 1)[:1]):
            if text.strip() and text in self.tokenizer.vocab:
                if self.tokenizer.tokenize(text) != [text]:
                    self.tokenizer.add_special_token(text)
                break

    # -- texts to vectors

    def get_embedding_dimension(self) -> int:
        """Return the length of the vector of a token."""
        widths = (module.width for module in reversed(self._modules) if isinstance(module, VectorModule))
        return next(widths, self.config.hidden_size)

    # fmt: off
    @overload
    def encode(self, inputs: str, *, output_value: Literal["token_embeddings"] = ...,
               convert_to_numpy: Literal[True] = ..., **options: Unpack[TokenKeywords]) -> Float32Array: ...
    @overload
    def encode(self, inputs: Many, *, output_value: Literal["token_embeddings"] = ...,
               convert_to_numpy: Literal[True] = ..., **options: Unpack[TokenKeywords]) -> list[Float32Array]: ...
    @overload
    def encode(self, inputs: str, *, output_value: Literal["token_embeddings"] = ...,
               convert_to_numpy: Literal[False], **options: Unpack[TokenKeywords]) -> Tensor: ...
    @overload
    def encode(self, inputs: Many, *, output_value: Literal["token_embeddings"] = ...,
               convert_to_numpy: Literal[False], **options: Unpack[TokenKeywords]) -> list[Tensor]: ...
    @overload
    def encode(self, inputs: str, *, output_value: None, convert_to_numpy: bool = ...,
               **options: Unpack[TokenKeywords]) -> dict[str, Any]: ...
    @overload
    def encode(self, inputs: Many, *, output_value: None, convert_to_numpy: bool = ...,
               **options: Unpack[TokenKeywords]) -> list[dict[str, Any]]: ...
    @overload  # other calls
    def encode(self, inputs: str | Many | None = ..., *arguments: Any, output_value: str | None = ...,
               convert_to_numpy: bool = ..., sentences: str | Many | None = ...,
               **options: Unpack[TokenKeywords]) -> Any: ...
    # fmt: on
    def encode(  # type: ignore[misc]  # it does not take any number of arguments by position
        self, inputs: str | Sequence[str] | None = None, prompt_name: str | None = None, prompt: str | None = None,
        batch_size: int = 32, show_progress_bar: bool | None = None, output_value: str | None = "token_embeddings",
        convert_to_numpy: bool = True, device: object = None, normalize_embeddings: bool = False,
        pool: Mapping[str, Any] | None = None, chunk_size: int | None = None, token_pooling: TokenPooling | None = None,
        task: str | None = None, *, truncation: str = "warn", sentences: Any = None,
        processing_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Turn texts into vectors of their tokens; equal texts are computed once.

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
        output_value : {"token_embeddings", None}
            None: a dict for each text, with the vectors of all its tokens, their ids, and in "attention_mask" whether a
            token is kept. With a pooling of tokens, only the vectors that it makes.
        convert_to_numpy : bool
            False: tensors of torch instead of arrays.
        normalize_embeddings : bool
            Scale the vectors to length 1 even where the model does not. It has no effect with ``output_value=None``.
        token_pooling : HierarchicalTokenPooling, LambdaTokenPooling or another TokenPooling, optional
            Makes fewer vectors of a text, after the modules of the model.
        task : str, optional
            "query" or "document": the length, the expansion and the mask that the model has for them. `encode_query`
            and `encode_document` give it.
        truncation : {"warn", "error", "silent"}
            What happens to a text that is too long: it is cut with a warning, refused, or cut.
        device, pool, chunk_size, processing_kwargs
            Arguments of sentence-transformers without effect here, see `SentenceTransformer.encode`.

        Returns
        -------
        ndarray of shape (tokens, D) for a str, a list of B arrays for a sequence; float32
            Dicts or tensors, if they are asked for.

        Raises
        ------
        ImportError
            Tensors are asked for, and torch is not installed.
        TypeError, ValueError
            An argument is wrong. An input is not a text, or is too long with truncation="error"; its index is named.

        Examples
        --------
        >>> from minibert import MultiVectorEncoder
        >>> model = MultiVectorEncoder("colbert-ir/colbertv2.0")
        >>> [vectors.shape for vectors in model.encode(["A kitten naps.", "Stocks fell."])]
        [(6, 128), (4, 128)]
        >>> query, documents = model.encode_query("Where is the cat?"), model.encode_document(["A kitten naps."])
        >>> query.shape, model.similarity(query, documents).shape
        ((32, 128), (1, 1))
        """
        options = TokenOptions(
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            truncation=truncation,
            normalize_embeddings=normalize_embeddings,
        )
        texts, single = as_texts("inputs", one_of("inputs", inputs, "sentences", sentences))
        self._check_call(device, processing_kwargs, convert_to_numpy=convert_to_numpy)
        if output_value is not None:
            check_choice("output_value", output_value, ("token_embeddings",))
        if not isinstance(token_pooling, TokenPooling | None):
            raise TypeError(f"token_pooling is a {type(token_pooling).__name__}; expected a HierarchicalTokenPooling.")
        plan = self._plan(options, task, *filter(None, [token_pooling]), as_dicts=output_value is None)
        vectors = plan.run_at_once(texts, show_progress_bar).tolist()
        return as_requested(vectors[0] if single else vectors, not convert_to_numpy, convert_to_numpy, single)

    if TYPE_CHECKING:
        encode_query = encode_document = encode  # type: ignore[assignment]

    def plan(self, options: TokenOptions, task: str = "document") -> TokenPlan:
        """Return what happens to each text of a corpus or of a request, with the prompt of the task.

        Raises
        ------
        TypeError, ValueError
            An option is wrong, or not for vectors of tokens.
        """
        names = ("query",) if task == "query" else ("document", "passage", "corpus")
        name = self._choose_prompt(options.prompt_name, options.prompt, *names)
        return self._plan(dataclasses.replace(options, prompt_name=name), task)

    def _results(self) -> Iterator[Any]:
        for task in ("document", "query"):
            yield from self.plan(TokenOptions(truncation="silent"), task).run_at_once(FINGERPRINT_TEXTS)

    def _plan(self, options: TokenOptions, task: str | None, *last: TokenPooling, as_dicts: bool = False) -> TokenPlan:
        first, expansion = self._modules[0], None
        if task is not None and not isinstance(task, str):
            raise TypeError(f"task is a {type(task).__name__}; expected 'query', 'document' or None.")
        lengths = {"query": first.query_length, "document": first.document_length}
        length = lengths.get(task or "") or self.max_seq_length
        if task == "query" and (expands := first.query_expansion) is not None:
            expansion = Expansion(expands["length"], first.id_of(expands["token"]), expands["attend"])
            length = expansion.length if expands["strategy"] == "fixed" else max(expansion.length, length)
        windows = self.windows(options, min(length, self.config.longest))
        normalize = check_bool("normalize_embeddings", options.normalize_embeddings) and not as_dicts
        modules = (*self._modules[1:], *[_NORMALIZE] * normalize, *last)
        return TokenPlan(windows, self.model, expansion, task, modules, as_dicts)

    # fmt: off
    @overload
    def similarity(self, embeddings1: Vectors, embeddings2: Vectors, **options: Any) -> Scores: ...
    @overload
    def similarity(self, embeddings1: Any, embeddings2: Any, **options: Any) -> Tensor: ...
    # fmt: on
    def similarity(self, embeddings1: Any, embeddings2: Any, **options: Any) -> Any:
        """Score every query with every document, by `similarity_fn_name`: (m, n), float32.

        Parameters
        ----------
        embeddings1, embeddings2 : the vectors of queries and of documents
            Lists of arrays or tensors (tokens, D), `MultiVectors`, an array (m, tokens, D), or (tokens, D) for one.
        **options
            Those of `maxsim`, such as ``length_normalize=True``.

        Returns
        -------
        Scores, an ndarray with the methods ``numpy``, ``cpu`` and ``detach``; a tensor if an argument is one
        """
        return self._score(0, embeddings1, embeddings2, options)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any, **options: Any) -> Any:
        """Score query i with document i, by `similarity_fn_name`: (n,), as `similarity`."""
        return self._score(1, embeddings1, embeddings2, options)

    def _score(self, which: int, a: Any, b: Any, options: dict[str, Any]) -> Any:
        ops = {"ops": self.model.ops} if self.compute_type == "float32" else {}
        return MULTI_VECTOR_SIMILARITIES[self.similarity_fn_name][which](a, b, **ops | options)

    # -- what it is made of, and to files

    def append(self, module: TokenPooling) -> MultiVectorEncoder:
        """Add a pooling after the other modules, and return the model."""
        if not isinstance(module, TokenPooling):
            raise TypeError(f"module is a {type(module).__name__}; expected a HierarchicalTokenPooling.")
        self._modules.append(module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int) -> Any:
        """Return a module: 0 is the `Transformer`."""
        return self._modules[index]

    def _saved_modules(self) -> list[SavedModule]:
        saved = list[SavedModule]()
        for module in self._modules[1:]:
            computes = isinstance(module, VectorModule)
            kind = module.kind if computes else type(module).__name__
            if kind not in _HOMES:
                raise ValueError(f"a {kind} cannot be saved, because it is a function; give it to encode().")
            config = {**module.config, **_FOR_TOKENS} if computes else vars(module)
            saved.append((f"sentence_transformers.{_HOMES[kind]}", config, module.tensors if computes else {}))
        return saved

    def _saved_transformer(self) -> dict[str, Any]:
        return {name: getattr(self._modules[0], name) for name in self._of_transformer}


def _read_module(files: ModelFiles, entry: ModuleEntry) -> MultiVectorMask | HierarchicalTokenPooling:
    """Make a module of `TOKEN_MODULES` from its config.json, whose keys are the keywords of its class."""
    module_class: Any = MultiVectorMask if entry.kind == "MultiVectorMask" else HierarchicalTokenPooling
    config, where = read_config(files, entry, inspect.signature(module_class).parameters)
    # A version that did not normalize wrote files without this key.
    usual = {"normalize_embeddings": False} if module_class is HierarchicalTokenPooling else {}
    with prefixed(f"{where}:", ModelFormatError):
        return module_class(**usual | config)


def _projection(files: SentenceFiles, size: int) -> FloatArray:
    """Read the projection of ColBERTv2. The checkpoint of its BERT holds it."""
    tensor = open_checkpoint(files.files).get("linear.weight")
    if tensor is None or len(tensor.shape) != 2 or tensor.shape[1] != size or not tensor.shape[0]:
        shape = None if tensor is None else tensor.shape
        raise ModelFormatError(f"{files.source}: linear.weight has shape {shape}; expected (D, {size}).")
    weight = np.empty(tensor.shape, np.float32)
    read_tensor(tensor, weight)
    weight.flags.writeable = False
    return weight
