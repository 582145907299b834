"""`minibert.integrations.util` under its public name."""

from minibert.integrations.util import *  # noqa: F403
from minibert.integrations.util import __all__ as __all__
from minibert.integrations.util import __getattr__ as __getattr__
