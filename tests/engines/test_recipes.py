"""The programs of integrations/README.md on real engines: the vectors of one process, and the threads of a worker."""

from __future__ import annotations

import os
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from minibert import SentenceTransformer
from tests.support.engine_runs import RayRun, python_blocks, run_program

PAGE = (Path(__file__).parents[2] / "minibert" / "integrations" / "README.md").read_text(encoding="utf-8")
BLOCKS = python_blocks(PAGE)

pytestmark = pytest.mark.engines


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(library) is None, reason=f"needs {library}")


# Counts the threads that compute, in a worker.
_COUNT = """
def check_threads(expected):
    import threading

    helpers = sum(thread.name.startswith("minibert-") for thread in threading.enumerate())
    assert helpers + 1 == expected, (helpers + 1, expected)
"""

# Takes the place of `encode` in a worker.
_CHECKED = f"""{_COUNT}
def checked(model, texts):
    vectors = model.encode(texts, truncation="silent")
    check_threads(THREADS)
    return vectors
"""

# Put after a program: compares its vectors with those of this process.
_COMPARED = """
import numpy
from minibert import SentenceTransformer

expected = SentenceTransformer("all-MiniLM-L6-v2").encode([f"text number {i}" for i in range(100)])
numpy.testing.assert_array_equal(numpy.array(FOUND, numpy.float32), expected)
"""


def changed(code: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in code, old
        code = code.replace(old, new)
    return code


@needs("ray")
def test_the_command_of_the_page(tmp_path: Path) -> None:
    (line,) = (line for line in PAGE.splitlines() if line.startswith("minibert embed"))
    texts = ["A cat sleeps.", "A kitten naps."]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    words = shlex.split(line)[2:]
    code, said = RayRun([str(tmp_path / word) if word.endswith((".txt", ".npy")) else word for word in words]).end()
    assert code == 0, said
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), SentenceTransformer().encode(texts))


@pytest.mark.parametrize("threads", [1, 2])
@needs("ray")
def test_ray_data(tmp_path: Path, threads: int) -> None:
    code, shown = BLOCKS("Ray Data")
    counted = f"""{_COUNT}
class Counting(Embedder):
    def __call__(self, batch):
        found = super().__call__(batch)
        check_threads({threads})
        return found
"""
    code = changed(
        code,
        ("ray.init(", f"{counted}\nray.init("),
        ("    Embedder,\n", "    Counting,\n"),
        ("num_cpus=1,", f"num_cpus={threads},"),
        ("size=2", f"size={2 // threads}"),
    )
    found = run_program(code + _COMPARED.replace("FOUND", '[row["vector"] for row in rows]'), tmp_path)
    assert found.endswith(shown)


@needs("ray")
def test_ray_serve(tmp_path: Path) -> None:
    code, shown = BLOCKS("Ray Serve")
    more = """
        texts = [f"text number {i}" for i in range(100)]
        body = json.dumps({"input": texts, "model": "MiniLM"}).encode()
        with urlopen(Request("http://127.0.0.1:8000/v1/embeddings", body)) as answer:
            rows = [row["embedding"] for row in json.load(answer)["data"]]
        with urlopen("http://127.0.0.1:8000/helpers") as helpers:
            assert json.load(helpers) == 0
    """
    more = "\n".join(line[8:] for line in more.splitlines())
    build = """
    def helpers(request):
        import threading
        from starlette.responses import JSONResponse

        names = [thread.name.removeprefix("minibert-") for thread in threading.enumerate()]
        return JSONResponse(sum(name.isdigit() for name in names))  # the service has further threads

    service = app("""
    # On a busy machine Serve's proxy hears of the application a moment after serve.run has returned.
    wait = """
import time
for _ in range(600):
    try:
        urlopen("http://127.0.0.1:8000/health").close()
        break
    except OSError:
        time.sleep(0.1)
"""
    code = changed(
        code,
        ('body = json.dumps({"input"', f'{wait}\nbody = json.dumps({{"input"'),
        ("    return app(", build),
        ("\nray.init(", '    service.add_route("/helpers", helpers)\n    return service\n\nray.init('),
        ("serve.shutdown()", f"{more}\nserve.shutdown()"),
    )
    found = run_program(code + _COMPARED.replace("FOUND", "rows"), tmp_path)
    assert shown in found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.skipif(shutil.which("java") is None and "JAVA_HOME" not in os.environ, reason="Spark needs Java")
@needs("pyspark")
def test_spark(tmp_path: Path, threads: int) -> None:
    code, shown = BLOCKS("Spark")
    code = changed(
        code,
        ('model.encode(texts.tolist(), truncation="silent")', "checked(model, texts.tolist())"),
        (".getOrCreate()", f'.config("spark.task.cpus", "{threads}").getOrCreate()'),
        ("def make_predict", f"{_CHECKED.replace('THREADS', str(threads))}\ndef make_predict"),
    )
    found = run_program(code + _COMPARED.replace("FOUND", '[row["vector"] for row in rows]'), tmp_path)
    assert found.endswith(shown)


@needs("dask")
@needs("distributed")
def test_dask(tmp_path: Path) -> None:
    code, shown = BLOCKS("Dask")
    code = changed(
        code,
        ('model().encode(part["text"].tolist(), truncation="silent")', 'checked(model(), part["text"].tolist())'),
        ("def embed", f"{_CHECKED.replace('THREADS', '1')}\ndef embed"),
    )
    found = run_program(code + _COMPARED.replace("FOUND", 'found["vector"].tolist()'), tmp_path)
    assert found.endswith(shown)
