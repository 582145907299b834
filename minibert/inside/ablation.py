"""Ablation: attention heads removed, or value vectors set to zero, one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.inside.checks import Metric, check_inputs, check_layers, check_model, make_metric, pad_maps
from minibert.inside.resume import run_copies

__all__ = ["ablate_heads", "input_mask", "unit_rows", "value_zeroing"]


def ablate_heads(model: Any, inputs: Any, metric: Metric = None, *, layers: Any = None) -> FloatArray:
    """Remove each attention head in turn, and return how much the metric changes.

    Michel et al. 2019, "Are Sixteen Heads Really Better than One?" (arXiv 1905.10650), section 2.3: the head's result
    is set to 0. Head a owns the columns a D to (a + 1) D - 1 of the context. The layers below are computed once.

    Parameters
    ----------
    model : BertModel, or a model with a head
    inputs : mapping, as the tokenizer gives it
    metric : function, str, or None
        A function of the model's output for these inputs that returns one number, such as
        ``lambda output: float(output.logits[0, 1])``; the output has no hidden_states or attentions. Or the name of an
        array of the output, such as "pooler_output": the RMS of its change divided by its RMS. None: the first array,
        last_hidden_state or the logits.
    layers : int or ints, optional
        Default: all.

    Returns
    -------
    ndarray of shape (layers, A), float64
        The metric without the head, minus the metric of the whole model; for a name, the change itself, at least 0.

    Raises
    ------
    TypeError, ValueError
    """
    model, given = check_model("ablate_heads", model), check_inputs("ablate_heads", inputs)
    trace = model.trace(**given, record="hidden_states.*")
    chosen = check_layers(trace, layers)
    measure = make_metric("ablate_heads", metric, trace.output)
    whole, mask = measure(trace.output), input_mask(given)
    A = model.config.num_attention_heads
    D = model.config.hidden_size // A

    def remove(head: int, sequence: int, context: FloatArray) -> None:
        context[:, head * D : (head + 1) * D] = 0

    changes = np.empty((len(chosen), A))
    for row, layer in zip(changes, chosen, strict=True):
        outputs = run_copies(model, layer, trace[f"hidden_states.{layer}"], mask, A, change_context=remove)
        row[:] = [measure(output) - whole for output in outputs]
    return changes


def value_zeroing(model: Any, inputs: Any, *, layers: Any = None) -> FloatArray:
    """Set the value vector of each token to zero in turn, and return how much each token of that layer changes.

    Mohebbi et al. 2023, "Quantifying Context Mixing in Transformers" (arXiv 2301.12971), section 3: in one layer, token
    j's value vectors are 0 in all heads; the score is 1 - cos of the layer's output for token i with and without that.
    The input of the layer is that of the whole model.

    Parameters
    ----------
    model : BertModel, or a model with a head
    inputs : mapping, as the tokenizer gives it
    layers : int or ints, optional
        Default: all.

    Returns
    -------
    ndarray of shape (layers, B, S, S), float64
        ``[l, b, i, j]``: the share of token j among all that token i mixes in; rows have the sum 1. Zeros for
        masked tokens, and for a token that no value vector changes.

    Raises
    ------
    TypeError, ValueError
    """
    model, given = check_model("value_zeroing", model), check_inputs("value_zeroing", inputs)
    bert = getattr(model, "bert", model)
    trace = model.trace(**given, record="hidden_states.*")
    chosen = check_layers(trace, layers)
    shown = trace.mask
    longest = int(shown.sum(axis=1).max(initial=0))

    def zero(token: int, sequence: int, value: FloatArray) -> None:
        value[token : token + 1] = 0  # a shorter text does not have this token

    maps = []
    for layer in chosen:
        clean = unit_rows(trace[f"hidden_states.{layer + 1}"])
        changed = np.zeros((len(shown), shown.shape[1], longest))
        outputs = run_copies(
            bert, layer, trace[f"hidden_states.{layer}"], shown.astype(np.int64), longest, last=1, change_value=zero
        )
        for token, output in enumerate(outputs):
            # 1 - cos of vectors of length 1; written so, it is exactly 0 for the same bits.
            changed[:, :, token] = 0.5 * np.square(unit_rows(output.last_hidden_state) - clean).sum(axis=-1)
        maps.append([_shares(changed[b][row][:, : int(row.sum())]) for b, row in enumerate(shown)])
    return pad_maps(trace, maps)


def input_mask(inputs: dict[str, Any]) -> Any:
    """Return the attention mask of inputs, which may be left out."""
    if "attention_mask" in inputs:
        return np.asarray(inputs["attention_mask"]).astype(np.int64)
    ids = inputs.get("input_ids")
    return np.ones(np.shape(ids) if ids is not None else np.shape(inputs["inputs_embeds"])[:-1], dtype=np.int64)


def unit_rows(x: FloatArray) -> FloatArray:
    """Return rows of length 1; rows of zeros stay."""
    x = x.astype(np.float64)
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, lengths, out=np.zeros_like(x), where=lengths > 0)


def _shares(changed: FloatArray) -> FloatArray:
    """Divide rows by their sums; a row in which nothing changed stays 0."""
    sums = changed.sum(axis=1, keepdims=True)
    return np.divide(changed, sums, out=np.zeros_like(changed), where=sums > 0)
