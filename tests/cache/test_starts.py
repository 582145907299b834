"""Starts: warm ones compile nothing; several at the same time, killed ones, a terminal, old machine code."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minibert.kernels import processor
from tests.support import outcomes
from tests.support.machine_code import NEVER, ONCE, PACKAGE, PROGRAM, compiled, copy_package, machine_code, report
from tests.support.outcomes import PATIENCE


def test_a_warm_start_compiles_nothing_and_says_that_the_folder_is_in_use(cache: Path, model: Path) -> None:
    state, folder = machine_code(cache).stat(), machine_code(cache).parent
    os.utime(folder, (0, 0))
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert (outcome, compiled(printed)) == ("ok", NEVER)
    after = machine_code(cache).stat()
    assert (after.st_mtime_ns, after.st_ino) == (state.st_mtime_ns, state.st_ino)
    assert time.time() - folder.stat().st_mtime < 300
    report("warm", outcome)


def test_a_first_vector_imports_nothing_that_it_does_not_need(cache: Path, model: Path) -> None:
    """It imports neither the hub's client nor Numba, because the machine code is on disk."""
    program = """
        from minibert.cli import main
        assert main(["embed", "hello", "-o", os.devnull]) == 0
        needless = ("huggingface_hub.file_download", "httpx", "httpx2", "urllib.request", "http.client", "tqdm",
                    "numba", "scipy", "multiprocessing", "minibert.search")
        print("imported:", *(name for name in needless if name in sys.modules))
        """
    variables = {"NUMBA_CACHE_DIR": str(cache), "HF_HUB_CACHE": str(cache / "no hub")}
    outcome, printed = outcomes.run(program, model, **variables)
    assert (outcome, printed.splitlines()[-1].split()) == ("ok", ["imported:"]), printed


# --- several at the same time, and killed ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_processes_that_start_cold_at_once(count: int, cache: Path, model: Path) -> None:
    shutil.rmtree(cache)
    script = f"""
        import subprocess
        if len(sys.argv) == 1:
            command = [sys.executable, __file__, "child"]
            children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range({count})]
            for child in children:
                printed = child.communicate()[0]
                if child.returncode or "compiled:" not in printed: print("WRONG NUMBER", child.returncode, printed)
            sys.exit()
        """
    program = outcomes.textwrap.dedent(script) + PROGRAM
    outcome, printed = outcomes.run(program, model, NUMBA_CACHE_DIR=str(cache), timeout=PATIENCE)
    assert outcome == "ok", printed
    assert not list(cache.rglob("*.partial"))
    report(f"{count} processes starting cold at once", outcome)
    assert compiled(outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))[1]) == NEVER


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_while_compiling(kills: int, cache: Path, model: Path) -> None:
    for kill in range(kills):
        shutil.rmtree(cache, ignore_errors=True)
        program = model / "killed.py"
        program.write_text(outcomes._PRELUDE + "print('go', flush=True)\n" + PROGRAM, encoding="utf-8")
        variables = {"PYTHONPATH": str(PACKAGE.parent), "OUTCOMES_MODEL": str(model), "NUMBA_CACHE_DIR": str(cache)}
        command = [sys.executable, str(program)]
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5 + 2.0 * kill / kills)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert outcome == "ok", printed
    report(f"killed {kills} times while compiling", outcome)
    assert compiled(outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))[1]) == NEVER


# --- old machine code ------------------------------------------------------------------------------------------------


def test_a_change_of_an_intrinsic_alone_is_noticed(model: Path, tmp_path: Path) -> None:
    """Numba's own cache checks only the file of the kernel."""
    package = copy_package(tmp_path / "package")
    simd = package / "minibert" / "kernels" / "simd.py"
    source = simd.read_text(encoding="utf-8")
    changed = source.replace('maximum = _choice(">"', 'maximum = _choice("<"')
    assert changed != source
    variables = {"PYTHONPATH": str(package), "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    said = []
    for text in (source, source, changed, changed, source):
        simd.write_text(text, encoding="utf-8")
        outcome, printed = outcomes.run(PROGRAM, model, **variables)
        assert outcome == "ok", printed
        said.append(compiled(printed))
    assert said == [ONCE, NEVER, ONCE, NEVER, NEVER]
    report("an intrinsic changed", outcome)


def old_folder(cache: Path, name: str, *, days: float = 31, holds: tuple[str, ...] = ("a-1.bin",)) -> Path:
    folder = cache / name
    folder.mkdir(parents=True)
    for file in holds:
        (folder / file).write_bytes(b"machine code")
    used = time.time() - days * 24 * 3600
    os.utime(folder, (used, used))
    return folder


@pytest.mark.skipif(os.unlink not in os.supports_dir_fd, reason="minibert does not delete old machine code here")
def test_machine_code_of_other_sources_is_deleted_after_a_month(cache: Path, model: Path, tmp_path: Path) -> None:
    """Only this user's folders of exactly our names, without other files, are deleted; links are never followed."""
    ours = machine_code(cache)
    elsewhere = old_folder(tmp_path / "elsewhere", "kernels-1111111111111111")
    deleted = [
        old_folder(cache, "kernels-0123456789abcdef", holds=("a-1.bin", ".x.partial")),
        old_folder(cache, "kernels-0000000000000000", holds=(), days=400),
    ]
    kept = [
        old_folder(cache, "kernels-1234567890abcdef", days=29),
        old_folder(cache, "kernels-2234567890abcdef", days=-400),
        old_folder(cache, "kernels-3234567890abcdef", holds=("a-1.bin", "mine.txt")),
        old_folder(cache, "kernels-4234567890abcde"),
        old_folder(cache, "kernels-5234567890abcdef0"),
        old_folder(cache, "kernels-6234567890ABCDEF"),
        old_folder(cache, "my-kernels-7234567890abcdef"),
    ]
    if os.geteuid() == 0:
        kept.append(old_folder(cache, "kernels-8234567890abcdef"))
        os.chown(kept[-1], 12345, 12345)
    link = cache / "kernels-9234567890abcdef"
    link.symlink_to(elsewhere, target_is_directory=True)
    (cache / "kernels-a234567890abcdef").write_text("a file")
    inner = old_folder(cache, "kernels-b234567890abcdef", holds=())
    (inner / "folder.bin").mkdir()
    os.utime(inner, (0, 0))
    before = {path: sorted(os.listdir(path)) for path in [*kept, inner, elsewhere]}

    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert (outcome, compiled(printed)) == ("ok", NEVER)
    assert all(path.exists() for path in deleted), "a start that compiles nothing must delete nothing"

    ours.unlink()
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert (outcome, compiled(printed)) == ("ok", ONCE), printed
    assert not any(path.exists() for path in deleted)
    assert {path: sorted(os.listdir(path)) for path in before} == before
    assert link.is_symlink()
    assert (cache / "kernels-a234567890abcdef").read_text() == "a file"
    report("folders of other sources", outcome)


def test_sources_in_an_archive_are_never_cached(model: Path, tmp_path: Path) -> None:
    """In an archive old machine code cannot be distinguished from new."""
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", copy_package(tmp_path / "package"))
    variables = {"PYTHONPATH": archive, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    program = """
        from minibert.kernels.cache import cache_folders
        print(list(cache_folders()), "minibert" in str(sys.modules["minibert.kernels.cache"].__file__))
        """
    outcome, printed = outcomes.run(program, model, **variables)
    assert (outcome, printed.split()) == ("ok", ["[]", "True"])


@pytest.mark.parametrize("variable", ["NUMBA_DISABLE_JIT=1", "NUMBA_CPU_FEATURES=+avx2,zzz"])
def test_a_numba_that_cannot_compile_counts_as_missing(variable: str, model: Path, tmp_path: Path) -> None:
    """With such features LLVM would end the process."""
    program = """
        try:
            load(backend="numba")
        except ValueError as error:
            print(error)
        output = load()(**batch(0)).last_hidden_state
        print(np.array_equal(output, load(backend="numpy")(**batch(0)).last_hidden_state))
        """
    name, _, value = variable.partition("=")
    outcome, printed = outcomes.run(program, model, **{name: value, "NUMBA_CACHE_DIR": str(tmp_path / "cold")})
    assert outcome == "ok", printed
    assert printed.startswith(f"backend='numba', but numba cannot be imported ({name}")
    assert "RuntimeWarning: numba cannot be imported" in printed
    assert "\nTrue\n" in printed


def test_features_are_those_that_llvm_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for features in ("", ",", "+avx2", "+avx2,-avx512f", "+avx2,,-avx"):
        monkeypatch.setenv("NUMBA_CPU_FEATURES", features)
        assert processor.target.__wrapped__().features == features
    for features in ("zzz", "avx2,fma", "+avx2,zzz", "+avx2, +fma", " +avx2"):
        monkeypatch.setenv("NUMBA_CPU_FEATURES", features)
        with pytest.raises(ImportError, match="NUMBA_CPU_FEATURES"):
            processor.target.__wrapped__()


def test_machine_code_on_disk_needs_no_numba(cache: Path, model: Path) -> None:
    program = """
        class NoNumba:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "numba":
                    raise ImportError(f"{name} is blocked")
        sys.meta_path.insert(0, NoNumba())
        check(load(backend="numba"))
        """
    outcome, printed = outcomes.run(program, model, NUMBA_CACHE_DIR=str(cache))
    assert (outcome, printed) == ("ok", "")


SETTINGS: list[dict[str, str]] = [
    {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma"},
    {"NUMBA_CPU_NAME": "generic"},
    {"NUMBA_ENABLE_AVX": "0"},
    {"NUMBA_CPU_NAME": "sandybridge"},
]


@pytest.mark.parametrize(
    "variables", [{}, SETTINGS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in SETTINGS[1:])]
)
def test_the_processor_is_the_one_that_numba_compiles_for(variables: dict[str, str], model: Path) -> None:
    """Each setting of Numba that names a processor changes both in the same way."""
    program = """
        from numba.core.registry import cpu_target
        from minibert.kernels.processor import target
        expected = cpu_target.target_context.codegen().magic_tuple()[1:3]
        print(tuple(target()) == expected or (target(), expected))
        """
    outcome, printed = outcomes.run(program, model, **variables)
    assert (outcome, printed.strip()) == ("ok", "True")


@pytest.mark.slow
def test_after_an_interrupted_import_of_numba_a_restart_is_asked_for(model: Path, tmp_path: Path) -> None:
    program = """
        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name == "numba.core.types.npytypes":
                    sys.meta_path.remove(self)
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupt())
        try:
            load()
        except KeyboardInterrupt:
            print("interrupted")
        load()
        """
    outcome, printed = outcomes.run(program, model, NUMBA_CACHE_DIR=str(tmp_path / "cold"))
    assert outcome == "typed error", printed
    assert printed.startswith("interrupted\n")
    last = printed.splitlines()[-1]
    assert last.startswith("ValueError: numba cannot be imported")
    assert "restart Python" in last


# --- the first compilation: its message, and compiling ahead ----------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="a test cannot open a terminal on this system")
def test_a_terminal_is_told_once_why_the_first_start_takes_long(cache: Path, model: Path) -> None:
    import pty

    machine_code(cache).unlink()
    program = model / "terminal.py"
    program.write_text(outcomes._PRELUDE + PROGRAM, encoding="utf-8")
    variables = {"PYTHONPATH": str(PACKAGE.parent), "OUTCOMES_MODEL": str(model), "NUMBA_CACHE_DIR": str(cache)}
    said = []
    for _ in range(2):
        ours, theirs = pty.openpty()
        subprocess.run(
            [sys.executable, str(program)], env={**os.environ, **variables}, stderr=theirs, stdout=theirs, check=True
        )
        os.close(theirs)
        said.append(os.read(ours, 10_000).decode().count("minibert: compiling the kernels for this machine, once"))
        os.close(ours)
    assert said == [1, 0]
