"""Names of models -> their files -> tensors. Knows nothing of BERT."""

__all__: list[str] = []
