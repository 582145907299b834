"""Names that other libraries have and minibert does not: the error says what to use instead.

A module calls `missing_names` for its ``__getattr__``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

_TRAINING = "minibert does not train; train with transformers or sentence-transformers, and load the folder here"
MODULES_ARE_READ = "minibert reads the modules of a model from its files: SentenceTransformer(folder)."
"""Instead of the classes of sentence_transformers.models."""
_CAPTUM = (
    "minibert computes no gradients. captum has it, for the model in transformers (torch); "
    "torch.from_numpy(trace[name]) gives it the values of minibert. Without gradients there are "
)


def _rows(names: str, instead: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), instead)


# Module -> name -> what to use instead. A name leaves this table when minibert has it.
_INSTEAD: dict[str, dict[str, str]] = {
    "minibert": {
        **_rows("Trainer TrainingArguments SentenceTransformerTrainer InputExample losses AdamW datasets", _TRAINING),
        **_rows("evaluation readers SentenceTransformerModelCardData", "sentence-transformers has it"),
        "ElectraForPreTraining": "AutoModel gives the encoder of a discriminator; minibert does not have its head",
        "TextEmbedding": "use SentenceTransformer; its encode gives the vectors",
    },
    "minibert.util": {
        "mine_hard_negatives": "sentence_transformers.util has it, and it works with a model of minibert",
        **_rows(
            "semantic_search_faiss semantic_search_usearch",
            "the libraries take the vectors of encode; sentence/README.md has the search with one of them",
        ),
        "http_get": "urllib.request.urlretrieve downloads a file",
    },
    "minibert.models": _rows(
        "Transformer Pooling Normalize Dense LayerNorm Dropout LSTM CNN BoW Router WordEmbeddings StaticEmbedding "
        "WeightedLayerPooling SpladePooling Asym MLMTransformer",
        f"{MODULES_ARE_READ} To build a model from single modules use sentence-transformers, save it with "
        "save_pretrained(folder), and load the folder here",
    ),
    "minibert.inside": {
        **_rows(
            "integrated_gradients saliency gradients input_x_gradient deep_lift attributions gradient_shap smooth_grad "
            "attribution_patching head_importance",
            f"{_CAPTUM}leave_one_out, ablate_heads and patch",
        ),
        **_rows("lrp transformer_attribution", f"{_CAPTUM}norms, value_zeroing and rollout"),
    },
}

ALIASES = {
    "minibert.cross_encoder": "minibert.sentence.cross_encoder",
    "minibert.sparse_encoder": "minibert.sentence.sparse_encoder",
    "minibert.multi_vector_encoder": "minibert.sentence.multi_vector_encoder",
    "minibert.sentence_transformer": "minibert.sentence.sentence_transformers",
    "minibert.pipelines": "minibert.tasks.pipelines",
    "minibert.quantization": "minibert.util",
    "minibert.similarity_functions": "minibert.util",
    **{
        f"minibert.util.{name}": "minibert.util"
        for name in ("logging", "quantization", "retrieval", "similarity", "tensor")
    },
}
"""Submodules of transformers and sentence-transformers -> the modules that have their names here."""


def missing_names(module: str, own: Collection[str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module that has the names `own`; its AttributeError says what to use instead.

    A class of another architecture can be imported, because programs import it beside the classes that they use.
    """

    def refuse(name: str) -> Any:
        if f"{module}.{name}" in ALIASES:
            return import_module(f"{module}.{name}")
        if message := _message(module, name):
            if module == "minibert" and _ARCHITECTURE.fullmatch(name):
                return _Refusing(name, (), {"__doc__": message, "__module__": module})
            # ``from module import name`` would drop the message of an AttributeError.
            frame = sys._getframe(1)
            callers = [one.f_code.co_name for one in (frame, frame.f_back) if one is not None]
            raise (ImportError if "_handle_fromlist" in callers else AttributeError)(message)
        import difflib

        nearest = difflib.get_close_matches(name, own, 3, 0.5)
        has = f"the nearest names are {', '.join(nearest)}" if nearest else f"it has {', '.join(own)}"
        raise AttributeError(f"module {module!r} has no attribute {name!r}; {has}")

    return refuse


# Classes of other architectures in transformers, such as GPT2Tokenizer or DPRContextEncoder, and of its pipelines.
_ARCHITECTURE = re.compile(r"[A-Z]\w*?(Tokenizer|TokenizerFast|Config|Model|Encoder|For[A-Z]\w+)")
_PIPELINE = re.compile(r"([A-Z][a-z]\w+)Pipeline")


def _message(module: str, name: str) -> str | None:
    instead = _INSTEAD.get(module, {}).get(name)
    if instead is None and module == "minibert" and (match := _ARCHITECTURE.fullmatch(name)):
        kind, own = match[1].removesuffix("Fast"), sys.modules[module].__dict__["__all__"]
        use = next((auto for auto in (f"Auto{kind}", f"AutoModel{kind}") if auto in own), "AutoModel")
        instead = f"it has models with the forward of BERT only; for these use {use}"
    elif instead is None and module == "minibert" and (match := _PIPELINE.fullmatch(name)):
        task = re.sub("(?<=[a-z])(?=[A-Z])", "-", match[1]).lower()
        instead = f'use pipeline("{task}", model=model, tokenizer=tokenizer)'
    return instead and f"{module} has no {name}: {instead}."


class _Refusing(type):
    """The type of a class that can be imported, but not used."""

    def __call__(cls, *arguments: object, **keywords: object) -> NoReturn:
        raise TypeError(cls.__doc__)

    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(cls.__doc__)


def add_aliases() -> None:
    """Make the modules of `ALIASES`. Each reads its names from minibert's module when it is asked for one."""
    for name, home in ALIASES.items():
        module: Any = sys.modules.setdefault(name, ModuleType(name, f"The names of {home}."))
        module.__spec__ = ModuleSpec(name, None)
        module.__getattr__ = partial(_read, home)
        module.__dir__ = partial(_names, home)


def _read(home: str, name: str) -> Any:
    return getattr(import_module(home), name)


def _names(home: str) -> list[str]:
    return dir(import_module(home))
