"""Outputs in each format; names that are refused, files of others, folders, and a full disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow.dataset
import pyarrow.parquet
import pytest

from minibert import SentenceTransformer
from minibert.cli import main
from minibert.corpus import run_folder
from minibert.corpus.run_folder import folder_of
from minibert.corpus.sources import Source
from tests.support.corpus_runs import contents, lines_of, manifest_of, rows_of, stopped_after, text_file, texts_of

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")

# --- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("suffix", [".npy", ".jsonl", ".parquet"])
def test_every_format_holds_the_vectors_and_ids_in_order(
    embed: Any, short_model: SentenceTransformer, tmp_path: Path, suffix: str, dtype: str
) -> None:
    texts, names = texts_of(70), [f"n{i}" for i in range(70)]
    rows = [{"text": text, "name": name} for text, name in zip(texts, names, strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    embed(f"out{suffix}", Source(str(tmp_path / "a.jsonl"), "jsonl", id_column="name"), dtype=dtype, shard_size=16)
    ids, vectors = rows_of(output := tmp_path / f"out{suffix}")
    assert ids == names
    expected = short_model.encode(texts, truncation="silent").astype(dtype)
    np.testing.assert_array_equal(np.array(vectors, dtype), expected)
    files = {"a.txt", "a.jsonl", output.name, f"{output.name}.manifest.json", f"{output.name}.rows"}
    if suffix == ".npy":
        assert np.load(output).dtype == dtype
        index = [(row["row"], row["line"]) for row in lines_of(tmp_path / "out.ids.jsonl")]
        assert index == [(i, i + 1) for i in range(70)]
        files.add("out.ids.jsonl")
    assert {entry.name for entry in tmp_path.iterdir()} == files  # no other file is left
    manifest = manifest_of(output)
    assert manifest["settings"]["dtype"] == dtype
    assert manifest["checksums"] == [hashlib.sha256((tmp_path / "a.jsonl").read_bytes()).hexdigest()]
    assert manifest["finished"]["counts"]["n_texts"] == 70


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("nowhere/out.npy", "no folder"),
        ("a.txt/out.npy", "no folder"),
        ("out.txt", ".npy, .jsonl or .parquet"),
        ("out", "folder of Parquet files"),
        ("", "empty"),
        ("x.npy/", "not .npy"),
        ("x.jsonl", "x.jsonl is a folder"),
        ("/", "mount point"),
        ("/dev/null", "must end in"),
    ],
)
def test_names_that_are_refused_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, output: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text_file(tmp_path / "a.txt", ["a cat"])
    (tmp_path / "x.jsonl").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main(["embed", "-m", "nothing", "-i", "a.txt", "-o", output]) == 1
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_output_is_never_the_input(embed: Any, tmp_path: Path) -> None:
    lines = b'{"text": "a cat"}\n'
    for name in ("a.jsonl", "out.ids.jsonl", "out.npy.manifest.json"):
        (tmp_path / name).write_bytes(lines)
    os.link(tmp_path / "a.jsonl", tmp_path / "same.jsonl")
    for name, output in (
        ("a.jsonl", "a.jsonl"),
        ("a.jsonl", "same.jsonl"),
        ("out.ids.jsonl", "out.npy"),
        ("out.npy.manifest.json", "out.npy"),
    ):
        with pytest.raises(ValueError, match="overwritten"):
            embed(output, Source(str(tmp_path / name), "jsonl"))
        assert (tmp_path / name).read_bytes() == lines


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are Unicode")
def test_names_that_are_not_utf_8(embed: Any, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    source = text_file(tmp_path / f"{name}.txt", ["a cat"])
    assert embed(f"{name}.npy", source) is not None
    assert embed(f"{name}.npy", source, resume=True).n_resumed
    assert repr(f"{name}.txt") in json.loads((tmp_path / f"{name}.ids.jsonl").read_text())["file"]


def test_pipes_and_folders_that_cannot_be_made_are_refused(embed: Any, tmp_path: Path) -> None:
    usual = text_file(tmp_path / "a.txt", ["a cat"])
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "b.txt").write_text("precious")
    before = sorted(tmp_path.iterdir())
    for source, output, kind, message in (
        (Source(str(tmp_path / "pipe"), "text"), "out.npy", ValueError, "pipe"),
        (usual, "nowhere/out/", OSError, "No such file"),
        (Source(os.devnull, "text"), "pipe/", ValueError, "device"),
        (usual, "b.txt/", OSError, "b.txt: Not a directory"),
    ):
        with pytest.raises(kind, match=message):
            embed(output, source)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_a_link_is_followed(embed: Any, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    os.symlink(tmp_path / "there" / "true.npy", tmp_path / "out.npy")
    embed()
    assert (tmp_path / "out.npy").is_symlink()
    assert {*contents(tmp_path / "there")} == {
        f"true.{name}" for name in ("npy", "ids.jsonl", "npy.manifest.json", "npy.rows")
    }


# --- files of others --------------------------------------------------------------------------------------------------

PARTS = "out.npy.parts"


@pytest.mark.parametrize("name", [f"{PARTS}/manifest.json", PARTS, "out.ids.jsonl", "out.npy.manifest.json"])
@pytest.mark.parametrize("resume", [False, True])
def test_files_of_other_programs_are_neither_changed_nor_deleted(
    embed: Any, tmp_path: Path, name: str, resume: bool
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("precious")
    before = contents(tmp_path)
    with pytest.raises((OSError, ValueError), match=r"(elsewhere|[Dd]elete|cannot be made)"):
        embed(resume=resume)
    after = contents(tmp_path)
    assert {name: after.pop(name) for name in before} == before
    assert {*after} <= {f"{PARTS}/minibert.lock"}


def test_files_that_come_into_the_folder_of_the_run_stay(embed: Any, tmp_path: Path) -> None:
    with stopped_after(2):
        embed()
    (tmp_path / PARTS / "mine").write_text("precious")
    embed(resume=True)
    assert contents(tmp_path / PARTS) == {"mine": b"precious"}


def test_what_killed_runs_have_left_is_deleted(embed: Any, tmp_path: Path) -> None:
    """Those of a run that was killed before its manifest, and of one that was killed while it deleted its files."""
    (tmp_path / PARTS).mkdir()
    names = ("minibert.lock", ".minibert-ab_c0123", "standard-input", "shard-00000.npy", "whole.npy")
    for name in (*names, ".mine", "_SUCCESS", "part-00000.parquet", "shard-1.tar"):  # the last ones are those of others
        (tmp_path / PARTS / name).write_text("left")
    embed()
    assert len(np.load(tmp_path / "out.npy")) == 45
    assert {*contents(tmp_path / PARTS)} == {".mine", "_SUCCESS", "part-00000.parquet", "shard-1.tar"}
    embed()  # minibert replaces the files that it wrote itself


# --- a folder ---------------------------------------------------------------------------------------------------------


def test_readers_of_folders_see_the_texts_in_order_while_it_grows_and_afterwards(embed: Any, tmp_path: Path) -> None:
    def check(count: int) -> None:
        assert pyarrow.dataset.dataset(tmp_path / "out").to_table()["id"].to_pylist() == [*range(count)]
        assert [*pandas.read_parquet(tmp_path / "out")["id"]] == [*range(count)]

    with stopped_after(3):
        embed("out/")
    check(30)
    embed("out", resume=True)
    check(45)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("ids", [True, False])
def test_the_rows_and_types_are_those_of_one_file_and_the_manifest_names_the_files(
    embed: Any, tmp_path: Path, dtype: str, ids: bool
) -> None:
    rows = [{"text": text, "name": f"n{i}"} if i % 7 else {"name": 1} for i, text in enumerate(texts_of(45))]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = Source(str(tmp_path / "a.jsonl"), "jsonl", id_column="name" if ids else None, name="a.jsonl")
    how = {"dtype": dtype, "on_error": "null"}
    one, many = (embed(output, source, **how) for output in ("one.parquet", "many/"))
    assert (one.n_files, many.n_files) == (1, 5)
    assert (one.n_texts, one.n_tokens, one.n_cut) == (many.n_texts, many.n_tokens, many.n_cut)
    whole = pyarrow.parquet.read_table(tmp_path / "one.parquet")
    for path in (tmp_path / "many").iterdir():
        assert pyarrow.parquet.read_schema(path).equals(whole.schema, check_metadata=True)
    assert pyarrow.parquet.read_table(tmp_path / "many").equals(whole)
    files = manifest_of(tmp_path / "many")["finished"]["outputs"]
    assert files.pop("many.rows")["name"] == "many.rows"
    assert [*files] == sorted(os.listdir(tmp_path / "many")) == [f"part-{number:05}.parquet" for number in range(5)]
    assert [file["rows"] for file in files.values()] == [10, 10, 10, 10, 5]
    assert all((tmp_path / file["name"]).stat().st_size == file["size"] for file in files.values())


def test_without_vectors_there_is_an_empty_file(embed: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    for name in ("out/", "out.parquet", "out.npy"):
        source = Source(str(tmp_path / "a.jsonl"), "jsonl")
        summary = embed(name, source, on_error="skip")
        assert (summary.n_texts, summary.n_left_out, summary.n_files) == (0, 1, 1)
    assert pyarrow.parquet.read_table(tmp_path / "out").column_names == ["id", "embedding"]
    assert np.load(tmp_path / "out.npy").shape == (0, 24)


def test_a_folder_with_files_is_not_changed(embed: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("part-00000.parquet", "_SUCCESS", "notes.txt", ".hidden.parquet"):
        out.mkdir()
        (out / name).write_text("precious")
        for resume in (False, True):
            with pytest.raises(FileExistsError, match=name):
                embed("out", resume=resume)
        assert contents(tmp_path) == {"a.txt": (tmp_path / "a.txt").read_bytes(), f"out/{name}": b"precious"}
        (out / name).unlink()
        out.rmdir()
    out.mkdir()
    (out / ".DS_Store").write_text("of the system")
    with stopped_after(2):
        embed("out")
    for name in ("mine.parquet", "part-00003.parquet"):
        (out / name).write_text("precious")
        with pytest.raises(FileExistsError, match=name):
            embed("out", resume=True)
        (out / name).unlink()
    assert embed("out", resume=True) is not None
    with pytest.raises(FileExistsError, match="part-00000"):
        embed("out")


def test_more_shards_than_five_digits_can_number_stay_in_order(
    embed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "_DIGITS", 1)
    embed("out/", shard_size=4)
    assert sorted(os.listdir(tmp_path / "out"))[-1] == "part-11.parquet"


# --- a full disk ------------------------------------------------------------------------------------------------------


def test_wherever_the_disk_is_full_no_shard_is_lost(
    embed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").mkdir()
    embed("whole/out.npy")
    fsync, count = os.fsync, 0
    for full in range(10**6):
        own = tmp_path / str(full)
        own.mkdir()
        (own / "out.npy").write_bytes(b"before")
        count = 0

        def write(descriptor: int, full: int = full) -> None:
            nonlocal count
            count += 1
            if full <= count:
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", write)
            patch.setattr(run_folder, "sync_folder", lambda path: None)
            patch.setattr("minibert._utils.files.sync_folder", lambda path: None)
            error = ""
            try:
                embed(f"{full}/out.npy")
            except OSError as raised:
                error = str(raised)
        if not error:
            break
        assert "No space left on device" in error
        assert (own / "out.npy").read_bytes() == b"before"
        unfinished = folder_of(own / "out.npy").exists()
        assert ("resume=True continues" in error) == unfinished
        summary = embed(f"{full}/out.npy", resume=unfinished)
        assert summary.n_resumed == min(45, max(0, full - 2) // 4 * 10)  # each shard has four files
        assert contents(own) == contents(tmp_path / "whole")
    assert full > 15
