"""Loading without the hub: from a cache, and from a damaged cache."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minibert.checkpoint.hub import locate
from minibert.errors import DownloadError, ModelFormatError
from tests.support import hub_server
from tests.support.hub_files import CONFIG, assert_error, write
from tests.support.hub_server import Loader, Repository


def test_offline_without_the_model(loader: Loader, offline: Loader, repository: Repository, name: str) -> None:
    for child, arguments, reason in [
        (offline, {}, "HF_HUB_OFFLINE is set"),
        (loader, {"local_files_only": True}, "local_files_only=True"),
    ]:
        outcome = child.load(name, ("require", "config.json"), block=True, **arguments)
        assert_error(outcome, DownloadError, "hub cache", "has no config.json", reason, f"hf download {name}")
        assert outcome.connections == 0


def test_offline_an_unknown_file_is_not_taken_for_absent(
    loader: Loader, offline: Loader, repository: Repository, name: str
) -> None:
    loader.load(name, ("find", "config.json"), ("find", "known-absent.json"))
    assert offline.load(name, ("find", "known-absent.json")).value is None
    for filename in ("modules.json", "model.safetensors"):
        outcome = offline.load(name, ("find", filename))
        assert_error(outcome, DownloadError, filename, "does not know that there is none")
    outcome = offline.load(name, ("require", "known-absent.json"))
    assert_error(outcome, ModelFormatError, "has no known-absent.json.")
    assert "It has" not in outcome.message


def test_a_broken_download_is_a_download_error(
    loader: Loader, offline: Loader, repository: Repository, name: str
) -> None:
    loader.load(name, ("find", "config.json"))
    assert_error(offline.load(name, ("checkpoint",)), DownloadError, "has no model.safetensors", "network is not used")
    outcome = loader.load(name, ("checkpoint",), block=True)
    assert_error(outcome, DownloadError, "could not be reached", "check the network")
    assert outcome.connections > 0
    assert loader.load(name, ("checkpoint",)).error is None


def test_a_whole_snapshot_knows_its_absent_files(
    environment: dict[str, str], loader: Loader, home: Path, repository: Repository, name: str
) -> None:
    # like `hf download`
    subprocess.run(
        [sys.executable, "-c", f"import huggingface_hub; huggingface_hub.snapshot_download({name!r})"],
        env=hub_server.clean_environment(environment),
        check=True,
        capture_output=True,
    )
    outcome = loader.load(name, ("find", "modules.json"), ("checkpoint",), ("require", "vocab.txt"), block=True)
    assert_error(outcome, ModelFormatError, "has no vocab.txt. It has: 1_Pooling/config.json, config.json, model.")
    assert outcome.values[0] is None
    assert outcome.connections == 0


def test_a_snapshot_folder_works_as_a_folder(loader: Loader, repository: Repository, name: str) -> None:
    [weights] = loader.load(name, ("find", "config.json"), ("checkpoint",)).value
    files = locate(Path(weights).parent)
    assert files.require("config.json").read_bytes() == CONFIG
    assert files.find("modules.json") is None, "a folder has only its own files"
    assert files.checkpoint() == [Path(weights)]


def test_a_lost_blob_is_fetched_again(loader: Loader, offline: Loader, repository: Repository, name: str) -> None:
    path = Path(loader.load(name, ("find", "config.json")).value)
    path.resolve().unlink()
    assert_error(offline.load(name, ("find", "config.json")), DownloadError)
    assert Path(loader.load(name, ("find", "config.json")).value).read_bytes() == CONFIG


@pytest.mark.parametrize("note", [b"", b"not a commit", b"../../../../etc", b"a" * 41, b"A" * 40, b"\xff\xfe"])
def test_a_damaged_record_of_the_commit_is_not_used(
    loader: Loader, repository: Repository, name: str, tmp_path: Path, note: bytes
) -> None:
    cache: dict[str, Any] = {"cache_dir": str(tmp_path)}
    loader.load(name, ("find", "config.json"), **cache)
    folder = tmp_path / ("models--" + name.replace("/", "--"))
    assert (folder / "refs" / "main").read_text() == repository.main
    (folder / "refs" / "main").write_bytes(note)
    outcome = loader.load(name, ("find", "config.json"), local_files_only=True, **cache)
    if note == b"\xff\xfe":  # not a text, so the client fails too
        assert_error(outcome, DownloadError, "cannot be read: invalid start byte", str(tmp_path), "Delete")
        shutil.rmtree(folder)
    else:
        assert_error(outcome, DownloadError, "has no config.json")
    outcome = loader.load(name, ("find", "config.json"), **cache)
    assert Path(outcome.value).read_bytes() == CONFIG
    assert loader.load(name, ("find", "config.json"), local_files_only=True, **cache).value == outcome.value


def test_an_unreadable_cache_is_a_download_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models--org--name"
    write(folder, {"refs/main": b"a" * 40, "snapshots/" + "a" * 40 + "/x": b""})

    def refuse(*arguments: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(DownloadError, match=r"hub cache of org/name .* cannot be read: Permission denied"):
        locate("org/name", cache_dir=tmp_path, local_files_only=True).find("config.json")
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(DownloadError, match=r"hub cache of org/name .* cannot be read: Permission denied"):
        locate("org/name", cache_dir=tmp_path, local_files_only=True).find("config.json")
