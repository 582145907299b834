"""Check the arguments that the analyses share: models, inputs, traces, layers, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from minibert._utils.torch_interop import to_array
from minibert._utils.validation import FloatArray, brief, check_indices, counted
from minibert.models.pretrained import BertPreTrainedModel
from minibert.trace.edits import copied_array
from minibert.trace.names import Record
from minibert.trace.trace import Trace

Metric: TypeAlias = "str | Callable[[Any], Any] | None"
"""What an analysis measures: a function of a model's output, or the name of an array in it, or None: the first one."""


def check_model(function: str, model: object) -> Any:
    """Return a model that can be traced.

    Raises
    ------
    TypeError
        It is not one of minibert's models on ids.
    """
    if not isinstance(model, BertPreTrainedModel):
        raise TypeError(
            f"{function} was given a {type(model).__name__} as the model; expected BertModel.from_pretrained(...) or a "
            "model with a head. A SentenceTransformer has it as .model."
        )
    return model


def check_inputs(function: str, inputs: object, name: str = "inputs") -> dict[str, Any]:
    """Return the inputs of a model as arrays, by name.

    Raises
    ------
    TypeError
        They are not a mapping.
    """
    if isinstance(inputs, Trace) or not isinstance(inputs, Mapping):
        raise TypeError(
            f"{function} was given a {type(inputs).__name__} as {name}; expected what a tokenizer returns: "
            "tokenizer(texts, padding=True, return_tensors='np')."
        )
    return {key: to_array(value) for key, value in inputs.items() if value is not None}


def as_trace(function: str, model: object, source: object, record: Record) -> Trace:
    """Return a trace unchanged, or run the model on inputs and record what is needed.

    Raises
    ------
    TypeError, ValueError
        The model or the inputs are wrong, or the trace is of a model with other sizes or other weights.
    """
    checked = check_model(function, model)
    if not isinstance(source, Trace):
        return checked.trace(**check_inputs(function, source), record=record)
    fields = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    same = all(getattr(source.sizes, field) == getattr(checked.config, field) for field in fields)
    for i, layer in enumerate(checked.weights.layers if same else ()):
        weight = source.output_map(i)  # None for a trace from a file
        same = same and (weight is None or np.array_equal(weight, layer.attention_output.weight))
    if not same:
        raise ValueError(f"{function}: the trace is of another model. Give the model that made the trace.")
    return source


def check_trace(function: str, trace: object) -> Trace:
    """Return a trace; raise a TypeError if it is not one."""
    if not isinstance(trace, Trace):
        raise TypeError(f"{function} was given {brief(trace)}; expected a Trace, the result of model.trace(...).")
    return trace


def check_layers(trace: Trace, layers: object, *, hidden_states: bool = False) -> list[int]:
    """Return layers, or indices of hidden states, as a list of ints in ascending order; None means all.

    Raises
    ------
    TypeError, ValueError
        A layer is not there, or there are none.
    """
    count = trace.sizes.num_layers + hidden_states
    chosen: Iterable[int] = range(count)
    if layers is not None:
        what = "hidden states" if hidden_states else "layers"
        chosen = check_indices("layers", layers, count, what=what, expected="an int or several")
    if not chosen:
        raise ValueError("There are no layers to analyse; give at least one, and a model with layers.")
    return sorted(set(chosen))


def require(function: str, trace: Trace, names: Iterable[str], record: str) -> None:
    """Raise an error if a trace lacks a name; `record` is the value that records all that the analysis needs."""
    missing = [name for name in names if name not in trace]
    if missing:
        more = f" and {counted(len(missing) - 1, 'other name')}" if missing[1:] else ""
        raise ValueError(f"{function} needs {missing[0]}{more}. Record it: model.trace(..., record={record}).")


def pad_maps(trace: Trace, maps: list[list[FloatArray]]) -> FloatArray:
    """Turn maps of each layer and sequence, (..., S_b, S_b), into one array (layers, B, ..., S, S) with zeros."""
    by_head = bool(maps[0]) and maps[0][0].ndim == 3
    rows = [[own if by_head else own[None] for own in of_layer] for of_layer in maps]
    padded = np.stack([trace.batch.pad_pairs(row, len(row[0]) if row else 1) for row in rows])
    return padded.astype(np.float64, copy=False) if by_head else padded[:, :, 0].astype(np.float64, copy=False)


def make_metric(function: str, metric: Metric, clean: Any) -> Callable[[Any], float]:
    """Return a function that computes one number from an output.

    A name of an array means the relative change of that array: the RMS of its difference from `clean`, divided by the
    RMS of the one in `clean`; 0 for the same array.

    Raises
    ------
    TypeError, ValueError
        `metric` is not a function, and not the name of an array of the output.
    """
    if callable(metric):
        expected = "one finite number for the whole batch, such as float(output.logits[0, 1]),"
        return lambda output: float(finite_numbers(f"{function}: the metric", metric(output), (), expected))
    arrays = [key for key, value in clean.items() if isinstance(value, np.ndarray)]
    key = arrays[0] if metric is None else metric
    if not isinstance(key, str) or key not in arrays:
        raise ValueError(f"metric={brief(metric)} is none of {', '.join(arrays)}, nor a function of the output.")
    whole = clean[key].astype(np.float64)
    size = float(np.sqrt(np.square(whole).mean())) if whole.size else 0.0

    def change(output: Any) -> float:
        difference = output[key] - whole
        return float(np.sqrt(np.square(difference).mean())) / size if size else 0.0

    return change


def finite_numbers(name: str, value: Any, shape: tuple[int, ...], expected: str = "finite numbers") -> FloatArray:
    """Return numbers that a caller or his function gave as float64; ValueError if one is not finite, or not there."""
    try:
        array = copied_array(name, value).reshape(shape)
    except ValueError:
        array = np.full(shape, np.nan)
    if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        raise ValueError(f"{name} is {brief(value)}; expected {expected} of shape {shape}.")
    return array.astype(np.float64)


def shares(rows: FloatArray) -> FloatArray:
    """Divide rows by their sums; a row whose sum is 0 becomes 0."""
    sums = rows.sum(axis=-1, keepdims=True)
    return np.divide(rows, sums, out=np.zeros_like(rows), where=sums > 0)
