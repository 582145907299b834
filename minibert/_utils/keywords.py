"""Keywords of transformers and sentence-transformers that minibert accepts only with values that change no result.

One table says for each keyword which values it may have, and what to do instead of another value. Programs that were
written for those libraries then run as they are, and a keyword that would change the result is refused by name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from minibert._utils.validation import brief, is_cpu


class Keyword(NamedTuple):
    """One keyword: a test of its value, the accepted values in words, and the remedy for another value."""

    accepts: Callable[[Any], bool]
    expected: str
    remedy: str


def is_nothing(value: object) -> bool:
    """Return whether a value is None, False, or an empty str or container."""
    return value is None or value is False or (isinstance(value, str | list | tuple | Mapping) and len(value) == 0)


def is_float32(value: object) -> bool:
    """Return whether a value names float32: None, "float32", or the type of NumPy or torch."""
    if value is None or value is float:
        return value is None
    name = value if isinstance(value, str) else getattr(value, "__name__", None) or brief(value)
    return isinstance(name, str) and re.fullmatch(r"(torch\.|dtype\('|np\.)?float32('\))?", name) is not None


def _is_cpu_map(value: object) -> bool:
    """Return whether a device_map puts everything on the CPU."""
    values = list(value.values()) if isinstance(value, Mapping) else [value]
    return all(device == "auto" or is_cpu(device) for device in values)


def _nothing(names: str, remedy: str) -> dict[str, Keyword]:
    return dict.fromkeys(names.split(), Keyword(is_nothing, "None or False", remedy))


def accepted(name: str, *values: object, remedy: str) -> dict[str, Keyword]:
    """Return a keyword that may have some values; a str may also be the value of an enum."""

    def accepts(value: object) -> bool:
        value = getattr(value, "value", value)
        return any(value is one or (isinstance(one, str) and value == one) for one in values)

    return {name: Keyword(accepts, " or ".join(map(repr, values)), remedy)}


def anything(names: str) -> dict[str, Keyword]:
    """Return keywords, separated by spaces, that may have any value, because they change nothing."""
    return dict.fromkeys(names.split(), Keyword(lambda value: True, "any value", ""))


_CODE = accepted("trust_remote_code", None, False, True, remedy="Leave it out.")  # see check_remote_code
_TOKEN = _nothing("use_auth_token", "Give token=.")
_ENCODER_ONLY = "minibert runs BERT encoders. Leave it out."
_SPECIAL = _nothing("split_special_tokens", "Special tokens in a text stay whole. Leave it out.")

HUB_KEYWORDS: Mapping[str, Keyword] = {
    **(_CODE | _TOKEN | anything("resume_download")),
    **_nothing("force_download", "Delete the model from the hub's cache to download it again."),
    **_nothing("proxies", "Set the environment variable HTTPS_PROXY."),
}
"""Keywords of every from_pretrained."""

_TYPES = dict.fromkeys(
    ("torch_dtype", "dtype"),
    Keyword(
        lambda value: is_float32(value) or (isinstance(value, str) and value == "auto"),
        "float32 or 'auto'",
        "minibert computes in float32. Leave it out, and convert the result; for less memory, give "
        "compute_type='int16' or 'int8'.",
    ),
)
_ON_CPU = "minibert runs on the CPU. Leave it out."
_DEVICE_MAP = {"device_map": Keyword(_is_cpu_map, "None, 'cpu' or 'auto'", _ON_CPU)}

MODEL_KEYWORDS: Mapping[str, Keyword] = {
    **HUB_KEYWORDS,
    **(_TYPES | _DEVICE_MAP),
    **accepted("attn_implementation", None, "eager", "sdpa", remedy="Leave it out: the one attention here is exact."),
    **accepted("use_safetensors", None, True, remedy="safetensors are read if there are any. Leave it out."),
    **_nothing("ignore_mismatched_sizes", "minibert never makes random weights. The config must fit."),
    **_nothing(
        "quantization_config load_in_8bit load_in_4bit",
        "minibert computes in float32. Leave it out; for less memory, give compute_type='int16' or 'int8'.",
    ),
    **_nothing("is_decoder add_cross_attention", _ENCODER_ONLY),
    **_nothing("from_tf from_flax", "minibert reads safetensors and pytorch_model.bin. Convert the model."),
    **_nothing("gguf_file", "Give the path of the file instead of the name of the model."),
    **_nothing("variant", "Copy the file of this variant to model.safetensors."),
    # They change the memory of loading, training, or the tasks of other models.
    **anything("low_cpu_mem_usage weights_only max_memory offload_folder use_cache gradient_checkpointing"),
    **anything("hidden_dropout_prob attention_probs_dropout_prob classifier_dropout initializer_range problem_type"),
}
"""Keywords of the from_pretrained of a model or its config."""

TOKENIZER_KEYWORDS: Mapping[str, Keyword] = {
    **HUB_KEYWORDS,
    **_SPECIAL,
    # transformers' BertTokenizer does not use them either.
    **anything("add_bos_token add_eos_token from_slow use_fast legacy verbose config device_map torch_dtype dtype"),
}
"""Keywords of the from_pretrained of a tokenizer."""

PIPELINE_KEYWORDS: Mapping[str, Keyword] = {
    **(_CODE | _TOKEN | _TYPES | _DEVICE_MAP | anything("use_fast num_workers")),
    "device": Keyword(lambda value: is_cpu(value) or value == -1, "None, 'cpu' or -1", _ON_CPU),
    **accepted("framework", None, "pt", remedy="Leave it out."),
}
"""Keywords of `pipeline`."""

CALL_KEYWORDS: Mapping[str, Keyword] = {
    **_SPECIAL,
    **anything("verbose clean_up_tokenization_spaces add_prefix_space"),
    **_nothing("text_target text_pair_target", "These are for training. Give these texts in a call of their own."),
}
"""Keywords of the calls of a tokenizer."""

FORWARD_KEYWORDS: Mapping[str, Keyword] = {
    **_nothing("head_mask", "Give model.trace(..., edit=minibert.head_mask(mask))."),
    **_nothing(
        "labels next_sentence_label start_positions end_positions",
        "minibert does not train, so it computes no loss. Leave it out; compute one from the logits.",
    ),
    **_nothing("encoder_hidden_states encoder_attention_mask past_key_values cache_position", _ENCODER_ONLY),
    **_nothing("task_type_ids", "minibert computes task 0 of ERNIE, its default. Leave it out."),
    **anything("use_cache"),  # an encoder does not have a cache
}
"""Keywords of the calls of a model."""

SAVING_KEYWORDS: Mapping[str, Keyword] = {
    **accepted("safe_serialization", None, True, remedy="minibert writes safetensors only. Leave it out."),
    **_nothing("push_to_hub", "Save into a folder, then run `hf upload`."),
    **anything("max_shard_size token legacy_format"),
}
"""Keywords of every save_pretrained."""


def check_keywords(
    call: str,
    given: Mapping[str, object],
    known: Mapping[str, Keyword],
    *,
    settings: Collection[str] = (),
    function: Callable[..., object] | None = None,
) -> dict[str, object]:
    """Check that the keywords of a call are known and that their values change no result.

    Parameters
    ----------
    call : str
        The name of the function, for messages, such as "BertModel.from_pretrained".
    given : mapping of str
        The keywords that the function itself does not have.
    known : mapping of str to Keyword
        One of the tables of this module.
    settings : names, optional
        Names of settings of the model. They are compared with it later, by `check_agreement`.
    function : callable, optional
        The function itself; a message can suggest its arguments.

    Returns
    -------
    dict
        The keywords that name a setting of the model.

    Raises
    ------
    TypeError
        A keyword is not known.
    ValueError
        The value of a keyword would change the result; the message says what to do.
    """
    for name, value in given.items():
        if name in settings:
            continue
        if name not in known:
            own = () if function is None else arguments_of(function)
            import difflib  # with its imports, it takes 2 ms of a start

            close = difflib.get_close_matches(name, [*own, *known, *settings], 1)
            hint = f"Did you mean {close[0]}=?" if close else "Leave it out."
            raise TypeError(f"{call}() has no keyword {name}=. {hint} All keywords: help({call}).")
        keyword = known[name]
        if not keyword.accepts(value):
            raise ValueError(f"{call}({name}={brief(value)}); expected {keyword.expected}. {keyword.remedy}")
    return {name: value for name, value in given.items() if name in settings}


def arguments_of(function: Callable[..., object]) -> list[str]:
    """Return the names of a function's arguments, without ``self`` and ``**keywords``."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.name != "self" and p.kind != p.VAR_KEYWORD]


def check_agreement(call: str, given: Mapping[str, object], settings: Mapping[str, object], remedy: str) -> None:
    """Raise a ValueError if a keyword's value differs from the model's.

    `remedy` is the sentence that says how to get another value.
    """
    for name, value in given.items():
        value = getattr(value, "content", value)  # of an AddedToken
        own = settings[name]
        if type(value) is not type(own) or value != own:
            raise ValueError(f"{call}({name}={brief(value)}), but the model has {name}={brief(own)}. {remedy}")


_OWN_CODE = ("nomic_bert", "new", "gte")


def check_remote_code(call: str, trust_remote_code: object, settings: Mapping[str, object]) -> None:
    """Raise a ValueError if the caller asks for code of the model's repository and the model's settings name some."""
    # The repositories of nomic, gte and jina have code that minibert and transformers 5 have themselves.
    known = settings.get("position_embedding_type") == "rotary" or settings.get("model_type") in _OWN_CODE
    if trust_remote_code and settings.get("auto_map") and not known:
        raise ValueError(
            f"{call}(trust_remote_code=True), but minibert never runs code, and this model has some (auto_map). "
            "Leave trust_remote_code= out to load it as a plain BERT; if that is not possible, use transformers."
        )


def given_name(call: str, name: Any, keywords: dict[str, Any], also: str = "pretrained_model_name_or_path") -> Any:
    """Return the name of a model; it may be given as transformers' keyword `also`. This one is removed from `keywords`.

    Raises
    ------
    TypeError
        The name is missing, or given twice.
    """
    if also not in keywords:
        if name is None:
            raise TypeError(f"{call}() needs the name of a model: a hub id such as 'bert-base-uncased', or a folder.")
        return name
    other = keywords.pop(also)
    if name is not None:
        raise TypeError(f"{call}() was given the name of the model twice: {brief(name)} and {also}={brief(other)}.")
    return other
