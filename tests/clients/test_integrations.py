"""The other classes of minibert.integrations, used by the libraries that they are for."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from minibert import SentenceTransformer
from tests.support.client_programs import MINIBERT, TEXTS, assert_close, needs, run_client

pytestmark = pytest.mark.clients

# A use of `model`; the class of minibert; the same with the real sentence-transformers.
KEYBERT = """
    from keybert import KeyBERT
    answer(KeyBERT(model=model).extract_keywords(" ".join(TEXTS), keyphrase_ngram_range=(1, 2), use_mmr=True))
    """
BERTOPIC = """
    from bertopic import BERTopic
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    topics = BERTopic(embedding_model=model, umap_model=PCA(2, random_state=0),
                      hdbscan_model=KMeans(3, random_state=0), verbose=True)
    found, _ = topics.fit_transform(TEXTS)
    topics.save("topics", serialization="pickle")
    again = BERTopic.load("topics")
    answer([found, topics.topic_embeddings_, again.find_topics("animals", top_n=2), again.transform(TEXTS)[0]])
    """
REAL = "from sentence_transformers import SentenceTransformer; model = SentenceTransformer(MODEL, device='cpu')"


@pytest.mark.parametrize(
    ("distribution", "ours", "program"),
    [
        ("keybert", "from minibert.integrations import KeyBERTBackend; model = KeyBERTBackend(MODEL)", KEYBERT),
        ("bertopic", "from minibert.integrations import BERTopicBackend; model = BERTopicBackend(MODEL)", BERTOPIC),
    ],
)
def test_the_library_uses_the_given_model(
    distribution: str, ours: str, program: str, tmp_path: Path, minilm_folder: Path
) -> None:
    """The answers are those of the real sentence-transformers, and minibert computed the texts."""
    needs(distribution)
    found = run_client(program, tmp_path / "minibert", minilm_folder, first=f"{MINIBERT}\n{ours}")
    expected = run_client(program, tmp_path / "theirs", minilm_folder, first=REAL)
    assert found["texts"] >= len(TEXTS)
    assert_close(found["value"], expected["value"])


@pytest.mark.parametrize(
    ("distribution", "use"),
    [
        ("keybert", "from keybert import KeyBERT; KeyBERT(model=model).extract_keywords(TEXTS[0])"),
        ("bertopic", "from bertopic import BERTopic; BERTopic(embedding_model=model).fit(TEXTS)"),
    ],
)
def test_a_model_that_is_given_directly_is_not_replaced_silently(
    distribution: str, use: str, tmp_path: Path, minilm_folder: Path
) -> None:
    """Without the backend there is an error."""
    needs(distribution)
    program = f"""
        from minibert import SentenceTransformer
        model = SentenceTransformer(MODEL)
        try:
            {use}
        except (ValueError, ImportError) as error:
            answer(str(error))
        """
    assert "select a correct SentenceTransformers model" in run_client(program, tmp_path / "a", minilm_folder)["value"]


def test_haystack(tmp_path: Path, minilm_folder: Path) -> None:
    needs("haystack-ai")
    program = """
        from haystack import Document, Pipeline
        from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
        from haystack.document_stores.in_memory import InMemoryDocumentStore
        from minibert.integrations import HaystackDocumentEmbedder, HaystackTextEmbedder
        store = InMemoryDocumentStore(embedding_similarity_function="cosine")
        documents = HaystackDocumentEmbedder(MODEL).run([Document(content=text) for text in TEXTS])["documents"]
        store.write_documents(documents)
        pipeline = Pipeline()
        pipeline.add_component("text", HaystackTextEmbedder(MODEL, encode_options={"truncate_dim": None}))
        pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=2))
        pipeline.connect("text.embedding", "retriever.query_embedding")
        found = pipeline.run({"text": {"text": "sleeping animals"}})["retriever"]["documents"]
        alone = Pipeline()
        alone.add_component("text", HaystackTextEmbedder(MODEL))
        loaded = Pipeline.loads(alone.dumps(), allowed_modules=["minibert.integrations.haystack"])
        again = loaded.run({"text": {"text": TEXTS[0]}})["text"]["embedding"]
        try:
            HaystackDocumentEmbedder(MODEL).run([Document(content=None)])
        except TypeError as error:
            refused = str(error)
        vectors, contents = [d.embedding for d in documents], [d.content for d in found]
        answer([vectors, contents, again, refused])
        """
    vectors, found, again, refused = run_client(program, tmp_path, minilm_folder)["value"]
    model = SentenceTransformer(minilm_folder)
    assert_close(vectors, model.encode_document(TEXTS).tolist())
    assert_close(again, model.encode_query(TEXTS[0]).tolist())
    assert set(found) == {"The kitten naps on the mat.", "A cat sleeps."}
    assert "inputs[0] is a NoneType" in refused


def test_chroma_opens_a_collection_again_in_another_process(tmp_path: Path, minilm_folder: Path) -> None:
    needs("chromadb")
    write = """
        import chromadb
        from minibert.integrations import ChromaEmbeddingFunction
        collection = chromadb.PersistentClient("database").create_collection(
            "texts", embedding_function=ChromaEmbeddingFunction(MODEL, encode_options={"normalize_embeddings": True}))
        collection.add(ids=[str(i) for i in range(len(TEXTS))], documents=TEXTS)
        answer(collection.query(query_texts=["sleeping animals"], n_results=3)["ids"])
        """
    written = run_client(write, tmp_path, minilm_folder)["value"]  # the same folder, so the same database
    for imports in (
        "import minibert.integrations.chroma, chromadb",
        "import chromadb, minibert.integrations.chroma",
        "import chromadb; from minibert.integrations import ChromaEmbeddingFunction",
    ):
        read = f"""
            {imports}
            count()
            collection = chromadb.PersistentClient("database").get_collection("texts")
            answer(collection.query(query_texts=["sleeping animals"], n_results=3)["ids"])
            """
        again = run_client(textwrap.dedent(read), tmp_path, minilm_folder)
        assert again["value"] == written, imports
        assert again["texts"] >= 1, imports
