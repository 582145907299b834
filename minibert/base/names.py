"""Names that other libraries have and minibert does not: the error says why."""

from __future__ import annotations

import dis
import sys
from typing import NoReturn

__all__ = ["refuse_name"]


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
