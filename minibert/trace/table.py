"""The table of names: for each intermediate value its name, formula, shape and aliases. A test executes it."""

from __future__ import annotations

import dataclasses

__all__ = ["EMBEDDINGS", "HEADS", "LAST_STATE", "LAYER", "POOLER", "STATE_BEFORE", "TABLE", "TWO_MEANINGS", "Entry"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the table. In all texts ``{i}`` is the number of the layer.

    Parameters
    ----------
    path : str       the name
    symbol : str     its name in the formulas of other rows
    formula : str    the value of one sequence, as a Python expression in the symbols of the rows before it
    shape : str      the shape in a trace, in the letters of encoder.py; N is the number of labels
    weights : str    the module of the checkpoint whose W and b the formula uses
    aliases : other names of the same array
    by_head : names of the same array in the shape (B, S, A, D)

    Notes
    -----
    In the formulas, ``x`` is the hidden state that goes into the layer, or after the layers the last one. ``by_head``
    splits H columns into A heads, and ``joined`` undoes that. ``layer_norm`` uses the weight and bias of `weights`.
    """

    path: str
    symbol: str
    formula: str
    shape: str
    weights: str = ""
    aliases: tuple[str, ...] = ()
    by_head: tuple[str, ...] = ()


def _onnx(path: str, *ops: str) -> tuple[str, ...]:
    """Return the names that torch.onnx.export gives to the output of a module: the path, then the last op in it."""
    return tuple(f"/{path}/{op}_output_0" for op in ops)


_NORM_OPS = ("LayerNormalization", "Add_1")  # from opset 17 on, and before
_E, _L, _S = "embeddings", "encoder/layer.{i}", "encoder.layer.{i}.attention.self"

EMBEDDINGS = (
    Entry(
        "embeddings.word_embeddings",
        "words",
        "W[input_ids]",
        "(B, S, H)",
        "embeddings.word_embeddings",
        ("embed.hook_embed", "embed.hook_out", *_onnx(f"{_E}/word_embeddings", "Gather")),
    ),
    Entry(
        "embeddings.token_type_embeddings",
        "types",
        "W[token_type_ids]",
        "(B, S, H)",
        "embeddings.token_type_embeddings",
        ("embed.hook_token_type_embed", "token_type_embed.hook_out", *_onnx(f"{_E}/token_type_embeddings", "Gather")),
    ),
    Entry(
        "embeddings.position_embeddings",
        "positions",
        "W[position_ids]",
        "(B, S, H)",
        "embeddings.position_embeddings",
        ("embed.hook_pos_embed", "hook_pos_embed", "pos_embed.hook_out", *_onnx(f"{_E}/position_embeddings", "Gather")),
    ),
    Entry(
        "embeddings.LayerNorm.input",
        "embeddings_sum",
        "words + types + positions",
        "(B, S, H)",
        aliases=("embed_ln.hook_in", "inp_embd", *_onnx(_E, "Add_1")),
    ),
    Entry(
        "embeddings",
        "embeddings",
        "layer_norm(embeddings_sum)",
        "(B, S, H)",
        "embeddings.LayerNorm",
        (
            *("embeddings.LayerNorm", "embeddings.dropout", "hidden_states.0", "encoder.input"),
            *("hook_full_embed", "embed_ln.hook_out", "inp_norm", *_onnx(f"{_E}/LayerNorm", *_NORM_OPS)),
        ),
    ),
)

LAYER = (
    *(
        Entry(
            f"{_S}.{part}",
            part,
            "x @ W.T + b",
            "(B, S, H)",
            f"{_S}.{part}",
            (f"{part[0].upper()}cur-{{i}}", *_onnx(f"{_L}/attention/self/{part}", "Add")),
            (f"blocks.{{i}}.attn.hook_{part[0]}", f"blocks.{{i}}.attn.{part[0]}.hook_out"),
        )
        for part in ("query", "key", "value")
    ),
    Entry(
        f"{_S}.scores",
        "scores",
        "by_head(query) @ transposed(by_head(key)) / sqrt(D)",
        "(B, A, S, S)",
    ),
    Entry(
        f"{_S}.probs",
        "probs",
        "softmax(scores)",
        "(B, A, S, S)",
        aliases=("attentions.{i}", "blocks.{i}.attn.hook_pattern", *_onnx(f"{_L}/attention/self", "Softmax")),
    ),
    Entry(
        _S,
        "context",
        "joined(probs @ by_head(value))",
        "(B, S, H)",
        aliases=("encoder.layer.{i}.attention.output.input", "encoder.layer.{i}.attention.output.dense.input"),
        by_head=("blocks.{i}.attn.hook_z", "blocks.{i}.attn.o.hook_in"),
    ),
    Entry(
        "encoder.layer.{i}.attention.output.dense",
        "attention_dense",
        "context @ W.T + b",
        "(B, S, H)",
        "encoder.layer.{i}.attention.output.dense",
        (
            *("encoder.layer.{i}.attention.output.dropout", "blocks.{i}.attn.o.hook_out"),
            *_onnx(f"{_L}/attention/output/dense", "Add"),
        ),
    ),
    Entry(
        "encoder.layer.{i}.attention.output.LayerNorm.input",
        "attention_sum",
        "attention_dense + x",
        "(B, S, H)",
        aliases=("blocks.{i}.ln1.hook_in", *_onnx(f"{_L}/attention/output", "Add")),
    ),
    Entry(
        "encoder.layer.{i}.attention",
        "attention",
        "layer_norm(attention_sum)",
        "(B, S, H)",
        "encoder.layer.{i}.attention.output.LayerNorm",
        (
            *("encoder.layer.{i}.attention.output", "encoder.layer.{i}.attention.output.LayerNorm"),
            *("encoder.layer.{i}.intermediate.input", "encoder.layer.{i}.intermediate.dense.input"),
            *("blocks.{i}.ln1.hook_out", "blocks.{i}.attn.hook_out", "blocks.{i}.mlp.hook_in"),
            *("blocks.{i}.mlp.in.hook_in", "blocks.{i}.hook_mlp_in", "ffn_inp-{i}"),
            *_onnx(f"{_L}/attention/output/LayerNorm", *_NORM_OPS),
        ),
    ),
    Entry(
        "encoder.layer.{i}.intermediate.dense",
        "intermediate_dense",
        "attention @ W.T + b",
        "(B, S, F)",
        "encoder.layer.{i}.intermediate.dense",
        (
            *("encoder.layer.{i}.intermediate.intermediate_act_fn.input", "blocks.{i}.mlp.hook_pre"),
            "blocks.{i}.mlp.in.hook_out",
            *_onnx(f"{_L}/intermediate/dense", "Add"),
        ),
    ),
    Entry(
        "encoder.layer.{i}.intermediate",
        "intermediate",
        "act(intermediate_dense)",
        "(B, S, F)",
        aliases=(
            *("encoder.layer.{i}.intermediate.intermediate_act_fn", "encoder.layer.{i}.output.input"),
            *("encoder.layer.{i}.output.dense.input", "blocks.{i}.mlp.hook_post", "blocks.{i}.mlp.out.hook_in"),
        ),
    ),
    Entry(
        "encoder.layer.{i}.output.dense",
        "output_dense",
        "intermediate @ W.T + b",
        "(B, S, H)",
        "encoder.layer.{i}.output.dense",
        (
            *("encoder.layer.{i}.output.dropout", "blocks.{i}.hook_mlp_out", "ffn_out-{i}"),
            *("blocks.{i}.mlp.hook_out", "blocks.{i}.mlp.out.hook_out"),
            *_onnx(f"{_L}/output/dense", "Add"),
        ),
    ),
    Entry(
        "encoder.layer.{i}.output.LayerNorm.input",
        "output_sum",
        "output_dense + attention",
        "(B, S, H)",
        aliases=("blocks.{i}.ln2.hook_in", *_onnx(f"{_L}/output", "Add")),
    ),
    Entry(
        "encoder.layer.{i}",
        "output",
        "layer_norm(output_sum)",
        "(B, S, H)",
        "encoder.layer.{i}.output.LayerNorm",
        (
            *("encoder.layer.{i}.output", "encoder.layer.{i}.output.LayerNorm"),
            *("blocks.{i}.hook_normalized_resid_post", "blocks.{i}.ln2.hook_out", "blocks.{i}.hook_out"),
            *_onnx(f"{_L}/output/LayerNorm", *_NORM_OPS),
        ),
    ),
)

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

POOLER = (
    Entry(
        "pooler.dense",
        "pooler_dense",
        "x[0] @ W.T + b",
        "(B, H)",
        "pooler.dense",
        ("pooler.activation.input", "pooler.dense.hook_out", *_onnx("pooler/dense", "Gemm")),
    ),
    Entry(
        "pooler",
        "pooler",
        "tanh(pooler_dense)",
        "(B, H)",
        aliases=(
            *("pooler.activation", "pooler_output", "pooler.hook_pooler_out"),
            *_onnx("pooler/activation", "Tanh"),
        ),
    ),
)

_T = "cls.predictions.transform"
_PREDICTIONS = (
    Entry(
        f"{_T}.dense", "transform_dense", "x @ W.T + b", "(B, S, H)", f"{_T}.dense", (f"{_T}.transform_act_fn.input",)
    ),
    Entry(
        f"{_T}.transform_act_fn",
        "transform_act",
        "act(transform_dense)",
        "(B, S, H)",
        aliases=(f"{_T}.LayerNorm.input",),
    ),
    Entry(
        _T,
        "transform",
        "layer_norm(transform_act)",
        "(B, S, H)",
        f"{_T}.LayerNorm",
        (f"{_T}.LayerNorm", "cls.predictions.decoder.input"),
    ),
    Entry(
        "cls.predictions.decoder",
        "predictions",
        "transform @ W.T + b",
        "(B, S, V)",
        "cls.predictions.decoder",
        ("cls.predictions", "prediction_logits"),
    ),
)


def _map(path: str, input_: str, shape: str, *aliases: str) -> Entry:
    return Entry(path, "logits", f"{input_} @ W.T + b", shape, path, aliases)


_NEXT_SENTENCE = _map("cls.seq_relationship", "pooler", "(B, 2)", "seq_relationship_logits")
HEADS = {
    "BertForPreTraining": (*_PREDICTIONS, _NEXT_SENTENCE),
    "BertForMaskedLM": _PREDICTIONS,
    "BertForNextSentencePrediction": (_NEXT_SENTENCE,),
    "BertForQuestionAnswering": (_map("qa_outputs", "x", "(B, S, 2)"),),
    "BertForSequenceClassification": (_map("classifier", "pooler", "(B, N)", "logits"),),
    "BertForTokenClassification": (_map("classifier", "x", "(B, S, N)", "logits"),),
    "BertForMultipleChoice": (_map("classifier", "pooler", "(B, 1)"),),
}

TABLE = {"embeddings": EMBEDDINGS, "layer": LAYER, "pooler": POOLER, **HEADS}
"""The whole table, in the order of the forward pass: the embeddings, one layer, the pooler, each head."""
