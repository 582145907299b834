"""The config of a model: its fields, and the checks of them. config_json.py says what those of a config.json mean."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minibert._utils import keywords
from minibert._utils.files import make_folder, read_json_object, write_json
from minibert._utils.validation import brief, check_stored_int
from minibert.bert import rotary
from minibert.bert.config_json import MOST_LABELS, SIZES, read_fields, stated_family
from minibert.bert.families import BIASES, EXTRA, FAMILIES, Family
from minibert.bert.reference import ACTIVATIONS
from minibert.errors import ModelFormatError

if TYPE_CHECKING:
    from minibert.checkpoint.files import ModelFiles


PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
"""The values of ``problem_type``: what the logits of a classifier mean."""

# Choices that transformers keeps in the config and minibert in the model, at the defaults of the model.
_MODEL_DEFAULTS = {"output_hidden_states": True, "output_attentions": False, "return_dict": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The fields of config.json that change results, with Hugging Face's names; frozen.

    The defaults are those of transformers' ``BertConfig``. Every other family has a class of its own with the defaults
    that transformers has, such as `minibert.RobertaConfig`. `from_pretrained` and `from_dict` do not fall back on them
    for a size: a config.json must state every size.

    Parameters
    ----------
    model_type : str                 a key of `FAMILIES`
    vocab_size : int                 V, rows of the word embeddings, at least 1
    hidden_size : int                H, a multiple of `num_attention_heads`
    num_hidden_layers : int          L, at least 0
    num_attention_heads : int        A, at least 1
    intermediate_size : int          F, at least 1
    hidden_act : str                 one of `ACTIVATIONS`
    max_position_embeddings : int    P, rows of the position embeddings; see `max_length`
    type_vocab_size : int            rows of the token_type embeddings, at least 1; in gte 0 means that there are none
    embedding_size : int             features of the embeddings; None means `hidden_size`, as in all but ELECTRA, ALBERT
    layer_norm_eps : float           added to the variance in every LayerNorm, above 0
    pad_token_id : int or None       changes results only where positions count from it (RoBERTa); see `padding_id`
    id2label : dict of int to str    names of a classifier's labels; None means two: "LABEL_0" and "LABEL_1"
    problem_type : str or None       one of `PROBLEM_TYPES`; it does not change the logits
    tie_word_embeddings : bool       False: a masked-LM head must have a decoder of its own
    rope_parameters : dict or None   of rotary positions: rope_type, rope_theta and more, as in transformers 5; in
                                     ModernBERT a dict for each type of layers
    layer_types : tuple of str       ModernBERT: "full_attention" or "sliding_attention" for each layer
    local_attention : int            ModernBERT: a layer with a window sees half as many tokens on each side
    classifier_pooling : str         ModernBERT: "cls" or "mean"; EuroBERT: "bos", "mean" or "late"
    classifier_activation : str      ModernBERT: of all heads
    norm_bias, attention_bias, mlp_bias, classifier_bias, decoder_bias : bool    ModernBERT: what has a bias
    num_hidden_groups : int          ALBERT: how many different layers there are; see `stored_layer`
    use_task_id : bool               ERNIE: the files have task_type_vocab_size vectors of tasks; that of task 0 counts
    num_key_value_heads : int        EuroBERT: heads of keys and values, which divide `num_attention_heads`
    token_dropout : bool             ESM: masked tokens have zeros, and the others a factor; see `PackedBatch.scale`
    mask_token_id : int or None      ESM: the id of <mask>
    stated : mapping                 the whole config.json; `save_pretrained` writes what is not a parameter here, too

    The fields from `rope_parameters` on are None in a family that does not have them.

    Raises
    ------
    ModelFormatError
        A value has the wrong type or is out of range, or `hidden_act` is not implemented.

    Notes
    -----
    Source: transformers 5, models/bert/configuration_bert.py.
    """

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
    stated: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    _family = FAMILIES["bert"]

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
        for name in {"num_hidden_groups", "task_type_vocab_size"} & self.family.defaults.keys():
            check_stored_int(name, getattr(self, name), 1)
        if self.token_dropout:
            check_stored_int("mask_token_id", self.mask_token_id, 0)
        if self.family.has_windows:
            check_stored_int("local_attention", self.local_attention, 0)
            types = self.layer_types or tuple(_layer_types(self.stated, self.num_hidden_layers))
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

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str] | None = None,
        *,
        revision: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        subfolder: str = "",
        **harmless: Any,
    ) -> BertConfig:
        """Read the config.json of a model: a hub id or a folder.

        Parameters
        ----------
        name_or_path : str or path
            A hub id ("bert-base-uncased") or a folder.
        revision, cache_dir, token, local_files_only, subfolder
            As in `BertModel.from_pretrained`.
        **harmless
            Keywords of transformers at values that change nothing. `output_hidden_states` may be True, and
            `output_attentions` False, as in every model.

        Raises
        ------
        TypeError, ValueError
            A keyword is not known, or its value would change the result.
        ModelFormatError
            config.json is missing, is not a JSON object, or describes a model that minibert does not implement.
        DownloadError
            The hub could not be reached, or does not have this model.
        """
        from minibert.checkpoint.files import locate

        call = "BertConfig.from_pretrained"
        name = keywords.given_name(call, name_or_path, harmless)
        asked = keywords.check_keywords(call, harmless, keywords.MODEL_KEYWORDS, settings=(*SETTINGS, *_MODEL_DEFAULTS))
        hub: Any = {"revision": revision, "cache_dir": cache_dir, "token": token, "local_files_only": local_files_only}
        files = locate(name, subfolder=subfolder, **hub)
        config = cls.from_files(files, cls._family)
        keywords.check_remote_code(call, harmless.get("trust_remote_code"), files.settings("config.json"))
        of_model = {key: asked.pop(key) for key in _MODEL_DEFAULTS if key in asked}
        keywords.check_agreement(call, of_model, _MODEL_DEFAULTS, "Give it to BertModel.from_pretrained(name, ...).")
        check_settings(call, asked, config, "dataclasses.replace(config, {})")
        return config

    @classmethod
    def from_files(cls, files: ModelFiles, otherwise: Family | None = None) -> BertConfig:
        """Read the config.json of a model whose files were located already; error messages name the file.

        If it does not say the family, the family is `otherwise`, or the one that the names of the tensors begin with.
        """
        from minibert.checkpoint.files import check_files

        path = check_files(files).require("config.json")
        fields = read_json_object(path)
        try:
            family = stated_family(fields) or otherwise or _family_of_tensors(files)
            return cls.from_dict({"model_type": family.model_type, **fields})
        except ModelFormatError as error:
            raise ModelFormatError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> BertConfig:
        """Check the fields of a config.json and keep those that change results.

        The family is that of ``model_type``, else of ``architectures``, else of this class. Fields that change nothing
        at inference (dropout, initializer_range, use_cache, ...) are kept for saving only.
        `auto_map` and similar fields are not used, because code from a model repository is never executed. Labels are
        those of ``id2label``; else those of ``label2id``; else, or if it says another number, ``num_labels`` made ones.

        Raises
        ------
        TypeError
            `fields` is not a mapping.
        ModelFormatError
            A size is missing, a value is not valid, or the model needs something that minibert does not implement.
        """
        if not isinstance(fields, Mapping):
            raise TypeError(f"fields is {brief(fields)}; expected a mapping, such as the object in a config.json.")
        family = stated_family(fields) or cls._family
        kind = config_class(family)
        if not issubclass(kind, cls):
            raise ModelFormatError(f"this is a {kind.__name__}, not a {cls.__name__}; AutoConfig reads every config.")
        read = read_fields(fields, family)
        return kind(**{name: value for name, value in read.items() if name in BertConfig.__dataclass_fields__})

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

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that change results under their names in config.json, with ``model_type``."""
        family, fields = self.family, dataclasses.asdict(self)
        left_out = {"stated", *family.ignored, *(() if family.has_embedding_size else ("embedding_size",))}
        left_out |= set(EXTRA) - family.defaults.keys()
        left_out -= family.fields.keys()
        if "rope_parameters" in family.ignored:  # ESM has the base alone
            fields |= {"rope_theta": self.rope_of("")["rope_theta"], "position_embedding_type": "rotary"}
        return {family.own_name(name): value for name, value in fields.items() if name not in left_out}

    def save_pretrained(self, save_directory: str | os.PathLike[str], **fields: Any) -> None:
        """Write config.json into a folder, with all fields of the file that it was read from.

        The folder is made if it does not exist.

        Parameters
        ----------
        save_directory : str or path
        **fields
            More fields of config.json, such as ``architectures=["BertModel"]``. A keyword of transformers, such as
            ``push_to_hub=False``, must have a value that changes nothing.

        Raises
        ------
        OSError
            The file cannot be written. A file that was there before is then as it was.
        """
        harmless = {name: fields.pop(name) for name in keywords.SAVING_KEYWORDS if name in fields}
        keywords.check_keywords("BertConfig.save_pretrained", harmless, keywords.SAVING_KEYWORDS)
        written = {**self.stated, **self.to_dict(), "label2id": self.label2id, **fields}
        # transformers would make labels of the first one, and use the others instead of fields that are written
        for name in ("num_labels", "sliding_window", *rotary.OLD_FIELDS):
            written.pop(name, None)
        written |= {name: value for name, value in self.to_dict().items() if name == "rope_theta"}
        write_json(os.path.join(make_folder(save_directory), "config.json"), written)


def _refuse_change(config: BertConfig, name: str, value: object = None) -> None:
    """Refuse to change or delete an attribute, because the weights were checked with the config as it is."""
    if name in _MODEL_DEFAULTS:
        if value is _MODEL_DEFAULTS[name]:  # programs set output_hidden_states=True, which it is
            return
        remedy = f"Give it to the model: BertModel.from_pretrained(name, {name}=...)"
    else:
        remedy = "Make another config, dataclasses.replace(config, ...), and load the model with config="
    raise dataclasses.FrozenInstanceError(f"config.{name} cannot be set, because a config does not change. {remedy}.")


# dataclasses makes these two methods for a frozen class, with a message that does not say what to do.
for _method in ("__setattr__", "__delattr__"):
    setattr(BertConfig, _method, _refuse_change)

SETTINGS = (*filter("stated".__ne__, BertConfig.__dataclass_fields__), "num_labels", "label2id")
"""The keywords of a from_pretrained that name a setting of the config; the last two follow from id2label."""


def check_settings(
    call: str,
    asked: Mapping[str, object],
    config: BertConfig,
    change: str,
    fewer_layers: str = "To run fewer layers, call a BertModel with num_layers=.",
) -> None:
    """Raise a ValueError if the value of a keyword in `SETTINGS` differs from the config's.

    `change` is how the caller makes another config, with {} for the new value; `fewer_layers` is a sentence that says
    how to run fewer layers of the model.
    """
    for name, value in asked.items():
        if name == "num_hidden_layers":
            remedy = f"The weights have this size. {fewer_layers}"
        elif name in (*SIZES, "type_vocab_size"):
            remedy = "The weights have this size. Leave it out."
        else:
            field = "id2label" if name in ("num_labels", "label2id") else name
            remedy = f"To change it: {change.format(f'{field}=...')}."
        keywords.check_agreement(call, {name: value}, {name: getattr(config, name)}, remedy)


def _family_of_tensors(files: ModelFiles) -> Family:
    """Return the family in whose field a checkpoint has the model, as "roberta" in roberta.embeddings."""
    from minibert.checkpoint.tensors import open_checkpoint

    stored = False
    with contextlib.suppress(ModelFormatError):
        stored = bool(files.checkpoint())
    tensors = "\n".join(open_checkpoint(files)) if stored else ""  # weights that cannot be read say why themselves
    for family in FAMILIES.values():
        if re.search(rf"^(.*\.)?{family.field}\.embeddings\.", tensors, re.MULTILINE):
            return family
    known = ", ".join(FAMILIES)
    raise ModelFormatError(f"model_type is absent. Write it into the file, one of {known}; or call a family's class.")


@functools.cache
def config_class(family: Family) -> type[BertConfig]:
    """Return the class of a family's configs: `BertConfig` with its defaults and with the names of its config.json."""
    if family is BertConfig._family:
        return BertConfig

    def init(self: BertConfig, **fields: Any) -> None:
        renamed = {name: fields.pop(own) for name, own in family.fields.items() if own in fields}
        BertConfig.__init__(self, **{"model_type": family.model_type, **family.defaults, **fields, **renamed})

    names: dict[str, Any] = {own: property(operator.attrgetter(name)) for name, own in family.fields.items()}
    names.pop("activation", None)  # a property that all configs have
    doc = f"`BertConfig` with the defaults of {family.model_type!r} in transformers."
    more = {"__init__": init, "__module__": "minibert", "__doc__": doc, "_family": family}
    return type(family.own_class("BertConfig"), (BertConfig,), names | more)


def _layer_types(stated: Mapping[str, Any], num_layers: int) -> list[str]:
    """Return the types of ModernBERT's layers from the older field: every n-th one has no window."""
    every = check_stored_int("global_attn_every_n_layers", stated.get("global_attn_every_n_layers", 3), 1)
    return ["sliding_attention" if i % every else "full_attention" for i in range(num_layers)]


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
