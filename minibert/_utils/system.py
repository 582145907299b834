"""The cores, the memory and the libraries that this process may use: limits of the machine, affinity, cgroups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeVar

_ROOT = Path("/")
_ALWAYS_FITS = 1 << 24  # bytes; to ask the system for its limit takes longer than to fill them
_Limit = TypeVar("_Limit", int, float)
_PROCESS = os.getpid()


def available_cores(root: Path = _ROOT) -> int:
    """Count the cores that the process may use, at least 1.

    Parameters
    ----------
    root : Path
        The folder that holds /proc and /sys.

    Notes
    -----
    A container's quota is a share of time: 250 ms in every 100 ms are 2.5 cores. The quota is rounded down, because
    with more threads the kernel stops all of them until the next period. Sources: sched_getaffinity(2); cpu.max in the
    kernel's cgroup-v2 manual; cpu.cfs_quota_us in its scheduler/sched-bwc manual.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(int, _limits(root, "cpu", _read_quota))]))


def available_memory(root: Path = _ROOT) -> int | None:
    """Return the most bytes of memory that the process may use, free or not; None if the system does not say.

    Parameters
    ----------
    root : Path
        The folder that holds /proc and /sys.

    Notes
    -----
    It is the memory of the machine, or the least limit of the cgroups: memory.max, or memory.limit_in_bytes.
    """
    try:
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    return min([installed, *_limits(root, "memory", _read_memory)])


def require_memory(needed: float, what: str, less: str) -> None:
    """Raise a MemoryError if a result does not fit: most systems kill a process that needs too much memory.

    Parameters
    ----------
    needed : int or float
        The bytes of the result.
    what : str
        The result in words, in the plural, which begin the message.
    less : str
        The sentence that says what to do.
    """
    if needed < _ALWAYS_FITS:
        return
    limit = available_memory() or 2**60
    if needed > limit:
        gib = [f"{min(size, 2**90) / 2**30:,.1f}" for size in (needed, limit)]
        raise MemoryError(f"{what} take {gib[0]} GiB; this process may use {gib[1]}. {less}")


def is_forked() -> bool:
    """Return whether this process was forked from the one that imported minibert.

    The threads of a library do not exist in it, and a library that has used them before waits for them for ever.
    """
    return os.getpid() != _PROCESS  # a program in C, such as uWSGI, may fork without a call of os.register_at_fork


@contextlib.contextmanager
def needs(what: str, *packages: str) -> Iterator[None]:
    """Make an ImportError tell how to install `packages`, if one of them is what is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0].replace("sklearn", "scikit_learn")
        if not name or not any(package.replace("-", "_").startswith(name) for package in packages):
            raise
        how = f"pip install {' '.join(packages)} ({error})"
        raise ImportError(f"{what} needs {name}, which is not installed: {how}", name=name) from error


def _limits(root: Path, controller: str, read: Callable[[Path, bool], _Limit | None]) -> Iterator[_Limit]:
    """Yield the limits that `read` finds in the process's cgroup and in the cgroups above it; none outside Linux."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        group: PurePosixPath = PurePosixPath(path.lstrip("/"))
        for mount in dict.fromkeys([controllers, controller] if controllers else [""]):
            # In a container its cgroup may be mounted as the root, and then the path does not exist.
            for folder in [group, *group.parents]:
                limit = read(root / "sys/fs/cgroup" / mount / folder, not controllers)
                if limit is not None:
                    yield limit


def _read_quota(folder: Path, unified: bool) -> float | None:
    """Read the cores of one cgroup, of version 2 (unified) or 1; None for no limit ("max" in version 2, -1 in 1)."""
    try:
        if unified:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _read_memory(folder: Path, unified: bool) -> int | None:
    try:
        return int((folder / ("memory.max" if unified else "memory.limit_in_bytes")).read_text())
    except (OSError, ValueError):
        return None
