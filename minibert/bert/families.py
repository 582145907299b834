"""The models whose forward is BERT's: what differs from BERT in their checkpoints, ids and heads.

=============  ==================================================================================================
bert           Devlin et al. 2018 (arXiv 1810.04805)
roberta        Liu et al. 2019 (arXiv 1907.11692); xlm-roberta and camembert are the same model with other texts
distilbert     Sanh et al. 2019 (arXiv 1910.01108): half of the layers, without token types
mpnet          Song et al. 2020 (arXiv 2004.09297): a bias of the scores for each distance, without token types
electra        Clark et al. 2020 (arXiv 2003.10555): embeddings of another width, then a linear map to H features
=============  ==================================================================================================

Everywhere else a module has the path that it has in BERT, whatever its family calls it: a checkpoint is renamed while
it is read, and named back when it is saved. A head that reads [CLS] is BERT's, too: a dense map with an activation,
which is the pooler or takes its place, then the classifier.

Source: the files modeling_*.py of https://github.com/huggingface/transformers/tree/v5.23.0/src/transformers/models.
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
    fields : mapping
        A field of `BertConfig` -> the name of this field in config.json.
    defaults : mapping
        Fields of `BertConfig` -> the values that transformers has for them, where they are not those of BERT.
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
    """

    model_type: str
    class_name: str
    field: str
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    heads: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    activations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ignored: Collection[str] = ()
    required: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    counts_tokens: bool = False
    has_token_types: bool = True
    has_relative_bias: bool = False
    has_embedding_size: bool = False

    def own_path(self, path: str, head: str | None = None) -> str:
        """Return the path in this family of a module of BERT, which may be one of a head ("BertForMaskedLM")."""
        return _replaced(path, _paths(self, head)[0])

    def bert_path(self, path: str, head: str | None = None) -> str:
        """Return the path in BERT of a module of this family, which may be one of a head."""
        return _replaced(path, _paths(self, head)[1])

    def own_name(self, name: str) -> str:
        """Return the name in config.json of a field of `BertConfig`."""
        return self.fields.get(name, name)

    def own_class(self, name: str) -> str:
        """Return the name in this family of a class of BERT: "RobertaForMaskedLM" for "BertForMaskedLM"."""
        return name.replace("Bert", self.class_name, 1)

    def activation(self, head: str | None, otherwise: str) -> str:
        """Return the activation of a head's dense map."""
        return self.activations.get(_part(head), otherwise)

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
    number = re.search(r"(?<=\.layer\.)\d+(?=\.)", path)
    if number is None:
        return names.get(path, path)
    general = f"{path[: number.start()]}{{i}}{path[number.end() :]}"
    return names.get(general, general).replace("{i}", number[0])


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

FAMILIES = {
    family.model_type: family
    for family in (
        Family("bert", "Bert", "bert"),
        _ROBERTA,
        dataclasses.replace(_ROBERTA, model_type="xlm-roberta", class_name="XLMRoberta", defaults={"pad_token_id": 1}),
        dataclasses.replace(_ROBERTA, model_type="camembert", class_name="Camembert", defaults={"pad_token_id": 1}),
        _DISTILBERT,
        _MPNET,
        _ELECTRA,
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
    """Return the family that the name of a class begins with, or None."""
    return next((family for family in FAMILIES.values() if name.startswith(family.class_name)), None)


def bert_class(name: str) -> str:
    """Return the name of BERT's class for that of a family: "BertForMaskedLM" for "RobertaForMaskedLM"."""
    family = family_of_class(name)
    return name if family is None else f"Bert{name.removeprefix(family.class_name)}"


def named_classes(settings: Mapping[str, Any]) -> list[str]:
    """Return the ``architectures`` of a config.json."""
    named = settings.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def architectures(settings: Mapping[str, Any]) -> list[str]:
    """Return the classes that the ``architectures`` of a config.json name, as those of BERT."""
    return list(map(bert_class, named_classes(settings)))
