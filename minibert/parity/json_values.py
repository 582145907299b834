"""JSON that another program wrote -> arrays by name: nested lists, and objects with shape, dtype and data."""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.files import parse_json, printable
from minibert._utils.validation import brief
from minibert.errors import ModelFormatError
from minibert.parity.numbers import NOT_FINITE, as_numbers, from_lists, widen

__all__ = ["read_json"]

_JSON_DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in ("float16", "float32", "float64", "int32", "int64", "uint8", "bool")},
    **{"f16": np.dtype("f2"), "f32": np.dtype("f4"), "f64": np.dtype("f8"), "i32": np.dtype("i4")},
    **{"i64": np.dtype("i8"), "bfloat16": np.dtype("u2"), "bf16": np.dtype("u2")},
}


def read_json(given: bytes, stem: str, shown: str) -> dict[str, Any]:
    """Read the bytes of a file; a list alone has the name `stem`, and errors call the file `shown`."""
    try:
        content = parse_json(given, shown)
    except ModelFormatError as error:
        if str(error).endswith("is not a JSON number."):  # NaN and Infinity, which Python's json writes
            raise ValueError(f"{error} {NOT_FINITE}") from error
        raise
    if isinstance(content, list):
        content = {stem: content}
    if not isinstance(content, dict):
        raise ValueError(f"{shown} holds {brief(content)}; expected an object {{name: values}}, or a list of vectors.")
    return {
        name: as_numbers(_json_value(value, f"{shown}: {printable(name)}"), name) for name, value in content.items()
    }


def _json_value(value: Any, shown: str) -> Any:
    """Turn nested lists, or an object with shape and data, into an array; lists of different lengths into a list."""
    if isinstance(value, dict):
        return _json_tensor(value, shown)
    return from_lists(value, shown)


def _json_tensor(value: dict[str, Any], shown: str) -> npt.NDArray[Any]:
    shape = value.get("shape", value.get("dims"))
    data = value.get("data", value.get("cpuData"))
    name = str(value.get("dtype", value.get("type", "float32"))).removeprefix("torch.").lower()
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**40 for size in shape):
        raise ValueError(f"{shown} has the shape {brief(shape)}; expected a list of integers: {{shape, dtype, data}}.")
    if name not in _JSON_DTYPES:
        raise ValueError(f"{shown} has the dtype {brief(name)}; expected one of {', '.join(_JSON_DTYPES)}.")
    dtype = _JSON_DTYPES[name]
    if isinstance(data, str):
        try:
            content = base64.b64decode(re.sub(r"\s+", "", data), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{shown}: its data is not base64 ({error}).") from error
        if len(content) != math.prod(shape) * dtype.itemsize:
            raise ValueError(
                f"{shown} has {len(content)} bytes of data; shape {shape} takes {math.prod(shape) * dtype.itemsize}."
            )
        flat = np.frombuffer(content, dtype.newbyteorder("<"))
        return (widen(flat) if "bf" in name else flat).reshape(shape)
    if isinstance(data, dict):  # JSON.stringify(new Float32Array([1, 2])) is {"0": 1, "1": 2}
        if list(data) != [str(i) for i in range(len(data))]:
            raise ValueError(f"{shown}: the keys of its data are not 0, 1, 2, ...; write Array.from(tensor.data).")
        data = list(data.values())
    if not isinstance(data, list) or len(np.shape(data)) != 1 or len(data) != math.prod(shape):
        raise ValueError(
            f"{shown}: its data is {brief(data)}; expected base64, or a flat list of {math.prod(shape)} numbers."
        )
    return np.asarray(from_lists(data, shown)).reshape(shape)
