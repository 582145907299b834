"""The libraries of kernels: damaged, foreign and missing ones, the choice of a level, and how they are built."""

from __future__ import annotations

import compileall
import ctypes
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import minibert
from minibert.kernels import build, libraries, linker
from minibert.kernels.libraries import LEVELS, Level
from tests.support import outcomes
from tests.support.marks import by_default
from tests.support.outcomes import ROOT

PACKAGE = Path(minibert.__file__).parent
BUILT = "minibert/kernels/built"

# Prints the reason why the kernels cannot be loaded. Without a choice of the user NumPy computes, with one warning.
PROGRAM = """
try:
    load(backend="kernels")
    print("loaded")
except ValueError as error:
    print(error)
output = load()(**batch(0)).last_hidden_state
print("numpy", np.array_equal(output, load(backend="numpy")(**batch(0)).last_hidden_state))
"""


USED = libraries.libraries()[libraries.level_of("float32").name]
"""The library that this machine uses."""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package, which a test may damage."""
    shutil.copytree(PACKAGE, tmp_path / "package" / "minibert", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "package"


def run(package: Path | str, model: Path, program: str = PROGRAM, **variables: str) -> str:
    """Run a program with a copy of the package; return what it prints."""
    return outcomes.run(program, model, PYTHONPATH=str(package), **variables)


# --- files that cannot be used ---------------------------------------------------------------------------------------


def change_index(**values: object) -> Callable[[Path, Path], object]:
    def change(index: Path, library: Path) -> object:
        return index.write_text(json.dumps({**json.loads(index.read_text()), **values}))

    return change


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


# name: (what happens to the index and to a library, what the message says)
DAMAGE: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "no index": (lambda index, library: index.unlink(), "without compiled kernels"),
    "no folder": (lambda index, library: shutil.rmtree(index.parent), "without compiled kernels"),
    "an empty index": (lambda index, library: index.write_bytes(b""), "is damaged"),
    "an index of other bytes": (lambda index, library: index.write_bytes(os.urandom(500)), "is damaged"),
    "an index without libraries": (change_index(libraries=None), "is damaged"),
    "a folder as the index": (lambda index, library: become_a_folder(index), "cannot be read"),
    "an index of another format": (change_index(format=0), "other sources"),
    "the libraries of other sources": (change_index(sources="0" * 64), "other sources"),
    "no library": (change_index(libraries={}), "fits this processor"),
}


@pytest.mark.parametrize("damage", by_default(DAMAGE, "no folder", "an empty index", "no library"))
def test_what_cannot_be_used_has_a_message_and_never_a_signal(damage: str, package: Path, outcome_model: Path) -> None:
    change, message = DAMAGE[damage]
    index = package / BUILT / libraries.INDEX
    change(index, package / BUILT / USED.file)
    printed = run(package, outcome_model)
    assert printed.startswith("the backend is 'kernels', but they cannot be loaded: "), printed
    assert message in printed.splitlines()[0]
    assert "\nnumpy True" in printed
    assert printed.count("RuntimeWarning") == 1
    assert "so minibert computes with NumPy alone" in printed


@pytest.mark.parametrize(
    "content",
    [
        *("[" * 10**5, "[1]", "1e999", '{"libraries": {}', '{"format": 1, "sources": "x", "libraries": ["x"]}'),
        *('{"format": 1, "sources": "x", "libraries": {"x86-64": {"file": "x"}}}', '{"format": 1, "libraries": {}}'),
        *('{"format": 1, "format": 1, "sources": "x", "libraries": {}}', "null", '"x"'),
    ],
)
def test_an_index_of_any_other_form_is_damaged(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "FOLDER", tmp_path)
    (tmp_path / libraries.INDEX).write_text(content)
    with pytest.raises(ImportError, match=r"index\.json is damaged; install minibert again"):
        libraries._index.__wrapped__()


def rename_in_index(library: Path, name: str) -> None:
    index = library.parent / libraries.INDEX
    content = json.loads(index.read_text())
    content["libraries"][library.stem]["file"] = name
    index.write_text(json.dumps(content))


def become_another_file(library: Path) -> None:
    """Write a file that is not a library, and its digest into the index."""
    library.write_bytes(b"not a library" * 1000)
    content = json.loads((library.parent / libraries.INDEX).read_text())
    content["libraries"][library.stem]["sha256"] = hashlib.sha256(library.read_bytes()).hexdigest()
    (library.parent / libraries.INDEX).write_text(json.dumps(content))


DAMAGED_LIBRARIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing file": (lambda library: library.unlink(), "cannot be loaded"),
    "a folder as the file": (lambda library: become_a_folder(library), "cannot be loaded"),
    "an empty file": (lambda library: library.write_bytes(b""), "is damaged"),
    "half a file": (lambda library: os.truncate(library, library.stat().st_size // 2), "is damaged"),
    "a flipped bit": (lambda library: flip_a_bit(library), "is damaged"),
    "a name that no file has": (lambda library: rename_in_index(library, "x\0y"), "cannot be loaded"),
    "a file of another kind": (become_another_file, "cannot be loaded"),
}
LEVEL = """
from minibert.kernels.libraries import level
check(load(backend="kernels")); load()
print(level().name)
"""


@pytest.mark.skipif(len(libraries.usable_levels()) < 2, reason="only one library was built")
@pytest.mark.parametrize("damage", by_default(DAMAGED_LIBRARIES, "half a file", "a file of another kind"))
def test_the_next_library_is_used_instead_of_one_that_is_damaged(
    damage: str, package: Path, outcome_model: Path
) -> None:
    """It computes the same bits, and one warning names the file."""
    change, message = DAMAGED_LIBRARIES[damage]
    change(package / BUILT / USED.file)
    printed = run(package, outcome_model, LEVEL)
    assert printed.count("RuntimeWarning") == 1
    assert message in printed
    following = next(name for name in libraries.usable_levels() if name != libraries.level_of("float32").name)
    assert f"Until then {following} is used, with the same results" in printed
    assert printed.splitlines()[-1] == following


def test_the_lowest_library_or_all_can_be_damaged(package: Path, outcome_model: Path) -> None:
    paths = [package / BUILT / libraries.libraries()[name].file for name in reversed(libraries.usable_levels())]
    flip_a_bit(paths[0])
    if len(paths) > 1:
        printed = run(package, outcome_model, LEVEL)
        assert f"{paths[0]} is damaged" in printed
        assert printed.splitlines()[-1] == next(iter(libraries.usable_levels()))
    named = run(package, outcome_model, MINIBERT_LEVEL=paths[0].stem)
    assert "; expected one of " in named
    assert f"{paths[0]} is damaged" in named
    for path in paths[1:]:
        path.unlink()
    printed = run(package, outcome_model)
    assert all(str(path) in printed.splitlines()[0] for path in paths)
    assert printed.count("RuntimeWarning") == 1
    assert "\nnumpy True" in printed


@pytest.mark.parametrize("value", ["x86-64-avx1024", next(iter(libraries.usable_levels()))])
def test_the_variable_of_the_build_is_refused_elsewhere(value: str, outcome_model: Path) -> None:
    printed = run(ROOT, outcome_model, MINIBERT_COMPILED_LEVEL=value)
    assert "MINIBERT_COMPILED_LEVEL" in printed.splitlines()[0]
    assert "which only the build of the kernels sets; unset it" in printed.splitlines()[0]
    assert "\nnumpy True" in printed


def compile_all(package: Path, *keep: str) -> None:
    """Replace the sources by .pyc files beside them, as frozen applications have them."""
    compileall.compile_dir(package, quiet=1, legacy=True)
    for source in package.rglob("*.py"):
        if source.name not in keep:
            source.unlink()


@pytest.mark.parametrize("kept", by_default(("", "low_precision.py reference.py", "libraries.py"), ""))
def test_an_application_without_sources_uses_the_kernels(kept: str, package: Path, outcome_model: Path) -> None:
    compile_all(package, *kept.split())
    assert run(package, outcome_model, LEVEL) == f"{libraries.level().name}\n"
    shared = "check(load(backend='kernels', shared_weights=True))"
    assert run(package, outcome_model, shared, MINIBERT_CACHE_DIR=str(package)) == ""
    (package / BUILT / USED.file).unlink()
    assert f"{USED.file} cannot be loaded" in run(package, outcome_model, LEVEL)


@pytest.mark.parametrize("sources", [True, False])
def test_an_archive_uses_the_kernels(sources: bool, package: Path, outcome_model: Path, tmp_path: Path) -> None:
    if not sources:
        compile_all(package)
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", package)
    assert run(archive, outcome_model, LEVEL) == f"{libraries.level().name}\n"
    shutil.rmtree(package / BUILT)
    archive = shutil.make_archive(str(tmp_path / "other"), "zip", package)
    assert "without compiled kernels" in run(archive, outcome_model)


def test_a_clone_uses_the_kernels_of_the_installed_package(package: Path, outcome_model: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    shutil.copytree(package, installed)
    (installed / "minibert_numpy-1.dist-info").mkdir()
    (installed / "minibert_numpy-1.dist-info" / "METADATA").write_text("Name: minibert-numpy\nVersion: 1\n")
    shutil.rmtree(package / BUILT)
    (package / "pyproject.toml").touch()
    paths = f"{package}{os.pathsep}{installed}"
    assert run(paths, outcome_model, LEVEL) == f"{libraries.level().name}\n"
    with open(package / "minibert" / "kernels" / "simd.py", "a") as source:
        source.write("#")
    assert "other sources" in run(paths, outcome_model)


@pytest.mark.parametrize(
    "file", by_default(("kernels/simd.py", "bert/low_precision.py", "bert/reference.py"), "bert/reference.py")
)
def test_a_change_of_the_sources_is_noticed(file: str, package: Path, outcome_model: Path) -> None:
    source = package / "minibert" / file
    source.write_text(source.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    assert "were compiled from other sources; install minibert again" in run(package, outcome_model)


def test_a_read_only_package(package: Path, outcome_model: Path) -> None:
    """Imitate a function service, where nothing can be written."""
    everything = [package, *package.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    printed = run(package, outcome_model, "check(load(backend='kernels'))", HOME="/nowhere", XDG_CACHE_HOME="/nowhere")
    for path in everything:
        path.chmod(0o755)
    assert printed == ""


def test_a_first_vector_imports_nothing_that_it_does_not_need(outcome_model: Path, tmp_path: Path) -> None:
    """It imports neither the hub's client nor Numba nor LLVM."""
    program = """
        from minibert.cli import main
        assert main(["embed", "hello", "-o", os.devnull]) == 0
        needless = ("huggingface_hub.file_download", "httpx", "httpx2", "urllib.request", "http.client", "tqdm",
                    "numba", "llvmlite", "scipy", "multiprocessing", "pickletools", "minibert.search")
        print("imported:", *(name for name in needless if name in sys.modules))
        """
    printed = outcomes.run(program, outcome_model, HF_HUB_CACHE=str(tmp_path / "no hub"))
    assert printed.splitlines()[-1].split() == ["imported:"]


# --- the choice of a level -------------------------------------------------------------------------------------------


class Processor:
    """Imitates the functions of a library on a processor with some features; the system saves some registers."""

    def __init__(self, features: frozenset[str], saved: int = 0x6_00E6) -> None:
        self._features, self._saved = features, saved

    def cpuid(self, leaf: Any, subleaf: Any, answer: Any) -> None:
        words = (ctypes.c_uint32 * 4).from_address(answer.value)
        words[:] = [0, 0, 0, 0]
        for feature, (its_leaf, its_subleaf, register, bit) in libraries._CPUID.items():
            if feature in self._features and (leaf.value, subleaf.value) == (its_leaf, its_subleaf):
                words[register] |= 1 << bit
        if leaf.value & 0x7FFF_FFFF == 0:
            words[0] = leaf.value + 7
        elif (leaf.value, subleaf.value) == (7, 0):
            words[0] = 1
        elif leaf.value == 1 and self._saved:
            words[2] |= libraries._XGETBV

    def xgetbv(self, answer: Any) -> None:
        ctypes.c_int64.from_address(answer.value).value = self._saved


@pytest.mark.parametrize("level", [level for level in LEVELS.values() if level.machine == "x86_64"])
def test_features_that_the_processor_has_and_the_system_saves(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "MACHINE", "x86_64")
    find = libraries.processor_features
    assert find(Processor(level.features)) == level.features  # type: ignore[arg-type]
    for saved, lost in ((0x6, ("avx512", "amx")), (0xE6, ("amx",)), (0, ("avx", "fma", "f16c", "amx"))):
        expected = {feature for feature in level.features if not feature.startswith(lost)}
        assert find(Processor(level.features, saved)) == expected  # type: ignore[arg-type]


def test_the_features_of_this_processor_are_those_that_llvm_finds() -> None:
    import llvmlite.binding as llvm

    known = set().union(*(level.features for level in LEVELS.values() if level.machine == libraries.MACHINE))
    theirs = {name for name, has in llvm.get_host_cpu_features().items() if has} & known
    lowest = [*libraries.libraries().values()][-1]
    assert libraries.processor_features(libraries._open(lowest)) == theirs


def test_a_lesser_level_can_be_chosen(outcome_model: Path) -> None:
    program = "from minibert.kernels.libraries import level\nprint(level().name); check(load(backend='kernels'))"
    names = [*libraries.libraries()]
    for name in names[names.index(libraries.level().name) :]:
        assert run(ROOT, outcome_model, program, MINIBERT_LEVEL=name) == f"{name}\n"
    printed = run(ROOT, outcome_model, MINIBERT_LEVEL="x86-64-avx1024")
    assert "cannot be loaded: MINIBERT_LEVEL='x86-64-avx1024'; expected one of " in printed


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Level]]:
    """Imitate a processor with AMX; the fixture is the levels that have a library."""
    usable = {name: LEVELS[name] for name in ("x86-64-amx", "x86-64-vnni", "x86-64-avx2")}
    monkeypatch.setattr(libraries, "usable_levels", lambda: usable)
    libraries.level_of.cache_clear()
    yield usable
    libraries.level_of.cache_clear()


X86_64 = pytest.mark.skipif(libraries.MACHINE != "x86_64", reason="the levels that are named here are x86-64")


@X86_64
@pytest.mark.parametrize(("allowed", "level"), [(True, "x86-64-amx"), (False, "x86-64-vnni")])
@pytest.mark.parametrize("compute_type", ["int16", "int8", "int8_int16"])
def test_amx_is_used_for_low_precision_if_the_system_allows_it(
    compute_type: str, allowed: bool, level: str, amx: dict[str, Level], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "may_use_tiles", lambda: allowed)
    assert libraries.level_of(compute_type).name == level


@X86_64
def test_float32_does_not_ask_for_amx(amx: dict[str, Level], monkeypatch: pytest.MonkeyPatch) -> None:
    """From that question on Linux refuses small stacks for signals, also to other libraries."""
    monkeypatch.setattr(libraries, "may_use_tiles", lambda: pytest.fail("it was asked"))
    assert libraries.level_of("float32").name == "x86-64-vnni"
    libraries.level_of.cache_clear()
    del amx["x86-64-vnni"]
    assert libraries.level_of("float32").name == "x86-64-amx"


@X86_64
def test_amx_that_the_system_refuses_needs_another_library(
    amx: dict[str, Level], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "may_use_tiles", lambda: False)
    del amx["x86-64-vnni"]
    with pytest.raises(ImportError, match="refuses AMX to this process, and x86-64-vnni was not built"):
        libraries.level_of("int8")


@pytest.mark.skipif("x86-64" not in libraries.libraries(), reason="the lowest level of x86-64 was not built")
def test_a_level_without_low_precision_says_so(outcome_model: Path) -> None:
    program = "import warnings; warnings.simplefilter('error')\ntry: load(compute_type='int8', backend='kernels')\n"
    printed = run(ROOT, outcome_model, program + "except ValueError as error: print(error)", MINIBERT_LEVEL="x86-64")
    assert "the level x86-64 does not have kernels for compute_type='int8'" in printed


# --- the build -------------------------------------------------------------------------------------------------------


def test_a_library_that_would_need_another_one_is_not_made() -> None:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = "x86_64-unknown-linux-gnu"
    machine = llvm.Target.from_triple(triple).create_target_machine(reloc="pic", codemodel="small")

    def link(text: str) -> bytes:
        module = llvm.parse_assembly(f'target triple = "{triple}"\n{text}')
        return linker.link(machine.emit_object(module), ["f"], triple)

    assert link("define void @f() { ret void }").startswith(b"\x7fELF")
    with pytest.raises(ValueError, match="needs g, which is not in it"):
        link("declare void @g()\ndefine void @f() { call void @g() ret void }")
    with pytest.raises(ValueError, match="relocation"):
        link("@x = constant i32 5\ndefine ptr @f() { ret ptr @x }")
    with pytest.raises(ValueError, match="not in it"):
        link("@x = global i32 5\ndefine void @f() { store i32 1, ptr @x ret void }")


@pytest.mark.parametrize(
    ("here", "wheels", "variable", "expected"),
    [
        (True, "", "", True),
        (False, "numba hatchling", "", True),
        (False, "hatchling", "", False),  # such as musl, riscv64, Intel Macs, or a Python that is too new or too old
        (False, "", "", True),  # the package index does not answer, so the installation of Numba says why
        (True, "numba hatchling", "none", False),
    ],
)
def test_numba_is_asked_for_where_it_has_a_wheel(
    here: bool, wheels: str, variable: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: object() if here else None)
    monkeypatch.setattr(build, "_has_wheel", lambda text: re.split("[>=]", text)[0] in wheels.split())
    monkeypatch.setenv("MINIBERT_KERNELS", variable)
    for system, packages in (("linux", "numba"), ("darwin", "numba ziglang"), ("win32", "numba ziglang")):
        monkeypatch.setattr(sys, "platform", system)
        found = build.KernelsHook.dependencies(None)  # type: ignore[arg-type]
        assert " ".join(re.split("[>=]", text)[0] for text in found) == (packages if expected else ""), system


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a script of a shell")
def test_uv_or_pip_is_asked_for_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program").write_text('#!/bin/sh\necho "$PYTHONPATH$*" > "$0.asked"\n[ "$*" != "${*%numba>=1}" ]\n')
    (tmp_path / "program").chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", "hides pip from a build")
    for variable, program in (("UV", "pip install --python"), ("", "-m pip install")):
        monkeypatch.delenv("UV", raising=False)
        monkeypatch.setenv(variable or "UNUSED", str(tmp_path / "program"))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "program"))
        assert build._has_wheel("numba>=1")
        assert not build._has_wheel("hatchling")
        assert (tmp_path / "program.asked").read_text().startswith(program)


def test_the_levels_of_this_machine_and_of_every_other_one_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding as llvm

    monkeypatch.delenv("MINIBERT_KERNELS", raising=False)
    names = ["x86-64-amx", "x86-64-vnni", "x86-64-avx2", "x86-64"]
    for number, best in enumerate(names):
        features = dict.fromkeys(LEVELS[best].features, True)
        monkeypatch.setattr(llvm, "get_host_cpu_features", lambda features=features: features)
        built = [level.name for level in build._wanted(LEVELS, "x86_64")]
        assert built == names[min(number, 2) :], "those of AVX2 and the lowest fit every other machine"


def test_the_user_can_name_the_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(text: str) -> list[str]:
        monkeypatch.setenv("MINIBERT_KERNELS", text)
        return [level.name for level in build._wanted(LEVELS, "arm64")]

    assert wanted("all") == wanted("") == ["arm64-dotprod", "arm64"]
    assert wanted("arm64") == ["arm64"]
    assert wanted("arm64,x86-64") == ["arm64", "x86-64"]
    assert wanted("win_arm64") == ["arm64-dotprod", "arm64"]
    with pytest.raises(
        RuntimeError, match=r"MINIBERT_KERNELS='avx2'; expected all, none, one of .*, or some of x86-64-amx"
    ):
        wanted("avx2")


def test_every_user_may_read_what_an_editable_installation_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(root: Path, folder: Path) -> list[Path]:
        (folder / "library").touch()
        return [folder / "library"]

    monkeypatch.setattr(build, "build", make)
    monkeypatch.setattr(build, "_can_build", lambda: True)
    (tmp_path / BUILT).parent.mkdir(parents=True)
    hook: Any = SimpleNamespace(root=str(tmp_path))
    for _ in range(2):  # the second installation replaces the files of the first one
        build.KernelsHook.initialize(hook, "editable", {})
        build.KernelsHook.finalize(hook, "editable", {}, "")
    assert [path.name for path in (tmp_path / BUILT).iterdir()] == ["library"]
    assert (tmp_path / BUILT).stat().st_mode == (tmp_path / BUILT).parent.stat().st_mode
    assert not Path(hook._temporary.name).exists()


def test_a_build_that_fails_says_why(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = package / "minibert" / "kernels" / "embed_layer_norm.py"
    source.write_text(source.read_text(encoding="utf-8").replace("fma(centered, centered, total)", "centered + 'a'"))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # would find the other copy of minibert, which can be compiled
    with pytest.raises(RuntimeError, match=r"(?s)x86-64 could not be compiled, exit code 1:.*TypingError"):
        build._compile(package, LEVELS["x86-64"], tmp_path / "library")


# Compiles one kernel, not all of a level.
ONE_KERNEL = """
from pathlib import Path
from minibert.kernels.compilation import compile_library, function
from minibert.kernels.gemm import make_linear_chunk
from minibert.kernels.processor import words_of
linear_chunk = make_linear_chunk(words_of("int8"))
@function
def run(task, chunk, scratch):
    linear_chunk(task, chunk, scratch)
Path("library").write_bytes(compile_library("run", run, 3))
"""


@pytest.mark.parametrize(
    ("level", "machine"), by_default([("x86-64-amx", 62), ("arm64-dotprod", 183)], ("arm64-dotprod", 183))
)
def test_a_kernel_of_another_processor_can_be_made(level: str, machine: int, tmp_path: Path) -> None:
    done = outcomes.python("-c", ONE_KERNEL, folder=tmp_path, MINIBERT_COMPILED_LEVEL=level)
    assert done.returncode == 0, done.stderr
    assert int.from_bytes((tmp_path / "library").read_bytes()[18:20], "little") == machine


@pytest.mark.slow
@pytest.mark.parametrize(("level", "machine"), [("x86-64-amx", 62), ("arm64", 183), ("arm64-dotprod", 183)])
def test_the_kernels_of_another_processor_can_be_made(
    level: str, machine: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # has no effect, as all variables of Numba
    build._compile(ROOT, LEVELS[level], tmp_path / "library")
    assert int.from_bytes((tmp_path / "library").read_bytes()[18:20], "little") == machine


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang links for other systems")
@pytest.mark.parametrize(
    ("platform", "level", "start"),
    [
        ("win_arm64", "arm64", b"MZ"),
        ("macosx_11_0_x86_64", "x86-64", b"\xcf\xfa\xed\xfe\x07\0\0\1"),
        ("win_amd64", "x86-64", b"MZ"),
        ("macosx_11_0_arm64", "arm64", b"\xcf\xfa\xed\xfe\x0c\0\0\1"),
    ],
)
def test_the_kernels_of_another_system_can_be_made(platform: str, level: str, start: bytes, tmp_path: Path) -> None:
    machine, triple, suffix = build._PLATFORMS[platform]
    assert LEVELS[level].machine == machine
    path = tmp_path / f"library{suffix}"
    build._compile(ROOT, LEVELS[level], path, triple)
    assert path.read_bytes().startswith(start)
    assert b"run_task" in path.read_bytes()


@pytest.mark.slow
def test_sdist_wheel_and_hashes(tmp_path: Path, minilm_folder: Path) -> None:
    """An sdist makes a wheel, whose kernels compute the same bits; what was built in the tree is in neither."""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "built")
    shutil.copytree(ROOT, source, ignore=ignored)
    (source / BUILT).mkdir()
    (source / BUILT / "x86-64-old.so").write_bytes(b"of other sources")

    def command(*words: str) -> None:
        done = outcomes.python(*words, folder=tmp_path, PYTHONPATH="")
        assert done.returncode == 0, done.stdout + done.stderr

    make = "import os, sys; from hatchling.build import build_sdist; os.chdir(sys.argv[1]); build_sdist(sys.argv[2])"
    command("-c", make, str(source), str(tmp_path))
    (sdist,) = tmp_path.glob("minibert_numpy-*.tar.gz")
    command("-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(tmp_path), str(sdist))
    (wheel,) = tmp_path.glob("minibert_numpy-*.whl")
    assert "-py3-none-" in wheel.name
    assert "any" not in wheel.name
    shutil.unpack_archive(wheel, tmp_path / "unpacked", "zip")
    names = {path.name for path in (tmp_path / "unpacked" / BUILT).iterdir()}
    assert names == {libraries.INDEX, *(library.file for library in libraries.libraries().values())}
    shutil.copytree(ROOT / "tests", tmp_path / "unpacked" / "tests", ignore=ignored)
    shutil.copytree(ROOT / "benchmarks", tmp_path / "unpacked" / "benchmarks", ignore=ignored)
    program = """
        from tests.support.processor_hashes import EXPECTED, locate_minilm, of_model
        import minibert.kernels.libraries
        assert "unpacked" in minibert.kernels.libraries.__file__
        found = of_model(str(locate_minilm()))
        print([name for name, digest in json.loads(EXPECTED.read_text())["MiniLM"].items() if found[name] != digest])
        """
    model = tmp_path / "model"
    model.mkdir()
    assert run(tmp_path / "unpacked", model, program) == "[]\n"


@pytest.mark.slow
def test_the_loop_of_the_page_in_a_fresh_environment(tmp_path: Path) -> None:
    """The commands of "Change a kernel" as they stand; pip fetches what they need."""
    clone, environment = tmp_path / "clone", tmp_path / "environment"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "built"))
    venv.create(environment, with_pip=True)
    lowest = next(name for name, level in reversed(LEVELS.items()) if level.machine == libraries.MACHINE)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MINIBERT_"))}
    variables |= {"PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}", "MINIBERT_KERNELS": lowest}

    def command(line: str) -> tuple[int, str]:
        done = subprocess.run(line, shell=True, cwd=clone, env=variables, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    page = (ROOT / "minibert" / "kernels" / "README.md").read_text(encoding="utf-8")
    prepare, again = page.partition("## Change a kernel")[2].split("```")[1].removeprefix("sh\n").splitlines()
    check = "python -c 'from minibert.kernels.libraries import libraries; print(*libraries())'"
    for line, expected in ((prepare, 0), (check, 0), (None, 0), (check, 1), (again, 0), (check, 0)):
        if line is None:
            with (clone / "minibert" / "kernels" / "tile.py").open("a", encoding="utf-8") as file:
                file.write("\n# changed\n")
            continue
        code, output = command(line)
        assert code == expected, f"{line}\n{output}"
    assert output.split() == [lowest]
