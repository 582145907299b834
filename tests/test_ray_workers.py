"""Runs on the workers of a cluster, on a stand-in for Ray; `Embedder` as a class. Ray itself is in tests/engines."""

from __future__ import annotations

import json
import random
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import minibert
from minibert import SentenceTransformer
from minibert.cli import main
from minibert.corpus.embed import embed_corpus
from minibert.corpus.sources import Source
from minibert.integrations import ray as module
from minibert.integrations.ray import Embedder, RayWorkers
from tests.support.corpus_runs import contents, texts_of
from tests.support.fake_ray import FakeRay

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")

Installed = Callable[..., FakeRay]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Return a function that puts a `FakeRay` in Ray's place."""

    def put(*arguments: Any, **options: Any) -> FakeRay:
        ray = FakeRay(*arguments, **options)
        monkeypatch.setattr(module, "_import_ray", lambda: ray)
        return ray

    return put


def source(folder: Path, count: int = 200) -> Source:
    """Make JSON lines: texts, some of them equal, some too long, and some lines without a text."""
    path = folder / "texts.jsonl"
    lines = [json.dumps({"text": text} if index % 31 else {"no": "text"}) for index, text in enumerate(texts_of(count))]
    path.write_text("".join(f"{line}\n" for line in lines))
    return Source(str(path), "jsonl", name=path.name)


def embed(model: SentenceTransformer, texts: Source, output: Path, workers: RayWorkers | None, **options: Any) -> Any:
    said: list[str] = []
    how = {"on_error": "null", "shard_size": 12, "truncation": "silent", "report": said.append, **options}
    output.parent.mkdir(exist_ok=True)
    if output.suffix == "":
        output.mkdir(exist_ok=True)
    summary = embed_corpus(model, [texts], output, workers=workers, **how)
    return said, None if summary is None else vars(summary) | {"seconds": 0}


def on_ray(model: SentenceTransformer, texts: Source, output: Path, **options: Any) -> Any:
    with RayWorkers(model.folder, address="local", actors=3, num_threads=1) as workers:  # type: ignore[attr-defined]
        return embed(model, texts, output, workers, **options)


@pytest.fixture(scope="module")
def model(short_folder: Path) -> SentenceTransformer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = SentenceTransformer(short_folder)
    found.folder = str(short_folder)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("name", "truncation"), [("v.npy", "silent"), ("v.jsonl", "error"), ("v.parquet", "split"), ("v", "silent")]
)
def test_the_files_are_those_of_one_process_even_if_workers_die(
    model: SentenceTransformer, install: Installed, tmp_path: Path, name: str, truncation: str
) -> None:
    pytest.importorskip("pyarrow")
    texts = source(tmp_path)
    alone = embed(model, texts, tmp_path / "alone" / name, None, truncation=truncation)
    deaths = {*random.Random(len(name)).sample(range(1, 18), 4)}
    ray = install(dies=lambda number: "killed" if number in deaths else "", seed=len(name))
    assert on_ray(model, texts, tmp_path / "ray" / name, truncation=truncation) == alone
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")
    assert ray.n_calls == 17 + 4
    assert 3 < ray.most_at_a_time <= 6  # the others wait, so that memory does not grow with the texts
    assert len(ray.killed) == 3  # they are ended with the run
    assert not ray.up


def test_a_run_that_workers_end_is_continued(model: SentenceTransformer, install: Installed, tmp_path: Path) -> None:
    texts = source(tmp_path)
    _, alone = embed(model, texts, tmp_path / "alone" / "v.npy", None)
    for number, resumed in enumerate((on_ray, lambda *given, **options: embed(*given, None, **options))):
        output = tmp_path / f"ray{number}" / "v.npy"
        install(dies=lambda number: "too little memory" if number > 8 else "")
        with pytest.raises(OSError, match=r"A worker died again and again.* too little memory"):
            on_ray(model, texts, output)
        ray = install()
        _, summary = resumed(model, texts, output, resume=True)
        assert 0 < summary["n_resumed"] < summary["n_texts"]
        assert summary == {**alone, "n_resumed": summary["n_resumed"]}
        assert ray.n_calls < 17  # finished shards are not computed again
        assert contents(output.parent) == contents(tmp_path / "alone")


def test_workers_that_would_compute_something_else(
    model: SentenceTransformer, install: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_folder: Path
) -> None:
    texts, output = source(tmp_path), tmp_path / "ray" / "v.npy"
    install()
    for folder, kind, message in (
        (small_folder, ValueError, "computes another vector for the same text"),
        (tmp_path / "nothing", (ValueError, OSError), "A worker could not compute its texts: .*nothing"),
    ):
        with RayWorkers(str(folder), address="local", num_threads=1) as workers, pytest.raises(kind, match=message):
            embed(model, texts, output, workers, resume=True)
    version = minibert.__version__
    load = module._Worker._load

    def load_elsewhere(self: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(module, "__version__", "0.1.0")
            return load(self)

    monkeypatch.setattr(module._Worker, "_load", load_elsewhere)
    with pytest.raises(ValueError, match=rf"has minibert 0\.1\.0, and the run has {version}\. Install the same wheel"):
        on_ray(model, texts, output, resume=True)


def test_the_error_of_a_worker_is_one_of_ours(
    model: SentenceTransformer, install: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    for raised, kind in ((MemoryError("no"), MemoryError), (KeyError("odd"), OSError)):
        monkeypatch.setattr(module._Worker, "encode", Mock(side_effect=raised))
        with pytest.raises(kind, match="A worker could not compute its texts: "):
            on_ray(model, source(tmp_path), tmp_path / "v.npy", resume=True)


# --- the cluster ------------------------------------------------------------------------------------------------------


def test_threads_and_number_of_workers() -> None:
    for cpus, threads, actors, expected in (
        ((2,), None, None, (2, 1)),
        ((64, 64), None, None, (4, 32)),
        ((8, 0, 2), None, None, (2, 5)),
        ((8, 2), 4, None, (4, 2)),
        ((2,), 1, 7, (1, 7)),
    ):
        assert module._plan(FakeRay(cpus), threads, actors) == expected
        with pytest.raises(ValueError, match=r"num_threads=65, but the largest machine"):
            module._plan(FakeRay(cpus), 65, None)


def test_addresses(install: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    for address in ("nonsense", "host:port", "ray://host:10001"):
        with pytest.raises(ValueError, match=r"address=.*expected .host:port."):
            RayWorkers("m", address=address)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1")
    with pytest.raises(ValueError, match=r"RAY_ADDRESS='10\.0\.0\.1'; expected 'host:port'"):
        RayWorkers("m")
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(ValueError, match="actors=0"):
        RayWorkers("m", actors=0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"No Ray cluster can be used at {address}"), RayWorkers("m", address=address):
            pass


@pytest.mark.parametrize("error", [SystemExit(15), Exception("15: too slow")])
def test_errors_of_ray_are_ours(install: Installed, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Ray 2.60 ends the process if its head does not answer, and raises Exception if it starts too slowly."""
    monkeypatch.setattr(install(), "init", Mock(side_effect=error))
    workers = RayWorkers("m", address="local")
    with pytest.raises(OSError, match="No Ray cluster can be used at this machine: 15"), workers:
        pass


def test_without_address_and_cluster_ray_is_started_here(install: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray, reports, asked, start = install(), list[str](), list[Any](), FakeRay.init

    def init(**options: Any) -> None:
        asked.append(options)
        if options["address"] == "auto":
            raise ConnectionError("Could not find any running Ray instance.")
        start(ray, **options)

    monkeypatch.setattr(ray, "init", init)
    with RayWorkers("m", report=reports.append):
        assert ray.up
    assert [options["address"] for options in asked] == ["auto", "local"]
    assert asked[1]["include_dashboard"] is False
    assert reports == ["No Ray cluster runs on this machine, so Ray is started here for this run."]


def test_the_command_line(
    short_folder: Path, install: Installed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text in texts_of(60)))
    (tmp_path / "ray").mkdir()
    (tmp_path / "alone").mkdir()
    arguments = ["embed", "-m", str(short_folder), "-i", str(texts), "--shard-size", "20", "-o"]
    ray = install()
    on = ["--on", "ray:local", "--actors", "2", "--threads", "1"]
    assert main([*arguments, str(tmp_path / "ray" / "v.npy"), *on]) == 0
    assert main([*arguments, str(tmp_path / "alone" / "v.npy")]) == 0
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")
    assert [resources["num_cpus"] for resources in ray.resources] == [1, 1]
    capsys.readouterr()
    for given, problem in {
        ("-i", str(texts), "--on", "spark"): "--on spark: expected ray, ray:local or ray:HOST:PORT",
        ("-i", str(texts), "--actors", "2"): "name it with --on",
        ("-i", str(texts), "--on", "ray:local", "--threads", "3"): "the largest machine",
        ("a text", "--on", "ray"): "--on is for files of texts",
    }.items():
        assert main(["embed", "-m", str(short_folder), "-o", str(tmp_path / "w.npy"), *given]) == 1
        assert problem in capsys.readouterr().err
    assert not (tmp_path / "w.npy").exists()


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    texts = tmp_path / "texts.txt"
    texts.write_text("a\n")
    with pytest.raises(ImportError, match=r"needs ray, which is not installed: pip install 'ray\[data,serve\]'"):
        RayWorkers("m")
    assert main(["embed", "-i", str(texts), "-o", str(tmp_path / "v.npy"), "--on", "ray"]) == 1
    assert "needs ray, which is not installed" in capsys.readouterr().err


# --- Embedder ---------------------------------------------------------------------------------------------------------


def test_embedder_adds_a_column(short_folder: Path, model: SentenceTransformer) -> None:
    texts = np.array(texts_of(50), dtype=object)
    embedder = Embedder(str(short_folder), column="body", output="v", truncation="silent")
    batch = embedder({"id": np.arange(50), "body": texts})
    assert [*batch] == ["id", "body", "v"]
    assert batch["v"].dtype == np.float32
    np.testing.assert_array_equal(batch["v"], model.encode(texts.tolist(), truncation="silent"))
    np.testing.assert_array_equal(embedder({"body": texts.astype(np.str_)})["v"], batch["v"])
    assert embedder({"body": texts[:0]})["v"].shape == (0, batch["v"].shape[1])


def test_embedder_counts_cut_texts_and_warns_once(short_folder: Path) -> None:
    texts = ["a cat", "the cat " * 40, "the dog " * 40]
    embedder = Embedder(str(short_folder))
    with pytest.warns(UserWarning, match="2 of 3 texts have more than 32 tokens and were cut"):
        embedder({"text": texts})
    embedder({"text": texts})  # warnings are errors
    assert (embedder.cut.num_texts, embedder.cut.num_cut) == (6, 4)


def test_embedder_with_texts_that_cannot_be_used(short_folder: Path, model: SentenceTransformer) -> None:
    bad: dict[str, Any] = {"id": np.arange(5), "text": ["a", None, "the cat " * 40, "\ud800", "b"]}
    good = model.encode(["a", "b"])
    how: dict[str, Any] = {"truncation": "error", "on_error": "null"}
    kept = Embedder(str(short_folder), **how)(bad)
    np.testing.assert_array_equal(np.isnan(kept["vector"]).all(axis=1), [False, True, True, True, False])
    np.testing.assert_array_equal(kept["vector"][[0, 4]], good)
    skipped = Embedder(str(short_folder), truncation="error", on_error="skip")(bad)
    assert skipped["id"].tolist() == [0, 4]
    np.testing.assert_array_equal(skipped["vector"], good)
    stops = Embedder(str(short_folder), truncation="error")
    for index, kind, problem in (
        (1, TypeError, r"text\[0\] is NoneType"),
        (2, ValueError, r"text\[0\] has 82 tokens, the limit is 32"),
        (3, ValueError, r"text\[0\] .*surrogate"),
    ):
        with pytest.raises(kind, match=problem):
            stops({"text": bad["text"][index : index + 1]})
    with pytest.raises(ValueError, match=r"does not have the column 'text'; it has body"):
        stops({"body": ["a"]})
    for batch, problem in (({"text": "abc"}, "is a str"), ({"text": 3}, "is a int")):
        with pytest.raises(TypeError, match=problem):
            stops(batch)
    with pytest.raises(ValueError, match="on_error='ignore'"):
        Embedder(str(short_folder), on_error="ignore")
    with pytest.raises(TypeError, match="'colour'"):
        Embedder(str(short_folder), colour="red")


def test_the_threads_of_a_worker_are_those_that_ray_has_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._assigned_threads() is None
    context = SimpleNamespace(worker=SimpleNamespace(mode=1), get_assigned_resources=lambda: {"CPU": 3.0})
    ray = SimpleNamespace(WORKER_MODE=1, is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert module._assigned_threads() == 3


def test_options_of_workers_do_not_depend_on_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, variables, expected in (
        ({}, {}, ("kernels", "float32", True)),
        ({}, {"SHARED_WEIGHTS": "0"}, ("kernels", "float32", False)),
        ({"backend": "numpy"}, {"BACKEND": "numba"}, ("numpy", "float32", False)),
        ({}, {"BACKEND": "numpy", "COMPUTE_TYPE": "int8"}, ("numpy", "int8", False)),
        ({"shared_weights": True, "compute_type": "int16"}, {"SHARED_WEIGHTS": "0"}, ("kernels", "int16", True)),
    ):
        for name in ("BACKEND", "COMPUTE_TYPE", "SHARED_WEIGHTS"):
            monkeypatch.setenv(f"MINIBERT_{name}", variables.get(name, ""))
        found = module._resolved({**given, "revision": "main"})
        assert found["revision"] == "main"
        assert (found["backend"], found["compute_type"], found["shared_weights"]) == expected
    monkeypatch.setenv("MINIBERT_SHARED_WEIGHTS", "wrong")
    with pytest.raises(ValueError, match="MINIBERT_SHARED_WEIGHTS='wrong'"):
        module._resolved({})
