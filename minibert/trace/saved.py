"""A trace as a file: what it holds, and how it is read again."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils.files import check_format, printable
from minibert._utils.validation import FloatArray, brief, check_int
from minibert.bert.packed import PackedBatch, cumulate
from minibert.trace.files import SUFFIXES, Stored, path_text, read_arrays, write_arrays
from minibert.trace.names import Names, Sizes, Spec
from minibert.trace.values import EditReport, Value, check_tokens

__all__ = ["Saved", "read_trace", "write_trace"]

FORMAT = 1


class Saved(NamedTuple):
    """What a file gives back."""

    names: Names
    batch: PackedBatch
    values: dict[str, Value]
    tokens: list[list[str]] | None
    edits: list[EditReport]


def write_trace(
    path: str | os.PathLike[str],
    values: Mapping[str, FloatArray],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: np.dtype[Any],
    mask: npt.NDArray[np.bool_],
    header: Mapping[str, Any],
) -> None:
    """Write values of one dtype, each of which is made when it is written; `Trace.save` describes the file."""
    stored = [Stored(name, dtype, shape, functools.partial(values.__getitem__, name)) for name, shape in shapes.items()]
    shown = mask.astype(np.uint8)
    stored.append(Stored("attention_mask", shown.dtype, shown.shape, lambda: shown))
    write_arrays(path, stored, json.dumps({"format": FORMAT, **header}, ensure_ascii=False))


def read_trace(path: str | os.PathLike[str]) -> Saved:
    """Read a file; `Trace.load` describes the errors."""
    name = printable(path_text(path))
    arrays, header = read_arrays(path)
    check_format(header, FORMAT, name)
    try:
        return _assembled(arrays, header)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{name} is not a whole trace of minibert ({error}). Expected a file that Trace.save wrote, ending in "
            f"{' or '.join(SUFFIXES)}."
        ) from error


def _assembled(arrays: dict[str, npt.NDArray[Any]], header: Mapping[str, Any]) -> Saved:
    names = Names(_checked_sizes(header["sizes"]))
    mask = arrays["attention_mask"]
    if mask.ndim != 2 or mask.dtype != np.uint8 or mask.max(initial=0) > 1:
        raise ValueError(f"attention_mask is {mask.dtype} of shape {mask.shape}; expected 0 and 1 of shape (B, S)")
    shown = mask.astype(np.bool_)
    nothing = np.zeros(int(shown.sum()), dtype=np.int32)
    batch = PackedBatch(nothing, nothing, nothing, cumulate(shown.sum(axis=1)), shown)
    values: dict[str, Value] = {}
    for name in header["names"]:
        if name not in names.specs:
            raise ValueError(f"{brief(name)} is not a name of its model")
        values[name] = _packed(arrays[name], names.specs[name], batch)
    if {*arrays} != {*values, "attention_mask"}:
        raise ValueError("its arrays differ from the names in its header")
    tokens = header["tokens"]
    if tokens is not None:
        check_tokens(tokens, np.diff(batch.cu_seqlens))
    edits = [EditReport(**{**report, "names": tuple(report["names"])}) for report in header["edits"]]
    return Saved(names, batch, values, tokens, edits)


def _checked_sizes(sizes: Mapping[str, Any]) -> Sizes:
    found = Sizes(**sizes)
    for field in dataclasses.fields(found)[:6]:
        check_int(field.name, getattr(found, field.name), 0, 2**31 - 1)
    check_int("num_layers", found.num_layers, 0, found.num_hidden_layers)
    if found.num_hidden_layers > 10_000:
        raise ValueError(f"it has {found.num_hidden_layers} layers")
    if not isinstance(found.pooler, bool) or not (found.head is None or isinstance(found.head, str)):
        raise ValueError("its sizes are damaged")
    return found


def _packed(array: npt.NDArray[Any], spec: Spec, batch: PackedBatch) -> Value:
    """Return the rows of a padded array that are not masked."""
    num_sequences, length = batch.mask.shape
    shapes = {
        "tokens": (num_sequences, length, spec.width),
        "pairs": (num_sequences, spec.width, length, length),
        "pooled": (num_sequences, spec.width),
    }
    if array.dtype not in (np.float32, np.float64) or array.shape != shapes[spec.kind]:
        raise ValueError(f"{spec.name} is {array.dtype} of shape {array.shape}; expected {shapes[spec.kind]}")
    if spec.kind == "tokens":
        return np.ascontiguousarray(array[batch.mask])
    if spec.kind == "pooled":
        return np.ascontiguousarray(array[batch.shows_first])
    shown = [np.flatnonzero(row) for row in batch.mask]
    return [np.ascontiguousarray(array[b][:, columns[:, None], columns]) for b, columns in enumerate(shown)]
