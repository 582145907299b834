"""Runs whose output is a folder of Parquet files: what it holds, before and after they end, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.cli import main
from minibert.corpus.embed import embed_corpus
from minibert.corpus.file_folder import FILE_SIZE
from minibert.corpus.journal import Journal
from minibert.corpus.manifest import read_manifest, seal, unsealed
from minibert.corpus.parts import Part
from minibert.corpus.readers import Source
from minibert.corpus.run_folder import RunFolder, folder_of
from minibert.corpus.runs import Summary
from minibert.corpus.shards import Shards
from tests.support.corpus_runs import StoppedError, stop_after, text_file
from tests.support.crash_program import contents, texts_of

pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")

# Shards of 10 texts with 24 float32 each are 960 bytes, so that each file has two of them.
HOW: dict[str, Any] = {"shard_size": 10, "truncation": "silent"}
SMALL = {**HOW, "file_size": 1500}


def rows_of(folder: Path) -> list[int]:
    return [pq.read_metadata(path).num_rows for path in sorted(folder.iterdir())]


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is stopped and resumed. It must end with the files of a run that was not."""

    model: SentenceTransformer
    source: Source
    output: Path
    whole: dict[str, bytes]

    def embed(self, **how: Any) -> Summary | None:
        return embed_corpus(self.model, [self.source], self.output, **SMALL, **how)

    def stop(self, shards: int) -> None:
        """Stop it when this number of shards is saved."""
        with pytest.MonkeyPatch.context() as patch:
            stop_after(shards, patch, StoppedError())
            with pytest.raises(StoppedError):
                self.embed()

    def resume(self) -> Summary:
        summary = self.embed(resume=True, report=lambda problem: None)
        assert summary is not None
        assert contents(self.output.parent) == self.whole
        return summary


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk: these processes are not killed, and waiting took most of the time of these tests."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return text_file(tmp_path / "a.txt", texts_of(75))


@pytest.fixture
def run(short_model: SentenceTransformer, source: Source, tmp_path: Path) -> Run:
    for name in ("whole", "own"):
        (tmp_path / name).mkdir()
    embed_corpus(short_model, [source], tmp_path / "whole" / "out", **SMALL)
    return Run(short_model, source, tmp_path / "own" / "out", contents(tmp_path / "whole"))


# --- what it holds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("ids", [True, False])
def test_the_rows_types_and_bytes_are_those_of_one_file(
    short_model: SentenceTransformer, tmp_path: Path, dtype: str, ids: bool
) -> None:
    lines = [
        json.dumps({"text": text, "name": f"n{i}"} if i % 7 else {"name": 1}) for i, text in enumerate(texts_of(75))
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    source = Source(str(tmp_path / "a.jsonl"), "jsonl", id_column="name" if ids else None, name="a.jsonl")
    how = {**HOW, "dtype": dtype, "on_error": "null", "report": lambda problem: None}
    one = embed_corpus(short_model, [source], tmp_path / "one.parquet", **how)
    size = 2000 if dtype == "float32" else 1000
    many = embed_corpus(short_model, [source], tmp_path / "many", file_size=size, **how)
    assert one is not None
    assert many is not None
    assert (one.n_files, many.n_files) == (1, 3)
    assert (one.n_texts, one.n_tokens, one.n_cut) == (many.n_texts, many.n_tokens, many.n_cut)
    assert rows_of(tmp_path / "many") == [30, 30, 15]
    assert sorted(os.listdir(tmp_path / "many")) == [f"part-{number:05}.parquet" for number in range(3)]
    whole = pq.read_table(tmp_path / "one.parquet")
    for path in (tmp_path / "many").iterdir():
        assert pq.read_schema(path).equals(whole.schema, check_metadata=True)
    found = pq.read_table(tmp_path / "many")
    assert found.equals(whole)
    vectors = [table["embedding"].combine_chunks().flatten().to_numpy() for table in (found, whole)]
    assert vectors[0].tobytes() == vectors[1].tobytes()


def test_the_manifest_names_the_files(short_model: SentenceTransformer, source: Source, tmp_path: Path) -> None:
    embed_corpus(short_model, [source], f"{tmp_path / 'out'}{os.sep}", **SMALL)
    manifest = read_manifest(str(tmp_path / "out"))
    assert manifest is not None
    assert manifest["settings"]["file_size"] == 1500
    files = manifest["finished"]["outputs"]
    assert [*files] == sorted(os.listdir(tmp_path / "out"))
    assert [file["rows"] for file in files.values()] == [20, 20, 20, 15]
    for file in files.values():
        assert (tmp_path / file["name"]).stat().st_size == file["size"]
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.txt", "out", "out.manifest.json"}


def _datasets(folder: str) -> Any:
    datasets = pytest.importorskip("datasets")
    calls = ({"path": folder}, {"path": "parquet", "data_dir": folder})
    one, two = (datasets.load_dataset(**how, cache_dir=f"{folder}.cache")["train"]["id"] for how in calls)
    assert [*one] == [*two]
    return one


READERS: dict[str, Callable[[str], Any]] = {
    "pyarrow": lambda folder: pytest.importorskip("pyarrow.dataset").dataset(folder).to_table()["id"].to_pylist(),
    "pandas": lambda folder: pytest.importorskip("pandas").read_parquet(folder)["id"],
    "datasets": _datasets,
    "dask": lambda folder: pytest.importorskip("dask.dataframe").read_parquet(folder).compute()["id"],
    "polars": lambda folder: pytest.importorskip("polars").read_parquet(folder)["id"],
    "duckdb": lambda folder: (
        row[0] for row in pytest.importorskip("duckdb").sql(f"select id from '{folder}/*.parquet'").fetchall()
    ),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # dask calls pandas so
def test_readers_of_folders_see_the_texts_in_order_while_it_grows_and_afterwards(
    run: Run, tmp_path: Path, reader: str
) -> None:
    run.stop(5)
    run.output.rename(tmp_path / "half")  # datasets would take the second folder of a name from its cache
    assert [*READERS[reader](str(tmp_path / "half"))] == [*range(40)]
    (tmp_path / "half").rename(run.output)
    run.resume()
    assert [*READERS[reader](str(run.output))] == [*range(75)]


def test_without_vectors_there_is_an_empty_file(short_model: SentenceTransformer, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    source, reports = Source(str(tmp_path / "a.jsonl"), "jsonl"), list[str]()
    summary = embed_corpus(short_model, [source], tmp_path / "out", on_error="skip", report=reports.append, **SMALL)
    assert summary is not None
    assert (summary.n_texts, summary.n_left_out, summary.n_files) == (0, 1, 1)
    assert pq.read_table(tmp_path / "out").column_names == ["id", "embedding"]


def test_a_shard_that_is_larger_than_a_file_is_one_file(
    short_model: SentenceTransformer, source: Source, tmp_path: Path
) -> None:
    embed_corpus(short_model, [source], tmp_path / "out", file_size=1, shard_size=30, truncation="silent")
    assert rows_of(tmp_path / "out") == [30, 30, 15]


def test_the_command_line(
    short_folder: Path,
    source: Source,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["embed", "-m", str(short_folder), "-i", "a.txt", "-o", "out/", "--shard-size", "10"]
    arguments += ["--truncation", "silent"]
    with monkeypatch.context() as patch:
        stop_after(4, patch, KeyboardInterrupt())
        assert main([*arguments, "--file-size", "1.5KB"]) == 1
    assert f"finished shards are kept in {tmp_path / 'out.parts'}; the same command with --resume" in (
        capsys.readouterr().err
    )
    assert rows_of(tmp_path / "out") == [20, 20]
    for options, message in (
        (["--file-size", "1.5KB"], "holds an unfinished run with 4 shards done. Continue it with --resume, or delete"),
        (["--resume"], f"The unfinished run has --file-size 1500, this one has --file-size {FILE_SIZE}."),
        (
            ["--resume", "--file-size", "1500", "--dtype", "float16"],
            "has --dtype float32, this one has --dtype float16",
        ),
    ):
        assert main([*arguments, *options]) == 1
        assert message in capsys.readouterr().err
    assert main([*arguments, "--file-size", "1500B", "--resume"]) == 0
    assert "out/: vectors (75, 24) float32 in 4 files; 75 texts, 40 of them by earlier runs" in capsys.readouterr().out
    assert main([*arguments, "--file-size", "1500", "--resume"]) == 0
    assert "out/: this run is complete already; there is nothing to resume" in capsys.readouterr().out
    assert main([*arguments, "--file-size", "1500"]) == 1
    assert "holds a finished run with 4 files, which a further run does not replace" in capsys.readouterr().err
    assert main(["embed", "-m", str(short_folder), "a text", "-o", "new/"]) == 1
    assert "new/ must end in .npy" in capsys.readouterr().err
    assert main([*arguments[:6], "x.npy", "--file-size", "1MB"]) == 1
    assert "--file-size is for a folder of files, but x.npy is the name of a single file" in capsys.readouterr().err
    for text in ("", "MB", "1 TB", "-1MB", "0", "1e3", "0.1B"):
        with pytest.raises(SystemExit):
            main([*arguments, "--file-size", text])
        assert f"{text!r} is not a size such as 512MB" in capsys.readouterr().err.replace("\n", " ")


# --- what is refused --------------------------------------------------------------------------------------------------


def test_names_that_are_not_those_of_a_folder(
    short_model: SentenceTransformer, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.jsonl").mkdir()
    (tmp_path / "sealed").mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "sealed" not in str(path) and access(path, mode))
    before = sorted(tmp_path.iterdir())
    slash = os.sep
    for name, size, message in (
        (f"a.txt{slash}", None, "a.txt. is asked for as a folder, but it is a file"),
        ("a.txt", 1000, "a.txt is asked for as a folder, but it is a file"),
        (f"x.npy{slash}", None, "a folder gets Parquet files, and .npy is the format of a single file"),
        ("x.jsonl", None, "x.jsonl is a folder, but a folder gets Parquet files"),
        (f"nowhere{slash}out{slash}", None, "cannot be made: there is no folder .*nowhere. Make it first"),
        (f"a.txt{slash}out{slash}", None, "cannot be made: there is no folder .*a.txt. Make it first"),
        ("x.npy", 1000, "file_size= is for a folder of files, but .*x.npy is the name of a single file; end the name"),
        ("x", None, "x must end in .npy, .jsonl or .parquet, .* The name of a folder of Parquet files ends in"),
        (f"sealed{slash}", None, "sealed. cannot be written: Permission denied"),
        (slash, None, "is a mount point. .* give a folder in it"),
        (f"out{slash}", 0, "file_size"),
        (f"out{slash}", 1.5, "file_size"),
    ):
        output = slash if name == slash else f"{tmp_path}{slash}{name}"
        with pytest.raises((OSError, ValueError, TypeError), match=message):
            embed_corpus(short_model, [source], output, **{**HOW, "file_size": size})
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_with_other_files_is_not_changed(
    short_model: SentenceTransformer, source: Source, tmp_path: Path
) -> None:
    for name in ("part-00000.parquet", "_SUCCESS", "notes.txt", "inner", ".hidden.parquet", "._part-00000.PARQUET"):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / name).mkdir() if name == "inner" else (tmp_path / "out" / name).write_text("precious")
        for resume in (False, True):
            with pytest.raises(FileExistsError, match=f"holds files that this run did not write: {name}. .* Move them"):
                embed_corpus(short_model, [source], tmp_path / "out", resume=resume, **SMALL)
        assert os.listdir(tmp_path / "out") == [name]
        assert {entry.name for entry in tmp_path.iterdir()} == {"a.txt", "out"}
        shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".DS_Store").write_text("of the system")
    assert embed_corpus(short_model, [source], tmp_path / "out", **SMALL) is not None
    assert len(os.listdir(tmp_path / "out")) == 5


def test_nothing_is_made_if_the_input_cannot_be_used(short_model: SentenceTransformer, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("nope\n")
    with pytest.raises(ValueError, match="cannot be used"):
        embed_corpus(short_model, [Source(str(tmp_path / "a.jsonl"), "jsonl")], tmp_path / "out", **SMALL)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.jsonl"]


def test_more_files_than_names(
    short_model: SentenceTransformer, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibert.corpus.file_folder._DIGITS", 1)
    with pytest.raises(ValueError, match=r"file_size=100 gives 73 files, more than 10; give at least 721"):
        embed_corpus(short_model, [source], tmp_path / "out", file_size=100, **HOW)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
    summary = embed_corpus(short_model, [source], tmp_path / "out", file_size=721, **HOW)
    assert summary is not None
    assert summary.n_files == 8


def test_two_runs_do_not_write_one_folder(short_model: SentenceTransformer, source: Source, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with (
        RunFolder(str(tmp_path / "out"), [Part("part-mine", None)]),
        pytest.raises(BlockingIOError, match=f"out is being written by process {os.getpid()} on .* Wait until"),
    ):
        embed_corpus(short_model, [source], tmp_path / "out", **SMALL)
    assert not (tmp_path / "out").exists()


def test_a_finished_folder_is_checked_and_not_replaced(
    short_model: SentenceTransformer, source: Source, tmp_path: Path
) -> None:
    embed_corpus(short_model, [source], tmp_path / "out", **SMALL)
    assert embed_corpus(short_model, [source], tmp_path / "out", resume=True, **SMALL) is None
    with pytest.raises(FileExistsError, match=r"out holds a finished run with 4 files, which a further run does not"):
        embed_corpus(short_model, [source], tmp_path / "out", **SMALL)
    (tmp_path / "out" / "part-00002.parquet").unlink()
    with pytest.raises(ValueError, match=r"part-00002\.parquet is missing, but .* Delete .*out to compute it again"):
        embed_corpus(short_model, [source], tmp_path / "out", resume=True, **SMALL)
    for resume in (False, True):
        shutil.rmtree(tmp_path / "out")  # its manifest may stay
        assert embed_corpus(short_model, [source], tmp_path / "out", resume=resume, **SMALL) is not None
        assert len(os.listdir(tmp_path / "out")) == 4


def test_a_finished_run_of_another_input_is_computed_again_as_the_message_says(
    short_model: SentenceTransformer, source: Source, tmp_path: Path
) -> None:
    embed_corpus(short_model, [source], tmp_path / "out", **SMALL)
    text_file(tmp_path / "a.txt", texts_of(76))
    with pytest.raises(ValueError, match=r"a\.txt has changed\. Delete .*out to compute it again"):
        embed_corpus(short_model, [source], tmp_path / "out", resume=True, **SMALL)
    for path in (tmp_path / "out").iterdir():
        path.unlink()  # the folder itself may stay, too
    (tmp_path / "out" / ".DS_Store").write_text("of the system")
    summary = embed_corpus(short_model, [source], tmp_path / "out", resume=True, **SMALL)
    assert summary is not None
    assert (summary.n_texts, summary.n_resumed) == (76, 0)
    assert embed_corpus(short_model, [source], tmp_path / "out", resume=True, **SMALL) is None


def test_a_file_that_is_moved_away_before_the_end_can_be_put_back(
    short_model: SentenceTransformer, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last_files = tmp_path / "out" / "part-00000.parquet", Shards._last_files

    def move_away(self: Shards) -> Any:
        first.rename(tmp_path / "moved")
        return last_files(self)

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "_last_files", move_away)
        with pytest.raises(
            ValueError, match=r"part-00000\.parquet is missing, .* Put a copy of it there, then continue"
        ):
            embed_corpus(short_model, [source], tmp_path / "out", **SMALL)
    with pytest.raises(
        ValueError, match=r"Put a copy .*\. If there is no copy, delete .*out\.parts and .*out to start again"
    ):
        embed_corpus(short_model, [source], tmp_path / "out", resume=True, **SMALL)
    shutil.copytree(tmp_path, tmp_path / "copy")
    (tmp_path / "moved").rename(first)
    summary = embed_corpus(short_model, [source], tmp_path / "out", resume=True, **SMALL)
    assert summary is not None
    assert (summary.n_resumed, summary.n_files) == (75, 4)
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.txt", "copy", "out", "out.manifest.json"}
    # The other way that the message names.
    shutil.rmtree(tmp_path / "copy" / "out")
    shutil.rmtree(tmp_path / "copy" / "out.parts")
    summary = embed_corpus(short_model, [source], tmp_path / "copy" / "out", resume=True, **SMALL)
    assert summary is not None
    assert (summary.n_resumed, summary.n_files) == (0, 4)


# --- interrupted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", range(8))
def test_wherever_it_stops_the_finished_files_are_those_of_the_end(run: Run, shards: int) -> None:
    run.stop(shards)
    finished = {name: content for name, content in contents(run.output.parent).items() if ".parts" not in name}
    assert [*finished] == [f"out/part-{number:05}.parquet" for number in range(shards // 2)]
    assert all(run.whole[name] == content for name, content in finished.items())
    # What is in a file is not kept twice.
    assert np.load(folder_of(run.output) / "part-vectors.npy").shape == (10 * (shards % 2), 24)
    summary = run.resume()
    assert (summary.n_resumed, summary.n_files) == (10 * shards, 4)


@pytest.mark.parametrize("moment", ["before the rename", "before the journal", "before the parts are emptied"])
def test_stopped_while_a_file_becomes_final(run: Run, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    replace, record = os.replace, Journal._record

    def stop_replacing(made: Any, final: Any) -> None:
        if "part-00001" in str(final):
            raise StoppedError
        replace(made, final)

    def stop_recording(self: Journal, entry: dict[str, Any]) -> None:
        stop = len(self.files) == 1 and "file" in entry
        if stop and moment == "before the journal":
            raise StoppedError
        record(self, entry)
        if stop:
            raise StoppedError

    with monkeypatch.context() as patch:
        if moment == "before the rename":
            patch.setattr(os, "replace", stop_replacing)
        else:
            patch.setattr(Journal, "_record", stop_recording)
        with pytest.raises(StoppedError):
            run.embed()
    assert (run.output / "part-00001.parquet").exists() == (moment != "before the rename")
    assert run.resume().n_resumed == 40


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda out: (out / "part-00000.parquet").unlink(), r"part-00000\.parquet is missing, but the unfinished run"),
        (lambda out: os.truncate(out / "part-00001.parquet", 99), r"part-00001\.parquet has 99 bytes, but"),
        (lambda out: flip(out / "part-00000.parquet"), r"part-00000\.parquet is damaged: its checksum is wrong"),
        (lambda out: shutil.rmtree(out), r"part-00000\.parquet is missing, but"),
        (lambda out: (out / "mine.parquet").write_text("x"), r"that the unfinished run did not write: mine\.parquet"),
        (lambda out: (out / "part-00003.parquet").write_text("x"), r"did not write: part-00003\.parquet\. Move them"),
        (lambda out: (out / "._part-00000.parquet").write_text("x"), r"did not write: \._part-00000\.parquet\. Move"),
    ],
)
def test_a_folder_that_was_changed_is_not_continued(
    run: Run, tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    run.stop(5)
    shutil.copytree(run.output, tmp_path / "copy")
    spoil(run.output)
    before = contents(run.output.parent)
    with pytest.raises((ValueError, FileExistsError), match=message):
        run.embed(resume=True)
    assert {**before, "out.parts/lock": b""} == {**contents(run.output.parent), "out.parts/lock": b""}
    shutil.rmtree(run.output, ignore_errors=True)
    shutil.copytree(tmp_path / "copy", run.output)
    assert run.resume().n_resumed == 50


def test_a_damaged_journal_never_loses_or_doubles_a_text(run: Run, tmp_path: Path) -> None:
    """The journal has seven lines: two shards and a file, twice, and a shard."""
    outcomes = []
    for number in range(7):
        (tmp_path / str(number)).mkdir()
        run = dataclasses.replace(run, output=tmp_path / str(number) / "out")
        run.stop(5)
        journal = folder_of(run.output) / "shards.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        assert len(lines) == 7
        lines[number] = lines[number].replace(b"1", b"2")
        journal.write_bytes(b"".join(lines))
        refused = number <= 2  # the second file is there, and the rest of the journal does not know it
        if refused:
            with pytest.raises(FileExistsError, match=r"did not write: part-00001\.parquet"):
                run.embed(resume=True)
            (run.output / "part-00001.parquet").unlink()
        outcomes.append((refused, run.resume().n_resumed))
    assert outcomes == [(True, 0)] * 3 + [(False, 20)] * 3 + [(False, 40)]


def test_a_journal_whose_lines_are_out_of_order_is_refused(run: Run) -> None:
    run.stop(5)
    journal = folder_of(run.output) / "shards.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], *lines[2:]]))
    with pytest.raises(ValueError, match=r"shards\.jsonl is damaged\. Delete .*out\.parts and .*out to start again"):
        run.embed(resume=True)


def test_a_manifest_of_another_program_is_not_replaced(
    short_model: SentenceTransformer, source: Source, tmp_path: Path
) -> None:
    (tmp_path / "out.manifest.json").write_bytes(b"{}")
    with pytest.raises(ValueError, match="delete it or move it elsewhere"):
        embed_corpus(short_model, [source], tmp_path / "out", **SMALL)
    (tmp_path / "out.manifest.json").write_bytes(seal({"format": 99}))
    with pytest.raises(ValueError, match="has the format 99"):
        embed_corpus(short_model, [source], tmp_path / "out", **SMALL)
    assert unsealed((tmp_path / "out.manifest.json").read_bytes()) == {"format": 99}


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be synced")
def test_a_file_is_on_the_disk_before_the_journal_says_so(
    short_model: SentenceTransformer, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace, fsync, record = os.replace, os.fsync, Journal._record

    def noted_replace(made: Any, final: Any) -> None:
        replace(made, final)
        done.append(f"rename to {Path(final).name}")

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        folder = tmp_path / "out"
        if folder.exists() and os.path.samestat(folder.stat(), os.fstat(descriptor)):
            done.append("sync the folder")

    def noted_record(self: Journal, entry: dict[str, Any]) -> None:
        record(self, entry)
        done.append("record the file" if "file" in entry else "record a shard")

    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Journal, "_record", noted_record)
    embed_corpus(short_model, [source], tmp_path / "out", **SMALL)
    for number in range(4):
        first = done.index(f"rename to part-{number:05}.parquet")
        assert done[first - 1] == "rename to part-vectors.parquet"  # write_whole has synced it
        assert done[first + 1 : first + 3] == ["sync the folder", "record the file"]
