"""Check what the constructors are given: the name of a model, keywords, prompts; and read files of settings.

Keywords of sentence-transformers at values that change nothing are accepted, such as ``trust_remote_code=False`` or
``model_kwargs={}``, because programs and libraries pass them. Other values are refused.

Prompts are the texts that retrieval models expect before each input. They come from the model's files, from the caller,
or from the table in this module, which holds prompts that model cards document but repositories do not store.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal, NamedTuple, TypedDict

from minibert._utils import keywords
from minibert._utils.validation import brief, is_cpu
from minibert.bert.config import SETTINGS as CONFIG_SETTINGS
from minibert.bert.families import architectures
from minibert.checkpoint.files import ModelFiles
from minibert.encode.modules import STATIC, ModuleEntry, check_modules, list_modules, loader_of
from minibert.errors import ModelFormatError
from minibert.models.options import Backend, ComputeType, LoadOptions
from minibert.tokenizer.bert_tokenizer import SETTINGS as TOKENIZER_SETTINGS


class LoadKeywords(TypedDict, total=False):
    """The keywords that all constructors take; `SentenceTransformer` describes them."""

    revision: str | None
    token: str | bool | None
    local_files_only: bool
    backend: Backend | Literal["torch"] | None
    num_threads: int | None
    compute_type: ComputeType | None
    shared_weights: bool | None
    idle_release: float | None
    prompts: Mapping[str, str] | str | None
    default_prompt_name: str | None
    cache_folder: str | os.PathLike[str] | None
    device: object
    modules: None
    trust_remote_code: bool
    model_kwargs: Mapping[str, Any] | None
    processor_kwargs: Mapping[str, Any] | None
    tokenizer_kwargs: Mapping[str, Any] | None
    config_kwargs: Mapping[str, Any] | None
    model_card_data: Any
    use_auth_token: str | bool | None


# --- names and keywords -----------------------------------------------------------------------------------------------

# Hub ids without an organisation that do not belong to sentence-transformers: the BERT models of that library's list.
_PLAIN_BERT = re.compile(
    r"bert-(base|large)-((multilingual|german|german-dbmdz)-)?(cased|uncased|chinese)(-whole-word-masking)?"
    r"(-finetuned-(mrpc|squad))?"
)


def full_name(
    name_or_path: str | os.PathLike[str], organisation: str = "sentence-transformers"
) -> str | os.PathLike[str]:
    """Put an organisation before a short hub id, as sentence-transformers does."""
    if not isinstance(name_or_path, str) or not name_or_path or set(name_or_path) & set("/\\.:"):
        return name_or_path
    plain = not organisation or _PLAIN_BERT.fullmatch(name_or_path.lower()) or os.path.exists(name_or_path)
    return name_or_path if plain else f"{organisation}/{name_or_path}"


# Of the page and the training data of a model, which minibert does not write.
OF_SAVING = keywords.anything("model_name create_model_card train_datasets")

# Sentence vectors use neither the pooler nor other outputs than the hidden states; scores have outputs of their own.
_OUTPUTS = keywords.anything("add_pooling_layer output_hidden_states output_attentions return_dict")


# The calls that take the keywords of a dict, the values that change nothing, and the keywords that name settings.
OF_BERT = ("BertModel.from_pretrained", {**keywords.MODEL_KEYWORDS, **_OUTPUTS}, CONFIG_SETTINGS)
OF_TOKENIZER = (
    "BertTokenizer.from_pretrained",
    {
        **keywords.TOKENIZER_KEYWORDS,
        **keywords.anything("clean_up_tokenization_spaces"),  # of decoding only
        **keywords.accepted(
            "padding_side", None, "right", remedy="Vectors have no padding; on the left it shifts positions."
        ),
        **keywords.accepted("truncation_side", None, "right", remedy="minibert cuts the end of a text."),
    },
    (*TOKENIZER_SETTINGS, "model_max_length"),
)
TABLES = {
    **dict.fromkeys(("model_kwargs", "config_kwargs", "model_args", "config_args"), OF_BERT),
    **dict.fromkeys(("processor_kwargs", "tokenizer_kwargs", "tokenizer_args"), OF_TOKENIZER),
}
"""For each keyword whose value is a dict of keywords, also by its older names: what the dict may hold."""

# Keywords that change no number, so that a file may give any value: where a model is, and the memory that it takes.
_NOT_OF_NUMBERS = (*keywords.HUB_KEYWORDS, "subfolder", "token", "cache_dir", "revision", "local_files_only")
_NOT_OF_NUMBERS += ("attn_implementation", "device_map", "use_safetensors")


class Asked(NamedTuple):
    """Settings that one of these dicts names; they are compared with the model when it is loaded."""

    where: str  # the keyword and who gives it, for messages
    error: type[Exception] | None  # to raise instead of a TypeError or ValueError
    of_bert: bool  # else they are the tokenizer's
    settings: dict[str, Any]


def check_load(call: str, load: Mapping[str, Any]) -> tuple[LoadOptions, list[Asked]]:
    """Check the keywords of a constructor; return the options of loading, and the `asked_settings`."""
    options, rest = LoadOptions.split(load)
    if unknown := rest.keys() - LoadKeywords.__annotations__.keys():
        raise TypeError(f"{call}() got an unexpected keyword argument {min(unknown)!r}.")
    check_device(load.get("device"))
    if load.get("modules") is not None:
        raise ValueError(f"{call}(modules=): minibert runs no modules of torch. Save the model; load the folder.")
    keywords.check_keywords(call, {"trust_remote_code": load.get("trust_remote_code")}, keywords.HUB_KEYWORDS)
    older = load.get("tokenizer_kwargs") or None
    one_of("processor_kwargs", load.get("processor_kwargs") or None, "tokenizer_kwargs", older)
    asked = asked_settings(call, load)
    changed = {
        "cache_dir": one_of("cache_folder", load.get("cache_folder"), "cache_dir", options.cache_dir),
        "token": one_of("token", options.token, "use_auth_token", load.get("use_auth_token")),
        "backend": own_backend(options.backend),
    }
    return dataclasses.replace(options, **changed), asked


def asked_settings(
    giver: str, given: Mapping[str, Any], caller: Mapping[str, Any] | None = None, error: type[Exception] | None = None
) -> list[Asked]:
    """Check the dicts of `TABLES` that a caller or a file gives; return those that name settings.

    Of a file, `caller` are the keywords of the caller: their names are left out, and those that change no number.
    """
    asked = []
    for name, table in TABLES.items():
        method, known, settings = table
        where, own = f"{name} of {giver}:", {} if given.get(name) is None else given[name]
        with prefixed(where, error):
            if not isinstance(own, Mapping) or not all(isinstance(key, str) for key in own):
                raise TypeError(f"it is {brief(own)}; expected a dict of keywords, or None.")
            if caller is not None:
                of_caller = (caller.get(other) or () for other in TABLES if TABLES[other] is table)
                left_out = {*_NOT_OF_NUMBERS, *chain.from_iterable(of_caller)}
                own = {key: value for key, value in own.items() if key not in left_out}
            named = keywords.check_keywords(method, own, known, settings=settings)
        if named:
            asked.append(Asked(where, error, table is OF_BERT, named))
    return asked


# --- files ------------------------------------------------------------------------------------------------------------

_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_FILES = [f"sentence_{kind}_config.json" for kind in _KINDS]

TRANSFORMER_KEYS = ("max_seq_length", "do_lower_case", "unpad_inputs", "backend", "cache_dir", *TABLES)
"""The settings that the encoders use, and those that change no vector."""

# A class, and other model types of config_sentence_transformers.json that it loads too; ColBERT is that of PyLate.
_READ_AS = {"MultiVectorEncoder": ("ColBERT", "SentenceTransformer")}


class SentenceFiles(NamedTuple):
    """What the files of a model say, besides its tokenizer and its tensors.

    Parameters
    ----------
    files, bert : ModelFiles
        Of the model, and of its Transformer.
    modules : list of ModuleEntry
        Empty without modules.json.
    config : dict
        config.json of the Transformer.
    stored : dict
        config_sentence_transformers.json; empty without modules.json.
    where, settings : str, dict
        The name and the content of the file of the Transformer's settings; empty without modules.json.
    """

    files: ModelFiles
    bert: ModelFiles
    modules: list[ModuleEntry]
    config: dict[str, Any]
    stored: dict[str, Any]
    where: str
    settings: dict[str, Any]

    @property
    def source(self) -> str:
        """The model, for messages."""
        return self.files.source


def read_files(files: ModelFiles, call: str) -> SentenceFiles:
    """Read modules.json and the files of settings; ModelFormatError if the class `call` does not load such a model.

    Of model2vec's files, config.json counts: it says whether vectors are scaled to length 1.
    """
    modules = list_modules(files)
    if modules is None and files.settings("config.json").get("model_type") == "model2vec":
        modules = [ModuleEntry(STATIC, "")]
    if modules is None:  # as in sentence-transformers, the settings are those of a plain BERT then
        return SentenceFiles(files, files, [], files.settings("config.json"), {}, "", {})
    stored = files.settings("config_sentence_transformers.json")
    bert = files.subfolder(check_modules(files, modules, call)[0].path)
    if modules[0].kind == STATIC and isinstance(scales := bert.settings("config.json").get("normalize"), bool):
        modules = [entry for entry in modules if entry.kind != "Normalize"] + [ModuleEntry("Normalize", "")] * scales
    if (kind := stored.get("model_type", call)) != call and kind not in _READ_AS.get(call, ()):
        stated = f"config_sentence_transformers.json has model_type={brief(kind)}"
        raise ModelFormatError(f"{files.source}: {stated}; {call} loads {call!r}.")
    return SentenceFiles(files, bert, modules, bert.settings("config.json"), stored, *transformer_settings(bert))


def class_of_files(files: ModelFiles) -> str:
    """Return the name of the class that loads a model: modules.json decides it; without it, `architectures`."""
    if (entries := list_modules(files)) is not None:
        return loader_of(entries) or "SentenceTransformer"
    heads = {"BertForSequenceClassification": "CrossEncoder", "HF_ColBERT": "MultiVectorEncoder"}
    named = architectures(files.settings("config.json"))
    return next((loader for head, loader in heads.items() if head in named), "SentenceTransformer")


def transformer_settings(files: ModelFiles) -> tuple[str, dict[str, Any]]:
    """Return the name and the content of the file of a Transformer's settings: the first one that is not empty."""
    contents = ((name, settings) for name in _FILES if (settings := files.settings(name)))
    return next(contents, (_FILES[0], {}))


# --- other arguments --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def prefixed(begin: str, kind: type[Exception] | None = None) -> Iterator[None]:
    """Put a text before the message of an error, and raise it as another kind of error if one is given."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise (kind or type(error))(f"{begin} {error}") from error


def own_backend(backend: Any) -> Any:
    """Return the backend of minibert that a caller means: "torch" is the default, because libraries pass it."""
    if not isinstance(backend, str):
        return backend
    if backend in ("onnx", "openvino"):
        raise ValueError(f"backend={backend!r} is another library; minibert computes by itself. Leave backend= out.")
    return None if backend == "torch" else backend


def check_device(device: object) -> None:
    """Raise an error for any device but the CPU, which may be given several times, as for several processes."""
    devices = device if isinstance(device, list | tuple) else [device]
    if not all(map(is_cpu, devices)):
        raise ValueError(f"device={brief(device)}: minibert runs on the CPU; leave device= out, or give 'cpu'.")


def one_of(name: str, value: Any, old_name: str, old: Any) -> Any:
    """Return the value of an argument that may be given by its old name."""
    if old is None:
        return value
    if value is not None:
        raise TypeError(f"{old_name}= is the old name of {name}=; give one of them.")
    return old


# --- prompts ----------------------------------------------------------------------------------------------------------

ALWAYS_THERE = ("query", "document")
"""Prompts of each model that turns texts into vectors; they are empty if nobody sets them."""

_E5 = {"query": "query: ", "passage": "passage: "}
_SEARCH = {"query": "Represent this sentence for searching relevant passages: "}
_SEARCH_ZH = {"query": "为这个句子生成表示以用于检索相关文章："}

_TABLE: tuple[tuple[str, dict[str, str]], ...] = (
    # https://huggingface.co/intfloat/e5-base-v2: "Each input text should start with "query: " or "passage: "".
    (r"intfloat/(e5-(small|base|large)(-v2)?|multilingual-e5-small)", _E5),
    # https://huggingface.co/BAAI/bge-base-en-v1.5, the table of its "Model List".
    (r"BAAI/bge-(small|base|large)-en(-v1\.5)?", _SEARCH),
    (r"BAAI/bge-(small|base|large)-zh(-v1\.5)?", _SEARCH_ZH),
    # https://huggingface.co/Snowflake/snowflake-arctic-embed-m, "Usage".
    (r"Snowflake/snowflake-arctic-embed-(xs|s|m|l|m-v1\.5)", _SEARCH),
    # https://huggingface.co/mixedbread-ai/mxbai-embed-large-v1, "Quickstart".
    (r"mixedbread-ai/mxbai-embed-(large|xsmall)-v1", _SEARCH),
)


def builtin_prompts(*names: object) -> dict[str, str]:
    """Return the prompts of the first of these model names that is in the table; an empty dict if none is.

    Parameters
    ----------
    *names : hub ids or paths; other objects than str are ignored
    """
    for name in names:
        for pattern, prompts in _TABLE:
            if isinstance(name, str) and re.fullmatch(pattern, name, flags=re.IGNORECASE):
                return dict(prompts)
    return {}


def read_prompts(
    stored: Mapping[str, Any], load: Mapping[str, Any], builtin: Mapping[str, str], source: str, always: Iterable[str]
) -> tuple[dict[str, str], str | None]:
    """Return the prompts of a model by name, and the name of the default prompt.

    Stored prompts replace those of the card. The caller's replace stored ones.

    Parameters
    ----------
    stored : config_sentence_transformers.json's object
    load : the caller's keywords
        "prompts" is a dict of str to str, or "builtin"; "default_prompt_name" a str. Both are optional.
    builtin : as `builtin_prompts` gives them
    source : str
        The model, for messages.
    always : names
        They are there, with an empty text if nobody gives one.

    Raises
    ------
    ModelFormatError, TypeError, ValueError
        The stored or given prompts do not map names to texts, the table does not have prompts of this model's card, or
        the default is not one of the prompts.
    """
    asked, default = load.get("prompts"), load.get("default_prompt_name")
    file = f"{source}: config_sentence_transformers.json"
    prompts = check_prompts(stored.get("prompts") or {}, file, ModelFormatError)
    if asked == "builtin":
        if not builtin:
            raise ValueError(f"prompts='builtin': {source} has none in minibert. Give them: prompts={{'query': ...}}.")
        prompts = {**builtin, **{name: text for name, text in prompts.items() if text}}
    elif asked is not None:
        prompts |= check_prompts(asked, "prompts", TypeError)
    prompts = {**dict.fromkeys(always, ""), **prompts}
    name = stored.get("default_prompt_name") if default is None else default
    if name is not None and (not isinstance(name, str) or name not in prompts):
        where, error = ("", ValueError) if default is not None else (f"{file} has ", ModelFormatError)
        raise error(f"{where}default_prompt_name={brief(name)}, which is not a prompt; expected one of {[*prompts]}.")
    return prompts, name


def check_prompts(prompts: object, where: str, error: type[Exception]) -> dict[str, str]:
    """Return prompts as a new dict; raise `error` if they do not map names to texts."""
    if not isinstance(prompts, Mapping) or not all(isinstance(x, str) for x in [*prompts, *prompts.values()]):
        raise error(f"{where} must hold prompts as a mapping of names to texts, not {brief(prompts)}.")
    return dict(prompts)
