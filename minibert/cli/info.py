"""``minibert info``: the facts about a model, the file of each fact, and what minibert does not support."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from minibert.cli.options import add_compute_type, add_model_options, locate_model, option

if TYPE_CHECKING:
    from minibert.checkpoint.files import ModelFiles
    from minibert.models.bert import BertModel


Part = TypeVar("Part")


def add_verbs(verbs: Any) -> None:
    """Add the verb to the command line."""
    info = verbs.add_parser(
        "info",
        help="describe a model: sizes, pooling, prompts, limits",
        description="Print the facts about a model, the file that each comes from, and what minibert does not support.",
    )
    option(info, "--json", 'one JSON object: {"source": ..., "facts": {...}, "unsupported": [...]}')
    add_model_options(info, backend=False)
    add_compute_type(info)
    info.set_defaults(run=_info)


def _info(arguments: argparse.Namespace) -> None:
    files = locate_model(arguments)
    description = _Description(files, arguments.model, arguments.compute_type)
    if arguments.json:
        facts = {name: {"value": value, "file": file} for name, value, file in description.facts}
        report = {"source": files.source, "facts": facts, "unsupported": description.unsupported}
        print(json.dumps(report, ensure_ascii=False, indent=2))
        return
    print(files.source)
    name_width = max((len(name) for name, _, _ in description.facts), default=0)
    shown = [(name, _shown(value), file) for name, value, file in description.facts]
    value_width = min(48, max((len(value) for _, value, _ in shown), default=0))
    for name, value, file in shown:
        print(f"  {name:{name_width}}  {value:{value_width}}  {file}".rstrip())
    print("unsupported: " + ("nothing" if not description.unsupported else ""))
    for reason in description.unsupported:
        print(f"  {reason}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {text!r}" for name, text in value.items()) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


class _Description:
    """The facts about a model that can be read, as (name, value, file), and the reasons why others cannot."""

    def __init__(self, files: ModelFiles, name: str, compute_type: str | None) -> None:
        from minibert.models.backend import choose_compute_type

        self._compute_type = choose_compute_type(compute_type)
        self.facts: list[tuple[str, object, str]] = []
        self.unsupported: list[str] = []
        self._files, self._name = files, name
        self._model: BertModel | None = None
        from minibert.sentence.modules import check_modules, list_modules, loader_of

        modules = self._try(lambda: list_modules(files))
        self._loader = loader_of(modules)
        if self._loader is None:
            modules = self._try(lambda: [] if (found := list_modules(files)) is None else check_modules(files, found))
        self._folder = modules[0].path if modules else ""
        bert = files.subfolder(self._folder)
        limits = [*self._describe_bert(bert), *self._describe_tokenizer(bert)]
        self._describe_sentences(modules, limits)

    def _try(self, read: Callable[[], Part]) -> Part | None:
        """Return the result of `read`; if it fails, note the reason and return None."""
        from minibert.errors import ModelFormatError

        try:
            return read()
        except ModelFormatError as error:
            if str(error) not in self.unsupported:
                self.unsupported.append(str(error))
            return None

    def _add(self, name: str, value: object, file: str) -> None:
        self.facts.append((name, value, file))

    def _in_folder(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name

    def _settings(self, files: ModelFiles, name: str) -> dict[str, Any]:
        return self._try(lambda: files.settings(name)) or {}

    def _describe_bert(self, files: ModelFiles) -> list[tuple[int, str]]:
        """Add facts of config.json and the weights; return the limits of length, each with its file."""
        from minibert.bert.config import BertConfig
        from minibert.models.bert import BertModel
        from minibert.models.loading import find_heads

        file = self._in_folder("config.json")
        config = self._try(lambda: BertConfig.from_files(files))
        if config is None:
            self._add("model_type", self._settings(files, "config.json").get("model_type"), file)
            return []
        for name, value in config.to_dict().items():
            if name not in ("id2label", "problem_type", "tie_word_embeddings"):  # of heads, which are listed by class
                self._add(name, value, file)
        self._add("compute type", self._compute_type, "")
        self._model = self._try(
            lambda: BertModel.from_files(
                files, config=config, backend="numpy", compute_type="float32", shared_weights=False
            )
        )
        if self._model is not None:
            index = self._try(files.index)
            weights = self._in_folder("model.safetensors.index.json" if index else "model.safetensors")
            self._add("parameters", self._model.num_parameters(), weights)
            self._add("pooler", self._model.weights.pooler is not None, weights)
            self._add("heads", list(find_heads(files)), weights)
            if self._model.weights.ignored:
                self._add("other tensors, not used", len(self._model.weights.ignored), weights)
        return [(config.max_position_embeddings, file)]

    def _describe_tokenizer(self, files: ModelFiles) -> list[tuple[int, str]]:
        from minibert.tokenizer.bert_tokenizer import BertTokenizer

        tokenizer = self._try(lambda: BertTokenizer.from_files(files))
        if tokenizer is None:
            return []
        has_json = self._try(lambda: files.find("tokenizer.json")) is not None
        file = self._in_folder("tokenizer.json" if has_json else "vocab.txt")
        self._add("tokens in the vocabulary", len(tokenizer.vocab), file)
        self._add("lower-cased", bool(tokenizer.do_lower_case), self._in_folder("tokenizer_config.json"))
        if tokenizer.model_max_length is None:
            return []
        return [(tokenizer.model_max_length, self._in_folder("tokenizer_config.json"))]

    def _describe_sentences(self, modules: list[Any] | None, limits: list[tuple[int, str]]) -> None:
        """Add the modules after the BERT model, and the prompts."""
        from minibert.errors import ModelFormatError
        from minibert.sentence.modules import read_pipeline
        from minibert.sentence.prompts import builtin_prompts, check_prompts

        settings = self._settings(self._files.subfolder(self._folder), "sentence_bert_config.json")
        limit = settings.get("max_seq_length")
        if isinstance(limit, int) and not isinstance(limit, bool):  # it replaces the tokenizer's limit
            limits = [(limit, self._in_folder("sentence_bert_config.json")), *limits[:1]]
        if limits:
            self._add("max_seq_length", *min(limits, key=lambda pair: pair[0]))
        self._add("modules", [module.kind for module in modules or ()], "modules.json" if modules else "")
        model = self._model
        if self._loader is not None:
            self._add("loaded by", self._loader, "modules.json")
        elif model is not None and modules is not None:
            pipeline = self._try(lambda: read_pipeline(self._files, modules, model.config.hidden_size, model.ops))
            if pipeline is not None:
                file = f"{modules[1].path}/config.json" if modules else "no modules.json: the default"
                self._add("pooling", list(pipeline.pooling), file)
                if not pipeline.include_prompt:
                    self._add("prompts count in pooling", False, file)
                self._add("after pooling", list(pipeline.names), "modules.json" if modules else "")
                last = next((m.path for m in reversed(modules) if m.kind == "Dense"), None)
                self._add(
                    "embedding_dimension",
                    pipeline.widths[-1],
                    self._in_folder("config.json") if last is None else f"{last}/config.json",
                )
        file = "config_sentence_transformers.json"
        stored = self._settings(self._files, file)
        prompts = self._try(lambda: check_prompts(stored.get("prompts") or {}, file, ModelFormatError)) or {}
        self._add("prompts", prompts, file if stored else "")
        similarity = stored.get("similarity_fn_name")
        if self._loader != "CrossEncoder":
            default = "dot" if self._loader else "cosine"
            self._add("similarity_fn_name", similarity or default, file if similarity else "the default")
        for name in ("default_prompt_name", "truncate_dim"):
            if stored.get(name) is not None:
                self._add(name, stored[name], file)
        base = self._settings(self._files.subfolder(self._folder), "config.json").get("_name_or_path")
        builtin = builtin_prompts(self._name, base)
        if builtin and not any(prompts.values()):
            self._add("prompts of its card", builtin, "minibert itself: --builtin-prompts")
