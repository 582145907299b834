"""`app(engine)`: the protocols over HTTP, as an ASGI application that any server or framework can mount.

Requests with a body are in post_route.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import minibert
from minibert._utils.validation import brief
from minibert.serving import answers
from minibert.serving.engine import Engine
from minibert.serving.errors import ServiceError
from minibert.serving.gates import KeyGate, path_of, request_id_of
from minibert.serving.keys import ApiKeys
from minibert.serving.libraries import missing
from minibert.serving.metrics import Metrics
from minibert.serving.openapi import openapi
from minibert.serving.page import HEADERS, page
from minibert.serving.post_route import PostRoute, Service
from minibert.serving.protocol_ollama import model_list as ollama_models
from minibert.serving.protocol_openai import model_list, model_object
from minibert.serving.protocol_tei import info
from minibert.serving.protocols import POSTS, family_of
from minibert.tokenizer.texts import shown

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError as error:
    raise missing(error) from error

__all__ = ["app"]

_CORS: dict[str, Any] = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": ["*"],
    "expose_headers": [
        *("retry-after", "x-request-id", "x-minibert-truncated", "x-minibert-ignored", "x-minibert-prompt"),
        "x-minibert-compute-type",
        *("x-compute-tokens", "x-compute-characters", "x-total-time", "x-queue-time", "x-inference-time"),
        "x-tokenization-time",
    ],
}


def app(
    engine: Engine,
    *,
    metrics_namespace: str = "minibert",
    keys: ApiKeys | None = None,
    allow_origins: Sequence[str] = (),
) -> Starlette:
    """Make the ASGI application that answers with what the engine computes.

    Parameters
    ----------
    engine : Engine
        It belongs to the caller, who closes it. Its thread starts with the first request.
    metrics_namespace : str
        The beginning of the names in /metrics.
    keys : ApiKeys, optional
        A request needs one of them, except for /health, /livez, /readyz, /ping, /metrics and "GET /".
    allow_origins : sequence of str
        Origins whose pages may ask the service (CORS), such as "https://example.org"; "*" means all.

    Raises
    ------
    TypeError, ValueError
        An argument has another type, or the namespace another character than letters, digits and "_".

    Returns
    -------
    Starlette
        ``app.state.service`` has the threads; they end with the process. Set its attribute `leaving` a while before the
        process ends, so that /readyz is answered with 503.
    """
    if not isinstance(engine, Engine):
        raise TypeError(f"engine is {shown(engine)}; expected an Engine, such as Engine(SentenceTransformer()).")
    if keys is not None and not isinstance(keys, ApiKeys):
        raise TypeError(f"keys is a {type(keys).__name__}; expected ApiKeys, such as ApiKeys([key]).")
    if isinstance(allow_origins, str) or not all(isinstance(origin, str) for origin in allow_origins):
        raise TypeError(f"allow_origins is {shown(allow_origins)}; expected a list of str.")
    if not isinstance(metrics_namespace, str) or not re.fullmatch(r"[a-zA-Z_]\w*", metrics_namespace, re.ASCII):
        raise ValueError(
            f"metrics_namespace={brief(metrics_namespace)}; expected letters, digits and _, and no digit at the start."
        )
    service = Service(engine, Metrics(engine, metrics_namespace))
    posts = {path: PostRoute(service, path, post) for path, post in POSTS.items()}
    routes = [Route(path, post, methods=["POST"]) for path, post in posts.items()]
    document = answers.dump(openapi())

    def get(path: str, answer: Callable[[Request], Response]) -> None:
        async def endpoint(request: Request) -> Response:
            response = answer(request)
            response.headers["x-request-id"] = request_id_of(request.scope)
            return response

        routes.append(Route(path, endpoint, methods=["GET"]))

    def root(request: Request) -> Response:
        response = _health(service, ready=True)
        if response.status_code != 200 or "text/html" not in request.headers.get("accept", ""):
            return response
        url = request.url.replace(path=f"{request.scope.get('root_path', '')}/", query="", fragment="")
        shown = page(engine, minibert.__version__, str(url), with_key=keys is not None)
        return Response(shown, headers=HEADERS, media_type="text/html")

    get("/", root)
    for path in ("/health", "/ping", "/readyz"):
        get(path, lambda request: _health(service, ready=True))
    get("/livez", lambda request: _health(service, ready=False))
    get("/metrics", lambda request: Response(service.metrics.text(), media_type="text/plain; version=0.0.4"))
    get("/info", lambda request: _json(info(engine, minibert.__version__)))
    get("/openapi.json", lambda request: Response(document, media_type="application/json"))
    for path in ("/api/tags", "/api/ps"):
        get(path, lambda request: _json(ollama_models(engine)))
    get("/api/version", lambda request: _json({"version": minibert.__version__}))
    for prefix in ("", "/v1"):
        get(f"{prefix}/models", lambda request: _json(model_list(engine)))
        get(f"{prefix}/models/{{name:path}}", lambda request: _model(engine, request))

    outside: list[Any] = []
    if allow_origins:
        outside.append(Middleware(CORSMiddleware, **_CORS, allow_origins=[*allow_origins]))
    if keys is not None:
        outside.append(Middleware(KeyGate, metrics=service.metrics, keys=keys))
    outside.append(Middleware(_Posts, posts=posts))
    made = Starlette(routes=routes, middleware=outside, exception_handlers={HTTPException: _http_error})
    made.router.redirect_slashes = False  # the place would be made from the Host header of the client
    made.state.service = service
    return made


class _Posts:
    """Passes requests with a body to their routes. Starlette's search for a route takes as long as the rest of HTTP."""

    def __init__(self, app: ASGIApp, posts: Mapping[str, PostRoute]) -> None:
        self._app, self._posts = app, posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        post = self._posts.get(path_of(scope)) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (post or self._app)(scope, receive, send)


def _health(service: Service, *, ready: bool) -> Response:
    load = service.engine.load()
    if load.alive and (not ready or (load.ready and not service.leaving)):
        return Response(b"", 200)
    error = ServiceError("unavailable", "the service is stopping." if load.alive else "the engine does not answer.")
    return Response(answers.error_body(error, "tei", ""), 503, {"retry-after": "1"}, "application/json")


def _model(engine: Engine, request: Request) -> Response:
    try:
        return _json(model_object(engine.models.served(request.path_params["name"])))
    except ServiceError as error:
        return Response(answers.error_body(error, "openai", ""), 404, media_type="application/json")


def _json(value: Any) -> Response:
    return Response(answers.dump(value), media_type="application/json")


def _http_error(request: Request, error: Exception) -> Response:
    """Answer requests for unknown routes and methods."""
    assert isinstance(error, HTTPException)
    path = path_of(request.scope)
    if error.status_code == 405:
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "POST").split(", ")))
        problem = ServiceError("method", f"{path[:200]} does not accept {request.method[:20]}; send {allowed}.")
    else:
        problem = ServiceError("not_found", f"{path[:200]} is not a route; expected one of {', '.join(POSTS)}, ...")
    headers = {**(error.headers or {}), "x-request-id": request_id_of(request.scope)}
    return Response(answers.error_body(problem, family_of(path), ""), error.status_code, headers, "application/json")
