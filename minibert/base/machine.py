"""What this process may use of the machine: cores and memory, as its affinity and its cgroups allow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeVar

__all__ = ["available_cores", "available_memory"]

_ROOT = Path("/")
_Limit = TypeVar("_Limit", int, float)


def available_cores(root: Path = _ROOT) -> int:
    """Count the cores that the process may keep busy, at least 1.

    Parameters
    ----------
    root : Path
        Where /proc and /sys are looked for.

    Notes
    -----
    A container's quota is a share of time, 250 ms in every 100 ms being 2.5 cores; threads beyond it only make the
    kernel stop all of them until the next period, so the quota is rounded down. Sources: sched_getaffinity(2); cpu.max
    in the kernel's cgroup-v2 manual; cpu.cfs_quota_us in its scheduler/sched-bwc manual.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(int, _limits(root, "cpu", _read_quota))]))


def available_memory(root: Path = _ROOT) -> int | None:
    """Bytes of memory the process may take at most, used or not; None where the system does not say.

    Parameters
    ----------
    root : Path
        Where /proc and /sys are looked for.

    Notes
    -----
    The machine's, or the least limit of its cgroups: memory.max, or memory.limit_in_bytes.
    """
    try:
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    return min([installed, *_limits(root, "memory", _read_memory)])


def _limits(root: Path, controller: str, read: Callable[[Path, bool], _Limit | None]) -> Iterator[_Limit]:
    """The limits that `read` finds in the process's cgroup and in all those it lies in; none outside Linux."""
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
            # Within a container its own cgroup may be mounted as the root, whatever the path says.
            for folder in [group, *group.parents]:
                limit = read(root / "sys/fs/cgroup" / mount / folder, not controllers)
                if limit is not None:
                    yield limit


def _read_quota(folder: Path, unified: bool) -> float | None:
    """Read the cores of one cgroup, of version 2 (unified) or 1; None for no limit ("max" in one, -1 in the other)."""
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
