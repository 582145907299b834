"""Clients of other services, unchanged, against `minibert serve`: the bits of `encode`, errors of their own classes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import CrossEncoder, SentenceTransformer
from minibert.vectors.similarity import quantize_embeddings
from tests.support.client_programs import TEXTS, needs, run_client
from tests.support.sentence_heads import model_folder
from tests.support.served import Served, served

pytestmark = pytest.mark.clients

QUERY = "sleeping animals"
LONG = "word " * 600


@pytest.fixture(scope="module")
def ranker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranker") / "ranker"
    return model_folder(folder, "BertForSequenceClassification", num_labels=1, scale=5)


@pytest.fixture(scope="module")
def service(minilm_folder: Path, ranker_folder: Path) -> Iterator[Served]:
    names = (str(minilm_folder), str(ranker_folder))
    with served(*names, "--json-logs", "--max-client-batch-size", "64", errors=[], MINIBERT_SERVE_API_KEY="k") as one:
        yield one


@pytest.fixture(scope="module")
def expected(minilm_folder: Path) -> np.ndarray:
    return SentenceTransformer(minilm_folder).encode([*TEXTS, LONG, QUERY], truncation="silent")


@pytest.fixture(scope="module")
def scores(ranker_folder: Path) -> np.ndarray:
    return CrossEncoder(ranker_folder).predict([(QUERY, text) for text in TEXTS], activation_fn="Sigmoid")


def client(program: str, folder: Path, service: Served, model: Path) -> Any:
    """Run a program that knows URL, KEY, NAME, TEXTS (with a long one), QUERY, and `error_of(call)`."""
    first = f"""
URL, KEY, NAME, QUERY, LONG = {service.url!r}, "k", {model.name!r}, {QUERY!r}, {LONG!r}
TEXTS = TEXTS + [LONG]
os.environ["HF_HUB_OFFLINE"] = "0"  # with 1 huggingface_hub asks no service, not even one on this machine

def error_of(call):
    try:
        return ["no error", repr(call())]
    except Exception as error:
        return [type(error).__name__, str(error)]
"""
    return run_client(program, folder, model, first=first)["value"]


def assert_same(found: Any, expected: np.ndarray) -> None:
    """Compare bits: what a client gives are float32 numbers, written with the digits that restore them."""
    np.testing.assert_array_equal(np.array(found, dtype=np.float32), expected)


def test_openai(service: Served, tmp_path: Path, minilm_folder: Path, expected: np.ndarray) -> None:
    needs("openai")
    program = """
        import asyncio
        from openai import AsyncOpenAI, OpenAI
        options = {"base_url": URL + "/v1", "max_retries": 0}
        client, wrong = OpenAI(api_key=KEY, **options), OpenAI(api_key="x", **options)
        create = client.embeddings.create
        base64 = create(model=NAME, input=TEXTS)
        floats = create(model=NAME, input=TEXTS, encoding_format="float")
        short = create(model=NAME, input=QUERY, dimensions=8).data[0].embedding

        async def several():
            client = AsyncOpenAI(api_key=KEY, **options)
            answers = await asyncio.gather(*(client.embeddings.create(model=NAME, input=text) for text in TEXTS))
            return [answer.data[0].embedding for answer in answers]

        answer({
            "vectors": [[one.embedding for one in made.data] for made in (base64, floats)],
            "several": asyncio.run(several()),
            "short": short,
            "order": [one.index for one in base64.data],
            "tokens": base64.usage.total_tokens,
            "truncated": base64.model_extra["truncated"],
            "models": [one.id for one in client.models.list()],
            "errors": [
                error_of(lambda: wrong.embeddings.create(model=NAME, input="a")),
                error_of(lambda: create(model="gpt", input="a")),
                error_of(lambda: create(model=NAME, input="a", dimensions=1000)),
                error_of(lambda: create(model=NAME, input=[])),
                error_of(lambda: create(model=NAME, input=["a"] * 65)),
                error_of(lambda: create(model=NAME, input=[[1, 2]])),
                error_of(lambda: create(model=NAME, input=LONG, extra_body={"truncate": False})),
            ],
        })
        """
    found = client(program, tmp_path, service, minilm_folder)
    for vectors in (*found["vectors"], found["several"]):
        assert_same(vectors, expected[:-1])
    model = SentenceTransformer(minilm_folder)
    assert_same(found["short"], model.encode(QUERY, truncate_dim=8, normalize_embeddings=True))
    assert found["order"] == [*range(len(TEXTS) + 1)]
    assert (found["truncated"], found["models"]) == ([len(TEXTS)], [minilm_folder.name, "ranker"])
    assert found["tokens"] == sum(min(256, number) for number in model.num_tokens([*TEXTS, LONG]))
    assert [name for name, _ in found["errors"]] == [
        *("AuthenticationError", "NotFoundError", "BadRequestError", "BadRequestError", "BadRequestError"),
        *("BadRequestError", "BadRequestError"),
    ]
    assert "check_embedding_ctx_length=False" in found["errors"][5][1]
    assert "maximum context length is 256 tokens" in found["errors"][6][1]  # newer versions of the client show no code


# The distribution that a library needs; a program that makes the functions `documents`, `query` and `refused`, the last
# of which gives a wrong key; the error of the latter. The client of TEI takes the body of an error for its answer.
LIBRARIES = {
    "langchain-openai": (
        """
        from langchain_openai import OpenAIEmbeddings
        options = {"model": NAME, "base_url": URL + "/v1", "check_embedding_ctx_length": False, "max_retries": 0}
        embeddings, wrong = OpenAIEmbeddings(api_key=KEY, **options), OpenAIEmbeddings(api_key="x", **options)
        documents, query, refused = embeddings.embed_documents, embeddings.embed_query, wrong.embed_query
        """,
        "AuthenticationError",
    ),
    "llama-index-embeddings-text-embeddings-inference": (
        """
        from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
        options = {"model_name": "BAAI/bge", "base_url": URL, "text_instruction": " ", "query_instruction": " "}
        model = TextEmbeddingsInference(auth_token=KEY, **options)
        wrong = TextEmbeddingsInference(auth_token="x", **options)
        documents, query, refused = model.get_text_embedding_batch, model.get_query_embedding, wrong.get_query_embedding
        """,
        "KeyError",
    ),
    "haystack-ai": (
        """
        from haystack import Document
        from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
        from haystack.utils import Secret
        options = {"api_key": Secret.from_token(KEY), "model": NAME, "api_base_url": URL + "/v1", "max_retries": 0}
        embedder = OpenAIDocumentEmbedder(**options)
        wrong = OpenAITextEmbedder(**{**options, "api_key": Secret.from_token("x")})
        def documents(texts):
            return [one.embedding for one in embedder.run([Document(content=text) for text in texts])["documents"]]
        def query(text): return OpenAITextEmbedder(**options).run(text)["embedding"]
        refused = wrong.run
        """,
        "AuthenticationError",
    ),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library(service: Served, tmp_path: Path, minilm_folder: Path, expected: np.ndarray, library: str) -> None:
    needs(library)
    program, error = LIBRARIES[library]
    program = textwrap.dedent(program) + "answer([documents(TEXTS), query(QUERY), error_of(lambda: refused(QUERY))])"
    documents, query, raised = client(program, tmp_path, service, minilm_folder)
    assert_same([*documents, query], expected)
    assert raised[0] == error


def test_huggingface_hub(service: Served, tmp_path: Path, minilm_folder: Path, expected: np.ndarray) -> None:
    needs("huggingface-hub")
    program = """
        from huggingface_hub import InferenceClient
        client, wrong = InferenceClient(URL, token=KEY), InferenceClient(URL, token="x")
        vectors = [client.feature_extraction(text, truncate=True)[0] for text in TEXTS]
        answer([vectors, client.feature_extraction(QUERY, normalize=True)[0],
                client.sentence_similarity(QUERY, other_sentences=TEXTS),
                error_of(lambda: wrong.feature_extraction(QUERY)),
                error_of(lambda: client.feature_extraction(QUERY, prompt_name="none"))])
        """
    vectors, query, similarities, unknown, invalid = client(program, tmp_path, service, minilm_folder)
    assert_same([*vectors, query], expected)
    np.testing.assert_allclose(similarities, expected[:-1] @ expected[-1], atol=1e-6)
    assert (unknown[0], invalid[0]) == ("HfHubHTTPError", "HfHubHTTPError")
    assert "401" in unknown[1]
    assert "prompt_name 'none' is not a prompt" in invalid[1]


def test_tei_client(
    service: Served, tmp_path: Path, minilm_folder: Path, ranker_folder: Path, expected: np.ndarray, scores: np.ndarray
) -> None:
    """The client asks /info what the model does, so a model that scores is the only one of its service."""
    needs("tei-client")
    program = """
        import asyncio
        from tei_client import HttpClient
        from tei_client.models import TruncationDirection
        client = HttpClient(URL, headers={"Authorization": "Bearer " + KEY})
        tokens = client.tokenize(TEXTS[0])[0]
        vectors = client.embed(TEXTS, truncate=True)
        again = asyncio.run(client.async_embed([QUERY]))
        answer([vectors, again[0], client.health(), tokens.get_ids(), client.decode(tokens.get_ids()),
                client.embed(LONG), HttpClient(URL).health()])
        """
    vectors, query, health, ids, text, refused, closed = client(program, tmp_path / "a", service, minilm_folder)
    assert_same([*vectors, query], expected)
    tokenizer = SentenceTransformer(minilm_folder).tokenizer
    assert (health, closed, ids) == (True, False, tokenizer.encode(TEXTS[0]))
    assert text == [tokenizer.decode(ids, skip_special_tokens=True)]
    assert "Given: 602" in refused["error"]  # it gives the body of an error as the answer
    program = """
        from tei_client import HttpClient
        client = HttpClient(URL)
        ranks = client.rerank(QUERY, TEXTS[:-1]).ranks
        answer([[[one.index, one.score] for one in ranks], client.info().server_model_type.value])
        """
    with served(str(ranker_folder)) as running:
        ranks, kind = client(program, tmp_path / "b", running, minilm_folder)
    assert_same([score for _, score in sorted(ranks)], scores)
    assert kind == "reranker"


def test_ollama(service: Served, tmp_path: Path, minilm_folder: Path, expected: np.ndarray) -> None:
    """A name with the tag "latest" is the same model, as in Ollama; a text that is cut is not a field of the client."""
    needs("ollama")
    program = """
        from ollama import Client
        key, wrong = {"Authorization": "Bearer " + KEY}, {"Authorization": "Bearer x"}
        client, other = Client(host=URL, headers=key), Client(host=URL, headers=wrong)
        embed = client.embed
        made = embed(model=NAME, input=TEXTS, keep_alive="5m")
        answer([made.embeddings, embed(model=NAME + ":latest", input=QUERY).embeddings[0],
                client.embeddings(model=NAME, prompt=QUERY).embedding,
                [made.model, [one.model for one in client.list().models], made.prompt_eval_count],
                error_of(lambda: other.embed(model=NAME, input="a")),
                error_of(lambda: embed(model=NAME + ":v1", input="a")),
                error_of(lambda: embed(model=NAME, input=LONG, truncate=False)),
                error_of(lambda: embed(model=NAME, input="a", dimensions=1000))])
        """
    documents, query, old, (name, names, tokens), *errors = client(program, tmp_path, service, minilm_folder)
    assert_same([*documents, query], expected)
    assert_same(old, expected[-1])
    assert (name, names) == (minilm_folder.name, [f"{minilm_folder.name}:latest", "ranker:latest"])
    assert tokens == sum(min(256, number) for number in SentenceTransformer(minilm_folder).num_tokens([*TEXTS, LONG]))
    assert [kind for kind, _ in errors] == ["ResponseError"] * 4
    assert [text.partition("status code: ")[2][:3] for _, text in errors] == ["401", "404", "400", "400"]


def test_cohere(service: Served, tmp_path: Path, minilm_folder: Path, expected: np.ndarray, scores: np.ndarray) -> None:
    needs("cohere")
    program = """
        import base64
        import cohere
        options = {"base_url": URL, "max_retries": 0}
        client, wrong = cohere.ClientV2(KEY, **options), cohere.ClientV2("x", **options)
        given = {"model": NAME, "input_type": "search_document", "embedding_types": ["float", "base64", "ubinary"]}
        made = client.embed(texts=TEXTS, **given).embeddings
        untyped = client.embed(texts=[QUERY], model=NAME, input_type="search_query").embeddings
        old = cohere.Client(KEY, **options).embed(texts=[QUERY], model=NAME, input_type="search_query")
        ranked = client.rerank(model="ranker", query=QUERY, documents=TEXTS[:-1])
        decoded = [np.frombuffer(base64.b64decode(row), np.float32) for row in made.base64]
        answer([[*made.float_, *untyped.float_], decoded, made.ubinary,
                old.embeddings, [[one.index, one.relevance_score] for one in ranked.results],
                error_of(lambda: wrong.embed(texts=["a"], **given)),
                error_of(lambda: client.embed(texts=["a"], **{**given, "model": "none"})),
                error_of(lambda: client.embed(texts=["a"], **{**given, "embedding_types": ["int8"]})),
                error_of(lambda: client.embed(texts=[LONG], truncate="NONE", **given))])
        """
    floats, base64, bits, query, ranked, *errors = client(program, tmp_path, service, minilm_folder)
    assert_same(floats, expected)
    assert_same(query, expected[-1:])
    assert_same(base64, expected[:-1])
    np.testing.assert_array_equal(bits, quantize_embeddings(expected[:-1], "ubinary"))
    assert_same([score for _, score in sorted(ranked)], scores)
    kinds = ["UnauthorizedError", "NotFoundError", "BadRequestError", "BadRequestError"]
    assert [kind for kind, _ in errors] == kinds
