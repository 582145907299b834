"""The routes that take a body. What each one does is in the module of its protocol; there is no HTTP in them."""

from __future__ import annotations

from collections.abc import Mapping

from minibert.serving.protocols import bert, cohere, ollama, openai, tei
from minibert.serving.protocols.base import Errors, Post

__all__ = ["POSTS", "errors_of"]

POSTS: Mapping[str, Post] = {**openai.POSTS, **cohere.POSTS, **ollama.POSTS, **tei.POSTS, **bert.POSTS}


def errors_of(path: str) -> Errors:
    """Return the shape of the errors of a path, also of one that is not a route for bodies."""
    if path in POSTS:
        return POSTS[path].errors
    return ollama.ERRORS if path.startswith("/api/") else tei.ERRORS if path == "/info" else openai.ERRORS
