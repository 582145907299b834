"""What is checked before a route: that the model is loaded, and that the request has a key."""

from __future__ import annotations

import itertools
import re
import uuid

from minibert.serving import answers
from minibert.serving.connections import current
from minibert.serving.errors import ServiceError
from minibert.serving.keys import ApiKeys
from minibert.serving.libraries import missing
from minibert.serving.logs import REQUESTS
from minibert.serving.metrics import Metrics
from minibert.serving.protocols import POSTS, family_of

try:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError as error:
    raise missing(error) from error

__all__ = ["KeyGate", "LoadingGate", "path_of", "request_id_of"]

_WITHOUT_KEY = {"/health", "/ping", "/livez", "/readyz", "/metrics"}
_FIRST, _NUMBERS = uuid.uuid4().hex[:20], itertools.count()  # a new uuid for each request is a system call
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def request_id_of(scope: Scope) -> str:
    """Return the id that the client gave its request, or a new one."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else f"{_FIRST}{next(_NUMBERS):012x}"


def path_of(scope: Scope) -> str:
    """Return the path within this application, which may be mounted in another one."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


class KeyGate:
    """Answers 401 to requests without a key. It is before the routes, so that unknown ones cannot be told apart.

    Parameters
    ----------
    app : ASGIApp
    metrics : Metrics
    keys : ApiKeys
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, keys: ApiKeys) -> None:
        self._app, self._metrics, self._keys = app, metrics, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        path = path_of(scope)
        route = path if path in POSTS else "other"  # a label has a fixed set of values
        self._metrics.failures.labels(route, "key").inc()
        # Clients such as LiteLLM look for OpenAI's words.
        error = ServiceError("key", "Incorrect API key provided, or none; send the header Authorization: Bearer KEY.")
        response = _refusal(error, scope, {"www-authenticate": "Bearer", "connection": "close"})
        line = {"request_id": response.headers["x-request-id"], "route": route, "status": 401}
        REQUESTS.info("%s", line, extra={"request": line})
        await response(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = path_of(scope)
        if path in _WITHOUT_KEY or (path == "/" and scope["method"] in ("GET", "HEAD")):
            return True
        return self._keys.accept(dict(scope["headers"]).get(b"authorization", b""))


class LoadingGate:
    """The first to see a request. While the models are loaded: 200 to /livez, and 503 to others. Then `app` answers.

    Attributes
    ----------
    app : ASGIApp or None
    """

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        connection = current()
        if connection is None:
            await self._answer(scope, receive, send)
            return
        connection.begin()
        try:
            if connection.only_probes and scope["method"] not in ("GET", "HEAD"):
                error = ServiceError("unavailable", "the service has too many connections; send it again later.")
                await _refusal(error, scope, {"retry-after": "1", "connection": "close"})(scope, receive, send)
            else:
                await self._answer(scope, receive, send)
        finally:
            connection.end()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
            return
        if path_of(scope) == "/livez" and scope["method"] in ("GET", "HEAD"):
            await Response(b"", 200, {"x-request-id": request_id_of(scope)})(scope, receive, send)
            return
        error = ServiceError("unavailable", "the model is being loaded; send the request again.", retry_after=1.0)
        await _refusal(error, scope, {"retry-after": "1"})(scope, receive, send)


def _refusal(error: ServiceError, scope: Scope, headers: dict[str, str]) -> Response:
    """Return the answer to a request whose body is not read, in the shape of its route."""
    path = path_of(scope)
    family, field = family_of(path), POSTS[path].field if path in POSTS else ""
    headers = {"x-request-id": request_id_of(scope), **headers}
    status, body = answers.status_of(error, family), answers.error_body(error, family, field)
    return Response(body, status, headers, "application/json")
