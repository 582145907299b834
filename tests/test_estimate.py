"""`estimate_corpus` and `minibert embed --estimate`: what is counted, the arithmetic, the same errors as a run's."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.base.machine import peak_memory
from minibert.cli import main
from minibert.corpus import estimate, sample
from minibert.corpus.embed import embed_corpus
from minibert.corpus.estimate import Estimate, estimate_corpus
from minibert.corpus.readers import InputLine, Source
from minibert.corpus.sample import CorpusSample
from minibert.corpus.speed import Speed, measure_speed
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
        counts = [min(count, model.max_seq_length) for count in model.num_tokens([*dict.fromkeys(texts)])]
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
    assert (found.seconds_low, found.seconds_high) == pytest.approx((found.seconds, found.seconds), rel=1e-6)
    assert machine.runs[0] == machine.runs[1] < machine.runs[2] <= machine.runs[-1] == found.sample_texts <= 3000
    assert machine.runs.count(found.sample_texts) in (8, 9)  # the last run that looks for the size may have it too


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


def test_the_runs_take_about_the_time_that_was_asked_for(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_texts(tmp_path / "t.txt", distinct_texts(3000))
    for seconds in (4.0, 12.0):
        machine = Machine(monkeypatch, 0.0, 1e-3)
        found = estimate_corpus(model, [source], clock=machine.clock, sample_seconds=seconds)
        assert found.sample_seconds == pytest.approx(seconds, rel=0.2)
        assert found.sample_tokens == pytest.approx(1000 * found.sample_seconds)


@pytest.mark.parametrize("count", [1, 2, 8, 9, 65])
def test_few_texts_are_run_as_they_are(
    count: int, model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = distinct_texts(count)
    machine = Machine(monkeypatch, 0.5, 1e-3)
    found = estimate_corpus(model, [write_texts(tmp_path / "t.txt", texts)], clock=machine.clock, sample_seconds=10)
    assert found.sample_texts == count
    assert found.seconds == pytest.approx(0.5 + 1e-3 * tokens_of(model, texts), rel=1e-6)


def test_a_clock_that_stands_gives_no_infinity(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, 0.0, 0.0)
    found = estimate_corpus(model, [write_texts(tmp_path / "t.txt", distinct_texts(200))], clock=machine.clock)
    assert (found.seconds, found.seconds_low, found.seconds_high) == (0.0, 0.0, 0.0)
    assert found.tokens_per_second is None


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


def test_texts_that_all_shards_have_are_in_a_run_once(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that had them twice would compute them once, and would seem to be fast."""
    texts = distinct_texts(500)
    machine = Machine(monkeypatch, 1.0, 1e-3)
    source = write_texts(tmp_path / "t.txt", texts * 6)
    found = estimate_corpus(model, [source], clock=machine.clock, shard_size=500, sample_seconds=60)
    assert found.n_computed == 3000
    assert found.seconds == pytest.approx(1 + 6 * 1e-3 * tokens_of(model, texts), rel=1e-6)


def test_long_texts_do_not_fill_the_memory(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "_SAMPLE_CHARACTERS", 20_000)
    machine = Machine(monkeypatch, 0.0, 1e-3)
    texts = [f"{i} " + "the cat " * 300 for i in range(300)]
    found = estimate_corpus(model, [write_texts(tmp_path / "t.txt", texts)], clock=machine.clock)
    assert found.sample_texts <= 20_000 / 2400 + 1
    assert found.n_tokens == pytest.approx(tokens_of(model, texts), rel=0.01)


# --- the sample -------------------------------------------------------------------------------------------------------


def lines_of(texts: list[str]) -> list[InputLine]:
    return [InputLine(text, None, "t.txt", number) for number, text in enumerate(texts)]


def sampled_tokens(texts: list[str], limit: int | None) -> tuple[int, int]:
    """Return the tokens, which are words here, as the sample has them, and as they are."""

    def tokens(text: str) -> int:
        words = len(text.split())
        return words if limit is None else min(words, limit)

    found = CorpusSample(10_000, limit)
    for first in range(0, len(texts), 1000):
        found.add(lines_of(texts[first : first + 1000]))
    chosen = found.texts()
    assert len(chosen) <= 4096
    return found.n_tokens(chosen, [tokens(text) for text in chosen]), sum(map(tokens, texts))


@pytest.mark.parametrize("order", ["as they come", "sorted"])
@pytest.mark.parametrize("limit", [None, 256])
def test_the_tokens_of_a_corpus_with_a_few_long_texts(order: str, limit: int | None) -> None:
    """Without the lengths of all texts, the sample misses by 10 % and more; whole long texts make it miss by far."""
    chance = random.Random(1)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(2, 8))) + f" {i}" for i in range(30_000)]
    long = 12 if limit is None else 200
    texts += [f"{i} " + " ".join(chance.choices(WORDS, k=12_000 if limit is None else 1200)) for i in range(long)]
    if order == "sorted":
        texts.sort(key=len)
    found, expected = sampled_tokens(texts, limit)
    assert found == pytest.approx(expected, rel=0.03)


def test_a_sample_of_all_texts_has_their_tokens_exactly() -> None:
    for texts in (["a b c"], ["a", "b", "c"], ["a", "the cat sat", "b c"]):
        assert sampled_tokens(texts, 256) == (sum(len(text.split()) for text in texts),) * 2


# --- the speed --------------------------------------------------------------------------------------------------------


class Noisy:
    """Runs on a machine that is half as fast again slower in some spells: a start of 0.15 s, and 0.1 ms for a token."""

    def __init__(self, seed: int, part: float, spell: float) -> None:
        self._chance, self.now = random.Random(seed), 0.0
        self._slow, self._until = False, 0.0
        self._lengths = (spell, spell * (1 - part) / part)  # mean seconds of a slow spell, and of another one
        self.calls = list[tuple[int, int]]()

    def take(self, work: float) -> float:
        start = self.now
        while work > 0:
            if self.now >= self._until:
                self._slow = not self._slow
                self._until = self.now + self._chance.expovariate(1 / self._lengths[0 if self._slow else 1])
            pace = 1.5 if self._slow else 1.0
            step = min(work * pace, self._until - self.now)
            self.now, work = self.now + step, work - step / pace
        return self.now - start

    def run(self, first: int, count: int) -> float:
        self.calls.append((first, count))
        return self.take(0.15 + 1e-4 * sum(COUNTS[(first + i) % len(COUNTS)] for i in range(count)))


COUNTS = random.Random(0).choices(range(5, 60), k=4096)


def test_runs_on_a_noisy_machine() -> None:
    """The time of a later run of 40 seconds: one sample of 5 s misses much more often than the runs do."""
    missed = {"one": 0, "runs": 0}
    covered = 0
    for seed in range(60):
        one = Noisy(seed, 0.2, 3.0)
        alone = one.run(0, 1500) / (0.15 + 1e-4 * sum(COUNTS[:1500]))
        missed["one"] += abs(alone * 40 / one.take(40) - 1) > 0.15
        noisy = Noisy(seed, 0.2, 3.0)
        found = measure_speed(noisy.run, COUNTS, 6.0)
        assert found.token_seconds is not None
        guess, truth = found.start_seconds + found.token_seconds * 40 / 1e-4, noisy.take(40)
        missed["runs"] += abs(guess / truth - 1) > 0.15
        covered += 0.95 * found.low * guess <= truth <= 1.05 * found.high * guess
    assert missed["one"] >= 10
    assert missed["runs"] <= 5
    assert covered >= 40


def test_a_calm_machine_has_few_runs_and_a_noisy_one_more() -> None:
    calm = Noisy(0, 1e-9, 1e-9)
    found = measure_speed(calm.run, COUNTS, 6.0)
    assert (len(found.ratios), found.seconds) == (8, pytest.approx(6, rel=0.25))
    assert (found.start_seconds, found.token_seconds) == (pytest.approx(0.15), pytest.approx(1e-4))
    assert (found.low, found.high) == pytest.approx((1, 1))
    firsts = [first for first, count in calm.calls if count == found.texts][-8:]
    assert firsts == [number * found.texts % len(COUNTS) for number in range(8)]  # each has other texts
    noisy = [measure_speed(Noisy(seed, 0.3, 0.5).run, COUNTS, 6.0) for seed in range(5)]
    assert all(8 < len(each.ratios) <= 24 for each in noisy)
    assert all(each.seconds < 3 * 6.0 + 2 for each in noisy)
    assert all(each.high > 1.15 * each.low for each in noisy)


def test_a_run_that_is_interrupted_changes_nothing() -> None:
    exact = Noisy(0, 1e-9, 1e-9)
    calls = list[int]()

    def run(first: int, count: int) -> float:
        calls.append(count)
        return exact.run(first, count) + 5.0 * (len(calls) in (12, 17))

    found = measure_speed(run, COUNTS, 6.0)
    assert (found.start_seconds, found.token_seconds) == (pytest.approx(0.15), pytest.approx(1e-4))


def test_start_and_tokens_are_not_told_apart_where_they_cannot_be() -> None:
    chance = random.Random(0)
    found = measure_speed(lambda first, count: chance.uniform(0.1, 0.16), [7, 6], 6.0)
    assert (found.token_seconds, len(found.ratios)) == (None, 8)  # further runs would not help
    assert found.start_seconds == pytest.approx(0.13, abs=0.03)
    of_one = measure_speed(lambda first, count: 0.14, [7], 6.0)
    assert (of_one.token_seconds, of_one.start_seconds) == (None, pytest.approx(0.14))


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
    for word in ("texts     70", "1 thread on this machine", "memory", "8 runs of 70 texts", "2 readings", "a guess"):
        assert word in shown
    assert re.search(r"^output    6\.7 KB of numbers$", shown, re.MULTILINE)  # 70 vectors of 24 float32
    assert "core-hours. Divide them by another number of cores for a guess: the runs had 1 thread\n" in shown
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


def command_shows(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **measured: Any
) -> str:
    """Return what `minibert embed --estimate` prints if the runs measure this."""
    found = Speed(**{"start_seconds": 0.5, "token_seconds": 1e-3, "ratios": (1.0,) * 8, **measured})
    monkeypatch.setattr(estimate, "measure_speed", lambda run, counts, seconds: found)
    assert main(["embed", "--estimate", *arguments]) == 0
    return capsys.readouterr().out


def test_the_command_says_what_it_does_not_know(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.txt"
    write_texts(path, distinct_texts(70))
    arguments = ["-m", str(model_folder), "-i", str(path)]
    sizes: dict[str, Any] = {"texts": 70, "tokens": 8000, "seconds": 8.0}
    shown = command_shows(arguments, capsys, monkeypatch, **sizes)
    assert "between" not in shown
    assert "estimated from a sample" not in shown  # all texts were in the sample
    with monkeypatch.context() as patch:
        patch.setattr(sample, "_SAMPLE_TEXTS", 69)
        assert "estimated from a sample" in command_shows(arguments, capsys, monkeypatch, **sizes)
    assert "estimated from a sample" in command_shows(
        [*arguments, "--truncation", "split"], capsys, monkeypatch, **sizes
    )
    assert "8 runs of 70 texts, 8,000 tokens in 8.00 s: 1,000 tokens per second after the start" in shown
    shown = command_shows(arguments, capsys, monkeypatch, **sizes, ratios=(0.9, 0.9, 1.0, 1.0, 1.0, 1.0, 1.5, 1.5))
    between = re.search(r"between (.*) seconds and (.*) seconds, because the runs over the sample disagree", shown)
    assert between is not None
    assert float(between[2]) - float(between[1]) == pytest.approx((0.5 + 1.103) * (1.5 - 0.9), abs=0.11)
    sizes["token_seconds"] = None
    shown = command_shows(arguments, capsys, monkeypatch, **sizes)
    assert "the texts are too few to tell the start from the tokens" in shown
    assert "per second" not in shown


def test_the_memory_does_not_hold_the_compiler(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.txt"
    write_texts(path, ["the cat"])
    arguments = ["-m", str(model_folder), "-i", str(path), "--compute-type", "float32"]
    sizes: dict[str, Any] = {"texts": 1, "tokens": 80, "seconds": 8.0}
    monkeypatch.setitem(sys.modules, "minibert.kernels.compilation", None)  # as if this process had compiled
    assert "with the compiler" in command_shows(arguments, capsys, monkeypatch, **sizes)
    monkeypatch.delitem(sys.modules, "minibert.kernels.compilation")
    assert "with the compiler" not in command_shows(arguments, capsys, monkeypatch, **sizes)

    commands = list[list[str]]()
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    command_shows(arguments, capsys, monkeypatch, **sizes)
    assert not commands  # this process has loaded the kernels
    monkeypatch.delitem(sys.modules, "minibert.kernels.machine_code")
    command_shows(arguments, capsys, monkeypatch, **sizes)
    assert commands == [[sys.executable, "-m", "minibert", "warmup", "--compute-type", "float32"]]


@pytest.mark.slow
def test_the_memory_is_that_with_compiled_kernels(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    path = tmp_path / "t.txt"
    write_texts(path, distinct_texts(70))
    command = [sys.executable, "-m", "minibert", "embed", "-m", str(model_folder), "-i", str(path), "--estimate"]
    cold, warm = (
        json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout) for _ in range(2)
    )
    assert not cold["with_compiler"]
    assert cold["memory_bytes"] == pytest.approx(warm["memory_bytes"], rel=0.05)
