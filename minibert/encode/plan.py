"""`Plan`: what happens to each text of a call of `encode`. It is made once, from the options and the model.

    options -> plan -> windows of tokens -> hidden states -> layers combined -> pooled -> modules -> cut, scaled

`run` calls `compute` with the windows of some texts. `compute` calls `pool_windows`, for a vector of each window, and
then `vectors`, for a vector of each text. Hidden states are numbered as in transformers: 0 is the embeddings' output, i
is that of the i-th layer, negative numbers count from the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from minibert._utils.torch_interop import Scores
from minibert._utils.validation import FloatArray, IntArray, check_bool, check_choice
from minibert.bert import encoder
from minibert.bert.packed import PackedBatch
from minibert.encode.modules import Pipeline
from minibert.encode.options import EncodeOptions
from minibert.encode.pooling import pool, pooling_modes
from minibert.encode.run import EncodedTexts, ObjectPlan, TextPlan, packed
from minibert.encode.static import StaticModel
from minibert.models.bert import BertModel
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.windows import TokenWindows
from minibert.vectors.layers import COMBINED, combine_layers, resolve_layers
from minibert.vectors.similarity import check_truncate_dim, normalize_embeddings


@dataclasses.dataclass(frozen=True)
class Plan(TextPlan):
    """The work of one call. Plans are equal if `pool_windows`, `tokens` and `spans` give the same of the same windows.

    Parameters
    ----------
    model : BertModel, or a StaticModel in its place
    windows : TokenWindows
    layers : tuple of int
        Numbers of the hidden states that are used, 0 to L; the forward stops after the highest one.
    layer_pooling : {"concat", "sum", "mean"}
        How several hidden states are combined. bert-as-service concatenates them.
    pooling : tuple of str
        Names of `POOLING_MODES`, or "pooler" or "none" (vectors of tokens) alone.
    special_tokens : bool
        Whether [CLS] and [SEP] count in pooling.
    num_skipped : int
        Tokens at the start of each window that do not count in pooling: [CLS] and the prompt.
    pipeline : Pipeline
        Its modules come after the pooling.
    truncate_dim : int, optional
        The most features of a sentence vector.
    normalize : bool
        Scale the sentence vectors to length 1, after they were cut to `truncate_dim`.
    """

    model: BertModel
    layers: tuple[int, ...]
    layer_pooling: str
    pooling: tuple[str, ...]
    special_tokens: bool
    num_skipped: int
    pipeline: Pipeline = dataclasses.field(compare=False)
    truncate_dim: int | None = dataclasses.field(compare=False)
    normalize: bool = dataclasses.field(compare=False)

    @property
    def pooled_width(self) -> int:
        """The length of a vector after the pooling; with the pooling "none", of a token's vector."""
        per_token = self.model.config.hidden_size * (len(self.layers) if self.layer_pooling == "concat" else 1)
        return per_token * len(self.pooling)

    @property
    def width(self) -> int:
        """The length of a sentence vector.

        Raises
        ------
        ValueError
            The pooling is "none", or its vectors do not have the length that the next module expects.
        """
        if self.pooling == ("none",):
            raise ValueError("pooling='none' gives vectors of tokens, and this call needs one vector of each text.")
        width = self.pipeline.width_after(self.pooled_width)
        return width if self.truncate_dim is None else min(width, self.truncate_dim)

    def run(self, texts: Iterable[Any], **options: Any) -> Iterator[EncodedTexts]:
        """Compute one vector per text, a chunk of texts at a time; see `TextPlan.run`.

        Raises
        ------
        TypeError, ValueError
            As in `TextPlan.run` and `width`.
        """
        _ = self.width  # raises before a text is read
        return super().run(texts, **options)

    def compute(self, groups: list[list[Encoding]], indices: Sequence[int]) -> FloatArray:
        """Compute the vectors of n texts from the windows of each: (n, width), float32."""
        return self.vectors(self.pool_windows([window for group in groups for window in group]), groups)

    def pool_windows(self, windows: Sequence[Encoding]) -> FloatArray:
        """Compute one vector per window: (n, pooled_width), float32."""
        only_first = self.pooling in (("cls",), ("pooler",)) and not self._skips
        pooled = [self.pool_step(*step) for step in self.steps(windows, only_first)]
        return np.concatenate([np.zeros((0, self.pooled_width), dtype=np.float32), *pooled])

    def steps(
        self, windows: Sequence[Encoding], only_first: bool = False
    ) -> Iterator[tuple[FloatArray, PackedBatch, list[Encoding]]]:
        """Compute the vectors of the tokens of some windows, with the layers combined, a step at a time: (T, H).

        Yield them with the step and its windows. `only_first`: the rows of all but the first tokens may be zeros.
        """
        if not windows:
            return
        batch, rest = packed(self.model.config, windows), iter(windows)
        for step, states in self.model.states(batch, self.layers, batch.first_tokens if only_first else None):
            chosen = [states[layer] for layer in self.layers]
            x = chosen[0] if len(chosen) == 1 else combine_layers(chosen, self.layer_pooling)
            yield x, step, [*islice(rest, step.num_sequences)]

    @property
    def _skips(self) -> bool:
        """Whether some tokens do not count in pooling."""
        return self.num_skipped > 0 or not self.special_tokens

    def pool_step(self, x: FloatArray, step: PackedBatch, windows: Sequence[Encoding]) -> FloatArray:
        """Pool the vectors of the tokens of a step: one vector per window."""
        if self.pooling == ("pooler",) and (pooler := self.model.weights.pooler) is not None:
            return encoder.pooler(x, pooler, step, self.model.ops)
        counts = np.concatenate([*map(self._counts, windows)]) if self._skips else None
        return pool(x, step.cu_seqlens, self.pooling, counts)

    def split(self, x: FloatArray, step: PackedBatch, windows: Sequence[Encoding]) -> Iterator[FloatArray]:
        """Yield the vectors of the tokens of each window of a step, [CLS] and [SEP] only if they count: (S, H)."""
        for tokens, window in zip(np.split(x, step.cu_seqlens[1:-1]), windows, strict=True):
            yield tokens.copy() if self.special_tokens else tokens[window.special_tokens_mask == 0]

    def after_pooling(self, pooled: FloatArray, groups: Sequence[Sequence[Encoding]] | None = None) -> FloatArray:
        """Average the vectors of each text's windows, and run the modules: (windows, pooled_width) -> (texts, W).

        Without `groups`, the windows of each text, no vectors are averaged.
        """
        if groups is not None and len(groups) < len(pooled):
            pooled = self.windows.average(pooled, groups)
        return self.pipeline.finish(pooled)

    def vectors(self, pooled: FloatArray, groups: Sequence[Sequence[Encoding]] | None = None) -> FloatArray:
        """Return the results of `after_pooling` cut to `width`, and scaled to length 1 if the plan says so."""
        vectors = self.after_pooling(pooled, groups)[:, : self.width]
        return normalize_embeddings(vectors) if self.normalize else vectors

    def tokens(self, windows: Sequence[Encoding]) -> list[FloatArray]:
        """Compute the vectors of the tokens of each window: (S, pooled_width), [CLS] and [SEP] only if they count."""
        return [tokens for step in self.steps(windows) for tokens in self.split(*step)]

    def members(self, window: Encoding, text: str, spans: Any, name: str) -> tuple[IntArray, IntArray]:
        """Return the tokens of each span of a text, for `spans`; see `TokenWindows.members`.

        Raises
        ------
        TypeError, ValueError
            The plan does not have mean pooling; or as there.
        """
        if self.pooling != ("mean",):
            pooling = " + ".join(self.pooling)
            raise ValueError(f"spans have the pooling 'mean'; this model, or this call, has {pooling!r}.")
        return self.windows.members(window, text, spans, name)

    def spans(self, windows: Sequence[tuple[Encoding, tuple[IntArray, IntArray]]]) -> list[FloatArray]:
        """Compute the means of the tokens of spans: an array (spans, pooled_width) for each window and its `members`.

        Source: Günther et al. 2024, "Late Chunking" (arXiv 2409.04701), algorithm 1.
        """
        xs = (x for x, step, _ in self.steps([w for w, _ in windows]) for x in np.split(x, step.cu_seqlens[1:-1]))
        return [pool(x[rows], starts, self.pooling) for x, (_, (rows, starts)) in zip(xs, windows, strict=True)]

    def _counts(self, window: Encoding) -> np.ndarray:
        """Return which tokens of a window count in pooling."""
        counts = np.ones(len(window), dtype=np.bool_)
        if not self.special_tokens:
            counts &= window.special_tokens_mask == 0
        counts[: self.num_skipped] = False
        return counts


# --- parts of texts ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TokensPlan(ObjectPlan):
    """Makes an array of each text, the vectors of its tokens, as `Plan.tokens` does."""

    plan: Plan

    def items(self, windows: list[Encoding], indices: Sequence[int]) -> Iterator[Scores]:
        """Compute the arrays of n texts."""
        return (x.view(Scores) for x in self.plan.tokens(windows))


@dataclasses.dataclass(frozen=True)
class SpansPlan(ObjectPlan):
    """Makes an array of each text, the vectors of its spans: (spans, width).

    Parameters
    ----------
    texts, spans : sequences
        Of a whole call: the texts, and the spans of each; see `TokenWindows.members`.
    """

    equal_items = False  # equal texts may have different spans
    plan: Plan
    texts: Sequence[str]
    spans: Sequence[Any]

    def items(self, windows: list[Encoding], indices: Sequence[int]) -> Iterator[FloatArray]:
        """Compute the arrays of n texts."""
        pairs = []
        for window, i in zip(windows, indices, strict=True):
            pairs.append((window, self.plan.members(window, self.texts[i], self.spans[i], f"spans[{i}]")))
        return map(self.plan.vectors, self.plan.spans(pairs))


@dataclasses.dataclass(frozen=True)
class DictsPlan(ObjectPlan):
    """Makes a dict of each text: its ids, the vectors of its tokens, and its sentence vector, cut but not scaled."""

    plan: Plan
    width: int  # the plan's

    def items(self, windows: list[Encoding], indices: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Compute the dicts of n texts."""
        n_prompt = self.windows.num_prompt_tokens
        prompt = {"prompt_length": n_prompt} if n_prompt else {}
        for x, step, members in self.plan.steps(windows):
            vectors = self.plan.after_pooling(self.plan.pool_step(x, step, members))[:, : self.width]
            for window, tokens, vector in zip(members, self.plan.split(x, step, members), vectors, strict=True):
                rows = slice(None) if self.plan.special_tokens else window.special_tokens_mask == 0
                text = {"input_ids": window.ids[rows], "token_type_ids": window.token_types[rows]}
                text["attention_mask"] = np.ones(len(tokens), dtype=np.int64)
                text |= {"token_embeddings": tokens.view(Scores), "sentence_embedding": vector}
                yield {**text, "modality": "text", **prompt}


def make_plan(
    model: Any, pipeline: Pipeline, windows: TokenWindows, options: EncodeOptions, truncate_dim: int | None
) -> Plan:
    """Check a caller's options against the model, and return the plan of the call.

    Parameters
    ----------
    model : BertModel or StaticModel
    pipeline, windows
        Those of the plan.
    options : EncodeOptions
        Without `layers`, the last hidden state is pooled. The pooling "first_last" is the mean, over the tokens, of
        hidden state 1 and the last one; "pooler" is the model's pooler.
    truncate_dim : int, optional
        The model's, for options without `truncate_dim`.

    Raises
    ------
    TypeError, ValueError
        A name is unknown, the model does not have a layer or a pooler, or two options exclude each other.
    """
    layer_pooling = options.layer_pooling
    if isinstance(model, StaticModel) and not (options.layers is None and options.pooling in (None, "mean", "none")):
        given = f"pooling={options.pooling!r}" if options.layers is None else f"layers={options.layers!r}"
        raise ValueError(f"{given}: a static model has no layers and no [CLS], only a mean of tokens. Leave it out.")
    pooling = pooling_modes(pipeline.pooling if options.pooling is None else options.pooling)
    depth = model.config.num_hidden_layers
    layers = (depth,) if options.layers is None else resolve_layers(options.layers, depth)
    check_choice("layer_pooling", layer_pooling, COMBINED)
    special_tokens = check_bool("special_tokens", options.special_tokens)
    fixed = ["layers="] * (options.layers is not None) + ["special_tokens=False"] * (not special_tokens)
    if pooling[0] in ("first_last", "pooler") and fixed:
        raise ValueError(f"pooling={pooling[0]!r} fixes layers and tokens; leave out {' and '.join(fixed)}.")
    if pooling == ("first_last",):
        if layer_pooling not in ("concat", "mean"):  # the default, and what it means
            raise ValueError(f"pooling='first_last' is a mean; leave out layer_pooling={layer_pooling!r}.")
        layers, layer_pooling, pooling = (min(1, depth), depth), "mean", ("mean",)
    if pooling == ("pooler",) and model.weights.pooler is None:
        raise ValueError("pooling='pooler', but this checkpoint does not have a pooler; give another pooling.")
    num_skipped = 0 if pipeline.include_prompt else windows.num_prompt_tokens
    dim = check_truncate_dim(truncate_dim if options.truncate_dim is None else options.truncate_dim)
    scales = options.normalize_embeddings
    return Plan(windows, model, layers, layer_pooling, pooling, special_tokens, num_skipped, pipeline, dim, scales)
