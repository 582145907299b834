"""The served models by name, and the base class of models for vectors and for scores."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from minibert._utils.validation import Int64Array
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving.scheduler import Job
from minibert.serving.settings import ErrorKind, ServiceError, Settings
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding, RawEncoding

_MOST_WHOLE = 2**20  # characters of a text that cannot be cut at a space
_CHARACTERS_PER_TOKEN = 8  # English has 4 to 5, with its spaces

COUNTED = 2**16
"""Characters. The tokens of a longer text are not counted to its end only to refuse it."""

_Model = TypeVar("_Model", SentenceTransformer, CrossEncoder)
_Text = TypeVar("_Text")
_Tokens = TypeVar("_Tokens")


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
    """The job of a request, and the report that goes with its answer."""

    job: Job
    report: Report


class ServedModel(Generic[_Model]):
    """A model under the name that clients use.

    Attributes
    ----------
    name : str
    model : SentenceTransformer or CrossEncoder
    created : int
        Seconds since 1970.
    compute_type : str
        The type of numbers that the model multiplies: "float32", "int16", "int8_int16" or "int8".
    """

    gives: ClassVar[str]
    """What its answers are, for messages."""

    def __init__(self, name: str, model: _Model) -> None:
        self.name, self.created = name, int(time.time())
        self.model: _Model = model
        self.compute_type = model.compute_type  # the model looks at all its weights to tell

    def computation(self) -> dict[str, Any]:
        """Return how the model computes, for /info, /v1/models and the metrics."""
        names = ("compute_type", "num_threads", "shared_weights")
        return {name: getattr(self.model.model, name) for name in names}

    def details(self) -> dict[str, Any]:
        """Return the fields about this model, besides its name, for OpenAI's list of models."""
        return {"max_input_length": self.model.max_seq_length, **self.computation()}

    def model_type(self) -> dict[str, Any]:
        """Return text-embeddings-inference's description of the model."""
        raise NotImplementedError

    def first_job(self, settings: Settings) -> Job:
        """Return a job of 60 words, after which the kernels are compiled and the speed is known."""
        raise NotImplementedError

    def check_prompt(self, name: str) -> str:
        """Return the name of a prompt; ServiceError if the model does not have it."""
        if name not in self.model.prompts:
            known = ", ".join(f'"{one}"' for one in self.model.prompts)  # tei-client reads the names from this message
            raise wrong("prompt_name", f"{name[:200]!r} is not a prompt of this model. Available prompts: [{known}]")
        return name

    def prepared(
        self,
        job: Job,
        rows: Sequence[int],
        groups: Sequence[Sequence[Encoding]],
        *,
        prompt_name: str | None,
        n_characters: int,
        n_bytes: int,
    ) -> Prepared:
        """Return a job and its report; `rows` has the index of the windows in `groups` of each input."""
        per_group = [sum(map(len, group)) for group in groups]
        cut = [len(group) == 1 and group[0].n_truncated > 0 for group in groups]
        n_tokens, truncated = tuple(per_group[row] for row in rows), tuple(i for i, row in enumerate(rows) if cut[row])
        if prompt_name is not None and not self.model.prompts[prompt_name]:
            prompt_name = None  # an empty text
        return Prepared(job, Report(n_tokens, truncated, prompt_name, n_characters, n_bytes, self.compute_type))


@dataclasses.dataclass(frozen=True)
class Forward:
    """A `Kind` of computation with one model; its speed depends only on the model."""

    model: Any

    @property
    def rate_key(self) -> Hashable:
        """See `Kind.rate_key`."""
        return id(self.model)


_Served = TypeVar("_Served", bound=ServedModel[Any])


class ModelsByName(dict[str, ServedModel[Any]]):
    """The models that are served; the first one of each class is the default for vectors, and for scores.

    Parameters
    ----------
    models : iterable of ServedModel
    any_name : bool
        A name that no model has means the first model.
    """

    def __init__(self, models: Iterable[ServedModel[Any]], *, any_name: bool) -> None:
        super().__init__({served.name: served for served in models})
        self._any_name = any_name

    def knows(self, name: str) -> bool:
        """Return whether `name` is a model's name as for `served`; `any_name` does not matter."""
        return name == "default" or self._find(name) is not None

    def served(self, name: str | None = None) -> ServedModel[Any]:
        """Return the model with this name, its last part ("org/name" has "name"), "default" or None.

        Raises
        ------
        ServiceError
            There is no such model.
        """
        if name is None or name == "default" or (self._any_name and not self.knows(name)):
            return next(iter(self.values()))
        found = self._find(name)
        if found is None:
            known = ", ".join(map(repr, self))
            raise ServiceError(
                "model", f"the model {name[:200]!r} is not served here; expected {known}.", param="model"
            )
        return found

    def of(
        self, kind: type[_Served], name: str | None = None, best: Callable[[_Served], bool] = lambda served: True
    ) -> _Served:
        """Return a model of a class; the name is as for `served`.

        If the name does not choose a model, it is the first one of the class, or the first one that is the best.

        Raises
        ------
        ServiceError
            There is no such model, or it is not of the class.
        """
        found = self.served(name)
        if name is not None and self._find(name) is not None and isinstance(found, kind):
            return found
        some = [served for served in self.values() if isinstance(served, kind)]
        if not some or (name is not None and self._find(name) is not None):
            raise ServiceError(
                "unsupported",
                f"the model {found.name} gives {found.gives} of texts; this route needs a model that gives "
                f"{kind.gives}{f', such as {some[0].name}' if some else ''}.",
            )
        return next(filter(best, some), some[0])

    def _find(self, name: str) -> ServedModel[Any] | None:
        """Return the model with a name; "name" and "org/name" are the same, "other/name" is another one."""
        if name in self:
            return self[name]
        organisation, _, last = name.rpartition("/")
        for key, served in self.items():
            own, _, own_last = key.rpartition("/")
            if last == own_last and not (organisation and own):
                return served
        return None


# --- texts and errors -------------------------------------------------------------------------------------------------


def wrong(field: str, text: str, *, kind: ErrorKind = "invalid") -> ServiceError:
    """Return the error about a field of a request; its message is the field's name and `text`."""
    return ServiceError(kind, f"{field} {text}", param=field)


def too_long(index: int, limit: int, encoding: Encoding, field: str = "input") -> ServiceError:
    """Return the error about an input that is longer than the limit; `encoding` is the input after the cut."""
    given = len(encoding) + encoding.n_truncated
    return ServiceError(
        "too_long", f"{field}[{index}] has {given} tokens; the limit is {limit}.", limit=limit, given=given, param=field
    )


def check_number(number: int, settings: Settings, n_bytes: int = 0) -> None:
    """Raise an error for a request with too many inputs, or with an answer that needs too much memory."""
    if number > settings.max_inputs:
        raise ServiceError(
            "too_many",
            f"the request has {number} inputs; the limit is {settings.max_inputs}. Send them in several requests.",
        )
    if n_bytes > settings.max_result_bytes:
        raise ServiceError(
            "too_large",
            f"the numbers of the {number} inputs take {n_bytes} bytes; the limit is {settings.max_result_bytes}. Send "
            "fewer at once.",
        )


def check_side(side: str | None) -> None:
    """Raise an error for a side that is neither "left" nor "right"."""
    if side not in (None, "left", "right"):
        raise wrong("truncation_direction", f"{side[:50]!r}; expected 'left' or 'right'.")


@dataclasses.dataclass(frozen=True, eq=False)
class _Ids:
    """What the service reads of the library's encodings."""

    ids: Int64Array
    special_tokens_mask: Int64Array
    type_ids: Int64Array

    def __len__(self) -> int:
        return len(self.ids)


def encoding_of(ids: Int64Array, special: Int64Array, types: Int64Array, n_truncated: int) -> Encoding:
    """Return an encoding of tokens if only their ids are known."""
    return Encoding(cast(RawEncoding, _Ids(ids, special, types)), None, n_truncated)


def without_rest(encoding: Encoding) -> Encoding:
    """Return a copy of an encoding that does not keep truncated tokens in memory."""
    if not encoding.n_truncated:
        return encoding
    return encoding_of(encoding.ids, encoding.special_tokens_mask, encoding.token_types, encoding.n_truncated)


def enough_of(text: str, tokenizer: BertTokenizer, side: str, limit: int) -> str:
    """Return a part of a long text, from the side that is kept, that should have more than `limit` tokens.

    It ends where the tokenizer can cut the text with any text beside it. So if this part is cut to `limit` tokens, they
    are those of the whole text; if not, the whole text must be tokenized.
    """
    most = _CHARACTERS_PER_TOKEN * limit
    if len(text) <= most:
        return text
    place = tokenizer.last_cut(text[:-most] if side == "left" else text[:most])
    if place is None:
        if len(text) > _MOST_WHOLE:
            raise ServiceError("too_large", f"a text of {len(text)} characters has hardly any spaces; send less of it.")
        return text
    return text[place:] if side == "left" else text[:place]


def tokenize_enough(
    whole: list[_Text],
    shorten: Callable[[_Text], _Text],
    tokenize: Callable[[list[_Text], list[int]], list[_Tokens]],
    is_sure: Callable[[_Text, _Tokens], bool],
) -> list[_Tokens]:
    """Tokenize a part of each text, and then whole texts if their part does not decide their tokens.

    `tokenize` gets texts and their indices.
    """
    given = [shorten(text) for text in whole]
    found = tokenize(given, [*range(len(whole))])
    unsure = [i for i, text in enumerate(given) if text != whole[i] and not is_sure(text, found[i])]
    if unsure:
        for i, tokens in zip(unsure, tokenize([whole[i] for i in unsure], unsure), strict=True):
            found[i] = tokens
    return found
