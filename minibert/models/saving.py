"""`Weights` -> a folder that minibert and transformers load: config.json and model.safetensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from minibert._utils.files import make_folder, write_whole
from minibert._utils.keywords import SAVING_KEYWORDS, check_keywords
from minibert._utils.validation import FloatArray
from minibert.bert.low_precision import compute_type_of
from minibert.bert.ops import LayerNorm, PreparedLinear
from minibert.bert.weights import EMBEDDING_ROWS, HEADS, LAYER_ROWS, POOLER_ROWS, Row, Weights


def save_model(
    call: str,
    folder: str | os.PathLike[str],
    weights: Weights,
    keywords: Mapping[str, Any],
    *,
    head: str | None = None,
    **settings: Any,
) -> None:
    """Write config.json and model.safetensors into a folder.

    Parameters
    ----------
    call : str
        The name of the function, for messages.
    folder : str or path
        Made if it does not exist.
    weights : Weights
    keywords : mapping of str
        The keywords that the function itself does not have.
    head : str, optional
        A class in `HEADS` whose head is written too.
    **settings
        Fields of config.json besides those of the config; default: ``architectures``, which names the class.

    Raises
    ------
    ValueError
        The model was loaded with a compute type other than float32.
    OSError
        A file cannot be written, or the folder holds a model in several files, which would stay beside the new one.
    """
    check_keywords(call, keywords, SAVING_KEYWORDS)
    compute_type = compute_type_of(weights)
    if compute_type != "float32":
        raise ValueError(
            f"{call}: the weights of this model were rounded to {compute_type} when it was loaded, so the files would "
            "not hold the model. Load it with compute_type='float32', and save that."
        )
    path = make_folder(folder)
    index = os.path.join(path, "model.safetensors.index.json")
    if os.path.lexists(index):
        raise FileExistsError(f"{index} belongs to another model; save into a new folder.")
    write_safetensors(os.path.join(path, "model.safetensors"), list(named_arrays(weights, head)))
    weights.config.save_pretrained(path, **({"architectures": [head or "BertModel"]} | settings))


def named_arrays(weights: Weights, head: str | None = None) -> Iterator[tuple[str, FloatArray]]:
    """Yield the name in the checkpoint and the values of each array of BERT, in the order of the forward pass.

    With a class of `HEADS`, the names begin with "bert.", and the arrays of its head follow. A tied decoder's weight is
    not given a second time.
    """
    if head is None or weights.head is None:
        yield from _of_bert(weights)
        return
    yield from ((f"bert.{name}", array) for name, array in _of_bert(weights))
    predictions = weights.head.predictions
    for row in HEADS[head].rows:
        for name, array in _of_rows(weights.head.owner(row.field), [row]):
            if name == "cls.predictions.decoder.bias":
                yield "cls.predictions.bias", array
            if predictions is None or not predictions.tied or not name.startswith("cls.predictions.decoder."):
                yield name, array


def _of_bert(weights: Weights) -> Iterator[tuple[str, FloatArray]]:
    yield from _of_rows(weights, EMBEDDING_ROWS)
    for layer in weights.layers:
        yield from _of_rows(layer, LAYER_ROWS)
    if weights.pooler is not None:
        yield from _of_rows(weights, POOLER_ROWS)


def _of_rows(owner: Any, rows: Iterable[Row]) -> Iterator[tuple[str, FloatArray]]:
    """Yield the arrays of the fields that the rows name, each field once."""
    for field, path in {row.field: row.path for row in rows}.items():
        part: PreparedLinear | LayerNorm | FloatArray = getattr(owner, field)
        if isinstance(part, np.ndarray):
            yield f"{path}.weight", part
        elif isinstance(part, LayerNorm):
            yield from ((f"{part.path}.weight", part.weight), (f"{part.path}.bias", part.bias))
        else:
            maps = len(part.paths)
            for name, weight, bias in zip(
                part.paths, np.split(part.weight, maps), np.split(part.bias, maps), strict=True
            ):
                yield from ((f"{name}.weight", weight), (f"{name}.bias", bias))


def write_safetensors(path: str | os.PathLike[str], arrays: Iterable[tuple[str, FloatArray]]) -> None:
    """Write named arrays as float32 into one safetensors file; the file gets its name when it is complete."""
    import safetensors.numpy

    tensors = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays}
    # transformers refuses a file without this metadata.
    write_whole(path, lambda file: file.write(safetensors.numpy.save(tensors, {"format": "pt"})))
