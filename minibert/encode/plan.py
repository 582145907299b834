"""`Plan`: what happens to each text of a call of `encode`. It is made once, from the options and the model.

    options -> plan -> windows of tokens -> hidden states -> layers combined -> pooled -> modules -> cut, scaled

`run` calls `compute` with the windows of some texts. `compute` calls `pool`, for a vector of each window, and then
`vectors`, for a vector of each text. Hidden states are numbered as in transformers: 0 is the embeddings' output, i is
that of the i-th layer, negative numbers count from the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from minibert.encode.run import EncodedTexts, TextPlan, packed
from minibert.models.bert import BertModel
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_texts
from minibert.tokenizer.windows import TextInfo, TokenWindows, count_tokens
from minibert.vectors.layers import COMBINED, combine_layers, resolve_layers
from minibert.vectors.similarity import check_truncate_dim, normalize_embeddings


@dataclasses.dataclass(frozen=True)
class Plan(TextPlan):
    """The work of one call. Plans are equal if `pool`, `tokens` and `spans` give the same of the same windows.

    Parameters
    ----------
    model : BertModel
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
        return self.vectors(self.pool([window for group in groups for window in group]), groups)

    def pool(self, windows: Sequence[Encoding]) -> FloatArray:
        """Compute one vector per window: (n, pooled_width), float32."""
        pooled = [np.zeros((0, self.pooled_width), dtype=np.float32)]
        pooler = self.model.weights.pooler if self.pooling == ("pooler",) else None
        skips, rest = self.num_skipped or not self.special_tokens, iter(windows)
        for step, states in self._states(windows, only_first=self.pooling in (("cls",), ("pooler",)) and not skips):
            state = self._combine(states)
            counts = np.concatenate([*map(self._counts, islice(rest, step.num_sequences))]) if skips else None
            if pooler is not None:
                pooled.append(encoder.pooler(state, pooler, step, self.model.ops))
            else:
                pooled.append(pool(state, step.cu_seqlens, self.pooling, counts))
        return np.concatenate(pooled)

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
        pairs = zip(windows, self._of_windows(windows), strict=True)
        return [x.copy() if self.special_tokens else x[window.special_tokens_mask == 0] for window, x in pairs]

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
        pairs = zip(windows, self._of_windows([window for window, _ in windows]), strict=True)
        return [pool(x[rows], starts, self.pooling) for (_, (rows, starts)), x in pairs]

    def run_tokens(
        self,
        texts: Sequence[str],
        *,
        as_dicts: bool = False,
        spans: Sequence[Any] | None = None,
        exact: bool = False,
        info: bool = False,
    ) -> tuple[list[Any], IntArray, list[TextInfo]]:
        """Compute the vectors of the tokens of n texts; or of their spans; or a dict of each text.

        Parameters
        ----------
        texts : sequence of n str
        as_dicts : bool
            Return dicts of the ids, the vectors of the tokens and the sentence vector, which takes a second forward.
        spans : sequence of n, optional
            Return the vectors of these spans of each text, see `TokenWindows.members`.
        exact, info : bool
            As in `TextPlan.run`.

        Returns
        -------
        list of n ndarrays of shape (S, pooled_width) or (spans, width), or of n dicts
        n_truncated : int ndarray of shape (n,)
            Tokens of each text that were cut off.
        list of n TextInfo
            Empty without `info`.

        Raises
        ------
        TypeError, ValueError
            As `run`.
        """
        width = self.width if as_dicts else 0
        prompt = {"prompt_length": self.windows.num_prompt_tokens} if self.windows.num_prompt_tokens else {}
        result, n_truncated, infos = list[Any](), list[int](), list[TextInfo]()
        check_texts(texts)
        for part, groups in self.windows.of(texts, range(len(texts)), exact=exact):
            n_truncated += (count_tokens(group)[1] for group in groups)
            infos += map(self.windows.describe, groups) if info else ()
            encodings = [group[0] for group in groups]
            if spans is not None:
                members = [
                    self.members(encoding, texts[i], spans[i], f"spans[{i}]")
                    for i, encoding in enumerate(encodings, part.start)
                ]
                result += map(self.vectors, self.spans([*zip(encodings, members, strict=True)]))
                continue
            vectors = [tokens.view(Scores) for tokens in self.tokens(encodings)]
            if not as_dicts:
                result += vectors
                continue
            of_texts = self.after_pooling(self.pool(encodings), groups)[:, :width]
            for encoding, tokens, vector in zip(encodings, vectors, of_texts, strict=True):
                rows = slice(None) if self.special_tokens else encoding.special_tokens_mask == 0
                text = {"input_ids": encoding.ids[rows], "token_type_ids": encoding.token_types[rows]}
                text["attention_mask"] = np.ones(len(tokens), dtype=np.int64)
                text |= {"token_embeddings": tokens, "sentence_embedding": vector}
                result.append({**text, "modality": "text", **prompt})
        return result, np.array(n_truncated, dtype=np.int64), infos

    def _states(
        self, windows: Sequence[Encoding], only_first: bool = False
    ) -> Iterator[tuple[PackedBatch, Mapping[int, FloatArray]]]:
        """Yield the hidden states of each step; `only_first`: the rows of all but the first tokens may be zeros."""
        if not windows:
            return iter(())
        batch = packed(self.model.config, windows)
        return self.model.states(batch, self.layers, batch.first_tokens if only_first else None)

    def _of_windows(self, windows: Sequence[Encoding]) -> Iterator[FloatArray]:
        """Yield the vectors of the tokens of each window, with the layers combined."""
        for step, states in self._states(windows):
            yield from np.split(self._combine(states), step.cu_seqlens[1:-1])

    def _combine(self, states: Mapping[int, FloatArray]) -> FloatArray:
        chosen = [states[layer] for layer in self.layers]
        return chosen[0] if len(chosen) == 1 else combine_layers(chosen, self.layer_pooling)

    def _counts(self, window: Encoding) -> np.ndarray:
        """Return which tokens of a window count in pooling."""
        counts = np.ones(len(window), dtype=np.bool_)
        if not self.special_tokens:
            counts &= window.special_tokens_mask == 0
        counts[: self.num_skipped] = False
        return counts


def make_plan(
    model: BertModel, pipeline: Pipeline, windows: TokenWindows, options: EncodeOptions, truncate_dim: int | None
) -> Plan:
    """Check a caller's options against the model, and return the plan of the call.

    Parameters
    ----------
    model, pipeline, windows
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
