"""The families with the forward of BERT, and a table of positions: BERT and the models of 2019 and 2020."""

from __future__ import annotations

import dataclasses

from minibert.bert.families.family import CLASSIFIER, LAYER, LM_HEAD, Family, language_model

ROBERTA = Family(
    "roberta",
    "Roberta",
    "roberta",
    heads={"ForMaskedLM": LM_HEAD, "ForSequenceClassification": CLASSIFIER},
    activations={"ForMaskedLM": "gelu"},
    defaults={"vocab_size": 50265, "pad_token_id": 1},
    inputs={"ForMultipleChoice": "input_ids token_type_ids attention_mask"},
    counts_tokens=True,
)
_DATA2VEC = dataclasses.replace(
    ROBERTA,
    model_type="data2vec-text",
    class_name="Data2VecText",
    field="data2vec_text",
    defaults={"pad_token_id": 1},
)
_DISTILBERT = Family(
    "distilbert",
    "DistilBert",
    "distilbert",
    modules={
        f"{LAYER}.{bert}": f"transformer.layer.{{i}}.{own}"
        for bert, own in (
            ("attention.self.query", "attention.q_lin"),
            ("attention.self.key", "attention.k_lin"),
            ("attention.self.value", "attention.v_lin"),
            ("attention.output.dense", "attention.out_lin"),
            ("attention.output.LayerNorm", "sa_layer_norm"),
            ("intermediate.dense", "ffn.lin1"),
            ("output.dense", "ffn.lin2"),
            ("output.LayerNorm", "output_layer_norm"),
        )
    },
    heads={
        "ForMaskedLM": language_model("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector"),
        "ForSequenceClassification": {"pooler.dense": "pre_classifier"},
        "ForMultipleChoice": {"pooler.dense": "pre_classifier"},
    },
    activations={"ForSequenceClassification": "relu", "ForMultipleChoice": "relu"},
    fields={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
    defaults={"num_hidden_layers": 6, "type_vocab_size": 1},
    ignored=("layer_norm_eps", "type_vocab_size", "intermediate_size", "hidden_act"),
    inputs={"": "input_ids attention_mask inputs_embeds"},
    has_token_types=False,
)
_MPNET = Family(
    "mpnet",
    "MPNet",
    "mpnet",
    modules={
        f"{LAYER}.attention.self.query": f"{LAYER}.attention.attn.q",
        f"{LAYER}.attention.self.key": f"{LAYER}.attention.attn.k",
        f"{LAYER}.attention.self.value": f"{LAYER}.attention.attn.v",
        f"{LAYER}.attention.output.dense": f"{LAYER}.attention.attn.o",
        f"{LAYER}.attention.output.LayerNorm": f"{LAYER}.attention.LayerNorm",
    },
    heads={"ForMaskedLM": LM_HEAD, "ForSequenceClassification": CLASSIFIER},
    activations={"ForMaskedLM": "gelu"},
    defaults={"vocab_size": 30527, "pad_token_id": 1, "type_vocab_size": 1},
    ignored=("type_vocab_size",),
    required={"": {"relative_attention_num_buckets": 32}},
    inputs={"": "input_ids attention_mask position_ids inputs_embeds"},
    counts_tokens=True,
    has_token_types=False,
    has_relative_bias=True,
)
_ELECTRA = Family(
    "electra",
    "Electra",
    "electra",
    heads={
        "ForMaskedLM": language_model(
            "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head", "generator_lm_head"
        ),
        "ForSequenceClassification": CLASSIFIER,
        "ForMultipleChoice": {"pooler.dense": "sequence_summary.summary"},
    },
    activations={"ForMaskedLM": "gelu", "ForSequenceClassification": "gelu", "ForMultipleChoice": "gelu"},
    defaults={"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    required={"ForMultipleChoice": {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}},
    has_embedding_size=True,
)
_ALBERT_LAYER = "encoder.albert_layer_groups.{i}.albert_layers.0"
_ALBERT_PREDICTIONS = language_model("predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions")
_ALBERT = Family(
    "albert",
    "Albert",
    "albert",
    modules={
        "embeddings_project": "encoder.embedding_hidden_mapping_in",
        "pooler.dense": "pooler",
        f"{LAYER}.attention.self.query": f"{_ALBERT_LAYER}.attention.query",
        f"{LAYER}.attention.self.key": f"{_ALBERT_LAYER}.attention.key",
        f"{LAYER}.attention.self.value": f"{_ALBERT_LAYER}.attention.value",
        f"{LAYER}.attention.output.dense": f"{_ALBERT_LAYER}.attention.dense",
        f"{LAYER}.attention.output.LayerNorm": f"{_ALBERT_LAYER}.attention.LayerNorm",
        f"{LAYER}.intermediate.dense": f"{_ALBERT_LAYER}.ffn",
        f"{LAYER}.output.dense": f"{_ALBERT_LAYER}.ffn_output",
        f"{LAYER}.output.LayerNorm": f"{_ALBERT_LAYER}.full_layer_layer_norm",
    },
    heads={
        "ForMaskedLM": _ALBERT_PREDICTIONS,
        "ForPreTraining": {**_ALBERT_PREDICTIONS, "cls.seq_relationship": "sop_classifier.classifier"},
    },
    defaults={
        **{"vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096, "num_attention_heads": 64},
        **{"intermediate_size": 16384, "hidden_act": "gelu_new", "num_hidden_groups": 1},
    },
    required={"": {"inner_group_num": 1}},
    has_embedding_size=True,
    always_projects=True,
    shared_layers="albert_layer_groups",
)
_ERNIE = Family(
    "ernie",
    "Ernie",
    "ernie",
    defaults={"use_task_id": False, "task_type_vocab_size": 3},
    inputs={"": "input_ids attention_mask token_type_ids"},
)

FAMILIES = (
    Family("bert", "Bert", "bert"),
    ROBERTA,
    dataclasses.replace(ROBERTA, model_type="xlm-roberta", class_name="XLMRoberta", defaults={"pad_token_id": 1}),
    dataclasses.replace(ROBERTA, model_type="camembert", class_name="Camembert", defaults={"pad_token_id": 1}),
    *(_DATA2VEC, _ERNIE, _DISTILBERT, _MPNET, _ELECTRA, _ALBERT),
)
