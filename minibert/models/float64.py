"""The forward pass in float64: every value by name, for any model, with errors near 1e-15. It is slow.

>>> from minibert import BertModel, BertTokenizer, exact
>>> name = "sentence-transformers/all-MiniLM-L6-v2"
>>> tokenizer, model = BertTokenizer.from_pretrained(name), BertModel.from_pretrained(name)
>>> inputs = tokenizer("the river bank", return_tensors="np")
>>> true = exact.forward(model, **inputs, record="hidden_states.*")
>>> true["hidden_states.6"].dtype, bool(abs(true["hidden_states.6"] - model(**inputs).last_hidden_state).max() < 1e-5)
(dtype('float64'), True)

The weights are the model's, float32 numbers; with the compute type int16 or int8 they are the rounded ones. Each linear
map's weight is converted when it is used, and dropped then. So beside the model, the memory is that of one map in
float64, and of what is recorded. The formulas are in reference.py; GELU is more exact here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert import reference
from minibert.models.pretrained import BertPreTrainedModel
from minibert.trace.trace import Trace

__all__ = ["OPS", "forward"]

# Numbers whose erf is computed at once: Python's floats take eight times the memory of NumPy's.
_AT_ONCE = 1 << 16


def forward(model: BertPreTrainedModel[Any], *inputs: Any, **options: Any) -> Trace:
    """Run a model in float64 and keep its intermediate values by name.

    Parameters
    ----------
    model : BertModel, or a model with a head
        From any checkpoint and with any backend.
    *inputs, **options
        As for `BertModel.trace`: input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds; then, by name,
        record, edit, num_layers, tokens, allow_noop.

    Returns
    -------
    Trace
        Its arrays are float64, and so are the arrays of `Trace.output`.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `BertModel.trace`; or `model` is not a model of minibert.
    """
    if not isinstance(model, BertPreTrainedModel):
        raise TypeError(
            f"exact.forward was given a {type(model).__name__}; expected a model of minibert: "
            "BertModel.from_pretrained(...), minibert.load(...), or the .bert of a model with a head."
        )
    return model.with_ops(OPS).trace(*inputs, **options)


def gelu(x: FloatArray) -> FloatArray:
    """Compute x erfc(-x / sqrt(2)) / 2 with Python's erfc; the erf of reference.py is exact to 1e-9 only."""
    flat = x.reshape(-1)
    y = np.empty(flat.shape)
    for start in range(0, len(flat), _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        arguments = (part * -math.sqrt(0.5)).tolist()
        y[start : start + len(part)] = part * 0.5 * np.fromiter(map(math.erfc, arguments), np.float64, len(part))
    return y.reshape(x.shape)


OPS = reference.make_ops(dtype=np.float64, activations={**reference.ACTIVATION_FUNCTIONS, "gelu": gelu})
"""The float64 set of ops. It uses weights that any other set has prepared."""
