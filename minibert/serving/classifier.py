"""A served model that scores: texts, or pairs of texts -> the score of each label.

The scores are those of `CrossEncoder` and of the pipeline "text-classification", bit for bit.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minibert._utils.reproducible_math import softmax
from minibert._utils.validation import FloatArray
from minibert.bert.packed import PackedBatch
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.modules import as_activation
from minibert.serving import models
from minibert.serving.models import COUNTED, Forward, Prepared, ServedModel, wrong
from minibert.serving.reading import in_turns
from minibert.serving.scheduler import Job
from minibert.serving.settings import ServiceError, Settings
from minibert.tasks.text_classification import function_of
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_texts
from minibert.tokenizer.windows import CHARACTERS_AT_ONCE, encode_pairs, in_chunks

_MOST_PAIRED = 2**18  # characters of a text whose pair must be tokenized whole

_Pair = tuple[str, str | None]
_Function = Callable[[FloatArray], FloatArray]


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
class _Score(Forward):
    """The logits of texts and pairs."""

    def compute(self, units: Sequence[Encoding]) -> list[FloatArray]:
        batch = PackedBatch.from_sequences([unit.ids for unit in units], [unit.token_types for unit in units])
        return [*self.model.logits_of(batch)]


class Classifier(ServedModel[CrossEncoder]):
    """A `CrossEncoder` under the name that clients use. It also scores single texts."""

    gives = "scores"

    def __init__(self, name: str, model: CrossEncoder) -> None:
        super().__init__(name, model)
        identity, sigmoid = (as_activation("", name, model.model.ops) for name in ("Identity", "Sigmoid"))
        of_labels: dict[str, _Function] = {
            "none": identity,
            "sigmoid": sigmoid,
            "softmax": lambda logits: softmax(logits).astype(np.float32),
        }
        labels = of_labels[function_of(model.model.config.problem_type, model.num_labels)]
        self._functions: dict[str, _Function] = {"rank": sigmoid, "labels": labels, "raw": identity}

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of the scores."""
        names = self.model.model.config.id2label
        return [names[i] for i in range(self.model.num_labels)]

    def details(self) -> dict[str, Any]:
        """See `ServedModel`."""
        return {"num_labels": self.model.num_labels, **super().details()}

    def model_type(self) -> dict[str, Any]:
        """See `ServedModel`."""
        names = self.labels
        kind = "reranker" if len(names) == 1 else "classifier"
        ids = {str(i): name for i, name in enumerate(names)}
        return {kind: {"id2label": ids, "label2id": {name: i for i, name in enumerate(names)}}}

    def first_job(self, settings: Settings) -> Job:
        """See `ServedModel`."""
        return self.prepare([("minibert " * 60, None)], ScoreOptions(truncation="mark"), settings).job

    def prepare(self, inputs: Sequence[_Pair], options: ScoreOptions, settings: Settings) -> Prepared:
        """Tokenize texts (their second part is None) and pairs, and return their job and report.

        The answer of the job is a float32 array of shape (B, N), with the scores of the N labels.

        Raises
        ------
        ServiceError
            An input or an option is wrong; the message names it.
        """
        num_labels = self.model.num_labels
        n_bytes = 4 * len(inputs) * num_labels
        models.check_number(len(inputs), settings, n_bytes)
        self._check(inputs, options)
        prompt_name = self.model.default_prompt_name
        if options.prompt_name is not None:
            prompt_name = self.check_prompt(options.prompt_name)
        prompt = self.model.prompts[prompt_name] if prompt_name is not None else ""
        distinct = {pair: i for i, pair in enumerate(dict.fromkeys(inputs))}
        rows = [distinct[pair] for pair in inputs]
        truncation = options.truncation or ("error" if settings.truncation == "error" else "mark")
        side = options.side or self.model.tokenizer.truncation_side
        encodings = self._encodings([(prompt + first, second) for first, second in distinct], side, truncation)
        for i, row in enumerate(rows if truncation == "error" else ()):
            if encodings[row].n_truncated:
                raise models.too_long(i, self.model.max_seq_length, encodings[row], options.field)
        function = self._functions[options.scores]
        return self.prepared(
            Job(
                _Score(self.model),
                encodings,
                [*map(len, encodings)],
                lambda results: function(np.array(results, np.float32).reshape(-1, num_labels))[rows],
            ),
            rows,
            [[encoding] for encoding in encodings],
            prompt_name=prompt_name,
            n_characters=sum(map(_size, inputs)),
            n_bytes=n_bytes,
        )

    def _encodings(self, pairs: list[_Pair], side: str, truncation: str) -> list[Encoding]:
        """Tokenize distinct texts and pairs, cut to the model's limit."""
        tokenizer, limit = copy.copy(self.model.tokenizer), self.model.max_seq_length
        tokenizer.truncation_side = side
        enough = functools.partial(models.enough_of, tokenizer=tokenizer, side=side, limit=limit)

        def shorten(pair: _Pair) -> _Pair:
            first, second = pair
            if truncation != "mark":
                return pair
            if second is None:
                return enough(first), None
            return first, enough(second) if side == "right" else second

        def tokenize(some: list[_Pair], _: list[int]) -> list[Encoding]:
            for first, second in some:  # a pair takes much memory
                if second is not None and max(len(first), len(second)) > _MOST_PAIRED:
                    raise ServiceError(
                        "too_large", f"a text of a pair has more than {_MOST_PAIRED} characters; shorten it."
                    )
            exact = all(_size(pair) <= COUNTED for pair in some)
            found = list[Encoding]()
            for part in in_turns([*in_chunks(some, len(some) + 1, _size, CHARACTERS_AT_ONCE)]):
                encodings = encode_pairs(tokenizer, part, range(len(part)), limit, exact=exact)
                found += map(models.without_rest, encodings)
            return found

        return models.tokenize_enough(pairs, shorten, tokenize, _is_sure)

    def _check(self, inputs: Sequence[_Pair], options: ScoreOptions) -> None:
        if options.scores not in self._functions:
            raise wrong("scores", f"{options.scores[:50]!r}; expected 'rank', 'labels' or 'raw'.")
        if options.scores == "rank" and self.model.num_labels != 1:
            raise ServiceError(
                "unsupported",
                f"the model {self.name} has {self.model.num_labels} labels; only a model with one label sorts texts. "
                "/predict gives the scores of all labels.",
            )
        if options.truncation not in (None, "mark", "error"):
            raise wrong("truncate", f"{options.truncation[:50]!r}; expected true, false or 'error'.")
        models.check_side(options.side)
        try:
            check_texts([first for first, _ in inputs], name=options.field)
            check_texts(["" if second is None else second for _, second in inputs], name=options.field)
        except (TypeError, ValueError) as error:
            raise ServiceError("invalid", str(error), param=options.field) from error


def _size(pair: _Pair) -> int:
    return len(pair[0]) + len(pair[1] or "")


def _is_sure(pair: _Pair, encoding: Encoding) -> bool:
    """Say if a text, or pair, whose end was not tokenized has the tokens of the whole.

    The longer text of a pair is cut first. If fewer tokens are kept of the first text than of the second, and not
    because half of an odd number was taken, then the first one is whole, and the rest of the second changes nothing.
    """
    if not encoding.n_truncated or pair[1] is None:
        return bool(encoding.n_truncated)
    second = encoding.token_types == 1
    first_kept = len(encoding) - int(second.sum()) - 2  # [CLS] and [SEP]
    return first_kept + 1 < int(second.sum()) - 1
