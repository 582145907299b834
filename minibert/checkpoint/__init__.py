"""Names of models -> their files -> tensors. This folder does not know BERT."""
