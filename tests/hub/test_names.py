"""Names of models: folders, hub ids, revisions, and refused names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from minibert.checkpoint.hub import locate
from minibert.errors import ModelFormatError
from tests.support.hub_files import CONFIG, FILES, write
from tests.support.marks import unix


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "names no model"),
        ("  ", "names no model"),
        ("a\0b", "names no model"),
        ("/no/such/folder", "There is no folder"),
        ("./nothing-here", "There is no folder"),
        ("../nothing-here", "There is no folder"),
        ("..nothing", "There is no folder"),
        ("~/no-such-folder-anywhere", "There is no folder"),
        ("~no-such-user/x", "There is no folder"),
        ("models\\bert", "There is no folder"),
        ("C:\\models\\bert", "There is no folder"),
        ("org/name/", "There is no folder"),
        (Path("org/name"), "There is no folder"),
        ("a/b/c", "neither an existing folder nor a hub id"),
        ("org//name", "neither"),
        ("org/na me", "neither"),
        ("org/name\n", "neither"),
        ("-x", "neither"),
        ("org/name.git", "neither"),
        ("a--b", "neither"),
        ("a..b", "neither"),
        ("https://huggingface.co/org/name", "neither"),
        ("hf://org/name", "neither"),
        ("日本語", "neither"),
        ("org/\ud800", "neither"),
        ("org/\x1b[31m", "neither"),
        ("x" * 97, "neither"),
    ],
)
def test_a_name_that_cannot_be_a_model_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        locate(given)
    assert type(caught.value) is ValueError


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"folder"


@pytest.mark.parametrize("given", [None, 3, 1.5, b"folder", ["folder"], True, BytesPath()])
def test_a_name_of_another_type_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="named by a str"):
        locate(given)


def test_a_file_in_place_of_its_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    for given in (tmp_path / "config.json", str(tmp_path / "model.safetensors")):
        with pytest.raises(ValueError, match="is a file; pass the folder"):
            locate(given)


@unix
def test_special_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for given in (tmp_path / "pipe", tmp_path / "dangling", "/dev/null"):
        with pytest.raises(ValueError, match="exists but is not a folder"):
            locate(given)


def test_a_file_named_like_a_hub_id_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bert-base-uncased").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        locate("bert-base-uncased")


def test_a_folder_goes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "org" / "name", FILES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ("org/name", "org/name/", "./org/name", Path("org/name"), tmp_path / "org" / "name", "~/org/name"):
        files = locate(given)
        assert files.require("config.json").read_bytes() == CONFIG
        assert files.source.startswith("folder ")
        assert files.source in repr(files)


@pytest.mark.parametrize(
    "revision",
    ["", "a b", "..", "a..b", "../main", "/main", "main/", "a//b", "a\\b", "a:b", "a~1", "a^", "*", "a\0", "./x"],
)
def test_a_revision_that_git_does_not_allow_is_refused(revision: str) -> None:
    with pytest.raises(ValueError, match="is not a branch, tag or commit"):
        locate("org/name", revision=revision)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"revision": 3}, TypeError, "revision must be a str"),
        ({"cache_dir": 3}, TypeError, "cache_dir must be"),
        ({"cache_dir": b"x"}, TypeError, "cache_dir must be"),
        ({"cache_dir": BytesPath()}, TypeError, "cache_dir must be"),
        ({"token": 3}, TypeError, "token must be"),
        ({"token": ""}, ValueError, "token is empty"),
        ({"token": "hf_sec\nret"}, ValueError, "token is empty or holds"),
        ({"token": "hf_sécret"}, ValueError, "token is empty or holds"),
        ({"subfolder": None}, TypeError, "file name must be a str"),
        ({"subfolder": "../x"}, ModelFormatError, "cannot name a file"),
        ({"subfolder": "/x"}, ModelFormatError, "cannot name a file"),
    ],
)
def test_an_unusable_argument_is_refused(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        locate("org/name", **arguments)
    assert "cret" not in str(caught.value)
