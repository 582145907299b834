"""The names of all intermediate values: the table, which a test executes; the names that a model has; patterns.

A name is the path of a module of transformers, and means the output of this module; ``.input`` means its input. Some
values have no module there and get names of their own: ``.scores`` and ``.probs`` of each ``attention.self``, and the
rotated queries and keys. All families have BERT's names; those of their own modules are aliases.

Aliases are other spellings of the same value. Tests compare those of TransformerLens and ONNX with the values there.
Four names of TransformerLens have two meanings: ``blocks.0.hook_resid_post`` is a hidden state in TransformerBridge,
and the sum before the last LayerNorm in HookedEncoder. They are refused, with both meanings.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from minibert._utils.validation import brief, counted
from minibert.bert import weights
from minibert.bert.config import BertConfig
from minibert.bert.families import FAMILIES

# --- the table --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the table. In all texts ``{i}`` is the number of the layer.

    Parameters
    ----------
    path : str       the name
    symbol : str     its name in the formulas of other rows
    formula : str    the value of one sequence, as a Python expression in the symbols of the rows before it
    shape : str      the shape in a trace, in the letters of encoder.py; N is the number of labels
    needs : tuple of str    the symbols in the formula: values that are computed before this one
    aliases : other names of the same array
    by_head : names of the same array in the shape (B, S, A, D)

    Notes
    -----
    In the formulas, ``x`` is the hidden state that goes into the layer, or after the layers the last one. ``by_head``
    splits H columns into A heads, and ``joined`` undoes that. ``W`` and ``b``, or the weight and bias of
    ``layer_norm``, are those of the module `weights`.
    """

    path: str
    symbol: str
    formula: str
    shape: str
    needs: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    by_head: tuple[str, ...] = ()

    @property
    def weights(self) -> str:
        """The module of the checkpoint that the formula uses; "" if there is none."""
        if self.formula.startswith("layer_norm("):
            return next(name for name in (*self.aliases, self.path) if name.endswith(("LayerNorm", "final_norm")))
        return self.path if re.search(r"\bW\b", self.formula) else ""


# In the order of the forward pass. A row has the path, the symbol and formula, the shape, and the symbols that the
# formula needs; its aliases follow. Names with a slash are those that torch.onnx.export gives: the path, then the last
# op in it.
_TABLE = """
embeddings
  embeddings.word_embeddings | words = W[input_ids] | (B, S, E)
    embed.hook_embed  embed.hook_out  /embeddings/word_embeddings/Gather_output_0
  embeddings.token_type_embeddings | types = W[token_type_ids] | (B, S, E)
    embed.hook_token_type_embed  token_type_embed.hook_out  /embeddings/token_type_embeddings/Gather_output_0
  embeddings.position_embeddings | positions = W[position_ids] | (B, S, E)
    embed.hook_pos_embed  hook_pos_embed  pos_embed.hook_out  /embeddings/position_embeddings/Gather_output_0
  embeddings.LayerNorm.input | embeddings_sum = words + types + positions | (B, S, E) | words types positions
    embed_ln.hook_in  inp_embd  /embeddings/Add_1_output_0
  embeddings | embeddings = layer_norm(embeddings_sum) | (B, S, E) | embeddings_sum
    embeddings.LayerNorm  embeddings.dropout  hidden_states.0  encoder.input  hook_full_embed  embed_ln.hook_out
    inp_norm  /embeddings/LayerNorm/LayerNormalization_output_0  /embeddings/LayerNorm/Add_1_output_0
projection
  embeddings_project | projected = embeddings @ W.T + b | (B, S, H) | embeddings
    hidden_states.0  encoder.input
layer
  encoder.layer.{i}.attention.self.query | query = x @ W.T + b | (B, S, H) | x
    Qcur-{i}  /encoder/layer.{i}/attention/self/query/Add_output_0
    by head: blocks.{i}.attn.hook_q  blocks.{i}.attn.q.hook_out
  encoder.layer.{i}.attention.self.key | key = x @ W.T + b | (B, S, H) | x
    Kcur-{i}  /encoder/layer.{i}/attention/self/key/Add_output_0
    by head: blocks.{i}.attn.hook_k  blocks.{i}.attn.k.hook_out
  encoder.layer.{i}.attention.self.value | value = x @ W.T + b | (B, S, H) | x
    Vcur-{i}  /encoder/layer.{i}/attention/self/value/Add_output_0
    by head: blocks.{i}.attn.hook_v  blocks.{i}.attn.v.hook_out
  encoder.layer.{i}.attention.self.scores | scores = by_head(query) @ transposed(by_head(key)) / sqrt(D) |
    (B, A, S, S) | query key
  encoder.layer.{i}.attention.self.probs | probs = softmax(scores) | (B, A, S, S) | scores
    attentions.{i}  blocks.{i}.attn.hook_pattern  /encoder/layer.{i}/attention/self/Softmax_output_0
  encoder.layer.{i}.attention.self | context = joined(probs @ by_head(value)) | (B, S, H) | probs value
    encoder.layer.{i}.attention.output.input  encoder.layer.{i}.attention.output.dense.input
    by head: blocks.{i}.attn.hook_z  blocks.{i}.attn.o.hook_in
  encoder.layer.{i}.attention.output.dense | attention_dense = context @ W.T + b | (B, S, H) | context
    encoder.layer.{i}.attention.output.dropout  blocks.{i}.attn.o.hook_out
    /encoder/layer.{i}/attention/output/dense/Add_output_0
  encoder.layer.{i}.attention.output.LayerNorm.input | attention_sum = attention_dense + x | (B, S, H) |
    attention_dense x
    blocks.{i}.ln1.hook_in  /encoder/layer.{i}/attention/output/Add_output_0
  encoder.layer.{i}.attention | attention = layer_norm(attention_sum) | (B, S, H) | attention_sum
    encoder.layer.{i}.attention.output  encoder.layer.{i}.attention.output.LayerNorm
    encoder.layer.{i}.intermediate.input  encoder.layer.{i}.intermediate.dense.input  blocks.{i}.ln1.hook_out
    blocks.{i}.attn.hook_out  blocks.{i}.mlp.hook_in  blocks.{i}.mlp.in.hook_in  blocks.{i}.hook_mlp_in
    ffn_inp-{i}  /encoder/layer.{i}/attention/output/LayerNorm/LayerNormalization_output_0
    /encoder/layer.{i}/attention/output/LayerNorm/Add_1_output_0
  encoder.layer.{i}.intermediate.dense | intermediate_dense = attention @ W.T + b | (B, S, F) | attention
    encoder.layer.{i}.intermediate.intermediate_act_fn.input  blocks.{i}.mlp.hook_pre
    blocks.{i}.mlp.in.hook_out  /encoder/layer.{i}/intermediate/dense/Add_output_0
  encoder.layer.{i}.intermediate | intermediate = act(intermediate_dense) | (B, S, F) | intermediate_dense
    encoder.layer.{i}.intermediate.intermediate_act_fn  encoder.layer.{i}.output.input
    encoder.layer.{i}.output.dense.input  blocks.{i}.mlp.hook_post  blocks.{i}.mlp.out.hook_in
  encoder.layer.{i}.output.dense | output_dense = intermediate @ W.T + b | (B, S, H) | intermediate
    encoder.layer.{i}.output.dropout  blocks.{i}.hook_mlp_out  ffn_out-{i}  blocks.{i}.mlp.hook_out
    blocks.{i}.mlp.out.hook_out  /encoder/layer.{i}/output/dense/Add_output_0
  encoder.layer.{i}.output.LayerNorm.input | output_sum = output_dense + attention | (B, S, H) | output_dense attention
    blocks.{i}.ln2.hook_in  /encoder/layer.{i}/output/Add_output_0
  encoder.layer.{i} | output = layer_norm(output_sum) | (B, S, H) | output_sum
    encoder.layer.{i}.output  encoder.layer.{i}.output.LayerNorm  blocks.{i}.hook_normalized_resid_post
    blocks.{i}.ln2.hook_out  blocks.{i}.hook_out
    /encoder/layer.{i}/output/LayerNorm/LayerNormalization_output_0
    /encoder/layer.{i}/output/LayerNorm/Add_1_output_0
rotation
  encoder.layer.{i}.attention.self.query.rotated | rotated_query = rotated(query) | (B, S, H) | query
    by head: encoder.layer.{i}.attention.self.query.rotated.heads
  encoder.layer.{i}.attention.self.key.rotated | rotated_key = rotated(key) | (B, S, H) | key
    by head: encoder.layer.{i}.attention.self.key.rotated.heads
gate
  encoder.layer.{i}.intermediate.gate | gate = attention @ W.T + b | (B, S, F) | attention
  encoder.layer.{i}.intermediate.up | up = attention @ W.T + b | (B, S, F) | attention
norms first
  encoder.layer.{i}.attention.LayerNorm | normed = layer_norm(x) | (B, S, H) | x
    encoder.layer.{i}.attention.self.input
  encoder.layer.{i}.attention | attention = attention_dense + x | (B, S, H) | attention_dense x
    encoder.layer.{i}.intermediate.LayerNorm.input
  encoder.layer.{i}.intermediate.LayerNorm | attention_normed = layer_norm(attention) | (B, S, H) | attention
    encoder.layer.{i}.intermediate.input
  encoder.layer.{i} | output = output_dense + attention | (B, S, H) | output_dense attention
    encoder.layer.{i}.output
final
  final_norm | final = layer_norm(output) | (B, S, H) | output
pooler
  pooler.dense | pooler_dense = x[0] @ W.T + b | (B, H) | x
    pooler.activation.input  pooler.dense.hook_out  /pooler/dense/Gemm_output_0
  pooler | pooler = tanh(pooler_dense) | (B, H) | pooler_dense
    pooler.activation  pooler_output  pooler.hook_pooler_out  /pooler/activation/Tanh_output_0
predictions
  cls.predictions.transform.dense | transform_dense = x @ W.T + b | (B, S, E) | x
    cls.predictions.transform.transform_act_fn.input
  cls.predictions.transform.transform_act_fn | transform_act = act(transform_dense) | (B, S, E) | transform_dense
    cls.predictions.transform.LayerNorm.input
  cls.predictions.transform | transform = layer_norm(transform_act) | (B, S, E) | transform_act
    cls.predictions.transform.LayerNorm  cls.predictions.decoder.input
  cls.predictions.decoder | predictions = transform @ W.T + b | (B, S, V) | transform
    cls.predictions  prediction_logits
next sentence
  cls.seq_relationship | logits = pooler @ W.T + b | (B, 2) | pooler
    seq_relationship_logits
BertForQuestionAnswering
  qa_outputs | logits = x @ W.T + b | (B, S, 2) | x
BertForSequenceClassification
  classifier | logits = pooler @ W.T + b | (B, N) | pooler
    logits
BertForTokenClassification
  classifier | logits = x @ W.T + b | (B, S, N) | x
    logits
BertForMultipleChoice
  classifier | logits = pooler @ W.T + b | (B, 1) | pooler
"""


def _read(table: str) -> dict[str, tuple[Entry, ...]]:
    """Return the rows of each part of the table."""
    parts: dict[str, list[Entry]] = {}
    for line in table.strip().replace(" |\n   ", " |").split("\n"):
        row = line.strip()
        if row == line:  # not indented
            entries = parts.setdefault(row, [])
        elif " | " in row:
            path, definition, shape, *needs = row.split(" | ")
            symbol, formula = definition.split(" = ", 1)
            entries.append(Entry(path, symbol, formula, shape, tuple(" ".join(needs).split())))
        elif row.startswith("by head: "):
            entries[-1] = dataclasses.replace(entries[-1], by_head=tuple(row.removeprefix("by head: ").split()))
        else:
            entries[-1] = dataclasses.replace(entries[-1], aliases=(*entries[-1].aliases, *row.split()))
    return {name: tuple(entries) for name, entries in parts.items()}


_PARTS = _read(_TABLE)
EMBEDDINGS, LAYER, POOLER = _PARTS["embeddings"], _PARTS["layer"], _PARTS["pooler"]
PROJECTION = _PARTS["projection"]  # of ELECTRA
SUCCESSORS = tuple(entry for part in ("rotation", "gate", "norms first", "final") for entry in _PARTS[part])
HEADS = {
    "BertForPreTraining": _PARTS["predictions"] + _PARTS["next sentence"],
    "BertForMaskedLM": _PARTS["predictions"],
    "BertForNextSentencePrediction": _PARTS["next sentence"],
    **{name: entries for name, entries in _PARTS.items() if name.startswith("BertFor")},
}

_S = "encoder.layer.{i}.attention.self"

# Names of the hidden state that goes into layer {i}.
STATE_BEFORE = (
    *("encoder.layer.{i}.input", "encoder.layer.{i}.attention.input", f"{_S}.input"),
    *(f"{_S}.{part}.input" for part in ("query", "key", "value")),
    *("blocks.{i}.hook_resid_pre", "blocks.{i}.hook_in", "blocks.{i}.attn.hook_in"),
    *(f"blocks.{{i}}.attn.{part}.hook_in" for part in "qkv"),
)

# Names of the last hidden state.
LAST_STATE = ("encoder", "last_hidden_state", "result_embd")

# Names of TransformerLens that mean the first value in its HookedEncoder, and the second one in its TransformerBridge.
TWO_MEANINGS = {
    "blocks.{i}.hook_attn_out": ("encoder.layer.{i}.attention.output.dense", "encoder.layer.{i}.attention"),
    "blocks.{i}.attn.hook_attn_scores": (f"{_S}.scores", f"{_S}.probs"),
    "blocks.{i}.hook_resid_mid": (
        "encoder.layer.{i}.attention.output.LayerNorm.input",
        "encoder.layer.{i}.output.LayerNorm.input",
    ),
    "blocks.{i}.hook_resid_post": ("encoder.layer.{i}.output.LayerNorm.input", "encoder.layer.{i}"),
}


# --- the names of one model -------------------------------------------------------------------------------------------

Record: TypeAlias = str | Iterable[str] | Callable[[str], bool]
"""Which names: a name, an alias or a pattern; several of these; or a function of the name that returns True or False.

In a pattern ``*`` stands for any text; between two other characters it does not match a dot, so
``encoder.layer.*.output`` names one module of each layer. ``?`` is one character, ``[0-3]`` one of these.
"""


_PREFIXES = (*(f"{family.field}." for family in FAMILIES.values()), "model.", "BertModel.", "0.auto_model.", "0.model.")


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

    @classmethod
    def of(cls, config: BertConfig, *, pooler: bool, head: str | None, num_layers: int | None = None) -> Sizes:
        """Return the sizes of a model; with `num_layers` the forward pass stops after that layer."""
        stop = config.num_hidden_layers if num_layers is None else num_layers
        own: dict[str, Any] = {"pooler": pooler, "head": head, "num_layers": stop, "reads_any": config.reads_any(head)}
        names = [field.name for field in dataclasses.fields(cls) if field.name not in own]
        return cls(**{name: getattr(config, name) for name in names}, **own)


def rows_of(sizes: Sizes) -> dict[str, tuple[Entry, ...]]:
    """Return the rows of the embeddings, of one layer and of the pooler of a model, with the formulas of its family."""
    family = FAMILIES[sizes.model_type]
    there = {"words": True, "types": sizes.has_token_types, "positions": not family.theta}
    summed = [symbol for symbol, is_there in there.items() if is_there]
    changed: dict[str, dict[str, Any]] = {
        "pooler": {"formula": f"{family.activation(sizes.head, 'tanh')}(pooler_dense)"},
        "embeddings_sum": {"formula": " + ".join(summed), "needs": tuple(summed)},
    }
    scores = next(entry.formula for entry in LAYER if entry.symbol == "scores")
    layer = {entry.symbol: entry for entry in LAYER}
    order = list(layer)
    if family.has_relative_bias:
        changed["scores"] = {"formula": f"{scores} + bias"}
    if family.theta:
        layer |= {entry.symbol: entry for entry in _PARTS["rotation"]}
        order[3:3] = [entry.symbol for entry in _PARTS["rotation"]]
        scores = scores.replace("(query)", "(rotated_query)").replace("(key)", "(rotated_key)")
        scores += " + window" * family.norms_first
        changed["scores"] = {"formula": scores, "needs": ("rotated_query", "rotated_key")}
    if family.is_gated:
        layer |= {entry.symbol: entry for entry in _PARTS["gate"]}
        order[order.index("intermediate_dense") : order.index("intermediate")] = ["gate", "up"]
        changed["intermediate"] = {"formula": "act(gate) * up", "needs": ("gate", "up")}
    if family.norms_first:
        layer |= {entry.symbol: entry for entry in _PARTS["norms first"]}
        order = ["normed", *order[: order.index("attention_sum")], "attention", "attention_normed"]
        order += ["gate", "up", "intermediate", "output_dense", "output"]
        changed |= {symbol: {"formula": "normed @ W.T + b", "needs": ("normed",)} for symbol in order[1:4]}
        needed: dict[str, Any] = {"formula": "attention_normed @ W.T + b", "needs": ("attention_normed",)}
        changed |= {"gate": needed, "up": needed}
    projection = PROJECTION if sizes.embedding_size not in (None, sizes.hidden_size) else ()
    parts = {
        "embeddings": tuple(entry for entry in EMBEDDINGS if there.get(entry.symbol, True)) + projection,
        "layer": tuple(layer[symbol] for symbol in order),
        **({"final": _PARTS["final"]} if family.norms_first else {}),
        "pooler": POOLER if sizes.pooler else (),
    }
    return {
        part: tuple(_unbiased(dataclasses.replace(entry, **changed.get(entry.symbol, {})), sizes) for entry in entries)
        for part, entries in parts.items()
    }


def _unbiased(entry: Entry, sizes: Sizes) -> Entry:
    """Return a row whose formula has a bias only if the module has one."""
    part = next((part for part in FAMILIES[sizes.model_type].biases if part in entry.path), None)
    formula = entry.formula.removesuffix(" + b") if part in sizes.unbiased else entry.formula
    return dataclasses.replace(entry, formula=formula)


def head_rows_of(sizes: Sizes) -> tuple[Entry, ...]:
    """Return the rows of the head of a model. In ModernBERT each head begins as the masked-LM head does."""
    if sizes.head is None:
        return ()
    rows = HEADS[sizes.head]
    if FAMILIES[sizes.model_type].norms_first and "transform" not in {entry.symbol for entry in rows}:
        pooled = "first" in weights.HEADS[sizes.head].reads
        transform, shape = _PARTS["predictions"][:3], "(B, E)" if pooled else "(B, S, E)"
        first = f"{sizes.classifier_pooling}(x) @ W.T + b" if pooled else transform[0].formula
        rows = (
            dataclasses.replace(transform[0], formula=first, shape=shape),
            *(dataclasses.replace(entry, shape=shape) for entry in transform[1:]),
            dataclasses.replace(rows[-1], formula="transform @ W.T + b", needs=("transform",)),
        )
    return tuple(_unbiased(entry, sizes) for entry in rows)


@dataclasses.dataclass(frozen=True)
class Spec:
    """One name of one model.

    Parameters
    ----------
    name : str
    layer : int or None        None before and after the layers
    kind : "tokens" (B, S, width), "pairs" (B, A, S, S; width is A) or "pooled" (B, width)
    width : int
    has_heads : bool           head a owns the columns a D to (a + 1) D - 1, or, of pairs, the matrix a
    """

    name: str
    layer: int | None
    kind: Literal["tokens", "pairs", "pooled"]
    width: int
    has_heads: bool

    def shape(self, num_sequences: int, length: int) -> tuple[int, ...]:
        """Return the shape of the padded array."""
        if self.kind == "pairs":
            return num_sequences, self.width, length, length
        return (num_sequences, length, self.width) if self.kind == "tokens" else (num_sequences, self.width)


class Names:
    """The names of one model, in the order of the forward pass.

    Attributes
    ----------
    sizes : Sizes
    look_ups : tuple of str            the names of the arguments of `Ops.embed`, in order
    specs : dict of str to Spec        the names that are computed
    by_module : dict of str to str     a module with weights -> the name of its output
    activated : dict of str to str     a linear map that an activation follows -> the name of the activation's output
    summed : dict of str to str        a linear map to which a residual is added -> the name of the sum, if it has one
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        family, rows = FAMILIES[sizes.model_type], rows_of(sizes)
        first, last = rows["embeddings"], rows.get("final", ()) + rows["pooler"] + head_rows_of(sizes)
        self.look_ups = tuple(entry.path for entry in first if entry.formula.startswith("W["))
        before = first[-1].path
        everything: list[tuple[int | None, Entry]] = [(None, entry) for entry in first]
        everything += [(i, entry) for i in range(sizes.num_hidden_layers) for entry in rows["layer"]]
        everything += [(None, entry) for entry in last]
        whole = sizes.num_layers == sizes.num_hidden_layers
        self.specs: dict[str, Spec] = {}
        self._not_computed: set[str] = set()
        self.by_module: dict[str, str] = {}
        self._aliases: dict[str, tuple[str, bool]] = {}
        for layer, entry in everything:
            name = entry.path.format(i=layer)
            if (layer, entry.symbol) == (0, "normed"):  # x itself
                self._aliases |= dict.fromkeys((name, *(alias.format(i=0) for alias in entry.aliases)), (before, False))
                continue
            if whole or entry in first or (layer is not None and layer < sizes.num_layers):
                self.specs[name] = self._spec(name, layer, entry)
            else:
                self._not_computed.add(name)
            if entry.weights:
                self.by_module[entry.weights.format(i=layer)] = name
            for by_head, aliases in ((False, entry.aliases), (True, entry.by_head)):
                self._aliases |= {alias.format(i=layer): (name, by_head) for alias in aliases}
        self.activated = {
            before.path.format(i=layer): entry.path.format(i=layer)
            for (_, before), (layer, entry) in pairwise(everything)
            if entry.symbol in ("intermediate", "pooler", "transform_act")
        }
        # In ModernBERT no LayerNorm follows the sum of a linear map and a residual.
        self.summed = {
            f"{entry.path.format(i=layer)}{end}": entry.path.format(i=layer)
            for layer, entry in everything
            for symbol, end in (("attention", ".output.dense"), ("output", ".output.dense"))
            if family.norms_first and entry.symbol == symbol
        }
        self._aliases |= {
            family.own_path(module, sizes.head): (name, False)
            for module, name in self.by_module.items()
            if family.own_path(module, sizes.head) != module
        }
        self._add_states(sizes, first[-1].path)

    def __reduce__(self) -> tuple[type[Names], tuple[Sizes]]:
        """Pickle the sizes alone, because all the rest follows from them."""
        return Names, (self.sizes,)

    def _add_states(self, sizes: Sizes, first: str) -> None:
        """Add the names of hidden states that depend on their neighbours."""
        states = [first, *(f"encoder.layer.{i}" for i in range(sizes.num_hidden_layers))]
        norms_first = FAMILIES[sizes.model_type].norms_first
        for i, state in enumerate(states[: sizes.num_hidden_layers]):
            before = (*STATE_BEFORE[:2], "encoder.layer.{i}.attention.LayerNorm.input") if norms_first else STATE_BEFORE
            self._aliases |= {alias.format(i=i): (state, False) for alias in before}
        if norms_first and sizes.num_hidden_layers:
            self._aliases["final_norm.input"] = (states[-1], False)
            states[-1] = "final_norm"
        for i, state in enumerate(states):
            self._aliases[f"hidden_states.{i}"] = (state, False)
        self._aliases |= dict.fromkeys(LAST_STATE, (states[-1], False))
        if sizes.pooler:
            self._aliases["pooler.input"] = (states[-1], False)
        if sizes.head is None:
            return
        outputs = [entry.path for entry in head_rows_of(sizes)]
        read = "pooler" if weights.HEADS[sizes.head].pooled and len(outputs) == 1 else states[-1]
        if not (norms_first and weights.HEADS[sizes.head].pooled):
            self._aliases[f"{outputs[0]}.input"] = (read, False)
        if outputs == ["classifier"]:
            self._aliases["dropout"] = (read, False)
        if "cls.seq_relationship" in outputs:
            self._aliases["cls.seq_relationship.input"] = ("pooler", False)
        if len(outputs) == 1 or sizes.head == "BertForMaskedLM" or norms_first:
            self._aliases["logits"] = (outputs[-1], False)

    def _spec(self, name: str, layer: int | None, entry: Entry) -> Spec:
        letters = entry.shape.strip("()").split(", ")
        sizes = self.sizes
        widths = {"H": sizes.hidden_size, "F": sizes.intermediate_size, "V": sizes.vocab_size, "N": sizes.num_labels}
        widths["E"] = sizes.embedding_size or sizes.hidden_size
        if letters == ["B", "A", "S", "S"]:
            return Spec(name, layer, "pairs", sizes.num_attention_heads, True)
        width = widths[letters[-1]] if letters[-1] in widths else int(letters[-1])
        return Spec(name, layer, "tokens" if len(letters) == 3 else "pooled", width, bool(entry.by_head))

    @classmethod
    @functools.lru_cache(maxsize=16)
    def of(cls, sizes: Sizes) -> Names:
        """Return the names of a model; equal sizes give the same object, because making it takes a millisecond."""
        return cls(sizes)

    def aliases(self, name: str) -> tuple[str, ...]:
        """Return the other spellings of a name."""
        return tuple(alias for alias, (canonical, _) in self._aliases.items() if canonical == name)

    def resolve(self, name: str) -> tuple[str, bool]:
        """Return the table's name for a name or an alias, and whether the alias has the shape (B, S, A, D).

        Raises
        ------
        ValueError
            The model does not have it, or it is not computed; the message lists the nearest names.
        """
        resolved = self.find(name)
        if resolved is not None:
            return resolved
        short = _without_prefix(name)
        raise ValueError(self._complaint(name, short, self._aliases.get(short, (short,))[0] in self._not_computed))

    def find(self, name: str) -> tuple[str, bool] | None:
        """Return what `resolve` returns; None if the model does not compute a value with this name."""
        short = _without_prefix(name)
        canonical, by_head = self._aliases.get(short, (short, False))
        return (canonical, by_head) if canonical in self.specs else None

    @functools.lru_cache(maxsize=1024)  # noqa: B019  # a search takes as long as the forward of a few tokens
    def match(self, pattern: str) -> tuple[str, ...]:
        """Return the table's names for a name, an alias or a pattern, in the order of the forward pass.

        Raises
        ------
        ValueError
            There are none; the message lists the nearest names.
        """
        short = _without_prefix(pattern)
        if not re.search(r"[*?[]", short):
            return (self.resolve(short)[0],)
        regex = _compile(short)
        names = {name for name in (*self.specs, *self._not_computed) if regex.fullmatch(name)}
        # "encoder.layer.3.*" does not mean the input of layer 3, because that is the output of layer 2.
        inputs = short.endswith("input")
        names |= {
            name
            for alias, (name, _) in self._aliases.items()
            if (inputs or not alias.endswith(".input")) and regex.fullmatch(alias)
        }
        computed = tuple(name for name in self.specs if name in names)
        if not computed:
            raise ValueError(self._complaint(pattern, short, bool(names)))
        return computed

    def select(self, record: Record) -> list[str]:
        """Return the names that `record` selects, each once, in the order of the forward pass; () selects none.

        Raises
        ------
        TypeError, ValueError
            It is not a name, a pattern, several of these, or a function; or one of them means no name of this model.
        """
        if callable(record):
            return [name for name in self.specs if record(name)]
        several = isinstance(record, Iterable) and not isinstance(record, str | bytes | dict)
        patterns: list[object] = list(record) if several else [record]
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(
                    f"record={brief(record)}; expected names, patterns ('encoder.layer.3.*') or a function."
                )
        wanted = {name for pattern in patterns for name in self.match(str(pattern))}
        return [name for name in self.specs if name in wanted]

    def symbol(self, layer: int, symbol: str) -> str:
        """Return the name of a symbol in one layer: (3, "probs") gives the name of the probs of layer 3."""
        paths = [entry.path.format(i=layer) for entry in rows_of(self.sizes)["layer"] if entry.symbol == symbol]
        return paths[0] if paths else f"encoder.layer.{layer}.{symbol}"

    def _complaint(self, name: str, short: str, not_computed: bool) -> str:
        quoted = repr(name) if len(name) <= 120 else brief(name)
        if not_computed:
            return f"{quoted} is not computed with num_layers={self.sizes.num_layers}. Give a larger num_layers."
        layer = re.match(r"blocks\.(\d+|\*|\[[^]]+\]|\?)\.", short)  # a number, or the pattern of several
        template = short if layer is None else f"blocks.{{i}}.{short[layer.end() :]}"
        if template in TWO_MEANINGS and layer is not None:
            hooked, bridge = (meaning.format(i=layer[1]) for meaning in TWO_MEANINGS[template])
            return (
                f"{quoted} has two meanings: {hooked} in HookedEncoder of TransformerLens, {bridge} in its "
                "TransformerBridge. Write one of these."
            )
        import difflib  # with its imports, it takes 2 ms of a start

        known = [*self.specs, *self._aliases]
        plain = re.sub(r"\[[^]]*\]|[*?]", "", short)
        nearest = difflib.get_close_matches(plain, known, 5, 0.0)
        layers = counted(self.sizes.num_hidden_layers, "layer")
        pooler = "a pooler" if self.sizes.pooler else "no pooler"
        return (
            f"{quoted} is not the name of a value of this model, which has {layers}, {pooler} and "
            f"{self.sizes.head or 'no head'}. The nearest names are {', '.join(nearest)}."
        )


def _without_prefix(name: str) -> str:
    while name.startswith(_PREFIXES):
        name = name[name.index(".", 2) + 1 :]
    # In ONNX graphs the same prefixes are followed by slashes.
    return re.sub(r"^/(?:bert|model|auto_model|0/auto_model|0/model)(?=/)", "", name)


@functools.lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str]:
    """Turn a pattern into a regular expression; see `Record`."""
    parts = []
    for match in re.finditer(r"\*+|\?|\[[^]]+\]|.", pattern, re.DOTALL):
        text = match[0]
        if text.startswith("*"):
            inside = len(text) == 1 and match.start() > 0 and match.end() < len(pattern)
            parts.append("[^./]*" if inside else ".*")
        elif text == "?":
            parts.append("[^./]")
        elif text.startswith("[") and len(text) > 2 and re.fullmatch(r"\[!?[\w-]+\]", text):
            parts.append(text.replace("!", "^"))
        else:
            parts.append(re.escape(text))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:  # such as [3-0]
        return re.compile(re.escape(pattern))
