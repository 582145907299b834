"""The families with the forward of BERT and rotary positions: those of 2024."""

from __future__ import annotations

import dataclasses

from minibert.bert.families.family import CLASSIFIER, LAYER, LM_HEAD, Family, language_model

# What nomic_bert, gte and jina_embeddings_v3 have in common.
ROTARY = Family(
    "",
    "",
    "",
    modules={
        f"{LAYER}.{bert}": f"layers.{{i}}.{own}"
        for bert, own in (
            ("attention.self.query", "self_attn.q_proj"),
            ("attention.self.key", "self_attn.k_proj"),
            ("attention.self.value", "self_attn.v_proj"),
            ("attention.output.dense", "self_attn.o_proj"),
            ("attention.output.LayerNorm", "post_attention_layernorm"),
            ("intermediate.gate", "mlp.gate_proj"),
            ("intermediate.up", "mlp.up_proj"),
            ("output.dense", "mlp.down_proj"),
            ("output.LayerNorm", "post_mlp_layernorm"),
        )
    },
    theta={"full_attention": 160_000.0},
    is_gated=True,
)
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_NOMIC = dataclasses.replace(
    ROTARY,
    model_type="nomic_bert",
    class_name="NomicBert",
    field="nomic_bert",
    heads={"ForMaskedLM": {"cls.predictions.transform.LayerNorm": "cls.predictions.transform.layer_norm"}},
    old_modules=(
        *((r"^bert\.", "nomic_bert."), (r"\bencoder\.layers\b", "layers"), (r"\bemb_ln\b", "embeddings.LayerNorm")),
        *((r"\battn\.out_proj\b", "self_attn.o_proj"), (r"\bfc11\b", "up_proj"), (r"\bfc12\b", "gate_proj")),
        *((r"\bmlp\.fc2\b", "mlp.down_proj"), (r"\bnorm1\b", "post_attention_layernorm")),
        (r"\bnorm2\b", "post_mlp_layernorm"),
    ),
    stacked={"attn.Wqkv": _QKV},
    biases={"self.": None, "output.dense": None, "intermediate.": None},
    old_fields={
        **{"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"},
        **{"n_inner": "intermediate_size", "n_positions": "max_position_embeddings"},
        **{"layer_norm_epsilon": "layer_norm_eps", "activation_function": "hidden_act"},
    },
    defaults={"vocab_size": 30528, "hidden_act": "silu", "max_position_embeddings": 2048, "rope_parameters": None},
    theta={"full_attention": 1000.0},
    required={
        "": {
            **{"rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None},
            **{"prenorm": False, "parallel_block": False, "use_rms_norm": False, "causal": False},
            **{"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "moe_every_n_layers": 0},
        }
    },
)
_GTE = dataclasses.replace(
    ROTARY,
    model_type="gte",
    class_name="Gte",
    field="gte",
    heads={"ForMaskedLM": language_model("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.decoder")},
    activations={"ForMaskedLM": "gelu"},
    old_modules=(
        *((r"^new\.", "gte."), (r"\bencoder\.layer\b", "layers"), (r"\battention\.o_proj\b", "self_attn.o_proj")),
        *((r"\battn_ln\b", "post_attention_layernorm"), (r"\bmlp_ln\b", "post_mlp_layernorm")),
        (r"\blm_head\.norm\b", "lm_head.layer_norm"),
    ),
    stacked={"attention.qkv_proj": _QKV, "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj")},
    biases={"intermediate.": None},
    defaults={"vocab_size": 250048, "max_position_embeddings": 8192, "type_vocab_size": 1, "pad_token_id": 1}
    | {"rope_parameters": None},
    required={"": {"logn_attention_scale": False, "layer_norm_type": "layer_norm"}},
)
_JINA = dataclasses.replace(
    ROTARY,
    model_type="jina_embeddings_v3",
    class_name="JinaEmbeddingsV3",
    field="roberta",
    modules={
        **{bert: own for bert, own in ROTARY.modules.items() if ".mlp." not in own},
        **{f"{LAYER}.intermediate.dense": "layers.{i}.mlp.fc1", f"{LAYER}.output.dense": "layers.{i}.mlp.fc2"},
    },
    heads={"ForMaskedLM": LM_HEAD, "ForSequenceClassification": CLASSIFIER},
    activations={"ForMaskedLM": "gelu"},
    old_modules=(
        *((r"\bencoder\.layers\b", "layers"), (r"\bemb_ln\b", "embeddings.LayerNorm")),
        *((r"\bmixer\.out_proj\b", "self_attn.o_proj"), (r"\bnorm1\b", "post_attention_layernorm")),
        (r"\bnorm2\b", "post_mlp_layernorm"),
    ),
    stacked={"mixer.Wqkv": _QKV},
    defaults={
        **{"vocab_size": 250002, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
        **{"intermediate_size": 4096, "max_position_embeddings": 8194, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        **{"pad_token_id": 1, "rope_parameters": None},
    },
    theta={"full_attention": 20_000.0},
    is_gated=False,
)

FAMILIES = (_NOMIC, _GTE, _JINA)
