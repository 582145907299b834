"""`TokenEmbedder`: the texts of a request -> vectors of their tokens, or scores of late interaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.encode.options import TokenOptions
from minibert.encode.token_plan import TokenPlan
from minibert.sentence.multi_vector_encoder import MultiVectorEncoder
from minibert.serving.classifier import ScoreOptions
from minibert.serving.scheduler import Job
from minibert.serving.served_models import PROMPTS_OF, PlanMethod, Prepared, RequestOptions, ServedModel, VectorOptions
from minibert.serving.settings import wrong
from minibert.serving.tokens import tokenized, too_long
from minibert.tokenizer.encodings import Encoding

_TASKS = ("query", "document")


@dataclasses.dataclass(eq=False)
class _Text:
    """A text to compute, and the query that it is compared with. A query keeps its vectors for the later steps."""

    plan: TokenPlan
    encoding: Encoding
    query: _Text | None = None
    vectors: FloatArray | None = None

    @property
    def cost(self) -> int:
        """The number of tokens, with those that make the text longer."""
        return max(1, len(self.encoding), self.plan.expansion.length if self.plan.expansion else 0)


class TokenEmbedder(ServedModel[MultiVectorEncoder]):
    """A `MultiVectorEncoder` under the name that clients use."""

    gives = "vectors of tokens"

    def details(self) -> dict[str, Any]:
        """See `ServedModel`."""
        return {"embedding_dimension": self.model.get_embedding_dimension(), **super().details()}

    def prepare(self, inputs: Sequence[Any], options: VectorOptions) -> Prepared:
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
        tokens = tokenized(inputs, plan.windows)
        units = [_Text(plan, encoding) for (encoding,) in tokens.groups]
        costs = [unit.cost for unit in units]
        job = Job(self._kind(), units, costs, lambda results: [results[row] for row in tokens.rows])
        return self.with_usage(job, tokens, "input", prompt_name, width * sum(costs[row] for row in tokens.rows))

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
        tokens = tokenized(inputs, plan.windows)
        [[of_query]] = tokenized([query], query_plan.windows).groups
        if of_query.n_truncated and query_plan.windows.truncation == "error":
            raise too_long(0, query_plan.windows.max_length, of_query, "query")
        asked = _Text(query_plan, of_query)
        units = [_Text(plan, encoding, asked) for (encoding,) in tokens.groups]
        costs = [asked.cost * (i == 0) + unit.cost for i, unit in enumerate(units)]
        job = Job(self._kind(), units, costs, lambda results: np.array(results, np.float32)[tokens.rows])
        tokens = tokens._replace(n_characters=tokens.n_characters + len(query))
        n_numbers = len(inputs) + self.model.get_embedding_dimension() * asked.cost
        prepared = self.with_usage(job, tokens, options.field, None, n_numbers)
        used = prompt_name if query_plan.windows.prompt else None
        return prepared._replace(usage=dataclasses.replace(prepared.usage, prompt_name=used))

    def _plan(self, task: str, options: RequestOptions, prompt_name: str, **encode_options: Any) -> TokenPlan:
        """Return the plan for queries or for documents."""
        truncation = self.truncation(options.truncation)
        encode_options["prompt_name"] = None if prompt_name == task else prompt_name  # a task has its own prompt
        plan = self.model.plan(TokenOptions(truncation=truncation, **encode_options), task)
        return dataclasses.replace(plan, windows=self.cut_at(plan.windows, options.side))

    def _kind(self) -> PlanMethod:
        return PlanMethod(TokenEmbedder._compute, self, id(self.model))

    def _compute(self, units: Sequence[_Text]) -> list[FloatArray]:
        """Compute the vectors of the tokens of each text; of one that has a query, the score (1,), the only thing kept.

        Raises
        ------
        ArithmeticError
            A vector of such a text or query is not finite.
        """
        asked = [query for query in dict.fromkeys(unit.query for unit in units) if query is not None]
        texts, arrays = [*units, *(query for query in asked if query.vectors is None)], dict[int, FloatArray]()
        for plan in {text.plan for text in texts}:
            rows = [i for i, text in enumerate(texts) if text.plan == plan]
            arrays |= zip(rows, map(np.asarray, plan.tokens([texts[i].encoding for i in rows])), strict=True)
        for i, query in enumerate(texts[len(units) :], len(units)):
            query.vectors = arrays[i]
        for query in asked:
            rows = [i for i, unit in enumerate(units) if unit.query is query]
            try:
                scores = np.asarray(self.model.similarity([query.vectors], [arrays[i] for i in rows]))
            except ValueError as error:
                raise ArithmeticError("its vector is not finite") from error
            arrays |= zip(rows, scores.T, strict=True)
        return [arrays[i] for i in range(len(units))]
