"""The OpenAPI document, made from the structs that read the requests."""

from __future__ import annotations

from typing import Any

import minibert
from minibert.serving.libraries import missing
from minibert.serving.protocols import POSTS

try:
    import msgspec
except ImportError as error:
    raise missing(error) from error


_GETS = {
    "/v1/models": "The models",
    "/info": "The service and its limits",
    "/health": "200 while requests are accepted",
    "/livez": "200 while the engine works",
    "/readyz": "200 while requests are accepted",
    "/metrics": "Numbers for Prometheus",
}


def openapi() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the service."""
    kinds = list(dict.fromkeys(kind for post in POSTS.values() for kind in post.kinds))
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {path: {"get": _operation(text, {})} for path, text in _GETS.items()}
    for path, post in POSTS.items():
        refs = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in post.kinds]
        body = {"required": True, "content": _json(refs[0] if len(refs) == 1 else {"anyOf": refs})}
        error = {"$ref": f"#/components/schemas/{post.errors.name}_error"}
        errors = {
            str(status): {"description": "An error", "content": _json(error)}
            for status in sorted({*post.errors.statuses.values()})
        }
        paths[path] = {"post": {**_operation(post.summary, errors), "requestBody": body}}
    shapes = {post.errors.name: post.errors.fields for post in POSTS.values()}
    errors_of_all = {f"{name}_error": {"type": "object", "properties": fields} for name, fields in shapes.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "minibert", "version": minibert.__version__},
        "paths": paths,
        "components": {"schemas": {**schemas, **errors_of_all}},
    }


def _operation(summary: str, errors: dict[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": summary}, **errors}}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
