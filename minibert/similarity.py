"""`minibert.vectors.similarity` under its public name."""

from minibert.vectors.similarity import *  # noqa: F403
from minibert.vectors.similarity import __all__ as __all__
