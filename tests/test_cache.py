"""The machine code cache: whatever is wrong with it, the result is right, at worst after a warning and a compile."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.registry import cpu_target

import minibert
from minibert.kernels import compilation
from tests.support import outcomes
from tests.support.outcomes import PATIENCE
from tests.support.report import REPORT

PACKAGE = Path(minibert.__file__).parent

# Prints how many kernels were compiled, beside the check of the numbers.
PROGRAM = """
check(load())
ours = [vars(module) for name, module in sys.modules.items() if name.startswith("minibert.kernels.")]
kernels = {id(value): value for names in ours for value in names.values() if hasattr(value, "stats")}
compiled = [kernel.__name__ for kernel in kernels.values() if kernel.stats.cache_misses and kernel.stats.cache_path]
print("compiled:", *sorted(compiled))
"""
ALL = "describe_attention describe_embed describe_layer_norm describe_linear run_task"
SMALL = "describe_layer_norm"  # the one that compiles fastest; most cases damage only that one


@pytest.fixture
def model(outcome_model: Path) -> Path:
    return outcome_model


@pytest.fixture(scope="module")
def warm(outcome_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A NUMBA_CACHE_DIR that a first start has filled."""
    folder = tmp_path_factory.mktemp("warm")
    outcome, printed = outcomes.run(PROGRAM, outcome_model, NUMBA_CACHE_DIR=str(folder))
    assert (outcome, compiled(printed)) == ("ok", ALL), printed
    return folder


@pytest.fixture
def cache(warm: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    return Path(shutil.copytree(warm, tmp_path / "cache"))


def compiled(printed: str) -> str:
    found = re.search(r"^compiled: ?(.*)$", printed, flags=re.MULTILINE)
    return found[1] if found else printed


def report(title: str, outcome: str) -> None:
    REPORT.append(outcomes.line(f"cache, {title}", Counter([outcome])))


def files(cache: Path, kernel: str = "") -> list[Path]:
    return sorted(path for path in cache.rglob("*.bin") if path.name.startswith(kernel))


def test_a_warm_start_compiles_nothing(cache: Path, model: Path) -> None:
    names = sorted(path.name.partition("-")[0] for path in files(cache))
    assert names == sorted(ALL.split())
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in files(cache)}
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert (outcome, compiled(printed)) == ("ok", "")
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in files(cache)} == before
    report("warm", outcome)


def test_a_first_vector_imports_nothing_that_it_does_not_need(cache: Path, model: Path) -> None:
    """Neither the hub's client, nor what Numba needs to compile (which imports scipy.linalg where there is one)."""
    program = """
        from minibert.cli import main
        assert main(["embed", "hello", "-o", os.devnull]) == 0
        needless = ("huggingface_hub.file_download", "httpx", "httpx2", "urllib.request", "http.client", "tqdm",
                    "numba.np.arraymath", "scipy.linalg", "multiprocessing", "minibert.cli.bench", "minibert.search")
        print("imported:", *(name for name in needless if name in sys.modules))
        """
    variables = {"NUMBA_CACHE_DIR": str(cache), "HF_HUB_CACHE": str(cache / "no hub")}
    outcome, printed = outcomes.run(program, model, **variables)
    assert (outcome, printed.splitlines()[-1].split()) == ("ok", ["imported:"]), printed


# --- damaged files ---------------------------------------------------------------------------------------------------


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_dead_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def become_another_kernels(path: Path) -> None:
    every = files(path.parent)
    shutil.copy(
        every[(every.index(path) + 1) % len(every)], path
    )  # the next: done to all in turn, each gets a wrong one


DAMAGE: dict[str, Callable[[Path], object]] = {
    "an empty file": lambda path: path.write_bytes(b""),
    "less than a checksum": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "a truncated file": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "garbage": lambda path: path.write_bytes(os.urandom(5000)),
    "text": lambda path: path.write_text("not machine code\n" * 100),
    "a flipped bit in the checksum": lambda path: flip(path, 0.0),
    "a flipped bit in the middle": lambda path: flip(path, 0.5),
    "a flipped bit at the end": lambda path: flip(path, 1.0),
    "another kernel's file": become_another_kernels,
    "a folder in its place": become_a_folder,
    "a dead link in its place": become_a_dead_link,
}


SAMPLE = ("an empty file", "a flipped bit in the middle", "a folder in its place")


@pytest.mark.parametrize(
    "damage", [damage if damage in SAMPLE else pytest.param(damage, marks=pytest.mark.slow) for damage in DAMAGE]
)
def test_a_damaged_file_is_compiled_again(damage: str, cache: Path, model: Path) -> None:
    (path,) = files(cache, SMALL)
    DAMAGE[damage](path)
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert (outcome, compiled(printed)) == ("ok", SMALL), printed
    report(damage, outcome)
    if damage != "a folder in its place":  # which minibert did not make and leaves alone
        assert "RuntimeWarning" not in printed
        outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
        assert (outcome, compiled(printed)) == ("ok", "")
    else:
        assert printed.count("RuntimeWarning") == 1


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_all_files_damaged(damage: str, cache: Path, model: Path) -> None:
    for path in files(cache):
        DAMAGE[damage](path)
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert outcome == "ok", printed
    assert compiled(printed) == ALL
    assert printed.count("RuntimeWarning") == (damage == "a folder in its place")
    report(f"all files: {damage}", outcome)


@pytest.mark.slow
def test_one_flipped_bit_anywhere(cache: Path, model: Path) -> None:
    """Numba's own files would be executed as they are."""
    counts: Counter[str] = Counter()
    (path,) = files(cache, SMALL)
    for step in range(12):
        flip(path, step / 11)
        outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
        assert compiled(printed) == SMALL
        counts[outcome] += 1
    REPORT.append(outcomes.line("cache, a flipped bit at 12 places", counts))
    assert counts == {"ok": 12}


# --- places that cannot be used --------------------------------------------------------------------------------------


def copy_package(folder: Path) -> Path:
    """A package of its own, whose __pycache__ holds no machine code."""
    shutil.copytree(PACKAGE, folder / "minibert", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def unusable_places(tmp_path: Path) -> dict[str, str]:
    """A package folder and a HOME in which nothing can be written, even by root: files stand where folders should."""
    package = copy_package(tmp_path / "package")
    (package / "minibert" / "kernels" / "__pycache__").write_text("")
    nowhere = tmp_path / "nowhere"
    nowhere.write_text("")
    return {
        "PYTHONPATH": f"{package}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(nowhere),
        "XDG_CACHE_HOME": str(nowhere),
        "NUMBA_CACHE_DIR": "",
    }


@pytest.mark.parametrize(
    "cache_dir", ["full", *(pytest.param(case, marks=pytest.mark.slow) for case in ("", "a file"))]
)
def test_no_place_at_all(cache_dir: str, model: Path, tmp_path: Path, cache: Path) -> None:
    """One warning, and the right numbers."""
    limit = ""
    if cache_dir == "full":  # no file may grow beyond 1,000 bytes: what a full disk does, without filling one
        limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        files(cache, SMALL)[0].unlink()
        variables = {"NUMBA_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    else:
        variables = unusable_places(tmp_path)
        if cache_dir:
            variables["NUMBA_CACHE_DIR"] = variables["HOME"]
    outcome, printed = outcomes.run(limit + PROGRAM, model, **variables)
    assert (outcome, compiled(printed)) == ("ok", SMALL if limit else ALL), printed
    assert printed.count("RuntimeWarning: minibert's compiled kernels cannot be kept") == 1
    assert re.search(r"/program-[\d-]+\.py:\d+: RuntimeWarning: minibert's compiled", printed), "not the caller's line"
    assert not list(cache.rglob("*.partial"))
    report(f"no place for it ({cache_dir or 'none'})", outcome)


def test_a_read_only_package_that_was_compiled_ahead(model: Path, tmp_path: Path, warm: Path) -> None:
    """A container image: warmed by whoever built it, run where nothing can be written."""
    package = copy_package(tmp_path / "package")
    beside = package / "minibert" / "kernels" / "__pycache__"
    beside.mkdir()
    shutil.copytree(next(warm.iterdir()), beside / next(warm.iterdir()).name)
    nowhere = tmp_path / "nowhere"
    nowhere.write_text("")
    everything = [package, *package.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    variables = {"PYTHONPATH": str(package), "HOME": str(nowhere), "XDG_CACHE_HOME": str(nowhere)}
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR="", **variables)
    for path in everything:
        path.chmod(0o755)
    assert (outcome, compiled(printed)) == ("ok", "")
    assert "RuntimeWarning" not in printed
    report("read-only but warm", outcome)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners")
def test_machine_code_that_others_could_have_put_there_is_not_touched(cache: Path, model: Path) -> None:
    """A file with a right checksum, in a folder open to everybody, that would run code when it is unpickled."""
    (path,) = files(cache, SMALL)
    poison = cache / "poison.py"
    program = f"""
        import pickle
        class Poison:
            def __reduce__(self): return print, ("WRONG NUMBER: poisoned",)
        payload = pickle.dumps(Poison())
        Path({str(path)!r}).write_bytes(hashlib.sha256(payload).digest() + payload)
        """
    assert outcomes.run(program, model)[0] == "ok"
    assert outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))[0] == "wrong number", "the poison works"
    assert outcomes.run(program, model)[0] == "ok"
    assert not poison.exists()
    path.parent.chmod(0o777)
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert (outcome, compiled(printed)) == ("ok", ALL), printed
    assert printed.count("others can write to it") == 1
    report("a folder open to everybody", outcome)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_machine_code_of_another_owner_is_not_touched(cache: Path, model: Path) -> None:
    for path in [*cache.iterdir(), *files(cache)]:
        os.chown(path, 65534, 65534)
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert (outcome, compiled(printed)) == ("ok", ALL), printed
    report("a folder of somebody else", outcome)


# --- files and folders that others could change, in this process -----------------------------------------------------

needs_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners")
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
STRANGER = 65534


class Poison:
    """Makes a folder where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


class Trap:
    """A cache folder, `base/kernels-...`, in which the file of one kernel would run code if it were unpickled."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.above = root / "above"
        self.base = self.above / "base"
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(self.base))
        (self.folder,) = compilation.cache_folders()
        self.folder.mkdir(parents=True)
        for place in (self.above, self.base, self.folder):
            place.chmod(0o755)
        self.mark = root / "executed"
        payload = pickle.dumps(Poison(self.mark))
        self.poison = hashlib.sha256(payload).digest() + payload
        self._code = compilation._MachineCode("tests.trap")
        key = self._code._key("()", cpu_target.target_context.codegen())
        self.file = self.folder / self._code._file_name(key)
        self.file.write_bytes(self.poison)
        self.file.chmod(0o644)
        self.theirs = root / "theirs"  # a folder open to everybody, which holds the same file

    def load(self) -> bool:
        """Look for the kernel; whether the code was executed."""
        assert self._code.load_overload("()", cpu_target.target_context) is None
        return self.mark.exists()

    def make_theirs(self, content: bytes | None) -> None:
        inner = self.theirs / self.folder.name
        inner.mkdir(parents=True)
        if content is not None:
            (inner / self.file.name).write_bytes(content)
        for place in (self.theirs, inner):
            place.chmod(0o777)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trap:
    return Trap(tmp_path, monkeypatch)


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


def become_a_link(path: Path) -> None:
    target = path.rename(path.with_name("target"))
    path.symlink_to(target)


def become_a_sticky_folder_of_a_stranger(path: Path) -> None:
    path.chmod(0o1777)
    give_away(path)


def nothing(path: Path) -> None:
    pass


# What is done to the file, the folder or the folder above NUMBA_CACHE_DIR -> what is said about the folder.
PRIVATE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "an ordinary folder": ("file", nothing),
    "a file for the user alone": ("file", lambda path: path.chmod(0o600)),
    "a folder for the user alone": ("folder", lambda path: path.chmod(0o700)),
    "a link to a folder of one's own": ("folder", become_a_link),
    "a link above": ("above", become_a_link),
    "a sticky folder above": ("above", lambda path: path.chmod(0o1777)),
}
OPEN: dict[str, tuple[str, Callable[[Path], object], str | None]] = {
    "a file open to all": ("file", lambda path: path.chmod(0o666), None),
    "a file open to a group": ("file", lambda path: path.chmod(0o664), None),
    "a file of a stranger": ("file", give_away, None),
    "a link to a file": ("file", become_a_link, None),
    "a folder open to all": ("folder", lambda path: path.chmod(0o777), "others can write to it"),
    "a folder open to a group": ("folder", lambda path: path.chmod(0o775), "others can write to it"),
    "a sticky folder": ("folder", lambda path: path.chmod(0o1777), "others can write to it"),
    "a folder of a stranger": ("folder", give_away, "it belongs to another user"),
    "a folder above open to all": ("above", lambda path: path.chmod(0o777), "others can write to {above}"),
    "a folder above open to a group": ("above", lambda path: path.chmod(0o775), "others can write to {above}"),
    "a folder above of a stranger": ("above", give_away, "{above} belongs to another user"),
    "a sticky one of a stranger": ("above", become_a_sticky_folder_of_a_stranger, "{above} belongs to another user"),
}


@needs_owners
@pytest.mark.parametrize("case", PRIVATE)
def test_a_private_folder_is_used(case: str, trap: Trap) -> None:
    """And the poison works: without this test, the next ones would show nothing."""
    place, change = PRIVATE[case]
    change(getattr(trap, place))
    assert compilation.why_untrusted(trap.folder) is None
    assert trap.load()
    compilation._write(trap.folder, "a.bin", b"machine code")
    assert compilation._read(trap.folder, "a.bin") == b"machine code"


@needs_owners
@pytest.mark.parametrize("case", [pytest.param(case, marks=needs_root if "stranger" in case else ()) for case in OPEN])
def test_what_others_could_have_written_is_not_unpickled(case: str, trap: Trap) -> None:
    place, change, reason = OPEN[case]
    change(getattr(trap, place))
    assert not trap.load()
    if reason is None:  # the folder is in order: the file is replaced by a good one
        assert compilation.why_untrusted(trap.folder) is None
        compilation._write(trap.folder, trap.file.name, b"machine code")
        assert compilation._read(trap.folder, trap.file.name) == b"machine code"
        assert not trap.file.is_symlink()
    else:
        reason = reason.format(above=trap.above)
        assert compilation.why_untrusted(trap.folder) == reason
        with pytest.raises(PermissionError, match=f"^{re.escape(str(PermissionError(0, reason)))}$"):
            compilation._write(trap.folder, "a.bin", b"machine code")
        assert os.listdir(trap.folder) == [trap.file.name]


@needs_owners
def test_a_fifo_is_neither_waited_for_nor_unpickled(trap: Trap) -> None:
    trap.file.unlink()
    os.mkfifo(trap.file, 0o644)
    held = os.open(trap.file, os.O_RDWR)  # a writer that never ends
    os.write(held, trap.poison)
    loader = threading.Thread(target=trap.load, daemon=True)
    loader.start()
    loader.join(60)
    waits = loader.is_alive()
    os.close(held)
    loader.join()
    assert (waits, trap.mark.exists()) == (False, False)


@needs_owners
def test_missing_folders_are_made_for_the_user_alone_to_write_to(trap: Trap) -> None:
    """Whatever the umask; and not below a folder that is open to others."""
    shutil.rmtree(trap.base)
    before = os.umask(0o002)
    try:
        compilation._write(trap.folder, "a.bin", b"machine code")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (trap.base, trap.folder, trap.folder / "a.bin")] == [
        0o755,
        0o755,
        0o644,
    ]
    shutil.rmtree(trap.base)
    trap.above.chmod(0o777)
    with pytest.raises(PermissionError, match="others can write to"):
        compilation._write(trap.folder, "a.bin", b"machine code")
    assert not trap.base.exists()


class Swap:
    """Puts a link to a stranger's folder in the place of one of the user's, and takes it away again."""

    def __init__(self, path: Path, theirs: Path) -> None:
        self._path, self._theirs, self._aside = path, theirs, path.with_name("aside")

    def do(self) -> None:
        self._path.rename(self._aside)
        self._path.symlink_to(self._theirs)

    def undo(self) -> None:
        self._path.unlink()
        self._aside.rename(self._path)


CALLS = ("lstat", "stat", "open", "fstat", "mkdir")


@contextlib.contextmanager
def after_call(number: int, action: Callable[[], None]) -> Iterator[list[str]]:
    """Do something after the n-th of `CALLS`; the list is filled with the names of all calls."""
    calls: list[str] = []

    def wrap(name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            try:
                return original(*arguments, **options)
            finally:
                calls.append(name)
                if len(calls) == number:
                    action()

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name, function in [(name, wrap(name)) for name in CALLS]:
            patch.setattr(os, name, function)
        yield calls


@needs_owners
@pytest.mark.parametrize("place", ["folder", "base"])
def test_a_folder_that_is_swapped_while_it_is_looked_at(place: str, trap: Trap) -> None:
    """After each call to the system in turn: nothing of the stranger's is unpickled, and nothing is written there."""
    trap.make_theirs(trap.poison)
    inner = trap.theirs / trap.folder.name
    swap = Swap(getattr(trap, place), inner if place == "folder" else trap.theirs)
    trap.file.write_bytes(b"no machine code")
    number, calls = 0, [""]
    while number <= len(calls):  # once more than there are calls: then nothing is swapped
        number += 1
        for write in (False, True):
            with after_call(number, swap.do) as calls, contextlib.suppress(OSError):
                if write:
                    compilation._write(trap.folder, "a.bin", b"machine code")
                else:
                    trap.load()
            if len(calls) >= number:
                swap.undo()
            assert not trap.mark.exists(), f"unpickled after {calls[:number]}"
            assert os.listdir(inner) == [trap.file.name], f"written after {calls[:number]}"
    assert {"lstat", "open", "fstat"} <= set(calls)
    assert number > 8


@needs_owners
def test_a_folder_that_is_swapped_all_the_time(trap: Trap) -> None:
    trap.make_theirs(trap.poison)
    trap.file.write_bytes(b"no machine code")
    inner = trap.theirs / trap.folder.name
    swap, done, generator = Swap(trap.folder, inner), threading.Event(), random.Random(0)

    def swap_on() -> None:
        while not done.is_set():
            swap.do()
            time.sleep(generator.random() * 1e-4)
            swap.undo()
            time.sleep(generator.random() * 1e-4)

    swapper = threading.Thread(target=swap_on)
    swapper.start()
    executed = sum(trap.load() for _ in range(500))
    done.set()
    swapper.join()
    assert executed == 0
    REPORT.append(f"cache, a folder swapped all the time: {executed} of 500 loads executed what a stranger put there")


@needs_owners
def test_a_folder_below_one_that_is_open_to_others_is_warned_of_once(trap: Trap) -> None:
    trap.above.chmod(0o777)
    compilation._warn_not_saved.cache_clear()

    @compilation.kernel
    def twice(x: Any) -> Any:
        return 2 * x

    @compilation.kernel
    def thrice(x: Any) -> Any:
        return 3 * x

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert (twice(2), thrice(2), twice(2.0)) == (4, 6, 4.0)
    compilation._warn_not_saved.cache_clear()
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert f"cannot be kept ({trap.folder}: others can write to {trap.above})" in str(warning.message)
    assert os.listdir(trap.folder) == [trap.file.name]


# --- several at once, and killed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_processes_that_start_cold_at_once(count: int, cache: Path, model: Path) -> None:
    if count == 2:  # a sample: only the smallest kernel is missing
        files(cache, SMALL)[0].unlink()
    else:
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
    assert compiled(outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))[1]) == ""


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_while_compiling(kills: int, cache: Path, model: Path) -> None:
    for kill in range(kills):
        for path in files(cache, "describe"):
            path.unlink()
        program = model / "killed.py"
        program.write_text(outcomes._PRELUDE + "print('go', flush=True)\n" + PROGRAM, encoding="utf-8")
        variables = {"PYTHONPATH": str(PACKAGE.parent), "OUTCOMES_MODEL": str(model), "NUMBA_CACHE_DIR": str(cache)}
        process = subprocess.Popen(
            [sys.executable, str(program)], env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5 + 2.0 * kill / kills)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert outcome == "ok", printed
    report(f"killed {kills} times while compiling", outcome)
    assert compiled(outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))[1]) == ""


# --- old machine code ------------------------------------------------------------------------------------------------

STALE = """
from minibert.kernels.compilation import kernel
from minibert.kernels.simd import WIDTH, load, maximum, store
@kernel
def larger(x):
    store(x, 0, maximum(load(x, 0), load(x, WIDTH)))
x = np.repeat(np.float32([1, 2]), WIDTH)
larger(x)
print("larger", x[0], "compiled", len(larger.stats.cache_misses))
"""


def test_a_change_of_an_intrinsic_alone_is_noticed(model: Path, tmp_path: Path) -> None:
    """Numba's own cache looks only at the file in which the kernel stands."""
    package = copy_package(tmp_path / "package")
    simd = package / "minibert" / "kernels" / "simd.py"
    source = simd.read_text(encoding="utf-8")
    changed = source.replace('maximum = _choice(">"', 'maximum = _choice("<"')
    assert changed != source
    said = []
    for text in (source, source, changed, changed, source):
        simd.write_text(text, encoding="utf-8")
        outcome, printed = outcomes.run(
            STALE, model, PYTHONPATH=str(package), NUMBA_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1"
        )
        assert outcome == "ok", printed
        said.append(printed.strip())
    new, old = "larger 2.0", "larger 1.0"
    assert said == [
        f"{new} compiled 1",
        f"{new} compiled 0",
        f"{old} compiled 1",
        f"{old} compiled 0",
        f"{new} compiled 0",
    ]
    report("an intrinsic changed", outcome)


def old_folder(cache: Path, name: str, *, days: float = 31, holds: tuple[str, ...] = ("a-1.bin",)) -> Path:
    folder = cache / name
    folder.mkdir(parents=True)
    for file in holds:
        (folder / file).write_bytes(b"machine code")
    used = time.time() - days * 24 * 3600
    os.utime(folder, (used, used))
    return folder


@pytest.mark.skipif(os.unlink not in os.supports_dir_fd, reason="nothing is deleted on this system")
def test_what_other_sources_left_is_deleted_after_a_month(cache: Path, model: Path, tmp_path: Path) -> None:
    """Only folders of exactly our names, our own, that hold nothing else; links are never followed."""
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
    assert (outcome, compiled(printed)) == ("ok", "")
    assert all(path.exists() for path in deleted), "a start that compiles nothing deletes nothing"

    files(cache, SMALL)[0].unlink()
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert (outcome, compiled(printed)) == ("ok", SMALL), printed
    assert not any(path.exists() for path in deleted)
    assert {path: sorted(os.listdir(path)) for path in before} == before
    assert link.is_symlink()
    assert (cache / "kernels-a234567890abcdef").read_text() == "a file"
    report("folders of other sources", outcome)


def test_a_start_says_that_the_folder_is_in_use(cache: Path, model: Path) -> None:
    folder = files(cache)[0].parent
    os.utime(folder, (0, 0))
    outcome, printed = outcomes.run(PROGRAM, model, NUMBA_CACHE_DIR=str(cache))
    assert (outcome, compiled(printed)) == ("ok", "")
    assert time.time() - folder.stat().st_mtime < 300


def test_sources_in_an_archive_are_never_cached(model: Path, tmp_path: Path) -> None:
    """Nothing there could tell old machine code from new."""
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", copy_package(tmp_path / "package"))
    variables = {"PYTHONPATH": archive, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    program = """
        from minibert.kernels.compilation import cache_folders
        print(list(cache_folders()), "minibert" in str(sys.modules["minibert.kernels.compilation"].__file__))
        """
    outcome, printed = outcomes.run(program, model, **variables)
    assert (outcome, printed.split()) == ("ok", ["[]", "True"])


def test_a_numba_without_its_compiler_counts_as_missing(model: Path) -> None:
    program = """
        import warnings
        warnings.simplefilter("ignore")
        output = load()(**batch(0)).last_hidden_state
        same = load(backend="numpy")(**batch(0)).last_hidden_state
        print(np.array_equal(output, same))
        try:
            load(backend="numba")
        except ValueError as error:
            print(error)
        """
    outcome, printed = outcomes.run(program, model, NUMBA_DISABLE_JIT="1")
    assert outcome == "ok"
    assert printed.startswith("True\nbackend='numba', but numba cannot be imported (NUMBA_DISABLE_JIT is set")


@pytest.mark.parametrize("features", [None, "", ",", "+avx2", "+avx2,-avx512f", "+avx2,,-avx"])
def test_features_that_llvm_can_read(features: str | None) -> None:
    compilation._check_features(features)


@pytest.mark.parametrize("features", ["zzz", "avx2,fma", "+avx2,zzz", "+avx2, +fma", " +avx2"])
def test_features_without_a_sign_are_refused(features: str) -> None:
    with pytest.raises(ImportError, match=r"begins with neither \+ nor -; expected names with such a sign"):
        compilation._check_features(features)


def test_features_that_would_end_the_process_count_as_a_missing_numba(model: Path) -> None:
    program = """
        try:
            load(backend="numba")
        except ValueError as error:
            print(error)
        load()
        """
    outcome, printed = outcomes.run(program, model, NUMBA_CPU_FEATURES="+avx2,zzz")
    reason = "numba cannot be imported (NUMBA_CPU_FEATURES='+avx2,zzz', where 'zzz' begins with neither + nor -;"
    assert outcome == "ok", printed
    assert printed.startswith(f"backend='numba', but {reason}")
    assert f"RuntimeWarning: {reason}" in printed


def test_after_an_interrupted_import_of_numba_a_restart_is_asked_for(model: Path) -> None:
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
    outcome, printed = outcomes.run(program, model)
    assert outcome == "typed error", printed
    assert printed.startswith("interrupted\n")
    last = printed.splitlines()[-1]
    assert last.startswith("ValueError: numba cannot be imported (")
    assert last.endswith("An earlier import of it may have been interrupted: restart Python.")


# --- the first compilation, said and done ahead -----------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no terminals that a test could open")
def test_a_terminal_is_told_once_why_the_first_start_takes_long(cache: Path, model: Path) -> None:
    import pty

    for path in files(cache, "describe_l"):
        path.unlink()
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
