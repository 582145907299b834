"""The quantised types of ggml, the format of llama.cpp and Ollama: blocks of a few bits for each number -> float32.

A row of a tensor is cut into blocks of 32 or 256 numbers. A block has a scale d, a float16, and a small integer q for
each number, which stands for d * q. Some types add a minimum m; the types with a K have a scale of their own, of 4 to 8
bits, for each 16 or 32 numbers of a block. Each result is the same bit for bit as that of the package gguf.

Source: https://github.com/ggml-org/llama.cpp/blob/b4000/ggml/src/ggml-common.h (blocks) and ggml-quants.c (numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.checkpoint.safetensors import Blocks

_IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def _small(codes: np.ndarray, bits: int, width: int) -> np.ndarray:
    """Return the integers of `bits` bits in rows of bytes: those in the lowest bits of `width` bytes come first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = codes.reshape(len(codes), -1, 1, width) >> shifts & np.uint8(2**bits - 1)
    return parts.reshape(len(codes), -1)


def _scale(blocks: np.ndarray, name: str = "d") -> FloatArray:
    return blocks[name].astype(np.float32)[:, None]


def _four(blocks: np.ndarray) -> np.ndarray:
    return _small(blocks["q"], 4, 16)


def _five(blocks: np.ndarray) -> np.ndarray:
    return _four(blocks) | np.unpackbits(blocks["high"], axis=1, bitorder="little") << np.uint8(4)


def _centred(codes: Callable[[np.ndarray], np.ndarray], zero: int) -> Callable[[np.ndarray], FloatArray]:
    """Return the conversion d * (q - zero)."""
    return lambda blocks: _scale(blocks) * (codes(blocks).astype(np.float32) - np.float32(zero))


def _above(codes: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], FloatArray]:
    """Return the conversion d * q + m."""
    return lambda blocks: _scale(blocks) * codes(blocks).astype(np.float32) + _scale(blocks, "m")


def _groups(scales: FloatArray, codes: np.ndarray, less: FloatArray | None = None) -> FloatArray:
    """Return scale * q, minus a number if there is one, where a block has several scales: (n, groups)."""
    numbers = scales[:, :, None] * codes.reshape(*scales.shape, -1).astype(np.float32)
    return numbers if less is None else numbers - less[:, :, None]


def _q2_k(blocks: np.ndarray) -> FloatArray:
    scales = blocks["scales"]
    minima = _scale(blocks, "m") * (scales >> 4).astype(np.float32)
    return _groups(_scale(blocks) * (scales & 15).astype(np.float32), _small(blocks["q"], 2, 32), minima)


def _q3_k(blocks: np.ndarray) -> FloatArray:
    packed = blocks["scales"]
    scales = (_small(packed[:, :8], 4, 8) | _small(packed[:, 8:], 2, 4) << np.uint8(4)).astype(np.float32) - 32
    codes = _small(blocks["q"], 2, 32) | _small(blocks["high"], 1, 32) << np.uint8(2)
    return _groups(_scale(blocks) * scales, codes.astype(np.float32) - 4)


def _scales_and_minima(blocks: np.ndarray) -> tuple[FloatArray, FloatArray]:
    """Return the 8 scales and the 8 minima of a block; the upper 2 bits of the last 4 are in the bytes of the first."""
    first, minima, last = np.split(blocks["scales"], 3, axis=1)
    scales = np.concatenate([first & 63, last & 15 | first >> 2 & 48], axis=1).astype(np.float32)
    minima = np.concatenate([minima & 63, last >> 4 | minima >> 2 & 48], axis=1).astype(np.float32)
    return _scale(blocks) * scales, _scale(blocks, "m") * minima


def _q4_k(blocks: np.ndarray) -> FloatArray:
    scales, minima = _scales_and_minima(blocks)
    return _groups(scales, _small(blocks["q"], 4, 32), minima)


def _q5_k(blocks: np.ndarray) -> FloatArray:
    scales, minima = _scales_and_minima(blocks)
    return _groups(scales, _small(blocks["q"], 4, 32) | _small(blocks["high"], 1, 32) << np.uint8(4), minima)


def _q6_k(blocks: np.ndarray) -> FloatArray:
    codes = _small(blocks["q"], 4, 64) | _small(blocks["high"], 2, 32) << np.uint8(4)
    return _groups(_scale(blocks) * blocks["scales"].astype(np.float32), codes.astype(np.float32) - 32)


def _blocks(numbers: int, to_float32: Callable[[np.ndarray], FloatArray], *fields: Sequence[Any]) -> Blocks:
    """Return the blocks with these fields: names, types and numbers of them; d and m are float16."""
    whole = [(name, "<f2") if name in ("d", "m") else (name, *rest) for name, *rest in fields]
    return Blocks(np.dtype(whole), to_float32, numbers)


_D, _M, _Q4 = ("d",), ("m",), ("q", "u1", 16)
_K_SCALES = ("scales", "u1", 12)
QUANTISED = {
    2: _blocks(32, _centred(_four, 8), _D, _Q4),  # Q4_0
    3: _blocks(32, _above(_four), _D, _M, _Q4),  # Q4_1
    6: _blocks(32, _centred(_five, 16), _D, ("high", "u1", 4), _Q4),  # Q5_0
    7: _blocks(32, _above(_five), _D, _M, ("high", "u1", 4), _Q4),  # Q5_1
    8: _blocks(32, _centred(lambda blocks: blocks["q"], 0), _D, ("q", "i1", 32)),  # Q8_0
    10: _blocks(256, _q2_k, ("scales", "u1", 16), ("q", "u1", 64), _D, _M),
    11: _blocks(256, _q3_k, ("high", "u1", 32), ("q", "u1", 64), _K_SCALES, _D),
    12: _blocks(256, _q4_k, _D, _M, _K_SCALES, ("q", "u1", 128)),
    13: _blocks(256, _q5_k, _D, _M, _K_SCALES, ("high", "u1", 32), ("q", "u1", 128)),
    14: _blocks(256, _q6_k, ("q", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), _D),
    20: _blocks(32, lambda blocks: _scale(blocks) * _IQ4_NL[_four(blocks)], _D, _Q4),  # IQ4_NL
}
"""The blocks of ggml's types by the number that stands for a type in a file: Q4_0 to Q6_K, and IQ4_NL."""
