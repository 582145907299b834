"""`SentenceTransformer`: texts in, one vector each out, as sentence-transformers computes them.

The name of this module has a reason. KeyBERT and BERTopic look for "sentence_transformers" in ``str(type(model))``, and
without it they silently use another model. With this name they check the model: they refuse it, or they accept it if
`minibert.compat.sentence_transformers` was imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from minibert._utils.keywords import check_remote_code
from minibert._utils.reporting import progress_bar, warn_caller
from minibert._utils.validation import FloatArray, brief, check_int
from minibert.bert.config import BertConfig
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from minibert.errors import ModelFormatError
from minibert.models.bert_model import BertModel
from minibert.sentence.card import ModelCardData
from minibert.sentence.encode import (
    CHUNK_SIZE,
    CutTexts,
    EncodedTexts,
    EncodeTask,
    encode_texts,
    encode_tokens,
    sentence_width,
)
from minibert.sentence.habits import SentenceHabits
from minibert.sentence.keywords import check_backend, check_config, check_constructor, choose_token, set_keywords
from minibert.sentence.modules import Pipeline, read_modules, read_pipeline
from minibert.sentence.options import (
    EncodeOptions,
    check_device,
    check_for_tokens,
    check_out,
    check_output,
    in_kind,
    make_out,
    one_of,
)
from minibert.sentence.prompts import builtin_prompts, check_prompts, choose_default, merge_prompts
from minibert.sentence.recipe import make_recipe
from minibert.sentence.saving import save_sentence_model
from minibert.sentence.settings import check_settings, full_name
from minibert.similarity import (
    SIMILARITY_FUNCTIONS,
    SimilarityFunction,
    check_similarity,
    check_truncate_dim,
    quantize_embeddings,
)
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.texts import as_texts
from minibert.tokenizer.windows import TextInfo
from minibert.tokens.layers import LayerSelection

__all__ = ["SentenceTransformer"]


class SentenceTransformer(SentenceHabits):
    """A sentence-embedding model with the names and arguments of sentence-transformers 6.

    It returns NumPy arrays, unless tensors are asked for or given.

    Parameters
    ----------
    model_name_or_path : str or path
        A folder, or a hub id. Short ids such as "all-MiniLM-L6-v2" are those of sentence-transformers. modules.json
        lists the modules after the BERT model (see modules.py); without this file there is mean pooling and a warning.
    prompts : dict of str to str, or "builtin", optional
        Texts to put before inputs, by name; they replace those that the model stores. "builtin" means the prompts on
        the cards of E5, BGE, Arctic Embed and mxbai models (see prompts.py), where the model stores none.
    default_prompt_name : str, optional
        The prompt of `encode` if a call does not name one; default: the model's.
    similarity_fn_name : {"cosine", "dot", "euclidean", "manhattan"} or SimilarityFunction, optional
        What `similarity` computes; default: the model's setting, else "cosine".
    cache_folder, revision, local_files_only, token
        As `cache_dir` and so on in `BertModel.from_pretrained`. `use_auth_token` is an old name of `token`.
    truncate_dim : int, optional
        Keep only the first features of each vector; default: the model's setting, else all.
    device : None or "cpu"
    backend, num_threads, compute_type, shared_weights
        As in `BertModel.from_pretrained`. "torch", which is sentence-transformers' default, means the default here.
    modules, trust_remote_code, model_kwargs, processor_kwargs, config_kwargs
        Keywords of sentence-transformers, at values that change nothing: None, False, {}, or for example
        ``model_kwargs={"torch_dtype": "float32"}``. `tokenizer_kwargs` is an old name of `processor_kwargs`.
    model_card_data : object, optional
        Kept as an attribute, for evaluators.

    Attributes
    ----------
    model : BertModel
    tokenizer : BertTokenizer
    pipeline : Pipeline
        The modules that turn hidden states into vectors.
    prompts : dict of str to str
        "query" and "document" are empty texts if neither the model nor the caller set them.
    default_prompt_name : str or None
    truncate_dim : int or None
    model_card_data : ModelCardData, or the given object

    Raises
    ------
    TypeError, ValueError
        A keyword has a value that would change the result and that minibert does not implement.
    ModelFormatError
        minibert does not implement a module, pooling mode or file of the model. The message names it.
    DownloadError
        The model is not on this machine and cannot be downloaded.
    """

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        prompts: Mapping[str, str] | str | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | SimilarityFunction | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        truncate_dim: int | None = None,
        device: object = None,
        backend: str | None = None,
        num_threads: int | None = None,
        compute_type: str | None = None,
        shared_weights: bool | None = None,
        modules: None = None,
        trust_remote_code: bool = False,
        use_auth_token: str | bool | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        config_kwargs: Mapping[str, Any] | None = None,
        model_card_data: Any = None,
    ) -> None:
        check_device(device)
        asked = check_constructor(
            "SentenceTransformer",
            modules=modules,
            trust_remote_code=trust_remote_code,
            model_kwargs=model_kwargs,
            processor_kwargs=processor_kwargs,
            tokenizer_kwargs=tokenizer_kwargs,
            config_kwargs=config_kwargs,
        )
        backend = check_backend(backend)
        check_truncate_dim(truncate_dim)
        if similarity_fn_name is not None:  # checked before anything is downloaded
            self.similarity_fn_name = similarity_fn_name
        files = locate(
            full_name(model_name_or_path),
            revision=revision,
            cache_dir=cache_folder,
            token=choose_token(token, use_auth_token),
            local_files_only=local_files_only,
        )
        listed = read_modules(files)
        if not listed:
            warn_caller(
                f"{files.source} has no modules.json: it is not a sentence-embedding model. Using mean pooling over "
                "the last hidden state; cosines of a plain BERT say little about meaning.",
            )
        stored = files.settings("config_sentence_transformers.json")
        try:
            check_truncate_dim(stored.get("truncate_dim"))
            self.similarity_fn_name = similarity_fn_name or stored.get("similarity_fn_name") or "cosine"
        except (TypeError, ValueError) as error:
            raise ModelFormatError(f"{files.source}: config_sentence_transformers.json has {error}") from error
        self.truncate_dim = truncate_dim if truncate_dim is not None else stored.get("truncate_dim")
        bert_files = files.subfolder(listed[0].path) if listed else files
        check_remote_code("SentenceTransformer", trust_remote_code, bert_files.settings("config.json"))
        names = (os.fspath(model_name_or_path), bert_files.settings("config.json").get("_name_or_path"))
        self._builtin_prompts = builtin_prompts(*names)
        self._prompts = merge_prompts(stored, prompts, self._builtin_prompts, files.source)
        self.default_prompt_name = choose_default(self.prompts, stored, default_prompt_name, files.source)
        self._given_prompts = frozenset(prompts) if isinstance(prompts, Mapping) else frozenset()
        self._warned: set[str] = set()
        self.model_card_data = ModelCardData() if model_card_data is None else model_card_data

        self.tokenizer = BertTokenizer.from_files(bert_files)
        set_keywords("SentenceTransformer", self.tokenizer, asked)
        settings = bert_files.settings("sentence_bert_config.json")
        check_settings(settings, self.tokenizer)
        self._set_limit(asked, settings)
        config = BertConfig.from_files(bert_files)
        check_config(
            "SentenceTransformer",
            config,
            asked,
            "Give encode() a layer: encode(texts, layers=2) pools the states after layer 2.",
        )
        self.model = BertModel.from_files(
            bert_files,
            config=config,
            output_hidden_states=False,
            backend=backend,
            num_threads=num_threads,
            compute_type=compute_type,
            shared_weights=shared_weights,
        )
        self.pipeline: Pipeline = read_pipeline(files, listed, self.model.config.hidden_size, self.model.ops)

    # -- settings

    @property
    def prompts(self) -> dict[str, str]:
        """Texts to put before inputs, by name. Settable; a model that was just loaded has "query" and "document"."""
        return self._prompts

    @prompts.setter
    def prompts(self, value: Mapping[str, str]) -> None:
        given = check_prompts(value, "prompts", TypeError)
        self._prompts = given
        self._given_prompts = frozenset(given)

    @property
    def truncate_dim(self) -> int | None:
        """Number of first features that `encode` keeps of each vector; None keeps all. Settable."""
        return self._truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, value: int | None) -> None:
        self._truncate_dim = check_truncate_dim(value)

    @property
    def similarity_fn_name(self) -> str:
        """What `similarity` computes: "cosine", "dot", "euclidean" or "manhattan". Settable, also as an enum.

        None sets "cosine", as in sentence-transformers.
        """
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: str | SimilarityFunction | None) -> None:
        self._similarity_fn_name = "cosine" if value is None else check_similarity("similarity_fn_name", value)

    def get_embedding_dimension(self) -> int:
        """Return the length of the vectors that `encode` returns."""
        width = self.pipeline.widths[-1]
        return width if self.truncate_dim is None else min(width, self.truncate_dim)

    # -- texts to vectors

    def encode(
        self,
        inputs: str | Sequence[str] | npt.NDArray[Any] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: object = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: Mapping[str, Any] | None = None,
        chunk_size: int | None = None,
        *,
        layers: LayerSelection | None = None,
        layer_pooling: str = "concat",
        pooling: str | Sequence[str] | None = None,
        special_tokens: bool = True,
        truncation: str = "warn",
        stride: int = 0,
        out: npt.NDArray[Any] | None = None,
        return_info: bool = False,
        sentences: str | Sequence[str] | None = None,
        task: str | None = None,
        processing_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Turn texts into vectors; equal texts are computed once.

        Parameters
        ----------
        inputs : str, or sequence, array, pandas or Arrow column of B str
            An empty text gives the vector of [CLS] [SEP]. `sentences` is its old name.
        prompt_name : str, optional
            A key of `prompts`; its text is put before each input. Default: `default_prompt_name`, if that is set.
        prompt : str, optional
            A text to put before each input; `prompt_name` is then ignored.
        batch_size : int
            Limits memory: 32 times as many texts, at most 1024, are tokenized together. The result does not depend on
            it.
        show_progress_bar : bool, optional
            Show the number of texts done and the time left, on the standard error.
        output_value : {"sentence_embedding", "token_embeddings", None}
            One vector per text; one per token; or a dict of both with the ids.
        precision : {"float32", "float16", "int8", "uint8", "binary", "ubinary"}, optional
            See `quantize_embeddings`; None means "float32".
        convert_to_numpy : bool
            False: a list of tensors of torch instead of one array; a tensor for one text.
        convert_to_tensor : bool
            True: a tensor of torch instead of an array, or tensors instead of the arrays for "token_embeddings" and
            None. torch must be installed.
        device : None or "cpu", or a list of these
        normalize_embeddings : bool
            Scale the vectors to length 1 even where the model does not.
        truncate_dim : int, optional
            Keep only the first features of sentence vectors; default: the model's `truncate_dim`.
        pool, chunk_size, task, processing_kwargs
            Arguments of sentence-transformers without effect here: the result of `start_multi_process_pool`; an int; a
            name such as "query"; None or {}.
        layers : int or ints, optional
            Hidden states to pool, numbered as in transformers: 0 (the embeddings) to L, or -(L + 1) to -1. The forward
            stops after the deepest one. Default: the last.
        layer_pooling : {"concat", "sum", "mean"}
            How several layers become one.
        pooling : str or sequence of str, optional
            Use this instead of the model's Pooling: "mean", "max", "cls", "lasttoken", "weightedmean",
            "mean_sqrt_len_tokens", several of them (concatenated), "first_last", "pooler", "none" (all tokens), or
            bert-as-service's names: see `pooling_modes`. The modules after it still apply.
        special_tokens : bool
            Whether [CLS] and [SEP] count in pooling.
        truncation : {"warn", "error", "split", "silent"}
            What happens to a text of more than `max_seq_length` tokens. "warn" cuts it and warns, "error" refuses it,
            "split" pools several windows of it (weighted by the tokens of the text in each), "silent" cuts it.
        stride : int
            Tokens that a window repeats from the one before, for truncation="split".
        out : ndarray of shape (B, width), float, optional
            Write the vectors there, for example into a np.memmap, and return it.
        return_info : bool
            Also return a `TextInfo` per text: its tokens, tokens cut off, and each window's characters.

        Returns
        -------
        ndarray of shape (width,) for a str, (B, width) for a sequence; float32 unless `precision` or `out` says else
            For "token_embeddings" a list of arrays (S, H); for None a list of dicts. Tensors, if they are asked for.
            With `return_info` a pair of this and the `TextInfo`.

        Raises
        ------
        ImportError
            Tensors are asked for, and torch is not installed.
        TypeError, ValueError
            An argument is wrong. An input is not a text, or is too long with truncation="error"; its index is named.
        """
        texts, single = as_texts("inputs", one_of("inputs", inputs, "sentences", sentences))
        self._check_call(device, pool, chunk_size, task, processing_kwargs)
        precision = check_output(convert_to_tensor, convert_to_numpy, output_value, precision)
        options = EncodeOptions(
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            layers=layers,
            layer_pooling=layer_pooling,
            pooling=pooling,
            special_tokens=special_tokens,
            truncation=truncation,
            stride=stride,
        )
        work = self.encode_task(options, return_info=return_info, exact=return_info)
        result: Any
        cut, info = CutTexts(), list[TextInfo]()
        if output_value != "sentence_embedding" or work.recipe.modes == ("none",):
            check_for_tokens(out, precision, normalize_embeddings, truncation)
            width = self._width(work, options) if output_value is None else None
            tokens, n_truncated, info = encode_tokens(work, texts, width)
            cut.add(n_truncated)
            result = tokens[0] if single else tokens
        else:
            width = self._width(work, options)
            vectors = make_out(out, (width,) if single else (len(texts), width), precision)
            rows, first = vectors[None] if single else vectors, 0
            with progress_bar(len(texts), show=bool(show_progress_bar)) as count:
                for chunk in encode_texts(
                    work, texts, width=width, normalize=normalize_embeddings, size=CHUNK_SIZE, progress=count
                ):
                    rows[first : first + len(chunk.vectors)] = chunk.vectors
                    cut.add(chunk.n_truncated)
                    info += chunk.info
                    first += len(chunk.vectors)
            result = vectors if precision == "float32" else quantize_embeddings(vectors, precision)
        result = in_kind(result, convert_to_tensor, convert_to_numpy, single)
        if truncation == "warn":
            cut.warn(self.max_seq_length)
        if return_info:
            return result, info[0] if single else info
        return result

    def encode_iter(
        self, inputs: Iterable[str], *, out: npt.NDArray[Any] | None = None, **options: Any
    ) -> Iterator[FloatArray]:
        """Turn any iterable of texts into vectors, one per text and in order; memory does not grow with their number.

        Parameters
        ----------
        inputs : iterable of str
            Such as a generator, or the lines of a file. It is read a chunk at a time.
        out : ndarray of shape (at least the number of texts, width), float, optional
            Write the vectors there too, for example into a np.memmap.
        **options
            As in `encode_chunks`.

        Yields
        ------
        ndarray of shape (width,), float32

        Raises
        ------
        TypeError, ValueError
            As in `encode`, and if there are more texts than rows in `out`.

        Examples
        --------
        >>> from minibert import SentenceTransformer
        >>> model = SentenceTransformer()
        >>> vectors = model.encode_iter(f"text {i % 10}" for i in range(100))
        >>> round(sum(float(vector @ vector) for vector in vectors), 3)
        100.0
        """
        truncation = options.get("truncation", "warn")
        chunks = self.encode_chunks(inputs, **options)
        if out is not None:
            check_out(out)

        def rows() -> Iterator[FloatArray]:
            cut, first = CutTexts(), 0
            for chunk in chunks:
                if out is not None:
                    last = first + len(chunk.vectors)
                    if last > len(out) or out.shape[1:] != chunk.vectors.shape[1:]:
                        raise ValueError(
                            f"out has shape {out.shape}; expected ({last}, {chunk.vectors.shape[1]}), or more rows."
                        )
                    out[first:last] = chunk.vectors
                    first = last
                cut.add(chunk.n_truncated)
                yield from chunk.vectors
            if truncation == "warn":
                cut.warn(self.max_seq_length)

        return rows()

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
            The fields of `EncodeOptions`, as in `encode`. With truncation="warn" the caller warns: `n_truncated` says
            which texts were cut.

        Raises
        ------
        TypeError, ValueError
            As in `encode`.
        """
        if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
            raise TypeError(
                f"inputs is a {type(inputs).__name__}; expected an iterable of str. For one text use encode."
            )
        if progress is not None and not callable(progress):
            raise TypeError(f"progress={brief(progress)}; expected a function that takes a number of texts, or None.")
        chosen = EncodeOptions.of(options)
        task = self.encode_task(chosen, return_info=return_info, exact=return_info or chosen.truncation != "silent")
        if task.recipe.modes == ("none",):
            raise ValueError(
                "pooling='none' gives vectors of tokens, but this call computes one vector per text; give another."
            )
        return encode_texts(
            task,
            inputs,
            width=self._width(task, chosen),
            normalize=chosen.normalize_embeddings,
            size=check_int("chunk_size", chunk_size, 1),
            progress=progress or (lambda _: None),
        )

    def encode_query(
        self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """Turn queries into vectors: `encode` with the prompt "query", unless another is given."""
        inputs = one_of("inputs", inputs, "sentences", options.pop("sentences", None))
        if prompt_name is None and prompt is None:
            prompt_name = self._prompt_name_for("query")
        return self.encode(inputs=inputs, prompt_name=prompt_name, prompt=prompt, task="query", **options)

    def encode_document(
        self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """Turn documents into vectors: `encode` with the first of the prompts "document", "passage" and "corpus".

        The empty default "document" of `prompts` is ignored unless the caller gave it. In sentence-transformers 6.2
        it is not ignored, so a model's "passage" is never used there.
        """
        inputs = one_of("inputs", inputs, "sentences", options.pop("sentences", None))
        if prompt_name is None and prompt is None:
            prompt_name = self._prompt_name_for("document", "passage", "corpus")
        return self.encode(inputs=inputs, prompt_name=prompt_name, prompt=prompt, task="document", **options)

    # -- vectors to scores

    def similarity(self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike) -> Any:
        """Score every vector of one collection with every one of another, by `similarity_fn_name`: (m, n).

        Returns
        -------
        Scores, an ndarray with the methods ``numpy``, ``cpu`` and ``detach``; a tensor if an argument is one
        """
        return SIMILARITY_FUNCTIONS[self.similarity_fn_name][0](embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike) -> Any:
        """Score vector i of one collection with vector i of another, by `similarity_fn_name`: (n,), as `similarity`."""
        return SIMILARITY_FUNCTIONS[self.similarity_fn_name][1](embeddings1, embeddings2)

    # -- to files

    def save_pretrained(
        self,
        path: str | os.PathLike[str],
        model_name: str | None = None,
        create_model_card: bool = False,
        train_datasets: Sequence[str] | None = None,
        safe_serialization: bool = True,
    ) -> None:
        """Write the model into a folder; minibert and sentence-transformers load it as the same model.

        Parameters
        ----------
        path : str or path
            It is made if it does not exist. Other files in it are not touched.
        model_name, create_model_card, train_datasets
            Arguments of sentence-transformers, for a model card. They are ignored: minibert does not write cards.
        safe_serialization : bool
            Only True: minibert writes safetensors.

        Raises
        ------
        ValueError, OSError
            `safe_serialization` is False; or a file cannot be written.
        """
        if not safe_serialization:
            raise ValueError("safe_serialization=False writes a pickle, which minibert never does; leave it out.")
        save_sentence_model(
            path,
            model=self.model,
            tokenizer=self.tokenizer,
            pipeline=self.pipeline,
            max_seq_length=self.max_seq_length,
            settings={
                "prompts": self.prompts,
                "default_prompt_name": self.default_prompt_name,
                "similarity_fn_name": self.similarity_fn_name,
                **({} if self.truncate_dim is None else {"truncate_dim": self.truncate_dim}),
            },
        )

    def save(self, path: str | os.PathLike[str], *args: Any, **options: Any) -> None:
        """Write the model, as `save_pretrained` does."""
        self.save_pretrained(path, *args, **options)

    # -- internals

    def encode_task(self, options: EncodeOptions, *, return_info: bool, exact: bool) -> EncodeTask:
        """Return what a call of `encode` does with each text; the service runs it a step at a time.

        Raises
        ------
        TypeError, ValueError
            An option is wrong, or does not fit the model.
        """
        recipe = make_recipe(
            self.model,
            pooling=self.pipeline.pooling if options.pooling is None else options.pooling,
            layers=options.layers,
            layer_pooling=options.layer_pooling,
            special_tokens=options.special_tokens,
            include_prompt=self.pipeline.include_prompt,
        )
        prompt = self.resolve_prompt(options.prompt, options.prompt_name)
        windows = self._windows(prompt, options.batch_size, options.truncation, options.stride)
        return EncodeTask(self.model, self.pipeline, recipe, windows, return_info, exact)

    def _width(self, task: EncodeTask, options: EncodeOptions) -> int:
        return sentence_width(task, self.truncate_dim if options.truncate_dim is None else options.truncate_dim)

    def _prompt_name_for(self, *names: str) -> str | None:
        """Choose the first of these prompts that is set; warn once if none is, but the model's card asks for one."""
        given = [name for name in names if self.prompts.get(name) or name in self._given_prompts]
        needed = next((name for name in names if self._builtin_prompts.get(name)), None)
        if not given and needed is not None and needed not in self._warned:
            self._warned.add(needed)
            warn_caller(
                f"This model was trained with {self._builtin_prompts[needed]!r} before each {needed}, but its files do "
                f"not store this prompt, so it is not used. SentenceTransformer(..., prompts='builtin') uses it; "
                f"prompt='' silences this warning.",
            )
        return given[0] if given else (names[0] if names[0] in self.prompts else None)

    def __repr__(self) -> str:
        steps = ", ".join([f"{self.model!r}", f"{' + '.join(self.pipeline.pooling)} pooling", *self.pipeline.names])
        return f"SentenceTransformer({steps}, max_seq_length={self.max_seq_length})"
