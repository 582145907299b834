"""`describe`: the facts about a model, and the reasons why it cannot be loaded."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
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
from minibert.sentence.loading import SentenceFiles, builtin_prompts, check_prompts, full_name, read_files
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
    files = options.locate(full_name(model_name_or_path))
    facts: dict[str, Any] = {}
    unsupported: list[str] = []

    @contextlib.contextmanager
    def until_refused() -> Iterator[None]:
        """End a block where a file is refused, and note the reason."""
        try:
            yield
        except ModelFormatError as error:
            if str(error) not in unsupported:
                unsupported.append(str(error))

    listed: list[ModuleEntry] = []
    read, can_be_read, loader = SentenceFiles(files, files, [], {}, {}, "", {}), False, None
    config: Any = None
    with until_refused():
        found = list_modules(files)
        listed, loader = found or [], loader_of(found)
        read, can_be_read = read_files(files, loader or "SentenceTransformer"), True
    static = bool(read.modules) and read.modules[0].kind == STATIC
    facts["model_type"] = read.config.get("model_type", "static" if static else None)
    tokenizer: BertTokenizer | None = None
    with until_refused():
        if static:
            table, tokenizer = load_static(read.bert)
            config = table.config
            facts |= {"vectors of tokens": config.vocab_size, "hidden_size": config.hidden_size}
            facts["unknown words count"] = type(tokenizer) is StaticTokenizer
        else:
            config = BertConfig.from_files(read.bert)
            facts |= {key: value for key, value in config.to_dict().items() if key not in _OF_HEADS}
            facts["compute type"] = choose_compute_type(options.compute_type)
            plain = LoadOptions(backend="numpy", compute_type="float32", shared_weights=False)
            model = BertModel.from_files(read.bert, plain, config=config)
            facts["parameters"] = model.num_parameters()
            facts["pooler"] = model.weights.pooler is not None
            facts["heads"] = list(map(config.family.own_class, find_heads(read.bert)))
            if model.weights.ignored:
                facts["other tensors, not used"] = len(model.weights.ignored)
    with until_refused():
        tokenizer = tokenizer or BertTokenizer.from_files(read.bert)
        facts["tokens in the vocabulary"] = len(tokenizer.vocab)
        facts["lower-cased"] = bool(tokenizer.do_lower_case)
        if config is not None:
            limits = (read.settings.get("max_seq_length"), tokenizer.model_max_length, config.max_length)
            limit = next(limit for limit in limits if limit is not None)
            checked = check_stored_int(f"{read.where}: max_seq_length", limit, tokenizer.num_special_tokens_to_add())
            facts["max_seq_length"] = min(checked, config.longest)
    facts["modules"] = [module.kind for module in read.modules or listed]
    if can_be_read and not listed and "HF_ColBERT" in architectures(read.config):
        loader = "MultiVectorEncoder"
    if loader is not None:
        facts["loaded by"] = loader
    elif can_be_read and config is not None:
        with until_refused():
            pipeline = read_pipeline(files, read.modules, config.hidden_size, OPS)
            facts["pooling"] = list(pipeline.pooling)
            if not pipeline.include_prompt:
                facts["prompts count in pooling"] = False
            facts["after pooling"] = list(pipeline.names)
            facts["embedding_dimension"] = pipeline.widths[-1]
    facts["prompts"] = {}
    with until_refused():
        stored = read.stored.get("prompts") or {}
        facts["prompts"] = check_prompts(stored, "config_sentence_transformers.json", ModelFormatError)
    if loader != "CrossEncoder":
        similarity = read.stored.get("similarity_fn_name")
        facts["similarity_fn_name"] = similarity or _SIMILARITIES.get(loader or "", "cosine")
    for name in ("default_prompt_name", "truncate_dim"):
        if read.stored.get(name) is not None:
            facts[name] = read.stored[name]
    of_card = builtin_prompts(os.fspath(model_name_or_path), read.config.get("_name_or_path"))
    if of_card and not any(facts["prompts"].values()):
        facts["prompts of its card, with --builtin-prompts"] = of_card
    facts |= _read_card(files)
    return {"source": files.source, "facts": facts, "unsupported": unsupported}


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
