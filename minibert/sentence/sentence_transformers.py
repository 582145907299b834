"""`SentenceTransformer`: texts in, one vector each out, as sentence-transformers computes them.

The name of this module has a reason. KeyBERT and BERTopic look for "sentence_transformers" in ``str(type(model))``, and
without it they silently use another model. With this name they check the model: they refuse it, or they accept it if
`minibert.compat.sentence_transformers` was imported.
"""

# mypy: disable-error-code="overload-overlap"
# A str is a Sequence[str] too; the overload of one text comes first.

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
import numpy.typing as npt

from minibert._utils.reporting import progress_bar, warn_caller
from minibert._utils.torch_interop import Tensor
from minibert._utils.validation import FloatArray, IntArray, check_bool, check_choice, is_masked
from minibert.checkpoint.files import DEFAULT_MODEL
from minibert.encode.modules import read_pipeline
from minibert.encode.options import EncodeOptions, WindowOptions
from minibert.encode.plan import DictsPlan, Plan, SpansPlan, TokensPlan, make_plan
from minibert.encode.run import ObjectPlan, TextPlan
from minibert.models.bert import BertModel
from minibert.sentence.base import HOME, SavedModule, as_requested
from minibert.sentence.imitations import Pooling, Transformer
from minibert.sentence.loading import LoadKeywords, one_of
from minibert.sentence.vector_model import VectorModel
from minibert.tokenizer.texts import as_texts, check_texts, sentence_spans
from minibert.tokenizer.windows import TextInfo
from minibert.vectors.layers import LayerSelection
from minibert.vectors.similarity import PRECISIONS, SimilarityFunction, check_truncate_dim, quantize_embeddings, rounded

if TYPE_CHECKING:
    from minibert.sentence.keywords import Arrays, EncodeKeywords, Float32Array, Many


class SentenceTransformer(VectorModel):
    """A sentence-embedding model with the names and arguments of sentence-transformers 6.

    It returns NumPy arrays, unless tensors are asked for or given.

    Parameters
    ----------
    model_name_or_path : str or path
        A folder, a GGUF file, "ollama:name", or a hub id. Short ids such as "all-MiniLM-L6-v2" mean models of
        sentence-transformers. modules.json lists the modules after the BERT model (see encode/modules.py); without this
        file there is mean pooling and a warning. Static models load, too: those with a StaticEmbedding, and model2vec's
        (see encode/static.py).
    prompts : dict of str to str, or "builtin", optional
        Texts to put before inputs, by name; they replace those that the model stores. "builtin" means the prompts on
        the cards of E5, BGE, Arctic Embed and mxbai models (see loading.py), where the model stores none.
    default_prompt_name : str, optional
        The prompt of `encode` if a call does not name one; default: the model's.
    similarity_fn_name : {"cosine", "dot", "euclidean", "manhattan"} or SimilarityFunction, optional
        What `similarity` computes; default: the model's setting, else "cosine".
    cache_folder, revision, local_files_only, token
        As `cache_dir` and so on in `BertModel.from_pretrained`. `use_auth_token` is an old name of `token`.
    truncate_dim : int, optional
        Keep only the first features of each vector; default: the model's setting, else all.
    device : None or "cpu"
    backend, num_threads, compute_type, shared_weights, idle_release
        As in `BertModel.from_pretrained`. "torch", the default of sentence-transformers, means the default here.
    modules, trust_remote_code, model_kwargs, processor_kwargs, config_kwargs
        Keywords of sentence-transformers, at values that change nothing: None, False, {}, or for example
        ``model_kwargs={"torch_dtype": "float32"}``. `tokenizer_kwargs` is an old name of `processor_kwargs`.
    model_card_data : object, optional
        Kept as an attribute, for evaluators.

    Attributes
    ----------
    model : BertModel; of a static model its StaticModel
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

    _call = "SentenceTransformer"
    _organisation = "sentence-transformers"
    _model = BertModel
    _fewer_layers = "Give encode() a layer: encode(texts, layers=2) pools state 2, the output of the second layer."

    model: Any

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        similarity_fn_name: str | SimilarityFunction | None = None,
        truncate_dim: int | None = None,
        **load: Unpack[LoadKeywords],
    ) -> None:
        files = self._load(model_name_or_path, load, similarity_fn_name=similarity_fn_name, truncate_dim=truncate_dim)
        self.pipeline = read_pipeline(files.files, files.modules, self.model.config.hidden_size, self.model.ops)
        if not files.modules:
            warn_caller(
                f"{files.source} has no modules.json: it is not a sentence-embedding model. Using mean pooling over "
                "the last hidden state; cosines of a plain BERT say little about meaning."
            )

    # -- settings

    @property
    def truncate_dim(self) -> int | None:
        """The number of leading features that `encode` keeps of each vector; None keeps all. Settable."""
        return self._truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, value: int | None) -> None:
        self._truncate_dim = check_truncate_dim(value)

    @contextlib.contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Set `truncate_dim` for the calls inside a ``with`` block."""
        before = self.truncate_dim
        self.truncate_dim = truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    def set_pooling_include_prompt(self, include_prompt: bool) -> None:
        """Set whether the tokens of a prompt count in pooling."""
        self.pipeline = dataclasses.replace(self.pipeline, include_prompt=check_bool("include_prompt", include_prompt))

    def get_embedding_dimension(self) -> int:
        """Return the length of the vectors that `encode` returns."""
        width = self.pipeline.widths[-1]
        return width if self.truncate_dim is None else min(width, self.truncate_dim)

    # -- texts to vectors

    # fmt: off
    @overload
    def encode(self, inputs: str, *, output_value: str = ..., pooling: str | Sequence[str] | None = ...,
               spans: Any = ..., **options: Unpack[Arrays]) -> Float32Array: ...
    @overload
    def encode(self, inputs: Many, *, pooling: Literal["none"], **options: Unpack[Arrays]) -> list[Float32Array]: ...
    @overload
    def encode(self, inputs: Many, *, output_value: Literal["sentence_embedding"] = ...,
               pooling: str | Sequence[str] | None = ..., **options: Unpack[Arrays]) -> Float32Array: ...
    @overload
    def encode(self, inputs: Many, *, output_value: str = ..., spans: str | Sequence[Any] = ...,
               **options: Unpack[Arrays]) -> list[Float32Array]: ...
    @overload
    def encode(self, inputs: str, *, output_value: None, **options: Unpack[Arrays]) -> dict[str, Any]: ...
    @overload
    def encode(self, inputs: Many, *, output_value: None, **options: Unpack[Arrays]) -> list[dict[str, Any]]: ...
    @overload
    def encode(self, inputs: str, *, return_info: Literal[True], spans: Any = ...,
               **options: Unpack[EncodeKeywords]) -> tuple[Float32Array, TextInfo]: ...
    @overload
    def encode(self, inputs: Many, *, return_info: Literal[True],
               **options: Unpack[EncodeKeywords]) -> tuple[Float32Array, list[TextInfo]]: ...
    @overload
    def encode(self, inputs: str | Many, *, convert_to_numpy: bool = ..., convert_to_tensor: Literal[True],
               **options: Unpack[EncodeKeywords]) -> Tensor: ...
    @overload
    def encode(self, inputs: str, *, convert_to_numpy: Literal[False], convert_to_tensor: Literal[False] = ...,
               **options: Unpack[EncodeKeywords]) -> Tensor: ...
    @overload
    def encode(self, inputs: Many, *, convert_to_numpy: Literal[False], convert_to_tensor: Literal[False] = ...,
               **options: Unpack[EncodeKeywords]) -> list[Tensor]: ...
    @overload
    def encode(self, inputs: str | Many, *, precision: str = ..., out: npt.NDArray[Any] | None = ...,
               **options: Unpack[EncodeKeywords]) -> npt.NDArray[Any]: ...
    @overload  # other calls
    def encode(self, inputs: str | Many | None = ..., *arguments: Any, output_value: str | None = ...,
               precision: str | None = ..., convert_to_numpy: bool = ..., convert_to_tensor: bool = ...,
               pooling: str | Sequence[str] | None = ..., spans: Any = ..., out: npt.NDArray[Any] | None = ...,
               return_info: bool = ..., sentences: str | Many | None = ...,
               **options: Unpack[EncodeKeywords]) -> Any: ...
    # fmt: on
    def encode(  # type: ignore[misc]  # it does not take any number of arguments by position
        self, inputs: str | Sequence[str] | npt.NDArray[Any] | None = None, prompt_name: str | None = None,
        prompt: str | None = None, batch_size: int = 32, show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding", precision: str | None = "float32",
        convert_to_numpy: bool = True, convert_to_tensor: bool = False, device: object = None,
        normalize_embeddings: bool = False, truncate_dim: int | None = None, pool: Mapping[str, Any] | None = None,
        chunk_size: int | None = None, *, layers: LayerSelection | None = None, layer_pooling: str = "concat",
        pooling: str | Sequence[str] | None = None, special_tokens: bool = True, truncation: str = "warn",
        stride: int = 0, spans: Any = None, out: npt.NDArray[Any] | None = None, return_info: bool = False,
        sentences: str | Sequence[str] | None = None, task: str | None = None,
        processing_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
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
        spans : sequence of (int, int), or for several texts, B of them; or "sentences"; optional
            Give a vector of each part of a text, from one forward of the whole text ("late chunking"): the mean of the
            part's tokens. A part is its first character, and the one after its last. A token belongs to the part that
            has its first character that is not white space; [CLS], [SEP] and a prompt belong to none. "sentences":
            those of `sentence_spans`, which are also in the `TextInfo`. For models and calls with mean pooling.
        out : ndarray of shape (B, width), float, optional
            Write the vectors there, for example into a np.memmap, and return it.
        return_info : bool
            Also return a `TextInfo` per text: its tokens, tokens cut off, and each window's characters.

        Returns
        -------
        ndarray of shape (width,) for a str, (B, width) for a sequence; float32 unless `precision` or `out` says else
            For "token_embeddings" a list of arrays (S, H); for None a list of dicts. With `spans`, (number of spans,
            width) for a str, and a list of such arrays for a sequence. Tensors, if they are asked for.
            With `return_info` a pair of this and the `TextInfo`.

        Raises
        ------
        ImportError
            Tensors are asked for, and torch is not installed.
        TypeError, ValueError
            An argument is wrong. An input is not a text, or is too long with truncation="error"; its index is named. A
            span has no token, or is in a part of the text that was cut off.

        Examples
        --------
        >>> from minibert import SentenceTransformer
        >>> model = SentenceTransformer("all-MiniLM-L6-v2")
        >>> model.encode("A cat sleeps.").shape
        (384,)
        >>> vectors = model.encode(["A cat sleeps.", "A kitten naps.", "Stocks fell sharply."])
        >>> model.similarity(vectors, vectors).round(2)
        array([[1.  , 0.71, 0.01],
               [0.71, 1.  , 0.07],
               [0.01, 0.07, 1.  ]], dtype=float32)
        >>> model.encode("A cat sleeps.", output_value="token_embeddings").shape
        (6, 384)
        """
        options = EncodeOptions(
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            truncation=truncation,
            stride=stride,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            layers=layers,
            layer_pooling=layer_pooling,
            pooling=pooling,
            special_tokens=special_tokens,
        )
        texts, single = as_texts("inputs", one_of("inputs", inputs, "sentences", sentences))
        self._check_call(device, processing_kwargs, convert_to_tensor, convert_to_numpy)
        if output_value is not None:
            check_choice("output_value", output_value, ("sentence_embedding", "token_embeddings"))
        precision = "float32" if precision is None else precision
        check_choice("precision", precision, PRECISIONS)
        plan = self.plan(options)
        result: Any
        if spans is not None or output_value != "sentence_embedding" or plan.pooling == ("none",):
            check_for_tokens(out, precision, normalize_embeddings and spans is None, truncation)
            if spans is not None and output_value != "sentence_embedding":
                raise ValueError(f"output_value={output_value!r} and spans= were given; leave one of them out.")
            parts: ObjectPlan = TokensPlan(plan.windows, plan)
            if spans is not None:
                parts = SpansPlan(plan.windows, plan, texts, spans_of(texts, spans, single))
            elif output_value is None:
                parts = DictsPlan(plan.windows, plan, plan.width)
            items = np.empty(len(texts), dtype=object)
            n_truncated, infos = fill_rows(items, parts, texts, show_progress_bar or False, return_info)
            if isinstance(spans, str):
                infos = [
                    dataclasses.replace(info, spans=tuple(sentence_spans(texts[i]))) for i, info in enumerate(infos)
                ]
            result = items[0] if single else items.tolist()
        else:
            vectors = make_out(out, (plan.width,) if single else (len(texts), plan.width), precision)
            rows = vectors[None] if single else vectors
            n_truncated, infos = fill_rows(rows, plan, texts, show_progress_bar or False, return_info)
            result = vectors if precision == "float32" else quantize_embeddings(vectors, precision)
        result = as_requested(result, convert_to_tensor, convert_to_numpy, single)
        plan.windows.too_long().add(n_truncated).warn()
        return (result, infos[0] if single else infos) if return_info else result

    if TYPE_CHECKING:
        encode_query = encode_document = encode  # type: ignore[assignment]

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
        chunks = self.encode_chunks(inputs, **options)
        too_long = self.windows(WindowOptions(truncation=options.get("truncation", "warn"))).too_long()
        if out is not None:
            check_out(out)

        def rows() -> Iterator[FloatArray]:
            first = 0
            for chunk in chunks:
                if out is not None:
                    last = first + len(chunk.vectors)
                    if last > len(out) or out.shape[1:] != chunk.vectors.shape[1:]:
                        raise ValueError(
                            f"out has shape {out.shape}; expected ({last}, {chunk.vectors.shape[1]}), or more rows."
                        )
                    out[first:last] = rounded(chunk.vectors, out.dtype)
                    first = last
                too_long.add(chunk.n_truncated)
                yield from chunk.vectors
            too_long.warn()

        return rows()

    def plan(self, options: EncodeOptions) -> Plan:
        """Return what happens to each text of a call of `encode`; the service runs it one step at a time.

        Raises
        ------
        TypeError, ValueError
            An option is wrong, or does not fit the model.
        """
        return make_plan(self.model, self.pipeline, self.windows(options), options, self.truncate_dim)

    # -- to files

    def _saved_modules(self) -> list[SavedModule]:
        saved = [(f"{HOME}.{module.kind}", module.config, module.tensors) for module in self.pipeline.modules]
        return [(f"{HOME}.Pooling", self[1].get_config_dict(), {}), *saved]

    # -- what it is made of

    def __len__(self) -> int:
        return 2 + len(self.pipeline.modules)

    def __getitem__(self, index: int) -> Any:
        """Return a part: 0 is the tokenizer with the BERT model, 1 the pooling, then the modules after it."""
        modes, size = self.pipeline.pooling, self.model.config.hidden_size
        pooling = Pooling(modes[0] if len(modes) == 1 else modes, self.pipeline.include_prompt, size)
        return [Transformer(self.model, self.tokenizer), pooling, *self.pipeline.modules][index]

    def __repr__(self) -> str:
        parts = ", ".join([f"{self.model!r}", f"{' + '.join(self.pipeline.pooling)} pooling", *self.pipeline.names])
        return f"SentenceTransformer({parts}, max_seq_length={self.max_seq_length})"


def spans_of(texts: Sequence[str], spans: Any, single: bool) -> Sequence[Any]:
    """Return the spans of each text, for the argument `spans`."""
    if isinstance(spans, str):
        check_choice("spans", spans, ("sentences",))
        check_texts(texts)
        return [sentence_spans(text) for text in texts]
    spans = [spans] if single else spans
    if len(spans) != len(texts):
        raise ValueError(f"spans= has {len(spans)} lists for {len(texts)} texts; give one for each text.")
    return spans


def fill_rows(
    rows: npt.NDArray[Any], plan: TextPlan, texts: Sequence[str], show_progress: bool, with_info: bool
) -> tuple[IntArray, list[TextInfo]]:
    """Write the item of each text into its row.

    Return the number of tokens that were cut off each text, and with `with_info` the `TextInfo` of each.
    """
    n_truncated, infos, done = np.zeros(len(rows), dtype=np.int64), list[TextInfo](), 0
    with progress_bar(len(texts), show=show_progress) as count:
        for chunk in plan.run(texts, progress=count, exact=with_info, info=with_info):
            places = slice(done, done + len(chunk.vectors))
            rows[places], n_truncated[places] = rounded(chunk.vectors, rows.dtype), chunk.n_truncated
            infos += chunk.info
            done = places.stop
    if done < len(rows):
        raise ValueError(f"Of {len(rows)} texts only {done} could be read, because they changed meanwhile.")
    return n_truncated, infos


def check_for_tokens(out: object, precision: str, normalized: bool, truncation: str) -> None:
    """Raise an error for options that work only for sentence vectors."""
    only_for_sentences = {
        "out=": out is not None,
        f"precision={precision!r}": precision != "float32",
        "normalize_embeddings=True": normalized,
        "truncation='split'": truncation == "split",
    }
    if wrong := [option for option, is_set in only_for_sentences.items() if is_set]:
        raise ValueError(f"{wrong[0]} is only for sentence vectors, not for vectors of tokens or spans; leave it out.")


def make_out(out: npt.NDArray[Any] | None, shape: tuple[int, ...], precision: str) -> npt.NDArray[Any]:
    """Return the array to fill: a new one, or the caller's array after checking it."""
    if out is None:
        return np.empty(shape, dtype=np.float32)
    check_out(out)
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; expected {shape}.")
    if precision != "float32":
        raise ValueError(f"precision={precision!r} needs all vectors at once, and out= gets them in chunks; give one.")
    return out


def check_out(out: object) -> None:
    """Raise an error unless `out` is a writeable array of floats whose elements do not overlap in memory."""
    if not isinstance(out, np.ndarray) or out.dtype.kind != "f" or not out.flags.writeable:
        raise TypeError(f"out is {type(out).__name__}; expected a writeable array of floats.")
    if is_masked(out):
        raise TypeError("out is a masked array, and can refuse to be written; give its data: out.data.")
    extent = out.itemsize if out.size else 0
    for stride, length in sorted(zip(map(abs, out.strides), out.shape, strict=True)):
        if length > 1 and stride < extent:  # a stride must cover the extent of the axes with smaller strides
            raise ValueError(f"out has strides {out.strides} for shape {out.shape}: its rows overlap. Give a new one.")
        extent += stride * (length - 1)
