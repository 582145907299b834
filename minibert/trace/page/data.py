"""The numbers on the page: chosen from a trace, and packed into few bytes.

The page computes no model, so everything that it shows is computed here, from recorded values only.
"""

from __future__ import annotations

import functools
import math
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.trace.layout import Layout
from minibert.trace.page.steps import VectorStep

if TYPE_CHECKING:
    from minibert.trace.trace import Trace


FIRST = 4
"""The page shows this many features of a vector."""

FIRST_KEYS = 3
"""The page shows scores, and probs with 3 digits, for this many keys."""

# All probs are kept up to this number; beyond it, the largest of each row.
_DENSE_PROBS = 1_000_000
# Entries that are kept then, over all rows; and the most of one row.
_SPARSE_ENTRIES = 750_000
_MOST_OF_ROW, _LEAST_OF_ROW = 14, 2
# Cosines between all pairs of tokens are kept if they are not more than this; else those between the first places of
# each word that occurs more than once.
_MOST_COSINES = 150_000
WORD_PLACES = 5
"""The page compares the hidden states of a word at this many places."""

HEAD_MEASURES = ("first", "last", "previous", "next", "self", "same", "largest")
"""What the page says of a head: the mean share of attention on the first and the last token of the text, on the token
before, the one after and the token itself, on other tokens that are equal to it; and the mean of the largest shares.
Both of raw and of weighted shares."""


class Guesses(NamedTuple):
    """The words that a masked-LM head reads out of hidden states; `minibert.inside.logit_lens` computes them.

    Parameters
    ----------
    states : list of int                          the hidden states
    words : nested lists of str                   by state, text, token: the k most probable words
    probs : ndarray of shape (states, B, S, k)
    """

    states: list[int]
    words: list[list[list[list[str]]]]
    probs: FloatArray


class Choice(NamedTuple):
    """The layers and heads that are on the page, and the number of texts that share its size."""

    layers: list[int]
    heads: list[int]
    num_texts: int


def visible(token: str) -> str:
    """Return a token as text that cannot change the text around it.

    Control characters, marks of direction and halves of characters are written as their numbers.
    """
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    kept = "\u200c\u200d"  # parts of words and of emoji
    is_plain = [c in kept or unicodedata.category(c) not in hidden for c in token]
    return "".join(c if plain else f"\u27e8U+{ord(c):04X}\u27e9" for c, plain in zip(token, is_plain, strict=True))


def direction(tokens: Iterable[str]) -> str:
    """Return "rtl" if most letters of the tokens are written from right to left, else "ltr"."""
    letters = "".join(token for token in tokens if not token.startswith("["))
    kinds = [*map(unicodedata.bidirectional, letters)]
    return "rtl" if sum(kind in ("R", "AL") for kind in kinds) > kinds.count("L") else "ltr"


def cosine(states: FloatArray, first: IntArray, second: IntArray) -> FloatArray:
    """Return the cosines of rows `first` and `second` of each state, (N, S, H) -> (N, pairs); 0 for a zero vector."""
    x = states.astype(np.float64)
    lengths = np.linalg.norm(x, axis=2)
    lengths[lengths == 0] = 1.0
    unit = x / lengths[:, :, None]
    cosines = [np.einsum("pd,pd->p", state[first], state[second]) for state in unit]
    return np.stack(cosines) if cosines else np.zeros((0, len(first)))


def sparse_entries(num_rows: int, length: int) -> int:
    """Return how many probs of each attention row are on the page: all, or fewer if there are many rows."""
    if num_rows * length <= _DENSE_PROBS:
        return length
    return max(_LEAST_OF_ROW, min(_MOST_OF_ROW, length, _SPARSE_ENTRIES // num_rows))


def text_data(
    trace: Trace, index: int, choice: Choice, payload: Payload, guesses: Guesses | None, vector: Sequence[VectorStep]
) -> dict[str, Any]:
    """Add the numbers of one text to the payload, and return their description.

    Parameters
    ----------
    trace : Trace
    index : int            the sequence
    choice : Choice
    payload : Payload      gets the arrays
    guesses : Guesses, optional
    vector : the steps to the vector of the text, may be empty
    """
    length = int(trace.mask[index].sum())
    tokens = [str(i) for i in range(length)] if trace.tokens is None else trace.tokens[index]
    data: dict[str, Any] = {
        "tokens": [visible(token) for token in tokens],
        "ids": None if trace.ids is None else trace.ids[index].tolist(),
        "direction": direction(tokens),
        "values": _values(trace, index, length, choice, payload),
    }
    if vector:
        data["values"]["vector"] = _vector(vector, index, payload)
    data["embedding"] = _embedding(trace, index, payload)
    data |= _attention(trace, index, length, choice, payload, data["tokens"])
    data["cosines"] = _cosines(trace, index, tokens, choice, payload)
    data["guesses"] = None
    if guesses is not None:
        columns = np.flatnonzero(trace.mask[index])
        data["guesses"] = {
            "states": guesses.states,
            "words": [[[visible(word) for word in state[index][i]] for i in columns] for state in guesses.words],
            "probs": payload.add("guesses", "mille", guesses.probs[:, index, columns]),
        }
    return data


def _values(trace: Trace, index: int, length: int, choice: Choice, payload: Payload) -> dict[str, Any]:
    """Return the first features and the RMS of each token in each step: NaN where a value was not recorded."""
    parts: dict[str, Any] = {}
    for part, entries in Layout.of(trace.sizes).parts().items():
        layers: Sequence[int | None] = choice.layers if part == "layer" else [None]
        rows = [entry for entry in entries if "S, S" not in entry.shape]
        names = [[entry.path.format(i=layer) for entry in rows] for layer in layers]
        values = [[trace.value_of(name, index) if name in trace.names else None for name in row] for row in names]
        if any(value is not None for row in values for value in row):
            tokens = length if part != "pooler" else 1
            parts[part] = _described([entry.symbol for entry in rows], values, tokens, payload)
    return parts


def _vector(steps: Sequence[VectorStep], index: int, payload: Payload) -> dict[str, Any]:
    """Return the first features and the RMS of the vector of a text after each step, and what the steps say of it."""
    description = _described([step.symbol for step in steps], [[step.values[index] for step in steps]], 1, payload)
    return {**description, "notes": [step.notes[index] for step in steps]}


def _described(
    symbols: list[str], values: Sequence[Sequence[FloatArray | None]], tokens: int, payload: Payload
) -> dict[str, Any]:
    """Return the first features and the RMS of values by layer and step, each of a number of tokens."""
    rms = np.full((len(values), len(symbols), tokens), np.nan)
    first = np.full((*rms.shape, FIRST), np.nan)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if value is not None:
                numbers = value.reshape(tokens, -1).astype(np.float64)
                first[i, j, :, : numbers.shape[1]] = numbers[:, :FIRST]
                rms[i, j] = np.sqrt(np.square(numbers).mean(axis=1))
    add = functools.partial(payload.add, "values", "digits")
    return {"symbols": symbols, "first": add(first), "rms": add(rms)}


def _embedding(trace: Trace, index: int, payload: Payload) -> dict[str, Any] | None:
    """Return the shares (S, tables) of the rows of words, types and positions in their sum e: part . e / |e|^2.

    The shares of a token add up to 1. A row that points away from the sum has a negative one.
    """
    names = [entry.path for entry in Layout.of(trace.sizes).embeddings if entry.kind in ("rows", "sum")]
    if not set(names) <= set(trace.names):
        return None
    *parts, total = (np.asarray(trace.value_of(name, index), dtype=np.float64) for name in names)
    total = parts[0] if len(parts) == 1 else total  # it may be scaled
    squares = np.square(total).sum(axis=1)
    along = np.stack([(part * total).sum(axis=1) for part in parts], axis=1)
    return payload.add("values", "f24", along / np.where(squares > 0, squares, 1.0)[:, None])


def _attention(
    trace: Trace, index: int, length: int, choice: Choice, payload: Payload, tokens: Sequence[str]
) -> dict[str, Any]:
    """Return the attention of each head: probs, shares weighted by the values' lengths, scores, measures of heads."""
    shape = (len(choice.layers), len(choice.heads), length)
    kept = sparse_entries(math.prod(shape) * choice.num_texts, length)
    measures = np.full((2, *shape[:2], len(HEAD_MEASURES)), np.nan)
    scores = np.full((*shape, min(FIRST_KEYS, length)), np.nan)
    first, sums = np.full_like(scores, np.nan), np.full(shape, np.nan)
    probs = np.full((*shape, kept), np.nan)
    columns = np.zeros((*shape, kept), dtype=np.int64)
    weighted = np.full((*shape, kept), np.nan)
    for i, layer in enumerate(choice.layers):
        recorded = {
            symbol: trace.value_of(name, index)
            for symbol in ("probs", "scores", "value")
            if (name := f"encoder.layer.{layer}.attention.self.{symbol}") in trace.names
        }
        if (array := recorded.get("scores")) is not None:
            scores[i] = array[choice.heads, :, : scores.shape[3]]
            sums[i] = _log_sums(array[choice.heads].astype(np.float64))
        if (array := recorded.get("probs")) is not None:
            shares = array[choice.heads].astype(np.float64)
            first[i] = shares[:, :, : first.shape[3]]
            measures[0, i] = _measures(shares, tokens)
            of_values = shares
            if (value := recorded.get("value")) is not None:
                lengths = _lengths(trace, layer, value.astype(np.float64), choice.heads)
                of_values = shares * lengths[:, None, :]
                totals = of_values.sum(axis=2, keepdims=True)
                of_values = np.divide(of_values, totals, out=of_values, where=totals > 0)
                measures[1, i] = _measures(of_values, tokens)
            columns[i] = _largest(np.maximum(shares, of_values), kept)
            probs[i] = np.take_along_axis(shares, columns[i], axis=2)
            if value is not None:
                weighted[i] = np.take_along_axis(of_values, columns[i], axis=2)
    if np.isnan(probs).all():
        return {"attention": None}
    description: dict[str, Any] = {
        "probs": payload.add("attention", "mille", probs),
        "columns": None if kept == length else payload.add("attention", "whole", columns),
        "first": payload.add("attention", "f24", first),
        "measures": payload.add("attention", "f24", measures),
    }
    if not np.isnan(weighted).all():
        description["weighted"] = payload.add("attention", "mille", weighted)
        description["mapped"] = trace.output_map(0) is not None
    if not np.isnan(scores).all():
        description["scores"] = payload.add("attention", "digits", scores)
        description["sums"] = payload.add("attention", "digits", sums)
    return {"attention": description}


def _log_sums(scores: FloatArray) -> FloatArray:
    """Return log(sum(exp(scores))) over the last axis, by which softmax is exp(score - this)."""
    largest = scores.max(axis=-1)
    with np.errstate(invalid="ignore"):  # infinite scores of an edit
        return np.asarray(largest + np.log(np.exp(scores - largest[..., None]).sum(axis=-1)))


def _lengths(trace: Trace, layer: int, value: FloatArray, heads: Sequence[int]) -> FloatArray:
    """Return ||v_j W|| of each head and token, (A, S): the value vectors after the head's part of the output map.

    Kobayashi et al. 2020 (arXiv 2004.10102), section 3. Without the weights, for a trace from a file: ||v_j||.
    """
    weight = trace.output_map(layer)
    size = trace.sizes.hidden_size // trace.sizes.num_attention_heads
    rows = []
    for head in heads:
        columns = slice(head * size, (head + 1) * size)
        first = head * value.shape[1] // trace.sizes.hidden_size * size  # heads may share values
        own = value[:, first : first + size]
        rows.append(np.linalg.norm(own if weight is None else own @ weight[:, columns].T.astype(np.float64), axis=1))
    return np.stack(rows)


def _largest(rank: FloatArray, kept: int) -> IntArray:
    """Return the columns of the largest numbers of each row, in ascending order: (A, S, S) -> (A, S, kept)."""
    if kept == rank.shape[2]:
        return np.broadcast_to(np.arange(kept), rank.shape)
    return np.sort(np.argpartition(-rank, kept - 1, axis=2)[:, :, :kept], axis=2)


def _measures(probs: FloatArray, tokens: Sequence[str]) -> FloatArray:
    """Return `HEAD_MEASURES` of each head: (A, S, S) -> (A, 7)."""
    place, names = np.arange(len(tokens)), np.array(tokens, dtype=object)
    distance = place - place[:, None]

    def share(looked_at: npt.NDArray[np.bool_]) -> FloatArray:
        """Return the mean share that tokens give to these tokens; tokens that look at none of them do not count."""
        rows = looked_at.any(axis=1)
        return (probs * looked_at).sum(axis=2)[:, rows].mean(axis=1) if rows.any() else np.zeros(len(probs))

    ends = [np.broadcast_to(place == end, distance.shape) for end in (0, place[-1])]
    equal = (names == names[:, None]) & (distance != 0)
    shares = [share(looked_at) for looked_at in (*ends, distance == -1, distance == 1, distance == 0, equal)]
    return np.stack([*shares, probs.max(axis=2).mean(axis=1)], axis=1)


def _cosines(trace: Trace, index: int, tokens: list[str], choice: Choice, payload: Payload) -> dict[str, Any] | None:
    """Return the cosines of pairs of tokens in each hidden state, and of each token's state with the one before it."""
    recorded = [i for i in range(trace.sizes.num_layers + 1) if f"hidden_states.{i}" in trace]
    if not recorded:
        return None
    states = np.stack([np.asarray(trace.value_of(f"hidden_states.{i}", index)) for i in recorded])
    length = states.shape[1]
    if len(states) * math.comb(length, 2) * choice.num_texts <= _MOST_COSINES:
        chosen: Sequence[IntArray] = np.triu_indices(length, 1)
        pairs = None
    else:
        chosen = _equal_pairs(tokens)
        pairs = np.stack(chosen, axis=1)
    moved = np.full((len(states), length), np.nan)
    drift = np.full((len(states), length), np.nan)
    everyone = np.arange(length)
    for i in range(1, len(states)):
        if recorded[i] == recorded[i - 1] + 1:
            moved[i] = cosine(states[[i - 1, i]].reshape(1, -1, states.shape[2]), everyone, everyone + length)[0]
        if recorded[0] == 0:
            drift[i] = cosine(states[[0, i]].reshape(1, -1, states.shape[2]), everyone, everyone + length)[0]
    return {
        "states": recorded,
        "pairs": None if pairs is None else pairs.tolist(),
        "of_pairs": payload.add("cosines", "cos", cosine(states, chosen[0], chosen[1])),
        "with_previous": payload.add("cosines", "cos", moved),
        "with_embeddings": payload.add("cosines", "cos", drift),
    }


def _equal_pairs(tokens: Sequence[str]) -> tuple[IntArray, IntArray]:
    """Return all pairs of the first `WORD_PLACES` places of each token that is letters or digits."""
    places: dict[str, list[int]] = {}
    for i, token in enumerate(tokens):
        if token.removeprefix("##").isalnum():
            places.setdefault(token, []).append(i)
    pairs = [pair for same in places.values() for pair in combinations(same[:WORD_PLACES], 2)]
    chosen = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return chosen[:, 0], chosen[:, 1]


# --- the bytes --------------------------------------------------------------------------------------------------------

_NOT_A_NUMBER = 65535
# Larger numbers are not kept in float16.
_LARGEST_DIGITS = 900.0
_FACTOR = 64.0


class Payload:
    """Arrays, one after the other in one string of bytes, each with a description that finds it.

    A number has one of five kinds, of two bytes each, or three for "f24"; page.js reads them:

        "f24"    float32 rounded to its 24 leading bits: relative error at most 2^-16
        "digits" 64 times the number rounded to 3 digits, as float16. float16 is finer, so the 3 digits stay.
                 The factor is for small numbers: below 1e-6 there are fewer digits
        "mille"  a share from 0 to 1 as round(1000 share)
        "cos"    a cosine, as round(1000 (cosine + 1)): the three digits that the page shows, rounded once
        "whole"  an int, plus 1000

    The bytes of equal significance lie together ("planes"), because they compress better so.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self.sizes: dict[str, int] = {}

    def add(self, group: str, kind: str, array: npt.NDArray[Any]) -> dict[str, Any]:
        """Append an array and return the description that finds it; `group` is its name in messages."""
        if kind == "digits" and (np.abs(array[np.isfinite(array)]) > _LARGEST_DIGITS).any():
            kind = "f24"
        planes = _planes(kind, array)
        entry = {"kind": kind, "at": self._size, "shape": list(array.shape)}
        self._parts.append(planes)
        self._size += len(planes)
        self.sizes[group] = self.sizes.get(group, 0) + len(zlib.compress(planes, 1)) * 5 // 4
        return entry

    def compressed(self, description: bytes) -> bytes:
        """Return the length of the description in 4 bytes, the description and all arrays, compressed.

        The same arrays give the same bytes.
        """
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
        parts = [len(description).to_bytes(4, "little") + description, *self._parts]
        # The end of a block after each array, because the statistics of the next one differ.
        written = [deflate.compress(part) + deflate.flush(zlib.Z_SYNC_FLUSH) for part in parts]
        return b"".join([*written, deflate.flush()])


def _planes(kind: str, array: npt.NDArray[Any]) -> bytes:
    if kind == "f24":
        bits = _rounded_bits(array.astype(np.float32))
        return _by_significance(bits, 4)[bits.size :].tobytes()
    if kind == "digits":
        return _by_significance((three_digits(array) * _FACTOR).astype("<f2"), 2).tobytes()
    if kind == "whole":
        return _by_significance((array + 1000).astype("<u2"), 2).tobytes()
    scaled = np.rint(1000.0 * array).clip(0, 1000) if kind == "mille" else np.rint((array + 1.0) * 1000.0)
    return _by_significance(np.where(np.isfinite(array), scaled, _NOT_A_NUMBER).astype("<u2"), 2).tobytes()


def three_digits(x: npt.NDArray[Any]) -> FloatArray:
    """Round to 3 significant digits."""
    x = x.astype(np.float64)
    size = np.abs(x)
    usual = np.isfinite(x) & (size > 1e-30)
    power = np.floor(np.log10(size, out=np.zeros_like(x), where=usual))
    factor = 10.0 ** (2 - power)
    return np.where(usual, np.rint(np.where(usual, x, 0) * factor) / factor, np.where(np.isfinite(x), 0.0, x))


def _rounded_bits(x: FloatArray) -> npt.NDArray[np.uint32]:
    """Round float32 to its 24 leading bits, ties to even; the last byte is 0 afterwards."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    finite = (bits & 0x7F800000) != 0x7F800000
    up = np.where(finite, 0x7F + ((bits >> 8) & 1), 0).astype(np.uint32)
    return ((bits + up) & 0xFFFFFF00).astype("<u4")


def _by_significance(x: npt.NDArray[Any], size: int) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(x.reshape(-1)).view(np.uint8).reshape(-1, size).T.reshape(-1)
