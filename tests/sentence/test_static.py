"""Static models: vectors equal to those of sentence-transformers and of model2vec, and what does not fit them."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer as Theirs
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from starlette.testclient import TestClient
from tokenizers.models import BPE, Unigram, WordLevel

import minibert
from minibert import BertModel, ModelFormatError, SentenceTransformer
from minibert.sentence.facts import describe
from minibert.serving.asgi import app
from minibert.serving.engine import Engine
from tests.support.command_line import run
from tests.support.real_texts import udhr_languages

ODD = [
    "",
    " ",
    "\u2603",
    "\u2603 of \U0001f600",
    "[SEP] [UNK]",
    "word " * 40,
    "x" * 600,
    " " * 900 + "late",
    "of " + " " * 900,
]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WIDTH = 8


def texts() -> list[str]:
    return [*ODD, *(line for lines in udhr_languages().values() for line in lines[:4])]


def _tokenizer(kind: str, minilm: Path) -> tokenizers.Tokenizer:
    if kind == "WordPiece":
        made = tokenizers.Tokenizer.from_file(str(minilm / "tokenizer.json"))
        made.no_padding()
        made.no_truncation()
        return made
    words = ["[UNK]", "of", "the", "la", "de"]
    models = {
        "WordLevel": lambda: WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"),
        "BPE": lambda: BPE({letter: i for i, letter in enumerate([*LETTERS, "th"])}, [("t", "h")]),
        "Unigram": lambda: Unigram([("<unk>", 0.0), *((letter, -5.0) for letter in LETTERS), ("the", -4.0)], 0),
    }
    made = tokenizers.Tokenizer(models[kind]())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return made


def model2vec_vectors(folder: Path, texts: list[str]) -> np.ndarray:
    """Compute the vectors as model2vec 0.10 does (model.py, StaticModel), but in float64."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    config, model = (json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer.json"))
    unknown, limit = model["model"].get("unk_id"), config.get("max_length", 512)
    if model["model"].get("unk_token") is not None:
        unknown = tokenizer.token_to_id(model["model"]["unk_token"])
    median = int(np.median([len(token) for token in tokenizer.get_vocab()]))
    tokenizer.no_truncation()
    if limit is not None:
        tokenizer.enable_truncation(limit)
        texts = [text[: limit * median] for text in texts]
    arrays = load_file(folder / "model.safetensors")
    table = arrays["embeddings"].astype(np.float64)
    vectors = np.zeros((len(texts), table.shape[1]))
    for i, encoding in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
        ids = [token for token in encoding.ids if token != unknown]
        if ids:
            rows = arrays["mapping"][ids] if "mapping" in arrays else ids
            factors = arrays["weights"][ids] if "weights" in arrays else np.ones(len(ids))
            vectors[i] = (table[rows] * factors[:, None]).mean(axis=0)
    return vectors / (np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-32) if config.get("normalize") else vectors


def model2vec_folder(folder: Path, tokenizer: tokenizers.Tokenizer, dtype: str = "f4", **config: Any) -> Path:
    """Write what `StaticModel.save_pretrained` of model2vec 0.10 writes; "mapping" and "weights" are types."""
    rng, tensors = np.random.default_rng(5), dict[str, np.ndarray]()
    size = tokenizer.get_vocab_size()
    if mapping := config.pop("mapping", None):
        tensors["mapping"] = rng.integers(0, 90, size).astype(mapping)
    if weights := config.pop("weights", None):
        tensors["weights"] = rng.random(size).astype(weights)
    table = rng.standard_normal((90 if mapping else size, WIDTH)) * (40 if dtype == "i1" else 1)
    folder.mkdir()
    save_file({"embeddings": table.clip(-127, 127).astype(dtype), **tensors}, folder / "model.safetensors")
    if (limit := config.get("max_length", 512)) is not None:
        tokenizer.enable_truncation(limit)
    tokenizer.save(str(folder / "tokenizer.json"))
    if config.pop("listed", True):
        kinds = ["StaticEmbedding", *["Normalize"] * config.get("normalize", False)]
        modules = [{"path": ".", "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
        (folder / "modules.json").write_text(json.dumps([{"name": str(i), **m} for i, m in enumerate(modules)]))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def folder(tmp_path: Path, minilm_folder: Path) -> Path:
    """The folder of a model of model2vec."""
    return model2vec_folder(tmp_path / "static", _tokenizer("WordPiece", minilm_folder), normalize=True)


def assert_equal(vectors: np.ndarray, expected: np.ndarray, tolerance: float = 1e-6) -> None:
    largest = np.abs(expected).max(axis=1, keepdims=True)
    assert np.all(np.abs(vectors - expected) <= tolerance * largest)  # a row of zeros is equal


@pytest.mark.parametrize(
    ("kind", "dtype", "config"),
    [
        ("WordPiece", "f4", {"normalize": True, "max_length": 512, "model_type": "model2vec"}),
        ("WordPiece", "f2", {"normalize": False, "max_length": 20}),
        ("WordPiece", "f8", {"max_length": None, "weights": "f8"}),
        ("WordPiece", "i1", {"normalize": True, "weights": "f2"}),
        ("WordPiece", "f2", {"normalize": True, "mapping": "i8", "weights": "f4"}),
        ("WordPiece", "f4", {"mapping": "i4", "model_type": "model2vec", "listed": False, "normalize": True}),
        ("WordLevel", "f4", {"normalize": True}),
        ("BPE", "f4", {"normalize": True, "max_length": 7}),
        ("Unigram", "f4", {"normalize": True}),
    ],
)
@pytest.mark.filterwarnings("ignore:Most tokens:UserWarning", "ignore:.* and (was|were) cut:UserWarning")
def test_model2vec(kind: str, dtype: str, config: dict[str, Any], tmp_path: Path, minilm_folder: Path) -> None:
    folder = model2vec_folder(tmp_path / "m", _tokenizer(kind, minilm_folder), dtype, **config)
    model, given = SentenceTransformer(folder), texts()
    vectors, infos = model.encode(given, return_info=True)
    assert_equal(vectors, model2vec_vectors(folder, given))
    assert not vectors[:3].any()  # empty, or only unknown
    alone = [model.encode(text) for text in given[::7]]
    np.testing.assert_array_equal(alone, vectors[::7])
    whole = json.dumps({**json.loads((folder / "config.json").read_text()), "max_length": None})
    cut = [bool(info.n_truncated) for info in infos]
    (folder / "config.json").write_text(whole)
    differ = ~np.isclose(model2vec_vectors(folder, given), vectors, atol=1e-5).all(axis=1)
    assert not (differ & ~np.array(cut)).any()
    if model.pipeline.names == ("Normalize",) and kind != "BPE":
        split = model.encode(given, truncation="split")  # the mean of the windows, each of them scaled by its tokens
        np.testing.assert_allclose(split, model2vec_vectors(folder, given), atol=2e-6)


@pytest.mark.parametrize("case", ["plain", "normalized", "cut", "dense", "float16", "without config.json"])
@pytest.mark.filterwarnings("ignore:Most tokens:UserWarning", "ignore:.* and (was|were) cut:UserWarning")
def test_static_embedding(case: str, tmp_path: Path, minilm_folder: Path) -> None:
    """All tokens count, also unknown ones; only a truncation in tokenizer.json cuts."""
    tokenizer = _tokenizer("WordPiece", minilm_folder)
    if case == "without config.json":
        model2vec_folder(tmp_path / "m", tokenizer, weights="f4", normalize=True, max_length=9)
        (tmp_path / "m" / "config.json").unlink()
    else:
        if case == "cut":
            tokenizer.enable_truncation(9)
        torch.manual_seed(3)
        static = StaticEmbedding(tokenizer, embedding_weights=torch.randn(tokenizer.get_vocab_size(), WIDTH))
        after = {"dense": [Dense(WIDTH, 5), Normalize()], "normalized": [Normalize()]}.get(case, [])
        more = {"prompts": {"query": "of the "}, "default_prompt_name": "query"} if case == "dense" else {}
        made = Theirs(modules=[static, *after], truncate_dim=6 if case == "normalized" else None, **more)
        (made.half() if case == "float16" else made).save(str(tmp_path / "m"))
    theirs, model, given = Theirs(str(tmp_path / "m")), SentenceTransformer(tmp_path / "m"), texts()
    expected = np.asarray(theirs.encode(given), np.float32)
    assert_equal(model.encode(given), expected, 1e-3 if case == "float16" else 1e-6)
    assert model.get_embedding_dimension() == theirs.get_embedding_dimension()
    assert_equal(model.encode_query(given[:9]), np.asarray(theirs.encode_query(given[:9]), np.float32), 1e-3)
    assert_equal(
        np.array(model.similarity(expected[3:6], expected)), theirs.similarity(expected[3:6], expected).numpy()
    )


def test_tokens_spans_and_what_a_model_has(folder: Path) -> None:
    model = SentenceTransformer(folder, num_threads=1)
    (tokens,) = model.encode(["of \u2603 the"], output_value="token_embeddings")
    table = dict(model.named_parameters())["embedding.weight"]
    np.testing.assert_array_equal(tokens, table[model.tokenizer.convert_tokens_to_ids(["of", "the"])])
    spans = model.encode("of. the.", spans=[(0, 2), (4, 7)])
    np.testing.assert_allclose(spans, tokens / np.linalg.norm(tokens, axis=1, keepdims=True), rtol=1e-6)
    given = model.encode("of the", output_value=None)
    np.testing.assert_array_equal(given["sentence_embedding"], model.encode("of the"))
    assert (model.max_seq_length, model.compute_type, model.num_tokens(["of \u2603", ""])) == (512, "float32", [1, 0])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).encode("of the"), model.encode("of the"))
    facts = describe(folder)["facts"]
    assert {**facts, "model_type": "static", "unknown words count": False, "after pooling": ["Normalize"]} == facts
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model.encode("of")


def changed(name: str, **fields: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def tensors(**arrays: np.ndarray) -> Callable[[Path], object]:
    return lambda folder: save_file(arrays, folder / "model.safetensors")


def without_unknown(folder: Path) -> None:
    """Name an unknown token that the vocabulary does not have: the library would fail at the first unknown word."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["unk_token"] = "[NONE]"
    (folder / "tokenizer.json").write_text(json.dumps(content))


TABLE = np.ones((30522, 2), np.float32)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json"),
        (changed("config.json", max_length=0), "max_length"),
        (changed("config.json", max_length="many"), "max_length"),
        (tensors(words=TABLE), "missing"),
        (tensors(embeddings=TABLE[:9]), "30521"),
        (tensors(embeddings=TABLE[0]), "dimensions"),
        (tensors(embeddings=TABLE.astype(np.int64)), "I64"),
        (tensors(embeddings=TABLE * np.nan), "nan"),
        (tensors(embeddings=TABLE[:0]), "mapping"),
        (tensors(embeddings=TABLE[:, :0]), "embeddings"),
        (without_unknown, "tokenizer.json"),
        (tensors(embeddings=TABLE, weights=TABLE[:4, 0]), "weights"),
        (tensors(embeddings=TABLE[:5], mapping=np.full(30522, 5)), "mapping"),
        (tensors(embeddings=TABLE, mapping=np.full(30522, -1)), "mapping"),
    ],
)
def test_damaged_files(damage: Callable[[Path], object], match: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(ModelFormatError, match=match):
        SentenceTransformer(folder)
    assert match in "".join(describe(folder)["unsupported"])


def test_what_a_static_model_does_not_have(folder: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(folder)
    for options in ({"layers": 0}, {"pooling": "cls"}, {"pooling": ["mean", "max"]}):
        with pytest.raises(ValueError, match=next(iter(options))):
            model.encode("of", **options)
    with pytest.raises(ValueError, match="Copy"):
        model.save_pretrained(folder)
    assert (folder / "modules.json").exists()
    with pytest.raises(ValueError, match="hidden_size"):
        SentenceTransformer(folder, model_kwargs={"hidden_size": WIDTH})
    changed("config.json", model_type="model2vec")(folder)
    assert SentenceTransformer(folder).fingerprint() == model.fingerprint()
    shutil.copytree(folder, tmp_path / "theirs", ignore=shutil.ignore_patterns("config.json"))
    assert SentenceTransformer(tmp_path / "theirs").fingerprint() != model.fingerprint()
    for _ in range(2):  # also without config.json
        with pytest.raises(ModelFormatError, match="SentenceTransformer"):
            BertModel.from_pretrained(folder)
        (folder / "config.json").unlink(missing_ok=True)
    for other in (minibert.CrossEncoder, minibert.SparseEncoder, minibert.MultiVectorEncoder):
        with pytest.raises(ModelFormatError, match="SentenceTransformer loads it"):
            other(folder)


def test_corpora_search_and_the_service(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = udhr_languages()["eng"][:40]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    expected = SentenceTransformer(folder).encode(lines)
    for truncation in ("warn", "split", "error"):
        command = f"embed -i lines.txt -o {truncation}.npy -m {folder} --truncation {truncation}"
        assert run(capsys, *command.split())[0] == 0
        np.testing.assert_array_equal(np.load(f"{truncation}.npy"), expected)
    assert json.loads(run(capsys, "search", lines[7], "warn.npy", "--json", "-k", "1")[1])["score"] > 0.999999
    with Engine(SentenceTransformer(folder)) as engine, TestClient(app(engine)) as client:
        answer = client.post("/embed", json={"inputs": [*lines[:5], "", "\u2603"]})
        np.testing.assert_array_equal(np.array(answer.json(), np.float32), [*expected[:5], *np.zeros((2, WIDTH))])
        assert client.get("/info").json()["max_input_length"] == 512
        refused = client.post("/hidden_states", json={"inputs": ["of"]})
        assert (refused.status_code, "/embed" in refused.text) == (400, True), refused.text
        for inputs, options in (([[5, 6]], {"add_special_tokens": True}), (["of"], {"pooling": "cls"})):
            refused = client.post("/v1/embeddings", json={"input": inputs, "model": "default", **options})
            assert refused.status_code == 400, refused.text
