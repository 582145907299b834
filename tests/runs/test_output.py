"""Outputs that cannot be written, that exist already with other content, or for which the disk is full."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.cli import main
from minibert.corpus.embed import embed_corpus
from minibert.corpus.run_folder import RunFolder, folder_of
from tests.support.corpus_runs import StoppedError, crash, run, stop_after, text_file
from tests.support.crash_program import JOBS, arguments_of, texts_of
from tests.support.outcomes import PATIENCE
from tests.support.report import REPORT

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")


def test_output_that_cannot_be_written(
    short_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text_file(tmp_path / "a.txt", ["a cat"])
    arguments = ["embed", "-m", str(short_folder), "-i", str(tmp_path / "a.txt")]
    for output, message in (
        (tmp_path / "nowhere" / "out.npy", f"out.npy cannot be written: there is no folder {tmp_path / 'nowhere'}"),
        (tmp_path / "a.txt" / "out.npy", f"out.npy cannot be written: there is no folder {tmp_path / 'a.txt'}"),
        (tmp_path / "out.txt", "out.txt must end in .npy, .jsonl or .parquet, which is the format"),
        (tmp_path, "holds files that this run did not write: a.txt."),
        ("", "the name of the file to write is empty"),
    ):
        assert main([*arguments, "-o", str(output)]) == 1
        assert message in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a cat")))
    assert main(["embed", "-m", str(short_folder), "-i", "-", "-o", str(tmp_path / "out.txt")]) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
    assert main(arguments) == 1
    assert "--input needs --output" in capsys.readouterr().err
    assert main(["embed", "-m", str(short_folder)]) == 1
    assert main([*arguments, "text", "-o", str(tmp_path / "out.npy")]) == 1
    (tmp_path / "out.npy").mkdir()
    assert main([*arguments, "-o", str(tmp_path / "out.npy")]) == 1
    assert "out.npy is a folder" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission(short_model: SentenceTransformer, tmp_path: Path) -> None:
    source = text_file(tmp_path / "a.txt", ["a cat"])
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(OSError, match=r"out\.npy\.parts cannot be made: Permission denied"):
        embed_corpus(short_model, [source], str(tmp_path / "closed" / "out.npy"))


def test_an_output_is_never_the_input(
    short_folder: Path, short_model: SentenceTransformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = b'{"text": "a cat"}\n'
    for name in ("a.jsonl", "out.ids.jsonl", "out.npy.manifest.json"):
        (tmp_path / name).write_bytes(lines)
    os.link(tmp_path / "a.jsonl", tmp_path / "same.jsonl")
    for source, output in (
        ("a.jsonl", "a.jsonl"),
        ("a.jsonl", "same.jsonl"),
        ("out.ids.jsonl", "out.npy"),
        ("out.npy.manifest.json", "out.npy"),
    ):
        arguments = ["embed", "-m", str(short_folder), "-i", str(tmp_path / source), "--input-format", "jsonl"]
        assert main([*arguments, "-o", str(tmp_path / output)]) == 1
        assert "is an input too, and would be overwritten; give another output" in capsys.readouterr().err
        assert (tmp_path / source).read_bytes() == lines
    assert not list(tmp_path.glob("*.parts"))


# The content of folders called out.npy.parts that are not minibert's, name -> content; None is a folder.
FOREIGN: dict[str, dict[str, str | None]] = {
    "of Spark": {"part-00000.parquet": "precious", "_SUCCESS": ""},
    "with our names": {
        **dict.fromkeys(("part-vectors.npy", "part-mine", "standard-input", "shards.jsonl"), "precious"),
        **dict.fromkeys((".minibert-abcdefgh", ".minibert-mine", "lock", "other"), "precious"),
    },
    "our names without a lock": {"part-vectors.npy": "precious", "standard-input": "precious"},
    "a temporary file without a lock": {".minibert-abcdefgh": "precious"},
    "a lock alone": {"lock": "held by Emacs"},
    "a folder called lock": {"lock": None},
    "a manifest": {"manifest.json": '{"files": []}'},
    "a manifest that is not JSON": {"manifest.json": "# files", "lock": "precious"},
    "beside an empty lock": {"lock": "", "part-00000.parquet": "precious"},
    "beside a lock of ours": {"lock": "process 1 on host", "standard-input": "left", "notes.txt": "precious"},
    "a folder called as a part": {"lock": "process 1 on host", "part-vectors.npy": None},
}


def fill(folder: Path, files: dict[str, str | None]) -> None:
    folder.mkdir()
    for name, content in files.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_text(content)


def listing(folder: Path) -> dict[str, bytes | None]:
    return {entry.name: None if entry.is_dir() else entry.read_bytes() for entry in folder.iterdir()}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("options", [[], ["--resume"]])
@pytest.mark.parametrize("content", [b"a cat", b"a cat\n\xff"])
def test_a_folder_of_another_program_is_refused_and_not_changed(
    short_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    options: list[str],
    content: bytes,
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    parts = tmp_path / "out.npy.parts"
    fill(parts, FOREIGN[kind])
    before = listing(parts)
    assert main([*arguments_of("npy", short_folder, tmp_path / "a.txt", tmp_path, 10), *options]) == 1
    err = capsys.readouterr().err
    assert f"{parts} is the folder for the unfinished run, but it holds other files: " in err
    assert "Move this folder elsewhere, or give another output." in err
    assert any(name in err for name in FOREIGN[kind])
    assert listing(parts) == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.txt", "out.npy.parts"}


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_a_link_or_a_file_is_not_used_as_the_folder(short_model: SentenceTransformer, tmp_path: Path) -> None:
    source, parts = text_file(tmp_path / "a.txt", ["a cat"]), tmp_path / "out.npy.parts"
    (tmp_path / "elsewhere").mkdir()
    for target in ("elsewhere", "nowhere", "a.txt"):
        parts.symlink_to(tmp_path / target)
        with pytest.raises(FileExistsError, match=r"out\.npy\.parts is a link, but the run makes a folder"):
            embed_corpus(short_model, [source], tmp_path / "out.npy")
        assert parts.is_symlink()
        parts.unlink()
    parts.write_text("precious")
    with pytest.raises(FileExistsError, match=r"out\.npy\.parts is a file, but the run makes a folder.*Move it"):
        embed_corpus(short_model, [source], tmp_path / "out.npy")
    assert parts.read_text() == "precious"
    parts.unlink()
    parts.mkdir()
    (parts / "lock").symlink_to(tmp_path / "a.txt")
    with pytest.raises(FileExistsError, match=r"it holds other files: lock\."):
        embed_corpus(short_model, [source], tmp_path / "out.npy")
    assert (tmp_path / "a.txt").read_text() == "a cat\n"
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("options", [{}, {"resume": True}])
@pytest.mark.parametrize(
    "left",
    [
        {},
        {"lock": ""},
        {"lock": "process 1 on host"},
        {"lock": "process 1 on host", ".minibert-ab_c0123": "half a copy"},
        {"lock": "process 1 on host", "standard-input": "other texts", ".minibert-ab_c0123": "half a manifest"},
        {"lock": "process 1 on host", "shards.jsonl": "{", "part-vectors.npy": "x", "part-ids.jsonl": "y"},
    ],
)
def test_files_of_a_run_killed_before_its_manifest_are_used_and_deleted(
    short_model: SentenceTransformer, tmp_path: Path, left: dict[str, str | None], options: dict[str, Any]
) -> None:
    """test_killed_whenever_something_becomes_final tests other moments of this kind."""
    source = text_file(tmp_path / "a.txt", ["a cat", "a dog"])
    fill(tmp_path / "out.npy.parts", left)
    embed_corpus(short_model, [source], tmp_path / "out.npy", **options)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), short_model.encode(["a cat", "a dog"]))
    assert not (tmp_path / "out.npy.parts").exists()


def test_a_run_deletes_no_file_that_came_into_its_folder(
    short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, parts = text_file(tmp_path / "a.txt", texts_of(40)), tmp_path / "out.npy.parts"
    with monkeypatch.context() as patch:
        stop_after(2, patch, StoppedError())
        with pytest.raises(StoppedError):
            embed_corpus(short_model, [source], tmp_path / "out.npy", shard_size=10, truncation="silent")
    foreign = {"part-00000.parquet": "precious", "part-mine": "precious", ".minibert-mine": "precious"}
    for name, content in foreign.items():
        (parts / name).write_text(content)
    embed_corpus(short_model, [source], tmp_path / "out.npy", shard_size=10, truncation="silent", resume=True)
    assert listing(parts) == {name: content.encode() for name, content in foreign.items()}
    with pytest.raises(FileExistsError, match="holds other files"):
        embed_corpus(short_model, [source], tmp_path / "out.npy", truncation="silent")
    assert len(np.load(tmp_path / "out.npy")) == 40


def test_a_run_makes_its_manifest_before_its_parts(
    short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the manifest it would be unknown which run made the parts; the next run may have other ones."""
    source, parts = text_file(tmp_path / "a.txt", texts_of(40)), tmp_path / "out.npy.parts"

    def stop(self: RunFolder, manifest: dict[str, Any]) -> None:
        assert {entry.name for entry in parts.iterdir()} == {"lock"}
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_manifest", stop)
        with pytest.raises(StoppedError):
            embed_corpus(short_model, [source], tmp_path / "out.npy", truncation="silent")
    assert not parts.exists()


@pytest.mark.parametrize("name", ["out.ids.jsonl", "out.npy.manifest.json"])
@pytest.mark.parametrize("content", ['{"id": 1}\n', "not JSON", None])
def test_an_output_that_was_not_named_replaces_no_file_of_another_program(
    short_model: SentenceTransformer, tmp_path: Path, name: str, content: str | None
) -> None:
    source, output = text_file(tmp_path / "a.txt", ["a cat"]), tmp_path / "out.npy"
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises((FileExistsError, ValueError), match=rf"{name} .* elsewhere, or give another output"):
        embed_corpus(short_model, [source], output)
    assert listing(tmp_path)[name] == (None if content is None else content.encode())
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.txt", name}
    (tmp_path / name).rename(tmp_path / "mine")
    for _ in range(2):  # minibert replaces the files that it wrote itself
        embed_corpus(short_model, [source], output)


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_a_link_is_followed(short_model: SentenceTransformer, tmp_path: Path) -> None:
    source = text_file(tmp_path / "a.txt", ["a cat"])
    (tmp_path / "there").mkdir()
    os.symlink(tmp_path / "there" / "true.npy", tmp_path / "out.npy")
    embed_corpus(short_model, [source], str(tmp_path / "out.npy"))
    assert (tmp_path / "out.npy").is_symlink()
    names = {"true.npy", "true.ids.jsonl", "true.npy.manifest.json"}
    assert {entry.name for entry in (tmp_path / "there").iterdir()} == names


MOUNTS = ["unshare", "--map-root-user", "--mount"]


@pytest.mark.parametrize(("job", "step"), [("npy", 4), *(pytest.param(job, 1, marks=pytest.mark.slow) for job in JOBS)])
def test_a_full_disk(short_folder: Path, tmp_path: Path, job: str, step: int) -> None:
    """The disks are file systems of growing size in memory, mounted for this test only, if that is permitted."""
    try_it = ["sh", "-c", 'mount -t tmpfs -o size=8k none "$0" && umount "$0"', str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*MOUNTS, *try_it], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    counted = crash("full", short_folder, tmp_path, step, job, *MOUNTS)
    assert counted["sizes"] > counted["resumed"] > 0
    REPORT.append(
        f"full disk, {job}: {counted['sizes']} sizes without room, {counted['resumed']} runs resumed; it was full when "
        f"these were written: {', '.join(counted['files'])}"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (100, r"manifest\.json cannot be written: File too large|part-\S+ cannot be written: File too large"),
        (
            40_000,
            r"part-(vectors\.npy|ids\.jsonl) cannot be written: File too large\. Finished shards are kept .* --resume",
        ),
    ],
)
def test_a_limit_on_the_size_of_files(short_folder: Path, tmp_path: Path, limit: int, message: str) -> None:
    """RLIMIT_FSIZE replaces a full disk on systems where none can be mounted."""
    text_file(tmp_path / "a.txt", [f"text {i}" for i in range(1500)])
    arguments, output = arguments_of("npy", short_folder, tmp_path / "a.txt", tmp_path, 100), tmp_path / "out.npy"
    output.write_bytes(b"before")
    limited = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from minibert.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.exit(main({arguments!r}))"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", limited], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert output.read_bytes() == b"before"
    assert not (tmp_path / "out.ids.jsonl").exists()
    options = ["--resume"] if folder_of(output).exists() else []
    assert bool(options) == (limit > 100)
    assert run([*arguments, *options]).returncode == 0
    assert np.load(output).shape == (1500, 24)
