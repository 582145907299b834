"""The engine of the service: one thread, futures, failures, cancelling, the end; and the vectors of real models."""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minibert
from minibert import CrossEncoder, SentenceTransformer
from minibert.encode.modules import VectorModule
from minibert.serving.engine import Engine
from minibert.serving.models_by_name import load_served
from minibert.serving.scheduler import MIN_STEP, Job, Scheduler
from minibert.serving.served_models import TextEmbedder, VectorOptions
from minibert.serving.settings import ServiceError, Settings
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.fake_kinds import PATIENCE_SECONDS, Clock, FakeKind, Gate, job
from tests.support.sentence_heads import model_folder

LONG = "a long text of many words " * 100


@pytest.fixture
def engine(model: SentenceTransformer) -> Iterator[Engine]:
    with Engine(model) as made:
        yield made


def answer(future: Future[Any]) -> Any:
    return future.result(PATIENCE_SECONDS)


def busy(engine: Engine) -> Gate:
    """Make the engine compute until the test opens the gate, so that what is submitted then waits together."""
    gate = Gate()
    engine.submit(job([1], gate))
    assert gate.entered.wait(PATIENCE_SECONDS)
    return gate


# --- scheduling in the thread -----------------------------------------------------------------------------------------


def test_requests_that_wait_are_computed_together_without_waiting_for_more(engine: Engine) -> None:
    gate = busy(engine)
    others = [engine.submit(job([5], gate, [f"unit {i}"])) for i in range(10)]
    gate.opened.set()
    assert [answer(other) for other in others] == [[f"unit {i}"] for i in range(10)]
    assert gate.steps == [[0], [f"unit {i}" for i in range(10)]]


def test_a_step_of_few_tokens_waits_for_requests_that_are_about_to_come(model: SentenceTransformer) -> None:
    clock, kind = Clock(), Gate()
    kind.opened.set()

    def submit(cost: int, unit: str) -> Future[Any]:
        return engine.submit(job([cost], kind, [unit]))

    with Engine(model, clock=clock) as engine:
        engine.hold(True)
        together = [submit(5, f"unit {i}") for i in range(3)]
        gone = submit(5, "gone")
        time.sleep(0.05)
        assert (kind.steps, gone.cancel()) == ([], True)
        engine.hold(False)
        assert [answer(one) for one in together] == [[f"unit {i}"] for i in range(3)]
        assert kind.steps == [[f"unit {i}" for i in range(3)]]
        engine.hold(True)
        assert answer(submit(2 * MIN_STEP, "enough")) == ["enough"]
        late = submit(5, "late")
        while not late.done():  # nobody lets the engine go on
            clock.now += 1.0
            time.sleep(0.001)
        assert answer(late) == ["late"]
        bad, good = engine.submit(job([5], units=[ValueError("bad")])), submit(5, "good")
        engine.hold(False)
        assert answer(good) == ["good"]
        with pytest.raises(ServiceError, match="input 0 "):
            answer(bad)
        engine.hold(True)
        last = submit(5, "last")
    assert answer(last) == ["last"]  # at the end, nothing waits for more


def test_a_text_that_cannot_be_computed_fails_alone(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    gate = busy(engine)
    good = [engine.submit(job([5] * 3)) for _ in range(5)]
    bad = engine.submit(job([5] * 3, units=[0, MemoryError("1 TiB"), 2]))
    worse = engine.submit(job([5] * 2, units=[RuntimeError("secret /path"), RuntimeError("also")]))
    good += [engine.submit(job([5] * 3)) for _ in range(5)]
    gate.opened.set()
    assert [answer(one) for one in good] == [[0, 1, 2]] * 10
    with pytest.raises(ServiceError, match=r"input 1 .*memory") as caught:
        answer(bad)
    assert caught.value.kind == "failed"
    with pytest.raises(ServiceError, match=r"input 0 .*log") as caught:
        answer(worse)
    assert "secret" not in caught.value.message
    assert "1 TiB" in caplog.text
    assert answer(engine.submit(job([1]))) == [0]
    assert engine.load().queued_jobs == 0


class Short(FakeKind):
    def compute(self, units: Any) -> list[Any]:
        return []


ONES, NAN = np.ones(2, dtype=np.float32), np.array([1, np.nan], dtype=np.float32)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: job([1, 1], units=[ONES, NAN]), "input 1 .*not finite"),
        (lambda: job([1, 1], Short()), "input 0 "),
        (lambda: Job(FakeKind(), [0], [1], lambda results: 1 / 0), "answer"),
    ],
)
def test_what_cannot_be_computed_is_an_error_of_its_request(
    engine: Engine, wrong: Callable[[], Job], message: str
) -> None:
    with pytest.raises(ServiceError, match=message):
        answer(engine.submit(wrong()))
    assert answer(engine.submit(job([1]))) == [0]


def test_vectors_that_the_modules_make_infinite_are_errors(model: SentenceTransformer) -> None:
    """Of a text with one window and of one with several, in whose vectors clients would read what is not JSON."""
    broken, size = copy.copy(model), model.pipeline.hidden_size
    module = VectorModule(f"Dense({size}, {size}, Identity)", size, lambda vectors: np.full_like(vectors, np.inf))
    broken.pipeline = dataclasses.replace(model.pipeline, modules=(module,))
    with Engine(broken) as engine:
        for text in ("a cat", LONG):
            with pytest.raises(ServiceError, match="not finite") as error:
                engine.embed([text], truncation="split")
            assert error.value.kind == "failed"


def test_an_ended_request_does_not_wait_for_the_garbage_collector(engine: Engine) -> None:
    """With long-lived models in memory, Python collects cycles so seldom that a service would grow for an hour."""
    gate = busy(engine)
    jobs = [job([5] * 3) for _ in range(6)]
    references = [weakref.ref(one) for one in jobs]
    futures = [engine.submit(one) for one in jobs]
    last = engine.submit(job([5]))
    gc.disable()
    try:
        del jobs
        for future in futures[3:]:
            assert future.cancel()
        gate.opened.set()
        assert [answer(future) for future in futures[:3]] == [[0, 1, 2]] * 3
        assert answer(last) == [0]
        assert answer(engine.submit(job([1]))) == [0]  # so that the thread has left the step before
        del future
        futures.clear()
        assert [reference() for reference in references] == [None] * 6
    finally:
        gc.enable()


def test_an_interrupted_call_is_not_computed(model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(future: Future[Any], timeout: float | None = None) -> Any:
        raise KeyboardInterrupt

    with Engine(model) as engine:
        gate = busy(engine)
        with monkeypatch.context() as patch:
            patch.setattr(Future, "result", interrupt)
            with pytest.raises(KeyboardInterrupt):
                engine.embed(["a", "b", "c"])
        assert (engine.load().queued_jobs, engine.load().cancelled_units) == (0, 3)
        gate.opened.set()
        assert answer(engine.submit(job([1]))) == [0]


def test_a_block_that_ends_by_an_error_does_not_compute_what_is_queued(model: SentenceTransformer) -> None:
    engine, gate, later = Engine(model), Gate(), Gate()
    first = engine.submit(job([1], gate))
    assert gate.entered.wait(PATIENCE_SECONDS)
    second = engine.submit(job([1], later))
    with pytest.raises(KeyboardInterrupt), engine:
        raise KeyboardInterrupt  # the step is not waited for: its gate is closed
    for future in (first, second):
        with pytest.raises(ServiceError, match="has stopped"):
            future.result(PATIENCE_SECONDS)
    gate.opened.set()
    later.opened.set()
    assert engine.close(PATIENCE_SECONDS)
    assert later.steps == []


def test_cancelling_at_any_moment_loses_nothing_else(engine: Engine) -> None:
    chance = random.Random(3)
    futures = []
    for _ in range(400):
        future = engine.submit(job([chance.randint(1, 200) for _ in range(chance.randint(1, 8))]))
        futures.append(future)
        if chance.random() < 0.5:
            chance.choice(futures).cancel()
    done, pending = wait_for(futures, PATIENCE_SECONDS)
    assert not pending
    assert all(future.cancelled() or future.result()[0] == 0 for future in done)
    engine.close()
    assert (engine.load().queued_jobs, engine.load().queued_tokens) == (0, 0)


def test_a_request_without_texts_is_answered_at_once(engine: Engine) -> None:
    assert answer(engine.submit(job([]))) == []
    assert engine.embed([]).value.shape == (0, 24)


@pytest.mark.parametrize("jump", [1e9, -1e9, 0.0])
def test_a_clock_that_jumps_loses_no_request(model: SentenceTransformer, jump: float) -> None:
    clock = Clock()
    with Engine(model, clock=clock) as engine:
        for number in range(1, 30):
            gate = Gate()
            futures = [engine.submit(job([7], gate)), *(engine.submit(job([5] * number)) for _ in range(4))]
            assert gate.entered.wait(PATIENCE_SECONDS)
            clock.now += jump if number % 2 else -jump
            gate.opened.set()
            assert [answer(future) for future in futures] == [[0], *([[*range(number)]] * 4)]
            load = engine.load()
            assert (load.queued_jobs, load.queued_tokens) == (0, 0)
            assert 0 <= load.wait_interactive < 60


# --- admission and the end --------------------------------------------------------------------------------------------


def test_closing_finishes_what_was_admitted_and_refuses_the_rest(model: SentenceTransformer) -> None:
    engine = Engine(model)
    gate = busy(engine)
    futures = [engine.submit(job([100] * 10)) for _ in range(10)]
    closing = threading.Thread(target=engine.close)
    closing.start()
    while engine.load().ready:
        pass
    with pytest.raises(ServiceError, match="stopping") as caught:
        engine.submit(job([1]))
    assert caught.value.kind == "unavailable"
    gate.opened.set()
    closing.join(PATIENCE_SECONDS)
    assert [len(answer(future)) for future in futures] == [10] * 10
    assert engine.close()  # a second time
    assert "minibert-engine" not in {thread.name for thread in threading.enumerate()}


def test_an_engine_that_dies_fails_all_requests_and_says_so(
    model: SentenceTransformer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(model)
    gate = busy(engine)
    waiting = [engine.submit(job([1])) for _ in range(3)]
    monkeypatch.setattr(Scheduler, "finished", lambda *step: 1 / 0)  # an error outside of the work
    gate.opened.set()
    for future in waiting:
        with pytest.raises(ServiceError, match="stopped"):
            answer(future)
    assert not engine.load().alive
    with pytest.raises(ServiceError, match="stopping"):
        engine.submit(job([1]))
    assert "the engine has stopped" in caplog.text
    assert not engine.close()


def test_a_step_that_does_not_end_shows_in_the_load_and_in_the_times_of_others(model: SentenceTransformer) -> None:
    clock, one = Clock(), job([1])
    with Engine(model, clock=clock) as engine:
        gate = busy(engine)
        assert engine.load().alive
        future = engine.submit(one)
        clock.now += 31
        assert not engine.load().alive
        gate.opened.set()
        assert answer(future) == [0]
        assert engine.load().alive
    assert (one.queue_seconds, one.compute_seconds) == (31, 0)
    with Engine(model, clock=clock) as engine:
        gate = Gate()
        engine.submit(job([8192], gate))
        assert gate.entered.wait(PATIENCE_SECONDS)
        for seconds, alive in ((31, True), (9, False)):  # so many tokens may take longer than others
            clock.now += seconds
            assert engine.load().alive == alive
        gate.opened.set()


# --- texts and vectors ------------------------------------------------------------------------------------------------

TEXTS = ["A cat sleeps.", "", "A cat sleeps.", LONG, "the bank", "\0 \ufeff x", "中文 text"]


def test_token_ids_are_computed_as_they_are(engine: Engine, model: SentenceTransformer) -> None:
    rows = [model.tokenizer.encode(text, truncation=True, max_length=64) for text in TEXTS]
    expected = model.encode(TEXTS, truncation="silent")
    np.testing.assert_array_equal(engine.embed(rows).value, expected)
    found = engine.embed([row[1:-1] for row in rows if len(row) > 2], add_special_tokens=True)
    np.testing.assert_array_equal(found.value, expected[[i for i, row in enumerate(rows) if len(row) > 2]])


def test_token_ids_are_cut_on_the_side_that_is_asked_for(engine: Engine, model: SentenceTransformer) -> None:
    first, *inner, last = model.tokenizer.encode(LONG + "the end")
    assert len(inner) > 62
    for side, kept in (("right", inner[:62]), ("left", inner[-62:])):
        found = engine.embed([[first, *inner, last]], side=side)
        np.testing.assert_array_equal(found.value, engine.embed([[first, *kept, last]]).value)
        assert (found.usage.truncated, found.usage.n_tokens) == ((0,), (64,))


def test_the_report_counts_what_was_computed(engine: Engine, model: SentenceTransformer) -> None:
    usage = engine.embed(TEXTS).usage
    counts = model.num_tokens(TEXTS)
    assert usage.n_tokens == tuple(min(count, 64) for count in counts)
    assert usage.n_characters == sum(map(len, TEXTS))


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (["a", 3], {}, "invalid"),
    (["a"], {"dimensions": 0}, "invalid"),
    (["a"], {"dimensions": 2, "tokens": True}, "invalid"),
    (["a"], {"pooling": "none"}, "invalid"),
    (["a"], {"truncation": "split", "tokens": True}, "invalid"),
    (["a"], {"side": "up"}, "invalid"),
    (["a"], {"max_tokens": 65}, "invalid"),
    (["a"], {"layers": "x"}, "invalid"),
    (["a"], {"pooling": 3}, "invalid"),
    ([[101, 5], [5, 6]], {}, "invalid"),
    ([[10**9]], {}, "invalid"),
    ([[-1]], {"add_special_tokens": True}, "invalid"),
    ([[]], {}, "invalid"),
    ([[5] * 99], {"add_special_tokens": True, "truncation": "error"}, "too_long"),
    ([[5] * 99], {"add_special_tokens": True, "truncation": "split"}, "too_long"),
    *((inputs, {}, "invalid") for inputs in ([1, 2], [None], [["a"]], [[101, 102], "a"], ["a", [101, 102]])),
    *((inputs, {}, "invalid") for inputs in ([[101, 5.0, 102]], [[101, True, 102]], [np.array(3)])),
    *((inputs, {}, "TypeError") for inputs in ("abc", b"abc", None, 5, {"a": 1}, np.array("abc"))),
    *((["a"], given, "TypeError") for given in ({"dimensions": "3"}, {"max_tokens": 5.0}, {"dimension": 3})),
]


@pytest.mark.parametrize(("inputs", "options", "kind"), REFUSED)
def test_what_is_refused_and_why(engine: Engine, inputs: Any, options: dict[str, Any], kind: str) -> None:
    with pytest.raises((ServiceError, TypeError)) as caught:
        engine.embed(inputs, **options)
    assert getattr(caught.value, "kind", type(caught.value).__name__) == kind


def test_other_sequences_of_texts_and_ids_are_taken(engine: Engine, model: SentenceTransformer) -> None:
    texts = ["A cat sleeps.", "the bank"]
    expected = model.encode(texts)
    for given in (tuple(texts), np.array(texts)):
        np.testing.assert_array_equal(engine.embed(given).value, expected)  # type: ignore[arg-type]
    ids = [model.tokenizer.encode(text) for text in texts]
    for rows in (ids, [np.array(row) for row in ids], [tuple(row) for row in ids]):
        np.testing.assert_array_equal(engine.embed(rows).value, expected)  # type: ignore[arg-type]
    assert engine.embed(texts, dimensions=np.int64(3), layers=np.array([1])).value.shape == (2, 3)


def test_vectors_of_tokens_that_would_take_too_much_memory_are_refused(model: SentenceTransformer) -> None:
    with (
        Engine(model, settings=Settings(max_result_bytes=10_000)) as engine,
        pytest.raises(ServiceError, match="the limit is 10000"),
    ):
        engine.embed([LONG] * 2 + ["a"], tokens=True)


def test_models_are_found_by_their_names(model: SentenceTransformer, short_model: SentenceTransformer) -> None:
    with Engine({"org/one": model, "two": short_model}) as engine:
        for name in (None, "default", "org/one", "one"):
            assert engine.models.of(TextEmbedder, name).model is model
        assert engine.models.of(TextEmbedder, "other/two").model is short_model
        with pytest.raises(ServiceError, match="'other/one'"):  # it may be another model
            engine.models.of(TextEmbedder, "other/one")
        assert engine.embed(["a"], "two").value.shape == (1, short_model.get_embedding_dimension())
        with pytest.raises(ServiceError, match=r"'three' not found: .* 'org/one', 'two'") as caught:
            engine.embed(["a"], "three")
        assert caught.value.kind == "model"
    assert Engine(model, settings=Settings(any_model_name=True)).models.of(TextEmbedder, "x").model is model


NEVER: list[Any] = [object(), [], {}, b"x", np.ones(2), Settings]
HOSTILE: dict[type, list[Any]] = {  # the type of a setting's default value -> values that it cannot have
    bool: [*NEVER, 0, 1, "no", None],
    int: [*NEVER, -1, 0, "a", None, 1.5, math.nan, True],
    float: [*NEVER, -1, -1e-9, math.nan, math.inf, 10**10, 10**400, "1", None, True],
    str: [*NEVER, None, 5, "a b", "1", ""],
    type(None): [*NEVER, 5, True],
}


def test_settings_and_models_are_checked(model: SentenceTransformer) -> None:
    for field in dataclasses.fields(Settings):
        assert getattr(Settings(**{field.name: field.default}), field.name) == field.default
        for value in HOSTILE[type(field.default)]:
            with pytest.raises((TypeError, ValueError), match=f"^{field.name}="):
                Settings(**{field.name: value})
    assert Settings(drain_delay=0, max_wait=np.float32(2), max_inputs=np.int64(3)).max_wait == 2
    with pytest.raises(ValueError, match="truncation"):
        Settings(truncation="warn")
    with pytest.raises(ValueError, match="default_prompt_name='x'"):
        Engine(model, settings=Settings(default_prompt_name="x"))
    wrong: Any
    for wrong in ("all-MiniLM-L6-v2", None, [], {}, {"a": "b"}):
        with pytest.raises((TypeError, ValueError), match="models"):
            Engine(wrong)
    with Engine(model, settings=Settings(default_prompt_name="query", truncation="error")) as engine:
        assert engine.embed(["a"]).usage.prompt_name == "query"
        with pytest.raises(ServiceError, match="the limit is 64"):
            engine.embed([LONG])


def test_settings_of_a_model_that_are_changed_are_used(model: SentenceTransformer) -> None:
    changed = copy.copy(model)
    changes: list[Callable[[], object]] = [
        lambda: setattr(changed, "prompts", {"query": "look for "}),
        lambda: changed.set_pooling_include_prompt(False),
        lambda: setattr(changed, "default_prompt_name", "query"),
        lambda: setattr(changed, "truncate_dim", 7),
    ]
    changed.prompts = {"query": "find "}
    with Engine(changed) as engine:
        for i, change in enumerate(changes):
            options = {} if i >= 2 else {"prompt_name": "query"}
            before = engine.embed(["a"], **options).value
            change()
            after = engine.embed(["a"], **options).value
            np.testing.assert_array_equal(after[0], changed.encode("a", **options))
            assert not np.array_equal(before, after)


def test_a_limit_that_is_shorter_than_the_prompt(model: SentenceTransformer) -> None:
    """Its tokens that do not count are those of the prompt after the cut, as in `encode` with this limit."""
    changed = copy.copy(model)
    changed.prompts = {"query": "find a word " * 4}
    changed.set_pooling_include_prompt(False)
    with Engine(changed) as engine:
        found = engine.embed(["a cat"], prompt_name="query", max_tokens=6).value
    changed.tokenizer = copy.copy(model.tokenizer)  # the limit is an attribute of the tokenizer
    changed.max_seq_length = 6
    np.testing.assert_array_equal(found, changed.encode(["a cat"], prompt_name="query", truncation="silent"))


def test_what_is_pooled_alike_is_computed_together(engine: Engine) -> None:
    served = engine.models.of(TextEmbedder)
    kind = served.prepare(["a"], VectorOptions()).job.kind
    same = {"dimensions": 4}, {"normalize": False}, {"modules": False}, {"max_tokens": 9}, {"truncation": "error"}
    other = {"pooling": "cls"}, {"layers": 1}, {"tokens": True}, {"late_chunking": True}
    for options in (*same, *other):
        assert (served.prepare(["b"], VectorOptions(**options)).job.kind == kind) == (options in same)


def test_an_observer_that_raises_is_logged_and_removed(
    model: SentenceTransformer, caplog: pytest.LogCaptureFixture
) -> None:
    seen = list[int]()

    def count(units: int, tokens: int, seconds: float) -> None:
        seen.append(tokens)

    def fail(*step: float) -> None:
        raise ArithmeticError("a fault of the observer")

    with Engine(model) as engine:
        engine.observers += [fail, count]
        for _ in range(3):
            assert engine.embed(["a"]).usage.n_tokens == (3,)
        assert engine.load().alive
        assert engine.observers == [count]
    assert seen == [3, 3, 3]
    assert caplog.text.count("\nArithmeticError: a fault") == 1


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem_type", "function"),
    [("regression", "none"), ("multi_label_classification", "sigmoid"), ("single_label_classification", "softmax")],
)
def test_what_the_labels_mean_is_in_the_config(tmp_path: Path, problem_type: str, function: str) -> None:
    folder = model_folder(tmp_path / "m", "BertForSequenceClassification", num_labels=3, problem_type=problem_type)
    [expected] = minibert.pipeline("text-classification", str(folder), top_k=None, function_to_apply=function)(["a"])
    with Engine(CrossEncoder(folder)) as engine:
        found = engine.score([("a", None)]).value[0]
    assert sorted(found.tolist(), reverse=True) == [np.float32(one["score"]) for one in expected]


def test_an_engine_of_a_cross_encoder_alone(ranker: CrossEncoder) -> None:
    with Engine(ranker, settings=Settings(truncation="error", default_prompt_name="x")) as engine:
        engine.warm_up()
        with pytest.raises(ServiceError, match=r"gives scores .*needs .*vectors"):
            engine.embed(["a"])
        with pytest.raises(ServiceError, match=r"inputs\[0\] has \d+ tokens"):
            engine.score([("a", LONG)])
        some: Any = [["a", "b"], ("a", None)]
        np.testing.assert_array_equal(engine.score(some).value, engine.score([("a", "b"), ("a", None)]).value)
        wrong: Any
        for wrong in ("ab", ["ab"], [("a", "b"), ("a",)], [(None, "a")], [("a", 5)], [("a", "\ud800")], None, 5):
            with pytest.raises((ServiceError, TypeError, ValueError)):
                engine.score(wrong)
        with pytest.raises(TypeError, match="inputs"):
            engine.score([3])  # type: ignore[list-item]
        assert engine.score([]).value.shape == (0, 1)
        for options in ({"scores": "x"}, {"truncation": "split"}, {"side": "up"}):
            with pytest.raises(ServiceError):
                engine.score([("a", "b")], **options)


def test_the_class_of_a_model_is_chosen_by_its_files(tmp_path: Path) -> None:
    labels = model_folder(tmp_path / "labels", "BertForSequenceClassification", num_labels=3)
    assert isinstance(load_served(str(labels)), CrossEncoder)
    random_checkpoint(tmp_path / "plain")
    with pytest.warns(UserWarning, match=r"has no modules\.json"):
        assert isinstance(load_served(str(tmp_path / "plain")), SentenceTransformer)
    assert isinstance(load_served(str(sentence_model(tmp_path / "modules"))), SentenceTransformer)


# --- the same bytes under any load ------------------------------------------------------------------------------------


def test_a_text_has_the_same_bytes_under_any_load(minilm_sentences: SentenceTransformer) -> None:
    chance = random.Random(7)
    words = ["cat", "sat", "mat", "banks", "raised", "interest", "rates", "nobody", "slept", "here"]
    texts = [" ".join(chance.choices(words, k=chance.randint(1, 50))) for _ in range(60)]
    alone = minilm_sentences.encode(texts, truncation="silent")
    requests = [chance.sample(range(60), chance.choice((1, 1, 1, 2, 20))) for _ in range(24)]
    with Engine(minilm_sentences) as engine, ThreadPoolExecutor(12) as pool:
        found = [*pool.map(lambda rows: engine.embed([texts[i] for i in rows]).value, requests)]
    for rows, vectors in zip(requests, found, strict=True):
        np.testing.assert_array_equal(vectors, alone[rows])
