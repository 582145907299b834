"""A stand-in for transformers: import this module, and libraries that import that package get minibert.

It has minibert's names. A class of another architecture can be imported, and raises when it is used; a submodule such
as transformers.utils is not there.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import minibert

_NAME = "transformers"

# The version of transformers whose names and arguments minibert has; libraries compare it.
VERSION = f"5.24.0+minibert.{minibert.__version__}"

_REMEDY = f"If you need it, use {_NAME} itself: leave out `import {__name__}`."


class _StandIn(ModuleType):
    """The module that libraries get."""

    __version__ = VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(minibert, name):
            raise AttributeError(f"{_NAME}.{name} is not in minibert, which stands in for {_NAME} here. {_REMEDY}")
        return getattr(minibert, name)

    def __dir__(self) -> list[str]:
        return dir(minibert)


class _NoSubmodules(MetaPathFinder):
    """Says why transformers.utils and its sisters cannot be imported."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.startswith(f"{_NAME}."):
            message = f"{fullname} is not in minibert, which stands in for {_NAME} here. {_REMEDY}"
            raise ModuleNotFoundError(message, name=fullname)


def _install() -> None:
    loaded = sys.modules.get(_NAME)
    if loaded is not None and type(loaded).__module__ != __name__:
        raise ImportError(
            f"{_NAME} is loaded already, from {getattr(loaded, '__file__', None) or 'an unknown place'}. Put "
            f"`import {__name__}` before every import of a library that uses {_NAME}, and start a new process."
        )
    stand_in = sys.modules[_NAME] = _StandIn(_NAME, f"A stand-in by {__name__}.")
    stand_in.__file__, stand_in.__path__ = __file__, []
    spec = stand_in.__spec__ = ModuleSpec(_NAME, None, origin=__file__, is_package=True)
    spec.has_location = True  # Python names the file in its error about a name that is not there
    sys.meta_path.insert(0, _NoSubmodules())


_install()
