"""`minibert.vectors.quantization` under its public name."""

from minibert.vectors.quantization import *  # noqa: F403
from minibert.vectors.quantization import __all__ as __all__
