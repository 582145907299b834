"""scikit-learn with the real package; the others by the methods that they call, and small base classes made here."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import pickle
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.utils.validation import check_is_fitted

from minibert import SentenceTransformer
from minibert.encode.options import EncodeOptions
from minibert.integrations import ChromaEmbeddingFunction, LangChainEmbeddings
from minibert.scikit import MinibertTransformer
from tests.support import rerankers
from tests.support.checkpoints import sentence_model
from tests.support.outcomes import printed
from tests.support.sentence_heads import SEQUENCE, model_folder

TEXTS = ["A cat sleeps.", "The kitten naps.", "A dog barks.", "Stocks fell.", "Rates rise.", "Bonds"]


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return SentenceTransformer().encode(TEXTS)


def test_transform_is_encode(vectors: np.ndarray) -> None:
    transformer = MinibertTransformer()
    np.testing.assert_array_equal(transformer.fit_transform(TEXTS), vectors)
    np.testing.assert_array_equal(transformer.transform(np.array(TEXTS)), vectors)
    np.testing.assert_array_equal(transformer.transform(pandas.Series(TEXTS)), vectors)
    check_is_fitted(MinibertTransformer())
    assert transformer.get_feature_names_out()[[0, -1]].tolist() == ["minibert0", "minibert383"]
    short = MinibertTransformer(truncate_dim=8, pooling=["cls", "mean"], layers=[-1, -2])
    assert short.transform(TEXTS).shape == (6, 8)
    assert len(short.get_feature_names_out()) == 8


def test_the_options_and_defaults_are_those_of_encode() -> None:
    for field in dataclasses.fields(EncodeOptions):
        for way in (SentenceTransformer.encode, MinibertTransformer):
            assert inspect.signature(way).parameters[field.name].default == field.default, field.name
    assert EncodeOptions(layers=iter([1, 2])).layers == (1, 2)  # they can be read again


def test_clone_pickle_and_changed_parameters(tmp_path: Path, vectors: np.ndarray) -> None:
    transformer = MinibertTransformer(layers=[-1], truncation="silent")
    transformer.transform(TEXTS)
    copied = clone(transformer)
    assert copied.get_params() == transformer.get_params()
    assert not hasattr(copied, "_loaded")
    pickled = pickle.dumps(transformer)
    assert len(pickled) < 2000  # the weights are 90 MB
    np.testing.assert_array_equal(pickle.loads(pickled).transform(TEXTS), vectors)
    folder = sentence_model(tmp_path / "model")
    transformer.set_params(model_name_or_path=str(folder))
    np.testing.assert_array_equal(transformer.transform(["the cat"]), SentenceTransformer(folder).encode(["the cat"]))


def test_columns_of_tables(vectors: np.ndarray, prompted: Path) -> None:
    frame = MinibertTransformer().set_output(transform="pandas").fit_transform(pandas.Series(TEXTS, index=range(1, 7)))
    assert (frame.columns[0], list(frame.index)) == ("minibert0", [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(frame.to_numpy(), vectors)
    table, transformer = pandas.DataFrame({"text": TEXTS, "year": range(6)}), MinibertTransformer(str(prompted))
    columns = ColumnTransformer([("vectors", transformer, "text"), ("rest", "passthrough", ["year"])])
    assert columns.fit_transform(table).shape == (6, 25)
    way_on = r".* in a ColumnTransformer name it as 'text', not \['text'\]"
    for call, shown in (
        (lambda: ColumnTransformer([("vectors", transformer, ["text"])]).fit_transform(table), r"DataFrame .*\(6, 1\)"),
        (lambda: transformer.transform(table.to_numpy()), r"ndarray of shape \(6, 2\)"),
    ):
        with pytest.raises(TypeError, match=shown + way_on):
            call()


def test_sklearn_bad_input(prompted: Path) -> None:
    transformer = MinibertTransformer(str(prompted))
    for texts, message in (("text", "one str"), (pandas.Series(["a", float("nan")], dtype=object), r"inputs\[1\]")):
        with pytest.raises(TypeError, match=message):
            transformer.transform(texts)
    for name, value in (("pooling", "median"), ("backend", np.array(["kernels", "numpy"]))):
        transformer.transform(["a"])
        with pytest.raises(ValueError, match=f"{name}="):
            clone(transformer).set_params(**{name: value}).transform(["a"])
        with pytest.raises(ValueError, match=f"{name}="):
            transformer.set_params(**{name: value}).transform(["a"])
        transformer.set_params(**{name: None})


def test_langchain(prompted: Path) -> None:
    model = SentenceTransformer(prompted)
    embeddings = LangChainEmbeddings(str(prompted))
    documents = embeddings.embed_documents(["a", "b c"])
    assert type(documents[0][0]) is float
    np.testing.assert_array_equal(np.float32(documents), model.encode(["a", "b c"], prompt_name="document"))
    np.testing.assert_array_equal(np.float32(embeddings.embed_query("a")), model.encode("a", prompt_name="query"))
    unit = LangChainEmbeddings(model, normalize_embeddings=True).embed_query("a")
    assert np.linalg.norm(unit) == pytest.approx(1)
    assert embeddings.embed_documents([]) == []
    assert (embeddings.model_name, LangChainEmbeddings(model).model_name) == (str(prompted), "minibert")
    assert asyncio.run(embeddings.aembed_query("a")) == embeddings.embed_query("a")
    assert asyncio.run(embeddings.aembed_documents(["a", "b c"])) == documents


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"normalise": True}, TypeError, "'normalise'"),
        ({"pooling": "median"}, ValueError, "pooling='median'"),
        ({"return_info": True}, ValueError, "With return_info=True encode does not give an array of one vector"),
        ({"output_value": "token_embeddings"}, ValueError, "does not give an array of one vector per text"),
    ],
)
def test_bad_options(prompted: Path, options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LangChainEmbeddings(str(prompted), **options)
    with pytest.raises(error, match=message):
        ChromaEmbeddingFunction(str(prompted), encode_options=options)


def test_chroma(prompted: Path) -> None:
    function = ChromaEmbeddingFunction(str(prompted), encode_options={"normalize_embeddings": True})
    model = SentenceTransformer(prompted)
    assert list(inspect.signature(function.__call__).parameters) == ["input"]
    found = function(input=["a", "b c"])
    assert all(vector.dtype == np.float32 and vector.shape == (24,) for vector in found)
    np.testing.assert_array_equal(found, model.encode(["a", "b c"], prompt_name="document", normalize_embeddings=True))
    np.testing.assert_array_equal(
        function.embed_query(input=["a"]), model.encode(["a"], prompt_name="query", normalize_embeddings=True)
    )
    assert ChromaEmbeddingFunction.name() == function.name() == "minibert"
    config = json.loads(json.dumps(function.get_config()))
    again = ChromaEmbeddingFunction.build_from_config(config)
    np.testing.assert_array_equal(again(["a", "b c"]), found)
    assert function.default_space() in function.supported_spaces()
    dot = ChromaEmbeddingFunction(str(prompted), similarity_fn_name="dot")
    assert (function.default_space(), dot.default_space()) == ("cosine", "ip")
    # Without these methods of chromadb 1.5's EmbeddingFunction, Chroma stores neither name nor configuration.
    assert function.is_legacy() is False
    function.validate_config(config)
    function.validate_config_update(config, function.get_config())
    with pytest.raises(ValueError, match="names no model"):
        function.validate_config({})
    with pytest.raises(ValueError, match="the collection was made with another encode_options, similarity_fn_name"):
        function.validate_config_update(config, dot.get_config())
    for name in ("token", "use_auth_token"):
        with pytest.raises(ValueError, match="store the token"):
            ChromaEmbeddingFunction(str(prompted), **{name: "secret"})


# --- libraries that need not be installed -----------------------------------------------------------------------------

# Small ones, with the base classes and the functions that minibert uses of them.
FAKES = {
    "bertopic/__init__.py": "",
    "bertopic/backend.py": "class BaseEmbedder:\n    def embed_words(self, words): return self.embed(words)\n",
    "keybert/__init__.py": "",
    "keybert/backend.py": "class BaseEmbedder: pass\n",
    "langchain_core/__init__.py": "",
    "langchain_core/embeddings.py": """
import abc
class Embeddings(abc.ABC):
    @abc.abstractmethod
    def embed_query(self, text): ...
""",
    "chromadb/__init__.py": "",
    "chromadb/utils/__init__.py": "",
    "chromadb/utils/embedding_functions.py": """
known = {}
def register_embedding_function(made): known[made.name()] = made
""",
}


def run_with(libraries: dict[str, str], code: str, folder: Path) -> str:
    """Run a program that sees these packages before the installed ones; return what it prints."""
    for name, content in libraries.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return printed(code, "-W", "error", path=folder)


def test_base_classes_and_registers_of_other_libraries(prompted: Path, tmp_path: Path) -> None:
    code = f"""
        import json, pickle, sys
        import minibert.integrations
        print(not {{"langchain_core", "chromadb", "bertopic", "keybert"}} & {{*sys.modules}})
        from minibert.integrations import BERTopicBackend, ChromaEmbeddingFunction, KeyBERTBackend, LangChainEmbeddings
        import bertopic.backend, chromadb.utils.embedding_functions, keybert.backend, langchain_core.embeddings
        model = minibert.SentenceTransformer({str(prompted)!r})
        topics, keys = BERTopicBackend(model), KeyBERTBackend({str(prompted)!r}, normalize_embeddings=True)
        print(isinstance(topics, bertopic.backend.BaseEmbedder), isinstance(keys, keybert.backend.BaseEmbedder))
        print(isinstance(LangChainEmbeddings(model), langchain_core.embeddings.Embeddings))
        print(chromadb.utils.embedding_functions.known["minibert"] is ChromaEmbeddingFunction)
        again = pickle.loads(pickle.dumps(topics))
        vectors = topics.embed(["a", "b c"]), again.embed_words(["a"]), keys.embed(["a", "b c"], verbose=False)
        print(json.dumps([rows.tolist() for rows in vectors]))
        try:
            KeyBERTBackend(model, pooling="median")
        except ValueError as error:
            print("median" in str(error))
    """
    *lines, vectors, refused = run_with(FAKES, code, tmp_path / "fakes").splitlines()
    assert (lines, refused) == (["True", "True True", "True", "True"], "True")
    model = SentenceTransformer(prompted)
    both, words, unit = (np.float32(rows) for rows in json.loads(vectors))
    np.testing.assert_array_equal(both, model.encode(["a", "b c"]))
    np.testing.assert_array_equal(words, model.encode(["a"]))
    np.testing.assert_array_equal(unit, model.encode(["a", "b c"], normalize_embeddings=True))


def test_rankers_hold_what_haystack_and_langchain_answer(tmp_path: Path) -> None:
    """For every value in `meta`, equal ids and absent content; the libraries themselves: tests/clients."""
    folder = model_folder(tmp_path / "pairs", SEQUENCE, num_labels=1, scale=20.0)
    fakes = {"haystack.py": rerankers.FAKE_HAYSTACK}
    fakes |= {"langchain_core/__init__.py": "", "langchain_core/documents.py": rerankers.FAKE_LANGCHAIN}
    first = f"MODEL, THEIRS = {str(folder)!r}, ()"
    program = "\n".join((first, rerankers.HAYSTACK, rerankers.LANGCHAIN))
    assert run_with(fakes, program, tmp_path / "fakes").split("\n")[:2] == ["equal 100 True", "equal 76"]


def test_a_library_that_is_not_installed(tmp_path: Path) -> None:
    """The two classes that need no base class work; the others say what to install."""
    code = """
        import sys
        for name in ("langchain_core", "chromadb", "bertopic", "keybert", "haystack"):
            sys.modules[name] = None
        import minibert.integrations
        for name in minibert.integrations.__all__:
            try:
                print(getattr(minibert.integrations, name).__name__)
            except ImportError as error:
                print(error)
        try:
            minibert.integrations.Nothing
        except AttributeError as error:
            print(error)
    """
    lines = run_with({}, code, tmp_path).splitlines()
    assert lines[0].startswith("this part of minibert needs bertopic, which is not installed: pip install bertopic")
    assert lines[1] == "ChromaEmbeddingFunction"
    assert lines[2].startswith("this part of minibert needs haystack, which is not installed: pip install haystack-ai")
    assert "LangChainEmbeddings" in lines
    assert sum("is not installed: pip install " in line for line in lines) == 6
    assert lines[-1].startswith("module 'minibert.integrations' has no attribute 'Nothing'; it has BERTopicBackend, ")
