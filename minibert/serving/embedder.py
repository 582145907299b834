"""`Embedder`: the texts of a request -> vectors, one for each text, each token or each part of a text."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.encode.options import EncodeOptions
from minibert.encode.plan import Plan, make_plan
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving import tokens
from minibert.serving.scheduler import Job
from minibert.serving.served_model import PlanMethod, Prepared, RequestOptions, ServedModel, distinct
from minibert.serving.settings import ServiceError, Settings, wrong
from minibert.tokenizer.encodings import Encoding
from minibert.vectors.layers import LayerSelection, resolve_layers
from minibert.vectors.similarity import normalize_embeddings

PROMPTS_OF = {
    **dict.fromkeys(("query", "search_query"), ("query",)),
    **dict.fromkeys(("document", "search_document", "passage"), ("document", "passage", "corpus")),
    "classification": ("classification",),
    "clustering": ("clustering",),
}
"""What `input_type` means: the prompts to look for, as `encode_query` and `encode_document` do."""

_MOST_MODES = 8  # of pooling, in one request
_MOST_PLANS = 64  # that are kept


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions(RequestOptions):
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
    late_chunking: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "pooling"):  # options with a list could not be kept
            if isinstance(value := getattr(self, name), list | np.ndarray):
                object.__setattr__(self, name, tuple(value if isinstance(value, list) else value.tolist()))


class Embedder(ServedModel[SentenceTransformer]):
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

    def prepare(self, inputs: Sequence[Any], options: TextOptions) -> Prepared:
        """Tokenize the texts (or check the token ids) of a request, and return its job and report.

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
            add = options.add_special_tokens
            groups = [[tokens.encoding_of_ids(plan, i, ids, add)] for i, ids in enumerate(inputs)]
            rows, n_characters = [*range(len(inputs))], 0
        else:
            self.check_texts(inputs, "input")
            texts, rows = distinct(inputs)
            groups, n_characters = tokens.groups_of(texts, plan.windows), sum(map(len, inputs))
        units = [window for group in groups for window in group]
        kind = PlanMethod(Plan.tokens if options.tokens else Plan.pool, plan, id(model))
        assemble = functools.partial(_token_vectors if options.tokens else _vectors, plan, groups, rows)
        if options.tokens:
            n_numbers = plan.pooled_width * sum(len(groups[row][0]) for row in rows)
        else:  # the pooled vectors are kept until all windows are there
            n_numbers = max(plan.width * len(rows), plan.pooled_width * len(units))
        job = Job(kind, units, [max(1, len(window)) for window in units], assemble)
        return self.prepared(job, plan.windows, groups, rows, "input", prompt_name, n_characters, n_numbers)

    def _prepare_parts(self, parts: Sequence[Any], plan: Plan, prompt_name: str | None) -> Prepared:
        """Return the job of the parts of one text, in order, and its report, which counts them as one text."""
        self.check_texts(parts, "input")
        text, ends, limit = "".join(parts), accumulate(map(len, parts), initial=0), plan.windows.max_length
        (encoding,) = tokens.encodings_of([(text, None)], plan.windows)
        if encoding.n_truncated:
            num_tokens = len(encoding) + encoding.n_truncated
            message = f"the parts have {num_tokens} tokens together; the limit is {limit}. "
            message += "Send fewer, or late_chunking=false."
            raise ServiceError("too_long", message, limit=limit, given=num_tokens, param="input")
        with _blamed_on("input"):
            members = plan.members(encoding, text, pairwise(ends), "input")
        assemble = functools.partial(_vectors, plan, None, [*range(len(parts))])
        job = Job(PlanMethod(Plan.spans, plan, id(self.model)), [(encoding, members)], [len(encoding)], assemble)
        n_numbers = plan.pooled_width * len(parts)
        return self.prepared(job, plan.windows, [[encoding]], [0], "input", prompt_name, len(text), n_numbers)

    # -- options

    def _make_plan(self, options: TextOptions, of_ids: bool, changeable: object) -> tuple[Plan, str | None]:
        """Check the options of a request; return the plan, and the name of the prompt.

        The plan of token ids has no prompt. `changeable` is what else a plan depends on: the settings of the model.
        """
        model, depth = self.model, self.model.config.num_hidden_layers
        if options.truncation == "split" and options.tokens:
            raise wrong("truncate", "'split' averages vectors of texts, not of tokens.")
        if options.truncation == "split" and options.late_chunking:
            raise wrong("truncate", "'split' computes windows, and late_chunking the whole text.")
        truncation = self.truncation(options.truncation, splits=not options.tokens)
        prompt_name = self._prompt_of(options)
        for name, most in (("layers", depth + 1), ("pooling", _MOST_MODES)):
            value = getattr(options, name)
            if isinstance(value, tuple) and len(value) > most:  # their vectors are concatenated
                raise wrong(name, f"has {len(value)} items; the limit is {most}.")
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
        windows = self.cut_at(model.windows(encode_options, self._limit(options.max_tokens)), options.side)
        with _blamed_on("layers"):
            if options.layers is not None:
                resolve_layers(options.layers, depth)
        with _blamed_on("pooling"):
            pipeline = dataclasses.replace(model.pipeline, modules=modules)
            plan = make_plan(model.model, pipeline, windows, encode_options, model.truncate_dim)
            width = plan.pooled_width if options.tokens else plan.width
        if options.dimensions is not None:
            if not 1 <= options.dimensions <= width:
                expected = f"expected a number from 1 to {width}, the length of this model's vectors."
                raise wrong("dimensions", f"is {options.dimensions}; {expected}")
            plan = dataclasses.replace(plan, truncate_dim=options.dimensions)
        return plan, prompt_name

    def _limit(self, asked: int | None) -> int:
        """Return the most tokens of a text."""
        least, most = self.model.tokenizer.num_special_tokens_to_add() + 1, self.model.max_seq_length
        if asked is None or asked == -1:
            return most
        if not least <= asked <= most:
            raise wrong("truncate_prompt_tokens", f"is {asked}; expected -1 or a number from {least} to {most}.")
        return asked

    def _prompt_of(self, options: TextOptions) -> str | None:
        """Return the name of the prompt that goes before the texts of a request, or None."""
        if options.prompt_name is not None:
            return self.check_prompt(options.prompt_name)
        if options.input_type is None:
            default = self.settings.default_prompt_name
            return self.model.default_prompt_name if default is None else default
        if options.input_type not in PROMPTS_OF:
            known = ", ".join(map(repr, PROMPTS_OF))
            raise wrong("input_type", f"{options.input_type[:200]!r}; expected one of {known}.")
        return next((name for name in PROMPTS_OF[options.input_type] if self.model.prompts.get(name)), None)


@contextlib.contextmanager
def _blamed_on(param: str) -> Iterator[None]:
    """Turn an error of the library into an error about a parameter of the request."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ServiceError("invalid", str(error), param=param) from error


def _vectors(
    plan: Plan, groups: Sequence[Sequence[Encoding]] | None, rows: list[int], results: list[FloatArray]
) -> FloatArray:
    """Return the vectors of a request, float32 (B, width), from the pooled ones of all its windows or parts."""
    vectors = plan.vectors(np.array(results, np.float32).reshape(-1, plan.pooled_width), groups)
    if not np.isfinite(vectors).all():
        raise ArithmeticError("a vector is not finite")
    return vectors[rows]


def _token_vectors(
    plan: Plan, groups: Sequence[Sequence[Encoding]], rows: list[int], results: list[FloatArray]
) -> list[FloatArray]:
    """Return an array per text of a request, with a row per token."""
    return [normalize_embeddings(results[row]) if plan.normalize else results[row] for row in rows]
