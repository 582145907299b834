"""A served model: the texts of a request -> a job for the engine, whose answer is vectors or scores.

`ServedModel` is the base class, `TextEmbedder` gives vectors; token_embedder.py and classifier.py have the other two.
Their answers are those of `SentenceTransformer.encode`, of `MultiVectorEncoder`, of `CrossEncoder` and of the pipeline
"text-classification", bit for bit: the same functions compute them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.encode.options import EncodeOptions
from minibert.encode.plan import Plan, make_plan
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.multi_vector_encoder import MultiVectorEncoder
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving.scheduler import Job
from minibert.serving.settings import ServiceError, Settings, blamed_on, wrong
from minibert.serving.tokens import MOST_CHARACTERS, Tokenized, tokenized, tokens_of_ids, too_long
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_texts
from minibert.tokenizer.windows import TokenWindows
from minibert.vectors.layers import LayerSelection, resolve_layers
from minibert.vectors.similarity import normalize_embeddings

_Model = TypeVar("_Model", SentenceTransformer, MultiVectorEncoder, CrossEncoder)


@dataclasses.dataclass(frozen=True)
class Usage:
    """What the texts of a request took: their tokens, the cut texts, the prompt, sizes.

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
        Of the numbers that are kept until the answer is written.
    compute_type : str
        The numbers that the model multiplies.
    fingerprint : str
        That of the model.
    """

    n_tokens: tuple[int, ...]
    truncated: tuple[int, ...]
    prompt_name: str | None
    n_characters: int
    n_bytes: int
    compute_type: str
    fingerprint: str


class Prepared(NamedTuple):
    """The job of a request, the usage that goes with its answer, and the first window of each text."""

    job: Job
    usage: Usage
    encodings: list[Encoding]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """The options that requests for vectors and for scores have.

    Parameters
    ----------
    truncation : {"mark", "error", "split"}, optional
        See `Settings`. "split" is only for vectors of texts.
    side : {"right", "left"}, optional
        The end where a text is cut; default: the tokenizer's. Of a pair, the longer text is cut.
    prompt_name : str, optional
        Default: the model's.
    """

    truncation: str | None = None
    side: str | None = None
    prompt_name: str | None = None


class PlanMethod(NamedTuple):
    """A `Kind`: a function of (owner, units) with a result for each unit; the owner is a plan, a model or None."""

    method: Callable[[Any, Sequence[Any]], Iterable[FloatArray]]
    owner: Hashable
    rate_key: Hashable

    def compute(self, units: Sequence[Any], /) -> list[FloatArray]:
        """Compute one result per unit."""
        return [*self.method(self.owner, units)]


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
    fingerprint : str
        That of the model, as it was when it was given to the engine.
    """

    gives: ClassVar[str]
    """What its answers are, for messages."""

    def __init__(self, name: str, model: _Model, settings: Settings) -> None:
        self.name, self.created, self.settings = name, int(time.time()), settings
        self.model: _Model = model
        self.compute_type = model.compute_type  # the model looks at all its weights to tell
        self.fingerprint = model.fingerprint()

    def computation(self) -> dict[str, Any]:
        """Return how the model computes, for /info, /v1/models and the metrics."""
        return {name: getattr(self.model.model, name) for name in ("compute_type", "num_threads", "shared_weights")}

    def details(self) -> dict[str, Any]:
        """Return the fields about this model, besides its name, for OpenAI's list of models."""
        how = {"max_input_length": self.model.max_seq_length, **self.computation()}
        return {**how, "fingerprint": self.fingerprint}

    # -- parts of `prepare`, in their order

    def check_texts(self, texts: Sequence[Any], field: str) -> None:
        """Raise an error for an input that is not a text."""
        for index, text in enumerate(texts):
            if isinstance(text, list):  # what a request has instead
                raise ServiceError("invalid", f"[{index}] is a list; send a text.", param=field, of_param=True)
        with blamed_on(field, of_param=True):
            check_texts(texts, name="")

    def check_prompt(self, name: str) -> str:
        """Return the name of a prompt; ServiceError if the model does not have it."""
        if name not in self.model.prompts:
            known = ", ".join(f'"{prompt}"' for prompt in self.model.prompts)  # tei-client reads them from this message
            raise wrong("prompt_name", f"{name[:200]!r} is not a prompt of this model. Available prompts: [{known}]")
        return name

    def truncation(self, asked: str | None, *, splits: bool = False) -> str:
        """Return what happens to texts that are too long, in the words of `TokenWindows`: "mark" is "silent" there.

        If a request asks for nothing, it is what the settings say; "split" of the settings counts only with `splits`.
        """
        usual = self.settings.truncation if splits or self.settings.truncation != "split" else "mark"
        truncation = usual if asked is None else asked
        if truncation not in ("mark", "error", *["split"] * splits):
            expected = "true, false, 'error' or 'split'" if splits else "true, false or 'error'"
            raise wrong("truncate", f"{truncation[:50]!r}; expected {expected}.")
        return "silent" if truncation == "mark" else truncation

    def cut_at(self, windows: TokenWindows, side: str | None) -> TokenWindows:
        """Return windows that cut texts at this end; None means the end that the tokenizer is made for."""
        if side not in (None, "left", "right"):
            raise wrong("truncation_direction", f"{side[:50]!r}; expected 'left' or 'right'.")
        tokenizer = copy.copy(windows.tokenizer)
        tokenizer.truncation_side, tokenizer.most_characters = side or tokenizer.truncation_side, MOST_CHARACTERS
        return dataclasses.replace(windows, tokenizer=tokenizer)

    def with_usage(self, job: Job, tokens: Tokenized, field: str, prompt_name: str | None, n_numbers: int) -> Prepared:
        """Return a job, its usage, and the first window of each input.

        Raises
        ------
        ServiceError
            An input is too long, and the windows do not cut texts. Or the answer has too many numbers.
        """
        groups, windows = [tokens.groups[row] for row in tokens.rows], tokens.windows
        cut = tuple(i for i, group in enumerate(groups) if len(group) == 1 and group[0].n_truncated)
        if cut and windows.truncation != "silent":  # with "split" they are token ids, and windows are made of texts
            raise too_long(cut[0], windows.max_length, groups[cut[0]][0], field)
        n_tokens, n_bytes = tuple(sum(map(len, group)) for group in groups), 4 * n_numbers
        self.settings.check_number(len(groups), n_bytes)
        used_prompt = prompt_name if windows.prompt else None  # it may be an empty text
        usage = Usage(n_tokens, cut, used_prompt, tokens.n_characters, n_bytes, self.compute_type, self.fingerprint)
        return Prepared(job, usage, [group[0] for group in groups])


# --- vectors ----------------------------------------------------------------------------------------------------------

_JINA = ("retrieval.query", "retrieval.passage")
PROMPTS_OF = {
    **dict.fromkeys(("query", "search_query", _JINA[0]), ("query", _JINA[0])),
    **dict.fromkeys(("document", "search_document", "passage", _JINA[1]), ("document", "passage", "corpus", _JINA[1])),
    **{task: (task,) for task in ("classification", "clustering", "separation", "text-matching")},
}
"""What `input_type` and `task` mean: the prompts to look for, as `encode_query` and `encode_document` do."""

_MOST_MODES = 8  # of pooling, in one request
_MOST_PLANS = 64  # that are kept


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorOptions(RequestOptions):
    """The options that say how the texts of a request become vectors.

    Parameters
    ----------
    normalize : bool, optional
        True: scale the vectors to length 1; False: leave out the model's own scaling. Default: as the model does.
    dimensions : int, optional
        Keep the first features, and scale them to length 1 where the whole vectors are.
    max_tokens : int, optional
        A limit below the model's; -1 means the model's.
    input_type : str, optional
        "query", "document" or Cohere's spellings: the prompt that the model has for it.
    layers, pooling : as in `SentenceTransformer.encode`
    modules : bool
        False: the pooled vectors, without the modules after the pooling.
    tokens : bool
        A vector per token.
    add_special_tokens : bool
        Put [CLS] and [SEP] around token ids that do not have them.
    prompted : bool
        False: no prompt, also if the model or the service has a default one.
    late_chunking : bool
        The texts are the parts of one text, which is computed at once: `spans` of `SentenceTransformer.encode`.
    """

    normalize: bool | None = None
    dimensions: int | None = None
    max_tokens: int | None = None
    input_type: str | None = None
    layers: LayerSelection | None = None
    pooling: str | Sequence[str] | None = None
    modules: bool = True
    tokens: bool = False
    add_special_tokens: bool = False
    prompted: bool = True
    late_chunking: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "pooling"):  # options with a list could not be kept
            if isinstance(value := getattr(self, name), list | np.ndarray):
                object.__setattr__(self, name, tuple(value if isinstance(value, list) else value.tolist()))


class TextEmbedder(ServedModel[SentenceTransformer]):
    """A `SentenceTransformer` under the name that clients use."""

    gives = "vectors"

    def __init__(self, name: str, model: SentenceTransformer, settings: Settings) -> None:
        super().__init__(name, model, settings)
        prompt_name = settings.default_prompt_name
        if prompt_name is not None and prompt_name not in model.prompts:
            raise ValueError(f"default_prompt_name={prompt_name!r}; the model {name} has {[*model.prompts]}.")
        self._plan = functools.lru_cache(_MOST_PLANS)(self._make_plan)  # most requests have the same options

    def details(self) -> dict[str, Any]:
        """See `ServedModel`."""
        return {"embedding_dimension": self.model.get_embedding_dimension(), **super().details()}

    def prepare(self, inputs: Sequence[Any], options: VectorOptions) -> Prepared:
        """Tokenize the texts (or check the token ids) of a request, and return its job and usage.

        Raises
        ------
        ServiceError
            An input or an option is wrong; the message names it.
        """
        self.settings.check_number(len(inputs))
        model, of_ids = self.model, len(inputs) > 0 and not isinstance(inputs[0], str)
        changeable = (model.pipeline, model.max_seq_length, model.truncate_dim, model.default_prompt_name)
        plan, prompt_name = self._plan(options, of_ids, (*changeable, *model.prompts.items()))
        if options.late_chunking:
            return self._prepare_parts(inputs, plan, prompt_name)
        if of_ids:
            tokens = tokens_of_ids(inputs, plan, options.add_special_tokens)
        else:
            self.check_texts(inputs, "input")
            tokens = tokenized(inputs, plan.windows)
        units = [window for group in tokens.groups for window in group]
        kind = PlanMethod(Plan.tokens if options.tokens else Plan.pool_windows, plan, id(model))
        assemble = functools.partial(_vectors_of_tokens if options.tokens else _vectors, plan, tokens)
        if options.tokens:
            n_numbers = plan.pooled_width * sum(len(tokens.groups[row][0]) for row in tokens.rows)
        else:  # the pooled vectors are kept until all windows are there
            n_numbers = max(plan.width * len(tokens.rows), plan.pooled_width * len(units))
        job = Job(kind, units, [max(1, len(window)) for window in units], assemble)
        return self.with_usage(job, tokens, "input", prompt_name, n_numbers)

    def _prepare_parts(self, parts: Sequence[Any], plan: Plan, prompt_name: str | None) -> Prepared:
        """Return the job of the parts of one text, in order, and its usage, which counts them as one text."""
        self.check_texts(parts, "input")
        text, ends, limit = "".join(parts), accumulate(map(len, parts), initial=0), plan.windows.max_length
        tokens = tokenized([text], plan.windows)
        [[encoding]] = tokens.groups
        if encoding.n_truncated:
            num_tokens = len(encoding) + encoding.n_truncated
            message = f"the parts have {num_tokens} tokens together; the limit is {limit}. "
            message += "Send fewer, or late_chunking=false."
            raise ServiceError("too_long", message, limit=limit, given=num_tokens, param="input")
        with blamed_on("input"):
            members = plan.members(encoding, text, pairwise(ends), "input")
        assemble = functools.partial(_vectors, plan, None)
        job = Job(PlanMethod(Plan.spans, plan, id(self.model)), [(encoding, members)], [len(encoding)], assemble)
        return self.with_usage(job, tokens, "input", prompt_name, plan.pooled_width * len(parts))

    # -- options

    def _make_plan(self, options: VectorOptions, of_ids: bool, changeable: object) -> tuple[Plan, str | None]:
        """Return the plan of requests with these options, and the name of its prompt; ServiceError if one is wrong.

        The plan of token ids has no prompt. `changeable` is what else a plan depends on: the settings of the model.
        """
        model = self.model
        self._check(options)
        truncation = self.truncation(options.truncation, splits=not options.tokens)
        prompt_name = self._prompt_of(options)
        modules = model.pipeline.modules if options.modules and not options.tokens else ()
        # If the model scales its vectors to length 1, shorter ones are scaled again.
        scales = [module.kind for module in modules[-1:]] == ["Normalize"]
        if scales and options.normalize is False:
            modules, scales = modules[:-1], False
        encode_options = EncodeOptions(
            prompt="" if of_ids or prompt_name is None else model.prompts[prompt_name],
            truncation="error" if options.late_chunking else truncation,
            layers=options.layers,
            pooling="none" if options.tokens else options.pooling,
            normalize_embeddings=options.dimensions is not None if scales else bool(options.normalize),
        )
        limit = None if options.max_tokens == -1 else options.max_tokens
        windows = self.cut_at(model.windows(encode_options, limit), options.side)
        with blamed_on("pooling"):
            pipeline = dataclasses.replace(model.pipeline, modules=modules)
            plan = make_plan(model.model, pipeline, windows, encode_options, model.truncate_dim)
            width = plan.pooled_width if options.tokens else plan.width
        if options.dimensions is not None:
            if not 1 <= options.dimensions <= width:
                expected = f"expected a number from 1 to {width}, the length of this model's vectors."
                raise wrong("dimensions", f"is {options.dimensions}; {expected}")
            if options.tokens and options.dimensions != width:
                raise wrong("dimensions", "is not for vectors of tokens; leave it out.")
            plan = dataclasses.replace(plan, truncate_dim=options.dimensions)
        return plan, prompt_name

    def _check(self, options: VectorOptions) -> None:
        """Refuse options that are wrong by themselves."""
        if options.truncation == "split" and (options.tokens or options.late_chunking):
            raise wrong("truncate", "'split' computes windows: not for vectors of tokens, and not with late_chunking.")
        for name, most in (("layers", self.model.config.num_hidden_layers + 1), ("pooling", _MOST_MODES)):
            value = getattr(options, name)
            if isinstance(value, tuple) and len(value) > most:  # their vectors are concatenated
                raise wrong(name, f"has {len(value)} items; the limit is {most}.")
        with blamed_on("layers"):
            if options.layers is not None:
                resolve_layers(options.layers, self.model.config.num_hidden_layers)
        least, most = self.model.tokenizer.num_special_tokens_to_add() + 1, self.model.max_seq_length
        if options.max_tokens not in (None, -1) and not least <= options.max_tokens <= most:
            expected = f"expected -1 or a number from {least} to {most}."
            raise wrong("truncate_prompt_tokens", f"is {options.max_tokens}; {expected}")

    def _prompt_of(self, options: VectorOptions) -> str | None:
        """Return the name of the prompt that goes before the texts of a request, or None."""
        if not options.prompted:
            return None
        if options.prompt_name is not None:
            return self.check_prompt(options.prompt_name)
        if options.input_type is None:
            default = self.settings.default_prompt_name
            return self.model.default_prompt_name if default is None else default
        if options.input_type not in PROMPTS_OF:
            known = ", ".join(map(repr, PROMPTS_OF))
            raise wrong("input_type", f"{options.input_type[:200]!r}; expected one of {known}.")
        return next((name for name in PROMPTS_OF[options.input_type] if self.model.prompts.get(name)), None)


def _vectors(plan: Plan, tokens: Tokenized | None, results: list[FloatArray]) -> FloatArray:
    """Return the vectors of a request, float32 (B, width), from pooled ones: of windows; without `tokens`, of parts."""
    groups = None if tokens is None else tokens.groups
    vectors = plan.vectors(np.array(results, np.float32).reshape(-1, plan.pooled_width), groups)
    if not np.isfinite(vectors).all():
        raise ArithmeticError("a vector is not finite")
    return vectors if tokens is None else vectors[tokens.rows]


def _vectors_of_tokens(plan: Plan, tokens: Tokenized, results: list[FloatArray]) -> list[FloatArray]:
    """Return an array per text of a request, with a row per token."""
    return [normalize_embeddings(results[row]) if plan.normalize else results[row] for row in tokens.rows]
