"""The compiled part of a team of threads: the loop that takes the chunks of a task and computes them.

What        `make_run_task` makes the one function of kernels/ that Python calls. threads.py explains what the threads
            share. As a program, this file writes the library of one level; build.py starts it::

                MINIBERT_COMPILED_LEVEL=x86-64-avx2 python -m minibert.kernels.run_task FILE [TRIPLE]

System      The code does not call functions of the system by name, so that its library needs no other library. Their
            addresses are in the state; where the system does not have one, its address is 0
Dispatch    `compute_chunk` chooses the function by the kind of the task. A new op is added here
Contract    The counters are sequentially consistent atomics. All arguments are integers, and nothing raises
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from minibert.kernels import threads
from minibert.kernels.attention import attention_chunk, attention_words_chunk
from minibert.kernels.compilation import compile_library, function
from minibert.kernels.embed_layer_norm import embed_chunk, layer_norm_chunk
from minibert.kernels.gemm import do_nothing, linear_chunk, make_linear_chunk
from minibert.kernels.lanes import call_llvm
from minibert.kernels.low_precision import quantisers
from minibert.kernels.max_similarity import max_similarity_chunk
from minibert.kernels.ops import ATTENTION, ATTENTION_WORDS, EMBED, LINEAR, LINEAR_WORDS, MAX_SIMILARITY, QUANTISE
from minibert.kernels.processor import ARM64, LEVEL, Words, words_of
from minibert.kernels.simd import instruction, long_memory, longs_at, stack_floats

# --- atomics, and the system ------------------------------------------------------------------------------------------

_INT, _LONG = ir.IntType(32), ir.IntType(64)


@instruction(types.int64(long_memory, types.intp, types.int64))
def atomic_add(builder: Any, memory: Any, index: Any, value: Any) -> Any:
    """Compute memory[index] += value as one atomic step; return the old value."""
    return builder.atomic_rmw("add", builder.gep(memory, [index]), value, "seq_cst")


@instruction(types.int64(long_memory, types.intp))
def atomic_load(builder: Any, memory: Any, index: Any) -> Any:
    """Read memory[index] atomically: the last value that any thread stored."""
    return builder.load_atomic(builder.gep(memory, [index]), "seq_cst", 8)


@instruction(types.void(long_memory, types.intp, types.int64))
def atomic_store(builder: Any, memory: Any, index: Any, value: Any) -> None:
    """Store memory[index] = value atomically, after everything that this thread wrote before."""
    builder.store_atomic(value, builder.gep(memory, [index]), "seq_cst", 8)


# Denormal numbers count, and sums are rounded to nearest. Other libraries change this mode of a thread (-ffast-math,
# torch.set_flush_denormal), and the results would depend on it.
DEFAULT_FLOAT_MODE = 0 if ARM64 else 0x1F80


@instruction(types.int64())
def float_mode(builder: Any) -> Any:
    """Return the thread's mode of floating-point arithmetic."""
    if ARM64:
        return call_llvm(builder, "llvm.aarch64.get.fpcr", _LONG)
    mode = cgutils.alloca_once(builder, _INT)
    call_llvm(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), mode)
    return builder.zext(builder.load(mode), _LONG)


@instruction(types.void(types.int64))
def set_float_mode(builder: Any, mode: Any) -> None:
    """Set the thread's mode of floating-point arithmetic to what `float_mode` returned."""
    if ARM64:
        call_llvm(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), mode)
        return
    memory = cgutils.alloca_once(builder, _INT)
    builder.store(builder.trunc(mode, _INT), memory)
    call_llvm(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), memory)


@instruction(types.void())
def relax(builder: Any) -> None:
    """Tell the processor that the thread waits in a loop."""
    if ARM64:
        call_llvm(builder, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(_INT, 1))
    else:
        call_llvm(builder, "llvm.x86.sse2.pause", ir.VoidType())


@instruction(types.void(types.int64, types.int64, types.int64))
def call_at(builder: Any, address: Any, first: Any, second: Any) -> None:
    """Call a function of the system, which takes up to two integers, by its address."""
    function = ir.FunctionType(_INT, (_LONG, _LONG)).as_pointer()
    builder.call(builder.inttoptr(address, function), (first, second))


_two_words = stack_floats(4)


@function
def microseconds(shared):
    """Return the time of a steady clock; 0 on systems without a call for it."""
    if shared[threads.CLOCK] == 0:
        return 0
    result = _two_words()
    call_at(shared[threads.CLOCK], shared[threads.CLOCK_ID], result)
    time = longs_at(result)  # seconds, nanoseconds
    return time[0] * 1_000_000 + time[1] // 1000


@function
def yield_core(shared):
    """Let another thread that waits for this core run first."""
    if shared[threads.YIELD] != 0:
        call_at(shared[threads.YIELD], 0, 0)


@function
def nap(shared):
    """Leave the core to other threads for about 50 microseconds."""
    if shared[threads.NAP] != 0:
        call_at(shared[threads.NAP], 50, 0)


# --- the team --------------------------------------------------------------------------------------------------------

# A leader looks this number of times whether the helpers have finished before it naps (about a hundred microseconds).
# With a busy core, the speed left was the same for naps of 50, 200, 600 and 1,500 microseconds.
_SHORT_PATIENCE = 2_000
# Microseconds after which a helper yields its core. With a busy core, the speed left is the same for 100 to 500, and
# smaller for 1,000 and 2,000, when the system more often takes the core away in the middle of a chunk.
_TURN = 500
_ZERO = np.int64(0)
_WORD = 8  # bytes of an int64
_LINEAR, _ATTENTION, _EMBED = LINEAR.number, ATTENTION.number, EMBED.number
_MAX_SIMILARITY = MAX_SIMILARITY.number


@function
def compute_chunk(task, chunk, scratch):
    """Compute one chunk of the task at an address."""
    kind = longs_at(task)[0]
    if kind == _LINEAR:
        linear_chunk(task, chunk, scratch)
    elif kind == _ATTENTION:
        attention_chunk(task, chunk, scratch)
    elif kind == _EMBED:
        embed_chunk(task, chunk)
    elif kind == _MAX_SIMILARITY:
        max_similarity_chunk(task, chunk, scratch)
    else:
        layer_norm_chunk(task, chunk)


@function
def find_numbers(state, shared):
    """Replace the addresses of the array objects of a task by those of their numbers."""
    first = np.int64(threads.TASK + 1)
    for i in range(first, first + state[threads.NUM_ARRAYS]):
        state[i] = 0 if state[i] == shared[threads.NONE] else longs_at(state[i] + shared[threads.DATA])[0]


@function
def next_chunk(state, thread):
    """Return the next chunk of this thread's share, else of the first later share that has one. One must exist."""
    num_chunks, num_shares = state[threads.NUM_CHUNKS], state[threads.NUM_SHARES]
    share = thread
    while True:
        chunk = share * num_chunks // num_shares + atomic_add(state, threads.SHARES + share * threads.LINE_WORDS, 1)
        if chunk < (share + 1) * num_chunks // num_shares:
            return chunk
        share = (share + 1) % num_shares


def _with_words(words: Words, compute: Any, begin: Any) -> tuple[Any, Any]:
    """Make `compute` and `begin`, the functions for one chunk of a task and for what comes before, know a format."""
    name = words.form.name
    linear_chunk_, (quantise_chunk, quantise_source) = make_linear_chunk(words), quantisers(words)
    attention_chunk_ = attention_words_chunk(name)
    linear, quantise, attention = LINEAR_WORDS[name].number, QUANTISE[name].number, ATTENTION_WORDS[name].number

    @function
    def compute_words_chunk(task, chunk, scratch):
        kind = longs_at(task)[0]
        if kind == linear:
            linear_chunk_(task, chunk, scratch)
        elif kind == quantise:
            quantise_chunk(task, chunk)
        elif kind == attention:
            attention_chunk_(task, chunk, scratch)
        else:
            compute(task, chunk, scratch)

    @function
    def begin_words(task):
        if longs_at(task)[0] == linear:
            quantise_source(task)
        else:
            begin(task)

    return compute_words_chunk, begin_words


def make_run_task() -> Any:
    """Make the function that computes tasks of every compute type that the level has."""
    compute, begin = compute_chunk, do_nothing  # a task in float32 has no work before its chunks
    if len(LEVEL.compute_types) > 1:
        for name in LINEAR_WORDS:
            compute, begin = _with_words(words_of(name), compute, begin)

    @function
    def take_chunks(address, thread, end, shared):
        """Compute chunks of the task in the state at an address until none are left; a helper stops at time `end`."""
        state = longs_at(address)
        while atomic_add(state, threads.REMAINING, -1) > 0:
            chunk = next_chunk(state, thread)
            compute(
                address + threads.TASK * _WORD, chunk, state[threads.SCRATCH] + thread * state[threads.SCRATCH_SIZE]
            )
            if thread != 0 and microseconds(shared) > end:
                return

    @function
    def run_task(own_address):
        """Compute the tasks of a caller's states; for a helper's state, look for tasks and help to compute them.

        The results do not depend on the float mode of the thread; the mode is restored afterwards.
        """
        mode = float_mode()
        set_float_mode(DEFAULT_FLOAT_MODE)
        lead_or_help(own_address)
        set_float_mode(mode)

    @function
    def lead_or_help(own_address):
        """Do the work of `run_task`."""
        own = longs_at(own_address)
        shared_address = own[threads.SHARED]
        shared = longs_at(shared_address)
        if own[threads.THREAD] != 0:
            idle, end = 0, microseconds(shared) + _TURN
            while atomic_load(shared, threads.CLOSED) == 0:
                if atomic_load(shared, threads.REMAINING) > 0:
                    atomic_add(shared, threads.ACTIVE, 1)
                    take_chunks(shared_address, own[threads.THREAD], end, shared)
                    atomic_add(shared, threads.ACTIVE, -1)
                    idle = 0
                else:
                    relax()
                    idle += 1
                if idle & 63 == 0 and microseconds(shared) > end:
                    yield_core(shared)
                    end = microseconds(shared) + _TURN
                if idle >= own[threads.PATIENCE]:
                    atomic_store(own, threads.ASLEEP, 1)
                    if atomic_load(shared, threads.REMAINING) <= 0:
                        return
                    atomic_store(own, threads.ASLEEP, 0)  # a caller came between, who does not wake this helper
            return

        leads = atomic_add(shared, threads.CALLERS, 1) == 0
        while own_address != 0:
            lead(own_address, shared_address, leads)
            own_address = longs_at(own_address)[threads.NEXT]
        atomic_add(shared, threads.CALLERS, -1)

    @function
    def lead(own_address, shared_address, leads):
        """Compute the task in a caller's state: with the helpers, or alone if another caller leads them."""
        own, shared = longs_at(own_address), longs_at(shared_address)
        find_numbers(own, shared)
        address, state, num_shares = own_address, own, 1
        if leads:
            address, state, num_shares = shared_address, shared, shared[threads.NUM_SHARES]
            for i in range(threads.NUM_CHUNKS, threads.NUM_SHARES):
                shared[i] = own[i]
        begin(own_address + threads.TASK * _WORD)
        state[threads.NUM_SHARES] = num_shares
        for share in range(num_shares):
            state[threads.SHARES + share * threads.LINE_WORDS] = 0
        atomic_store(state, threads.REMAINING, own[threads.NUM_CHUNKS])  # from now on, helpers take chunks
        take_chunks(address, own[threads.THREAD], _ZERO, shared)
        if leads:
            looks = 0
            while atomic_load(shared, threads.ACTIVE) != 0:
                if looks < _SHORT_PATIENCE:
                    relax()
                    looks += 1
                else:
                    nap(shared)

    return run_task


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(compile_library("run_task", make_run_task(), 1, *sys.argv[2:]))
