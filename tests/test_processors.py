"""The same bits on every processor: machine code for three widths of registers, each in its own process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.low_precision_processors import without
from minibert.bert.low_precision import FORMATS
from minibert.kernels.processor import REGISTER_LANES, Processor, target, usable_target, words_of
from tests.support.checkpoints import locate_minilm, sentence_model
from tests.support.outcomes import PATIENCE, ROOT
from tests.support.processor_hashes import EXPECTED, of_model, of_ops

X86 = platform.machine() in ("x86_64", "AMD64")

# Lanes of a register -> the variables that choose such a processor. NumPy is told to do without its faster code, too.
# Without FMA (generic), each fma is a call of a library function.
PROCESSORS: dict[int, dict[str, str]] = {
    8: {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma",
        "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    },
    4: {
        "NUMBA_CPU_NAME": "generic",
        "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    },
}
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


def run_hashes(processors: Mapping[Any, dict[str, str]], folders: list[Path]) -> dict[Any, Any]:
    """Return what `tests.support.processor_hashes` prints for each processor, which variables choose.

    The processes run at the same time, because each of them compiles on one core.
    """
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.support.processor_hashes", *map(str, folders)],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for name, variables in processors.items()
    }
    found = {}
    for name, process in processes.items():
        printed, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        found[name] = json.loads(printed)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not X86, reason="the processors that are named here are x86-64")
def test_other_registers_give_the_same_bits(ours: dict[str, Any], folders: list[Path]) -> None:
    others = {lanes: variables for lanes, variables in PROCESSORS.items() if lanes < REGISTER_LANES}
    for lanes, found in run_hashes(others, folders).items():
        assert found.pop("lanes") == lanes
        del found["instructions"]
        check_equal(found, ours)


def check_equal(found: dict[str, Any], ours: dict[str, Any]) -> None:
    assert list(found) == list(ours)
    for group, arrays in ours.items():
        assert len(arrays) > 10
        assert [name for name in arrays if found[group][name] != arrays[name]] == [], group


def test_the_bits_of_minilm_are_those_of_every_other_processor() -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    assert expected["format"] == 1
    found = of_model(str(locate_minilm()))
    assert [name for name, digest in expected["MiniLM"].items() if found[name] != digest] == [], target()
    assert expected["MiniLM"].keys() == found.keys()


@pytest.mark.slow
@pytest.mark.skipif(
    not (X86 and target().has("avx512bw") and target().has("avx512vnni")), reason="this processor lacks AVX-512 or VNNI"
)
def test_avx512_without_amx_or_vnni_gives_the_same_bits(ours: dict[str, Any], folders: list[Path]) -> None:
    vnni, plain = {"x86.avx512.vpdpwssd.512", "x86.avx512.vpdpbusd.512"}, {"x86.avx512.pmaddw.d.512"}
    assert {words_of(name).dot.name for name in FORMATS} == ({"AMX"} if target().has("amx-int8") else vnni)
    others = {"AMX": without("amx"), "VNNI": without("amx", "avx512vnni", "avxvnni")}
    for absent, found in run_hashes(others, folders).items():
        expected = vnni if absent == "AMX" else plain
        assert (found.pop("lanes"), set(found.pop("instructions").values())) == (16, expected)
        check_equal(found, ours)


def test_float32_does_not_ask_the_system_for_amx(folders: list[Path]) -> None:
    """Because Linux then refuses small stacks for signals, also to other libraries."""
    program = (
        "import sys; from minibert import BertModel; from minibert.kernels.processor import usable_target\n"
        "for compute_type in ('float32', 'int8'):\n"
        "    BertModel.from_pretrained(sys.argv[1], compute_type=compute_type)([[101, 102]])\n"
        "    print(usable_target.cache_info().misses)"
    )
    command = [sys.executable, "-c", program, str(folders[1])]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
    assert found.stdout.split() == ["0", "1"], found.stderr


REFUSED = """
import ctypes, threading
from minibert.bert.low_precision import FORMATS

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


@pytest.mark.skipif(not target().has("amx-tile"), reason="this processor does not have AMX")
def test_vnni_is_used_if_linux_refuses_amx() -> None:
    """Linux refuses it while a thread has a stack for signals that is too small."""
    found = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
    assert found.stdout.split() == ["x86.avx512.vpdpwssd.512", "x86.avx512.vpdpbusd.512"], found.stderr


@pytest.mark.parametrize("allowed", [True, False])
def test_amx_is_used_only_if_the_system_allows_it(allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CPU_NAME", "sapphirerapids")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "+avx512f,+amx-int8,+amx-tile")
    monkeypatch.setattr("minibert.kernels.processor._may_use_tiles", lambda: allowed)
    target.cache_clear()
    found = usable_target.__wrapped__()
    target.cache_clear()
    assert (found.has("amx-int8"), found.has("amx-tile"), found.has("avx512f")) == (allowed, allowed, True)


def test_a_processor_is_read_by_its_features() -> None:
    assert Processor("made", "+avx,-avx512f").has("avx")
    assert not Processor("made", "+avx2,-avx512f").has("avx512f")
    assert not Processor("made", "").has("avx")
