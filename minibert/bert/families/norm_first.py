"""The families whose norms come first; their forward is in norm_first.py."""

from __future__ import annotations

import dataclasses

from minibert.bert.families.bert_like import ROBERTA
from minibert.bert.families.family import CLASSIFIER, LAYER, LM_HEAD, Family, language_model
from minibert.bert.families.rotary import ROTARY

_CLASSIFIERS = {"cls.predictions.transform.dense": "head.dense", "cls.predictions.transform.LayerNorm": "head.norm"}
_MODERN = Family(
    "modernbert",
    "ModernBert",
    "model",
    modules={
        "embeddings.word_embeddings": "embeddings.tok_embeddings",
        "embeddings.LayerNorm": "embeddings.norm",
        **{
            f"{LAYER}.{bert}": f"layers.{{i}}.{own}"
            for bert, own in (
                ("attention.LayerNorm", "attn_norm"),
                ("attention.self.query", "attn.Wqkv.query"),
                ("attention.self.key", "attn.Wqkv.key"),
                ("attention.self.value", "attn.Wqkv.value"),
                ("attention.output.dense", "attn.Wo"),
                ("intermediate.LayerNorm", "mlp_norm"),
                ("intermediate.gate", "mlp.Wi.gate"),
                ("intermediate.up", "mlp.Wi.up"),
                ("output.dense", "mlp.Wo"),
            )
        },
    },
    heads={
        "ForMaskedLM": language_model("head.dense", "head.norm", "decoder", "decoder"),
        **dict.fromkeys(("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice"), _CLASSIFIERS),
        "ForQuestionAnswering": {**_CLASSIFIERS, "qa_outputs": "classifier"},
    },
    stacked={
        "attn.Wqkv": ("attn.Wqkv.query", "attn.Wqkv.key", "attn.Wqkv.value"),
        "mlp.Wi": ("mlp.Wi.gate", "mlp.Wi.up"),
    },
    biases={
        **{"LayerNorm": "norm_bias", "final_norm": "norm_bias", "attention.": "attention_bias"},
        **{"transform.dense": "classifier_bias", "decoder": "decoder_bias"},
        **{"intermediate.": "mlp_bias", "output.dense": "mlp_bias"},
    },
    fields={"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"},
    defaults={
        **{"vocab_size": 50368, "num_hidden_layers": 22, "intermediate_size": 1152, "max_position_embeddings": 8192},
        **{"layer_norm_eps": 1e-5, "pad_token_id": 50283, "type_vocab_size": 1, "rope_parameters": None},
        **{"layer_types": None, "local_attention": 128, "classifier_pooling": "cls", "classifier_activation": "gelu"},
        **{"norm_bias": False, "attention_bias": False, "mlp_bias": False, "classifier_bias": False},
        "decoder_bias": True,
    },
    ignored=("type_vocab_size", "hidden_act", "layer_norm_eps"),
    required={"": {"tie_last_hidden_states": True}},
    inputs={"": "input_ids attention_mask position_ids inputs_embeds"},
    theta={"full_attention": 160_000.0, "sliding_attention": 10_000.0},
    has_token_types=False,
    is_gated=True,
    forward="norm_first",
    heads_begin_with_transform=True,
    has_pooler=False,
)
_ESM = Family(
    "esm",
    "Esm",
    "esm",
    modules={
        f"{LAYER}.intermediate.LayerNorm": f"{LAYER}.LayerNorm",
        "final_norm": "encoder.emb_layer_norm_after",
    },
    heads={"ForMaskedLM": LM_HEAD, "ForSequenceClassification": CLASSIFIER},
    activations={"ForMaskedLM": "gelu"},
    old_modules=((r"\bencoder\.layer\.(0|\*)\.attention\.self\.rotary_embeddings\b", "rotary_embeddings"),),
    defaults={
        **{"vocab_size": 33, "max_position_embeddings": 1026, "type_vocab_size": 1, "pad_token_id": None},
        **{"rope_parameters": None, "token_dropout": False, "mask_token_id": None},
    },
    ignored=("type_vocab_size", "hidden_act", "rope_parameters"),
    required={"": {"position_embedding_type": "rotary", "emb_layer_norm_before": False, "is_folding_model": False}},
    inputs={"": "input_ids attention_mask position_ids inputs_embeds"},
    theta={"full_attention": 10_000.0},
    has_token_types=False,
    has_embeddings_norm=False,
    stores_frequencies=True,
    forward="norm_first",
)
_EUROBERT = dataclasses.replace(
    ROTARY,
    model_type="eurobert",
    class_name="EuroBert",
    field="model",
    modules={
        **{bert: own for bert, own in ROTARY.modules.items() if not bert.endswith("LayerNorm")},
        **{"embeddings.word_embeddings": "embed_tokens", "final_norm": "norm"},
        f"{LAYER}.attention.LayerNorm": "layers.{i}.input_layernorm",
        f"{LAYER}.intermediate.LayerNorm": "layers.{i}.post_attention_layernorm",
    },
    heads={
        "ForMaskedLM": {"cls.predictions.decoder": "lm_head", "cls.predictions": "lm_head"},
        "ForSequenceClassification": {"pooler.dense": "dense"},
    },
    activations={"ForSequenceClassification": "gelu"},
    biases={
        **{"LayerNorm": None, "final_norm": None, "attention.": "attention_bias"},
        **{"intermediate.": "mlp_bias", "output.dense": "mlp_bias", "decoder": "mlp_bias"},
    },
    fields={"layer_norm_eps": "rms_norm_eps"},
    defaults={
        **{"vocab_size": 128256, "hidden_act": "silu", "max_position_embeddings": 8192, "layer_norm_eps": 1e-5},
        **{"pad_token_id": 128001, "type_vocab_size": 1, "tie_word_embeddings": False, "rope_parameters": None},
        "mask_token_id": 128002,
        **{"num_key_value_heads": None, "classifier_pooling": "late", "attention_bias": False, "mlp_bias": False},
    },
    ignored=("type_vocab_size", "layer_norm_eps"),
    required={"ForSequenceClassification": {"clf_pooling": "late"}},  # of EuroBERT's own code, which had these heads
    inputs={"": "input_ids attention_mask position_ids inputs_embeds"},
    theta={"full_attention": 10_000.0},
    has_token_types=False,
    has_embeddings_norm=False,
    has_rms_norm=True,
    transform=(),
    forward="norm_first",
)
_ULTRABERT = dataclasses.replace(
    _EUROBERT,
    model_type="ultrabert",
    class_name="Ultrabert",
    heads={
        "ForMaskedLM": {
            "cls.predictions.transform.inner.dense": "head.linear1",
            "cls.predictions.transform.dense": "head.linear2",
            **{"cls.predictions.decoder": "head.decoder", "cls.predictions": "head.decoder"},
        },
    },
    activations={"ForMaskedLM": "gelu_tanh"},
    old_modules=((r"^ultrabert\.", "model."), (r"^cls\.", "head.decoder.")),
    biases={**_EUROBERT.biases, "transform.": None, "decoder": None},
    fields={"layer_norm_eps": "rms_norm_eps", "local_attention": "sliding_window"},
    defaults={
        **{"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32},
        **{"intermediate_size": 11008, "hidden_act": "silu", "max_position_embeddings": 32768, "layer_norm_eps": 1e-6},
        **{"pad_token_id": 0, "type_vocab_size": 1, "tie_word_embeddings": False, "rope_parameters": None},
        **{"num_key_value_heads": None, "classifier_pooling": "cls", "attention_bias": False, "mlp_bias": False},
        **{"layer_types": None, "local_attention": 128, "prediction_head_size": 768},
    },
    ignored=("type_vocab_size", "layer_norm_eps", "local_attention"),
    required={"": {"rope_scaling": None}},
    theta={"full_attention": 2_560_000.0, "sliding_attention": 10_000.0},
    full_layer=2,
    transform=("inner", "dense"),
    has_pooler=False,
)
_MEGATRON = Family(
    "megatron-bert",
    "MegatronBert",
    "bert",
    modules={
        f"{LAYER}.attention.LayerNorm": f"{LAYER}.attention.ln",
        f"{LAYER}.intermediate.LayerNorm": f"{LAYER}.ln",
        "final_norm": "encoder.ln",
    },
    defaults={
        **{"vocab_size": 29056, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
        "intermediate_size": 4096,
    },
    has_embeddings_norm=False,
    forward="norm_first",
)
_XLM_ROBERTA_XL = dataclasses.replace(
    ROBERTA,
    model_type="xlm-roberta-xl",
    class_name="XLMRobertaXL",
    modules={
        f"{LAYER}.attention.LayerNorm": f"{LAYER}.attention.self_attn_layer_norm",
        f"{LAYER}.intermediate.LayerNorm": f"{LAYER}.LayerNorm",
        "final_norm": "encoder.LayerNorm",
    },
    defaults={
        **{"vocab_size": 250880, "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32},
        **{"intermediate_size": 10240, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1},
        "layer_norm_eps": 1e-5,
    },
    has_embeddings_norm=False,
    forward="norm_first",
)

FAMILIES = (_MODERN, _EUROBERT, _ULTRABERT, _ESM, _MEGATRON, _XLM_ROBERTA_XL)
