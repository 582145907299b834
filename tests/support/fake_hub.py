"""A small imitation of huggingface.co on a port of this machine: files at revisions, tokens, and chosen answers."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

CONFIG = b'{"model_type": "bert"}'
FILES = {"config.json": CONFIG, "model.safetensors": b"w" * 3000, "1_Pooling/config.json": b"{}"}


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into a folder, which is made; return it."""
    for filename, content in files.items():
        path = folder / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def index(*shards: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": {f"t{i}": s for i, s in enumerate(shards)}}).encode()


class FakeHub(ThreadingHTTPServer):
    """`repositories` holds the commit of each revision, and the files of each commit; `answers` replaces answers.

    An answer is a status, headers and a body, or a function that is called before the right answer.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, str] = {}
        self.answers: dict[str, Any] = {}  # by method, or by a part of the path
        self.asked: list[tuple[str, str, str]] = []  # method, path, token

    def commit(self, name: str, files: Mapping[str, bytes], *, revision: str = "main") -> str:
        """Make a commit with exactly these files, the new state of a revision; return its id."""
        repository = self.repositories.setdefault(name, {})
        commit = hashlib.sha1(f"{name} {len(repository)}".encode()).hexdigest()
        repository |= {commit: dict(files), revision: commit}
        return commit


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(self.path)
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        if path != "/api/agent-harnesses":  # once a day, the client asks for names that its User-Agent may have
            self.server.asked.append((self.command, path, token))
        for where, answer in list(self.server.answers.items()):
            if where == self.command or where in path:
                if not callable(answer):
                    return self.send(*answer)
                answer()
        for name, repository in self.server.repositories.items():
            for before, verb in ((f"/{name}/resolve/", "resolve"), (f"/api/models/{name}/", "api")):
                if path.startswith(before):
                    if token != self.server.tokens.get(name, token):
                        return self.send(401, {"X-Error-Code": "RepoNotFound"})
                    return self.send_file(repository, path.removeprefix(before), verb)
        return self.send(404 if token else 401, {"X-Error-Code": "RepoNotFound"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_file(self, repository: dict[str, Any], rest: str, verb: str) -> None:
        if verb == "api":  # revision/<revision> or tree/<revision>
            kind, _, revision = rest.partition("?")[0].partition("/")
            commit = revision if isinstance(repository[revision], dict) else repository[revision]
            files = repository[commit]
            listed: object = [{"type": "file", "path": one, "size": 1, "oid": "0" * 40} for one in sorted(files)]
            if kind != "tree":
                listed = {"id": "x", "sha": commit, "siblings": [{"rfilename": one} for one in files], "tags": []}
            return self.send(200, {"Content-Type": "application/json"}, json.dumps(listed).encode())
        revision = next((one for one in repository if rest.startswith(f"{one}/")), None)
        if revision is None:
            return self.send(404, {"X-Error-Code": "RevisionNotFound"})
        commit = revision if isinstance(repository[revision], dict) else repository[revision]
        content = repository[commit].get(rest.removeprefix(f"{revision}/"))
        headers = {"X-Repo-Commit": commit}
        if content is None:
            return self.send(404, {"X-Error-Code": "EntryNotFound", **headers})
        return self.send(200, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', **headers}, content)

    def send(self, status: int, headers: Mapping[str, str] = {}, body: bytes = b"", length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """Run a `FakeHub`, and let the client of this process use it, without its pauses between attempts."""
    import huggingface_hub
    from huggingface_hub import constants, hf_api

    with FakeHub() as hub, pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        patch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        patch.setattr(hf_api.api, "endpoint", hub.endpoint)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr("time.sleep", lambda seconds: None)
        huggingface_hub.close_session()
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield hub
        huggingface_hub.close_session()
        hub.shutdown()
        thread.join()
