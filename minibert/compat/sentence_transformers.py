"""Import this module before a library that uses sentence-transformers: see `minibert.integrations.stand_in`."""

from minibert.integrations.stand_in import install

_STAND_IN = install()


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_STAND_IN, name)
