"""BERT and the models after it: what differs from BERT in their forward, checkpoints, ids and heads.

==================  =============================================================================================
bert                Devlin et al. 2018 (arXiv 1810.04805)
roberta             Liu et al. 2019 (arXiv 1907.11692); xlm-roberta and camembert are the same model, other texts
distilbert          Sanh et al. 2019 (arXiv 1910.01108): half of the layers, without token types
mpnet               Song et al. 2020 (arXiv 2004.09297): a bias of the scores for each distance, no token types
electra             Clark et al. 2020 (arXiv 2003.10555): embeddings of another width, then a map to H features
nomic_bert          Nussbaum et al. 2024 (arXiv 2402.01613): rotary positions, gated feed-forward
gte                 Zhang et al. 2024 (arXiv 2407.19669): the same; "new" in older files
jina_embeddings_v3  Sturua et al. 2024 (arXiv 2409.10173): XLM-RoBERTa with rotary positions
albert              Lan et al. 2019 (arXiv 1909.11942): ELECTRA's embeddings, and layers that share their weights
data2vec-text       Baevski et al. 2022 (arXiv 2202.03555): RoBERTa, trained in another way
ernie               Sun et al. 2019 (arXiv 1907.12412): BERT, with a vector of the task in the embeddings
modernbert          Warner et al. 2024 (arXiv 2412.13663): rotary, gated, windows; its forward is in modernbert.py
megatron-bert       Shoeybi et al. 2019 (arXiv 1909.08053): BERT, norm first
xlm-roberta-xl      Goyal et al. 2021 (arXiv 2105.00572): XLM-RoBERTa, norm first
esm                 Lin et al. 2023 (doi 10.1126/science.ade2574), ESM-2: proteins; ModernBERT's forward, without a gate
eurobert            Boizard et al. 2025 (arXiv 2503.05500): ModernBERT's forward, RMSNorm, heads that share their keys
==================  =============================================================================================

Everywhere else a module has the path that it has in BERT, whatever its family calls it: a checkpoint is renamed while
it is read, and named back when it is saved. A head that reads [CLS] is BERT's, too: a dense map with an activation,
which is the pooler or takes its place, then the classifier.

Source: the files modeling_*.py of https://github.com/huggingface/transformers/tree/v5.24.0/src/transformers/models,
and its conversion_mapping.py for the names in older files.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
"""The inputs of a model, in the order of its arguments in BERT."""


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """What differs from BERT.

    Parameters
    ----------
    model_type : str
        As config.json names the family.
    class_name : str
        The first part of the names of its classes: "Roberta" of RobertaModel.
    field : str
        The module of a model with a head that is the model without the head: "roberta" of roberta.encoder.
    modules : mapping
        Path of a module of BERT -> its path in this family; ``{i}`` is the number of the layer.
    heads : mapping
        The part of the class's name behind `class_name` -> the same for the modules of this head.
    activations : mapping
        The same part -> the activation of the head's dense map. Heads that are not listed use tanh; a masked-LM head
        uses `hidden_act`.
    old_modules : pairs
        What the paths of older files have -> what `modules` have instead; regular expressions, applied one by one.
    stacked : mapping
        The last part of the path of a stacked linear map -> what its maps have instead, in the order of their rows. If
        these paths begin with the first one, the maps are saved stacked.
    biases : mapping
        What the path of a module of BERT has -> the field of the config that says whether it has a bias; None: it has
        none. The first one that fits counts.
    fields : mapping
        A field of `BertConfig` -> the name of this field in config.json.
    old_fields : mapping
        The name of a field in older files -> the field of `BertConfig`.
    defaults : mapping
        Fields of `BertConfig` -> the values that transformers has for them, where they are not those of BERT. Of the
        fields in `EXTRA`, a family has those that it has here.
    theta : mapping
        The types of layers -> the rotary base; {} if the positions are a table.
    ignored : collection of str
        Names of `BertConfig` that transformers does not read from config.json.
    required : mapping
        The part of a class's name, or "" for all classes -> fields of config.json that must have one value.
    inputs : mapping
        The same part -> the inputs that the class takes by position, as far as transformers has them in this order.
    counts_tokens : bool
        The positions begin at the id of padding + 1, and tokens that are padding are not counted.
    has_token_types : bool
        If not, the model has one type, whose embedding is zeros.
    has_relative_bias : bool
        A bias for each head and distance of two tokens is added to the scores of all layers.
    has_embedding_size : bool
        The embeddings have `embedding_size` features; a linear map makes H of them.
    always_projects : bool
        There is this map even if `embedding_size` is H.
    shared_layers : str
        The module that has the layers, if layers may have the same weights; see `BertConfig.stored_layer`.
    is_gated : bool
        The feed-forward has a gate.
    has_embeddings_norm : bool
        The embeddings end with a LayerNorm.
    has_rms_norm : bool
        Each LayerNorm is an RMSNorm.
    stores_frequencies : bool
        The checkpoint may have the frequencies of the rotary positions.
    transform : tuple of str
        The modules of the masked-LM head before the decoder: the ends of their paths in BERT.
    forward : str
        The file of its forward: "bert" is encoder.py, "modernbert" is modernbert.py.
    heads_begin_with_transform : bool
        Every head begins as the masked-LM head does, with a dense map and a LayerNorm, and none has a pooler.
    """

    model_type: str
    class_name: str
    field: str
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    heads: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    activations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    old_modules: Collection[tuple[str, str]] = ()
    stacked: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    biases: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    old_fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    theta: Mapping[str, float] = dataclasses.field(default_factory=dict)
    ignored: Collection[str] = ()
    required: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    counts_tokens: bool = False
    has_token_types: bool = True
    has_relative_bias: bool = False
    has_embedding_size: bool = False
    always_projects: bool = False
    shared_layers: str = ""
    is_gated: bool = False
    has_embeddings_norm: bool = True
    has_rms_norm: bool = False
    stores_frequencies: bool = False
    transform: tuple[str, ...] = ("dense", "LayerNorm")
    forward: str = "bert"
    heads_begin_with_transform: bool = False

    @property
    def has_windows(self) -> bool:
        """True if tokens see near ones only in some layers."""
        return "sliding_attention" in self.theta

    def own_path(self, path: str, head: str | None = None) -> str:
        """Return the path in this family of a module of BERT, which may be one of a head ("BertForMaskedLM")."""
        return _replaced(path, _paths(self, head)[0])

    def bert_path(self, path: str, head: str | None = None) -> str:
        """Return the path in BERT of a module of this family, which may be one of a head."""
        return _replaced(path, _paths(self, head)[1])

    def has_dense(self, head: str | None) -> bool:
        """Return whether a head has a dense map of its own instead of the pooler."""
        return "pooler.dense" in self.heads.get(_part(head), {})

    def own_name(self, name: str) -> str:
        """Return the name in config.json of a field of `BertConfig`."""
        return self.fields.get(name, name)

    def own_class(self, name: str) -> str:
        """Return the name in this family of a class of BERT: "RobertaForMaskedLM" for "BertForMaskedLM"."""
        return name.replace("Bert", self.class_name, 1)

    def activation(self, head: str | None, otherwise: str) -> str:
        """Return the activation of a head's dense map."""
        return self.activations.get(_part(head), otherwise)

    def bias_field(self, path: str) -> str | None:
        """Return the field of the config that says whether a module of BERT has a bias; "" if it has one always."""
        return next((field for part, field in self.biases.items() if part in path), "")

    def positional(self, head: str | None) -> list[str]:
        """Return the inputs that a class takes by position, in their order."""
        return self.inputs.get(_part(head), self.inputs.get("", " ".join(INPUTS))).split()


def _part(head: str | None) -> str:
    """Return the part of the name of a class that all families have: "ForMaskedLM"; "" without a head."""
    return (head or "").removeprefix("Bert")


@functools.cache
def _paths(family: Family, head: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return the paths in the family by those in BERT, and the other way round."""
    own = {**family.modules, **family.heads.get(_part(head), {})}
    return own, {path: bert for bert, path in reversed(own.items())}  # of two with one path, the first one


def _replaced(path: str, names: Mapping[str, str]) -> str:
    """Return the path with another name; a path that the table does not have stays as it is."""
    number = re.search(r"\b(?:layers?|albert_layer_groups)\.(\d+)(?=\.)", path)
    if number is None:
        return names.get(path, path)
    general = f"{path[: number.start(1)]}{{i}}{path[number.end() :]}"
    return names.get(general, general).replace("{i}", number[1])


def _language_model(dense: str, norm: str, decoder: str, bias: str) -> dict[str, str]:
    """Return the paths of a masked-LM head; `bias` is the module that has the bias of a tied decoder."""
    return {
        "cls.predictions.transform.dense": dense,
        "cls.predictions.transform.LayerNorm": norm,
        "cls.predictions.decoder": decoder,
        "cls.predictions": bias,
    }


_CLASSIFIER = {"pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}
_LM_HEAD = _language_model("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head")
_LAYER = "encoder.layer.{i}"
_ROBERTA = Family(
    "roberta",
    "Roberta",
    "roberta",
    heads={"ForMaskedLM": _LM_HEAD, "ForSequenceClassification": _CLASSIFIER},
    activations={"ForMaskedLM": "gelu"},
    defaults={"vocab_size": 50265, "pad_token_id": 1},
    inputs={"ForMultipleChoice": "input_ids token_type_ids attention_mask"},
    counts_tokens=True,
)
_DATA2VEC = dataclasses.replace(
    _ROBERTA,
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
        f"{_LAYER}.{bert}": f"transformer.layer.{{i}}.{own}"
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
        "ForMaskedLM": _language_model("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector"),
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
        f"{_LAYER}.attention.self.query": f"{_LAYER}.attention.attn.q",
        f"{_LAYER}.attention.self.key": f"{_LAYER}.attention.attn.k",
        f"{_LAYER}.attention.self.value": f"{_LAYER}.attention.attn.v",
        f"{_LAYER}.attention.output.dense": f"{_LAYER}.attention.attn.o",
        f"{_LAYER}.attention.output.LayerNorm": f"{_LAYER}.attention.LayerNorm",
    },
    heads={"ForMaskedLM": _LM_HEAD, "ForSequenceClassification": _CLASSIFIER},
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
        "ForMaskedLM": _language_model(
            "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head", "generator_lm_head"
        ),
        "ForSequenceClassification": _CLASSIFIER,
        "ForMultipleChoice": {"pooler.dense": "sequence_summary.summary"},
    },
    activations={"ForMaskedLM": "gelu", "ForSequenceClassification": "gelu", "ForMultipleChoice": "gelu"},
    defaults={"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    required={"ForMultipleChoice": {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}},
    has_embedding_size=True,
)
_ALBERT_LAYER = "encoder.albert_layer_groups.{i}.albert_layers.0"
_ALBERT_PREDICTIONS = _language_model(
    "predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions"
)
_ALBERT = Family(
    "albert",
    "Albert",
    "albert",
    modules={
        "embeddings_project": "encoder.embedding_hidden_mapping_in",
        "pooler.dense": "pooler",
        f"{_LAYER}.attention.self.query": f"{_ALBERT_LAYER}.attention.query",
        f"{_LAYER}.attention.self.key": f"{_ALBERT_LAYER}.attention.key",
        f"{_LAYER}.attention.self.value": f"{_ALBERT_LAYER}.attention.value",
        f"{_LAYER}.attention.output.dense": f"{_ALBERT_LAYER}.attention.dense",
        f"{_LAYER}.attention.output.LayerNorm": f"{_ALBERT_LAYER}.attention.LayerNorm",
        f"{_LAYER}.intermediate.dense": f"{_ALBERT_LAYER}.ffn",
        f"{_LAYER}.output.dense": f"{_ALBERT_LAYER}.ffn_output",
        f"{_LAYER}.output.LayerNorm": f"{_ALBERT_LAYER}.full_layer_layer_norm",
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
# What nomic_bert, gte and jina_embeddings_v3 have in common.
_ROTARY = Family(
    "",
    "",
    "",
    modules={
        f"{_LAYER}.{bert}": f"layers.{{i}}.{own}"
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
    _ROTARY,
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
    _ROTARY,
    model_type="gte",
    class_name="Gte",
    field="gte",
    heads={"ForMaskedLM": _language_model("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.decoder")},
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
    _ROTARY,
    model_type="jina_embeddings_v3",
    class_name="JinaEmbeddingsV3",
    field="roberta",
    modules={
        **{bert: own for bert, own in _ROTARY.modules.items() if ".mlp." not in own},
        **{f"{_LAYER}.intermediate.dense": "layers.{i}.mlp.fc1", f"{_LAYER}.output.dense": "layers.{i}.mlp.fc2"},
    },
    heads={"ForMaskedLM": _LM_HEAD, "ForSequenceClassification": _CLASSIFIER},
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
_CLASSIFIERS = {"cls.predictions.transform.dense": "head.dense", "cls.predictions.transform.LayerNorm": "head.norm"}
_MODERN = Family(
    "modernbert",
    "ModernBert",
    "model",
    modules={
        "embeddings.word_embeddings": "embeddings.tok_embeddings",
        "embeddings.LayerNorm": "embeddings.norm",
        **{
            f"{_LAYER}.{bert}": f"layers.{{i}}.{own}"
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
        "ForMaskedLM": _language_model("head.dense", "head.norm", "decoder", "decoder"),
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
    forward="modernbert",
    heads_begin_with_transform=True,
)
_ESM = Family(
    "esm",
    "Esm",
    "esm",
    modules={
        f"{_LAYER}.intermediate.LayerNorm": f"{_LAYER}.LayerNorm",
        "final_norm": "encoder.emb_layer_norm_after",
    },
    heads={"ForMaskedLM": _LM_HEAD, "ForSequenceClassification": _CLASSIFIER},
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
    forward="modernbert",
)
_EUROBERT = dataclasses.replace(
    _ROTARY,
    model_type="eurobert",
    class_name="EuroBert",
    field="model",
    modules={
        **{bert: own for bert, own in _ROTARY.modules.items() if not bert.endswith("LayerNorm")},
        **{"embeddings.word_embeddings": "embed_tokens", "final_norm": "norm"},
        f"{_LAYER}.attention.LayerNorm": "layers.{i}.input_layernorm",
        f"{_LAYER}.intermediate.LayerNorm": "layers.{i}.post_attention_layernorm",
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
    forward="modernbert",
)
_MEGATRON = Family(
    "megatron-bert",
    "MegatronBert",
    "bert",
    modules={
        f"{_LAYER}.attention.LayerNorm": f"{_LAYER}.attention.ln",
        f"{_LAYER}.intermediate.LayerNorm": f"{_LAYER}.ln",
        "final_norm": "encoder.ln",
    },
    defaults={
        **{"vocab_size": 29056, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
        "intermediate_size": 4096,
    },
    has_embeddings_norm=False,
    forward="modernbert",
)
_XLM_ROBERTA_XL = dataclasses.replace(
    _ROBERTA,
    model_type="xlm-roberta-xl",
    class_name="XLMRobertaXL",
    modules={
        f"{_LAYER}.attention.LayerNorm": f"{_LAYER}.attention.self_attn_layer_norm",
        f"{_LAYER}.intermediate.LayerNorm": f"{_LAYER}.LayerNorm",
        "final_norm": "encoder.LayerNorm",
    },
    defaults={
        **{"vocab_size": 250880, "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32},
        **{"intermediate_size": 10240, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1},
        "layer_norm_eps": 1e-5,
    },
    has_embeddings_norm=False,
    forward="modernbert",
)
BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias")
EXTRA = (
    *("rope_parameters", "layer_types", "local_attention", "classifier_pooling", "classifier_activation"),
    *(*BIASES, "num_hidden_groups", "use_task_id", "task_type_vocab_size", "num_key_value_heads"),
    *("token_dropout", "mask_token_id"),
)
"""The fields of `BertConfig` that only some families have."""

FAMILIES = {
    family.model_type: family
    for family in (
        Family("bert", "Bert", "bert"),
        _ROBERTA,
        dataclasses.replace(_ROBERTA, model_type="xlm-roberta", class_name="XLMRoberta", defaults={"pad_token_id": 1}),
        dataclasses.replace(_ROBERTA, model_type="camembert", class_name="Camembert", defaults={"pad_token_id": 1}),
        _DATA2VEC,
        _ERNIE,
        _MEGATRON,
        _XLM_ROBERTA_XL,
        _DISTILBERT,
        _MPNET,
        _ELECTRA,
        _ALBERT,
        _NOMIC,
        _GTE,
        _JINA,
        _MODERN,
        _EUROBERT,
        _ESM,
    )
}
"""The ``model_type`` of a config.json -> its family."""


NAMES = tuple(
    f"Bert{part}"
    for part in (
        *("Config", "Tokenizer", "TokenizerFast", "Model", "ForMaskedLM", "ForSequenceClassification"),
        *("ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"),
    )
)
"""The classes of BERT that every family has under a name of its own."""


def family_of_class(name: str) -> Family | None:
    """Return the family that the name of a class begins with, or None; of two the one with the longer name."""
    families = (family for family in FAMILIES.values() if name.startswith(family.class_name))
    return max(families, key=lambda family: len(family.class_name), default=None)


def bert_class(name: str) -> str:
    """Return the name of BERT's class for that of a family: "BertForMaskedLM" for "RobertaForMaskedLM"."""
    family = family_of_class(name)
    return name if family is None else f"Bert{name.removeprefix(family.class_name)}"


def named_classes(settings: Mapping[str, Any]) -> list[str]:
    """Return the ``architectures`` of a config.json; "New", in older files of gte, is "Gte" here."""
    named = settings.get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    return [re.sub("^New(?=Model|For)", "Gte", name) for name in names]


def architectures(settings: Mapping[str, Any]) -> list[str]:
    """Return the classes that the ``architectures`` of a config.json name, as those of BERT."""
    return list(map(bert_class, named_classes(settings)))
