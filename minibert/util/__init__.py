"""`minibert.integrations.sentence_transformers_util` under its public name."""

from minibert.integrations.sentence_transformers_util import *  # noqa: F403
from minibert.integrations.sentence_transformers_util import __all__ as __all__
from minibert.integrations.sentence_transformers_util import __getattr__ as __getattr__
