"""The micro-tile: a block of rows x NR numbers that stays in registers, as a value in Numba.

What        `zero_tile(rows)` makes the function that returns a tile of zeros; `add_products` is one step of a matrix
            product; `add_tiles`, `add_row`, `load_tile` and `store_tile` do what their names say
Layout      A tile is an LLVM array of rows x (NR / WIDTH) vectors. LLVM splits it into vectors, and each of them gets
            its registers
Contract    Rows and columns lie at addresses, because integers are cheaper to pass than Numba's arrays of seven fields.
            Nothing checks bounds
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from minibert.kernels.processor import NR, WIDTH
from minibert.kernels.simd import FLOATS, fma_lanes, load_lanes, splat, store_lanes, zero_lanes

__all__ = ["add_products", "add_row", "add_tiles", "load_tile", "store_tile", "zero_tile"]

_COLUMNS = NR // WIDTH  # vectors of one row
_WORD = ir.IntType(64)


class Tile(types.Type):
    """rows x NR float32 numbers."""

    def __init__(self, rows: int) -> None:
        super().__init__(name=f"tile{rows}x{NR}")
        self.rows = rows


@register_model(Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, manager: Any, tile: Tile) -> None:
        super().__init__(manager, tile, ir.ArrayType(FLOATS, tile.rows * _COLUMNS))


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
    tile = ir.Constant(ir.ArrayType(FLOATS, len(vectors)), ir.Undefined)
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
