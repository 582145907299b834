"""Files of the vectors of tokens: written, resumed, searched."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import MultiVectorEncoder
from minibert.corpus.readers import VectorFile
from minibert.corpus.run_folder import RunFolder
from minibert.vectors.multi_vectors import LambdaTokenPooling, TokenPooling, maxsim
from tests.support.command_line import run
from tests.support.corpus_runs import contents, manifest_of, rows_of, stopped_after, text_file, texts_of
from tests.support.multi_vectors import bert_folder, native, pylate
from tests.support.outcomes import peak_of
from tests.support.report import REPORT

OUTPUTS = ("out.npy", "out.jsonl", "out.parquet", "out/")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("multi")
    return pylate(bert_folder(home / "bert"), home / "model", query_prefix="[unused1] ", query_length=24)


@pytest.fixture(scope="module")
def model(folder: Path) -> MultiVectorEncoder:
    return MultiVectorEncoder(folder)


def documents(model: MultiVectorEncoder, texts: list[str]) -> list[np.ndarray]:
    return [np.asarray(one) for one in model.encode_document(texts, truncation="silent")]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_files_hold_the_vectors_of_documents(
    embed: Any, model: MultiVectorEncoder, tmp_path: Path, name: str, dtype: str
) -> None:
    summary, given = embed(name, model=model, on_empty="null", dtype=dtype), texts_of(45)
    expected = [one if text else None for text, one in zip(given, documents(model, given), strict=True)]
    assert (summary.n_texts, summary.n_tokens) == (45, sum(len(one) for one in expected if one is not None))
    _, found = rows_of(f"{tmp_path}/{name}")
    assert [one is None for one in found] == [one is None for one in expected]
    for one, other in zip(found, expected, strict=True):
        if other is not None:
            assert getattr(one, "dtype", dtype) == dtype
            np.testing.assert_array_equal(np.array(one, dtype), other.astype(dtype))


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_resumed_run_has_the_same_bytes(
    embed: Any, model: MultiVectorEncoder, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("whole", "again"):
        (tmp_path / part).mkdir()
    how: dict[str, Any] = {"model": model, "on_empty": "null"}
    embed(f"whole/{name}", **how)
    with stopped_after(2):
        embed(f"again/{name}", **how)
    assert embed(f"again/{name}", **how, resume=True).n_resumed == 20
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")
    with pytest.raises(ValueError, match="normalize_embeddings"):
        embed(f"again/{name}", **how, resume=True, normalize_embeddings=True)
    monkeypatch.setattr(model[2], "skiplist_words", ["cat"])
    with pytest.raises(ValueError, match="cat"):
        embed(f"again/{name}", **how, resume=True)


@pytest.mark.parametrize("name", [*OUTPUTS, "texts"])
def test_search_finds_the_best_documents(
    model: MultiVectorEncoder, folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out, chosen = texts_of(45), f"{tmp_path}/{name}", ("-m", str(folder), "--multi-vector")
    texts = text_file(tmp_path / "texts.txt", given).path
    if name != "texts":
        assert run(capsys, "embed", "-i", texts, "-o", out, "--on-empty", "null", "--shard-size", "10", *chosen)[0] == 0
        chosen = ()
    code, printed, _ = run(capsys, "search", "a river bank", texts if name == "texts" else out, "--json", *chosen)
    assert code == 0
    scores = np.array(model.similarity(model.encode_query("a river bank"), documents(model, given)))[0]
    scores[[not text for text in given]] = -np.inf
    best = np.argsort(-scores, kind="stable")[:5]
    hits = [json.loads(line) for line in printed.splitlines()]
    assert [hit["text"] for hit in hits] == [given[i] for i in best]
    np.testing.assert_allclose([hit["score"] for hit in hits], scores[best], rtol=1e-6)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_shard_holds_numbers_and_not_texts(
    embed: Any, model: MultiVectorEncoder, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard ends when it may have so many numbers. The vectors are those of larger shards."""
    save, saved = RunFolder.save, list[int]()

    def counting(self: RunFolder, *arguments: Any) -> Any:
        counts = save(self, *arguments)
        saved.append(counts.n_tokens * 16)
        return counts

    monkeypatch.setattr(RunFolder, "save", counting)
    longest = 16 * max(map(len, documents(model, texts_of(45))))
    for part, most in (("large", 2**22), ("small", 600)):
        (tmp_path / part).mkdir()
        saved.clear()
        monkeypatch.setattr("minibert.corpus.survey.SHARD_NUMBERS", most)
        assert embed(f"{part}/{name}", model=model, on_empty="null", shard_size=10_000).n_texts == 45
        assert (len(saved) > 5) == (part == "small")
        assert max(saved) < most + longest
    query = np.asarray(model.encode_query("a cat"))
    found = [VectorFile(f"{tmp_path}/{part}/{name}").search(query, 50, maxsim) for part in ("large", "small")]
    assert found[0] == found[1]
    if not name.endswith(("/", ".parquet")):  # whose files have a part for each shard
        assert (tmp_path / "large" / name).read_bytes() == (tmp_path / "small" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_memory_does_not_grow_with_token_vectors(folder: Path, tmp_path: Path, dtype: str) -> None:
    """1,024 texts of 510 tokens have 32 MB of vectors."""
    peaks = []
    for count in (512, 1536):
        text_file(tmp_path / "a.txt", [f"{i} " + "the cat sat on the mat " * 90 for i in range(count)])
        arguments = ["embed", "--multi-vector", "-m", str(folder), "-i", f"{tmp_path}/a.txt", "--progress", "never"]
        arguments += ["-o", f"{tmp_path}/{count}.npy", "--dtype", dtype]
        peaks.append(peak_of(f"from minibert.cli import main\nassert main({arguments!r}) == 0"))
    REPORT.append(f"embed --multi-vector, {dtype}: peak {peaks[0]:.0f} MB with 512 texts, {peaks[1]:.0f} with 1536")
    assert peaks[1] < peaks[0] + 25


def every_second(vectors: np.ndarray) -> np.ndarray:
    return vectors[::2]


class Unnamed(TokenPooling):
    """A pooling of the user, with an attribute whose repr is an address."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.own = object()
        self.step = step

    def pool_one(self, embedding: np.ndarray) -> np.ndarray:
        return embedding[:: self.step]


@pytest.mark.parametrize("make", [lambda: LambdaTokenPooling(every_second), lambda: Unnamed(2)])
def test_a_manifest_is_the_same_in_another_process(embed: Any, folder: Path, tmp_path: Path, make: Any) -> None:
    """Functions and objects have other addresses there; here they are others because both are alive."""
    one, other = (MultiVectorEncoder(folder).append(make()) for _ in range(2))
    pooling = other[len(other) - 1]
    if isinstance(pooling, LambdaTokenPooling):
        pooling.pool_fn = types.FunctionType(every_second.__code__, {}, "every_second")
        pooling.pool_fn.__qualname__ = every_second.__qualname__
    assert repr(one[len(one) - 1]) != repr(pooling)
    embed(model=one)
    assert "0x" not in json.dumps(manifest_of(tmp_path / "out.npy")["settings"])
    assert embed(model=other, resume=True).n_resumed
    with pytest.raises(ValueError, match="step" if isinstance(pooling, Unnamed) else "modules"):
        embed(model=MultiVectorEncoder(folder).append(Unnamed(3)), resume=True)


@pytest.mark.parametrize("options", [{"pooling": "cls"}, {"layers": [1]}, {"truncation": "split"}, {"truncate_dim": 3}])
def test_options_for_sentence_vectors_are_refused(embed: Any, model: MultiVectorEncoder, options: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        embed(model=model, **options)


def test_the_command_line(model: MultiVectorEncoder, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ("embed", "a cat", "-m", str(folder))
    for words in (("--pooling", "cls"), ("-o", "out.npy"), ("--truncate-dim", "3"), ("--precision", "int8")):
        assert run(capsys, *start, "--multi-vector", *words)[0] != 0
    assert run(capsys, *start)[0] != 0
    code, printed, _ = run(capsys, *start, "--multi-vector")
    assert code == 0
    found = np.array(json.loads(printed)["embedding"], np.float32)
    np.testing.assert_array_equal(found, model.encode_document("a cat"))


def test_a_text_that_is_too_long_is_refused_before_anything_is_computed(embed: Any, tmp_path: Path) -> None:
    short = MultiVectorEncoder(native(bert_folder(tmp_path / "bert"), tmp_path / "model", document_length=20))
    with pytest.raises(ValueError, match="20"):
        embed("out.npy", text_file(tmp_path / "b.txt", ["a cat", "the river " * 30]), model=short, truncation="error")
    assert not (tmp_path / "out.npy").exists()
