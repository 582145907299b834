"""`ServedModel`: a model under the name that clients use. It makes a job for the engine of the texts of a request.

The answers are those of `SentenceTransformer.encode`, of `MultiVectorEncoder`, of `CrossEncoder` and of the pipeline
"text-classification", bit for bit: the same functions compute them.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from minibert._utils.validation import FloatArray
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.multi_vector_encoder import MultiVectorEncoder
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.serving import tokens
from minibert.serving.scheduler import Job
from minibert.serving.settings import ServiceError, Settings, wrong
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_texts
from minibert.tokenizer.windows import TokenWindows

_Model = TypeVar("_Model", SentenceTransformer, MultiVectorEncoder, CrossEncoder)
_Input = TypeVar("_Input", bound=Hashable)


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
    """A `Kind`: a method, and the plan or the model whose method it is. Its results are those of the units."""

    method: Callable[[Any, Sequence[Any]], Iterable[FloatArray]]
    plan: Hashable
    rate_key: Hashable

    def compute(self, units: Sequence[Any], /) -> list[FloatArray]:
        """Compute one result per unit."""
        return [*self.method(self.plan, units)]


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

    # -- parts of `prepare`, in their order

    def check_texts(self, texts: Sequence[Any], field: str) -> None:
        """Raise an error for an input that is not a text."""
        try:
            check_texts(texts, name="")
        except (TypeError, ValueError) as error:
            raise ServiceError("invalid", str(error), param=field, of_param=True) from error

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
        if side is None:
            return windows
        tokenizer = copy.copy(windows.tokenizer)
        tokenizer.truncation_side = side
        return dataclasses.replace(windows, tokenizer=tokenizer)

    def prepared(
        self,
        job: Job,
        windows: TokenWindows,
        groups: Sequence[Sequence[Encoding]],
        rows: list[int],
        field: str,
        *,
        prompt_name: str | None,
        n_characters: int,
        n_numbers: int,
    ) -> Prepared:
        """Return a job and its report; `rows` has the index of the windows in `groups` of each input.

        Raises
        ------
        ServiceError
            The `windows` do not cut texts, and an input is too long. Or the answer has too many numbers.
        """
        lengths = [sum(map(len, group)) for group in groups]
        encodings = [groups[row][0] for row in rows]
        cut = tuple(i for i, row in enumerate(rows) if len(groups[row]) == 1 and encodings[i].n_truncated)
        if cut and windows.truncation == "error":
            raise tokens.too_long(cut[0], windows.max_length, encodings[cut[0]], field)
        n_bytes, used_prompt = 4 * n_numbers, prompt_name if windows.prompt else None  # it may be an empty text
        self.settings.check_number(len(rows), n_bytes)
        n_tokens = tuple(lengths[row] for row in rows)
        return Prepared(job, Report(n_tokens, cut, used_prompt, n_characters, n_bytes, self.compute_type), encodings)


def distinct(inputs: Sequence[_Input]) -> tuple[list[_Input], list[int]]:
    """Return each of the inputs once, and for each input its index among these."""
    indices = {item: i for i, item in enumerate(dict.fromkeys(inputs))}
    return [*indices], [indices[item] for item in inputs]
