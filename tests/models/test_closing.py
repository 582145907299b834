"""`close` and `idle_release`: weights, threads and buffers are given back; later calls, forks, copies, the exit."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minibert
from minibert import BertModel, CrossEncoder, SentenceTransformer, SparseEncoder
from minibert.models import shared_weights
from tests.support import outcomes
from tests.support.checkpoints import random_checkpoint, sentence_model
from tests.support.marks import needs_fork
from tests.support.refusals import check_refused
from tests.support.sentence_heads import MASKED, SEQUENCE, model_folder
from tests.support.threads import are_asleep

IDS = np.random.default_rng(0).integers(5, 90, (4, 40))
TEXTS = ["the cat sat on the mat", "a dog", ""]
LINUX = pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="the system does not report its memory")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache of the user, and no threads of other tests' models."""
    monkeypatch.setenv("MINIBERT_CACHE_DIR", str(tmp_path / "cache"))
    shared_weights._warn_not_shared.cache_clear()
    gc.collect()
    known.clear()
    known.update(threading.enumerate())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with buffers: its results are larger than those that the allocator keeps."""
    return random_checkpoint(
        tmp_path_factory.mktemp("closing") / "model", hidden_size=512, intermediate_size=2048, num_attention_heads=8
    )


known: set[threading.Thread] = set()


def own_threads() -> list[str]:
    """Return the names of the threads that the models of this test have."""
    return sorted(thread.name for thread in set(threading.enumerate()) - known if thread.name.startswith("minibert"))


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def mapped_kilobytes() -> int:
    """Return the memory of mapped weights that this process holds; -1 if it maps none."""
    found, mine = -1, False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        if not re.match(r"\w+:", line):
            mine = ".weights" in line
            found = max(found, 0) if mine else found
        elif mine and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


# --- close ------------------------------------------------------------------------------------------------------------


def bert(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    folder = random_checkpoint(folder)
    return BertModel.from_pretrained(folder, num_threads=2), lambda model: model(IDS).last_hidden_state


def head(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    return minibert.load(model_folder(folder, SEQUENCE), num_threads=2), lambda model: model(IDS).logits


def sentences(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    return SentenceTransformer(sentence_model(folder), num_threads=2), lambda model: model.encode(TEXTS)


def cross(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    pairs = [(TEXTS[0], TEXTS[1])]
    return CrossEncoder(model_folder(folder, SEQUENCE), num_threads=2), lambda model: model.predict(pairs)


def sparse(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    return SparseEncoder(model_folder(folder, MASKED), num_threads=2), lambda model: model.encode(TEXTS)


def fill(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    pipeline = minibert.pipeline("fill-mask", model_folder(folder, MASKED), num_threads=2)
    return pipeline, lambda model: model(f"the {model.tokenizer.mask_token}")


@pytest.mark.parametrize("make", [bert, head, sentences, cross, sparse, fill])
def test_a_closed_model_has_given_all_back(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    closed, call = make(tmp_path / "model")
    model = closed if isinstance(closed, BertModel) else getattr(closed, "model", closed)
    arrays = [weakref.ref(model.weights.word_embeddings), weakref.ref(model.weights.layers[0].intermediate.bias)]
    ops = model.ops
    with closed as entered:
        assert entered is closed
        call(closed)
        assert own_threads()
    assert own_threads() == []
    assert [array() for array in arrays] == [None, None]
    assert not ops.linear.args[0].buffers._blocks
    assert not ops.linear.args[0].team._scratch
    closed.close()
    for use in (call, lambda _: model.weights, lambda _: model.ops, lambda _: model.num_parameters()):
        with pytest.raises(RuntimeError, match=r"This \w+ is closed"):
            use(closed)
    assert "closed" in repr(model)
    assert model.config.hidden_size > 0
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = model.nothing_such
    assert copy.copy(model).is_closed


def test_other_models_keep_their_weights(tmp_path: Path) -> None:
    model = minibert.load(model_folder(tmp_path / "model", MASKED))
    expected = model(IDS).logits
    other, own, plain = type(model)(model.weights, model.ops), model.bert, BertModel(model.weights, model.ops)
    given = minibert.pipeline("fill-mask", model, tokenizer=minibert.BertTokenizer.from_pretrained(tmp_path / "model"))
    given.close()  # it does not own the model
    assert model(IDS).logits.tobytes() == expected.tobytes()
    model.close()
    assert own.is_closed
    assert not plain.is_closed
    assert other(IDS).logits.tobytes() == expected.tobytes()
    other.close()
    plain.close()
    assert own_threads() == []


def test_closing_while_others_compute(folder: Path) -> None:
    """A call is computed to its end, or says that the model is closed; no thread remains."""
    expected = BertModel.from_pretrained(folder, backend="numpy")(IDS).last_hidden_state
    for number in range(8):
        model = BertModel.from_pretrained(folder, num_threads=2, shared_weights=number % 2 == 0)
        outcomes: list[Any] = []

        def compute(model: BertModel = model, outcomes: list[Any] = outcomes) -> None:
            try:
                while True:
                    outcomes.append(model(IDS).last_hidden_state)
            except RuntimeError as error:
                outcomes.append(str(error))

        callers = [threading.Thread(target=compute) for _ in range(2)]
        for caller in callers:
            caller.start()
        wait_until(lambda outcomes=outcomes: len(outcomes) >= 2)
        time.sleep(0.003 * number)
        for closer in [threading.Thread(target=model.close) for _ in range(2)]:
            closer.start()
        for caller in callers:
            caller.join()
        wait_until(lambda: own_threads() == [])
        assert outcomes[-1] == "This BertModel is closed. Load the model again."
        for outcome in outcomes[:-2]:
            np.testing.assert_allclose(outcome, expected, atol=1e-4)


@LINUX
def test_shared_weights_are_unmapped(folder: Path) -> None:
    before = mapped_kilobytes()
    model = BertModel.from_pretrained(folder, shared_weights=True)
    model(IDS)
    assert mapped_kilobytes() > 10_000
    model.close()
    assert mapped_kilobytes() == before


# --- idle_release -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=LINUX)])
def test_an_idle_model_gives_back_and_computes_again(folder: Path, shared: bool) -> None:
    model = BertModel.from_pretrained(folder, num_threads=3, shared_weights=shared, idle_release=0.2)
    resources = model.ops.linear.args[0]  # type: ignore[attr-defined]
    expected = None
    for _ in range(3):
        states = model(IDS).last_hidden_state
        expected = states.tobytes() if expected is None else expected
        assert states.tobytes() == expected
        assert own_threads() == ["minibert-1", "minibert-2", "minibert-idle"]
        assert resources.team._scratch
        wait_until(lambda: own_threads() == [])
        assert not resources.team._scratch
        assert not resources.buffers._blocks
        if shared:
            wait_until(lambda: mapped_kilobytes() == 0)
    model(IDS)
    model.close()
    assert own_threads() == []  # also the one that waits


def test_a_model_in_use_is_not_released(folder: Path) -> None:
    model = BertModel.from_pretrained(folder, num_threads=2, idle_release=1.0)
    model(IDS)
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("minibert")}
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        model(IDS)
        time.sleep(0.05)
    assert own_threads() == ["minibert-1", "minibert-idle"]
    assert threads <= set(threading.enumerate())


def test_waiting_takes_no_time_of_the_processor(folder: Path) -> None:
    model = BertModel.from_pretrained(folder, num_threads=2, idle_release=60)
    model(IDS)
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.01
    model.close()


def test_helpers_that_rest_sleep_at_once_and_compute_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibert.kernels.threads._PATIENCE", 10**12)  # they would look for work for hours
    model = BertModel.from_pretrained(folder, num_threads=3)
    expected = model(IDS).last_hidden_state
    for _ in range(5):
        time.sleep(0.01)
        assert not are_asleep(model.ops)
        wait_until(lambda: model.ops.rest() or are_asleep(model.ops))
        np.testing.assert_array_equal(model(IDS).last_hidden_state, expected)
        wait_until(lambda: not are_asleep(model.ops))
    model.close()
    assert own_threads() == []


def test_many_models(folder: Path) -> None:
    models = [BertModel.from_pretrained(folder, num_threads=2, idle_release=0.3) for _ in range(8)]
    expected = models[0](IDS).last_hidden_state.tobytes()
    for _ in range(2):
        for model in models:
            assert model(IDS).last_hidden_state.tobytes() == expected
        wait_until(lambda: own_threads() == [])


@pytest.mark.parametrize("seconds", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_calls_and_releases_by_several_threads_leave_no_watch(folder: Path, seconds: float) -> None:
    """A watch whose time is over must not wait for another one, whose time is over too."""
    model = BertModel.from_pretrained(folder, num_threads=2, idle_release=0.001)
    end, errors = time.monotonic() + seconds, list[object]()

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        while time.monotonic() < end:
            model([[1, 2]])
            if random.random() < 0.1:
                model.ops.release()
            time.sleep(random.choice([0, 0.001 * random.uniform(0.5, 2)]))

    hook, threading.excepthook = threading.excepthook, lambda arguments: errors.append(arguments.exc_value)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        model.close()
        wait_until(lambda: own_threads() == [], 20)
    finally:
        threading.excepthook = hook
    assert errors == []


def test_a_watch_of_a_model_that_was_deleted_ends(folder: Path) -> None:
    """It sees this before its helpers are closed, if both happen at once."""
    from minibert.kernels.threads import Team, _ProcessHelpers

    helpers = _ProcessHelpers(Team(1, lambda state: None), 0)
    assert helpers._watch(lambda: None, 0.001) is None  # type: ignore[arg-type, func-returns-value]


def test_a_pickle_while_another_thread_closes_the_model(folder: Path) -> None:
    model = BertModel.from_pretrained(folder, backend="numpy")
    state = model.__getstate__()
    model.close()
    assert {"weights", "config"} <= state.keys()


def test_copies_and_collected_models(folder: Path) -> None:
    model = BertModel.from_pretrained(folder, num_threads=2, shared_weights=True, idle_release=0.2)
    copies = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    expected = model(IDS).last_hidden_state.tobytes()
    for one in copies:
        assert one(IDS).last_hidden_state.tobytes() == expected
    wait_until(lambda: own_threads() == [])
    later = BertModel.from_pretrained(folder, num_threads=2, idle_release=1000)
    later(IDS)
    assert own_threads()
    del later
    gc.collect()
    wait_until(lambda: own_threads() == [])


@needs_fork
def test_a_fork_of_an_armed_model(outcome_model: Path) -> None:
    program = """
model = load(2, idle_release=0.3)
check(model)
def names():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("minibert")]
if child := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
else:
    check(model)
    assert "minibert-idle" in names(), names()
    while names():
        time.sleep(0.01)
    check(model)
    model.close()
    os._exit(len(faulty) + len(names()))
check(model)
print("fine")
"""
    assert outcomes.run(program, outcome_model) == "fine\n"


@pytest.mark.parametrize("armed", [True, False])
def test_the_interpreter_ends(folder: Path, armed: bool) -> None:
    """It does not wait for the time to pass, and a model may be closed while it ends."""
    program = """
import atexit, sys
import numpy as np
from minibert import BertModel
class Owner:
    def __init__(self):
        self.me, self.model = self, BertModel.from_pretrained(sys.argv[1], num_threads=3, idle_release=1000)
    def __del__(self):
        self.model.close()
owner, other = Owner(), Owner()
atexit.register(other.model.close)
"""
    program += "[one.model(np.full((1, 8), 7)) for one in (owner, other)]\n" if armed else ""
    start = time.monotonic()
    found = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=300)
    assert (found.returncode, found.stderr) == (0, "")
    assert time.monotonic() - start < 60


def test_other_values_are_refused(folder: Path) -> None:
    check_refused(
        lambda idle_release: BertModel.from_pretrained(folder, idle_release=idle_release),
        {},
        {
            ("idle_release", TypeError): ["1", True, [1], 1j],
            ("idle_release", ValueError): [0, -1, float("nan"), float("inf"), 1e30],
        },
    )
    assert BertModel.from_pretrained(folder, backend="numpy", idle_release=1)(IDS).last_hidden_state is not None
