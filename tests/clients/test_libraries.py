"""Other libraries on minibert: the answers are those of the real sentence-transformers."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from minibert import SentenceTransformer
from tests.support import rerankers
from tests.support.client_programs import MINIBERT, STAND_IN, TEXTS, assert_close, needs, run_client
from tests.support.sentence_heads import SEQUENCE, model_folder

pytestmark = pytest.mark.clients

REAL = "from sentence_transformers import SentenceTransformer; model = SentenceTransformer(MODEL, device='cpu')"

# The distributions that a program needs; the program; what comes before it with minibert, and with the real library.
# Without the last two it runs on the stand-in.
CLIENTS: dict[str, tuple[Any, ...]] = {
    "KeyBERTBackend": (
        ("keybert",),
        """
        from keybert import KeyBERT
        answer(KeyBERT(model=model).extract_keywords(" ".join(TEXTS), keyphrase_ngram_range=(1, 2), use_mmr=True))
        """,
        f"{MINIBERT}\nfrom minibert.integrations import KeyBERTBackend; model = KeyBERTBackend(MODEL)",
        REAL,
    ),
    "BERTopicBackend": (
        ("bertopic",),
        """
        from bertopic import BERTopic
        from sklearn.cluster import KMeans
        from sklearn.decomposition import PCA
        topics = BERTopic(embedding_model=model, umap_model=PCA(2, random_state=0),
                          hdbscan_model=KMeans(3, random_state=0), verbose=True)
        found, _ = topics.fit_transform(TEXTS)
        topics.save("topics", serialization="pickle")
        again = BERTopic.load("topics")
        answer([found, topics.topic_embeddings_, again.find_topics("animals", top_n=2), again.transform(TEXTS)[0]])
        """,
        f"{MINIBERT}\nfrom minibert.integrations import BERTopicBackend; model = BERTopicBackend(MODEL)",
        REAL,
    ),
    "LangChainEmbeddings": (
        ("langchain-core",),
        """
        from langchain_core.documents import Document
        from langchain_core.vectorstores import InMemoryVectorStore
        documents = [Document(page_content=text, id=str(i)) for i, text in enumerate(TEXTS)]
        store = InMemoryVectorStore.from_documents(documents, embeddings)
        found = store.similarity_search_with_score("sleeping animals", k=3)
        answer([[document.page_content, score] for document, score in found])
        """,
        f"""
{MINIBERT}
from minibert.integrations import LangChainEmbeddings
embeddings = LangChainEmbeddings(MODEL)
""",
        """
from langchain_core.embeddings import Embeddings
from sentence_transformers import SentenceTransformer
class Theirs(Embeddings):
    model = SentenceTransformer(MODEL, device="cpu")
    def embed_documents(self, texts): return self.model.encode_document(texts).tolist()
    def embed_query(self, text): return self.model.encode_query(text).tolist()
embeddings = Theirs()
""",
    ),
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
    distributions, program, *how = CLIENTS[name]
    ours, theirs = how or (STAND_IN, "")
    needs(*distributions)
    found = run_client(program, tmp_path / "minibert", minilm_folder, first=ours)
    expected = run_client(program, tmp_path / "theirs", minilm_folder, first=theirs)
    assert found["texts"] >= len(TEXTS), "minibert computed nothing"
    assert expected["texts"] == 0
    assert_close(found["value"], expected["value"], atol=1e-5 if "langchain-core" in distributions else 2e-6)


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
        (empty,) = HaystackDocumentEmbedder(MODEL).run([Document(content=None)])["documents"]
        vectors, contents = [d.embedding for d in documents], [d.content for d in found]
        answer([vectors, contents, again, empty.embedding])
        """
    vectors, found, again, empty = run_client(program, tmp_path, minilm_folder)["value"]
    model = SentenceTransformer(minilm_folder)
    assert_close(vectors, model.encode_document(TEXTS).tolist())
    assert_close(again, model.encode_query(TEXTS[0]).tolist())
    assert set(found) == {"The kitten naps on the mat.", "A cat sleeps."}
    assert_close(empty, model.encode_document("").tolist())


RERANKED = """
    import warnings
    warnings.simplefilter("error")
    from minibert import CrossEncoder
    expected = [[one["corpus_id"], one["score"]] for one in CrossEncoder(MODEL).rank("cats", TEXTS, 3)]
    """


def test_haystack_ranks(tmp_path: Path) -> None:
    needs("haystack-ai")
    folder = model_folder(tmp_path / "pairs", SEQUENCE, num_labels=1, scale=20.0)
    program = f"""{RERANKED}
    from haystack import Document, Pipeline
    from minibert.integrations import HaystackRanker
    documents = [Document(content=text, meta={{"number": i}}) for i, text in enumerate(TEXTS)]
    pipeline = Pipeline()
    pipeline.add_component("ranker", HaystackRanker(MODEL, top_k=3, predict_options={{"truncation": "silent"}}))
    pipeline = Pipeline.loads(pipeline.dumps(), allowed_modules=["minibert.integrations.haystack"])
    given = {{"query": "cats", "documents": [*documents, documents[0]]}}
    found = pipeline.run({{"ranker": given}})["ranker"]["documents"]
    ranker = HaystackRanker(CrossEncoder(MODEL), top_k=None, meta_fields_to_embed=["number"], embedding_separator=" ")
    every = ranker.run("cats", documents)["documents"]
    best = ranker.run("cats", documents, score_threshold=every[1].score)["documents"]
    texts = [f"{{i}} {{text}}" for i, text in enumerate(TEXTS)]
    with_meta = [one["score"] for one in CrossEncoder(MODEL).rank("cats", texts)]
    pairs = [[one.meta["number"], one.score] for one in found]
    first, nothing = (ranker.run("cats", some, top_k=1)["documents"] for some in (documents, []))
    scores = [one.score for one in every]
    answer([pairs == expected, scores == with_meta, len(best), nothing, first == every[:1], documents[0].score])
    """
    assert run_client(program, tmp_path, folder)["value"] == [True, True, 2, [], True, None]


def test_haystacks_own_ranker_answers_the_same(tmp_path: Path) -> None:
    needs("haystack-ai", "sentence-transformers-haystack")
    folder = model_folder(tmp_path / "pairs", SEQUENCE, num_labels=1, scale=20.0)
    theirs = """
    from haystack_integrations.components.rankers.sentence_transformers import SentenceTransformersSimilarityRanker
    THEIRS = (SentenceTransformersSimilarityRanker,)
    """
    program = f"{rerankers.HAYSTACK}answer(len(expected))"
    assert run_client(program, tmp_path, folder, first=textwrap.dedent(theirs))["value"] == 100


def test_langchains_own_reranker_answers_the_same(tmp_path: Path) -> None:
    needs("langchain-core", "langchain-classic")
    folder = model_folder(tmp_path / "pairs", SEQUENCE, num_labels=1, scale=20.0)
    theirs = """
    from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
    from langchain_classic.retrievers.document_compressors.cross_encoder import BaseCrossEncoder

    def reranker(model, top_n):
        class Scores(BaseCrossEncoder):
            def score(self, pairs):
                return model.predict(pairs)

        return CrossEncoderReranker(model=Scores(), top_n=top_n)

    THEIRS = (reranker,)
    """
    program = f"{rerankers.LANGCHAIN}answer(len(documents))"
    assert run_client(program, tmp_path, folder, first=textwrap.dedent(theirs))["value"] == 76


def test_langchain_reranks(tmp_path: Path) -> None:
    needs("langchain-core", "langchain-classic")
    folder = model_folder(tmp_path / "pairs", SEQUENCE, num_labels=1, scale=20.0)
    program = f"""{RERANKED}
    import asyncio
    from langchain_classic.retrievers import ContextualCompressionRetriever
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from minibert.integrations import LangChainReranker
    class All(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            return [Document(page_content=text, metadata={{"number": i}}) for i, text in enumerate(TEXTS)]
    reranker = LangChainReranker(MODEL, truncation="silent")
    found = ContextualCompressionRetriever(base_compressor=reranker, base_retriever=All()).invoke("cats")
    every = LangChainReranker(CrossEncoder(MODEL), top_n=None)
    later = asyncio.run(every.acompress_documents(All().invoke(""), "cats"))
    refused = []
    for options in ({{"top_n": 0}}, {{"nonsense": 1}}):
        try: LangChainReranker(MODEL, **options)
        except (TypeError, ValueError) as error: refused.append(str(error))
    pairs = [[one.metadata["number"], one.metadata["relevance_score"]] for one in found]
    answer([pairs == expected, len(later), reranker.compress_documents([], "cats"), refused])
    """
    same, count, nothing, refused = run_client(program, tmp_path, folder)["value"]
    assert (same, count, nothing) == (True, len(TEXTS), [])
    assert "top_k=0" in refused[0]
    assert "nonsense" in refused[1]


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
