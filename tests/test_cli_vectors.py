"""The verbs about sentence vectors: embed's options, similarity, search, info; their output and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.vectors.search import semantic_search
from tests.support.checkpoints import sentence_model
from tests.support.command_line import run, standard_input
from tests.support.sentence_modules import MEAN, dense, model_with_modules

TEXTS = ["A cat sleeps.", "A kitten naps.", "Stocks fell sharply."]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    prompts = {"prompts": {"query": "the cat ", "document": "on the mat "}}
    return sentence_model(tmp_path / "small", config_sentence_transformers=prompts)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--pooling", "max"], {"pooling": "max"}),
        (["--pooling", "mean,cls", "--layers=-1,-2"], {"pooling": ["mean", "cls"], "layers": [-1, -2]}),
        (["--pooling", "REDUCE_MEAN_MAX"], {"pooling": "REDUCE_MEAN_MAX"}),
        (["--layers=0,1", "--layer-pooling", "sum"], {"layers": [0, 1], "layer_pooling": "sum"}),
        (["--layers", "1", "--truncate-dim", "7"], {"layers": 1, "truncate_dim": 7}),
        (["--normalize"], {"normalize_embeddings": True}),
        (["--prompt-name", "query"], {"prompt_name": "query"}),
        (["--prompt", "dog "], {"prompt": "dog "}),
        (["--precision", "ubinary", "--batch-size", "2", "--threads", "1"], {"precision": "ubinary"}),
        (["--precision", "float16"], {"precision": "float16"}),
        (["--backend", "numpy"], {}),
    ],
)
def test_embed_options(
    capsys: pytest.CaptureFixture[str], small: Path, arguments: list[str], options: dict[str, object]
) -> None:
    expected = SentenceTransformer(small).encode(TEXTS, **options)
    code, out, err = run(capsys, "embed", *TEXTS, "-m", str(small), *arguments)
    assert (code, err) == (0, "")
    vectors = np.array([json.loads(line)["embedding"] for line in out.splitlines()], dtype=expected.dtype)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_embed_truncation(capsys: pytest.CaptureFixture[str]) -> None:
    long = "long " * 300
    code, _, err = run(capsys, "embed", long, "--truncation", "error")
    assert (code, "inputs[0] has 302 tokens, the limit is 256" in err) == (1, True)
    assert run(capsys, "embed", long, "--truncation", "silent")[0::2] == (0, "")
    code, out, err = run(capsys, "embed", long, "--truncation", "split", "--stride", "10")
    assert (code, err) == (0, "")
    expected = SentenceTransformer().encode(long, truncation="split", stride=10)
    np.testing.assert_allclose(json.loads(out)["embedding"], expected, atol=1e-6)


def test_similarity(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = SentenceTransformer().encode(TEXTS)
    standard_input(monkeypatch, "\n".join(TEXTS).encode())
    code, out, _ = run(capsys, "similarity", "-", "--json")
    found = json.loads(out)
    assert (code, found["texts"]) == (0, TEXTS)
    np.testing.assert_allclose(found["scores"], vectors @ vectors.T, atol=1e-6)
    code, out, _ = run(capsys, "similarity", *TEXTS)
    rows = [line.split() for line in out.splitlines()]
    assert (code, rows[0]) == (0, ["0", "1", "2"])
    assert rows[1][:4] == ["0", "1.000", "0.714", "0.007"]
    assert out.splitlines()[3].endswith("1.000   Stocks fell sharply.")


def test_search(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines.txt"
    file.write_text(
        "\n".join(["A kitten naps.", "", "Stocks fell.", "  ", "The dog barks.", "Größe"]), encoding="utf-8"
    )
    code, out, _ = run(capsys, "search", "sleeping animals", str(file), "-k", "2")
    assert [line.split(maxsplit=2)[1:] for line in out.splitlines()] == [
        ["1", "A kitten naps."],
        ["5", "The dog barks."],
    ]
    code, out, _ = run(capsys, "search", "sleeping animals", str(file), "--json", "-k", "100")
    hits = [json.loads(line) for line in out.splitlines()]
    assert (code, len(hits)) == (0, 4)
    model = SentenceTransformer()
    texts = ["A kitten naps.", "Stocks fell.", "The dog barks.", "Größe"]
    best = semantic_search(model.encode("sleeping animals"), model.encode(texts))[0]
    assert [hit["text"] for hit in hits] == [texts[hit["corpus_id"]] for hit in best]
    assert [hit["score"] for hit in hits] == pytest.approx([hit["score"] for hit in best], abs=2e-6)
    standard_input(monkeypatch, file.read_bytes())
    assert run(capsys, "search", "sleeping animals", "-", "--json", "-k", "100")[1] == out


def test_search_uses_the_models_prompts_and_similarity(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stored = {"prompts": {"query": "the cat ", "passage": "on the mat "}, "similarity_fn_name": "dot"}
    folder = sentence_model(tmp_path / "model", config_sentence_transformers=stored)
    (tmp_path / "lines").write_text("a\nb c\nman\n")
    code, out, _ = run(capsys, "search", "hello", str(tmp_path / "lines"), "-m", str(folder), "--json")
    model = SentenceTransformer(folder)
    corpus = model.encode(["a", "b c", "man"], prompt_name="passage")
    scores = model.similarity(model.encode("hello", prompt_name="query"), corpus)[0]
    assert [json.loads(line)["line"] - 1 for line in out.splitlines()] == np.argsort(-scores).tolist()
    assert json.loads(out.splitlines()[0])["score"] == pytest.approx(scores.max(), abs=1e-5)
    assert code == 0


def test_info_of_the_real_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "info", "--json")
    found = json.loads(out)
    assert (code, err, found["unsupported"]) == (0, "", [])
    expected = {
        **{"hidden_size": 384, "parameters": 22713216, "embedding_dimension": 384, "similarity_fn_name": "cosine"},
        **{"max_seq_length": 256, "pooling": ["mean"], "modules": ["Transformer", "Pooling", "Normalize"]},
        "lower-cased": True,
    }
    assert {name: found["facts"][name] for name in expected} == expected
    code, out, _ = run(capsys, "info")
    assert (code, out.splitlines()[-1].strip()) == (0, "unsupported: nothing")
    assert any(line.split() == ["max_seq_length", "256"] for line in out.splitlines())


def test_short_names_are_understood_by_every_verb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for verb in (["info"], ["tokens", "a"], ["words", "a", "a b a"], ["hidden", "a", "-o", str(tmp_path / "x.npz")]):
        assert run(capsys, *verb, "-m", "all-MiniLM-L6-v2") == run(capsys, *verb)


def test_info_of_other_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A model that cannot be loaded is described too, with the reasons."""
    folder = model_with_modules(tmp_path / "model", [MEAN, dense(24, 13)])
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "q: "}}))
    facts = json.loads(run(capsys, "info", "-m", str(folder), "--json")[1])["facts"]
    assert facts["after pooling"] == ["Dense(24, 13, Tanh)"]
    assert facts["embedding_dimension"] == 13
    assert facts["similarity_fn_name"] == "cosine"
    assert facts["prompts"] == {"query": "q: "}

    def unsupported() -> str:
        code, out, _ = run(capsys, "info", "-m", str(folder), "--json")
        assert code == 0
        return "\n".join(json.loads(out)["unsupported"])

    (folder / "2_Dense" / "model.safetensors").unlink()
    assert "neither model.safetensors" in unsupported()
    (folder / "config_sentence_transformers.json").write_text('{"prompts": ["a"]}')
    assert "prompts as a mapping of names to texts" in unsupported()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mpnet"}))
    assert "model_type='mpnet' is not BERT" in unsupported()
    (folder / "modules.json").write_text("{")
    assert "modules.json is not valid JSON" in unsupported()
    (folder / "config.json").unlink()
    assert "has no config.json" in unsupported()


def test_builtin_prompts(capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
    code, _, err = run(capsys, "embed", "text", "-m", str(small), "--builtin-prompts")
    assert (code, "minibert knows the prompts of intfloat/e5" in err) == (1, True)
    folder = sentence_model(tmp_path / "e5")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": "intfloat/e5-small-v2"}))
    (tmp_path / "lines").write_text("a\nb c\n")
    code, _, err = run(capsys, "search", "cat", str(tmp_path / "lines"), "-m", str(folder))
    assert (code, "'query: ' before each query" in err, "'passage: '" in err) == (0, True, True)
    code, _, err = run(capsys, "search", "cat", str(tmp_path / "lines"), "-m", str(folder), "--builtin-prompts")
    assert (code, err) == (0, "")
    assert "intfloat" not in run(capsys, "info", "-m", str(small))[1]
    assert "passage 'passage: '" in run(capsys, "info", "-m", str(folder))[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["embed", "text", "--pooling", "median"], 1, "median"),
        (["embed", "text", "--pooling", "none"], 1, "minibert hidden"),
        (["embed", "text", "--layers=9"], 1, "layers="),
        (["embed", "text", "--layers=x"], 2, "not a list of numbers"),
        (["embed", "text", "--layers", "-1,-9"], 1, "layers="),
        (["embed", "text", "--truncate-dim", "0"], 2, "at least 1"),
        (["embed", "text", "--batch-size", "0"], 2, "at least 1"),
        (["embed", "text", "--threads", "two"], 2, "at least 1"),
        (["embed", "text", "--stride", "-1"], 2, "at least 0"),
        (["embed", "text", "--stride", "3"], 1, "truncation='split'"),
        (["embed", "text", "--precision", "int4"], 2, "invalid choice"),
        (["embed", "text", "--precision", "int8"], 1, "precision='int8'"),
        (
            ["embed", "text", "--pooling", "first_last", "--layers", "1"],
            1,
            "layers=",
        ),
        (["embed", "text", "--prompt", "a", "--prompt-name", "b"], 2, "not allowed with"),
        (["embed", "text", "--prompt-name", "task"], 1, "prompt_name="),
        (["similarity", "text"], 1, "at least two"),
        (["similarity"], 2, "TEXT"),
        (["search", "text"], 2, "FILE"),
        (["search", "text", "no/such/file"], 1, "minibert: no/such/file cannot be read"),
        (["search", "text", "."], 1, "minibert: . cannot be read"),
        (["search", "text", ""], 1, "'' cannot be read"),
        (["search", "text", "a\0b"], 1, "'a\\x00b' cannot be read"),
        (["search", "text", "README.md", "-k", "0"], 2, "at least 1"),
        (["search", "a\udcff", "README.md"], 1, "surrogate"),
        (["info", "-m", "./no/such/folder"], 1, "no/such/folder"),
        (["info", "-m", "README.md"], 1, "README.md is a file"),
        (["info", "text"], 2, "unrecognized"),
    ],
)
def test_errors_and_exit_codes(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent)
    found, out, err = run(capsys, *arguments)
    assert (found, message in err, out) == (code, True, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"ok\n\xff", "line 2, is not UTF-8"), (b"", "does not hold a text"), (b"\n \n", "does not hold a text")],
)
def test_bad_files_to_search(capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "lines").write_bytes(data)
    code, out, err = run(capsys, "search", "text", str(tmp_path / "lines"))
    assert (code, out, message in err) == (1, "", True)
