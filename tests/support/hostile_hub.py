"""A hub whose answers are changed: status, headers, lengths, bodies. Nothing may be written outside the cache."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.hostile import HOSTILE, Case, FaultError, damaged, mutated, text_of
from tests.support.hub_server import HubServer, _Handler, cut, drop, garbage

_NAME = "org/hostile"
_HEADERS = (
    *("ETag", "ETag", "ETag", "X-Repo-Commit", "X-Repo-Commit", "X-Linked-Etag", "X-Linked-Size", "Location", "Link"),
    *("Content-Length", "Content-Type", "Content-Encoding", "Transfer-Encoding", "Content-Range", "Accept-Ranges"),
    *("X-Xet-Hash", "X-Error-Code", "X-Error-Message", "Retry-After", "Connection", "Set-Cookie"),
)
_STATUS = (
    100,
    200,
    201,
    204,
    206,
    300,
    301,
    302,
    303,
    304,
    307,
    308,
    400,
    401,
    403,
    404,
    405,
    410,
    416,
    429,
    451,
    500,
    503,
    599,
    999,
)


def hub_case(stack: contextlib.ExitStack) -> Case:
    """Start a server that runs until the stack is closed; return the case that loads a model from it in a child."""
    server = stack.enter_context(HubServer())
    os.environ["HF_ENDPOINT"] = server.endpoint
    os.environ["HF_HUB_DISABLE_XET"] = "1"
    import huggingface_hub
    import huggingface_hub.file_download  # the client imports its parts when they are used
    import huggingface_hub.hf_api

    from tests.support.hostile_cases import check_model, intact

    check_model(intact())
    files = {name.relative_to(intact()).as_posix(): name.read_bytes() for name in intact().rglob("*") if name.is_file()}
    files = {name: data for name, data in files.items() if not name.startswith("sharded/")}
    plan = _Plan()
    server.misbehave("", plan.answer)

    def case(number: int, folder: Path) -> bool:
        huggingface_hub.close_session()
        time.sleep = lambda seconds: None  # the client's pauses between its attempts are not tested
        name = f"{_NAME}-{number}"
        cache = folder / "cache"
        watch = _Watch(cache, folder)
        try:
            check_model(name, cache_folder=cache)
        finally:
            watch.check()
        return True

    def prepared(number: int, folder: Path) -> bool:
        # This runs in the child, so it tells the server, which runs in the driver, by a request.
        import urllib.request

        urllib.request.urlopen(f"{server.endpoint}/begin/{number}/{folder}").close()
        return case(number, folder)

    plan.files, plan.server = files, server
    return prepared


class _Plan:
    """The faults of the server: seeded by the numbers of the case and of the request."""

    files: dict[str, bytes]
    server: HubServer

    def __init__(self) -> None:
        self.chance = random.Random()
        self.folder, self.requests, self.rate, self.only = "", 0, 0.0, 0

    def begin(self, path: str) -> None:
        _, _, number, folder = path.split("/", 3)
        self.chance, self.folder, self.requests = random.Random(f"hub {number}"), "/" + folder.lstrip("/"), 0
        # Change one answer, a few, or all of them.
        self.rate = self.chance.choice((0, 0, 0.1, 0.3, 1))
        self.only = self.chance.randrange(30)
        self.server.repositories.clear()
        files = dict(self.files)
        if self.chance.random() < 0.15:
            files["pytorch_model.bin"] = files.pop("model.safetensors")
        repository = self.server.add(f"{_NAME}-{number}", files)
        repository.large = self.chance.choice((10_000, 10_000_000))
        if "pytorch_model.bin" in files:
            repository.pull_request({"model.safetensors": self.files["model.safetensors"]})

    def answer(self, handler: _Handler) -> bool:
        if handler.path.startswith("/begin/"):
            self.begin(handler.path)
            handler.send(200, b"", {})
            return True
        self.requests += 1
        if self.requests - 1 != self.only and self.chance.random() >= self.rate:
            return False
        if self.chance.random() < 0.05:
            return self.chance.choice((cut, drop, garbage))(handler)
        honest = handler.send

        def send(status: int, body: bytes, headers: Mapping[str, str]) -> None:
            handler.send = honest  # type: ignore[method-assign]  # a connection may bring more requests
            self.send(handler, status, body, dict(headers))

        handler.send = send  # type: ignore[method-assign]
        return False

    def send(self, handler: _Handler, status: int, body: bytes, headers: dict[str, str]) -> None:
        chance = self.chance
        length: object = None
        kind = chance.randrange(8)
        if kind == 0:
            status = chance.choice(_STATUS)
        elif kind in (1, 2, 3):
            name = chance.choice(_HEADERS)
            headers[name] = self.value(handler)
            length = headers.pop("Content-Length", None)
        elif kind == 4 and headers:
            del headers[chance.choice(list(headers))]
        elif kind == 5:
            body, length = damaged(body, chance), chance.choice((None, len(body)))
        elif kind == 6:
            body = self.changed_json(body)
        else:
            length = chance.choice((0, 1, len(body) + 1, max(0, len(body) - 1), -1, 2**63, 10**9, "x", ""))
            status = chance.choice((status, status, 302))
            headers.setdefault("Location", self.value(handler))
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        if handler.command != "HEAD" and status not in (204, 304):
            handler.wfile.write(body)
        # Nothing more is sent, even if the headers announced more.
        handler.close_connection = True

    def value(self, handler: _Handler) -> str:
        chance = self.chance
        outside = f"{self.folder}/outside"
        up = "../" * chance.choice((1, 2, 4, 8))
        here = f"{self.server.endpoint}{handler.path}"
        values = (
            *(outside, f'"{outside}"', f'W/"{outside}"', f'"{up}outside"', f"{up}outside", f'"a/{up}outside"'),
            *("", " ", ".", "..", '""', "a" * 300, "a" * 60_000, "-1", "0", "1e9", "nan", str(2**63), "é", "\\outside"),
            *("0" * 40, "f" * 64, f'"{"0" * 40}"', "main", "CON", "a:b", "a.", "%2e%2e%2foutside", "bytes 5-4/3"),
            *(handler.path, here, "http://127.0.0.1:1/", "http://[::1", "file:///etc/passwd", "//", "http://"),
            *(f'<{here}>; rel="next"', '<>; rel="xet-auth"', "bytes 0-0/*", "a=b; Path=/", "application/json"),
            *("EntryNotFound", "RepoNotFound", "GatedRepo", "RevisionNotFound", "close", "gzip", "chunked", "br"),
        )
        return str(chance.choice(values)).encode("utf-8").decode("latin-1")

    def changed_json(self, body: bytes) -> bytes:
        chance = self.chance
        try:
            return text_of(mutated(json.loads(body), chance))
        except ValueError:
            page = b"<html>Log in</html>"
            others = (b"", page, gzip.compress(body), body[: len(body) // 2], text_of(chance.choice(HOSTILE)))
            return chance.choice(others)


class _Watch:
    """Forbids, and notes, every change of a file outside the cache."""

    _EVENTS = ("os.mkdir", "os.rename", "os.symlink", "os.link", "os.remove", "os.rmdir", "os.truncate", "os.chmod")

    def __init__(self, cache: Path, folder: Path) -> None:
        self._cache, self._folder, self._found = os.path.realpath(cache), folder, list[str]()
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                return
            paths: tuple[Any, ...] = (path,)
        elif event in ("os.remove", "os.rmdir") and arguments[1] >= 0:
            return  # from rmtree: the name is relative to a folder of the cache
        elif event in self._EVENTS:
            two = event in ("os.rename", "os.link")
            # A symlink does not change its target, so only its own path counts.
            paths = arguments[1:2] if event == "os.symlink" else arguments[: 1 + two]
        else:
            return
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike):
                where = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
                there = os.path.join(where, os.path.basename(os.fsdecode(path)))
                if there != self._cache and not there.startswith((self._cache + os.sep, "/dev/")):
                    self._found.append(f"{event} {there}")
                    raise PermissionError(f"{there} is outside the cache")

    def check(self) -> None:
        more = [str(path) for path in self._folder.iterdir() if path.name != "cache"]
        if self._found or more:
            raise FaultError(f"LOST FILE: written outside the cache: {[*self._found, *more]}")
