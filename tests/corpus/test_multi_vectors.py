"""Files of the vectors of tokens: written, resumed, searched."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import MultiVectorEncoder
from minibert.corpus.embed import embed_corpus
from minibert.corpus.readers import VectorFile
from minibert.corpus.shards import RunFolder
from minibert.corpus.sources import Source
from minibert.vectors.multi_vectors import LambdaTokenPooling, TokenPooling, maxsim
from tests.support.command_line import run
from tests.support.corpus_runs import contents, text_file, texts_of
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


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "in").mkdir()
    return text_file(tmp_path / "in" / "texts.txt", texts_of(45))


def silent(_: object) -> None:
    """Report nothing."""


def embed(model: MultiVectorEncoder, source: Source, output: Path | str, **options: Any) -> Any:
    return embed_corpus(model, [source], output, shard_size=10, report=silent, **options)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_files_hold_the_vectors_of_documents(
    model: MultiVectorEncoder, source: Source, tmp_path: Path, name: str, dtype: str
) -> None:
    import pyarrow.parquet

    out = f"{tmp_path}/{name}"
    summary = embed(model, source, out, on_empty="null", dtype=dtype)
    given = texts_of(45)
    expected = [
        np.zeros((0, 16)) if not text else one for text, one in zip(given, documents(model, given), strict=True)
    ]
    assert (summary.n_texts, summary.n_tokens) == (45, sum(map(len, expected)))
    result: list[Any]
    if name == "out.npy":
        lines = [json.loads(line) for line in (tmp_path / "out.ids.jsonl").read_text().splitlines()]
        array = np.load(out, mmap_mode="r")
        assert array.dtype == dtype
        result = np.split(array, np.cumsum([line["vectors"] for line in lines])[:-1])
    elif name == "out.jsonl":
        result = [json.loads(line)["embedding"] for line in Path(out).read_text().splitlines()]
    else:
        result = pyarrow.parquet.read_table(out)["embedding"].to_pylist()
    assert [one is None for one in result] == [not text and name != "out.npy" for text in given]
    for one, other in zip(result, expected, strict=True):
        vectors = np.array([] if one is None else one, dtype).reshape(-1, 16)
        np.testing.assert_array_equal(vectors, other.astype(dtype))


def documents(model: MultiVectorEncoder, texts: list[str]) -> list[np.ndarray]:
    return [np.asarray(one) for one in model.encode_document(texts, truncation="silent")]


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_resumed_run_has_the_same_bytes(
    model: MultiVectorEncoder, source: Source, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("whole", "again"):
        (tmp_path / part).mkdir()
    embed(model, source, f"{tmp_path}/whole/{name}", on_empty="null")
    save, saved = RunFolder.save, list[int]()

    def stop(self: RunFolder, number: int, write: Callable[..., Any]) -> Any:
        if len(saved) == 2:
            raise OSError("no space")
        saved.append(number)
        return save(self, number, write)

    output = f"{tmp_path}/again/{name}"
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", stop)
        with pytest.raises(OSError, match="no space"):
            embed(model, source, output, on_empty="null")
    assert embed(model, source, output, on_empty="null", resume=True).n_resumed == 20
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")
    with pytest.raises(ValueError, match="normalize_embeddings"):
        embed(model, source, output, on_empty="null", resume=True, normalize_embeddings=True)
    mask = model[2]
    monkeypatch.setattr(mask, "skiplist_words", ["cat"])
    with pytest.raises(ValueError, match="cat"):
        embed(model, source, output, on_empty="null", resume=True)


@pytest.mark.parametrize("wrong", ["NaN", "one axis", "more vectors", "fewer vectors", "not a count"])
def test_damaged_files_are_not_searched(model: MultiVectorEncoder, source: Source, tmp_path: Path, wrong: str) -> None:
    out, index, query = tmp_path / "out.npy", tmp_path / "out.ids.jsonl", np.asarray(model.encode_query("a cat"))
    embed(model, source, out, on_empty="null")
    vectors, lines = np.load(out), [json.loads(line) for line in index.read_text().splitlines()]
    count = lines[0]["vectors"]
    lines[0]["vectors"] = {"more vectors": count + 1, "fewer vectors": -1, "not a count": "x"}.get(wrong, count)
    vectors[3] = np.nan if wrong == "NaN" else vectors[3]
    np.save(out, vectors.ravel() if wrong == "one axis" else vectors)
    index.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    file = unchecked(out)
    with pytest.raises(ValueError, match="cannot be searched"):
        file.search(query, 3, maxsim)


def unchecked(out: Path) -> VectorFile:
    """Open a file whose manifest does not have the size of the damaged one."""
    path = Path(f"{out}.manifest.json")
    manifest = json.loads(path.read_text())
    manifest["finished"]["outputs"] = {}
    path.write_text(json.dumps(manifest))
    return VectorFile(str(out))


@pytest.mark.parametrize("name", [*OUTPUTS, "texts"])
def test_search_finds_the_best_documents(
    model: MultiVectorEncoder,
    folder: Path,
    source: Source,
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = f"{tmp_path}/{name}"
    chosen = ("-m", str(folder), "--multi-vector")
    if name != "texts":
        arguments = ("embed", "-i", source.path, "-o", out, "--on-empty", "null", "--shard-size", "10", *chosen)
        assert run(capsys, *arguments)[0] == 0
        chosen = ()
    code, printed, _ = run(capsys, "search", "a river bank", source.path if name == "texts" else out, "--json", *chosen)
    assert code == 0
    given = texts_of(45)
    query = model.encode_query("a river bank")
    scores = np.array(model.similarity(query, documents(model, given)))[0]
    scores[[not text for text in given]] = -np.inf
    best = np.argsort(-scores, kind="stable")[:5]
    hits = [json.loads(line) for line in printed.splitlines()]
    assert [hit["text"] for hit in hits] == [given[i] for i in best]
    np.testing.assert_allclose([hit["score"] for hit in hits], scores[best], rtol=1e-6)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_shard_holds_numbers_and_not_texts(
    model: MultiVectorEncoder, source: Source, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard ends when it may have so many numbers. The vectors are those of larger shards."""
    for part, most in (("large", 2**22), ("small", 600)):
        (tmp_path / part).mkdir()
        saved = list[int]()
        save = RunFolder.save

        def counting(
            self: RunFolder, number: int, write: Callable[..., Any], save: Any = save, saved: Any = saved
        ) -> Any:
            counts = save(self, number, write)
            saved.append(counts.n_tokens * 16)
            return counts

        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "save", counting)
            patch.setattr("minibert.corpus.sources.SHARD_NUMBERS", most)
            summary = embed_corpus(model, [source], f"{tmp_path}/{part}/{name}", report=silent, on_empty="null")
        assert (summary.n_texts, len(saved) > 5) == (45, part == "small")
        longest = 16 * max(map(len, documents(model, texts_of(45))))
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
def test_a_manifest_is_the_same_in_another_process(folder: Path, source: Source, tmp_path: Path, make: Any) -> None:
    """Functions and objects have other addresses there; here they are others because both are alive."""
    one, other = (MultiVectorEncoder(folder).append(make()) for _ in range(2))
    pooling = other[len(other) - 1]
    if isinstance(pooling, LambdaTokenPooling):
        pooling.pool_fn = types.FunctionType(every_second.__code__, {}, "every_second")
        pooling.pool_fn.__qualname__ = every_second.__qualname__
    assert repr(one[len(one) - 1]) != repr(pooling)
    out = tmp_path / "out.npy"
    embed(one, source, out)
    assert "0x" not in json.dumps(json.loads(Path(f"{out}.manifest.json").read_text())["settings"])
    assert embed(other, source, out, resume=True) is None
    with pytest.raises(ValueError, match="step" if isinstance(pooling, Unnamed) else "modules"):
        embed(MultiVectorEncoder(folder).append(Unnamed(3)), source, out, resume=True)


def test_options_for_sentence_vectors_are_refused(
    model: MultiVectorEncoder, folder: Path, source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ({"pooling": "cls"}, {"layers": [1]}, {"truncation": "split"}, {"truncate_dim": 3}):
        with pytest.raises((TypeError, ValueError), match=next(iter(options))):
            embed(model, source, tmp_path / "out.npy", **options)
    for arguments in (("--pooling", "cls"), ("-o", "out.npy"), ("--truncate-dim", "3"), ("--precision", "int8")):
        assert run(capsys, "embed", "a cat", "--multi-vector", "-m", str(folder), *arguments)[0] != 0
    assert run(capsys, "embed", "a cat", "-m", str(folder))[0] != 0
    code, printed, _ = run(capsys, "embed", "a cat", "--multi-vector", "-m", str(folder))
    assert code == 0
    np.testing.assert_array_equal(
        np.array(json.loads(printed)["embedding"], np.float32), model.encode_document("a cat")
    )


def test_a_text_that_is_too_long_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    short = MultiVectorEncoder(native(bert_folder(tmp_path / "bert"), tmp_path / "model", document_length=20))
    source = text_file(tmp_path / "texts.txt", ["a cat", "the river " * 30])
    with pytest.raises(ValueError, match="20"):
        embed(short, source, tmp_path / "out.npy", truncation="error")
    assert not (tmp_path / "out.npy").exists()
