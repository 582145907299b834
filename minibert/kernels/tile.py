"""The micro-tile: a block of rows x NR numbers that stays in registers, as a value in Numba.

What        `zero_tile(rows)` makes the function that returns a tile of zeros; `add_products` is one step of a matrix
            product; `add_tiles`, `add_row`, `load_tile` and `store_tile` do what their names say. In low precision,
            `first_sums` and `add_dots` make such functions for sums of whole numbers, which `add_scaled` adds to floats
Layout      A tile is an LLVM array of rows x (NR / WIDTH) vectors of floats, or of int32. LLVM splits it into vectors,
            and each of them gets its registers
Contract    Rows and columns lie at addresses, because integers are cheaper to pass than Numba's arrays of seven fields.
            Nothing checks bounds
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from minibert.kernels.processor import NR, WIDTH
from minibert.kernels.simd import FLOATS, INTS, call_llvm, fma_lanes, load_lanes, splat, store_lanes, zero_lanes
from minibert.kernels.words import Dot, Words

__all__ = [
    "add_dots",
    "add_products",
    "add_row",
    "add_scaled",
    "add_tiles",
    "first_sums",
    "load_tile",
    "pointer_at",
    "store_tile",
    "zero_tile",
]

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


def pointer_at(builder: Any, address: Any, element: Any, index: int = 0) -> Any:
    """Return a pointer to a number of an LLVM type, the one with this index from an address on."""
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [ir.Constant(_WORD, index)])


def _floats(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.FloatType().as_pointer())


def _row_pointers(builder: Any, address: Any, stride: Any, rows: int) -> list[Any]:
    """Return a pointer to the first number of each row."""
    first = _floats(builder, address)
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


def zero_tile(rows: int) -> Any:
    """Make the function that returns a tile of this number of rows, full of zeros."""

    @intrinsic
    def zeros(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return _tile_of(builder, [zero_lanes()] * (rows * _COLUMNS))

        return Tile(rows)(), codegen

    return zeros


@intrinsic
def add_products(typingctx: Any, tile: Any, a: Any, lda: Any, b: Any) -> Any:
    """Compute tile[i, j] + a[i] b[j], rounded once; rows of a have a distance of `lda` floats, b is contiguous."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tile_, a_, lda_, b_ = arguments
        b_lanes = [load_lanes(builder, p) for p in _vector_pointers(builder, [_floats(builder, b_)])]
        a_lanes = [splat(builder, builder.load(p)) for p in _row_pointers(builder, a_, lda_, tile.rows)]
        products = [(x, y) for x in a_lanes for y in b_lanes]
        sums = zip(products, _vectors(builder, tile_), strict=True)
        return _tile_of(builder, [fma_lanes(builder, *product, z) for product, z in sums])

    return tile(tile, types.int64, types.int64, types.int64), codegen


@intrinsic
def load_tile(typingctx: Any, like: Any, address: Any, stride: Any) -> Any:
    """Load a tile with the rows of `like`; rows have a distance of `stride` floats."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, address_, stride_ = arguments
        rows = _row_pointers(builder, address_, stride_, like.rows)
        return _tile_of(builder, [load_lanes(builder, p) for p in _vector_pointers(builder, rows)])

    return like(like, types.int64, types.int64), codegen


@intrinsic
def add_row(typingctx: Any, tile: Any, address: Any) -> Any:
    """Add the NR numbers at an address to each row of a tile."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tile_, row = arguments
        row_lanes = [load_lanes(builder, p) for p in _vector_pointers(builder, [_floats(builder, row)])]
        vectors = _vectors(builder, tile_)
        return _tile_of(builder, [builder.fadd(x, row_lanes[i % _COLUMNS]) for i, x in enumerate(vectors)])

    return tile(tile, types.int64), codegen


@intrinsic
def store_tile(typingctx: Any, tile: Any, address: Any, stride: Any) -> Any:
    """Store a tile; rows have a distance of `stride` floats."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tile_, address_, stride_ = arguments
        pointers = _vector_pointers(builder, _row_pointers(builder, address_, stride_, tile.rows))
        for lanes, pointer in zip(_vectors(builder, tile_), pointers, strict=True):
            store_lanes(builder, lanes, pointer)
        return context.get_dummy_value()

    return types.void(tile, types.int64, types.int64), codegen


@intrinsic
def add_tiles(typingctx: Any, x: Any, y: Any) -> Any:
    """Add two tiles with the same number of rows."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pairs = zip(*(_vectors(builder, tile) for tile in arguments), strict=True)
        return _tile_of(builder, [builder.fadd(*pair) for pair in pairs])

    return x(x, x), codegen


# --- low precision ---------------------------------------------------------------------------------------------------


def first_sums(rows: int, words: Words) -> Any:
    """Make the function that returns the tile with which the sums of a group begin, for the header of a panel's group."""

    @intrinsic
    def begin(typingctx: Any, header: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if not words.dot.offset:
                return _tile_of(builder, [ir.Constant(INTS, [0] * WIDTH)] * (rows * _COLUMNS))
            line = [pointer_at(builder, arguments[0], INTS.element, NR + j * WIDTH) for j in range(_COLUMNS)]
            return _tile_of(builder, [builder.bitcast(load_lanes(builder, p), INTS) for p in line] * rows)

        return Tile(rows, INTS)(types.int64), codegen

    return begin


def _dot(builder: Any, dot: Dot, z: Any, x: Any, y: Any) -> Any:
    """Add the products of the numbers in the words x and y to z; y has bytes if the instruction multiplies more."""
    numbers = ir.VectorType(ir.IntType(8 * dot.x_bytes), WIDTH * 4 // dot.x_bytes)
    x, y = builder.bitcast(x, numbers), (y if y.type == numbers else builder.sext(y, numbers))
    if ".vpdp" in dot.name:  # LLVM 22 changed the type of their operands; it still accepts this one
        x, y = builder.bitcast(x, INTS), builder.bitcast(y, INTS)
    if not dot.name:
        for first in range(2):
            even = ir.Constant(INTS, list(range(first, 2 * WIDTH, 2)))
            pair = (builder.sext(builder.shuffle_vector(v, v, even), INTS) for v in (x, y))
            z = builder.add(z, builder.mul(*pair))
        return z
    parts = []
    for lane in range(0, WIDTH, dot.lanes):
        sums, *pair = (
            v
            if dot.lanes == WIDTH
            else _part(builder, v, lane * v.type.count // WIDTH, dot.lanes * v.type.count // WIDTH)
            for v in (z, x, y)
        )
        if dot.adds:
            parts.append(call_llvm(builder, f"llvm.{dot.name}", sums.type, sums, *pair))
        else:
            parts.append(builder.add(sums, call_llvm(builder, f"llvm.{dot.name}", sums.type, *pair)))
    while len(parts) > 1:
        parts = [
            builder.shuffle_vector(low, high, _indices(0, 2 * low.type.count))
            for low, high in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]


def _indices(first: int, count: int) -> Any:
    return ir.Constant(ir.VectorType(INTS.element, count), list(range(first, first + count)))


def _part(builder: Any, vector: Any, first: int, count: int) -> Any:
    return builder.shuffle_vector(vector, vector, _indices(first, count))


def add_dots(words: Words) -> Any:
    """Make the function that is one step of a product of words; its arguments are those of `add_products`."""
    dot = words.dot
    line = ir.VectorType(ir.IntType(8 * dot.w_bytes), WIDTH * 4 // dot.x_bytes)

    @intrinsic
    def add(typingctx: Any, tile: Any, a: Any, lda: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            tile_, a_, lda_, b_ = arguments
            b_words = [builder.load(pointer_at(builder, b_, line, j)) for j in range(_COLUMNS)]
            for loaded in b_words:
                loaded.align = dot.w_bytes
            a_rows = _row_pointers(builder, a_, lda_, tile.rows)
            a_words = [splat(builder, builder.load(builder.bitcast(p, INTS.element.as_pointer()))) for p in a_rows]
            pairs = [(x, y) for x in a_words for y in b_words]
            sums = zip(_vectors(builder, tile_), pairs, strict=True)
            return _tile_of(builder, [_dot(builder, dot, z, *pair) for z, pair in sums])

        return tile(tile, types.int64, types.int64, types.int64), codegen

    return add


@intrinsic
def add_scaled(typingctx: Any, totals: Any, sums: Any, a: Any, lda: Any, b: Any) -> Any:
    """Compute totals[i, j] + sums[i, j] (a[i] b[j]): a rounded product of scales, and a sum that is rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        totals_, sums_, a_, lda_, b_ = arguments
        b_lanes = [load_lanes(builder, p) for p in _vector_pointers(builder, [_floats(builder, b_)])]
        a_lanes = [splat(builder, builder.load(p)) for p in _row_pointers(builder, a_, lda_, totals.rows)]
        scales = [builder.fmul(x, y) for x in a_lanes for y in b_lanes]
        floats = [builder.sitofp(x, FLOATS) for x in _vectors(builder, sums_)]
        grown = zip(floats, scales, _vectors(builder, totals_), strict=True)
        return _tile_of(builder, [fma_lanes(builder, *each) for each in grown])

    return totals(totals, sums, types.int64, types.int64, types.int64), codegen
