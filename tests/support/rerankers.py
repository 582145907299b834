"""What the rankers of Haystack and LangChain make of documents: found with the libraries, and held by the default run.

`pytest -m clients tests/clients/test_libraries.py` compares the tables with the libraries, and minibert with both.
"""

from __future__ import annotations

import datetime
from typing import Any

# A value of `meta` -> the text that Haystack 3.4.1 (sentence-transformers-haystack 2.0) puts before the content.
# "" puts nothing but the separator; None leaves the field out.
META: list[tuple[Any, str | None]] = [
    (None, None),
    (0, "0"),
    (0.0, "0.0"),
    (False, "False"),
    (True, "True"),
    ("", ""),
    (" ", " "),
    ("the cat", "the cat"),
    ("None", "None"),
    (1998, "1998"),
    (2.5, "2.5"),
    (float("nan"), "nan"),
    ([], "[]"),
    ({}, "{}"),
    ((), "()"),
    (["the", "dog"], "['the', 'dog']"),
    ({"year": 0}, "{'year': 0}"),
    (b"", "b''"),
    (datetime.date(2026, 1, 2), "2026-01-02"),
]

# The scores of documents with one id -> the index of the document that remains.
ONE_ID: list[tuple[list[float | None], int]] = [
    ([None, None, None], 0),
    ([0.1, 0.9, 0.5], 1),
    ([0.5, 0.5, 0.1], 0),
    ([None, -3.0, None], 1),
    ([-3.0, None, -2.0], 2),
    ([0.0, None, 0.0], 0),
    ([float("nan"), 1.0, None], 0),
    ([1.0, float("nan"), 2.0], 2),
]

# The least of haystack that minibert's classes use, for where it is not installed.
FAKE_HAYSTACK = """
import dataclasses

@dataclasses.dataclass
class Document:
    content: str | None = None
    id: str = ""
    meta: dict = dataclasses.field(default_factory=dict)
    score: float | None = None
    embedding: list | None = None

def component(cls):
    return cls

component.output_types = lambda **types: lambda function: function
"""

FAKE_LANGCHAIN = """
import dataclasses

@dataclasses.dataclass
class Document:
    page_content: str
    id: str | None = None
    metadata: dict = dataclasses.field(default_factory=dict)

    def model_copy(self, update):
        return dataclasses.replace(self, **update)

class BaseDocumentCompressor:
    def __init__(self, **fields):
        vars(self).update(fields)
"""

# Compares minibert's classes with the tables; with THEIRS also the libraries' own rankers.
HAYSTACK = """
import json
from haystack import Document
from minibert import CrossEncoder
from minibert.integrations import HaystackRanker
from tests.support.rerankers import META, ONE_ID

texts = ["the cat sat", "the dog ran", "a cat", None, ""]
documents, expected = [], {}
for row, (value, shown) in enumerate([*META, ("absent", None)]):
    for column, content in enumerate(texts):
        meta = {} if value == "absent" else {"field": value, "other": "the"}
        fields = [*([] if shown is None else [shown]), *(["the"] if "other" in meta else [])]
        documents.append(Document(id=f"{row}-{column}", content=content, meta=meta))
        expected[documents[-1].id] = "\\n".join([*fields, content or ""])
options = dict(top_k=1000, meta_fields_to_embed=["field", "other"])
query = "where is the cat"
scores = CrossEncoder(MODEL).predict([(query, text) for text in expected.values()])
right = dict(zip(expected, map(float, scores)))
for make in (HaystackRanker, *THEIRS):
    found = make(model=MODEL, **options).run(query=query, documents=documents)["documents"]
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert {one.id for one in found} == {*right}
    for one in found:
        assert abs(one.score - right[one.id]) < (1e-6 if THEIRS else 1e-12), (make, expected[one.id], one.score)
    for given, kept in ONE_ID:
        same = [Document(id="a", content=f"the cat {i}", score=score) for i, score in enumerate(given)]
        (one,) = make(model=MODEL).run(query=query, documents=same)["documents"]
        assert one.content == f"the cat {kept}", (make, given)
print("equal", len(expected), len({*right.values()}) > 40)
"""

LANGCHAIN = """
from langchain_core.documents import Document
from minibert import CrossEncoder
from minibert.integrations import LangChainReranker
from tests.support.rerankers import META

def shown(documents):
    return [(one.page_content, one.id, {**one.metadata, "relevance_score": None}) for one in documents]

model, query = CrossEncoder(MODEL), "where is the cat"
texts = ["the cat sat", "the dog ran", "a cat", ""]
documents = [
    Document(page_content=text, id="a", metadata={"field": value, "relevance_score": value})
    for value, _ in META
    for text in texts
]
before = repr(documents)
scores = model.predict([(query, one.page_content) for one in documents])
order = sorted(range(len(documents)), key=lambda i: scores[i], reverse=True)
ours = LangChainReranker(model, top_n=None).compress_documents(documents, query)
assert repr(shown(ours)) == repr(shown([documents[i] for i in order]))
assert [one.metadata["relevance_score"] for one in ours] == [float(scores[i]) for i in order]
for make in THEIRS:
    theirs = make(model, len(documents)).compress_documents(documents, query)
    assert repr(shown(ours)) == repr(shown(theirs))
assert repr(documents) == before
print("equal", len(documents))
"""
