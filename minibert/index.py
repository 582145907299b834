"""`minibert.vectors.index` under its public name."""

from minibert.vectors.index import *  # noqa: F403
from minibert.vectors.index import __all__ as __all__
