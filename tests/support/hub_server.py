"""A small imitation of huggingface.co for the tests, and a child process that loads models from it.

`HubServer` answers the requests that huggingface_hub makes for one kind of work, reading model repositories: files,
revisions, commits, pull requests. It keeps every request with its headers, and can be told to misbehave.

`Loader` is a child process that runs `minibert.checkpoint.hub` against a server. It must be another process because
huggingface_hub reads HF_ENDPOINT, HF_HUB_OFFLINE and similar variables once, when it is imported. One child serves many
tests: a request is a line of JSON (the model and the steps), and so is its answer (the values, or the error).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

_ROOT = Path(__file__).parents[2]
_DATE = "2024-01-02T03:04:05.000Z"


def clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child: this one without the variables of the hub's client, plus these settings."""
    steering = re.compile("HF_|HUGGINGFACE_|TRANSFORMERS_|.*_PROXY$", re.IGNORECASE)
    inherited = {key: value for key, value in os.environ.items() if not steering.match(key)}
    return {**inherited, "HF_HUB_DISABLE_TELEMETRY": "1", **settings}


# A misbehaviour runs instead of (or before) the correct answer. It returns True if it has answered.
Misbehaviour = Callable[["_Handler"], bool]


@dataclass
class Commit:
    """One state of a repository: all its files."""

    id: str
    files: dict[str, bytes]
    title: str


@dataclass
class Repository:
    """A model repository: each of its references (branches, tags, refs/pr/N) is a list of commits, newest first."""

    name: str
    references: dict[str, list[Commit]] = field(default_factory=dict)
    discussions: list[dict[str, Any]] = field(default_factory=list)
    token: str | None = None  # needed to see the repository
    gated: bool = False
    large: int = 10_000_000  # files of at least so many bytes come from the "CDN", another host, like LFS files

    @property
    def main(self) -> str:
        """Return the commit id of the head of main."""
        return self.references["main"][0].id

    def commit(self, files: Mapping[str, bytes], *, reference: str = "main", title: str = "commit") -> str:
        """Put a commit with exactly these files on top of a reference; return its id."""
        history = self.references.setdefault(reference, [])
        identity = f"{self.name} {reference} {len(history)} {sorted(files)} {time.monotonic_ns()}"
        made = Commit(hashlib.sha1(identity.encode()).hexdigest(), dict(files), title)
        history.insert(0, made)
        return made.id

    def tag(self, name: str) -> None:
        """Make another reference to the present history of main."""
        self.references[name] = list(self.references["main"])

    def pull_request(
        self,
        files: Mapping[str, bytes],
        *,
        author: str = "SFconvertbot",
        title: str = "Adding `safetensors` variant of this model",
        status: str = "open",
        is_pull_request: bool = True,
        base: int = 0,
    ) -> str:
        """Open a pull request that adds files to main, `base` commits below its head; return the commit's id."""
        number = len(self.discussions) + 1
        below = self.references["main"][base:]
        self.references[f"refs/pr/{number}"] = list(below)
        made = self.commit({**below[0].files, **files}, reference=f"refs/pr/{number}", title=title)
        self.discussions.append(
            {
                "num": number,
                "author": {"name": author},
                "title": title,
                "status": status,
                "isPullRequest": is_pull_request,
                "createdAt": _DATE,
                "repo": {"name": self.name, "type": "model"},
            }
        )
        return made

    def find(self, revision: str) -> Commit | None:
        """Return the commit of a reference or commit id."""
        if revision in self.references:
            return self.references[revision][0]
        commits = (commit for history in self.references.values() for commit in history)
        return next((commit for commit in commits if commit.id == revision), None)


@dataclass(frozen=True)
class Request:
    """A request of a client."""

    method: str
    path: str
    headers: dict[str, str]


class HubServer:
    """The server, on a free port of the loopback; a context manager.

    Misbehaviours are used in order; each one serves `times` requests whose path contains `where`.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.renamed: dict[str, str] = {}
        self.requests: list[Request] = []
        self._misbehaviours: list[tuple[str, str | None, Misbehaviour, list[int]]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.hub = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, name: str, files: Mapping[str, bytes] | Path) -> Repository:
        """Make a repository from a dict of files or from a folder."""
        if isinstance(files, Path):
            paths = (path for path in files.rglob("*") if path.is_file())
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in paths}
        repository = Repository(name)
        repository.commit(files)
        self.repositories[name] = repository
        return repository

    def misbehave(self, where: str, how: Misbehaviour, *, method: str | None = None, times: int = 1_000_000) -> None:
        """Misbehave for the next `times` requests (of that method) whose path contains `where`."""
        self._misbehaviours.append((where, method, how, [times]))

    def record(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)

    def asked(self, where: str = "", method: str | None = None) -> list[Request]:
        """Return the requests so far whose path contains `where`."""
        with self._lock:
            return [r for r in self.requests if where in r.path and method in (None, r.method)]

    def misbehaviour(self, method: str, path: str) -> Misbehaviour | None:
        """Return the misbehaviour for a request, and count its use."""
        with self._lock:
            for where, only_method, how, left in self._misbehaviours:
                if where in path and only_method in (None, method) and left[0] > 0:
                    left[0] -= 1
                    return how
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    @property
    def hub(self) -> HubServer:
        return self.server.hub  # type: ignore[attr-defined,no-any-return]

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.hub.record(Request(self.command, self.path, headers))
        misbehaviour = self.hub.misbehaviour(self.command, self.path)
        if misbehaviour is not None and misbehaviour(self):
            return
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[0] == "cdn":
            self.send_file(self.hub.repositories["/".join(parts[1:-2])], parts[-2], unquote(parts[-1]), cdn=True)
        elif parts[:2] == ["api", "models"]:
            self.answer_api(parts[2:])
        elif "resolve" in parts:
            self.answer_file(parts)
        else:
            self.send_problem(404, None, "Sorry, we can't find the page you are looking for.")

    # --- files: /org/name/resolve/<revision>/<path> ---

    def answer_file(self, parts: list[str]) -> None:
        at = parts.index("resolve")
        repository = self.permitted("/".join(parts[:at]))
        if repository is None:
            return
        revision, filename = parts[at + 1], "/".join(parts[at + 2 :])
        commit = repository.find(revision)
        if commit is None:
            self.send_problem(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif filename not in commit.files:
            self.send_problem(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit.id})
        elif len(commit.files[filename]) >= repository.large and self.headers.get("host", "").startswith("127."):
            body = commit.files[filename]
            self.send(
                302,
                b"",
                {
                    "Location": f"http://localhost:{self.hub.port}/cdn/{repository.name}/{commit.id}/{filename}",
                    "X-Repo-Commit": commit.id,
                    "X-Linked-Size": str(len(body)),
                    "X-Linked-Etag": f'"{hashlib.sha256(body).hexdigest()}"',
                },
            )
        else:
            self.send_file(repository, commit.id, filename)

    def send_file(self, repository: Repository, commit_id: str, filename: str, *, cdn: bool = False) -> None:
        commit = repository.find(commit_id)
        assert commit is not None
        body = commit.files[filename]
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if not cdn:
            blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
            headers |= {"X-Repo-Commit": commit.id, "ETag": f'"{blob}"'}
        wanted = self.headers.get("range")
        if wanted:
            first = int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
            self.send(206, body[first:], headers)
        else:
            self.send(200, body, headers)

    # --- the api: /api/models/org/name/<what>/<revision> ---

    def answer_api(self, parts: list[str]) -> None:
        verbs = {"revision", "tree", "commits", "discussions"}
        at = next((i for i, part in enumerate(parts) if part in verbs), len(parts))
        repository = self.permitted("/".join(parts[:at]))
        if repository is None:
            return
        verb = parts[at] if at < len(parts) else "revision"
        if verb == "discussions":
            found = repository.discussions
            self.send_json({"discussions": found, "count": len(found), "start": 0})
            return
        revision = parts[at + 1] if at + 1 < len(parts) else "main"
        commit = repository.find(revision)
        if commit is None:
            self.send_problem(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif verb == "commits":
            history = repository.references[revision]
            self.send_json(
                [{"id": c.id, "title": c.title, "message": "", "authors": [], "date": _DATE} for c in history]
            )
        elif verb == "tree":
            self.send_json(
                [
                    {"type": "file", "path": path, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                    for path, body in sorted(commit.files.items())
                ]
            )
        else:
            siblings = [{"rfilename": path} for path in commit.files]
            self.send_json(
                {"id": repository.name, "modelId": repository.name, "sha": commit.id, "siblings": siblings, "tags": []}
            )

    # --- permissions --------

    def permitted(self, name: str) -> Repository | None:
        """Return the repository if the caller may see it; else send the hub's answer and return None."""
        if name in self.hub.renamed:
            self.send(307, b"", {"Location": self.path.replace(name, self.hub.renamed[name], 1)})
            return None
        repository = self.hub.repositories.get(name)
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        if repository is None or (repository.token is not None and token != repository.token):
            # The hub does not tell callers without access whether a repository exists.
            if token:
                self.send_problem(404, "RepoNotFound", "Repository not found")
            else:
                self.send_problem(401, "RepoNotFound", "Invalid username or password.")
            return None
        if repository.gated:
            self.send_problem(403, "GatedRepo", f"Access to model {name} is restricted.")
            return None
        return repository

    # --- sending ---

    def send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send_problem(self, status: int, code: str | None, message: str, more: Mapping[str, str] = {}) -> None:
        headers = {"X-Error-Message": message, "Content-Type": "application/json", **more}
        if code is not None:
            headers["X-Error-Code"] = code
        self.send(status, json.dumps({"error": message}).encode(), headers)


# --- misbehaviours ---


def status(number: int, code: str | None = None, message: str = "no", body: bytes | None = None) -> Misbehaviour:
    """Answer with an HTTP status."""

    def misbehave(handler: _Handler) -> bool:
        if body is None:
            handler.send_problem(number, code, message)
        else:
            handler.send(number, body, {"Content-Type": "application/json"})
        return True

    return misbehave


def answer(body: bytes, headers: Mapping[str, str]) -> Misbehaviour:
    """Answer 200 with this body: a login page, an answer without the hub's headers."""

    def misbehave(handler: _Handler) -> bool:
        handler.send(200, body, headers)
        return True

    return misbehave


def redirect(location: str) -> Misbehaviour:
    """Send elsewhere."""

    def misbehave(handler: _Handler) -> bool:
        handler.send(302, b"", {"Location": location})
        return True

    return misbehave


def drop(handler: _Handler) -> bool:
    """Close the connection without an answer."""
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)
    return True


def garbage(handler: _Handler) -> bool:
    """Answer with bytes that are not HTTP."""
    handler.close_connection = True
    handler.wfile.write(b"\x16\x03\x01\x02\x00 hello, is this the mail server?\r\n\r\n")
    return True


def cut(handler: _Handler) -> bool:
    """Announce 1000 bytes, send 10 and close the connection."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789")
    return True


def short(handler: _Handler) -> bool:
    """Send a complete answer that is shorter than the announced size of the file."""
    handler.send(200, b"{}", {"ETag": '"abc"'})
    return True


def pause(seconds: float) -> Misbehaviour:
    """Let the client wait, then close the connection."""

    def misbehave(handler: _Handler) -> bool:
        time.sleep(seconds)
        return drop(handler)

    return misbehave


def drip(handler: _Handler) -> bool:
    """Announce 1000 bytes, and send one every quarter of a second."""
    handler.close_connection = True
    with contextlib.suppress(OSError):  # the client has gone
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n")
        if handler.command == "GET":
            handler.wfile.write(b"\r\n")
        else:
            handler.wfile.write(b"X-Slow: ")
        for _ in range(1000):
            handler.wfile.write(b"x")
            time.sleep(0.25)
    return True


def call(function: Callable[[], object]) -> Misbehaviour:
    """Call a function on the server, then answer correctly."""

    def misbehave(handler: _Handler) -> bool:
        function()
        return False

    return misbehave


# --- the child process ---


@dataclass(frozen=True)
class Outcome:
    """The result of a load: the values of its steps, and the error that ended it, if any."""

    values: list[Any]
    error: str | None  # the error's type, its base types, and the types it was raised from
    bases: list[str]
    causes: list[str]
    message: str
    connections: int  # attempts to use the network
    opened: list[str]  # files and folders opened, resolved
    log: list[str]
    client_imported: bool  # whether huggingface_hub has been imported in the child

    @property
    def value(self) -> Any:
        """Return the value of the last step; fail if there was an error."""
        assert self.error is None, f"{self.error}: {self.message}"
        return self.values[-1]


class Loader:
    """A child process that answers `load` requests; a context manager."""

    def __init__(self, environment: Mapping[str, str], *, python: Iterable[str] = ("-W", "error")) -> None:
        self._child = subprocess.Popen(
            [sys.executable, *python, "-m", "tests.support.hub_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            env=clean_environment(environment),
            text=True,
        )

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._child.communicate()

    def load(
        self, name: str, *steps: Iterable[str], block: bool = False, seconds: float = 60.0, **arguments: Any
    ) -> Outcome:
        """Locate a model and run the steps, each a method of ModelFiles with its arguments: ("find", "config.json").

        With `block`, every attempt to use the network fails. `seconds` is the time limit of one call of the client.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        request = json.dumps([name, [list(step) for step in steps], block, seconds, arguments], default=str)
        self._child.stdin.write(request + "\n")
        self._child.stdin.flush()
        return Outcome(**json.loads(self._child.stdout.readline()))


class _Watch:
    """An audit hook: counts attempts to use the network and can forbid them; records the opened files."""

    def __init__(self) -> None:
        self.active = self.block = False
        self.connections = 0
        self.opened: list[str] = []
        sys.addaudithook(self._hook)

    def start(self, block: bool) -> None:
        self.active, self.block, self.connections, self.opened = True, block, 0, []

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            self.connections += 1
            if self.block:
                raise OSError("the network is blocked by the test")
        elif event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes)):
            self.opened.append(os.path.realpath(os.fsdecode(arguments[0])))


def _serve_loads() -> None:
    """Answer the requests of a `Loader`, line by line, until the input ends."""
    import logging

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # only answers may reach the parent
    time.sleep = lambda seconds: None  # the client's pauses between its attempts are not tested
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("minibert").addHandler(handler)
    logging.getLogger("minibert").setLevel(logging.INFO)
    watch = _Watch()

    from minibert.checkpoint import hub, time_limit

    assert "huggingface_hub" not in sys.modules, "imported before it was needed"
    for line in sys.stdin:
        name, steps, block, time_limit.SECONDS, arguments = json.loads(line)
        lines.clear()
        if "huggingface_hub" in sys.modules:
            sys.modules["huggingface_hub"].close_session()  # the watch would not see a connection that is still open
        answer: dict[str, Any] = {"values": [], "error": None, "bases": [], "causes": [], "message": ""}
        watch.start(block)
        try:
            files = hub.locate(name, **arguments)
            for step, *values in steps:
                member = getattr(files, step)
                result = member(*values) if callable(member) else member
                if isinstance(result, hub.ModelFiles):
                    files = result
                answer["values"].append(result)
        except BaseException as error:
            answer["error"], answer["message"] = type(error).__name__, str(error)
            answer["bases"] = [base.__name__ for base in type(error).__mro__]
            cause = error.__cause__
            while cause is not None:
                answer["causes"].append(f"{type(cause).__module__}.{type(cause).__name__}")
                cause = cause.__cause__
        watch.active = False
        answer |= {"connections": watch.connections, "opened": watch.opened, "log": list(lines)}
        answer["client_imported"] = "huggingface_hub" in sys.modules
        answers.write(json.dumps(answer, default=str) + "\n")
        answers.flush()
    answers.close()


if __name__ == "__main__":
    _serve_loads()
