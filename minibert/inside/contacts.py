"""Contacts of a protein: which pairs of residues are near each other, from the attention of ESM-2."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.checkpoint.files import locate
from minibert.checkpoint.tensors import open_checkpoint, read_tensor
from minibert.errors import ModelFormatError
from minibert.inside.validation import check_model

_EOS = 2  # the id of <eos>, which transformers does not read from a file either


def contacts(
    model: Any,
    name_or_path: str | os.PathLike[str],
    input_ids: npt.ArrayLike,
    attention_mask: npt.ArrayLike | None = None,
    **hub: Any,
) -> FloatArray:
    """Return the probability that two residues of a protein are near each other, as ESM-2's contact head gives it.

    The attention of all heads is made symmetric, corrected by the average product of its rows and columns, and given to
    a logistic regression, whose weights are in the files of the model.

    Parameters
    ----------
    model : EsmModel, or one with a head
    name_or_path : str or path
        The model's id or folder, for the tensors ``contact_head.regression``; `hub` has options such as ``revision=``.
    input_ids, attention_mask : of shape (B, S)
        With <cls> and <eos> around each protein.

    Returns
    -------
    ndarray of shape (B, S - 2, S - 2), float32
        The first row and column belong to the first residue. Places of padding and of <eos> hold zeros.

    Raises
    ------
    ModelFormatError
        The files have no contact head for the heads of this model.

    Notes
    -----
    Source: Rao et al. 2021, "Transformer protein language models are unsupervised structure learners" (ICLR),
    section 3; ``EsmModel.predict_contacts`` of transformers.
    """
    attentions = check_model("contacts", model)(input_ids, attention_mask, output_attentions=True).attentions
    channels, files = len(attentions) * model.config.num_attention_heads, locate(name_or_path, **hub)
    named = {name.rpartition("contact_head.")[2]: tensor for name, tensor in open_checkpoint(files).items()}
    weight, bias = np.empty((1, channels), np.float32), np.empty(1, np.float32)
    for name, target in (("regression.weight", weight), ("regression.bias", bias)):
        if name not in named or named[name].shape != target.shape:
            raise ModelFormatError(f"{files.source} has no contact_head.{name} of the shape {target.shape}.")
        read_tensor(named[name], target)
    counted = np.asarray(input_ids) != _EOS  # (B, S)
    counted &= True if attention_mask is None else np.asarray(attention_mask, np.bool_)
    found = np.zeros([len(counted), *[max(counted.shape[1] - 2, 0)] * 2], np.float32)
    for b, places in enumerate(map(np.flatnonzero, counted[:, 1:-1])):
        x = np.concatenate([layer[b, :, 1:-1, 1:-1][:, places][:, :, places] for layer in attentions])  # (L A, n, n)
        x = x + x.swapaxes(1, 2)
        rows = x.sum(axis=2, keepdims=True, dtype=np.float64)
        total = np.maximum(rows.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        logits = np.tensordot(weight[0].astype(np.float64), x - rows * rows.swapaxes(1, 2) / total, 1) + bias
        found[b][np.ix_(places, places)] = 0.5 + 0.5 * np.tanh(0.5 * logits)  # the sigmoid, without an overflow
    return found
