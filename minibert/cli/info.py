"""``minibert info``: the facts about a model, and what minibert does not support of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import minibert
from minibert.cli.options import COMPUTE_TYPE, add_model_options, add_verb, locate_model
from minibert.errors import ModelFormatError
from minibert.models.backend import choose_compute_type

if TYPE_CHECKING:
    from minibert.checkpoint.files import ModelFiles

_Fact = TypeVar("_Fact")


def add_verbs(verbs: Any) -> None:
    """Add the verb to the command line."""
    text = f"""info: describe a model: sizes, pooling, prompts, limits
        Print the facts about a model, and what minibert does not support.
        --json: one JSON object: {{"source": ..., "facts": {{...}}, "unsupported": [...]}}
        {COMPUTE_TYPE}
        """
    add_model_options(add_verb(verbs, _info, text), backend=False)


def _info(arguments: argparse.Namespace) -> None:
    files = locate_model(arguments)
    facts, unsupported = describe(files, arguments.model, arguments.compute_type)
    if arguments.json:
        report = {"source": files.source, "facts": facts, "unsupported": unsupported}
        print(json.dumps(report, ensure_ascii=False, indent=2))
        return
    print(files.source)
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print(f"  {name:{width}}  {_shown(value)}")
    print("unsupported: " + ("" if unsupported else "nothing"))
    for reason in unsupported:
        print(f"  {reason}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {text!r}" for name, text in value.items()) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


_SIMILARITIES = {"SparseEncoder": "dot", "MultiVectorEncoder": "maxsim"}  # by default


def describe(files: ModelFiles, name: str, compute_type: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the readable facts about a model by name, and the reasons why other facts cannot be read."""
    from minibert.bert.families import architectures
    from minibert.encode.modules import check_modules, list_modules, loader_of, read_pipeline
    from minibert.models.stored import find_heads
    from minibert.sentence.loading import builtin_prompts, check_prompts, transformer_settings

    facts: dict[str, Any] = {}
    unsupported: list[str] = []

    def attempt(read: Callable[[], _Fact]) -> _Fact | None:
        """Return the result of `read`; if it fails, note the reason and return None."""
        try:
            return read()
        except ModelFormatError as error:
            if str(error) not in unsupported:
                unsupported.append(str(error))
            return None

    listed = modules = attempt(lambda: list_modules(files))
    loader = loader_of(modules)
    if loader is None:
        modules = attempt(lambda: [] if (found := list_modules(files)) is None else check_modules(files, found))
    bert = files.subfolder(modules[0].path if modules else "")
    limits: list[int] = []
    settings = attempt(lambda: bert.settings("config.json")) or {}
    config, model = attempt(lambda: minibert.BertConfig.from_files(bert)), None
    if config is None:
        facts["model_type"] = settings.get("model_type")
    else:
        of_heads = ("id2label", "problem_type", "tie_word_embeddings")  # heads are listed by class
        facts |= {key: value for key, value in config.to_dict().items() if key not in of_heads}
        facts["compute type"] = choose_compute_type(compute_type)
        limits.append(config.max_length)
        asked: dict[str, Any] = {"backend": "numpy", "compute_type": "float32", "shared_weights": False}
        model = attempt(lambda: minibert.BertModel.from_files(bert, config=config, **asked))
    if model is not None:
        facts["parameters"] = model.num_parameters()
        facts["pooler"] = model.weights.pooler is not None
        facts["heads"] = list(map(model.config.family.own_class, find_heads(bert)))
        if model.weights.ignored:
            facts["other tensors, not used"] = len(model.weights.ignored)
    tokenizer = attempt(lambda: minibert.BertTokenizer.from_files(bert))
    if tokenizer is not None:
        facts["tokens in the vocabulary"] = len(tokenizer.vocab)
        facts["lower-cased"] = bool(tokenizer.do_lower_case)
        limits += [tokenizer.model_max_length] if tokenizer.model_max_length is not None else []
    _, of_modules = (attempt(lambda: transformer_settings(bert)) if modules else None) or ("", {})
    own = of_modules.get("max_seq_length")
    if isinstance(own, int) and not isinstance(own, bool):  # it replaces the tokenizer's limit
        limits = [own, *limits[:1]]
    if limits:
        facts["max_seq_length"] = min(limits)
    facts["modules"] = [module.kind for module in listed or ()]
    if modules == [] and "HF_ColBERT" in architectures(settings):
        loader = "MultiVectorEncoder"
    if loader is not None:
        facts["loaded by"] = loader
    elif model is not None and modules is not None:
        width, ops = model.config.hidden_size, model.ops
        pipeline = attempt(lambda: read_pipeline(files, modules, width, ops))
        if pipeline is not None:
            facts["pooling"] = list(pipeline.pooling)
            if not pipeline.include_prompt:
                facts["prompts count in pooling"] = False
            facts["after pooling"] = list(pipeline.names)
            facts["embedding_dimension"] = pipeline.widths[-1]
    file = "config_sentence_transformers.json"
    stored = (attempt(lambda: files.settings(file)) if modules else None) or {}
    prompts = attempt(lambda: check_prompts(stored.get("prompts") or {}, file, ModelFormatError)) or {}
    facts["prompts"] = prompts
    if loader != "CrossEncoder":
        facts["similarity_fn_name"] = stored.get("similarity_fn_name") or _SIMILARITIES.get(loader or "", "cosine")
    facts |= {key: stored[key] for key in ("default_prompt_name", "truncate_dim") if stored.get(key) is not None}
    builtin = builtin_prompts(name, settings.get("_name_or_path"))
    if builtin and not any(prompts.values()):
        facts["prompts of its card, with --builtin-prompts"] = builtin
    return facts, unsupported
