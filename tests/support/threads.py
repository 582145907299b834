"""The threads of a set of ops with kernels, for the programs of test_runtime."""

from __future__ import annotations

import functools
from typing import Any

from minibert.bert.ops import Ops
from minibert.kernels.ops import Resources
from minibert.kernels.threads import ACTIVE, ASLEEP, CALLERS, Team


def team_of(ops: Ops) -> Team:
    """Return the team that computes the ops."""
    linear: Any = ops.linear
    assert isinstance(linear, functools.partial)
    resources: Resources = linear.args[0]
    assert isinstance(resources.team, Team)
    return resources.team


def threads_inside(ops: Ops) -> tuple[int, int]:
    """Return how many callers and how many threads are in an op."""
    (helpers,) = team_of(ops)._helpers_by_process.values()
    return helpers.state[CALLERS], helpers.state[ACTIVE]


def are_asleep(ops: Ops) -> bool:
    """Return whether all helpers sleep."""
    (helpers,) = team_of(ops)._helpers_by_process.values()
    return all(helper.own[ASLEEP] for helper in helpers._helpers)
