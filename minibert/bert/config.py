"""The config of a model, read and written. config_json.py says what the fields of a config.json mean."""

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
from minibert._utils.validation import brief
from minibert.bert import rotary
from minibert.bert.config_fields import ConfigFields
from minibert.bert.config_json import SIZES, read_fields, stated_family
from minibert.bert.families import EXTRA, FAMILIES, Family
from minibert.errors import ModelFormatError

if TYPE_CHECKING:
    from minibert.checkpoint.files import ModelFiles

# Choices that transformers keeps in the config and minibert in the model, at the defaults of the model.
_MODEL_DEFAULTS = {"output_hidden_states": True, "output_attentions": False, "return_dict": True}


class BertConfig(ConfigFields):
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
    local_attention : int            ModernBERT: a layer with a window sees half as many tokens on each side;
                                     UltraBERT, where it is `sliding_window`: as many
    classifier_pooling : str         ModernBERT, UltraBERT: "cls" or "mean"; EuroBERT: "bos", "mean" or "late"
    classifier_activation : str      ModernBERT: of all heads
    norm_bias, attention_bias, mlp_bias, classifier_bias, decoder_bias : bool    ModernBERT: what has a bias
    num_hidden_groups : int          ALBERT: how many different layers there are; see `stored_layer`
    use_task_id : bool               ERNIE: the files have task_type_vocab_size vectors of tasks; that of task 0 counts
    num_key_value_heads : int        EuroBERT, UltraBERT: heads of keys and values, which divide `num_attention_heads`
    token_dropout : bool             ESM: masked tokens have zeros, and the others a factor; see `PackedBatch.scale`
    mask_token_id : int or None      ESM: the id of <mask>
    prediction_head_size : int       UltraBERT: features between the first two maps of the masked-LM head
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

    _family = FAMILIES["bert"]

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
        own = self.to_dict()
        # transformers would make labels of the first one, and use the others instead of fields that are written
        old = {"num_labels", "sliding_window", "attention_windows", *rotary.OLD_FIELDS} - own.keys()
        stated = {name: value for name, value in self.stated.items() if name not in old}
        written = {**stated, **own, "label2id": self.label2id, **fields}
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
