"""Threads, processes, interrupts, memory: the numbers are correct, whatever the program does around minibert.

Each case is a program in a process of its own (outcomes.py). The default run is a small sample; `-m slow` runs all.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.support import outcomes
from tests.support.checkpoints import random_checkpoint
from tests.support.marks import needs_fork
from tests.support.report import REPORT


@pytest.fixture
def model(outcome_model: Path) -> Path:
    return outcome_model


def run_and_report(title: str, program: str, model: Path, **variables: str) -> None:
    REPORT.append(f"{title}: {outcomes.run(program, model, **variables).strip()}")


# --- threads ---------------------------------------------------------------------------------------------------------

MANY_CALLERS = """
model = load(num_threads=THREADS)
def work(caller):
    order = random.Random(caller)
    check(model, [order.randrange(64) for _ in range(COUNT)])
callers = [threading.Thread(target=work, args=(number,)) for number in range(CALLERS)]
for caller in callers: caller.start()
for caller in callers: caller.join()
print(len(faulty), "wrong")
"""


@pytest.mark.parametrize("num_threads", [1, 3])
def test_sixteen_threads_share_one_model(num_threads: int, model: Path) -> None:
    outcomes.run(f"CALLERS, COUNT, THREADS = 16, 10, {num_threads}\n{MANY_CALLERS}", model)


# --- processes -------------------------------------------------------------------------------------------------------

JOIN = """
def join(*children):
    end = time.monotonic() + PATIENCE
    for child in children:
        while True:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                break
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                print("HANG of a child", flush=True)
                return
            time.sleep(0.01)
        code = os.waitstatus_to_exitcode(status)
        if code != 42:
            print("SIGNAL" if code < 0 else "WRONG NUMBER", "in a child:", code, flush=True)

def fork(work):
    child = os.fork()
    if not child:
        try:
            os._exit(42 if work() else 1)
        finally:
            os._exit(2)
    return child
"""

PROCESS_MODES = {
    "preload, then fork workers that fork": """
        model = load()
        def worker():
            good = check(model)
            join(fork(lambda: check(model)))
            return good
        join(*(fork(worker) for _ in range(2)))
        check(model)
        """,
    "fork inside a thread while others compute": """
        model = load(); check(model)
        end = time.monotonic() + FORKS / 2
        def compute():
            while time.monotonic() < end: check(model, [3])
        def fork_often():
            for _ in range(FORKS): join(fork(lambda: check(model)))
        others = [threading.Thread(target=compute) for _ in range(2)] + [threading.Thread(target=fork_often)]
        for other in others: other.start()
        for other in others: other.join()
        """,
    "multiprocessing.Pool, fork": """
        import multiprocessing
        if __name__ == "__main__":
            model = load(); check(model)
            def work(number): return check(model, [number])
            with multiprocessing.get_context("fork").Pool(4) as pool:
                if not all(pool.map(work, range(32))): print("WRONG NUMBER")
        """,
    "forkserver": """
        import multiprocessing
        def work(): sys.exit(0 if check(load()) else 1)
        if __name__ == "__main__":
            check(load())
            children = [multiprocessing.get_context("forkserver").Process(target=work) for _ in range(2)]
            for child in children: child.start()
            for child in children:
                child.join(PATIENCE)
                if child.exitcode != 0: print("WRONG NUMBER", child.exitcode)
        """,
    "spawn, the model pickled": """
        import multiprocessing
        def work(model): sys.exit(0 if check(model) else 1)
        if __name__ == "__main__":
            model = load(); check(model)
            child = multiprocessing.get_context("spawn").Process(target=work, args=(model,))
            child.start(); child.join(PATIENCE)
            if child.exitcode != 0: print("WRONG NUMBER", child.exitcode)
        """,
    "daemon thread computes while the interpreter ends": """
        model = load(); check(model)
        def compute():
            while True: check(model, [3])
        for _ in range(3): threading.Thread(target=compute, daemon=True).start()
        time.sleep(0.2)
        """,
}


@needs_fork
@pytest.mark.parametrize(
    ("mode", "turns"),
    [
        ("preload, then fork workers that fork", 0),
        ("fork inside a thread while others compute", 0),
        *(pytest.param(mode, 3, marks=pytest.mark.slow) for mode in PROCESS_MODES),
    ],
)
def test_processes(mode: str, turns: int, model: Path) -> None:
    program = f"FORKS = {10 if turns else 2}\n{JOIN}{textwrap.dedent(PROCESS_MODES[mode])}"
    for _ in range(turns or 1):
        outcomes.run(program, model)


# --- interrupts ------------------------------------------------------------------------------------------------------

INTERRUPTS = """
model = load(); check(model, range(64))
order = random.Random(SEED)
inputs = {"input_ids": np.tile(batch(7)["input_ids"][:1], (64, 1))}
finished, late, overwritten = 0, [], 0
for turn in range(COUNT):
    sent = []
    def interrupt(delay=order.uniform(0, 0.02)):
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGINT)
        sent.append(finished)
    thread = threading.Thread(target=interrupt)
    results = []
    try:
        thread.start()
        while True:
            results.append(model(**inputs).last_hidden_state)
            del results[:-1]
            finished += 1
    except KeyboardInterrupt:
        thread.join()
        late.append(finished - sent[0])
    # The memory that the interrupted forward freed is reused here; no thread may still write to it.
    blocks = [np.full(size, 7.0, np.float32) for size in (64 * 64 * 96, 64 * 64 * 288, 64 * 64 * 384) for _ in range(2)]
    thread.join()
    time.sleep(0.002)
    overwritten += sum(int((block != 7).any()) for block in blocks)
    check(model, [order.randrange(64)])
if overwritten: print("WRONG NUMBER: freed memory was written to", overwritten, "times")
# The signal arrives before `sent` is updated; one forward may end before Python raises the interrupt.
if max(late) > 1: print("HANG:", max(late), "forwards were computed after an interrupt")
from tests.support.threads import threads_inside
inside = threads_inside(model.ops)
print(f"{len(late)} interrupts, at most {max(late)} forwards ended after one; threads left inside: {inside}")
if any(inside): print("WRONG NUMBER: a thread is still inside")
"""


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 10), *(pytest.param(seed, 100, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_interrupts(seed: int, count: int, model: Path) -> None:
    run_and_report(f"{count} x Ctrl-C in a forward", f"SEED, COUNT = {seed}, {count}\n{INTERRUPTS}", model)


@pytest.mark.parametrize("seconds", [0.5, pytest.param(3, marks=pytest.mark.slow)])
def test_a_signal_handler_may_compute_in_the_middle_of_a_forward(seconds: float, model: Path) -> None:
    program = """
        model = load(); check(model)
        calls, depth = [], 0
        def handler(*_):
            global depth
            calls.append(1)
            depth += 1
            if depth < 4: signal.setitimer(signal.ITIMER_REAL, 0.0005)
            check(model, [len(calls) % 64])
            depth -= 1
            signal.setitimer(signal.ITIMER_REAL, 0.002)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end: check(model, [random.randrange(64)])
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(len(calls), "forwards in a signal handler")
        """
    run_and_report("forwards within forwards", f"SECONDS = {seconds}\n{textwrap.dedent(program)}", model)


EVERYWHERE = """
# At each line of what Python runs for an op, first with all helpers asleep: another forward, which a signal handler
# or a finalizer may begin; or a KeyboardInterrupt, also at each return.
places = ("kernels/ops.py", "kernels/threads.py", "kernels/buffers.py", "/threading.py", "/contextlib.py")
model = load(num_threads=4, compute_type=TYPE)
if TYPE != "float32":
    EXPECTED = EXPECTED.with_name(f"{TYPE}.json")
    one = load(num_threads=1, compute_type=TYPE)
    EXPECTED.write_text(json.dumps([digest(one, number) for number in range(8)]))
check(model)
from tests.support.threads import are_asleep
def let_helpers_sleep():
    while not are_asleep(model.ops): time.sleep(0.001)
def run(act, events):
    place = 0
    def trace(frame, event, argument):
        nonlocal place
        if not frame.f_code.co_filename.endswith(places): return None
        if event in events:
            place += 1
            sys.settrace(None)
            act(place)
            sys.settrace(trace)
        return trace
    let_helpers_sleep()
    sys.settrace(trace)
    try: good = check(model, [3])
    finally: sys.settrace(None)
    return place
print(run(lambda place: check(model, [5]), ("line",)), "forwards within one")
class At:
    def __init__(self, number): self.number = number
    def __call__(self, place):
        if place == self.number: raise KeyboardInterrupt
stopped = 0
for number in range(1, INTERRUPTS + 1):
    try: run(At(number), ("line", "return"))
    except KeyboardInterrupt: stopped += 1
    let_helpers_sleep()
    check(model, [3])
print(stopped, "interrupts, each at another line")
if stopped < INTERRUPTS: print("WRONG NUMBER: some interrupts were lost")
"""


@pytest.mark.parametrize("compute_type", ["float32", "int8"])
@pytest.mark.parametrize("interrupts", [30, pytest.param(600, marks=pytest.mark.slow)])
def test_forwards_and_interrupts_between_any_two_lines_of_an_op(
    interrupts: int, compute_type: str, model: Path
) -> None:
    program = f"INTERRUPTS, TYPE = {interrupts}, {compute_type!r}\n{EVERYWHERE}"
    run_and_report(f"forwards and interrupts between any two lines, {compute_type}", program, model)


# --- memory, threads and files ---------------------------------------------------------------------------------------

DRIFT = """
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
model = load()
for number in range(200): digest(model, number % 64)
before = resident()
for number in range(COUNT): digest(model, number % 64)
print(f"{COUNT} forwards: {resident() - before:+.2f} MB")
if resident() - before > 5: print("WRONG NUMBER: memory grows")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc/self/statm")
@pytest.mark.parametrize("count", [250, pytest.param(10_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow(count: int, model: Path) -> None:
    run_and_report("memory", f"COUNT = {count}\n{DRIFT}", model)


BOUND = """
# Large blocks go back to the system at once, so that freed memory does not hide memory that is taken.
shape, kept, threads = (TEXTS, TOKENS), KEPT, 2
model = load(threads, add_pooling_layer=False)
config = model.config
model([[5, 6, 7]])
ids = np.full(shape, 7)
from minibert.models.inputs import pack
packed = pack(config, ids)
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present size; loading took more
before = peak()
output = model.run_packed(packed, range(config.num_hidden_layers + 1)[-kept:])
taken = peak() - before
T, H, F = ids.size, config.hidden_size, config.intermediate_size
t = min(T, max(1024, TOKENS))
work, result = 4 * t * (F + 7 * H) / 2**20, 4 * T * H * kept / 2**20
bound = result + work
print(f"{TEXTS} x {TOKENS} tokens, {kept} states kept: {taken:.1f} MiB taken, {bound:.1f} allowed")
if taken > bound + 2: print("WRONG NUMBER: more than the formula allows")
if taken < 0.5 * bound: print("WRONG NUMBER: the formula is far too large")
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc/self/status")
@pytest.mark.parametrize(
    ("texts", "tokens", "kept"),
    [(32, 128, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 512, 1), (64, 64, 3), (8, 512, 2)))],
)
def test_memory_of_a_forward_is_bounded_by_the_formula(texts: int, tokens: int, kept: int, tmp_path: Path) -> None:
    """The formula is in `BertModel.run_packed`."""
    wide = random_checkpoint(
        tmp_path, hidden_size=768, num_hidden_layers=2, num_attention_heads=12, intermediate_size=3072
    )
    program = f"TEXTS, TOKENS, KEPT = {texts}, {tokens}, {kept}\n{BOUND}"
    run_and_report("memory of a forward", program, wide, MALLOC_MMAP_THRESHOLD_="65536")


def test_a_result_too_large_for_the_memory_is_refused_at_once(model: Path) -> None:
    program = """
        from minibert._utils import system
        from minibert.bert.packed import PackedBatch
        model = load()
        system.available_memory = lambda: 2**30
        ids = np.full((2000, 500), 7)
        many = PackedBatch.from_sequences(model.config, ids, 0 * ids)
        start = time.process_time()
        try:
            model.run_packed(many, range(4))
        except MemoryError as error:
            print("MemoryError:", error)
        # The zeros of the padding are memory too.
        padded = PackedBatch.from_sequences(model.config, [ids[0], *ids[:60, :3]], [0 * ids[0], *(0 * ids[:60, :3])])
        system.available_memory = lambda: 2**27
        try:
            model.run_packed(padded, output_attentions=True)
        except MemoryError as error:
            print("MemoryError:", error)
        assert time.process_time() - start < 1  # processor time; a million tokens would take a minute
        check(model)
        """
    printed = outcomes.run(program, model)
    assert "MemoryError: 4 hidden states" in printed
    assert "attentions of 61 x 500 tokens" in printed


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads open files from /proc/self/fd")
@pytest.mark.parametrize("count", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_dropped_models_leave_no_threads_and_no_files(count: int, model: Path) -> None:
    program = """
        import gc
        def count():
            gc.collect(); time.sleep(0.3)
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        digest(load(), 0)
        before = count()
        for number in range(COUNT): digest(load(num_threads=3), number)
        after = count()
        print(COUNT, "models: threads and files", before, "->", after)
        if after != before: print("WRONG NUMBER: threads or files are left")
        """
    run_and_report("dropped models", f"COUNT = {count}\n{textwrap.dedent(program)}", model)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc/self/statm")
def test_no_memory_for_a_kernels_scratch_is_a_memory_error(model: Path) -> None:
    """Without the check, the helper thread would never leave its chunk, and the calling thread would wait for it."""
    program = """
        import resource
        from minibert.bert.ops import AttentionInput
        from minibert.kernels import make_ops
        ops = make_ops(3)
        length = 4_500_000  # the scratch memory of one head takes more than 64 MB
        x = np.zeros((length, 64), np.float32)
        def attend(length):
            part, places = x[:length], np.array([0, length], np.int32)
            ops.attention(AttentionInput(part, part, part, places, 16))
        attend(10)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (taken + 2**27, taken + 2**27))
        try:
            attend(length)
            print("WRONG NUMBER: there was memory after all")
        except MemoryError as error:
            print("MemoryError:", error)
        check(load())
        from tests.support.threads import threads_inside
        if any(threads_inside(ops)): print("WRONG NUMBER: somebody is still inside")
        """
    assert "MemoryError: " in outcomes.run(program, model)
