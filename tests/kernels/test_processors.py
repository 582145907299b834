"""The same bits on every processor: the libraries of all levels that fit this one, each in its own process."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from minibert.kernels.libraries import usable_levels
from minibert.kernels.processor import LEVEL
from tests.support.checkpoints import locate_minilm
from tests.support.outcomes import python
from tests.support.processor_hashes import EXPECTED, of_model, of_ops
from tests.support.sentence_modules import MEAN, dense, model_with_modules, random_tensors

# NumPy is told to do without its faster code for lesser processors, too.
WITHOUT_AVX512 = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
LESSER_NUMPY = {"x86-64": f"AVX2 FMA3 {WITHOUT_AVX512}", "x86-64-avx2": WITHOUT_AVX512}


@pytest.mark.slow
def test_lesser_levels_give_the_same_bits(tmp_path: Path) -> None:
    """Those of the ops, of MiniLM, and of a small random model with two Dense modules."""
    norm = ("LayerNorm", {"dimension": 24}, random_tensors(norm_weight=(24,), norm_bias=(24,)))
    steps = [MEAN, dense(24, 24, "torch.nn.modules.activation.Sigmoid"), norm, dense(24, 24), ("Normalize", {}, None)]
    folders = [str(locate_minilm()), str(model_with_modules(tmp_path / "model", steps))]
    ours = {"ops": of_ops(), **{folder: of_model(folder) for folder in folders}}

    def hashes(name: str) -> dict[str, Any]:
        variables = {"MINIBERT_LEVEL": name, "NPY_DISABLE_CPU_FEATURES": LESSER_NUMPY.get(name, "")}
        done = python("-m", "tests.support.processor_hashes", *folders, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    others = [name for name in usable_levels() if name != LEVEL.name]
    assert others
    with ThreadPoolExecutor() as pool:
        for name, found in zip(others, pool.map(hashes, others), strict=True):
            assert found.pop("level") == name
            assert list(found) == list(ours)
            for group, arrays in ours.items():  # the lowest level does not have the arrays of low precision
                assert len(found[group]) > 10
                assert found[group].keys() <= arrays.keys()
                assert [array for array in found[group] if found[group][array] != arrays[array]] == [], group


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

thread = threading.Thread(target=use_small_stack, daemon=True)
thread.start()
assert started.wait(60)
from minibert.bert.low_precision import FORMATS
from minibert.kernels.processor import words_of
print(*(words_of(name).dot.name for name in FORMATS))
done.set()
"""


@pytest.mark.skipif("amx-tile" not in LEVEL.features, reason="this processor does not have AMX")
def test_vnni_is_used_if_linux_refuses_amx() -> None:
    """Linux refuses it while a thread has a stack for signals that is too small."""
    found = python("-c", REFUSED)
    assert found.stdout.split() == ["x86.avx512.vpdpwssd.512", "x86.avx512.vpdpbusd.512"], found.stderr
