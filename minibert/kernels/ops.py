"""The ops, and the sums of late interaction: each one describes its work as a task, and the threads compute it.

What        `make_ops` returns them as the `Ops` that encoder.forward takes. What each computes is in bert/reference.py
Chunks      A chunk is a part of the work of one op. It writes its own part of the result and nothing else, so any
            thread may compute it, in any order. How the work is cut does not change a result. A task has a number, by
            which `compute_chunk` in run_task.py chooses the compiled function
Layout      The kernels see only addresses. So inputs that are not C-contiguous float32 (ids: int32) are copied first
Contract    Callers have checked every shape and every id (bert/ops.py). This file does not import Numba
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.low_precision import FORMATS, FORMATS_OF, LONGEST, format_of, is_prepared, quantise_linear
from minibert.bert.ops import AttentionInput, AttentionOutput, LayerNorm, Linear, LookUp, Ops, PreparedLinear
from minibert.bert.reference import ACTIVATION_FUNCTIONS
from minibert.kernels.buffers import CACHE_LINE, Buffers, Slabs
from minibert.kernels.libraries import load_run_task
from minibert.kernels.packing import PackedLinear, pack
from minibert.kernels.processor import LEVEL, MR, NR, head_layout, head_words, processor_name, words_of
from minibert.kernels.recordings import Recording, Recordings
from minibert.kernels.threads import FLOAT, Task, TaskKind, Team, address

# --- tasks -----------------------------------------------------------------------------------------------------------

# In a task, an array is the address of its first number, and 0 if it is None.
# x (M, K), panels and bias (gemm.py), residual and y (M, N). `activation` is one of ACTIVATION_CODES. If `gated` is 1,
# panels and bias have 2 N columns. `half` is an index of HALVES. The last five are the fields of `LinearChunks`. In low
# precision, x is the address of words; if there is a `source`, the leader quantises its floats into them before the
# chunks.
_LINEAR = "panels bias residual y", "M N K activation gated half slices by_panel tiles block_tiles panels_per_chunk"
LINEAR = TaskKind(1, f"x {_LINEAR[0]}", _LINEAR[1])
LINEAR_WORDS = {name: TaskKind(5 + 3 * i, f"source {_LINEAR[0]}", f"{_LINEAR[1]} x") for i, name in enumerate(FORMATS)}
# x (M, K) as floats, and the address of y, the words of a format (processor.py)
QUANTISE = {name: TaskKind(6 + 3 * i, "x", "y M K") for i, name in enumerate(FORMATS)}
# The rows of keys and values have a distance of `stride` floats, those of queries one of `query_stride`. The keys of
# sequence b begin at cu_seqlens[b], its queries and its rows of the context at query_seqlens[b]. If the caller asks for
# scores or probs, those of sequence b begin at index pairs_first[b]. `bias` is a table of `distances` numbers for each
# head; `columns` has the column of each token, `query_columns` the column of each query. `angles` is the table of the
# rotation, `rotated` numbers for each position. A query does not see keys that are more than `window` columns away; if
# `window` is -1, it sees all. A head of keys and values belongs to `sharing` heads of queries. In low precision, the
# products are products of words.
_ATTENTION = (
    "query key value cu_seqlens query_seqlens context scores probs pairs_first bias columns query_columns "
    "angles positions query_positions",
    "num_heads D stride query_stride distances rotated window sharing",
)
ATTENTION = TaskKind(2, *_ATTENTION)
ATTENTION_WORDS = {name: TaskKind(7 + 3 * i, *_ATTENTION) for i, name in enumerate(FORMATS)}
# Three tables and three look-ups into them; a factor of each sum, in float64; y (T, H).
EMBED = TaskKind(3, "words ids type_table token_types position_table positions scale y", "T H")
LAYER_NORM = TaskKind(4, "x weight bias y", "T H eps centered")
# x (T, K) and the offsets of its documents; panels of N tokens of queries, and their offsets; y (documents, queries)
MAX_SIMILARITY = TaskKind(20, "x offsets panels query_offsets y", "N K num_queries")

HALVES = ("", "F16", "BF16")
"""The kinds of 16 bits that a weight may have, "" for float32."""
ACTIVATION_CODES: dict[str | None, int] = {None: 0, **{name: code for code, name in enumerate(ACTIVATION_FUNCTIONS, 1)}}


# --- chunks ----------------------------------------------------------------------------------------------------------

# Measured with other values in turn, in one process on two threads (Zen 5, a whole forward of MiniLM; noise: 3 %).
# Numbers of 4 bytes that x has in one block, whose rows stay in the second cache while all panels are read. On a Xeon
# with AMX (bert-base, 8 x 128), 7 micro-tiles for K = 768 and 28 for K = 3,072 are 6 % slower than 28 and 7.
# MiniLM: no difference from 3 to 28 on Zen 5, nor on the Xeon.
BLOCK_NUMBERS = 7 * 7 * 3072
MOST_ROWS = 28 * 7  # of one block. 42 * 7: 7 % slower (the same Xeon)
FEW_TILES = 20  # up to this number of micro-tiles are one block, so each panel is read once. 7 and 14: 5 % (1 x 128)
CHUNKS_PER_THREAD = 24  # of one product; so no thread waits long for the last one. 4 to 96: no difference
# Of one chunk, so taking a chunk costs little. 8: with 12 tokens, a forward takes 1.25 times as long (MiniLM, a Xeon),
# because two threads get 8 and 4 panels; 22 tokens and more take the same. 32: 11 % (1 x 22)
LEAST_TILES = 2
# Products of a slice of K; a K that it does not divide is one slice. K = 3072 on Zen 5, two threads: 128 rows take 1.01
# of the time that they take in one slice, 1024 rows 1.00. With slices of 512, 2048 rows take 1.05.
SLICE = 1024
# On a processor with AMX, with more rows than one micro-tile has, up to FEW_ROWS, and more than SHORT_K products, the
# slices of a panel follow one another. On a Xeon, 22 rows with weights that are not in the second cache take 0.92
# (K = 768) to 0.85 (K = 3072) of the time; 0.93 and 0.89 with slices of 192. K = 384: 0.99. 64 and 128 rows: no
# difference. On a Zen 4, 22 rows take 1.03 of the time, 49 rows 1.07. Floats do not use AMX, but these Xeons have it.
FEW_ROWS = 8 * MR if "amx-int8" in LEVEL.features else 0
PANEL_SLICE, SHORT_K = 128, 512
FEW_HALF_ROWS = 2 * MR  # the same for weights in 16 bits, on every processor
# Numbers of x that the leader quantises alone, because a second op takes longer. 1 << 16: 1.5 % slower (1 x 128).
SMALL = 1 << 15
# Rows of one chunk of an op that computes each token alone. LayerNorm with 32 rows: 22 tokens take 1.23 times as long,
# 128 and 1,024 tokens 0.98 (Zen 4, two threads).
ROWS = 8


class LinearChunks(NamedTuple):
    """The chunks of a product: each multiplies `block_tiles` of `tiles` micro-tiles by `panels_per_chunk` panels.

    K is cut into `slices`; if `by_panel` is true, the slices of one panel follow one another.
    """

    slices: int
    by_panel: bool
    tiles: int
    block_tiles: int
    panels_per_chunk: int


@functools.lru_cache(maxsize=1024)
def linear_chunks(
    M: int, N: int, K: int, num_threads: int, name: str = "", gated: bool = False, half: str = ""
) -> tuple[LinearChunks, int, int]:
    """Return the chunks of a product (M, N, K), their number, and the distance of two rows of x in floats.

    With few rows there is one block of tiles, and the threads share the panels. With many rows there are more blocks,
    and each stays in cache while all panels are read. `name` is the name of a format of words. Words have one slice,
    and so has a gated product: only the result of one of its two panels has a place to wait for the next slice.
    """
    if name:
        slices, by_panel, distance, rows = 1, False, words_of(name).row_size(K), words_of(name).rows
    else:
        (slices, by_panel), distance, rows = (1, False) if gated else linear_slices(M, N, K, half), K, MR
    tiles = -(-M // rows)
    row_size = distance // slices
    most_tiles = max(1, min(MOST_ROWS, BLOCK_NUMBERS // max(1, row_size)) // rows)
    blocks = 1 if tiles <= FEW_TILES else -(-tiles // most_tiles)
    num_panels = -(-N // NR)
    block_tiles = -(-tiles // blocks)
    wanted = -(-CHUNKS_PER_THREAD * num_threads // blocks) if num_threads > 1 else 1
    panels_per_chunk = max(1, num_panels // wanted, -(-LEAST_TILES * MR // (rows * max(1, block_tiles))))
    cut = LinearChunks(slices, by_panel, tiles, block_tiles, panels_per_chunk)
    return cut, blocks * -(-num_panels // panels_per_chunk) if M else 0, distance


def linear_slices(M: int, N: int, K: int, half: str = "") -> tuple[int, bool]:
    """Return the number of slices of K, and whether the slices of a panel follow one another. Floats only."""
    # A short slice in 16 bits is widened into the first cache.
    by_panel = (half != "" and M <= FEW_HALF_ROWS) or (MR < M <= FEW_ROWS and K > SHORT_K)
    size = PANEL_SLICE if by_panel else SLICE
    return (K // size, by_panel) if size < K and K % size == 0 and N % NR == 0 else (1, False)


def row_chunks(num_rows: int) -> int:
    """Return the number of chunks of an op that computes each row by itself."""
    return -(-num_rows // ROWS)


@functools.lru_cache(maxsize=64)
def attention_scratch(cu_seqlens: bytes, D: int, name: str = "") -> int:
    """Return the floats that the head of the longest sequence needs, or raise a ValueError if this one is too long.

    `cu_seqlens` is the bytes of the int32 array; a head of words has the `name` of a format. Each layer asks, so the
    last answers are kept.
    """
    S = int(np.diff(np.frombuffer(cu_seqlens, np.int32)).max(initial=0))
    if name and S > LONGEST:
        raise ValueError(f"{S:,} tokens in a sequence; low precision takes up to {LONGEST:,}")
    chosen = {head_words(name), head_words(name, in_tiles=False)} if name else {None}
    return max(head_layout(words)(S, D).size for words in chosen)


# --- the ops ---------------------------------------------------------------------------------------------------------


class Resources(NamedTuple):
    """What the ops of one model share: threads, memory for results, the compute type, and the format of attention.

    `run` is that of the team. In the ops of a recording, it and `buffers` are the recording's.
    """

    team: Team
    run: Callable[[Task], None]
    buffers: Buffers | Recording
    recordings: Recordings
    compute_type: str
    attention_format: str

    def __reduce__(self) -> tuple[Callable[..., Resources], tuple[Any, ...]]:
        return make_resources, (self.team.num_threads, self.compute_type, self.team.idle_release)


def make_resources(
    num_threads: int, compute_type: str, idle_release: float | None = None, *also: Callable[[], object]
) -> Resources:
    """Return new threads and new memory; the threads start with the first op."""
    buffers, formats = Buffers(), FORMATS_OF[compute_type]
    recordings = Recordings(buffers)
    team = Team(num_threads, load_run_task(compute_type), idle_release, buffers.release, recordings.clear, *also)
    of_attention = next(iter(formats), "")  # that of the query, key and value maps
    return Resources(team, team.run, buffers, recordings, compute_type, of_attention)


def make_ops(
    num_threads: int,
    *,
    compute_type: str = "float32",
    idle_release: float | None = None,
    also: Iterable[Callable[[], object]] = (),
) -> Ops:
    """Return the set of ops whose kernels use up to `num_threads` threads (at least 1).

    After `idle_release` seconds without an op, threads and buffers are released, and the functions `also` are called.

    Raises
    ------
    ImportError
        There is no library of kernels for this processor and compute type, or it is damaged (libraries.py).
    """
    resources = make_resources(num_threads, compute_type, idle_release, *also)
    own = _with_resources(resources)
    return Ops(
        prepare=functools.partial(prepare_linear, Slabs().empty, compute_type),
        **own,
        max_similarity=functools.partial(max_similarity, resources),
        takes=functools.partial(is_prepared, compute_type, PackedLinear, PackedLinear),
        processor=processor_name,
        num_threads=num_threads,
        release=functools.partial(release, resources),
        rest=functools.partial(rest, resources),
        recorder=functools.partial(recorder, resources, own),
    )


def _with_resources(resources: Resources) -> dict[str, Any]:
    """Return the ops of a forward."""
    return {op.__name__: functools.partial(op, resources) for op in (embed, linear, attention, layer_norm)}


def recorder(resources: Resources, own: dict[str, Any], ops: Ops) -> Callable[..., dict[int, FloatArray]] | None:
    """Return `Recordings.states` for a forward that takes ops and vectors of words; None if `ops` has another op."""
    if any(getattr(ops, name) is not op for name, op in own.items()):
        return None

    def states(forward: Callable[[Ops, FloatArray], Any], *how: Any) -> dict[int, FloatArray]:
        def recorded(recording: Recording) -> Any:
            of_recording = resources._replace(run=recording.run, buffers=recording)
            return forward(ops._replace(**_with_resources(of_recording)), recording.words)

        return resources.recordings.states(resources.team, recorded, *how)

    return states


def release(resources: Resources) -> None:
    """Give back threads and memory; the next op makes new ones."""
    resources.team.release()


def rest(resources: Resources) -> None:
    """Let the helper threads sleep until the next op."""
    resources.team.rest()


def prepare_linear(empty: Callable[..., FloatArray], compute_type: str, linear: Linear) -> PackedLinear:
    """Pack a weight, quantised if its product is computed in low precision; `empty` allocates the panels."""
    form = format_of(linear, compute_type)
    return pack(empty, linear if form is None else quantise_linear(linear, form))


_FLOAT32 = np.dtype(np.float32)


def _floats(array: FloatArray) -> FloatArray:
    """Return an array as the kernels read it; they see only its address, not its dtype and its strides."""
    return np.ascontiguousarray(array, np.float32)


def _ints(array: IntArray) -> IntArray:
    return np.ascontiguousarray(array, np.int32)


def _has_rows_of_floats(array: FloatArray) -> bool:
    """Return whether each row is as the kernels read it; the distance of two rows does not matter."""
    return array.dtype == _FLOAT32 and array.strides[1] == FLOAT and array.strides[0] % FLOAT == 0


def embed(resources: Resources, *look_ups: LookUp, scale: FloatArray | None = None) -> FloatArray:
    """Compute the same as `reference.embed`; a look-up that the model does not add finds zeros."""
    T, H = len(look_ups[0].ids), look_ups[0].table.shape[1]
    y = resources.buffers.empty(T, H)
    look_ups += (LookUp(np.zeros((1, H), np.float32), np.zeros(T, np.int32)),) * (3 - len(look_ups))
    arrays = [array for table, ids in look_ups for array in (_floats(table), _ints(ids))]
    factors = None if scale is None else np.ascontiguousarray(scale, np.float64)
    resources.run(Task(EMBED, (*arrays, factors, y), (T, H), row_chunks(T)))
    return y


def linear(
    resources: Resources,
    x: FloatArray,
    linear: PreparedLinear,
    *,
    activation: str | None = None,
    residual: FloatArray | None = None,
) -> FloatArray:
    """Compute the same as `reference.apply_linear`, or as `low_precision.apply_linear`, with a packed weight."""
    packed: PackedLinear = linear  # type: ignore[assignment]  # `prepare` returned it
    run, name = resources.run, packed.format.name if packed.format else ""
    (N, K), gated = packed.shape, packed.gated
    M, N = len(x), N // 2 if gated else N
    cut, num_chunks, distance = linear_chunks(M, N, K, resources.team.num_threads, name, gated, packed.half)
    y = resources.buffers.empty(M, 2 * N if gated and activation is None else N)
    sizes = (M, N, K, ACTIVATION_CODES[activation], gated, HALVES.index(packed.half), *cut)
    x = _floats(x)
    residual = None if residual is None else _floats(residual)
    if not name:
        scratch = 2 * K // cut.slices * NR * (1 + gated) if packed.half else 0  # two slices of a panel, widened
        run(Task(LINEAR, (x, packed.panels, packed.bias, residual, y), sizes, num_chunks, scratch))
        return y
    # The rows of x begin at a cache line, and AMX may read one more (amx.py).
    memory = resources.buffers.empty((M + 1) * distance + CACHE_LINE // FLOAT)
    words = -(-address(memory) // CACHE_LINE) * CACHE_LINE
    source = x if x.size <= SMALL else None
    if source is None:
        run(Task(QUANTISE[name], (x,), (words, M, K), row_chunks(M), kept=memory))
    arrays = (source, packed.panels, packed.bias, residual, y)
    run(Task(LINEAR_WORDS[name], arrays, (*sizes, words), num_chunks, kept=memory))
    return y


def layer_norm(resources: Resources, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Compute the same as `reference.layer_norm`."""
    T, H = x.shape
    x, weight, bias = _floats(x), _floats(norm.weight), _floats(norm.bias)
    y = resources.buffers.empty(T, H)
    resources.run(Task(LAYER_NORM, (x, weight, bias, y), (T, H, norm.eps, norm.centered), row_chunks(T)))
    return y


def max_similarity(
    resources: Resources, x: FloatArray, offsets: IntArray, queries: PreparedLinear, query_offsets: IntArray
) -> FloatArray:
    """Compute the scores of queries with documents (max_similarity.py): float32, (documents, queries)."""
    packed: PackedLinear = queries  # type: ignore[assignment]  # `prepare` returned it
    (N, K), num_documents, num_queries = packed.shape, len(offsets) - 1, len(query_offsets) - 1
    y = np.empty((num_documents, num_queries), np.float32)
    ends, query_ends = (np.ascontiguousarray(numbers, np.int64) for numbers in (offsets, query_offsets))
    arrays = (_floats(x), ends, packed.panels, query_ends, y)
    scratch = -(-N // NR) * NR
    resources.run(Task(MAX_SIMILARITY, arrays, (N, K, num_queries), num_documents, scratch))
    return y


def attention(
    resources: Resources, inputs: AttentionInput, *, return_scores: bool = False, return_probs: bool = False
) -> AttentionOutput:
    """Compute the same as `reference.attention`, or as `low_precision.attention`."""
    query, key, value, cu_seqlens, num_heads, bias, rotation, window, queries, _ = inputs
    if key.strides != value.strides or not all(map(_has_rows_of_floats, (query, key, value))):
        query, key, value = map(_floats, (query, key, value))
    starts = cu_seqlens = _ints(cu_seqlens)
    Q, H = query.shape
    D = H // num_heads
    context = resources.buffers.empty(Q, H)
    table, angles = (x and _floats(x.table) for x in (bias, rotation))
    placed = bias or window
    columns = None if placed is None else _ints(placed.columns)
    positions = None if rotation is None else _ints(rotation.positions)
    query_columns, query_positions = columns, positions
    if queries is not None:
        starts = _ints(queries.cu_seqlens)
        query_columns, query_positions = (None if x is None else x[queries.tokens] for x in (columns, positions))
    first = scores = probs = None
    if return_scores or return_probs:
        lengths, counts = np.diff(cu_seqlens).astype(np.int64), np.diff(starts).astype(np.int64)
        first = np.concatenate([[0], np.cumsum(num_heads * counts * lengths)])
        scores, probs = (np.empty(first[-1], np.float32) if kept else None for kept in (return_scores, return_probs))
    name = resources.attention_format
    kind, scratch = ATTENTION_WORDS[name] if name else ATTENTION, attention_scratch(cu_seqlens.tobytes(), D, name)
    places = (table, columns, query_columns, angles, positions, query_positions)
    arrays = (query, key, value, cu_seqlens, starts, context, scores, probs, first, *places)
    strides = key.strides[0] // FLOAT, query.strides[0] // FLOAT
    widths = (0 if x is None else x.shape[1] for x in (table, angles))
    sharing = H // key.shape[1] if H else 1
    numbers = (num_heads, D, *strides, *widths, -1 if window is None else window.size, sharing)
    resources.run(Task(kind, arrays, numbers, (len(cu_seqlens) - 1) * num_heads, scratch))
    if first is None:
        return AttentionOutput(context, None, None)

    def by_sequence(flat: FloatArray | None) -> list[FloatArray] | None:
        if flat is None:
            return None
        return [
            flat[start : start + num_heads * count * n].reshape(num_heads, count, n)
            for start, count, n in zip(first, counts, lengths, strict=False)
        ]

    return AttentionOutput(context, by_sequence(scores), by_sequence(probs))
