"""Runs over a corpus that are stopped, killed or damaged, or two at once, and are resumed."""

from __future__ import annotations

import io
import os
import random
import re
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
from minibert._utils.reporting import progress_bar
from minibert.cli import main
from minibert.corpus.embed import embed_corpus
from minibert.corpus.extract import extract_corpus
from minibert.corpus.shards import RunFolder, folder_of
from minibert.corpus.sources import Source
from tests.support.corpus_runs import (
    JOBS,
    ROOT,
    arguments_of,
    contents,
    output_of,
    run,
    shards_done,
    start,
    start_endless,
    stopped_after,
    text_file,
    texts_of,
    wait_for,
)
from tests.support.outcomes import PATIENCE
from tests.support.report import REPORT

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")

HOW: dict[str, Any] = {"shard_size": 10, "truncation": "silent"}

MANIFEST = '{"settings": {}, "inputs": [], "checksums": [], "probe": []'


def compute(job: str, model: SentenceTransformer, source: Source, folder: Path, **how: Any) -> Any:
    folder.mkdir(exist_ok=True)
    output, how = f"{folder}/{JOBS[job][1]}", {"shard_size": 10, "report": lambda problem: None, **how}
    if job in ("binary", "google"):
        form = {"format": job, "layers": [-1]}
        return extract_corpus(model.model, model.tokenizer, [source], output, **form, **how)
    return embed_corpus(model, [source], output, truncation="silent", **how)


# --- stopped and killed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", JOBS)
def test_any_prefix_of_the_shards_resumes_to_the_same_bytes(
    short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    if job in ("parquet", "folder"):
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # this process is not killed
    source = text_file(tmp_path / "a.txt", texts_of(45))
    assert compute(job, short_model, source, tmp_path / "whole").n_resumed == 0
    expected = contents(tmp_path / "whole")
    for shards in range(6):
        own = tmp_path / str(shards)
        with stopped_after(shards):
            compute(job, short_model, source, own)
        assert shards_done(output_of(job, own)) == shards
        if job == "folder":  # each shard is a final file
            final = {name: content for name, content in contents(own).items() if ".parts/" not in name}
            assert final == {name: expected[name] for name in sorted(expected)[1 : shards + 1]}
        else:
            assert not output_of(job, own).exists()
        assert compute(job, short_model, source, own, resume=True).n_resumed == min(10 * shards, 45)
        assert contents(own) == expected
        assert compute(job, short_model, source, own, resume=True) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the runs are forked")
@pytest.mark.parametrize(
    ("job", "step"), [("npy", 15), ("folder", 25), *(pytest.param(job, 1, marks=pytest.mark.slow) for job in JOBS)]
)
def test_killed_whenever_something_becomes_final(short_folder: Path, tmp_path: Path, job: str, step: int) -> None:
    command = [sys.executable, "-m", "tests.support.corpus_runs", str(short_folder), str(tmp_path), str(step), job]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    moments = int(done.stdout.split()[-1])
    assert moments > 20 // step
    REPORT.append(f"kill -9 at renames, fsyncs and deletions, {job}: {moments} moments, all equal")


@pytest.mark.parametrize(
    ("job", "kills"), [("npy", 1), *(pytest.param(job, 10, marks=pytest.mark.slow) for job in JOBS)]
)
def test_killed_at_random_moments_it_ends_with_the_same_bytes(
    short_folder: Path, tmp_path: Path, job: str, kills: int
) -> None:
    """Kill and resume runs until this number was really killed; a run that ended before does not count."""
    if job in ("parquet", "folder"):
        pytest.importorskip("pyarrow")
    text_file(tmp_path / "a.txt", texts_of(1000))
    assert main(arguments_of(job, short_folder, tmp_path / "a.txt", tmp_path / "whole", 50)) == 0
    expected, chance, killed, tried, done = contents(tmp_path / "whole"), random.Random(0), 0, 0, list[int]()
    while killed < kills and tried < 10 * kills:
        own = tmp_path / str(tried)
        output, arguments = (output_of(job, own), arguments_of(job, short_folder, tmp_path / "a.txt", own, 50))
        moment = 20 if tried == 1 else chance.randint(0, 20)  # the second is killed at the end
        process = start(arguments)
        wait_for(lambda output=output, moment=moment: shards_done(output) >= moment, process)  # type: ignore[misc]
        time.sleep(0 if moment == 20 else chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        tried += 1
        if process.returncode == -signal.SIGKILL and contents(own) != expected:
            killed += 1
            done.append(shards_done(output))
        resumed = run([*arguments, "--resume"])
        assert resumed.returncode == 0, resumed.stderr
        assert contents(own) == expected
    assert killed == kills
    REPORT.append(f"kill -9, {job}: {killed} of {tried} runs killed, after {done} of 20 shards; all equal afterwards")


def test_an_interrupted_run_says_how_to_go_on(short_folder: Path, tmp_path: Path) -> None:
    text_file(tmp_path / "a.txt", texts_of(200))
    output, arguments = tmp_path / "out.npy", arguments_of("npy", short_folder, tmp_path / "a.txt", tmp_path, 40)
    process = start_endless(arguments)
    wait_for(lambda: shards_done(output) == 5, process)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 1
    assert f"finished shards are kept in {folder_of(output)}; resume=True continues." in err
    assert "Traceback" not in err
    assert np.load(folder_of(output) / "shard-00004.npy").shape == (40, 24)  # can be used already
    again = run(arguments)
    assert again.returncode == 1
    assert "holds an unfinished run with 5 shards done" in again.stderr
    assert "200 texts, 200 of them by earlier runs" in run([*arguments, "--resume"]).stdout


def test_the_standard_input_is_kept_for_a_run_that_can_be_resumed(
    short_folder: Path, short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_of(40)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    arguments = ["embed", "-m", str(short_folder), "-i", "-", "-o", str(tmp_path / "out.npy"), "--shard-size", "10"]
    with stopped_after(2, OSError("the disk is gone")):
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


# --- damaged ----------------------------------------------------------------------------------------------------------


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES: tuple[Callable[[Path], object], ...] = (
    _flip,
    lambda path: os.truncate(path, path.stat().st_size // 2),
    lambda path: os.truncate(path, 0),
    lambda path: path.unlink(),
    lambda path: path.write_bytes(path.read_bytes() + b"more"),
    lambda path: path.write_bytes(b"[1]"),
)


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("npy", "out.npy.parts/shard-00001.npy"),
        ("npy", "out.npy.parts/shard-00001.ids.jsonl"),
        ("npy", "out.npy.parts/shard-00001.json"),
        ("binary", "out.npy.parts/shard-00001.tokens.jsonl"),
        ("folder", "out/part-00001.parquet"),
    ],
)
def test_damaged_shards_are_noticed_and_computed_again(
    short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, name: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    source = text_file(tmp_path / "a.txt", texts_of(45))
    compute(job, short_model, source, tmp_path / "whole")
    for number, spoil in enumerate(DAMAGES):
        own, said = tmp_path / str(number), list[str]()
        with stopped_after(4):
            compute(job, short_model, source, own)
        spoil(own / name)
        assert compute(job, short_model, source, own, resume=True, report=said.append).n_resumed == 30
        assert contents(own) == contents(tmp_path / "whole")
        silent = name.endswith("01.json") and spoil not in (_flip, DAMAGES[5])  # a record that is gone, or no JSON
        assert silent or any("shard 1 is damaged" in one for one in said)


@pytest.mark.parametrize("place", ["parts", "beside"])
@pytest.mark.parametrize("content", ["", "{", "[]", "{}", MANIFEST, f'{MANIFEST}, "format": 99}}', None])
def test_a_damaged_manifest_is_refused(
    short_model: SentenceTransformer, tmp_path: Path, content: str | None, place: str
) -> None:
    source, output = text_file(tmp_path / "a.txt", texts_of(20)), tmp_path / "out.npy"
    with stopped_after(1):
        embed_corpus(short_model, [source], output, **HOW)
    path = folder_of(output) / "manifest.json"
    if place == "beside":
        embed_corpus(short_model, [source], output, resume=True, **HOW)
        path = tmp_path / "out.npy.manifest.json"
    path.unlink()
    path.mkdir() if content is None else path.write_text(content)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        embed_corpus(short_model, [source], output, resume=True, **HOW)
    assert {**contents(tmp_path), **before} == {**before, **contents(tmp_path)}


def test_a_run_of_an_earlier_version_is_refused_with_the_remedy(
    short_model: SentenceTransformer, tmp_path: Path
) -> None:
    """Version 0.3.0 appended shards to growing files, and recorded them in a journal."""
    source, parts = text_file(tmp_path / "a.txt", texts_of(20)), tmp_path / "out.npy.parts"
    parts.mkdir()
    (parts / "manifest.json").write_text(f'{MANIFEST}, "format": 1, "crc32": 1}}')
    for name in ("lock", "part-vectors.npy", "part-ids.jsonl", "shards.jsonl"):
        (parts / name).write_text("kept")
    for resume in (False, True):
        with pytest.raises(
            ValueError, match=r"earlier minibert. Finish it with that version, or delete .*out\.npy\.parts"
        ):
            embed_corpus(short_model, [source], tmp_path / "out.npy", resume=resume, **HOW)
    assert (parts / "part-vectors.npy").read_text() == "kept"


# --- runs that must not be mixed --------------------------------------------------------------------------------------


def test_resuming_refuses_to_mix(
    short_folder: Path,
    small_folder: Path,
    tmp_path: Path,
    short_model: SentenceTransformer,
) -> None:
    """Another run is mixed neither with an unfinished run nor with the finished one."""
    source = text_file(tmp_path / "a.txt", texts_of(50))
    output = str(tmp_path / "out.npy")
    same: dict[str, Any] = {**HOW, "settings": {"revision": "a"}, "resume": True}
    with stopped_after(2):
        embed_corpus(short_model, [source], output, **{**same, "resume": False})
    numpy = SentenceTransformer(short_folder, backend="numpy")
    int16 = SentenceTransformer(short_folder, compute_type="int16")
    another = SentenceTransformer(small_folder)
    another.max_seq_length = 32
    (tmp_path / "b.txt").write_bytes((tmp_path / "a.txt").read_bytes())
    for whose in ("The unfinished run", f"The run that made {output}"):
        for other, message in (
            ({"shard_size": 11}, "shard_size=10, this one has shard_size=11"),
            ({"settings": {"revision": "b"}}, "revision='a', this one has revision='b'"),
            ({"layers": 1}, r"layers=\[2\], this one has layers=\[1\]"),
            ({"dtype": "float16"}, "dtype='float32', this one has dtype='float16'"),
            ({"on_error": "null"}, "on_error='stop', this one has on_error='null'"),
        ):
            with pytest.raises(ValueError, match=f"{whose} has {message}"):
                embed_corpus(short_model, [source], output, **{**same, **other})
        # Their vectors differ by less than the probe notices.
        for model, message in ((numpy, "products='NumPy'"), (int16, "compute_type='int16'")):
            with pytest.raises(ValueError, match=f"{whose} has the default .*, this one has {message}"):
                embed_corpus(model, [source], output, **same)
        with pytest.raises(ValueError, match=f"{whose} has another model"):
            embed_corpus(another, [source], output, **same)
        text_file(tmp_path / "a.txt", [*texts_of(49), "other"])
        with pytest.raises(ValueError, match=rf"{whose} has checksum of a\.txt="):
            embed_corpus(short_model, [source], output, **same)
        text_file(tmp_path / "a.txt", texts_of(50))
        with pytest.raises(ValueError, match=r"has input=\['a\.txt'\], this one has input=\['b\.txt'\]"):
            embed_corpus(short_model, [text_file(tmp_path / "b.txt", texts_of(50))], output, **same)
        summary = embed_corpus(short_model, [source], output, **same)
        assert (summary is None) == (whose != "The unfinished run")
        np.testing.assert_array_equal(np.load(output), short_model.encode(texts_of(50), truncation="silent"))
        assert not folder_of(output).exists()


def test_resuming_takes_no_other_file_for_the_finished_one(short_model: SentenceTransformer, tmp_path: Path) -> None:
    source, output = text_file(tmp_path / "a.txt", texts_of(20)), tmp_path / "out.npy"
    np.save(output, np.zeros((50, 24), dtype=np.float32))
    with pytest.raises(ValueError, match=r"nothing to resume: .*out\.npy has no out"):
        embed_corpus(short_model, [source], output, resume=True, **HOW)
    embed_corpus(short_model, [source], output, **HOW)
    for name in ("out.npy", "out.ids.jsonl"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-1])
        with pytest.raises(ValueError, match=rf"{name} is missing or not .*{len(content)} bytes"):
            embed_corpus(short_model, [source], output, resume=True, **HOW)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "out.ids.jsonl").unlink()
    with pytest.raises(ValueError, match=r"out\.ids\.jsonl is missing"):
        embed_corpus(short_model, [source], output, resume=True, **HOW)
    assert not folder_of(output).exists()


@pytest.mark.parametrize("moment", ["start", "save"])
def test_input_that_changes_during_the_run(
    short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """No shard may come from a changed input: if the old input is restored, `resume` would accept the shard."""
    source, method = text_file(tmp_path / "a.txt", texts_of(50)), getattr(RunFolder, moment)

    def and_change(self: RunFolder, *arguments: Any) -> Any:
        result = method(self, *arguments)
        text_file(tmp_path / "a.txt", texts_of(60, seed=1))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, moment, and_change)
        with pytest.raises(ValueError, match=r"a\.txt was changed while it was read"):
            embed_corpus(short_model, [source], tmp_path / "out.npy", **HOW)
    assert not (tmp_path / "out.npy").exists()
    with pytest.raises(ValueError, match=r"has checksum of a\.txt="):
        embed_corpus(short_model, [source], tmp_path / "out.npy", resume=True, **HOW)
    text_file(tmp_path / "a.txt", texts_of(50))
    summary = embed_corpus(short_model, [source], tmp_path / "out.npy", resume=True, **HOW)
    assert summary is not None
    assert summary.n_resumed == (10 if moment == "save" else 0)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), short_model.encode(texts_of(50), truncation="silent"))


# --- two at the same time ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="a run is stopped by SIGSTOP")
def test_a_second_run_on_one_output_is_refused_and_a_dead_one_never_blocks(short_folder: Path, tmp_path: Path) -> None:
    text_file(tmp_path / "a.txt", texts_of(200))
    output, arguments = tmp_path / "out.npy", arguments_of("npy", short_folder, tmp_path / "a.txt", tmp_path, 40)
    holder = start_endless(arguments)
    wait_for(lambda: shards_done(output) == 5, holder)
    holder.send_signal(signal.SIGSTOP)
    before = contents(tmp_path)
    second = run([*arguments, "--resume"])
    assert second.returncode == 1
    assert "out.npy is being written by " in second.stderr
    assert contents(tmp_path) == before
    holder.kill()
    holder.communicate(timeout=PATIENCE)
    resumed = run([*arguments, "--resume"])
    assert resumed.returncode == 0, resumed.stderr
    assert np.load(output).shape == (200, 24)
