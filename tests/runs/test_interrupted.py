"""Runs over a corpus that are killed, interrupted, or two at once, and are resumed."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert._utils.reporting import progress_bar
from minibert.cli import main
from minibert.corpus.embed import embed_corpus
from minibert.corpus.run_folder import folder_of
from minibert.corpus.token_features import TokenFeatures
from tests.support.corpus_runs import (
    StoppedError,
    crash,
    output_of,
    run,
    shards_done,
    start,
    start_endless,
    stop_after,
    text_file,
    wait_for,
)
from tests.support.crash_program import JOBS, arguments_of, contents, texts_of
from tests.support.outcomes import PATIENCE
from tests.support.report import REPORT

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")


# --- killed -----------------------------------------------------------------------------------------------------------


def run_and_kill(kills: int, job: str, folder: Path, scratch: Path) -> None:
    """Kill and resume runs until this number was really killed; a run that ended before does not count."""
    count, shard_size = (1000, 50) if job in ("folder", "binary", "google") else (3000, 100)
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
        # The first is killed between shards, the second at the end, when files get their final names.
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
def test_killed_and_resumed_it_ends_with_the_same_bytes(short_folder: Path, tmp_path: Path, job: str) -> None:
    run_and_kill(2, job, short_folder, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_killed_twenty_times(short_folder: Path, tmp_path: Path, job: str) -> None:
    if job in ("parquet", "folder"):
        pytest.importorskip("pyarrow")
    run_and_kill(20, job, short_folder, tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the runs are forked")
@pytest.mark.parametrize(
    ("job", "step"),
    [("npy", 8), ("binary", 9), ("folder", 15), *(pytest.param(job, 1, marks=pytest.mark.slow) for job in JOBS)],
)
def test_killed_whenever_something_becomes_final(short_folder: Path, tmp_path: Path, job: str, step: int) -> None:
    counted = crash("kill", short_folder, tmp_path, step, job)
    assert counted["moments"] > counted["resumed"] > 20 // step
    REPORT.append(f"kill -9 at renames, fsyncs and deletions, {job}: {counted['moments']} moments, all equal")


@pytest.mark.parametrize("job", ["npy", "binary", "google"])
def test_an_interrupted_run_says_how_to_go_on_and_its_shards_are_usable(
    short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: str
) -> None:
    text_file(tmp_path / "a.txt", texts_of(100))
    arguments, output = arguments_of(job, short_folder, tmp_path / "a.txt", tmp_path, 10), output_of(job, tmp_path)
    parts = folder_of(output)
    with monkeypatch.context() as patch:
        stop_after(4, patch, KeyboardInterrupt())
        assert main(arguments) == 1
    assert f"finished shards are kept in {parts}; the same command with --resume continues." in capsys.readouterr().err
    assert not output.exists()
    if job == "npy":
        assert np.load(parts / "part-vectors.npy").shape == (40, 24)
    elif job == "binary":
        assert len(TokenFeatures(parts / "part-states.npy")[39] or ()) > 0
    else:
        lines = (parts / "part-features.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["linex_index"] for line in lines] == [*range(40)]
    assert main(arguments) == 1
    assert "holds an unfinished run with 4 shards done. Continue it with --resume" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    assert "100 texts, 40 of them by earlier runs" in capsys.readouterr().out
    assert main([*arguments, "--resume"]) == 0
    assert "this run is complete already; there is nothing to resume" in capsys.readouterr().out
    assert not parts.exists()


def test_a_real_interrupt_can_be_resumed(short_folder: Path, tmp_path: Path) -> None:
    text_file(tmp_path / "a.txt", texts_of(3000))
    output, arguments = tmp_path / "out.npy", arguments_of("npy", short_folder, tmp_path / "a.txt", tmp_path, 40)
    process = start_endless(arguments)
    wait_for(lambda: shards_done(output), process)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 1
    assert "with --resume continues" in err
    assert "minibert: interrupted" in err
    assert "Traceback" not in err
    assert run([*arguments, "--resume"]).returncode == 0
    expected = SentenceTransformer(short_folder, backend="numpy").encode(texts_of(3000), truncation="silent")
    np.testing.assert_allclose(np.load(output), expected, atol=1e-6)


def test_the_standard_input_is_kept_for_a_run_that_can_be_resumed(
    short_folder: Path, short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_of(40)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    arguments = ["embed", "-m", str(short_folder), "-i", "-", "-o", str(tmp_path / "out.npy"), "--shard-size", "10"]
    with monkeypatch.context() as patch:
        stop_after(2, patch, OSError("the disk is gone"))
        assert main(arguments) == 1
    assert {entry.name for entry in tmp_path.iterdir()} == {"out.npy.parts"}
    monkeypatch.setattr("sys.stdin", None)
    assert main([*arguments, "--resume"]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), short_model.encode(texts, truncation="silent"))
    assert {entry.name for entry in tmp_path.iterdir()} == {"out.npy", "out.ids.jsonl", "out.npy.manifest.json"}


def test_a_progress_bar_shows_texts_per_second_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(1000, show=True, initial=10) as count:
        time.sleep(0.2)
        count(490)
    assert re.search(r"50%.*500/1000 \[00:00<00:0\d, +\d+(\.\d+)? texts/s\]", capsys.readouterr().err)
    with progress_bar(1000, show=False) as count:
        count(1)
    assert capsys.readouterr().err == ""


# --- two at the same time ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="a run is stopped by SIGSTOP")
def test_a_second_run_on_one_output_is_refused_and_a_dead_one_never_blocks(short_folder: Path, tmp_path: Path) -> None:
    text_file(tmp_path / "a.txt", texts_of(3000))
    output, arguments = tmp_path / "out.npy", arguments_of("npy", short_folder, tmp_path / "a.txt", tmp_path, 40)
    holder = start_endless(arguments)
    wait_for(lambda: shards_done(output), holder)
    holder.send_signal(signal.SIGSTOP)
    before = {name: content for name, content in contents(tmp_path).items() if "part-" not in name}
    for options in ([], ["--resume"]):
        second = run([*arguments, *options])
        assert second.returncode == 1
        assert f"out.npy is being written by process {holder.pid} on " in second.stderr
        assert "Wait until that run has ended, stop it" in second.stderr
    assert {name: content for name, content in contents(tmp_path).items() if "part-" not in name} == before
    holder.kill()
    holder.communicate(timeout=PATIENCE)
    resumed = run([*arguments, "--resume"])
    assert resumed.returncode == 0, resumed.stderr
    assert np.load(output).shape == (3000, 24)


def test_of_several_runs_that_begin_together_one_writes(short_folder: Path, tmp_path: Path) -> None:
    text_file(tmp_path / "a.txt", texts_of(2000))
    arguments = arguments_of("npy", short_folder, tmp_path / "a.txt", tmp_path, 200)
    processes = [start(arguments) for _ in range(4)]
    errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    for process, err in zip(processes, errors, strict=True):
        assert process.returncode == 0 or "is being written by process" in err, err
    assert any(process.returncode == 0 for process in processes)
    assert np.load(tmp_path / "out.npy").shape == (2000, 24)
    assert run([*arguments, "--resume"]).returncode == 0
    assert not folder_of(tmp_path / "out.npy").exists()


def test_a_file_system_without_locks_gives_a_warning(
    short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    source = text_file(tmp_path / "a.txt", ["a cat"])
    with pytest.warns(UserWarning, match=r"No locks available.*no second run writes the same output"):
        embed_corpus(short_model, [source], str(tmp_path / "out.npy"))
    assert np.load(tmp_path / "out.npy").shape == (1, 24)
    assert not folder_of(tmp_path / "out.npy").exists()


@pytest.mark.parametrize("other", [{"compute_type": "int16"}, {"backend": "numpy"}])
@pytest.mark.filterwarnings("ignore:.*has no modules.json", "ignore:compute_type=")
def test_a_run_is_not_continued_with_other_numbers(
    short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    """The vectors of int16 and of NumPy differ from float32's by less than the probe of a run notices."""
    source, output = text_file(tmp_path / "a.txt", texts_of(40)), tmp_path / "out.npy"
    (name, value), usual = *other.items(), SentenceTransformer(short_folder)
    how: dict[str, Any] = {"shard_size": 10, "truncation": "silent"}
    with monkeypatch.context() as patch:
        stop_after(2, patch, StoppedError())
        with pytest.raises(StoppedError):
            embed_corpus(SentenceTransformer(short_folder, **other), [source], output, **how)
    setting = f"compute_type='{value}'" if name == "compute_type" else "products='NumPy'"
    with pytest.raises(ValueError, match=f"The unfinished run has {setting}, this one has the default"):
        embed_corpus(usual, [source], output, resume=True, **how)
    summary = embed_corpus(SentenceTransformer(short_folder, **other), [source], output, resume=True, **how)
    assert summary is not None
    assert summary.n_resumed == 20
    with pytest.raises(ValueError, match=f"The run that made .* has {setting}, this one has the default"):
        embed_corpus(usual, [source], output, resume=True, **how)
