"""A repository with only a pickle, and the hub's conversion of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minibert.errors import DownloadError, ModelFormatError
from tests.support import hub_server
from tests.support.hub_files import BOT_FILES, assert_error, index, requests, write
from tests.support.hub_server import HubServer, Loader, Repository


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
    assert any("conversion" in line and converted in line for line in outcome.log), "the commit must be logged"
    assert_pickle_never_asked_for(server, name)
    asked = requests(server, name)
    assert f"/{name}/resolve/{converted}/model.safetensors" in asked, (
        "the commit must be pinned, not the reference, which can change"
    )

    # The reference and main change; the verified commit stays in use, without the network.
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
    assert {revision.commit_hash for revision in cached.revisions} == {main, converted}, "the cache must stay valid"


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


def test_a_request_older_than_mains_last_commit_is_refused(loader: Loader, pickled: Repository, name: str) -> None:
    pickled.pull_request({"model.safetensors": b"old weights"})
    pickled.commit({**BOT_FILES, "pytorch_model.bin": b"new weights"})
    assert_error(loader.load(name, ("checkpoint",)), ModelFormatError, "not based on the head of main", *REMEDIES)


def test_the_bots_request_is_found_among_others(loader: Loader, pickled: Repository, name: str) -> None:
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


def test_a_conversion_that_cannot_be_recorded_is_still_used(
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
def test_a_hub_that_misbehaves_during_the_search_for_a_conversion(
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
