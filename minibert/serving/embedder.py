"""A served model that gives vectors: the texts of a request -> windows -> vectors.

The vectors are those of `SentenceTransformer.encode`, bit for bit: the same functions compute them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from minibert._utils.validation import FloatArray, check_int
from minibert.sentence.encoding import EncodeOptions, EncodeTask, Recipe, pool_encodings, sentence_width, token_vectors
from minibert.sentence.modules import Pipeline
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving import models
from minibert.serving.models import COUNTED, Forward, Prepared, ServedModel, wrong
from minibert.serving.reading import in_turns
from minibert.serving.scheduler import Job
from minibert.serving.settings import ServiceError, Settings, Truncation
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_texts
from minibert.vectors.layers import LayerSelection
from minibert.vectors.similarity import normalize_embeddings

_MOST_MODES = 8  # of pooling, in one request
_MOST_SPLIT = 2**20  # characters of a text that is split into windows
_MOST_TASKS = 64  # that are kept
_HINT = "In langchain-openai, check_embedding_ctx_length=False makes the client send texts."

# What `input_type` means: the prompts to look for, as `encode_query` and `encode_document` do.
_PROMPTS_OF = {
    **dict.fromkeys(("query", "search_query"), ("query",)),
    **dict.fromkeys(("document", "search_document", "passage"), ("document", "passage", "corpus")),
    "classification": ("classification",),
    "clustering": ("clustering",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The options that say how the texts of a request become vectors.

    Parameters
    ----------
    normalize : bool, optional
        True: scale the vectors to length 1; False: leave out the model's own scaling. Default: as the model does.
    dimensions : int, optional
        Keep the first features, and scale them to length 1 where the whole vectors are.
    truncation : {"mark", "error", "split"}, optional
        See `Settings`.
    max_tokens : int, optional
        A limit below the model's; -1 means the model's.
    side : {"right", "left"}, optional
        The end where a text is cut; default: the tokenizer's.
    prompt_name : str, optional
    input_type : str, optional
        "query", "document" or Cohere's spellings: the prompt that the model has for it.
    layers, pooling : as in `SentenceTransformer.encode`
    modules : bool
        False: the pooled vectors, without the modules after the pooling.
    tokens : bool
        A vector per token.
    add_special_tokens : bool
        Put [CLS] and [SEP] around token ids that do not have them.
    """

    normalize: bool | None = None
    dimensions: int | None = None
    truncation: str | None = None
    max_tokens: int | None = None
    side: str | None = None
    prompt_name: str | None = None
    input_type: str | None = None
    layers: LayerSelection | None = None
    pooling: str | Sequence[str] | None = None
    modules: bool = True
    tokens: bool = False
    add_special_tokens: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "pooling"):  # options with a list could not be kept
            if isinstance(value := getattr(self, name), list | np.ndarray):
                object.__setattr__(self, name, tuple(np.asarray(value).tolist()))


class _Unit(NamedTuple):
    """A window; `alone` if its text does not have another one."""

    encoding: Encoding
    alone: bool


@dataclasses.dataclass(frozen=True)
class _Embed(Forward):
    """Sentence vectors of windows, for a text of one window also the modules after the pooling; or vectors of tokens.

    Without a pipeline these are the vectors of all tokens of each window.
    """

    recipe: Recipe
    num_prompt_tokens: int
    pipeline: Pipeline | None

    def compute(self, units: Sequence[_Unit]) -> list[FloatArray]:
        encodings = [unit.encoding for unit in units]
        if self.pipeline is None:
            return token_vectors(self.model.model, self.recipe, encodings)
        pooled = pool_encodings(self.model.model, self.recipe, encodings, self.num_prompt_tokens)
        rows: list[FloatArray] = [*pooled]
        if whole := [i for i, unit in enumerate(units) if unit.alone]:
            for i, row in zip(whole, self.pipeline.finish(pooled[whole]), strict=True):
                rows[i] = row
        return rows


class _Task(NamedTuple):
    """What is done with the texts of requests with the same options."""

    task: EncodeTask
    pipeline: Pipeline
    width: int
    scale: bool
    prompt_name: str | None
    model: SentenceTransformer
    truncation: str


class Embedder(ServedModel[SentenceTransformer]):
    """A `SentenceTransformer` under the name that clients use."""

    gives = "vectors"

    def __init__(self, name: str, model: SentenceTransformer) -> None:
        super().__init__(name, model)
        self._task = functools.lru_cache(_MOST_TASKS)(self._make_task)  # most requests have the same options

    def details(self) -> dict[str, Any]:
        """See `ServedModel`."""
        return {"embedding_dimension": self.model.get_embedding_dimension(), **super().details()}

    def model_type(self) -> dict[str, Any]:
        """See `ServedModel`."""
        return {"embedding": {"pooling": "+".join(self.model.pipeline.pooling)}}

    def first_job(self, settings: Settings) -> Job:
        """See `ServedModel`."""
        return self.prepare(["minibert " * 60], TextOptions(truncation="mark", normalize=True), settings).job

    def prepare(self, inputs: Sequence[Any], options: TextOptions, settings: Settings) -> Prepared:
        """Tokenize the texts (or check the token ids) of a request, and return its job and report.

        Raises
        ------
        ServiceError
            An input or an option is wrong; the message names it.
        """
        models.check_number(len(inputs), settings)
        model = self.model
        chosen = self._task(options, settings, (model.max_seq_length, model.truncate_dim, tuple(model.prompts.items())))
        task, prompt_name = chosen.task, chosen.prompt_name
        given_ids = len(inputs) > 0 and not isinstance(inputs[0], str)
        if given_ids:
            more = (options.add_special_tokens, chosen.truncation)
            groups = [[encoding_of_ids(chosen.model, i, one, *more)] for i, one in enumerate(inputs)]
            rows, prompt_name = list(range(len(inputs))), None
        else:
            try:
                check_texts(inputs)
            except (TypeError, ValueError) as error:
                raise ServiceError("invalid", str(error), param="input") from error
            distinct = {text: i for i, text in enumerate(dict.fromkeys(inputs))}
            rows = [distinct[text] for text in inputs]
            groups = self._windows(chosen, [*distinct])
        for i, row in enumerate(rows if chosen.truncation == "error" else ()):
            if groups[row][0].n_truncated:
                raise models.too_long(i, chosen.model.max_seq_length, groups[row][0])
        units = [_Unit(window, len(group) == 1) for group in groups for window in group]
        costs = [max(1, len(unit.encoding)) for unit in units]
        counted = 0 if task.recipe.include_prompt or given_ids else task.windows.num_prompt_tokens
        kind = _Embed(model, task.recipe, counted, None if options.tokens else chosen.pipeline)
        assemble: Callable[[list[Any]], Any] = functools.partial(_assemble, chosen, groups, rows)
        if options.tokens:
            assemble = functools.partial(_assemble_tokens, bool(options.normalize), rows)
        vectors = sum(len(groups[row][0]) for row in rows) if options.tokens else len(rows)
        n_bytes = 4 * chosen.width * vectors
        models.check_number(len(rows), settings, n_bytes)
        return self.prepared(
            Job(kind, units, costs, assemble),
            rows,
            groups,
            prompt_name=prompt_name,
            n_characters=0 if given_ids else sum(map(len, inputs)),
            n_bytes=n_bytes,
        )

    # -- options

    def _make_task(self, options: TextOptions, settings: Settings, state: object) -> _Task:
        """Check the options of a request; `state` is what else a task depends on."""
        truncation = options.truncation or settings.truncation
        if truncation not in get_args(Truncation):
            raise wrong("truncate", f"{truncation[:50]!r}; expected true, false, 'error' or 'split'.")
        if options.tokens and truncation == "split":
            if options.truncation is not None:
                raise wrong("truncate", "'split' averages vectors of texts, not of tokens.")
            truncation = "mark"
        models.check_side(options.side)
        config, prompt_name = self.model.model.config, self._prompt_of(options, settings.default_prompt_name)
        for name, value, most in (
            ("layers", options.layers, config.num_hidden_layers + 1),
            ("pooling", options.pooling, _MOST_MODES),
        ):
            if isinstance(value, tuple) and len(value) > most:  # their vectors are concatenated
                raise wrong(name, f"has {len(value)} items; the limit is {most}.")
        model = self._model_of(options)
        encode_options = EncodeOptions(
            prompt=self.model.prompts[prompt_name] if prompt_name else "",
            truncation="split" if truncation == "split" else "silent",
            layers=options.layers,
            pooling="none" if options.tokens else options.pooling,
            truncate_dim=options.dimensions,
        )
        try:
            task = model.encode_task(encode_options, return_info=False, exact=True)
            if options.tokens or not options.modules:
                width = task.recipe.width(config.hidden_size)
                if task.recipe.modes == ("none",) and not options.tokens:
                    raise ValueError("pooling 'none' gives a vector per token; ask /embed_all for these.")
            else:
                width = sentence_width(task, None)
        except (TypeError, ValueError) as error:
            param = next((name for name in ("layers", "pooling") if str(error).startswith(name)), None)
            raise ServiceError("invalid", str(error), param=param) from error
        if self.model.truncate_dim is not None and not options.tokens:
            width = min(width, self.model.truncate_dim)
        if options.dimensions is not None:
            if not 1 <= options.dimensions <= width:
                expected = f"expected a number from 1 to {width}, the length of this model's vectors."
                raise wrong("dimensions", f"is {options.dimensions}; {expected}")
            width = options.dimensions
        pipeline = self.model.pipeline
        scaled = options.modules and pipeline.names[-1:] == ("Normalize",)  # the model's vectors have length 1
        if not options.modules:
            pipeline = dataclasses.replace(pipeline, steps=())
        elif scaled and options.normalize is False:
            pipeline = dataclasses.replace(pipeline, steps=pipeline.steps[:-1])
        scale = bool(options.normalize) if not scaled else options.dimensions is not None
        return _Task(task, pipeline, width, scale and options.normalize is not False, prompt_name, model, truncation)

    def _model_of(self, options: TextOptions) -> SentenceTransformer:
        """Return the model, with the limit and the side of a request."""
        model, limit = copy.copy(self.model), options.max_tokens
        model.tokenizer = copy.copy(model.tokenizer)
        least = model.tokenizer.num_special_tokens_to_add() + 1
        if limit not in (None, -1):
            if not least <= limit <= model.max_seq_length:
                expected = f"expected -1 or a number from {least} to {model.max_seq_length}."
                raise wrong("truncate_prompt_tokens", f"is {limit}; {expected}")
            model.max_seq_length = limit
        model.tokenizer.truncation_side = options.side or model.tokenizer.truncation_side
        return model

    def _prompt_of(self, options: TextOptions, default: str | None) -> str | None:
        """Return the name of the prompt that goes before the texts of a request, or None."""
        if options.prompt_name is not None:
            return self.check_prompt(options.prompt_name)
        if options.input_type is None:
            return self.model.default_prompt_name if default is None else default
        if options.input_type not in _PROMPTS_OF:
            known = ", ".join(map(repr, _PROMPTS_OF))
            raise wrong("input_type", f"{options.input_type[:200]!r}; expected one of {known}.")
        return next((name for name in _PROMPTS_OF[options.input_type] if self.model.prompts.get(name)), None)

    # -- tokens

    def _windows(self, chosen: _Task, texts: list[str]) -> list[list[Encoding]]:
        """Tokenize distinct texts."""
        windows, tokenizer, truncation = chosen.task.windows, chosen.model.tokenizer, chosen.truncation
        side, limit = tokenizer.truncation_side, chosen.model.max_seq_length
        if truncation == "split" and max(map(len, texts), default=0) > _MOST_SPLIT:
            raise ServiceError("too_large", f"a text that is split may have {_MOST_SPLIT} characters; send its parts.")
        exact = truncation == "error" and all(len(text) <= COUNTED for text in texts)

        def tokenize(some: list[str], indices: list[int]) -> list[list[Encoding]]:
            parts = in_turns(windows.of(some, indices, exact=exact))
            return [[models.without_rest(one[0])] if len(one) == 1 else one for _, groups in parts for one in groups]

        try:
            if truncation == "mark" and (side == "right" or not windows.num_prompt_tokens):
                shorten = functools.partial(models.enough_of, tokenizer=tokenizer, side=side, limit=limit)
                return models.tokenize_enough(texts, shorten, tokenize, lambda _, group: group[0].n_truncated > 0)
            return tokenize(texts, [*range(len(texts))])
        except ValueError as error:
            raise ServiceError("invalid", str(error)) from error


def encoding_of_ids(
    model: SentenceTransformer, index: int, ids: Sequence[int], add_special_tokens: bool, truncation: str
) -> Encoding:
    """Return the encoding of the token ids of input `index`, cut to the model's limit.

    Ids of another model's tokenizer give vectors without a meaning. LangChain's OpenAIEmbeddings sends such ids. Ids
    are therefore accepted only if they begin with [CLS] and end with [SEP], or if the request says that they do not
    have special tokens.

    Raises
    ------
    ServiceError
        An id is not in the vocabulary, the ids have no special tokens, or there are too many of them for windows.
    """
    tokenizer, size, limit, where = model.tokenizer, model.model.config.vocab_size, model.max_seq_length, f"[{index}]"
    try:
        row = [check_int("id", one) for one in ids]
    except TypeError as error:
        raise ServiceError("invalid", f"input{where}: {error}; expected a str, or token ids.", param="input") from None
    if not row:
        raise ServiceError("invalid", f"input{where} is empty; expected token ids.", param="input")
    bad = next((i for i, one in enumerate(row) if not 0 <= one < size), None)
    if bad is not None:
        message = f"is not a token id of this model; expected numbers from 0 to {size - 1}. {_HINT}"
        raise ServiceError("invalid", f"input{where}[{bad}] {message}", param="input")
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    if row[0] != first or row[-1] != last or len(row) == 1:
        if not add_special_tokens:
            raise ServiceError(
                "invalid",
                f"input{where} is an array of token ids that does not begin with {first} ([CLS]) and end with {last} "
                "([SEP]), so these may be ids of another tokenizer. Send texts. If the ids are of this model, send "
                f'"add_special_tokens": true with them. {_HINT}',
                param="input",
            )
        row = [first, *row, last]
    n_truncated = max(0, len(row) - limit)
    if n_truncated:
        start = n_truncated + 1 if tokenizer.truncation_side == "left" else 1
        row = [row[0], *row[start : start + limit - 2], row[-1]]
    special = np.isin(row, tokenizer.all_special_ids).astype(np.int64)
    encoding = models.encoding_of(np.array(row), special, np.zeros_like(special), n_truncated)
    if n_truncated and truncation == "split":  # windows are made of texts
        raise models.too_long(index, limit, encoding)
    return encoding


def _assemble(chosen: _Task, groups: list[list[Encoding]], rows: list[int], results: list[FloatArray]) -> FloatArray:
    """Return the vectors of a request, float32 (B, width), from those of all its windows."""
    vectors = np.empty((len(groups), chosen.width), dtype=np.float32)
    first = 0
    for i, group in enumerate(groups):
        row = results[first]
        if len(group) > 1:
            of_windows = np.stack(results[first : first + len(group)])
            row = chosen.pipeline.finish(chosen.task.windows.average(of_windows, [group]))[0]
        vectors[i] = row[: chosen.width]
        first += len(group)
    return (normalize_embeddings(vectors) if chosen.scale else vectors)[rows]


def _assemble_tokens(scale: bool, rows: list[int], results: list[FloatArray]) -> list[FloatArray]:
    """Return an array per text of a request, with a row per token."""
    return [normalize_embeddings(results[row]) if scale else results[row] for row in rows]
