"""A model of the service that scores: pairs of texts, or texts, -> the score of each label.

The scores are those of `CrossEncoder` and of the pipeline "text-classification", bit for bit.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from minibert._utils.reproducible_math import softmax
from minibert._utils.validation import FloatArray
from minibert.bert.packed import PackedBatch
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.modules import as_activation
from minibert.serving.embedder import too_long
from minibert.serving.prepared import (
    COUNTED,
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
from minibert.serving.scheduler import Job
from minibert.serving.settings import ServiceError, Settings
from minibert.tasks.text_classification import function_of
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_text
from minibert.tokenizer.windows import CHARACTERS_AT_ONCE

_MOST_PAIRED = 2**18  # characters of a text whose pair must be tokenized whole
_SCORE_TRUNCATION = ("mark", "error")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """How the texts of one request become scores.

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
    low : bool
        Treat a short request as a long one.
    """

    scores: str = "labels"
    truncation: str | None = None
    side: str | None = None
    prompt_name: str | None = None
    field: str = "inputs"
    low: bool = False


@dataclasses.dataclass(frozen=True)
class _Score:
    """The logits of texts and pairs."""

    model: CrossEncoder

    @property
    def rate_key(self) -> Hashable:
        return id(self.model)

    def compute(self, units: Sequence[Encoding]) -> list[FloatArray]:
        batch = PackedBatch.from_sequences([unit.ids for unit in units], [unit.token_types for unit in units])
        return [*self.model.logits_of(batch)]


class ServedClassifier:
    """A `CrossEncoder` under the name by which clients ask for it. Its texts may be single ones, too.

    Attributes
    ----------
    name : str
    model : CrossEncoder
    created : int
        Seconds since 1970.
    compute_type : str
        The numbers that the model multiplies: "float32", "int16", "int8_int16" or "int8".
    """

    gives = "scores"

    def __init__(self, name: str, model: CrossEncoder) -> None:
        self.name, self.model, self.created = name, model, int(time.time())
        self.compute_type = model.model.compute_type
        self._from_left = copy.copy(model.tokenizer)
        self._from_left.truncation_side = "left"
        rule = function_of(model.model.config.problem_type, model.num_labels)
        identity, sigmoid = (as_activation("", name, model.model.ops) for name in ("Identity", "Sigmoid"))
        of_labels: dict[str, Callable[[FloatArray], FloatArray]] = {
            "none": identity,
            "sigmoid": sigmoid,
            "softmax": lambda logits: softmax(logits).astype(np.float32),
        }
        self._functions: dict[str, Callable[[FloatArray], FloatArray]] = {
            "rank": sigmoid,
            "labels": of_labels[rule],
            "raw": identity,
        }

    def check_default_prompt(self, name: str | None) -> None:
        """Accept any name, because the service's default prompt is for models that give vectors."""

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of the scores."""
        names = self.model.model.config.id2label
        return [names[i] for i in range(self.model.num_labels)]

    def details(self) -> dict[str, Any]:
        """Return what OpenAI's list of models says about this one besides its name."""
        return {
            "num_labels": self.model.num_labels,
            "max_input_length": self.model.max_seq_length,
            **computation_of(self.model.model),
        }

    def model_type(self) -> dict[str, Any]:
        """Return text-embeddings-inference's description of the head."""
        names = self.labels
        kind = "reranker" if len(names) == 1 else "classifier"
        ids = {str(i): name for i, name in enumerate(names)}
        return {kind: {"id2label": ids, "label2id": {name: i for i, name in enumerate(names)}}}

    def first_job(self, settings: Settings) -> Job:
        """Return a job of 60 words, after which the kernels are compiled and the speed is known."""
        return self.prepare([("minibert " * 60, None)], ScoreOptions(truncation="mark"), settings).job

    def prepare(self, inputs: Sequence[tuple[str, str | None]], options: ScoreOptions, settings: Settings) -> Prepared:
        """Tokenize texts (their second part is None) and pairs, and return their job and report.

        The answer of the job is a float32 array of shape (B, N), with the scores of the N labels.

        Raises
        ------
        ServiceError
            An input or an option is wrong; the message names it.
        """
        check_number(len(inputs), settings)
        self._check(inputs, options)
        check_result(4 * len(inputs) * self.model.num_labels, len(inputs), settings)
        prompt_name = self.model.default_prompt_name
        if options.prompt_name is not None:
            prompt_name = self.check_prompt(options.prompt_name)
        prompt = self.model.prompts[prompt_name] if prompt_name is not None else ""
        distinct = {pair: i for i, pair in enumerate(dict.fromkeys(inputs))}
        rows = [distinct[pair] for pair in inputs]
        truncation = options.truncation or ("error" if settings.truncation == "error" else "mark")
        encodings = self._encodings([*distinct], prompt, options.side, truncation)
        cut = tuple(i for i, row in enumerate(rows) if encodings[row].n_truncated)
        if cut and truncation == "error":
            limit, first = self.model.max_seq_length, encodings[rows[cut[0]]]
            raise too_long(cut[0], limit, len(first) + first.n_truncated, options.field)
        report = Report(
            tuple(len(encodings[row]) for row in rows),
            cut,
            prompt_name if prompt else None,
            sum(len(first) + len(second or "") for first, second in inputs),
            compute_type=self.compute_type,
        )
        assemble = _AssembleScores(rows, self._functions[options.scores])
        return Prepared(Job(_Score(self.model), encodings, [*map(len, encodings)], assemble, options.low), report)

    def _encodings(
        self, pairs: list[tuple[str, str | None]], prompt: str, side: str | None, truncation: str
    ) -> list[Encoding]:
        """Tokenize distinct texts and pairs, cut to the model's limit."""
        tokenizer, limit = self._from_left if side == "left" else self.model.tokenizer, self.model.max_seq_length
        whole = [(prompt + first, second) for first, second in pairs]
        given = whole
        if truncation == "mark":
            given = [(first, second) for first, second in whole]
            for i, (first, second) in enumerate(whole):
                if second is None:
                    given[i] = enough_of(first, tokenizer, limit), None
                elif tokenizer.truncation_side == "right":
                    given[i] = first, enough_of(second, tokenizer, limit)
        _refuse_long_pairs(given)
        found = _tokenized(tokenizer, given, limit)
        shortened = [i for i, one in enumerate(given) if one != whole[i]]
        unsure = [i for i in shortened if not _is_sure(found[i], paired=whole[i][1] is not None)]
        _refuse_long_pairs([whole[i] for i in unsure])
        for i, encoding in zip(unsure, _tokenized(tokenizer, [whole[i] for i in unsure], limit), strict=True):
            found[i] = encoding
        return found

    def _check(self, inputs: Sequence[tuple[str, str | None]], options: ScoreOptions) -> None:
        if options.scores not in self._functions:
            raise ServiceError("invalid", f"scores {options.scores[:50]!r}; expected 'rank', 'labels' or 'raw'.")
        if options.scores == "rank" and self.model.num_labels != 1:
            raise ServiceError(
                "unsupported",
                f"the model {self.name} has {self.model.num_labels} labels; only a model with one label sorts texts. "
                "/predict gives the scores of all labels.",
            )
        if options.truncation is not None and options.truncation not in _SCORE_TRUNCATION:
            raise ServiceError(
                "invalid", f"truncate {options.truncation[:50]!r}; expected true, false or 'error'.", param="truncate"
            )
        check_side(options.side)
        for index, pair in enumerate(inputs):
            for text in pair:
                try:
                    if text is not None:
                        check_text(text, f"{options.field}[{index}]")
                except (TypeError, ValueError) as error:
                    raise ServiceError("invalid", str(error), param=options.field) from error

    def check_prompt(self, name: str) -> str:
        """Return the name of a prompt; ServiceError if the model does not have it."""
        return check_prompt(name, self.model.prompts)


@dataclasses.dataclass(frozen=True)
class _AssembleScores:
    """The logits of the distinct texts of a request -> the scores of all."""

    rows: list[int]
    function: Callable[[FloatArray], FloatArray]

    def __call__(self, results: list[FloatArray]) -> FloatArray:
        return self.function(np.stack(results))[self.rows]


def _refuse_long_pairs(pairs: list[tuple[str, str | None]]) -> None:
    """Refuse pairs that must be tokenized whole, which would take much memory."""
    for first, second in pairs:
        if second is not None and max(len(first), len(second)) > _MOST_PAIRED:
            raise ServiceError("too_large", f"a text of a pair has more than {_MOST_PAIRED} characters; shorten it.")


def _tokenized(tokenizer: BertTokenizer, pairs: list[tuple[str, str | None]], limit: int) -> list[Encoding]:
    """Tokenize single texts and pairs, some at a time."""
    found: dict[int, Encoding] = {}
    for paired in (False, True):
        some = [i for i, (_, second) in enumerate(pairs) if (second is not None) == paired]
        sizes = [len(pairs[i][0]) + len(pairs[i][1] or "") for i in some]
        exact = max(sizes, default=0) <= COUNTED
        for part in in_turns(_parts(some, sizes)):
            seconds = [pairs[i][1] or "" for i in part] if paired else None
            firsts = [pairs[i][0] for i in part]
            encodings = tokenizer.encodings(firsts, seconds, max_length=limit, truncation=True, exact=exact)
            found.update(zip(part, map(without_rest, encodings), strict=True))
    return [found[i] for i in range(len(pairs))]


def _parts(items: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """Yield lists of items that together have about `CHARACTERS_AT_ONCE` characters."""
    part, characters = list[int](), 0
    for item, size in zip(items, sizes, strict=True):
        if part and characters + size > CHARACTERS_AT_ONCE:
            yield part
            part, characters = [], 0
        part.append(item)
        characters += size
    if part:
        yield part


def _is_sure(encoding: Encoding, *, paired: bool) -> bool:
    """Say if a text, or pair, whose end was not tokenized has the tokens of the whole.

    The longer text of a pair is cut first. If fewer tokens are kept of the first text than of the second, and not
    because half of an odd number was taken, then the first one is whole, and the rest of the second changes nothing.
    """
    if not encoding.n_truncated or not paired:
        return bool(encoding.n_truncated)
    second = encoding.token_types == 1
    first_kept = len(encoding) - int(second.sum()) - 2  # [CLS] and [SEP]
    return first_kept + 1 < int(second.sum()) - 1
