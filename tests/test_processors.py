"""The same bits on every processor: the libraries of all levels that fit this one, each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minibert.kernels.libraries import usable_levels
from minibert.kernels.processor import LEVEL
from tests.support.checkpoints import locate_minilm, sentence_model
from tests.support.outcomes import PATIENCE, ROOT, python
from tests.support.processor_hashes import EXPECTED, of_model, of_ops

# NumPy is told to do without its faster code for lesser processors, too.
WITHOUT_AVX512 = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
LESSER_NUMPY = {"x86-64": f"AVX2 FMA3 {WITHOUT_AVX512}", "x86-64-avx2": WITHOUT_AVX512}
DENSE = {"in_features": 24, "out_features": 24, "bias": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """MiniLM, and a small random model of odd sizes with two Dense modules."""
    import numpy as np
    from safetensors.numpy import save_file

    kinds = [
        "models.Transformer",
        "models.Pooling",
        "models.Dense",
        "models.LayerNorm",
        "models.Dense",
        "models.Normalize",
    ]
    made = sentence_model(tmp_path_factory.mktemp("odd") / "model", kinds)
    generator = np.random.default_rng(0)
    for path, activation in (("2_Dense", "Sigmoid"), ("4_Dense", "Tanh")):
        config = {**DENSE, "activation_function": f"torch.nn.modules.activation.{activation}"}
        (made / path / "config.json").write_text(json.dumps(config))
        tensors = {"linear.weight": generator.standard_normal((24, 24)), "linear.bias": generator.standard_normal(24)}
        save_file({k: v.astype(np.float32) for k, v in tensors.items()}, made / path / "model.safetensors")
    (made / "3_LayerNorm" / "config.json").write_text(json.dumps({"dimension": 24}))
    norm = {"norm.weight": np.full(24, 1.5, np.float32), "norm.bias": np.full(24, 0.1, np.float32)}
    save_file(norm, made / "3_LayerNorm" / "model.safetensors")
    return [locate_minilm(), made]


@pytest.fixture(scope="module")
def ours(folders: list[Path]) -> dict[str, Any]:
    """The hashes of this process, on this processor."""
    return {"ops": of_ops(), **{str(folder): of_model(str(folder)) for folder in folders}}


def run_hashes(levels: list[str], folders: list[Path]) -> dict[str, Any]:
    """Return what `tests.support.processor_hashes` prints with the libraries of these levels."""
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.support.processor_hashes", *map(str, folders)],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "MINIBERT_LEVEL": name,
                "NPY_DISABLE_CPU_FEATURES": LESSER_NUMPY.get(name, ""),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for name in levels
    }
    found = {}
    for name, process in processes.items():
        printed, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        found[name] = json.loads(printed)
    return found


@pytest.mark.slow
def test_lesser_levels_give_the_same_bits(ours: dict[str, Any], folders: list[Path]) -> None:
    others = [name for name in usable_levels() if name != LEVEL.name]
    assert others
    for name, found in run_hashes(others, folders).items():
        assert found.pop("level") == name
        check_equal(found, ours)


def check_equal(found: dict[str, Any], ours: dict[str, Any]) -> None:
    """Compare the hashes; the lowest level does not have those of low precision."""
    assert list(found) == list(ours)
    for group, arrays in ours.items():
        assert len(found[group]) > 10
        assert found[group].keys() <= arrays.keys()
        assert [name for name in found[group] if found[group][name] != arrays[name]] == [], group


def test_the_bits_of_minilm_are_those_of_every_other_processor() -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    assert expected["format"] == 1
    found = of_model(str(locate_minilm()))
    assert [name for name, digest in expected["MiniLM"].items() if found[name] != digest] == [], LEVEL
    assert expected["MiniLM"].keys() == found.keys()


REFUSED = """
import ctypes, threading

memory, started, done = ctypes.create_string_buffer(2048), threading.Event(), threading.Event()

class Stack(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

def use_small_stack():
    assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, 2048)), None) == 0
    started.set()
    done.wait()

thread = threading.Thread(target=use_small_stack)
thread.start()
started.wait()
from minibert.kernels.processor import words_of
print(*(words_of(name).dot.name for name in FORMATS))
done.set()
"""


@pytest.mark.skipif("amx-tile" not in LEVEL.features, reason="this processor does not have AMX")
def test_vnni_is_used_if_linux_refuses_amx() -> None:
    """Linux refuses it while a thread has a stack for signals that is too small."""
    found = python("-c", REFUSED)
    assert found.stdout.split() == ["x86.avx512.vpdpwssd.512", "x86.avx512.vpdpbusd.512"], found.stderr
