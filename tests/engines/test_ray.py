"""`minibert embed --on ray` on a real Ray: the same bytes as one process, and nothing lost or doubled."""

from __future__ import annotations

import random
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.corpus_runs import contents, run, shards_done
from tests.support.engine_runs import RayRun, short_texts
from tests.support.report import REPORT
from tests.support.text_data import needs_data

# Ray is not imported here, because it changes the process that imports it.
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray[data,serve]"),
    needs_data,
]

# Two actors of one thread each.
TWO = ["--on", "ray:local", "--actors", "2", "--threads", "1"]


def alone(folder: Path, count: int, shard_size: int) -> list[str]:
    """Embed texts in one process with two threads; return the arguments that a run on Ray shares with it."""
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in short_texts(count)), encoding="utf-8")
    (folder / "alone").mkdir()
    shared = ["-i", str(folder / "texts.txt"), "--shard-size", str(shard_size)]
    done = run(["embed", *shared, "--threads", "2", "-o", str(folder / "alone" / "v.npy")])
    assert done.returncode == 0, done.stderr
    return shared


def output_in(folder: Path) -> Path:
    folder.mkdir()
    return folder / "v.npy"


def texts_resumed(said: str) -> int:
    found = re.search(r"(\d+) of them by earlier runs", said)
    return int(found[1]) if found else 0


def check(folder: Path, count: int, shard_size: int, actor_kills: int, driver_kills: int) -> None:
    shared, chance = alone(folder, count, shard_size), random.Random(count)
    expected = contents(folder / "alone")

    output = output_in(folder / "whole")
    code, said = RayRun([*shared, *TWO, "-o", str(output)]).end()
    assert code == 0, said
    assert contents(output.parent) == expected

    output = output_in(folder / "actors")
    started = RayRun([*shared, *TWO, "-o", str(output)])
    shards = count // shard_size
    killed = started.kill_workers(output, actor_kills, chance, max(1, (shards - 2) // actor_kills))
    code, said = started.end()
    assert (code, killed) == (0, actor_kills), said
    assert contents(output.parent) == expected

    output, done = output_in(folder / "driver"), 0
    for kill in range(driver_kills):
        started = RayRun([*shared, *TWO, "--resume", "-o", str(output)])
        started.kill_driver(output, done + 1 + kill % 2, chance)
        assert shards_done(output) > done  # no finished shard was computed again
        done = shards_done(output)
    code, said = RayRun([*shared, *TWO, "--resume", "-o", str(output)]).end()
    assert code == 0, said
    assert texts_resumed(said) == done * shard_size
    assert contents(output.parent) == expected
    REPORT.append(
        f"Ray: {count} texts, the same files as one process; {actor_kills} actors and {driver_kills} drivers killed, "
        f"{done * shard_size} texts resumed"
    )


def test_the_same_files_and_a_killed_worker_and_driver(tmp_path: Path) -> None:
    check(tmp_path, 1200, 100, 2, 1)


def test_a_folder_of_files_whose_driver_is_killed_is_that_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shared, chance = alone(tmp_path, 1200, 100), random.Random(0)
    (tmp_path / "folder").mkdir()
    done = run(["embed", *shared, "--threads", "2", "-o", f"{tmp_path / 'folder' / 'v'}/"])
    assert done.returncode == 0, done.stderr
    expected, output = contents(tmp_path / "folder"), tmp_path / "driver" / "v"
    assert {*expected} == {"v.manifest.json", *(f"v/part-{number:05}.parquet" for number in range(12))}
    output.parent.mkdir()
    arguments = [*shared, *TWO, "--resume", "-o", f"{output}/"]
    RayRun(arguments).kill_driver(output, 3, chance)
    finished = contents(output)
    assert finished
    assert all(expected[f"v/{name}"] == content for name, content in finished.items())
    code, said = RayRun(arguments).end()
    assert code == 0, said
    assert texts_resumed(said) >= 300
    assert "in 12 files" in said
    assert contents(output.parent) == expected
