"""The scheduler of the service: steps, turns, classes, admission. No clock and no model."""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest

from minibert.serving.scheduler import MAX_STEP, MIN_STEP, QUANTUM, EngineStep, Job, Scheduler
from minibert.serving.settings import ServiceError
from tests.support.fake_kinds import FakeKind, job

RATE = 4000.0  # tokens per second: 200 tokens in a step of 50 ms


def scheduler(rate: float = RATE, max_wait: float = 1e9, keys: tuple[str, ...] = ("model",)) -> Scheduler:
    """Return a scheduler that has measured this rate for each model."""
    made = Scheduler(max_wait=max_wait)
    for key in keys:
        made.finished(EngineStep(FakeKind(key), [], 1000), 1000 / rate)
    return made


def run(scheduled: Scheduler, rate: float = RATE) -> list[EngineStep]:
    """Take all steps, each in the time that its tokens need."""
    steps = []
    while (step := scheduled.next_step()) is not None:
        steps.append(step)
        scheduled.finished(step, step.tokens / rate)
    return steps


def test_the_budget_is_what_the_model_computes_in_the_time_of_a_step() -> None:
    scheduled = scheduler()
    assert scheduled.budget(FakeKind()) == 200
    assert scheduled.budget(FakeKind("a model that was never measured")) == MIN_STEP
    for _ in range(100):
        scheduled.finished(EngineStep(FakeKind(), [], 400), 400 / 10_000)
    assert scheduled.budget(FakeKind()) == 500


def test_a_pause_of_the_process_changes_the_rate_for_a_few_steps_only() -> None:
    scheduled = scheduler()
    scheduled.finished(EngineStep(FakeKind(), [], 200), 3600.0)
    assert scheduled.rate("model") > RATE / 9
    for _ in range(60):
        scheduled.finished(EngineStep(FakeKind(), [], 200), 200 / RATE)
    assert scheduled.rate("model") == pytest.approx(RATE, rel=0.02)


def test_a_short_request_waits_for_at_most_one_step_of_long_ones() -> None:
    scheduled = scheduler()
    for _ in range(5):
        scheduled.admit(job([100] * 2000))
    for _ in range(4):
        scheduled.next_step()
    short = job([20])
    scheduled.admit(short)
    waited = next(i for i in itertools.count() if (step := scheduled.next_step()) and step.members[0][0] is short)
    assert waited <= 1


def test_long_requests_get_every_second_step_while_short_ones_keep_coming() -> None:
    scheduled = scheduler()
    long = job([100] * 1000)
    scheduled.admit(long)
    of_long = 0
    for _ in range(100):
        while scheduled.queued_jobs < 50:
            scheduled.admit(job([20]))
        step = scheduled.next_step()
        assert step is not None
        of_long += step.members[0][0] is long
    assert of_long == 50


@pytest.mark.parametrize("seed", range(20))
def test_no_request_waits_for_more_than_its_share_of_the_others(seed: int) -> None:
    """While a request takes its turns, none of the others gets more than a quantum and a text beyond it in each."""
    chance = random.Random(seed)
    scheduled = scheduler(chance.choice((1000.0, RATE, 30_000.0)))
    jobs = [job([chance.randint(1, 400) for _ in range(chance.randint(50, 200))]) for _ in range(12)]
    for one in jobs:
        scheduled.admit(one)
    tokens = dict.fromkeys(jobs, 0)
    while (step := scheduled.next_step()) is not None:
        for one, index in step.members:
            tokens[one] += one.costs[index]
        waiting = [tokens[one] for one in jobs if one.next < len(one.units)]
        if waiting:
            assert max(waiting) - min(waiting) <= 2 * (QUANTUM + 400)
        scheduled.finished(step, step.tokens / RATE)


@pytest.mark.parametrize("rate", [1000.0, RATE, 30_000.0])
def test_a_much_shorter_request_delays_the_others_by_its_own_tokens_and_ends_soon(rate: float) -> None:
    scheduled = scheduler(rate)
    long = [job([100] * 4000) for _ in range(12)]
    for one in long:
        scheduled.admit(one)
    for _ in range(1000):
        scheduled.next_step()
    before, short = sum(one.queued_tokens for one in long), job([30] * 600)
    scheduled.admit(short)
    while short.queued_tokens:
        assert scheduled.next_step()
    of_long = before - sum(one.queued_tokens for one in long)
    assert 0.5 * short.tokens < of_long < 1.1 * short.tokens


def test_units_of_different_kinds_are_never_computed_together_and_all_get_their_turn() -> None:
    scheduled = scheduler(keys=("one", "two"))
    kinds = [FakeKind("one", "a"), FakeKind("one", "b"), FakeKind("two", "a")]
    jobs = [job([50] * 100, kinds[i % 3]) for i in range(9)]
    for one in jobs:
        scheduled.admit(one)
    order = []
    for step in run(scheduled):
        assert {one.kind for one, _ in step.members} == {step.kind}
        order.append(step.kind)
    assert set(order[:9]) == set(kinds)
    assert all(one.next == 100 for one in jobs)


def test_a_request_is_refused_only_if_the_estimated_wait_is_longer_than_the_limit() -> None:
    scheduled = scheduler(max_wait=10.0)
    admitted = 0
    while scheduled.estimated_wait(True) <= 10:
        scheduled.admit(job([100] * 20))
        admitted += 1
    with pytest.raises(ServiceError, match=r"wait is 10 .*limit is 10") as caught:
        scheduled.admit(job([100] * 20))
    assert scheduled.estimated_wait(True) > 10
    assert admitted * 2000 == scheduled.queued_tokens
    assert (caught.value.kind, 1 <= (caught.value.retry_after or 0) <= 60) == ("overloaded", True)
    scheduled.admit(job([100]))  # a short one waits for short ones only
    assert scheduled.estimated_wait(False) < 1


def test_a_shorter_request_waits_only_for_turns_of_longer_ones() -> None:
    scheduled = scheduler(max_wait=10.0)
    scheduled.admit(job([100] * 4000))  # 100 s
    with pytest.raises(ServiceError, match="estimated wait"):
        scheduled.admit(job([100] * 4000))
    short = 0
    with contextlib.suppress(ServiceError):
        while short < 1000:
            scheduled.check_room(1000, False, True)
            scheduled.admit(job([100] * 10))
            short += 1
    assert 25 < short <= 40  # 40 of them are computed in 10 s


def test_the_wait_counts_the_other_class_and_the_step_that_runs() -> None:
    scheduled = scheduler()
    scheduled.admit(job([100] * 400))  # 10 s
    assert scheduled.estimated_wait(True) == pytest.approx(10)
    assert scheduled.estimated_wait(False) == pytest.approx(0.05)
    scheduled.admit(job([200]))
    assert scheduled.estimated_wait(False) == pytest.approx(0.15)
    assert scheduled.estimated_wait(True) == pytest.approx(10.05)
    step = scheduled.next_step()
    assert step is not None
    assert scheduled.estimated_wait(False) == pytest.approx(0.1)
    scheduled.finished(step, 0.05)
    assert scheduled.estimated_wait(False) == pytest.approx(0.05)


def test_what_waits_to_be_tokenized_is_in_the_estimated_wait() -> None:
    scheduler = Scheduler(max_wait=10)
    scheduler.waits(10**6, True)
    scheduler.was_read(10**6, True, 1.0)
    assert scheduler.estimated_wait(True) == 0
    scheduler.waits(12 * 10**6, True)
    assert scheduler.estimated_wait(True) == pytest.approx(12)
    assert scheduler.estimated_wait(False) == 0
    scheduler.check_room(12 * 10**6, False, None)
    scheduler.check_room(10**5, True, None)  # it waits for as many bytes of the other one as it has
    with pytest.raises(ServiceError, match="12 seconds") as caught:
        scheduler.check_room(12 * 10**6, True, None)
    assert caught.value.kind == "overloaded"
    scheduler.was_read(12 * 10**6, True, None)
    scheduler.check_room(12 * 10**6, True, None)


@pytest.mark.parametrize("seed", range(30))
def test_steps_and_counts_agree_with_the_queue_whatever_happens(seed: int) -> None:
    """Each unit is taken once and in order, in a step of its kind that is within the budget or has a single unit."""
    chance = random.Random(seed)
    rate = chance.choice((1.0, 1000.0, RATE, 1e6))
    scheduled = scheduler(rate, chance.choice((1.0, 60.0, 1e9)))
    alive: list[Job] = []
    taken: dict[Job, list[int]] = {}
    for _ in range(300):
        action = chance.random()
        if action < 0.4:
            costs = [chance.choice((1, 7, 100, 512, 3000)) for _ in range(chance.randint(1, 20))]
            new = job(costs, FakeKind(name=chance.choice("ab")))
            try:
                scheduled.admit(new)
                alive.append(new)
                taken[new] = []
            except ServiceError:
                assert new.next == 0
        elif action < 0.5 and alive:
            scheduled.remove(alive.pop(chance.randrange(len(alive))))
        elif (step := scheduled.next_step()) is not None:
            assert step.members
            assert {one.kind for one, _ in step.members} == {step.kind}
            assert step.tokens == sum(one.costs[index] for one, index in step.members)
            assert len(step.members) == 1 or step.tokens <= scheduled.budget(step.kind)
            assert MIN_STEP <= scheduled.budget(step.kind) <= MAX_STEP
            for one, index in step.members:
                taken[one].append(index)
            if chance.random() < 0.9:
                scheduled.finished(step, step.tokens / rate)
        assert scheduled.queued_tokens == sum(sum(one.costs[one.next :]) for one in alive)
        assert scheduled.queued_jobs == sum(one.next < len(one.units) for one in alive)
    while (step := scheduled.next_step()) is not None:
        for one, index in step.members:
            taken[one].append(index)
    assert all(taken[one] == [*range(len(one.units))] for one in alive)
    assert (scheduled.queued_jobs, scheduled.queued_tokens) == (0, 0)


def test_a_first_step_that_compiles_does_not_refuse_what_follows() -> None:
    scheduled = Scheduler(max_wait=60.0)
    for seconds in (15.0, 0.01):  # the second one is as fast as the machine is
        scheduled.admit(job([60]))
        step = scheduled.next_step()
        assert step is not None
        scheduled.finished(step, seconds)
        assert scheduled.rate("model") >= 250
    assert scheduled.rate("model") == pytest.approx(6000)
    scheduled.admit(job([100] * 100))
    scheduled.admit(job([100] * 100))
    assert scheduled.estimated_wait(True) < 5
