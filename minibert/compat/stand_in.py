"""A package that has the name of another library, so that other libraries import minibert where they ask for that one.

Its modules are made from a table, and each name is looked up when it is first used. A library may import and inherit
from a class that minibert does not have: it gets a placeholder, which raises when an object of it is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

__all__ = ["Contents", "Package", "install", "missing"]

# The modules of Python that look for a module, below importlib.util.find_spec or an import.
_IMPORT_MODULES = ("importlib._bootstrap", "_frozen_importlib")


@dataclass(frozen=True)
class Contents:
    """What one module of a stand-in has.

    names
        Names, each with its place in minibert: "module:attribute".
    source
        A module of minibert; all of its public names are here too.
    reasons
        Names of classes that minibert does not have, each with what to do instead. The name "*" means every other name
        that begins with a capital letter.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)

    def is_class(self, name: str) -> bool:
        """Return whether a name is in the tables, so that no module of the same name hides it."""
        return name in self.names or name in self.reasons


@dataclass(frozen=True)
class Package:
    """A stand-in: `modules` maps "" (the package) and "a.b" (a module in it) to their contents.

    `maker` is the module that the user imported, for messages; `distribution` is the name on PyPI.
    """

    name: str
    distribution: str
    version: str
    maker: str
    modules: Mapping[str, Contents]

    def has_module(self, fullname: str) -> bool:
        """Return whether "package.a.b" is one of the modules."""
        return self._key(fullname) in self.modules

    def contents(self, fullname: str) -> Contents:
        """Return the contents of the module "package.a.b"."""
        return self.modules[self._key(fullname)]

    def _key(self, fullname: str) -> str:
        return fullname.removeprefix(self.name).lstrip(".")


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
    """A module of a stand-in."""

    def __init__(self, name: str, package: Package, contents: Contents) -> None:
        super().__init__(name, f"A stand-in by {package.maker}.")
        self.__dict__.update(_package=package, _contents=contents)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, but let no module hide a name: `pkg.SentenceTransformer` is a class and an old module."""
        if not (isinstance(value, _Module) and self._contents.is_class(name)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        package, contents = self._package, self._contents
        if name == "__all__":
            return self._public()
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = self._find(name)
        if value is None:
            reason = contents.reasons.get(name) or (name[:1].isupper() and contents.reasons.get("*"))
            if not reason:
                raise AttributeError(missing(package, f"{self.__name__}.{name}"))
            value = _placeholder(name, self.__name__, f"{self.__name__}.{name} is not in minibert: {reason}")
        self.__dict__[name] = value
        return value

    def _find(self, name: str) -> Any:
        """Return what minibert has under this name, or None."""
        module, _, attribute = self._contents.names.get(name, "").partition(":")
        if not self._contents.is_class(name) and self._package.has_module(f"{self.__name__}.{name}"):
            return import_module(f"{self.__name__}.{name}")
        if not module and not name.startswith("_"):
            module, attribute = self._contents.source, name
        return getattr(import_module(module), attribute, None) if module else None

    def _public(self) -> list[str]:
        source = import_module(self._contents.source) if self._contents.source else None
        return sorted({*self._contents.names, *getattr(source, "__all__", ())})

    def __dir__(self) -> Iterable[str]:
        return sorted({*self.__dict__, *self._public()})


def missing(package: Package, name: str) -> str:
    """Return the message for a name that the stand-in does not have."""
    return (
        f"{name} is not in minibert, which stands in for {package.name} here (by {package.maker}). If you need it, use "
        f"{package.distribution} itself: leave out that import."
    )


def _only_asks() -> bool:
    """Return whether importlib.util.find_spec asks for a module, and not an import; its answer for none is None."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _IMPORT_MODULES:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "importlib.util"


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of a stand-in, and its version for importlib.metadata."""

    def __init__(self, package: Package) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self.package.name:
            return None
        if not self.package.has_module(fullname):
            if _only_asks():
                return None
            # `from package import name` also comes here; with its own name the error would be replaced by Python's
            raise ModuleNotFoundError(missing(self.package, fullname), name=f"{fullname} of {self.package.maker}")
        return ModuleSpec(fullname, self, origin=self.package.maker, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name, self.package, self.package.contents(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == self.package.name:
            module.__dict__["__version__"] = self.package.version

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008 - as in importlib
    ) -> Iterator[Distribution]:
        wanted = context.name
        if wanted is None or wanted.replace("_", "-").lower() == self.package.distribution:
            yield _Distribution(self.package)


class _Distribution(Distribution):
    """The metadata of a stand-in: name and version."""

    def __init__(self, package: Package) -> None:
        self._files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {package.distribution}\nVersion: {package.version}\n",
            "top_level.txt": f"{package.name}\n",
        }

    def read_text(self, filename: str) -> str | None:
        return self._files.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> Path:
        return Path(path)


def install(package: Package) -> ModuleType:
    """Make `import <package.name>` give the stand-in, in this process; do nothing if it does so already.

    Raises
    ------
    ImportError
        The real library is loaded already. Libraries that took their names from it would go on using it.
    """
    loaded = sys.modules.get(package.name)
    if isinstance(loaded, _Module):
        return loaded
    if loaded is not None:
        raise ImportError(
            f"{package.name} is loaded already, from {getattr(loaded, '__file__', None) or 'an unknown place'}. Put "
            f"`import {package.maker}` before every import of a library that uses {package.name}, and start a new "
            "process (in a notebook: restart the kernel)."
        )
    sys.modules.pop(package.name, None)  # None there means that the import is forbidden
    sys.meta_path.insert(0, _Finder(package))
    return import_module(package.name)
