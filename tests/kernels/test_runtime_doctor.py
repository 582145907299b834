"""The verb doctor, and the number of cores."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from minibert._utils.system import available_cores, available_memory
from minibert._utils.validation import FloatArray
from minibert.bert import reference
from minibert.bert.ops import AttentionOutput
from minibert.cli import main
from minibert.cli.doctor import _as_text
from minibert.kernels import make_ops
from minibert.kernels.libraries import usable_levels
from minibert.models import doctor
from minibert.models.shared_weights import shared_arrays
from tests.support import outcomes
from tests.support.report import REPORT


def minibert(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return outcomes.python("-m", "minibert", *arguments, **environment)


# --- cores -----------------------------------------------------------------------------------------------------------


def affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


MANY = 10**9  # cores of quota


def unified(limit: str, folder: str = "a/b") -> dict[str, str]:
    """The files of version 2, where a process of the group a/b has a limit in this folder."""
    return {"proc/self/cgroup": "0::/a/b\n", f"sys/fs/cgroup/{folder}/cpu.max": f"{limit}\n"}


def older(group: str, folder: str, quota: str) -> dict[str, str]:
    """The files of version 1."""
    files = {f"sys/fs/cgroup/{folder}/cpu.cfs_quota_us": quota, f"sys/fs/cgroup/{folder}/cpu.cfs_period_us": "100000\n"}
    return {"proc/self/cgroup": f"5:memory:/\n4:{group}\n0::/\n", **files}


QUOTAS: dict[str, tuple[dict[str, str], int]] = {
    "no proc at all": ({}, MANY),
    "v2 without a limit": (unified("max 100000"), MANY),
    "v2 with one core and a half": (unified("150000 100000"), 1),
    "v2 with half a core": (unified("50000 100000"), 1),
    "v2, the limit further up": (unified("max 100000") | unified("100000 100000", "a"), 1),
    "v2, mounted as the container's root": (unified("100000 100000", "."), 1),
    "v2, damaged": (unified("1e5 x"), MANY),
    "v1": (older("cpu,cpuacct:/docker/1:2", "cpu,cpuacct/docker/1:2", "100000\n"), 1),
    "v1 without a limit, mounted as the root": (older("cpuacct,cpu:/docker/1", "cpu", "-1\n"), MANY),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_available_cores(case: str, tmp_path: Path) -> None:
    files, quota = QUOTAS[case]
    assert available_cores(write(tmp_path, files)) == min(affinity(), quota)


MEMORY: dict[str, tuple[dict[str, str], int | None]] = {
    "no proc at all": ({}, None),
    "v2 without a limit": ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, None),
    "v2": ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "1000000\n"}, 1_000_000),
    "v1": (
        {"proc/self/cgroup": "3:memory:/a\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000\n"},
        2_000_000,
    ),
}


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="reads memory with os.sysconf")
@pytest.mark.parametrize("case", MEMORY)
def test_available_memory(case: str, tmp_path: Path) -> None:
    files, limit = MEMORY[case]
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_memory(write(tmp_path, files)) == (installed if limit is None else limit)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs os.sched_setaffinity")
def test_a_model_takes_the_cores_it_may_use(outcome_model: Path) -> None:
    program = """
        from tests.support.threads import team_of
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print([team_of(BertModel.from_pretrained(HOME, num_threads=n).ops).num_threads for n in (None, 3)])
        os.environ["MINIBERT_NUM_THREADS"] = "5"
        print([team_of(BertModel.from_pretrained(HOME, num_threads=n).ops).num_threads for n in (None, 3)])
        """
    assert outcomes.run(program, outcome_model) == "[1, 3]\n[5, 3]\n"


# --- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_finds_nothing_wrong() -> None:
    done = minibert("doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert all(check["passed"] for check in report["checks"])
    names = [check["name"] for check in report["checks"]]
    assert {"embed", "layer_norm", "linear", "linear, gelu, residual", "attention", "threads"} <= set(names)
    assert report["versions"]["numpy"] == np.__version__
    assert report["processor"]["available_cores"] == available_cores()
    assert report["processor"]["vector_width"] in (4, 8, 16)
    assert {"name", "version"} == set(report["blas"])
    text = minibert("doctor")
    assert text.returncode == 0
    assert text.stdout.count("\nok ") == len(names)
    REPORT.append(next(line for line in text.stdout.splitlines() if line.startswith("BLAS")))


def test_doctor_fails_where_there_are_no_kernels() -> None:
    done = minibert("doctor", MINIBERT_LEVEL="none")
    assert done.returncode == 1
    assert "FAILED     kernels: MINIBERT_LEVEL='none'" in done.stdout
    assert done.stderr == "minibert: 1 of 1 checks failed: kernels.\n"
    chosen = minibert("doctor", MINIBERT_LEVEL="none", MINIBERT_BACKEND="numpy")
    assert (chosen.returncode, chosen.stderr) == (0, "")
    assert chosen.stdout.count("\nok ") > 5


def test_doctor_says_which_kernels_compute_and_why() -> None:
    lowest = [*usable_levels()][-1]
    assert f"kernels    {lowest}, because MINIBERT_LEVEL={lowest}; " in minibert("doctor", MINIBERT_LEVEL=lowest).stdout


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files do not have owners on this system")
def test_doctor_says_why_a_folder_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBERT_CACHE_DIR", str(tmp_path / "open" / "base"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    assert doctor.shared_weights()["untrusted"] is None
    (tmp_path / "open").chmod(0o777)
    reason = f"others can write to {tmp_path / 'open'}"
    assert doctor.shared_weights()["untrusted"] == reason
    parts = {name: getattr(doctor, name)() for name in ("versions", "blas", "shared_weights")}
    folder = tmp_path / "open" / "base" / "weights"
    weights = f"weights    not shared, unless a program chooses; {folder}: 0 files, 0 MB, not used: {reason}\n"
    assert weights in _as_text({**parts, "checks": []})


@pytest.mark.parametrize("op", ["embed", "layer_norm", "linear", "attention"])
@pytest.mark.parametrize("fault", [1e-4, float("nan")])
def test_the_self_check_notices_one_wrong_number(op: str, fault: float) -> None:
    ops = make_ops(1)
    right = getattr(ops, op)

    def wrong(*arguments: object, **options: object) -> FloatArray | AttentionOutput:
        result = right(*arguments, **options)
        (result.context if op == "attention" else result)[3, 5] += fault
        return result

    checks = doctor.check_ops(ops._replace(**{op: wrong}))
    assert {check.name.partition(",")[0] for check in checks if not check.passed} == {op}
    assert all(check.passed for check in doctor.check_ops(ops))
    assert all(check.passed for check in doctor.check_ops(reference.OPS))


# --- shared weights ---------------------------------------------------------------------------------------------------


def test_clear_deletes_shared_weights_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINIBERT_CACHE_DIR", str(tmp_path))
    weights = tmp_path / "weights"
    shared_arrays(weights, "a key", lambda: {"a": np.ones(1_000_000, np.float32)})
    write(tmp_path, {"weights/mine.txt": ""})
    assert [file["bytes"] // 1_000_000 for file in doctor.shared_weights()["files"]] == [4]
    for deleted in ("1 file, 4 MB", "0 files, 0 MB"):
        assert main(["doctor", "--clear"]) == 0
        assert capsys.readouterr().out == f"{weights}: {deleted} deleted\n"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [weights / "mine.txt"]
