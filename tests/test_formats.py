"""The files that minibert writes have a format number; files without one are read, newer ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert._utils.files import check_format
from minibert.cli import main
from minibert.corpus.manifest import FORMAT, read_manifest, seal, unsealed
from minibert.corpus.run_folder import folder_of
from minibert.corpus.shards import Shards
from minibert.corpus.token_features import TokenFeatures

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"text {i}\n" for i in range(6)))
    return path


def renumber(path: Path, number: int | None) -> None:
    """Give a sealed file another format number, or none as in minibert 0.1."""
    content = unsealed(path.read_bytes())
    assert content is not None
    del content["format"]
    path.write_bytes(seal(content if number is None else {"format": number, **content}))


def embed(short_folder: Path, texts: Path, output: Path, *options: str) -> int:
    return main(["embed", "-m", str(short_folder), "-i", str(texts), "-o", str(output), "--shard-size", "2", *options])


def extract(folder: Path, texts: Path, output: Path) -> int:
    return main(["extract", "-m", str(folder), "-i", str(texts), "-o", str(output), "--layers=-1"])


def test_every_file_has_its_number(
    short_folder: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, finish = "", Shards.finish

    def keep(self: Shards, *arguments: Any) -> Any:
        nonlocal journal
        journal = (folder_of(tmp_path / "v.parquet") / "shards.jsonl").read_text()
        return finish(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "finish", keep)
        assert embed(short_folder, texts, tmp_path / "v.parquet") == 0
    assert [json.loads(line)["format"] for line in journal.splitlines()] == [FORMAT] * 3
    assert json.loads((tmp_path / "v.parquet.manifest.json").read_text())["format"] == FORMAT

    from pyarrow import parquet

    assert json.loads(parquet.read_schema(tmp_path / "v.parquet").metadata[b"minibert"])["format"] == FORMAT
    assert (
        main(["extract", "-m", str(short_folder), "-i", str(texts), "-o", str(tmp_path / "s.npy"), "--layers=-1"]) == 0
    )
    assert json.loads((tmp_path / "s.tokens.jsonl").read_text().splitlines()[0])["format"] == 1
    assert main(["hidden", "-m", str(short_folder), "a text", "-o", str(tmp_path / "h.npz")]) == 0
    with np.load(tmp_path / "h.npz") as states:
        assert states["format"] == 1


def test_a_finished_run_without_a_number_is_read_and_a_newer_one_refused(
    short_folder: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "v.npy"
    assert embed(short_folder, texts, output) == 0
    manifest = tmp_path / "v.npy.manifest.json"
    renumber(manifest, None)
    found = read_manifest(str(output))
    assert found is not None
    assert "format" not in found
    assert embed(short_folder, texts, output, "--resume") == 0
    assert "this run is complete already" in capsys.readouterr().out
    renumber_newer(manifest)
    assert embed(short_folder, texts, output, "--resume") == 1
    assert f"has the format {FORMAT + 1}, but this version of minibert reads formats up to" in capsys.readouterr().err


def renumber_newer(path: Path) -> None:
    content = unsealed(path.read_bytes())
    assert content is not None
    path.write_bytes(seal({**content, "format": FORMAT + 1}))


@pytest.mark.parametrize("number", [None, FORMAT + 1])
def test_an_unfinished_run(
    short_folder: Path,
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: int | None,
) -> None:
    output = tmp_path / "v.npy"
    with monkeypatch.context() as patch:
        patch.setattr(Shards, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert embed(short_folder, texts, output) == 1
    renumber(folder_of(output) / "manifest.json", number)
    code = embed(short_folder, texts, output, "--resume")
    if number is None:
        assert code == 0
        assert np.load(output).shape[0] == 6
    else:
        assert code == 1
        assert f"manifest.json has the format {number}" in capsys.readouterr().err


def test_token_features_without_a_number_are_read_and_newer_ones_refused(
    short_folder: Path, texts: Path, tmp_path: Path
) -> None:
    assert (
        main(["extract", "-m", str(short_folder), "-i", str(texts), "-o", str(tmp_path / "s.npy"), "--layers=-1"]) == 0
    )
    index = tmp_path / "s.tokens.jsonl"
    first, rest = index.read_text().split("\n", 1)
    old = json.loads(first)
    del old["format"]
    index.write_text(json.dumps(old) + "\n" + rest)
    assert len(TokenFeatures(tmp_path / "s.npy")) == 6
    index.write_text(json.dumps({"format": 2, **old}) + "\n" + rest)
    with pytest.raises(ValueError, match=r"s\.tokens\.jsonl has the format 2, .* reads formats up to 1 only"):
        TokenFeatures(tmp_path / "s.npy")


@pytest.mark.parametrize("number", ["1", 1.0, True, -1, None, [1]])
def test_a_value_that_is_not_a_format_number_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match="has the format"):
        check_format({"format": number}, 3, "it")
