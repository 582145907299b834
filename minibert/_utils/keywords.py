"""Keywords of transformers and sentence-transformers that minibert takes at the values that change nothing.

One table says for each keyword which values it may have, and what to do instead of another value. Programs that were
written for those libraries then run as they are, and a keyword that would change the result is refused by name.
"""

from __future__ import annotations

import difflib
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
    return all(one is None or one == "auto" or is_cpu(one) for one in values)


def _nothing(remedy: str) -> Keyword:
    return Keyword(is_nothing, "None or False", remedy)


def _one_of(*values: object, remedy: str) -> Keyword:
    def accepts(value: object) -> bool:
        value = getattr(value, "value", value)  # of an enum
        return any(value is one or (isinstance(one, str) and value == one) for one in values)

    return Keyword(accepts, " or ".join(map(repr, values)), remedy)


_ANYTHING = Keyword(lambda value: True, "any value", "")
_LEAVE_OUT = "Leave it out."

HUB_KEYWORDS: Mapping[str, Keyword] = {
    "trust_remote_code": _one_of(None, False, True, remedy="Leave it out."),  # see check_remote_code
    "force_download": _nothing("Delete the model from the hub's cache to download it again."),
    "proxies": _nothing("Set the environment variable HTTPS_PROXY."),
    "use_auth_token": _nothing("Give token=."),
    "variant": _nothing("minibert reads model.safetensors. Save the variant under this name in a folder, and load it."),
    "gguf_file": _nothing("minibert reads model.safetensors. Give a checkpoint in this format."),
    **dict.fromkeys(("resume_download", "mirror", "code_revision", "user_agent", "_commit_hash"), _ANYTHING),
    **dict.fromkeys(("_from_auto", "_from_pipeline", "tqdm_class"), _ANYTHING),
}
"""Keywords of every from_pretrained."""

_DTYPE = Keyword(
    lambda value: is_float32(value) or (isinstance(value, str) and value == "auto"),
    "float32, or 'auto' for a checkpoint in float32",
    "minibert computes in float32. Leave it out, and convert the result; for less memory, give compute_type='int16' or "
    "'int8'.",
)
_NO_QUANTISATION = "minibert computes in float32. Leave it out; for less memory, give compute_type='int16' or 'int8'."

MODEL_KEYWORDS: Mapping[str, Keyword] = {
    **HUB_KEYWORDS,
    "torch_dtype": _DTYPE,
    "dtype": _DTYPE,
    "attn_implementation": _one_of(
        *(None, "eager", "sdpa"), remedy="Leave it out: minibert has one attention, which is exact."
    ),
    "device_map": Keyword(_is_cpu_map, "None, 'cpu' or 'auto'", "minibert runs on the CPU. Leave it out."),
    "use_safetensors": _one_of(
        *(None, True), remedy="minibert never opens a pickle. Convert the model to safetensors, and leave it out."
    ),
    "output_loading_info": _nothing("The model is all that is returned. Its `weights.ignored` lists unused tensors."),
    "ignore_mismatched_sizes": _nothing("minibert never makes random weights. Give a checkpoint that fits its config."),
    "state_dict": _nothing("Save the weights as model.safetensors in a folder, and load it."),
    "quantization_config": _nothing(_NO_QUANTISATION),
    "load_in_8bit": _nothing(_NO_QUANTISATION),
    "load_in_4bit": _nothing(_NO_QUANTISATION),
    "from_tf": _nothing("minibert reads model.safetensors. Convert the model with transformers 4."),
    "from_flax": _nothing("minibert reads model.safetensors. Convert the model with transformers 4."),
    "torchscript": _nothing("For tuples give return_dict=False."),
    "key_mapping": _nothing("Rename the tensors in the file."),
    "fusion_config": _nothing(_LEAVE_OUT),
    "is_decoder": _nothing("minibert runs BERT encoders. Leave it out."),
    "add_cross_attention": _nothing("minibert runs BERT encoders. Leave it out."),
    "tp_plan": _nothing(_LEAVE_OUT),
    "tp_size": _nothing(_LEAVE_OUT),
    "device_mesh": _nothing(_LEAVE_OUT),
    "distributed_config": _nothing(_LEAVE_OUT),
    "kernel_config": _nothing(_LEAVE_OUT),
    # They change the memory of loading, training, or the tasks of other models.
    **dict.fromkeys(
        (
            *("low_cpu_mem_usage", "weights_only", "disable_mmap", "max_memory", "offload_folder", "offload_buffers"),
            *("offload_state_dict", "_fast_init", "allow_all_kernels", "use_kernels", "adapter_kwargs", "adapter_name"),
            *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "initializer_range"),
            *("use_cache", "gradient_checkpointing", "problem_type"),
        ),
        _ANYTHING,
    ),
}
"""Keywords of the from_pretrained of a model or its config."""

TOKENIZER_KEYWORDS: Mapping[str, Keyword] = {
    **HUB_KEYWORDS,
    "split_special_tokens": _nothing("Special tokens in a text stay whole. Leave it out."),
    "never_split": _nothing("Leave it out; tokens that stay whole are added tokens of tokenizer.json."),
    "do_basic_tokenize": _one_of(None, True, remedy="Split the texts yourself, and give is_split_into_words=True."),
    "add_prefix_space": _nothing("BERT has no tokens that begin with a space. Leave it out."),
    "add_bos_token": _ANYTHING,  # transformers' BertTokenizer does not use them either
    "add_eos_token": _ANYTHING,
    "from_slow": _ANYTHING,
    "use_fast": _ANYTHING,
    "legacy": _ANYTHING,
    "verbose": _ANYTHING,
    "tokenizer_type": _one_of(None, "bert", remedy="Leave it out: the files say what the tokenizer is."),
    "config": _ANYTHING,
    "device_map": _ANYTHING,
    "torch_dtype": _ANYTHING,
    "dtype": _ANYTHING,
}
"""Keywords of the from_pretrained of a tokenizer."""

PIPELINE_KEYWORDS: Mapping[str, Keyword] = {
    **{name: MODEL_KEYWORDS[name] for name in ("torch_dtype", "dtype", "device_map", "trust_remote_code")},
    "device": Keyword(
        lambda value: value is None or is_cpu(value) or value == -1,
        "None, 'cpu' or -1",
        "minibert runs on the CPU. Leave it out.",
    ),
    "framework": _one_of(None, "pt", remedy=_LEAVE_OUT),
    "use_auth_token": _nothing("Give token=."),
    "feature_extractor": _nothing("The tasks of minibert read texts. Leave it out."),
    "image_processor": _nothing("The tasks of minibert read texts. Leave it out."),
    "processor": _nothing("The tasks of minibert read texts. Leave it out."),
    "binary_output": _nothing(_LEAVE_OUT),
    "args_parser": _nothing(_LEAVE_OUT),
    **dict.fromkeys(("use_fast", "num_workers"), _ANYTHING),
}
"""Keywords of `pipeline`."""

CALL_KEYWORDS: Mapping[str, Keyword] = {
    "verbose": _ANYTHING,
    "split_special_tokens": _nothing("Special tokens in a text stay whole. Leave it out."),
    **dict.fromkeys(
        ("text_target", "max_target_length", "text_pair_target"),
        _nothing("Tokenize the targets in a call of their own."),
    ),
    **dict.fromkeys(("src_lang", "tgt_lang"), _ANYTHING),  # of models that translate; BERT's tokenizers ignore them
    "tokenizer_kwargs": _nothing("Give the keywords themselves."),
    "clean_up_tokenization_spaces": _ANYTHING,
    "add_prefix_space": _nothing("BERT has no tokens that begin with a space. Leave it out."),
    "pad_to_max_length": _nothing("Give padding='max_length'."),
}
"""Keywords of the calls of a tokenizer."""

_ENCODER_ONLY = "minibert runs BERT encoders. Leave it out."

FORWARD_KEYWORDS: Mapping[str, Keyword] = {
    "head_mask": _nothing("Give model.trace(..., edit=minibert.head_mask(mask))."),
    **dict.fromkeys(
        ("labels", "next_sentence_label", "start_positions", "end_positions"),
        _nothing("minibert does not train, so it computes no loss. Leave it out; compute one from the logits."),
    ),
    **{
        name: _nothing(_ENCODER_ONLY)
        for name in ("encoder_hidden_states", "encoder_attention_mask", "past_key_values", "cache_position")
    },
    "use_cache": _ANYTHING,  # an encoder does not have a cache
}
"""Keywords of the calls of a model."""

SAVING_KEYWORDS: Mapping[str, Keyword] = {
    "safe_serialization": _one_of(None, True, remedy="minibert writes safetensors only. Leave it out."),
    "push_to_hub": _nothing("Save into a folder, then run `hf upload`."),
    "is_main_process": _one_of(None, True, remedy="Call save_pretrained in one process only."),
    "state_dict": _nothing("minibert writes the weights that it computes with. Leave it out."),
    "variant": _nothing("Rename the file afterwards."),
    "filename_prefix": _nothing("Rename the files afterwards."),
    **dict.fromkeys(
        (
            *("max_shard_size", "token", "save_peft_format", "save_original_format", "distributed_checkpoint"),
            *("legacy_format", "save_format", "repo_id", "commit_message"),
        ),
        _ANYTHING,
    ),
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
    """Check that the keywords of a call are known and change nothing.

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
            close = difflib.get_close_matches(name, [*own, *known, *settings], 1)
            hint = f" Did you mean {close[0]}=?" if close else ""
            raise TypeError(f"{call}() has no keyword {name}=.{hint} Leave it out; help({call}) lists the keywords.")
        keyword = known[name]
        if not keyword.accepts(value):
            raise ValueError(f"{call}({name}={brief(value)}); expected {keyword.expected}. {keyword.remedy}")
    return {name: value for name, value in given.items() if name in settings}


def arguments_of(function: Callable[..., object]) -> list[str]:
    """Return the names of a function's arguments, without those of ``self`` and ``**keywords``."""
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.name != "self" and one.kind != one.VAR_KEYWORD]


def check_agreement(call: str, given: Mapping[str, object], settings: Mapping[str, object], remedy: str) -> None:
    """Raise a ValueError for a keyword whose value is not that of the model.

    Parameters
    ----------
    call, given
        As in `check_keywords`.
    settings : mapping of str
        The values of the model.
    remedy : str
        The sentence that says how to get another value.
    """
    for name, value in given.items():
        value = getattr(value, "content", value)  # of an AddedToken
        own = settings[name]
        if type(value) is not type(own) or value != own:
            raise ValueError(f"{call}({name}={brief(value)}), but the model has {name}={brief(own)}. {remedy}")


def check_remote_code(call: str, trust_remote_code: object, settings: Mapping[str, object]) -> None:
    """Raise a ValueError if code of the model's repository was asked for, and its settings name such code."""
    if trust_remote_code and settings.get("auto_map"):
        raise ValueError(
            f"{call}(trust_remote_code=True), but minibert never runs code, and this model has some (auto_map). "
            "Leave trust_remote_code= out to load it as a plain BERT; if that is not possible, use transformers."
        )


def given_name(call: str, name: Any, keywords: dict[str, Any], also: str = "pretrained_model_name_or_path") -> Any:
    """Return the name of a model, which may be given under the keyword of transformers; it is taken out of `keywords`.

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
