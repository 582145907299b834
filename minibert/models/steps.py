"""The forward of a packed batch in steps: `run_steps` yields every hidden state of a step before the next one begins.

A step of few tokens is computed together, by one call of the kernels (`_together`). Any other step is a run of the
family's forward, with a call for each op.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert import encoder
from minibert.bert.config import BertConfig
from minibert.bert.norm_first import FORWARDS
from minibert.bert.ops import KeptProbs, LookUp, Ops, look_up
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import Weights

# Tokens that go through the encoder together. They are enough for fast matrix products, and so few that the arrays
# between two products stay in cache. The number also limits the memory of a forward beyond its result. Callers that
# pool each step before the next one is computed do not need memory for the full result either.
TOKENS_PER_STEP = 1024

TOGETHER_TOKENS, TOGETHER_BYTES = 128, 1 << 24
"""A step of so few tokens, whose ops have results of so few bytes, is computed by one call of the kernels.

Python takes 10 to 20 microseconds to describe an op, more than the kernels with few tokens, because their weights have
taken its memory out of the cache. On a Xeon with two threads, one call takes 0.63 of the time of a call for each op
with 2 to 12 tokens (MiniLM), 0.7 with 22 and 0.81 with 64; bert-base 0.85 with 8 to 22. Up to 32 tokens, the ops are
described for the first text of a length only: on a Zen 3 that is another 0.75 (4 to 22 tokens, MiniLM), and 0.9 with
bert-base.
"""


StepState: TypeAlias = tuple[slice, PackedBatch, int, FloatArray]
"""The place of a step among the T tokens, the step, the number of a hidden state, and its values (t, H)."""


class Stepwise:
    """Weights and ops that compute hidden states; `ModelBase` inherits it."""

    config: BertConfig
    weights: Weights
    ops: Ops

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return "config" in vars(self) and "weights" not in vars(self)

    def run_steps(
        self,
        batch: PackedBatch,
        stop: int,
        start: encoder.Start | None = None,
        needed_tokens: IntArray | None = None,
        probs: Mapping[int, list[FloatArray]] | None = None,
        wanted: Iterable[int] | None = None,
    ) -> Iterator[StepState]:
        """Run the model step by step, and yield the hidden states of each step, up to number `stop`.

        Every forward of the model calls this method, so the ids are compared with the model's tables here.

        Parameters
        ----------
        batch : PackedBatch
        stop : int
        start : as in `run_packed`
        needed_tokens : int ndarray, optional
            The tokens whose last hidden state is needed, increasing. The rows of the others may be zeros then.
        probs : mapping, optional
            A list for each layer whose attention probs are kept; an array (A, S, S) for each sequence is added to it.
        wanted : ints, optional
            The numbers of the hidden states that are needed; default: all. Others may be left out.

        Yields
        ------
        StepState
            A hidden state of a step.
        """
        depth = self.config.num_hidden_layers
        batch = batch.private()
        batch.check(self.config)
        first, state = start or (0, None)
        if state is not None and state.shape != (batch.num_tokens, self.config.hidden_size):
            expected = (batch.num_tokens, self.config.hidden_size)
            raise ValueError(f"start[1] has shape {state.shape}; expected {expected}, (T, H).")
        weights, ops = self.weights, self.ops
        if probs:
            ops = KeptProbs(ops, {f"{weights.layers[i].path}.attention.self": kept for i, kept in probs.items()}).ops
        if first == depth or ops.all_tokens:
            needed_tokens = None
        forward = FORWARDS[self.config.family.forward]
        wanted = frozenset(range(first, stop + 1) if wanted is None else wanted)
        try:
            for tokens, step in self.steps(batch):
                if state is None and (known := self._together(step, ops, stop, wanted)) is not None:
                    yield from ((tokens, step, i, x) for i, x in known.items())
                    continue
                part = None if state is None else (first, np.array(state[tokens], ops.dtype))
                queries = None if needed_tokens is None else step.queries(needed_tokens - tokens.start)
                for i, x in enumerate(forward(weights, step, ops, start=part, queries=queries), first):
                    if queries is not None and i == depth:
                        rows, x = x, np.zeros((step.num_tokens, x.shape[1]), x.dtype)
                        x[queries.tokens] = rows
                    yield tokens, step, i, x
                    if i == stop:
                        break
        finally:
            if self.is_closed:  # meanwhile; the ops may have started new threads
                ops.release()

    def _together(self, step: PackedBatch, ops: Ops, stop: int, wanted: frozenset[int]) -> dict[int, FloatArray] | None:
        """Return the hidden states of a step with few tokens, by number; None if it has many, or the ops cannot."""
        config, weights = self.config, self.weights
        of_token = 4 * config.num_hidden_layers * (config.intermediate_size + 8 * config.hidden_size)
        few = step.num_tokens <= TOGETHER_TOKENS and step.num_tokens * of_token <= TOGETHER_BYTES
        states = ops.recorder(ops) if few and ops.recorder is not None else None
        if states is None:
            return None
        factors = step.scale(config)
        table, ids = look_up(weights.words if step.inputs_embeds is None else step.inputs_embeds, step.token_ids)

        def forward(ops: Ops, words: FloatArray) -> Iterator[FloatArray]:
            batch = dataclasses.replace(step, token_ids=np.arange(step.num_tokens), inputs_embeds=words)

            def embed(words: LookUp, *added: LookUp, scale: object = None) -> FloatArray:
                # ESM's factors depend on the ids, which this batch does not have.
                return ops.embed(words, *added, scale=factors)

            of_family = FORWARDS[config.family.forward]
            return itertools.islice(of_family(weights, batch, ops._replace(embed=embed)), stop + 1)

        key = (id(weights), stop, wanted, *step.layout, None if factors is None else factors.tobytes())
        return states(forward, table[ids], key, wanted, weights)

    def steps(self, batch: PackedBatch) -> Iterator[tuple[slice, PackedBatch]]:
        """Return the steps of a batch that go through the encoder one after the other; see `PackedBatch.steps`."""
        return batch.steps(TOKENS_PER_STEP)
