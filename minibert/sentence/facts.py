"""`describe`: the facts about a model, and the reasons why it cannot be loaded."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

from minibert._utils.validation import check_stored_int
from minibert.bert.config import BertConfig
from minibert.bert.families import architectures
from minibert.bert.reference import OPS
from minibert.checkpoint.files import ModelFiles
from minibert.encode.modules import STATIC, ModuleEntry, list_modules, loader_of, read_pipeline
from minibert.encode.static import load_static
from minibert.errors import DownloadError, ModelFormatError
from minibert.models.backend import choose_compute_type
from minibert.models.bert import BertModel
from minibert.models.options import LoadOptions
from minibert.models.stored import find_heads
from minibert.sentence.loading import ALWAYS_THERE, SentenceFiles, builtin_prompts, check_prompts, full_name, read_files
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.static import StaticTokenizer

_OF_HEADS = ("id2label", "problem_type", "tie_word_embeddings")  # of config.json; heads are listed by class
_MOST_OF_CARD = 2**22  # characters; cards with results of benchmarks have 500,000
_SIMILARITIES = {"SparseEncoder": "dot", "MultiVectorEncoder": "maxsim"}  # by default


def describe(model_name_or_path: str | os.PathLike[str], options: LoadOptions | None = None) -> dict[str, Any]:
    """Describe a model, also one that cannot be loaded: its sizes, tokenizer, modules and prompts.

    Parameters
    ----------
    model_name_or_path : str or path
        A folder, or a hub id. Short ids mean models of sentence-transformers.
    options : LoadOptions, optional
        Where its files are; `compute_type` is one of the facts.

    Returns
    -------
    dict
        "source": where its files are; "facts": a dict by readable names; "unsupported": a list of the reasons why
        other facts cannot be read.

    Raises
    ------
    DownloadError, OSError, ValueError
        The files are not found, or an option is wrong.
    """
    options = options or LoadOptions()
    found = _Facts(options.locate(full_name(model_name_or_path)), options)
    for part in (found.read_files, found.of_model, found.of_tokenizer, found.of_modules, found.of_prompts):
        try:
            part()
        except ModelFormatError as error:  # the part ends there; the facts before it stay
            if str(error) not in found.unsupported:
                found.unsupported.append(str(error))
    found.of_settings(os.fspath(model_name_or_path))
    facts = found.facts | _read_card(found.files)
    return {"source": found.files.source, "facts": facts, "unsupported": found.unsupported}


class _Facts:
    """The facts of a model's files. Each method adds some, until a file is refused."""

    def __init__(self, files: ModelFiles, options: LoadOptions) -> None:
        self.files, self._options = files, options
        self.facts: dict[str, Any] = {}
        self.unsupported: list[str] = []
        self._listed: list[ModuleEntry] = []
        self._read, self._can_be_read = SentenceFiles(files, files, [], {}, {}, "", {}), False
        self._loader: str | None = None
        self._config: Any = None
        self._tokenizer: BertTokenizer | None = None

    def read_files(self) -> None:
        """Read all files but the tokenizer's and the tensors."""
        found = list_modules(self.files)
        self._listed, self._loader = found or [], loader_of(found)
        self._read = read_files(self.files, self._loader or "SentenceTransformer")
        self._can_be_read = True

    def of_model(self) -> None:
        """Add the sizes, the compute type and the heads."""
        facts, read = self.facts, self._read
        static = bool(read.modules) and read.modules[0].kind == STATIC
        facts["model_type"] = read.config.get("model_type", "static" if static else None)
        if static:
            table, self._tokenizer = load_static(read.bert)
            self._config = table.config
            facts |= {"vectors of tokens": table.config.vocab_size, "hidden_size": table.config.hidden_size}
            facts["unknown words count"] = type(self._tokenizer) is StaticTokenizer
            return
        config = self._config = BertConfig.from_files(read.bert)
        facts |= {key: value for key, value in config.to_dict().items() if key not in _OF_HEADS}
        facts["compute type"] = choose_compute_type(self._options.compute_type)
        plain = LoadOptions(backend="numpy", compute_type="float32", shared_weights=False)
        model = BertModel.from_files(read.bert, plain, config=config)
        facts["parameters"] = model.num_parameters()
        facts["pooler"] = model.weights.pooler is not None
        facts["heads"] = list(map(config.family.own_class, find_heads(read.bert)))
        if model.weights.ignored:
            facts["other tensors, not used"] = len(model.weights.ignored)

    def of_tokenizer(self) -> None:
        """Add the vocabulary and the limit."""
        tokenizer = self._tokenizer or BertTokenizer.from_files(self._read.bert)
        self.facts["tokens in the vocabulary"] = len(tokenizer.vocab)
        self.facts["lower-cased"] = bool(tokenizer.do_lower_case)
        if (config := self._config) is not None:
            settings, where = self._read.settings, self._read.where
            limits = (settings.get("max_seq_length"), tokenizer.model_max_length, config.max_length)
            limit = next(limit for limit in limits if limit is not None)
            checked = check_stored_int(f"{where}: max_seq_length", limit, tokenizer.num_special_tokens_to_add())
            self.facts["max_seq_length"] = min(checked, config.longest)

    def of_modules(self) -> None:
        """Add the modules and the class that loads them, or what they do."""
        facts = self.facts
        facts["modules"] = [module.kind for module in self._read.modules or self._listed]
        if self._can_be_read and not self._listed and "HF_ColBERT" in architectures(self._read.config):
            self._loader = "MultiVectorEncoder"
        if self._loader is not None:
            facts["loaded by"] = self._loader
        elif self._can_be_read and self._config is not None:
            pipeline = read_pipeline(self.files, self._read.modules, self._config.hidden_size, OPS)
            facts["pooling"] = list(pipeline.pooling)
            if not pipeline.include_prompt:
                facts["prompts count in pooling"] = False
            facts["after pooling"] = list(pipeline.names)
            facts["embedding_dimension"] = pipeline.widths[-1]

    def of_prompts(self) -> None:
        """Add the prompts that the model has when it is loaded."""
        always = dict.fromkeys(() if self._loader == "CrossEncoder" else ALWAYS_THERE, "")
        self.facts["prompts"] = always
        stored = self._read.stored.get("prompts") or {}
        self.facts["prompts"] = always | check_prompts(stored, "config_sentence_transformers.json", ModelFormatError)

    def of_settings(self, name_or_path: str) -> None:
        """Add the other settings of the model, and the prompts that minibert has for a model of this name."""
        facts, stored = self.facts, self._read.stored
        if self._loader != "CrossEncoder":
            similarity = stored.get("similarity_fn_name")
            facts["similarity_fn_name"] = similarity or _SIMILARITIES.get(self._loader or "", "cosine")
        for name in ("default_prompt_name", "truncate_dim"):
            if stored.get(name) is not None:
                facts[name] = stored[name]
        of_card = builtin_prompts(name_or_path, self._read.config.get("_name_or_path"))
        if of_card and not any(facts["prompts"].values()):
            facts["prompts of its card, with --builtin-prompts"] = of_card


def _read_card(files: ModelFiles) -> dict[str, list[str]]:
    """Return the languages and the licence that the model's card states, if there is one: README.md's front matter."""
    path = None
    with contextlib.suppress(DownloadError):
        path = files.find("README.md")
    if path is None:
        return {}
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        front = re.match(r"---\s*\n(.*?)^---\s*$", file.read(_MOST_OF_CARD), re.DOTALL | re.MULTILINE)
    found = {}
    for name, field in (("languages", "language"), ("licence", "license")):
        stated = re.search(rf"^{field}:(.*(?:\n[ \t]*- .*)*)", front[1] if front else "", re.MULTILINE)
        if values := re.findall(r"\w[\w.+-]*", re.sub("#.*", "", stated[1]) if stated else ""):
            found[name] = values
    return found
