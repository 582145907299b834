"""Names of models -> their files -> tensors. This folder does not know BERT."""

__all__: list[str] = []
