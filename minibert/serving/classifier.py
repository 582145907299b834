"""`Classifier`: the texts and pairs of a request -> scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.encode.options import WindowOptions
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.serving.scheduler import Job
from minibert.serving.served_models import PlanMethod, Prepared, RequestOptions, ServedModel
from minibert.serving.settings import ServiceError, Settings, wrong
from minibert.serving.tokens import tokenized
from minibert.tasks.text_classification import FUNCTIONS, function_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreOptions(RequestOptions):
    """The options that say how the texts of a request become scores.

    Parameters
    ----------
    scores : {"rank", "labels", "raw"}
        "rank": the sigmoid of the logit of a model with one label. "labels": what config.json means by the logits, as
        in the pipeline "text-classification". "raw": the logits.
    field : str
        The field of the request with the texts, for messages.
    """

    scores: str = "labels"
    field: str = "inputs"


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

    def prepare(self, inputs: Sequence[tuple[str, str | None]], options: ScoreOptions) -> Prepared:
        """Tokenize texts (their second part is None) and pairs, and return their job and usage.

        The answer of the job is a float32 array of shape (B, N), with the scores of the N labels.

        Raises
        ------
        ServiceError
            An input or an option is wrong; the message names it.
        """
        model, num_labels = self.model, self.model.num_labels
        self.settings.check_number(len(inputs))
        if options.scores not in self._functions:
            raise wrong("scores", f"{options.scores[:50]!r}; expected 'rank', 'labels' or 'raw'.")
        if options.scores == "rank" and num_labels != 1:
            message = f"the model {self.name} has {num_labels} labels; only a model with one label sorts texts."
            raise ServiceError("unsupported", f"{message} /predict gives the scores of all labels.")
        self.check_texts([first for first, _ in inputs], options.field)
        self.check_texts(["" if second is None else second for _, second in inputs], options.field)
        asked = options.prompt_name
        prompt_name = model.default_prompt_name if asked is None else self.check_prompt(asked)
        window_options = WindowOptions(prompt_name=prompt_name, truncation=self.truncation(options.truncation))
        windows = self.cut_at(model.windows(window_options), options.side)
        tokens, function = tokenized(inputs, windows), self._functions[options.scores]

        def assemble(results: list[FloatArray]) -> FloatArray:
            scores = function(np.array(results, np.float32).reshape(-1, num_labels))
            return scores.astype(np.float32)[tokens.rows]

        encodings = [encoding for (encoding,) in tokens.groups]
        kind = PlanMethod(CrossEncoder.logits_of, model, id(model))
        job = Job(kind, encodings, [*map(len, encodings)], assemble)
        return self.with_usage(job, tokens, options.field, prompt_name, len(inputs) * num_labels)
