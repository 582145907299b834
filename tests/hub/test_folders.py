"""Models in folders: file names, checkpoints, shards, and pickles, which are never opened."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from minibert.checkpoint.files import locate
from minibert.errors import ModelFormatError
from tests.support.fake_hub import CONFIG, FILES, index, write
from tests.support.marks import unix

BAD_FILENAMES = [
    *("", ".", "..", "../config.json", "a/../../config.json", "./config.json", "/etc/passwd", "a//config.json", "a/"),
    *("..\\config.json", "C:config.json", "config.json:stream", "a\0b", "a\x1b[31mb", "\ud800.json", "\u202egnp.exe"),
]


@pytest.mark.parametrize("filename", [*BAD_FILENAMES, None, b"config.json", 3, Path("config.json")])
def test_a_file_name_outside_the_folder_is_refused(tmp_path: Path, filename: Any) -> None:
    write(tmp_path, {"config.json": b"{}", "model/config.json": b"{}"})
    files = locate(tmp_path / "model")
    for method in (files.find, files.require, locate("org/name").find):
        with pytest.raises(ModelFormatError if isinstance(filename, str) else TypeError, match="file"):
            method(filename)


def test_a_folder_finds_what_it_has(tmp_path: Path) -> None:
    files = locate(write(tmp_path, FILES))
    assert files.find("config.json") == tmp_path / "config.json"
    assert files.find("1_Pooling/config.json") == tmp_path / "1_Pooling" / "config.json"
    assert files.find("modules.json") is None
    assert files.find("2_Normalize/config.json") is None
    assert files.find("config.json/x") is None
    pooling = files.subfolder("1_Pooling")
    assert pooling.require("config.json") == tmp_path / "1_Pooling" / "config.json"
    assert pooling.source.endswith("subfolder 1_Pooling")
    assert locate(tmp_path, subfolder="1_Pooling").find("config.json") == pooling.find("config.json")
    assert files.subfolder("") is files


def test_require_lists_the_files_that_exist(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"", "sub/b.txt": b"", **{f"many/{i:02}": b"" for i in range(20)}})
    for subfolder, message in (
        ("", r"no config\.json\. It has: a\.txt, many/, sub/\.$"),
        ("sub", r"subfolder sub has no config\.json\. It has: b\.txt\.$"),
        ("many", r"00, .*, 11, and 8 more\.$"),
        ("absent", "It has: nothing"),
    ):
        with pytest.raises(ModelFormatError, match=message):
            locate(tmp_path, subfolder=subfolder).require("config.json")
    if os.name == "posix":
        (tmp_path / "\x1b[2J").write_bytes(b"")
        with pytest.raises(ModelFormatError, match=r"^[^\x1b]*\\x1b\[2J"):
            locate(tmp_path).require("config.json")


@unix
def test_special_files_are_refused_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "device.json").symlink_to("/dev/zero")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "dangling.json").symlink_to("nowhere.json")
    (tmp_path / "loop.json").symlink_to("loop.json")
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.json")
        files = locate(tmp_path)
        for name in ("pipe", "device", "socket", "folder", "dangling", "loop", "n" * 300):
            with pytest.raises(ModelFormatError, match=name[:250]):
                files.find(f"{name}.json")


@unix
def test_links_are_followed(tmp_path: Path) -> None:
    # the hub's cache consists of links out of the snapshot, and people keep weights on another disk
    write(tmp_path, {"blobs/abc": CONFIG, "elsewhere/weights": b"w"})
    snapshot = tmp_path / "snapshots" / "commit"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "elsewhere" / "weights")
    files = locate(snapshot)
    assert files.require("config.json").read_bytes() == CONFIG
    assert [path.read_bytes() for path in files.checkpoint()] == [b"w"]


def test_shards_come_in_the_order_of_their_first_mention_and_after_a_single_file(tmp_path: Path) -> None:
    shards = ("b.safetensors", "a.safetensors", "b.safetensors", "c.safetensors", "a.safetensors")
    write(tmp_path, {"model.safetensors.index.json": index(*shards), **dict.fromkeys(shards, b"")})
    files = locate(tmp_path)
    assert [path.name for path in files.checkpoint()] == ["b.safetensors", "a.safetensors", "c.safetensors"]
    assert files.index() == {f"t{i}": shard for i, shard in enumerate(shards)}
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"no a\.safetensors"):
        locate(tmp_path).checkpoint()
    write(tmp_path, {"model.safetensors": b"", "model.safetensors.index.json": b"{ damaged"})
    assert locate(tmp_path).checkpoint() == [tmp_path / "model.safetensors"]
    assert locate(tmp_path).index() is None


BAD_SHARDS = [
    *("../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "x.bin", "..\\x.safetensors"),
    *("C:x.safetensors", "x\0.safetensors", "\ud800.safetensors", "", None, ["x.safetensors"]),
]


@pytest.mark.parametrize(
    "content", [*({"t": shard} for shard in BAD_SHARDS), None, {}, [], "x"], ids=lambda content: ascii(content)
)
def test_a_shard_name_must_be_a_plain_safetensors_file(tmp_path: Path, content: Any) -> None:
    shard_index = json.dumps({} if content is None else {"weight_map": content}).encode()
    write(tmp_path, {"x.safetensors": b"", "model/sub/x.safetensors": b"", "model/x.bin": b""})
    write(tmp_path, {"model/model.safetensors.index.json": shard_index})
    files = locate(tmp_path / "model")
    for method in (files.checkpoint, files.index):
        with pytest.raises(ModelFormatError, match=r"index\.json|half a character|cannot name"):
            method()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), r"neither model\.safetensors nor .*It has: nothing"),
        (("tf_model.h5",), r"It has: tf_model\.h5\."),
        (("tf_model.h5", "pytorch_model.bin"), r"pickle \(pytorch_model\.bin\).*refs/pr/N.*safetensors/convert\n"),
        (("pytorch_model.bin.index.json", "pytorch_model-1.bin"), r"pickle \(pytorch_model\.bin\.ind"),
    ],
)
def test_a_folder_without_safetensors_names_the_remedy(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        locate(write(tmp_path, dict.fromkeys(names, b"{}"))).checkpoint()


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    opened: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("open", "pickle.find_class"):
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    with pytest.raises(ModelFormatError, match="never opens one"):
        locate(write(tmp_path, {"config.json": CONFIG, "pytorch_model.bin": b"a pickle"})).checkpoint()
    watching = False
    assert [path for path in opened if "pytorch_model.bin" in path] == [str(tmp_path / "pytorch_model.bin")], (
        "only the test itself may open it, to write it"
    )
