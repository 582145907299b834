"""How many cores this process may use: the smaller of its affinity and its cgroup's quota."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["available_cores"]

_ROOT = Path("/")


def available_cores(root: Path = _ROOT) -> int:
    """The cores that the process may keep busy, at least 1.

    Parameters
    ----------
    root : Path
        Where /proc and /sys are looked for.

    Notes
    -----
    A container's quota is a share of time, "250 ms in every 100 ms" being 2.5 cores; threads beyond it only make the
    kernel stop all of them until the next period, so the quota is rounded down. Sources: sched_getaffinity(2); cpu.max
    in the kernel's cgroup-v2 manual; cpu.cfs_quota_us in its scheduler/sched-bwc manual.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(int(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """The quotas, in cores, of the process's cgroup and of all those it lies in; none outside Linux."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounts = [controllers, "cpu"] if controllers else [""]
        for mount in dict.fromkeys(mounts):
            # Within a container its own cgroup may be mounted as the root, whatever the path says.
            for folder in (PurePosixPath(path.lstrip("/")), *PurePosixPath(path.lstrip("/")).parents):
                quota = _read_quota(root / "sys/fs/cgroup" / mount / folder, unified=not controllers)
                if quota is not None:
                    yield quota


def _read_quota(folder: Path, *, unified: bool) -> float | None:
    try:
        if unified:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None  # "max" in one, -1 in the other: no limit
    except (OSError, ValueError, ZeroDivisionError):
        return None
