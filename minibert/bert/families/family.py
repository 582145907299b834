"""What differs from BERT in a family of models: the class of the records in this folder."""

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
    full_layer : int
        Of each three layers, the one without a window; in a family where it is 0, config.json may say another distance.
    transform : tuple of str
        The modules of the masked-LM head before the decoder: keys of `rows.TRANSFORM`.
    forward : str
        The file of its forward: "bert" is encoder.py, "norm_first" is norm_first.py.
    heads_begin_with_transform : bool
        Every head begins as the masked-LM head does, with a dense map and a LayerNorm.
    has_pooler : bool
        Heads that read one vector of a sequence begin with the pooler, or a dense map in its place.
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
    full_layer: int = 0
    transform: tuple[str, ...] = ("dense", "LayerNorm")
    forward: str = "bert"
    heads_begin_with_transform: bool = False
    has_pooler: bool = True

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
    for number in re.finditer(r"(?<=\.)\d+(?=\.)", path):
        general = f"{path[: number.start()]}{{i}}{path[number.end() :]}"
        if general in names:
            return names[general].replace("{i}", number[0])
    return names.get(path, path)


def language_model(dense: str, norm: str, decoder: str, bias: str) -> dict[str, str]:
    """Return the paths of a masked-LM head; `bias` is the module that has the bias of a tied decoder."""
    return {
        "cls.predictions.transform.dense": dense,
        "cls.predictions.transform.LayerNorm": norm,
        "cls.predictions.decoder": decoder,
        "cls.predictions": bias,
    }


CLASSIFIER = {"pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}
LM_HEAD = language_model("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head")
LAYER = "encoder.layer.{i}"
