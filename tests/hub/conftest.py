"""The local hub, child processes that load from it, and a new repository for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from minibert.checkpoint import hub
from tests.support.hub_files import FILES
from tests.support.hub_server import HubServer, Loader, Repository


@pytest.fixture(scope="session")
def server() -> Iterator[HubServer]:
    with HubServer() as running:
        yield running


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf_home")


@pytest.fixture(scope="session")
def environment(server: HubServer, home: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": server.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_ETAG_TIMEOUT": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
    }


@pytest.fixture(scope="session")
def loader(environment: dict[str, str]) -> Iterator[Loader]:
    """Yield a child process that reaches the server, with one cache for all tests."""
    with Loader(environment) as child:
        yield child


@pytest.fixture(scope="session")
def offline(environment: dict[str, str]) -> Iterator[Loader]:
    """Yield another child with the same cache and HF_HUB_OFFLINE=1."""
    with Loader({**environment, "HF_HUB_OFFLINE": "1"}) as child:
        yield child


_numbers = count()


@pytest.fixture
def name() -> str:
    """Return the id of a repository that no other test uses."""
    return f"org/model-{next(_numbers)}-end"


@pytest.fixture
def repository(server: HubServer, name: str) -> Repository:
    return server.add(name, FILES)


@pytest.fixture
def client_in_this_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make the client of this process raise an exception instead of downloading."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: False)
    monkeypatch.setattr(hub.HubRepository, "_refuse_unknown_host", lambda *_: None)  # no host is contacted

    def fail_with(error: BaseException) -> None:
        def fail(*arguments: Any, **more: Any) -> str:
            raise error

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)

    return fail_with
