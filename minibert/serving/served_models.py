"""A served model: the texts of a request -> a job for the engine, whose answer is vectors or scores.

They are those of `SentenceTransformer.encode`, of `CrossEncoder` and of the pipeline "text-classification", bit for
bit: the same functions compute them.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.encode.options import EncodeOptions
from minibert.encode.plan import Plan
from minibert.encode.tokens import TokenPlan
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.multi_vector_encoder import MultiVectorEncoder
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving import tokens
from minibert.serving.reading import in_turns
from minibert.serving.scheduler import Job
from minibert.serving.settings import ServiceError, Settings, Truncation, wrong
from minibert.tasks.text_classification import FUNCTIONS, function_of
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_texts
from minibert.tokenizer.windows import TokenWindows
from minibert.vectors.layers import LayerSelection, resolve_layers
from minibert.vectors.similarity import normalize_embeddings

_MOST_MODES = 8  # of pooling, in one request
_MOST_SPLIT = 2**20  # characters of a text that is split into windows
_MOST_TASKS = 64  # that are kept

_Model = TypeVar("_Model", SentenceTransformer, MultiVectorEncoder, CrossEncoder)


@dataclasses.dataclass(frozen=True)
class Report:
    """A report on the texts of a request: their tokens, the cut texts, the prompt, sizes.

    Parameters
    ----------
    n_tokens : tuple of int
        Tokens of each text that are computed, its prompt and the special tokens included.
    truncated : tuple of int
        Indices of the texts that were cut.
    prompt_name : str or None
        The prompt before each text; None if there is none.
    n_characters : int
        Of all texts.
    n_bytes : int
        Of the answer's numbers.
    compute_type : str
        The numbers that the model multiplies.
    """

    n_tokens: tuple[int, ...]
    truncated: tuple[int, ...]
    prompt_name: str | None
    n_characters: int
    n_bytes: int
    compute_type: str


class Prepared(NamedTuple):
    """The job of a request, the report that goes with its answer, and the first window of each text."""

    job: Job
    report: Report
    encodings: list[Encoding]


class ServedModel(Generic[_Model]):
    """A model under the name that clients use.

    Attributes
    ----------
    name : str
    model : SentenceTransformer, MultiVectorEncoder or CrossEncoder
    created : int
        Seconds since 1970.
    compute_type : str
        The type of numbers that the model multiplies: "float32", "int16", "int8_int16" or "int8".
    """

    gives: ClassVar[str]
    """What its answers are, for messages."""

    def __init__(self, name: str, model: _Model, settings: Settings) -> None:
        self.name, self.created, self.settings = name, int(time.time()), settings
        self.model: _Model = model
        self.compute_type = model.compute_type  # the model looks at all its weights to tell

    def computation(self) -> dict[str, Any]:
        """Return how the model computes, for /info, /v1/models and the metrics."""
        return {name: getattr(self.model.model, name) for name in ("compute_type", "num_threads", "shared_weights")}

    def details(self) -> dict[str, Any]:
        """Return the fields about this model, besides its name, for OpenAI's list of models."""
        return {"max_input_length": self.model.max_seq_length, **self.computation()}

    def check_prompt(self, name: str) -> str:
        """Return the name of a prompt; ServiceError if the model does not have it."""
        if name not in self.model.prompts:
            known = ", ".join(f'"{prompt}"' for prompt in self.model.prompts)  # tei-client reads them from this message
            raise wrong("prompt_name", f"{name[:200]!r} is not a prompt of this model. Available prompts: [{known}]")
        return name

    def tokenizer(self, side: str | None) -> BertTokenizer:
        """Return the tokenizer of a request, which cuts texts at this end; None means the end that it is made for."""
        if side not in (None, "left", "right"):
            raise wrong("truncation_direction", f"{side[:50]!r}; expected 'left' or 'right'.")
        tokenizer = copy.copy(self.model.tokenizer)
        tokenizer.truncation_side = side or tokenizer.truncation_side
        return tokenizer

    def check_texts(self, texts: Sequence[Any], field: str) -> None:
        """Raise an error for an input that is not a text."""
        try:
            check_texts(texts, name="")
        except (TypeError, ValueError) as error:
            raise ServiceError("invalid", str(error), param=field, of_param=True) from error

    def prepared(
        self, job: Job, rows: list[int], groups: list[list[Encoding]], limit: int | None, field: str, **report: Any
    ) -> Prepared:
        """Return a job and its report; `rows` has the index of the windows in `groups` of each input.

        If no text may be cut, `limit` is the largest number of tokens.
        """
        per_group = [sum(map(len, group)) for group in groups]
        encodings = [groups[row][0] for row in rows]
        cut = tuple(i for i, row in enumerate(rows) if len(groups[row]) == 1 and encodings[i].n_truncated)
        if cut and limit is not None:
            raise tokens.too_long(cut[0], limit, encodings[cut[0]], field)
        made = Report(tuple(per_group[row] for row in rows), cut, compute_type=self.compute_type, **report)
        self.settings.check_number(len(rows), made.n_bytes)
        return Prepared(job, made, encodings)


# --- vectors ----------------------------------------------------------------------------------------------------------

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
    late_chunking : bool
        The texts are the parts of one text, which is computed at once: `spans` of `SentenceTransformer.encode`.
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
    late_chunking: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "pooling"):  # options with a list could not be kept
            if isinstance(value := getattr(self, name), list | np.ndarray):
                object.__setattr__(self, name, tuple(value if isinstance(value, list) else value.tolist()))


@dataclasses.dataclass(frozen=True)
class _Embed:
    """Pooled vectors of windows, or vectors of their tokens or spans; a `Kind`. `method` is that of the plan."""

    rate_key: Hashable
    plan: Plan
    method: str

    def compute(self, units: Sequence[Any]) -> list[FloatArray]:
        return [*getattr(self.plan, self.method)(units)]


class _Task(NamedTuple):
    """What is done with the texts of requests with the same options."""

    plan: Plan
    kind: _Embed
    width: int
    prompt_name: str | None
    truncation: str


class Embedder(ServedModel[SentenceTransformer]):
    """A `SentenceTransformer` under the name that clients use."""

    gives = "vectors"

    def __init__(self, name: str, model: SentenceTransformer, settings: Settings) -> None:
        super().__init__(name, model, settings)
        self._task = functools.lru_cache(_MOST_TASKS)(self._make_task)  # most requests have the same options

    def details(self) -> dict[str, Any]:
        """See `ServedModel`."""
        return {"embedding_dimension": self.model.get_embedding_dimension(), **super().details()}

    def prepare(self, inputs: Sequence[Any], options: TextOptions) -> Prepared:
        """Tokenize the texts (or check the token ids) of a request, and return its job and report.

        Raises
        ------
        ServiceError
            An input or an option is wrong; the message names it.
        """
        self.settings.check_number(len(inputs))
        model = self.model
        task = self._task(options, (model.max_seq_length, model.truncate_dim, tuple(model.prompts.items())))
        plan, kind, prompt_name, n_characters = task.plan, task.kind, task.prompt_name, 0
        if options.late_chunking:
            return self._prepare_parts(inputs, task)
        if len(inputs) and not isinstance(inputs[0], str):
            groups = [
                [tokens.encoding_of_ids(plan, i, ids, options.add_special_tokens, task.truncation)]
                for i, ids in enumerate(inputs)
            ]
            kind = dataclasses.replace(kind, plan=dataclasses.replace(kind.plan, num_skipped=0))
            prompt_name, rows = None, [*range(len(inputs))]
        else:
            self.check_texts(inputs, "input")
            n_characters = sum(map(len, inputs))
            distinct = {text: i for i, text in enumerate(dict.fromkeys(inputs))}
            rows = [distinct[text] for text in inputs]
            groups = self._windows(task, [*distinct])
        windows = [window for group in groups for window in group]
        assemble: Callable[[list[Any]], Any] = functools.partial(_assemble, task, groups, rows)
        if options.tokens:
            assemble = functools.partial(_assemble_tokens, plan.normalize, rows)
        vectors = sum(len(groups[row][0]) for row in rows) if options.tokens else len(rows)
        pooled = plan.pooled_width * len(windows)  # kept until all windows are there
        job = Job(kind, windows, [max(1, len(window)) for window in windows], assemble)
        most = plan.windows.max_length if task.truncation == "error" else None
        used_prompt = prompt_name if prompt_name and model.prompts[prompt_name] else None  # it may be an empty text
        size = {"n_characters": n_characters, "n_bytes": 4 * max(task.width * vectors, pooled)}
        return self.prepared(job, rows, groups, most, "input", prompt_name=used_prompt, **size)

    def _prepare_parts(self, parts: Sequence[Any], task: _Task) -> Prepared:
        """Return the job of the parts of one text, in order, and its report, which counts them as one text."""
        self.check_texts(parts, "input")
        plan, text, ends = task.plan, "".join(parts), [*accumulate(map(len, parts), initial=0)]
        windows = plan.windows
        whole = [(windows.prompt + text, None)]
        (encoding,) = tokens.encodings_of(whole, windows.tokenizer, windows.max_length, "error")
        if encoding.n_truncated:
            num_tokens, limit = len(encoding) + encoding.n_truncated, windows.max_length
            message = f"the parts have {num_tokens} tokens together; the limit is {limit}. "
            message += "Send fewer, or late_chunking=false."
            raise ServiceError("too_long", message, limit=limit, given=num_tokens, param="input")
        with _blamed_on("input"):
            members = plan.members(encoding, text, pairwise(ends), "input")
        kind = dataclasses.replace(task.kind, method="spans")
        assemble = functools.partial(_assemble, task, [()] * len(parts), [*range(len(parts))])
        job = Job(kind, [(encoding, members)], [len(encoding)], assemble)
        used_prompt = task.prompt_name if windows.prompt else None
        size = {"n_characters": len(text), "n_bytes": 4 * plan.pooled_width * len(parts)}
        return self.prepared(job, [0], [[encoding]], None, "input", prompt_name=used_prompt, **size)

    # -- options

    def _make_task(self, options: TextOptions, state: object) -> _Task:
        """Check the options of a request; `state` is what else a task depends on."""
        truncation = options.truncation or self.settings.truncation
        if truncation not in get_args(Truncation):
            raise wrong("truncate", f"{truncation[:50]!r}; expected true, false, 'error' or 'split'.")
        if options.tokens and truncation == "split":
            if options.truncation is not None:
                raise wrong("truncate", "'split' averages vectors of texts, not of tokens.")
            truncation = "mark"
        if options.late_chunking and options.truncation == "split":
            raise wrong("truncate", "'split' computes windows, and late_chunking the whole text.")
        prompt_name = self._prompt_of(options)
        for name, most in (("layers", self.model.config.num_hidden_layers + 1), ("pooling", _MOST_MODES)):
            value = getattr(options, name)
            if isinstance(value, tuple) and len(value) > most:  # their vectors are concatenated
                raise wrong(name, f"has {len(value)} items; the limit is {most}.")
        encode_options = EncodeOptions(
            prompt=self.model.prompts[prompt_name] if prompt_name else "",
            truncation="split" if truncation == "split" else "silent",
            layers=options.layers,
            pooling="none" if options.tokens else options.pooling,
        )
        with _blamed_on("layers"):
            if options.layers is not None:
                resolve_layers(options.layers, self.model.config.num_hidden_layers)
        with _blamed_on("pooling"):
            plan = self.model.plan(encode_options)
            steps = plan.pipeline.steps
            # Whether the model's own vectors have length 1: then shorter ones are scaled again.
            scaled = options.modules and not options.tokens and plan.pipeline.names[-1:] == ("Normalize",)
            if not options.modules or options.tokens:
                steps = ()
            elif scaled and options.normalize is False:
                steps = steps[:-1]
            plan = dataclasses.replace(plan, pipeline=dataclasses.replace(plan.pipeline, steps=steps))
            width = plan.pooled_width if options.tokens else plan.width
        if options.normalize is False:
            normalize = False
        elif scaled:
            normalize = options.dimensions is not None
        else:
            normalize = bool(options.normalize)
        windows = self._shorter(plan.windows, options)
        if options.dimensions is not None:
            if not 1 <= options.dimensions <= width:
                expected = f"expected a number from 1 to {width}, the length of this model's vectors."
                raise wrong("dimensions", f"is {options.dimensions}; {expected}")
            width = options.dimensions
        plan = dataclasses.replace(plan, windows=windows, normalize=normalize, truncate_dim=width)
        # How long the vectors are, and whether they are scaled, does not matter to what is computed together.
        computed = dataclasses.replace(plan, truncate_dim=None, normalize=False)
        kind = _Embed(id(self.model), computed, "tokens" if options.tokens else "pool")
        return _Task(plan, kind, width, prompt_name, truncation)

    def _shorter(self, windows: TokenWindows, options: TextOptions) -> TokenWindows:
        """Return windows with the limit and the side of a request."""
        tokenizer, limit = self.tokenizer(options.side), options.max_tokens
        least, most = tokenizer.num_special_tokens_to_add() + 1, windows.max_length
        if limit in (None, -1):
            limit = most
        elif not least <= limit <= most:
            raise wrong("truncate_prompt_tokens", f"is {limit}; expected -1 or a number from {least} to {most}.")
        return dataclasses.replace(windows, tokenizer=tokenizer, max_length=limit)

    def _prompt_of(self, options: TextOptions) -> str | None:
        """Return the name of the prompt that goes before the texts of a request, or None."""
        if options.prompt_name is not None:
            return self.check_prompt(options.prompt_name)
        if options.input_type is None:
            default = self.settings.default_prompt_name
            return self.model.default_prompt_name if default is None else default
        if options.input_type not in _PROMPTS_OF:
            known = ", ".join(map(repr, _PROMPTS_OF))
            raise wrong("input_type", f"{options.input_type[:200]!r}; expected one of {known}.")
        return next((name for name in _PROMPTS_OF[options.input_type] if self.model.prompts.get(name)), None)

    # -- tokens

    def _windows(self, task: _Task, texts: list[str]) -> list[list[Encoding]]:
        """Tokenize distinct texts."""
        windows = task.plan.windows
        if task.truncation != "split":
            whole = [(windows.prompt + text, None) for text in texts]
            encodings = tokens.encodings_of(whole, windows.tokenizer, windows.max_length, task.truncation)
            return [[encoding] for encoding in encodings]
        if max(map(len, texts), default=0) > _MOST_SPLIT:
            raise ServiceError("too_large", f"a text that is split may have {_MOST_SPLIT} characters; send its parts.")
        try:
            return [group for _, groups in in_turns(windows.of(texts, range(len(texts)))) for group in groups]
        except ValueError as error:
            raise ServiceError("invalid", str(error)) from error


@contextlib.contextmanager
def _blamed_on(param: str) -> Iterator[None]:
    """Turn an error of the library into an error about a parameter of the request."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ServiceError("invalid", str(error), param=param) from error


def _assemble(
    task: _Task, groups: Sequence[Sequence[Encoding]], rows: list[int], results: list[FloatArray]
) -> FloatArray:
    """Return the vectors of a request, float32 (B, width), from the pooled ones of all its windows."""
    pooled = np.array(results, np.float32).reshape(-1, task.plan.pooled_width)
    vectors = task.plan.vectors(pooled, groups)
    if not np.isfinite(vectors).all():
        raise ArithmeticError("a vector is not finite")
    return vectors[rows]


def _assemble_tokens(scale: bool, rows: list[int], results: list[FloatArray]) -> list[FloatArray]:
    """Return an array per text of a request, with a row per token."""
    return [normalize_embeddings(results[row]) if scale else results[row] for row in rows]


# --- vectors of tokens, and the scores of late interaction ------------------------------------------------------------

_TASKS = ("query", "document")
_Unit = tuple[int, Encoding]


@dataclasses.dataclass(frozen=True)
class _EmbedTokens:
    """The vectors of the tokens of queries and documents; a `Kind`. A unit is an index in `plans`, and a text."""

    rate_key: Hashable
    plans: tuple[TokenPlan, ...]

    def compute(self, units: Sequence[_Unit]) -> list[FloatArray]:
        arrays: dict[int, FloatArray] = {}
        for which, plan in enumerate(self.plans):
            rows = [i for i, (task, _) in enumerate(units) if task == which]
            arrays |= zip(rows, map(np.asarray, plan.tokens([units[i][1] for i in rows])), strict=True)
        return [arrays[i] for i in range(len(units))]


class TokenEmbedder(ServedModel[MultiVectorEncoder]):
    """A `MultiVectorEncoder` under the name that clients use."""

    gives = "vectors of tokens"

    def details(self) -> dict[str, Any]:
        """See `ServedModel`."""
        return {"embedding_dimension": self.model.get_embedding_dimension(), **super().details()}

    def prepare(self, inputs: Sequence[Any], options: TextOptions | ScoreOptions, query: str | None = None) -> Prepared:
        """Tokenize the texts of a request, and return its job and report.

        The answer of the job is an array (tokens, D) for each text; with a query, the score of each text, (B, 1).

        Raises
        ------
        ServiceError
            An input or an option is wrong; the message names it.
        """
        model, field, width = self.model, getattr(options, "field", "input"), self.model.get_embedding_dimension()
        self.settings.check_number(len(inputs))
        self.check_texts([*inputs, query or ""], field)
        for name in ("dimensions", "max_tokens", "layers", "pooling"):
            if getattr(options, name, None) not in (None, width if name == "dimensions" else None):
                raise wrong(name, "is not for vectors of tokens; leave it out.")
        truncation = options.truncation or ("error" if self.settings.truncation == "error" else "mark")
        if truncation not in ("mark", "error"):
            raise wrong("truncate", f"{truncation[:50]!r}; expected true, false or 'error'.")
        asked: str | None = getattr(options, "input_type", None)
        if asked is not None and asked not in _PROMPTS_OF:
            raise wrong("input_type", f"{asked[:200]!r}; expected 'query' or 'document'.")
        prompt_name = None if options.prompt_name is None else self.check_prompt(options.prompt_name)
        task = 0 if query is None and ("query" in (prompt_name, asked) or asked == "search_query") else 1
        before = None if prompt_name in _TASKS or query is not None else prompt_name  # a task has its own
        scaled = bool(getattr(options, "normalize", False))
        how = EncodeOptions(normalize_embeddings=scaled, truncation="silent", prompt_name=before)
        plans = tuple(model.plan(how, name) for name in _TASKS)
        distinct = {text: i for i, text in enumerate(dict.fromkeys(inputs))}
        rows, units = [distinct[text] for text in inputs], list[_Unit]()
        for which, texts in ((0, [] if query is None else [query]), (task, [*distinct])):
            windows = plans[which].windows
            whole = [(windows.prompt + text, None) for text in texts]
            encodings = tokens.encodings_of(whole, self.tokenizer(options.side), windows.max_length, truncation)
            units += ((which, encoding) for encoding in encodings)

        def assemble(results: list[FloatArray]) -> Any:
            if query is None:
                return [results[row] for row in rows]
            return np.asarray(model.similarity(results[:1], results[1:]))[0][rows, None]

        least, texts_first = (model[0].query_expansion or {"length": 1})["length"], len(units) - len(distinct)
        sizes = [max(1, len(encoding), 0 if which else least) for which, encoding in units]
        numbers = len(rows) if query is not None else width * sum(sizes[texts_first + row] for row in rows)
        job = Job(_EmbedTokens(id(model), plans), units, sizes, assemble)
        groups, most = [[encoding] for _, encoding in units[texts_first:]], plans[task].windows.max_length
        size = {"n_characters": sum(map(len, inputs)) + len(query or ""), "n_bytes": 4 * numbers}
        limit = most if truncation == "error" else None
        return self.prepared(job, rows, groups, limit, field, prompt_name=prompt_name, **size)


# --- scores -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """The options that say how the texts of a request become scores.

    Parameters
    ----------
    scores : {"rank", "labels", "raw"}
        "rank": the sigmoid of the logit of a model with one label. "labels": what config.json means by the logits, as
        in the pipeline "text-classification". "raw": the logits.
    truncation : {"mark", "error"}, optional
        A text or pair that is too long is cut at the end of its longer text, or refused; default: see `Settings`.
    side : {"right", "left"}, optional
        The end where texts are cut; default: the tokenizer's.
    prompt_name : str, optional
        The prompt before the first text of each pair; default: the model's.
    field : str
        The field of the request with the texts, for messages.
    """

    scores: str = "labels"
    truncation: str | None = None
    side: str | None = None
    prompt_name: str | None = None
    field: str = "inputs"


@dataclasses.dataclass(frozen=True)
class _Score:
    """The logits of texts and pairs; a `Kind`."""

    rate_key: Hashable
    model: CrossEncoder

    def compute(self, units: Sequence[Encoding]) -> list[FloatArray]:
        return [*self.model.logits_of(units)]


class Classifier(ServedModel[CrossEncoder]):
    """A `CrossEncoder` under the name that clients use. It also scores single texts."""

    gives = "scores"

    def __init__(self, name: str, model: CrossEncoder, settings: Settings) -> None:
        super().__init__(name, model, settings)
        of_labels = function_of(model.model.config.problem_type, model.num_labels)
        self._functions = {"rank": FUNCTIONS["sigmoid"], "labels": FUNCTIONS[of_labels], "raw": FUNCTIONS["none"]}

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of the scores."""
        return [self.model.model.config.id2label[i] for i in range(self.model.num_labels)]

    def details(self) -> dict[str, Any]:
        """See `ServedModel`."""
        return {"num_labels": self.model.num_labels, **super().details()}

    def prepare(self, inputs: Sequence[tokens.Pair], options: ScoreOptions) -> Prepared:
        """Tokenize texts (their second part is None) and pairs, and return their job and report.

        The answer of the job is a float32 array of shape (B, N), with the scores of the N labels.

        Raises
        ------
        ServiceError
            An input or an option is wrong; the message names it.
        """
        num_labels, model = self.model.num_labels, self.model
        self.settings.check_number(len(inputs))
        if options.scores not in self._functions:
            raise wrong("scores", f"{options.scores[:50]!r}; expected 'rank', 'labels' or 'raw'.")
        if options.scores == "rank" and num_labels != 1:
            message = f"the model {self.name} has {num_labels} labels; only a model with one label sorts texts."
            raise ServiceError("unsupported", f"{message} /predict gives the scores of all labels.")
        if options.truncation not in (None, "mark", "error"):
            raise wrong("truncate", f"{options.truncation[:50]!r}; expected true, false or 'error'.")
        self.check_texts([first for first, _ in inputs], options.field)
        self.check_texts(["" if second is None else second for _, second in inputs], options.field)
        asked = options.prompt_name
        prompt_name = model.default_prompt_name if asked is None else self.check_prompt(asked)
        prompt = model.prompts[prompt_name] if prompt_name is not None else ""
        distinct = {pair: i for i, pair in enumerate(dict.fromkeys(inputs))}
        rows, function = [distinct[pair] for pair in inputs], self._functions[options.scores]
        truncation = options.truncation or ("error" if self.settings.truncation == "error" else "mark")
        pairs = [(prompt + first, second) for first, second in distinct]
        encodings = tokens.encodings_of(pairs, self.tokenizer(options.side), model.max_seq_length, truncation)

        def assemble(results: list[FloatArray]) -> FloatArray:
            scores = function(np.array(results, np.float32).reshape(-1, num_labels))
            return scores.astype(np.float32)[rows]

        job = Job(_Score(id(model), model), encodings, [*map(len, encodings)], assemble)
        groups, used_prompt = [[encoding] for encoding in encodings], prompt_name if prompt else None
        most = model.max_seq_length if truncation == "error" else None
        size = {"n_characters": sum(map(tokens.size_of, inputs)), "n_bytes": 4 * len(inputs) * num_labels}
        return self.prepared(job, rows, groups, most, options.field, prompt_name=used_prompt, **size)
