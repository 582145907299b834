"""Runs on the actors of a cluster, on a stand-in for Ray; `Embedder` as a class. Ray itself is in tests/engines."""

from __future__ import annotations

import json
import pickle
import platform
import random
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minibert
from minibert import SentenceTransformer
from minibert.cli import main
from minibert.corpus.embed import embed_corpus
from minibert.corpus.readers import Source
from minibert.integrations import ray_cluster, ray_workers
from minibert.integrations.ray import Embedder, assigned_threads, resolved_options
from minibert.integrations.ray_workers import RayWorkers
from tests.support.crash_program import contents, texts_of
from tests.support.fake_ray import FakeRay

pytestmark = pytest.mark.filterwarnings("ignore:.*has no modules.json")

Installed = Callable[..., FakeRay]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Return a function that puts a `FakeRay` in Ray's place. Pieces are small, so that a shard has several."""
    monkeypatch.setattr(ray_workers, "_TEXTS", 7)

    def put(*arguments: Any, **options: Any) -> FakeRay:
        ray = FakeRay(*arguments, **options)
        monkeypatch.setattr(ray_workers, "import_ray", lambda: ray)
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
    how = {"on_error": "null", "shard_size": 40, "truncation": "silent", "report": said.append, **options}
    output.parent.mkdir(exist_ok=True)
    summary = embed_corpus(model, [texts], output, workers=workers, **how)
    return said, None if summary is None else vars(summary) | {"seconds": 0}


def on_ray(model: SentenceTransformer, texts: Source, output: Path, **options: Any) -> Any:
    with RayWorkers(model.folder, address="local", actors=3, num_threads=1) as workers:
        return embed(model, texts, output, workers, **options)


@pytest.fixture(scope="module")
def model(short_folder: Path) -> SentenceTransformer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = SentenceTransformer(short_folder)
    found.folder = str(short_folder)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
@pytest.mark.parametrize("truncation", ["silent", "error", "split"])
def test_the_files_are_those_of_one_process(
    model: SentenceTransformer, install: Installed, tmp_path: Path, name: str, truncation: str
) -> None:
    texts = source(tmp_path)
    alone = embed(model, texts, tmp_path / "alone" / name, None, truncation=truncation)
    ray = install(seed=len(name))
    assert on_ray(model, texts, tmp_path / "ray" / name, truncation=truncation) == alone
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")
    assert ray.n_actors == 3
    assert len(ray.killed) == 3  # they are ended with the run
    assert not ray.up


def test_a_folder_is_that_of_one_process_and_is_continued(
    model: SentenceTransformer, install: Installed, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    texts, size = source(tmp_path), 50 * 24 * 4  # a file has two shards
    alone = embed(model, texts, tmp_path / "alone" / "v", None, file_size=size)
    assert alone[1]["n_files"] == 3
    install(dies=lambda number, method: "killed" if number > 20 and method == "encode" else "")
    with pytest.raises(OSError, match="5 workers or more died"):
        on_ray(model, texts, tmp_path / "ray" / "v", file_size=size)
    finished = contents(tmp_path / "ray" / "v")
    assert 0 < len(finished) < 3
    install()
    _, summary = on_ray(model, texts, tmp_path / "ray" / "v", file_size=size, resume=True)
    assert summary["n_resumed"] >= 80
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")
    assert all(contents(tmp_path / "ray" / "v")[name] == content for name, content in finished.items())


@pytest.mark.parametrize("seed", range(5))
def test_actors_that_die_at_random_moments(
    model: SentenceTransformer, install: Installed, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = source(tmp_path)
    alone = embed(model, texts, tmp_path / "alone" / "v.npy", None)
    moments = {*random.Random(seed).sample(range(1, 35), 10)}
    ray = install(dies=lambda number, method: "killed" if number in moments else "", seed=seed)
    assert on_ray(model, texts, tmp_path / "ray" / "v.npy") == alone
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")
    assert ray.n_actors == 3 + 10
    assert capsys.readouterr().out.count("A worker died; another one computes its texts. Ray says: killed\n") == 10


def test_a_run_that_workers_end_is_continued_with_and_without_them(
    model: SentenceTransformer, install: Installed, tmp_path: Path
) -> None:
    texts = source(tmp_path)
    _, alone = embed(model, texts, tmp_path / "alone" / "v.npy", None)
    for number, resumed in enumerate((on_ray, lambda *given, **options: embed(*given, None, **options))):
        output = tmp_path / f"ray{number}" / "v.npy"
        install(dies=lambda number, method: "too little memory" if number > 20 and method == "encode" else "")
        with pytest.raises(
            OSError, match=r"5 workers or more died while they computed the same texts\..* too little mem"
        ):
            on_ray(model, texts, output)
        ray = install()
        _, summary = resumed(model, texts, output, resume=True)
        assert 0 < summary["n_resumed"] < summary["n_texts"]
        assert summary == {**alone, "n_resumed": summary["n_resumed"]}
        assert ray.n_calls < 25  # finished shards are not computed again
        assert contents(output.parent) == contents(tmp_path / "alone")


def test_workers_that_would_compute_something_else(
    model: SentenceTransformer, install: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_folder: Path
) -> None:
    texts, output = source(tmp_path), tmp_path / "ray" / "v.npy"
    install(
        dies=lambda number, method: "The actor died because of an error raised in its creation task, no module minibert"
    )
    with pytest.raises(OSError, match=r"A worker cannot import minibert\. Install the wheel of minibert \d"):
        on_ray(model, texts, output)
    install(dies=lambda number, method: "killed")
    with pytest.raises(OSError, match="workers or more died before they computed a text"):
        on_ray(model, texts, output, resume=True)
    install()
    with (
        RayWorkers(str(small_folder), address="local", num_threads=1) as workers,
        pytest.raises(ValueError, match=r"computes another vector than this process .* is another one"),
    ):
        embed(model, texts, output, workers, resume=True)
    with (
        RayWorkers(str(tmp_path / "nothing"), address="local", num_threads=1) as workers,
        pytest.raises((ValueError, OSError), match=r"A worker could not load its model: .*nothing"),
    ):
        embed(model, texts, output, workers, resume=True)
    describe = ray_workers._Worker.describe
    monkeypatch.setattr(ray_workers._Worker, "describe", lambda self: {**describe(self), "version": "0.1.0"})
    wanted = rf"has minibert 0\.1\.0, this process has {minibert.__version__}\. Install the same wheel"
    with pytest.raises(ValueError, match=wanted):
        on_ray(model, texts, output, resume=True)


def test_the_error_of_a_worker_is_one_of_ours(
    model: SentenceTransformer, install: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    for raised, kind in ((MemoryError("no memory"), MemoryError), (KeyError("odd"), OSError)):

        def fail(self: Any, texts: list[str], raised: Exception = raised) -> Any:
            raise raised

        monkeypatch.setattr(ray_workers._Worker, "encode", fail)
        with pytest.raises(kind, match="A worker could not compute some texts: "):
            on_ray(model, source(tmp_path), tmp_path / f"{kind.__name__}.npy")


def test_processors_are_named_in_the_manifest(
    model: SentenceTransformer, install: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    names = iter(["here, 512 bits", "there, 256 bits", "there, 256 bits"])
    describe = ray_workers._Worker.describe
    monkeypatch.setattr(ray_workers._Worker, "describe", lambda self: {**describe(self), "processor": next(names)})
    on_ray(model, source(tmp_path), tmp_path / "v.npy")
    manifest = json.loads((tmp_path / "v.npy.manifest.json").read_text())
    assert manifest["processors"] == ["here, 512 bits", "there, 256 bits"]


# --- the cluster ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "threads", "actors", "expected"),
    [
        ((2,), None, None, (2, 1)),
        ((64, 64), None, None, (4, 32)),
        ((8, 0, 2), None, None, (2, 5)),
        ((8, 2), 4, None, (4, 2)),
        ((2,), 1, 7, (1, 7)),
    ],
)
def test_threads_and_number_of_workers(
    cpus: tuple[int, ...], threads: int | None, actors: int | None, expected: tuple[int, int]
) -> None:
    assert ray_cluster.plan(FakeRay(cpus), threads, actors) == expected


def test_ray_reserves_the_threads_of_a_worker(model: SentenceTransformer, install: Installed, tmp_path: Path) -> None:
    ray = install((8,))
    with RayWorkers(model.folder, address="local") as workers:  # type: ignore[attr-defined]
        embed(model, source(tmp_path), tmp_path / "v.npy", workers)
    assert [resources["num_cpus"] for resources in ray.resources] == [4, 4]
    with pytest.raises(ValueError, match=r"num_threads=9 does not fit: the largest machine .* has 8 CPUs"):
        ray_cluster.plan(ray, 9, None)


def test_addresses(install: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    for address, problem in {
        "nonsense": "expected 'host:port'",
        "host:0": "expected 'host:port'",
        "host:port": "expected 'host:port'",
        "ray://host:10001": "Ray Client",
    }.items():
        with pytest.raises(ValueError, match=problem):
            RayWorkers("m", address=address)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1")
    with pytest.raises(ValueError, match=r"RAY_ADDRESS='10\.0\.0\.1'; expected 'host:port'"):
        RayWorkers("m")
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(TypeError, match="address=3"):
        RayWorkers("m", address=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="actors=0"):
        RayWorkers("m", actors=0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"No Ray cluster answers at {address}"), RayWorkers("m", address=address):
            pass
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(OSError, match=f"No Ray cluster answers at {address}"), RayWorkers("m"):
            pass


@pytest.mark.parametrize("error", [SystemExit(15), Exception("15: too slow"), ConnectionError("15"), ValueError(15)])
def test_what_ray_raises_is_an_error_of_ours(
    install: Installed, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Ray 2.60 ends the process if its head does not answer, and raises Exception if it starts too slowly."""
    ray, reports = install(), list[str]()
    errors, started = [error] * 3, ray.init

    def init(**options: Any) -> None:
        if errors:
            raise errors.pop()
        started(**options)

    monkeypatch.setattr(ray, "init", init)
    workers = RayWorkers("m", address="local", report=reports.append)
    with pytest.raises(OSError, match="Ray cannot be used at this machine: 15"), workers:
        pass
    assert not errors
    errors += [error] * 2
    with workers:  # the third start succeeds
        assert ray.up
    assert len(reports) == 4
    assert {said.partition(" Ray says: 15")[0] for said in reports} == {
        "Ray has not started on this machine, so it is started again."
    }


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r"what listens there is not Ray\."),
        (b"", r"what listens there is not Ray\."),
        (None, "timed out"),
        (bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), "Ray cannot be used at .*: it went away"),
    ],
)
def test_a_port_that_is_open(
    install: Installed, monkeypatch: pytest.MonkeyPatch, answer: bytes | None, problem: str
) -> None:
    ray, calls = install(), list[Any]()

    def init(**options: Any) -> None:
        calls.append(options["address"])
        raise ConnectionError("it went away")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray_cluster, "_ANSWER_SECONDS", 60.0 if answer is not None else 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(33)  # both frames of the client
                if answer is None:
                    connection.recv(1)  # until the client leaves
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(OSError, match=problem), RayWorkers("m", address=address):
            pass
        thread.join()
    assert calls == [address] * ("went away" in problem)  # a cluster elsewhere is asked once


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
        ("-i", str(texts), "--on", "ray:nonsense"): "expected 'host:port'",
        ("-i", str(texts), "--actors", "2"): "name it with --on",
        ("-i", str(texts), "--on", "ray:local", "--threads", "3"): "--threads 3 does not fit",
        ("a text", "--on", "ray"): "--on is for files of texts",
    }.items():
        assert main(["embed", "-m", str(short_folder), "-o", str(tmp_path / "w.npy"), *given]) == 1
        assert problem in capsys.readouterr().err
    assert not (tmp_path / "w.npy").exists()


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    texts = tmp_path / "texts.txt"
    texts.write_text("a\n")
    with pytest.raises(ImportError, match=r"needs Ray, which is not installed: pip install 'ray\[data,serve\]'"):
        RayWorkers("m")
    assert main(["embed", "-i", str(texts), "-o", str(tmp_path / "v.npy"), "--on", "ray"]) == 1
    assert "needs Ray, which is not installed" in capsys.readouterr().err


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
    assert assigned_threads() is None


def test_embedder_counts_cut_texts_and_warns_once(short_folder: Path) -> None:
    texts = ["a cat", "the cat " * 40, "the dog " * 40]
    embedder = Embedder(str(short_folder))
    with pytest.warns(UserWarning, match="A text was cut, because it has more than 32 tokens"):
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
        (1, TypeError, r"text\[0\] is a NoneType"),
        (2, ValueError, r"text\[0\] has 82 tokens, the limit is 32"),
        (3, ValueError, r"text\[0\] .*surrogate"),
    ):
        with pytest.raises(kind, match=problem):
            stops({"text": bad["text"][index : index + 1]})
    with pytest.raises(ValueError, match=r"does not have the column 'text'; it has body"):
        stops({"body": ["a"]})
    with pytest.raises(TypeError, match="the batch is a list; expected a mapping"):
        stops(["a"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_error='ignore'"):
        Embedder(str(short_folder), on_error="ignore")
    with pytest.raises(TypeError, match="'colour' is not an option"):
        Embedder(str(short_folder), colour="red")


def test_wrong_arguments_of_the_embedder(short_folder: Path) -> None:
    for arguments, problem in (
        ({"model_options": {"num_threads": 2}}, "model_options has num_threads; give it to Embedder itself"),
        ({"model_options": ["a"]}, "model_options=.*; expected a mapping"),
        ({"output": None}, "output=None; expected the name of a column"),
        ({"column": 3}, "column=3; expected the name of a column"),
    ):
        with pytest.raises(TypeError, match=problem):
            Embedder(str(short_folder), **arguments)  # type: ignore[arg-type]
    embedder = Embedder(str(short_folder))
    for value in (None, 3, "abc", b"abc"):
        with pytest.raises(TypeError, match=r"batch\['text'\] is a .*; expected an array or list of texts"):
            embedder({"text": value})


@pytest.mark.parametrize(("value", "expected"), [("0", False), ("1", True), ("", True)])
def test_workers_share_weights_as_the_variable_of_the_driver_says(
    install: Installed, monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    install()
    monkeypatch.delenv("MINIBERT_SHARED_WEIGHTS", raising=False)
    if value:
        monkeypatch.setenv("MINIBERT_SHARED_WEIGHTS", value)
    assert RayWorkers("m")._model_options["shared_weights"] is expected
    assert RayWorkers("m", shared_weights=not expected)._model_options["shared_weights"] is not expected


def test_without_an_address_and_a_cluster_ray_is_started_here(
    install: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
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


class Derived(Embedder):
    """A class that a module derives."""


def test_embedder_has_the_variables_of_the_program_that_pickled_it(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker unpickles the class; its own variables, and those that the program did not have, do not count."""
    monkeypatch.setenv("MINIBERT_BACKEND", "numpy")
    pickled = pickle.dumps(Embedder)
    monkeypatch.delenv("MINIBERT_BACKEND")
    monkeypatch.setenv("MINIBERT_COMPUTE_TYPE", "int8")
    monkeypatch.setattr(type(Embedder), "of_program", None)
    assert pickle.loads(pickled) is Embedder
    assert pickle.loads(pickle.dumps(Derived)) is Derived
    assert Embedder(str(short_folder)).model.model.compute_type == "int8"  # this process is not a worker

    context = SimpleNamespace(worker=SimpleNamespace(mode=1), get_assigned_resources=lambda: {"CPU": 1.0})
    ray = SimpleNamespace(WORKER_MODE=1, is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    model = Embedder(str(short_folder)).model.model
    assert (model.compute_type, model.ops.processor()) == ("float32", platform.machine())
    given = {"compute_type": "int8", "backend": "numba"}
    model = Embedder(str(short_folder), model_options=given).model.model
    assert model.compute_type == "int8"
    assert model.ops.processor() != platform.machine()


@pytest.mark.parametrize("variable", ["MINIBERT_BACKEND", "MINIBERT_COMPUTE_TYPE", "MINIBERT_SHARED_WEIGHTS"])
def test_wrong_variables_are_refused(variable: str) -> None:
    with pytest.raises(ValueError, match=f"{variable}='wrong'"):
        resolved_options({}, {variable: "wrong"})
    given = {"backend": "numpy", "compute_type": "int8", "shared_weights": False}
    assert resolved_options({**given, "revision": "main"}, {variable: "wrong"}) == {**given, "revision": "main"}


def test_weights_are_shared_unless_something_says_otherwise() -> None:
    for given, variables, expected in (
        ({}, {}, True),
        ({}, {"MINIBERT_SHARED_WEIGHTS": "0"}, False),
        ({"backend": "numpy"}, {}, False),
        ({"backend": "numpy"}, {"MINIBERT_BACKEND": "numba"}, False),
        ({"shared_weights": True}, {"MINIBERT_SHARED_WEIGHTS": "0"}, True),
    ):
        assert resolved_options(given, variables)["shared_weights"] is expected
