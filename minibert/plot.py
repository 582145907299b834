"""`minibert.vectors.plot` under its public name."""

from minibert.vectors.plot import *  # noqa: F403
from minibert.vectors.plot import __all__ as __all__
