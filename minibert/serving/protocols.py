"""The routes that take a body. What each one does is in the module of its protocol; there is no HTTP in them."""

from __future__ import annotations

from collections.abc import Mapping

from minibert.serving import (
    protocol_bert,
    protocol_cohere,
    protocol_ollama,
    protocol_openai,
    protocol_scores,
    protocol_tei,
)
from minibert.serving.work import Post

__all__ = ["POSTS", "family_of"]

POSTS: Mapping[str, Post] = {
    **protocol_openai.POSTS,
    **protocol_cohere.POSTS,
    **protocol_ollama.POSTS,
    **protocol_tei.POSTS,
    **protocol_scores.POSTS,
    **protocol_bert.POSTS,
}


def family_of(path: str) -> str:
    """Return the protocol whose errors a path gets, also one that is not a route for bodies."""
    if path in POSTS:
        return POSTS[path].family
    return "ollama" if path.startswith("/api/") else "tei" if path == "/info" else "openai"
