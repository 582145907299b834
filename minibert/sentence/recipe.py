"""A recipe says which hidden states a call of `encode` uses, and how they are combined and pooled; it is computed here.

Layers are numbered as in transformers: 0 is the embeddings' output, i is layer i, negative ones count from the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from minibert._utils.validation import FloatArray, brief, check_choice
from minibert.bert import encoder
from minibert.bert.packed import PackedBatch
from minibert.models.bert_model import BertModel
from minibert.sentence.pooling import pool, pooling_modes
from minibert.tokenizer.encodings import Encoding
from minibert.tokens.layers import COMBINED, LayerSelection, combine_layers, resolve_layers

__all__ = ["Recipe", "make_recipe", "pool_encodings", "token_vectors"]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The layers and the pooling of one call of `encode`.

    Parameters
    ----------
    layers : tuple of int
        Hidden states to use, 0 to L; the forward stops after the deepest one.
    layer_pooling : {"concat", "sum", "mean"}
        How several hidden states are combined. bert-as-service concatenates them.
    modes : tuple of str
        Names of `POOLING_MODES`, or "pooler" or "none" alone.
    special_tokens : bool
        Whether [CLS] and [SEP] count in pooling.
    include_prompt : bool
        Whether the tokens of a prompt (and the [CLS] before them) count in pooling.
    """

    layers: tuple[int, ...]
    layer_pooling: str
    modes: tuple[str, ...]
    special_tokens: bool
    include_prompt: bool

    def width(self, hidden_size: int) -> int:
        """Return the length of the pooled vectors, or of a token's vector for "none"."""
        per_token = hidden_size * (len(self.layers) if self.layer_pooling == "concat" else 1)
        return per_token * len(self.modes)


def make_recipe(
    model: BertModel,
    *,
    pooling: str | Sequence[str],
    layers: LayerSelection | None = None,
    layer_pooling: str = "concat",
    special_tokens: bool = True,
    include_prompt: bool = True,
) -> Recipe:
    """Check a caller's arguments against the model and return them as a recipe.

    Parameters
    ----------
    pooling : str or sequence of str
        See `pooling_modes`. "first_last" is the mean over the tokens of the mean of layer 1 and the last one; "pooler"
        is the model's pooler.
    layers : int or ints, optional
        -(L + 1) to L; default: the last one.

    Raises
    ------
    TypeError, ValueError
        A name is unknown, the model does not have a layer or a pooler, or two arguments exclude each other.
    """
    modes = pooling_modes(pooling)
    depth = model.config.num_hidden_layers
    chosen = (depth,) if layers is None else resolve_layers(layers, depth)
    check_choice("layer_pooling", layer_pooling, COMBINED)
    if not isinstance(special_tokens, bool | np.bool_):
        raise TypeError(f"special_tokens={brief(special_tokens)}; expected True or False.")
    given = ["layers="] * (layers is not None) + ["special_tokens=False"] * (not special_tokens)
    if modes[0] in ("first_last", "pooler") and given:
        raise ValueError(f"pooling={modes[0]!r} fixes layers and tokens; leave out {' and '.join(given)}.")
    if modes == ("first_last",):
        if layer_pooling not in ("concat", "mean"):  # the default, and what it means
            raise ValueError(
                f"pooling='first_last' is a mean of two layers; leave out layer_pooling={layer_pooling!r}."
            )
        return Recipe((min(1, depth), depth), "mean", ("mean",), True, include_prompt)
    if modes == ("pooler",) and model.weights.pooler is None:
        raise ValueError("pooling='pooler', but this checkpoint does not have a pooler; give another pooling.")
    return Recipe(chosen, layer_pooling, modes, bool(special_tokens), include_prompt)


def pool_encodings(
    model: BertModel, recipe: Recipe, encodings: Sequence[Encoding], num_prompt_tokens: int = 0
) -> FloatArray:
    """Compute one vector per encoding.

    Parameters
    ----------
    recipe : Recipe, not "none"
    encodings : sequence of B Encoding
    num_prompt_tokens : int
        Tokens at the start of every encoding that belong to the prompt, [CLS] included.

    Returns
    -------
    ndarray of shape (B, recipe.width(H)), float32
    """
    pooled = [np.zeros((0, recipe.width(model.config.hidden_size)), dtype=np.float32)]
    for first, step, state, from_pooler in _run(model, recipe, encodings):
        if from_pooler is not None:
            pooled.append(from_pooler)
            continue
        counts = None
        if not recipe.special_tokens or (not recipe.include_prompt and num_prompt_tokens):
            in_step = encodings[first : first + step.num_sequences]
            counts = np.concatenate([_counts(recipe, encoding, num_prompt_tokens) for encoding in in_step])
        pooled.append(pool(state, step.cu_seqlens, recipe.modes, counts))
    return np.concatenate(pooled)


def token_vectors(model: BertModel, recipe: Recipe, encodings: Sequence[Encoding]) -> list[FloatArray]:
    """Compute the vectors of all tokens: one array (S, width) per encoding. The recipe may leave out special tokens."""
    vectors: list[FloatArray] = []
    for first, step, state, _ in _run(model, recipe, encodings):
        for b, tokens in enumerate(np.split(state, step.cu_seqlens[1:-1])):
            special = encodings[first + b].special_tokens_mask == 1
            vectors.append(tokens.copy() if recipe.special_tokens else tokens[~special])
    return vectors


def _counts(recipe: Recipe, encoding: Encoding, num_prompt_tokens: int) -> np.ndarray:
    counts = np.ones(len(encoding), dtype=np.bool_)
    if not recipe.special_tokens:
        counts &= encoding.special_tokens_mask == 0
    if not recipe.include_prompt:
        counts[:num_prompt_tokens] = False
    return counts


def _run(
    model: BertModel, recipe: Recipe, encodings: Sequence[Encoding]
) -> Iterator[tuple[int, PackedBatch, FloatArray, FloatArray | None]]:
    """Yield for each step: its first encoding's index, the packed step, its combined states, the pooler's output."""
    if not encodings:
        return
    batch = PackedBatch.from_sequences([e.ids for e in encodings], [e.token_types for e in encodings])
    pooler = model.weights.pooler if recipe.modes == ("pooler",) else None
    first = 0
    for step, found in model.states(batch, recipe.layers):
        states = [found[layer] for layer in recipe.layers]
        state = states[0] if len(states) == 1 else combine_layers(states, recipe.layer_pooling)
        yield first, step, state, None if pooler is None else encoder.pooler(state, pooler, step, model.ops)
        first += step.num_sequences
