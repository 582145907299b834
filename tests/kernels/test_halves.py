"""Weights that a file has in 16 bits stay in 16 bits, and every result has the bits of the same numbers in float32."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import minibert
from minibert.bert.families import FAMILIES
from minibert.bert.ops import Linear
from minibert.kernels.buffers import aligned_empty
from minibert.kernels.libraries import usable_levels
from minibert.kernels.packing import PackedLinear, pack
from minibert.kernels.processor import NR
from tests.support.checkpoints import random_checkpoint
from tests.support.families import by_forward, make
from tests.support.outcomes import printed

KINDS = {"F16": torch.float16, "BF16": torch.bfloat16}
# Of one micro-tile and of several, and of more rows than one block has.
SHAPES = (1, 1), (1, 4), (2, 4), (1, 22), (3, 30), (8, 36)


def write_pair(folder: Path, kind: str) -> tuple[Path, Path]:
    """Round a checkpoint to 16 bits; return its folder, and one with the same numbers in float32."""
    half, wide = folder / "half", folder / "wide"
    tensors = {name: tensor.to(KINDS[kind]) for name, tensor in load_file(folder / "model.safetensors").items()}
    for target, dtype in ((half, KINDS[kind]), (wide, torch.float32)):
        target.mkdir()
        (target / "config.json").write_bytes((folder / "config.json").read_bytes())
        stored = {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}
        save_file(stored, target / "model.safetensors", {"format": "pt"})
    return half, wide


def halves_of(model: Any) -> set[str]:
    return {linear.half for layer in model.weights.layers for linear in layer.linears}


def assert_same(ours: Any, others: Any, largest: int = 199) -> None:
    for i, shape in enumerate(SHAPES):
        ids = np.random.default_rng(i).integers(3, largest, shape)
        for found, expected in zip(ours(ids).to_tuple(), others(ids).to_tuple(), strict=True):
            for one, other in zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]:
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", by_forward(FAMILIES))
def test_every_family_has_the_same_bits(tmp_path: Path, family: str, kind: str) -> None:
    make(tmp_path, family)
    half, wide = (minibert.load(folder) for folder in write_pair(tmp_path, kind))
    assert halves_of(half) == {kind}
    assert halves_of(wide) == {""}
    assert_same(half, wide, 99)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [True, False])
def test_heads_have_the_same_bits(tmp_path: Path, kind: str, tied: bool) -> None:
    make(tmp_path, "bert", "ForMaskedLM", tie_word_embeddings=tied)
    half, wide = (minibert.load(folder) for folder in write_pair(tmp_path, kind))
    assert half.weights.head.decoder.half == half.weights.head.transform.half == kind
    assert_same(half, wide, 99)
    ids = np.arange(5, 20)[None]
    for copy in (pickle.loads(pickle.dumps(half)), minibert.load(tmp_path / "half", shared_weights=True)):
        assert copy.weights.head.decoder.half == kind
        np.testing.assert_array_equal(copy(ids).logits, wide(ids).logits)
    half.save_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(minibert.load(tmp_path / "saved")(ids).logits, wide(ids).logits)
    traces = [model.trace(ids, record="*") for model in (half, wide)]
    for name in traces[0]:
        np.testing.assert_array_equal(traces[0][name], traces[1][name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compute_type", ["int8", "int16", "int8_int16"])
def test_low_precision_and_numpy_have_the_same_bits(tmp_path: Path, kind: str, compute_type: str) -> None:
    random_checkpoint(tmp_path, vocab_size=199)
    pair = write_pair(tmp_path, kind)
    for options in ({"compute_type": compute_type}, {"backend": "numpy"}):
        half, wide = (minibert.load(folder, **options) for folder in pair)
        assert_same(half, wide)


@pytest.mark.parametrize(
    ("N", "K", "paths", "gated"),
    [
        (1, 1, 1, False),
        (NR, 7, 1, False),
        (3 * NR + 5, 19, 1, False),
        (6 * NR, 33, 3, False),
        (2 * NR + 6, 21, 2, True),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_weight_keeps_every_number(N: int, K: int, paths: int, gated: bool, kind: str) -> None:
    """Also the smallest and the largest, and zeros with a sign."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn((N, K), generator=generator) * 2.0 ** torch.randint(-30, 12, (N, K), generator=generator)
    weight = numbers.to(KINDS[kind])
    weight[0, 0] = -0.0
    exact = weight.float().numpy()
    linear = Linear(tuple("abc"[:paths]), exact, np.zeros(N, np.float32), gated, kind)
    packed = pack(aligned_empty, linear)
    assert isinstance(packed, PackedLinear)
    assert packed.panels.nbytes == 2 * K * NR * (-(-N // NR) if not gated else 2 * -(-N // (2 * NR)))
    assert packed.weight.tobytes() == exact.tobytes()
    assert pickle.loads(pickle.dumps(packed)).panels.tobytes() == packed.panels.tobytes()
    for i in range(paths) if not gated else ():
        assert packed.part(i, i + 1).half == kind
        assert packed.part(i, i + 1).weight.tobytes() == linear.part(i, i + 1).weight.tobytes()


# The bits of products with every kind of numbers of 16 bits, with one slice of K and with several, with an activation
# and with a gate, on one level. It prints how many were compared.
PRODUCTS = """
import numpy as np
from minibert.bert.ops import Linear
from minibert.kernels import make_ops
from minibert.kernels.processor import NR

generator, count = np.random.default_rng(0), 0
ops = make_ops(2)
for kind in ("F16", "BF16"):
    for N, K, gated in ((3 * NR + 5, 19, False), (2 * NR, 640, False), (2 * NR, 2048, False), (4 * NR, 70, True)):
        bits = generator.integers(0, 2**16, (N, K)).astype(np.uint16)
        if kind == "F16":
            bits = np.where((bits & 0x7C00) == 0x7C00, bits & 0x83FF, bits)  # finite; many are denormal
            weight = bits.view(np.float16).astype(np.float32)
        else:
            weight = (bits.astype(np.uint32) << 16).view(np.float32)
            weight = np.where(np.abs(weight) < 1e6, weight, np.float32(1))  # some are denormal; NaN becomes 1
        bias = generator.standard_normal(N).astype(np.float32)
        half, wide = (ops.prepare(Linear(("pooler.dense",), weight, bias, gated, name)) for name in (kind, ""))
        assert half.half == kind and half.weight.tobytes() == weight.tobytes()
        for M in (0, 1, 4, 8, 22, 57, 300):
            x = generator.standard_normal((M, K)).astype(np.float32)
            residual = generator.standard_normal((M, N)).astype(np.float32)
            for options in ({}, {"activation": "gelu"}) + (() if gated else ({"residual": residual},)):
                one, other = (ops.linear(x, linear, **options) for linear in (half, wide))
                assert one.tobytes() == other.tobytes(), (kind, N, K, M, options)
                count += 1
print(count)
"""


@pytest.mark.parametrize("level", usable_levels())
def test_every_level_has_the_same_bits(level: str) -> None:
    assert int(printed(PRODUCTS, "-W", "ignore", MINIBERT_LEVEL=level)) == 2 * 7 * (3 * 3 + 2)
