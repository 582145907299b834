"""A model of the service: the texts of a request -> the windows that are computed -> its vectors.

The vectors are those of `SentenceTransformer.encode`, bit for bit: the same functions compute them.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.sentence.encoding import EncodeTask, Recipe, pool_encodings, sentence_width, token_vectors
from minibert.sentence.modules import Pipeline
from minibert.sentence.options import EncodeOptions
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving.prepared import (
    COUNTED,
    Ids,
    Prepared,
    Report,
    check_number,
    check_prompt,
    check_result,
    check_side,
    computation_of,
    enough_of,
    without_rest,
)
from minibert.serving.reading import in_turns
from minibert.serving.scheduler import Job, Kind
from minibert.serving.settings import ServiceError, Settings
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_texts
from minibert.tokenizer.windows import TokenWindows
from minibert.vectors.layers import LayerSelection
from minibert.vectors.similarity import normalize_embeddings


class GivenIds:
    """Checks and cuts token ids.

    Ids of another model's tokenizer give vectors without a meaning. LangChain's OpenAIEmbeddings sends such ids. Ids
    are therefore accepted only if they begin with [CLS] and end with [SEP], or if the request says that they do not
    have special tokens.

    Parameters
    ----------
    model : SentenceTransformer
    limit : int
        Most tokens.
    add_special_tokens : bool
        Put [CLS] and [SEP] around ids that do not have them.
    truncation : {"mark", "error", "split"}
        "split" refuses too many ids, because windows are made of texts.
    """

    def __init__(self, model: SentenceTransformer, limit: int, add_special_tokens: bool, truncation: str) -> None:
        tokenizer = model.tokenizer
        self._tokenizer, self._size = tokenizer, model.model.config.vocab_size
        self._first, self._last = tokenizer.cls_token_id, tokenizer.sep_token_id
        self._limit, self._add, self._truncation = limit, add_special_tokens, truncation

    def encoding(self, index: int, ids: Sequence[int]) -> Encoding:
        """Return the encoding of the ids of input `index`.

        Raises
        ------
        ServiceError
            An id is not in the vocabulary, the ids have no special tokens, or there are too many of them.
        """
        if not ids:
            raise ServiceError("invalid", f"input[{index}] is empty; expected token ids.", param="input")
        bad = next((i for i, one in enumerate(ids) if not 0 <= one < self._size), None)
        if bad is not None:
            raise ServiceError(
                "invalid",
                f"input[{index}][{bad}] is not a token id of this model; expected numbers from 0 to {self._size - 1}. "
                f"{_HINT}",
                param="input",
            )
        row = [*ids]
        if row[0] != self._first or row[-1] != self._last or len(row) == 1:
            if not self._add:
                raise ServiceError(
                    "invalid",
                    f"input[{index}] is an array of token ids that does not begin with {self._first} ([CLS]) and end "
                    f"with {self._last} ([SEP]), so these may be ids of another tokenizer. Send texts. If the ids are "
                    f'of this model, send "add_special_tokens": true with them. {_HINT}',
                    param="input",
                )
            row = [self._first, *row, self._last]
        given = len(row)
        if given > self._limit:
            if self._truncation != "mark":
                raise too_long(index, self._limit, given)
            kept = self._limit - 2
            first = given - 1 - kept if self._tokenizer.truncation_side == "left" else 1
            inner = row[first : first + kept]
            row = [row[0], *inner, row[-1]]
        special = np.isin(row, self._tokenizer.all_special_ids).astype(np.int64)
        return Encoding(Ids(np.array(row), special, np.zeros_like(special)), None, given - len(row))


_HINT = "In langchain-openai, check_embedding_ctx_length=False makes the client send texts."


def too_long(index: int, limit: int, given: int, field: str = "input") -> ServiceError:
    """Return the error of an input that is longer than the limit."""
    return ServiceError(
        "too_long", f"{field}[{index}] has {given} tokens; the limit is {limit}.", limit=limit, given=given, param=field
    )


@dataclasses.dataclass(frozen=True)
class Unit:
    """A window; `alone` if its text does not have another one."""

    encoding: Encoding
    alone: bool


@dataclasses.dataclass(frozen=True)
class Embed:
    """Sentence vectors of windows; for a text of one window also the modules after the pooling."""

    model: SentenceTransformer
    recipe: Recipe
    num_prompt_tokens: int
    pipeline: Pipeline

    @property
    def rate_key(self) -> Hashable:
        """See `Kind.rate_key`."""
        return id(self.model)

    def compute(self, units: Sequence[Unit]) -> list[FloatArray]:
        """Compute a vector of each window."""
        encodings = [unit.encoding for unit in units]
        pooled = pool_encodings(self.model.model, self.recipe, encodings, self.num_prompt_tokens)
        rows: list[FloatArray] = [*pooled]
        whole = [i for i, unit in enumerate(units) if unit.alone]
        if whole:
            for i, row in zip(whole, self.pipeline.finish(pooled[whole]), strict=True):
                rows[i] = row
        return rows


@dataclasses.dataclass(frozen=True)
class EmbedTokens:
    """The vectors of all tokens of each window."""

    model: SentenceTransformer
    recipe: Recipe

    @property
    def rate_key(self) -> Hashable:
        """See `Kind.rate_key`."""
        return id(self.model)

    def compute(self, units: Sequence[Unit]) -> list[FloatArray]:
        """Compute an array of each window, with a row per token."""
        return token_vectors(self.model.model, self.recipe, [unit.encoding for unit in units])


@dataclasses.dataclass(frozen=True)
class Assemble:
    """The results of all windows of a request -> its vectors."""

    windows: TokenWindows
    pipeline: Pipeline
    groups: list[list[Encoding]]
    rows: list[int]
    width: int
    scale: bool

    def __call__(self, results: list[FloatArray]) -> FloatArray:
        """Return float32 (B, `width`), a row per text of the request."""
        vectors = np.empty((len(self.groups), self.width), dtype=np.float32)
        first = 0
        for i, group in enumerate(self.groups):
            row = results[first]
            if len(group) > 1:
                of_windows = np.stack(results[first : first + len(group)])
                row = self.pipeline.finish(self.windows.average(of_windows, [group]))[0]
            vectors[i] = row[: self.width]
            first += len(group)
        return (normalize_embeddings(vectors) if self.scale else vectors)[self.rows]


@dataclasses.dataclass(frozen=True)
class AssembleTokens:
    """The results of all texts of a request -> the vectors of each text's tokens."""

    rows: list[int]
    scale: bool

    def __call__(self, results: list[FloatArray]) -> list[FloatArray]:
        """Return an array per text of the request, with a row per token."""
        return [normalize_embeddings(results[row]) if self.scale else results[row] for row in self.rows]


_MOST_MODES = 8  # of pooling, in one request
_MOST_SPLIT = 2**20  # characters of a text that is split into windows
_MOST_TASKS = 64  # that are kept
_TRUNCATION = ("mark", "error", "split")

# What `input_type` means: the prompts to look for, as `encode_query` and `encode_document` do.
_PROMPTS_OF = {
    **dict.fromkeys(("query", "search_query"), ("query",)),
    **dict.fromkeys(("document", "search_document", "passage"), ("document", "passage", "corpus")),
    "classification": ("classification",),
    "clustering": ("clustering",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How the texts of one request become vectors.

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
    low : bool
        Treat a short request as bulk.
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
    low: bool = False


class _Task(NamedTuple):
    """What is done with the texts of requests with the same options."""

    task: EncodeTask
    width: int
    prompt_name: str | None
    model: SentenceTransformer
    limit: int


class ServedModel:
    """A `SentenceTransformer` under the name by which clients ask for it.

    Attributes
    ----------
    name : str
    model : SentenceTransformer
    created : int
        Seconds since 1970.
    compute_type : str
        The numbers that the model multiplies: "float32", "int16", "int8_int16" or "int8".
    """

    gives = "vectors"

    def __init__(self, name: str, model: SentenceTransformer) -> None:
        self.name, self.model, self.created = name, model, int(time.time())
        self.compute_type = model.model.compute_type
        pipeline = model.pipeline
        self._bare = dataclasses.replace(pipeline, steps=())
        self._unscaled = pipeline
        if self.normalizes:
            self._unscaled = dataclasses.replace(pipeline, steps=pipeline.steps[:-1])
        self._from_left = copy.copy(model)
        self._from_left.tokenizer = copy.copy(model.tokenizer)
        self._from_left.tokenizer.truncation_side = "left"
        self._tasks: dict[Hashable, _Task] = {}

    @property
    def normalizes(self) -> bool:
        """Say if the model's own vectors have length 1."""
        return self.model.pipeline.names[-1:] == ("Normalize",)

    def check_default_prompt(self, name: str | None) -> None:
        """Raise a ValueError if the model does not have the service's default prompt."""
        if name is not None and name not in self.model.prompts:
            raise ValueError(f"default_prompt_name={name!r}; the model {self.name} has {[*self.model.prompts]}.")

    def details(self) -> dict[str, Any]:
        """Return what OpenAI's list of models says about this one besides its name."""
        return {
            "embedding_dimension": self.model.get_embedding_dimension(),
            "max_input_length": self.model.max_seq_length,
            **computation_of(self.model.model),
        }

    def model_type(self) -> dict[str, Any]:
        """Return text-embeddings-inference's description of the pooling."""
        return {"embedding": {"pooling": "+".join(self.model.pipeline.pooling)}}

    def first_job(self, settings: Settings) -> Job:
        """Return a job of 60 words, after which the kernels are compiled and the speed is known."""
        return self.prepare(["minibert " * 60], TextOptions(truncation="mark", normalize=True), settings).job

    def prompt_of(self, prompt_name: str | None, input_type: str | None, default: str | None) -> str | None:
        """Return the name of the prompt that goes before the texts of a request, or None.

        Raises
        ------
        ServiceError
            The model does not have the prompt.
        """
        prompts = self.model.prompts
        if prompt_name is not None:
            return self.check_prompt(prompt_name)
        if input_type is not None:
            if input_type not in _PROMPTS_OF:
                raise ServiceError(
                    "invalid",
                    f"input_type {input_type[:200]!r}; expected one of {', '.join(map(repr, _PROMPTS_OF))}.",
                    param="input_type",
                )
            return next((name for name in _PROMPTS_OF[input_type] if prompts.get(name)), None)
        return default if default is not None else self.model.default_prompt_name

    def check_prompt(self, name: str) -> str:
        """Return the name of a prompt; ServiceError if the model does not have it."""
        return check_prompt(name, self.model.prompts)

    def prepare(self, inputs: Sequence[Any], options: TextOptions, settings: Settings) -> Prepared:
        """Tokenize the texts (or check the token ids) of a request, and return its job and report.

        Raises
        ------
        ServiceError
            An input or an option is wrong; the message names it.
        """
        check_number(len(inputs), settings)
        task, width, prompt_name, model, limit = self._task(options, settings)
        truncation = _truncation(options, settings)
        given_ids = bool(len(inputs)) and not isinstance(inputs[0], str)
        if given_ids:
            ids = GivenIds(model, limit, options.add_special_tokens, truncation)
            groups, rows = [[ids.encoding(i, one)] for i, one in enumerate(inputs)], list(range(len(inputs)))
            prompt_name = None
        else:
            try:
                check_texts(inputs)
            except (TypeError, ValueError) as error:
                raise ServiceError("invalid", str(error), param="input") from error
            distinct = {text: i for i, text in enumerate(dict.fromkeys(inputs))}
            rows = [distinct[text] for text in inputs]
            groups = self._windows(model, task.windows, list(distinct), rows, truncation, limit)
        if prompt_name is not None and not model.prompts[prompt_name]:
            prompt_name = None  # an empty text
        units = [Unit(window, len(group) == 1) for group in groups for window in group]
        costs = [max(1, len(unit.encoding)) for unit in units]
        per_group = [sum(map(len, group)) for group in groups]
        result_bytes = 4 * width * (sum(per_group[row] for row in rows) if options.tokens else len(rows))
        check_result(result_bytes, len(rows), settings)
        kind: Kind
        assemble: Callable[[list[Any]], Any]
        if options.tokens:
            kind = EmbedTokens(self.model, task.recipe)
            assemble = AssembleTokens(rows, bool(options.normalize))
        else:
            counted = 0 if task.recipe.include_prompt or given_ids else task.windows.num_prompt_tokens
            pipeline = self._bare
            if options.modules:
                pipeline = self._unscaled if options.normalize is False else self.model.pipeline
            kind = Embed(self.model, task.recipe, counted, pipeline)
            assemble = Assemble(task.windows, pipeline, groups, rows, width, self._scale(options))
        cut = [len(group) == 1 and group[0].n_truncated > 0 for group in groups]
        report = Report(
            tuple(per_group[row] for row in rows),
            tuple(i for i, row in enumerate(rows) if cut[row]),
            prompt_name,
            sum(map(len, inputs)) if not given_ids else 0,
            result_bytes,
            self.compute_type,
        )
        return Prepared(Job(kind, units, costs, assemble, options.low), report)

    def _limit(self, options: TextOptions) -> int:
        most = self.model.max_seq_length
        if options.max_tokens is None or options.max_tokens == -1:
            return most
        least = self.model.tokenizer.num_special_tokens_to_add() + 1
        if not least <= options.max_tokens <= most:
            raise ServiceError(
                "invalid",
                f"truncate_prompt_tokens is {options.max_tokens}; expected -1 or a number from {least} to {most}.",
                param="truncate_prompt_tokens",
            )
        return options.max_tokens

    def _task(self, options: TextOptions, settings: Settings) -> _Task:
        """Check the options of a request, and return what is done with its texts; most requests have the same ones."""
        model = self.model
        key = (options, settings, model.max_seq_length, model.truncate_dim, tuple(model.prompts.items()))
        try:
            known = self._tasks.get(key)
        except TypeError:  # a list is among the options
            return self._new_task(options, settings)
        if known is None:
            known = self._new_task(options, settings)
            if len(self._tasks) >= _MOST_TASKS:
                self._tasks.clear()
            self._tasks[key] = known
        return known

    def _new_task(self, options: TextOptions, settings: Settings) -> _Task:
        prompt_name = self.prompt_of(options.prompt_name, options.input_type, settings.default_prompt_name)
        truncation = _truncation(options, settings)
        check_side(options.side)
        most_layers = self.model.model.config.num_hidden_layers + 1
        for name, value, most in (("layers", options.layers, most_layers), ("pooling", options.pooling, _MOST_MODES)):
            if isinstance(value, list | tuple) and len(value) > most:  # their vectors are concatenated
                raise ServiceError("invalid", f"{name} has {len(value)} items; the limit is {most}.", param=name)
        model = self._from_left if options.side == "left" else self.model
        limit = self._limit(options)
        if limit != model.max_seq_length:
            model = copy.copy(model)
            model.tokenizer = copy.copy(model.tokenizer)
            model.max_seq_length = limit
        chosen = EncodeOptions(
            prompt=self.model.prompts[prompt_name] if prompt_name else "",
            truncation="split" if truncation == "split" else "silent",
            layers=options.layers,
            pooling="none" if options.tokens else options.pooling,
            truncate_dim=options.dimensions,
        )
        try:
            task = model.encode_task(chosen, return_info=False, exact=True)
            if options.tokens or not options.modules:
                width = task.recipe.width(model.model.config.hidden_size)
                if task.recipe.modes == ("none",) and not options.tokens:
                    raise ValueError("pooling 'none' gives a vector per token; ask /embed_all for these.")
            else:
                width = sentence_width(task, None)
        except (TypeError, ValueError) as error:
            param = next((name for name in ("layers", "pooling") if str(error).startswith(name)), None)
            raise ServiceError("invalid", str(error), param=param) from error
        most = width if self.model.truncate_dim is None or options.tokens else min(width, self.model.truncate_dim)
        if options.dimensions is None:
            return _Task(task, most, prompt_name, model, limit)
        if not 1 <= options.dimensions <= most:
            raise ServiceError(
                "invalid",
                f"dimensions is {options.dimensions}; expected a number from 1 to {most}, the length of this model's "
                "vectors.",
                param="dimensions",
            )
        return _Task(task, options.dimensions, prompt_name, model, limit)

    def _windows(
        self,
        model: SentenceTransformer,
        windows: TokenWindows,
        texts: list[str],
        rows: list[int],
        truncation: str,
        limit: int,
    ) -> list[list[Encoding]]:
        first_index = {row: i for i, row in reversed([*enumerate(rows)])}
        indices = [first_index[row] for row in range(len(texts))]
        given, tokenizer = texts, model.tokenizer
        if truncation == "mark" and (tokenizer.truncation_side == "right" or not windows.num_prompt_tokens):
            given = [enough_of(text, tokenizer, limit) for text in texts]
        if truncation == "split" and max(map(len, texts), default=0) > _MOST_SPLIT:
            raise ServiceError("too_large", f"a text that is split may have {_MOST_SPLIT} characters; send its parts.")
        exact = truncation == "error" and all(len(text) <= COUNTED for text in texts)
        groups = self._tokenized(windows, given, indices, truncation, limit, exact)
        unsure = [i for i, group in enumerate(groups) if given[i] is not texts[i] and not group[0].n_truncated]
        whole = self._tokenized(
            windows, [texts[i] for i in unsure], [indices[i] for i in unsure], truncation, limit, exact
        )
        for i, group in zip(unsure, whole, strict=True):
            groups[i] = group
        return groups

    def _tokenized(
        self, windows: TokenWindows, texts: list[str], indices: list[int], truncation: str, limit: int, exact: bool
    ) -> list[list[Encoding]]:
        groups: list[list[Encoding]] = []
        try:
            for _, found in in_turns(windows.of(texts, indices, exact=exact)):
                for group in found:
                    first = group[0]
                    if truncation == "error" and first.n_truncated:
                        raise too_long(indices[len(groups)], limit, len(first) + first.n_truncated)
                    groups.append([without_rest(first)] if len(group) == 1 else group)
        except ValueError as error:
            raise ServiceError("invalid", str(error)) from error
        return groups

    def _scale(self, options: TextOptions) -> bool:
        """Return whether vectors are scaled after the model's own modules."""
        if options.normalize is False:
            return False
        if self.normalizes and options.modules:  # its vectors have length 1 already, unless they are shortened
            return options.dimensions is not None
        return bool(options.normalize)


def _truncation(options: TextOptions, settings: Settings) -> str:
    if options.truncation is not None and options.truncation not in _TRUNCATION:
        raise ServiceError(
            "invalid",
            f"truncate {options.truncation[:50]!r}; expected true, false, 'error' or 'split'.",
            param="truncate",
        )
    if options.tokens and (options.truncation or settings.truncation) == "split":
        if options.truncation is not None:
            raise ServiceError(
                "invalid", "truncate 'split' averages vectors of texts, not of tokens.", param="truncate"
            )
        return "mark"
    return options.truncation or settings.truncation
