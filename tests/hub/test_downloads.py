"""Files from the hub, here a local server: commits, revisions, tokens, the cache, several processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from minibert.checkpoint.hub import locate
from minibert.errors import DownloadError, ModelFormatError
from tests.support import hub_server
from tests.support.hub_files import CONFIG, FILES, assert_error, index, requests, write
from tests.support.hub_server import HubServer, Loader, Repository

# --- answers of the hub ----


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
    assert any(repository.main in line for line in outcome.log), "the commit must be logged"
    # the first answer fixes the commit, and the other files are requested at that commit
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
    repository.commit({"config.json": b"{}"})  # main changes; a cached revision does not
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
    assert modules is None, "only the new commit has the file"
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


def test_a_commit_stays_fixed_when_another_process_updates_the_cache(
    client_in_this_process: Callable[[BaseException], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder = tmp_path / "models--org--name"
    asked: list[str] = []

    def download(repo_id: str, filename: str, *, revision: str, **more: Any) -> str:
        asked.append(revision)
        write(folder, {f"snapshots/{'a' * 40}/{filename}": CONFIG, "refs/main": b"b" * 40})  # the other process
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


def test_the_token_is_sent_to_the_hub_only(
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
