"""Uses of LangChain's `Embeddings`: `LangChainEmbeddings`, and a subclass over the real sentence-transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.client_programs import MINIBERT, assert_close, needs, run_client

pytestmark = pytest.mark.clients

OURS = f"""
{MINIBERT}
from minibert.integrations import LangChainEmbeddings
embeddings = LangChainEmbeddings(MODEL)
"""
THEIRS = """
from langchain_core.embeddings import Embeddings
from sentence_transformers import SentenceTransformer
class Theirs(Embeddings):
    model = SentenceTransformer(MODEL, device="cpu")
    def embed_documents(self, texts): return self.model.encode_document(texts).tolist()
    def embed_query(self, text): return self.model.encode_query(text).tolist()
embeddings = Theirs()
"""
DOCUMENTS = """
from langchain_core.documents import Document
documents = [Document(page_content=text, id=str(i)) for i, text in enumerate(TEXTS)]
def texts_of(documents): return [document.page_content for document in documents]
"""
QUERY = "sleeping animals"

# Each use: the distributions that it needs besides langchain-core, and the program.
USES = {
    "a pydantic field": (
        (),
        """
        from langchain_core.embeddings import Embeddings
        from pydantic import BaseModel, ConfigDict
        class Holder(BaseModel):
            model_config = ConfigDict(arbitrary_types_allowed=True)
            value: Embeddings
        answer([isinstance(embeddings, Embeddings), Holder(value=embeddings).value.embed_query(TEXTS[0])])
        """,
    ),
    "InMemoryVectorStore": (
        (),
        """
        from langchain_core.vectorstores import InMemoryVectorStore
        store = InMemoryVectorStore.from_documents(documents, embeddings)
        found = store.similarity_search_with_score(QUERY, k=3)
        answer([[document.page_content, score] for document, score in found])
        """,
    ),
    "FAISS": (
        ("langchain-community", "faiss-cpu"),
        """
        from langchain_community.vectorstores import FAISS
        store = FAISS.from_documents(documents, embeddings)
        store.save_local("index")
        store = FAISS.load_local("index", embeddings, allow_dangerous_deserialization=True)
        answer([[document.page_content, score] for document, score in store.similarity_search_with_score(QUERY, k=3)])
        """,
    ),
}


@pytest.mark.parametrize("name", USES)
def test_a_use_of_embeddings(name: str, tmp_path: Path, minilm_folder: Path) -> None:
    distributions, program = USES[name]
    needs("langchain-core", *distributions)
    setup = f"{DOCUMENTS}\nQUERY = {QUERY!r}\n"
    ours = run_client(program, tmp_path / "minibert", minilm_folder, first=OURS + setup)
    theirs = run_client(program, tmp_path / "theirs", minilm_folder, first=THEIRS + setup)
    assert ours["texts"] > 0
    assert_close(ours["value"], theirs["value"], atol=1e-5)
