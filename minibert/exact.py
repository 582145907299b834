"""`minibert.models.float64` under its public name: the forward in float64."""

from minibert.models.float64 import *  # noqa: F403
from minibert.models.float64 import __all__ as __all__
