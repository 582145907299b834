"""A hub that fails: every failure is a DownloadError that says what to do."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minibert.checkpoint import hub, time_limit
from minibert.checkpoint.hub import locate
from minibert.errors import DownloadError
from tests.support import hub_server
from tests.support.hub_files import FILES, assert_error
from tests.support.hub_server import HubServer, Loader, Repository
from tests.support.outcomes import PATIENCE

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
    assert outcome.causes, "the client's exception must be kept"
    assert name in outcome.message or "429" in outcome.message
    # a partial download must not be used as the file afterwards
    assert_error(offline.load(name, ("require", "config.json")), DownloadError, "has no config.json", "HF_HUB_OFFLINE")


def test_redirects_without_end(server: HubServer, loader: Loader, repository: Repository, name: str) -> None:
    server.misbehave(f"/{name}/", hub_server.redirect(f"/{name}/resolve/main/config.json"))
    assert_error(loader.load(name, ("find", "config.json")), DownloadError, *BROKEN, "redirects")


def test_one_failure_is_retried(server: HubServer, loader: Loader, repository: Repository, name: str) -> None:
    server.misbehave(f"/{name}/", hub_server.status(503), method="HEAD", times=2)
    server.misbehave(f"/{name}/", hub_server.cut, method="GET", times=1)
    assert Path(loader.load(name, ("find", "config.json")).value).read_bytes() != b""


def test_a_silent_hub(server: HubServer, loader: Loader, repository: Repository, name: str) -> None:
    server.misbehave(f"/{name}/", hub_server.pause(1.5), method="HEAD", times=1)
    server.misbehave(f"/{name}/", hub_server.drop, method="HEAD")
    assert_error(loader.load(name, ("find", "config.json")), DownloadError, *BROKEN)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("how", [hub_server.pause(30), hub_server.drip], ids=["never", "a byte at a time"])
def test_a_hub_that_does_not_finish(
    server: HubServer,
    environment: dict[str, str],
    repository: Repository,
    name: str,
    method: str,
    how: hub_server.Misbehaviour,
) -> None:
    server.misbehave(f"/{name}/resolve/", how, method=method)
    with Loader({**environment, "HF_HUB_DOWNLOAD_TIMEOUT": "20"}) as child:
        outcome = child.load(name, ("find", "config.json"), seconds=3)
        assert_error(outcome, DownloadError, "did not deliver config.json", "The limit is 3 seconds", "HF_ENDPOINT")
        other = f"{name}-other"
        server.add(other, FILES)
        assert child.load(other, ("find", "config.json")).error is None  # the client works on


def test_time_for_the_bytes_of_a_large_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "SECONDS", 0.3)

    def download() -> str:
        time_limit.expect_bytes(time_limit.BYTES_PER_SECOND * 60)
        time.sleep(0.6)
        return "all"

    assert time_limit.within_limit(download) == "all"
    with pytest.raises(time_limit.SlowAnswerError, match="no complete answer after"):
        time_limit.within_limit(lambda: time.sleep(0.6))


def test_a_call_that_is_given_up_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "SECONDS", 0.1)
    ended = threading.Event()

    def call() -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            ended.set()

    with pytest.raises(time_limit.SlowAnswerError):
        time_limit.within_limit(call)
    assert ended.wait(PATIENCE)


def test_a_commit_that_the_hub_no_longer_has(loader: Loader, repository: Repository, name: str) -> None:
    loader.load(name, ("find", "config.json"))
    gone = repository.main
    repository.references["main"].clear()
    repository.commit(FILES)  # the history is rewritten
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


@pytest.mark.slow
def test_with_the_clients_real_pauses(
    environment: dict[str, str], server: HubServer, name: str, tmp_path: Path
) -> None:
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
