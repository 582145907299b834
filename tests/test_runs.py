"""Runs over a corpus: crashes and --resume, locks, damaged shards, full disks, inputs that change, outputs in use."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.base.progress import progress_bar
from minibert.cli import main
from minibert.corpus.embed import embed_corpus
from minibert.corpus.readers import Source
from minibert.corpus.shards import ShardFolder, folder_of
from minibert.corpus.token_features import TokenFeatures
from tests.support.checkpoints import random_checkpoint
from tests.support.crash_program import JOBS, arguments_of, contents, texts_of
from tests.support.outcomes import PATIENCE
from tests.support.report import REPORT

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")

ROOT = Path(__file__).parent.parent
PROGRAM = [sys.executable, "-W", "ignore", "-m", "minibert"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=32)


@pytest.fixture(scope="module")
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(folder)


def text_file(path: Path, texts: list[str]) -> Source:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return Source(str(path), "text", "text", None, path.name)


def output_of(job: str, folder: Path) -> Path:
    return folder / JOBS[job][1]


def shards_done(output: Path) -> int:
    journal = folder_of(output) / "shards.jsonl"
    return len(journal.read_bytes().splitlines()) if journal.exists() else 0


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT
    )


def start(arguments: list[str], program: list[str] = PROGRAM) -> subprocess.Popen[str]:
    return subprocess.Popen([*program, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


# The command line with a run that does not end by itself, however late it is stopped.
ENDLESS = """
import sys, time
from minibert.cli import main
from minibert.corpus.shards import ShardFolder
ShardFolder.finish = lambda *_: time.sleep(1e6)
sys.exit(main(sys.argv[1:]))
"""


def start_endless(arguments: list[str]) -> subprocess.Popen[str]:
    return start(arguments, [sys.executable, "-W", "ignore", "-c", ENDLESS])


def wait_for(happened: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.0005)


# --- killed -----------------------------------------------------------------------------------------------------------


def run_and_kill(kills: int, job: str, folder: Path, scratch: Path) -> None:
    """Kill runs until so many were truly killed, each then resumed; a run that ended before does not count."""
    count, shard_size = (1000, 50) if job in ("binary", "google") else (3000, 100)
    text_file(scratch / "a.txt", texts_of(count))
    whole = scratch / "whole"
    whole.mkdir()
    assert main(arguments_of(job, folder, scratch / "a.txt", whole, shard_size)) == 0
    expected, shards = contents(whole), count // shard_size
    chance, killed, tried, in_the_end, mean = random.Random(0), 0, 0, 0, 0.0
    while killed < kills and tried < 10 * kills:
        own = scratch / str(tried)
        own.mkdir()
        output = output_of(job, own)
        arguments = arguments_of(job, folder, scratch / "a.txt", own, shard_size)
        # The first one between the shards, the second in the end, when files get their final names.
        moment = (chance.randrange(1, shards), shards)[tried] if tried < 2 else chance.randint(0, shards)
        process = start(arguments)
        wait_for(lambda output=output, moment=moment: shards_done(output) >= moment, process)  # type: ignore[misc]
        time.sleep(0 if moment == shards else chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        tried += 1
        done = shards_done(output)
        if process.returncode == -signal.SIGKILL and contents(own) != expected:
            killed, in_the_end, mean = killed + 1, in_the_end + (done == shards), mean + done / kills
        resumed = run([*arguments, "--resume"])
        assert resumed.returncode == 0, resumed.stderr
        assert contents(own) == expected
        shutil.rmtree(own)
    assert killed == kills
    REPORT.append(
        f"kill -9, {job}: {killed} runs killed ({tried} begun), after {mean:.0f} of {shards} shards in the mean, "
        f"{in_the_end} with all shards done; all equal after --resume"
    )


@pytest.mark.parametrize("job", ["npy", "google"])
def test_killed_and_resumed_it_ends_with_the_same_bytes(folder: Path, tmp_path: Path, job: str) -> None:
    run_and_kill(3, job, folder, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_killed_twenty_times(folder: Path, tmp_path: Path, job: str) -> None:
    if job == "parquet":
        pytest.importorskip("pyarrow")
    run_and_kill(20, job, folder, tmp_path)


def crash(mode: str, folder: Path, scratch: Path, step: int, job: str, *before: str) -> dict[str, Any]:
    command = [
        *before,
        sys.executable,
        "-m",
        "tests.support.crash_program",
        mode,
        str(folder),
        str(scratch),
        str(step),
        job,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    counted: dict[str, Any] = json.loads(done.stdout)[job]
    return counted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the runs are forked")
@pytest.mark.parametrize(
    ("job", "step"), [("npy", 4), ("binary", 5), *(pytest.param(job, 1, marks=pytest.mark.slow) for job in JOBS)]
)
def test_killed_whenever_something_becomes_final(folder: Path, tmp_path: Path, job: str, step: int) -> None:
    counted = crash("kill", folder, tmp_path, step, job)
    assert counted["moments"] > counted["resumed"] > 20 // step
    REPORT.append(f"kill -9 beside renames, fsyncs and deletions, {job}: {counted['moments']} moments, all equal")


class StoppedError(Exception):
    pass


def stop_after(shards: int, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    commit = ShardFolder.commit

    def commit_or_stop(self: ShardFolder, counts: Any) -> None:
        if self.n_shards == shards:
            raise error
        commit(self, counts)

    monkeypatch.setattr(ShardFolder, "commit", commit_or_stop)


@pytest.mark.parametrize("job", ["npy", "binary", "google"])
def test_interrupted_it_says_how_to_go_on_and_what_is_done_is_usable(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: str
) -> None:
    text_file(tmp_path / "a.txt", texts_of(100))
    arguments, output = arguments_of(job, folder, tmp_path / "a.txt", tmp_path, 10), output_of(job, tmp_path)
    parts = folder_of(output)
    with monkeypatch.context() as patch:
        stop_after(4, patch, KeyboardInterrupt())
        assert main(arguments) == 1
    assert f"what is done is kept in {parts}; the same command with --resume goes on." in capsys.readouterr().err
    assert not output.exists()
    if job == "npy":
        assert np.load(parts / "part-vectors.npy").shape == (40, 24)
    elif job == "binary":
        assert len(TokenFeatures(parts / "part-states.npy")[39] or ()) > 0
    else:
        lines = (parts / "part-features.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["linex_index"] for line in lines] == [*range(40)]
    assert main(arguments) == 1
    assert "holds an unfinished run, 4 shards of it done. Go on with it by --resume" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    assert "100 texts, 40 of them by earlier runs" in capsys.readouterr().out
    assert main([*arguments, "--resume"]) == 0
    assert "complete, by this very run; there is nothing to resume" in capsys.readouterr().out
    assert not parts.exists()


def test_a_true_interrupt_can_be_resumed(folder: Path, tmp_path: Path) -> None:
    text_file(tmp_path / "a.txt", texts_of(3000))
    output, arguments = tmp_path / "out.npy", arguments_of("npy", folder, tmp_path / "a.txt", tmp_path, 40)
    process = start_endless(arguments)
    wait_for(lambda: shards_done(output), process)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 1
    assert "with --resume goes on" in err
    assert "minibert: interrupted" in err
    assert "Traceback" not in err
    assert run([*arguments, "--resume"]).returncode == 0
    expected = SentenceTransformer(folder, backend="numpy").encode(texts_of(3000), truncation="silent")
    np.testing.assert_allclose(np.load(output), expected, atol=1e-6)


def test_the_standard_input_is_kept_for_a_run_that_can_be_resumed(
    folder: Path, model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_of(40)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    arguments = ["embed", "-m", str(folder), "-i", "-", "-o", str(tmp_path / "out.npy"), "--shard-size", "10"]
    with monkeypatch.context() as patch:
        stop_after(2, patch, OSError("the disk is gone"))
        assert main(arguments) == 1
    assert {entry.name for entry in tmp_path.iterdir()} == {"out.npy.parts"}
    monkeypatch.setattr("sys.stdin", None)
    assert main([*arguments, "--resume"]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), model.encode(texts, truncation="silent"))
    assert {entry.name for entry in tmp_path.iterdir()} == {"out.npy", "out.ids.jsonl", "out.npy.manifest.json"}


def test_a_progress_bar_shows_texts_per_second_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(1000, show=True, initial=10) as bar:
        time.sleep(0.2)
        bar.update(490)
    assert re.search(r"50%.*500/1000 \[00:00<00:0\d, +\d+(\.\d+)? texts/s\]", capsys.readouterr().err)
    with progress_bar(1000, show=False) as bar:
        bar.update(1)
    assert capsys.readouterr().err == ""


# --- two at once ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="a run is held by SIGSTOP")
def test_a_second_run_on_one_output_is_refused_and_a_dead_one_never_blocks(folder: Path, tmp_path: Path) -> None:
    text_file(tmp_path / "a.txt", texts_of(3000))
    output, arguments = tmp_path / "out.npy", arguments_of("npy", folder, tmp_path / "a.txt", tmp_path, 40)
    holder = start_endless(arguments)
    wait_for(lambda: shards_done(output), holder)
    holder.send_signal(signal.SIGSTOP)
    before = {name: content for name, content in contents(tmp_path).items() if "part-" not in name}
    for options in ([], ["--resume"]):
        second = run([*arguments, *options])
        assert second.returncode == 1
        assert f"out.npy is being written by process {holder.pid} on " in second.stderr
        assert "Wait until that run has ended, or stop it" in second.stderr
    assert {name: content for name, content in contents(tmp_path).items() if "part-" not in name} == before
    holder.kill()
    holder.communicate(timeout=PATIENCE)
    resumed = run([*arguments, "--resume"])
    assert resumed.returncode == 0, resumed.stderr
    assert np.load(output).shape == (3000, 24)


def test_of_several_runs_that_begin_together_one_writes(folder: Path, tmp_path: Path) -> None:
    text_file(tmp_path / "a.txt", texts_of(2000))
    arguments = arguments_of("npy", folder, tmp_path / "a.txt", tmp_path, 200)
    processes = [start(arguments) for _ in range(4)]
    errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    for process, err in zip(processes, errors, strict=True):
        assert process.returncode == 0 or "is being written by process" in err, err
    assert any(process.returncode == 0 for process in processes)
    assert np.load(tmp_path / "out.npy").shape == (2000, 24)
    assert run([*arguments, "--resume"]).returncode == 0
    assert not folder_of(tmp_path / "out.npy").exists()


def test_where_a_file_system_has_no_locks_a_warning_says_so(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    source = text_file(tmp_path / "a.txt", ["a cat"])
    with pytest.warns(UserWarning, match=r"No locks available.*no second run writes the same output"):
        embed_corpus(model, [source], str(tmp_path / "out.npy"))
    assert np.load(tmp_path / "out.npy").shape == (1, 24)
    assert not folder_of(tmp_path / "out.npy").exists()


# --- damaged meanwhile ------------------------------------------------------------------------------------------------


def flip(path: Path, place: float) -> None:
    """Flip one bit of a file, at this fraction of it."""
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 4
    path.write_bytes(data)


def shorten(path: Path, place: float) -> None:
    os.truncate(path, int(place * path.stat().st_size))


DAMAGES: dict[str, tuple[Callable[[Path], object], str | None]] = {
    "a bit flipped early": (lambda path: flip(path, 0.1), "shard 0 is damaged"),
    "a bit flipped late": (lambda path: flip(path, 0.7), r"shard [34] is damaged"),
    "cut short": (lambda path: shorten(path, 0.5), r"shard [123] is damaged"),
    "empty": (lambda path: shorten(path, 0), "shard 0 is damaged"),
    "missing": (lambda path: path.unlink(), "shard 0 is damaged"),
    "something behind it": (lambda path: path.write_bytes(path.read_bytes() + b"half a shard"), None),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("job", "part"), [("npy", "part-vectors.npy"), ("npy", "part-ids.jsonl"), ("binary", "part-states.npy")]
)
def test_damaged_shards_are_noticed_and_computed_again(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    job: str,
    part: str,
    damage: str,
) -> None:
    text_file(tmp_path / "a.txt", ["the cat sat on the mat"] * 60)  # shards of one size
    (tmp_path / "whole").mkdir()
    (tmp_path / "own").mkdir()
    assert main(arguments_of(job, folder, tmp_path / "a.txt", tmp_path / "whole", 10)) == 0
    arguments = arguments_of(job, folder, tmp_path / "a.txt", tmp_path / "own", 10)
    with monkeypatch.context() as patch:
        stop_after(5, patch, KeyboardInterrupt())
        assert main(arguments) == 1
    capsys.readouterr()
    spoil, message = DAMAGES[damage]
    spoil(folder_of(output_of(job, tmp_path / "own")) / part)
    assert main([*arguments, "--resume"]) == 0
    said = capsys.readouterr()
    assert re.search(message, said.err) if message else "damaged" not in said.err, said.err
    assert ("of them by earlier runs" in said.out) == (message != "shard 0 is damaged")
    assert contents(tmp_path / "own") == contents(tmp_path / "whole")


def test_a_damaged_journal_or_manifest(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text_file(tmp_path / "a.txt", texts_of(60))
    (tmp_path / "whole").mkdir()
    assert main(arguments_of("npy", folder, tmp_path / "a.txt", tmp_path / "whole", 10)) == 0
    journal: list[tuple[Callable[[Path], object], str]] = [
        *((lambda path, place=place: flip(path, place), r"shard \d is damaged") for place in np.linspace(0, 1, 9)),
        (lambda path: shorten(path, 0.5), "shard 2 is damaged"),
        (lambda path: shorten(path, 0), "no shard was finished"),
        (lambda path: path.unlink(), "no shard was finished"),
        (lambda path: path.write_bytes(b"[1]\n" * 5), "shard 0 is damaged"),
    ]
    manifest: list[tuple[Callable[[Path], object], str]] = [
        *((lambda path, place=place: flip(path, place), "manifest.json") for place in np.linspace(0, 1, 9)),
        (lambda path: shorten(path, 0.5), "manifest.json is not valid JSON"),
        (lambda path: shorten(path, 0), "manifest.json is not valid JSON: it is empty"),
        (lambda path: path.write_bytes(b"{}"), "manifest.json is damaged: its checksum is wrong"),
    ]
    for name, damages in (("shards.jsonl", journal), ("manifest.json", manifest)):
        for number, (spoil, message) in enumerate(damages):
            own = tmp_path / f"{name}-{number}"
            own.mkdir()
            arguments = arguments_of("npy", folder, tmp_path / "a.txt", own, 10)
            with monkeypatch.context() as patch:
                stop_after(5, patch, KeyboardInterrupt())
                assert main(arguments) == 1
            capsys.readouterr()
            spoil(folder_of(own / "out.npy") / name)
            code = main([*arguments, "--resume"])
            err = capsys.readouterr().err
            assert re.search(message, err), err
            assert code == (name == "manifest.json")
            if code:
                assert f"Delete {folder_of(own / 'out.npy')} to start again" in err
                assert not (own / "out.npy").exists()
            else:
                assert contents(own) == contents(tmp_path / "whole")


# --- what must not be mixed -------------------------------------------------------------------------------------------


def test_resuming_refuses_to_mix(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: SentenceTransformer
) -> None:
    """Neither with an unfinished run nor, once that has ended, with the finished one."""
    source = text_file(tmp_path / "a.txt", texts_of(50))
    output = str(tmp_path / "out.npy")
    same: dict[str, Any] = {"shard_size": 10, "settings": {"revision": "a"}, "truncation": "silent", "resume": True}
    with monkeypatch.context() as patch:
        stop_after(2, patch, StoppedError())
        with pytest.raises(StoppedError):
            embed_corpus(model, [source], output, **{**same, "resume": False})
    another = SentenceTransformer(random_checkpoint(tmp_path / "another", seed=1, max_position_embeddings=32))
    (tmp_path / "b.txt").write_bytes((tmp_path / "a.txt").read_bytes())
    for whose in ("The unfinished run", f"The run that made {output}"):
        for other, message in (
            ({"shard_size": 11}, "shard_size=10, this one has 11"),
            ({"settings": {"revision": "b"}}, "revision='a', this one has 'b'"),
            ({"layers": 1}, "layers=None, this one has 1"),
            ({"dtype": "float16"}, "dtype='float32', this one has 'float16'"),
            ({"on_error": "null"}, "on_error='stop', this one has 'null'"),
        ):
            with pytest.raises(ValueError, match=f"{whose} was begun with {message}"):
                embed_corpus(model, [source], output, **{**same, **other})
        with pytest.raises(ValueError, match=f"{whose} had another model: this one gives another vector"):
            embed_corpus(another, [source], output, **same)
        text_file(tmp_path / "a.txt", [*texts_of(49), "other"])
        with pytest.raises(ValueError, match=rf"{whose} began with another input: a\.txt has changed"):
            embed_corpus(model, [source], output, **same)
        text_file(tmp_path / "a.txt", texts_of(50))
        with pytest.raises(ValueError, match=r"began with another input: a\.txt, not b\.txt"):
            embed_corpus(model, [text_file(tmp_path / "b.txt", texts_of(50))], output, **same)
        summary = embed_corpus(model, [source], output, **same)
        assert (summary is None) == (whose != "The unfinished run")
        np.testing.assert_array_equal(np.load(output), model.encode(texts_of(50), truncation="silent"))
        assert not folder_of(output).exists()


def test_resuming_takes_no_other_file_for_the_finished_one(model: SentenceTransformer, tmp_path: Path) -> None:
    source = text_file(tmp_path / "a.txt", texts_of(50))
    output = tmp_path / "out.npy"
    np.save(output, np.zeros((50, 24), dtype=np.float32))
    with pytest.raises(ValueError, match=r"nothing to resume: .*out\.npy exists, but no out\.npy\.manifest\.json"):
        embed_corpus(model, [source], str(output), resume=True, truncation="silent")
    embed_corpus(model, [source], str(output), truncation="silent")
    assert embed_corpus(model, [source], str(output), resume=True, truncation="silent") is None
    for name in ("out.npy", "out.ids.jsonl"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-1])
        with pytest.raises(ValueError, match=rf"{name} is of {len(content) - 1} bytes, but the run that made it has"):
            embed_corpus(model, [source], str(output), resume=True, truncation="silent")
        (tmp_path / name).write_bytes(content)
    (tmp_path / "out.ids.jsonl").unlink()
    with pytest.raises(ValueError, match=r"out\.ids\.jsonl is missing"):
        embed_corpus(model, [source], str(output), resume=True, truncation="silent")
    (tmp_path / "out.npy.manifest.json").write_text("{}")
    for resume in (True, False):  # it may as well be a file of another program
        with pytest.raises(ValueError, match=r"manifest\.json is damaged.* delete it or move it elsewhere"):
            embed_corpus(model, [source], str(output), resume=resume, truncation="silent")
    assert not folder_of(output).exists()
    (tmp_path / "out.npy.manifest.json").unlink()
    assert embed_corpus(model, [source], str(output), truncation="silent") is not None


def test_input_that_changes_under_way(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text_file(tmp_path / "a.txt", texts_of(50))
    commit = ShardFolder.commit

    def commit_and_change(self: ShardFolder, counts: Any) -> None:
        commit(self, counts)
        text_file(tmp_path / "a.txt", texts_of(60, seed=1))

    with monkeypatch.context() as patch:
        patch.setattr(ShardFolder, "commit", commit_and_change)
        with pytest.raises(ValueError, match=r"a\.txt was changed while it was read"):
            embed_corpus(model, [source], str(tmp_path / "out.npy"), shard_size=10, truncation="silent")
    assert not (tmp_path / "out.npy").exists()
    with pytest.raises(ValueError, match=r"began with another input: a\.txt has changed"):
        embed_corpus(model, [source], str(tmp_path / "out.npy"), shard_size=10, truncation="silent", resume=True)
    text_file(tmp_path / "a.txt", texts_of(50))
    summary = embed_corpus(model, [source], str(tmp_path / "out.npy"), shard_size=10, truncation="silent", resume=True)
    assert summary is not None
    assert summary.n_resumed == 10
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), model.encode(texts_of(50), truncation="silent"))


def test_input_that_changes_between_the_first_look_and_the_first_shard(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shard may be made of another state: with the old one brought back, --resume would take it for good."""
    source = text_file(tmp_path / "a.txt", texts_of(50))
    begin = ShardFolder.start

    def start_and_change(self: ShardFolder, manifest: dict[str, Any]) -> None:
        begin(self, manifest)
        text_file(tmp_path / "a.txt", texts_of(60, seed=1))

    with monkeypatch.context() as patch:
        patch.setattr(ShardFolder, "start", start_and_change)
        with pytest.raises(ValueError, match=r"a\.txt was changed while it was read"):
            embed_corpus(model, [source], tmp_path / "out.npy", shard_size=10, truncation="silent")
    text_file(tmp_path / "a.txt", texts_of(50))
    embed_corpus(model, [source], tmp_path / "out.npy", shard_size=10, truncation="silent", resume=True)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), model.encode(texts_of(50), truncation="silent"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name")
def test_a_pipe_is_refused_since_it_can_be_read_once_only(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["embed", "-m", str(folder), "-i", str(tmp_path / "pipe"), "-o", str(tmp_path / "out.npy")]) == 1
    assert "pipe is a pipe or a device, but the input is read twice; give it as the standard input" in (
        capsys.readouterr().err
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are Unicode")
def test_names_that_are_not_utf_8_are_refused_before_anything_is_computed(
    model: SentenceTransformer, tmp_path: Path
) -> None:
    name = os.fsdecode(b"caf\xe9")
    odd, usual = text_file(tmp_path / f"{name}.txt", ["a cat"]), text_file(tmp_path / "a.txt", ["a cat"])
    before = sorted(tmp_path.iterdir())
    for source, output in ((odd, "out.npy"), (usual, f"{name}.npy")):
        with pytest.raises(ValueError, match=r"caf.*is not UTF-8, in which the record of a run is written"):
            embed_corpus(model, [source], tmp_path / output)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be synced")
def test_names_are_on_the_disk_before_what_they_are_made_of_is_deleted(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace, fsync, unlink = os.replace, os.fsync, Path.unlink

    def noted_replace(source: Any, target: Any) -> None:
        replace(source, target)
        done.append(f"rename to {Path(target).name}")

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        for folder in (tmp_path, tmp_path / "out.npy.parts"):
            if folder.exists() and os.path.samestat(folder.stat(), os.fstat(descriptor)):
                done.append(f"sync {folder.name}")

    def noted_unlink(self: Path, missing_ok: bool = False) -> None:
        unlink(self, missing_ok)
        done.append(f"delete {self.name}")

    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "unlink", noted_unlink)
    embed_corpus(model, [text_file(tmp_path / "a.txt", ["a cat"])], tmp_path / "out.npy")
    begun = done.index("rename to manifest.json")
    assert done[begun + 1 : begun + 3] == ["sync out.npy.parts", f"sync {tmp_path.name}"]
    named = done.index("rename to out.npy.manifest.json")
    assert {"rename to out.npy", "rename to out.ids.jsonl"} < set(done[:named])
    assert done[named + 1] == f"sync {tmp_path.name}"
    assert done.index("delete shards.jsonl") > named


# --- what cannot be written -------------------------------------------------------------------------------------------


def test_output_that_cannot_be_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text_file(tmp_path / "a.txt", ["a cat"])
    arguments = ["embed", "-m", str(folder), "-i", str(tmp_path / "a.txt")]
    for output, message in (
        (tmp_path / "nowhere" / "out.npy", f"out.npy cannot be written: there is no folder {tmp_path / 'nowhere'}"),
        (tmp_path / "a.txt" / "out.npy", "cannot be made: Not a directory"),
        (tmp_path / "out.txt", "must end in one of .npy, .jsonl, .parquet"),
        (tmp_path, "must end in one of .npy, .jsonl, .parquet"),
    ):
        assert main([*arguments, "-o", str(output)]) == 1
        assert message in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a cat")))
    assert main(["embed", "-m", str(folder), "-i", "-", "-o", str(tmp_path / "out.txt")]) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
    assert main(arguments) == 1
    assert "--input needs --output" in capsys.readouterr().err
    assert main(["embed", "-m", str(folder)]) == 1
    assert main([*arguments, "text", "-o", str(tmp_path / "out.npy")]) == 1
    (tmp_path / "out.npy").mkdir()
    assert main([*arguments, "-o", str(tmp_path / "out.npy")]) == 1
    assert "out.npy is a folder" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_in_which_nobody_may_write(model: SentenceTransformer, tmp_path: Path) -> None:
    source = text_file(tmp_path / "a.txt", ["a cat"])
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(OSError, match=r"out\.npy\.parts cannot be made: Permission denied"):
        embed_corpus(model, [source], str(tmp_path / "closed" / "out.npy"))


def test_an_output_is_never_the_input(
    folder: Path, model: SentenceTransformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
        arguments = ["embed", "-m", str(folder), "-i", str(tmp_path / source), "--input-format", "jsonl"]
        assert main([*arguments, "-o", str(tmp_path / output)]) == 1
        assert "is the input, and would be written over; give another output" in capsys.readouterr().err
        assert (tmp_path / source).read_bytes() == lines
    assert not list(tmp_path.glob("*.parts"))


# What may be in a folder called out.npy.parts that is not minibert's, name -> content; None is a folder.
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
def test_a_folder_of_something_else_is_refused_and_nothing_in_it_changes(
    folder: Path,
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
    assert main([*arguments_of("npy", folder, tmp_path / "a.txt", tmp_path, 10), *options]) == 1
    err = capsys.readouterr().err
    assert f"{parts} is where the run would keep what it has done, but it holds files of something else: " in err
    assert "Move this folder elsewhere, or give another output." in err
    assert any(name in err for name in FOREIGN[kind])
    assert listing(parts) == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.txt", "out.npy.parts"}


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="there are no links")
def test_a_link_or_a_file_is_not_taken_for_the_folder(model: SentenceTransformer, tmp_path: Path) -> None:
    source, parts = text_file(tmp_path / "a.txt", ["a cat"]), tmp_path / "out.npy.parts"
    (tmp_path / "elsewhere").mkdir()
    for target in ("elsewhere", "nowhere", "a.txt"):
        parts.symlink_to(tmp_path / target)
        with pytest.raises(FileExistsError, match=r"out\.npy\.parts is a link, but the run makes a folder"):
            embed_corpus(model, [source], tmp_path / "out.npy")
        assert parts.is_symlink()
        parts.unlink()
    parts.write_text("precious")
    with pytest.raises(FileExistsError, match=r"out\.npy\.parts is a file, but the run makes a folder.*Move it"):
        embed_corpus(model, [source], tmp_path / "out.npy")
    assert parts.read_text() == "precious"
    parts.unlink()
    parts.mkdir()
    (parts / "lock").symlink_to(tmp_path / "a.txt")
    with pytest.raises(FileExistsError, match=r"it holds files of something else: lock\."):
        embed_corpus(model, [source], tmp_path / "out.npy")
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
def test_what_a_killed_run_left_before_its_manifest_is_used_and_deleted(
    model: SentenceTransformer, tmp_path: Path, left: dict[str, str | None], options: dict[str, Any]
) -> None:
    """Other moments of this kind: test_killed_whenever_something_becomes_final."""
    source = text_file(tmp_path / "a.txt", ["a cat", "a dog"])
    fill(tmp_path / "out.npy.parts", left)
    embed_corpus(model, [source], tmp_path / "out.npy", **options)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), model.encode(["a cat", "a dog"]))
    assert not (tmp_path / "out.npy.parts").exists()


def test_a_run_deletes_no_file_that_came_into_its_folder(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, parts = text_file(tmp_path / "a.txt", texts_of(40)), tmp_path / "out.npy.parts"
    with monkeypatch.context() as patch:
        stop_after(2, patch, StoppedError())
        with pytest.raises(StoppedError):
            embed_corpus(model, [source], tmp_path / "out.npy", shard_size=10, truncation="silent")
    foreign = {"part-00000.parquet": "precious", "part-mine": "precious", ".minibert-mine": "precious"}
    for name, content in foreign.items():
        (parts / name).write_text(content)
    embed_corpus(model, [source], tmp_path / "out.npy", shard_size=10, truncation="silent", resume=True)
    assert listing(parts) == {name: content.encode() for name, content in foreign.items()}
    with pytest.raises(FileExistsError, match="holds files of something else"):
        embed_corpus(model, [source], tmp_path / "out.npy", truncation="silent")
    assert len(np.load(tmp_path / "out.npy")) == 40


def test_a_run_makes_its_manifest_before_its_parts(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that there are never parts of which nobody knows whose they are: the next run may have other ones."""
    source, parts = text_file(tmp_path / "a.txt", texts_of(40)), tmp_path / "out.npy.parts"

    def stop(self: ShardFolder, manifest: dict[str, Any]) -> None:
        assert {entry.name for entry in parts.iterdir()} == {"lock"}
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(ShardFolder, "_write_manifest", stop)
        with pytest.raises(StoppedError):
            embed_corpus(model, [source], tmp_path / "out.npy", truncation="silent")
    assert not parts.exists()


@pytest.mark.parametrize("name", ["out.ids.jsonl", "out.npy.manifest.json"])
@pytest.mark.parametrize("content", ['{"id": 1}\n', "not JSON", None])
def test_a_second_output_that_nobody_named_replaces_no_file_of_something_else(
    model: SentenceTransformer, tmp_path: Path, name: str, content: str | None
) -> None:
    source, output = text_file(tmp_path / "a.txt", ["a cat"]), tmp_path / "out.npy"
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises((FileExistsError, ValueError), match=rf"{name} .* elsewhere, or give another output"):
        embed_corpus(model, [source], output)
    assert listing(tmp_path)[name] == (None if content is None else content.encode())
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.txt", name}
    (tmp_path / name).rename(tmp_path / "mine")
    for _ in range(2):  # what minibert has written itself, it replaces
        embed_corpus(model, [source], output)


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="there are no links")
def test_a_link_is_followed(model: SentenceTransformer, tmp_path: Path) -> None:
    source = text_file(tmp_path / "a.txt", ["a cat"])
    (tmp_path / "there").mkdir()
    os.symlink(tmp_path / "there" / "true.npy", tmp_path / "out.npy")
    embed_corpus(model, [source], str(tmp_path / "out.npy"))
    assert (tmp_path / "out.npy").is_symlink()
    names = {"true.npy", "true.ids.jsonl", "true.npy.manifest.json"}
    assert {entry.name for entry in (tmp_path / "there").iterdir()} == names


MOUNTS = ["unshare", "--map-root-user", "--mount"]


@pytest.mark.parametrize(("job", "step"), [("npy", 4), *(pytest.param(job, 1, marks=pytest.mark.slow) for job in JOBS)])
def test_a_full_disk(folder: Path, tmp_path: Path, job: str, step: int) -> None:
    """A true one: file systems of growing size in memory, mounted for this test alone, where that is permitted."""
    try_it = ["sh", "-c", 'mount -t tmpfs -o size=8k none "$0" && umount "$0"', str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*MOUNTS, *try_it], capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    counted = crash("full", folder, tmp_path, step, job, *MOUNTS)
    assert counted["sizes"] > counted["resumed"] > 0
    REPORT.append(
        f"full disk, {job}: {counted['sizes']} sizes without room, {counted['resumed']} runs resumed; it was full when "
        f"these were written: {', '.join(counted['files'])}"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit on the size of files")
@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (100, r"manifest\.json cannot be written: File too large|part-\S+ cannot be written: File too large"),
        (
            40_000,
            r"part-(vectors\.npy|ids\.jsonl) cannot be written: File too large\. What is done is kept .* --resume",
        ),
    ],
)
def test_a_limit_on_the_size_of_files(folder: Path, tmp_path: Path, limit: int, message: str) -> None:
    """Stands for a full disk where none can be mounted: RLIMIT_FSIZE."""
    text_file(tmp_path / "a.txt", [f"text {i}" for i in range(1500)])
    arguments, output = arguments_of("npy", folder, tmp_path / "a.txt", tmp_path, 100), tmp_path / "out.npy"
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
