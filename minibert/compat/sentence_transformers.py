"""A stand-in for sentence-transformers: import this module, and libraries that import that package get minibert.

The modules of the stand-in are made from a table, and each name is looked up when it is first used. A library may
import and inherit from a class that minibert does not have: it gets a placeholder that raises when an object of it is
made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

import minibert
from minibert._utils.foreign import MODULES_ARE_READ

_NAME = "sentence_transformers"
_MAKER = __name__

# The version of sentence-transformers whose names and arguments minibert has; libraries compare it.
VERSION = f"6.2.0+minibert.{minibert.__version__}"


_WITHOUT = "leave out `import minibert.compat.sentence_transformers`"
_OTHER = (
    "minibert computes vectors and scores, and does not train or evaluate. Use sentence-transformers itself: "
    f"{_WITHOUT}. minibert loads what it saves."
)
_PARTS = f"{MODULES_ARE_READ} To build a model from single modules use sentence-transformers itself: {_WITHOUT}."

_CLASSES = ("SentenceTransformer", "CrossEncoder", "SparseEncoder", "MultiVectorEncoder")
_ENCODERS = ("sentence_transformer", "cross_encoder", "sparse_encoder", "multi_vector_encoder")
_OF_UTIL = ("util", "similarity_functions", "quantization")
_PARTS_OF_UTIL = "dataset decorators deprecated_import distributed environment file_io hard_negatives logging misc"
_PARTS_OF_UTIL += " quantization retrieval similarity tensor"
_OF_TRAINING = "backend data_collator datasets evaluation losses model_card peft_mixin readers sampler trainer"
_OF_TRAINING += " training_args"

# The modules of sentence-transformers 6.2, and the names of versions before 5.4 that libraries still try. With each one
# what is said of a class in it that minibert does not have; "" if there is none, or `_NOT_HERE` knows it.
MODULES = {
    **dict.fromkeys(("", "base", "SentenceTransformer", "sentence_transformer.model", *_OF_UTIL), ""),
    **{f"util.{name}": "" for name in _PARTS_OF_UTIL.split()},
    **dict.fromkeys((*_ENCODERS, "cross_encoder.CrossEncoder"), _OTHER),
    **{f"{folder}.{name}": _OTHER for folder in ("base", *_ENCODERS) for name in ("model", *_OF_TRAINING.split())},
    **dict.fromkeys(_OF_TRAINING.split(), _OTHER),
    **dict.fromkeys(("models", *(f"{folder}.modules" for folder in ("base", *_ENCODERS))), _PARTS),
}

# Names of other parts of the library, in any module.
_NOT_HERE = {
    *(f"{model}{part}" for model in _CLASSES for part in ("Trainer", "TrainingArguments", "ModelCardData")),
    *("DefaultBatchSampler", "InputExample", "MultiDatasetDefaultBatchSampler"),
    *("ParallelSentencesDataset", "mine_hard_negatives"),
}


class _Placeholder(type):
    """The type of classes that can be named and inherited from; making an object of one raises."""

    reason: str

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError(cls.reason)

    def __getattr__(cls, name: str) -> _Placeholder:
        """Return a placeholder, because libraries put attributes of these classes into defaults of arguments."""
        if name.startswith("_"):
            raise AttributeError(name)
        return _placeholder(f"{cls.__qualname__}.{name}", cls.__module__, cls.reason)


def _placeholder(name: str, module: str, reason: str) -> _Placeholder:
    return _Placeholder(name.rpartition(".")[2], (), {"__module__": module, "__qualname__": name, "reason": reason})


class _Module(ModuleType):
    """A module of the stand-in."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, but let no module hide a class: `pkg.SentenceTransformer` is a class and an old module."""
        if not (isinstance(value, _Module) and name[:1].isupper()):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        key = _key(self.__name__)
        if name == "__all__":
            return sorted(import_module("minibert.util").__all__ if key.split(".")[0] in _OF_UTIL else _CLASSES)
        if name.startswith("_"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if not name[:1].isupper() and _key(f"{self.__name__}.{name}") in MODULES:
            return import_module(f"{self.__name__}.{name}")
        reason = _OTHER if name in _NOT_HERE else name[:1].isupper() and MODULES[key]
        if name in _CLASSES:
            value = getattr(minibert, name)
        elif name in (util := import_module("minibert.util")).__all__:
            value = getattr(util, name)
        elif reason:
            value = _placeholder(name, self.__name__, f"{self.__name__}.{name} is not in minibert: {reason}")
        else:
            where = f"{self.__name__}.{name} is not in minibert, which stands in for {_NAME} here."
            raise AttributeError(f"{where} If you need it, {_WITHOUT}.")
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.__getattr__("__all__")})


def _key(fullname: str) -> str:
    return fullname.removeprefix(_NAME).lstrip(".")


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of the stand-in, and its version for importlib.metadata."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != _NAME or _key(fullname) not in MODULES:
            return None
        spec = ModuleSpec(fullname, self, origin=__file__, is_package=True)
        spec.has_location = True  # Python names the file in its error about a name that is not there
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name, f"A stand-in by {_MAKER}.")

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == _NAME:
            module.__dict__["__version__"] = VERSION

    def find_distributions(self, context: Any = None) -> Iterator[Distribution]:
        wanted = getattr(context, "name", None)
        if wanted is None or wanted.replace("-", "_").lower() == _NAME:
            yield _Distribution()


class _Distribution(Distribution):
    """The metadata of the stand-in: name and version."""

    def read_text(self, filename: str) -> str | None:
        metadata = f"Metadata-Version: 2.1\nName: sentence-transformers\nVersion: {VERSION}\n"
        return {"METADATA": metadata, "top_level.txt": f"{_NAME}\n"}.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> Path:
        return Path(path)


def _install() -> ModuleType:
    loaded = sys.modules.get(_NAME)
    if type(loaded).__module__ == _MAKER:  # this module is loaded again
        return loaded  # type: ignore[return-value]
    if loaded is not None:  # libraries that took their names from it would go on using it
        raise ImportError(
            f"{_NAME} is loaded already, from {getattr(loaded, '__file__', None) or 'an unknown place'}. Put "
            f"`import {_MAKER}` before every import of a library that uses {_NAME}, and start a new "
            "process (in a notebook: restart the kernel)."
        )
    sys.modules.pop(_NAME, None)  # None there means that the import is forbidden
    sys.meta_path.insert(0, _Finder())
    return import_module(_NAME)


_STAND_IN = _install()


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_STAND_IN, name)
