"""Hidden states -> vectors: combine layers, join the vectors of a word's tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, brief, check_choice, check_indices, is_masked

LayerSelection: TypeAlias = int | Iterable[int]
"""One hidden state or several, by index: 0 the embeddings' output, i + 1 layer i's output, -1 the last one."""


# --- layers -----------------------------------------------------------------------------------------------------------


def resolve_layers(layers: LayerSelection, num_hidden_layers: int) -> tuple[int, ...]:
    """Turn a selection of hidden states into their indices, 0 to L, in the given order.

    ===================  =======================  ==============  =====================================
    hidden state         minibert, transformers   from the end    Google's scripts, bert-as-service
    ===================  =======================  ==============  =====================================
    embeddings' output   0                        -(L + 1)        not available
    of layer 0           1                        -L              0, or -L
    of layer i           i + 1                    i - L           i, or i - L
    of the last layer    L                        -1              L - 1, or -1
    ===================  =======================  ==============  =====================================

    Negative indices are the same in both. Positive indices in the last column are one less.

    Parameters
    ----------
    layers : int or ints
        From -(L + 1) to L, each hidden state once.
    num_hidden_layers : int
        L.

    Raises
    ------
    TypeError, ValueError
        An index is not an integer, is out of range, or occurs twice; or there is no index.
    """
    expected = "an int or several, such as -1 or [-4, -3, -2, -1]"
    resolved = check_indices("layers", layers, num_hidden_layers + 1, what="hidden states", expected=expected)
    if not resolved:
        raise ValueError(f"layers={brief(layers)} names none; expected at least one, 0 to {num_hidden_layers}.")
    for i, index in enumerate(resolved):
        if index in resolved[:i]:
            raise ValueError(f"layers= names hidden state {index} twice; name each once.")
    return tuple(resolved)


def _sum_layers(states: Sequence[FloatArray]) -> Any:
    return sum(state.astype(np.float64) for state in states)


def _float32(sums: npt.NDArray[np.float64]) -> FloatArray:
    """Round to float32; numbers beyond its range become infinity, without NumPy's warning."""
    with np.errstate(over="ignore", under="ignore"):
        return sums.astype(np.float32)


COMBINED = ("concat", "sum", "mean")
"""Ways that make one vector of several layers; the others of `LAYER_POOLING` keep them apart."""

LAYER_POOLING: dict[str, Callable[[Sequence[FloatArray]], FloatArray]] = {
    "concat": lambda states: np.concatenate(states, axis=-1),
    "sum": lambda states: _float32(_sum_layers(states)),
    "mean": lambda states: _float32(_sum_layers(states) / len(states)),
    "stack": lambda states: np.stack(states, axis=0),
    "tokens_first": lambda states: np.stack(states, axis=-2),
}
"""Ways to combine several hidden states into one array, by name; see `combine_layers`."""


def combine_layers(hidden_states: Sequence[FloatArray], how: str = "concat") -> FloatArray:
    """Combine several hidden states into one array: concatenated, added, averaged, or kept apart.

    Parameters
    ----------
    hidden_states : sequence of k ndarrays of shape (T, H) or (B, S, H), float32
        For example ``output.hidden_states[-4:]``.
    how : {"concat", "sum", "mean", "stack", "tokens_first"}
        "concat": (T, k H), in the order given. "sum", "mean": (T, H), added in float64 and rounded once. Kept apart:
        "stack" (k, T, H), "tokens_first" (T, k, H).

    Returns
    -------
    ndarray, float32
        A new array. For hidden states of shape (B, S, H) read (B, S) instead of T in these shapes.

    Raises
    ------
    TypeError, ValueError
        `how` is unknown; there is no hidden state, one is None or not an array, or their shapes differ.
    """
    check_choice("how", how, LAYER_POOLING)
    states = list(hidden_states)
    if not states:
        raise ValueError("hidden_states is empty; expected at least one array.")
    for i, state in enumerate(states):
        if state is None:
            raise ValueError(f"hidden_states[{i}] is None: it was not kept. Request it with output_hidden_states=.")
        if not _is_floats(state) or state.ndim < 2:
            raise TypeError(f"hidden_states[{i}] is {brief(state)}; expected a float array (T, H) or (B, S, H).")
        if state.shape != states[0].shape:
            raise ValueError(
                f"hidden_states[{i}] has shape {state.shape}, the first has {states[0].shape}; expected equal shapes."
            )
    return LAYER_POOLING[how](states)


# --- words ------------------------------------------------------------------------------------------------------------


SUBWORD_POOLING: dict[str, Callable[[FloatArray], FloatArray]] = {
    "mean": lambda vectors: _float32(vectors.mean(axis=0, dtype=np.float64)),
    "first": lambda vectors: vectors[0].copy(),
    "last": lambda vectors: vectors[-1].copy(),
    "max": lambda vectors: vectors.max(axis=0),
    "sum": lambda vectors: _float32(vectors.sum(axis=0, dtype=np.float64)),
}
"""Ways to join the vectors of a word's tokens into one vector, by name."""


def join_subwords(vectors: FloatArray, how: str = "mean") -> FloatArray:
    """Join the vectors of a word's tokens into one vector: (tokens of the word, ...) -> (...).

    Parameters
    ----------
    vectors : ndarray of shape (tokens of the word, ...), float32
    how : {"mean", "first", "last", "max", "sum"}
        "max" takes the greatest value of each feature. "mean" and "sum" add in float64 and round once.

    Raises
    ------
    TypeError, ValueError
        `how` is unknown, `vectors` is not an array of floats, or there is no token.
    """
    check_choice("subwords", how, SUBWORD_POOLING)
    if not _is_floats(vectors) or not vectors.ndim:
        raise TypeError(f"vectors is {brief(vectors)}; expected a float array, one vector for each token.")
    vectors = np.asarray(vectors)  # the rows of a np.matrix would stay 2-D
    if not len(vectors):
        raise ValueError("there are no tokens to join; a word has at least one.")
    return SUBWORD_POOLING[how](vectors)


def _is_floats(value: Any) -> bool:
    """Return whether a value is an array of floats, without a mask: the hidden numbers would count."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and not is_masked(value)
