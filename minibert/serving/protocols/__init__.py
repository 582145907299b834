"""The routes that take a body, and the OpenAPI document. What each route does is in the module of its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

import minibert
from minibert.serving.protocols import bert, cohere, ollama, openai, tei
from minibert.serving.protocols.base import Errors, Post
from minibert.serving.settings import ServiceError

POSTS: Mapping[str, Post] = {**openai.POSTS, **cohere.POSTS, **ollama.POSTS, **tei.POSTS, **bert.POSTS}


def errors_of(path: str) -> Errors:
    """Return the shape of errors for a path, also for a path whose route does not take a body."""
    if path in POSTS:
        return POSTS[path].errors
    return ollama.ERRORS if path.startswith("/api/") else tei.ERRORS if path == "/info" else openai.ERRORS


def document(gets: Mapping[str, str]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document, made from the structs that read the requests.

    `gets` are the paths of the other routes, and what they answer.
    """
    kinds = list(dict.fromkeys(kind for post in POSTS.values() for kind in post.kinds))
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {path: {"get": _operation(text, {})} for path, text in gets.items()}
    for path, post in POSTS.items():
        refs = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in post.kinds]
        body = {"required": True, "content": _json(refs[0] if len(refs) == 1 else {"anyOf": refs})}
        error = {"$ref": f"#/components/schemas/{post.errors.name}_error"}
        errors = {
            str(status): {"description": "An error", "content": _json(error)}
            for status in sorted({*post.errors.statuses.values()})
        }
        paths.setdefault(path, {})["post"] = {**_operation(post.summary, errors), "requestBody": body}
        example = post.errors.content(ServiceError("invalid", "what is wrong"), "", "what is wrong")
        schemas[f"{post.errors.name}_error"] = _schema_of(example)
    return {
        "openapi": "3.1.0",
        "info": {"title": "minibert", "version": minibert.__version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(summary: str, errors: dict[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": summary}, **errors}}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _schema_of(example: Any) -> dict[str, Any]:
    if isinstance(example, dict):
        return {"type": "object", "properties": {name: _schema_of(value) for name, value in example.items()}}
    return {"type": {int: "integer", str: "string"}.get(type(example), ["string", "null"])}
