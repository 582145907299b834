"""Runs over a corpus that are stopped, killed or damaged, or two at once, and are resumed."""

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
from minibert._utils import reporting
from minibert._utils.reporting import progress_bar
from minibert.cli import main
from minibert.corpus.run_folder import RunFolder, folder_of
from minibert.corpus.sources import Source
from tests.support.corpus_runs import (
    JOBS,
    ROOT,
    UPDATES,
    arguments_of,
    contents,
    lines_of,
    output_of,
    part_of,
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

MANIFEST = '{"settings": {}, "inputs": [], "checksums": [], "probe": []'


# --- stopped and killed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", JOBS)
def test_any_prefix_of_the_shards_resumes_to_the_same_bytes(
    embed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # this process is not killed
    own = tmp_path / "whole"
    own.mkdir()
    assert embed(f"whole/{JOBS[job][1]}", job=job).n_resumed == 0
    expected = contents(own)
    for shards in range(6):
        own, output = tmp_path / str(shards), f"{shards}/{JOBS[job][1]}"
        own.mkdir()
        with stopped_after(shards):
            embed(output, job=job)
        assert shards_done(output_of(job, own)) == shards
        if job == "folder":  # each shard is a final file
            final = {name: content for name, content in contents(own).items() if ".parts/" not in name}
            assert final == {name: expected[name] for name in sorted(expected)[2 : shards + 2]}
        else:
            assert not output_of(job, own).exists()
        assert embed(output, job=job, resume=True).n_resumed == min(10 * shards, 45)
        assert contents(own) == expected
        assert embed(output, job=job, resume=True).n_resumed == 45


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the runs are forked")
@pytest.mark.parametrize(
    ("job", "step"),
    [
        *(("npy", 31), ("folder", 41), ("update npy", 31), ("update folder", 27)),
        *(pytest.param(job, 1, marks=pytest.mark.slow) for job in (*JOBS, *UPDATES)),
    ],
)
def test_killed_whenever_something_becomes_final(short_folder: Path, tmp_path: Path, job: str, step: int) -> None:
    command = [sys.executable, "-m", "tests.support.corpus_runs", str(short_folder), str(tmp_path), str(step), job]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    moments = int(done.stdout.split()[-1])
    assert moments > 60 // step
    REPORT.append(f"kill -9 at renames, fsyncs and deletions, {job}: {moments} moments, all equal")


@pytest.mark.parametrize(
    ("job", "kills"),
    [
        *(("npy", 1), ("update npy", 1)),
        *(pytest.param(job, 10, marks=pytest.mark.slow) for job in JOBS),
        *(pytest.param(job, 50, marks=pytest.mark.slow) for job in UPDATES),
    ],
)
def test_killed_at_random_moments_it_ends_with_the_same_bytes(
    short_folder: Path, tmp_path: Path, job: str, kills: int
) -> None:
    """Kill and resume runs until this number was really killed; a run that ended before does not count."""
    older, name = dict[str, bytes](), JOBS[UPDATES.get(job, job)][1]
    if job in UPDATES:
        text_file(tmp_path / "a.txt", texts_of(1000, seed=1)[:300])
        assert main(arguments_of(job, short_folder, tmp_path / "a.txt", tmp_path / "older", 50)) == 0
        older = part_of(contents(tmp_path / "older"), name)
    text_file(tmp_path / "a.txt", texts_of(1000))
    assert main(arguments_of(job, short_folder, tmp_path / "a.txt", tmp_path / "whole", 50)) == 0
    expected, chance, killed, tried, done = contents(tmp_path / "whole"), random.Random(0), 0, 0, list[int]()
    while killed < kills and tried < 10 * kills:
        own = tmp_path / str(tried)
        output, arguments = (output_of(job, own), arguments_of(job, short_folder, tmp_path / "a.txt", own, 50))
        if job in UPDATES:
            shutil.copytree(tmp_path / "older", own, dirs_exist_ok=True)
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
        if job in UPDATES:
            assert part_of(contents(own), name) in (older, part_of(expected, name))
        resumed = run([*arguments, *(["--resume"] if job not in UPDATES else [])])
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
    assert (str(folder_of(output)) in err, "--resume" in err) == (True, True)
    assert "Traceback" not in err
    assert np.load(folder_of(output) / "shard-00004.npy").shape == (40, 24)  # can be used already
    again = run(arguments)
    assert again.returncode == 1
    assert "5 shards" in again.stderr
    assert "200 texts, 200 of them by earlier runs" in run([*arguments, "--resume"]).stdout


def test_the_standard_input_is_kept_for_a_run_that_can_be_resumed(
    short_folder: Path, short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    texts = texts_of(40)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    arguments = ["embed", "-m", str(short_folder), "-i", "-", "-o", str(tmp_path / "out.npy"), "--shard-size", "10"]
    with stopped_after(2, OSError("the disk is gone")):
        assert main(arguments) == 1
    assert {entry.name for entry in tmp_path.iterdir()} == {"out.npy.parts"}
    for other in (None, io.TextIOWrapper(io.BytesIO(b"another text"))):
        monkeypatch.setattr("sys.stdin", other)
        shutil.copytree(tmp_path / "out.npy.parts", tmp_path / "kept")
        assert main([*arguments, "--resume"]) == 0
        assert "not read again" in capsys.readouterr().err
        np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), short_model.encode(texts, truncation="silent"))
        for name in ("out.npy", "out.ids.jsonl", "out.npy.manifest.json"):
            (tmp_path / name).unlink()
        (tmp_path / "kept").rename(tmp_path / "out.npy.parts")
    assert main([*arguments, "--resume"]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), short_model.encode(texts, truncation="silent"))
    assert {entry.name for entry in tmp_path.iterdir()} == {
        f"out.{name}" for name in ("npy", "ids.jsonl", "npy.manifest.json", "npy.rows")
    }


def test_progress_without_a_terminal_is_a_line_from_time_to_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for show, lines in (("auto", 0), ("always", 2)):  # nothing of a short run, unless it is asked for
        with progress_bar(1000, show=show) as count:
            count(1000)
        assert capsys.readouterr().err.count("\n") == lines
    monkeypatch.setattr(reporting, "LINE_SECONDS", 0.1)
    with progress_bar(1000, show="auto", initial=10) as count:
        for _ in range(16):
            time.sleep(0.03)
            count(30)
    *lines, last = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 6
    for line in (*lines, last):
        assert re.fullmatch(r"minibert: \d+ of 1000 texts \[00:0\d<00:0\d, +[\d.]+ texts/s\]", line), line
    assert last.startswith("minibert: 490 of")


@pytest.mark.parametrize(("progress", "shown"), [("never", False), ("always", True), ("auto", True)])
def test_a_run_in_a_log_file_says_how_far_it_is(
    short_folder: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, progress: str, shown: bool
) -> None:
    monkeypatch.setattr(reporting, "LINE_SECONDS", 1e-6)  # as if the run took long
    text_file(tmp_path / "a.txt", texts_of(60))
    arguments = arguments_of("npy", short_folder, tmp_path / "a.txt", tmp_path, 20)
    assert main([*arguments, "--progress", progress]) == 0
    err = capsys.readouterr().err
    assert ("60 of 60 texts" in err) == ("60 of ? lines read" in err) == shown
    assert main(["search", "cat", f"{tmp_path}/a.txt", "-m", str(short_folder), "--progress", progress]) == 0
    assert ("texts [" in capsys.readouterr().err) == shown


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


def is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return True


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
    embed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, name: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    (tmp_path / "whole").mkdir()
    embed(f"whole/{JOBS[job][1]}", job=job)
    for number, spoil in enumerate(DAMAGES):
        own, output, said = tmp_path / str(number), f"{number}/{JOBS[job][1]}", list[str]()
        own.mkdir()
        with stopped_after(4):
            embed(output, job=job)
        spoil(own / name)
        silent = name.endswith("01.json") and not is_json(own / name)  # a record that is gone, or no JSON
        assert embed(output, job=job, resume=True, report=said.append).n_resumed == 30
        assert contents(own) == contents(tmp_path / "whole")
        assert silent or any("shard 1 is damaged" in one for one in said)


@pytest.mark.parametrize("place", ["parts", "beside"])
@pytest.mark.parametrize("way", ["resume", "update"])
@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "{}", MANIFEST, f'{MANIFEST}, "format": 99}}', None),
        *(f'{MANIFEST}, "{part}": 3}}' for part in ("settings", "inputs", "fingerprint_parts", "finished")),
        f'{MANIFEST}, "probe": "x"}}',
        f'{MANIFEST}, "checksums": ["a"]}}',
        f'{MANIFEST}, "inputs": [{{"path": 3}}], "checksums": ["a"]}}',
        f'{MANIFEST}, "finished": {{"outputs": 3}}}}',
    ],
)
def test_a_damaged_manifest_is_refused(embed: Any, tmp_path: Path, content: str | None, place: str, way: str) -> None:
    with stopped_after(1):
        embed()
    path = tmp_path / "out.npy.parts" / "manifest.json"
    if place == "beside":
        embed(resume=True)
        path = tmp_path / "out.npy.manifest.json"
    path.unlink()
    path.mkdir() if content is None else path.write_text(content)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        embed(**{way: True})
    assert {**contents(tmp_path), **before} == {**before, **contents(tmp_path)}


@pytest.mark.parametrize("way", ["resume", "update"])
@pytest.mark.parametrize("unfinished", [False, True])
def test_an_output_without_the_manifest_of_a_finished_run(
    embed: Any, tmp_path: Path, way: str, unfinished: bool
) -> None:
    embed()
    path = tmp_path / "out.npy.manifest.json"
    content = json.loads(path.read_text())
    path.unlink()
    if unfinished:
        path.write_text(json.dumps({name: value for name, value in content.items() if name != "finished"}))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=rf"out\.npy has no {path.name}.* Delete .*out\.npy "):
        embed(**{way: True})
    assert contents(tmp_path) == before


def test_a_run_of_an_earlier_version_is_refused_with_the_remedy(embed: Any, tmp_path: Path) -> None:
    """Version 0.3.0 appended shards to growing files, and recorded them in a journal."""
    parts = tmp_path / "out.npy.parts"
    parts.mkdir()
    (parts / "manifest.json").write_text(f'{MANIFEST}, "format": 1, "crc32": 1}}')
    for name in ("lock", "part-vectors.npy", "part-ids.jsonl", "shards.jsonl"):
        (parts / name).write_text("kept")
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"earlier .*delete .*out\.npy\.parts"):
            embed(resume=resume)
    assert (parts / "part-vectors.npy").read_text() == "kept"


# --- runs that must not be mixed --------------------------------------------------------------------------------------


def test_resuming_refuses_to_mix(
    embed: Any,
    short_model: SentenceTransformer,
    short_folder: Path,
    small_folder: Path,
    tmp_path: Path,
) -> None:
    """Another run is mixed neither with an unfinished run nor with the finished one."""
    same: dict[str, Any] = {"settings": {"revision": "a"}, "resume": True}
    with stopped_after(2):
        embed(**{**same, "resume": False})
    numpy = SentenceTransformer(short_folder, backend="numpy")
    int16 = SentenceTransformer(short_folder, compute_type="int16")
    another = SentenceTransformer(small_folder)
    another.max_seq_length = 32
    for whose in ("unfinished", f"{tmp_path}/out.npy"):
        for other, name, then, now in (
            ({"shard_size": 11}, "shard_size", "10", "11"),
            ({"settings": {"revision": "b"}}, "revision", "'a'", "'b'"),
            ({"layers": 1}, "layers", r"\[2\]", r"\[1\]"),
            ({"dtype": "float16"}, "dtype", "'float32'", "'float16'"),
            ({"normalize_embeddings": np.True_}, "normalize_embeddings", "False", "True"),
            ({"on_error": "null"}, "on_error", "'stop'", "'null'"),
            ({"on_empty": "skip"}, "on_empty", "'keep'", "'skip'"),
        ):
            with pytest.raises(ValueError, match=f"{whose}.* {name}={then}.* {name}={now}"):
                embed(**{**same, **other})
        # Their vectors differ by less than the probe notices.
        for model, message in ((numpy, "products='NumPy'"), (int16, "compute_type='int16'")):
            with pytest.raises(ValueError, match=f"{whose}.* {message}"):
                embed(model=model, **same)
        with pytest.raises(ValueError, match=rf"{whose}.* config\.max_position_embeddings=32, .*=512"):
            embed(model=another, **same)
        short_model.tokenizer.truncation_side = "left"
        with pytest.raises(ValueError, match="truncation_side='left'"):
            embed(**same)
        short_model.tokenizer.truncation_side = "right"
        text_file(tmp_path / "a.txt", [*texts_of(44), "other"])
        with pytest.raises(ValueError, match=rf"{whose}.* checksum of a\.txt="):
            embed(**same)
        text_file(tmp_path / "a.txt", texts_of(45))
        with pytest.raises(ValueError, match=r"input=\['a\.txt'\].* input=\['b\.txt'\]"):
            embed(source=text_file(tmp_path / "b.txt", texts_of(45)), **same)
        assert embed(**same).n_resumed == (20 if whose == "unfinished" else 45)
        expected = short_model.encode(texts_of(45), truncation="silent")
        np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
        assert not (tmp_path / "out.npy.parts").exists()


def test_the_same_input_may_be_written_otherwise(embed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text_file(tmp_path / "a.txt", texts_of(45))
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path)
    with stopped_after(2):
        embed(source=Source("a.txt", "text"))
    monkeypatch.chdir(tmp_path / "inner")
    for path, resumed in (("../a.txt", 20), (str(tmp_path / "a.txt"), 45)):
        assert embed(source=Source(path, "text"), resume=True).n_resumed == resumed
    assert {row["file"] for row in lines_of(tmp_path / "out.ids.jsonl")} == {"a.txt"}
    (tmp_path / "inner" / "b.txt").write_bytes((tmp_path / "a.txt").read_bytes())
    with pytest.raises(ValueError, match=r"input=\['b\.txt'\]"):
        embed(source=Source("b.txt", "text"), resume=True)


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_a_link_and_its_file_are_two_inputs(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_file(tmp_path / "a.txt", texts_of(3))
    os.symlink("a.txt", tmp_path / "link.txt")
    monkeypatch.chdir(tmp_path)
    for number, first in enumerate((["a.txt"], ["a.txt", "link.txt"], ["a.txt", "./a.txt"])):
        out = f"{number}.npy"
        command = ["embed", "-m", str(short_folder), "-o", out, "--input"]
        assert main([*command, *first]) == main([*command, *first, "--resume"]) == 0
        for inputs in (first, ["a.txt", "link.txt"], ["link.txt", "./a.txt"]):
            assert main([*command, *inputs, "--update"]) == 0
            rows = lines_of(tmp_path / out.replace("npy", "ids.jsonl"))
            assert [row["file"] for row in rows] == [name for name in inputs for _ in range(3)]


def test_resuming_takes_no_other_file_for_the_finished_one(embed: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "out.npy", np.zeros((50, 24), dtype=np.float32))
    with pytest.raises(ValueError, match=r"out\.npy\.manifest\.json"):
        embed(resume=True)
    embed()
    for name in ("out.npy", "out.ids.jsonl"):
        content = (tmp_path / name).read_bytes()
        for other in (content[:-1], content[:-1] + b"x"):
            (tmp_path / name).write_bytes(other)
            with pytest.raises(ValueError, match=rf"{name} is missing or not as"):
                embed(resume=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "out.ids.jsonl").unlink()
    with pytest.raises(ValueError, match=r"out\.ids\.jsonl is missing"):
        embed(resume=True)
    assert not (tmp_path / "out.npy.parts").exists()


@pytest.mark.parametrize("moment", ["start", "save"])
def test_input_that_changes_during_the_run(
    embed: Any, short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """No shard may come from a changed input: if the old input is restored, `resume` would accept the shard."""
    method = getattr(RunFolder, moment)

    def and_change(self: RunFolder, *arguments: Any) -> Any:
        result = method(self, *arguments)
        text_file(tmp_path / "a.txt", texts_of(60, seed=1))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, moment, and_change)
        with pytest.raises(ValueError, match=r"a\.txt was changed"):
            embed()
    assert not (tmp_path / "out.npy").exists()
    with pytest.raises(ValueError, match=r"checksum of a\.txt="):
        embed(resume=True)
    text_file(tmp_path / "a.txt", texts_of(45))
    assert embed(resume=True).n_resumed == (10 if moment == "save" else 0)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), short_model.encode(texts_of(45), truncation="silent"))


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
    assert "out.npy is being written" in second.stderr
    assert contents(tmp_path) == before
    holder.kill()
    holder.communicate(timeout=PATIENCE)
    resumed = run([*arguments, "--resume"])
    assert resumed.returncode == 0, resumed.stderr
    assert np.load(output).shape == (200, 24)
