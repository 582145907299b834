"""`Plan`: what happens to each text of a call of `encode`. It is made once, from the options and the model.

    options -> plan -> windows of tokens -> hidden states -> layers combined -> pooled -> modules -> cut, scaled

The calls are `run` (texts) -> `compute` -> `pool` (windows) -> `vectors` -> `after_pooling` (texts again).
Layers are numbered as in transformers: 0 is the embeddings' output, i is layer i, negative ones count from the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minibert._utils.torch_interop import Scores
from minibert._utils.validation import FloatArray, IntArray, check_bool, check_choice
from minibert.bert import encoder
from minibert.bert.packed import PackedBatch
from minibert.encode.modules import Pipeline, pool, pooling_modes
from minibert.encode.options import EncodeOptions
from minibert.encode.run import EncodedTexts, TextPlan, packed
from minibert.models.bert import BertModel
from minibert.tokenizer.encodings import Encoding
from minibert.tokenizer.texts import check_texts
from minibert.tokenizer.windows import TextInfo, TokenWindows, count_tokens
from minibert.vectors.layers import COMBINED, combine_layers, resolve_layers
from minibert.vectors.similarity import check_truncate_dim, normalize_embeddings


@dataclasses.dataclass(frozen=True)
class Plan(TextPlan):
    """The work of one call. Plans are equal if they make the same vectors of the same windows.

    Parameters
    ----------
    model : BertModel
    windows : TokenWindows
    layers : tuple of int
        Hidden states to use, 0 to L; the forward stops after the deepest one.
    layer_pooling : {"concat", "sum", "mean"}
        How several hidden states are combined. bert-as-service concatenates them.
    pooling : tuple of str
        Names of `POOLING_MODES`, or "pooler" or "none" (vectors of tokens) alone.
    special_tokens : bool
        Whether [CLS] and [SEP] count in pooling.
    num_skipped : int
        Tokens at the start of each window that do not count in pooling: [CLS] and the prompt.
    pipeline : Pipeline
        The modules after the pooling.
    truncate_dim : int, optional
        The most features of a sentence vector.
    normalize : bool
        Scale the features that are kept to length 1.
    """

    model: BertModel
    layers: tuple[int, ...]
    layer_pooling: str
    pooling: tuple[str, ...]
    special_tokens: bool
    num_skipped: int
    pipeline: Pipeline
    truncate_dim: int | None
    normalize: bool

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
            The plan does not give a vector of each text; and as there.
        """
        _ = self.width  # raises before a text is read
        return super().run(texts, **options)

    def compute(self, groups: list[list[Encoding]], indices: Sequence[int]) -> FloatArray:
        """Compute the sentence vectors of some texts: (n, width), float32."""
        return self.vectors(self.pool([window for group in groups for window in group]), groups)

    def pool(self, windows: Sequence[Encoding]) -> FloatArray:
        """Compute one vector per window: (n, pooled_width), float32."""
        vectors = [np.zeros((0, self.pooled_width), dtype=np.float32)]
        pooler = self.model.weights.pooler if self.pooling == ("pooler",) else None
        first = 0
        skips = self.num_skipped or not self.special_tokens
        for step, states in self._states(windows, only_first=self.pooling in (("cls",), ("pooler",)) and not skips):
            state = self._combine(states)
            if pooler is not None:
                vectors.append(encoder.pooler(state, pooler, step, self.model.ops))
            else:
                counts = None
                if skips:
                    counts = np.concatenate([*map(self._counts, windows[first : first + step.num_sequences])])
                vectors.append(pool(state, step.cu_seqlens, self.pooling, counts))
            first += step.num_sequences
        return np.concatenate(vectors)

    def after_pooling(self, pooled: FloatArray, groups: Sequence[Sequence[Encoding]]) -> FloatArray:
        """Average the vectors of each text's windows, and run the modules: (windows, pooled_width) -> (texts, W)."""
        return self.pipeline.finish(pooled if len(pooled) == len(groups) else self.windows.average(pooled, groups))

    def vectors(self, pooled: FloatArray, groups: Sequence[Sequence[Encoding]]) -> FloatArray:
        """Return the sentence vectors, (texts, width): `after_pooling`, cut to `width`, and scaled if so planned."""
        vectors = self.after_pooling(pooled, groups)[:, : self.width]
        return normalize_embeddings(vectors) if self.normalize else vectors

    def tokens(self, windows: Sequence[Encoding]) -> list[FloatArray]:
        """Compute the vectors of all tokens: one array (S, width) per window, without special tokens if so planned."""
        vectors: list[FloatArray] = []
        for step, states in self._states(windows):
            for tokens in np.split(self._combine(states), step.cu_seqlens[1:-1]):
                special = windows[len(vectors)].special_tokens_mask == 1
                vectors.append(tokens.copy() if self.special_tokens else tokens[~special])
        return vectors

    def members(self, window: Encoding, text: str, spans: Any, name: str) -> tuple[IntArray, IntArray]:
        """Return the tokens of each span of a text, for `spans`; see `TokenWindows.members`.

        Raises
        ------
        TypeError, ValueError
            The vector of a text is not a mean of its tokens. Or a span is wrong.
        """
        if self.pooling != ("mean",):
            pooling = " + ".join(self.pooling)
            raise ValueError(f"spans have the pooling 'mean'; this model, or this call, has {pooling!r}.")
        return self.windows.members(window, text, spans, name)

    def spans(self, windows: Sequence[tuple[Encoding, tuple[IntArray, IntArray]]]) -> list[FloatArray]:
        """Compute the means of the tokens of spans: an array (spans, pooled_width) for each window and its `members`.

        Source: Günther et al. 2024, "Late Chunking" (arXiv 2409.04701), algorithm 1.
        """
        pooled: list[FloatArray] = []
        for step, states in self._states([window for window, _ in windows]):
            for tokens in np.split(self._combine(states), step.cu_seqlens[1:-1]):
                rows, starts = windows[len(pooled)][1]
                pooled.append(pool(tokens[rows], starts, self.pooling))
        return pooled

    def run_tokens(
        self,
        texts: Sequence[str],
        *,
        sentences: bool = False,
        spans: Sequence[Any] | None = None,
        exact: bool = False,
        info: bool = False,
    ) -> tuple[list[Any], IntArray, list[TextInfo]]:
        """Compute the token vectors of n texts, or a dict per text with its token vectors, ids and sentence vector.

        Parameters
        ----------
        texts : sequence of n str
        sentences : bool
            Return dicts. Their sentence vectors take a second forward.
        spans : sequence of n, optional
            Return the vectors of the spans of each text, see `TokenWindows.members`.
        exact, info : bool
            As in `TextPlan.run`.

        Returns
        -------
        list of n ndarrays of shape (S, W) or (spans, width), or of n dicts
        n_truncated : int ndarray of shape (n,)
            Tokens of each text that were cut off.
        list of n TextInfo
            Empty without `info`.

        Raises
        ------
        TypeError, ValueError
            As `run`.
        """
        width = self.width if sentences else 0
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
                for pooled in self.spans([*zip(encodings, members, strict=True)]):
                    result.append(self.vectors(pooled, [()] * len(pooled)))
                continue
            vectors = [tokens.view(Scores) for tokens in self.tokens(encodings)]
            if not sentences:
                result += vectors
                continue
            for encoding, tokens, sentence in zip(
                encodings, vectors, self.after_pooling(self.pool(encodings), groups), strict=True
            ):
                result.append(
                    {
                        "input_ids": encoding.ids,
                        "token_type_ids": encoding.token_types,
                        "attention_mask": np.ones(len(encoding), dtype=np.int64),
                        "token_embeddings": tokens,
                        "sentence_embedding": sentence[:width],
                        "modality": "text",
                        **prompt,
                    }
                )
        return result, np.array(n_truncated, dtype=np.int64), infos

    def _states(
        self, windows: Sequence[Encoding], only_first: bool = False
    ) -> Iterator[tuple[PackedBatch, Mapping[int, FloatArray]]]:
        """Run the model on windows, step by step; with `only_first`, the other rows of the last state may be zeros."""
        if not windows:
            return iter(())
        batch = packed(self.model.config, windows)
        return self.model.states(batch, self.layers, batch.first_tokens if only_first else None)

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

    The pooling "first_last" is the mean over the tokens of the mean of layer 1 and the last one; "pooler" is the
    model's pooler. The default of `layers` is the last one; the default of the option `truncate_dim` is the argument.

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
    return Plan(
        model=model,
        windows=windows,
        layers=layers,
        layer_pooling=layer_pooling,
        pooling=pooling,
        special_tokens=special_tokens,
        num_skipped=0 if pipeline.include_prompt else windows.num_prompt_tokens,
        pipeline=pipeline,
        truncate_dim=check_truncate_dim(truncate_dim if options.truncate_dim is None else options.truncate_dim),
        normalize=options.normalize_embeddings,
    )
