"""`estimate_corpus` and `minibert embed --estimate`: what is counted, the arithmetic, the same errors as a run's."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.base.machine import peak_memory
from minibert.cli import main
from minibert.corpus import estimate
from minibert.corpus.embed import embed_corpus
from minibert.corpus.estimate import Estimate, estimate_corpus
from minibert.corpus.readers import Source
from tests.support.checkpoints import sentence_model

_SURVEY = estimate.survey
WORDS = ("the", "cat", "sat", "on", "a", "mat")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_model(tmp_path_factory.mktemp("estimate") / "model")


@pytest.fixture(scope="module")
def model(model_folder: Path) -> SentenceTransformer:
    return SentenceTransformer(model_folder, num_threads=1)


def distinct_texts(count: int) -> list[str]:
    chance = random.Random(0)
    return [" ".join(chance.choices(WORDS, k=8 + i % 9)) + f" {i}" for i in range(count)]


def write_texts(path: Path, texts: list[str]) -> Source:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return Source(str(path), "text")


class Machine:
    """A machine on which a run takes a fixed time to start and a fixed time for each token; reading takes no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, start: float, token: float, reading: float = 0.0) -> None:
        self.now, self._start, self._token, self._reading = 0.0, start, token, reading
        self.runs = list[int]()
        monkeypatch.setattr(estimate, "embed_corpus", self._embed)
        monkeypatch.setattr(estimate, "survey", self._survey)

    def clock(self) -> float:
        return self.now

    def _survey(self, *arguments: Any) -> Any:
        self.now += self._reading
        return _SURVEY(*arguments)

    def _embed(self, model: SentenceTransformer, sources: list[Source], *arguments: Any, **options: Any) -> Any:
        texts = [json.loads(line) for line in Path(sources[0].path).read_text(encoding="utf-8").splitlines()]
        self.runs.append(len(texts))
        counts = [min(count, model.max_seq_length) for count in model.num_tokens(texts)]
        self.now += self._start + self._token * sum(counts)
        return SimpleNamespace()


def tokens_of(model: SentenceTransformer, texts: list[str]) -> int:
    return int(sum(min(count, model.max_seq_length) for count in model.num_tokens(texts)))


# --- the arithmetic ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "token", "reading"), [(0.0, 1e-3, 0.0), (2.5, 1e-4, 0.0), (0.3, 1e-2, 4.0)])
def test_the_time_is_that_of_a_machine_with_constant_speed(
    start: float,
    token: float,
    reading: float,
    model: SentenceTransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sample holds all texts here, so its mean is exact."""
    texts = distinct_texts(3000)
    machine = Machine(monkeypatch, start, token, reading)
    found = estimate_corpus(model, [write_texts(tmp_path / "t.txt", texts)], num_threads=3, clock=machine.clock)
    total = tokens_of(model, texts)
    assert found.n_tokens == total
    assert found.seconds == pytest.approx(start + token * total + 2 * reading, rel=1e-6)
    assert found.tokens_per_second == pytest.approx(1 / token, rel=1e-6)
    assert found.start_seconds == pytest.approx(start, abs=1e-6)
    assert found.hours == pytest.approx(found.seconds / 3600)
    assert found.core_hours == pytest.approx(3 * found.hours)
    assert machine.runs[0] == machine.runs[1] < machine.runs[2] <= machine.runs[-1] <= 3000


def test_a_sample_of_a_larger_corpus_gives_nearly_the_same(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = distinct_texts(30_000)
    machine = Machine(monkeypatch, 1.0, 1e-3)
    found = estimate_corpus(model, [write_texts(tmp_path / "t.txt", texts)], clock=machine.clock)
    total = tokens_of(model, texts)
    assert (found.n_texts, found.n_computed) == (30_000, 30_000)
    assert found.n_tokens == pytest.approx(total, rel=0.02)
    assert found.seconds == pytest.approx(1 + total * 1e-3, rel=0.02)


def test_the_largest_run_takes_about_the_time_that_was_asked_for(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_texts(tmp_path / "t.txt", distinct_texts(3000))
    for seconds in (4.0, 12.0):
        machine = Machine(monkeypatch, 0.0, 1e-3)
        found = estimate_corpus(model, [source], clock=machine.clock, sample_seconds=seconds)
        assert found.sample_seconds == pytest.approx(seconds, rel=0.2)


@pytest.mark.parametrize("count", [1, 2, 8, 9, 65])
def test_a_few_texts_are_all_of_the_sample(
    count: int, model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = distinct_texts(count)
    machine = Machine(monkeypatch, 0.5, 1e-3)
    found = estimate_corpus(model, [write_texts(tmp_path / "t.txt", texts)], clock=machine.clock)
    assert found.sample_texts == count
    assert found.seconds == pytest.approx(0.5 + 1e-3 * tokens_of(model, texts), rel=1e-6)


def test_a_clock_that_stands_gives_no_infinity(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, 0.0, 0.0)
    found = estimate_corpus(model, [write_texts(tmp_path / "t.txt", distinct_texts(200))], clock=machine.clock)
    assert (found.seconds, found.tokens_per_second) == (0.0, 0.0)


def test_equal_texts_of_a_shard_are_computed_once(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = distinct_texts(100) * 10
    machine = Machine(monkeypatch, 0.0, 1e-3)
    source = write_texts(tmp_path / "t.txt", texts)
    found = estimate_corpus(model, [source], clock=machine.clock)
    assert (found.n_texts, found.n_computed) == (1000, 100)
    assert found.n_tokens == tokens_of(model, texts[:100])
    in_shards = estimate_corpus(model, [source], clock=machine.clock, shard_size=250)
    assert in_shards.n_computed == 400  # each of four shards has all texts
    assert in_shards.n_tokens == 4 * found.n_tokens


def test_long_texts_do_not_fill_the_memory(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "_SAMPLE_CHARACTERS", 20_000)
    machine = Machine(monkeypatch, 0.0, 1e-3)
    texts = [f"{i} " + "the cat " * 300 for i in range(300)]
    found = estimate_corpus(model, [write_texts(tmp_path / "t.txt", texts)], clock=machine.clock)
    assert found.sample_texts <= 20_000 / 2400 + 1
    assert found.n_tokens == pytest.approx(tokens_of(model, texts), rel=0.01)


# --- beside true runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npy", ".jsonl"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_counts_and_sizes_are_those_of_the_run(
    suffix: str, dtype: str, model: SentenceTransformer, tmp_path: Path
) -> None:
    source = write_texts(tmp_path / "t.txt", distinct_texts(400))
    found = estimate_corpus(model, [source], suffix=suffix, dtype=dtype, sample_seconds=0.05)
    output = tmp_path / f"v{suffix}"
    summary = embed_corpus(model, [source], output, dtype=dtype)
    assert summary is not None
    assert (found.n_texts, found.n_tokens) == (summary.n_texts, summary.n_tokens)
    if suffix == ".npy":
        assert found.output_bytes == np.load(output).nbytes
    peak = peak_memory()
    assert peak is None or (found.memory_bytes is not None and 0 < found.memory_bytes < 1.5 * peak)


def test_nothing_is_left_on_the_disk(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    source = write_texts(tmp_path / "t.txt", distinct_texts(30))
    estimate_corpus(model, [source], sample_seconds=0.01)
    assert list(scratch.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "t.txt"]


def test_compressed_files_and_tables_are_read(model: SentenceTransformer, tmp_path: Path) -> None:
    table = tmp_path / "t.csv.gz"
    with gzip.open(table, "wt", encoding="utf-8") as file:
        file.write("id,body\n" + "".join(f"{i},{text}\n" for i, text in enumerate(distinct_texts(50))))
    plain = write_texts(tmp_path / "t.txt", distinct_texts(50))
    source = Source(str(table), "csv", "body", "id")
    found = [estimate_corpus(model, [each], sample_seconds=0.01) for each in (source, plain)]
    assert found[0].n_tokens == found[1].n_tokens


# --- errors -----------------------------------------------------------------------------------------------------------


def test_bad_lines_are_those_of_a_run(model: SentenceTransformer, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "the cat"}\nnot json\n{"other": 1}\n{"text": "a mat"}\n')
    source, messages = Source(str(path), "jsonl"), []
    for call in (
        lambda: estimate_corpus(model, [source]),
        lambda: embed_corpus(model, [source], tmp_path / "v.npy"),
    ):
        with pytest.raises(ValueError, match="2 input lines cannot be used") as caught:
            call()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    found = estimate_corpus(model, [source], on_error="skip", sample_seconds=0.01, report=lambda line: None)
    assert (found.n_texts, found.n_unusable) == (2, 2)
    kept = estimate_corpus(model, [source], on_error="null", sample_seconds=0.01, report=lambda line: None)
    assert kept.output_bytes == 2 * found.output_bytes


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"dtype": "int8"}, ValueError, "dtype"),
        ({"suffix": ".txt"}, ValueError, "suffix"),
        ({"on_error": "ignore"}, ValueError, "on_error"),
        ({"sample_seconds": 0}, ValueError, "sample_seconds=0"),
        ({"sample_seconds": float("nan")}, ValueError, "sample_seconds=nan"),
        ({"shard_size": 0}, ValueError, "shard_size"),
        ({"num_threads": 0}, ValueError, "num_threads"),
        ({"prompt_name": "none"}, ValueError, "prompt"),
        ({"layer": 1}, TypeError, "layer"),
    ],
)
def test_wrong_arguments_are_refused(
    wrong: dict[str, Any], error: type[Exception], message: str, model: SentenceTransformer, tmp_path: Path
) -> None:
    source = write_texts(tmp_path / "t.txt", ["the cat"])
    with pytest.raises(error, match=message):
        estimate_corpus(model, [source], **wrong)


def test_files_without_texts_are_refused(model: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no text"):
        estimate_corpus(model, [write_texts(tmp_path / "t.txt", [])])
    with pytest.raises(OSError, match="cannot be read"):
        estimate_corpus(model, [Source(str(tmp_path / "missing.txt"), "text")])
    with pytest.raises(TypeError, match="expected a list"):
        estimate_corpus(model, "t.txt")  # type: ignore[arg-type]


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_command_prints_how_it_was_computed(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.txt"
    write_texts(path, distinct_texts(70))
    verb = ["embed", "-m", str(model_folder), "--estimate", "--threads", "1"]
    assert main([*verb, "-i", str(path)]) == 0
    shown = capsys.readouterr().out
    for word in ("texts     70", "1 thread on this machine", "memory", "tokens per second", "2 readings", "a guess"):
        assert word in shown
    assert main([*verb, "-i", str(path), "--json", "-o", str(tmp_path / "v.jsonl")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {*(field.name for field in dataclasses.fields(Estimate)), "hours", "core_hours"}
    assert (found["n_texts"], found["num_threads"]) == (70, 1)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
    assert main([*verb, "-i", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_tokens"] == found["n_tokens"]
    assert [each.name for each in tmp_path.iterdir()] == ["t.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--estimate"], "there is no text"),
        (["--estimate", "a text"], "--estimate is for files of texts"),
        (["--json", "a text"], "--json is for --estimate"),
        (["--estimate", "-i", "t.txt", "--resume"], "--resume does not work with --estimate"),
        (["--estimate", "-i", "t.txt", "-o", "v.txt"], "must end in .npy, .jsonl or .parquet"),
        (["--estimate", "-i", "t.txt", "--precision", "int8"], "--precision does not work with --input"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "t.txt", ["the cat"])
    assert main(["embed", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_few_texts_have_a_note_that_their_time_says_little(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "few.txt").write_text("the\na\n")
    assert main(["embed", "-m", str(model_folder), "-i", str(tmp_path / "few.txt"), "--estimate"]) == 0
    assert "the texts are too few to tell the start from the tokens" in capsys.readouterr().out
