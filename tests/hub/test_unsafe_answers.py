"""Answers of a hub that would become paths outside the cache are refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from minibert.checkpoint.hub_answers import _TAG, UnsafeAnswerError, _check, _install, checked_answers
from minibert.errors import DownloadError
from tests.support import hub_server
from tests.support.hub_files import CONFIG, assert_error, requests, write
from tests.support.hub_server import HubServer, Loader, Repository
from tests.support.marks import unix


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
    assert requests(server, name, "GET") == [], "nothing may be downloaded"


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
    """The client asks again after a failure, and a hostile server can then answer differently."""
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
    """An earlier `hf download` from a hostile mirror may have written the list; version 2.4 reads tags from it."""
    from huggingface_hub import file_download

    name = "_xet_file_metadata_from_tree_cache"
    if not hasattr(file_download, name):
        pytest.skip("this version of huggingface_hub does not read tags from a list")
    answers = [("url", tag, "a" * 40, 1, None, None) for tag in ("f" * 64, "../../../../evil")]
    monkeypatch.setattr(file_download, name, lambda **_: answers.pop(0))
    monkeypatch.setattr(file_download, "get_hf_file_metadata", file_download.get_hf_file_metadata)
    _install.__wrapped__()  # wrap the function that was just replaced
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
    """The check wraps a function of the client once, and checks only downloads of minibert."""
    from huggingface_hub import file_download

    with checked_answers():
        wrapped = file_download.get_hf_file_metadata
    with checked_answers():
        assert file_download.get_hf_file_metadata is wrapped
        with pytest.raises(UnsafeAnswerError, match=r"ETag '\.\./x'"):
            _check("ETag", "../x", _TAG)
    _check("ETag", "../x", _TAG)
