"""The micro-tile: a block of rows x NR numbers that stays in registers, as a value in Numba.

What        `zero_tile` and `add_products` make the functions that return a tile of zeros, and that are one step of a
            matrix product, of floats or of words (processor.py); `add_block`, `add_tiles`, `add_row`, `load_tile` and
            `store_tile` do what their names say
Layout      A tile is an LLVM array of rows x (NR / WIDTH) vectors of floats, or of int32. LLVM splits it into vectors,
            and each of them gets its registers
Contract    Rows and columns lie at addresses, because integers are cheaper to pass than Numba's arrays of seven fields.
            Nothing checks bounds
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

from minibert.kernels.compilation import inline
from minibert.kernels.lanes import FLOATS, INTS, call_llvm, fma_lanes, load_lanes, splat, store_lanes
from minibert.kernels.processor import NR, TILE_ROWS, WIDTH, Dot, Words
from minibert.kernels.simd import instruction

_COLUMNS = NR // WIDTH  # vectors of one row
_WORD = ir.IntType(64)


class Tile(types.Type):
    """rows x NR numbers: float32, or int32."""

    def __init__(self, rows: int, lanes: Any = FLOATS) -> None:
        super().__init__(name=f"tile{rows}x{NR} of {lanes.element}")
        self.rows = rows
        self.lanes = lanes


@register_model(Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, manager: Any, tile: Tile) -> None:
        super().__init__(manager, tile, ir.ArrayType(tile.lanes, tile.rows * _COLUMNS))


def pointer_at(builder: Any, address: Any, element: Any = FLOATS.element, index: int = 0) -> Any:
    """Return a pointer to the value with this index in the array of an LLVM type at an address."""
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [ir.Constant(_WORD, index)])


def _row_pointers(builder: Any, address: Any, stride: Any, rows: int) -> list[Any]:
    """Return a pointer to the first number of each row."""
    first = pointer_at(builder, address)
    return [builder.gep(first, [builder.mul(stride, ir.Constant(_WORD, i))]) for i in range(rows)]


def _vector_pointers(builder: Any, rows: list[Any]) -> list[Any]:
    """Return pointers to the vectors of these rows of a tile."""
    return [builder.gep(row, [ir.Constant(_WORD, j * WIDTH)]) for row in rows for j in range(_COLUMNS)]


def _vectors(builder: Any, tile: Any) -> list[Any]:
    return [builder.extract_value(tile, i) for i in range(tile.type.count)]


def _tile_of(builder: Any, vectors: list[Any]) -> Any:
    tile = ir.Constant(ir.ArrayType(vectors[0].type, len(vectors)), ir.Undefined)
    for i, lanes in enumerate(vectors):
        tile = builder.insert_value(tile, lanes, i)
    return tile


def zero_tile(rows: int, words: Words | None = None) -> Any:
    """Make the function that returns the initial sums of a block, a tile, from the address of the block's header.

    They are zeros, or what the second line of the header has, if the instruction multiplies x + offset.
    """
    lanes = FLOATS if words is None else INTS

    @instruction(Tile(rows, lanes)(types.int64))
    def zeros(builder: Any, header: Any) -> Any:
        if words is None or not words.dot.offset:
            return _tile_of(builder, [lanes(None)] * (rows * _COLUMNS))
        line = _vector_pointers(builder, [pointer_at(builder, header, index=NR)])
        return _tile_of(builder, [builder.bitcast(load_lanes(builder, p), lanes) for p in line] * rows)

    return zeros


def add_products(words: Words | None = None) -> Any:
    """Make the function for one step of a product: tile[i, j] + a[i] b[j], rounded once, or exact for words.

    Rows of a have a distance of `lda` words of 4 bytes, b is contiguous.
    """
    line = FLOATS if words is None else ir.VectorType(ir.IntType(8 * words.dot.w_bytes), WIDTH * 4 // words.dot.x_bytes)

    @instruction(lambda tile, a, lda, b: tile(tile, types.int64, types.int64, types.int64))
    def add(builder: Any, tile: Any, a: Any, lda: Any, b: Any) -> Any:
        sums = _vectors(builder, tile)
        rows = _row_pointers(builder, a, lda, len(sums) // _COLUMNS)
        loaded = [builder.load(pointer_at(builder, b, line, j)) for j in range(_COLUMNS)]
        for lanes in loaded:
            lanes.align = line.element.width // 8 if words else 4
        numbers = [builder.load(builder.bitcast(p, sums[0].type.element.as_pointer())) for p in rows]
        a_lanes = [splat(builder, number) for number in numbers]
        products = zip(((x, y) for x in a_lanes for y in loaded), sums, strict=True)
        if words is None:
            return _tile_of(builder, [fma_lanes(builder, *pair, z) for pair, z in products])
        return _tile_of(builder, [_add_dot(builder, words.dot, *pair, z) for pair, z in products])

    return add


def _kept(builder: Any, x: Any) -> Any:
    """Return x. LLVM cannot look behind it, so it adds each product to the sums at once.

    Else it adds products of several steps first, which need registers: with AVX2, int16 takes 1.17 times as long.
    """
    same = ir.InlineAsm(ir.FunctionType(x.type, (x.type,)), "", "=v,0")
    return builder.call(same, [x])


def _add_dot(builder: Any, dot: Dot, x: Any, y: Any, z: Any) -> Any:
    """Add the products of the numbers in the words x and y to z; y has bytes if it must be widened first."""
    numbers = ir.VectorType(ir.IntType(8 * dot.x_bytes), WIDTH * 4 // dot.x_bytes)
    x, y = builder.bitcast(x, numbers), (y if y.type == numbers else builder.sext(y, numbers))
    if ".vpdp" in dot.name:  # LLVM 22 changed the type of their operands; it still accepts this one
        x, y = builder.bitcast(x, INTS), builder.bitcast(y, INTS)

    def part(v: Any, lanes: Any) -> Any:
        each = v.type.count // WIDTH
        return builder.shuffle_vector(v, v, _indices(range(lanes.start * each, lanes.stop * each)))

    if not dot.name:
        for first in range(2):
            every_second = _indices(range(first, 2 * WIDTH, 2))
            left, right = (builder.sext(builder.shuffle_vector(v, v, every_second), INTS) for v in (x, y))
            z = builder.add(z, builder.mul(left, right))
        return z
    parts = []
    for first in range(0, WIDTH, dot.lanes):
        sums, *pair = (part(v, range(first, first + dot.lanes)) for v in (z, x, y))
        operands = (sums, *pair) if dot.adds else pair
        products = call_llvm(builder, f"llvm.{dot.name}", sums.type, *operands)
        parts.append(products if dot.adds else _kept(builder, builder.add(sums, products)))
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [builder.shuffle_vector(*pair, _indices(range(2 * pair[0].type.count))) for pair in pairs]
    return parts[0]


def _indices(numbers: range) -> Any:
    return ir.Constant(ir.VectorType(INTS.element, len(numbers)), list(numbers))


def load_sums(rows: int, words: Words) -> Any:
    """Make the function that loads the first rows of a group's sums, which AMX wrote (amx.py)."""

    @instruction(Tile(rows, INTS)(types.int64))
    def load(builder: Any, address: Any) -> Any:
        sums: list[Any] = []
        for plane in range(2 * words.dot.x_bytes - 1):  # the sums of plane i count 2^(8 i) times
            first = pointer_at(builder, address, index=plane * TILE_ROWS * NR)
            places = _vector_pointers(builder, [builder.gep(first, [_WORD(i * NR)]) for i in range(rows)])
            loaded = [builder.bitcast(load_lanes(builder, place), INTS) for place in places]
            shift = ir.Constant(INTS, [8 * plane] * WIDTH)
            shifted = [builder.shl(x, shift) for x in loaded] if plane else loaded
            sums = [builder.add(x, y) for x, y in zip(sums, shifted, strict=True)] if plane else loaded
        return _tile_of(builder, sums)

    return load


@instruction(lambda like, address, stride: like(like, types.int64, types.int64))
def load_tile(builder: Any, like: Any, address: Any, stride: Any) -> Any:
    """Load a tile with as many rows as `like`; rows have a distance of `stride` floats."""
    rows = _row_pointers(builder, address, stride, like.type.count // _COLUMNS)
    return _tile_of(builder, [load_lanes(builder, p) for p in _vector_pointers(builder, rows)])


@instruction(lambda tile, address: tile(tile, types.int64))
def add_row(builder: Any, tile: Any, address: Any) -> Any:
    """Add the NR numbers at an address to each row of a tile."""
    row = [load_lanes(builder, p) for p in _vector_pointers(builder, [pointer_at(builder, address)])]
    return _tile_of(builder, [builder.fadd(x, row[i % _COLUMNS]) for i, x in enumerate(_vectors(builder, tile))])


@instruction(lambda tile, address, stride: types.void(tile, types.int64, types.int64))
def store_tile(builder: Any, tile: Any, address: Any, stride: Any) -> None:
    """Store a tile; rows have a distance of `stride` floats."""
    pointers = _vector_pointers(builder, _row_pointers(builder, address, stride, tile.type.count // _COLUMNS))
    for lanes, pointer in zip(_vectors(builder, tile), pointers, strict=True):
        store_lanes(builder, lanes, pointer)


@instruction(lambda x, y: x(x, x))
def add_tiles(builder: Any, x: Any, y: Any) -> Any:
    """Add two tiles with the same number of rows."""
    pairs = zip(_vectors(builder, x), _vectors(builder, y), strict=True)
    return _tile_of(builder, [builder.fadd(*pair) for pair in pairs])


@instruction(lambda totals, sums, a, lda, b: totals(totals, sums, types.int64, types.int64, types.int64))
def add_block(builder: Any, totals: Any, sums: Any, a: Any, lda: Any, b: Any) -> Any:
    """Add the sums of a block to the totals: totals[i, j] + sums[i, j]; for words, sums times the scales a[i] b[j]."""
    pairs = list(zip(_vectors(builder, sums), _vectors(builder, totals), strict=True))
    if sums.type.element == FLOATS:
        return _tile_of(builder, [builder.fadd(y, x) for x, y in pairs])
    b_lanes = [load_lanes(builder, p) for p in _vector_pointers(builder, [pointer_at(builder, b)])]
    rows = _row_pointers(builder, a, lda, len(pairs) // _COLUMNS)
    a_lanes = [splat(builder, builder.load(p)) for p in rows]
    scales = [builder.fmul(x, y) for x in a_lanes for y in b_lanes]
    grown = ((builder.sitofp(x, FLOATS), scale, y) for scale, (x, y) in zip(scales, pairs, strict=True))
    return _tile_of(builder, [fma_lanes(builder, *each) for each in grown])


@inline
def finish_tile(totals, c, ldc, added, bias, residual):
    """Add the bias if `added` is 1 or 2, add the residual if it is 2, and store the tile; see gemm.py."""
    if added >= 1:
        totals = add_row(totals, bias)
    if added == 2:
        totals = add_tiles(totals, load_tile(totals, residual, ldc))
    store_tile(totals, c, ldc)
