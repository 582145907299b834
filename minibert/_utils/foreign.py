"""Names that other libraries have and minibert does not: the error says why."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

__all__ = ["SubmoduleFinder", "refuse_name"]


class SubmoduleFinder:
    """Finds submodules that other libraries have and a package has not: at their place here, or with an ImportError.

    Parameters
    ----------
    package : str
    aliases : mapping of str to str
        Full names of submodules, each with the module whose names it has.
    advice : callable
        Returns the message for a name of the package that is not a module, or None.
    """

    def __init__(self, package: str, aliases: Mapping[str, str], advice: Callable[[str], str | None]) -> None:
        self._package, self._aliases, self._advice = package, aliases, advice

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of an alias; this finder is the last one that is asked."""
        if fullname in self._aliases:
            return ModuleSpec(fullname, self)  # type: ignore[arg-type]  # a loader by its methods
        parent, _, name = fullname.rpartition(".")
        if parent == self._package and (message := self._advice(name)):
            raise ModuleNotFoundError(message, name=fullname)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give a module the names of the one that it stands for."""
        module.__dict__["__getattr__"] = partial(getattr, import_module(self._aliases[module.__name__]))


def refuse_name(module: str, message: str) -> NoReturn:
    """Raise the error of a module without this name; call it in the module's ``__getattr__``.

    Parameters
    ----------
    module : str
        The module without the name, such as "minibert.util".
    message : str
        The whole message.

    Raises
    ------
    ImportError
        The name was imported: ``from module import name``. Python would drop the message of an AttributeError.
    AttributeError
        The name was read: ``module.name``.
    """
    caller = sys._getframe(2)
    if dis.opname[caller.f_code.co_code[caller.f_lasti]] == "IMPORT_FROM":
        raise ImportError(message, name=module)
    raise AttributeError(message)
