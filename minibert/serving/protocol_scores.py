"""Scores of labels, in text-embeddings-inference's protocol, and ranks, also in Cohere's and Jina's.

Sources: text-embeddings-inference 1.9, router/src/http/types.rs and server.rs; Cohere's API reference, "Rerank".
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.serving import answers, wire
from minibert.serving.classifier import ScoreOptions
from minibert.serving.engine import Engine
from minibert.serving.settings import ServiceError
from minibert.serving.work import Post, Work, notes_of, truncation_of, work_of

__all__ = ["POSTS", "predict", "rerank"]


def predict(engine: Engine, body: bytes, accept: str) -> Work:
    """Read a request for the scores of labels."""
    request, ignored = wire.decode(body, wire.PredictRequest)
    served = engine.models.classifier(request.model)
    inputs, single = wire.read_pairs(request.inputs, "inputs")
    options = _score_options(request, "raw" if request.raw_scores else "labels", "inputs")
    labels = served.labels

    def write(scores: FloatArray) -> bytes:
        rows = [[{"score": row[i], "label": labels[i]} for i in np.argsort(-row, kind="stable")] for row in scores]
        return answers.dump(rows[0] if single else rows)

    return work_of(served.prepare(inputs, options, engine.settings), write, ignored)


def rerank(engine: Engine, body: bytes, accept: str) -> Work:
    """Read a request for the order of texts."""
    request, ignored = wire.decode(body, wire.RerankRequest)
    served = engine.models.classifier(request.model, for_ranking=True)
    if (request.texts is None) == (request.documents is None):
        raise ServiceError("invalid", "the body needs texts or documents, and not both.", param="texts")
    theirs = request.texts is not None
    field = "texts" if theirs else "documents"
    texts = request.texts or [one if isinstance(one, str) else one.text for one in request.documents or ()]
    if not texts:
        raise ServiceError("empty", f"{field} is an empty list; expected at least one text.", param=field)
    if request.top_n is not None and request.top_n < 1:
        raise ServiceError("invalid", f"top_n is {request.top_n}; expected a number from 1.", param="top_n")
    options = _score_options(request, "raw" if request.raw_scores else "rank", field)
    prepared = served.prepare([(request.query, text) for text in texts], options, engine.settings)
    shown = request.return_text or request.return_documents
    report = prepared.report

    def write(scores: FloatArray) -> bytes:
        flat = scores[:, 0]
        order = np.argsort(-flat, kind="stable")[: request.top_n]
        if theirs:
            return answers.dump(
                [{"index": i, "score": flat[i], **({"text": texts[i]} if shown else {})} for i in order]
            )
        total = sum(report.n_tokens)
        results = [
            {"index": i, "relevance_score": flat[i], **({"document": {"text": texts[i]}} if shown else {})}
            for i in order
        ]
        rest: dict[str, Any] = {"model": served.name, "usage": {"prompt_tokens": total, "total_tokens": total}}
        rest |= notes_of(report, ignored)
        meta = {"billed_units": {"search_units": 1}}
        return answers.dump({"id": uuid.uuid4().hex, "object": "rerank", "results": results, **rest, "meta": meta})

    return work_of(prepared, write, ignored)


def _score_options(request: wire.PredictRequest | wire.RerankRequest, scores: str, field: str) -> ScoreOptions:
    return ScoreOptions(scores=scores, field=field, low=request.priority == "low", **truncation_of(request))


_RERANK = Post("openai", "documents", (wire.RerankRequest,), rerank, "Sort texts by how well they answer a query")
POSTS: Mapping[str, Post] = {
    "/predict": Post("tei", "inputs", (wire.PredictRequest,), predict, "Turn texts or pairs into scores of labels"),
    "/rerank": Post("tei", "texts", (wire.RerankRequest,), rerank, "Sort texts by how well they answer a query"),
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
}
