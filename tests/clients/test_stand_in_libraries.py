"""Other libraries' own wrappers of sentence-transformers, on minibert through the stand-in and on the real library."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.client_programs import STAND_IN, assert_close, needs, run_client

pytestmark = pytest.mark.clients


# The distributions that each program needs, and the program.
CLIENTS = {
    "KeyBERT with a model": (
        ("keybert",),
        """
        from keybert import KeyBERT
        from sentence_transformers import SentenceTransformer
        keywords = KeyBERT(model=SentenceTransformer(MODEL)).extract_keywords(TEXTS, top_n=3)
        answer(keywords)
        """,
    ),
    "Chroma": (
        ("chromadb",),
        """
        import chromadb
        from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction
        function = SentenceTransformerEmbeddingFunction(model_name=MODEL)
        collection = chromadb.EphemeralClient().create_collection("texts", embedding_function=function)
        collection.add(ids=[str(i) for i in range(len(TEXTS))], documents=TEXTS)
        found = collection.query(query_texts=["sleeping animals"], n_results=3)
        answer([function(TEXTS), found["ids"], found["distances"]])
        """,
    ),
    "langchain-huggingface": (
        ("langchain-huggingface",),
        """
        from langchain_huggingface import HuggingFaceEmbeddings
        model = HuggingFaceEmbeddings(model_name=MODEL, encode_kwargs={"batch_size": 4}, show_progress=False)
        answer([model.embed_documents(TEXTS), model.embed_query(TEXTS[0])])
        """,
    ),
    "llama-index": (
        ("llama-index-embeddings-huggingface",),
        """
        from llama_index.embeddings.huggingface import HuggingFaceEmbedding
        model = HuggingFaceEmbedding(model_name=MODEL, device="cpu", query_instruction="query: ")
        answer([model.get_text_embedding_batch(TEXTS), model.get_query_embedding(TEXTS[0])])
        """,
    ),
    "txtai": (
        ("txtai",),
        """
        from txtai.embeddings import Embeddings
        index = Embeddings(path=MODEL, method="sentence-transformers", gpu=False, content=False)
        index.index(TEXTS)
        answer([index.search("sleeping animals", 3), index.batchtransform(TEXTS)])
        """,
    ),
    "mteb": (
        ("mteb",),
        """
        import mteb
        from sentence_transformers import SentenceTransformer
        result = mteb.evaluate(SentenceTransformer(MODEL), local_task(), cache=None, co2_tracker=False)
        scores = result.task_results[0].scores["test"][0]
        answer({name: scores[name] for name in ("cosine_spearman", "cosine_pearson", "manhattan_spearman")})
        """,
    ),
    "setfit": (
        ("setfit",),
        """
        from setfit import SetFitModel
        model = SetFitModel.from_pretrained(MODEL, labels=["money", "animals"])
        model.fit(TEXTS, [1, 1, 0, 0, 1, 0, 0, 1], num_epochs=1)
        answer([model.predict_proba(TEXTS), list(model.predict(TEXTS)), model.encode(TEXTS)])
        """,
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_the_answers_are_those_of_the_real_library(name: str, tmp_path: Path, minilm_folder: Path) -> None:
    distributions, program = CLIENTS[name]
    needs(*distributions)
    ours = run_client(program, tmp_path / "minibert", minilm_folder, first=STAND_IN)
    theirs = run_client(program, tmp_path / "theirs", minilm_folder)
    assert ours["texts"] >= 8, "minibert computed nothing"
    assert theirs["texts"] == 0
    assert_close(ours["value"], theirs["value"])
