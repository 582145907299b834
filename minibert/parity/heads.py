"""The head of a port, computed again in float64 from the last hidden state, the pooler and the values that it gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert import reference
from minibert.bert.ops import PreparedLinear
from minibert.parity import fits
from minibert.parity.finding import Finding
from minibert.parity.forward import Model
from minibert.parity.subject import Padded, visible
from minibert.parity.vectors import state_name
from minibert.trace.names import HEADS, Entry

__all__ = ["head_findings"]

# Rows of a value that are compared, because a row of logits can have as many numbers as the vocabulary.
_ROWS = 256

# An error is that of float32 if it is at most this part of the value's RMS. A sum of a few thousand products has less.
_FLOAT32 = 1e-5

# The part of a difference that a mistake must remove.
_REMOVED = 0.99


def _softmax(x: FloatArray) -> FloatArray:
    return reference.softmax(x)


def _log_softmax(x: FloatArray) -> FloatArray:
    shifted = x - x.max(axis=-1, keepdims=True)
    logs: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs


def _sigmoid(x: FloatArray) -> FloatArray:
    return reference.ACTIVATION_FUNCTIONS["sigmoid"](x)


_APPLIED: dict[str, Callable[[FloatArray], FloatArray]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
}


def head_findings(
    model: Model, inputs: Padded, port: Mapping[str, FloatArray], wrong: Sequence[str]
) -> Iterator[Finding]:
    """Yield what is wrong in the head: each wrong name that does not follow from the port's own values before it.

    Parameters
    ----------
    model : Model, with or without a head
    inputs : Padded
    port : mapping of canonical names to padded arrays
    wrong : the names of the head that differ from the truth
    """
    head = model.weights.head
    if head is None or not wrong:
        return
    entries = HEADS[head.name]
    known = {name: _rows(array, inputs) for name, array in port.items() if np.ndim(array) in (2, 3)}
    last = state_name(model.config.num_hidden_layers)
    for entry in entries:
        source = _source(entry, entries, last)
        if entry.path not in wrong:
            continue
        if source not in known:
            yield Finding(
                f"{entry.path} is wrong. This dump cannot tell whether the head makes it wrong: it does not hold what "
                "goes in",
                *("", (entry.path,), 0.0, f"Dump {source} too."),
            )
            continue
        exact = _computed(model, entry, known[source])
        given = known[entry.path]
        if not _rms(given - exact) <= _FLOAT32 * _rms(exact):
            yield _finding(model, entry, known[source], exact, given)


def _rows(array: FloatArray, inputs: Padded) -> FloatArray:
    """Return the first visible rows, (N, width)."""
    width = np.shape(array)[-1]
    return visible(np.asarray(array), inputs.mask).reshape(-1, width)[:_ROWS].astype(np.float64)


def _rms(x: FloatArray) -> float:
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.mean(x * x))) if x.size else 0.0


def _source(entry: Entry, entries: Sequence[Entry], last: str) -> str:
    """Return the name of the value that an entry is computed from."""
    words = entry.formula.replace("(", " ").replace(")", " ").split()
    before = [other.path for other in entries if other.symbol in words and other is not entry]
    return before[0] if before else "pooler" if "pooler" in words else last


def _linear(model: Model, entry: Entry) -> PreparedLinear | None:
    """Return the linear map of an entry; None if it is an activation or a LayerNorm."""
    head = model.weights.head
    assert head is not None
    predictions = head.predictions
    maps = [head.classifier, head.qa_outputs, head.seq_relationship]
    maps += [predictions.transform, predictions.decoder] if predictions is not None else []
    return next((one for one in maps if one is not None and entry.weights in one.paths), None)


def _computed(model: Model, entry: Entry, x: FloatArray) -> FloatArray:
    """Compute the value of an entry in float64."""
    linear = _linear(model, entry)
    if linear is not None:
        y: FloatArray = x @ linear.weight.astype(np.float64).T + linear.bias
        return y
    if entry.symbol == "transform_act":
        return reference.ACTIVATION_FUNCTIONS[model.config.activation](x)
    head = model.weights.head
    assert head is not None
    assert head.predictions is not None
    return reference.layer_norm(x, head.predictions.transform_norm)


def _finding(model: Model, entry: Entry, x: FloatArray, exact: FloatArray, given: FloatArray) -> Finding:
    """Say what a value of the head is, if it is not the right one."""
    name, linear = entry.path, _linear(model, entry)
    limit = min((1 - _REMOVED) * _rms(given - exact), 1e-4 * _rms(given))
    if linear is not None:
        bias = linear.bias.astype(np.float64)
        if bias.any() and _rms(given - (exact - bias)) <= limit:
            text = f"weights: {name}.bias is missing"
            return Finding(text, "W2.head", (name,), 1.0, f"Load the tensor {name}.bias and add it.")
        for function, apply in _APPLIED.items():
            if _rms(given - apply(exact)) <= limit:
                text = f"head: {name} holds {function} of the logits; the value is the logits themselves"
                return Finding(text, "H2.applied", (name,), 1.0, f"Dump the value before {function}.")
        order = fits.fit_columns(exact, given)
        if order is not None and _rms(given - exact[:, order]) <= limit:
            shown = order[:12].tolist()
            text = f"head: the columns of {name} are the right ones in another order: column i is {shown}[i]"
            return Finding(text, "H2.labels", (name,), 1.0, "Take the order of id2label in config.json.")
        if linear.shape[0] == linear.shape[1] and _rms(given - (x @ linear.weight.astype(np.float64) + bias)) <= limit:
            text = f"weights: {name}.weight is transposed"
            return Finding(text, "W1.head", (name,), 1.0, "A weight is (outputs, inputs): y = x W^T + b.")
    curve = fits.fit_activation(x, given) if entry.symbol == "transform_act" else None
    if curve is not None and curve[1] <= limit:
        text = f"hidden_act: in {name} {curve[0]} is applied; config.json has {model.config.hidden_act}"
        return Finding(text, "G1.head", (name,), 1.0, "The head applies hidden_act of config.json too.")
    return Finding(
        f"{name}: wrong, though what goes in is right; this op alone, with no known cause",
        *(
            "",
            (name,),
            0.0,
            "Compare its weights with the checkpoint, then its formula with minibert/bert/heads.py.",
        ),
    )
