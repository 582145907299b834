"""`minibert.vectors.search` under its public name."""

from minibert.vectors.search import *  # noqa: F403
from minibert.vectors.search import __all__ as __all__
