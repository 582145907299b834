"""The fields of a config, the checks of them, and what follows from them. config.py reads and writes them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from minibert._utils.validation import brief, check_stored_int
from minibert.bert import rotary
from minibert.bert.config_json import MOST_LABELS, SIZES
from minibert.bert.families import BIASES, EXTRA, FAMILIES, Family
from minibert.bert.reference import ACTIVATIONS
from minibert.errors import ModelFormatError

PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
"""The values of ``problem_type``: what the logits of a classifier mean."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigFields:
    """The fields of `BertConfig`, which says what they mean; checked and completed when a config is made."""

    model_type: str = "bert"
    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    embedding_size: int | None = None
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    id2label: dict[int, str] = dataclasses.field(default=None, hash=False)  # type: ignore[arg-type]  # see __post_init__
    problem_type: str | None = None
    tie_word_embeddings: bool = True
    rope_parameters: dict[str, Any] | None = dataclasses.field(default=None, hash=False)
    layer_types: tuple[str, ...] | None = None
    local_attention: int | None = None
    classifier_pooling: str | None = None
    classifier_activation: str | None = None
    norm_bias: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    classifier_bias: bool | None = None
    decoder_bias: bool | None = None
    num_hidden_groups: int | None = None
    use_task_id: bool | None = None
    task_type_vocab_size: int | None = None
    num_key_value_heads: int | None = None
    token_dropout: bool | None = None
    mask_token_id: int | None = None
    prediction_head_size: int | None = None
    stated: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.model_type, str) or self.model_type not in FAMILIES:
            raise ModelFormatError(f"model_type={brief(self.model_type)}; minibert has {', '.join(FAMILIES)}.")
        if self.embedding_size is None or not self.family.has_embedding_size:
            object.__setattr__(self, "embedding_size", self.hidden_size)
        own = self.family.own_name
        for name in (*SIZES, "type_vocab_size", "embedding_size"):
            least = 0 if name == "num_hidden_layers" or (name == "type_vocab_size" and self.model_type == "gte") else 1
            check_stored_int(own(name), getattr(self, name), least)
        if self.family.counts_tokens:
            check_stored_int("pad_token_id", self.padding_id, 0, self.max_position_embeddings - 2)
        if self.pad_token_id is not None:
            check_stored_int("pad_token_id", self.pad_token_id, 1 - 2**31)
        if self.hidden_size % self.num_attention_heads:
            raise ModelFormatError(
                f"{own('hidden_size')}={self.hidden_size} is not a multiple of {own('num_attention_heads')}="
                f"{self.num_attention_heads}; every attention head has as many features. Correct one of the two."
            )
        for name in ("hidden_act", *({"classifier_activation"} & self.family.defaults.keys())):
            if (value := getattr(self, name)) not in tuple(ACTIVATIONS):
                raise ModelFormatError(f"{own(name)}={brief(value)}; expected {', '.join(ACTIVATIONS)}.")
        eps = self.layer_norm_eps
        if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps <= 1e30:
            raise ModelFormatError(f"layer_norm_eps={brief(eps)} must be a positive float32 number, such as 1e-12.")
        object.__setattr__(self, "layer_norm_eps", float(eps))
        object.__setattr__(self, "id2label", _check_labels(self.id2label))
        if self.problem_type is not None and self.problem_type not in PROBLEM_TYPES:
            raise ModelFormatError(
                f"problem_type={brief(self.problem_type)}; expected {', '.join(PROBLEM_TYPES)} or null."
            )
        self._check_extra()
        self.check_required()

    def _check_extra(self) -> None:
        """Check booleans and the fields of some families; complete the rotary parameters and the types of layers."""
        own = self.family.own_name
        for name in EXTRA:
            if name not in self.family.defaults:
                object.__setattr__(self, name, None)
        for name in ("tie_word_embeddings", *({*BIASES, "use_task_id", "token_dropout"} & self.family.defaults.keys())):
            if not isinstance(getattr(self, name), bool):
                raise ModelFormatError(f"{name}={brief(getattr(self, name))}; expected true or false.")
        poolings = (
            ("bos", "mean", "late") if self.family.defaults.get("classifier_pooling") == "late" else ("cls", "mean")
        )
        if "classifier_pooling" in self.family.defaults and self.classifier_pooling not in poolings:
            raise ModelFormatError(f"classifier_pooling={brief(self.classifier_pooling)}; expected one of {poolings}.")
        if "num_key_value_heads" in self.family.defaults:
            count = self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads
            if self.num_attention_heads % check_stored_int("num_key_value_heads", count, 1):
                raise ModelFormatError(f"num_key_value_heads={count} does not divide {self.num_attention_heads} heads.")
            object.__setattr__(self, "num_key_value_heads", count)
        for name in {"num_hidden_groups", "task_type_vocab_size", "prediction_head_size"} & self.family.defaults.keys():
            check_stored_int(name, getattr(self, name), 1)
        if (self.num_hidden_groups or 0) > max(1, self.num_hidden_layers):
            raise ModelFormatError(
                f"num_hidden_groups={self.num_hidden_groups} is more than num_hidden_layers={self.num_hidden_layers}; "
                "a layer has one group. Correct one of the two."
            )
        if self.token_dropout:
            check_stored_int("mask_token_id", self.mask_token_id, 0)
        if self.family.has_windows:
            check_stored_int(own("local_attention"), self.local_attention, 0)
            types = self.layer_types or tuple(_layer_types(self.stated, self.family, self.num_hidden_layers))
            if len(types) != self.num_hidden_layers or not set(types) <= self.family.theta.keys():
                raise ModelFormatError(
                    f"layer_types={brief(types)}; expected {self.num_hidden_layers} of {', '.join(self.family.theta)}."
                )
            object.__setattr__(self, "layer_types", tuple(types))
        if self.family.theta:
            stated = self.stated
            if "rope_parameters" in self.family.ignored:
                stated = {name: value for name, value in stated.items() if name == "rope_theta"}
            parameters = rotary.complete(self.rope_parameters, stated, self.family.theta, self.head_size)
            object.__setattr__(self, "rope_parameters", parameters)
            for layer_type in self.family.theta:
                rotary.Rotary(self.rope_of(layer_type), self.head_size, self.max_position_embeddings)  # checks them
            if (head_dim := self.stated.get("head_dim")) not in (None, self.head_size):
                raise ModelFormatError(f"head_dim={brief(head_dim)}; expected {self.head_size}.")

    def rope_of(self, layer_type: str) -> dict[str, Any]:
        """Return the rotary parameters of a type of layers."""
        parameters: dict[str, Any] = self.rope_parameters or {}
        return parameters[layer_type] if len(self.family.theta) > 1 else parameters

    @property
    def window(self) -> int:
        """How many tokens a token sees on each side in a layer of the type "sliding_attention"."""
        size = self.local_attention or 0
        return size if "local_attention" in self.family.fields else size // 2

    def stored_layer(self, i: int) -> int:
        """Return the number of the layer in the checkpoint whose weights layer i has; in ALBERT many have the same."""
        return i if self.num_hidden_groups is None else int(i / (self.num_hidden_layers / self.num_hidden_groups))

    def has_bias(self, path: str) -> bool:
        """Return whether a module of BERT has a bias in this model."""
        field = self.family.bias_field(path)
        return bool(field is not None and (field == "" or getattr(self, field)))

    def reads_any(self, head: str | None) -> bool:
        """Return whether a head that has one result for a sequence can read another token than the first."""
        is_choice = self.family.heads_begin_with_transform and head == "BertForMultipleChoice"
        return is_choice or self.classifier_pooling in ("mean", "late")

    @property
    def unbiased(self) -> tuple[str, ...]:
        """The keys of `Family.biases` that mean modules without a bias in this model."""
        return tuple(part for part in self.family.biases if not self.has_bias(part))

    @property
    def has_token_types(self) -> bool:
        """True if the embeddings have a table of token types."""
        return self.family.has_token_types and self.type_vocab_size > 0

    @property
    def num_labels(self) -> int:
        """The number of labels of a classifier: the length of `id2label`."""
        return len(self.id2label)

    @property
    def label2id(self) -> dict[str, int]:
        """The id of each label; of two equal labels the last one counts."""
        return {label: index for index, label in self.id2label.items()}

    @property
    def family(self) -> Family:
        """What differs from BERT."""
        return FAMILIES[self.model_type]

    @property
    def padding_id(self) -> int | None:
        """The id of tokens that the positions do not count; None if a position is the column."""
        counted = 1 if self.family.has_relative_bias else self.pad_token_id  # MPNet's code has a number
        return counted if self.family.counts_tokens else None

    @property
    def max_length(self) -> int:
        """The most tokens of one sequence: P, or the positions that are left if they begin at padding_id + 1."""
        return self.max_position_embeddings - (0 if self.padding_id is None else self.padding_id + 1)

    @property
    def num_positions(self) -> int:
        """The number of positions that exist: P, or all that float32 tells apart if they are rotary."""
        return 2**24 if self.family.theta else self.max_position_embeddings

    @property
    def longest(self) -> int:
        """The most tokens that a caller can ask for: `max_length`, or more if the positions are rotary."""
        return self.num_positions if self.family.theta else self.max_length

    @property
    def head_size(self) -> int:
        """D = H / A, the features of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def key_size(self) -> int:
        """G, the features of keys and of values: H, or fewer if several heads share them."""
        return self.head_size * (self.num_key_value_heads or self.num_attention_heads)

    @property
    def activation(self) -> str:
        """The name in reference.py of the activation that `hidden_act` means."""
        return ACTIVATIONS[self.hidden_act]

    def check_required(self, head: str = "") -> None:
        """Raise a ModelFormatError if config.json asks for a form of the model, or of a head, that is not here.

        `head` is the part of the name of a class that all families have, such as "ForMultipleChoice".
        """
        for name, only in self.family.required.get(head, {}).items():
            stated = self.stated.get(name, only)
            if stated != only and not (stated is None and only is False):
                raise ModelFormatError(f"{name}={brief(self.stated[name])} is not implemented, only {only!r} is.")


def _layer_types(stated: Mapping[str, Any], family: Family, num_layers: int) -> list[str]:
    """Return the types of layers where config.json does not have them: every n-th one has no window."""
    every, full = 3, family.full_layer
    if not full:  # an older field of ModernBERT
        every = check_stored_int("global_attn_every_n_layers", stated.get("global_attn_every_n_layers", 3), 1)
    return ["sliding_attention" if (i - full) % every else "full_attention" for i in range(num_layers)]


def _check_labels(id2label: object) -> dict[int, str]:
    """Return labels by id as a new dict in the order of the ids; the keys may be strings, as JSON needs them.

    Ids may be missing here, because a model without a classifier does not use them. The loader of a classifier refuses
    them.
    """
    if id2label is None:
        return {0: "LABEL_0", 1: "LABEL_1"}
    if not isinstance(id2label, Mapping):
        raise ModelFormatError(f"id2label={brief(id2label)}; expected an object of labels by id.")
    labels: dict[int, str] = {}
    for key, label in id2label.items():
        index = int(key) if isinstance(key, str) and re.fullmatch(r"[0-9]{1,9}", key) else key
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < MOST_LABELS:
            raise ModelFormatError(f"id2label has the id {brief(key)}; expected an int, 0 to {MOST_LABELS - 1:,}.")
        if index in labels:
            raise ModelFormatError(f"id2label has the id {index} twice; every label needs an id of its own.")
        if isinstance(label, bool) or not isinstance(label, str | int):
            raise ModelFormatError(f"id2label names label {index} {brief(label)}; expected a text.")
        labels[index] = label if isinstance(label, str) else brief(label)
    return dict(sorted(labels.items()))
