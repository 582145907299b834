"""`minibert.integrations.scikit` under its public name."""

from minibert.integrations.scikit import MinibertTransformer

__all__ = ["MinibertTransformer"]
