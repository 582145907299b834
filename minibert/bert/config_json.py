"""What the fields of a config.json mean: the family of the model, and the fields of `BertConfig`.

Models that minibert does not implement are refused. The values are checked by `BertConfig` itself (config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibert._utils.validation import brief, check_stored_int
from minibert.bert.families import FAMILIES, Family, family_of_class, named_classes
from minibert.errors import ModelFormatError

# The fields that fix the shape of a tensor: a config.json must state them, and weights.py compares them with the file.
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)

MOST_LABELS = 1 << 20
"""More labels than any classifier has. A mistyped number must not use up the memory."""

# Architectures that people confuse with BERT, and what to use instead.
_CLOSEST = " A model of similar use that loads: FacebookAI/roberta-base."
_INSTEAD = {
    "deberta": _CLOSEST,
    "deberta-v2": _CLOSEST,
    "model2vec": " It is a static model, without a forward; SentenceTransformer loads it.",
}

# The types whose forward is that of another family, and whose tensors have its names; tried with transformers 5.24.
_RENAMED = dict.fromkeys(("splinter", "dpr", "chinese_clip_text_model", "align_text_model"), "bert")
_RENAMED["clap_text_model"] = "roberta"


def stated_family(fields: Mapping[str, Any]) -> Family | None:
    """Return the family that a config.json names by model_type or architectures; None if it names none.

    Raises
    ------
    ModelFormatError
        The forward is not BERT's, or the two name families with different forwards.
    """
    named = {name: family for name in named_classes(fields) if (family := family_of_class(name))}
    if "model_type" not in fields and not named:
        return None
    model_type = fields.get("model_type", next((family.model_type for family in named.values()), None))
    if model_type == "new":
        return FAMILIES["gte"]
    if model_type == "xlm-roberta" and fields.get("position_embedding_type") == "rotary":
        return FAMILIES["jina_embeddings_v3"]
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        if isinstance(model_type, str) and model_type in _RENAMED:
            known = _RENAMED[model_type]
            raise ModelFormatError(f"model_type={model_type!r} is {known!r} under another name: write {known!r} there.")
        hint = _INSTEAD.get(model_type, "") if isinstance(model_type, str) else ""
        raise ModelFormatError(
            f"model_type={brief(model_type)} has another forward; expected {', '.join(FAMILIES)}.{hint}"
        )
    for name, family in named.items():
        if family.field != FAMILIES[model_type].field:
            raise ModelFormatError(f"model_type={model_type!r}, but architectures names {brief(name)}. Correct it.")
    return FAMILIES[model_type]


def read_fields(fields: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Return the fields of `BertConfig` that a config.json of this family states, among others, not checked yet.

    Raises
    ------
    ModelFormatError
        A size is missing, or the model needs something that minibert does not implement.
    """
    _refuse_unimplemented(fields, family)
    read = {name: value for name, value in fields.items() if name not in family.ignored}
    if family.model_type == "ultrabert":
        _read_ultrabert(read)
    for name, own in (*family.fields.items(), *((name, old) for old, name in family.old_fields.items())):
        if own in read:  # of two names the one of BERT counts, as in transformers
            read.setdefault(name, read.pop(own))
    if family.old_fields:
        _read_old_nomic(read)
    if family.has_windows and (window := read.get("sliding_window")) is not None:  # it counts, as in transformers
        read["local_attention"] = 2 * check_stored_int("sliding_window", window, 0)
    missing = [name for name in SIZES if name not in read]
    if missing:
        raise ModelFormatError(
            f"the fields {', '.join(map(family.own_name, missing))} are absent; a config must "
            f"state its sizes. Found: {', '.join(sorted(map(brief, fields))[:20]) or 'nothing'}."
        )
    if isinstance(read.get("layer_types"), list):
        read["layer_types"] = tuple(read["layer_types"])
    stated = {name: value for name, value in fields.items() if name in family.ignored or name not in family.fields}
    return read | {"model_type": family.model_type, "id2label": _labels_of(fields), "stated": stated}


def _read_old_nomic(read: dict[str, Any]) -> None:
    """Give fields of nomic's own config.json the meaning that they have in nomic's code."""
    gated = {"swiglu": "silu", "geglu": "gelu"}
    read |= {"hidden_act": gated[read["hidden_act"]]} if read.get("hidden_act") in tuple(gated) else {}
    if read.get("rotary_scaling_factor") is not None and "max_trained_positions" in read:
        read["max_position_embeddings"] = read["max_trained_positions"]  # the scaling begins behind them


def _read_ultrabert(read: dict[str, Any]) -> None:
    """Give fields of UltraBERT's own config.json, which has a window and a rotary base of each layer, their meaning."""
    windows, bases = read.get("attention_windows"), read.get("rope_theta")
    for name, values in (("attention_windows", windows), ("rope_theta", bases)):
        if not isinstance(values, list | None):
            raise ModelFormatError(f"{name}={brief(values)}; expected a list with a value for each layer.")
    if windows is not None:
        if len(sizes := {window for window in windows if window}) > 1:
            raise ModelFormatError(f"attention_windows={brief(windows)}; windows of one size are implemented.")
        read |= {"sliding_window": sizes.pop()} if sizes else {}
        if read.get("layer_types") is None:
            read["layer_types"] = ["sliding_attention" if window else "full_attention" for window in windows]
    rope, types = read.get("rope_parameters"), read.get("layer_types")
    if bases is not None and rope is None:
        if types is None:
            raise ModelFormatError("rope_theta is a list, so attention_windows must say what each layer is. Add it.")
        read["rope_parameters"] = {kind: {"rope_theta": base} for kind, base in zip(types, bases, strict=False)}


def _labels_of(fields: Mapping[str, Any]) -> object:
    """Return what a config.json says about the labels, as an `id2label` that is not checked yet; None for nothing."""
    id2label, label2id, number = (fields.get(name) for name in ("id2label", "label2id", "num_labels"))
    if isinstance(id2label, Mapping) and isinstance(number, int) and number != len(id2label):
        label2id = None  # files of 2020 say num_labels, beside the two labels of the default
    elif id2label is not None:
        return id2label
    if label2id is not None:
        if not isinstance(label2id, Mapping):
            raise ModelFormatError(f"label2id={brief(label2id)}; expected an object of ids by label.")
        ids = list(label2id.values())
        if len(set(map(str, ids))) < len(ids):
            raise ModelFormatError(f"label2id={brief(label2id)} has an id twice; every label needs an id of its own.")
        return dict(zip(map(str, ids), label2id, strict=True))
    if number is None:
        return None
    return {i: f"LABEL_{i}" for i in range(check_stored_int("num_labels", number, 0, MOST_LABELS))}


def _refuse_unimplemented(fields: Mapping[str, Any], family: Family) -> None:
    """Raise for a field that asks for something that minibert does not implement in any family.

    This runs before the sizes are checked, so the message names the unsupported feature and not a missing size.
    """
    position_type = fields.get("position_embedding_type") or "absolute"
    only = family.required.get("", {}).get("position_embedding_type", "absolute")
    # Other rotary models than ESM have other words in it, such as "sans_pos", which no code reads.
    if position_type != only and (only != "absolute" or not family.theta):
        name = f"position_embedding_type={brief(position_type)}"
        raise ModelFormatError(f"{name} is not implemented, only {only!r} is. transformers 4 runs relative ones.")
    for name, what in (
        ("is_decoder", "a decoder (causal mask)"),
        ("is_causal", "a causal mask"),
        ("add_cross_attention", "cross attention"),
        ("is_encoder_decoder", "an encoder-decoder"),
        ("pruned_heads", "pruned attention heads"),
        ("quantization_config", "quantised weights (transformers makes floats of them: model.dequantize())"),
        ("per_layer_config", "layers that differ"),
        ("transformers_weights", "weights in a file of this name"),
        ("lora_adaptations", "an adapter for each task (jinaai/jina-embeddings-v3-hf is the model without them)"),
    ):
        if fields.get(name):
            raise ModelFormatError(
                f"{name}={brief(fields[name])} asks for {what}; minibert runs plain encoders with float weights."
            )
