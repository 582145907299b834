"""`TokenEmbedder`: the texts of a request -> vectors of their tokens, or scores of late interaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.encode.options import EncodeOptions
from minibert.encode.token_plan import TokenPlan
from minibert.sentence.multi_vector_encoder import MultiVectorEncoder
from minibert.serving.classifier import ScoreOptions
from minibert.serving.scheduler import Job
from minibert.serving.served_models import PROMPTS_OF, PlanMethod, Prepared, RequestOptions, ServedModel, TextOptions
from minibert.serving.settings import wrong
from minibert.serving.tokens import encodings_of, tokenized, too_long
from minibert.tokenizer.encodings import Encoding

_TASKS = ("query", "document")
_Unit = tuple[TokenPlan, Encoding]


class TokenEmbedder(ServedModel[MultiVectorEncoder]):
    """A `MultiVectorEncoder` under the name that clients use."""

    gives = "vectors of tokens"

    def details(self) -> dict[str, Any]:
        """See `ServedModel`."""
        return {"embedding_dimension": self.model.get_embedding_dimension(), **super().details()}

    def prepare(self, inputs: Sequence[Any], options: TextOptions) -> Prepared:
        """Tokenize the texts of a request, and return its job, whose answer is an array (tokens, D) for each text.

        Raises
        ------
        ServiceError
            An input or an option is wrong; the message names it.
        """
        self.settings.check_number(len(inputs))
        self.check_texts(inputs, "input")
        width, asked = self.model.get_embedding_dimension(), options.input_type
        for name in ("dimensions", "max_tokens", "layers", "pooling"):
            if getattr(options, name) not in (None, width if name == "dimensions" else None):
                raise wrong(name, "is not for vectors of tokens; leave it out.")
        meant = "document" if asked is None else PROMPTS_OF.get(asked, ("",))[0]
        if meant not in _TASKS:
            raise wrong("input_type", f"{str(asked)[:200]!r}; expected 'query' or 'document'.")
        prompt_name = meant if options.prompt_name is None else self.check_prompt(options.prompt_name)
        task = prompt_name if prompt_name in _TASKS else meant
        plan = self._plan(task, options, prompt_name, normalize_embeddings=bool(options.normalize))
        tokens = tokenized([(text, None) for text in inputs], plan.windows)
        units = [(plan, encoding) for (encoding,) in tokens.groups]
        costs = [*map(_cost, units)]
        kind = PlanMethod(_token_vectors, None, id(self.model))
        job = Job(kind, units, costs, lambda results: [results[row] for row in tokens.rows])
        return self.with_report(job, tokens, "input", prompt_name, width * sum(costs[row] for row in tokens.rows))

    def prepare_scores(self, query: str, inputs: Sequence[str], options: ScoreOptions) -> Prepared:
        """Tokenize a query and texts, and return their job, whose answer is the score of each text: (B, 1).

        Raises
        ------
        ServiceError
            As for `prepare`.
        """
        self.settings.check_number(len(inputs))
        self.check_texts([*inputs, query], options.field)
        prompt_name = "query" if options.prompt_name is None else self.check_prompt(options.prompt_name)
        query_plan, plan = self._plan("query", options, prompt_name), self._plan("document", options, "document")
        tokens = tokenized([(text, None) for text in inputs], plan.windows)
        units = [(plan, encoding) for (encoding,) in tokens.groups]
        (of_query,) = encodings_of([(query, None)], query_plan.windows)
        if of_query.n_truncated and query_plan.windows.truncation == "error":
            raise too_long(0, query_plan.windows.max_length, of_query, "query")
        units.append((query_plan, of_query))

        def assemble(results: list[FloatArray]) -> FloatArray:
            return np.asarray(self.model.similarity(results[-1:], results[:-1]))[0][tokens.rows, None]

        kind = PlanMethod(_token_vectors, None, id(self.model))
        job = Job(kind, units, [*map(_cost, units)], assemble)
        tokens = tokens._replace(n_characters=tokens.n_characters + len(query))
        prepared = self.with_report(job, tokens, options.field, None, len(inputs))
        used = prompt_name if query_plan.windows.prompt else None
        return prepared._replace(report=dataclasses.replace(prepared.report, prompt_name=used))

    def _plan(self, task: str, options: RequestOptions, prompt_name: str, **encode_options: Any) -> TokenPlan:
        """Return the plan for queries or for documents."""
        truncation = self.truncation(options.truncation)
        encode_options["prompt_name"] = None if prompt_name == task else prompt_name  # a task has its own prompt
        plan = self.model.plan(EncodeOptions(truncation=truncation, **encode_options), task)
        return dataclasses.replace(plan, windows=self.cut_at(plan.windows, options.side))


def _cost(unit: _Unit) -> int:
    """Return the number of tokens of a text, with those that make it longer."""
    plan, encoding = unit
    return max(1, len(encoding), plan.expansion["length"] if plan.expansion else 0)


def _token_vectors(_: None, units: Sequence[_Unit]) -> list[FloatArray]:
    """Compute the vectors of the tokens of each text, by its plan."""
    arrays: dict[int, FloatArray] = {}
    for plan in {plan for plan, _ in units}:
        rows = [i for i, (own, _) in enumerate(units) if own == plan]
        arrays |= zip(rows, map(np.asarray, plan.tokens([units[i][1] for i in rows])), strict=True)
    return [arrays[i] for i in range(len(units))]
