"""The symbols and the other names of all values; layout.py says which ones a model has, and their formulas.

A name is the path of a module of transformers, and means the output of this module; ``.input`` means its input. Some
values have no module there and get names of their own: ``.scores`` and ``.probs`` of each ``attention.self``, and the
rotated queries and keys. All families have BERT's names; those of their own modules are aliases.

Aliases are other spellings of the same value. Tests compare those of TransformerLens and ONNX with the values there.
Four names of TransformerLens have two meanings: ``blocks.0.hook_resid_post`` is a hidden state in TransformerBridge,
and the sum before the last LayerNorm in HookedEncoder. They are refused, with both meanings.
"""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """What people call a value: its symbol in formulas, other names, and names in the shape (B, S, A, D)."""

    symbol: str
    aliases: tuple[str, ...] = ()
    by_head: tuple[str, ...] = ()


# A row has the name and the symbol; its aliases follow. Where a name is that of a LayerNorm in BERT and of a sum in
# ModernBERT, the sum has a row of its own. Names with a slash are those that torch.onnx.export gives: the path, then
# the last op in it.
_TABLE = """
embeddings.word_embeddings = words
  embed.hook_embed  embed.hook_out  /embeddings/word_embeddings/Gather_output_0
embeddings.token_type_embeddings = types
  embed.hook_token_type_embed  token_type_embed.hook_out  /embeddings/token_type_embeddings/Gather_output_0
embeddings.position_embeddings = positions
  embed.hook_pos_embed  hook_pos_embed  pos_embed.hook_out  /embeddings/position_embeddings/Gather_output_0
embeddings.LayerNorm.input = embeddings_sum
  embed_ln.hook_in  inp_embd  /embeddings/Add_1_output_0
embeddings = embeddings
  embeddings.LayerNorm  embeddings.dropout  hidden_states.0  encoder.input  hook_full_embed  embed_ln.hook_out
  inp_norm  /embeddings/LayerNorm/LayerNormalization_output_0  /embeddings/LayerNorm/Add_1_output_0
embeddings (sum) = embeddings
  embeddings.dropout  hidden_states.0  encoder.input  hook_full_embed
embeddings_project = projected
  hidden_states.0  encoder.input
encoder.layer.{i}.attention.self.query = query
  Qcur-{i}  /encoder/layer.{i}/attention/self/query/Add_output_0
  by head: blocks.{i}.attn.hook_q  blocks.{i}.attn.q.hook_out
encoder.layer.{i}.attention.self.key = key
  Kcur-{i}  /encoder/layer.{i}/attention/self/key/Add_output_0
  by head: blocks.{i}.attn.hook_k  blocks.{i}.attn.k.hook_out
encoder.layer.{i}.attention.self.value = value
  Vcur-{i}  /encoder/layer.{i}/attention/self/value/Add_output_0
  by head: blocks.{i}.attn.hook_v  blocks.{i}.attn.v.hook_out
encoder.layer.{i}.attention.self.scores = scores
encoder.layer.{i}.attention.self.probs = probs
  attentions.{i}  blocks.{i}.attn.hook_pattern  /encoder/layer.{i}/attention/self/Softmax_output_0
encoder.layer.{i}.attention.self = context
  encoder.layer.{i}.attention.output.input  encoder.layer.{i}.attention.output.dense.input
  by head: blocks.{i}.attn.hook_z  blocks.{i}.attn.o.hook_in
encoder.layer.{i}.attention.output.dense = attention_dense
  encoder.layer.{i}.attention.output.dropout  blocks.{i}.attn.o.hook_out
  /encoder/layer.{i}/attention/output/dense/Add_output_0
encoder.layer.{i}.attention.output.LayerNorm.input = attention_sum
  blocks.{i}.ln1.hook_in  /encoder/layer.{i}/attention/output/Add_output_0
encoder.layer.{i}.attention = attention
  encoder.layer.{i}.attention.output  encoder.layer.{i}.attention.output.LayerNorm
  encoder.layer.{i}.intermediate.input  encoder.layer.{i}.intermediate.dense.input  blocks.{i}.ln1.hook_out
  blocks.{i}.attn.hook_out  blocks.{i}.mlp.hook_in  blocks.{i}.mlp.in.hook_in  blocks.{i}.hook_mlp_in
  ffn_inp-{i}  /encoder/layer.{i}/attention/output/LayerNorm/LayerNormalization_output_0
  /encoder/layer.{i}/attention/output/LayerNorm/Add_1_output_0
encoder.layer.{i}.intermediate.dense = intermediate_dense
  encoder.layer.{i}.intermediate.intermediate_act_fn.input  blocks.{i}.mlp.hook_pre
  blocks.{i}.mlp.in.hook_out  /encoder/layer.{i}/intermediate/dense/Add_output_0
encoder.layer.{i}.intermediate = intermediate
  encoder.layer.{i}.intermediate.intermediate_act_fn  encoder.layer.{i}.output.input
  encoder.layer.{i}.output.dense.input  blocks.{i}.mlp.hook_post  blocks.{i}.mlp.out.hook_in
encoder.layer.{i}.output.dense = output_dense
  encoder.layer.{i}.output.dropout  blocks.{i}.hook_mlp_out  ffn_out-{i}  blocks.{i}.mlp.hook_out
  blocks.{i}.mlp.out.hook_out  /encoder/layer.{i}/output/dense/Add_output_0
encoder.layer.{i}.output.LayerNorm.input = output_sum
  blocks.{i}.ln2.hook_in  /encoder/layer.{i}/output/Add_output_0
encoder.layer.{i} = output
  encoder.layer.{i}.output  encoder.layer.{i}.output.LayerNorm  blocks.{i}.hook_normalized_resid_post
  blocks.{i}.ln2.hook_out  blocks.{i}.hook_out
  /encoder/layer.{i}/output/LayerNorm/LayerNormalization_output_0
  /encoder/layer.{i}/output/LayerNorm/Add_1_output_0
encoder.layer.{i}.attention.self.query.rotated = rotated_query
  by head: encoder.layer.{i}.attention.self.query.rotated.heads
encoder.layer.{i}.attention.self.key.rotated = rotated_key
  by head: encoder.layer.{i}.attention.self.key.rotated.heads
encoder.layer.{i}.intermediate.gate = gate
encoder.layer.{i}.intermediate.up = up
encoder.layer.{i}.attention.LayerNorm = normed
  encoder.layer.{i}.attention.self.input
encoder.layer.{i}.attention (sum) = attention
  encoder.layer.{i}.intermediate.LayerNorm.input
encoder.layer.{i}.intermediate.LayerNorm = attention_normed
  encoder.layer.{i}.intermediate.input
encoder.layer.{i} (sum) = output
  encoder.layer.{i}.output
final_norm = final
pooler.dense = pooler_dense
  pooler.activation.input  pooler.dense.hook_out  /pooler/dense/Gemm_output_0
pooler = pooler
  pooler.activation  pooler_output  pooler.hook_pooler_out  /pooler/activation/Tanh_output_0
cls.predictions.transform.inner.dense = inner_dense
cls.predictions.transform.inner = inner
  cls.predictions.transform.dense.input
cls.predictions.transform.dense = transform_dense
  cls.predictions.transform.transform_act_fn.input
cls.predictions.transform.transform_act_fn = transform_act
  cls.predictions.transform.LayerNorm.input
cls.predictions.transform = transform
  cls.predictions.transform.LayerNorm  cls.predictions.decoder.input
cls.predictions.decoder = predictions
  cls.predictions  prediction_logits
cls.seq_relationship = logits
  seq_relationship_logits
qa_outputs = logits
classifier = logits
  logits
"""


def _read(table: str) -> dict[str, Words]:
    """Return the rows of the table by their names."""
    rows: dict[str, Words] = {}
    for line in table.strip().split("\n"):
        if " = " in line:
            name, symbol = line.split(" = ")
            rows[name] = Words(symbol)
        elif line.startswith("  by head: "):
            rows[name] = rows[name]._replace(by_head=tuple(line.removeprefix("  by head: ").split()))
        else:
            rows[name] = rows[name]._replace(aliases=(*rows[name].aliases, *line.split()))
    return rows


_ROWS = _read(_TABLE)


def words_of(name: str, kind: str) -> Words:
    """Return the words for a value of a kind of `Entry`. Without a row, its symbol is the end of its name."""
    return _ROWS.get(f"{name} ({kind})") or _ROWS.get(name) or Words(name.rpartition(".")[2])


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
