"""The table of all intermediate values: the name, the formula and the shape of each. A test executes them.

A name is the path of a module of transformers, and means the output of this module; ``.input`` means its input. Some
values have no module there and get names of their own: ``.scores`` and ``.probs`` of each ``attention.self``, and the
rotated queries and keys. All families have BERT's names; those of their own modules are aliases.

Aliases are other spellings of the same value. Tests compare those of TransformerLens and ONNX with the values there.
Four names of TransformerLens have two meanings: ``blocks.0.hook_resid_post`` is a hidden state in TransformerBridge,
and the sum before the last LayerNorm in HookedEncoder. They are refused, with both meanings.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from minibert.bert import weights
from minibert.bert.config import BertConfig
from minibert.bert.families import FAMILIES, Family


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


# --- the rows of one model --------------------------------------------------------------------------------------------


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
    summed = tuple(symbol for symbol, is_there in there.items() if is_there)
    changed: dict[str, dict[str, Any]] = {
        "pooler": {"formula": f"{family.activation(sizes.head, 'tanh')}(pooler_dense)"},
        "embeddings_sum": {"formula": " + ".join(summed), "needs": summed},
    }
    projection = PROJECTION if sizes.embedding_size not in (None, sizes.hidden_size) else ()
    parts = {
        "embeddings": tuple(entry for entry in EMBEDDINGS if there.get(entry.symbol, True)) + projection,
        "layer": _layer_of(family),
        **({"final": _PARTS["final"]} if family.norms_first else {}),
        "pooler": POOLER if sizes.pooler else (),
    }
    return {
        part: tuple(_unbiased(dataclasses.replace(entry, **changed.get(entry.symbol, {})), sizes) for entry in entries)
        for part, entries in parts.items()
    }


def _layer_of(family: Family) -> tuple[Entry, ...]:
    """Return the rows of a layer: BERT's, with the rows of the family's own modules in their places."""
    rows = {entry.symbol: entry for entry in LAYER}
    order, scores = list(rows), rows["scores"].formula
    changed: dict[str, dict[str, Any]] = {}
    if family.has_relative_bias:
        changed["scores"] = {"formula": f"{scores} + bias"}
    if family.theta:
        rows |= {entry.symbol: entry for entry in _PARTS["rotation"]}
        order[3:3] = ["rotated_query", "rotated_key"]
        scores = scores.replace("(query)", "(rotated_query)").replace("(key)", "(rotated_key)")
        scores += " + window" * family.norms_first
        changed["scores"] = {"formula": scores, "needs": ("rotated_query", "rotated_key")}
    if family.is_gated:
        rows |= {entry.symbol: entry for entry in _PARTS["gate"]}
        order[order.index("intermediate_dense") : order.index("intermediate")] = ["gate", "up"]
        changed["intermediate"] = {"formula": "act(gate) * up", "needs": ("gate", "up")}
    if family.norms_first:
        rows |= {entry.symbol: entry for entry in _PARTS["norms first"]}
        order = ["normed", *order[: order.index("attention_sum")], "attention", "attention_normed"]
        order += ["gate", "up", "intermediate", "output_dense", "output"]
        changed |= {symbol: {"formula": "normed @ W.T + b", "needs": ("normed",)} for symbol in order[1:4]}
        of_gate = {"formula": "attention_normed @ W.T + b", "needs": ("attention_normed",)}
        changed |= {"gate": of_gate, "up": of_gate}
    return tuple(dataclasses.replace(rows[symbol], **changed.get(symbol, {})) for symbol in order)


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
        pooled = "first" in weights.HEADS[sizes.head].result_kinds
        transform, shape = _PARTS["predictions"][:3], "(B, E)" if pooled else "(B, S, E)"
        first = f"{sizes.classifier_pooling}(x) @ W.T + b" if pooled else transform[0].formula
        rows = (
            dataclasses.replace(transform[0], formula=first, shape=shape),
            *(dataclasses.replace(entry, shape=shape) for entry in transform[1:]),
            dataclasses.replace(rows[-1], formula="transform @ W.T + b", needs=("transform",)),
        )
    return tuple(_unbiased(entry, sizes) for entry in rows)
