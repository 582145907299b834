"""The protocols: each one is a module here, and its `PROTOCOL` is in the tuple."""

from __future__ import annotations

from minibert.serving.protocols import bert_as_service, cohere, hidden_states, jina, ollama, openai, tei

PROTOCOLS = tuple(module.PROTOCOL for module in (openai, cohere, jina, ollama, tei, bert_as_service, hidden_states))
"""The errors of the first one are also those of paths that belong to no protocol."""
