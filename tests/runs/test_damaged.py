"""Runs whose shards, journal or input are changed before the runs are resumed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.cli import main
from minibert.corpus.embed import embed_corpus
from minibert.corpus.run_folder import folder_of
from minibert.corpus.shards import Shards
from tests.support.checkpoints import random_checkpoint
from tests.support.corpus_runs import StoppedError, output_of, stop_after, text_file
from tests.support.crash_program import arguments_of, contents, texts_of

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")


# --- damaged before the resume ----------------------------------------------------------------------------------------


def flip(path: Path, place: float) -> None:
    """Flip one bit of a file, at this fraction of its length."""
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
    "more bytes behind it": (lambda path: path.write_bytes(path.read_bytes() + b"half a shard"), None),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("job", "part"), [("npy", "part-vectors.npy"), ("npy", "part-ids.jsonl"), ("binary", "part-states.npy")]
)
def test_damaged_shards_are_noticed_and_computed_again(
    short_folder: Path,
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
    assert main(arguments_of(job, short_folder, tmp_path / "a.txt", tmp_path / "whole", 10)) == 0
    arguments = arguments_of(job, short_folder, tmp_path / "a.txt", tmp_path / "own", 10)
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
    short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text_file(tmp_path / "a.txt", texts_of(60))
    (tmp_path / "whole").mkdir()
    assert main(arguments_of("npy", short_folder, tmp_path / "a.txt", tmp_path / "whole", 10)) == 0
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
            arguments = arguments_of("npy", short_folder, tmp_path / "a.txt", own, 10)
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


# --- runs that must not be mixed --------------------------------------------------------------------------------------


def test_resuming_refuses_to_mix(
    short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_model: SentenceTransformer
) -> None:
    """Another run is mixed neither with an unfinished run nor with the finished one."""
    source = text_file(tmp_path / "a.txt", texts_of(50))
    output = str(tmp_path / "out.npy")
    same: dict[str, Any] = {"shard_size": 10, "settings": {"revision": "a"}, "truncation": "silent", "resume": True}
    with monkeypatch.context() as patch:
        stop_after(2, patch, StoppedError())
        with pytest.raises(StoppedError):
            embed_corpus(short_model, [source], output, **{**same, "resume": False})
    another = SentenceTransformer(random_checkpoint(tmp_path / "another", seed=1, max_position_embeddings=32))
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
        with pytest.raises(ValueError, match=f"{whose} has another model, which gives another vector"):
            embed_corpus(another, [source], output, **same)
        text_file(tmp_path / "a.txt", [*texts_of(49), "other"])
        with pytest.raises(ValueError, match=rf"{whose} has another input: a\.txt has changed"):
            embed_corpus(short_model, [source], output, **same)
        text_file(tmp_path / "a.txt", texts_of(50))
        with pytest.raises(ValueError, match=r"has another input: a\.txt, not b\.txt"):
            embed_corpus(short_model, [text_file(tmp_path / "b.txt", texts_of(50))], output, **same)
        summary = embed_corpus(short_model, [source], output, **same)
        assert (summary is None) == (whose != "The unfinished run")
        np.testing.assert_array_equal(np.load(output), short_model.encode(texts_of(50), truncation="silent"))
        assert not folder_of(output).exists()


def test_resuming_takes_no_other_file_for_the_finished_one(short_model: SentenceTransformer, tmp_path: Path) -> None:
    source = text_file(tmp_path / "a.txt", texts_of(50))
    output = tmp_path / "out.npy"
    np.save(output, np.zeros((50, 24), dtype=np.float32))
    with pytest.raises(
        ValueError, match=r"nothing to resume: .*out\.npy exists, but not its manifest out\.npy\.manifest\.json"
    ):
        embed_corpus(short_model, [source], str(output), resume=True, truncation="silent")
    embed_corpus(short_model, [source], str(output), truncation="silent")
    assert embed_corpus(short_model, [source], str(output), resume=True, truncation="silent") is None
    for name in ("out.npy", "out.ids.jsonl"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-1])
        with pytest.raises(ValueError, match=rf"{name} has {len(content) - 1} bytes, but the run that made it has"):
            embed_corpus(short_model, [source], str(output), resume=True, truncation="silent")
        (tmp_path / name).write_bytes(content)
    (tmp_path / "out.ids.jsonl").unlink()
    with pytest.raises(ValueError, match=r"out\.ids\.jsonl is missing"):
        embed_corpus(short_model, [source], str(output), resume=True, truncation="silent")
    (tmp_path / "out.npy.manifest.json").write_text("{}")
    for resume in (True, False):  # the file may belong to another program
        with pytest.raises(ValueError, match=r"manifest\.json is damaged.* delete it or move it elsewhere"):
            embed_corpus(short_model, [source], str(output), resume=resume, truncation="silent")
    assert not folder_of(output).exists()
    (tmp_path / "out.npy.manifest.json").unlink()
    assert embed_corpus(short_model, [source], str(output), truncation="silent") is not None


def test_input_that_changes_during_the_run(
    short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text_file(tmp_path / "a.txt", texts_of(50))
    commit = Shards.commit

    def commit_and_change(self: Shards, counts: Any) -> None:
        commit(self, counts)
        text_file(tmp_path / "a.txt", texts_of(60, seed=1))

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "commit", commit_and_change)
        with pytest.raises(ValueError, match=r"a\.txt was changed while it was read"):
            embed_corpus(short_model, [source], str(tmp_path / "out.npy"), shard_size=10, truncation="silent")
    assert not (tmp_path / "out.npy").exists()
    with pytest.raises(ValueError, match=r"has another input: a\.txt has changed"):
        embed_corpus(short_model, [source], str(tmp_path / "out.npy"), shard_size=10, truncation="silent", resume=True)
    text_file(tmp_path / "a.txt", texts_of(50))
    summary = embed_corpus(
        short_model, [source], str(tmp_path / "out.npy"), shard_size=10, truncation="silent", resume=True
    )
    assert summary is not None
    assert summary.n_resumed == 10
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), short_model.encode(texts_of(50), truncation="silent"))


def test_input_that_changes_between_the_first_look_and_the_first_shard(
    short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shard may come from a changed input: if the old input is restored, --resume would accept the shard."""
    source = text_file(tmp_path / "a.txt", texts_of(50))
    begin = Shards.start

    def start_and_change(self: Shards, manifest: dict[str, Any]) -> None:
        begin(self, manifest)
        text_file(tmp_path / "a.txt", texts_of(60, seed=1))

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "start", start_and_change)
        with pytest.raises(ValueError, match=r"a\.txt was changed while it was read"):
            embed_corpus(short_model, [source], tmp_path / "out.npy", shard_size=10, truncation="silent")
    text_file(tmp_path / "a.txt", texts_of(50))
    embed_corpus(short_model, [source], tmp_path / "out.npy", shard_size=10, truncation="silent", resume=True)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), short_model.encode(texts_of(50), truncation="silent"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_since_it_can_be_read_once_only(
    short_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["embed", "-m", str(short_folder), "-i", str(tmp_path / "pipe"), "-o", str(tmp_path / "out.npy")]) == 1
    assert "pipe is a pipe or a device, which cannot be read twice; give it as the standard input" in (
        capsys.readouterr().err
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are Unicode")
def test_names_that_are_not_utf_8_are_refused_before_anything_is_computed(
    short_model: SentenceTransformer, tmp_path: Path
) -> None:
    name = os.fsdecode(b"caf\xe9")
    odd, usual = text_file(tmp_path / f"{name}.txt", ["a cat"]), text_file(tmp_path / "a.txt", ["a cat"])
    before = sorted(tmp_path.iterdir())
    for source, output in ((odd, "out.npy"), (usual, f"{name}.npy")):
        with pytest.raises(ValueError, match=r"caf.*is not UTF-8, but the manifest is written in UTF-8"):
            embed_corpus(short_model, [source], tmp_path / output)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be synced")
def test_names_are_on_the_disk_before_the_parts_are_deleted(
    short_model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    embed_corpus(short_model, [text_file(tmp_path / "a.txt", ["a cat"])], tmp_path / "out.npy")
    begun = done.index("rename to manifest.json")
    assert done[begun + 1 : begun + 3] == ["sync out.npy.parts", f"sync {tmp_path.name}"]
    named = done.index("rename to out.npy.manifest.json")
    assert {"rename to out.npy", "rename to out.ids.jsonl"} < set(done[:named])
    assert done[named + 1] == f"sync {tmp_path.name}"
    assert done.index("delete shards.jsonl") > named
