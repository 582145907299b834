"""The values of a forward, recorded from one run of it. So only the files of the forward say what a model computes.

What runs   `Family.forward` and the heads on a skeleton: a layer of each kind, tiny sizes, weights without numbers
How         Ops that compute nothing. Each result is filled with the number of its value. So the next op says which
            value it gets, also after a reshape, and if it gets some rows only
Names       Those of the modules, which the weights bring along. A sum has the name of the input of the LayerNorm that
            follows it. What ends a block has the name of the block
Words       Symbols and aliases are in table.py
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.bert import heads, weights
from minibert.bert.config import BertConfig
from minibert.bert.families import EXTRA, FAMILIES
from minibert.bert.norm_first import FORWARDS
from minibert.bert.ops import AttentionInput, AttentionOutput, LayerNorm, Linear, LookUp, Ops, PreparedLinear
from minibert.bert.packed import PackedBatch
from minibert.bert.rows import HEADS
from minibert.trace.table import words_of


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes and parts of a model, and where the forward pass stops: they decide the names and the shapes."""

    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    num_hidden_layers: int
    num_labels: int
    pooler: bool
    head: str | None
    num_layers: int
    embedding_size: int | None = None
    model_type: str = "bert"
    has_token_types: bool = True
    unbiased: tuple[str, ...] = ()
    classifier_pooling: str | None = None
    reads_any: bool = False
    layer_types: tuple[str, ...] | None = None
    num_key_value_heads: int | None = None
    token_dropout: bool | None = None
    prediction_head_size: int | None = None

    @classmethod
    def of(cls, config: BertConfig, *, pooler: bool, head: str | None, num_layers: int | None = None) -> Sizes:
        """Return the sizes of a model; with `num_layers` the forward pass stops after that layer."""
        stop = config.num_hidden_layers if num_layers is None else num_layers
        own: dict[str, Any] = {"pooler": pooler, "head": head, "num_layers": stop, "reads_any": config.reads_any(head)}
        names = [field.name for field in dataclasses.fields(cls) if field.name not in own]
        return cls(**{name: getattr(config, name) for name in names}, **own)


Kind: TypeAlias = Literal["rows", "sum", "norm", "linear", "activation", "rotated", "scores", "probs", "context"]
"""What a value is; "rows" are those of a table."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One value. In all texts ``{i}`` is the number of the layer.

    Parameters
    ----------
    path : str       the name
    kind : Kind
    formula : str    the value of one sequence, as a Python expression in the symbols of the values before it
    needs : tuple of str    the symbols in the formula
    shape : str      the shape in a trace, in the letters of encoder.py; N is the number of labels
    module : str     the module of the checkpoint that the formula uses; "" if there is none
    line : (str, int)       the file of minibert/bert and the line that computes it
    symbol : str     its name in formulas
    aliases : other names of the same array
    by_head : names of the same array in the shape (B, S, A, D)
    function : str   of a norm, an activation or a scaled sum: as the formula names it; "act" is that of config.json
    operand : str    of a linear map: what is multiplied, a symbol, or "x[0]" for the first token
    added : tuple of str    to the product of a linear map ("b") or of scores ("bias", "window")

    Notes
    -----
    In the formulas, ``x`` is the hidden state that goes into the layer, or after the layers the last one. ``by_head``
    gives each of A heads its D columns, which heads may share, and ``joined`` undoes that. ``W`` and ``b``, or the
    weight and bias of ``layer_norm``, are those of `module`; ``rms_norm`` has no bias.
    """

    path: str
    kind: Kind
    formula: str
    needs: tuple[str, ...]
    shape: str
    module: str
    line: tuple[str, int]
    symbol: str
    aliases: tuple[str, ...] = ()
    by_head: tuple[str, ...] = ()
    function: str = ""
    operand: str = ""
    added: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Layout:
    """The values of one model, in the order of the forward.

    Parameters
    ----------
    embeddings, final, pooler, head : tuples of Entry
    kinds : tuple of tuples of Entry       of each kind of layer
    kind_of : tuple of int                 the kind of each layer
    """

    embeddings: tuple[Entry, ...]
    kinds: tuple[tuple[Entry, ...], ...]
    kind_of: tuple[int, ...]
    final: tuple[Entry, ...]
    pooler: tuple[Entry, ...]
    head: tuple[Entry, ...]

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, sizes: Sizes) -> Layout:
        """Record the forward of a model."""
        types = sizes.layer_types or ("full_attention",) * sizes.num_hidden_layers
        others = [*dict.fromkeys(types[1:])]
        kind_of = tuple(0 if i == 0 else 1 + others.index(layer_type) for i, layer_type in enumerate(types))
        config = _skeleton(sizes, (*types[:1], *others) or ("full_attention",))
        return _Recorder(config).run(sizes, kind_of)

    def parts(self) -> dict[str, tuple[Entry, ...]]:
        """Return the values of each part without the head. "layer" has those of all kinds of layers."""
        layer = {entry.path: entry for kind in self.kinds for entry in kind}
        longest = max(self.kinds, key=len)
        parts = {"embeddings": self.embeddings, "layer": tuple(layer[entry.path] for entry in longest)}
        return {**parts, **({"final": self.final} if self.final else {}), "pooler": self.pooler}

    def layer(self, i: int) -> tuple[Entry, ...]:
        """Return the values of layer i."""
        return self.kinds[self.kind_of[i]]

    def rows(self) -> Iterator[tuple[int | None, Entry]]:
        """Yield each value with its layer, None before and after the layers."""
        yield from ((None, entry) for entry in self.embeddings)
        yield from ((i, entry) for i in range(len(self.kind_of)) for entry in self.layer(i))
        yield from ((None, entry) for entry in (*self.final, *self.pooler, *self.head))

    def states(self) -> list[str]:
        """Return the names of the L + 1 hidden states."""
        states = [self.embeddings[-1].path, *(self.layer(i)[-1].path.format(i=i) for i in range(len(self.kind_of)))]
        return [*states[:-1], self.final[-1].path] if self.final else states


@functools.cache
def all_entries() -> tuple[Entry, ...]:
    """Return the values of all families and of BERT's heads, each name and kind once, BERT's first."""
    entries: dict[tuple[str, str], Entry] = {}
    for family, head in (
        *((family, None) for family in FAMILIES.values()),
        *((FAMILIES["bert"], head) for head in HEADS),
    ):
        sizes = Sizes(
            *(1, 1, 1, 1, 2, 1, True, head, 2),  # no value depends on them
            embedding_size=2 if family.has_embedding_size else None,
            model_type=family.model_type,
            has_token_types=family.has_token_types,
            layer_types=(*family.theta,) if family.has_windows else None,
        )
        layout = Layout.of(sizes)
        for entry in (*itertools.chain(*layout.parts().values()), *layout.head):
            entries.setdefault((entry.path, entry.kind), entry)
    return tuple(entries.values())


# Widths that all differ, so that a width says its letter. No weight holds a number.
_WIDTHS = {"H": 8, "G": 4, "E": 6, "F": 10, "V": 12, "N": 14, "I": 16}
_LETTERS = {width: letter for letter, width in _WIDTHS.items()}


def _skeleton(sizes: Sizes, layer_types: tuple[str, ...]) -> BertConfig:
    """Return the config of a small model with the same modules and the same kinds of layers."""
    family = FAMILIES[sizes.model_type]
    own: dict[str, Any] = {name: family.defaults[name] for name in EXTRA if name in family.defaults}
    own |= {field: part not in sizes.unbiased for part, field in family.biases.items() if field is not None}
    if family.has_windows:
        own["layer_types"] = layer_types
    if sizes.num_key_value_heads not in (None, sizes.num_attention_heads):
        own["num_key_value_heads"] = 1
    if sizes.token_dropout:
        own |= {"token_dropout": True, "mask_token_id": 1}
    if sizes.prediction_head_size is not None:
        own["prediction_head_size"] = _WIDTHS["I"]
    if sizes.classifier_pooling is not None:
        own["classifier_pooling"] = sizes.classifier_pooling
    return BertConfig(
        model_type=sizes.model_type,
        vocab_size=_WIDTHS["V"],
        hidden_size=_WIDTHS["H"],
        embedding_size=_WIDTHS["E"] if sizes.embedding_size not in (None, sizes.hidden_size) else None,
        num_hidden_layers=len(layer_types),
        num_attention_heads=2,
        intermediate_size=_WIDTHS["F"],
        max_position_embeddings=8,
        type_vocab_size=1 if sizes.has_token_types or sizes.model_type != "gte" else 0,
        id2label=dict.fromkeys(range(_WIDTHS["N"]), ""),
        **own,
    )


class _Nothing:
    """A source of weights that hold no numbers."""

    def array(self, names: Sequence[str], shape: tuple[int, ...]) -> FloatArray:
        """Return zeros."""
        return np.zeros(shape, np.float32)

    def linear(
        self, paths: tuple[str, ...], shape: tuple[int, int], *, bias: bool = True, gated: bool = False
    ) -> Linear:
        """Return linear maps of zeros."""
        return Linear(paths, self.array(paths, shape), self.array(paths, shape[:1]), gated)

    def decoder(self, path: str, word_embeddings: FloatArray, bias: bool) -> tuple[Linear, bool]:
        """Return a decoder of zeros."""
        return self.linear((path,), (len(word_embeddings), word_embeddings.shape[1])), True


class _Recorder:
    """The ops that record: each adds entries, and returns an array that is filled with the number of the last one."""

    def __init__(self, config: BertConfig) -> None:
        self._config = config
        self._batch = PackedBatch.from_mask(np.ones((2, 3), np.bool_))
        self._modules: set[str] = set()
        self._norms: set[str] = set()  # that have not run yet
        self._entries: list[Entry] = []
        self._states: list[int] = []  # the numbers of the hidden states
        self._first = 0

    def run(self, sizes: Sizes, kind_of: tuple[int, ...]) -> Layout:
        """Run the forward, the pooler and the head; layer i of the model has the kind kind_of[i]."""
        config, nothing = self._config, _Nothing()
        made = weights.read_encoder(config, nothing)
        if sizes.pooler:
            made = dataclasses.replace(made, **weights.read_pooler(config, nothing))
        if sizes.head is not None:
            made = dataclasses.replace(made, head=weights.read_head(sizes.head, made, nothing))
        self._modules = {f"{scope}{row.path}" for scope, _, rows in made.parts(sizes.head) for row in rows}
        self._norms = {path for path in self._modules if path.endswith(".LayerNorm")}
        ops, parts = Ops(lambda linear: linear, self.embed, self.linear, self.attention, self.layer_norm), []
        for x in FORWARDS[config.family.forward](made, self._batch, ops):
            self._states.append(_number(x))
            parts.append(self._taken())
        kinds = [tuple(entry for entry in part if "{i}" in entry.path) for part in parts[1:]]
        final = tuple(entry for entry in parts[-1] if kind_of and "{i}" not in entry.path)
        results = HEADS[sizes.head].result_kinds if sizes.head else ("pooler",) * sizes.pooler
        for kind in results:
            heads.result(sizes.head, kind, x, made, ops, self._batch)
        after = self._taken()
        pooler = tuple(entry for entry in after if entry.path.startswith("pooler"))
        return Layout(
            parts[0], tuple(kinds), kind_of, final, pooler, tuple(entry for entry in after if entry not in pooler)
        )

    # --- the ops ------------------------------------------------------------------------------------------------------

    def embed(self, *look_ups: LookUp, scale: FloatArray | None = None) -> FloatArray:
        """Record the rows of the tables and their sum."""
        ids = {"word": "input_ids", "token_type": "token_type_ids", "position": "position_ids"}
        named = {f"embeddings.{table}_embeddings": f"W[{name}]" for table, name in ids.items()}
        there = [(path, formula) for path, formula in named.items() if path in self._modules]
        rows = [
            self._add("rows", path, formula, (), look_up.table.shape[1], module=path)
            for (path, formula), look_up in zip(there, look_ups, strict=True)
        ]
        symbols = self._symbols(rows)
        path = "embeddings.LayerNorm.input" if "embeddings.LayerNorm" in self._norms else "embeddings"
        width = rows[0].shape[1]
        if scale is None:
            return self._add("sum", path, " + ".join(symbols), symbols, width)
        return self._add("sum", path, f"scale({symbols[0]})", symbols, width, function="scale")

    def layer_norm(self, x: FloatArray, norm: LayerNorm) -> FloatArray:
        """Record a LayerNorm. At the end of its block it gives the block's output."""
        block = norm.path.removesuffix(".LayerNorm")
        self._norms.discard(norm.path)
        ends_block = self._entry(x).path.startswith(f"{_general(block)}.")
        name = block.removesuffix(".output") if ends_block else norm.path
        symbols = self._symbols([x])
        function = "layer_norm" if norm.centered else "rms_norm"
        return self._add(
            "norm", name, f"{function}({symbols[0]})", symbols, x.shape[1], x, norm.path, function=function
        )

    def linear(
        self,
        x: FloatArray,
        linear: PreparedLinear,
        *,
        activation: str | None = None,
        residual: FloatArray | None = None,
    ) -> FloatArray:
        """Record each map, then the activation and the sum."""
        symbols = self._symbols([x])
        source = symbols[0]
        if len(x) == self._batch.num_sequences and "S" in self._entry(x).shape:  # one token of each sequence
            pooling = self._config.classifier_pooling
            pooling = "mean" if pooling == "late" else pooling
            source = f"{source}[0]" if pooling in (None, "bos") else f"{pooling}({source})"
        width = linear.shape[0] // len(linear.paths)
        ys = []
        for path in linear.paths:
            added = ("b",) if self._config.has_bias(path) else ()
            formula = " + ".join((f"{source} @ W.T", *added))
            ys.append(self._add("linear", path, formula, symbols, width, x, path, operand=source, added=added))
        if len(ys) > 1 and not linear.gated:
            return np.concatenate(ys, axis=1)
        y, block = ys[-1], linear.paths[-1].rpartition(".")[0]
        if activation is not None:
            first, *factors = symbols = self._symbols(ys)
            name = f"{block}.{block.rpartition('.')[2]}_act_fn" if f"{block}.LayerNorm" in self._norms else block
            called = activation if block == "pooler" else "act"
            formula = " * ".join([f"{called}({first})", *factors])
            y = self._add("activation", name, formula, symbols, width, x, function=called)
        if residual is not None:
            symbols = self._symbols([y, residual])
            name = f"{block}.LayerNorm.input" if f"{block}.LayerNorm" in self._norms else block.removesuffix(".output")
            y = self._add("sum", name, " + ".join(symbols), symbols, width, x)
        return y

    def attention(self, inputs: AttentionInput, **returned: bool) -> AttentionOutput:
        """Record the rotated queries and keys, scores, probs and context."""
        path, width = inputs.path, inputs.query.shape[1]
        query, key = inputs.query, inputs.key
        if inputs.rotation is not None:
            query, key = (
                self._add("rotated", f"{path}.{part}.rotated", f"rotated({symbol})", (symbol,), x.shape[1])
                for part, x, symbol in zip(("query", "key"), inputs[:2], self._symbols([query, key]), strict=True)
            )
        symbols = self._symbols([query, key])
        added = ("bias",) * (inputs.bias is not None) + ("window",) * (inputs.window is not None)
        formula = " + ".join(("by_head({}) @ transposed(by_head({})) / sqrt(D)".format(*symbols), *added))
        scores = self._add("scores", f"{path}.scores", formula, symbols, 0, added=added)
        symbols = self._symbols([scores])
        probs = self._add("probs", f"{path}.probs", f"softmax({symbols[0]})", symbols, 0)
        symbols = self._symbols([probs, inputs.value])
        formula = "joined({} @ by_head({}))".format(*symbols)
        return AttentionOutput(self._add("context", path, formula, symbols, width), None, None)

    # --- entries ------------------------------------------------------------------------------------------------------

    def _add(
        self,
        kind: Kind,
        path: str,
        formula: str,
        needs: tuple[str, ...],
        width: int,
        x: FloatArray | None = None,
        module: str = "",
        **facts: Any,
    ) -> FloatArray:
        """Add an entry, and return the array of its value, which has as many rows as x; default: one for each token."""
        frame = sys._getframe(2)
        while frame.f_globals["__name__"] == __name__ and frame.f_back is not None:
            frame = frame.f_back
        rows = self._batch.num_tokens if x is None else len(x)
        shape = "(B, S, {})" if rows == self._batch.num_tokens else "(B, {})"
        shape = shape.format(_LETTERS.get(width, width)) if width else "(B, A, S, S)"
        name = _general(path)
        line = (frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2], frame.f_lineno)
        words = words_of(name, kind)
        self._entries.append(Entry(name, kind, formula, needs, shape, _general(module), line, *words, **facts))
        return np.full((rows, width or 1), len(self._entries) - 1, np.float32)

    def _entry(self, x: FloatArray) -> Entry:
        return self._entries[_number(x)]

    def _symbols(self, xs: Sequence[FloatArray]) -> tuple[str, ...]:
        """Return the symbols of values. A hidden state that a part gets is x."""
        return tuple("x" if _number(x) in self._states else self._entry(x).symbol for x in xs)

    def _taken(self) -> tuple[Entry, ...]:
        """Return the entries since the last call."""
        first = self._first
        self._first = len(self._entries)
        return tuple(self._entries[first:])


def _number(x: FloatArray) -> int:
    """Return the number of the entry whose value this is."""
    return int(x.flat[0])


def _general(path: str) -> str:
    return re.sub(r"^encoder\.layer\.\d+", "encoder.layer.{i}", path)
